"""Files, flags and overrides become one configuration; every refusal names path, value and limit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import yaml

from graph_emb.config import MODELS, config_from, config_text, parse_override, place_key, read_config_file
from graph_emb.config.merge import SECTIONS
from graph_emb.config.schema import RunConfig
from graph_emb.core.errors import ConfigError
from graph_emb.models.links.config import LinkPredictorConfig
from graph_emb.models.settings import At, Epochs, ModelSettings, RuleName, paths_of

BASE: dict[str, Any] = {"dataset": "cora", "model": "deepwalk"}


def test_a_later_layer_wins_field_by_field() -> None:
    config = config_from(BASE, {"model": {"dim": 8, "window": 3}}, {"model": {"dim": 16}}, {"seed": 5})
    assert (config.model.dim, config.model.window, config.seed) == (16, 3, 5)
    assert config.dataset.name == "cora"


def test_a_model_brings_its_own_preset() -> None:
    deepwalk = config_from(BASE).model
    node2vec = config_from(BASE, {"model": "node2vec"}).model
    assert (deepwalk.walk_length, node2vec.walk_length) == (40, 80)
    assert not hasattr(deepwalk, "p")
    assert node2vec.p == 4.0


def test_the_written_text_is_complete_and_reads_back_equal(tmp_path: Path) -> None:
    config = config_from(BASE, {"train": {"lr": "1e-3", "threads": 2}, "output": {"formats": ["npy", "parquet"]}})
    text = config_text(config)
    assert config_from(yaml.safe_load(text)) == config
    assert set(yaml.safe_load(text)) == set(RunConfig.model_fields)
    said = {
        f"{section}.{key}" for section, values in yaml.safe_load(text).items() if section != "seed" for key in values
    }
    own = {f"{name}.{key}" for name in SECTIONS if name != "model" for key in type(getattr(config, name)).model_fields}
    assert said == own | set(paths_of(type(config.model)).values())
    (tmp_path / "c.yaml").write_text(text, encoding="utf-8")
    assert config_from(read_config_file(tmp_path / "c.yaml")) == config


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"model": {"walk_lenght": 3}}, r"model.walk_lenght = 3: unknown key; .*did you mean 'model.walk_length'"),
        ({"lr": 3}, r"lr = 3: unknown key; .*did you mean 'train.lr'"),
        (
            {"model": {"window\n\n3": None}},
            r"^'model.window\\n\\n3' = None: unknown key; .*did you mean 'model.window'",
        ),
        ({"train": {"walk_length": 3}}, r"train.walk_length = 3: unknown .*did you mean 'model.walk_length'"),
        ({"modle": {"dim": 3}}, r"modle = .*unknown key; .*did you mean 'model'"),
        ({"model": {"p": 0.5}}, r"model.p = 0.5: deepwalk has no such field; node2vec has"),
        ({"model": "deepwolk"}, r"unknown model 'deepwolk'; known: .*deepwalk, .*did you mean 'deepwalk'"),
        ({"model": {"name": ["deepwalk"]}}, r"unknown model \['deepwalk'\]"),
        ({"model": {"dim": 0}}, r"model.dim = 0: should be greater than or equal to 1$"),
        ({"train": {"lr": 0, "epochs": 0}}, r"train.lr = 0: should be greater than 0 \(and 1 more\)"),
        ({"train": {"lr": float("nan")}}, r"train.lr = nan: should be a finite number"),
        ({"train": {"epochs": True}}, r"train.epochs = True: must be a number"),
        ({"train": {"rule": "adagard"}}, r"train.rule = 'adagard': should be .*did you mean 'adagrad'"),
        ({"evaluate": {"ratios": [0.1, 1.5]}}, r"evaluate.ratios.1 = 1.5: should be less than 1"),
        ({"output": {"formats": ["npy", "npy"]}}, r"output.formats = \['npy', 'npy'\]: names one twice"),
        ({"train": 3}, r"train = 3: is a section; set its fields, such as train.lr"),
        ({"seed": -1}, r"seed = -1: should be greater than or equal to 0"),
    ],
)
def test_a_refusal_names_path_value_and_limit(layer: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        config_from(BASE, layer)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("missing", "message"), [("dataset", "dataset.name: is missing"), ("model", "model.name: is missing; known:")]
)
def test_a_missing_name_is_said(missing: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from({key: value for key, value in BASE.items() if key != missing})


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(ConfigError, match=r"model.dim = 'x{56}\.\.\.: ") as caught:
        config_from(BASE, {"model": {"dim": "x" * 10_000}})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "nested"),
    [
        ("train.lr=1e-3", {"train": {"lr": "1e-3"}}),  # YAML 1.1 reads it as text; the float field converts it
        ("lr=.5", {"train": {"lr": 0.5}}),
        ("p=1", {"model": {"p": 1}}),
        ("model=node2vec", {"model": {"name": "node2vec"}}),
        ("output.formats=[npy, parquet]", {"output": {"formats": ["npy", "parquet"]}}),
        ("train.threads=", {"train": {"threads": None}}),
        ("dataset.root=a=b", {"dataset": {"root": "a=b"}}),
        ("train={lr: 1}", {"train": {"lr": 1}}),
    ],
)
def test_an_override_is_placed_under_its_path(text: str, nested: dict[str, Any]) -> None:
    assert parse_override(text) == nested


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed", "override 'seed': write key=value"),
        ("=3", "override '=3': write key=value"),
        ("name=x", "which one of dataset.name, model.name"),
        ("widnow=3", "widnow = 3: unknown key; .*did you mean 'model.window'"),
        ("lr=[", r"lr: '\[' is not a YAML value"),
    ],
)
def test_a_wrong_override_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_override(text)


def test_every_section_names_a_field_that_it_has() -> None:
    nested = [place_key(f"{section}.{field}", 0) for section, field in SECTIONS.items()]
    assert nested == [{section: {field: 0}} for section, field in SECTIONS.items()]
    assert set(SECTIONS) == set(RunConfig.model_fields) - {"seed"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- 1\n", "holds list at the top"),
        (b"train:\n  lr: 1\n  lr: 2\n", "line 3: key 'lr' is given twice"),
        (b"1: 2\n", "line 1: key 1 is not a word"),
        (b"a: [\n", "not a YAML text file"),
        (b"\xff\xfe\x00\x01", "not a YAML text file"),
        (b"#" * ((1 << 20) + 1), "above the limit of 1048576"),
    ],
)
def test_a_broken_file_is_one_clear_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_config_file(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.yaml: No such file"):
        read_config_file(tmp_path / "absent.yaml")


def test_an_empty_file_and_an_empty_section_set_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("", encoding="utf-8")
    assert read_config_file(path) == {}
    path.write_text("train:\n", encoding="utf-8")
    assert config_from(BASE, read_config_file(path)) == config_from(BASE)


class Pair(ModelSettings):
    """A model with defaults of its own, and without a field of a section."""

    name: Literal["pair"] = "pair"
    family: ClassVar[str] = "pairs"
    without: ClassVar[tuple[str, ...]] = ("train.log_interval",)
    rule: Annotated[RuleName, At("train.rule")] = "adagrad"
    epochs: Epochs = 30


@pytest.fixture
def pair_config(monkeypatch: pytest.MonkeyPatch) -> type[RunConfig]:
    class PairConfig(RunConfig):
        model: Pair  # type: ignore[assignment]

    monkeypatch.setattr("graph_emb.config.merge.RunConfig", PairConfig)
    monkeypatch.setitem(MODELS, "pair", Pair)
    return PairConfig


def test_a_models_defaults_lie_below_every_layer(pair_config: type[RunConfig]) -> None:
    plain: Any = config_from({"model": "pair", "dataset": "x"}).model
    assert (plain.rule, plain.epochs) == ("adagrad", 30)
    changed: Any = config_from({"model": "pair", "dataset": "x"}, {"train": {"rule": "adam"}}).model
    assert (changed.rule, changed.epochs) == ("adam", 30)


def test_a_field_without_meaning_for_a_model_is_refused(pair_config: type[RunConfig]) -> None:
    with pytest.raises(ConfigError, match=r"train.path = 'autograd' has no effect on pair; leave it out"):
        config_from({"model": "pair", "dataset": "x", "train": {"path": "autograd"}})
    with pytest.raises(ConfigError, match=r"train.log_interval = 31.0 has no effect on pair"):
        config_from({"model": "pair", "dataset": "x", "train": {"log_interval": 31}})
    with pytest.raises(ConfigError, match=r"model.epochs = 3: unknown key; .*did you mean 'train.epochs'"):
        config_from({"model": {"name": "pair", "epochs": 3}, "dataset": "x"})
    written: Any = config_from(config_from({"model": "pair", "dataset": "x"}).sections())
    assert written.model.epochs == 30  # a written configuration names every field


@pytest.mark.parametrize("field", [{"keep_last": 3}, {"background": True}])
def test_options_of_checkpoints_need_an_interval(field: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(field))} has no effect while nothing is saved"):
        config_from(BASE, {"checkpoint": field})
    every = config_from(BASE, {"checkpoint": {**field, "every": "10m"}})
    assert config_from(every.sections()) == every
    plain = config_from(BASE)
    assert config_from(plain.sections()) == plain


def predictor_of(*texts: str) -> Any:
    """The network's settings of a run that overrides change: a section within a section."""
    return config_from(BASE, *map(parse_override, texts)).evaluate.predictor


def test_overrides_reach_settings_inside_a_section_and_the_rest_stays() -> None:
    made = predictor_of("evaluate.predictor.lr=1", "predictor.patience=3", "predictor.metrics=[mrr]", "select=mrr")
    assert made == LinkPredictorConfig(lr=1.0, patience=3, metrics=("mrr",), select="mrr")
    assert isinstance(made.lr, float)
    assert predictor_of() is None
    assert predictor_of("predictor.patience=3", "predictor.patience=null").patience is None
    assert predictor_of("predictor.patience=3", "predictor=null") is None
    assert predictor_of("predictor.lr=1e-3").lr == 0.001
    assert predictor_of("evaluate.predictor={hidden_dim: 6}").hidden_dim == 6


def test_a_sections_own_field_goes_before_those_of_a_network_in_it() -> None:
    assert parse_override("epochs=3") == {"train": {"epochs": 3}}
    assert parse_override("mlp.epochs=3") == {"evaluate": {"mlp": {"epochs": 3}}}
    assert parse_override("seed=3") == {"seed": 3}


def test_limits_that_join_two_values_hold_for_both_overrides_at_once() -> None:
    assert predictor_of("predictor.epochs=3", "predictor.eval_every=3").epochs == 3
    with pytest.raises(ConfigError, match="epochs = 3 ends before the first evaluation"):
        predictor_of("predictor.epochs=3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("predictor.hiden_dim=3", r"predictor.hiden_dim = 3: unknown key.*did you mean 'predictor.hidden_dim'"),
        ("embedding.skipgram.dim=3", "unknown key.*did you mean 'model.dim'"),
        ("sage.epochs=3", "unknown key.*did you mean 'train.epochs'"),
        ("predictor=3", "evaluate.predictor = 3: should be a valid dictionary or instance of LinkPredictorConfig"),
        ("evaluate.node_features.size=3", "evaluate.node_features.size = 3: unknown key"),
        ("predictor.hidden_dim=2.5", "evaluate.predictor.hidden_dim = 2.5: should be a valid integer"),
        ("predictor.hidden_dim=x", "evaluate.predictor.hidden_dim = 'x': should be a valid integer"),
        ("predictor.lr=true", "evaluate.predictor.lr = True: must be a number"),
        ("evaluate.node_features=rwa", r"evaluate.node_features = 'rwa'.*did you mean 'raw'"),
        ("evaluate.node_features=null", "evaluate.node_features = None: should be"),
        ("evaluate.node_features=raw", "node_features='raw' has no effect without predictor or mlp"),
        ("evaluate.seed=3", "seed=3 has no effect without predictor or mlp"),
        ("predictor.patience=abc", "evaluate.predictor.patience = 'abc': should be a valid integer"),
        ("predictor.patience=[3]", "evaluate.predictor.patience"),
        ("mlp.lr", "write key=value"),
        ("=3", "write key=value"),
    ],
)
def test_overrides_that_do_not_fit_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        predictor_of(text)
