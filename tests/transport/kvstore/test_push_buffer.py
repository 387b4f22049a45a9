"""Memory in which pushes lie one after the other."""

from __future__ import annotations

import torch

from graph_emb.transport.kvstore import shared
from graph_emb.transport.kvstore.push_buffer import PushBuffer, at


def test_pushes_lie_one_after_the_other_until_the_buffer_is_full() -> None:
    buffer = PushBuffer(1 << 12)
    shared.forget_name(buffer.name)
    first = buffer.reserve(3, 5, torch.float32)
    second = buffer.reserve(3, 5, torch.float32)
    assert second.ids_at == 128  # 24 bytes of ids and 60 of gradients, each on lines of 64
    at(buffer.memory, first)[1].fill_(1.0)
    at(buffer.memory, second)[1].fill_(2.0)
    assert bool((at(buffer.memory, first)[1] == 1.0).all())
    assert buffer.fits(30, 25, torch.float32) is True
    assert buffer.fits(30, 30, torch.float32) is False
    buffer.used = 0
    assert buffer.reserve(1, 1, torch.float32).ids_at == 0
    assert PushBuffer.size_for(1_000_000, 128, torch.float32) > 4 * 1_000_000 * 128 * 4


def test_lent_memory_holds_the_ids_and_is_where_the_last_place_says() -> None:
    buffer = PushBuffer(1 << 12)
    shared.forget_name(buffer.name)
    buffer.reserve(2, 1, torch.float64)
    ids, grads = buffer.lend(torch.tensor([7, 3]), 2, torch.float64)
    grads.fill_(0.5)
    there, values = at(buffer.memory, buffer.last)
    assert ids.tolist() == there.tolist() == [7, 3]
    assert values.tolist() == [[0.5, 0.5], [0.5, 0.5]]
