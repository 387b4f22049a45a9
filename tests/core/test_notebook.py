"""What notebooks show of objects: small tables, escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

import graph_emb as ge
import partition
from graph_emb.core.notebook import MOST, card

pytestmark = pytest.mark.usefixtures("fresh_mode")

QUICK: dict[str, Any] = {"dim": 4, "num_walks": 1, "walk_length": 5, "threads": 1}
NASTY = "<script>alert('x')</script>"


def text_of(shown: str) -> str:
    """The text of a page, and that its tags close."""
    words: list[str] = []
    parser = HTMLParser()
    parser.handle_data = words.append  # type: ignore[method-assign]
    parser.feed(shown)
    for tag in ("table", "tr", "td", "th"):
        assert len(re.findall(rf"<{tag}\b", shown)) == shown.count(f"</{tag}>")
    return " | ".join(words)


def test_a_card_escapes_and_cuts() -> None:
    shown = card(NASTY, {"a<b": "x&y", "none": None, "count": 12345, "flag": True, "long": "w" * 1000})
    assert "<script" not in shown
    assert text_of(shown) == f"{NASTY} | a<b | x&y | count | 12,345 | flag | True | long | {'w' * MOST} ..."


def objects(folder: Path) -> dict[str, tuple[Any, str]]:
    """Each main object, and a piece of what its card says."""
    table = ge.DistEmbedding(1000, 4, name="<script>")
    graph = nx.karate_club_graph()
    fitted = ge.DeepWalk(**QUICK).fit(graph)
    parts = partition.build(ge.read_graph(graph), num_parts=2, out=folder / "parts", method="random")
    dataset = ge.load_dataset("digits")
    return {
        "table": (table, "1,000 x 4"),
        "growing": (ge.DistEmbedding(ge.growing(max_rows=50), 4), "50 x 4"),
        "composed": (ge.ComposedEmbedding(100, 4, kind="hash"), "kind | hash"),
        "optimizer": (ge.SparseAdagrad([table], lr=0.25), "lr | 0.25"),
        "partition": (parts, "parts | 2"),
        "result": (ge.pipeline("deepwalk", "digits", **QUICK, evaluate=False), "status | finished"),
        "unfitted": (ge.DeepWalk(**QUICK), "DeepWalk, not fitted | dim | 4 | num_walks | 1"),
        "fitted": (fitted, "rows of node | 34 x 4"),
        "neighbours": (ge.NearestNeighbors(fitted.embedding_), "metric | cosine"),
        "dataset": (dataset, "name | 'digits'"),
        "graph": (dataset.graph, "{_N: 1797}"),
    }


def test_main_objects_are_short_in_consoles_and_small_in_notebooks(tmp_path: Path) -> None:
    for name, (shown, piece) in objects(tmp_path).items():
        html = shown._repr_html_()
        assert len(html) < 4000, name
        assert piece in text_of(html), name
        assert "<script" not in html, name
        assert len(repr(shown)) < 600, name
        assert "object at 0x" not in repr(shown), name


def test_scores_of_a_run_are_shown() -> None:
    result = ge.pipeline("deepwalk", "digits", **QUICK, evaluate={"ratios": [0.5], "shuffles": 1})
    score = result.metrics["evaluation"]["node_classification"]["ratios"][0]["micro_mean"]
    assert f"micro-F1 at 50% | {score:.4f}" in text_of(result._repr_html_())
    assert f"micro-F1 at 50%={score:.4f}" in repr(result)


def test_notebooks_get_the_card_of_an_estimator() -> None:
    """IPython asks for a bundle first, which was scikit-learn's of 46 KB."""
    model = ge.TransE(dim=8)
    assert model._repr_mimebundle_() == {"text/plain": "TransE(dim=8)", "text/html": model._repr_html_()}
    assert np.char.count(model._repr_html_(), "<tr>") == 1
