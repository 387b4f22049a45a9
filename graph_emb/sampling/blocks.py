"""Rounds of messages between nodes of several types, over the whole graph or a sampled neighbourhood.

Legend: E edges of one type, S source rows, T destination rows, B target nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from graph_emb.core.errors import ShapeError
from graph_emb.graph.typed import EdgeType, HeteroGraph


@dataclass(frozen=True, eq=False)
class BlockEdges:
    """The edges of one type, grouped by destination.

    Attributes:
        indptr: Shape (T + 1,), int64; the edges into destination row t are ``indptr[t]:indptr[t + 1]``.
        sources: Shape (E,), int64, the source row of each edge.
        num_sources: S.
        edge_ids: Shape (E,), int64: the position of each edge in the graph's list of its type.
    """

    indptr: Tensor
    sources: Tensor
    num_sources: int
    edge_ids: Tensor

    @classmethod
    def from_pairs(
        cls, src: Tensor, dst: Tensor, num_sources: int, num_destinations: int, edge_ids: Tensor | None = None
    ) -> BlockEdges:
        """Edges in any order; those of a destination keep theirs.

        Args:
            src, dst: Rows, shape (E,), int64.
            edge_ids: Shape (E,); None: 0 .. E - 1.
        """
        if src.shape != dst.shape or src.dim() != 1:
            raise ShapeError(f"edges: sources {tuple(src.shape)}, destinations {tuple(dst.shape)}; expected (E,) both")
        order = torch.argsort(dst, stable=True)
        ids = order if edge_ids is None else edge_ids[order]
        return cls(starts_of(dst, num_destinations), src[order], num_sources, ids)

    @property
    def num_destinations(self) -> int:
        """T."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.sources)

    @cached_property
    def degrees(self) -> Tensor:
        """Edges into each destination row, shape (T,), int64."""
        return self.indptr.diff()

    @cached_property
    def destinations(self) -> Tensor:
        """The destination row of each edge, shape (E,), int64."""
        return torch.repeat_interleave(torch.arange(self.num_destinations, device=self.indptr.device), self.degrees)

    @cached_property
    def by_source(self) -> tuple[Tensor, Tensor]:
        """``(indptr, order)``: the edges that leave row s are ``order[indptr[s]:indptr[s + 1]]``."""
        return starts_of(self.sources, self.num_sources), torch.argsort(self.sources, stable=True)

    @cached_property
    def destinations_by_source(self) -> Tensor:
        """The destination row of each edge, in the order of ``by_source``, shape (E,), int64."""
        return self.destinations[self.by_source[1]]

    def without(self, share: float) -> BlockEdges:
        """These edges without a share of them, drawn by torch's generator; rows stay as they are."""
        stays = torch.rand(self.num_edges, device=self.indptr.device) >= share
        counts = torch.zeros(self.num_edges + 1, dtype=torch.int64, device=self.indptr.device)
        torch.cumsum(stays, 0, out=counts[1:])
        return BlockEdges(counts[self.indptr], self.sources[stays], self.num_sources, self.edge_ids[stays])

    def to(self, device: torch.device | str) -> BlockEdges:
        """The same edges on another device."""
        return BlockEdges(self.indptr.to(device), self.sources.to(device), self.num_sources, self.edge_ids.to(device))


@dataclass(frozen=True, eq=False)
class RelationalEdges:
    """The edges of all types, by the (relation, destination) pairs that they reach.

    The rows of all node types lie one after the other, in the order of the types. P pairs, relation after relation.

    Attributes:
        pairs: The edges from all source rows to the P pairs.
        counts: Pairs of each relation.
        ends: From the P pairs to all destination rows.
    """

    pairs: BlockEdges
    counts: list[int]
    ends: BlockEdges


@dataclass(frozen=True, eq=False)
class Senders:
    """The edges of all types, by the (relation, source) pairs that they leave. Q pairs, relation after relation.

    Attributes:
        rows: Of each relation, the distinct rows of its source type that send, ascending.
        edges: From the Q pairs to the P pairs of ``RelationalEdges``.
    """

    rows: tuple[Tensor, ...]
    edges: BlockEdges


@dataclass(frozen=True, eq=False)
class Block:
    """One round of messages. A node type's first T source rows are its T destination rows.

    Attributes:
        num_sources, num_destinations: S and T of each node type.
        edges: The edges of each edge type, none included.
    """

    num_sources: dict[str, int]
    num_destinations: dict[str, int]
    edges: dict[EdgeType, BlockEdges]

    @cached_property
    def relations(self) -> RelationalEdges:
        """All edge types at once."""
        from_row, to_row = _offsets(self.num_sources), _offsets(self.num_destinations)
        sources, degrees, ends, ids, counts = [], [], [], [], []
        for (src_type, _, dst_type), edges in self.edges.items():
            reached = edges.degrees.nonzero().flatten()
            sources.append(edges.sources + from_row[src_type])
            degrees.append(edges.degrees[reached])
            ends.append(reached + to_row[dst_type])
            ids.append(edges.edge_ids)
            counts.append(len(reached))
        into = torch.cat([torch.zeros(1, dtype=torch.int64, device=sources[0].device), *degrees]).cumsum(0)
        pairs = BlockEdges(into, torch.cat(sources), sum(self.num_sources.values()), torch.cat(ids))
        reached = torch.cat(ends)
        places = torch.arange(len(reached), device=reached.device)
        total = sum(self.num_destinations.values())
        return RelationalEdges(pairs, counts, BlockEdges.from_pairs(places, reached, len(reached), total))

    @cached_property
    def senders(self) -> Senders:
        """Who sends by which edge type."""
        pairs, sizes = self.relations.pairs, [edges.num_edges for edges in self.edges.values()]
        numbers = torch.arange(len(sizes), device=pairs.sources.device)
        relations = torch.repeat_interleave(numbers, torch.tensor(sizes, device=pairs.sources.device))
        asked, places = torch.unique(relations * pairs.num_sources + pairs.sources, return_inverse=True)
        counts = torch.bincount(asked // pairs.num_sources, minlength=len(sizes)).tolist()
        from_row = _offsets(self.num_sources)
        rows = (asked % pairs.num_sources).split(counts)
        own = tuple(found - from_row[etype[0]] for etype, found in zip(self.edges, rows, strict=True))
        return Senders(own, BlockEdges(pairs.indptr, places, len(asked), pairs.edge_ids))

    def to(self, device: torch.device | str) -> Block:
        """The same round on another device."""
        return Block(self.num_sources, self.num_destinations, {e: a.to(device) for e, a in self.edges.items()})


@dataclass(frozen=True, eq=False)
class Batch:
    """The rounds of messages that compute some nodes.

    Attributes:
        inputs: Ids of the source rows of the first block, by node type, (S,), int64; empty ones included.
        blocks: A block for each layer.
    """

    inputs: dict[str, Tensor]
    blocks: tuple[Block, ...]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its edges on another device; the ids stay where tables take them, on the CPU."""
        moved = {id(block): block.to(device) for block in self.blocks}  # the whole graph's blocks are one object
        return Batch(self.inputs, tuple(moved[id(block)] for block in self.blocks))


def whole_graph(graph: HeteroGraph, num_layers: int, target: str | None = None) -> Batch:
    """The batch that computes nodes with all their neighbours.

    Args:
        graph: Messages follow its edges.
        num_layers: Rounds.
        target: Compute all nodes of this type; None: of all types.
    """
    edges = all_edges(graph)
    block = Block(dict(graph.num_nodes), dict(graph.num_nodes), edges)
    last = block
    if target is not None:  # other types end a round earlier
        ends = {ntype: num if ntype == target else 0 for ntype, num in graph.num_nodes.items()}
        kept = {e: a if e[2] == target else _no_edges(a.num_sources) for e, a in edges.items()}
        last = Block(block.num_sources, ends, kept)
    inputs = {ntype: torch.arange(num) for ntype, num in graph.num_nodes.items()}
    return Batch(inputs, (*(block,) * (num_layers - 1), last))


def all_edges(graph: HeteroGraph) -> dict[EdgeType, BlockEdges]:
    """The edges of each type of a graph, rows counted as the graph counts nodes."""
    return {
        etype: BlockEdges.from_pairs(
            torch.from_numpy(src.astype("int64")),
            torch.from_numpy(dst.astype("int64")),
            graph.num_nodes[etype[0]],
            graph.num_nodes[etype[2]],
        )
        for etype, (src, dst) in graph.edges.items()
    }


def _no_edges(num_sources: int) -> BlockEdges:
    """No edges, to no destinations."""
    nothing = torch.empty(0, dtype=torch.int64)
    return BlockEdges(torch.zeros(1, dtype=torch.int64), nothing, num_sources, nothing)


def _offsets(counts: dict[str, int]) -> dict[str, int]:
    return dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))


def starts_of(rows: Tensor, num_rows: int) -> Tensor:
    """The start of each row's entries after sorting ``rows`` (E,), shape (num_rows + 1,), int64."""
    starts = torch.zeros(num_rows + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(torch.bincount(rows, minlength=num_rows), 0, out=starts[1:])
    return starts
