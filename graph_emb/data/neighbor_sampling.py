"""Mini-batches of a typed graph by DGL's neighbour samplers."""

# N nodes of a type, B target nodes.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graph_emb.compat import dgl as dgl_compat
from graph_emb.data.blocks import Adjacency, Batch, Block, empty_batch
from graph_emb.errors import ConfigError
from partition.hetero import EdgeType, HeteroGraph


class NeighborSampling:
    """Samples the neighbourhoods of target nodes, layer by layer.

    The draws come from DGL's own generators, one for each thread: a run repeats exactly with one OpenMP thread.

    Args:
        graph: The whole graph; messages follow its edges.
        fanouts: For each layer, the first one first, how many in-edges of each edge type a node keeps; -1: all.
        seed: Of the draws.
    Raises:
        ConfigError: a fanout is neither -1 nor positive.
        CompatError: DGL is not installed.
    """

    def __init__(self, graph: HeteroGraph, fanouts: Sequence[int], seed: int = 0) -> None:
        wrong = [fanout for fanout in fanouts if fanout < 1 and fanout != -1]
        if wrong or not fanouts:
            raise ConfigError(f"fanouts={tuple(fanouts)}: give a positive number or -1 (all) for each layer")
        dgl = dgl_compat.load()
        self._ntypes, self._etypes = list(graph.num_nodes), list(graph.edges)
        pairs = {
            etype: (torch.from_numpy(src.astype("int64")), torch.from_numpy(dst.astype("int64")))
            for etype, (src, dst) in graph.edges.items()
        }
        self._graph = dgl.heterograph(pairs, num_nodes_dict=dict(graph.num_nodes)).formats(["csc"])
        self._sampler = dgl.dataloading.NeighborSampler(list(fanouts))
        self._num_layers = len(fanouts)
        dgl.seed(seed % (1 << 31))

    def sample(self, targets: Mapping[str, Tensor]) -> Batch:
        """The batch that computes distinct target nodes, in their order.

        Args:
            targets: Ids (B,), int64, by node type; types may be left out.
        """
        asked = {ntype: ids for ntype, ids in targets.items() if len(ids)}
        if not asked:
            return empty_batch(self._ntypes, self._etypes, self._num_layers)
        wanted = asked if len(self._ntypes) > 1 else asked[self._ntypes[0]]
        inputs, _, blocks = self._sampler.sample(self._graph, wanted)
        by_type = inputs if isinstance(inputs, dict) else {self._ntypes[0]: inputs}
        nothing = torch.empty(0, dtype=torch.int64)
        return Batch(
            {ntype: by_type.get(ntype, nothing) for ntype in self._ntypes},
            tuple(self._converted(block) for block in blocks),
        )

    def _converted(self, block: Any) -> Block:
        edges: dict[EdgeType, Adjacency] = {}
        for etype in self._etypes:
            src, dst = block.edges(etype=etype)
            ids = block.edges[etype].data["_ID"] if len(src) else src
            num_sources, num_destinations = block.num_src_nodes(etype[0]), block.num_dst_nodes(etype[2])
            edges[etype] = Adjacency.from_pairs(src, dst, num_sources, num_destinations, ids)
        return Block(
            {ntype: block.num_src_nodes(ntype) for ntype in self._ntypes},
            {ntype: block.num_dst_nodes(ntype) for ntype in self._ntypes},
            edges,
        )
