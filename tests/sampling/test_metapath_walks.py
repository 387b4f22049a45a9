"""MetapathSampler: walks obey the path, end where it cannot go on, and are the same for any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.partition_book import RankRanges
from graph_emb.graph.typed import HeteroGraph
from graph_emb.sampling.metapath_walks import Metapath, MetapathGraph, MetapathSampler, node_kinds, step_arcs
from graph_emb.transport.process_group import ProcessGroup
from tests.ranks import Ranks

TEXT = "author-[by]-paper-venue-paper-[by]-author"


def states(text: str, graph: HeteroGraph, bounds: list[int] | None = None, group: ProcessGroup | None = None):
    path = Metapath.parse(text, graph)
    kinds = [graph.ntypes.index(ntype) for ntype in path.types]
    bounds = bounds or [0, graph.total_nodes]
    places = RankRanges(bounds, range(len(bounds) - 1), len(bounds) - 1)
    rank = 0 if group is None else group.rank
    low, high = places.owned(rank)
    steps = []
    for src, dst, weights in (step_arcs(graph, step) for step in path.steps):
        mine = (dst >= low) & (dst < high)  # as parts hold them
        steps.append((src[mine], dst[mine], None if weights is None else weights[mine]))
    return MetapathGraph.build(kinds, node_kinds(graph), steps, places, rank, group)


def dense(seed: int = 0) -> HeteroGraph:
    rng = np.random.default_rng(seed)
    return HeteroGraph(
        {"author": 30, "paper": 40, "venue": 5},
        {
            ("paper", "by", "author"): (rng.integers(0, 40, 150), rng.integers(0, 30, 150)),
            ("paper", "in", "venue"): (np.arange(40), rng.integers(0, 5, 40)),
        },
    )


def walks_of(sampler: MetapathSampler, size: int = 8192, threads: int = 1) -> np.ndarray:
    return np.concatenate([w for w, _ in sampler.numbered_batches(size, num_threads=threads)])


def test_walks_obey_the_types_and_follow_arcs_of_each_step() -> None:
    graph = dense()
    walks = walks_of(MetapathSampler(states("author-paper-venue-paper-author", graph), num_walks=4, walk_length=11))
    assert walks.shape == (120, 11)
    assert sorted(walks[:, 0]) == sorted(list(range(30)) * 4)
    wanted = np.resize([0, 1, 2, 1], 11)
    kinds = np.append(node_kinds(graph), -1)[walks]
    assert ((kinds == wanted) | (walks < 0)).all()
    ends = np.concatenate(
        [np.stack(step_arcs(graph, s)[:2], 1) for s in Metapath.parse("author-paper-venue", graph).steps]
    )
    arcs = {tuple(arc) for arc in [*ends.tolist(), *ends[:, ::-1].tolist()]}
    steps = np.stack([walks[:, :-1], walks[:, 1:]], axis=2).reshape(-1, 2)
    assert {tuple(step) for step in steps[steps[:, 1] >= 0].tolist()} <= arcs
    assert (walks >= 0).all(axis=1).sum() > 60


def test_a_node_where_the_path_cannot_go_on_ends_the_walk() -> None:
    walks = walks_of(MetapathSampler(states(TEXT, library()), num_walks=50, walk_length=5))
    by_start = {start: {tuple(row) for row in walks[walks[:, 0] == start].tolist()} for start in range(4)}
    assert by_start[3] == {(3, -1, -1, -1, -1)}  # wrote nothing
    assert by_start[2] == {(2, 6, -1, -1, -1)}  # whose paper is in no venue
    assert by_start[0] == {(0, 4, 7, 4, 0), (0, 4, 7, 4, 1)}


def test_steps_follow_the_weights_of_their_relation() -> None:
    walks = walks_of(MetapathSampler(states("paper-[by]-author", library()), num_walks=4000, walk_length=2, seed=1))
    ends = walks[walks[:, 0] == 4][:, 1]
    counts = np.bincount(ends, minlength=2)[:2]
    misfit = ((counts - [1000, 3000]) ** 2 / [1000, 3000]).sum()
    assert counts.sum() == 4000
    assert misfit < chi2.ppf(0.999, 1)


def test_walks_do_not_depend_on_batches_or_threads() -> None:
    sampler = MetapathSampler(states("author-paper-venue-paper-author", dense()), num_walks=20, walk_length=9, seed=3)
    whole = walks_of(sampler)
    np.testing.assert_array_equal(whole, walks_of(sampler, 7))
    np.testing.assert_array_equal(whole, walks_of(sampler, 400, threads=3))
    later = np.concatenate([w for w, _ in sampler.numbered_batches(50, first=100)])
    np.testing.assert_array_equal(whole[100:], later)


def test_an_open_path_has_walks_of_its_own_length_at_most() -> None:
    graph = states("author-paper-venue", dense())
    walks = walks_of(MetapathSampler(graph, walk_length=3))
    assert ((walks[:, 2] >= 70) | (walks[:, 2] < 0)).all()
    with pytest.raises(ConfigError, match=r"walk_length = 4: .* at most 3 nodes"):
        MetapathSampler(graph, walk_length=4)


def test_degrees_count_the_arcs_of_the_path_only() -> None:
    sampler = MetapathSampler(states("venue-paper-venue", library()), walk_length=3)
    assert sampler.degrees().tolist() == [0, 0, 0, 0, 2, 2, 0, 2, 2, 0]


def test_a_path_that_starts_nowhere_and_arcs_of_other_types_are_refused() -> None:
    places = RankRanges([0, 3], [0], 1)
    with pytest.raises(DataError, match="no node is of type 2"):
        MetapathGraph.build([2, 0], np.array([0, 1, 0]), [(np.array([0]), np.array([1]), None)], places)
    wrong = (np.array([0]), np.array([2]), None)
    with pytest.raises(DataError, match="place 1 of the metapath: node 2 has another type"):
        MetapathGraph.build([0, 1], np.array([0, 1, 0]), [wrong], places)


def walk_on_a_rank() -> tuple[np.ndarray, np.ndarray, int, np.ndarray]:
    group = ProcessGroup()
    try:
        graph = states("author-paper-venue-paper-author", dense(), [0, 20, 50, 75][: group.world_size + 1], group)
        sampler = MetapathSampler(graph, group, num_walks=3, walk_length=9, seed=4)
        batches = list(sampler.numbered_batches(64))
        parts = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
        return parts[0], parts[1], sampler.bytes_sent, sampler.degrees()
    finally:
        group.close()


@pytest.mark.dist
def test_ranks_walk_together_from_their_own_nodes_along_the_path(ranks: Ranks) -> None:
    found = ranks.run(walk_on_a_rank, 3)
    graph = dense()
    one = MetapathSampler(states("author-paper-venue-paper-author", graph), num_walks=3, walk_length=9, seed=4)
    assert sorted(np.concatenate([index for _, index, _, _ in found])) == list(range(90))
    reached = {}
    for rank, (walks, index, sent, degrees) in enumerate(found):
        np.testing.assert_array_equal(degrees, one.degrees())
        assert sent > 0 or rank == 2  # the third owns no author, but papers that walkers come to
        kinds = np.append(node_kinds(graph), -1)[walks]
        assert ((kinds == np.resize([0, 1, 2, 1], 9)) | (walks < 0)).all()
        reached.update(zip(index.tolist(), walks.tolist(), strict=True))
    mine = walks_of(one)
    starts = {tuple(row[:1]) for row in mine.tolist()}
    assert {tuple(row[:1]) for row in reached.values()} == starts
    lengths = np.array([[node >= 0 for node in reached[i]] for i in range(90)]).sum()
    assert abs(lengths - (mine >= 0).sum()) < 90


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
