from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
import partition
from graph_emb.cli.main import main
from graph_emb.config import config_from
from graph_emb.core.errors import ConfigError
from graph_emb.formats.embedding_files import load_embeddings
from graph_emb.graph.csr import Graph
from graph_emb.graph.partition_book import RangeBook, RankRanges
from graph_emb.run import multilevel
from graph_emb.run.multilevel import CoarseStart, level_of, sizes_of, start_of
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.walks import WalkSampler
from tests.ranks import Ranks, raised, with_shared_memory

pytestmark = pytest.mark.usefixtures("fresh_mode")

GROUPS, SIZE = 8, 30
TRIPLES = ["num_negatives=16", "chunk_size=16", "train.batch_size=64", "train.epochs=2"]


def communities() -> Graph:
    """Groups of nodes, every eighth one of a group, with most of their edges inside."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, GROUPS * SIZE, 1500)
    inside = src % GROUPS + GROUPS * rng.integers(0, SIZE, 1500)
    dst = np.where(rng.random(1500) < 0.85, inside, rng.integers(0, GROUPS * SIZE, 1500))
    return Graph.from_edges(src, dst, GROUPS * SIZE, self_loops="drop")


def whole(graph: Graph) -> PartGraph:
    return PartGraph.of_graph(graph, RankRanges([0, graph.num_nodes], [0], 1), 0)


def test_arcs_between_and_inside_parts_are_summed() -> None:
    graph = Graph.from_edges([0, 0, 1, 2], [1, 2, 3, 3], 4, weights=[1.0, 2.0, 4.0, 8.0])
    level = level_of(whole(graph), np.array([7, 7, 9, 9]), RangeBook([0, 4]), None)
    assert level.members.tolist() == [0, 0, 1, 1]
    assert (level.graph.indptr.tolist(), level.graph.indices.tolist()) == ([0, 2, 4], [0, 1, 0, 1])
    assert level.graph.weights is not None
    assert level.graph.weights.tolist() == [2.0, 6.0, 6.0, 16.0]  # an edge inside a part is two arcs


def test_parts_of_two_owners_are_refused() -> None:
    graph = Graph.from_edges([0, 1, 2], [1, 2, 3], 4)
    with pytest.raises(ConfigError, match="have nodes of several of the 2 parts"):
        level_of(whole(graph), np.array([0, 0, 0, 1]), RangeBook([0, 2, 4]), None)


def started(num_walks: int, levels: np.ndarray) -> CoarseStart:
    """The levels of a training with so many walks."""
    config = config_from(
        {"model": {"name": "deepwalk", "dim": 8, "num_walks": num_walks}, "dataset": "memory", "train": {"threads": 1}}
    )

    def sampler_of(part: PartGraph, num_walks: int) -> WalkSampler:
        return WalkSampler(Graph(part.indptr, part.indices, part.weights, part.directed), num_walks=num_walks, seed=1)

    return start_of(config, whole(communities()), levels, None, None, sampler_of, progress=False)


@pytest.mark.parametrize(("num_walks", "of_levels"), [(20, [75, 30]), (21, [75, 30]), (80, [75, 30]), (8, [30, 12])])
def test_levels_of_long_trainings_walk_no_more(num_walks: int, of_levels: list[int]) -> None:
    """Than five walks from each node of the graph: 30 nodes a part, and 6."""
    fine = np.arange(GROUPS * SIZE) // 6
    found = started(num_walks, np.stack([fine // 5, fine], axis=1))
    assert [level["num_walks"] for level in found.levels] == of_levels


def test_nodes_begin_with_both_rows_of_their_part_and_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = np.arange(GROUPS * SIZE) // 6
    levels = np.stack([fine // 5, fine], axis=1)

    def rows_of(levels: np.ndarray) -> list[torch.Tensor]:
        start = started(4, levels)
        numbers = [(GROUPS, 15), (40, 6)]
        assert [(level["nodes"], level["num_walks"]) for level in start.levels] == numbers[-levels.shape[1] :]
        assert levels.shape[1] == 1 or start.levels[1]["lr"] == 0.025
        found = []
        for rows in start.models[0]:
            assert rows is not None
            found.append(first := torch.empty(GROUPS * SIZE, 8))
            rows.fill_(first, 0)
            assert (first == first[::6].repeat_interleave(6, dim=0)).all()
            assert len(first.unique(dim=0)) == 40
            assert first.norm(dim=1).min() > 0.1
        return found

    rows_of(levels)
    token, context = rows_of(levels[:, 1:])
    monkeypatch.setattr(multilevel, "SHORTER", (1.0, 1.0))
    as_trained = rows_of(levels[:, 1:])
    torch.testing.assert_close(token, 0.7 * as_trained[0])
    torch.testing.assert_close(context, 0.4 * as_trained[1])


def closeness(rows: np.ndarray, nodes: np.ndarray | None = None) -> float:
    """Mean cosine of nodes of a group over that of all; the rows are those of ``nodes``, or of all."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    group = (np.arange(len(rows)) if nodes is None else nodes) % GROUPS
    same = group[:, None] == group
    return float((unit @ unit.T)[same].mean() - (unit @ unit.T)[~same].mean())


@pytest.mark.parametrize("levels", [True, [8, 48]])
def test_few_walks_go_further_from_the_rows_of_parts(levels: Any) -> None:
    options: dict[str, Any] = {"num_walks": 1, "dim": 16, "threads": 1, "evaluate": False, "lr": 0.025}
    flat = ge.pipeline("deepwalk", communities(), **options)
    found = ge.pipeline("deepwalk", communities(), **options, **{"model.multilevel": levels})
    made = [level["nodes"] for level in found.metrics["train"]["multilevel"]]
    wanted = [24] if levels is True else levels
    assert all(count / 2 < nodes <= count for nodes, count in zip(made, wanted, strict=True))  # some parts are empty
    assert found.metrics["train"]["walks"] == flat.metrics["train"]["walks"] == GROUPS * SIZE
    assert closeness(found.embeddings.weights) > closeness(flat.embeddings.weights) + 0.1


def test_levels_of_a_partition_are_taken(tmp_path: Path) -> None:
    folder = partition.build(communities(), 2, out=tmp_path / "parts", levels=[2, 16], report=False).path

    def config(levels: Any) -> Any:
        return config_from({"model": {"name": "deepwalk", "multilevel": levels}, "dataset": {"name": str(folder)}})

    assert sizes_of(config(True), 240) == sizes_of(config([2, 16]), 240) == (2, 16)
    with pytest.raises(ConfigError, match=r"multilevel = \[4, 8\]: the partition .* has the levels \[2, 16\]; set it"):
        sizes_of(config([4, 8]), 240)


def train_on_two(graph: Graph, levels: Any, **exchange: Any) -> Any:
    parallel = {"mode": "collective", "trainers": 2, **exchange}
    options: dict[str, Any] = {"num_walks": 1, "dim": 16, "threads": 1, "evaluate": False, "lr": 0.025}
    result = ge.pipeline("deepwalk", graph, parallel=parallel, **options, **{"model.multilevel": levels})
    return None if result.embeddings is None else (result.embeddings.weights, result.metrics["train"])


@pytest.mark.dist
@with_shared_memory
def test_two_trainers_gain_as_one(ranks: Ranks) -> None:
    options: dict[str, Any] = {"num_walks": 1, "dim": 16, "threads": 1, "evaluate": False, "lr": 0.025}
    one = ge.pipeline("deepwalk", communities(), **options, **{"model.multilevel": True})
    (rows, metrics), _ = ranks.run(train_on_two, 2, communities(), True)
    assert 12 < metrics["multilevel"][0]["nodes"] <= 24
    assert closeness(rows) > closeness(one.embeddings.weights) - 0.05  # rows of other parts: 0.12 less
    errors = "".join(ranks.run(raised, 2, train_on_two, communities(), [5]))
    assert "5 is neither a multiple of the parts" in errors


def exchange_on_two(graph: Graph, levels: Any, overlap: bool) -> Any:
    return train_on_two(graph, levels, hogwild=False, overlap=overlap)


@pytest.mark.dist
@pytest.mark.parametrize("overlap", [False, True])
def test_two_trainers_that_exchange_gain_less_than_one_and_most_of_it(ranks: Ranks, overlap: bool) -> None:
    """AdaSum counts half of what both move alike, and rows of a coarse graph are moved alike: .45 to .51 of .54."""
    found = [ranks.run(exchange_on_two, 2, communities(), levels, overlap)[0][0] for levels in (True, False)]
    assert closeness(found[0]) > closeness(found[1]) + 0.4


@pytest.mark.dist
@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize("model", ["deepwalk", "complex"])
def test_trainers_with_servers_gain_from_the_rows_of_parts(tmp_path: Path, model: str) -> None:
    graph, found = communities(), {}
    src, dst = graph.edges().T
    options = ["num_walks=1", "train.lr=0.025"] if model == "deepwalk" else [*TRIPLES, "train.lr=0.02"]
    rows = zip(src, dst, strict=True)
    text = "".join(f"{u},{v}\n" if model == "deepwalk" else f"e{u}\tnear\te{v}\n" for u, v in rows)
    (tmp_path / "edges.csv").write_text(text)
    words = ["train", model, "--dataset", str(tmp_path / "edges.csv"), "--threads", "1", "--no-eval", "--dim", "16"]
    words += ["--mode", "kvstore", "--trainers", "2", "output.report=none", *options]
    for name, levels in (("flat", []), ("levels", ["model.multilevel=[24]"])):
        assert main([*words, *levels, "--out", str(tmp_path / name)]) == 0
        own = load_embeddings(tmp_path / name)
        number = np.char.lstrip(own.node_ids.astype(str), "e").astype(np.int64)
        placed = np.zeros((GROUPS * SIZE, 16))
        placed[number] = own.weights
        found[name] = closeness(placed[np.isin(np.arange(GROUPS * SIZE), number)], np.sort(number))
    (level,) = json.loads((tmp_path / "levels" / "metrics.json").read_text())["train"]["multilevel"]
    assert 12 < level["nodes"] <= 24
    assert found["levels"] > found["flat"] + 0.1


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="19 nodes in 1 parts are too few"):
        ge.pipeline("deepwalk", Graph.from_edges(range(18), range(1, 19)), **{"model.multilevel": True})
    with pytest.raises(ConfigError, match="both give first rows; take one"):
        ge.pipeline("deepwalk", communities(), **{"model.multilevel": True, "warm_start": "prone"})
    with pytest.raises(ConfigError, match="multilevel names no level"):
        ge.pipeline("deepwalk", communities(), **{"model.multilevel": []})
    for levels in ([1.5], ["a"], [1], [True], 10, "x", None, [[10]], {"a": 1}):
        with pytest.raises(ConfigError, match=r"model\.multilevel.* should be true, false, or numbers of parts"):
            config_from({"model": {"name": "deepwalk", "multilevel": levels}, "dataset": {"name": "x"}})
    with pytest.raises(ConfigError, match=r"levels \[16, 8\]: give at least one, each larger"):
        ge.pipeline("deepwalk", communities(), **{"model.multilevel": [16, 8]})


def test_edges_inside_parts_are_left_out_of_lines_levels() -> None:
    graph = Graph.from_edges([0, 0, 1, 2], [1, 2, 3, 3], 4, weights=[1.0, 2.0, 4.0, 8.0])
    level = level_of(whole(graph), np.array([7, 7, 9, 9]), RangeBook([0, 4]), None, inside=False)
    assert (level.graph.indptr.tolist(), level.graph.indices.tolist()) == ([0, 1, 2], [1, 0])
    assert level.graph.weights is not None
    assert level.graph.weights.tolist() == [6.0, 6.0]


def line_rows(order: str, levels: Any, **parallel: Any) -> Any:
    options: dict[str, Any] = {"draws_per_edge": 1, "dim": 16, "threads": 1, "evaluate": False, "order": order}
    found = ge.pipeline("line", communities(), parallel=parallel, **options, **{"model.multilevel": levels})
    if found.embeddings is None:
        return None
    rows = found.embeddings.weights
    return rows - rows.mean(axis=0), found.metrics["train"]  # all rows have one direction after few draws


@pytest.mark.parametrize(("order", "levels"), [("both", True), ("second", [8, 48])])
def test_few_draws_of_line_go_further_from_the_rows_of_parts(order: str, levels: Any) -> None:
    flat, _ = line_rows(order, False)
    rows, metrics = line_rows(order, levels)
    wanted = [24] if levels is True else levels
    made = [level["nodes"] for level in metrics["multilevel"]]
    assert all(count / 2 < nodes <= count for nodes, count in zip(made, wanted, strict=True))
    assert metrics["multilevel"][0]["draws_per_edge"] > 1  # few edges are drawn the more often
    assert closeness(rows) > closeness(flat) + 0.1


@pytest.mark.dist
def test_two_trainers_of_line_begin_with_the_rows_of_parts(ranks: Ranks) -> None:
    flat, _ = line_rows("second", False)
    (rows, metrics), _ = ranks.run(line_rows_of_two, 2)
    assert 12 < metrics["multilevel"][0]["nodes"] <= 24
    assert closeness(rows) > closeness(flat) + 0.1


def line_rows_of_two() -> Any:
    return line_rows("second", True, mode="collective", trainers=2)
