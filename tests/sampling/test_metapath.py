"""Metapaths as text."""

from __future__ import annotations

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError
from graph_emb.graph.typed import HeteroGraph
from graph_emb.sampling.metapath import Metapath, node_kinds, step_arcs


def arcs(*pairs: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    src, dst = np.array(pairs, np.int64).reshape(-1, 2).T
    return src, dst


def library() -> HeteroGraph:
    """Four authors, three papers, two venues; author 3 wrote nothing, paper 2 is in no venue."""
    return HeteroGraph(
        {"author": 4, "paper": 3, "venue": 2, "co-op": 1},
        {
            ("paper", "by", "author"): arcs((0, 0), (0, 1), (1, 1), (2, 2)),
            ("paper", "in", "venue"): arcs((0, 0), (1, 1)),
            ("paper", "cites", "paper"): arcs((1, 0)),
            ("author", "likes", "paper"): arcs((0, 1)),
            ("author", "edits", "venue"): arcs((0, 0)),
            ("author", "chairs", "venue"): arcs((1, 1)),
            ("co-op", "prints", "paper"): arcs((0, 0)),
        },
        edge_data={("paper", "by", "author"): {"weight": np.array([1.0, 3.0, 1.0, 1.0])}},
    )


def test_a_step_takes_the_only_relation_against_its_edges_where_it_must() -> None:
    path = Metapath.parse("venue-paper-venue", library())
    assert [(step.edge_type[1], step.forward) for step in path.steps] == [("in", False), ("in", True)]
    assert str(path) == "venue-[^in]-paper-[in]-venue"
    assert Metapath.parse(str(path), library()) == path


def test_a_relation_along_the_step_comes_before_one_against_it() -> None:
    path = Metapath.parse("author-paper-author", library())
    assert [(step.edge_type[1], step.forward) for step in path.steps] == [("likes", True), ("by", True)]
    named = Metapath.parse("author-[by]-paper-[^likes]-author", library())
    assert [(step.edge_type[1], step.forward) for step in named.steps] == [("by", False), ("likes", False)]


def test_a_relation_within_a_type_goes_forward_unless_told() -> None:
    assert Metapath.parse("paper-paper", library()).steps[0].forward
    assert Metapath.parse("paper-[cites]-paper", library()).steps[0].forward
    assert not Metapath.parse("paper-[^cites]-paper", library()).steps[0].forward


def test_a_type_may_have_a_hyphen() -> None:
    assert Metapath.parse("co-op-paper-co-op", library()).types == ("co-op", "paper", "co-op")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("author-papr-author", r"'papr'; known: .*author.*paper.*venue.*did you mean 'paper'"),
        ("", "unknown node type"),
        ("author-", "unknown node type"),
        ("author", "one node type"),
        ("author-venue-author", r"several relations .*author-\[edits\]-venue or author-\[chairs\]-venue"),
        ("author-co-op", "no relation joins author and co-op; author is in: .*author:edits:venue"),
        ("author-[cites]-paper", "no relation 'cites' joins author and paper"),
        ("author-[^likes]-paper", "no relation '\\^likes' joins"),
    ],
)
def test_a_bad_path_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Metapath.parse(text, library())


def test_the_arcs_of_a_step_are_numbers_among_all_nodes() -> None:
    there, back = Metapath.parse("paper-[by]-author-[by]-paper", library()).steps
    src, dst, weights = step_arcs(library(), there)
    assert (src.tolist(), dst.tolist()) == ([4, 4, 5, 6], [0, 1, 1, 2])
    assert weights is not None
    assert weights.tolist() == [1, 3, 1, 1]
    assert [part.tolist() for part in step_arcs(library(), back)[:2]] == [dst.tolist(), src.tolist()]
    assert node_kinds(library()).tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 3]
