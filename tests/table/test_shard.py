"""A table's shape is checked before any memory is taken; stored rows and the state beside them."""

from __future__ import annotations

import mmap
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.core.threads import SERIAL_ROWS
from graph_emb.graph.partition_book import RangeBook
from graph_emb.table import shard as shard_module
from graph_emb.table.initializers import FromArray, Zeros
from graph_emb.table.row_memory import allocate
from graph_emb.table.shard import EmbeddingShard, RowCopy, copy_rows, gather
from graph_emb.table.spec import StateSpec, TableSpec, checked_shape
from tests.transport.kvstore.cluster import Cluster

SPECS = (
    StateSpec("sum", "element", initial=0.5),
    StateSpec("count", "row", torch.int64),
    StateSpec("step", "table", torch.int64),
)


def shard(dtype: torch.dtype = torch.float32) -> EmbeddingShard:
    rows = torch.arange(12.0).view(4, 3)
    made = EmbeddingShard(
        TableSpec("t", 10, 3, RangeBook.even(10), FromArray(torch.cat([rows * 0, rows])), dtype), 4, 4
    )
    made.allocate_state(SPECS)
    return made


def test_a_shard_starts_with_the_rows_of_its_own_ids() -> None:
    assert torch.equal(shard().weight, torch.arange(12.0).view(4, 3))


def test_read_keeps_order_and_duplicates_and_is_a_copy() -> None:
    made = shard()
    rows = made.read(torch.tensor([2, 0, 2]))
    assert rows[:, 0].tolist() == [6, 0, 6]
    rows.zero_()
    assert made.weight[2, 0] == 6


def test_state_has_its_shapes_dtypes_and_first_values() -> None:
    state = shard(torch.bfloat16).state
    assert state["sum"].shape == (4, 3)
    assert state["sum"].dtype == torch.float32
    assert state["sum"].unique().tolist() == [0.5]
    assert state["count"].shape == (4,)
    assert state["step"].tolist() == [0]


def test_state_is_read_and_written_by_row_and_by_table() -> None:
    made = shard()
    rows = torch.tensor([3, 1])
    state = made.read_state(rows)
    state["count"] += torch.tensor([7, 8])
    state["step"] += 1
    assert made.state["step"].tolist() == [0]
    made.write_state(rows, state)
    assert made.state["count"].tolist() == [0, 8, 0, 7]
    assert made.state["step"].tolist() == [1]


def test_state_is_never_shared_silently() -> None:
    made = shard()
    with pytest.raises(ModeError, match="is trained by another optimizer"):
        made.allocate_state(SPECS)
    made.free_state()
    made.allocate_state(SPECS[:1])
    assert set(made.state) == {"sum"}


def test_memory_is_weight_plus_state() -> None:
    assert shard().num_bytes() == 4 * 3 * 4 + 4 * 3 * 4 + 4 * 8 + 8


@pytest.mark.parametrize("shape", [(1,), (3, 5), (33, 33), (4096, 128)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16])
def test_memory_begins_at_a_line_and_large_memory_at_a_page(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """np.empty gives address + 16 for large blocks: rows of 512 bytes met nine lines of 64 instead of eight."""
    taken = [allocate(shape, dtype, torch.device("cpu"), "t") for _ in range(4)]
    for memory in taken:
        assert memory.shape == shape
        assert memory.dtype is dtype
        assert memory.data_ptr() % (mmap.PAGESIZE if memory.nbytes >= mmap.PAGESIZE else 64) == 0
        memory.fill_(1)
    taken[0].fill_(2)
    assert all(memory.eq(1).all() for memory in taken[1:])


def test_a_table_beyond_memory_names_itself_and_its_bytes() -> None:
    with pytest.raises(ConfigError, match=r"table 'huge': cannot allocate 4,[0-9,]+ bytes"):
        allocate((10**15, 1024), torch.float32, torch.device("cpu"), "huge")


def test_a_device_that_is_not_there_is_named_with_torchs_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without CUDA raises an AssertionError; a driver that is missing was told to use fewer rows."""

    def missing(*_: Any, **__: Any) -> Any:
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch, "empty", missing)
    with pytest.raises(ConfigError, match=r"on cuda \(Torch not compiled with CUDA enabled\); .* a device of this"):
        allocate((3, 2), torch.float32, torch.device("cuda"), "t")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dim": 0}, "embedding_dim 0"),
        ({"num_rows": -1}, "num_embeddings -1"),
        ({"name": ""}, "name ''"),
        ({"name": "a/b"}, "name 'a/b'"),
        ({"dtype": torch.int32}, "dtype torch.int32"),
    ],
)
def test_a_bad_spec_names_the_field(kwargs: dict, message: str) -> None:
    good = {"name": "t", "num_rows": 2, "dim": 2, "book": RangeBook.even(2), "initializer": Zeros()}
    with pytest.raises(ConfigError, match=message):
        TableSpec(**{**good, **kwargs})


@pytest.mark.parametrize("num", [0, 1, SERIAL_ROWS - 1, SERIAL_ROWS, 3 * SERIAL_ROWS + 1])
@pytest.mark.parametrize("dim", [1, 15, 16, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gathered_rows_are_those_asked_for_in_order_with_repeats(num: int, dim: int, dtype: torch.dtype) -> None:
    weight = torch.arange(50 * dim).reshape(50, dim).to(dtype)
    rows = torch.randint(0, 50, (num,), generator=torch.Generator().manual_seed(num))
    assert torch.equal(gather(weight, rows), weight.index_select(0, rows))


def test_a_table_that_is_a_column_slice_is_gathered_right() -> None:
    weight = torch.arange(20 * 8, dtype=torch.float32).reshape(20, 8)[:, 2:5]
    rows = torch.arange(19, -1, -1).repeat(SERIAL_ROWS)
    assert torch.equal(gather(weight, rows), weight.index_select(0, rows))


def test_gathered_rows_are_a_copy() -> None:
    weight = torch.zeros(4, 3)
    gather(weight, torch.zeros(SERIAL_ROWS, dtype=torch.int64)).fill_(1.0)
    assert not weight.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num", [0, 5, SERIAL_ROWS + 40])
def test_two_sources_are_gathered_as_one(num: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(num)
    weight, others = torch.randn(30, 7, dtype=dtype), torch.randn(11, 7, dtype=dtype)
    rows = torch.randint(0, 30, (19,), generator=generator)
    place = torch.randint(0, 30, (num,), generator=generator)  # 11 of others, 19 of rows
    wanted = torch.cat([others, weight[rows]])[place]
    out = torch.empty(num, 7, dtype=dtype)
    assert torch.equal(copy_rows([RowCopy(weight, rows, out, others, place)])[0], wanted)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("num", [9, 2 * SERIAL_ROWS])
def test_rows_of_several_tables_are_copied_in_one_pass(monkeypatch: Any, num: int, threads: int) -> None:
    calls = []
    compiled = shard_module._copy_rows
    monkeypatch.setattr(shard_module, "_copy_rows", lambda *args: calls.append(1) or compiled(*args))
    monkeypatch.setattr(shard_module, "threads_for", lambda num_rows: nullcontext(threads))
    generator = torch.Generator().manual_seed(num)
    copies, wanted = [], []
    for dtype, dim in ((torch.bfloat16, 3), (torch.float64, 7), (torch.int8, 1), (torch.float32, 32)):
        weight = torch.randint(-100, 100, (40, dim), generator=generator).to(dtype)
        rows, others = torch.randint(0, 40, (num,), generator=generator), -weight[:11]
        place = torch.randint(0, 11 + num, (num + 5,), generator=generator)
        wanted += [weight[rows], torch.cat([others, weight[rows]])[place]]
        copies += [RowCopy(weight, rows, torch.empty_like(wanted[-2]))]
        copies += [RowCopy(weight, rows, torch.empty_like(wanted[-1]), others, place)]
    copies += [RowCopy(weight, rows[:0], weight[:0].clone()), RowCopy(weight.T[:5], rows[:3] % 5, torch.empty(3, 40))]
    wanted += [weight[:0], weight.T[:5][rows[:3] % 5]]
    assert all(map(torch.equal, copy_rows(copies), wanted))
    assert sum(calls) == (num > 9)


WRONG: list[tuple[Any, Any, str]] = [
    (4.5, 4, "num_embeddings 4.5 must be an integer, not float"),
    (4.0, 4, "num_embeddings 4.0 must be an integer, not float"),
    (True, 4, "num_embeddings True must be an integer, not bool"),
    (np.True_, 4, "must be an integer, not bool"),
    (torch.tensor(True), 4, "num_embeddings tensor(True) must be an integer, not Tensor"),
    (torch.tensor([1, 2]), 4, "must be an integer, not Tensor"),
    (None, 4, "num_embeddings None must be an integer, not NoneType"),
    ("4", 4, "num_embeddings '4' must be an integer, not str"),
    (4, 4.5, "embedding_dim 4.5 must be an integer, not float"),
    (4, True, "embedding_dim True must be an integer, not bool"),
    (-1, 4, "num_embeddings -1 must not be negative"),
    (4, 0, "embedding_dim 0 must be at least 1"),
    (2**62, 4, "num_embeddings 4611686018427387904 and embedding_dim 4 of torch.float32 take"),
    (2**64, 1, "num_embeddings 18446744073709551616 and embedding_dim 1 of torch.float32 take"),
    (2**31, 2**31, "num_embeddings 2147483648 and embedding_dim 2147483648 of torch.float32 take 18446744073709551616"),
]


def shape_errors() -> list[str]:
    """The errors of the wrong shapes in the mode that is on."""
    found = []
    for num_embeddings, embedding_dim, _ in WRONG:
        with pytest.raises(ge.ConfigError) as caught:
            ge.DistEmbedding(num_embeddings, embedding_dim, "t")
        found.append(str(caught.value))
    ge.DistEmbedding(4, 2, "t")  # the name is free, and the mode goes on
    return found


def check_shapes(found: list[str]) -> None:
    for text, (*_, part) in zip(found, WRONG, strict=True):
        assert text.startswith("table 't': "), text
        assert part in text


def test_a_shape_that_is_none_is_named_with_its_value() -> None:
    """4.5 and True were taken as 4 and 1; large products overflowed on the way to the allocation."""
    check_shapes(shape_errors())


def test_a_shape_that_is_none_is_refused_in_collective_mode() -> None:
    ge.shutdown()
    ge.init(mode="collective", timeout=60)
    try:
        check_shapes(shape_errors())
    finally:
        ge.shutdown()


def errors_of_a_trainer(transport: Any) -> list[str]:
    return shape_errors()


@pytest.mark.dist
def test_a_shape_that_is_none_is_refused_before_a_server_hears_of_it() -> None:
    check_shapes(Cluster(1).run(errors_of_a_trainer)[0])


@pytest.mark.parametrize("number", [4, np.int32(4), np.uint8(4), torch.tensor(4)])
def test_integers_of_every_library_are_shapes(number: Any) -> None:
    shape = checked_shape("t", number, number, torch.float32)
    assert shape == (4, 4)
    assert [type(one) for one in shape] == [int, int]


def test_the_largest_table_has_int64_offsets() -> None:
    assert checked_shape("t", 2**61 - 1, 1, torch.float32) == (2**61 - 1, 1)
    with pytest.raises(ge.ConfigError, match="at most 9223372036854775807 are possible"):
        checked_shape("t", 2**61, 1, torch.float32)
