"""A table begins with the rows of a file, each under its original id, however the table is partitioned and stored."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.core.errors import ConfigError, DataError, ShapeError
from graph_emb.formats import row_readers
from graph_emb.formats.embedding_files import save_embeddings
from graph_emb.formats.warm_start import FromFile
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster, shared_memory_is_clean

pytestmark = pytest.mark.usefixtures("idle_servers")

NUM, DIM = 20, 3
ROWS = np.random.default_rng(0).normal(size=(NUM, DIM)).astype(np.float32)  # of original ids 0 .. 19
ORDER = np.random.default_rng(1).permutation(NUM)  # original id of each row of a partitioned table
SHUFFLED = np.random.default_rng(2).permutation(NUM)  # the order of a file's rows
NAMES = np.array([f"node {i}" if i % 2 else f"n{i}" for i in range(NUM)])
BOOK = ge.RangeBook([0, 7, NUM])
FORMATS = ("npy", "parquet", "word2vec", "pt")


@pytest.fixture(autouse=True)
def _local() -> Iterator[None]:
    ge.shutdown()
    ge.init(mode="local")
    yield
    ge.shutdown()


def table(init: Any, original_ids: Any = None, **options: Any) -> ge.DistEmbedding:
    return ge.DistEmbedding(NUM, DIM, "t", init, BOOK, original_ids=original_ids, **options)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("spelled", ["numbers", "numbers as text", "names"])
def test_each_format_fills_the_rows_of_its_ids(tmp_path: Path, name: str, partitioned: bool, spelled: str) -> None:
    ids: Any = {"numbers": np.arange(NUM), "numbers as text": np.arange(NUM).astype(str), "names": NAMES}[spelled]
    if name == "word2vec" and spelled == "names":
        ids = np.char.replace(ids, " ", "_")
    save_embeddings(tmp_path, ROWS[SHUFFLED], ids[SHUFFLED], (name,))
    known = {"numbers": None, "numbers as text": np.arange(NUM), "names": ids}[spelled]
    emb = table(FromFile(tmp_path, known), ORDER if partitioned else None)
    assert np.array_equal(emb.weight[:].numpy(), ROWS[ORDER] if partitioned else ROWS)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4"])
def test_a_plain_array_has_the_row_of_id_i_at_place_i(tmp_path: Path, dtype: Any) -> None:
    np.save(tmp_path / "mine.npy", ROWS.astype(dtype))
    stored = torch.from_numpy(ROWS.astype(dtype).astype(np.float64))
    for kind in (torch.float32, torch.float64, torch.bfloat16):
        assert torch.equal(table(FromFile(tmp_path / "mine.npy"), dtype=kind).weight[:], stored.to(kind))
    assert torch.equal(table(FromFile(tmp_path / "mine.npy"), ORDER).weight[:], stored[ORDER].float())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("partitioned", [False, True])
def test_what_the_file_lacks_is_filled_by_id_and_what_the_table_lacks_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, partitioned: bool
) -> None:
    """In pieces of one row, so that every limit between pieces is met."""
    monkeypatch.setattr(row_readers, "BYTES_AT_ONCE", 1)
    monkeypatch.setattr("graph_emb.formats.warm_start.CHUNK_ELEMENTS", 2 * DIM)
    some = np.array([19, 3, 4, 30, 0, 12, 77])
    save_embeddings(tmp_path, np.arange(7 * DIM, dtype=np.float32).reshape(7, DIM), some, (name,))
    others = ge.initializers.Normal(seed=3)
    emb = table(FromFile(tmp_path, missing=others, unknown="ignore"), ORDER if partitioned else None)
    expected = ge.DistEmbedding(NUM, DIM, "plain", others).weight[:]
    expected[[19, 3, 4, 0, 12]] = torch.arange(7.0 * DIM).view(7, DIM)[[0, 1, 2, 4, 5]]
    assert torch.equal(emb.weight[:], expected[ORDER] if partitioned else expected)


@pytest.mark.parametrize("of_file", [np.uint64, np.int64])
@pytest.mark.parametrize("of_table", [np.uint64, np.int64])
def test_neighbouring_ids_above_2_to_the_53_are_told_apart(tmp_path: Path, of_file: Any, of_table: Any) -> None:
    """numpy compares uint64 with int64 as floats, in which they are one number, and none was found."""
    ids = 2**62 + np.arange(NUM)
    np.save(tmp_path / "embeddings.npy", ROWS[SHUFFLED])
    np.save(tmp_path / "ids.npy", ids[SHUFFLED].astype(of_file))
    assert np.array_equal(table(FromFile(tmp_path, ids.astype(of_table))).weight[:].numpy(), ROWS)


def test_a_longer_or_shorter_array_is_a_matter_of_ids(tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", ROWS[:18])
    np.save(tmp_path / "long.npy", np.concatenate([ROWS, ROWS]))
    emb = table(FromFile(tmp_path / "short.npy", missing=lambda shape, dtype: torch.full(shape, 9.0)))
    assert emb.weight[:].tolist() == [*ROWS[:18].tolist(), [9.0] * DIM, [9.0] * DIM]
    del emb
    assert np.array_equal(table(FromFile(tmp_path / "long.npy", unknown="ignore")).weight[:].numpy(), ROWS)
    with pytest.raises(DataError, match=r"has rows for 20 ids that the table does not have, the first is id 20"):
        table(FromFile(tmp_path / "long.npy"))


def write(folder: Path, rows: Any = ROWS, ids: Any = None, name: str = "npy") -> Path:
    save_embeddings(folder, rows, ids, (name,))
    return folder


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda f: FromFile(f / "gone"), DataError, "gone does not exist"),
        (lambda f: FromFile(write(f, ROWS[:, :2])), ShapeError, "embedding_dim is 3, the rows of .* have 2 numbers"),
        (lambda f: FromFile(write(f, ROWS[:18])), DataError, "has no row for 2 of 20 ids of table 't', .* id 18;"),
        (lambda f: FromFile(write(f), NAMES), DataError, "rows for 20 ids that the table does not have, .* id '0'"),
        (lambda f: FromFile(write(f), np.arange(19)), ShapeError, "FromFile has 19 ids, the table has 20"),
        (lambda f: FromFile(write(f), np.arange(20) // 2), DataError, "FromFile ids: 0 stands for several rows"),
        (lambda f: FromFile(f, unknown="skip"), ConfigError, "unknown 'skip'; known: error, ignore"),
        (lambda f: FromFile(f, missing=FromFile(f)), ConfigError, "give an initializer that reads no file"),
        (lambda f: FromFile(f, missing=3), ConfigError, "init_func is 3"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(tmp_path: Path, make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        table(make(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("num_ids", [18, 22])
def test_ids_that_are_not_as_many_as_rows_are_refused(tmp_path: Path, num_ids: int) -> None:
    """With ids for rows that the file does not have, the table's rows of these ids kept what lay in the memory."""
    np.save(tmp_path / "embeddings.npy", ROWS)
    np.save(tmp_path / "ids.npy", np.arange(num_ids))
    init = FromFile(tmp_path, missing=ge.initializers.Zeros(), unknown="ignore")
    with pytest.raises(DataError, match=rf"embeddings\.npy has 20 rows and {num_ids} ids; give one for each"):
        ge.DistEmbedding(num_ids, DIM, "t", init)


@pytest.mark.parametrize("name", ["parquet", "word2vec"])
def test_an_id_that_stands_twice_is_named(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graph_emb.formats.embedding_files.checked_ids", lambda ids, num_rows: np.asarray(ids))
    write(tmp_path, ROWS, np.where(np.arange(NUM) == 5, 2, np.arange(NUM)), name)
    with pytest.raises(DataError, match="id 2 stands for several rows"):
        table(FromFile(tmp_path, missing=ge.initializers.Zeros()))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
def test_rows_that_the_table_cannot_hold_are_named(tmp_path: Path, name: str, value: float) -> None:
    rows = ROWS.copy()
    rows[13, 1] = value
    write(tmp_path, rows, None, name)
    dtype = torch.float16 if value == 1e38 else torch.float32
    with pytest.raises(DataError, match=r"embeddings\..*row 13 holds NaN, an infinity or a number beyond torch.float"):
        table(FromFile(tmp_path), dtype=dtype)
    assert table(None).weight[:].abs().sum() == 0  # the name is free again


def test_a_file_that_changes_before_it_is_read_is_refused(tmp_path: Path) -> None:
    bound = FromFile(write(tmp_path)).for_table(NUM, DIM, "t", None)
    save_embeddings(tmp_path, ROWS[:18], overwrite=True)
    with pytest.raises(DataError, match=r"has shape \(18, 3\), it was \(20, 3\) when the table was made"):
        bound.fill_(torch.empty(NUM, DIM), 0)


def test_little_is_sent_to_an_owner(tmp_path: Path) -> None:
    rows = np.zeros((100_000, 2), np.float32)
    ids = np.random.default_rng(0).permutation(100_000)
    for given, limit in ((None, 500), (ids, 8 * 1000 + 500)):
        bound = FromFile(write(tmp_path / str(limit), rows, given)).for_table(100_000, 2, "t", None)
        assert len(pickle.dumps(bound.for_owner(5000, 6000))) < limit


def on_a_rank(folder: str) -> np.ndarray:
    transport = ge.init(mode="collective")
    try:
        emb = table(FromFile(folder), ORDER)
        assert emb.shard.num_rows < NUM
        rows = emb.weight[:].numpy()
        transport.barrier()
        return rows
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_ranks_read_their_own_rows(tmp_path: Path, ranks: Ranks) -> None:
    write(tmp_path, ROWS[SHUFFLED], SHUFFLED, "parquet")
    for found in ranks.run(on_a_rank, 2, str(tmp_path)):
        assert np.array_equal(found, ROWS[ORDER])


def as_trainer(transport: Any, folder: str) -> tuple[np.ndarray, str]:
    path = Path(folder)
    rows = table(FromFile(path / "good", missing=ge.initializers.Zeros()), ORDER).weight[:].numpy()
    try:
        table(FromFile(path / "bad"))
    except DataError as error:
        text = str(error)
    transport.barrier()
    plain = table(ge.initializers.Uniform(1.0, 2.0, seed=1))  # the name is free, no half-made rows are left
    assert plain.weight[:].min() >= 1.0
    transport.barrier()
    return rows, text


@pytest.mark.dist
def test_servers_read_their_own_rows_and_a_bad_file_reaches_the_trainers(tmp_path: Path) -> None:
    write(tmp_path / "good", ROWS[SHUFFLED], SHUFFLED, "word2vec")
    bad = ROWS.copy()
    bad[15] = math.nan  # of the second machine; the first one has made its rows when this is found
    write(tmp_path / "bad", bad)
    with shared_memory_is_clean():
        for rows, text in Cluster(trainers=2, machines=2, servers=1).run(as_trainer, str(tmp_path)):
            assert np.array_equal(rows, ROWS[ORDER])
            assert "embeddings.npy: row 15 holds NaN" in text
