"""Ranks train copies of each other's rows: what they get, and what becomes of their changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.transport.local_sgd_rows import LocalSGDRows
from tests.ranks import Ranks

pytestmark = pytest.mark.dist

NUM, DIM, TURNS = 23, 3, 3
BOUNDS = [0, 6, 6, 15, NUM]


def groups(turn: int, rank: int, tables: int, low: int, high: int) -> list[Tensor]:
    """For each table ids outside of [low, high) that are copied of it and all behind it; none at all now and then."""
    order = torch.randperm(NUM, generator=torch.Generator().manual_seed(100 * turn + 10 * rank))
    ids = order[(order < low) | (order >= high)]
    return [ids[4 * group :][: (turn + rank + 3 * group) % 5] for group in range(tables)]


def change(turn: int, rank: int, table: int, ids: Tensor) -> Tensor:
    """Whole numbers, so that their sums are exact in any order."""
    return (ids[:, None] + torch.arange(DIM) + turn + 7 * rank + 100 * table).float()


def copies_on_a_rank(names: list[str]) -> list[Any]:
    try:
        transport: Any = ge.init(mode="collective", timeout=60)
        book = ge.RangeBook(BOUNDS)
        tables = [ge.DistEmbedding(NUM, DIM, name, part_policy=book) for name in names]
        copies, seen = LocalSGDRows(transport, names), []
        for turn in range(TURNS):
            low, high = tables[0].shard.first_id, tables[0].shard.first_id + tables[0].shard.num_rows
            ids = groups(turn, transport.rank, len(names), low, high)
            memory, places = copies.pull(ids)
            seen.append([])
            for t, rows in enumerate(memory):
                of_table = torch.cat(ids[: t + 1])
                at = places[: len(of_table)]
                seen[-1].append(rows[at])
                rows[at] += change(turn, transport.rank, t, of_table)
            copies.give_back()
        traffic = transport.traffic
        return [(low, high), seen, [table.weight[:] for table in tables], traffic.steps]
    finally:
        ge.shutdown()


@pytest.mark.parametrize(("world_size", "names"), [(2, ["a"]), (2, ["a", "b"]), (3, ["a", "b", "c"]), (4, ["a", "b"])])
def test_changes_of_all_ranks_add_up(ranks: Ranks, world_size: int, names: list[str]) -> None:
    found = ranks.run(copies_on_a_rank, world_size, names)
    tables = [torch.zeros(NUM, DIM) for _ in names]
    for turn in range(TURNS):
        before = [table.clone() for table in tables]
        for rank, ((low, high), seen, _, _) in enumerate(found):
            for t, table in enumerate(tables):
                ids = torch.cat(groups(turn, rank, len(names), low, high)[: t + 1])
                assert torch.equal(seen[turn][t], before[t][ids]), (turn, rank, t)
                table[ids] += change(turn, rank, t, ids)
    assert any(len(rows) for _, seen, _, _ in found for turn in seen for rows in turn)
    for _, _, rows, steps in found:
        assert all(torch.equal(mine, table) for mine, table in zip(rows, tables, strict=True))
        assert steps == TURNS


JOINED = {0: [[2.0, 0.0]], 1: [[0.0, 4.0]], 2: [[6.0, 0.0]]}
"""By how much each rank changes row 0 of the first one, which is its own, and which starts at (1, 1)."""


def joined_on_a_rank(frozen: bool) -> list[list[float]]:
    """Row 0 after an interval in which all ranks changed it, its owner in place."""
    try:
        transport: Any = ge.init(mode="collective", timeout=60)
        ones = ge.initializers.FromArray(torch.ones(3, 2))
        table = ge.DistEmbedding(3, 2, "a", ones, part_policy=ge.RangeBook([0, 1, 2, 3]))
        if frozen:
            table.freeze(torch.tensor([0]) if transport.rank == 0 else torch.empty(0, dtype=torch.int64))
        copies, change = LocalSGDRows(transport, ["a"], adaptive=True), torch.tensor(JOINED[transport.rank])
        for _ in range(2):
            own = transport.rank == 0
            (rows,), places = copies.pull([torch.empty(0, dtype=torch.int64) if own else torch.tensor([0])])
            if not own:
                rows[places] += change
            elif not frozen:
                table.shard.weight += change
            copies.give_back()
        found: list[list[float]] = table.weight[:].tolist()
        return found
    finally:
        ge.shutdown()


def test_changes_of_one_row_are_joined_by_adasum(ranks: Ranks) -> None:
    """(2, 0) and (0, 4) have nothing in common: (2, 4). With (6, 0) it has, so that .7 of it and 5/6 of that remain."""
    expected = [1 + 2 * (2 * 0.7 + 6 * 5 / 6), 1 + 2 * (4 * 0.7)]
    for rows in ranks.run(joined_on_a_rank, 3, False):
        assert rows[0] == pytest.approx(expected)
        assert rows[1:] == [[1.0, 1.0]] * 2


def test_a_frozen_row_keeps_its_values(ranks: Ranks) -> None:
    assert ranks.run(joined_on_a_rank, 3, True)[1] == [[1.0, 1.0]] * 3


def overlapped_on_a_rank(names: list[str], turns: int) -> list[Any]:
    """Rows leave in the middle of the interval before, and changes arrive in that of the next one."""
    try:
        transport: Any = ge.init(mode="collective", timeout=60)
        book = ge.RangeBook(BOUNDS)
        tables = [ge.DistEmbedding(NUM, DIM, name, part_policy=book) for name in names]
        low, high = tables[0].shard.first_id, tables[0].shard.first_id + tables[0].shard.num_rows
        copies, seen = LocalSGDRows(transport, names, overlap=True), []
        for half in (range(turns), range(turns, turns + 1)):
            ids = [groups(turn, transport.rank, len(names), low, high) for turn in half]
            copies.ask(ids[0])
            copies.lay_out()
            for number, turn in enumerate(half):
                memory, places = copies.arrived()
                if turn + 1 in half:
                    copies.ask(ids[number + 1])
                for table in tables:
                    table.shard.weight += own_change(turn, transport.rank)
                if number:
                    copies.take()
                if turn + 1 in half:
                    copies.lay_out()
                seen.append([])
                for t, rows in enumerate(memory):
                    at = places[: sum(map(len, ids[number][: t + 1]))]
                    seen[-1].append(rows[at])
                    rows[at] += change(turn, transport.rank, t, torch.cat(ids[number][: t + 1]))
                    tables[t].shard.weight += own_change(turn, transport.rank)
                copies.send()
            copies.take()
        assert 0 < copies.hidden < copies.seconds
        return [(low, high), seen, [table.weight[:] for table in tables], transport.traffic.steps]
    finally:
        ge.shutdown()


WIRED = torch.tensor([[1.0 + 2**-10, 1000.0, 1 / 3], [-1 / 3, 257.0, 2**-12]])
"""Rows that bfloat16 and float16 round."""


def wired_on_a_rank(dtype: str, overlap: bool, adaptive: bool) -> list[Any]:
    """Each rank copies the row of the other one, and changes it by ``WIRED``."""
    try:
        transport: Any = ge.init(mode="collective", timeout=60, wire_dtype=None if dtype == "float32" else dtype)
        first = ge.initializers.FromArray(WIRED)
        table = ge.DistEmbedding(2, 3, "a", first, part_policy=ge.RangeBook([0, 1, 2]))
        ids = [torch.tensor([1 - transport.rank])]
        before = transport.traffic.bytes_sent
        copies = LocalSGDRows(transport, ["a"], adaptive=adaptive, overlap=overlap)
        (pulled,) = copies.pull(ids).rows
        seen = pulled.clone()
        pulled += WIRED[transport.rank]
        copies.give_back()
        return [seen, table.shard.weight.clone(), transport.traffic.bytes_sent - before]
    finally:
        ge.shutdown()


def rounded_to(dtype: str, rows: Tensor) -> Tensor:
    """Rows as they come; of int8, in units of a 127th of their largest number."""
    if dtype != "int8":
        return rows.to(getattr(torch, dtype)).float()
    unit = rows.abs().amax(1, keepdim=True) / 127
    return unit * torch.round(rows / unit)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("dtype", "how"),
    [("bfloat16", "sum"), ("bfloat16", "adaptive"), ("float16", "adaptive"), ("int8", "sum"), ("int8", "adaptive"),
     ("float32", "adaptive")],
)  # fmt: skip
def test_rows_and_changes_are_rounded_where_they_travel(ranks: Ranks, dtype: str, how: str, overlap: bool) -> None:
    """SGD in place refused ``wire_dtype``."""
    found = ranks.run(wired_on_a_rank, 2, dtype, overlap, how == "adaptive")
    rounded = rounded_to(dtype, WIRED)
    size = {"float32": 12, "int8": 3 + 4}.get(dtype, 6)
    for rank, (seen, _, sent) in enumerate(found):
        other = 1 - rank
        torch.testing.assert_close(seen, rounded[[other]], rtol=1e-6, atol=0)
        assert torch.equal(seen, WIRED[[other]]) == (dtype == "float32")
        changes = rounded_to(dtype, seen - (seen + WIRED[rank]))  # as a copy goes down
        torch.testing.assert_close(found[other][1], WIRED[[other]] - changes, rtol=1e-6, atol=1e-6)
        assert sent == 8 + 2 * size, "an id, a row, a change"


ODD = torch.tensor(
    [[0.0, 0.0, 0.0], [1e-31, -1e-32, 0.0], [2.0, float("inf"), 1.0], [float("nan"), 1.0, 2.0], [-1e-30, 5e-31, 0.0],
     [3e38, -3e38, 1e36], [-127.0, 0.5, 1.5], [float("-inf"), float("nan"), 0.0]]
)  # fmt: skip


def scaled_on_a_rank() -> Tensor:
    """Rows of the other rank as they come with 8 bits."""
    try:
        transport: Any = ge.init(mode="collective", timeout=60, wire_dtype="int8")
        first, num = ge.initializers.FromArray(torch.cat([ODD, ODD])), len(ODD)
        table = ge.DistEmbedding(2 * num, 3, "a", first, part_policy=ge.RangeBook([0, num, 2 * num]))
        copies = LocalSGDRows(transport, [table.name])
        rows, places = copies.pull([torch.arange(num) + (1 - transport.rank) * num])
        found = rows[0][places].clone()
        copies.give_back()
        return found
    finally:
        ge.shutdown()


def test_rows_of_8_bits_at_their_limits(ranks: Ranks) -> None:
    """What is not finite stays so, nothing is divided by 0, and halves are rounded to even."""
    for rows in ranks.run(scaled_on_a_rank, 2):
        assert (rows[:2] == 0).all()
        assert rows[[2, 3, 7]].isnan().all()
        torch.testing.assert_close(rows[4], torch.tensor([-1e-30, 64 / 127 * 1e-30, 0.0]), rtol=1e-5, atol=0)
        torch.testing.assert_close(rows[5], torch.tensor([3e38, -3e38, 0.0]), rtol=1e-6, atol=0)
        assert rows[6].tolist() == [-127.0, 0.0, 2.0]


def own_change(turn: int, rank: int) -> float:
    return 1000.0 * (turn + 1) + rank


@pytest.mark.parametrize(("world_size", "names"), [(2, ["a"]), (3, ["a", "b", "c"]), (4, ["a", "b"])])
def test_overlapped_copies_are_half_an_interval_old_with_own_changes_on_top(
    ranks: Ranks, world_size: int, names: list[str]
) -> None:
    turns = 6
    found = ranks.run(overlapped_on_a_rank, world_size, names, turns)
    tables = [torch.zeros(NUM, DIM) for _ in names]
    nothing = [[torch.zeros(NUM, DIM) for _ in names] for _ in range(world_size)]
    corrected = 0
    for half in (range(turns), range(turns, turns + 1)):
        laid, under_way = [table.clone() for table in tables], nothing
        for turn in half:
            made = []
            for rank, ((low, high), seen, _, _) in enumerate(found):
                made.append([torch.zeros(NUM, DIM) for _ in names])
                for t, table in enumerate(tables):
                    ids = torch.cat(groups(turn, rank, len(names), low, high)[: t + 1])
                    corrected += int((under_way[rank][t][ids] != 0).sum())
                    assert torch.equal(seen[turn][t], (laid[t] + under_way[rank][t])[ids]), (turn, rank, t)
                    made[-1][t][ids] = change(turn, rank, t, ids)
                    table[low:high] += own_change(turn, rank)
            for rank in range(world_size):
                for t, table in enumerate(tables):
                    table += under_way[rank][t]
            laid, under_way = [table.clone() for table in tables], made
            for rank, ((low, high), _, _, _) in enumerate(found):
                for table in tables:
                    table[low:high] += own_change(turn, rank)
        for rank in range(world_size):
            for t, table in enumerate(tables):
                table += under_way[rank][t]
    assert corrected
    for _, _, rows, steps in found:
        assert all(torch.equal(mine, table) for mine, table in zip(rows, tables, strict=True))
        assert steps == turns + 1


def out_of_order(overlap: bool) -> list[str]:
    said = []
    try:
        transport: Any = ge.init(mode="collective", timeout=60)
        table = ge.DistEmbedding(NUM, DIM, "a", part_policy=ge.RangeBook([0, 10, NUM]))
        copies = LocalSGDRows(transport, [table.name], overlap=overlap)
        none = [torch.empty(0, dtype=torch.int64)]
        calls: dict[str, Any] = {name: getattr(copies, name) for name in ("lay_out", "arrived", "send", "take")}
        calls["ask"] = lambda: copies.ask(none)
        for right, *wrong in (
            ("ask", "lay_out", "arrived", "send", "take"),
            ("lay_out", "ask", "arrived", "send", "take"),
            ("arrived", "ask", "lay_out", "send", "take"),
            ("send", "lay_out", "arrived", "take"),
            ("take", "lay_out", "arrived", "send"),
        ):
            for name in wrong:
                try:
                    calls[name]()
                except ge.ModeError as error:
                    said.append(f"{name}: {error}")
            calls[right]()
        return said
    finally:
        ge.shutdown()


@pytest.mark.parametrize("overlap", [False, True])
def test_calls_come_in_their_order(ranks: Ranks, overlap: bool) -> None:
    for said in ranks.run(out_of_order, 2, overlap):
        assert [text.split(":")[0] for text in said] == [
            "lay_out", "arrived", "send", "take", "ask", "arrived", "send", "take", "ask", "lay_out", "send", "take",
            "lay_out", "arrived", "take", "lay_out", "arrived", "send",
        ]  # fmt: skip
        assert "no rows to lay out; ask for some, and take changes first" in said[0]
        assert "no copies are under way; ask for them first" in said[1]
        assert "no copies to give back; pull them first" in said[2]
        assert "no changes are under way; send them first" in said[3]
        assert "rows that were asked for are under way; call lay_out and arrived" in said[4]


def fetched_before() -> Tensor:
    """A row that this rank asked for before it was changed, as the pull gives it."""
    try:
        transport: Any = ge.init(mode="collective", timeout=60)
        table = ge.DistEmbedding(NUM, DIM, "a", part_policy=ge.RangeBook([0, 10, NUM]))
        other = torch.tensor([20 if transport.rank == 0 else 1])
        table.prefetch(other)
        copies = LocalSGDRows(transport, ["a"])
        copies.pull([other]).rows[0].fill_(7.0)
        copies.give_back()
        return table(other).detach()
    finally:
        ge.shutdown()


def test_rows_that_were_fetched_before_a_change_are_sent_again(ranks: Ranks) -> None:
    assert all((rows == 7.0).all() for rows in ranks.run(fetched_before, 2))


def refused() -> list[str]:
    said = []
    try:
        transport: Any = ge.init(mode="collective", timeout=60)
        narrow, wide = ge.DistEmbedding(NUM, DIM, "narrow"), ge.DistEmbedding(NUM, DIM + 1, "wide")
        double = ge.DistEmbedding(NUM, DIM, "double", dtype=torch.float64)
        cut = ge.DistEmbedding(NUM, DIM, "cut", part_policy=ge.RangeBook([0, 3, NUM]))
        lazy = ge.DistEmbedding(NUM, DIM, "lazy")
        optimizer = ge.SparseSGD([lazy], lr=0.1, weight_decay=0.1, weight_decay_mode="lazy")
        for tables in ([narrow, wide], [double], [narrow, cut], [lazy]):
            try:
                LocalSGDRows(transport, [table.name for table in tables])
            except ge.ConfigError as error:
                said.append(str(error))
        optimizer.close()
        copies = LocalSGDRows(transport, ["narrow"])
        for pulled in (False, True):
            if pulled:
                copies.pull([torch.empty(0, dtype=torch.int64)])
                copies.give_back()
            try:
                copies.give_back()
            except ge.ModeError as error:
                said.append(str(error))
        return said
    finally:
        ge.shutdown()


def test_other_tables_and_changes_of_nothing_are_refused(ranks: Ranks) -> None:
    (said, _) = ranks.run(refused, 2)
    assert len(said) == 6
    assert "'wide' 4 of torch.float32" in said[0]
    assert "'double' 3 of torch.float64" in said[1]
    assert "'narrow', 'cut': copies of rows need tables that are cut in the same way" in said[2]
    assert "'lazy': copies of rows need rows in memory that neither grow nor decay lazily" in said[3]
    assert all("pull them first" in text for text in said[4:])


def out_of_step() -> str:
    try:
        transport: Any = ge.init(mode="collective", timeout=60)
        table = ge.DistEmbedding(NUM, DIM, "a", part_policy=ge.RangeBook([0, 10, NUM]))
        other = torch.tensor([20 if transport.rank == 0 else 1])
        if transport.rank == 0:
            LocalSGDRows(transport, ["a"]).pull([other])
        else:
            table(other)
    except ge.PeerError as error:
        return str(error)
    finally:
        ge.shutdown()
    return ""


def test_a_rank_in_another_call_is_named(ranks: Ranks) -> None:
    first, second = ranks.run(out_of_step, 2)
    assert "rank 0 is in copies of rows of table 'a', rank 1 in another call" in first
    assert "rank 1 is in pull of table 'a', rank 0 in another call" in second
