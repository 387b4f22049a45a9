"""R-GCN's layers against the paper's formula."""

from __future__ import annotations

import torch

from graph_emb.models.gnn.config import RGCNConfig
from graph_emb.models.gnn.networks import RGCN, RelationMatrices, RGCNLayer, SAGELayer
from graph_emb.sampling.blocks import BlockEdges, whole_graph
from tests.sampling.test_blocks import LIKES, OWNS, tiny


def test_a_layer_is_the_papers_equation() -> None:
    layer = RGCNLayer(["a", "b"], [LIKES, OWNS], 4, 3)
    torch.nn.init.normal_(layer.bias)
    assert layer.loop is not None
    a, b = torch.randn(2, 4), torch.randn(3, 4)
    (block,) = whole_graph(tiny(), 1).blocks
    out = layer(block, {"a": a, "b": b})
    likes, owns = layer.relations()
    own = b @ layer.loop[1] + layer.bias[1]
    expected = torch.stack([own[0] + a[1] @ likes + b[2] @ owns, own[1], own[2] + (a[0] + a[1]) / 2 @ likes])
    torch.testing.assert_close(out["b"], expected)
    torch.testing.assert_close(out["a"], a @ layer.loop[0] + layer.bias[0])


def test_bases_are_shared_by_the_relations() -> None:
    matrices = RelationMatrices(5, 4, 3, num_bases=2)
    assert matrices.mix is not None
    found = matrices()
    torch.testing.assert_close(
        found[3], matrices.mix[3, 0] * matrices.bases[0] + matrices.mix[3, 1] * matrices.bases[1]
    )
    assert sum(p.numel() for p in matrices.parameters()) == 2 * 4 * 3 + 5 * 2
    assert RelationMatrices(5, 4, 3, num_bases=5).mix is None


def test_rows_of_another_width_pass_a_map_and_dropout_rests_in_evaluation() -> None:
    config = RGCNConfig(dim=4, hidden_dim=64, dropout=0.5)  # wide: dropout cannot take all of a row, twice
    model = RGCN(["a", "b"], [LIKES, OWNS], {"a": 9, "b": 4}, 2, config)
    assert [m.in_features for m in model.inputs.maps] == [9]  # type: ignore[union-attr]
    batch = whole_graph(tiny(), 2, target="b")
    rows = {"a": torch.randn(2, 9), "b": torch.randn(3, 4)}
    model.eval()
    assert torch.equal(model(batch.blocks, rows)["b"], model(batch.blocks, rows)["b"])
    assert model(batch.blocks, rows)["b"].shape == (3, 2)
    model.train()
    assert not torch.equal(model(batch.blocks, rows)["b"], model(batch.blocks, rows)["b"])


def test_a_layer_joins_a_node_with_the_mean_of_its_neighbours() -> None:
    layer = SAGELayer(4, 3)
    edges = BlockEdges.from_pairs(torch.tensor([1, 2, 2]), torch.tensor([0, 0, 1]), 3, 2)
    rows = torch.randn(3, 4)
    out = layer(edges, rows)
    expected = torch.stack([layer.own(rows[0]) + layer.neighbours((rows[1] + rows[2]) / 2),
                            layer.own(rows[1]) + layer.neighbours(rows[2])])  # fmt: skip
    torch.testing.assert_close(out, expected)
