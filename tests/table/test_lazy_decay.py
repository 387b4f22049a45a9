"""Reads of rows that lack decay, compiled and by torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graph_emb.table.lazy_decay import decay_, gather_decayed, settle_factors

LACKS = torch.tensor([0.0, 1e-9, 0.01, 1 / 64, 0.0157, 0.7, 3.0, 40.0, -2.0], dtype=torch.float64)
"""What each row lacks, on both sides of the limit of the short series; the last one is ahead of the table."""
WANTED = torch.exp(-LACKS.clamp(min=0.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_read_makes_up_for_the_decay_that_a_row_lacks(dtype: torch.dtype, frozen: bool) -> None:
    rows = torch.arange(9).repeat(60)  # enough for several threads
    weight, decay = torch.randn(9, 5).to(dtype), 5.0
    held = torch.arange(9) % 3 == 1 if frozen else None
    out = torch.empty(len(rows), 5, dtype=dtype)
    gather_decayed(weight, decay - LACKS, decay, held, rows, out)
    factor = WANTED.clone()
    if held is not None:
        factor[held] = 1.0
    wanted = (weight.double() * factor.unsqueeze(1))[rows]
    torch.testing.assert_close(out.double(), wanted, rtol=4e-3 if dtype is torch.bfloat16 else 2e-7, atol=0)
    values = weight[rows]
    decay_(values, (decay - LACKS)[rows], decay, None if held is None else held[rows])
    assert torch.equal(values, out)  # rows that are read from a file, and those in memory


def test_an_update_settles_what_a_read_makes_up_for() -> None:
    decayed, rows = (5.0 - LACKS).numpy().copy(), np.array([8, 1, 5, 4])
    factor = np.empty(4, np.float32)
    settle_factors(decayed, 5.0, rows, factor)
    np.testing.assert_allclose(factor, WANTED.numpy()[rows], rtol=1e-7)
    assert decayed[rows].tolist() == [7.0, 5.0, 5.0, 5.0]
    assert decayed[[0, 2, 3, 6, 7]].tolist() == (5.0 - LACKS).numpy()[[0, 2, 3, 6, 7]].tolist()
