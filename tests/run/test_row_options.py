"""Every option of the tables and of their exchange, said by a run of every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.cli.main import main
from graph_emb.config import MODELS, config_from
from graph_emb.models.settings import OF_ROWS
from graph_emb.models.skipgram import training as skipgram
from tests.graph.test_datasets import write_dbis
from tests.models.kge.references import ring
from tests.ogb_layout import write_ddi, write_mag
from tests.ranks import Ranks

pytestmark = pytest.mark.usefixtures("fresh_mode")

STEPS: dict[str, Any] = {"rule": "adam", "batch_size": 16, "threads": 1, "dim": 4, "evaluate": False, "epochs": 2}
WALKS = {**STEPS, "num_walks": 1, "walk_length": 5}
NETWORK = {**STEPS, "hidden_dim": 4, "eval_every": 1}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepwalk": ("ogbl-ddi", WALKS),
    "node2vec": ("ogbl-ddi", WALKS),
    "line": ("ogbl-ddi", {**STEPS, "order": "second", "draws_per_edge": 1}),
    "mf": ("ogbl-ddi", {"rule": "adam", "dim": 4, "threads": 1, "predictor.hidden_dim": 32, "predictor.epochs": 5}),
    "metapath2vec": ("dbis", {**WALKS, "metapath": "author-paper-author"}),
    "transe": ("ring", {**STEPS, "num_negatives": 4, "chunk_size": 2, "batch_size": 8, "valid_every": 0}),
    "rgcn": ("ogbn-mag", {**NETWORK, "ema_decay": 0.5}),
    "sage": ("ogbl-ddi", NETWORK),
}
"""A run of a model of every family that trains rows: its data set, its settings."""
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "weight_decay": ({}, {"train.weight_decay": 0.5}),
    "weight_decay_mode": ({"train.weight_decay": 0.5}, {"weight_decay_mode": "lazy"}),
    "clip_value": ({"rule": "adagrad", "eps": 1.0}, {"clip_value": 1e-4}),
    "clip_row_norm": ({"rule": "adagrad", "eps": 1.0}, {"clip_row_norm": 1e-4}),
    "clip_row_ratio": ({"rule": "adagrad", "eps": 1.0}, {"clip_row_ratio": 1e-3}),
    "clip_row_least": ({"rule": "adagrad", "eps": 1.0, "clip_row_ratio": 1e-6}, {"clip_row_least": 1e-2}),
    "max_norm": ({}, {"max_norm": 0.1}),
    "count_power": ({}, {"count_rows": True, "count_power": 0.5}),
    "dtype": ({}, {"dtype": "bfloat16"}),
    "state_dtype": ({}, {"state_dtype": "bfloat16"}),
    "stochastic_rounding": ({"dtype": "bfloat16"}, {"stochastic_rounding": True}),
}
"""What a run says without an option, and what it says more to set it."""
ALL: dict[str, Any] = {
    "dtype": "bfloat16", "stochastic_rounding": True, "state_dtype": "bfloat16", "count_rows": True, "count_power": 0.5,
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data sets of ``RUNS``."""
    folder = tmp_path_factory.mktemp("root")
    write_ddi(folder)
    write_mag(folder)
    write_dbis(folder / "dbis")
    (folder / "ring").mkdir()
    for part, triples in ring().parts.items():
        (folder / "ring" / f"{part}.txt").write_text("".join("\t".join(map(str, t)) + "\n" for t in triples.tolist()))
    return folder


def rows_of(model: str, root: Path, **more: Any) -> np.ndarray | None:
    """All rows of a run, tables one after the other; None on ranks other than the first."""
    dataset, settings = RUNS[model]
    result = ge.pipeline(model, dataset, root=root, **{**settings, **more})
    if result.embeddings is None:
        return None
    return np.concatenate([table.weights.ravel() for table in result.tables.values()])


def test_every_option_has_a_case_and_every_family_a_run() -> None:
    assert {*CASES, "count_rows"} == {*OF_ROWS, "dtype"}
    families = {settings.family for settings in MODELS.values()}
    assert {MODELS[name].family for name in RUNS} == families - {"spectral"}, "it has no rows that learn"


@pytest.mark.parametrize("model", RUNS)
def test_every_option_changes_the_rows_of_every_family(model: str, root: Path) -> None:
    plain: dict[str, np.ndarray | None] = {}
    for name, (before, more) in CASES.items():
        if str(before) not in plain:
            plain[str(before)] = rows_of(model, root, **before)
        rows, without = rows_of(model, root, **before, **more), plain[str(before)]
        assert rows is not None
        assert without is not None
        assert rows.dtype == np.float32
        assert np.isfinite(rows).all(), name
        assert not np.array_equal(rows, without), name
    one, other = (rows_of(model, root, **ALL, seed=seed) for seed in (1, 1))
    assert one is not None
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("model", [name for name in RUNS if name != "rgcn"])
def test_saved_rows_are_those_of_a_table_of_16_bits(model: str, root: Path) -> None:
    """But for averages (rgcn here), and LINE's rows, which are scaled to length 1 after the training."""
    more = {"normalize": False} if model == "line" else {}
    rows = rows_of(model, root, dtype="bfloat16", **more)
    assert rows is not None
    assert not (rows.view(np.uint32) & 0xFFFF).any(), "a float32 whose lower half is 0 is a bfloat16"


def wired_runs(root: str, models: list[str]) -> dict[str, list[np.ndarray | None]]:
    found = {}
    for model in models:
        name, _, rule = model.partition(" by ")
        options: dict[str, Any] = {"mode": "collective", "trainers": 2, "parallel.method": "random", "hogwild": False}
        options["epochs"] = 1
        options |= {"rule": rule, "batch_size": None} if rule else {}
        found[model] = [
            rows_of(name, Path(root), **options, **({} if wire is None else {"wire_dtype": wire}))
            for wire in (None, None, "bfloat16")
        ]
    return found


@pytest.mark.dist
def test_what_ranks_exchange_is_rounded_in_every_family(root: Path, ranks: Ranks) -> None:
    models = [name for name in RUNS if name != "mf"]  # which trains in one process
    models += [f"{name} by sgd" for name in ("deepwalk", "line", "metapath2vec")]  # in place
    found = ranks.run(wired_runs, 2, str(root), models)[0]
    for model in models:
        exact, again, rounded = found[model]
        np.testing.assert_array_equal(exact, again, err_msg=model)
        assert not np.array_equal(exact, rounded), model
        assert np.isfinite(rounded).all(), model


@pytest.mark.parametrize(
    "options",
    [ALL, {"rule": "sgd", "momentum": 0.9, "path": "optimizer"}, {"rule": "sgd", **{**ALL, "state_dtype": None}}],
    ids=["all options", "momentum", "counts of sgd"],
)
@pytest.mark.parametrize("model", [name for name in RUNS if name != "mf"])
def test_a_stopped_run_goes_on_with_its_options(
    model: str, options: dict[str, Any], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of SGD that is not in place (momentum, counts, the clock of rounding) was not saved with walks."""
    if not hasattr(MODELS[model].model_fields.get("path"), "annotation"):
        options = {name: value for name, value in options.items() if name != "path"}
    for limit in ("TOKENS_PER_BATCH", "TOKENS_PER_ROUND"):
        monkeypatch.setattr(skipgram, limit, 16 * RUNS[model][1].get("walk_length", 2))
    saving = {"checkpoint": {"every": 1}, **options}
    saved, save = 0, PeriodicCheckpoints.save

    class Stop(Exception):
        """Stands for whatever ends a process."""

    def counting(self: Any, *given: Any) -> None:
        nonlocal saved
        save(self, *given)
        saved += 1

    def stopping(self: Any, *given: Any) -> None:
        counting(self, *given)
        if saved == most - 1:
            raise Stop

    monkeypatch.setattr(PeriodicCheckpoints, "save", counting)
    whole, most, saved = rows_of(model, root, out=tmp_path / "whole", **saving), saved, 0
    with monkeypatch.context() as patch:
        patch.setattr(PeriodicCheckpoints, "save", stopping)
        with pytest.raises(Stop):
            rows_of(model, root, out=tmp_path / "run", **saving)
    np.testing.assert_array_equal(rows_of(model, root, out=tmp_path / "run", resume=True, **saving), whole)
    assert saved >= most, "steps were left to do"


def test_an_option_may_not_change_where_a_run_goes_on(root: Path, tmp_path: Path) -> None:
    rows_of("deepwalk", root, out=tmp_path / "run", checkpoint={"every": 1}, **ALL)
    more = {**ALL, "dtype": "float32", "stochastic_rounding": False}
    with pytest.raises(ge.ConfigError, match=r"model\.dtype = 'bfloat16', this one has 'float32'"):
        rows_of("deepwalk", root, out=tmp_path / "run", overwrite=True, resume=True, **more)


def test_rounding_by_chance_follows_the_seed_of_the_run() -> None:
    sections = {"model": {"name": "deepwalk", "dtype": "bfloat16"}, "dataset": {"name": "any"}}
    made = config_from(sections, {"train": {"rule": "adam", "stochastic_rounding": True}})
    assert made.model.numbers(7) == {"stochastic_rounding": True, "rounding_seed": 7}
    assert "rounding_seed" not in config_from(sections, {"train": {"rule": "adam"}}).model.numbers(7)


COLLECTIVE = {"mode": "collective", "trainers": 2}


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("deepwalk", {"clip_row_ratio": 1.0}, "clip_row_ratio has no effect on sgd in place; set path=optimizer"),
        ("line", {"count_rows": True}, "count_rows has no effect on sgd in place; set path=optimizer"),
        ("deepwalk", {"stochastic_rounding": True}, "stochastic_rounding has no effect on rows of float32"),
        ("transe", {"stochastic_rounding": True}, "stochastic_rounding has no effect on rows of float32"),
        ("sage", {"rule": "sgd", "state_dtype": "bfloat16"}, "state_dtype has no effect on rule=sgd without momentum"),
        ("rgcn", {"clip_row_least": 1.0}, "clip_row_least = 1.0 has no effect without a clip_row_ratio"),
        ("mf", {"count_power": 1.0}, "count_power = 1.0 needs count_rows = True"),
        ("transe", {"count_rows": True}, r"train\.count_rows has no effect while nothing is saved"),
        ("transe", {"wire_dtype": "bfloat16"}, "wire_dtype has no effect on one process; set mode=collective"),
        ("mf", {"wire_dtype": "bfloat16"}, "wire_dtype has no effect on one process"),
        ("sage", {"wire_dtype": "bfloat16", "mode": "collective"}, "wire_dtype has no effect on one trainer"),
        (
            "transe",
            {"wire_dtype": "int8", **COLLECTIVE},
            r"parallel\.wire_dtype = int8 is for walks by sgd in place",
        ),
        ("transe", {"state_dtype": "float16"}, r"train\.state_dtype = 'float16': should be 'bfloat16'"),
        ("transe", {"dtype": "int8"}, r"model\.dtype = 'int8': should be 'float32', 'float16' or 'bfloat16'"),
    ],
)
def test_an_option_without_effect_is_refused(model: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ge.ConfigError, match=message):
        ge.pipeline(model, "any", **options)


@pytest.mark.dist
@pytest.mark.usefixtures("warm_starts")
def test_nothing_travels_from_one_machine(root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["train", "deepwalk", "--dataset", "ogbl-ddi", "--root", str(root), "--rule", "adam", "--threads", "1"]
    words += ["--mode", "kvstore", "--no-eval", "--out", str(tmp_path / "run")]
    assert main([*words, "wire_dtype=bfloat16"]) == 2
    assert "parallel.wire_dtype = 'bfloat16' has no effect on one machine" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_command_line_and_yaml_set_them(root: Path, tmp_path: Path) -> None:
    """As key=value, by the name alone, and from a file: the same run."""
    words = [
        "train",
        "transe",
        "--dataset",
        "ring",
        "--root",
        str(root),
        "--threads",
        "1",
        "--dim",
        "4",
        "--epochs",
        "2",
    ]
    words += ["--quiet", "model.num_negatives=4", "model.chunk_size=2", "train.batch_size=8", "model.valid_every=0"]
    said = [f"{name}={str(value).lower()}" for name, value in ALL.items()]
    assert main([*words, *said, "--no-eval", "--out", str(tmp_path / "said")]) == 0
    config = tmp_path / "said" / "config.yaml"
    assert main(["train", "--config", str(config), "--quiet", "--out", str(tmp_path / "read")]) == 0
    assert main([*words, "--no-eval", "--out", str(tmp_path / "plain")]) == 0
    said_rows, read_rows, plain = (np.load(tmp_path / n / "embeddings.npy") for n in ("said", "read", "plain"))
    np.testing.assert_array_equal(said_rows, read_rows)
    assert not np.array_equal(said_rows, plain)
