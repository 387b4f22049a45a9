from __future__ import annotations

import pytest
import torch

from graph_emb.models.kge.complex import ComplEx
from graph_emb.models.kge.penalties import power_sums
from graph_emb.models.kge.rotate import RotatE
from graph_emb.models.kge.transe import TransE

ROW = torch.tensor([[3.0, 4.0]])


def test_n3_counts_complex_numbers_by_their_modulus() -> None:
    assert float(power_sums(ComplEx(2), [ROW, ROW, ROW], 3)) == pytest.approx(3 * 5.0**3)


def test_n3_counts_real_numbers_one_by_one() -> None:
    assert float(power_sums(TransE(2), [ROW, -ROW, ROW], 3)) == pytest.approx(3 * (27 + 64))


def test_l2_is_the_sum_of_squares() -> None:
    assert float(power_sums(ComplEx(2), [ROW, ROW, ROW], 2)) == pytest.approx(75.0)


def test_phases_of_rotate_are_real_numbers() -> None:
    assert float(power_sums(RotatE(2), [ROW, torch.tensor([[-2.0]]), ROW], 3)) == pytest.approx(2 * 125 + 8)
