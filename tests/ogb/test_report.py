"""The record that a leaderboard asks for."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.ogb.report import MISSING, Submission, make_report
from tests.ogb.records import record, result, ten, write


def test_mean_and_std_are_of_test_and_of_the_same_models_validation(tmp_path: Path) -> None:
    report = make_report([write(tmp_path, ten())])
    values = [0.2 + 0.01 * seed for seed in range(10)]
    told = report.as_dict()
    assert told["seeds"] == list(range(10))
    assert told["test"] == {"mean": pytest.approx(0.245), "std": pytest.approx(statistics.stdev(values))}
    assert told["valid"]["mean"] == pytest.approx(0.345)
    assert told["values"]["test"] == pytest.approx(values)
    assert told["parameters"] == {"sum": 1024, "embedding": 1000, "link predictor": 24}
    assert told["metric"] == "hits@20"
    assert told["notes"] == []
    json.dumps(told)


def test_the_text_has_every_field_of_the_form_and_the_published_rows(tmp_path: Path) -> None:
    told = Submission("DeepWalk (graph_emb)", contact="a person", code="an address")
    text = make_report([write(tmp_path, ten())], submission=told).markdown()
    assert text.startswith("# ogbl-ddi: DeepWalk (graph_emb)\n")
    assert "0.2450 ± 0.0303" in text
    assert re.search(r"\| DeepWalk \(DGL examples/pytorch/ogb\) +\| 0.2642 ± 0.0610 +\| 0.4132", text)
    assert "1,024 = 1,000 embedding + 24 link predictor" in text
    assert "a cpu, 2 cores, 7.5 GiB" in text
    assert "ogb 1.3.6" in text
    assert "taken as they are, nothing was compared" in text
    assert "`predictor.lr`" in text
    assert "[0.01*]" in text
    assert "python examples/ogb/ddi.py --root data --out runs/ddi" in text
    assert text.count("a person") == 1
    assert text.count(MISSING) == 1  # the paper
    assert "PARTIAL" not in text


def test_a_partial_record_says_so_first(tmp_path: Path) -> None:
    folder = write(tmp_path, ten()[:2])
    with pytest.raises(ConfigError, match="--partial"):
        make_report([folder])
    report = make_report([folder], partial=True)
    assert report.as_dict()["notes"][0].startswith("PARTIAL: seeds 0, 1 instead of 0 to 9")
    assert report.markdown().splitlines()[2].startswith("**PARTIAL")


def test_tried_values_stand_in_brackets_with_the_chosen_one_marked(tmp_path: Path) -> None:
    folder = write(tmp_path, ten(settings_selected_on="valid"))
    report = make_report([folder], tried={"predictor.lr": [0.001, 0.01]})
    assert report.hyper_parameters()["predictor.lr"] == "[0.001, 0.01*]"
    assert report.hyper_parameters()["predictor.epochs"] == "[100*]"
    assert report.notes == ()
    (note,) = make_report([folder]).notes
    assert note.startswith("Settings were compared, and the values that were tried are not told")


@pytest.mark.parametrize(
    ("tried", "text"),
    [
        ({"predictor.rl": [1]}, r"predictor.rl = \[1\]: unknown key; known: epochs, lr"),
        ({"predictor.epcohs": [1]}, r"predictor.epcohs = \[1\]: unknown key.*did you mean 'predictor.epochs'"),
        ({"predictor.lr": [0.1, 0.2]}, r"predictor.lr is 0.01, which is not among the tried values \[0.1, 0.2\]"),
        ({"predictor.lr": [0.01, 0.2]}, "do not say on which part they were compared"),
    ],
)
def test_tried_values_that_the_runs_contradict_are_refused(tmp_path: Path, tried: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_report([write(tmp_path, ten())], tried=tried)


def test_seeds_may_lie_in_several_folders_and_files(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", ten()[:6]), write(tmp_path / "b", ten()[6:])
    report = make_report([second / "seed-9.json", first, *[second / f"seed-{s}.json" for s in (6, 7, 8)]])
    assert [one.seed for one in report.records] == list(range(10))


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "deepwalk", ten())
    with pytest.raises(DataError, match="no such file or folder"):
        make_report([tmp_path / "nothing"])
    with pytest.raises(DataError, match=r"holds no seed-\*.json; give one of its models: deepwalk"):
        make_report([tmp_path / "runs"])


def test_other_metrics_are_told_beside(tmp_path: Path) -> None:
    scores = {**result().scores, "hits@50": result(0.5, 0.6).scores["hits@20"]}
    folder = write(tmp_path, [record(seed, result(scores=scores)) for seed in range(10)])
    report = make_report([folder])
    assert report.as_dict()["other_metrics"]["hits@50"]["test"] == {"mean": 0.5, "std": 0.0}
    assert "hits@50 test" in report.markdown()


def test_external_data_of_a_run_or_of_the_form_counts(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", ten())
    assert not make_report([folder]).as_dict()["external_data"]
    assert make_report([folder], submission=Submission(external_data=True)).as_dict()["external_data"]
    assert make_report([write(tmp_path / "b", ten(external_data=True))]).as_dict()["external_data"]
