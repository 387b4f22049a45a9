"""Every ``Example`` of a public docstring runs, and every public object that should have one has it."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import graph_emb as ge

TABLES = [ge.DistEmbedding]
OPTIMIZERS = [
    ge.SparseSGD,
    ge.SparseAdagrad,
    ge.SparseRowAdagrad,
    ge.SparseAdam,
    ge.SparseRowAdam,
    ge.SparseAdamW,
]
FUNCTIONS = [ge.in_step]
PUBLIC: list[Any] = [*TABLES, *OPTIMIZERS, *FUNCTIONS]
"""Objects whose docstrings carry a runnable ``Example``; each finds ``ge`` and ``torch`` imported."""


@pytest.fixture(autouse=True)
def _own_mode() -> Iterator[None]:
    ge.shutdown()
    yield
    ge.shutdown()


def failures(documented: Any) -> tuple[int, str]:
    """How many examples a docstring holds, and what went wrong with them."""
    said: list[str] = []
    names = {"ge": ge, "torch": torch}
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    test = parser.get_doctest(documented.__doc__ or "", names, documented.__name__, None, None)
    runner.run(test, out=said.append)
    return len(test.examples), "".join(said)


@pytest.mark.parametrize("documented", PUBLIC, ids=lambda documented: documented.__name__)
def test_the_example_runs(documented: Any) -> None:
    count, said = failures(documented)
    assert count > 0, f"{documented.__name__} has no Example"
    assert "Example:" in documented.__doc__
    assert not said, said


def test_a_wrong_example_fails() -> None:
    def documented() -> None:
        """Example:
        >>> 1 + 1
        3
        """

    assert failures(documented)[0] == 1
    assert "Expected:" in failures(documented)[1]


def test_every_public_optimizer_is_listed() -> None:
    named = {name for name in ge.__all__ if name.startswith("Sparse") and name != "SparseOptimizer"}
    assert named == {optimizer.__name__ for optimizer in OPTIMIZERS}
