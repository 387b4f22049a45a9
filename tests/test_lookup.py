"""``ge.lookup``: rows and gradients of separate calls, bit for bit, in one exchange; the dtype that a call asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError, ModeError, PartitionError, ShapeError
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode", "idle_servers")

Asked = list[tuple[ge.DistEmbedding, Tensor]]
STEPS = 4
BOOK = ge.RangeBook([0, 9, 20])


def separately(asked: Asked) -> list[Tensor]:
    return [emb(ids) for emb, ids in asked]


def trained(
    call: Callable[[Asked], list[Tensor]], rank: int, world_size: int, prefetch: bool = False, mode: str = "l2"
) -> list[Tensor]:
    """All rows that were handed out in some steps, and the tables after them; ``mode``: of their weight decay."""
    init = ge.initializers.Uniform(-1, 1, seed=2)
    tables = [
        ge.DistEmbedding(20, 3, "nodes", init, BOOK, dtype=torch.float64),
        ge.DistEmbedding(20, 5, "edges", init, BOOK, bounds="drop"),
        ge.DistEmbedding(6, 2, "types", init, dtype=torch.bfloat16),
    ]
    nodes, edges, types = tables
    opt = ge.SparseAdam(tables, lr=0.1, weight_decay=0.25, weight_decay_mode=mode)
    seen = []
    for k in range(STEPS):
        gen = torch.Generator().manual_seed(10 * k + rank)
        some = torch.randint(0, 20, (0 if rank == k else 12,), generator=gen)
        asked = [
            (nodes, some.view(-1, 4)),
            (edges, torch.tensor([3, -1, 20, 3, 19 - k])),
            (nodes, torch.tensor([[k], [11]], dtype=torch.int32)),
            (types, torch.tensor(k)),
        ]
        if prefetch and k == 2:
            nodes.prefetch(some)
        rows = call(asked)
        seen += [one.detach() for one in rows]
        sum((one.double() ** 2).sum() for one in rows).backward()
        opt.step()
        opt.transport.flush()
        opt.transport.barrier()
    assert edges.dropped == 2 * STEPS
    opt.transport.barrier()
    after = [emb.weight[:] for emb in tables]
    opt.transport.barrier()
    return seen + after


def equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) and all(
        one.dtype == two.dtype and torch.equal(one, two) for one, two in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("mode", ["local", "kvstore"])
@pytest.mark.parametrize("decay", ["l2", "lazy"])
def test_in_one_process_they_are_those_of_separate_calls(mode: str, decay: str) -> None:
    found = []
    for call in (ge.lookup, separately):
        ge.init(mode=mode)
        found.append(trained(call, 0, 1, mode=decay))
        ge.shutdown()
    assert found[0][1].shape == (5, 5)
    assert not found[0][1][1:3].any()
    assert equal(*found)


def both_ways() -> tuple[bool, list[int], list[int]]:
    """Whether they are equal, with and without a prefetch; and joint calls and bytes of one lookup and of two calls."""
    found, calls, sent, lazy = [], [], [], []
    for call, prefetch in ((ge.lookup, False), (separately, False), (ge.lookup, True), (separately, True)):
        transport: Any = ge.init(mode="collective", timeout=60)
        try:
            found.append(trained(call, transport.rank, transport.world_size, prefetch))
            lazy.append(trained(call, transport.rank, transport.world_size, prefetch, "lazy"))
            init = ge.initializers.Uniform(seed=1)
            tables = [ge.DistEmbedding(20, 4, name, init) for name in ("a", "b")]
            before = transport.group.num_calls, transport.traffic
            with torch.no_grad():
                call([(emb, torch.arange(20)) for emb in tables])
            calls.append(transport.group.num_calls - before[0])
            sent.append(transport.traffic.bytes_sent - before[1].bytes_sent)
        finally:
            ge.shutdown()
    same = all(equal(one, first) for way, first in ((found, found[0]), (lazy, lazy[0])) for one in way)
    return same and not equal(found[0], lazy[0]), calls, sent


@pytest.mark.dist
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_ask_for_all_tables_in_one_exchange(ranks: Ranks, world_size: int) -> None:
    for same, calls, sent in ranks.run(both_ways, world_size):
        assert same
        assert calls == [1, 2, 1, 2]
        assert len(set(sent)) == 1


def both_ways_from_servers(transport: Any) -> bool:
    found = [trained(call, transport.rank, transport.world_size) for call in (ge.lookup, separately)]
    return equal(*found)


@pytest.mark.dist
def test_servers_answer_for_all_tables() -> None:
    assert Cluster(1, 2, 1).run(both_ways_from_servers) == [True]


def messages(transport: Any) -> tuple[int, bool]:
    """How many messages bring a step of three tables, of two kinds, to the servers; and whether all rows moved."""
    tables = [ge.DistEmbedding(20, 3), ge.DistEmbedding(9, 2), ge.DistEmbedding(5, 2, dtype=torch.float64)]
    opt = ge.SparseAdam(tables, lr=0.5)
    told, tell = [], transport._exchange.tell
    transport._exchange.tell = lambda server, method, *rest, **more: (
        told.append(method),
        tell(server, method, *rest, **more),
    )[1]
    rows = ge.lookup([(emb, torch.arange(emb.num_embeddings)) for emb in tables])
    torch.autograd.backward(rows, [torch.ones_like(one) for one in rows])
    before = [one.detach().clone() for one in rows]
    opt.step()
    transport.flush()
    after = [emb.weight[:] for emb in tables]
    moved = all(torch.allclose(one - 0.5, two, atol=1e-5) for one, two in zip(before, after, strict=True))
    return told.count("push"), moved


@pytest.mark.dist
@pytest.mark.parametrize("machines", [1, 2])
def test_a_server_meets_the_gradients_of_all_tables_in_one_message(machines: int) -> None:
    """Where they lie in its machine's memory, or themselves."""
    assert Cluster(1, machines, 2 // machines).run(messages) == [(2, True)]


def fills_the_push_buffer(transport: Any) -> tuple[list[bool], int]:
    """Whether all rows of a small and of a large table moved by a step, and how many messages brought it."""
    tables = [ge.DistEmbedding(20, 3), ge.DistEmbedding(70_000, 64)]
    opt = ge.SparseSGD(tables, lr=1.0)
    sent, tell = [], transport._exchange.tell

    def telling(server: int, method: str, *rest: Any, **more: Any) -> int:
        sent.append(method)
        return int(tell(server, method, *rest, **more))

    transport._exchange.tell = telling
    rows = ge.lookup([(emb, torch.arange(emb.num_embeddings)) for emb in tables])
    torch.autograd.backward(rows, [torch.ones_like(one) for one in rows])
    before = [one.detach().clone() for one in rows]
    opt.step()
    transport.flush()
    moved = [torch.equal(old - 1.0, emb.weight[:]) for old, emb in zip(before, tables, strict=True)]
    return moved, sent.count("push")


@pytest.mark.dist
def test_gradients_that_fill_the_push_buffer_come_after_those_that_lie_in_it() -> None:
    assert Cluster().run(fills_the_push_buffer) == [([True, True], 2)]


def told(transport: Any) -> list[str]:
    """The first table's server refuses; the second one's rows still come to their own call afterwards."""
    one, two = ge.DistEmbedding(4, 1, "one"), ge.DistEmbedding(4, 1, "two", ge.initializers.Uniform(seed=1))
    transport.register_pull_handler("one", refuse)
    found = []
    try:
        ge.lookup([(one, torch.arange(4)), (two, torch.arange(4))])
    except Exception as error:
        found.append(str(error))
    with torch.no_grad():
        found.append(str(two(torch.arange(4)).shape))
    return found


def refuse(data: Any, name: str, rows: Tensor) -> Tensor:
    raise ConfigError(f"no rows of {name}")


@pytest.mark.dist
def test_an_error_of_one_table_leaves_no_answer_behind() -> None:
    (found,) = Cluster(1, 2, 1).run(told)
    assert "no rows of one" in found[0]
    assert found[1] == "torch.Size([4, 1])"


def test_what_is_wrong_is_refused_before_a_row_is_pulled() -> None:
    one, two = ge.DistEmbedding(4, 1, "one"), ge.DistEmbedding(4, 1, "two")
    assert ge.lookup([]) == []
    with pytest.raises(PartitionError, match=r"table 'two': id 4 is outside"):
        ge.lookup([(one, torch.tensor([1])), (two, torch.tensor([4]))])
    with pytest.raises(ShapeError, match=r"table 'two': ids have dtype torch.float32"):
        ge.lookup([(one, torch.tensor([1])), (two, torch.tensor([1.0]))])
    assert one.traffic.asked == 0
    ge.shutdown()
    ge.init()
    with pytest.raises(ModeError, match="before and after a shutdown"):
        ge.lookup([(one, torch.tensor([1])), (ge.DistEmbedding(1, 1), torch.tensor([0]))])


def test_what_is_no_table_is_refused_by_name() -> None:
    emb = ge.DistEmbedding(4, 2, "nodes")
    small = emb.quantize("int8")
    for odd in (small, torch.nn.Embedding(4, 2)):
        with pytest.raises(ConfigError, match=f"{type(odd).__name__}.* is no DistEmbedding"):
            ge.lookup([(emb, torch.tensor([1])), (odd, torch.tensor([1]))])


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("wanted", [torch.float16, torch.bfloat16, torch.float32, torch.float64, None])
def test_rows_and_gradients_have_the_dtype_of_the_call(stored: torch.dtype, wanted: torch.dtype | None) -> None:
    emb = ge.DistEmbedding(5, 3, init_func=ge.initializers.Uniform(-1, 1, seed=3), dtype=stored)
    before = emb.weight[:]
    opt = ge.SparseSGD([emb], lr=1.0)
    rows = emb(torch.tensor([4, 0, 4]), dtype=wanted)
    assert rows.dtype == (wanted or stored)
    assert torch.equal(rows, before[[4, 0, 4]].to(rows.dtype))
    grad = (torch.arange(9.0).view(3, 3) / 7).to(rows.dtype)
    rows.backward(grad)
    opt.step()
    expected = before.double()
    for i, g in zip((4, 0, 4), grad.double(), strict=True):  # summed unrounded: 16-bit tables sum in float32
        expected[i] -= g
    torch.testing.assert_close(emb.weight[:], expected.to(stored), rtol=torch.finfo(stored).eps, atol=1e-12)


def test_what_is_no_floating_dtype_is_refused() -> None:
    emb = ge.DistEmbedding(5, 3)
    for bad in (torch.int64, "float16", torch.complex64):
        with pytest.raises(ConfigError, match=r"dtype=.* of the rows handed out must be one of"):
            emb(torch.tensor([1]), dtype=bad)
