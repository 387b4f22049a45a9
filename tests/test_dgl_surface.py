"""What DGL's tables and optimizers answer, ours answer too, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.transport.runtime import current
from tests.ranks import Ranks
from tests.test_optimizer import OPTIMIZERS
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode", "idle_servers")

NUM, DIM = 12, 3
MODES = ["local", "collective", "kvstore"]


def table(name: str, **options: Any) -> ge.DistEmbedding:
    options = {"part_policy": ge.RangeBook([0, 5, NUM]), "dtype": torch.float64, **options}
    return ge.DistEmbedding(NUM, DIM, name, ge.initializers.Uniform(-1, 1, seed=5), **options)


def in_mode(ranks: Ranks, mode: str, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What a function returns on each of two processes, or on the only one."""
    if mode == "local":
        ge.init(mode="local")
        return [function(None, *args)]
    if mode == "collective":
        return ranks.run(_collective, 2, function, *args)
    return Cluster(2, 1, 2).run(function, *args)


def _collective(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(ge.init(mode="collective", timeout=60), *args)
    finally:
        ge.shutdown()


# optimizer.update


def updated(transport: Any, name: str) -> tuple[Tensor, Tensor]:
    """The rows after three updates, and after three steps with the same gradients; duplicates within a rank only."""
    transport = transport or current()
    torch.manual_seed(0)
    one, other = table("one"), table("other")
    opts = [getattr(ge, name)([emb], lr=0.1) for emb in (one, other)]
    mine = torch.arange(NUM)[transport.rank :: transport.world_size]
    for _ in range(3):
        grads = torch.randn(NUM, DIM, dtype=torch.float64)
        ids = torch.cat([mine[1:], mine[1:3]])
        opts[0].update(ids.tolist(), grads[ids], one)
        other(ids).backward(grads[ids])
        opts[1].step()
        transport.flush()
        transport.barrier()
    found = one.weight[:], other.weight[:]
    transport.barrier()
    return found


@pytest.mark.dist
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["SparseAdagrad", "SparseAdam"])
def test_update_is_a_step_of_one_table(ranks: Ranks, mode: str, name: str) -> None:
    for one, other in in_mode(ranks, mode, updated, name):
        assert torch.equal(one, other)
        assert (one != table("first").weight[:]).all(dim=1).sum() >= NUM - 2


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_update_leaves_what_came_back_to_the_step(name: str) -> None:
    emb = table("t", bounds="drop")
    opt = getattr(ge, name)([emb], lr=0.1)
    emb([1]).sum().backward()
    before = emb.weight[:]
    opt.update(np.array([2, NUM, -1]), torch.ones(3, DIM, dtype=torch.float64), emb)
    assert (emb.weight[:] != before).any(dim=1).nonzero().flatten().tolist() == [2]
    assert emb.dropped == 2
    assert len(emb.pending()) == 1
    opt.step()
    assert (emb.weight[:] != before).any(dim=1).nonzero().flatten().tolist() == [1, 2]


def test_update_refuses_what_does_not_fit() -> None:
    emb, other = table("t"), table("u")
    opt = ge.SparseSGD([emb], lr=0.1)
    grad = torch.ones(2, DIM, dtype=torch.float64)
    with pytest.raises(ge.ConfigError, match=r"SparseSGD does not train DistEmbedding.*its tables: t"):
        opt.update([0, 1], grad, other)
    with pytest.raises(ge.ShapeError, match=r"gradient has shape \(2, 3\)"):
        opt.update([0], grad, emb)
    with pytest.raises(ge.PartitionError, match="id 12 is outside"):
        opt.update([0, NUM], grad, emb)
    maximizing = ge.SparseSGD([other], lr=1.0, maximize=True) if "maximize" in opt.defaults else opt
    before = other.weight[:]
    maximizing.update([0, 1], grad, other)
    assert torch.equal(other.weight[:2], before[:2] + 1)
    opt.close()
    with pytest.raises(ge.ModeError, match="was closed"):
        opt.update([0, 1], grad, emb)


# Ids as lists and arrays


@pytest.mark.parametrize(
    "ids", [[3, 0, 3], (3, 0, 3), np.array([3, 0, 3]), np.array([3, 0, 3], np.int32), np.array([3, 9, 0, 9, 3])[::2]]
)
def test_ids_are_tensors_arrays_or_lists(ids: Any) -> None:
    emb, wanted = table("t"), torch.tensor([3, 0, 3])
    rows = emb.weight[:]
    assert torch.equal(emb(ids), rows[wanted])
    if not isinstance(ids, tuple):  # indices of several axes, to weight[...]
        assert torch.equal(emb.weight[ids], rows[wanted])
    assert torch.equal(ge.lookup([(emb, ids)])[0], rows[wanted])
    assert torch.equal(emb.bag(ids, [0, 2]), torch.stack([rows[3] + rows[0], rows[3]]))
    emb.prefetch(ids)
    emb.freeze(ids)
    ge.SparseSGD([emb], lr=1.0).update(list(range(NUM)), torch.ones(NUM, DIM, dtype=torch.float64), emb)
    assert (emb.weight[:] == rows).all(dim=1).nonzero().flatten().tolist() == [0, 3]


def test_ids_of_no_integers_are_refused() -> None:
    emb = table("t")
    assert emb([]).shape == (0, DIM)
    assert emb([[1, 2], [3, 4]]).shape == (2, 2, DIM)
    assert emb(5).shape == (DIM,)
    mask = np.zeros(NUM, bool)
    mask[4] = True
    assert torch.equal(emb.weight[mask], emb.weight[[4]])
    for ids in ([0.5], ["a"], np.ones(2), None, {1}, mask):
        with pytest.raises(ge.ShapeError, match="pass integers: a tensor, an array or a list"):
            emb(ids)


# First values


def test_init_func_of_node_embedding_takes_a_tensor() -> None:
    """``dgl.nn.NodeEmbedding`` calls ``init_func(tensor)``, ``DistEmbedding`` calls ``init_func(shape, dtype)``."""
    given = []

    def in_place(rows: Tensor) -> None:
        given.append(tuple(rows.shape))
        rows.fill_(3.0)

    def returned(rows: Tensor) -> Tensor:
        return rows + 4.0

    for init_func, value in ((in_place, 3.0), (returned, 4.0), (torch.nn.init.ones_, 1.0)):
        emb = ge.DistEmbedding(NUM, DIM, init_func=init_func)
        assert emb.weight[:].unique().tolist() == [value]
    assert given == [(NUM, DIM)]
    torch.manual_seed(1)
    emb = ge.DistEmbedding(NUM, DIM, init_func=torch.nn.init.xavier_uniform_)
    torch.manual_seed(1)
    assert torch.equal(emb.weight[:], torch.nn.init.xavier_uniform_(torch.empty(NUM, DIM)))
    for function in (lambda shape, dtype: torch.full(shape, 2.0), lambda shape, dtype=None: torch.full(shape, 2.0)):
        assert ge.DistEmbedding(NUM, DIM, init_func=function).weight[:].unique().tolist() == [2.0]


# ge.NodeEmbedding


def set_and_got(transport: Any) -> tuple[Tensor, list[int]]:
    emb = ge.NodeEmbedding(NUM, DIM, "whole", init_func=torch.nn.init.ones_)
    first = emb.all_get_embedding()
    emb.all_set_embedding(torch.arange(NUM * DIM, dtype=torch.float32).view(NUM, DIM))
    return torch.cat([first, emb.all_get_embedding()]), [emb.rank, emb.world_size]


@pytest.mark.dist
@pytest.mark.parametrize("mode", MODES)
def test_node_embedding_sets_and_gets_the_whole_table(ranks: Ranks, mode: str) -> None:
    found = in_mode(ranks, mode, set_and_got)
    for rank, (rows, place) in enumerate(found):
        assert torch.equal(rows[:NUM], torch.ones(NUM, DIM))
        assert torch.equal(rows[NUM:].flatten(), torch.arange(NUM * DIM, dtype=torch.float32))
        assert place == [rank, len(found)]


def test_node_embedding_refuses_what_does_not_fit() -> None:
    with pytest.raises(ge.ConfigError, match=r"partition=5 is DGL's split over GPUs; give .* a policy"):
        ge.NodeEmbedding(NUM, DIM, "cut", partition=5)
    emb = ge.NodeEmbedding(NUM, DIM, "kept")
    with pytest.raises(ge.ShapeError, match=r"values have shape \(3, 3\); expected \(12, 3\)"):
        emb.all_set_embedding(torch.ones(3, 3))
    assert emb.all_get_embedding().count_nonzero() == 0


def test_the_rate_has_dgls_private_name() -> None:
    emb = table("rate")
    opt = ge.SparseAdagrad([emb], lr=0.5, eps=1e-8)
    assert (opt._lr, opt._eps) == (0.5, 1e-8)
    opt._lr = 0.25
    assert opt.param_groups[0]["lr"] == 0.25
    with pytest.raises(ge.ConfigError, match="lr"):
        opt._lr = -1.0
    opt.close()
    plain = ge.SparseSGD([emb], lr=0.5)
    with pytest.raises(AttributeError, match="no eps"):
        _ = plain._eps


# emb.weight


def surface(transport: Any) -> dict[str, Any]:
    emb = table("t")
    emb.weight[[1, 7]] = 0.0
    if transport is not None:
        transport.barrier()
    weight = emb.weight
    found = {
        "names": {weight.name, weight.tensor_name, weight.data_name, weight.kvstore_key, emb.data_name},
        "nonzero": weight.count_nonzero(),
        "local": tuple(weight.local_partition.shape),
        "zeros": int((weight.local_partition == 0).sum()),
        "same": weight.kvstore is emb.kvstore or type(weight.kvstore) is type(emb.kvstore),
    }
    if transport is not None:
        transport.barrier()
    return found


@pytest.mark.dist
@pytest.mark.parametrize("mode", MODES)
def test_weight_has_the_surface_of_a_dist_tensor(ranks: Ranks, mode: str) -> None:
    found = in_mode(ranks, mode, surface)
    for one in found:
        assert one["names"] == {"t"}
        assert one["nonzero"] == (NUM - 2) * DIM
        assert one["same"]
    sizes = {"local": [NUM], "collective": [5, 7], "kvstore": [NUM, NUM]}[mode]
    assert [one["local"] for one in found] == [(size, DIM) for size in sizes]
    assert [one["zeros"] for one in found] == {"local": [6], "collective": [3, 3], "kvstore": [6, 6]}[mode]


def test_union_is_for_masks() -> None:
    emb = table("t")
    with pytest.raises(ge.ShapeError, match=r"\| is for masks, these rows are torch.float64"):
        emb.weight | emb.weight


# A second table of a name


def opened_twice(transport: Any) -> dict[str, Any]:
    transport = transport or current()
    one = table("t")
    opt = ge.SparseSGD([one], lr=1.0)
    two = ge.DistEmbedding(NUM, DIM, "t", dtype=torch.float64)  # no policy, no first values: those of the table
    before = one.weight[:]
    transport.barrier()
    (one([2]).sum() + two([2, 3]).sum()).backward()
    opt.step()
    opt.update([4], torch.ones(1, DIM, dtype=torch.float64), two)
    transport.flush()
    transport.barrier()
    moved = (before - two.weight[:])[:, 0]
    del one
    again = table("t")
    shared = torch.equal(again.weight[:], two.weight[:]) and again.part_policy == two.part_policy
    transport.barrier()
    opt.close()
    del two, again, opt
    fresh = torch.equal(table("t").weight[:], before)
    transport.barrier()
    return {"moved": moved.round().int().tolist(), "shared": shared, "fresh": fresh}


@pytest.mark.dist
@pytest.mark.parametrize("mode", MODES)
def test_a_second_table_of_a_name_is_the_same_table(ranks: Ranks, mode: str) -> None:
    found = in_mode(ranks, mode, opened_twice)
    for one in found:
        assert one["moved"] == [0, 0, 2 * len(found), len(found), len(found), *[0] * (NUM - 5)]
        assert one["shared"]
        assert one["fresh"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"num_embeddings": NUM + 1, "part_policy": None}, "shape"),
        ({"embedding_dim": 4}, "shape"),
        ({"dtype": torch.float32}, "dtype"),
        ({"part_policy": ge.RangeBook([0, 6, NUM])}, "part_policy"),
        ({"original_ids": np.arange(NUM)[::-1]}, "original_ids"),
        ({"init_func": ge.initializers.Uniform(-1, 1, seed=6)}, "init_func"),
        ({"bounds": "drop"}, "bounds"),
    ],
)
def test_a_second_table_that_differs_is_an_error_that_says_in_what(change: dict[str, Any], word: str) -> None:
    arguments = {
        "num_embeddings": NUM, "embedding_dim": DIM, "dtype": torch.float64, "part_policy": ge.RangeBook([0, 5, NUM]),
        "init_func": ge.initializers.Uniform(-1, 1, seed=5),
    }  # fmt: skip
    first = ge.DistEmbedding(name="t", **arguments)
    with pytest.raises(ge.ConfigError, match=f"a table 't'.* {word}"):
        ge.DistEmbedding(name="t", **{**arguments, **change})
    assert torch.equal(ge.DistEmbedding(name="t", **arguments).weight[:], first.weight[:])


def kept_by_one(transport: Any) -> str:
    """The first trainer keeps the old table, the other one drops it before both ask for the name."""
    emb = table("t")
    transport.barrier()
    try:
        if transport.rank:
            del emb
        second = table("t")
        second([0])
    except (ge.ConfigError, ge.PeerError) as error:
        return str(error)
    finally:
        if transport.mode == "kvstore":
            transport.barrier()
    return ""


@pytest.mark.dist
@pytest.mark.parametrize("mode", MODES[1:])
def test_trainers_that_differ_in_what_is_alive_are_told(ranks: Ranks, mode: str) -> None:
    """One would train the old table and one a new one."""
    said = in_mode(ranks, mode, kept_by_one)
    if mode == "collective":
        assert all(said)
        assert "in different calls" in said[0] or "table" in said[0]
    else:
        (only,) = filter(None, said)
        assert "trainer 1 makes a new one, trainer 0 opens the one that is alive" in only


# emb.kvstore


def three(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.full(shape, 3, dtype=dtype)


def by_name(transport: Any) -> dict[str, Any]:
    emb, transport = table("t"), transport or current()
    store, mine = emb.kvstore, torch.arange(NUM)[transport.rank :: transport.world_size]
    store.init_data("t_sum", (NUM, 1), torch.float32, emb.part_policy, three)
    store.init_data("other", [4, 2], torch.float64, None, None, is_gdata=False)
    store.push("t", mine.tolist(), torch.ones(len(mine), DIM, dtype=torch.float64) * mine[:, None])
    store.push("t_sum", mine.numpy(), np.ones((len(mine), 1), np.float32))
    store.flush()
    store.barrier()
    dtype, shape, policy = store.get_data_meta("t_sum")
    found = {
        "rows": store.pull("t", [5, 0, 5])[:, 0].tolist(),
        "sums": store.pull("t_sum", list(range(NUM))).flatten().unique().tolist(),
        "names": (store.data_name_list(), store.gdata_name_list()),
        "meta": (dtype, shape, policy == emb.part_policy, store.get_data_meta("t")[:2]),
        "parts": store.get_partid("t", [0, 4, 5, 11]).tolist(),
        "nonzero": (store.count_nonzero("t"), store.count_nonzero("other")),
        "who": (store.client_id, store.machine_id, store.role, store.num_servers),
    }
    store.barrier()
    store.delete_data("other")
    found["left"] = store.data_name_list()
    for wrong in (
        lambda: store.delete_data("t"),
        lambda: store.delete_data("gone"),
        lambda: store.init_data("t", (NUM, DIM), torch.float64),
        lambda: store.init_data("flat", (NUM,), torch.float64),
        lambda: store.init_data("whole", (NUM, 1), torch.int64),
    ):
        with pytest.raises(ge.GraphEmbError) as caught:
            wrong()
        found.setdefault("said", []).append(str(caught.value))
    store.barrier()
    return found


@pytest.mark.dist
@pytest.mark.parametrize("mode", MODES)
def test_the_store_answers_by_name_as_dgls_client(ranks: Ranks, mode: str) -> None:
    answers = in_mode(ranks, mode, by_name)
    for rank, found in enumerate(answers):
        assert found["rows"] == [5, 0, 5]
        assert found["sums"] == [1]
        assert found["names"] == (["other", "t", "t_sum"], ["t_sum"])
        assert found["meta"] == (torch.float32, (NUM, 1), True, (torch.float64, (NUM, DIM)))
        assert found["parts"] == [0, 0, 1, 1]
        assert found["nonzero"] == ((NUM - 1) * DIM, 0)
        assert found["who"] == (rank, 0, "default", 1 if mode == "local" else 2)
        assert found["left"] == ["t", "t_sum"]
        for words, said in zip(
            ("is the table of a DistEmbedding", "no table 'gone'", "'t' of shape", "(rows, 1)", "dtype torch.int64"),
            found["said"],
            strict=True,
        ):
            assert words in said


def adagrad(data_store: Any, name: str, local_offset: Tensor, data: Tensor) -> None:
    """DGL's published handler, with the state that ``init_data`` made."""
    sums = data_store[f"{name}_sum"]
    sums[local_offset] += data.pow(2).mean(dim=1, keepdim=True).to(sums.dtype)
    data_store[name][local_offset] -= 0.1 * data / sums[local_offset].sqrt()


def handled(transport: Any) -> list[float]:
    emb = table("t")
    store, before = emb.kvstore, emb.weight[:]
    store.init_data("t_sum", (NUM, 1), torch.float64, emb.part_policy)
    store.register_push_handler("t", adagrad)
    transport.barrier()
    for _ in range(2):
        ids = torch.arange(NUM)[transport.rank :: transport.world_size]
        store.push("t", ids, torch.full((len(ids), DIM), 2.0, dtype=torch.float64))
    store.flush()
    store.barrier()
    moved = (before - store.pull("t", range(NUM))).unique().round(decimals=6).unique()
    store.barrier()
    return moved.tolist()


@pytest.mark.dist
def test_a_handler_finds_its_state_where_init_data_made_it() -> None:
    for moved in Cluster(2, 2, 2).run(handled):
        assert moved == pytest.approx([0.1 + 0.1 / 2**0.5], abs=1e-6)
    ge.init(mode="local")
    with pytest.raises(ge.ModeError, match="mode 'local' has no push handlers"):
        table("t").kvstore.register_push_handler("t", adagrad)
