"""R-GCN's layers against the paper's formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError
from graph_emb.models.gnn.config import RGCNConfig
from graph_emb.models.gnn.networks import RGCN, SAGELayer
from graph_emb.models.gnn.relational import EntityLayer, RelationMatrices, RGCNLayer
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


def test_blocks_are_the_diagonal_of_each_relations_matrix() -> None:
    """The paper's block decomposition: what lies outside the blocks is 0."""
    layer = RGCNLayer(["a", "b"], [LIKES, OWNS], 4, 6, num_blocks=2, self_loop=False)
    assert layer.relations().shape == (2, 2, 2, 3)
    full = RGCNLayer(["a", "b"], [LIKES, OWNS], 4, 6, self_loop=False)
    full.relations.bases.data = torch.stack([torch.block_diag(*blocks) for blocks in layer.relations()]).detach()
    (block,) = whole_graph(tiny(), 1).blocks
    rows = {"a": torch.randn(2, 4), "b": torch.randn(3, 4)}
    for ntype, found in layer(block, rows).items():
        torch.testing.assert_close(found, full(block, rows)[ntype])
    with pytest.raises(ConfigError, match="num_blocks = 4 does not divide a layer's widths 4 and 6"):
        RelationMatrices(2, 4, 6, num_blocks=4)


@pytest.mark.parametrize("inputs", ["table", "onehot"])
def test_dropped_edges_carry_no_message_in_training(inputs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """a0 and a1 like b2: without the edge from a0 the mean is a1's message alone; evaluation takes all edges."""
    config = RGCNConfig(dim=4, hidden_dim=4, inputs=inputs, edge_dropout=0.5, dropout=0.0, self_loop=False)
    network = RGCN(["a", "b"], [LIKES, OWNS], {"a": 4, "b": 4}, 4, config, {"a", "b"})
    layer = network.layers[0]
    (block,) = whole_graph(tiny(), 1).blocks
    widths = {t: config.learned_width(t, [LIKES, OWNS]) for t in ("a", "b")}
    rows = {"a": torch.randn(2, widths["a"]), "b": torch.randn(3, widths["b"])}
    layer.eval()
    both = layer(block, rows)["b"][2]
    edges = block.relations.pairs
    assert edges.num_edges == 4, "by relation and destination: (a1, b0), (a0, b2), (a1, b2), (b2, b0)"
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: torch.tensor([0.0, 0.4, 0.5, 0.1]))
    layer.train()
    one = layer(block, {**rows, "a": torch.stack([rows["a"][1] * 7, rows["a"][1]])})["b"]
    torch.testing.assert_close(one[2], layer.eval()(block, {**rows, "a": rows["a"][1].expand(2, -1)})["b"][2])
    assert not torch.equal(one[2], both)
    layer.train()
    torch.testing.assert_close(one[0], layer.bias[1])  # a mean of no messages is 0


ROWS = {"onehot": RGCNConfig(hidden_dim=3, inputs="onehot"), "basis": RGCNConfig(inputs="basis", num_bases=2)}


@pytest.mark.parametrize("kind", ROWS)
def test_entities_send_as_one_hot_features_do(kind: str) -> None:
    """The matrices of the paper's first layer have a row for each node: those are what the tables hold."""
    config = ROWS[kind].replace(hidden_dim=3)
    layer = EntityLayer(["a", "b"], [LIKES, OWNS], 9, 3, {"a", "b"}, config)
    torch.nn.init.normal_(layer.bias)
    rows = {ntype: torch.randn(num, config.learned_width(ntype, [LIKES, OWNS])) for ntype, num in (("a", 2), ("b", 3))}
    likes, owns, own_a, own_b = parts_of(rows, layer.mix)
    paper = RGCNLayer(["a", "b"], [LIKES, OWNS], 5, 3)  # of one-hot features of five nodes, two a and three b
    with torch.no_grad():
        paper.relations.bases.copy_(torch.stack([torch.cat([likes, 0 * own_b]), torch.cat([0 * own_a, owns])]))
        paper.loop.copy_(torch.stack([torch.cat([own_a, 0 * own_b]), torch.cat([0 * own_a, own_b])]))  # type: ignore[union-attr]
        paper.bias.copy_(layer.bias)
    (block,) = whole_graph(tiny(), 1).blocks
    expected = paper(block, {"a": torch.eye(5)[:2], "b": torch.eye(5)[2:]})
    for ntype, found in layer(block, rows).items():
        torch.testing.assert_close(found, expected[ntype])


def parts_of(rows: dict[str, Tensor], mix: Tensor | None) -> list[Tensor]:
    """What a sends by likes and b by owns, and their own messages, (N, 3) each."""
    a, b = (table.view(len(table), -1, 3) for table in rows.values())
    if mix is None:
        return [a[:, 0], b[:, 0], a[:, 1], b[:, 1]]
    return [torch.einsum("nbo,b->no", t[:, :2], c) for t, c in ((a, mix[0]), (b, mix[1]))] + [a[:, 2], b[:, 2]]


@pytest.mark.parametrize("learned", [{"a", "b"}, {"b"}])
@pytest.mark.parametrize("kind", ROWS)
def test_the_gradient_of_entities_rows_is_that_of_the_formula(kind: str, learned: set[str]) -> None:
    config = ROWS[kind].replace(hidden_dim=3)
    layer = EntityLayer(["a", "b"], [LIKES, OWNS], 4, 3, learned, config).double()
    widths = {t: config.learned_width(t, [LIKES, OWNS]) if t in learned else 4 for t in ("a", "b")}
    assert set(dict(layer.named_parameters())) == {
        "bias",
        *(["mix"] if kind == "basis" else []),
        *(["relations.bases", "loop"] if len(learned) == 1 else []),
    }
    (block,) = whole_graph(tiny(), 1).blocks
    given = [torch.randn(num, widths[t], dtype=torch.float64, requires_grad=True) for t, num in (("a", 2), ("b", 3))]

    def out(a: Tensor, b: Tensor, *parameters: Tensor) -> Tensor:
        return torch.cat(list(layer(block, {"a": a, "b": b}).values()))

    assert torch.autograd.gradcheck(out, (*given, *layer.parameters()))


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


def test_the_gcn_aggregator_is_one_mean_of_a_node_and_its_neighbours() -> None:
    layer = SAGELayer(4, 3, "gcn")
    edges = BlockEdges.from_pairs(torch.tensor([1, 2, 2]), torch.tensor([0, 0, 1]), 3, 2)
    rows = torch.randn(3, 4)
    expected = layer.neighbours(torch.stack([(rows[0] + rows[1] + rows[2]) / 3, (rows[1] + rows[2]) / 2]))
    torch.testing.assert_close(layer(edges, rows), expected)
    assert sum(p.numel() for p in layer.parameters()) == 4 * 3 + 3


def test_a_layer_joins_a_node_with_the_mean_of_its_neighbours() -> None:
    layer = SAGELayer(4, 3)
    edges = BlockEdges.from_pairs(torch.tensor([1, 2, 2]), torch.tensor([0, 0, 1]), 3, 2)
    rows = torch.randn(3, 4)
    out = layer(edges, rows)
    expected = torch.stack([layer.own(rows[0]) + layer.neighbours((rows[1] + rows[2]) / 2),
                            layer.own(rows[1]) + layer.neighbours(rows[2])])  # fmt: skip
    torch.testing.assert_close(out, expected)
