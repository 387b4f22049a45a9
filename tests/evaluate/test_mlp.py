from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from graph_emb.compat.ogb import evaluator
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.evaluate import split_accuracy as module
from graph_emb.evaluate.split_accuracy import MLPConfig, build_mlp, train_mlp


def parts(num_nodes: int = 40) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn((num_nodes, 3), generator=generator)
    classes = (rows[:, 0] > 0).long()
    third = num_nodes // 4
    cuts = {"train": slice(2 * third, None), "valid": slice(third), "test": slice(third, 2 * third)}
    return {name: (rows[cut], classes[cut]) for name, cut in cuts.items()}


def test_layers_stand_as_in_ogbs_script() -> None:
    kinds = [type(layer) for layer in build_mlp(5, 7, MLPConfig())]
    hidden = [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Dropout]
    assert kinds == [*hidden, *hidden, nn.Linear]
    # ogbn-arxiv's published count: 110,120 with 128 features and 40 classes.
    assert sum(p.numel() for p in build_mlp(128, 40, MLPConfig()).parameters()) == 110_120


def test_without_batch_norm_the_parameters_are_those_of_ogbn_products() -> None:
    kinds = [type(layer) for layer in build_mlp(5, 7, MLPConfig(batch_norm=False))]
    assert kinds == [nn.Linear, nn.ReLU, nn.Dropout, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]
    # published with node2vec: 2,449,029 rows of 128 beside 100 features, 47 classes
    mlp = sum(p.numel() for p in build_mlp(228, 47, MLPConfig(batch_norm=False)).parameters())
    assert 2_449_029 * 128 + mlp == 313_612_207


def test_several_tasks_are_judged_as_by_ogb() -> None:
    """Some answers unknown; one task without a positive, which OGB leaves out of the mean."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randint(5, (50, 112), generator=generator).float()
    truth = torch.randint(2, (50, 112), generator=generator).float()
    truth[:, 7] = 0
    truth[::9, 3] = float("nan")
    found = module._score(nn.Identity(), logits, truth)
    assert found == pytest.approx(evaluator("ogbn-proteins").eval({"y_true": truth, "y_pred": logits})["rocauc"])
    with pytest.raises(DataError, match="none of 2 tasks has both answers"):
        module._score(nn.Identity(), logits[:, :2], torch.ones(50, 2))


def test_accuracy_is_ogbs() -> None:
    logits = torch.randn((50, 40), generator=torch.Generator().manual_seed(4))
    truth = torch.arange(50) % 40
    scores = {"y_true": truth[:, None], "y_pred": logits.argmax(1, keepdim=True)}
    assert module._score(nn.Identity(), logits, truth) == evaluator("ogbn-arxiv").eval(scores)["acc"]


def test_several_tasks_are_learnt_and_unknown_answers_left_out() -> None:
    tasks = {name: (rows, torch.stack([classes, 1 - classes], 1).float()) for name, (rows, classes) in parts().items()}
    tasks["train"][1][0] = float("nan")
    run = train_mlp(tasks, 2, MLPConfig(hidden_dim=8, epochs=40, batch_norm=False))
    assert run.metric == "rocauc"
    assert run.scores["test"] > 0.9


def test_the_epoch_is_the_best_on_validation_and_the_first_of_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    # Validation by epoch; train and test are asked only where it rises.
    script: Iterator[float] = iter([0.3, 0.1, 0.2, 0.5, 0.6, 0.7, 0.5, 0.4])
    monkeypatch.setattr(module, "_score", lambda *_: next(script))
    run = train_mlp(parts(), 2, MLPConfig(hidden_dim=2, epochs=4))
    assert run.epoch == 2
    assert run.scores == {"valid": 0.5, "train": 0.6, "test": 0.7}


def test_evaluations_happen_every_few_epochs() -> None:
    run = train_mlp(parts(), 2, MLPConfig(hidden_dim=4, epochs=7, eval_every=3))
    assert run.epoch in (3, 6)


def test_training_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    train_mlp(parts(), 2, MLPConfig(hidden_dim=2, epochs=1))
    assert torch.equal(torch.rand(1), expected)


def test_batches_and_the_full_batch_train_differently_and_both_learn() -> None:
    whole = train_mlp(parts(200), 2, MLPConfig(hidden_dim=8, epochs=20))
    pieces = train_mlp(parts(200), 2, MLPConfig(hidden_dim=8, epochs=20, batch_size=25))
    assert whole.scores["train"] > 0.8
    assert pieces.scores["train"] > 0.8
    assert whole != pieces


def test_a_last_batch_of_one_node_is_left_out_of_its_epoch() -> None:
    # torch's BatchNorm1d raises on one row in training mode.
    run = train_mlp(parts(44), 2, MLPConfig(hidden_dim=2, epochs=2, batch_size=21))
    assert run.epoch in (1, 2)


def test_dropout_is_off_while_judging() -> None:
    model = nn.Sequential(nn.Identity(), nn.Dropout(0.99)).train()
    assert module._score(model, torch.eye(50), torch.arange(50)) == 1.0


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("hidden_dim", 0, "hidden_dim = 0: should be greater than or equal to 1"),
        ("num_layers", 1, "num_layers = 1: should be greater than or equal to 2"),
        ("batch_size", 1, "batch_size = 1: should be greater than or equal to 2"),
        ("epochs", 0, "epochs = 0"),
        ("eval_every", 501, "epochs=500 ends before the first evaluation"),
        ("dropout", 1.0, "dropout = 1.0: should be less than 1"),
        ("lr", float("nan"), "lr = nan"),
    ],
)
def test_a_recipe_outside_its_limits_is_refused(field: str, value: float, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        MLPConfig(**{field: value})
