"""Rows between two hosts: rounded by default where the measured link is slow, and as before where a run goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_emb.config import read_config_file
from graph_emb.transport.process_group import SHARED_VARIABLE
from tests.netns import Network, network
from tests.run.launch.test_train_on_hosts import on_hosts

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("fresh_mode", "warm_starts")]

RUNS = """
import json, sys
import graph_emb as ge
small = {"num_walks": 1, "walk_length": 10, "dim": 32, "epochs": 2, "threads": 1, "evaluate": False}
for name, options in json.loads(sys.argv[1]).items():
    ge.pipeline("deepwalk", "digits", out=name, checkpoint={"every": "1"}, overwrite=True, **small, **options)
"""


def trained(net: Network, place: Path, runs: dict[str, dict[str, Any]]) -> list[tuple[np.ndarray, str, dict[str, Any]]]:
    """Rows, the way in which they travelled, and what the training told, of runs one after the other."""
    (place / "runs.py").write_text(RUNS)
    words = ["launch", "--hosts", "hosts.txt", "--threads", "1", "--", "runs.py", json.dumps(runs)]
    ended = on_hosts(net, place, words)
    assert [code for code, _ in ended] == [0, 0], ended
    found = []
    for folder in (place / name for name in runs):
        wire = read_config_file(folder / "config.yaml")["parallel"]["wire_dtype"]
        told = json.loads((folder / "metrics.json").read_text())["train"]
        found.append((np.load(folder / "embeddings.npy"), wire, told))
    return found


def test_a_slow_link_rounds_rows_until_the_run_ends_and_float32_switches_that_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on with another link would choose anew: other bits than it would have had."""
    monkeypatch.setenv(SHARED_VARIABLE, "0")  # network namespaces of one machine share its memory
    with network(2) as net:
        for host in range(2):
            net.throttle(host, 8)
        warm = {
            "wire_dtype": "int8",
            "overlap": True,
        }  # compiles: .06 and .10 of an exchange were hidden with that in it
        runs = {"warm": warm, "run": {}, "off": {"wire_dtype": "float32", "overlap": False}}
        _, slow, off = trained(net, tmp_path, runs)
    assert (slow[1], off[1]) == ("int8", "float32")
    assert 0.004 < slow[2]["link"]["gbit"] < 0.012
    assert slow[2]["wire"].startswith("parallel.wire_dtype=auto, parallel.overlap=auto: rows travel as int8, while tr")
    assert "because a link of 0.0" in slow[2]["wire"]
    assert slow[2]["hidden_share"] > 0.1
    assert "wire" not in off[2], "there was nothing to choose"
    assert not np.array_equal(slow[0], off[0])
    assert slow[2]["bytes_sent"] < 0.4 * off[2]["bytes_sent"]

    shutil.rmtree(max((tmp_path / "run-checkpoints").glob("[0-9]*")))  # so that half of the training is left
    runs = {"run": {"resume": True}, "fast": {}, "told": warm}
    with network(2) as net:
        again, fast, told = trained(net, tmp_path, runs)
    assert fast[2]["link"]["gbit"] > 2 * slow[2]["link"]["gbit"]
    assert (again[1], fast[1], told[1]) == ("int8", "float32", "int8")
    assert "rows travel as int8, while trainers train, because the run did so before its checkpoint" in again[2]["wire"]
    assert "rows travel as float32, because a link of" in fast[2]["wire"]
    np.testing.assert_array_equal(again[0], slow[0])
    np.testing.assert_array_equal(told[0], slow[0])
    np.testing.assert_array_equal(fast[0], off[0])
