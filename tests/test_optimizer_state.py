"""Optimizer state leaves and returns unchanged, or not at all."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from tests.test_optimizer import OPTIMIZERS, ROWS, batches, feed, table
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode")


def trained(name: str, steps: int = 5) -> tuple[ge.DistEmbedding, Any]:
    emb = table()
    opt = OPTIMIZERS[name]([emb])
    for ids, grads in batches(ROWS, 4)[:steps]:
        feed(emb, ids, grads)
        opt.step()
    return emb, opt


def go_on(emb: ge.DistEmbedding, opt: Any) -> torch.Tensor:
    for ids, grads in batches(ROWS, 4, seed=9)[:4]:
        feed(emb, ids, grads)
        opt.step()
    return emb.weight[:]


WAYS: dict[str, Any] = {
    "state_dict": (lambda opt, f: opt.state_dict(), lambda opt, f, saved: opt.load_state_dict(saved)),
    "file": (lambda opt, f: opt.save(f), lambda opt, f, saved: opt.load(f)),
    "local": (lambda opt, f: opt.local_state_dict(), lambda opt, f, saved: opt.load_local_state_dict(saved)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_bit_for_bit_after_a_round_trip(name: str, way: str, tmp_path: Path) -> None:
    save, load = WAYS[way]
    emb, opt = trained(name)
    saved, weight = save(opt, tmp_path / "opt"), emb.weight[:]
    expected = go_on(emb, opt)
    ge.shutdown()
    emb = table()
    emb.weight[:] = weight
    opt = OPTIMIZERS[name]([emb], lr=0.7)
    load(opt, tmp_path / "opt", saved)
    assert opt.param_groups[0]["lr"] == 0.1
    assert torch.equal(go_on(emb, opt), expected)


def test_a_state_dict_is_a_copy() -> None:
    emb, opt = trained("SparseAdagrad")
    saved = opt.state_dict()
    before = saved["state"]["t"]["sum"].clone()
    go_on(emb, opt)
    assert torch.equal(saved["state"]["t"]["sum"], before)


def test_the_local_form_has_dgls_keys() -> None:
    _, opt = trained("SparseAdam")
    local = opt.local_state_dict()
    assert local["params"]["_lr"] == 0.1
    assert (local["params"]["_beta1"], local["params"]["_beta2"], local["params"]["world_size"]) == (0.9, 0.999, 1)
    assert torch.equal(local["emb_states"]["t"]["ids"], torch.arange(ROWS))
    assert set(local["emb_states"]["t"]["states"]) == {"exp_avg", "exp_avg_sq", "step"}


def spoil(saved: dict[str, Any], how: str) -> dict[str, Any]:
    if how == "rule":
        saved["rule"] = "Adam"
    elif how == "options":
        saved["options"] = {**saved["options"], "merge": "mean"}
    elif how == "tables":
        saved["param_groups"][0]["tables"] = ["other"]
    elif how == "shape":
        saved["state"]["t"]["sum"] = torch.zeros(ROWS + 1, 4)
    elif how == "dtype":
        saved["state"]["t"]["sum"] = torch.zeros(ROWS, 4, dtype=torch.float64)
    elif how == "entry":
        del saved["state"]["t"]["sum"]
    elif how == "lr":
        saved["param_groups"][0]["lr"] = float("nan")
    else:
        del saved[how]
    return saved


@pytest.mark.parametrize("how", ["rule", "options", "tables", "shape", "dtype", "entry", "lr", "param_groups", "state"])
def test_a_state_that_does_not_fit_changes_nothing(how: str) -> None:
    _, opt = trained("SparseAdagrad")
    before = opt.state_dict()
    with pytest.raises(ge.ConfigError):
        opt.load_state_dict(spoil(opt.state_dict(), how))
    after = opt.state_dict()
    assert torch.equal(after["state"]["t"]["sum"], before["state"]["t"]["sum"])
    assert after["param_groups"] == before["param_groups"]


def test_local_state_of_other_ids_is_refused() -> None:
    _, opt = trained("SparseAdagrad")
    local = opt.local_state_dict()
    local["emb_states"]["t"]["ids"] = torch.arange(3)
    with pytest.raises(ge.ConfigError, match=r"covers 3 ids, this rank owns \[0, 11\)"):
        opt.load_local_state_dict(local)


def test_files_are_named_as_dgls_and_leave_no_temporary_behind(tmp_path: Path) -> None:
    _, opt = trained("SparseSGD")
    opt.save(str(tmp_path / "opt"))
    opt.save(tmp_path / "opt")
    assert [path.name for path in tmp_path.iterdir()] == ["opt_0"]


def test_a_missing_folder_or_file_names_the_path(tmp_path: Path) -> None:
    _, opt = trained("SparseAdagrad")
    with pytest.raises(ge.DataError, match="no folder"):
        opt.save(tmp_path / "absent" / "opt")
    with pytest.raises(ge.DataError, match=r"opt_0; save\(\) writes it"):
        opt.load(tmp_path / "opt")


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\x80" * 99, lambda b: b[9:]])
def test_a_damaged_file_is_refused_before_anything_changes(damage: Any, tmp_path: Path) -> None:
    _, opt = trained("SparseAdagrad")
    opt.save(tmp_path / "opt")
    before = opt.state_dict()["state"]["t"]["sum"]
    path = tmp_path / "opt_0"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ge.DataError, match="damaged"):
        opt.load(tmp_path / "opt")
    assert torch.equal(opt.state_dict()["state"]["t"]["sum"], before)


def test_a_file_of_another_rule_is_refused(tmp_path: Path) -> None:
    emb, opt = trained("SparseRowAdagrad")
    opt.save(tmp_path / "opt")
    opt.close()
    other = ge.SparseAdam([emb], lr=0.1)
    with pytest.raises(ge.GraphEmbError, match="RowAdagrad"):
        other.load(tmp_path / "opt")
    assert np.all(other.state_dict()["state"]["t"]["step"].numpy() == 0)


def late(data: Any, name: str, ids: torch.Tensor, grads: torch.Tensor) -> None:
    time.sleep(0.5)


def save_behind_a_slow_push(transport: Any, way: str, folder: str) -> list[float]:
    """The state after a step, a save, another step and a load."""
    save, load = WAYS[way]
    emb, slow = ge.DistEmbedding(3, 1, name="t"), ge.DistEmbedding(3, 1, name="slow")
    opt = ge.SparseAdagrad([emb], lr=1.0)
    before = ge.SparseSGD([slow], lr=1.0)
    transport.register_push_handler("slow", late)

    def step() -> None:
        slow(torch.arange(3)).sum().backward()
        before.step()
        emb(torch.arange(3)).sum().backward()
        opt.step()

    step()
    file = Path(folder, "opt")
    saved = save(opt, file)
    step()
    load(opt, file, saved)
    again = opt.state_dict()["state"]["t"]["sum"]
    return again.flatten().tolist()


@pytest.mark.dist
@pytest.mark.parametrize("way", WAYS)
def test_pushes_on_their_way_are_waited_for(way: str, tmp_path: Path) -> None:
    """In kvstore mode ``step()`` returns before the servers apply it: a save lacked it, a load was overtaken by it."""
    assert Cluster(1, staleness=100).run(save_behind_a_slow_push, way, str(tmp_path)) == [[1.0] * 3]
