"""``graph-emb ogb report`` prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graph_emb.cli.main import main
from tests.ogb.records import record, result, ten, write


def test_the_report_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "deepwalk", ten(settings_selected_on="valid"))
    words = ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md"), "--method", "ours"]
    tried = ["--tried", "predictor.lr=0.01,0.1", "--tried", "features=none,raw"]
    assert main(["ogb", "report", str(folder), *words, *tried]) == 0
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "r.md").read_text()
    told = json.loads((tmp_path / "r.json").read_text())
    assert (told["method"], told["test"]["mean"]) == ("ours", pytest.approx(0.245))
    assert told["hyper_parameters"]["features"] == "[none*, raw]"
    assert told["hyper_parameters"]["predictor.lr"] == "[0.01*, 0.1]"


@pytest.mark.parametrize(
    ("records", "words", "text"),
    [
        (ten()[:2], [], "seeds 0, 1 instead of 0 to 9"),
        ([record(s, result(selected_on="test")) for s in range(10)], ["--partial"], "chosen by test values"),
        (ten(), ["--tried", "predictor.lr"], "is not of the form SETTING=V,V"),
        (ten(), ["--tried", "predictor.lr=,"], "is not of the form SETTING=V,V"),
    ],
)
def test_what_is_forbidden_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], records: list, words: list[str], text: str
) -> None:
    path = tmp_path / "report.json"
    assert main(["ogb", "report", str(write(tmp_path / "runs", records)), "--json", str(path), *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert text in error
    assert not path.exists()


def test_partial_is_accepted_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ogb", "report", str(write(tmp_path, ten()[:2])), "--partial"]) == 0
    assert "PARTIAL: seeds 0, 1 instead of 0 to 9" in capsys.readouterr().out
