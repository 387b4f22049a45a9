"""GraphSAGE with the mean aggregator (Hamilton et al. 2017), for graphs of one node type."""

# S source rows, T destination rows, I and O widths of a layer.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from graph_emb.models.gnn.aggregate import mean_neighbours
from graph_emb.models.gnn.config import SAGEConfig
from graph_emb.models.gnn.rgcn import InputMaps
from graph_emb.sampling.blocks import Block, BlockEdges


class SAGELayer(nn.Module):
    """``h_i' = W_1 h_i + W_2 mean over the neighbours j of h_j + b``, as PyG's ``SAGEConv``.

    Args:
        in_dim, out_dim: I and O.
    """

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.neighbours = nn.Linear(in_dim, out_dim)
        self.own = nn.Linear(in_dim, out_dim, bias=False)

    def forward(self, edges: BlockEdges, rows: Tensor) -> Tensor:
        """From rows (S, I) to rows (T, O)."""
        out: Tensor = self.neighbours(mean_neighbours(rows, edges)) + self.own(rows[: edges.num_destinations])
        return out


class SAGE(nn.Module):
    """Layers of GraphSAGE with ReLU and dropout between them.

    Args:
        width: Of the input rows; another one than ``config.dim`` passes through a linear map.
        out_dim: Width of the last layer.
        config: Sizes and dropout.

    Example:
        >>> from graph_emb.graph.typed import HeteroGraph
        >>> from graph_emb.models.gnn.config import SAGEConfig
        >>> from graph_emb.models.gnn.sage import SAGE
        >>> from graph_emb.sampling.blocks import whole_graph
        >>> graph = HeteroGraph({"node": 3}, {("node", "to", "node"): (np.array([0, 1]), np.array([1, 2]))})
        >>> network = SAGE(4, 5, SAGEConfig(dim=4, hidden_dim=4, num_layers=2))
        >>> network(whole_graph(graph, 2).blocks, {"node": torch.randn(3, 4)})["node"].shape
        torch.Size([3, 5])
    """

    def __init__(self, width: int, out_dim: int, config: SAGEConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.inputs = InputMaps({"": width}, config.dim)
        sizes = [config.dim, *[config.hidden_dim] * (config.num_layers - 1), out_dim]
        self.layers = nn.ModuleList(SAGELayer(a, b) for a, b in pairwise(sizes))

    def forward(self, blocks: Sequence[Block], rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of the last block's destinations, (T, ``out_dim``), by the name of the only node type."""
        ((ntype, given),) = rows.items()
        hidden = self.inputs({"": given})[""]
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            (edges,) = block.edges.values()
            hidden = layer(edges, hidden)
            if number < len(self.layers) - 1:
                hidden = F.dropout(F.relu(hidden), self.dropout, self.training)
        return {ntype: hidden}
