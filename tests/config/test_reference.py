"""The help of a model and the page of the docs are made from the settings themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from graph_emb.config import MODELS, config_from, fields_of
from graph_emb.config.reference import help_of, markdown, settings_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def test_the_page_of_the_docs_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == markdown(), (
        "python -m graph_emb.config.reference > docs/reference/configuration.md"
    )


@pytest.mark.parametrize("model", MODELS)
def test_the_help_lists_each_setting_that_a_model_takes_and_no_other(model: str) -> None:
    listed = {setting.path for setting in settings_of(model)}
    fields = set(fields_of(config_from({"model": model, "dataset": "graph.csv"})))
    assert {path for path in listed if path.count(".") < 2} == fields - {*MODELS[model].without} - {"model.name"}
    told = help_of(model)
    assert all(f"  {path}=" in told for path in listed)


def test_defaults_limits_and_choices_are_those_of_the_fields() -> None:
    found = {setting.path: setting for setting in settings_of("deepwalk")}
    assert (found["model.dim"].default, found["model.dim"].allowed) == ("128", ">= 1, <= 65,536")
    assert found["train.lr"].allowed == "> 0, <= 1000"
    assert found["train.betas"].allowed == ">= 0, < 1"  # of each of the two
    assert found["model.tables"].allowed == "1, 2"
    assert found["parallel.wire_dtype"].allowed == "float32, float16, bfloat16, int8"
    assert found["evaluate.hits"].default == "[10, 20, 50, 100]"
    assert found["evaluate.mlp.hidden_dim"].default == "256"
    assert found["dataset.name"].default == "required"
