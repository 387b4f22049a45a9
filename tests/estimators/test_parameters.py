"""Parameters are the settings of the models: one list, by the names and defaults that runs have."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import networkx as nx
import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import graph_emb as ge
from graph_emb.config import MODELS, config_from
from graph_emb.core.errors import ConfigError
from graph_emb.estimators import ESTIMATORS
from graph_emb.models.settings import paths_of

QUICK: dict[str, Any] = {"dim": 4, "num_walks": 1, "walk_length": 5, "threads": 1}
RING = nx.cycle_graph(8)


def test_every_model_has_an_estimator() -> None:
    assert set(MODELS) == set(ESTIMATORS)
    for kind in ESTIMATORS.values():
        assert getattr(ge, kind.__name__) is kind


@pytest.mark.parametrize("model", ESTIMATORS)
def test_parameters_are_the_fields_that_a_run_takes(model: str) -> None:
    kind, settings = ESTIMATORS[model], MODELS[model]
    known = {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}
    of_model = {name: settings.model_fields[name].default for name in paths_of(settings) if name != "name"}
    assert {name: known[name] for name in of_model} == of_model
    assert set(known) - set(of_model) <= {"seed", "threads", "device", "context"}
    assert {"seed", "threads"} <= set(known)
    made = kind()
    assert made.get_params() == known
    assert all(field in (kind.__doc__ or "") for field in known)
    run = config_from({"model": model, "dataset": "x"}).sections()
    for name, path in kind.paths.items():
        section, _, field = path.rpartition(".")
        said = run[section][field] if section else run[field]
        assert said == (list(known[name]) if isinstance(known[name], tuple) else known[name]), path


def test_parameters_reach_the_run() -> None:
    fitted = ge.DeepWalk(**QUICK, seed=3, rule="adagrad", lr=0.5, window=np.int64(2), context="concat").fit(RING)
    config = fitted.config_
    assert (config.seed, config.model.lr, config.model.window, config.train.threads) == (3, 0.5, 2, 1)
    assert config.model.rule == "adagrad"
    assert fitted.embedding_.shape == (8, 8)  # token and context rows side by side


def test_params_change_and_clone() -> None:
    made = ge.Node2Vec(dim=8, p=0.5)
    assert made.set_params(q=2.0).get_params()["q"] == 2.0
    copy = clone(made)
    assert copy.get_params() == made.get_params()
    assert repr(copy) == "Node2Vec(dim=8, p=0.5, q=2.0)"
    with pytest.raises(ValueError, match=r"unknown setting of Node2Vec 'widnow'.*did you mean 'window'"):
        made.set_params(q=3.0, widnow=3)
    assert made.q == 2.0  # nothing of a refused call is taken


def test_a_long_setting_is_shown_short_and_an_array_is_compared() -> None:
    assert repr(ge.DeepWalk(warm_start="x" * 4000)).startswith("DeepWalk(warm_start='xxx")
    assert len(repr(ge.DeepWalk(warm_start="x" * 4000))) < 250
    assert "array" in repr(ge.DeepWalk(dim=np.ones(3)))


def test_a_pipeline_of_scikit_learn_shows_and_changes_an_estimator() -> None:
    made = make_pipeline(ge.DeepWalk(**QUICK), StandardScaler())
    assert "DeepWalk(dim=4, num_walks=1, walk_length=5, threads=1)" in repr(made).replace("\n", " ")
    assert "DeepWalk" in made._repr_html_()
    assert made.set_params(deepwalk__dim=2).get_params()["deepwalk__dim"] == 2
    with config_context(enable_metadata_routing=True):
        assert clone(made).fit_transform(RING).shape == (8, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"widnow": 3}, r"unknown setting of DeepWalk 'widnow'; known: .*\(did you mean 'window'\?\)"),
        ({"dim": 0}, "^DeepWalk.dim = 0: should be greater than or equal to 1"),
        ({"epochs": None}, "^DeepWalk.epochs = None: should be a valid integer"),
        ({"threads": 0}, "^DeepWalk.threads = 0: should be"),
        ({"momentum": 0.5}, "momentum has no effect on sgd in place"),
        ({"negative_scope": "local"}, "^DeepWalk.negative_scope has no effect on one process"),
    ],
)
def test_a_setting_that_is_wrong_is_one_clear_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        ge.DeepWalk(**settings).fit(RING)
    assert "\n" not in str(caught.value)


def test_the_same_seed_gives_the_run_of_the_pipeline() -> None:
    rows = ge.DeepWalk(**QUICK, seed=1).fit_transform(RING)
    np.testing.assert_array_equal(rows, ge.DeepWalk(**QUICK, seed=1).fit_transform(RING))
    run = ge.pipeline("deepwalk", dataset=RING, seed=1, evaluate=False, **QUICK)
    assert run.embeddings is not None
    np.testing.assert_array_equal(rows, run.embeddings.weights)
    assert not np.array_equal(rows, ge.DeepWalk(**QUICK, seed=2).fit_transform(RING))


def test_a_fitted_estimator_is_pickled() -> None:
    fitted = ge.DeepWalk(**QUICK).fit(RING)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform([5, 2]), fitted.transform([5, 2]))
    assert again.score([(0, 1), (0, 4)], [1, 0]) == fitted.score([(0, 1), (0, 4)], [1, 0])
