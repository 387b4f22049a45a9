"""Runs side by side: every score and cost, and only the settings that differ."""

from __future__ import annotations

import pytest

from graph_emb.core.errors import ConfigError
from graph_emb.run.pipeline import PipelineResult
from graph_emb.run.report.compare import compare
from graph_emb.run.report.facts import RunFacts


def facts(run: PipelineResult, name: str, **model: object) -> RunFacts:
    config = run.config.model_copy(update={"model": run.config.model.model_copy(update=model)})
    return RunFacts(name, config, run.metrics, run.history)


def test_settings_that_differ_are_told_and_others_are_not(run: PipelineResult) -> None:
    found = compare([facts(run, "one"), facts(run, "two", window=3)])
    assert found.settings == {"model.window": [run.config.model.window, 3]}
    assert (
        found.scores["micro-F1 at 50%"]
        == [run.metrics["evaluation"]["node_classification"]["ratios"][0]["micro_mean"]] * 2
    )
    assert found.costs["parameters"] == [run.metrics["train"]["parameters"]] * 2
    assert str(found).splitlines()[-1].split() == ["model.window", str(run.config.model.window), "3"]
    assert str(compare([facts(run, "one"), facts(run, "two")])).endswith("no setting differs")


def test_what_one_run_lacks_is_a_gap(run: PipelineResult) -> None:
    unjudged = RunFacts("two", run.config, {**run.metrics, "evaluation": {}, "train": {}}, [])
    found = compare([facts(run, "one"), unjudged])
    assert found.scores["micro-F1 at 50%"][1] is None
    assert "micro-F1 at 50%" in str(found)
    assert "<td>-</td>" in found.page()


def test_the_page_draws_all_runs_in_one_chart(run: PipelineResult) -> None:
    text = compare([facts(run, "one"), facts(run, "two")]).page()
    assert text.count("<figcaption>loss</figcaption>") == 1
    assert 'data-tip="one: ' in text
    assert 'data-tip="two: ' in text


def test_runs_are_told_apart_by_name(run: PipelineResult) -> None:
    with pytest.raises(ConfigError, match="at least two runs, each once"):
        compare([facts(run, "one"), facts(run, "one")])
    with pytest.raises(ConfigError, match="compare one: give at least two"):
        compare([facts(run, "one")])
