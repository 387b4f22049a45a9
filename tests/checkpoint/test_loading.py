"""A checkpoint goes back to where it fits, whole or in the parts that were asked for by name, or nothing changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.checkpoint import loading
from graph_emb.checkpoint.row_files import row_pieces
from graph_emb.core.errors import ConfigError, DataError, GraphEmbError, PartitionError, ShapeError
from graph_emb.formats import embedding_files, warm_start
from graph_emb.formats.warm_start import FromFile
from tests.checkpoint.tiny import NUM, Tiny, same


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A checkpoint after three steps, and its numbers."""
    tiny = Tiny()
    tiny.run(3)
    path = tiny.save(tmp_path / "3", step=3, extra={"epoch": 1, "seen": (1, 2), "ids": {4: 5, np.int64(6): 7}})
    return path, tiny.look()


def test_training_goes_on_bit_for_bit_with_everything_that_takes_part(tmp_path: Path) -> None:
    tiny = Tiny()
    tiny.run(3)
    tiny.save(tmp_path / "3")
    tiny.run(4)
    expected = tiny.look()
    again = Tiny(seed=9)
    again.load(tmp_path / "3")
    again.run(4)
    assert same(again.look(), expected)


def test_gradients_from_before_the_load_are_forgotten(saved: Any) -> None:
    """They stayed in the table, and the next step brought the NaN of a lost training into the restored rows."""
    path, numbers = saved
    tiny = Tiny()
    early = tiny.node(torch.tensor([2]))
    (tiny.node(torch.tensor([1])).sum() * float("nan")).backward()
    tiny.load(path)
    early.sum().backward()
    tiny.rule.step()
    assert torch.equal(tiny.node.weight[:], numbers["node"])


def test_step_and_extra_come_back_with_their_types(saved: Any) -> None:
    loaded = Tiny(seed=9).load(saved[0])
    assert loaded.step == 3
    assert loaded.extra == {"epoch": 1, "seen": (1, 2), "ids": {4: 5, 6: 7}}
    assert [type(key) for key in loaded.extra["ids"]] == [int, np.int64]
    assert loaded.report[0] == "table 'node': 23 rows of weight, exp_avg, exp_avg_sq, step"
    assert "model: restored" in loaded.report


def test_an_extra_that_cannot_be_read_changes_nothing(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read after the rows had been restored."""
    monkeypatch.setattr(loading, "decode", lambda *_: (_ for _ in ()).throw(TypeError("no such key")))
    tiny = Tiny(seed=9)
    before = tiny.look()
    with pytest.raises(TypeError, match="no such key"):
        tiny.load(saved[0])
    assert same(tiny.look(), before)


def test_weights_only_leaves_every_state_and_says_so(saved: Any) -> None:
    path, numbers = saved
    tiny = Tiny(seed=9)
    tiny.run(1)
    before = tiny.look()
    loaded = ge.load_checkpoint(path, tables=[tiny.node, tiny.word], model=tiny.model, weights_only=True)
    after = tiny.look()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {"node", "word", "model weight", "model bias"}
    assert torch.equal(after["node"], numbers["node"])
    assert loaded.report[0] == "table 'node': 23 rows of weight; state of Adam left out"
    assert "schedulers: left out" in loaded.report
    assert "generator 'torch': left out" in loaded.report


def test_only_the_named_table_is_loaded_with_its_state(saved: Any) -> None:
    path, numbers = saved
    tiny = Tiny(seed=9)
    before = tiny.look()
    loaded = ge.load_checkpoint(path, tables=[tiny.node], optimizers=[tiny.rule], only=["node"])
    after = tiny.look()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {"node", "node exp_avg", "node exp_avg_sq", "node step", "lr"}
    assert torch.equal(after["node exp_avg"], numbers["node exp_avg"])
    assert "table 'word': left out" in loaded.report


def test_new_rows_of_a_grown_graph_begin_with_their_first_values(saved: Any) -> None:
    path, numbers = saved
    tiny = Tiny(seed=9, num=30)
    first = tiny.node.weight[NUM:]
    tiny.node(torch.arange(30)).sum().backward()
    tiny.rule.step()
    with pytest.raises(PartitionError, match=r"'node': 7 ids of the table are not in the checkpoint, such as 23; pass"):
        tiny.load(path)
    loaded = tiny.load(path, allow_new_rows=True)
    assert "table 'node': 7 new rows begin with their first values" in loaded.report
    assert torch.equal(tiny.node.weight[:NUM], numbers["node"])
    assert torch.equal(tiny.node.weight[NUM:], first)
    assert torch.equal(tiny.node.shard.state["exp_avg"][:NUM], numbers["node exp_avg"])
    assert not tiny.node.shard.state["exp_avg"][NUM:].any()


def grown(path: Path, init: Any) -> ge.DistEmbedding:
    """A table of 9 rows whose first 4 have a checkpoint of sevens there; its pieces are of two rows."""
    small = ge.DistEmbedding(4, 2, "t", lambda shape, dtype: torch.full(shape, 7.0))
    ge.save_checkpoint(path, tables=[small])
    ge.shutdown()
    return ge.DistEmbedding(9, 2, "t", init)


@pytest.mark.parametrize("kind", ["function", "file"])
def test_first_values_that_come_all_at_once_are_those_of_their_rows(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function was called for each 16 MB and gave the first rows of every piece; a file was read for each."""
    monkeypatch.setattr(loading, "row_pieces", lambda rows, width, most=16: row_pieces(rows, width, most))
    first, opened = torch.arange(18.0).view(9, 2), []
    np.save(tmp_path / "first.npy", first.numpy())
    real = embedding_files.open_embeddings
    monkeypatch.setattr(warm_start, "open_embeddings", lambda path: opened.append(path) or real(path))
    inits = {"function": lambda shape, dtype: first[: shape[0]], "file": FromFile(tmp_path / "first.npy")}
    emb = grown(tmp_path / "1", inits[kind])
    opened.clear()
    ge.load_checkpoint(tmp_path / "1", tables=[emb], allow_new_rows=True)
    assert emb.weight[:].tolist() == [[7.0, 7.0]] * 4 + first[4:].tolist()
    assert len(opened) == (0 if kind == "function" else 1)


def test_first_values_that_cannot_be_had_change_nothing(tmp_path: Path) -> None:
    """The function was called after the rows of the checkpoint had been written."""
    found = [torch.ones(9, 2)]
    emb = grown(tmp_path / "1", lambda shape, dtype: found.pop())
    found.append(torch.ones(3))
    with pytest.raises(ShapeError, match=r"init_func returned \(3,\); it must return a tensor of shape \(9, 2\)"):
        ge.load_checkpoint(tmp_path / "1", tables=[emb], allow_new_rows=True)
    assert torch.equal(emb.weight[:], torch.ones(9, 2))


def test_ids_that_the_graph_has_not_are_refused(saved: Any) -> None:
    smaller = Tiny(seed=9, num=20)
    kept = set(smaller.node.original_ids.of(0, 20).tolist())
    lost = min(set(range(NUM)) - kept)
    with pytest.raises(PartitionError, match=rf"original id {lost}, which is not among the 20 ids"):
        smaller.load(saved[0], allow_new_rows=True)


def without(tiny: Tiny, *names: str, **more: Any) -> dict[str, Any]:
    return {**{name: value for name, value in tiny.all().items() if name not in names}, **more}


MISFITS: dict[str, tuple[Any, str]] = {
    "no optimizer": (lambda t: without(t, "optimizers"), r"has the optimizer of tables \['node'\], which is not given"),
    "no model": (lambda t: without(t, "model"), r"holds 1 of model, 0 given; pass it, or only="),
    "no scheduler": (lambda t: without(t, "schedulers"), r"holds 1 of schedulers, 0 given"),
    "no generators": (lambda t: without(t, "generators"), r"holds generators \['numpy', 'torch'\], \[\] given"),
    "a table too few": (
        lambda t: without(t, tables=[t.node], optimizers=[t.rule]),
        r"has table 'word', which is not among tables \['node'\]",
    ),
    "a table too many": (
        lambda t: without(t, tables=[t.node, t.word, ge.DistEmbedding(3, 2, "odd")]),
        r"unknown table of .*manifest.json 'odd'; known: node, word",
    ),
    "a table twice": (lambda t: without(t, tables=[t.node, t.node]), r"table 'node' is given twice"),
    "an optimizer of no table": (lambda t: without(t, tables=[t.node]), r"optimizers\[1\] trains table 'word'"),
    "another scheduler": (
        lambda t: without(t, schedulers=[torch.optim.lr_scheduler.ExponentialLR(t.rule, 0.5)]),
        r"schedulers\[0\] is a 'MultiStepLR', the one here a ExponentialLR",
    ),
    "another model": (
        lambda t: without(t, model=torch.nn.Linear(4, 2)),
        r"model 'weight' has shape \(2, 3\), the one here \(2, 4\)",
    ),
    "a model of other names": (
        lambda t: without(t, model=torch.nn.Linear(3, 2, bias=False)),
        r"only the checkpoint has 'bias'",
    ),
    "another torch optimizer": (
        lambda t: without(t, torch_optimizers=[torch.optim.SGD(t.model.parameters())]),
        r"torch_optimizers\[0\] is a 'AdamW', the one here a SGD",
    ),
    "another generator": (
        lambda t: without(t, generators={"torch": t.generators["torch"], "numpy": torch.Generator()}),
        r"generator 'numpy' is a 'PCG64', the one here a torch cpu",
    ),
    "weights_only with optimizers": (lambda t: {**t.all(), "weights_only": True}, r"leave optimizers and the rest out"),
    "only as a text": (lambda t: {**t.all(), "only": "node"}, r"only='node' is a text; pass names"),
    "only of an unknown table": (lambda t: {**t.all(), "only": ["nodes"]}, r"did you mean 'node'"),
    "another groups of tables": (
        lambda t: without(t, optimizers=[_both(t)]),
        r"has optimizers of tables \[\['node'\], \['word'\]\], optimizers\[0\] trains \['node', 'word'\]",
    ),
}


def _both(tiny: Tiny) -> Any:
    tiny.rule.close()
    tiny.plain.close()
    return ge.SparseAdam([tiny.node, tiny.word], lr=0.1)


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_one_line_and_changes_nothing(name: str, saved: Any) -> None:
    make, message = MISFITS[name]
    tiny = Tiny(seed=9)
    arguments = make(tiny)
    before = tiny.look()
    with pytest.raises(ConfigError, match=message) as caught:
        ge.load_checkpoint(saved[0], **arguments)
    assert "\n" not in str(caught.value)
    assert same(tiny.look(), before)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"rule": ge.SparseRowAdam},
            r"'exp_avg_sq': \('element', 'float32'\).*, the one here keeps",
        ),
        ({"rule": ge.SparseAdagrad}, r"'node' has state .* of Adam, the one here keeps \{'sum'"),
        ({"dim": 4}, r"table 'node' has width 3, the one here 4"),
    ],
)
def test_another_rule_or_width_names_both(other: dict[str, Any], message: str, saved: Any) -> None:
    tiny = Tiny(seed=9, **other)
    before = tiny.look()
    with pytest.raises(GraphEmbError, match=message):
        tiny.load(saved[0])
    assert same(tiny.look(), before)


def test_there_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing/manifest.json: no such file"):
        Tiny().load(tmp_path / "nothing")


def test_a_users_own_ids_need_not_be_dense(tmp_path: Path) -> None:
    ids = np.array([900, 5, 70, 10_000_000_000, 0])
    first = ge.DistEmbedding(5, 2, "t", ge.initializers.Uniform(seed=1), original_ids=ids)
    by_id = dict(zip(ids.tolist(), first.weight[:].tolist(), strict=True))
    ge.save_checkpoint(tmp_path / "0", tables=[first])
    ge.shutdown()
    second = ge.DistEmbedding(5, 2, "t", original_ids=torch.from_numpy(ids[::-1].copy()))
    ge.load_checkpoint(tmp_path / "0", tables=[second])
    assert dict(zip(ids[::-1].tolist(), second.weight[:].tolist(), strict=True)) == by_id


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_storage_comes_back_as_it_was(dtype: torch.dtype, tmp_path: Path) -> None:
    def make(seed: int) -> Any:
        ge.shutdown()
        emb = ge.DistEmbedding(7, 3, "t", ge.initializers.Uniform(seed=seed), dtype=dtype)
        return emb, ge.SparseAdam([emb], lr=0.1, bias_correction="row")

    emb, opt = make(0)
    emb(torch.tensor([1, 2])).sum().backward()
    opt.step()
    weight, state = emb.weight[:], {name: value.clone() for name, value in emb.shard.state.items()}
    ge.save_checkpoint(tmp_path / "1", tables=[emb], optimizers=[opt])
    emb, opt = make(1)
    ge.load_checkpoint(tmp_path / "1", tables=[emb], optimizers=[opt])
    assert torch.equal(emb.weight[:], weight)
    assert {name: value.tolist() for name, value in emb.shard.state.items()} == {
        n: v.tolist() for n, v in state.items()
    }


# Byte for byte what the version before graph_emb/core/storage wrote, its checksums by another XXH64.
OLD_MANIFEST = """{
 "format": 1,
 "kind": "graph_emb checkpoint",
 "step": 7,
 "created": "2026-11-23T04:33:15.112131+00:00",
 "world": {"mode": "local", "ranks": 1, "library": "0.1.0"},
 "metric": 0.5,
 "tables": {
  "node": {
   "num_rows": 3,
   "dim": 2,
   "dtype": "float32",
   "rule": "Adagrad",
   "options": {"initial_accumulator_value": 0.0, "merge": "sum"},
   "numbers": {"lr": 0.5, "eps": 1e-10},
   "state": {"sum": {"kind": "element", "dtype": "float32", "values": null}},
   "files": [
    {
     "name": "tables/node/00000-00000.safetensors",
     "bytes": 240,
     "xxh64": "1528abe0be72e40a",
     "rows": 3,
     "start": 0,
     "stop": 3,
     "ids": false
    }
   ]
  }
 },
 "optimizers": [
  {
   "rule": "Adagrad",
   "options": {"initial_accumulator_value": 0.0, "merge": "sum"},
   "groups": [{"tables": ["node"], "numbers": {"lr": 0.5, "eps": 1e-10}}]
  }
 ],
 "dense": null,
 "model": null,
 "torch_optimizers": [],
 "schedulers": [],
 "generators": {},
 "extra": {"at": 3},
 "extras": null,
 "sha256": "a6cb7d7067107f094815cdc256ed9be708996591e5df97e0ef71b7358529ba38"
}
"""
OLD_HEADER = (
    b'{"weight":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},'
    b'"state.sum":{"dtype":"F32","shape":[3,2],"data_offsets":[24,48]}}'
)


def test_a_checkpoint_of_the_version_before_is_loaded(tmp_path: Path) -> None:
    rows, sums = np.float32([[0.5, 1.5], [3, 4], [4.5, 5.5]]), np.float32([[1, 1], [0, 0], [1, 1]])
    file = tmp_path / "7" / "tables" / "node" / "00000-00000.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\xb8" + bytes(7) + OLD_HEADER.ljust(184) + rows.tobytes() + sums.tobytes())
    (tmp_path / "7" / "manifest.json").write_text(OLD_MANIFEST)
    ge.shutdown()
    table = ge.DistEmbedding(3, 2, "node")
    opt = ge.SparseAdagrad([table], lr=0.1)
    loaded = ge.load_checkpoint(tmp_path / "7", tables=[table], optimizers=[opt])
    assert (loaded.step, loaded.extra, opt.param_groups[0]["lr"]) == (7, {"at": 3}, 0.5)
    assert table.weight[:].tolist() == rows.tolist()
    assert table.shard.state["sum"].tolist() == sums.tolist()
    ge.save_checkpoint(tmp_path / "7", tables=[table], optimizers=[opt], step=8)  # and replaced by a new one
    assert ge.load_checkpoint(tmp_path / "7", tables=[table], optimizers=[opt]).step == 8
