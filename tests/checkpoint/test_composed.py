"""The rows of a composed table leave a checkpoint alone: those of training, bit for bit, by original id."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.checkpoint import export
from graph_emb.checkpoint.deltas import merge_checkpoints
from graph_emb.checkpoint.export import export_checkpoint
from graph_emb.checkpoint.manifest import CheckpointManifest, FileEntry
from graph_emb.checkpoint.row_files import PieceReader, write_tensors
from graph_emb.checkpoint.saving import save_checkpoint
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.formats.embedding_files import load_embeddings

NUM, DIM = 50, 6
ORDER = np.random.default_rng(4).permutation(NUM)
LEVELS = np.zeros((NUM, 3), np.int64)  # two parts, five in each, two in each of these
LEVELS[:, 0] = np.arange(NUM) * 2 // NUM
LEVELS[:, 1] = LEVELS[:, 0] * 5 + np.arange(NUM) % 25 // 5
LEVELS[:, 2] = LEVELS[:, 1] * 2 + np.arange(NUM) % 2


@pytest.fixture(autouse=True)
def _local() -> Iterator[None]:
    ge.shutdown()
    ge.init()
    yield
    ge.shutdown()


def trained(kind: str, name: str = "node", **options: Any) -> tuple[Any, Any]:
    """A table after two steps, and its optimizer."""
    levels: Any = LEVELS if kind.startswith("position") or options.get("scope") == "part" else NUM
    emb = ge.ComposedEmbedding(levels, DIM, kind, name=name, **options)
    opt = ge.SparseAdagrad([emb], lr=0.3)
    step(emb, opt, 1)
    step(emb, opt, 2)
    return emb, opt


def step(emb: Any, opt: Any, seed: int) -> None:
    ids = torch.from_numpy(np.random.default_rng(seed).integers(0, NUM, 40))
    rows = emb(ids)
    rows.backward(torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed)).to(rows.dtype))
    opt.step()


def exported(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    found = load_embeddings(folder)
    return found.weights, found.node_ids


def by_original(emb: Any) -> torch.Tensor:
    original = emb.original_ids.of(0, NUM)
    return emb.weight[torch.from_numpy(np.argsort(original))].float()


HASHES: dict[str, Any] = {"num_hashes": 2, "num_buckets": 12, "seed": 5}
MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "position-hash": ("position-hash", HASHES),
    "within parts": ("position-hash", {**HASHES, "scope": "part"}),
    "position": ("position", {"own_rows": [40, 3, 17]}),
    "hash": ("hash", HASHES),
    "hash within parts": ("hash", {**HASHES, "scope": "part"}),
    "quotient-remainder": ("quotient-remainder", {"num_buckets": 7}),
    "full": ("full", {}),
    "another order": ("position-hash", {**HASHES, "original_ids": ORDER, "own_rows": [1, 2, 49]}),
    "other ids": ("hash", {**HASHES, "original_ids": ORDER * 3 + 1}),
    "bfloat16": ("position-hash", {**HASHES, "dtype": torch.bfloat16, "own_rows": [5]}),
    "float64": ("position-hash", {**HASHES, "dtype": torch.float64}),
}


@pytest.mark.parametrize(
    ("case", "other"),
    [
        ("hash", {"seed": 6}),
        ("hash", {"scope": "part"}),
        ("hash", {"num_buckets": 13}),
        ("hash within parts", {"level_sizes": [3, 10, 20]}),
        ("position-hash", {"seed": 6}),
        ("position-hash", {"num_hashes": 3}),
        ("quotient-remainder", {"num_buckets": 10}),
    ],
)
def test_rows_that_would_be_sums_of_others_are_not_loaded(tmp_path: Path, case: str, other: dict[str, Any]) -> None:
    """Tables of another seed or scope have the same names and shapes: nodes had the rows of strangers."""
    kind, options = MADE[case]
    emb, opt = trained(kind, **options)
    place = save_checkpoint(tmp_path / "0", tables=[emb], optimizers=[opt])
    step(emb, opt, 3)
    delta = save_checkpoint(tmp_path / "1", tables=[emb], optimizers=[opt], base=place)
    del emb, opt
    emb, opt = trained(kind, **{**options, **other})
    name = "num_coarsest" if "level_sizes" in other else next(iter(other))
    for folder in (place, delta):
        with pytest.raises(ConfigError, match=rf"table 'node' was made with {name}=.*, the one here with"):
            ge.load_checkpoint(folder, tables=[emb], optimizers=[opt])


@pytest.mark.parametrize("case", MADE)
@pytest.mark.parametrize("pieces", [False, True])
def test_rows_are_those_of_training(tmp_path: Path, case: str, pieces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if pieces:
        monkeypatch.setattr(export, "BYTES_AT_ONCE", 7 * DIM * 4)
    kind, options = MADE[case]
    emb, opt = trained(kind, **options)
    save_checkpoint(tmp_path / "ck", tables=[emb], optimizers=[opt])
    expected, original = by_original(emb), np.sort(emb.original_ids.of(0, NUM))
    ge.shutdown()
    ge.init()
    export_checkpoint(tmp_path / "ck", tmp_path / "out")
    rows, ids = exported(tmp_path / "out")
    assert np.array_equal(rows, expected.numpy())
    assert np.array_equal(ids, original)


def test_its_tables_are_exported_by_name_and_the_ids_are_the_users(tmp_path: Path) -> None:
    emb, opt = trained("position-hash", **HASHES)
    other = ge.DistEmbedding(4, DIM, "other", ge.initializers.Uniform(seed=0))
    save_checkpoint(tmp_path / "ck", tables=[emb, other], optimizers=[opt])
    with pytest.raises(ConfigError, match=r"has the tables node, other; name one"):
        export_checkpoint(tmp_path / "ck", tmp_path / "out")
    names = [f"paper{k}" for k in range(NUM)]
    export_checkpoint(tmp_path / "ck", tmp_path / "out", table="node", ids=names)
    rows, ids = exported(tmp_path / "out")
    assert list(ids) == names
    assert np.array_equal(rows, emb.weight[:].numpy())
    export_checkpoint(tmp_path / "ck", tmp_path / "buckets", table="node.buckets", ids=np.arange(12))
    assert len(exported(tmp_path / "buckets")[0]) == 12


def test_a_delta_leaves_out_what_does_not_change_and_the_merge_has_it(tmp_path: Path) -> None:
    emb, opt = trained("position-hash", **HASHES)
    save_checkpoint(tmp_path / "0", tables=[emb], optimizers=[opt], step=0)
    step(emb, opt, 3)
    save_checkpoint(tmp_path / "1", tables=[emb], optimizers=[opt], step=1, base=tmp_path / "0")
    assert CheckpointManifest.read(tmp_path / "1").composed is None
    with pytest.raises(ConfigError):
        export_checkpoint(tmp_path / "1", tmp_path / "out", table="node")
    merge_checkpoints(tmp_path / "0", [tmp_path / "1"], tmp_path / "merged")
    export_checkpoint(tmp_path / "merged", tmp_path / "out")
    assert np.array_equal(exported(tmp_path / "out")[0], emb.weight[:].numpy())


def test_damage_is_named(tmp_path: Path) -> None:
    emb, opt = trained("position-hash", **HASHES)
    save_checkpoint(tmp_path / "ck", tables=[emb], optimizers=[opt])
    (file,) = (tmp_path / "ck").rglob("composed.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"composed.safetensors: checksum"):
        export_checkpoint(tmp_path / "ck", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def odd(folder: Path, **entry: Any) -> None:
    """Change what a checkpoint says of the table, with the right checksums."""
    manifest = CheckpointManifest.read(folder)
    assert manifest.composed is not None
    changed = {"node": manifest.composed["node"].model_copy(update=entry)}
    (folder / "manifest.json").write_text(manifest.model_copy(update={"composed": changed}).to_json())


@pytest.mark.parametrize(
    ("case", "entry"),
    [
        ("position-hash", {"num_buckets": 13}),
        ("position-hash", {"num_hashes": 3}),
        ("position-hash", {"kind": "position"}),
        ("position-hash", {"shared": ["node.buckets"]}),
        ("position-hash", {"shared": ["node.weights", "node.buckets", "node.buckets", "node.buckets"]}),
        ("position-hash", {"weights": None}),
        ("within parts", {"num_coarsest": 1}),
        ("hash within parts", {"num_coarsest": 0}),
        ("hash", {"scope": "part"}),
        ("quotient-remainder", {"num_buckets": 5}),
        ("quotient-remainder", {"num_buckets": 9}),
    ],
)
def test_odd_numbers_with_right_checksums_are_refused(tmp_path: Path, case: str, entry: dict[str, Any]) -> None:
    kind, options = MADE[case]
    emb, opt = trained(kind, **options)
    save_checkpoint(tmp_path / "ck", tables=[emb], optimizers=[opt])
    odd(tmp_path / "ck", **entry)
    with pytest.raises(DataError, match=r"node"):
        export_checkpoint(tmp_path / "ck", tmp_path / "out", table="node")


@pytest.mark.parametrize("case", ["position-hash", "hash within parts"])
@pytest.mark.parametrize(("column", "number"), [("finest", 99), ("finest", -1), ("above", 99), ("above", -1)])
def test_parts_out_of_the_tables_are_refused(tmp_path: Path, case: str, column: str, number: int) -> None:
    kind, options = MADE[case]
    emb, opt = trained(kind, **options)
    save_checkpoint(tmp_path / "ck", tables=[emb], optimizers=[opt])
    (file,) = (tmp_path / "ck").rglob("composed.safetensors")
    with PieceReader(file) as reader:
        tensors = {name: reader.read(name) for name in reader.columns}
    tensors[column].view(-1)[0] = number
    file.unlink()
    num_bytes, checksum = write_tensors(file, tensors)
    name = str(file.relative_to(tmp_path / "ck"))
    odd(tmp_path / "ck", file=FileEntry(name=name, bytes=num_bytes, xxh64=checksum))
    with pytest.raises(DataError, match=r"tables and levels of table 'node' do not fit each other"):
        export_checkpoint(tmp_path / "ck", tmp_path / "out", table="node")


def test_parts_take_the_fewest_bytes_that_hold_them(tmp_path: Path) -> None:
    num = 100_000
    emb = ge.ComposedEmbedding(np.arange(num)[:, None] % 512, 4, "position", name="node")
    save_checkpoint(tmp_path / "ck", tables=[emb])
    (file,) = (tmp_path / "ck").rglob("composed.safetensors")
    assert file.stat().st_size < 2 * num + 4_096
