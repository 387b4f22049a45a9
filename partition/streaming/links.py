"""LDG and Fennel over neighbours on the disk: both directions of the edges, grouped by node, read in chunks of nodes.

The nodes stream in chunks of consecutive ids: chunks in random order, nodes in random order within. The chunks do not
depend on the memory or on the workers, so neither do the parts. Parallel edges need no merging: the kernel adds up what
the neighbours weigh. Legend: N nodes, L links (an edge is two, a self loop none).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError
from graph_emb.core.progress import Advance
from graph_emb.graph.typed import HeteroGraph
from partition.constraints import Constraints, constraints
from partition.methods.base import METHODS
from partition.methods.coarsening import random_order
from partition.methods.streaming import Placed, checked_passes
from partition.streaming.edges import bucket_of, check_largest, cut_buckets, number_type
from partition.streaming.files import FileArray, append_groups, write
from partition.streaming.plan import Budget
from partition.streaming.shared_stages import Workplace
from partition.streaming.source import EdgeSource

CHUNK_LINKS = 1 << 20
"""Links of a chunk of nodes; a node with more is a chunk of its own."""
STREAMED = ("fennel", "ldg")
KNOWN = ("nodes", "edges")


class Links:
    """Groups the neighbours of each node on the disk, then streams the nodes over them.

    Args:
        num_nodes: N.
        workplace: Receives the links.
    """

    def __init__(self, workplace: Workplace, source: EdgeSource, budget: Budget, num_nodes: int, tick: Advance) -> None:
        self.source, self.budget, self.num_nodes, self.tick = source, budget, num_nodes, tick
        self.workplace = workplace
        self._loose, self._grouped = workplace.folder("links"), workplace.folder("neighbours")
        self._work = budget.work_bytes(num_nodes)
        self._first_nodes = np.zeros(0, np.int64)

    def run(self, degrees: Callable[[str], np.ndarray]) -> None:
        """All steps before the nodes can stream; ``degrees`` gives the in- or out-degrees."""

        def cut(_: int) -> dict[str, Any]:
            both = degrees("in") + degrees("out")
            most = self.budget.bucket_rows(self._work)
            check_largest(both, most, "neighbours")
            return {"first_nodes": cut_buckets(both, np.array([0, self.num_nodes]), most)[0].tolist()}

        self._first_nodes = np.array(self.workplace.run("cut", 1, cut)[0]["first_nodes"], np.int64)
        self.workplace.run("links", len(self.source.slices), self._slice)
        self.workplace.run("neighbours", len(self._first_nodes), self._bucket, self._remove_runs)

    @property
    def _pair(self) -> np.dtype:
        node = number_type(self.num_nodes)
        return np.dtype([("node", node), ("other", node)])

    @property
    def _step(self) -> int:
        return self.budget.block_rows(self._work)

    def _run(self, bucket: int, index: int) -> Path:
        return self._loose / f"{bucket}-{index}"

    def _slice(self, index: int) -> dict[str, Any]:
        paths = [self._run(bucket, index) for bucket in range(len(self._first_nodes))]
        for path in paths:
            path.unlink(missing_ok=True)
        rows, buckets = 0, bucket_of(self._first_nodes, self.num_nodes)
        for block in self.source.blocks(index, self._step // 2, self.budget.block_text(self._work)):
            kept = block.src != block.dst
            src, dst = block.src[kept], block.dst[kept]
            pairs = np.empty(2 * len(src), self._pair)
            pairs["node"][: len(src)], pairs["other"][: len(src)] = src, dst
            pairs["node"][len(src) :], pairs["other"][len(src) :] = dst, src
            append_groups(pairs, buckets[pairs["node"]], paths)
            rows += len(block.src)
            self.tick(len(block.src))
        return {"rows": rows}

    def _bucket(self, bucket: int) -> dict[str, Any]:
        from partition.kernels import relabel as kernels

        ends = np.append(self._first_nodes, self.num_nodes)
        start, stop = int(ends[bucket]), int(ends[bucket + 1])
        runs = tuple(self._run(bucket, index) for index in range(len(self.source.slices)))
        pairs = FileArray(runs, self._pair, self._step)[:]
        order, starts = kernels.group(pairs["node"] - start, stop - start)
        write(self._counts(bucket), np.diff(starts))
        write(self._others(bucket), pairs["other"][order])
        return {"rows": len(pairs)}

    def _remove_runs(self, bucket: int) -> None:
        for index in range(len(self.source.slices)):
            self._run(bucket, index).unlink(missing_ok=True)

    def _counts(self, bucket: int) -> Path:
        return self._grouped / f"{bucket}.counts"

    def _others(self, bucket: int) -> Path:
        return self._grouped / f"{bucket}.others"

    def stream(
        self, wanted: Constraints, num_parts: int, seed: int, method: str, options: Mapping[str, Any], tick: Advance
    ) -> np.ndarray:
        """(N,), int32: the part of each node."""
        passes, order = streamed_options(method, options)
        buckets = range(len(self._first_nodes))
        counts = FileArray(tuple(self._counts(b) for b in buckets), np.dtype(np.int64), self._step)[:]
        others = FileArray(tuple(self._others(b) for b in buckets), number_type(self.num_nodes), self._step)
        chunks = np.append(cut_buckets(counts, np.array([0, self.num_nodes]), CHUNK_LINKS)[0], self.num_nodes)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        del counts
        placed = Placed(wanted, num_parts, float(len(others)), fennel=method == "fennel")
        rng, local, none = np.random.default_rng(seed), np.zeros(self.num_nodes + 1, np.int64), np.empty(0, np.int32)
        for _ in range(passes):
            numbers = range(len(chunks) - 1)
            for chunk in rng.permutation(len(numbers)).tolist() if order == "random" else numbers:
                start, stop = int(chunks[chunk]), int(chunks[chunk + 1])
                local[start : stop + 1] = ends[start : stop + 1] - ends[start]
                inside = random_order(stop - start, rng) if order == "random" else np.arange(stop - start)
                placed.place(start + inside, local, others[int(ends[start]) : int(ends[stop])], none)
                tick(stop - start)
        del ends, chunks
        local[:] = 0  # what little is left above a limit moves without a look at its neighbours
        placed.mend(rng, local, none, none)
        return placed.parts


def streamed_options(method: str, options: Mapping[str, Any]) -> tuple[int, str]:
    """(passes, order) of a streaming method, checked."""
    defaults = inspect.signature(METHODS[method].run).parameters
    passes, order = (options.get(name, defaults[name].default) for name in ("passes", "order"))
    return checked_passes(passes, order), order


def check_streamed(method: str, balance: Sequence[str] | None, seed: int, options: Mapping[str, Any]) -> None:
    """Raise a ConfigError for what a streaming method cannot do here."""
    chosen = METHODS[method]
    names = chosen.balance if balance is None else balance
    chosen.check(names, seed, None, options)
    for name in names:
        if name not in KNOWN:
            raise ConfigError(f"balance {name!r} needs the whole graph in memory; with memory= there are nodes, edges")
    streamed_options(method, options)


def limits_of(
    graph: HeteroGraph,
    degrees: np.ndarray,
    method: str,
    balance: Sequence[str] | None,
    tolerance: float | Mapping[str, float] | None,
) -> Constraints:
    """Constraints of the nodes and their in-degrees, for a graph whose edges lie elsewhere."""
    names = METHODS[method].balance if balance is None else balance
    empty = constraints(graph, names, tolerance)
    rows = [degrees if name == "edges" else np.ones(len(degrees), np.int64) for name in names]
    return replace(empty, weights=np.stack(rows))
