"""Stored rows and the state beside them."""

from __future__ import annotations

import pytest
import torch

from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.core.threads import SERIAL_ROWS
from graph_emb.graph.partition_book import RangeBook
from graph_emb.table.initializers import FromArray, Zeros
from graph_emb.table.shard import EmbeddingShard, allocate, gather, gather_two
from graph_emb.table.spec import StateSpec, TableSpec

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


def test_a_table_beyond_memory_names_itself_and_its_bytes() -> None:
    with pytest.raises(ConfigError, match=r"table 'huge': cannot allocate 4,[0-9,]+ bytes"):
        allocate((10**15, 1024), torch.float32, torch.device("cpu"), "huge")


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
    assert torch.equal(gather_two(weight, rows, others, place), wanted)
