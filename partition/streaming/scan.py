"""The first pass: how many edges and nodes there are, the degrees, whether weights say anything.

Legend: N nodes, E edges.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.progress import Advance
from partition.streaming.files import write
from partition.streaming.plan import Budget
from partition.streaming.shared_stages import Workplace
from partition.streaming.source import EdgeSource


class Scan:
    """Counts one slice at a time.

    Args:
        source: The edges.
        workplace: Receives the degrees of each slice.
        budget: Bounds blocks and the number of nodes.
        tick: Called with the edges that were read.
    """

    def __init__(self, source: EdgeSource, workplace: Workplace, budget: Budget, tick: Advance) -> None:
        self.source, self.budget, self.tick = source, budget, tick
        self.folder = workplace.folder("scan")
        self.limit = budget.most_nodes
        if source.options.id_limit is not None:
            budget.work_bytes(source.options.id_limit)

    def slice(self, index: int) -> dict[str, Any]:
        """Rows, nodes and weights of one slice; its in- and out-degrees go to files."""
        from partition.kernels import relabel as kernels

        # While nodes are counted nothing else is held, and what a block takes is part of the least room.
        work = self.budget.work_bytes(self.limit)
        degrees = [np.zeros(1, np.int64), np.zeros(1, np.int64)]
        rows, weighted, dtypes = 0, False, set()
        for block in self.source.blocks(index, self.budget.block_rows(work), self.budget.block_text(work)):
            num = 1 + int(max(block.src.max(), block.dst.max()))
            if num > self.limit:
                raise ConfigError(
                    f"{self.source.path}: node {num - 1} needs room for {num:,} nodes, the memory has room for "
                    f"{self.limit:,}; raise it, or number the nodes 0 .. N - 1 first"
                )
            for side, ids in enumerate((block.dst, block.src)):
                if num >= len(degrees[side]):
                    grown = np.zeros(max(num, min(2 * num, self.limit)) + 1, np.int64)
                    grown[: len(degrees[side])] = degrees[side]
                    degrees[side] = grown
                kernels.count_ids(ids, 1, degrees[side])
            rows += len(block.src)
            dtypes.add("" if block.weights is None else block.weights.dtype.str)
            weighted |= block.weights is not None and bool((block.weights != 1).any())
            self.tick(len(block.src))
        if len(dtypes) > 1:
            raise DataError(f"{self.source.path}: weights of several kinds or only in some files; say weights='ignore'")
        num_nodes = max(int(np.flatnonzero(counts)[-1]) if counts.any() else 0 for counts in degrees)
        for name, counts in zip(("in", "out"), degrees, strict=True):
            write(self._path(name, index), counts[1 : num_nodes + 1].astype(np.int32))
        return {"rows": rows, "num_nodes": num_nodes, "weighted": weighted, "dtype": dtypes.pop()}

    def _path(self, name: str, index: int) -> Path:
        return self.folder / f"{name}-{index}"

    def degrees(self, name: str, num_nodes: int) -> np.ndarray:
        """(N,), int64: ``in`` or ``out`` degrees over all slices."""
        total = np.zeros(num_nodes, np.int64)
        for index in range(len(self.source.slices)):
            counts = np.fromfile(self._path(name, index), np.int32)
            total[: len(counts)] += counts
        return total

    def check_no_gaps(self, num_nodes: int) -> dict[str, Any]:
        """Refuse node numbers that no edge has, unless the user said how many nodes there are.

        The reader in memory would number the nodes anew and keep their ids; here nothing is renumbered.

        Raises:
            ConfigError: the first such node.
        """
        if self.source.options.id_limit is not None:
            return {"missing": None}
        unseen = np.flatnonzero((self.degrees("in", num_nodes) == 0) & (self.degrees("out", num_nodes) == 0))
        if len(unseen):
            raise ConfigError(
                f"{self.source.path}: no edge has node {unseen[0]} ({len(unseen):,} of {num_nodes:,} are missing); "
                f"with memory= say num_nodes={num_nodes} to keep them as nodes without edges"
            )
        return {"missing": 0}
