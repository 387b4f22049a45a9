"""The report of a partition: measured, compared with random parts, and shown as a table or JSON."""

# N nodes and E edges of all types, P parts, L nodes of a walk

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graph_emb.core.errors import ConfigError
from graph_emb.core.storage import replace_text
from graph_emb.core.terminal import progress_shown
from graph_emb.graph.typed import EdgeType, HeteroGraph
from partition.assignment import Assignment, EdgeOwner
from partition.kernels.forecast import ENTERS, count_edges
from partition.report.forecast import FlatGraph, SampleForecast, WalkForecast, forecast_samples, forecast_walks
from partition.vertex_cut import balanced_owners, edges_of_parts, vertex_cut

Row = tuple[str, str, str]
SPELLED = {"train": "train nodes", "valid": "validation nodes", "test": "test nodes"}


@dataclass(frozen=True)
class ForecastOptions:
    """The training that the forecasts assume.

    Attributes:
        walk_length: Nodes of a walk, the start included.
        fanouts: Sampled in-edges of a node and edge type, those of the seeds first.
        batch_size: Seeds of a batch.
        vertex_cut: Also run HDRF on the edges and tell its replication, which wins on graphs with hubs.
    Raises:
        ConfigError: a number is below 1.
    """

    walk_length: int = 40
    fanouts: tuple[int, ...] = (25, 10)
    batch_size: int = 1024
    vertex_cut: bool = False

    def __post_init__(self) -> None:
        numbers = {"walk_length": self.walk_length, "batch_size": self.batch_size}
        numbers |= {f"fanouts[{hop}]": fanout for hop, fanout in enumerate(self.fanouts)}
        for option, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ConfigError(f"{option} = {value!r}: must be an integer of at least 1")
        if not self.fanouts:
            raise ConfigError("fanouts is empty: give one number for each hop, such as (25, 10)")


DEFAULTS = ForecastOptions()


@dataclass(frozen=True)
class Cut:
    """Counts of one assignment.

    Attributes:
        edge_matrix: Edges from part i to part j, (P, P), int64.
        edges: Edges that each part owns, (P,), int64.
        cut_by_relation: Cut share of each edge type's edges; types without edges are left out.
        nodes: Nodes of each part, (P,), int64.
        balance: Largest part over the mean: ``nodes``, ``edges``, ``type:T`` of each of several node types, and
            the masks ``train``, ``valid``, ``test`` of one value a node. Kinds without a member are left out.
        halo: Nodes of other parts that a part of DGL's layout (one hop) holds copies of, (P,), int64: the other
            ends of the edges that enter or leave it.
        halo_inbound: The same of the inbound-only layout: sources of entering edges.
    """

    edge_matrix: np.ndarray
    edges: np.ndarray
    cut_by_relation: dict[EdgeType, float]
    nodes: np.ndarray
    balance: dict[str, float]
    halo: np.ndarray
    halo_inbound: np.ndarray

    @property
    def num_parts(self) -> int:
        return len(self.nodes)

    @property
    def cut(self) -> float:
        """Share of the edges with ends in two parts; 0 of a graph without edges."""
        total = int(self.edge_matrix.sum())
        return 1.0 - float(np.trace(self.edge_matrix)) / total if total else 0.0

    @property
    def replication_factor(self) -> float:
        """Copies of a node on average, its own part's included, in DGL's layout."""
        return 1.0 + float(self.halo.sum() / self.nodes.sum())

    @property
    def replication_factor_inbound(self) -> float:
        """The same in the inbound-only layout."""
        return 1.0 + float(self.halo_inbound.sum() / self.nodes.sum())


@dataclass(frozen=True)
class Quality:
    """Counts and forecasts of one assignment; ``hops`` has one forecast for each hop of the sampling."""

    cut: Cut
    walks: WalkForecast
    hops: tuple[SampleForecast, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON."""
        cut, walks = self.cut, self.walks
        return {
            "cut_ratio": cut.cut,
            "cut_by_relation": {":".join(etype): share for etype, share in cut.cut_by_relation.items()},
            "balance": dict(cut.balance),
            "nodes": cut.nodes.tolist(),
            "edges": cut.edges.tolist(),
            "edge_matrix": cut.edge_matrix.tolist(),
            "halo": cut.halo.tolist(),
            "halo_inbound": cut.halo_inbound.tolist(),
            "replication_factor": cut.replication_factor,
            "replication_factor_inbound": cut.replication_factor_inbound,
            "walks": {
                "remote_share": walks.share,
                "num_simulated": walks.num_simulated,
                "remote_share_by_step": [
                    float(remote / visits) if visits > 0 else 0.0
                    for remote, visits in zip(walks.remote, walks.visits, strict=True)
                ],
                "remote_share_by_part": walks.by_part.tolist(),
            },
            "sampling": [
                {
                    "hops": hop + 1,
                    "remote_share": forecast.share,
                    "rows_per_batch": forecast.rows.tolist(),
                    "remote_rows_per_batch": forecast.remote.tolist(),
                    "batches_per_epoch": forecast.batches.tolist(),
                }
                for hop, forecast in enumerate(self.hops)
            ],
        }


@dataclass(frozen=True)
class PartitionReport:
    """One partition of one graph, compared with random parts of equal size; without times: the same for a seed.

    Attributes:
        counts: What the reader dropped, merged or added.
        why: Why this method.
        given, random: The same numbers of both.
        walk_length, fanouts, batch_size, is_weighted, seeds: What the forecasts assume.
        vertex_cut: Replication and edge balance of HDRF, where it was asked for.
        levels: Of a nested partition the number of parts, cut, size and empty parts of each level, coarsest first; see
            ``partition.nesting.LevelQuality``.
    """

    name: str
    num_nodes: dict[str, int]
    num_edges: dict[str, int]
    counts: dict[str, int]
    num_parts: int
    method: str
    why: str
    seed: int
    given: Quality
    random: Quality
    walk_length: int
    fanouts: tuple[int, ...]
    batch_size: int
    is_weighted: bool
    seeds: str
    vertex_cut: dict[str, float] | None
    levels: tuple[Mapping[str, float], ...] = ()

    def facts(self) -> list[tuple[str, str]]:
        """Graph, parts and method, a name and a text each."""
        facts = [
            ("graph", self.name),
            ("nodes", _counted(self.num_nodes)),
            ("edges", _counted(self.num_edges)),
            ("parts", str(self.num_parts)),
            ("method", f"{self.method}, seed {self.seed}"),
            ("why", self.why),
        ]
        facts += [(what, f"{number:,}") for what, number in self.counts.items()]
        if self.vertex_cut is not None:
            replication, balance = self.vertex_cut["replication_factor"], self.vertex_cut["edge_balance"]
            facts.append(("vertex-cut (HDRF)", f"{replication:.3f} replicas of a node, edge balance {balance:.3f}"))
        facts += [(f"level of {level['num_parts']:,} parts", level_text(level)) for level in self.levels]
        return [fact for fact in facts if fact[1]]

    def rows(self) -> list[Row]:
        """Each number with its value for this partition and for random parts."""
        given, random = self._numbers(self.given), self._numbers(self.random)
        return [(label, own, other) for (label, own), (_, other) in zip(given, random, strict=True)]

    def _numbers(self, quality: Quality) -> list[tuple[str, str]]:
        cut = quality.cut
        numbers = [("cut edges", _percent(cut.cut))]
        if len(cut.cut_by_relation) > 1:
            numbers += [(f"  {':'.join(etype)}", _percent(share)) for etype, share in cut.cut_by_relation.items()]
        for kind, value in cut.balance.items():
            numbers.append((f"balance of {SPELLED.get(kind, kind.replace(':', ' ', 1))}", f"{value:.3f}"))
        numbers += [
            ("copies of a node (DGL's halo)", f"{cut.replication_factor:.3f}"),
            ("copies of a node (inbound halo)", f"{cut.replication_factor_inbound:.3f}"),
            ("largest halo, nodes", f"{int(cut.halo.max()):,}"),
            (f"remote rows of walks of {self.walk_length}", _percent(quality.walks.share)),
        ]
        for hop, forecast in enumerate(quality.hops):
            shown = ", ".join(map(str, self.fanouts[: hop + 1]))
            numbers.append((f"remote rows of {hop + 1}-hop samples ({shown})", _percent(forecast.share)))
        return numbers

    def table(self) -> str:
        """Facts and numbers as text for a terminal."""
        from tabulate import tabulate

        facts = tabulate(self.facts(), tablefmt="plain")
        simple = partial(tabulate, tablefmt="simple", disable_numparse=True, preserve_whitespace=True)
        numbers = simple(self.rows(), headers=["", self.method, "random"], colalign=("left", "right", "right"))
        return f"{facts}\n\n{numbers}\n\n{self.assumptions()}"

    def assumptions(self) -> str:
        """Assumptions of the forecasts, in two sentences."""
        weights = "edge weights" if self.is_weighted else "edges at equal chance"
        simulated = self.given.walks.num_simulated
        how = f"{simulated:,} simulated" if simulated else "exact"
        return (
            f"Walks: one from each node, worked at the part of its start, {weights}; every visit counts, {how}. "
            f"Samples: batches of {self.batch_size} seeds of one part ({self.seeds}), distinct input rows, "
            "the mean of sampled batches."
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, lists and texts."""
        kept = {n: getattr(self, n) for n in self.__dataclass_fields__ if n not in ("given", "random", "fanouts")}
        both = {"given": self.given.to_dict(), "random": self.random.to_dict()}
        return kept | {"fanouts": list(self.fanouts), "assumptions": self.assumptions()} | both

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON text, also written to ``path`` where one is given."""
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"
        if path is not None:
            replace_text(path, text)
        return text


def report(
    graph: HeteroGraph,
    assignment: Assignment,
    recipe: ForecastOptions = DEFAULTS,
    *,
    edge_owner: EdgeOwner = "destination",
    levels: Sequence[Mapping[str, float]] = (),
    progress: bool | None = None,
) -> PartitionReport:
    """Measure an assignment of a graph, and a random one with parts of equal size.

    Memory: a byte for each node and part, four bytes an edge (twelve for ``"balanced"``), and up to 256 bytes a node.

    Args:
        edge_owner: Which edges are a part's own, see ``partition.vertex_cut.edge_owner``; the random parts' too.
        levels: Of a nested partition, as of ``PartitionReport``.
        progress: Whether forecasts of more than two seconds show a bar; None: where standard error is a terminal.
    Raises:
        PartitionError: the assignment does not fit the graph.
    """
    assignment.check(graph)
    flat = FlatGraph(graph)
    both = [
        np.concatenate([assignment.parts[ntype] for ntype in graph.ntypes]).astype(np.int32, copy=False),
        random_parts(flat, assignment.num_parts, assignment.seed),
    ]
    with progress_shown(progress):
        walks = forecast_walks(flat, both, assignment.num_parts, recipe.walk_length)
        hops = forecast_samples(flat, both, assignment.num_parts, tuple(recipe.fanouts), recipe.batch_size)
        cuts = [measure_cut(flat, own, assignment.num_parts, edge_owner) for own in both]
    given, random = (Quality(*each) for each in zip(cuts, walks, hops, strict=True))
    streamed = None
    if recipe.vertex_cut and graph.total_edges:
        cut = vertex_cut(graph, assignment.num_parts)
        streamed = {"replication_factor": cut.replication_factor, "edge_balance": cut.edge_balance}
    return PartitionReport(
        name=graph.name,
        num_nodes=dict(graph.num_nodes),
        num_edges={":".join(etype): len(src) for etype, (src, _) in graph.edges.items()},
        counts=dict(graph.counts),
        num_parts=assignment.num_parts,
        method=assignment.method,
        why=assignment.why,
        seed=assignment.seed,
        given=given,
        random=random,
        walk_length=recipe.walk_length,
        fanouts=tuple(recipe.fanouts),
        batch_size=recipe.batch_size,
        is_weighted=flat.weights is not None,
        seeds="train nodes" if not flat.seeds.all() else "all nodes",
        vertex_cut=streamed,
        levels=tuple(levels),
    )


def level_text(level: Mapping[str, float]) -> str:
    """What a level of a nested partition is like, in a few words."""
    return f"cut {level['cut']:.1%}, largest {level['largest']:.2f} of the mean, {level['empty']} empty"


def measure_cut(flat: FlatGraph, parts: np.ndarray, num_parts: int, edge_owner: EdgeOwner = "destination") -> Cut:
    """All counts in one pass over the edges of each type.

    Args:
        parts: The part of each node, (N,).
        edge_owner: Whose edges count as a part's own, see ``partition.vertex_cut.edge_owner``.
    """
    whole = np.zeros((num_parts, num_parts), np.int64)
    by_relation: dict[EdgeType, float] = {}
    seen = np.zeros((flat.num_nodes, num_parts), np.uint8)
    offsets = flat.graph.node_offsets
    for etype, (src, dst) in flat.graph.edges.items():
        matrix = np.zeros_like(whole)
        count_edges(src, dst, offsets[etype[0]], offsets[etype[2]], parts, matrix, seen)
        if len(src):
            by_relation[etype] = 1.0 - float(np.trace(matrix)) / len(src)
        whole += matrix
    nodes = np.bincount(parts, minlength=num_parts)
    if edge_owner == "balanced":
        assignment = Assignment.of_homogeneous(flat.graph, parts, num_parts)
        edges = edges_of_parts(balanced_owners(flat.graph, assignment), num_parts)
    else:
        edges = whole.sum(axis=1 if edge_owner == "source" else 0)
    sizes = {"nodes": nodes, "edges": edges}
    if len(flat.types) > 1:
        sizes |= {f"type:{t}": np.bincount(parts[own], minlength=num_parts) for t, own in flat.types.items()}
    sizes |= {part: np.bincount(parts[mask], minlength=num_parts) for part, mask in flat.masks.items()}
    return Cut(
        edge_matrix=whole,
        edges=edges,
        cut_by_relation=by_relation,
        nodes=nodes,
        balance={kind: float(size.max() / size.mean()) for kind, size in sizes.items() if size.any()},
        halo=np.count_nonzero(seen, axis=0),
        halo_inbound=np.count_nonzero(seen & ENTERS, axis=0),
    )


def random_parts(flat: FlatGraph, num_parts: int, seed: int) -> np.ndarray:
    """Parts of equal size in each node type, drawn at random, (N,), int32: what a report compares with."""
    stream = np.random.default_rng([seed & (2**64 - 1), num_parts])
    parts = np.empty(flat.num_nodes, np.int32)
    for own in flat.types.values():
        parts[own] = stream.permutation(np.arange(own.stop - own.start, dtype=np.int32) % num_parts)
    return parts


def _counted(numbers: dict[str, int]) -> str:
    total = f"{sum(numbers.values()):,}"
    return total if len(numbers) == 1 else f"{total} of {len(numbers)} types"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"
