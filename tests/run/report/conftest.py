"""A trained and judged run of two cliques, shared by the tests of its page."""

from __future__ import annotations

from itertools import combinations

import pytest

from graph_emb.run.pipeline import PipelineResult, pipeline

NASTY = "<em>0"
"""Id of a node that a page must not take for markup."""


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> PipelineResult:
    """DeepWalk on two cliques of 8 joined by an edge, with a label for each node."""
    folder = tmp_path_factory.mktemp("page")
    groups = [
        [NASTY, *(f"{group}{i}" for i in range(1, 8))] if group == "a" else [f"b{i}" for i in range(8)]
        for group in "ab"
    ]
    edges = [pair for group in groups for pair in combinations(group, 2)] + [("a1", "b1")]
    graph, labels = folder / "cliques.csv", folder / "labels.csv"
    graph.write_text("".join(f"{u},{v}\n" for u, v in edges))
    labels.write_text(
        "".join(f"{node},{'left' if at == 0 else 'right'}\n" for at, group in enumerate(groups) for node in group)
    )
    sizes = {"dim": 8, "num_walks": 5, "walk_length": 8, "threads": 1, "epochs": 4, "log_interval": 1e-9}
    data = {"name": str(graph), "labels": str(labels)}
    return pipeline("deepwalk", data, out=folder / "run", evaluate={"ratios": [0.5]}, **sizes)
