"""A save is complete under its name or absent, whatever happens to it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import graph_emb as ge
from graph_emb.checkpoint import row_files, snapshot
from graph_emb.checkpoint.manifest import Retention, pending_checkpoint
from graph_emb.checkpoint.reader import Checkpoint
from graph_emb.checkpoint.saving import PendingCheckpoint
from graph_emb.core.errors import ConfigError, DataError
from tests.checkpoint.tiny import NUM, Tiny, same


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_holds_what_the_manifest_says_and_safetensors_reads_it(tmp_path: Path) -> None:
    tiny = Tiny()
    tiny.run(2)
    path = tiny.save(tmp_path / "2", step=2)
    listed = {"manifest.json", *(file.name for file in Checkpoint(path).manifest.files())}
    assert {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()} == listed
    with safe_open(path / "tables/node/00000-00000.safetensors", framework="pt") as file:
        assert set(file.keys()) == {"weight", "state.exp_avg", "state.exp_avg_sq"}  # ids 0 to 22: a range
        original = file.get_tensor("weight")
    assert torch.equal(original[torch.from_numpy(tiny.node.original_ids.of(0, NUM))], tiny.node.weight[:])
    with safe_open(path / "dense.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("model.weight"), tiny.model.weight.detach())


def test_files_of_a_few_rows_have_ascending_ids_and_are_read_by_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_files, "FILE_ROWS", 4)
    tiny = Tiny()
    tiny.run(2)
    table = Checkpoint(tiny.save(tmp_path / "2")).table("node")
    assert [file.rows for file in table.entry.files] == [4, 4, 4, 4, 4, 3]
    assert all(file.ids for file in table.entry.files)
    rows = table.rows(3, 9, ["weight", "state.exp_avg"])
    places = torch.from_numpy(tiny.node.original_ids.find(np.arange(3, 9)))
    assert rows["ids"].tolist() == [3, 4, 5, 6, 7, 8]
    assert torch.equal(rows["weight"], tiny.node.weight[places])
    assert torch.equal(rows["state.exp_avg"], tiny.node.shard.state["exp_avg"][places])
    pieces = list(table.pieces(most=100))
    assert len(pieces) > 3
    assert torch.cat([piece["ids"] for piece in pieces]).tolist() == list(range(NUM))


def finished(made: Any) -> Path:
    """The folder, once it is there."""
    return made.wait() if isinstance(made, PendingCheckpoint) else made


def test_a_name_is_replaced_by_a_checkpoint_only(tmp_path: Path) -> None:
    tiny = Tiny()
    tiny.save(tmp_path / "last", step=1)
    tiny.run(1)
    tiny.save(tmp_path / "last", step=2)
    assert names(tmp_path) == ["last"]
    assert Tiny(seed=3).load(tmp_path / "last").step == 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="mine exists and is no checkpoint"):
        Tiny().save(tmp_path / "mine")
    assert names(tmp_path / "mine") == ["notes.txt"]
    with pytest.raises(ConfigError, match="does not begin with a dot"):
        Tiny().save(tmp_path / ".hidden")


def test_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    tiny = Tiny()
    (tmp_path / "other").mkdir()
    for step, metric in enumerate([0.1, 0.9, 0.3, 0.2, 0.4]):
        tiny.save(tmp_path / str(step), step=step, keep_last=2, metric=metric, keep_best="max")
    assert names(tmp_path) == ["1", "3", "4", "other"]
    tiny.save(tmp_path / "5", step=5, keep_last=1)
    assert names(tmp_path) == ["5", "other"]


def test_a_link_counts_as_no_checkpoint_and_none_takes_its_place(tmp_path: Path) -> None:
    """It counted among the newest, so that a real one went; a save to it left a hidden folder that barred the next."""
    tiny = Tiny()
    for step in (10, 20):
        tiny.save(tmp_path / str(step), step=step)
    (tmp_path / "latest").symlink_to("20")
    tiny.save(tmp_path / "30", step=30, keep_last=2)
    assert names(tmp_path) == ["20", "30", "latest"]
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"latest is a link to 20; save under a name of its own"):
            tiny.save(tmp_path / "latest", step=40)
    assert names(tmp_path) == ["20", "30", "latest"]
    assert tiny.load(tmp_path / "latest").step == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_last": 0}, r"keep_last=0 must be an integer of at least 1"),
        ({"keep_best": "max"}, r"keep_best='max' needs keep_last"),
        ({"keep_best": "best", "keep_last": 1, "metric": 1.0}, r"keep_best='best' must be 'max', 'min' or None"),
        ({"metric": float("nan")}, r"metric=nan must be a finite number"),
        ({"step": -1}, r"step=-1 must be an integer of at least 0"),
        ({"extra": {"f": print}}, r"extra.f is a builtin_function_or_method; a checkpoint holds numbers"),
        ({"generators": {"g": 3}}, r"generator 'g' is a int; pass a torch.Generator"),
        ({"tables": []}, r"optimizers\[0\] trains table 'node', which is not in tables"),
    ],
)
def test_what_cannot_be_saved_is_said_before_anything_is_written(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        Tiny().save(tmp_path / "0", **options)
    assert names(tmp_path) == []


def test_a_sparse_optimizer_is_no_torch_optimizer(tmp_path: Path) -> None:
    """It was saved as one, and no load could restore it."""
    tiny = Tiny()
    with pytest.raises(ConfigError, match=r"torch_optimizers\[1\] is a SparseAdam of tables; pass it in optimizers"):
        tiny.save(tmp_path / "0", optimizers=[], torch_optimizers=[tiny.dense, tiny.rule])
    assert names(tmp_path) == []


@pytest.mark.parametrize("background", [False, True])
def test_a_full_disk_leaves_the_older_checkpoint_and_nothing_else(
    background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = Tiny()
    tiny.save(tmp_path / "last", step=1)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(snapshot, "write_shares", full)
    with pytest.raises(OSError, match="No space left"):
        finished(tiny.save(tmp_path / "last", step=2, background=background))
    monkeypatch.undo()
    assert names(tmp_path) == ["last"]
    assert Tiny(seed=3).load(tmp_path / "last").step == 1
    tiny = Tiny()
    tiny.save(tmp_path / "last", step=3)  # an error that wait() raised is not raised again


def test_a_background_save_holds_the_numbers_of_its_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, go = Tiny(), threading.Event()
    tiny.run(2)
    before = tiny.look()
    write = snapshot.write_shares
    monkeypatch.setattr(snapshot, "write_shares", lambda *args: (go.wait(30), write(*args))[1])
    made = tiny.save(tmp_path / "2", step=2, background=True)
    assert isinstance(made, PendingCheckpoint)
    tiny.run(3)
    assert not made.done
    assert not (tmp_path / "2").exists()
    go.set()
    assert made.wait() == made.wait() == tmp_path / "2"
    assert made.done
    again = Tiny(seed=4)
    again.load(tmp_path / "2")
    assert same(again.look(), before)


def test_the_next_save_raises_what_a_background_save_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Tiny()
    monkeypatch.setattr(snapshot, "write_shares", lambda *_: (_ for _ in ()).throw(OSError(5, "I/O error")))
    tiny.save(tmp_path / "1", background=True)._thread.join()
    monkeypatch.undo()
    with pytest.raises(OSError, match="I/O error"):
        tiny.save(tmp_path / "2")
    tiny.save(tmp_path / "2")
    assert names(tmp_path) == ["2"]


ENDS = """
import sys
import graph_emb as ge
from graph_emb.checkpoint import saving

write = saving.write_part


def late(snapshot):
    saving.threading.main_thread().join()
    write(snapshot)


saving.write_part = late
emb = ge.DistEmbedding(5, 2, "t", ge.initializers.Uniform(seed=0))
ge.save_checkpoint(sys.argv[1], tables=[emb], step=1, background=True)
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)"])
def test_a_background_save_outlives_the_end_of_the_script(end: str, tmp_path: Path) -> None:
    """The files were given to a ThreadPoolExecutor, which refuses work once the main thread has ended."""
    done = subprocess.run([sys.executable, "-c", ENDS + end, tmp_path / "1"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (3 if end else 0, b"")
    emb = ge.DistEmbedding(5, 2, "t")
    assert ge.load_checkpoint(tmp_path / "1", tables=[emb]).step == 1
    assert torch.equal(emb.weight[:], ge.DistEmbedding(5, 2, init_func=ge.initializers.Uniform(seed=0)).weight[:])


def test_an_error_that_nobody_waits_for_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tiny = Tiny()
    monkeypatch.setattr(snapshot, "write_shares", lambda *_: (_ for _ in ()).throw(OSError(5, "I/O error")))
    made = tiny.save(tmp_path / "1", background=True)
    made._thread.join()
    (line,) = (record.getMessage() for record in caplog.records if record.name == "graph_emb.checkpoint")
    assert line == f"checkpoint {tmp_path / '1'} was not written: OSError: [Errno 5] I/O error"
    for _ in range(2):
        with pytest.raises(OSError, match="I/O error"):
            made.wait()


def test_a_wait_that_was_interrupted_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as a wait before it had waited, so that the next one returned while nothing was there."""
    tiny, go = Tiny(), threading.Event()
    write = snapshot.write_shares
    monkeypatch.setattr(snapshot, "write_shares", lambda *args: (go.wait(30), write(*args))[1])
    made = tiny.save(tmp_path / "1", background=True)
    with monkeypatch.context() as patch:
        patch.setattr(made._written, "wait", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            made.wait()
        with pytest.raises(KeyboardInterrupt):
            tiny.save(tmp_path / "2")
    go.set()
    tiny.save(tmp_path / "2")  # waits for the one before
    assert made.wait() == tmp_path / "1"
    assert names(tmp_path) == ["1", "2"]


def test_two_jobs_do_not_write_one_checkpoint(tmp_path: Path) -> None:
    living = pending_checkpoint(tmp_path / "9", Retention(None, None, None))
    Tiny().save(tmp_path / "8")
    assert names(tmp_path) == [".9.writing", "8"]
    with pytest.raises(ConfigError, match="another process writes this checkpoint"):
        Tiny().save(tmp_path / "9")
    living.close()
    assert names(tmp_path) == ["8"]


def test_strange_table_names_stay_inside_the_folder(tmp_path: Path) -> None:
    tables = [ge.DistEmbedding(2, 1, name, ge.initializers.Uniform(seed=k)) for k, name in enumerate(["..", "a b:c?é"])]
    values = [table.weight[:] for table in tables]
    ge.save_checkpoint(tmp_path / "x" / "0", tables=tables)
    assert os.listdir(tmp_path) == ["x"]
    for table in tables:
        table.weight[:] = 0.0
    ge.load_checkpoint(tmp_path / "x" / "0", tables=tables)
    assert all(torch.equal(table.weight[:], value) for table, value in zip(tables, values, strict=True))


def test_a_table_without_rows_is_saved_and_loaded(tmp_path: Path) -> None:
    emb = ge.DistEmbedding(0, 2, "empty")
    ge.save_checkpoint(tmp_path / "0", tables=[emb])
    ge.load_checkpoint(tmp_path / "0", tables=[emb])
    assert list(Checkpoint(tmp_path / "0").table("empty").pieces()) == []


def some_ranks(folder: Path) -> list[str]:
    """Ranks with own generators and extras; one of them cannot write the second time."""
    found = []
    transport = ge.init("collective", timeout=60.0)
    try:
        emb = ge.DistEmbedding(9, 2, "t", ge.initializers.Uniform(seed=1))
        opt = ge.SparseAdagrad([emb], lr=0.1)
        own = np.random.default_rng(transport.rank)
        everything: dict[str, Any] = {"tables": [emb], "optimizers": [opt], "generators": {"own": own}}
        made = ge.save_checkpoint(folder / "1", **everything, extra={"at": transport.rank}, background=True)
        expected = own.random()
        made.wait()
        saved = emb.weight[:]
        emb.weight[:] = 7.0
        emb.prefetch(torch.arange(9))  # on its way while the rows are loaded
        loaded = ge.load_checkpoint(folder / "1", **everything)
        assert torch.equal(emb(torch.arange(9)).detach(), saved)
        found += [str(loaded.extra["at"]), str(own.random() == expected)]
        for background in (False, True):
            if transport.rank == 1:
                snapshot.write_shares = lambda *_: (_ for _ in ()).throw(OSError(28, "No space left"))
            try:
                failed = ge.save_checkpoint(folder / "2", **everything, background=background)
                failed.wait()
            except (OSError, DataError) as error:
                found.append(f"{type(error).__name__}: {error}")
            finally:
                snapshot.write_shares = row_files.write_shares
        if transport.rank == 1:  # damage that one rank finds is an error of all
            file = folder / "1" / Checkpoint(folder / "1").manifest.tables["t"].files[1].name
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(data)
        transport.barrier()
        before = emb.weight[:]
        try:
            ge.load_checkpoint(folder / "1", **everything)
        except DataError as error:
            found.append(str(error))
        assert torch.equal(emb.weight[:], before)
        return found
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_a_rank_that_fails_fails_the_save_and_the_load_on_all(tmp_path: Path, ranks: Any) -> None:
    first, second = ranks.run(some_ranks, 2, tmp_path)
    assert (first[:2], second[:2]) == (["0", "True"], ["1", "True"])
    for alone, there in zip(first[2:4], second[2:4], strict=True):
        assert alone.endswith("1 of 2 ranks failed; their errors say why")
        assert there == "OSError: [Errno 28] No space left"
    assert first[4] == second[4]
    assert "the file is damaged" in first[4]
    assert names(tmp_path) == ["1"]


def one_rank(folder: Path) -> str:
    """Generators of two ranks cannot go to one."""
    ge.init("collective", timeout=60.0)
    try:
        emb = ge.DistEmbedding(9, 2, "t")
        with pytest.raises(ConfigError) as caught:
            ge.load_checkpoint(
                folder / "1",
                tables=[emb],
                optimizers=[ge.SparseAdagrad([emb], lr=0.1)],
                generators={"own": np.random.default_rng(0)},
            )
        return str(caught.value)
    finally:
        ge.shutdown()


def two_ranks(folder: Path) -> None:
    """A checkpoint whose ranks had generators of their own."""
    transport = ge.init("collective", timeout=60.0)
    try:
        emb = ge.DistEmbedding(9, 2, "t")
        opt = ge.SparseAdagrad([emb], lr=0.1)
        generators = {"own": np.random.default_rng(transport.rank)}
        ge.save_checkpoint(folder / "1", tables=[emb], optimizers=[opt], generators=generators)
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_generators_of_other_numbers_of_ranks_are_refused(tmp_path: Path, ranks: Any) -> None:
    ranks.run(two_ranks, 2, tmp_path)
    (text,) = ranks.run(one_rank, 1, tmp_path)
    assert "generator 'own' has a state for each of 2 ranks, this job has 1" in text
