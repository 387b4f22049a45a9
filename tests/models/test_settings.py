"""One settings object a model: a run and the library take the same defaults, and every number of a rule counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.config import MODELS, config_from
from graph_emb.core.errors import ConfigError
from graph_emb.models.gnn.config import GNN_MODELS, RGCNConfig, SAGEConfig
from graph_emb.models.kge.config import KGE_MODELS, KGEConfig
from graph_emb.models.settings import CONVENTIONS, NUMBERS, ModelSettings, paths_of
from graph_emb.models.skipgram.config import LineConfig, SkipGramConfig, WalkConfig
from graph_emb.optimizer import OPTIMIZERS

ROWS = 4
VALUES: dict[str, Any] = {
    "betas": (0.5, 0.9), "eps": 0.5, "momentum": 0.5, "initial_accumulator_value": 0.5, "weight_decay": 0.5,
    "eta": 0.5, "clip_value": 0.05, "clip_row_norm": 0.05, "clip_row_ratio": 0.05, "max_norm": 0.1,
    "clip_row_least": 0.5, "count_power": 0.5, "state_dtype": "bfloat16", "stochastic_rounding": True,
}  # fmt: skip
NEEDED: dict[str, dict[str, Any]] = {
    "clip_row_least": {"clip_row_ratio": 0.05}, "count_power": {"count_rows": True},
    "stochastic_rounding": {"dtype": "bfloat16"},
}  # fmt: skip
"""Settings without which an option is refused."""


@pytest.mark.parametrize("name", MODELS)
def test_the_defaults_of_command_line_and_library_are_equal(name: str) -> None:
    of_run: ModelSettings = config_from({"model": {"name": name}, "dataset": {"name": "any"}}).model
    of_library = KGEConfig(model=name) if name in KGE_MODELS else MODELS[name]()
    assert type(of_run) is type(of_library)
    for field in type(of_library).model_fields:
        assert getattr(of_run, field) == getattr(of_library, field), field


@pytest.mark.parametrize("name", MODELS)
def test_every_field_can_be_said_by_a_run_or_is_decided_by_the_family(name: str) -> None:
    settings = MODELS[name]
    paths = paths_of(settings)
    assert set(paths) | set(settings.hidden) == set(settings.model_fields)
    assert len(set(paths.values())) == len(paths), "two fields at one path"
    number_paths = {f"train.{number}" for numbers in NUMBERS.values() for number in numbers} | {"train.compat"}
    if settings.family == "spectral":  # it has no rule
        assert not number_paths & set(paths.values())
        return
    assert number_paths <= set(paths.values()), "every number of every rule can be set for every model"


def test_skip_gram_on_its_own_has_the_defaults_of_deepwalk() -> None:
    alone, walked = SkipGramConfig(), MODELS["deepwalk"]()
    for field in SkipGramConfig.model_fields:
        assert getattr(alone, field) == getattr(walked, field), field
    assert issubclass(MODELS["deepwalk"], WalkConfig)


def stepped(settings: ModelSettings) -> Tensor:
    """Rows after eight steps in which one id comes twice, another one each time."""
    generator = torch.Generator().manual_seed(0)
    emb = ge.DistEmbedding(ROWS, 2, init_func=ge.initializers.Uniform(seed=0), dtype=settings.table_dtype)
    optimizer = OPTIMIZERS[settings.rule]([emb], lr=0.1, **settings.numbers())
    for step in range(8):
        rows = emb(torch.tensor([0, 1, 2, step % ROWS]))
        (rows * torch.randn(4, 2, generator=generator)).sum().backward()
        optimizer.step()
    return emb.weight[:]


def base(rule: str) -> dict[str, Any]:
    return {"rule": rule, "path": "optimizer"}


@pytest.mark.parametrize(("rule", "number"), [(r, n) for r in NUMBERS for n in NUMBERS[r] if n != "count_rows"])
def test_every_number_of_a_rule_changes_the_rows(rule: str, number: str) -> None:
    """With a decay, because steps of LARS and row-wise LAMB alone do not depend on the size of the gradient."""
    given = {**base(rule), **NEEDED.get(number, {}), **({} if number == "weight_decay" else {"weight_decay": 0.25})}
    if number == "state_dtype" and rule == "sgd":
        given["momentum"] = 0.5
    settings = SkipGramConfig(**given)
    values = (
        ({number: value} for value in ("l2", "decoupled")) if number == "weight_decay_mode" else ({}, chosen(number))
    )
    rows = [stepped(settings.replace(**value)) for value in values]
    assert not torch.equal(*rows)


def chosen(number: str) -> dict[str, Any]:
    return {number: VALUES[number]}


@pytest.mark.parametrize("rule", NUMBERS)
def test_every_rule_counts_rows(rule: str) -> None:
    settings = SkipGramConfig(**base(rule), count_rows=True)
    emb = ge.DistEmbedding(ROWS, 2)
    optimizer = OPTIMIZERS[rule]([emb], lr=0.1, **settings.numbers())
    emb(torch.tensor([1, 1, 3])).sum().backward()
    optimizer.step()
    counts = emb.row_counts()
    assert counts.steps.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(("rule", "compat"), [(r, c) for r in CONVENTIONS for c in CONVENTIONS[r] if c != "torch"])
def test_every_convention_of_a_rule_changes_the_rows(rule: str, compat: str) -> None:
    plain, changed = (stepped(SkipGramConfig(**base(rule), compat=c)) for c in ("torch", compat))
    assert not torch.equal(plain, changed)


@pytest.mark.parametrize(
    ("settings", "values", "message"),
    [
        (SkipGramConfig, {"rule": "adam", "momentum": 0.5}, "momentum = 0.5 has no effect on rule=adam"),
        (SkipGramConfig, {"rule": "adam", "eta": 0.5}, "eta = 0.5 has no effect on rule=adam"),
        (SkipGramConfig, {"max_norm": 1.0}, "max_norm has no effect on sgd in place; set path=optimizer"),
        (SkipGramConfig, {"rule": "adam", "max_norm": 0.0}, "max_norm = 0.0: should be greater than 0"),
        (SkipGramConfig, {"rule": "sgd", "eps": 1e-3}, r"eps = 0.001 has no effect on rule=sgd"),
        (SkipGramConfig, {"momentum": 0.5}, "momentum has no effect on sgd in place; set path=optimizer"),
        (LineConfig, {"rule": "row_adagrad", "betas": (0.5, 0.5)}, "betas = .* has no effect on rule=row_adagrad"),
        (KGEConfig, {"rule": "adagrad", "compat": "fbgemm"}, "compat = 'fbgemm' has no effect on rule=adagrad"),
        (KGEConfig, {"betas": (0.9, 1.0)}, "betas.1 = 1.0: should be less than 1"),
        (RGCNConfig, {"weight_decay_mode": "l2"}, "weight_decay_mode = 'l2' has no effect without a weight_decay"),
        (SAGEConfig, {"rule": "sgd", "compat": "dgl-1.x"}, "compat = 'dgl-1.x' has no effect on rule=sgd"),
    ],
)
def test_a_number_that_the_rule_does_not_have_is_refused(
    settings: type[ModelSettings], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(**values)


@pytest.mark.parametrize("name", [*GNN_MODELS, *KGE_MODELS, "deepwalk"])
def test_a_run_says_the_numbers_of_the_rule_in_its_train_section(name: str) -> None:
    train = {"rule": "adamw", "betas": [0.5, 0.75], "eps": 1e-3, "weight_decay": 0.125, "compat": "dgl-1.x"}
    config = config_from({"model": {"name": name}, "dataset": {"name": "any"}, "train": train})
    chosen = {"betas": (0.5, 0.75), "eps": 1e-3, "weight_decay": 0.125, "compat": "dgl-1.x"}
    assert config.model.numbers() == chosen
    assert {key: config.sections()["train"][key] for key in train} == train


def test_another_model_of_knowledge_graphs_takes_its_own_defaults_for_what_was_not_set() -> None:
    changed = KGEConfig(model="rotate", dim=32).replace(model="complex")
    assert changed == KGEConfig(model="complex", dim=32)
    assert (changed.loss, changed.rule, changed.epochs) == ("softmax", "adagrad", 10)
