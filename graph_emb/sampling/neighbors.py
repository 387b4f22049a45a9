"""Mini-batches of a typed graph by DGL's neighbour samplers."""

# N nodes of a type, B target nodes.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.compat import dgl as dgl_compat
from graph_emb.core.errors import ConfigError
from graph_emb.graph.typed import EdgeType, HeteroGraph
from graph_emb.sampling.blocks import Batch, Block, BlockEdges, empty_batch

_ID = "_ID"
"""DGL's column of original ids."""


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
        self._seed, self._dgl = seed, dgl
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        """Begin the draws of an epoch, which do not depend on those of the epochs before."""
        self._dgl.seed(int(np.random.SeedSequence((self._seed % (1 << 63), epoch)).generate_state(1)[0]) >> 1)

    def sample(self, targets: Mapping[str, Tensor]) -> Batch:
        """The batch that computes distinct target nodes, in their order.

        Args:
            targets: Ids (B,), int64, by node type; types may be left out.
        """
        asked = {ntype: ids for ntype, ids in targets.items() if len(ids)}
        if not asked:
            return empty_batch(self._ntypes, self._etypes, self._num_layers)
        wanted = asked if len(self._ntypes) > 1 else asked[self._ntypes[0]]
        _, _, blocks = self._sampler.sample(self._graph, wanted)
        rows = {ntype: blocks[-1].dstnodes[ntype].data[_ID] for ntype in self._ntypes}
        found = []
        for block in reversed(blocks):
            converted, rows = self._converted(block, rows)
            found.append(converted)
        return Batch(rows, tuple(reversed(found)))

    def _converted(self, block: Any, ends: dict[str, Tensor]) -> tuple[Block, dict[str, Tensor]]:
        """A round whose destinations are ``ends``, and its source rows, which begin with them.

        DGL 1.1.3 does not put a type's destinations first where no edge reaches that type.
        """
        rows, from_row, to_row = {}, {}, {}
        for ntype in self._ntypes:
            sources = block.srcnodes[ntype].data[_ID]
            rows[ntype] = torch.cat([ends[ntype], sources[~torch.isin(sources, ends[ntype])]])
            from_row[ntype] = _places(sources, rows[ntype])
            to_row[ntype] = _places(block.dstnodes[ntype].data[_ID], ends[ntype])
        edges: dict[EdgeType, BlockEdges] = {}
        for etype in self._etypes:
            src, dst = block.edges(etype=etype)
            ids = block.edges[etype].data[_ID] if len(src) else src
            src, dst = from_row[etype[0]][src], to_row[etype[2]][dst]
            edges[etype] = BlockEdges.from_pairs(src, dst, len(rows[etype[0]]), len(ends[etype[2]]), ids)
        counts = {ntype: len(found) for ntype, found in rows.items()}
        return Block(counts, {ntype: len(ids) for ntype, ids in ends.items()}, edges), rows


def _places(ids: Tensor, among: Tensor) -> Tensor:
    """The position of each distinct id in ``among``, which holds the same ones in another order."""
    if torch.equal(ids, among):
        return torch.arange(len(ids))
    places = torch.empty_like(ids)
    places[ids.argsort()] = among.argsort()
    return places
