"""Whatever is damaged, loading says so in one line and changes nothing."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graph_emb.checkpoint import row_files
from graph_emb.core.errors import DataError, GraphEmbError
from tests.checkpoint.tiny import Tiny, same

VARIANTS = 500


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with files of five rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "FILE_ROWS", 5)
        tiny = Tiny()
        tiny.run(3)
        return tiny.save(tmp_path_factory.mktemp("whole") / "3", step=3, extra={"epoch": 1})


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip(folder: Path, rng: random.Random) -> str:
    path = rng.choice(files(folder))
    data = bytearray(path.read_bytes())
    before = json.loads(data) if path.suffix == ".json" else None
    at = rng.randrange(len(data))
    data[at] ^= rng.randrange(1, 256)
    path.write_bytes(data)
    try:
        if before is not None and json.loads(data) == before:  # one blank for another: nothing changed
            return flip(folder, rng)
    except ValueError:
        pass
    return f"byte {at} of {path.name}"


def cut(folder: Path, rng: random.Random) -> str:
    path = rng.choice(files(folder))
    data = path.read_bytes()
    keep = rng.randrange(len(data.rstrip()))
    path.write_bytes(data[:keep])
    return f"{path.name} cut to {keep}"


def grow(folder: Path, rng: random.Random) -> str:
    path = rng.choice(files(folder))
    path.write_bytes(path.read_bytes() + b"\x01")
    return f"{path.name} longer"


def remove(folder: Path, rng: random.Random) -> str:
    path = rng.choice(files(folder))
    path.unlink()
    return f"{path.name} removed"


def swap(folder: Path, rng: random.Random) -> str:
    first, second = rng.sample(list((folder / "tables").rglob("*.safetensors")), 2)
    a, b = first.read_bytes(), second.read_bytes()
    assert a != b
    first.write_bytes(b)
    second.write_bytes(a)
    return f"{first.name} and {second.name} swapped"


def edit(folder: Path, rng: random.Random) -> str:
    """One value of the manifest, its own checksum left as it was."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    leaves: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
            if isinstance(value, (dict, list)):
                walk(value)
            else:
                leaves.append((node, key))

    walk(content)
    node, key = rng.choice(leaves)
    old = node[key]
    if isinstance(old, bool) or old is None:
        node[key] = not old
    elif isinstance(old, (int, float)):
        node[key] = old + rng.choice([-1, 1, 1000])
    else:
        node[key] = rng.choice(["", old[::-1] + "x", "../" + old])
    path.write_text(json.dumps(content, indent=1) + "\n")
    return f"manifest {key}: {old!r} became {node[key]!r}"


WAYS: list[Callable[[Path, random.Random], str]] = [flip, flip, cut, grow, remove, swap, edit, edit]


def test_500_damaged_checkpoints_are_refused_and_change_nothing(whole: Path, tmp_path: Path) -> None:
    tiny, rng = Tiny(seed=5), random.Random(0)
    tiny.run(1)
    before = tiny.look()
    for number in range(VARIANTS):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        what = rng.choice(WAYS)(folder, rng)
        with pytest.raises(DataError) as caught:
            tiny.load(folder)
        text = str(caught.value)
        assert str(folder) in text, f"{what}: {text}"
        assert "\n" not in text, f"{what}: {text}"
        assert same(tiny.look(), before), f"{what} changed something: {text}"
        shutil.rmtree(folder)
    tiny.load(whole)
    assert not same(tiny.look(), before)


def resealed(whole: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A manifest whose own checksum fits what somebody changed in it."""
    folder = tmp_path / "edited"
    shutil.copytree(whole, folder)
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    change(content)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}))
    return folder


def first_file(content: dict[str, Any]) -> dict[str, Any]:
    return content["tables"]["word"]["files"][0]


EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "version": (lambda m: m.update(format=2), r"format 2; this version of graph_emb reads 1"),
    "kind": (lambda m: m.update(kind="model"), r"kind 'model'; expected 'graph_emb checkpoint'"),
    "missing key": (lambda m: m.pop("step"), r"manifest.json: step: Field required"),
    "unknown key": (lambda m: m.update(more=1), r"manifest.json: more: Extra inputs"),
    "rows": (lambda m: m["tables"]["word"].update(num_rows=6), r"files hold 5 rows, the table has 6"),
    "width": (lambda m: m["tables"]["word"].update(dim=3), r"'word' has width 3, the one here 2"),
    "dtype": (lambda m: m["tables"]["word"].update(dtype="float64"), r"has dtype float64, the one here float32"),
    "a dtype of two lines": (
        lambda m: m["tables"]["word"].update(dtype="a\nb"),
        r"manifest.json: tables.word.dtype: String should match",
    ),
    "a state of two lines": (
        lambda m: m["tables"]["node"]["state"].update({"a\nb": m["tables"]["node"]["state"]["step"]}),
        r"tables.node.state.a\\nb.*String should match",
    ),
    "range": (lambda m: first_file(m).update(start=1, stop=6), r"has original id 5, which is not among the 5 ids"),
    "size": (lambda m: first_file(m).update(bytes=7), r"00000-00000.safetensors: has \d+ bytes, the manifest says 7"),
    "checksum": (lambda m: first_file(m).update(xxh64="0" * 16), r"checksum \w+, the manifest says 0{16}"),
    "outside": (lambda m: first_file(m).update(name="../../x"), r"file name '../../x' leaves the folder"),
    "a name of 256 bytes": (lambda m: first_file(m).update(name="é" * 128), "is longer than file systems take"),
    "9 folders": (lambda m: first_file(m).update(name="x/" * 9 + "y"), "is longer than file systems take"),
    "a line break": (lambda m: first_file(m).update(name="tables/a\nb"), r"'tables/a\\nb' holds characters"),
    "other file": (
        lambda m: first_file(m).update(m["tables"]["node"]["files"][0], rows=5, ids=False, start=0, stop=5),
        r"holds .*, the manifest says .*'weight': \('float32', \(5, 2\)\)",
    ),
    "twice": (
        lambda m: m["tables"]["word"].update(num_rows=10, files=[first_file(m)] * 2),
        r"00000-00000.safetensors repeats an id",
    ),
    "rule": (lambda m: m["optimizers"][0].update(rule="Adag\nrad"), r"has rule 'Adag\\nrad', this optimizer 'Adam'"),
    "numbers": (
        lambda m: m["optimizers"][0]["groups"][0]["numbers"].update(betas=None),
        r"manifest.json: betas=None must be two numbers",
    ),
    "state": (
        lambda m: m["tables"]["node"]["state"]["step"].update(kind="row"),
        r"has state .* of Adam, the one here keeps",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_manifest_that_was_edited_and_sealed_again_is_held_against_the_files(
    name: str, whole: Path, tmp_path: Path
) -> None:
    change, message = EDITS[name]
    folder = resealed(whole, tmp_path, change)
    tiny = Tiny(seed=5)
    before = tiny.look()
    with pytest.raises(GraphEmbError, match=message) as caught:
        tiny.load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert same(tiny.look(), before)
