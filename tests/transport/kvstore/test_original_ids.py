"""Original ids at the servers of a machine, each of which has those of its own rows alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
from tests.transport.kvstore.cluster import Cluster

IDS = np.random.default_rng(0).permutation(12)


def rounded(transport: Any) -> Tensor:
    emb = ge.DistEmbedding(12, 16, "t", ge.initializers.Uniform(-1, 1, seed=1), dtype=torch.bfloat16, original_ids=IDS)
    opt = ge.SparseSGD([emb], lr=0.01, stochastic_rounding=True)
    for _ in range(4):
        emb(torch.arange(12)).sum().backward()
        opt.step()
    emb.transport.flush()
    return emb.weight[:]


@pytest.mark.dist
def test_the_second_server_of_a_machine_rounds_by_the_ids_of_its_rows() -> None:
    """It looked its rows up as if its map began at the machine's first row: other ids, or an IndexError."""
    ge.shutdown()
    expected = rounded(None)
    ge.shutdown()
    assert torch.equal(Cluster(1, 1, 2).run(rounded)[0], expected)
