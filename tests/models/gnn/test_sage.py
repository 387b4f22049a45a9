"""GraphSAGE's layer against its formula."""

from __future__ import annotations

import torch

from graph_emb.models.gnn.sage import SAGELayer
from graph_emb.sampling.blocks import BlockEdges


def test_a_layer_joins_a_node_with_the_mean_of_its_neighbours() -> None:
    layer = SAGELayer(4, 3)
    edges = BlockEdges.from_pairs(torch.tensor([1, 2, 2]), torch.tensor([0, 0, 1]), 3, 2)
    rows = torch.randn(3, 4)
    out = layer(edges, rows)
    expected = torch.stack([layer.own(rows[0]) + layer.neighbours((rows[1] + rows[2]) / 2),
                            layer.own(rows[1]) + layer.neighbours(rows[2])])  # fmt: skip
    torch.testing.assert_close(out, expected)
