"""Push handlers that are rules: the sparse optimizers' steps, in our servers, in DGL's own, and without servers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.compat import dgl as compat_dgl
from graph_emb.core.errors import ConfigError, ShapeError
from tests import dgl_servers
from tests.optim.oracles import batches
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode", "idle_servers")

NUM, DIM = 12, 5
BOOK = ge.RangeBook([0, 5, NUM])
FIRST = ge.initializers.Uniform(-1, 1, seed=3)
KINDS: dict[str, tuple[Any, Any]] = {
    "adagrad": (lambda: ge.push_handlers.Adagrad(lr=0.1), lambda t: ge.SparseAdagrad(t, lr=0.1)),
    "started": (
        lambda: ge.push_handlers.Adagrad(0.1, 1e-3, initial_accumulator_value=0.25, clip_row_norm=0.5),
        lambda t: ge.SparseAdagrad(t, lr=0.1, eps=1e-3, initial_accumulator_value=0.25, clip_row_norm=0.5),
    ),
    "row_adagrad": (
        lambda: ge.push_handlers.RowAdagrad(lr=0.1, merge="mean", weight_decay=0.1),
        lambda t: ge.SparseRowAdagrad(t, lr=0.1, merge="mean", weight_decay=0.1),
    ),
    "adam": (
        lambda: ge.push_handlers.Adam(lr=0.1, betas=(0.8, 0.9), eps=1e-3),
        lambda t: ge.SparseAdam(t, lr=0.1, betas=(0.8, 0.9), eps=1e-3, compat="fbgemm", bias_correction="row"),
    ),
    "occurrences": (
        lambda: ge.push_handlers.OccurrenceRowAdagrad(lr=0.1),
        lambda t: ge.SparseAdagrad(t, lr=0.1, compat="dgl-0.5"),
    ),
}


def table(dtype: torch.dtype = torch.float64) -> ge.DistEmbedding:
    return ge.DistEmbedding(NUM, DIM, "t", FIRST, BOOK, dtype=dtype)


def steps() -> list[tuple[Tensor, Tensor]]:
    """Batches of distinct and repeated ids, an empty one among them."""
    return [(torch.from_numpy(ids), torch.from_numpy(grads)) for ids, grads in batches(NUM, DIM, steps=6)]


def trained(kind: str, dtype: torch.dtype = torch.float64) -> Tensor:
    """What the sparse optimizer makes of the same gradients in one process."""
    ge.init(mode="local")
    emb = table(dtype)
    opt, before = KINDS[kind][1]([emb]), emb.weight[:]
    for ids, grads in steps():
        if len(ids):
            (emb(ids) * grads.to(dtype)).sum().backward()
            opt.step()
    rows = emb.weight[:]
    assert (rows - before).abs().max() > 0.1
    ge.shutdown()
    return rows


def pushed(transport: Any, kind: str, dtype: torch.dtype) -> Tensor:
    """The rows after plain pushes of gradients, each by one of the trainers."""
    emb, handler = table(dtype), KINDS[kind][0]()
    store = emb.kvstore
    handler.init_data(store, "t")
    store.register_push_handler("t", handler)
    transport.barrier()
    for step, (ids, grads) in enumerate(steps()):
        if step % transport.world_size == transport.rank:
            store.push("t", ids, grads.to(dtype))
        store.flush()
        store.barrier()
    rows = emb.weight[:]
    transport.barrier()
    return rows


@pytest.mark.dist
@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_push_is_a_step_of_the_rule_at_the_owner(kind: str) -> None:
    expected = trained(kind)
    for rows in Cluster(2, 2, 2).run(pushed, kind, torch.float64):
        assert torch.equal(rows, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_without_servers_too(kind: str, dtype: torch.dtype) -> None:
    expected = trained(kind, dtype)
    torch.testing.assert_close(pushed(ge.init(mode="kvstore"), kind, dtype), expected, rtol=1e-6, atol=1e-7)


def test_an_optimizers_gradients_go_through_it() -> None:
    """Its rule in place of the optimizer's, whose rate of 0 would move nothing."""
    expected = trained("adagrad")
    ge.init(mode="kvstore")
    emb, handler = table(), KINDS["adagrad"][0]()
    handler.init_data(emb.kvstore, "t")
    emb.kvstore.register_push_handler("t", handler)
    opt = ge.SparseSGD([emb], lr=0.0)
    for ids, grads in steps():
        if len(ids):
            (emb(ids) * grads).sum().backward()
            opt.step()
    torch.testing.assert_close(emb.weight[:], expected, rtol=1e-12, atol=1e-14)


def published(data_store: Any, name: str, local_offset: Tensor, data: Tensor) -> None:
    """The handler of DGL 0.5 in its order: squares of all occurrences, then all of their steps."""
    sums = data_store[f"{name}_sum"]
    sums.index_add_(0, local_offset, data.pow(2).mean(dim=1, keepdim=True))
    data_store[name].index_add_(0, local_offset, -0.1 * data / (sums[local_offset].sqrt() + 1e-10))


def with_published(transport: Any, merge: Any) -> Tensor:
    emb = ge.DistEmbedding(4, 3, "t", ge.initializers.FromArray(torch.ones(4, 3)))
    emb.kvstore.init_data("t_sum", (4, 1), torch.float32, emb.part_policy)
    emb.kvstore.register_push_handler("t", published, merge=merge)
    opt = ge.SparseSGD([emb], lr=1.0)
    (emb(torch.tensor([1, 1])) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    opt.step()
    transport.flush()
    return emb.weight[torch.tensor([1])]


ONE_BY_ONE, AT_ONCE = [0.93453, 0.86907, 0.80360], [0.95371, 0.90742, 0.86113]


@pytest.mark.parametrize(("merge", "expected"), [("none", ONE_BY_ONE), (None, AT_ONCE)])
def test_a_handler_may_ask_for_every_occurrence(merge: Any, expected: list[float]) -> None:
    alone = with_published(ge.init(mode="kvstore"), merge)
    np.testing.assert_allclose(alone, [expected], atol=1e-5)


@pytest.mark.dist
def test_servers_hand_out_every_occurrence() -> None:
    (found,) = Cluster(1, 2, 1).run(with_published, "none")
    np.testing.assert_allclose(found, [ONE_BY_ONE], atol=1e-5)


def without_data(transport: Any) -> str:
    emb = table()
    emb.kvstore.register_push_handler("t", ge.push_handlers.Adagrad())
    emb.kvstore.push("t", torch.tensor([1]), torch.ones(1, DIM, dtype=torch.float64))
    with pytest.raises(ConfigError) as caught:
        transport.flush()
    return str(caught.value)


@pytest.mark.dist
def test_a_handler_without_its_data_is_told_to_the_trainer() -> None:
    (said,) = Cluster(1).run(without_data)
    assert "its push handler finds no data 't_sum'; call handler.init_data() first" in said


def test_what_cannot_work_is_refused() -> None:
    handlers = ge.push_handlers
    with pytest.raises(ConfigError, match=r"RowAdagrad counts the steps of a table \(table_step\)"):
        handlers.RowAdagrad(count_rows=True)
    with pytest.raises(ConfigError, match="counts the steps of a table"):
        handlers.Adagrad(weight_decay=0.1, weight_decay_mode="lazy")
    with pytest.raises(ConfigError, match="push the negative gradients"):
        handlers.Adam(maximize=True)
    with pytest.raises(ConfigError, match="unknown Adagrad option 'weight_deca'"):
        handlers.Adagrad(weight_deca=0.1)
    with pytest.raises(ConfigError, match="merge"):
        handlers.Adagrad(merge="max")
    emb = ge.DistEmbedding(NUM, DIM, "t", FIRST)
    ge.shutdown()
    ge.init(mode="kvstore")
    emb = table()
    with pytest.raises(ConfigError, match="merge of a push handler"):
        emb.kvstore.register_push_handler("t", published, merge="sum")
    store = {"t": torch.zeros(3, 2), "t_sum": torch.zeros(3, 3)}
    with pytest.raises(ShapeError, match=r"'t_sum' has shape \(3, 3\); the push handler's rule needs \(3, 2\)"):
        handlers.Adagrad()(store, "t", torch.tensor([0]), torch.ones(1, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_they_pickle_and_compare_by_value(kind: str) -> None:
    """DGL's client sends them, and refuses a second one that is not equal."""
    one, other = KINDS[kind][0](), KINDS[kind][0]()
    assert one == other == pickle.loads(pickle.dumps(one))
    assert one != ge.push_handlers.Adagrad(lr=0.125)


WITH_DGL_ALONE = """
import os, sys
import dgl
import torch
before = set(sys.modules)
dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])  # a server never returns
assert "graph_emb" not in before
graph = dgl.distributed.DistGraph("circle")
store = dgl.distributed.kvstore.get_kvstore()
policy = graph.get_node_partition_policy("_N")
first = torch.linspace(-1, 1, 24).view(12, 2)

import graph_emb as ge
store.init_data("t", (12, 2), torch.float32, policy, ge.push_handlers.Filled(0.0))
store.push("t", torch.arange(12), first)
handler = ge.push_handlers.RowAdagrad(lr=0.1, merge="sum")
handler.init_data(store, "t")
store.barrier()
store.register_push_handler("t", handler)
store.barrier()
ids, grads = torch.tensor([1, 7, 1, 11]), torch.arange(8.0).view(4, 2) + 1
for _ in range(3):
    store.push("t", ids, grads)
store.barrier()

ge.init(mode="local")
emb = ge.DistEmbedding(12, 2, "t", ge.initializers.FromArray(first))
opt = ge.SparseRowAdagrad([emb], lr=0.1)
for _ in range(3):
    (emb(ids) * grads).sum().backward()
    opt.step()
found = store.pull("t", torch.arange(12))
assert torch.equal(found, emb.weight[:]), (found, emb.weight[:])
assert not torch.equal(found[1], first[1])
print("EQUAL")
"""


@pytest.mark.dist
@pytest.mark.usefixtures("one_dgl_graph")
def test_dgls_own_server_runs_them(tmp_path: Path) -> None:
    """It has never heard of this package: the handler brings its module along.

    DGL's servers put a graph into shared memory by its name alone: no other file of tests has a graph of this name.
    """
    dgl = compat_dgl.load()
    nodes = torch.arange(12)
    dgl.distributed.partition_graph(
        dgl.graph((nodes, (nodes + 1) % 12)), "circle", 1, str(tmp_path), part_method="random"
    )
    said = dgl_servers.run(["-c", WITH_DGL_ALONE], tmp_path, str(tmp_path / "circle.json"), servers=1, trainers=1)
    assert "EQUAL" in said[0], "\n".join(said)
