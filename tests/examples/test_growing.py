"""The example of growing tables, which follows mxRec's page."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "examples" / "growing.py"


@pytest.mark.parametrize("rule", ["lazy_adam", "adagrad"])
def test_items_that_come_are_learnt_and_items_that_go_leave(
    rule: str, fresh_mode: None, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(FILE))["main"]
    found = main(["--days", "5", "--steps", "20", "--items", "200", "--rule", rule, "--learning-rate", "0.2"])
    assert found["accuracy"] > 0.9, "two of three are clicked"
    assert found["shown"] == 200 + 4 * 50
    assert found["rows"] < found["shown"]
    lines = capsys.readouterr().out.splitlines()
    sizes = [int(line.split("checkpoint of ")[1].split()[0].replace(",", "")) for line in lines[:5]]
    assert lines[5] == f"table 'item': {found['rows']} rows of weight" + (
        ", exp_avg, exp_avg_sq, step" if rule == "lazy_adam" else ", sum"
    )
    assert len(sizes) == 5
