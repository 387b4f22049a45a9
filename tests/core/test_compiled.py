"""The generator below walks, initial rows, negatives and the ties of partitioning."""

from __future__ import annotations

import numpy as np
from numba import njit

from graph_emb.core.compiled import GOLDEN, UNIT, mix64, unit, unit_draw

# The first outputs of the authors' generator, started at 0.
PUBLISHED = np.array([0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F], np.uint64)


def test_it_gives_the_published_numbers_one_by_one_and_as_an_array() -> None:
    states = np.arange(1, 4, dtype=np.uint64) * GOLDEN
    assert [int(mix64(state)) for state in states] == PUBLISHED.tolist()
    assert np.array_equal(mix64(states), PUBLISHED)


def test_a_unit_draw_is_the_upper_53_bits() -> None:
    assert unit(PUBLISHED[0]) == (int(PUBLISHED[0]) >> 11) * UNIT
    assert unit(np.uint64(2**64 - 1)) == 1 - UNIT
    assert unit(np.uint64(2**11 - 1)) == 0


def test_a_draw_depends_on_its_stream_and_number_alone() -> None:
    @njit
    def draws(key, out):
        for number in range(len(out)):
            out[number] = unit_draw(key, number)

    got = np.empty(4)
    draws(np.uint64(0), got)
    assert got.tolist() == [0.0, *(unit(bits) for bits in PUBLISHED)]
    assert unit_draw(GOLDEN, 2) == unit(PUBLISHED[2])
