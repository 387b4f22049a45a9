"""Each step is announced so many steps before it comes, and comes in its place."""

from __future__ import annotations

import pytest

from graph_emb.models.announcing import announced


@pytest.mark.parametrize("num", [0, 1, 3, 7])
@pytest.mark.parametrize("ahead", [1, 4])
def test_a_step_comes_when_those_after_it_have_been_announced(num: int, ahead: int) -> None:
    heard: list[int] = []
    came = []
    for step in announced(iter(range(num)), heard.append, ahead):
        assert heard == [*range(min(num, step + ahead + 1))]
        came.append(step)
    assert came == heard == [*range(num)]
