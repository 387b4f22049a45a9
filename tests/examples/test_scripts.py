"""Every script of examples/ogb, run whole on a tiny data set in OGB's layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from graph_emb.compat.ogb import metadata
from graph_emb.config import config_from, parse_override
from graph_emb.core.errors import ConfigError
from graph_emb.ogb.recipes import PUBLISHED, text_of
from graph_emb.ogb.record import flat, read_record
from tests.ogb_layout import WRITERS

Example = Callable[[str], ModuleType]

WALKS = ["model.num_walks=4", "model.walk_length=10", "model.dim=8", "train.epochs=10"]
MF = ["model.dim=8", "train.lr=0.05", "predictor.lr=0.02"]
LINK = ["predictor.hidden_dim=16", "predictor.batch_size=64", "predictor.epochs=12", "predictor.eval_every=3"]
LINE = ["model.dim=8", "model.draws_per_edge=50"]
SAGE = ["dim=8", "model.hidden_dim=16", "batch_size=128", "epochs=20", "train.lr=0.02", "model.dropout=0"]
KGE = ["dim=16", "batch_size=32", "chunk_size=16", "num_negatives=8", "epochs=25", "lr=0.02"]
MAG = ["model.dim=128", "model.hidden_dim=16", "train.batch_size=32", "train.epochs=8"]
NODE = ["mlp.hidden_dim=32", "mlp.epochs=60", "mlp.eval_every=5"]

# What each model of each script is run with, and the least that its metric must reach on the test part: chance is
# 0.13 of Hits@20, 0.4 of MRR among 5 and 0.25 of accuracy.
RUNS: dict[tuple[str, str], tuple[list[str], float]] = {
    ("ddi", "deepwalk"): ([*WALKS, *LINK], 0.8),
    ("ddi", "node2vec"): ([*WALKS, *LINK], 0.8),
    ("ddi", "mf"): ([*MF, *LINK, "predictor.epochs=40"], 0.8),
    ("ddi", "sage"): (SAGE, 0.8),
    ("ddi", "pairwise"): (SAGE, 0.8),
    ("collab", "node2vec"): ([*WALKS, *LINK], 0.8),
    ("collab", "deepwalk"): ([*WALKS, *LINK], 0.8),
    ("collab", "mf"): ([*MF, *LINK, "predictor.epochs=40"], 0.8),
    ("ppa", "node2vec"): ([*WALKS, *LINK], 0.8),
    ("ppa", "deepwalk"): ([*WALKS, *LINK], 0.8),
    ("ppa", "mf"): ([*MF, *LINK], 0.8),
    ("citation2", "node2vec"): ([*WALKS, *LINK], 0.8),
    ("citation2", "deepwalk"): ([*WALKS, *LINK], 0.8),
    ("citation2", "mf"): ([*MF, *LINK], 0.8),
    ("vessel", "mf"): ([*MF, *LINK], 0.8),
    ("vessel", "node2vec"): ([*WALKS, *LINK, "predictor.lr=0.02"], 0.8),
    ("arxiv", "deepwalk"): ([*WALKS, *NODE], 0.8),
    ("arxiv", "line"): ([*LINE, *NODE], 0.8),
    ("arxiv", "node2vec"): ([*WALKS, *NODE], 0.8),
    ("products", "line"): ([*LINE, *NODE], 0.8),
    ("products", "node2vec"): ([*WALKS, *NODE, "train.lr=0.1"], 0.8),
    ("proteins", "line"): ([*LINE, *NODE], 0.8),
    ("proteins", "node2vec"): ([*WALKS, *NODE], 0.8),
    **{(name, model): (KGE, 0.6) for name in ("biokg", "wikikg2") for model in ("distmult", "complex")},
    **{(name, "rotate"): ([*KGE, "model.margin=4"], 0.6) for name in ("biokg", "wikikg2")},
    ("biokg", "transe"): ([*KGE, "model.margin=4"], 0.6),
    ("wikikg2", "transe"): ([*KGE, "model.margin=4"], 0.5),  # "of another group" is no translation
    ("mag", "rgcn"): (MAG, 0.8),
    ("mag", "metapath2vec"): (["num_walks=10", "walk_length=20", "model.dim=8", *NODE], 0.6),
}


def run(module: ModuleType, root: Path, out: Path, *words: str) -> int:
    return module.main(["--root", str(root), "--out", str(out), "--threads", "1", *words])


def test_there_is_a_script_for_every_data_set_and_a_run_for_every_model(example: Example) -> None:
    names = {name.partition("-")[2] for name in WRITERS}
    scripts = {path.stem for path in (Path(__file__).resolve().parents[2] / "examples" / "ogb").glob("*.py")}
    assert scripts == names
    assert {(name, model) for name in names for model in example(name).SCRIPT.recipes} == set(RUNS)


@pytest.mark.parametrize(("name", "model"), RUNS)
def test_a_model_learns_and_leaves_a_record(
    example: Example, ogb_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, model: str
) -> None:
    module = example(name)
    settings, least = RUNS[name, model]
    assert run(module, ogb_root, tmp_path, "--model", model, "--seeds", "3", "--set", *settings) == 0
    printed = capsys.readouterr().out
    dataset = module.SCRIPT.dataset
    for row in PUBLISHED[dataset]:
        assert f"{row.method}, published" in printed
        assert text_of(row.test) in printed
    record = read_record(tmp_path / model / "seed-3.json")
    assert (record.dataset, record.model, record.seed, record.embedding_seed) == (dataset, model, 3, 3)
    result = record.finished()
    assert result.metric == metadata(dataset).eval_metric
    assert result.selected_on == "valid"
    assert f"{sum(result.parameters.values()):,}" in printed
    assert result.scores[result.metric].test >= least
    assert record.command.startswith(f"python examples/ogb/{name}.py --root ")


@pytest.mark.parametrize("name", [name.partition("-")[2] for name in WRITERS])
def test_missing_data_is_one_line_and_exit_code_2(
    example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run(example(name), tmp_path, tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert name in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", sorted({name for name, _ in RUNS}))
def test_every_setting_refuses_another_type(example: Example, name: str) -> None:
    """Settings that are None by default took anything, and failed in the training."""
    for recipe in example(name).SCRIPT.recipes.values():
        for path in set(flat(config_from(recipe).sections())) - {"evaluate.predictor", "evaluate.mlp"}:  # of settings
            field = path.rpartition(".")[2]
            with pytest.raises(ConfigError, match=rf"{field}(\.bool)?: should be|unknown model {{}}"):
                config_from(recipe, parse_override(f"{path}={{}}"))


def test_parameters_of_all_stages_are_counted(example: Example, ogb_root: Path, tmp_path: Path) -> None:
    """ogbn-arxiv: one table of 90 rows beside 128 features. ogbl-ddi: two tables of 40 rows, whose sum is seen."""
    words = ["--seeds", "0", "--set", "model.dim=8"]
    small = ["model.num_walks=1", "mlp.epochs=2"]
    assert run(example("arxiv"), ogb_root, tmp_path / "a", "--model", "node2vec", *words, *small) == 0
    mlp = ((128 + 8) * 256 + 256) + (256 * 256 + 256) + (256 * 40 + 40) + 2 * 2 * 256  # two batch norms
    counts = read_record(tmp_path / "a" / "node2vec" / "seed-0.json").finished().parameters
    assert counts == {"embedding": 90 * 8, "mlp": mlp}
    small = ["model.num_walks=1", "predictor.epochs=5"]
    assert run(example("ddi"), ogb_root, tmp_path / "b", "--model", "deepwalk", *words, *small) == 0
    network = (8 * 256 + 256) + (256 * 256 + 256) + (256 + 1)
    counts = read_record(tmp_path / "b" / "deepwalk" / "seed-0.json").finished().parameters
    assert counts == {"embedding": 2 * 40 * 8, "link predictor": network}


def test_published_parameters_are_those_of_the_recipes(example: Example) -> None:
    """From the sizes of the real data sets: rows of the table, features, outputs."""
    sizes = {"collab": (235_868, 128), "ppa": (576_289, 58), "citation2": (2_927_963, 128)}
    for name, (num_nodes, num_features) in sizes.items():
        recipe = config_from(example(name).SCRIPT.recipes["node2vec"])
        assert recipe.evaluate.predictor is not None
        dim, hidden = recipe.model.dim, recipe.evaluate.predictor.hidden_dim
        network = ((dim + num_features) * hidden + hidden) + (hidden * hidden + hidden) + (hidden + 1)
        (row,) = [row for row in PUBLISHED[f"ogbl-{name}"] if row.method == "node2vec"]
        assert num_nodes * dim + network == row.parameters


def test_training_on_validation_edges_is_on_record(example: Example, ogb_root: Path, tmp_path: Path) -> None:
    words = ["--seeds", "0", "--set", "validation_edges=trained on", *WALKS, *LINK]
    assert run(example("collab"), ogb_root, tmp_path, *words) == 0
    record = read_record(tmp_path / "node2vec" / "seed-0.json")
    assert record.validation_edges == "trained on"
    assert list(record.finished().scores) == ["hits@50"]


def test_the_json_holds_the_table_and_the_records(example: Example, ogb_root: Path, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "numbers.json"
    words = ["--model", "mf", "--seeds", "0", "1", "--json", str(path), "--set", *MF, *LINK]
    assert run(example("ddi"), ogb_root, tmp_path / "out", *words) == 0
    numbers = json.loads(path.read_text())
    entry = numbers["models"]["mf"]
    values = [run["result"]["scores"]["hits@20"]["test"] for run in entry["runs"]]
    assert entry["scores"]["hits@20"]["test"]["mean"] == pytest.approx(sum(values) / 2)
    assert entry["scores"]["hits@20"]["test"]["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert entry["runs"][0]["result"]["history"] != entry["runs"][1]["result"]["history"]
    assert numbers["published"][0]["method"] == "DeepWalk"


@pytest.mark.data
def test_the_real_arxiv_runs(example: Example, shared_data: Path, tmp_path: Path) -> None:
    walks = ["model.num_walks=1", "model.walk_length=10", "model.dim=8"]
    mlp = ["mlp.hidden_dim=16", "mlp.epochs=30", "mlp.dropout=0"]
    assert run(example("arxiv"), shared_data, tmp_path, "--seeds", "0", "--set", *walks, *mlp) == 0
    result = read_record(tmp_path / "deepwalk" / "seed-0.json").finished()
    assert result.parameters == {"embedding": 2 * 169_343 * 8, "mlp": 144 + 272 + 680 + 64}
    assert 0.05 < result.scores["acc"].test < 0.5  # one class in forty is 0.025
