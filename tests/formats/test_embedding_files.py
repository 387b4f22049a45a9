from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.core.errors import ConfigError, DataError, ShapeError
from graph_emb.embedding import DistEmbedding
from graph_emb.formats import embedding_files
from graph_emb.formats.embedding_files import FORMATS, load_embeddings, save_embeddings
from graph_emb.formats.row_readers import NpyRows, read_array
from graph_emb.initializers import Normal

ALL = ("npy", "parquet", "word2vec", "pt")


def rows(num_rows: int = 50, dim: int = 7) -> np.ndarray:
    """Numbers of all magnitudes that float32 has, with the odd ones among them."""
    generator = np.random.default_rng(0)
    table = generator.normal(size=(num_rows, dim)) * 10.0 ** generator.integers(-44, 38, size=(num_rows, dim))
    table.flat[:6] = [0.0, -0.0, 1e-45, 3.4028235e38, 1 / 3, -16777217]
    return table.astype(np.float32)


IDS = {
    "none": None,
    "shuffled integers": np.random.default_rng(1).permutation(50) * 7 - 20,
    "int32": np.arange(50, 0, -1, dtype=np.int32),
    "strings": np.array([f'n{i}"é,\\{"x" * (i % 5)}' for i in range(50)]),
    "list of strings": [f"user:{i}" for i in range(50)],
    "strings with NUL": [f"n\0{i}" for i in range(50)],
    "one odd string": ["7", "007", "-0", *map(str, range(100, 147))],
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
def test_each_format_gives_back_the_same_numbers_and_ids(tmp_path: Path, name: str, ids: Any) -> None:
    table = rows()
    files = save_embeddings(tmp_path, table, ids, (name,))
    for source in (tmp_path, files[-1]):
        found = load_embeddings(source)
        assert found.weights.dtype == np.float32
        assert np.array_equal(found.weights.view(np.int32), table.view(np.int32))
        expected = np.arange(50) if ids is None else np.asarray(ids)
        assert found.node_ids.dtype.kind == expected.dtype.kind
        assert np.array_equal(found.node_ids, expected)


@pytest.mark.parametrize("name", ALL)
def test_values_that_are_no_numbers_survive(tmp_path: Path, name: str) -> None:
    table = np.float32([[np.nan, np.inf], [-np.inf, 1]])
    save_embeddings(tmp_path, table, formats=(name,))
    assert np.array_equal(load_embeddings(tmp_path).weights, table, equal_nan=True)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_rows_become_the_same_float32(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    table = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    save_embeddings(tmp_path, table, formats=(name,))
    assert torch.equal(torch.from_numpy(load_embeddings(tmp_path).weights), table.float())


def test_the_text_is_what_gensim_reads(tmp_path: Path) -> None:
    (path,) = save_embeddings(tmp_path, np.float32([[0.1, -2], [1e-7, 3]]), ["a", "b"], ("word2vec",))
    assert path.name == "embeddings.w2v.txt"
    assert path.read_text() == "2 2\na 0.1 -2\nb 1e-7 3\n"


def test_npy_files_are_plain_numpy(tmp_path: Path) -> None:
    table = rows()
    files = save_embeddings(tmp_path, table, IDS["list of strings"])
    assert [file.name for file in files] == ["ids.npy", "embeddings.npy"]
    assert np.array_equal(np.load(tmp_path / "embeddings.npy", allow_pickle=False), table)
    assert np.load(tmp_path / "ids.npy", allow_pickle=False).tolist() == IDS["list of strings"]


def test_parquet_is_a_plain_table(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (path,) = save_embeddings(tmp_path, rows(), formats=("parquet",))
    table = pq.read_table(path)
    assert table.schema.names == ["id", "embedding"]
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 7)


@pytest.mark.parametrize("ids", ["none", "strings"])
def test_a_pt_file_is_what_torch_loads_and_maps(tmp_path: Path, ids: str) -> None:
    import zipfile

    (path,) = save_embeddings(tmp_path, rows(), IDS[ids], ("pt",))
    for mapped in (False, True):
        found = torch.load(path, weights_only=True, mmap=mapped)
        assert torch.equal(found["embeddings"].view(torch.int32), torch.from_numpy(rows()).view(torch.int32))
        assert list(found["ids"]) == list(range(50) if ids == "none" else IDS[ids])
        assert found["embeddings"].data_ptr() % 64 == 0 or not mapped
    assert zipfile.ZipFile(path).testzip() is None
    torch.save(found, tmp_path / "again.pt")
    assert np.array_equal(load_embeddings(tmp_path / "again.pt").node_ids, load_embeddings(path).node_ids)
    torch.save(found["embeddings"].bfloat16(), tmp_path / "alone.pt")
    assert load_embeddings(tmp_path / "alone.pt").node_ids.tolist() == list(range(50))


class Sliced:
    """Rows that exist only while they are asked for, as those of a table on other machines."""

    def __init__(self, table: np.ndarray) -> None:
        self.table, self.shape, self.dtype = table, table.shape, table.dtype
        self.most = 0

    def __getitem__(self, key: slice) -> torch.Tensor:
        piece = self.table[key]
        self.most = max(self.most, len(piece))
        return torch.from_numpy(piece)


@pytest.mark.parametrize("ids", ["none", "strings"])
def test_pieces_are_bounded_and_change_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: str) -> None:
    whole = save_embeddings(tmp_path / "whole", rows(), IDS[ids], ("npy", "word2vec"))
    source = Sliced(rows())
    monkeypatch.setattr(embedding_files, "BYTES_AT_ONCE", 8 * 7 * 4)
    pieces = save_embeddings(tmp_path / "pieces", source, IDS[ids], ALL)
    assert source.most == 8
    assert [a.read_bytes() for a in whole] == [(tmp_path / "pieces" / a.name).read_bytes() for a in whole]
    assert np.array_equal(load_embeddings(pieces[2]).weights.view(np.int32), rows().view(np.int32))


def test_long_text_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graph_emb.formats.row_readers.TEXT_AT_ONCE", 1)  # 64 bytes a number remain
    save_embeddings(tmp_path, rows(), IDS["strings"], ("word2vec",))
    found = load_embeddings(tmp_path)
    assert np.array_equal(found.weights.view(np.int32), rows().view(np.int32))
    assert np.array_equal(found.node_ids, IDS["strings"])


@pytest.mark.usefixtures("local_mode")
def test_a_table_is_saved_through_its_weight(tmp_path: Path) -> None:
    table = DistEmbedding(10, 4, init_func=Normal(seed=0))
    save_embeddings(tmp_path, table.weight)
    assert np.array_equal(load_embeddings(tmp_path).weights, table.weight[:].numpy())


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("rows", [4, 0])
def test_a_header_with_odd_blanks_is_read_without_a_word_of_numpy(tmp_path: Path, order: str, rows: int) -> None:
    """numpy takes it for one of Python 2 and warns, which the tests make an error."""
    wanted = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    np.save(tmp_path / "g.npy", wanted.copy(order=order))  # type: ignore[call-overload]
    content = (tmp_path / "g.npy").read_bytes()
    assert b"          \n" in content[:128]
    (tmp_path / "g.npy").write_bytes(content[:128].replace(b"          \n", b"\n\n        \n") + content[128:])
    assert rows == 0 or np.array_equal(load_embeddings(tmp_path / "g.npy").weights, wanted)
    assert [piece.tolist() for piece in NpyRows(tmp_path / "g.npy").pieces()] == [wanted.tolist()] * (rows > 0)


@pytest.mark.parametrize("shape", ["(-4, 3)", "(-1, 3)", "(-4,-3)"])
def test_a_header_with_a_negative_shape_is_refused(tmp_path: Path, shape: str) -> None:
    """numpy takes a negative length for one that it may choose."""
    np.save(tmp_path / "g.npy", np.zeros((4, 3), np.float32))
    content = (tmp_path / "g.npy").read_bytes()
    word = b"(4, 3), }" + b" " * (len(shape) - 6)
    assert content.count(word) == 1
    (tmp_path / "g.npy").write_bytes(content.replace(word, f"{shape}, }}".encode()))
    for read in (read_array, NpyRows):
        with pytest.raises(DataError, match=r"g.npy.*its header has shape \(-"):
            read(tmp_path / "g.npy")


def test_a_folder_prefers_npy(tmp_path: Path) -> None:
    save_embeddings(tmp_path, np.float32([[1]]), formats=("word2vec", "parquet"))
    save_embeddings(tmp_path, np.float32([[2]]), formats=("npy",))
    assert load_embeddings(tmp_path).weights.tolist() == [[2.0]]


def test_a_foreign_npy_file_has_rows_in_order(tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", np.array([[1.0], [1 / 3]]))
    np.save(tmp_path / "ids.npy", np.array([5, 6]))  # of embeddings.npy, not of mine.npy
    found = load_embeddings(tmp_path / "mine.npy")
    assert found.weights.tolist() == [[1.0], [1 / 3]]
    assert found.node_ids.tolist() == [0, 1]


# Nothing half-written


def test_files_in_place_are_kept_unless_overwritten(tmp_path: Path) -> None:
    save_embeddings(tmp_path, np.float32([[1]]), [7])
    with pytest.raises(ConfigError, match=r"ids\.npy exists; pass overwrite to replace it"):
        save_embeddings(tmp_path, np.float32([[2]]), [8])
    assert load_embeddings(tmp_path).weights.tolist() == [[1.0]]
    save_embeddings(tmp_path, np.float32([[2]]), [8], overwrite=True)
    assert load_embeddings(tmp_path).node_ids.tolist() == [8]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["embeddings.npy", "ids.npy"]


class Failing(Sliced):
    def __getitem__(self, key: slice) -> torch.Tensor:
        if key.start > 20:
            raise KeyboardInterrupt
        return super().__getitem__(key)


def test_an_interrupt_leaves_the_old_files_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = save_embeddings(tmp_path / "a" / "b", rows(3, 2), formats=ALL)
    before = [file.read_bytes() for file in old]
    monkeypatch.setattr(embedding_files, "BYTES_AT_ONCE", 8 * 7 * 4)
    with pytest.raises(KeyboardInterrupt):
        save_embeddings(tmp_path / "a" / "b", Failing(rows()), formats=ALL, overwrite=True)
    assert [file.read_bytes() for file in old] == before
    assert len(list((tmp_path / "a" / "b").iterdir())) == len(old)
    with pytest.raises(KeyboardInterrupt):
        save_embeddings(tmp_path / "c" / "d", Failing(rows()), formats=ALL)
    assert not (tmp_path / "c").exists()


FULL_DISK = """
import errno, resource, sys
import numpy as np
from graph_emb.formats.embedding_files import save_embeddings
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # Python ignores SIGXFSZ, so a write fails with EFBIG
for name in sys.argv[2:]:
    try:
        save_embeddings(sys.argv[1], np.random.rand(1000, 100).astype(np.float32), formats=(name,), overwrite=True)
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"""


def test_a_write_that_fails_is_an_oserror_and_leaves_the_old_files(tmp_path: Path) -> None:
    old = save_embeddings(tmp_path, rows(3, 2), formats=ALL)
    before = [file.read_bytes() for file in old]
    command = [sys.executable, "-W", "error", "-c", FULL_DISK, str(tmp_path), *ALL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{name} EFBIG" for name in ALL]
    assert [file.read_bytes() for file in old] == before
    assert len(list(tmp_path.iterdir())) == len(old)


def test_a_kill_between_renames_never_pairs_old_ids_with_new_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_embeddings(tmp_path, np.float32([[1]]), [7])

    def killed(source: Path, target: Path) -> None:
        os.rename(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr("graph_emb.core.storage.os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_embeddings(tmp_path, np.float32([[2]]), [8], overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["ids.npy"]
    with pytest.raises(DataError, match="holds no embeddings"):
        load_embeddings(tmp_path)


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    for file in save_embeddings(tmp_path, rows(), formats=ALL):
        assert file.stat().st_mode == (tmp_path / "plain").stat().st_mode


# Bad input


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"formats": ("h5",)}, ConfigError, "unknown format 'h5'; known: npy, parquet, pt, word2vec"),
        ({"formats": ()}, ConfigError, r"formats are \[\]; give one or more of npy, parquet, word2vec, pt"),
        ({"formats": ("npy", "npy")}, ConfigError, "each once"),
        ({"formats": "npy"}, ConfigError, r"formats is 'npy', one text; give a list, such as \['npy'\]"),
        ({"node_ids": [0, 1]}, ShapeError, "2 node_ids for 3 rows"),
        ({"node_ids": [4, 5, 4]}, DataError, "node id 4 stands for 2 rows"),
        ({"node_ids": [0.5, 1, 2]}, ShapeError, "expected one-dimensional integers or strings"),
        ({"weights": np.ones(3, dtype=np.float32)}, ShapeError, r"shape \(3,\)"),
        ({"weights": np.ones((3, 0), dtype=np.float32)}, ShapeError, r"shape \(3, 0\)"),
        ({"weights": np.ones((3, 2))}, ShapeError, "dtype float64, .* of float32, float16, bfloat16"),
        ({"node_ids": ["a b", "c", "d"], "formats": ("word2vec",)}, DataError, "id 'a b' is empty or has white space"),
        ({"node_ids": ["a", "", "d"], "formats": ("word2vec",)}, DataError, "id '' is empty or has white space"),
        ({"node_ids": ["a", "b\n", "d"], "formats": ("word2vec",)}, DataError, r"export npy or parquet"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_a_file_is_made(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], text: str
) -> None:
    arguments = {"weights": np.ones((3, 2), dtype=np.float32), **change}
    with pytest.raises(error, match=text):
        save_embeddings(tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(ConfigError, match="out is a file; give a folder"):
        save_embeddings(tmp_path / "out", rows())
    (tmp_path / "ids.npy").mkdir()
    with pytest.raises(ConfigError, match=r"ids\.npy is a folder"):
        save_embeddings(tmp_path, rows(), overwrite=True)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.99])
def test_a_cut_file_is_one_clear_line(tmp_path: Path, name: str, share: float) -> None:
    path = save_embeddings(tmp_path, rows(), IDS["strings"], (name,))[-1]
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=path.name) as caught:
        load_embeddings(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for kind in FORMATS.values() for name in kind.files[-1:]])
def test_binary_junk_is_one_clear_line(tmp_path: Path, name: str) -> None:
    junk = np.random.default_rng(0).bytes(5000)
    (tmp_path / name).write_bytes(junk)
    with pytest.raises(DataError, match=name) as caught:
        load_embeddings(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 2\na 1 2\nb 3 4", "is cut off"),
        ("9 9\na 1 2\nb 3 4\n", "is cut off"),
        ("2 2\na 1 2\nb 3\n", "is damaged or no word2vec file"),
        ("2 2\na 1 2\nb 3 x\n", "is damaged or no word2vec file"),
        ("2 2\na 1 2 \nb 3 4\n", "is damaged or no word2vec file"),
        ("2 2\na 1 2 \nb 3 4 5\n", "is damaged or no word2vec file"),
        ("2 2\na 1 2\nb 3 4 \n", "is damaged or no word2vec file"),
        ("2 2\na 1 2\n", "has 1 rows, its first line says 2"),
        ("2 2\na 1 2\nb 3 4\nc 5 6\n", "has 3 or more rows, its first line says 2"),
        ("2 2\na 1 2\na 3 4\n", "node id 'a' stands for 2 rows"),
        ("a 1 2\nb 3 4\n", "first line is not 'rows width'"),
        ("0 2\n", "first line is not 'rows width'"),
        ("", "first line is not 'rows width'"),
    ],
)
def test_bad_text_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.vec").write_text(text)
    with pytest.raises(DataError, match=message):
        load_embeddings(tmp_path / "bad.vec")


def test_bad_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "flat.npy", np.ones(3))
    with pytest.raises(DataError, match=r"flat\.npy holds float64 of shape \(3,\)"):
        load_embeddings(tmp_path / "flat.npy")
    np.save(tmp_path / "pickled.npy", np.array([{}, None]), allow_pickle=True)
    with pytest.raises(DataError, match=r"pickled\.npy is damaged or no npy file"):
        load_embeddings(tmp_path / "pickled.npy")
    torch.save({"weight": torch.ones(2, 2)}, tmp_path / "other.pt")
    with pytest.raises(DataError, match=r"other\.pt holds the keys \['weight'\]; embeddings are a float tensor"):
        load_embeddings(tmp_path / "other.pt")
    torch.save({"embeddings": torch.ones(2, 2), "ids": (5, 6)}, tmp_path / "tuple.pt")
    with pytest.raises(DataError, match=r"tuple\.pt holds ids as a tuple; give a tensor of integers or a list"):
        load_embeddings(tmp_path / "tuple.pt")
    torch.save(np.float64, tmp_path / "code.pt")
    with pytest.raises(DataError, match=r"code\.pt is damaged or no torch file"):
        load_embeddings(tmp_path / "code.pt")
    np.savez(tmp_path / "archive.npz", np.ones(3))
    (tmp_path / "archive.npz").rename(tmp_path / "archive.npy")
    with pytest.raises(DataError, match="it is an archive of arrays"):
        load_embeddings(tmp_path / "archive.npy")
    save_embeddings(tmp_path, rows())
    np.save(tmp_path / "ids.npy", np.arange(49))
    with pytest.raises(DataError, match=r"embeddings\.npy: 49 node_ids for 50 rows"):
        load_embeddings(tmp_path)


def test_parquet_of_other_columns_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": [1], "x": [0.5]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match=r"has the columns id, x; embeddings have id and embedding"):
        load_embeddings(tmp_path / "other.parquet")
    holes = pa.array([[1.0], None], pa.list_(pa.float32(), 1))
    pq.write_table(pa.table({"id": [1, 2], "embedding": holes}), tmp_path / "holes.parquet")
    with pytest.raises(DataError, match="has empty ids or embeddings near row 0"):
        load_embeddings(tmp_path / "holes.parquet")


def test_nothing_to_load_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no embeddings; looked for embeddings\.npy, embeddings\.parquet"):
        load_embeddings(tmp_path)
    with pytest.raises(DataError, match="gone does not exist"):
        load_embeddings(tmp_path / "gone")
    (tmp_path / "a.bin").touch()
    with pytest.raises(DataError, match=r"a\.bin has no ending of embeddings; known: \.npy, \.parquet, \.w2v\.txt"):
        load_embeddings(tmp_path / "a.bin")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_missing_permission_stays_an_oserror(tmp_path: Path) -> None:
    for file in save_embeddings(tmp_path, rows(), formats=ALL):
        file.chmod(0)
        if file.name != "ids.npy":
            with pytest.raises(PermissionError):
                load_embeddings(file)


def test_ids_that_are_no_unicode_are_refused_where_a_format_holds_none(tmp_path: Path) -> None:
    """A name of a file of other bytes ended in UnicodeDecodeError of pyarrow."""
    odd = ["a\udc80", "b"]
    for name in ("parquet", "word2vec"):
        with pytest.raises(DataError, match=r"id 'a\\udc80' is no Unicode text; rename it, or export npy or pt"):
            save_embeddings(tmp_path / name, rows(2), odd, (name,))
        assert not list(tmp_path.rglob("*.*"))
    save_embeddings(tmp_path / "npy", rows(2), odd, ("npy",))
    assert load_embeddings(tmp_path / "npy").node_ids.tolist() == odd
