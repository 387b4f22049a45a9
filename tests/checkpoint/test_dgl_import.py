"""Files that DGL's optimizers really wrote go on in ours, under any order of ids; what does not fit changes no row."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.checkpoint.dgl_import import import_dgl_state
from graph_emb.core.errors import ConfigError, DataError, PartitionError
from tests import dgl_standalone
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster, close_idle

ROWS, DIM = 11, 4
TO_ORIGINAL = np.random.default_rng(5).permutation(ROWS)  # of DGL's ids
OURS = np.random.default_rng(6).permutation(ROWS)  # the original ids of our rows
OPTIMIZERS = {"adagrad": (ge.SparseAdagrad, {}), "adam": (ge.SparseAdam, {"betas": (0.8, 0.99)})}

# Trains by DGL for six steps, saves, and trains on for six more: what we must reach from its files.
SCRIPT = """
emb = dgl.distributed.DistEmbedding(11, 4, "theirs", lambda shape, dtype: first.clone(), policy)
found = {}
for name in ("adagrad", "adam"):
    emb._tensor[torch.arange(11)] = first
    optim = dgl.distributed.optim
    if name == "adagrad":
        opt = optim.SparseAdagrad([emb], lr=0.3, eps=1e-2)
    else:
        opt = optim.SparseAdam([emb], lr=0.2, eps=1e-2, betas=(0.8, 0.99))
    step = 0
    for ids, grads in batches(11, 4):
        if len(ids) and step < 12:
            step += 1
            opt.zero_grad()
            (emb(torch.from_numpy(ids)) * torch.from_numpy(grads).float()).sum().backward()
            opt.step()
            emb.reset_trace()
            if step == 6:
                opt.save(f"{folder}/{name}")
                found[f"{name} saved"] = emb._tensor[torch.arange(11)]
    found[name] = emb._tensor[torch.arange(11)]
torch.save(found, folder + "/weights.pt")
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``adagrad_0`` and ``adam_0`` as DGL wrote them, and the weights then and six steps later."""
    folder = tmp_path_factory.mktemp("dgl")
    dgl_standalone.run(SCRIPT, folder)
    return folder


@pytest.fixture(autouse=True)
def _local() -> Iterator[None]:
    ge.shutdown()
    ge.init(mode="local")
    yield
    ge.shutdown()


def ours(name: str, original_ids: Any = None, **options: Any) -> tuple[ge.DistEmbedding, ge.SparseOptimizer]:
    book = ge.RangeBook([0, 4, ROWS])
    emb = ge.DistEmbedding(ROWS, DIM, "mine", part_policy=book, original_ids=original_ids)
    kind, numbers = OPTIMIZERS[name]
    return emb, kind([emb], lr=0.01, compat="dgl-1.x", **{**numbers, **options})


def go_on(saved: Path, name: str, mapped: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Our weights after DGL's second six steps, in the order of DGL's ids, and DGL's own."""
    from tests.optim.oracles import batches

    weights = torch.load(saved / "weights.pt", weights_only=True)
    emb, opt = ours(name, OURS if mapped else None)
    maps = {"mine": TO_ORIGINAL} if mapped else None
    row_of = torch.from_numpy(np.argsort(OURS)[TO_ORIGINAL]) if mapped else torch.arange(ROWS)
    emb.weight[row_of] = weights[f"{name} saved"]
    report = import_dgl_state(saved / name, opt, id_maps=maps, tables={"mine": "theirs"})
    assert report.world_size == 1
    assert opt.param_groups[0]["lr"] == report.numbers["lr"] == 0.2
    share = slice(emb.kvstore.rank, None, emb.kvstore.world_size)
    step = 0
    for ids, grads in batches(ROWS, DIM):
        if len(ids) and step < 12:
            step += 1
            if step > 6:  # the ids of one row stay on one rank, so that duplicates are averaged as by one process
                mine = np.isin(ids, np.arange(ROWS)[share])
                rows = emb(row_of[torch.from_numpy(ids[mine])])
                (rows * torch.from_numpy(grads[mine]).float()).sum().backward()
                opt.step()
    return emb.weight[row_of], weights[name]


@pytest.mark.parametrize("mapped", [False, True])
def test_adam_goes_on_as_dgls_does(saved: Path, mapped: bool) -> None:
    found, expected = go_on(saved, "adam", mapped)
    assert (found - expected).abs().max() < 2e-5
    assert (expected - torch.load(saved / "weights.pt", weights_only=True)["adam saved"]).abs().max() > 0.1


@pytest.mark.parametrize("stored_root", [False, True])
def test_adagrads_sums_are_what_is_stored_or_its_square(saved: Path, stored_root: bool) -> None:
    """DGL's Adagrad on the CPU writes sqrt(G) + eps into the memory of G (1.1.3, ``grad_state.sqrt_().add_(eps)``)."""
    emb, opt = ours("adagrad", OURS)
    import_dgl_state(
        saved / "adagrad", opt, id_maps={"mine": TO_ORIGINAL}, tables={"mine": "theirs"}, stored_root=stored_root
    )
    states = torch.load(saved / "adagrad_0", weights_only=True)["emb_states"]["theirs"]["states"]
    stored = next(iter(states.values()))
    by_ours = emb.shard.state["sum"][torch.from_numpy(np.argsort(OURS)[TO_ORIGINAL])]
    assert torch.equal(by_ours, (stored - 1e-2).clamp(min=0).square() if stored_root else stored)
    assert (stored > 1).any()
    assert opt.param_groups[0] == {**opt.param_groups[0], "lr": 0.3, "eps": 1e-2}


def on_a_rank(saved: str, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    ge.init(mode="collective", timeout=60)
    try:
        return go_on(Path(saved), name, True)
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_every_rank_takes_its_own_rows(saved: Path, ranks: Ranks) -> None:
    for found, expected in ranks.run(on_a_rank, 2, str(saved), "adam"):
        assert (found - expected).abs().max() < 2e-5


def as_trainer(transport: Any, saved: str) -> tuple[torch.Tensor, torch.Tensor]:
    return go_on(Path(saved), "adam", True)


@pytest.mark.dist
def test_rows_of_a_machine_without_trainers_are_imported_too(saved: Path) -> None:
    try:
        ((found, expected),) = Cluster(trainers=1, machines=2, servers=1).run(as_trainer, str(saved))
    finally:
        close_idle()
    assert (found - expected).abs().max() < 2e-5


def split(saved: Path, folder: Path, world_size: int) -> Path:
    """The same state as several ranks of DGL write it: ids by their remainder."""
    whole = torch.load(saved / "adam_0", weights_only=True)
    entry = whole["emb_states"]["theirs"]
    for rank in range(world_size):
        mine = entry["ids"] % world_size == rank
        states = {name: tensor[mine] for name, tensor in entry["states"].items()}
        part = {"theirs": {"ids": entry["ids"][mine], "states": states}}
        torch.save(
            {"params": {**whole["params"], "world_size": world_size}, "emb_states": part}, folder / f"adam_{rank}"
        )
    return folder / "adam"


def test_the_files_of_several_ranks_are_one_state(saved: Path, tmp_path: Path) -> None:
    states = []
    for f in (saved / "adam", split(saved, tmp_path, 3)):
        ge.shutdown()
        emb, opt = ours("adam")
        report = import_dgl_state(f, opt, tables={"mine": "theirs"})
        states.append({name: value.clone() for name, value in emb.shard.state.items()})
    assert (report.world_size, report.rows) == (3, {"mine": ROWS})
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert states[0]["step"].max() > 1
    (tmp_path / "adam_2").unlink()
    with pytest.raises(DataError, match=r"adam_2; 3 ranks saved, their files must all be here"):
        import_dgl_state(tmp_path / "adam", opt, tables={"mine": "theirs"})


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("owned",)


def changed(content: dict[str, Any], kind: str) -> Any:
    entry = content["emb_states"]["theirs"]
    if kind == "no dict":
        return [1]
    if kind == "code":
        return {**content, "more": Evil()}
    if kind == "missing row":
        entry["ids"] = entry["ids"][:-1]
        entry["states"] = {name: value[:-1] for name, value in entry["states"].items()}
    if kind == "row twice":
        entry["ids"][3] = 2
    if kind == "outside":
        entry["ids"][3] = ROWS
    if kind == "nan":
        next(iter(entry["states"].values()))[1] = torch.nan
    if kind == "rate":
        content["params"]["_lr"] = -1.0
    return content


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("no dict", DataError, "adam_0 is no optimizer state of DGL"),
        ("code", DataError, "adam_0 is damaged or no torch file"),
        ("missing row", DataError, "row 10 of table 'mine' is there not at all, nor 0 others"),
        ("row twice", DataError, "row 2 of table 'mine' is there twice"),
        ("outside", PartitionError, r"id 11 is outside \[0, 11\)"),
        ("nan", DataError, "holds NaN or infinities"),
        ("rate", DataError, r"adam_0: .*lr=-1.0 is outside"),
    ],
)
def test_bad_files_change_nothing(saved: Path, tmp_path: Path, kind: str, error: type[Exception], text: str) -> None:
    torch.save(changed(torch.load(saved / "adam_0", weights_only=True), kind), tmp_path / "adam_0")
    emb, opt = ours("adam")
    before = opt.state_dict()
    with pytest.raises(error, match=text):
        import_dgl_state(tmp_path / "adam", opt, tables={"mine": "theirs"})
    assert all((value == 0).all() for value in emb.shard.state.values())
    assert opt.param_groups[0]["lr"] == before["param_groups"][0]["lr"]


@pytest.mark.parametrize(
    ("file", "name", "options", "arguments", "error", "text"),
    [
        ("adagrad", "adam", {}, {}, ConfigError, "has the states .*_sum, table 'mine' keeps exp_avg"),
        ("adam", "adam", {"bias_correction": "global"}, {}, ConfigError, "make it with bias_correction='row'"),
        ("adam", "adam", {}, {"tables": {}}, ConfigError, "holds state of 'theirs', not of 'mine'"),
        ("adam", "adam", {}, {"tables": {"x": "theirs"}}, ConfigError, "tables names table 'x'"),
        ("adam", "adam", {}, {"id_maps": {"mine": np.arange(9)}}, PartitionError, r"id 10 is outside \[0, 9\)"),
        ("adam", "adam", {}, {"id_maps": {"mine": np.arange(1, 12)}}, PartitionError, "does not have original id 11"),
        ("adam", "adam", {}, {"stored_root": True}, ConfigError, "stored_root=True is for DGL's Adagrad"),
        ("gone", "adam", {}, {}, DataError, "no optimizer state of DGL at .*gone_0"),
    ],
)
def test_what_does_not_fit_is_named(
    saved: Path, file: str, name: str, options: Any, arguments: Any, error: type[Exception], text: str
) -> None:
    emb, opt = ours(name, **options)
    with pytest.raises(error, match=text):
        import_dgl_state(saved / file, opt, **{"tables": {"mine": "theirs"}, **arguments})
    assert all((value == 0).all() for value in emb.shard.state.values())
