"""Networks that every rank holds: gradients are summed, and copies begin and stay equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from graph_emb.transport.data_parallel import DataParallel
from graph_emb.transport.process_group import ProcessGroup
from tests.ranks import Ranks


def gradients(steps: int) -> Any:
    group = ProcessGroup(timeout=60)
    try:
        torch.manual_seed(group.rank)  # other first values on every rank
        network = DataParallel(nn.Linear(2, 1, bias=False), group)
        first = network.module.weight.detach().clone()
        inputs = torch.full((1, 2), float(group.rank + 1))
        for _ in range(steps - 1):
            with network.apart():
                network(inputs).sum().backward()
        network(inputs).sum().backward()
        return first, network.module.weight.grad
    finally:
        group.close()


@pytest.mark.dist
@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_are_summed_over_ranks_and_chunks(ranks: Ranks, steps: int) -> None:
    (first, mine), (other, theirs) = ranks.run(gradients, 2, steps)
    assert torch.equal(first, other), "the first rank's values are everybody's"
    assert mine.tolist() == [[3.0 * steps, 3.0 * steps]]
    assert torch.equal(mine, theirs)


def test_alone_it_is_the_network_itself() -> None:
    network = DataParallel(nn.Linear(2, 1), None)
    inputs = torch.ones(1, 2)
    assert torch.equal(network(inputs), network.module(inputs))
    with network.apart():
        network(inputs).sum().backward()
    assert network.module.weight.grad is not None
