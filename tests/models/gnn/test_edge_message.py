"""Messages with rows of their edges."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import graph_emb as ge
from graph_emb.core.errors import ShapeError
from graph_emb.models.gnn.edge_message import EdgeMessageLayer, both_ways


def test_a_message_carries_its_edges_row_in_both_directions() -> None:
    edges = both_ways(torch.tensor([0, 0]), torch.tensor([1, 2]), 3)
    assert edges.edge_ids.tolist() == [0, 1, 0, 1]
    layer = EdgeMessageLayer(2, 3, 4)
    assert layer.edge is not None
    nodes, table = torch.randn(3, 2), torch.randn(2, 4)
    out = layer(edges, nodes, table[edges.edge_ids])

    def message(source: int, edge: int) -> torch.Tensor:
        return F.relu(layer.source(nodes[source]) + layer.edge(table[edge]))  # type: ignore[misc]

    torch.testing.assert_close(out[0], layer.own(nodes[0]) + (message(1, 0) + message(2, 1)) / 2)
    torch.testing.assert_close(out[2], layer.own(nodes[2]) + message(0, 1))


def test_gradients_of_both_directions_meet_in_one_row_of_the_table() -> None:
    edges = both_ways(torch.tensor([0]), torch.tensor([1]), 2)
    table = ge.DistEmbedding(1, 4)
    layer = EdgeMessageLayer(2, 3, 4)
    with torch.no_grad():
        layer.source.bias.fill_(10.0)  # every unit is on
    layer(edges, torch.zeros(2, 2), table(edges.edge_ids)).sum().backward()
    ((ids, grads),) = table.pending()
    assert ids.tolist() == [0, 0]
    assert layer.edge is not None
    torch.testing.assert_close(grads, layer.edge.weight.sum(0).expand(2, -1))


def test_edge_rows_that_do_not_fit_are_refused() -> None:
    edges = both_ways(torch.tensor([0]), torch.tensor([1]), 2)
    with pytest.raises(ShapeError, match=r"edge rows have shape \(2, 0\); expected \(2, 4\)"):
        EdgeMessageLayer(2, 3, 4)(edges, torch.zeros(2, 2))
    with pytest.raises(ShapeError, match=r"edge rows have shape \(1, 4\); expected \(2, 4\)"):
        EdgeMessageLayer(2, 3, 4)(edges, torch.zeros(2, 2), torch.zeros(1, 4))
    with pytest.raises(ShapeError, match=r"edge rows have shape \(2, 4\); expected \(2, 0\)"):
        EdgeMessageLayer(2, 3, 0)(edges, torch.zeros(2, 2), torch.zeros(2, 4))
