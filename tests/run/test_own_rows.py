"""``model.own_rows``: nodes of highest training degree have a row of their own beside the shared ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
import partition
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.composed import ComposedEmbedding
from graph_emb.graph.readers.triples import RELATION
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from graph_emb.models import tables
from graph_emb.models.gnn.config import RGCNConfig
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.models.skipgram.model import SkipGram
from graph_emb.models.skipgram.training import train_skipgram
from graph_emb.run.new_nodes import continue_run
from graph_emb.run.parallel import of_one_type
from graph_emb.sampling.walks import WalkSampler
from tests.ranks import Ranks
from tests.run.test_multilevel import communities
from tests.run.test_own_parts import plain, typed
from tests.run.test_own_triples import triples

pytestmark = [pytest.mark.usefixtures("fresh_mode", "warm_starts"), pytest.mark.dist]

K = 5
SHORT: dict[str, Any] = {"dim": 8, "threads": 1, "evaluate": False}
OF_PARTS = {"model.table": "position", "model.levels": (2, 6)}
WALKS: dict[str, Any] = {**SHORT, **OF_PARTS, "rule": "adagrad", "batch_size": 30}
PATH: dict[str, Any] = {**WALKS, "metapath": "author-paper-author"}
GNN: dict[str, Any] = {
    **SHORT, "hidden_dim": 8, "num_seeds": 1, "epochs": 3, "eval_every": 3, "dropout": 0.0, "features": False,
    "inputs": "position", "model.levels": (2, 6),
}  # fmt: skip
KGE: dict[str, Any] = {
    **SHORT, **OF_PARTS, "num_negatives": 6, "chunk_size": 4, "batch_size": 32, "epochs": 3, "valid_every": 0,
    "rule": "adagrad",
}  # fmt: skip


def degrees(graph: HeteroGraph) -> dict[str, np.ndarray]:
    """Edges of the nodes of each type, in and out."""
    found = {ntype: np.zeros(count, int) for ntype, count in graph.num_nodes.items()}
    for (source, _, target), (src, dst) in graph.edges.items():
        np.add.at(found[source], src, 1)
        np.add.at(found[target], dst, 1)
    return found


def steps_of_path(graph: HeteroGraph) -> dict[str, np.ndarray]:
    """Of authors and their papers, each pair once; edges off the path do not count."""
    etype = ("author", "writes", "paper")
    pairs = np.unique(np.stack(graph.edges[etype]), axis=1)
    return degrees(HeteroGraph(graph.num_nodes, {etype: (pairs[0], pairs[1])}))


def highest(found: dict[str, np.ndarray]) -> dict[str, list[int]]:
    """The K nodes of highest degree of all types together, by type."""
    names = [(ntype, node) for ntype, of_type in found.items() for node in range(len(of_type))]
    chosen = sorted(names, key=lambda name: -found[name[0]][name[1]])[:K]  # sorted keeps ties in order
    return {ntype: sorted(node for other, node in chosen if other == ntype) for ntype in found}


def distinct_neighbours(graph: HeteroGraph) -> np.ndarray:
    """Of each node of the only type."""
    (num_nodes,), ((src, dst),) = graph.num_nodes.values(), graph.edges.values()
    pairs = np.unique(np.concatenate([src * num_nodes + dst, dst * num_nodes + src]))
    return np.bincount(pairs // num_nodes, minlength=num_nodes)


MODELS: dict[str, Any] = {
    "deepwalk": (communities, WALKS | {"num_walks": 2}, lambda graph: {"node": graph.degrees()}, 2 * 8),
    "line": (communities, WALKS | {"draws_per_edge": 2}, lambda graph: {"node": graph.degrees()}, 3 * 4),
    "metapath2vec": (typed, PATH | {"num_walks": 2}, steps_of_path, 2 * 8),
    "complex": (lambda: triples(False), KGE, degrees, 8),
    "sage": (plain, GNN, lambda graph: {"node": distinct_neighbours(graph)}, 8),
    "rgcn": (typed, GNN, degrees, 8),
}
"""Of each model a graph, settings, degrees of the graph that it trains on, and the numbers of a row in all tables."""


def seen(patch: pytest.MonkeyPatch) -> list[list[int]]:
    """The nodes with own rows of each table that is made from now on."""
    found: list[list[int]] = []

    def watched(*args: Any, **options: Any) -> ComposedEmbedding:
        made = ComposedEmbedding(*args, **options)
        found.append(made.own_rows.tolist())
        return made

    patch.setattr(tables, "ComposedEmbedding", watched)
    return found


@pytest.mark.parametrize("model", MODELS)
def test_nodes_of_highest_degree_have_rows_of_their_own(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, options, of, width = MODELS[model]
    found = seen(monkeypatch)
    shared = ge.pipeline(model, source(), **options)
    assert not any(found)
    found.clear()
    own = ge.pipeline(model, source(), **options, **{"model.own_rows": K})
    by_type = highest(of(source()))
    chosen = list(by_type.values())
    if model == "metapath2vec":  # one table has the nodes of all types, one type after the other
        (papers, authors) = chosen
        chosen = [papers + [60 + author for author in authors]]
    assert found[: len(chosen)] == chosen
    assert found == chosen * (len(found) // len(chosen))
    numbers = [result.metrics["train"]["parameters"] for result in (shared, own)]
    assert numbers[1] - numbers[0] == K * width
    assert own.config.model.own_rows == K  # type: ignore[union-attr]


def test_entities_are_chosen_by_training_triples_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A held-out triple tells nothing."""
    graph = triples(False)
    (heads, tails), relations = graph.edges[EDGE_TYPE], graph.edge_data[EDGE_TYPE][RELATION]
    names, hub = graph.node_ids[NODE_TYPE], int(np.argmax(degrees(graph)[NODE_TYPE]))
    held = np.flatnonzero((heads == hub) | (tails == hub))
    lines = [f"{names[heads[n]]},r{relations[n]},{names[tails[n]]},test" for n in held]
    (tmp_path / "held.csv").write_text("\n".join(lines) + "\n")
    found = seen(monkeypatch)
    for options in ({}, {"test_edges": tmp_path / "held.csv"}):
        ge.pipeline("complex", graph, **KGE, **options, **{"model.own_rows": 1})
    assert found[0] == [hub]
    assert found[1] != [hub]


def chosen_in_turn(model: str, options: dict[str, Any], graph: Any, folder: str) -> Any:
    """Original ids of a rank's nodes with own rows: cut for the trainers, by a partition, and of it alone."""
    parallel, chosen, rows = {"mode": "collective", "trainers": 2, "hogwild": False}, [], []

    def watched(*args: Any, **given: Any) -> ComposedEmbedding:
        made = ComposedEmbedding(*args, **given)
        nodes = made.own_rows
        chosen[-1].append(sorted(made.original_ids.of(0, made.num_embeddings)[nodes].tolist()))
        if made.own_rows.numel() and made.book.num_parts > 1:
            of_rows, of_nodes = (made.transport.layout(book, "o") for book in (made.tables[-1].book, made.book))
            assert torch.equal(of_rows.owner(torch.arange(len(nodes))), of_nodes.owner(nodes))  # the whole chain
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "ComposedEmbedding", watched)
        for source, more in ((graph, {}), (graph, {"partition": folder}), (folder, {})):
            chosen.append([])
            given = options if source is graph and not more else {**options, "model.levels": None}
            result = ge.pipeline(model, source, parallel={**parallel, **more}, **given, **{"model.own_rows": K})
            rows.append({name: table.weights for name, table in result.tables.items()})
    return chosen, rows


@pytest.mark.parametrize("model", ["deepwalk", "complex", "sage", "rgcn"])
def test_any_partition_and_number_of_trainers_chooses_the_same(
    ranks: Ranks, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Degrees of trainers that read their own parts are summed."""
    source, options, _, _ = MODELS[model]
    graph = source()
    built = graph if isinstance(graph, HeteroGraph) else of_one_type(graph)
    folder = str(partition.build(built, 2, levels=[2, 6], out=tmp_path / "parts", seed=2, report=False).path)
    found = seen(monkeypatch)
    ge.pipeline(model, graph, **options, **{"model.own_rows": K})
    assert sum(map(len, found)) >= K
    for chosen, rows in ranks.run(chosen_in_turn, 2, model, options, graph, folder):
        assert chosen == [found] * 3
        for name in rows[1]:
            np.testing.assert_allclose(rows[2][name], rows[1][name], rtol=0, atol=1e-5)


def test_a_training_resumes_with_its_own_rows(tmp_path: Path) -> None:
    options: dict[str, Any] = {**WALKS, "num_walks": 20, "walk_length": 10, "epochs": 2, "model.own_rows": K}
    edges, more, run = tmp_path / "edges.txt", tmp_path / "more.txt", tmp_path / "run"
    edges.write_text("".join(f"{a} {b}\n" for a, b in communities().edges().tolist()))
    whole = ge.pipeline("deepwalk", edges, **options).embeddings
    with pytest.MonkeyPatch.context() as patch:
        after = PeriodicCheckpoints.after

        def stopping(self: Any, at: int, position: Any) -> bool:
            after(self, at, position)
            raise ConnectionError("the machine went away")

        patch.setattr(PeriodicCheckpoints, "after", stopping)
        with pytest.raises(ConnectionError):
            ge.pipeline("deepwalk", edges, out=run, checkpoint={"every": 1}, **options)
    ge.shutdown()
    with pytest.raises(ge.ConfigError, match=r"own_rows = 5, this one has 4"):
        ge.pipeline("deepwalk", edges, out=run, resume=True, checkpoint={"every": 1}, **options | {"model.own_rows": 4})
    ge.shutdown()
    resumed = ge.pipeline("deepwalk", edges, out=run, resume=True, checkpoint={"every": 1}, **options).embeddings
    assert whole is not None
    assert resumed is not None
    np.testing.assert_array_equal(resumed.weights, whole.weights)
    more.write_text("".join(f"900 {n}\n" for n in range(50)))  # now the node of highest degree
    on = continue_run(run, more)
    assert on.config.model.own_rows == 0  # type: ignore[union-attr]
    assert on.config.model.table == "full"  # type: ignore[union-attr]


def test_settings_that_have_no_effect_or_ask_for_too_many_are_refused() -> None:
    for options, message in (
        ({"model.table": "full", "model.own_rows": 3}, "own_rows = 3 has no effect on table = 'full'; leave it out"),
        ({"model.table": "hash", "model.own_rows": -1}, "own_rows = -1"),
        ({"model.table": "hash", "model.own_rows": 49}, "own_rows = 49: there are 48 entities; give at most as many"),
    ):
        with pytest.raises(ge.ConfigError, match=message):
            ge.pipeline("complex", triples(False), **{**KGE, "model.levels": None, **options})
    with pytest.raises(ValueError, match="own_rows = 3 has no effect on inputs = 'basis'"):
        RGCNConfig(inputs="basis", own_rows=3)
    with pytest.raises(ge.ConfigError, match="own_rows = 81: there are 80 nodes"):
        ge.pipeline("rgcn", typed(), **GNN, **{"model.own_rows": 81})


def test_tables_that_are_made_alone_need_their_nodes() -> None:
    config = SkipGramConfig(dim=6, rule="adagrad", table="hash", num_buckets=6, own_rows=2)
    with pytest.raises(ge.ConfigError, match="own_rows = 2 needs the nodes of highest degree: pass their ids"):
        SkipGram(9, config)
    with pytest.raises(ge.ConfigError, match="own_rows= has no effect without own_rows in the settings"):
        SkipGram(9, config.replace(own_rows=0), own_rows=[1, 2])
    walks = WalkSampler(communities(), num_walks=1, walk_length=5)
    trained = train_skipgram(walks, config, num_threads=1, progress=False).embedding
    assert isinstance(trained, ComposedEmbedding)
    assert len(trained.own_rows) == 2


def test_memory_counts_them() -> None:
    for table, numbers in (("position", 8 * 4), ("hash", 5 * 4 + 2 * 100), ("quotient-remainder", (20 + 5) * 4)):
        buckets = {} if table == "position" else {"num_buckets": 5}
        levels = {"levels": (2, 6)} if table == "position" else {}
        for own in (0, 7):
            config = KGEConfig(table=table, own_rows=own, **levels, **buckets)
            assert config.share_kept(4, 100) == pytest.approx((numbers + own * 4) / 400)
    two_types = KGEConfig(table="hash", num_buckets=5, own_rows=7)
    assert two_types.share_kept(4, 60, 40) == pytest.approx((2 * 5 * 4 + 2 * 100 + 7 * 4) / 400)
