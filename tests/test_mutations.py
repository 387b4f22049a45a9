"""The mutants of ``tests/mutations.py``, which takes too long to run here, still name text of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

import graph_emb
from tests.mutations import MUTANTS


@pytest.mark.parametrize(("file", "text", "replacement"), MUTANTS)
def test_a_mutant_names_text_that_is_there(file: str, text: str, replacement: str) -> None:
    assert graph_emb.__file__ is not None
    assert text in (Path(graph_emb.__file__).parent / file).read_text(encoding="utf-8")
    assert replacement != text
