"""What a server could not do: raised at the trainer once, done nowhere twice, and nothing of it left behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.transport.kvstore import outbox
from tests.transport.kvstore.cluster import Cluster

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
    outbox.SMALLEST = 1 << 12
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
    """The second table needed room in the outbox: the answer of the first ended the step in between."""
    ((said, rows),) = Cluster(1, 1, 2, staleness=100).run(fail_within_a_step)
    assert "failed a push of trainer 0: ValueError: gradient too large" in said
    assert rows == [-1.0, -1.0]
