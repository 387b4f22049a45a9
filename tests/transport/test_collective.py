"""Collective tables do what local ones do, for any number of ranks and parts.

Every test runs a module-level function on each rank; the single-process result is made in the test.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.transport import runtime
from tests.ranks import Ranks, with_shared_memory

pytestmark = pytest.mark.dist

NUM, DIM, STEPS = 37, 5, 6
BOOKS = {1: [0, 37], 2: [0, 5, 37], 3: [0, 20, 20, 37], 4: [0, 1, 9, 30, 37]}
BOUNDED = {"clip_value": 0.5, "clip_row_norm": 0.75, "weight_decay": 0.1, "max_norm": 1.5}
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SparseSGD", {"lr": 0.1}),
    "momentum": ("SparseSGD", {"lr": 0.1, "momentum": 0.9}),
    "adagrad": ("SparseAdagrad", {"lr": 0.1}),
    "adagrad, mean": ("SparseAdagrad", {"lr": 0.1, "compat": "dgl-1.x"}),
    "adagrad, each occurrence": ("SparseAdagrad", {"lr": 0.1, "compat": "dgl-0.5"}),
    "row adagrad": ("SparseRowAdagrad", {"lr": 0.1}),
    "adam": ("SparseAdam", {"lr": 0.1}),
    "adam, row clock": ("SparseAdam", {"lr": 0.1, "bias_correction": "row", "merge": "mean"}),
    "row adam": ("SparseRowAdam", {"lr": 0.1}),
    "adamw": ("SparseAdamW", {"lr": 0.1}),
    "adagrad, bounded": ("SparseAdagrad", {"lr": 0.1, **BOUNDED}),
    "adam, bounded": ("SparseAdam", {"lr": 0.1, "merge": "mean", **BOUNDED, "weight_decay_mode": "decoupled"}),
    "each occurrence, bounded": ("SparseAdagrad", {"lr": 0.1, "compat": "dgl-0.5", **BOUNDED}),
    "lamb": ("SparseLAMB", {"lr": 0.1, **BOUNDED}),
    "row lamb": ("SparseRowLAMB", {"lr": 0.1, "bias_correction": "row"}),
    "lars": ("SparseLARS", {"lr": 1.0, "eta": 0.1, **BOUNDED}),
    "counted": ("SparseAdam", {"lr": 0.1, "count_rows": True, "count_power": 0.5, "clip_row_ratio": 0.5}),
}
ROUNDED = {
    "rounded": ("SparseAdagrad", {"lr": 0.1, "stochastic_rounding": True}),
    "rounded adam": ("SparseAdam", {"lr": 0.1, "stochastic_rounding": True, "rounding_seed": 3, **BOUNDED}),
}


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Ids with duplicates within and across ranks, and the gradient of each; some ranks have none in some steps."""
    gen = torch.Generator().manual_seed(100 * step + rank)
    num = 0 if (step + rank) % 4 == 3 else 40
    return torch.randint(0, NUM, (num,), generator=gen), torch.randn(num, DIM, generator=gen, dtype=torch.float64)


def tables(dtype: torch.dtype, parts: int, name: str = "") -> tuple[ge.DistEmbedding, ge.DistEmbedding]:
    book = ge.RangeBook(BOOKS[parts])
    first = ge.DistEmbedding(NUM, DIM, f"first {name}".strip(), ge.initializers.Uniform(seed=3), book, dtype=dtype)
    return first, ge.DistEmbedding(11, 2, f"second {name}".strip(), ge.initializers.Normal(seed=4), dtype=dtype)


def rows_of(embs: Iterable[ge.DistEmbedding], ids: Tensor) -> list[Tensor]:
    """Rows of each table, of several by one exchange for all."""
    first, *others = embs
    return ge.lookup([(emb, ids) for emb in (first, *others)]) if others else [first(ids)]


def train(names: Iterable[str], dtype: torch.dtype, parts: int, ranks_played: list[int]) -> dict[str, tuple[Any, ...]]:
    """Train two tables by each optimizer on the batches of some ranks; returns what this process stores of each."""
    made = {}
    for name in names:
        kind, options = {**OPTIMIZERS, **ROUNDED}[name]
        both = tables(dtype, parts, name)
        made[name] = *both, getattr(ge, kind)(both, **options)
    firsts, seconds, optimizers = zip(*made.values(), strict=True)
    for step in range(STEPS):
        for rank in ranks_played:
            ids, grad = batch(step, rank)
            for rows in rows_of(firsts, ids):
                rows.backward(grad.to(dtype))
            if step % 2:  # the second tables are left alone in every other step
                for rows in rows_of(seconds, ids % 11):
                    rows.backward(grad[:, :2].to(dtype))
        for opt in optimizers:
            opt.step()
            opt.zero_grad()
    found = {}
    for name, (first, second, _) in made.items():
        state = {key: value.clone() for key, value in first.shard.state.items()}
        found[name] = first.shard.first_id, first.shard.weight.clone(), second.shard.weight.clone(), state
    return found


@functools.cache
def by_one_process(world_size: int) -> dict[str, tuple[Any, ...]]:
    """What any number of parts gives in float64; here the table has as many as there are ranks."""
    ge.init(mode="local")
    return train(OPTIMIZERS, torch.float64, world_size, list(range(world_size)))


def train_on_a_rank(
    names: list[str], dtype: torch.dtype, parts: int, options: dict[str, Any] | None = None, together: bool = False
) -> dict[str, tuple[Any, ...]]:
    transport = ge.init(mode="collective", timeout=60, **(options or {}))
    try:
        found: dict[str, tuple[Any, ...]] = {}
        for some in [names] if together else [[name] for name in names]:
            found |= train(some, dtype, parts, [transport.rank])
        return found
    finally:
        ge.shutdown()


def joined(found: list[tuple[Any, ...]], column: int) -> Tensor:
    return torch.cat([entry[column] for entry in sorted(found, key=lambda entry: entry[0])])


@pytest.mark.parametrize(("world_size", "parts"), [(1, 1), (2, 1), (2, 2), (3, 2), (2, 3), (4, 4), (3, 4), (4, 3)])
def test_float64_is_bit_for_bit_the_single_process(ranks: Ranks, world_size: int, parts: int) -> None:
    answers = ranks.run(train_on_a_rank, world_size, list(OPTIMIZERS), torch.float64, parts, None, True)
    for name, (_, first, second, state) in by_one_process(world_size).items():
        found = [answer[name] for answer in answers]
        assert torch.equal(joined(found, 1), first), name
        assert torch.equal(torch.cat([entry[2] for entry in found]), second), name
        for key, value in state.items():
            if len(value) == 1:
                assert all(torch.equal(entry[3][key], value) for entry in found), (name, key)
            else:
                mine = torch.cat([entry[3][key] for entry in sorted(found, key=lambda entry: entry[0])])
                assert torch.equal(mine, value), (name, key)


@pytest.mark.parametrize(("world_size", "parts"), [(2, 2), (3, 4)])
def test_stochastic_rounding_is_bit_for_bit_the_single_process(ranks: Ranks, world_size: int, parts: int) -> None:
    names = ["rounded", "rounded adam"]
    answers = ranks.run(train_on_a_rank, world_size, names, torch.bfloat16, parts)
    ge.init(mode="local")
    for name in names:
        _, first, second, _ = train([name], torch.bfloat16, parts, list(range(world_size)))[name]
        found = [answer[name] for answer in answers]
        assert torch.equal(joined(found, 1), first), name
        assert torch.equal(torch.cat([entry[2] for entry in found]), second), name


@pytest.mark.parametrize(
    "options", [{"shared_memory": False}, pytest.param({"hogwild": True}, marks=with_shared_memory)], ids=str
)
@pytest.mark.parametrize("world_size", [2, 4])
def test_sockets_and_common_rows_give_the_bits_of_shared_memory(
    ranks: Ranks, world_size: int, options: dict[str, Any]
) -> None:
    names = ["adagrad", "adam", "adagrad, mean"]
    by_memory = ranks.run(train_on_a_rank, world_size, names, torch.float32, 3)
    otherwise = ranks.run(train_on_a_rank, world_size, names, torch.float32, 3, options)
    for one, other in zip(by_memory, otherwise, strict=True):
        for name in names:
            assert torch.equal(one[name][1], other[name][1]), name
            assert torch.equal(one[name][2], other[name][2]), name


@pytest.mark.parametrize("world_size", [2, 3])
def test_float32_equals_the_single_process_within_rounding(ranks: Ranks, world_size: int) -> None:
    answers = ranks.run(train_on_a_rank, world_size, list(OPTIMIZERS), torch.float32, 2)
    again = ranks.run(train_on_a_rank, world_size, list(OPTIMIZERS), torch.float32, 2)
    ge.init(mode="local")
    for name in OPTIMIZERS:
        found = joined([answer[name] for answer in answers], 1)
        _, first, _, _ = train([name], torch.float32, 2, list(range(world_size)))[name]
        torch.testing.assert_close(found, first, rtol=1e-4, atol=1e-5, msg=name)
        assert torch.equal(found, joined([answer[name] for answer in again], 1)), f"{name}: two runs differ"


def pull_on_a_rank(parts: int) -> tuple[Tensor, Tensor, Tensor, int]:
    transport: Any = ge.init(mode="collective", timeout=60)
    try:
        first, _ = tables(torch.float32, parts)
        ids = torch.randint(0, NUM, (600 * transport.rank,), generator=torch.Generator().manual_seed(transport.rank))
        with torch.no_grad():
            return ids, first(ids), first.weight[5:1:-1], transport.traffic.bytes_sent
    finally:
        ge.shutdown()


@pytest.mark.parametrize(("world_size", "parts"), [(1, 2), (2, 2), (3, 1), (4, 3)])
def test_pull_keeps_order_and_duplicates(ranks: Ranks, world_size: int, parts: int) -> None:
    found = ranks.run(pull_on_a_rank, world_size, parts)
    ge.init(mode="local")
    first, _ = tables(torch.float32, parts)
    for ids, rows, backwards, _ in found:
        assert torch.equal(rows, first.weight[ids])
        assert torch.equal(backwards, first.weight[torch.tensor([5, 4, 3, 2])])


def pull_owned_rows() -> int:
    transport: Any = ge.init(mode="collective", timeout=60)
    try:
        first, _ = tables(torch.float32, 2)
        first(torch.arange(first.shard.num_rows) + first.shard.first_id)
        return transport.traffic.bytes_sent
    finally:
        ge.shutdown()


def test_rows_that_a_rank_owns_do_not_travel(ranks: Ranks) -> None:
    assert ranks.run(pull_owned_rows, 2) == [0, 0]


def pull_one_id_often(times: int) -> int:
    transport: Any = ge.init(mode="collective", timeout=60)
    try:
        first, _ = tables(torch.float32, 2)
        first(torch.full((times,), 36 if transport.rank == 0 else 0))
        return transport.traffic.bytes_sent
    finally:
        ge.shutdown()


def test_each_distinct_id_is_asked_for_once(ranks: Ranks) -> None:
    row_and_id = 8 + 4 * DIM
    assert ranks.run(pull_one_id_often, 2, 1) == [row_and_id] * 2
    assert ranks.run(pull_one_id_often, 2, 1000) == [row_and_id] * 2


def train_with_prefetch(staleness: int) -> tuple[int, Tensor, list[Tensor]]:
    """Train, each batch's rows fetched before the step of the batch before it."""
    transport = ge.init(mode="collective", timeout=60, staleness=staleness)
    try:
        first, _ = tables(torch.float64, 2)
        opt = ge.SparseAdagrad([first], lr=0.1)
        seen = []
        first.prefetch(batch(0, transport.rank)[0])
        for step in range(STEPS):
            ids, grad = batch(step, transport.rank)
            rows = first(ids)
            seen.append(rows.detach().clone())
            if step + 1 < STEPS:
                first.prefetch(batch(step + 1, transport.rank)[0])
            rows.backward(grad)
            opt.step()
        return first.shard.first_id, first.shard.weight.clone(), seen
    finally:
        ge.shutdown()


def train_in_one_process(world_size: int) -> tuple[Tensor, list[list[Tensor]]]:
    ge.init(mode="local")
    first, _ = tables(torch.float64, 2)
    opt = ge.SparseAdagrad([first], lr=0.1)
    seen = []
    for step in range(STEPS):
        found = []
        for rank in range(world_size):
            ids, grad = batch(step, rank)
            rows = first(ids)
            found.append(rows.detach().clone())
            rows.backward(grad)
        seen.append(found)
        opt.step()
    return first.shard.weight, seen


@pytest.mark.parametrize("world_size", [1, 3])
def test_prefetched_rows_are_exact(ranks: Ranks, world_size: int) -> None:
    found = ranks.run(train_with_prefetch, world_size, 0)
    weight, seen = train_in_one_process(world_size)
    assert torch.equal(joined(found, 1), weight)
    for rank, (_, _, rows) in enumerate(found):
        assert all(torch.equal(mine, all_[rank]) for mine, all_ in zip(rows, seen, strict=True))


def test_staleness_one_gives_remote_rows_of_the_step_before(ranks: Ranks) -> None:
    found = ranks.run(train_with_prefetch, 2, 1)
    _, seen = train_in_one_process(2)
    ids, own = batch(1, 0)[0], BOOKS[2][1]
    assert not torch.equal(found[0][2][1], seen[1][0])
    expected = torch.where((ids < own).unsqueeze(1), seen[1][0], initial_rows(ids))
    assert torch.equal(found[0][2][1], expected)


def initial_rows(ids: Tensor) -> Tensor:
    ge.shutdown()
    ge.init(mode="local")
    return tables(torch.float64, 2)[0].weight[ids]


def prefetch_wrongly() -> list[str]:
    ge.init(mode="collective", timeout=60)
    said = []
    try:
        first, _ = tables(torch.float32, 2)
        first.prefetch(torch.tensor([1, 2]))
        for call in (lambda: first.prefetch(torch.tensor([3])), lambda: first(torch.tensor([2, 1]))):
            try:
                call()
            except ge.ModeError as error:
                said.append(str(error))
        return said
    finally:
        ge.shutdown()


def test_a_prefetch_must_be_pulled_as_it_was(ranks: Ranks) -> None:
    for said in ranks.run(prefetch_wrongly, 2):
        assert "pull before the next prefetch" in said[0]
        assert "other ids are pulled than were prefetched" in said[1]


def train_unequal_loops() -> tuple[int, list[int]]:
    transport = ge.init(mode="collective", timeout=60)
    try:
        emb = ge.DistEmbedding(4, 1)
        opt = ge.SparseSGD([emb], lr=1.0)
        own = [torch.tensor([transport.rank])] * (3 * transport.rank)
        steps = 0
        for ids in ge.in_step(own, torch.empty(0, dtype=torch.int64)):
            emb(ids).sum().backward()
            opt.step()
            steps += 1
        return steps, emb.weight[:].flatten().tolist()
    finally:
        ge.shutdown()


def test_ranks_with_fewer_batches_stay_in_step(ranks: Ranks) -> None:
    assert ranks.run(train_unequal_loops, 3) == [(6, [0.0, -3.0, -6.0, 0.0])] * 3


def write_on_a_rank() -> Tensor:
    transport = ge.init(mode="collective", timeout=60)
    try:
        first, _ = tables(torch.float32, 2)
        ids = torch.tensor([36, 0, 4]) if transport.rank else torch.tensor([0, 7])
        first.weight[ids] = torch.full((len(ids), DIM), float(transport.rank + 1))
        return first.weight[torch.tensor([0, 4, 7, 36])][:, 0]
    finally:
        ge.shutdown()


def test_written_rows_are_read_by_all_and_the_highest_rank_wins(ranks: Ranks) -> None:
    for seen in ranks.run(write_on_a_rank, 2):
        assert seen.tolist() == [2.0, 2.0, 1.0, 2.0]


def initial_tables() -> dict[int, tuple[int, Tensor]]:
    ge.init(mode="collective", timeout=60)
    try:
        made = {parts: tables(torch.float32, parts)[0].shard for parts in BOOKS}
        return {parts: (shard.first_id, shard.weight.clone()) for parts, shard in made.items()}
    finally:
        ge.shutdown()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_initial_table_does_not_depend_on_parts_or_ranks(ranks: Ranks, world_size: int) -> None:
    found = ranks.run(initial_tables, world_size)
    ge.init(mode="local")
    expected = tables(torch.float32, 1)[0].shard.weight
    for parts in BOOKS:
        assert torch.equal(joined([entry[parts] for entry in found], 1), expected), parts


def differ() -> str:
    transport = ge.init(mode="collective", timeout=60)
    try:
        first, second = tables(torch.float32, 1)
        (second if transport.rank == 1 else first)(torch.tensor([1]))
    except ge.PeerError as error:
        return str(error)
    finally:
        ge.shutdown()
    return "nothing"


def test_a_rank_in_another_call_is_named(ranks: Ranks) -> None:
    found = ranks.run(differ, 3)
    assert "rank 0 is in pull of table 'first', rank 1 in another call" in found[0]
    assert "rank 1 is in pull of table 'second', rank 0, 2 in another call" in found[1]
    assert "every rank makes the same calls" in found[2]


def sit_at(parts: list[int | None], book: list[int]) -> str | tuple[int, int]:
    import os

    try:
        ge.init(mode="collective", timeout=60, part=parts[int(os.environ["RANK"])])
        first = ge.DistEmbedding(37, 2, part_policy=ge.RangeBook(book))
        return first.shard.first_id, first.shard.num_rows
    except ge.ConfigError as error:
        return str(error)
    finally:
        ge.shutdown()


def test_ranks_may_sit_at_parts_in_any_order(ranks: Ranks) -> None:
    assert ranks.run(sit_at, 3, [1, 0, 1], [0, 5, 37]) == [(5, 16), (0, 5), (21, 16)]


def test_a_part_without_a_rank_is_refused(ranks: Ranks) -> None:
    for text in ranks.run(sit_at, 2, [1, 1], [0, 5, 37]):
        assert "no rank sits at part 0 of 2" in str(text)


def test_naming_a_part_on_some_ranks_only_is_refused(ranks: Ranks) -> None:
    for text in ranks.run(sit_at, 2, [1, None], [0, 5, 37]):
        assert "give a part on every rank or on none" in str(text)


def test_collective_mode_outside_of_a_launcher_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(word, raising=False)
    transport = ge.init(mode="collective")
    assert (transport.rank, transport.world_size) == (0, 1)
    assert runtime.current() is transport


def test_half_of_a_launchers_variables_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    for word in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(word, raising=False)
    with pytest.raises(ge.ModeError, match="WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set"):
        ge.init(mode="collective")
