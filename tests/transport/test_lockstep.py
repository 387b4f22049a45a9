"""Ranks that make other tables than the others are told so by the first call that meets theirs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.graph.partition_book import RankRanges
from graph_emb.optim.rules import SGD, Adagrad
from graph_emb.table.initializers import Scaled
from graph_emb.table.spec import TableSpec
from graph_emb.transport.lockstep import identity, number_of_rules, signature
from tests.ranks import Ranks, with_shared_memory


def made(
    name: str = "t", num_rows: int = 4, dim: int = 2, dtype: torch.dtype = torch.float32, first: Any = None
) -> TableSpec:
    return TableSpec(name, num_rows, dim, ge.RangeBook([0, num_rows]), first or ge.initializers.Zeros(), dtype)


def test_all_that_two_ranks_must_make_alike_tells_tables_apart() -> None:
    halves = RankRanges([0, 2, 4], [0, 1], 2)
    assert identity(made(), 1, halves) == identity(made(), 1, RankRanges([0, 2, 4], [0, 1], 2))
    others = [
        identity(made("u"), 1, halves),
        identity(made(num_rows=5), 1, halves),
        identity(made(dim=3), 1, halves),
        identity(made(dtype=torch.float64), 1, halves),
        identity(made(), 2, halves),
        identity(made(), 1, RankRanges([0, 1, 4], [0, 1], 2)),
        identity(made(), 1, RankRanges([0, 2, 4], [1, 0], 2)),
        identity(made(first=ge.initializers.Uniform(seed=1)), 1, halves),
        identity(made(first=ge.initializers.Uniform(seed=2)), 1, halves),
        identity(made(first=ge.initializers.Normal(seed=1)), 1, halves),
        identity(made(first=Scaled(ge.initializers.Normal(seed=1), 0.5)), 1, halves),
        identity(made(first=Scaled(ge.initializers.Normal(seed=2), 0.5)), 1, halves),
        identity(made(first=ge.initializers.FromArray(torch.zeros(4, 2))), 1, halves),
    ]
    assert len({*others, identity(made(), 1, halves)}) == len(others) + 1
    assert all(0 <= number < 1 << 63 for number in others)


def test_names_that_tables_took_by_themselves_may_differ() -> None:
    halves = RankRanges([0, 2, 4], [0, 1], 2)
    assert identity(made("embedding_3"), 1, halves) == identity(made("embedding_7"), 1, halves)


def test_arrays_of_first_values_may_differ() -> None:
    """A rank may hold its own rows alone; the address in Python's words for an object is no difference either."""
    halves, arrays = RankRanges([0, 2, 4], [0, 1], 2), [torch.zeros(4, 2), torch.ones(4, 2)]
    one, other = (identity(made(first=ge.initializers.FromArray(own)), 1, halves) for own in arrays)
    assert one == other


def test_rules_with_other_numbers_have_another_number() -> None:
    rules = [SGD(0.1), SGD(0.2), Adagrad(0.1), Adagrad(0.1, eps=1e-3)]
    assert len({number_of_rules([rule]) for rule in rules}) == len(rules)
    assert number_of_rules([SGD(0.1)]) == number_of_rules([SGD(0.1)])
    assert number_of_rules([SGD(1)]) == number_of_rules([SGD(1.0)]) == number_of_rules([SGD(np.float64(1))])
    assert number_of_rules(rules[:2]) != number_of_rules(rules[1::-1])


def test_other_tables_have_another_signature() -> None:
    """A weighted sum gave (1, 5) and (3, 4) the same."""
    assert signature([1, 5]) != signature([3, 4])
    assert signature([1, 5]) != signature([5, 1])
    assert signature([7]) == 7


def pull_other_tables(options: list[dict[str, Any]], names: list[list[str]], hogwild: bool = False) -> str:
    rank = int(os.environ["RANK"])
    ge.init(mode="collective", timeout=60, hogwild=hogwild)
    try:
        tables = {name: ge.DistEmbedding(name=name, **options[rank]) for name in names[rank]}
        tables[names[rank][0]](torch.arange(4))
    except (ge.PeerError, ge.ConfigError) as error:
        return str(error)
    finally:
        ge.shutdown()
    return "nothing"


LATE = 200.0
"""Seconds: a timeout that no test may come near, however busy the machine."""
SMALL: dict[str, Any] = {"num_embeddings": 1000, "embedding_dim": 4}


@pytest.mark.dist
@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"num_embeddings": 300_000, "embedding_dim": 4}, "'x' (300000, 4) of torch.float32"),
        ({"num_embeddings": 1000, "embedding_dim": 8}, "'x' (1000, 8) of torch.float32"),
        ({**SMALL, "dtype": torch.float64}, "'x' (1000, 4) of torch.float64"),
        (
            {**SMALL, "init_func": ge.initializers.Uniform(seed=2)},
            "'x' (1000, 4) of torch.float32 from Uniform(low=None, high=None, seed=2)",
        ),
    ],
    ids=["rows", "dim", "dtype", "seed"],
)
def test_tables_of_other_shapes_do_not_meet(ranks: Ranks, theirs: dict[str, Any], said: str) -> None:
    """Only the order of creation was compared: owners answered with rows of another width, or past their shard."""
    first, second = ranks.run(pull_other_tables, 2, [SMALL, theirs], [["x"], ["x"]])
    assert "pull of table 'x', rank 1 in another call (pull of other tables, or of tables made otherwise)" in first
    assert "tables of rank 0: 'x' (1000, 4) of torch.float32" in first
    assert f"tables of rank 1: {said}" in second


@pytest.mark.dist
def test_tables_made_in_another_order_do_not_meet(ranks: Ranks) -> None:
    """The first table of each rank was taken for the same one, whatever its name."""
    first, second = ranks.run(pull_other_tables, 2, [SMALL, SMALL], [["x", "y"], ["y", "x"]])
    assert "rank 1 in another call" in first
    assert "tables of rank 0: 'x' (1000, 4) of torch.float32, 'y' (1000, 4)" in first
    assert "tables of rank 1: 'y' (1000, 4) of torch.float32, 'x' (1000, 4)" in second


@pytest.mark.dist
@with_shared_memory
def test_common_rows_of_other_shapes_are_refused(ranks: Ranks) -> None:
    theirs = {"num_embeddings": 2000, "embedding_dim": 4}
    for said in ranks.run(pull_other_tables, 2, [SMALL, theirs], [["x"], ["x"]], True):
        assert "table 'x': the ranks make it ['(1000, 4) of torch.float32', '(2000, 4) of torch.float32']" in said


def step_with_others() -> str:
    transport = ge.init(mode="collective", timeout=60)
    try:
        tables = [ge.DistEmbedding(4, 1, f"t{k}") for k in range(1, 6)]
        mine, theirs = ge.SparseSGD([tables[0], tables[4]], lr=1.0), ge.SparseSGD([tables[2], tables[3]], lr=1.0)
        (theirs if transport.rank else mine).step()
    except ge.PeerError as error:
        return str(error)
    finally:
        ge.shutdown()
    return "nothing"


@pytest.mark.dist
def test_steps_over_other_tables_do_not_meet(ranks: Ranks) -> None:
    first, second = ranks.run(step_with_others, 2)
    assert "rank 0 is in push of table 't1', 't5', rank 1 in another call (push of other tables" in first
    assert "rank 1 is in push of table 't3', 't4', rank 0 in another call (push of other tables" in second


def step_at_other_rates() -> str:
    transport = ge.init(mode="collective", timeout=60)
    try:
        table = ge.DistEmbedding(4, 1, "t")
        optimizer = ge.SparseAdagrad([table], lr=[0.1, 0.2][transport.rank])
        table(torch.arange(4)).sum().backward()
        optimizer.step()
    except ge.ConfigError as error:
        return str(error)
    finally:
        ge.shutdown()
    return "nothing"


@pytest.mark.dist
def test_steps_by_other_numbers_are_refused(ranks: Ranks) -> None:
    """Each owner stepped at its own rate: half of the table learned twice as fast."""
    for rank, said in enumerate(ranks.run(step_at_other_rates, 2)):
        assert f"push of table 't': rank {1 - rank} steps by an optimizer with other numbers than these: " in said
        assert f"lr={[0.1, 0.2][rank]}" in said


def meet(calls: list[str]) -> tuple[str, float]:
    """What this rank hears, and after how many seconds."""
    transport = ge.init(mode="collective", timeout=LATE)
    table = ge.DistEmbedding(4, 1, "x")
    do: dict[str, Callable[[], Any]] = {
        "votes": lambda: transport.votes(True),
        "barrier": transport.barrier,
        "pull": lambda: table(torch.arange(4)),
        "freeze": lambda: table.freeze(torch.tensor([1])),
    }
    begun = time.monotonic()
    try:
        do[calls[transport.rank]]()
    except ge.PeerError as error:
        return str(error), time.monotonic() - begun
    finally:
        ge.shutdown()
    return "nothing", 0.0


@pytest.mark.dist
@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (["barrier", "votes"], ["rank 0 is in barrier, rank 1 in another call (votes)", "rank 1 is in votes"]),
        (["pull", "votes"], ["rank 0 is in pull of table 'x', rank 1 in another call (votes)", "rank 1 is in votes"]),
        (["barrier", "pull"], ["another call (pull of table 'x')", "rank 0 in another call (barrier)"]),
        (["freeze", "votes"], ["rank 1 in another call (votes)", "rank 0 in another call (freeze of table 'x')"]),
    ],
    ids=lambda value: "-".join(value) if len(value[0]) < 9 else "",
)
def test_votes_and_barriers_are_calls_like_the_others(ranks: Ranks, calls: list[str], said: list[str]) -> None:
    """They were reductions of torch's: of different dtypes they ended the process, beside a pull they waited."""
    for (text, seconds), words in zip(ranks.run(meet, 2, calls), said, strict=True):
        assert words in text
        assert seconds < LATE / 2


def refuse_a_call(call: str, ranks: list[int]) -> list[str]:
    """Some ranks fail in the checks of a call and go on with the next one; the errors of each."""
    transport: Any = ge.init(mode="collective", timeout=60)
    table = ge.DistEmbedding(4, 1, "x")
    optimizer = ge.SparseSGD([table], lr=1.0)
    wrong, said = transport.rank in ranks, []
    do: dict[str, Callable[[], Any]] = {
        "pull": lambda: table(torch.tensor([99 if wrong else 1])),
        "read": lambda: table.weight[[99 if wrong else 1]],
        "write": lambda: table.weight.__setitem__(slice(0, 2), torch.zeros(3 if wrong else 2, 1)),
        "freeze": lambda: table.freeze(torch.tensor([99 if wrong else 1])),
        "push": optimizer.step,
    }
    table(torch.arange(4))
    optimizer.param_groups[0]["lr"] = float("nan") if wrong else 1.0
    for step in (do[call], lambda: table(torch.arange(4)), transport.barrier):
        try:
            step()
        except ge.GraphEmbError as error:
            said.append(f"{type(error).__name__}: {error}")
    ge.shutdown()
    return said


@pytest.mark.dist
@pytest.mark.parametrize("call", ["pull", "read", "write", "freeze", "push"])
def test_a_rank_that_skips_a_call_is_named_with_the_call(ranks: Ranks, call: str) -> None:
    """The next pull of the rank that had refused its ids met the pull in which the others waited."""
    skipped = f"rank 0 skipped {'pull' if call == 'read' else call} of table 'x' (joint call 2)"
    first, second = ranks.run(refuse_a_call, 2, call, [0])
    assert len(first) == 3, first
    assert not first[0].startswith("PeerError")
    for text in (first[1], second[0]):
        assert text.startswith("PeerError: rank ")
        assert skipped in text


@pytest.mark.dist
def test_a_call_that_every_rank_refuses_leaves_them_in_step(ranks: Ranks) -> None:
    for said in ranks.run(refuse_a_call, 2, "pull", [0, 1]):
        assert [text.partition(":")[0] for text in said] == ["PartitionError"]


def fail_inside(how: str) -> list[str]:
    """Rank 1 fails in the middle of a call and goes on; the errors of each rank."""
    transport: Any = ge.init(mode="collective", timeout=LATE)
    table = ge.DistEmbedding(4, 1, "x")
    said, begun = [], time.monotonic()
    if transport.rank == 1 and how == "owner":

        def fail(*_: object) -> None:
            raise MemoryError("no rows")

        transport.shard("x").read_into = fail
    calls: list[Callable[[], Any]] = [transport.barrier] if how == "other call" and transport.rank else []
    for step in (*calls, *[lambda: table(torch.arange(4))] * 2, transport.barrier):
        try:
            step()
        except (ge.GraphEmbError, MemoryError) as error:
            said.append(f"{type(error).__name__}: {error}")
        if said and transport.rank == 1:
            vars(transport.shard("x")).pop("read_into", None)
        if said and transport.rank == 0:
            break
    ge.shutdown()
    assert time.monotonic() - begun < LATE / 2
    return said


@pytest.mark.dist
@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("owner", "pull of table 'x': MemoryError: no rows"),
        ("other call", "barrier: PeerError: rank 1 is in barrier, rank 0 in another call (pull of table 'x')"),
    ],
)
def test_after_an_error_inside_a_call_every_later_one_names_the_first_cause(ranks: Ranks, how: str, cause: str) -> None:
    """Exchanges have no names: what came next was taken for the rest of the call that had failed."""
    first, second = ranks.run(fail_inside, 2, how)
    assert len(first) == 1
    assert first[0].startswith("PeerError: rank 0")
    assert len(second) == (4 if how == "other call" else 3)
    assert all("rank 1: the ranks are out of step since an earlier call failed" in text for text in second[1:])
    assert all(cause in text for text in second[1:]), second
