"""A table of a checkpoint leaves as files of embeddings: the rows of its ids, verified, in bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.checkpoint import export
from graph_emb.checkpoint.export import export_checkpoint, save_ids
from graph_emb.checkpoint.manifest import CheckpointManifest, RowsEntry, TableEntry, WorldEntry
from graph_emb.checkpoint.row_files import Column, PieceWriter
from graph_emb.checkpoint.saving import save_checkpoint
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.storage import xxh64_of
from graph_emb.formats.embedding_files import load_embeddings, save_embeddings

NUM, DIM = 30, 5
FORMATS = ("npy", "parquet", "word2vec", "pt")
ORDER = np.random.default_rng(4).permutation(NUM)
NAMES = np.array([f"user{i}" for i in range(NUM)])


@pytest.fixture(autouse=True)
def _local() -> Iterator[None]:
    ge.shutdown()
    ge.init()
    yield
    ge.shutdown()


def saved(folder: Path, original_ids: Any = None, dtype: torch.dtype = torch.float32) -> tuple[Path, torch.Tensor]:
    """A checkpoint of a partitioned table with state, and its rows in the order of their original ids."""
    init = ge.initializers.Normal(seed=2)
    emb = ge.DistEmbedding(NUM, DIM, "node", init, ge.RangeBook([0, 8, NUM]), original_ids=original_ids, dtype=dtype)
    opt = ge.SparseAdagrad([emb], lr=0.1)
    emb(torch.arange(9)).sum().backward()
    opt.step()
    save_checkpoint(folder, tables=[emb], optimizers=[opt], step=7)
    order = np.arange(NUM) if original_ids is None else np.argsort(original_ids)
    return folder, emb.weight[torch.from_numpy(order)].float()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("pieces", [False, True])
def test_rows_come_in_the_order_of_their_original_ids(
    tmp_path: Path, name: str, pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pieces:
        monkeypatch.setattr(export, "BYTES_AT_ONCE", 7 * DIM * 4)
    checkpoint, rows = saved(tmp_path / "ck", ORDER)
    export_checkpoint(checkpoint, tmp_path / "out", [name])
    found = load_embeddings(tmp_path / "out")
    assert np.array_equal(found.weights, rows.numpy())
    assert found.node_ids.tolist() == list(range(NUM))


def test_ids_that_are_far_apart_stay_what_they_are(tmp_path: Path) -> None:
    sparse = np.sort(np.random.default_rng(0).integers(0, 2**50, NUM))
    checkpoint, rows = saved(tmp_path / "ck", sparse[ORDER])
    export_checkpoint(checkpoint, tmp_path / "out")
    found = load_embeddings(tmp_path / "out")
    assert np.array_equal(found.weights, rows.numpy())
    assert found.node_ids.tolist() == sparse.tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_become_the_nearest_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    checkpoint, rows = saved(tmp_path / "ck", dtype=dtype)
    export_checkpoint(checkpoint, tmp_path / "out", FORMATS)
    for file in sorted((tmp_path / "out").glob("embeddings*")):
        assert np.array_equal(load_embeddings(file).weights, rows.numpy())


def test_a_number_beyond_float32_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    emb = ge.DistEmbedding(2, 1, "wide", dtype=torch.float64)
    emb.weight[1] = torch.tensor(1e300, dtype=torch.float64)
    save_checkpoint(tmp_path / "ck", tables=[emb])
    with pytest.raises(DataError, match=r"a number of 1e\+300 is beyond float32"):
        export_checkpoint(tmp_path / "ck", tmp_path / "out", ["word2vec"])
    assert not (tmp_path / "out").exists()


def names_of(kind: str, folder: Path) -> Any:
    """The ids of the user's data in one of the forms that are taken."""
    if kind == "array":
        return NAMES
    if kind == "beside":
        save_ids(folder, "node", NAMES)
        return None
    if kind == "npy":
        np.save(folder / "names.npy", NAMES)
        return folder / "names.npy"
    save_embeddings(folder / "run", np.zeros((NUM, 2), np.float32), NAMES, ("parquet",))
    return folder / "run"


@pytest.mark.parametrize("kind", ["array", "beside", "npy", "run"])
def test_the_users_own_ids_stand_for_the_original_ones(tmp_path: Path, kind: str) -> None:
    checkpoint, rows = saved(tmp_path / "ck", ORDER)
    export_checkpoint(checkpoint, tmp_path / "out", ["word2vec"], ids=names_of(kind, tmp_path))
    found = load_embeddings(tmp_path / "out")
    assert found.node_ids.tolist() == NAMES.tolist()
    assert np.array_equal(found.weights, rows.numpy())


def test_ids_beside_a_checkpoint_are_of_one_kind_of_table(tmp_path: Path) -> None:
    names = ("node", "node.context", "relation")
    tables = [ge.DistEmbedding(3, 2, name, ge.initializers.Normal(seed=1)) for name in names]
    save_checkpoint(tmp_path / "ck", tables=tables)
    save_ids(tmp_path, "node", ["a", "b", "c"])
    for name, first in zip(names, ("a", "a", 0), strict=True):
        export_checkpoint(tmp_path / "ck", tmp_path / name, table=name)
        assert load_embeddings(tmp_path / name).node_ids[0] == first


def test_a_table_is_chosen_by_name(tmp_path: Path) -> None:
    node, relation = ge.DistEmbedding(3, 2, "node"), ge.DistEmbedding(4, 2, "relation", ge.initializers.Normal(seed=1))
    save_checkpoint(tmp_path / "ck", tables=[node, relation])
    with pytest.raises(ConfigError, match="has the tables node, relation; name one"):
        export_checkpoint(tmp_path / "ck", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"'relatoin'; known: node, relation \(did you mean 'relation'"):
        export_checkpoint(tmp_path / "ck", tmp_path / "out", table="relatoin")
    export_checkpoint(tmp_path / "ck", tmp_path / "out", table="relation")
    assert np.array_equal(load_embeddings(tmp_path / "out").weights, relation.weight[:].numpy())


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (NAMES[:-1], "has original id 29, but there are 29 ids; are they of the same graph"),
        (np.where(np.arange(NUM) == 3, "user4", NAMES), "node id 'user4' stands for 2 rows"),
        ("gone.npy", "gone.npy does not exist"),
    ],
)
def test_ids_that_do_not_fit_are_refused(tmp_path: Path, ids: Any, text: str) -> None:
    checkpoint, _ = saved(tmp_path / "ck")
    with pytest.raises(DataError, match=text):
        export_checkpoint(checkpoint, tmp_path / "out", ids=ids)
    assert not (tmp_path / "out").exists()


def test_a_damaged_table_is_not_exported(tmp_path: Path) -> None:
    checkpoint, _ = saved(tmp_path / "ck")
    (file,) = checkpoint.rglob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"safetensors: checksum .* the file is damaged"):
        export_checkpoint(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# The child may hold MORE than when it has imported and compiled everything, a fraction of the table. Its own memory
# counts, with the stacks of threads; addresses that an allocator reserves, and files that are mapped, do not.
MORE = 96 << 20  # 56 are enough; 8 for each stack
BIG_ROWS, BIG_DIM = 9 << 16, 64  # 144 MiB
CHILD = """
import resource, sys
from graph_emb.cli.main import main
small, big, out, more = sys.argv[1:5]
def commands(source, out):
    yield ["checkpoint", "inspect", source]
    for name in sys.argv[5:]:
        yield ["export", source, "--format", name, "--out", f"{out}/{name}"]
    yield ["export", f"{out}/npy", "--format", "parquet", "--out", f"{out}/again"]
for words in commands(small, out + "/small"):
    assert main(words) == 0, words
(used,) = (int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + int(more), used + int(more)))
try:
    held = bytearray(144 << 20)
except MemoryError:
    print("LIMITED")
for words in commands(big, out + "/big"):
    assert main(words) == 0, words
"""


def big(folder: Path, num_rows: int) -> Path:
    """A checkpoint of a table that was never in memory: every number of row i is i."""
    (folder / "tables" / "node").mkdir(parents=True)
    files = []
    for k, start in enumerate(range(0, num_rows, 1 << 18)):
        stop = min(num_rows, start + (1 << 18))
        name = f"tables/node/{k}.safetensors"
        writer = PieceWriter(folder / name, {"weight": Column(torch.float32, (stop - start, BIG_DIM))})
        writer.write(torch.arange(start, stop, dtype=torch.float32)[:, None].expand(-1, BIG_DIM))
        writer.close()
        checksum = xxh64_of(folder / name)
        files.append(
            RowsEntry(name=name, bytes=writer.expected, xxh64=checksum, rows=stop - start, start=start, stop=stop)
        )
    entry = TableEntry(num_rows=num_rows, dim=BIG_DIM, dtype="float32", files=files)
    world = WorldEntry(mode="local", ranks=1, library="test")
    manifest = CheckpointManifest(step=1, created="2026-01-01T00:00:00+00:00", world=world, tables={"node": entry})
    (folder / "manifest.json").write_text(manifest.to_json(), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_a_table_larger_than_the_memory_is_inspected_and_exported(tmp_path: Path) -> None:
    """144 MiB of rows where 96 MiB more than the imports may be held."""
    arguments = [str(big(tmp_path / "s", 1000)), str(big(tmp_path / "b", BIG_ROWS)), str(tmp_path / "out"), str(MORE)]
    environment = {
        **os.environ,
        "MALLOC_ARENA_MAX": "1",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "ARROW_IO_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", CHILD, *arguments, "npy", "pt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "LIMITED" in done.stdout
    for found in (
        tmp_path / "out" / "big" / "npy",
        tmp_path / "out" / "big" / "pt",
        tmp_path / "out" / "big" / "again",
    ):
        rows = load_embeddings(found)
        assert rows.weights.shape == (BIG_ROWS, BIG_DIM)
        assert (rows.weights == rows.node_ids[:, None]).all()
