"""Messages with learnable edge embeddings: a message function that takes a row of its edge."""

# E edges, S source rows, T destination rows, I, O and D widths of inputs, outputs and edge rows.

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graph_emb.core.errors import ShapeError
from graph_emb.models.gnn.aggregate import gather_sources, mean_messages
from graph_emb.sampling.blocks import BlockEdges


class EdgeMessageLayer(nn.Module):
    """``h_i' = W_0 h_i + mean over edges e = (j, i) of relu(W_1 h_j + W_2 x_e + b) + c``.

    The rows x_e may be a ``DistEmbedding`` with the edge policy of a partition, asked for ``edges.edge_ids``.

    Args:
        in_dim, out_dim: I and O.
        edge_dim: D; 0: messages carry no edge row.

    Example:
        >>> from graph_emb.models.gnn.edge_message import EdgeMessageLayer, both_ways
        >>> edges = both_ways(torch.tensor([0, 1]), torch.tensor([1, 2]), 3)
        >>> edge_table = torch.randn(2, 6)
        >>> layer = EdgeMessageLayer(in_dim=4, out_dim=5, edge_dim=6)
        >>> layer(edges, torch.randn(3, 4), edge_table[edges.edge_ids]).shape
        torch.Size([3, 5])
    """

    def __init__(self, in_dim: int, out_dim: int, edge_dim: int) -> None:
        super().__init__()
        self.own = nn.Linear(in_dim, out_dim)
        self.source = nn.Linear(in_dim, out_dim)
        self.edge = nn.Linear(edge_dim, out_dim, bias=False) if edge_dim else None

    def forward(self, edges: BlockEdges, rows: Tensor, edge_rows: Tensor | None = None) -> Tensor:
        """One round.

        Args:
            edges: From S to T rows.
            rows: Shape (S, I).
            edge_rows: Shape (E, D), in the order of ``edges.edge_ids``; None where D is 0.
        Returns:
            Shape (T, O).
        Raises:
            ShapeError: edge rows that do not fit the edges, or that are missing, or that D = 0 does not take.
        """
        expected = (edges.num_edges, 0 if self.edge is None else self.edge.in_features)
        shape = (edges.num_edges, 0) if edge_rows is None else tuple(edge_rows.shape)
        if shape != expected:
            raise ShapeError(f"edge rows have shape {shape}; expected {expected}")
        messages = gather_sources(self.source(rows), edges)
        if self.edge is not None:
            messages = messages + self.edge(edge_rows)
        met = mean_messages(F.relu(messages), edges)
        out: Tensor = self.own(rows[: edges.num_destinations]) + met
        return out


def both_ways(src: Tensor, dst: Tensor, num_nodes: int) -> BlockEdges:
    """Messages along and against each edge of a graph of N nodes; both directions have the edge's id.

    Args:
        src, dst: Shape (E,), int64, in [0, N).
    """
    ids = torch.arange(len(src))
    return BlockEdges.from_pairs(
        torch.cat([src, dst]), torch.cat([dst, src]), num_nodes, num_nodes, torch.cat([ids, ids])
    )
