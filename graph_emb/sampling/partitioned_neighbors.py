"""Sampled neighbourhoods of a graph of which each rank holds the edges into its own nodes.

A round of a batch takes four exchanges, whatever the number of edge types: how many nodes each rank is asked about,
which ones, how many edges of each type they keep, and the edges. Nodes are counted in partition order.
"""

# W ranks, R nodes of one type that a rank owns, B asked nodes, E edges.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graph_emb.graph.partition_book import RankRanges
from graph_emb.graph.typed import EdgeType
from graph_emb.sampling.blocks import BlockEdges
from graph_emb.sampling.neighbors import InEdges, NeighborSampling, kept
from graph_emb.transport.process_group import ProcessGroup

WHAT = "sampled neighbourhoods"


@dataclass(frozen=True, eq=False)
class OwnEdges:
    """A rank's part of a graph.

    Attributes:
        num_nodes: N of each node type, of the whole graph.
        places: Which rank owns which nodes of a type.
        names: The number that every process calls each own node of a type by, shape (R,), int64: its original one.
        edges: The edges of each type that end at own nodes: destinations count from the first own node, sources are
            nodes of the whole graph, and those of a destination stand in the order of the graph's own list.
        group: The ranks.
    """

    num_nodes: Mapping[str, int]
    places: Mapping[str, RankRanges]
    names: Mapping[str, Tensor]
    edges: Mapping[EdgeType, BlockEdges]
    group: ProcessGroup

    @property
    def ntypes(self) -> list[str]:
        """The node types, in order."""
        return list(self.num_nodes)

    @property
    def etypes(self) -> list[EdgeType]:
        """The edge types, in order."""
        return list(self.edges)

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """This rank's nodes [low, high) of each type."""
        return {ntype: places.owned(self.group.rank) for ntype, places in self.places.items()}

    def owned(self, ntype: str) -> Tensor:
        """This rank's nodes of a type, (R,), int64."""
        return torch.arange(*self.places[ntype].owned(self.group.rank))


class PartitionedNeighborSampling(NeighborSampling):
    """``NeighborSampling`` where the owner of a node draws its edges. Every rank makes the same calls.

    Args:
        own: This rank's part.
        fanouts, seed: As for ``NeighborSampling``; the same on every rank, and the neighbourhoods are the same too.
    """

    def __init__(self, own: OwnEdges, fanouts: Sequence[int], seed: int = 0) -> None:
        super().__init__(own, fanouts, seed, edges=own.edges)
        self._own = own

    def follow(self, graph: OwnEdges) -> None:
        """As ``NeighborSampling.follow``, with this rank's part. Every rank calls it."""
        self._follow(graph, lambda: graph.edges)
        self._own = graph

    def _into(self, ends: Mapping[str, Tensor], layer: int) -> dict[EdgeType, InEdges]:
        own, group = self._own, self._own.group
        ranks = range(group.world_size)
        type_of = [self._ntypes.index(etype[2]) for etype in own.etypes]
        order, asking = [], []
        for ntype in self._ntypes:
            owner = own.places[ntype].owner(ends[ntype])
            order.append(torch.argsort(owner, stable=True))
            asking.append(torch.bincount(owner, minlength=len(ranks)))
        ask = torch.stack(asking, dim=1)  # (W, types): how many nodes this rank asks each one about
        asked = group.exchange_numbers(ask, WHAT)
        pieces = [
            ends[ntype][by_owner].split(counts.tolist())
            for ntype, by_owner, counts in zip(self._ntypes, order, ask.T, strict=True)
        ]
        came = group.exchange(
            torch.cat([of_type[rank] for rank in ranks for of_type in pieces]),
            ask.sum(dim=1).tolist(),
            asked.sum(dim=1).tolist(),
            WHAT,
        ).split(asked.flatten().tolist())

        counts, edges = [], []
        for number, (etype, all_edges) in enumerate(own.edges.items()):
            t = type_of[number]
            nodes = torch.cat([came[rank * len(self._ntypes) + t] for rank in ranks])
            rows = nodes - own.places[etype[2]].owned(group.rank)[0]
            found = kept(all_edges, rows, own.names[etype[2]][rows], self._fanouts[layer], self._key(layer, number))
            counts.append(found.indptr.diff().split(asked[:, t].tolist()))
            sizes = [int(part.sum()) for part in counts[-1]]
            edges.append(torch.stack([found.sources, found.edge_ids], dim=1).split(sizes))
        theirs, here = asked[:, type_of], ask[:, type_of]  # (W, edge types): answers to give, and to get
        back = _interleaved(counts, ranks, theirs.sum(dim=1).tolist(), here.sum(dim=1).tolist(), group)
        got = back.split(here.flatten().tolist())
        number_of_edges = torch.stack([part.sum() for part in got]).view(len(ranks), -1)
        to_send = [sum(len(of_type[rank]) for of_type in edges) for rank in ranks]
        ended = _interleaved(edges, ranks, to_send, number_of_edges.sum(dim=1).tolist(), group)
        lists = ended.split(number_of_edges.flatten().tolist())
        return {
            etype: _in_order(order[type_of[e]], got[e :: len(type_of)], lists[e :: len(type_of)])
            for e, etype in enumerate(own.etypes)
        }


def _interleaved(
    pieces: Sequence[Sequence[Tensor]],
    ranks: range,
    to_send: Sequence[int],
    to_receive: Sequence[int],
    group: ProcessGroup,
) -> Tensor:
    """Send to each rank its piece of every edge type, one type after the other."""
    return group.exchange(torch.cat([of_type[rank] for rank in ranks for of_type in pieces]), to_send, to_receive, WHAT)


def _in_order(by_owner: Tensor, counts: Sequence[Tensor], edges: Sequence[Tensor]) -> InEdges:
    """Edges into nodes in the order in which they were asked for.

    Args:
        by_owner: Where in the asked nodes the nodes of the answers stand, shape (B,).
        counts, edges: The answers, rank after rank.
    """
    answered, flat = torch.cat(list(counts)), torch.cat(list(edges))
    place = torch.empty_like(by_owner)
    place[by_owner] = torch.arange(len(by_owner))
    starts = (answered.cumsum(0) - answered)[place]
    wanted = answered[place]
    indptr = torch.cat([wanted.new_zeros(1), wanted.cumsum(0)])
    within = torch.arange(len(flat)) - torch.repeat_interleave(indptr[:-1], wanted)
    chosen = flat[torch.repeat_interleave(starts, wanted) + within]
    return InEdges(indptr, chosen[:, 0].contiguous(), chosen[:, 1].contiguous())
