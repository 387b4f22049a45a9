"""Runs go on where their graph has changed, and unseen nodes get rows beside rows that stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.config import read_config_file
from graph_emb.core.errors import ConfigError, DataError, GraphEmbError, LackingError
from graph_emb.formats.embedding_files import load_embeddings
from graph_emb.graph.csr import Graph
from graph_emb.graph.views import plain_dataset
from graph_emb.models.skipgram.config import DeepWalkConfig
from graph_emb.models.skipgram.rates import GOING_ON_SHARE, rate_of_walks
from graph_emb.models.skipgram.steps import MOST_CHANGE, Kernel, WalkRates
from graph_emb.models.skipgram.training import train_skipgram
from graph_emb.run import inputs
from graph_emb.run.continuing import CONTEXT, LENGTHS, GrownStart, OldRun, changed_arcs, cut_walks, start_of
from graph_emb.run.fitted_means import fitted_means
from graph_emb.run.inputs import grown_dataset, read_dataset
from graph_emb.run.new_nodes import train_new_rows
from graph_emb.run.run_folder import read_metrics
from graph_emb.sampling.negatives import NegativeSampler
from graph_emb.sampling.walks import WalkSampler
from tests.cli.conftest import Outcome
from tests.cli.conftest import cli as cli
from tests.ranks import Ranks

pytestmark = pytest.mark.usefixtures("fresh_mode")

SIZE = 6
OPTIONS: dict[str, Any] = {"dim": 8, "num_walks": 3, "walk_length": 10, "threads": 1, "evaluate": False}


def clique(first: int) -> list[tuple[int, int]]:
    return [(first + a, first + b) for a in range(SIZE) for b in range(a)]


def write(path: Path, edges: list[tuple[int, int]]) -> Path:
    path.write_text("".join(f"{a},{b}\n" for a, b in edges))
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A run on two cliques that nothing joins: nodes 0 .. 5 and 10 .. 15."""
    edges = write(tmp_path / "old.csv", clique(0) + clique(10))
    found = ge.pipeline("deepwalk", edges, out=tmp_path / "run", report="none", **OPTIONS).folder
    assert found is not None
    return found


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """Nodes 7 and 3000 join the first clique, the second through the first alone."""
    return write(tmp_path / "new.csv", [(7, 0), (1, 7), (3000, 7)])


def test_arcs_that_differ_are_found_by_id() -> None:
    old = Graph.from_edges([0, 1, 2, 0], [1, 2, 3, 4], weights=[1.0, 2.0, 3.0, 1.0], num_nodes=5)
    ids = np.array([10, 11, 12, 13, 99])  # node 4, of id 99, is gone
    now = Graph.from_edges([0, 1, 3, 0], [1, 2, 4, 3], 5, [1.0, 5.0, 1.0, 1.0], node_ids=[10, 11, 12, 13, 14])
    found = changed_arcs(old, now, now.find_nodes(ids))
    assert sorted(map(tuple, found.tolist())) == [(0, 0), (0, 3), (1, 2), (2, 1), (2, 3), (3, 0), (3, 2)]
    assert not len(changed_arcs(old, old, np.arange(5)))
    bare = Graph.from_edges([0], [1], 2)
    assert not len(changed_arcs(bare, Graph.from_edges([0], [1], 2, [1.0]), np.arange(2)))


def start(old: Path, edges: Path, **fields: Any) -> tuple[OldRun, Graph, GrownStart]:
    run = OldRun.read(old)
    graph = Graph.from_edges(*np.loadtxt(edges, np.int64, delimiter=",").T)
    model = run.config.model.model_copy(update=fields)
    return run, graph, start_of(run, graph, model, 0)


def test_walks_begin_at_new_nodes_and_changed_edges(old: Path, tmp_path: Path) -> None:
    edges = write(tmp_path / "all.csv", [*clique(0), *clique(10), (7, 0), (3000, 7), (20, 21), (5, 15)])
    run, graph, found = start(old, edges)
    assert graph.ids_of(found.starts).tolist() == [5, 7, 15, 20, 21, 3000]
    assert graph.ids_of(np.flatnonzero(found.is_new)).tolist() == [7, 20, 21, 3000]
    assert found.report == {"new_nodes": 4, "changed_arcs": 2, "starts": 6}
    near = start(old, edges, reach=1)[2]
    assert graph.ids_of(near.starts).tolist() == [*range(6), 7, *range(10, 16), 20, 21, 3000]
    assert run.context is not None
    assert found.context is not None
    place = graph.find_nodes(np.array([*range(6), *range(10, 16)]))
    for first, before in ((found.token, run.token), (found.context, run.context)):
        assert np.array_equal(first[place], before)
        seven = graph.find_nodes([7])[0]
        assert np.array_equal(first[seven], before[0])  # the mean of one
        assert np.array_equal(first[graph.find_nodes([3000])[0]], before[0])  # of the next round
    apart = graph.find_nodes([20, 21])
    assert found.token[apart].any(axis=1).all()  # as usual rows begin
    assert not found.context[apart].any()


def test_a_run_goes_on_where_the_graph_changed(old: Path, new: Path, tmp_path: Path) -> None:
    before, context = load_embeddings(old), np.load(old / CONTEXT)
    found = ge.continue_run(old, new, out=tmp_path / "next", num_walks=8)
    train = found.metrics["train"]
    assert (train["continued"], train["walks"]) == ({"new_nodes": 2, "changed_arcs": 0, "starts": 2}, 16)
    assert train["first_lr"] == 0.3 * rate_of_walks(8 * 14 * 6, 66)  # 14 nodes, 33 edges
    assert 0.3 * 0.025 < train["first_lr"] < 0.3 * 0.1
    assert found.embeddings is not None
    assert found.embeddings.node_ids.tolist() == [*range(6), *range(10, 16), 7, 3000]
    rows = found.embeddings.weights
    assert np.array_equal(rows[6:12], before.weights[6:])  # no walk comes there
    assert (rows[:6] != before.weights[:6]).any(axis=1).all()
    assert np.load(tmp_path / "next" / CONTEXT).shape == (14, 8)
    assert np.array_equal(np.load(old / CONTEXT), context)
    again = write(tmp_path / "more.csv", [(10, 8), (0, 5)])  # of which the second is there
    last = ge.continue_run(tmp_path / "next", [again], out=tmp_path / "last", evaluate=False)
    assert last.metrics["train"]["continued"] == {"new_nodes": 1, "changed_arcs": 0, "starts": 1}
    config = read_config_file(tmp_path / "last" / "config.yaml")
    assert config["dataset"]["new_edges"] == [str(new), str(again)]
    assert config["model"]["from_run"] == str(tmp_path / "next")


def test_walks_go_on_cut_after_half_the_window_with_the_tokens_of_the_run(old: Path, new: Path, tmp_path: Path) -> None:
    """Walks of 40 nodes train few pairs with a new one, and its row has too few updates."""
    ge.pipeline("deepwalk", tmp_path / "old.csv", out=tmp_path / "near", report="none", window=2, **OPTIONS)
    found = ge.continue_run(tmp_path / "near", new, out=tmp_path / "next", report="none")
    model = read_config_file(tmp_path / "next" / "config.yaml")["model"]
    assert (model["num_walks"], model["walk_length"], found.metrics["train"]["walks"]) == (10, 3, 20)
    assert found.metrics["train"]["tokens"] == 2 * 3 * 10  # of two nodes, what the run had
    given = ge.continue_run(tmp_path / "near", new, num_walks=1, walk_length=4)
    assert given.metrics["train"]["tokens"] == 2 * 1 * 4
    again = write(tmp_path / "more.csv", [(10, 8)])
    assert ge.continue_run(tmp_path / "next", again).metrics["train"]["tokens"] == 3 * 10


@pytest.mark.parametrize(
    ("window", "length"), [(1, 2), (2, 3), (3, 4), (4, 4), (6, 4), (7, 5), (10, 6), (11, 7), (40, 10)]
)
def test_walks_that_go_on_take_half_the_window_but_three_steps_where_it_has_them(window: int, length: int) -> None:
    found = cut_walks(DeepWalkConfig(num_walks=3, walk_length=10, window=window))
    assert found == {
        "num_walks": -(-30 // length),
        "walk_length": length,
        "block": length,
        "shared_negatives": -(-32 * length // 20),
    }
    assert cut_walks(DeepWalkConfig(**found, window=window, from_run="run")) == found  # and then as they did


def test_walks_that_go_on_have_full_blocks_and_are_no_more_than_a_run_may_have() -> None:
    assert cut_walks(DeepWalkConfig(block=5))["shared_negatives"] == 32
    most = DeepWalkConfig(num_walks=100_000, walk_length=10, window=1)
    assert cut_walks(most) == {"num_walks": 100_000, "walk_length": 2, "block": 2, "shared_negatives": 4}


@pytest.mark.parametrize(
    ("fields", "rate"),
    [
        ({"num_walks": 1}, 0.3 * rate_of_walks(40 * 10, 80)),
        ({"num_walks": 2, "epochs": 2}, 0.3 * rate_of_walks(40 * 40, 80)),
        ({"from_run": None}, rate_of_walks(40 * 10, 80)),
        ({"lr": 0.1}, 0.1),
        ({"rule": "adagrad"}, 0.05),
        ({"path": "optimizer"}, 0.025),
    ],
)
def test_sgd_in_place_goes_on_at_a_share_of_the_rate_of_a_whole_training(fields: dict[str, Any], rate: float) -> None:
    """Most rows are trained, and a new node's walks are a sample that long steps follow too far; few nodes are starts
    of many walks, whose tokens alone would ask for long steps."""
    ring = Graph.from_edges(np.arange(40), (np.arange(40) + 1) % 40)
    config = DeepWalkConfig(**{"dim": 4, "num_walks": 1, "from_run": "run", **fields})
    sampler = WalkSampler(ring, num_walks=config.num_walks, walk_length=10, starts=np.array([3]))
    result = train_skipgram(sampler, config, num_threads=1, progress=False)
    assert result.first_lr == pytest.approx(rate)


def test_first_rows_are_told_from_context_rows(old: Path) -> None:
    """A token row is trained to fit the context rows of its neighbours, which tell more of it than their token rows."""
    run, rng = OldRun.read(old), np.random.default_rng(0)
    src, dst = np.nonzero(np.triu(rng.random((60, 60)) < 0.3, 1))
    rows = rng.normal(size=(2, 60, 8)).astype(np.float32)
    now = Graph.from_edges(np.append(src, [60, 60]), np.append(dst, [0, 1]), 61)
    was = OldRun(run.config, np.arange(60), lambda: Graph.from_edges(src, dst, 60), rows[0], rows[1])
    found = start_of(was, now, run.config.model, 0)
    means = np.concatenate(list(rows[:, :2].astype(np.float64).mean(1)))[None]
    table, is_new = np.concatenate([*rows], axis=1), np.arange(61) == 60
    table = np.concatenate([table, np.full((1, 16), 50.0, np.float32)])
    wanted = fitted_means(now, is_new, [table], np.array([60]), means, 0, slice(8, None))
    assert found.context is not None
    assert np.allclose(np.concatenate([found.token[60], found.context[60]]), wanted[0], atol=1e-6)
    assert np.array_equal(np.stack([found.token[:60], found.context[:60]]), rows)


def test_infer_walks_as_a_run_that_goes_on(old: Path, new: Path, tmp_path: Path) -> None:
    ge.pipeline("deepwalk", tmp_path / "old.csv", out=tmp_path / "near", report="none", window=2, **OPTIONS)
    run = OldRun.read(tmp_path / "near")
    whole = plain_dataset(grown_dataset(read_dataset(run.config.dataset), str(new))).graph
    begin = start_of(run, whole, run.config.model, 0, only_new=True)
    sampler = WalkSampler(whole, num_walks=10, walk_length=3, seed=0, starts=begin.starts)
    cut = run.config.model.model_copy(update={"block": 3, "shared_negatives": 5})
    train_new_rows(sampler, cut, begin, 1, 0, num_threads=1)
    rows = ge.infer(tmp_path / "near", new, num_threads=1)
    assert np.array_equal(rows.weights, begin.token[whole.find_nodes(rows.node_ids)])


def test_rows_of_frozen_nodes_stay_and_new_ones_are_trained_as_alone(old: Path, new: Path, tmp_path: Path) -> None:
    """The oracle restores the old rows after every walk; a walk of ten nodes is one block."""
    edges = write(tmp_path / "all.csv", [*clique(0), *clique(10), (16, 0), (1, 16), (17, 16)])
    run, graph, begin = start(old, edges)
    model, num_old = run.config.model, 12
    assert isinstance(model, DeepWalkConfig)
    assert begin.context is not None
    sampler = WalkSampler(graph, num_walks=3, walk_length=10, seed=0, starts=begin.starts)
    tables = begin.token.copy(), begin.context.copy()
    kernel = Kernel(model, NegativeSampler(sampler.degrees(), model.negative_power, seed=0))
    first = GOING_ON_SHARE * rate_of_walks(3 * 10 * graph.num_nodes, graph.num_arcs)  # as if all nodes were starts
    decay = WalkRates(first, sampler.num_walks_per_epoch)
    for walks, index in sampler.numbered_batches(1, num_threads=1):
        kept = [table[:num_old].copy() for table in tables]
        drawn = kernel.draw(walks, 0, index)
        kernel.run(walks, drawn, tables, tables, decay.of(index), MOST_CHANGE, index)
        for table, rows in zip(tables, kept, strict=True):
            table[:num_old] = rows
    train_new_rows(sampler, model, begin, 1, 0, num_threads=1)
    for trained, wanted, before in zip((begin.token, begin.context), tables, (run.token, run.context), strict=True):
        assert np.array_equal(trained[:num_old], before)
        assert np.allclose(trained, wanted, rtol=0, atol=1e-6)
        assert not np.allclose(trained[num_old:], before[:1], rtol=0, atol=1e-3)


def test_unseen_nodes_get_rows(
    old: Path, new: Path, tmp_path: Path, cli: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in old.iterdir() if path.is_file()}
    told = cli("infer", old, "--edges", new, "--out", tmp_path / "rows", "--threads", 1, "-q")
    assert (told.code, told.out) == (0, f"2 new nodes, rows of 8 numbers: {tmp_path / 'rows'}\n")
    found = load_embeddings(tmp_path / "rows")
    assert found.node_ids.tolist() == [7, 3000]
    ends = np.array([7, 1, 3000]), np.array([0, 7, 7])
    assert np.array_equal(ge.infer(old, ends, num_threads=1).weights, found.weights)
    assert not np.array_equal(ge.infer(old, ends, num_threads=1, seed=1).weights, found.weights)
    rows = load_embeddings(old).weights
    mean = ge.infer(old, ends, epochs=0)
    assert np.array_equal(
        mean.weights, np.repeat(rows[:2].astype(np.float64).mean(0, keepdims=True), 2, 0).astype("f4")
    )
    assert not np.array_equal(mean.weights, found.weights)
    assert {path: path.read_bytes() for path in before} == before
    monkeypatch.chdir(old)
    assert cli("infer", ".", "--edges", new, "--threads", 1).code == 0
    beside = old.with_name(f"{old.name}-infer")
    assert np.array_equal(np.load(beside / "embeddings.npy"), np.load(tmp_path / "rows" / "embeddings.npy"))
    refused = cli("infer", old, "--edges", new, "--out", tmp_path / "rows")
    assert (refused.code, "overwrite" in refused.err, refused.err) == (2, True, refused.err)
    assert cli("infer", old, "--edges", new, "--out", tmp_path / "rows", "--overwrite", "--epochs", 0).code == 0


def test_infer_leaves_a_run_as_it_is_and_refuses_what_has_no_effect(
    old: Path, new: Path, tmp_path: Path, cli: Callable[..., Outcome]
) -> None:
    """``--out RUN --overwrite`` put the rows of the new nodes in the place of the run's."""
    before = {path: path.read_bytes() for path in old.iterdir() if path.is_file()}
    said = cli("infer", old, "--edges", new, "--out", old, "--overwrite").err
    assert "is a run folder, which holds rows of its own; give another folder for the new ones" in said
    assert {path: path.read_bytes() for path in before} == before
    for options, message in (
        ({"epochs": 1.5}, "epochs is 1.5; it must be an integer"),
        ({"formats": ["pt"]}, r"formats=\['pt'\], overwrite=False have no effect without out"),
        ({"overwrite": True}, "overwrite=True have no effect without out"),
    ):
        with pytest.raises(ge.ConfigError, match=message):
            ge.infer(old, new, **options)  # type: ignore[arg-type]


def test_the_old_data_set_is_read_once_where_it_grows(
    old: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, read_first = [], inputs._read_first
    monkeypatch.setattr(inputs, "_read_first", lambda *args: read.append(args[0].name) or read_first(*args))
    later = write(tmp_path / "later.csv", [(20, 3000), (21, 0)])
    ge.continue_run(old, new, out=tmp_path / "two", report="none")
    assert len(read) == 1
    third = ge.continue_run(tmp_path / "two", later, report="none")
    assert len(read) == 2
    assert third.embeddings is not None
    assert third.embeddings.node_ids.tolist() == [*range(6), *range(10, 16), 7, 3000, 20, 21]
    whole = write(tmp_path / "all.csv", [*clique(0), *clique(10), (7, 0), (1, 7), (3000, 7), (20, 3000), (21, 0)])
    again = ge.continue_run(tmp_path / "two", dataset=whole, report="none", new_edges=None)
    assert len(read) == 4  # another file
    assert again.embeddings is not None
    assert set(again.embeddings.node_ids.tolist()) == set(third.embeddings.node_ids.tolist())


def test_the_command_goes_on(old: Path, new: Path, tmp_path: Path, cli: Callable[..., Outcome]) -> None:
    words = ["train", "deepwalk", "--from", old, "--new-edges", new, "--no-eval", "-q"]
    assert cli(*words, "--out", tmp_path / "next", "--threads", 1, "model.reach=1").code == 0
    assert read_metrics(tmp_path / "next")["train"]["continued"]["starts"] == 4
    python = ge.continue_run(old, new, reach=1, evaluate=False)
    assert python.embeddings is not None
    assert np.array_equal(load_embeddings(tmp_path / "next").weights, python.embeddings.weights)
    fresh = ["train", "deepwalk", "--dataset", tmp_path / "old.csv", "--new-edges", new, "--no-eval", "-q"]
    assert cli(*fresh, "--out", tmp_path / "fresh", "model.dim=4").code == 0
    assert load_embeddings(tmp_path / "fresh").weights.shape == (14, 4)
    for more, said in (
        (["--config", "x.yaml"], "--config x.yaml and --from"),
        (["model.dim=4"], "model.dim = 4: the run that goes on has 8"),
        (["dataset.hold_out=0.5"], "other edges of the grown graph would be held out"),
        (["model.warm_start=prone"], "both give first rows; take one"),
    ):
        refused = cli(*words, "--out", tmp_path / "no", *more)
        assert refused.code == 2
        assert said in refused.err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("fields", "width"),
    [({}, 16), ({"tables": 1}, 8), ({"keep_context": False}, 8), ({"context": "concat"}, 16)],
)
def test_the_disk_is_asked_for_the_context_rows_too(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], width: int
) -> None:
    """A run whose rows found room ended at its end where the context rows did not."""
    asked: list[int] = []
    monkeypatch.setattr("graph_emb.core.storage.check_space", lambda folder, num_bytes, what: asked.append(num_bytes))
    out = tmp_path / "checked"
    ge.pipeline("deepwalk", tmp_path / "old.csv", out=out, report="none", **{**OPTIONS, **fields})
    assert asked == [12 * width * 4]
    context = np.load(out / CONTEXT).nbytes if (out / CONTEXT).exists() else 0
    assert load_embeddings(out).weights.nbytes + context == asked[0]


def test_one_table_goes_on(tmp_path: Path, old: Path, new: Path) -> None:
    run = ge.pipeline("node2vec", tmp_path / "old.csv", out=tmp_path / "one", report="none", tables=1, **OPTIONS)
    assert not (tmp_path / "one" / CONTEXT).exists()
    found = ge.continue_run(tmp_path / "one", new)
    assert run.embeddings is not None
    assert found.embeddings is not None
    assert OldRun.read(tmp_path / "one").context is None
    assert np.array_equal(OldRun.read(tmp_path / "one").token, run.embeddings.weights)
    assert found.embeddings.weights.shape == (14, 8)
    assert ge.infer(tmp_path / "one", new).weights.shape == (2, 8)


@pytest.mark.parametrize("context", ["concat", "add"])
def test_combined_rows_are_taken_apart(context: str, tmp_path: Path, old: Path, new: Path) -> None:
    plain = OldRun.read(old)
    ge.pipeline("deepwalk", tmp_path / "old.csv", out=tmp_path / context, report="none", context=context, **OPTIONS)
    found = OldRun.read(tmp_path / context)
    assert found.context is not None
    assert plain.context is not None
    assert np.allclose(found.token, plain.token, rtol=0, atol=1e-7)
    assert np.array_equal(found.context, plain.context)


LINE: dict[str, Any] = {"dim": 8, "draws_per_edge": 20, "threads": 1, "evaluate": False, "report": "none"}


@pytest.mark.parametrize("fields", [{}, {"order": "first"}, {"order": "second", "normalize": False}], ids=str)
def test_line_goes_on_with_the_rows_that_were_trained(tmp_path: Path, new: Path, fields: dict[str, Any]) -> None:
    edges = write(tmp_path / "line.csv", clique(0) + clique(10))
    old = ge.pipeline("line", edges, out=tmp_path / "line", **LINE, **fields)
    assert old.embeddings is not None
    run = OldRun.read(tmp_path / "line")
    rows, orders = run.token.reshape(12, 2 if not fields else 1, -1), run.config.model.orders
    if fields.get("normalize", True):
        lengths = np.linalg.norm(rows, axis=2)
        assert not np.allclose(lengths, 1.0, atol=0.1)
        assert np.allclose((rows / lengths[..., None]).reshape(12, 8), old.embeddings.weights, atol=1e-6)
    assert (run.context is None) == ("second" not in orders)
    # At a rate of almost nothing old rows stay, and new ones are their neighbours' mean.
    still = ge.continue_run(tmp_path / "line", new, out=tmp_path / "still", lr=1e-9, report="none")
    then = OldRun.read(tmp_path / "still")
    places = then.graph.find_nodes(run.graph.ids_of(np.arange(12)))
    assert np.allclose(then.token[places], run.token, atol=1e-5)
    seven, far = then.token[then.graph.find_nodes(np.array([7, 3000]))]
    assert np.allclose(seven, run.token[:2].mean(axis=0), atol=1e-5)
    assert np.allclose(far, seven, atol=1e-5)
    told = {"new_nodes": 2, "changed_arcs": 0, "starts": 2}
    assert still.metrics["train"]["continued"] == told
    assert still.metrics["train"]["edges"] == 20 * 3 * len(orders)  # the three new edges alone
    moved = ge.continue_run(tmp_path / "line", new, out=tmp_path / "moved", report="none")
    assert moved.embeddings is not None
    now = OldRun.read(tmp_path / "moved")
    assert not np.allclose(now.token[now.graph.find_nodes(np.array([7]))], seven, atol=1e-3)


def line_with_two(old: Path, new: Path) -> Any:
    parallel = {"mode": "collective", "trainers": 2}
    found = ge.continue_run(old, new, parallel=parallel, lr=1e-9, report="none")
    return None if found.embeddings is None else (found.embeddings.weights, found.metrics["train"])


@pytest.mark.dist
def test_two_trainers_go_on_with_line(ranks: Ranks, tmp_path: Path, new: Path) -> None:
    edges = write(tmp_path / "line.csv", clique(0) + clique(10))
    ge.pipeline("line", edges, out=tmp_path / "line", **LINE)
    (rows, told), _ = ranks.run(line_with_two, 2, tmp_path / "line", new)
    one = ge.continue_run(tmp_path / "line", new, lr=1e-9, report="none")
    assert one.embeddings is not None
    assert np.allclose(rows, one.embeddings.weights, atol=1e-5)
    assert told["edges"] == one.metrics["train"]["edges"] == 120


def test_what_line_lacks_to_go_on_is_told(tmp_path: Path, new: Path) -> None:
    edges = write(tmp_path / "line.csv", clique(0) + clique(10))
    ge.pipeline("line", edges, out=tmp_path / "line", **LINE)
    with pytest.raises(LackingError, match="infer makes rows of deepwalk and node2vec; continue_run goes on with line"):
        ge.infer(tmp_path / "line", new)
    with pytest.raises(ConfigError, match=r"model\.order = first: the run that goes on has both"):
        ge.continue_run(tmp_path / "line", new, order="first")
    (tmp_path / "line" / LENGTHS).unlink()
    with pytest.raises(LackingError, match=r"has no lengths\.npy, the lengths of the rows with which training goes on"):
        ge.continue_run(tmp_path / "line", new)


def refusals(old: Path, new: Path, tmp_path: Path) -> list[tuple[Callable[[], Any], type[GraphEmbError], str]]:
    other = ge.pipeline("prone", tmp_path / "old.csv", out=tmp_path / "other", report="none", dim=4, evaluate=False)
    lean = ge.pipeline(
        "deepwalk", tmp_path / "old.csv", out=tmp_path / "lean", report="none", keep_context=False, **OPTIONS
    )
    held = ge.pipeline("deepwalk", tmp_path / "old.csv", out=tmp_path / "h", report="none", hold_out=0.1, **OPTIONS)
    (tmp_path / "names.csv").write_text("a,b\n")
    known = write(tmp_path / "known.csv", [(1, 0)])
    return [
        (lambda: ge.continue_run(other.folder, new), ConfigError, "from_run"),  # type: ignore[arg-type]
        (lambda: ge.infer(other.folder, new), LackingError, "a run of prone does not go on"),  # type: ignore[arg-type]
        (lambda: ge.infer(lean.folder, new), LackingError, "has no context.npy"),  # type: ignore[arg-type]
        (lambda: ge.infer(held.folder, new), LackingError, "hold_out = 0.1 keeps other"),  # type: ignore[arg-type]
        (lambda: ge.infer(tmp_path, new), ConfigError, "is no run folder"),
        (lambda: ge.continue_run(tmp_path, new), ConfigError, "is no run folder"),
        (lambda: ge.infer(old, known), ConfigError, "there is nothing to train"),
        (lambda: ge.infer(old, new, epochs=-1), ConfigError, "epochs is -1"),
        (lambda: ge.infer(old, tmp_path / "names.csv"), DataError, "ids='str'"),
        (lambda: ge.continue_run(old, known), ConfigError, "there is nothing to train"),
        (lambda: ge.pipeline("deepwalk", tmp_path / "old.csv", reach=2), ConfigError, "no effect without from_run"),
    ]


def test_what_is_no_change_is_told_as_it_is(old: Path, new: Path, tmp_path: Path, cli: Callable[..., Outcome]) -> None:
    """A new edge of old nodes was none to infer, and another model was told that it lacks the run's fields."""
    edge = write(tmp_path / "edge.csv", [(0, 15)])
    with pytest.raises(ConfigError, match="the graph has no node that the run did not have"):
        ge.infer(old, edge)
    said = cli("train", "line", "--from", old, "--new-edges", new, "--out", tmp_path / "line")
    assert (said.code, f"line cannot go on with --from {old}, a run of deepwalk; leave" in said.err) == (2, True)


def test_a_run_is_never_replaced_by_the_one_that_goes_on_from_it(
    old: Path, new: Path, tmp_path: Path, cli: Callable[..., Outcome]
) -> None:
    """``--overwrite`` put the new run in its place, with a configuration that goes on from itself."""
    before = (old / "config.yaml").read_bytes()
    (tmp_path / "link").symlink_to(old)
    for out in (old, tmp_path / "link"):
        for options in ([], ["--overwrite"]):
            said = cli("train", "--from", old, "--new-edges", new, "--out", out, *options)
            assert (said.code, f"{old} is the run that goes on" in said.err) == (2, True), said.err
    assert (old / "config.yaml").read_bytes() == before


def test_what_does_not_go_on_is_told(old: Path, new: Path, tmp_path: Path) -> None:
    for call, error, match in refusals(old, new, tmp_path):
        with pytest.raises(error, match=match):
            call()
    write(tmp_path / "old.csv", [*clique(0), *clique(20)])
    with pytest.raises(DataError, match="of other nodes than those of"):
        ge.infer(old, new)


def go_on_with_two(old: Path, new: Path) -> Any:
    parallel = {"mode": "collective", "trainers": 2}
    found = ge.continue_run(old, new, parallel=parallel, rule="adagrad", evaluate=False)
    return None if found.embeddings is None else (found.embeddings, found.metrics["train"]["continued"])


@pytest.mark.dist
def test_two_trainers_go_on_as_one(ranks: Ranks, old: Path, new: Path) -> None:
    (rows, told), _ = ranks.run(go_on_with_two, 2, old, new)
    one = ge.continue_run(old, new, rule="adagrad", evaluate=False)
    assert one.embeddings is not None
    assert told == one.metrics["train"]["continued"]
    assert np.array_equal(rows.node_ids, one.embeddings.node_ids)
    assert np.array_equal(rows.weights[6:12], one.embeddings.weights[6:12])
    assert np.allclose(rows.weights, one.embeddings.weights, rtol=0, atol=0.3)  # the cut renumbers nodes: other walks
    assert (rows.weights[12:] != load_embeddings(old).weights[:1]).all()
