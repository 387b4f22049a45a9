from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.config import config_from
from graph_emb.models.spectral.config import ProNEConfig
from graph_emb.models.spectral.factorise import spectral_rows
from tests.models.spectral.test_factorise import graph

pytestmark = pytest.mark.usefixtures("fresh_mode")


@pytest.mark.parametrize("model", ["netmf", "prone"])
def test_a_run_of_a_spectral_model_is_read_as_any_other(model: str, tmp_path: Path) -> None:
    result = ge.pipeline(model, graph(), out=tmp_path / "run", dim=4, evaluate=False)
    assert result.embeddings is not None
    assert result.embeddings.weights.shape == (13, 4)
    assert result.metrics["train"]["parameters"] == 52
    loaded = ge.load_run(tmp_path / "run")
    assert np.array_equal(loaded.transform([3, 7]), result.embeddings.weights[[3, 7]])
    again = ge.pipeline(config=tmp_path / "run" / "config.yaml", dataset=graph())
    np.testing.assert_allclose(again.embeddings.weights, result.embeddings.weights, atol=1e-6)


def test_deepwalk_begins_with_the_rows_of_prone() -> None:
    """At a rate of nearly 0 they are also those it ends with."""
    walks: dict[str, Any] = {"dim": 4, "num_walks": 1, "walk_length": 4, "lr": 1e-12, "evaluate": False, "seed": 2}
    result = ge.pipeline("deepwalk", graph(), warm_start="prone", **walks)
    assert result.embeddings is not None
    np.testing.assert_allclose(result.embeddings.weights, spectral_rows(graph(), ProNEConfig(dim=4), 2), atol=1e-5)
    assert result.metrics["train"]["warm_start_seconds"] > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "prone", "train": {"lr": 0.1}}, "lr"),
        ({"model": "netmf", "parallel": {"mode": "collective", "trainers": 2}}, "parallel.mode = 'collective' has no"),
        ({"model": "prone", "checkpoint": {"every": "5"}}, "checkpoint.every = '5' has no effect on prone"),
        ({"model": {"name": "deepwalk", "warm_start": "prone", "warm_start_partial": True}}, "no effect on warm_start"),
    ],
)
def test_what_has_no_meaning_is_refused(given: dict[str, Any], message: str) -> None:
    layer = {**given, "model": {"name": given["model"]}} if isinstance(given["model"], str) else given
    with pytest.raises(ge.ConfigError, match=message):
        config_from({"dataset": {"name": "x"}, **layer})
