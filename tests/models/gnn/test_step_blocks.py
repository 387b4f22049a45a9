"""What blocks find is added so that no layout tells."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import graph_emb as ge
from graph_emb.models.gnn.step_blocks import StepBlocks
from tests.ranks import Ranks

BIG = 2.0**60


def test_a_total_is_rounded_once_whatever_its_order() -> None:
    for values in ([BIG, 1.0, -BIG, 1.0], [1.0, BIG, 1.0, -BIG]):
        assert StepBlocks(4, None, 0).total(values) == 2.0


def of_a_rank() -> tuple[float, list[float]]:
    transport = ge.init(mode="collective")
    try:
        blocks = StepBlocks(4, transport.group, 0)
        network = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        for block in blocks.own:
            with blocks.computing(block, (1, 0), [network]):
                network.weight.grad = torch.tensor([[[1.0, BIG, -BIG, 0.5][block]]], dtype=torch.float64)
        blocks.sum_gradients([network])
        assert network.weight.grad is not None
        return blocks.total([BIG, 1.0] if transport.rank == 0 else [-BIG, 1.0]), network.weight.grad.flatten().tolist()
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_ranks_add_gradients_in_the_order_of_blocks_and_losses_exactly(ranks: Ranks) -> None:
    """In order ``((1 + B) - B) + .5`` is .5, since ``1 + B`` is B."""
    assert ranks.run(of_a_rank, 2) == [(2.0, [0.5])] * 2
