"""What a server could not do: raised at the trainer once, done nowhere twice, and nothing of it left behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from graph_emb.transport.kvstore import shared
from tests.transport.kvstore.cluster import Cluster, shared_memory_is_clean

pytestmark = pytest.mark.dist


def picky(data: Any, name: str, ids: Tensor, grads: Tensor) -> None:
    """SGD with a rate of 1 that refuses large gradients."""
    if len(ids) and float(grads.abs().max()) > 50:
        raise ValueError("gradient too large")
    data[name][ids] -= grads


def go_on_after_errors(transport: Any) -> tuple[list[str], float]:
    emb = ge.DistEmbedding(4, 1, name="e")
    opt = ge.SparseSGD([emb], lr=1.0)
    transport.register_push_handler("e", picky)
    said = []
    for step in range(20):
        (emb(torch.tensor([0])) * (100.0 if step == 3 else 1.0)).sum().backward()
        try:
            opt.step()
        except ge.PeerError as error:
            said.append(f"step {step}: {error}")
    transport.flush()
    return said, float(emb.weight[0])


def test_a_step_that_hears_of_an_earlier_failure_is_applied_once() -> None:
    """``step()`` flushed and raised after it had sent its own gradients, which the next step sent again."""
    ((said, row),) = Cluster(1, staleness=16).run(go_on_after_errors)
    assert len(said) == 1
    assert said[0].startswith("step 15: server 0 (127.0.0.1:")
    assert said[0].endswith("failed a push of trainer 0: ValueError: gradient too large")
    assert row == -19.0


def fail_within_a_step(transport: Any) -> tuple[str, list[float]]:
    shared.SMALLEST = 1 << 12
    first, second = ge.DistEmbedding(100, 4, name="first"), ge.DistEmbedding(1000, 4, name="second")
    opt = ge.SparseSGD([first, second], lr=1.0)
    transport.register_push_handler("first", picky)
    grads = torch.ones(100, 1)
    grads[-1] = 100.0  # refused by the second server; the first one applies its half
    ((first(torch.arange(100)) * grads).sum() + second(torch.arange(1000)).sum()).backward()
    with pytest.raises(ge.PeerError) as caught:
        opt.step()
    opt.step()
    transport.flush()
    return str(caught.value), [float(rows[0, 0]) for rows in (first.weight[:], second.weight[:])]


def test_a_failure_heard_within_a_step_keeps_no_table_of_it_back() -> None:
    """The second table needed room in the push buffer: the answer of the first ended the step in between."""
    ((said, rows),) = Cluster(1, 1, 2, staleness=100).run(fail_within_a_step)
    assert "failed a push of trainer 0: ValueError: gradient too large" in said
    assert rows == [-1.0, -1.0]


def without_room(data: Any, name: str, ids: Tensor, grads: Tensor) -> None:
    """Let one of the servers find no room for the second piece of state that it is asked for."""
    if data[name].shape[0] != 60:
        return
    found = iter([None, ConfigError("no room")])
    reserve = shared._reserve

    def room(name: str, num_bytes: int, what: str) -> None:
        error = next(found, None)
        if error is not None:
            shared._reserve = reserve
            raise error
        reserve(name, num_bytes, what)

    shared._reserve = room


def attach_without_room(transport: Any) -> tuple[str, float]:
    emb = ge.DistEmbedding(100, 4, name="e", part_policy=ge.RangeBook([0, 40, 100]))
    transport.register_push_handler("e", without_room)
    transport.push_data("e", torch.tensor([0, 99]), torch.zeros(2, 4))
    transport.register_push_handler("e", None)
    with pytest.raises(ge.ConfigError) as caught:
        ge.SparseAdam([emb], lr=0.1)
    opt = ge.SparseRowAdagrad([emb], lr=1.0)
    emb(torch.arange(100)).sum().backward()
    opt.step()
    transport.flush()
    return str(caught.value), emb.weight[:].sum().item()


def test_an_attach_that_failed_at_one_server_keeps_no_other_out() -> None:
    """The servers that could make the state kept it: every other rule then kept other state than theirs."""
    with shared_memory_is_clean():
        ((said, total),) = Cluster(1, 2).run(attach_without_room)
    assert "server 1 (127.0.0.1:" in said
    assert "no room" in said
    assert total == -400.0


def shut_down_after_a_failure(transport: Any) -> str:
    emb = ge.DistEmbedding(4, 1, name="e")
    opt = ge.SparseSGD([emb], lr=1.0)
    transport.register_push_handler("e", picky)
    (emb(torch.tensor([0])) * 100.0).sum().backward()
    opt.step()
    with pytest.raises(ge.PeerError, match="gradient too large"):
        ge.shutdown()
    return ge.init(mode="local").mode


def test_a_shutdown_that_tells_of_a_failure_has_ended_the_mode() -> None:
    """The mode stayed the closed one: neither init() nor a new table was possible."""
    assert Cluster(1).run(shut_down_after_a_failure) == ["local"]
