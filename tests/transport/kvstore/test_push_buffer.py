"""What a push sends: merged rows, server after server, in memory that holds several pushes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graph_emb.optim.adagrad import OccurrenceRowAdagrad
from graph_emb.optim.merge import Merge, merge
from graph_emb.optim.rule import Rule
from graph_emb.optim.sgd import SGD
from graph_emb.transport.base import Push
from graph_emb.transport.kvstore import shared
from graph_emb.transport.kvstore.push_buffer import Outbox, Place, at, cut, pack
from graph_emb.transport.routing import Layout

OWNERS = Layout([0, 4, 4, 9], [0, 1, 2], 3)
IDS = torch.tensor([8, 1, 8, 0, 5, 1, 8])


@pytest.fixture
def box() -> Outbox:
    made = Outbox(1 << 12)
    shared.forget_name(made.name)
    return made


def push(rule: Rule, how: Merge, dtype: torch.dtype) -> Push:
    grads = torch.arange(14, dtype=dtype).view(7, 2) / 3
    return Push("t", IDS, grads, rule, how)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("how", ["sum", "mean"])
def test_each_server_gets_its_rows_merged(box: Outbox, how: Merge, dtype: torch.dtype) -> None:
    def room(num_rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Place]:
        return box.memory, box.reserve(num_rows, width, dtype)

    sent = push(SGD(0.1), how, dtype)
    packed = pack(sent, OWNERS, dtype, room)
    assert packed.pieces == [(0, 0, 2), (2, 2, 4)]
    ids, grads = merge(sent.ids, sent.grads, how)
    order = torch.argsort(packed.ids)
    assert torch.equal(packed.ids[order], ids)
    assert torch.allclose(packed.grads[order], grads)
    assert sorted(packed.ids[:2].tolist()) == [0, 1]
    there, values = at(box.memory, packed.place)
    assert torch.equal(there, packed.ids)
    assert torch.equal(values, packed.grads)


def test_a_rule_that_wants_every_occurrence_gets_it(box: Outbox) -> None:
    def room(num_rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Place]:
        return box.memory, box.reserve(num_rows, width, dtype)

    packed = pack(push(OccurrenceRowAdagrad(0.1), "sum", torch.float32), OWNERS, torch.float32, room)
    assert sorted(packed.ids.tolist()) == sorted(IDS.tolist())
    assert packed.pieces == [(0, 0, 3), (2, 3, 7)]


def test_pushes_lie_one_after_the_other_until_the_outbox_is_full(box: Outbox) -> None:
    first = box.reserve(3, 5, torch.float32)
    second = box.reserve(3, 5, torch.float32)
    assert second.ids_at == 128  # 24 bytes of ids and 60 of gradients, each on lines of 64
    at(box.memory, first)[1].fill_(1.0)
    at(box.memory, second)[1].fill_(2.0)
    assert bool((at(box.memory, first)[1] == 1.0).all())
    assert box.fits(30, 25, torch.float32) is True
    assert box.fits(30, 30, torch.float32) is False
    box.clear()
    assert box.reserve(1, 1, torch.float32).ids_at == 0
    assert Outbox.size_for(1_000_000, 128, torch.float32) > 4 * 1_000_000 * 128 * 4


def test_servers_without_rows_are_left_out() -> None:
    assert cut([2, 0, 3]) == [(0, 0, 2), (2, 2, 5)]
