"""Trainers of one machine share rows in place unless something needs the exchange; a run says and keeps the choice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graph_emb as ge
from graph_emb.checkpoint import manifest as manifests
from graph_emb.cli.train import is_finished
from graph_emb.config import RunConfig, config_from, config_text
from graph_emb.models.skipgram.config import PlainWalkConfig
from graph_emb.run import sharing
from graph_emb.run.cost import WalkLoad
from graph_emb.run.family import family_of
from graph_emb.run.run_folder import CONFIG, METRICS
from graph_emb.run.sharing import Travel
from graph_emb.transport.link import Link
from graph_emb.transport.process_group import SHARED_VARIABLE
from tests.models.kge.references import ring
from tests.ranks import Ranks, with_shared_memory

TWO: dict[str, Any] = {"mode": "collective", "trainers": 2}
SERVED: dict[str, Any] = {"mode": "kvstore", "trainers": 2, "servers": 1}
LAZY = "train.weight_decay_mode=lazy needs every trainer in every step"
ALL = "model.training=kvsall changes every row in every step"
SMALL: dict[str, Any] = {"num_walks": 1, "walk_length": 6, "dim": 4, "lr": 0.05, "threads": 1, "evaluate": False}


def config_of(model: Any = "deepwalk", parallel: dict[str, Any] | None = None, **train: Any) -> RunConfig:
    return config_from({"model": model, "dataset": "digits", "parallel": parallel or {}, "train": train})


@pytest.mark.parametrize(
    ("config", "wish", "why"),
    [
        (config_of(parallel=TWO), None, "one machine holds them all"),
        (config_of("line", TWO), None, "one machine holds them all"),
        (config_of("metapath2vec", {**TWO, "hogwild": "auto"}), None, "one machine holds them all"),
        (config_of(parallel=SERVED), None, "one machine holds them all"),
        (config_of(parallel={**TWO, "partition": "parts"}), None, "one machine holds them all"),
        (config_of(parallel={**TWO, "hogwild": True}), True, ""),
        (config_of(parallel={**TWO, "hogwild": False}), False, ""),
        (config_of(parallel={**TWO, "overlap": True}), False, "parallel.overlap is given"),
        (config_of(parallel={**TWO, "exchange_walks": 9}), False, "parallel.exchange_walks is given"),
        (config_of(parallel={**TWO, "reduction": "sum"}), False, "parallel.reduction is given"),
        (config_of(parallel={**TWO, "negative_pool": 9}), False, "parallel.negative_pool is given"),
        (config_of(parallel={**SERVED, "negative_pool": 9}), False, "parallel.negative_pool is given"),
        (config_of(parallel={**TWO, "remote_negatives": 9}), False, "parallel.remote_negatives is given"),
        (config_of(parallel=TWO, rule="adam"), False, ""),
        (config_of(parallel=SERVED, path="optimizer"), False, ""),
        (config_of("transe", TWO), None, "one machine holds them all"),
        (config_of("complex", {**TWO, "partition": "parts"}), None, "one machine holds them all"),
        (config_of("transe", {**TWO, "hogwild": True}), True, ""),
        (config_of("transe", {**TWO, "hogwild": False}), False, ""),
        (config_of("transe", SERVED), False, ""),
        (config_of("transe", {**TWO, "wire_dtype": "bfloat16"}), False, "parallel.wire_dtype is given"),
        (config_of("transe", TWO, memory="1GiB"), False, "train.memory is given, and rows in files are not shared"),
        (config_of("transe", TWO, weight_decay=0.1, weight_decay_mode="lazy"), False, LAZY),
        (config_of({"name": "complex", "training": "kvsall"}, TWO), False, ALL),
        (config_of("rgcn", TWO), False, ""),
        (config_of(parallel={**TWO, "trainers": 1}), False, ""),
        (config_of(parallel={**SERVED, "trainers": 1}), False, ""),
    ],
)
def test_walks_by_sgd_and_triples_ask_to_share_where_nothing_needs_an_exchange(
    config: RunConfig, wish: bool | None, why: str
) -> None:
    assert sharing.asked(config) == (wish, why)


def test_a_run_that_goes_on_shares_rows_as_before_unless_told() -> None:
    auto, told = config_of(parallel=TWO), config_of(parallel={**TWO, "hogwild": True})
    assert sharing.asked(auto, False) == (False, "the run did so before its checkpoint")
    assert sharing.asked(auto, True)[0] is None
    assert sharing.asked(told, False) == (True, "")
    assert sharing.asked(config_of(parallel={**TWO, "overlap": True}), True)[0] is False


@pytest.mark.parametrize(
    ("wish", "hogwild", "said"),
    [
        (None, True, "trainers change the same rows in place, because one machine holds them all, so that a seed does"),
        (None, False, "trainers exchange rows, because they are on several machines, or share no memory"),
        (False, False, "trainers exchange rows, because parallel.overlap is given"),
    ],
)
def test_the_choice_is_kept_and_said(wish: bool | None, hogwild: bool, said: str) -> None:
    why = "one machine holds them all" if wish is None else "parallel.overlap is given"
    config, line = sharing.settled(config_of(parallel=TWO), wish, why, hogwild)
    assert config.parallel.hogwild is hogwild
    assert line.startswith(f"parallel.hogwild=auto: {said}")
    assert config_from(config.sections()) == config


def test_what_was_given_or_has_no_effect_is_not_said() -> None:
    for parallel in ({**TWO, "hogwild": True}, {**TWO, "hogwild": False}):
        config = config_of(parallel=parallel)
        assert sharing.settled(config, parallel["hogwild"], "", parallel["hogwild"]) == (config, "")
    assert sharing.settled(config_of("rgcn", TWO), False, "", False) == (config_of("rgcn", TWO), "")


LOADED = [WalkLoad(PlainWalkConfig(num_walks=3), 169_343, 2_315_598, 3 * 169_343, 40)]
"""DeepWalk on a graph of ogbn-arxiv's size."""


@pytest.mark.parametrize(
    ("config", "may"),
    [
        (config_of(parallel=TWO), True),
        (config_of(parallel={**TWO, "wire_dtype": "auto", "overlap": True}), True),
        (config_of(parallel={**TWO, "wire_dtype": "float32", "overlap": False}), False),
        (config_of(parallel={**TWO, "wire_dtype": "float16", "overlap": True}), False),
        (config_of("line", {**TWO, "hogwild": False}), True),
        (config_of(parallel={**TWO, "hogwild": True}), False),
        (config_of(parallel={**TWO, "wire_dtype": "float32"}), True),
        (config_of(parallel={**TWO, "wire_dtype": "float16"}), True),
        (config_of(parallel=SERVED), False),
        (config_of(parallel=TWO, rule="adam"), False),
        (config_of(parallel=TWO, path="optimizer"), False),
        (config_of("transe", TWO), False),
        (config_of("rgcn", TWO), False),
    ],
)
def test_how_rows_travel_is_open_where_ranks_train_copies_of_them(config: RunConfig, may: bool) -> None:
    assert sharing.travels_openly(config) is may


def test_rows_are_rounded_where_the_wire_is_a_large_part_of_the_training() -> None:
    config = config_of(parallel=TWO, threads=1)
    chosen, line = sharing.travel(config, Link(40.0), 1, LOADED)
    assert chosen == ("float32", False)
    assert re.fullmatch(
        r"parallel\.wire_dtype=auto, parallel\.overlap=auto: rows travel as float32, because a link of 40 Gb/s would "
        r"take some [34]% of the training as float32 \(rounding begins at 5%\)",
        line,
    )
    chosen, line = sharing.travel(config, Link(10.0), 1, LOADED)
    assert chosen == ("int8", False)
    assert line.endswith("of the training as float32 (parallel.wire_dtype=float32: they are not rounded)")
    assert sharing.travel(config, Link(40.0), 8, LOADED)[0] == ("int8", False), "eight trainers share the link"


def test_rows_travel_while_trainers_train_where_the_wire_is_a_large_part_of_it_even_so() -> None:
    chosen, line = sharing.travel(config_of(parallel=TWO, threads=1), Link(1.0), 1, LOADED)
    assert chosen == ("int8", True)
    assert "rows travel as int8, while trainers train, because a link of 1 Gb/s would take some 5" in line
    assert line.endswith("not rounded; parallel.overlap=false: they are waited for)")
    for given, expected, said in (
        ({"wire_dtype": "bfloat16"}, ("bfloat16", True), "parallel.overlap=auto: rows travel as bfloat16, while"),
        ({"overlap": False}, ("int8", False), "parallel.wire_dtype=auto: rows travel as int8, because"),
        (
            {"overlap": True, "wire_dtype": "auto"},
            ("int8", True),
            "parallel.wire_dtype=auto: rows travel as int8, while",
        ),
    ):
        chosen, line = sharing.travel(config_of(parallel={**TWO, **given}, threads=1), Link(1.0), 1, LOADED)
        assert (chosen, line[: len(said)]) == (expected, said)


def test_what_is_trained_follows_from_the_data(tmp_path: Path) -> None:
    """Seven nodes and six edges; LINE trains two orders one after the other, each of half the width."""
    (tmp_path / "star.tsv").write_text("".join(f"0\t{leaf}\n" for leaf in range(1, 7)))
    found = {}
    for model, settings in (("deepwalk", {"num_walks": 3, "walk_length": 9}), ("line", {"draws_per_edge": 5})):
        sections = {"model": {"name": model, "dim": 8, **settings}, "train": {"epochs": 2}}
        family = family_of(config_from({**sections, "dataset": str(tmp_path / "star.tsv")}))
        found[model] = family.walk_loads(family.load())
    (walks,) = found["deepwalk"]
    assert (walks.num_nodes, walks.num_arcs, walks.num_walks, walks.walk_length) == (7, 12, 2 * 3 * 7, 9)
    assert [(one.config.dim, one.config.tables) for one in found["line"]] == [(4, 1), (4, 2)]
    assert {(one.num_nodes, one.num_arcs, one.num_walks, one.walk_length) for one in found["line"]} == {
        (7, 12, 2 * 5 * 6, 2)
    }


def test_a_run_that_goes_on_sends_rows_as_before() -> None:
    for before in (Travel("float32", True), Travel("bfloat16", False), Travel("int8", True)):
        chosen, line = sharing.travel(config_of(parallel=TWO), Link(3.0), 1, LOADED, before)
        assert (chosen, "because the run did so before its checkpoint" in line) == (before, True)
        given = config_of(parallel={**TWO, "overlap": not before.overlap})
        assert sharing.travel(given, Link(3.0), 1, LOADED, before)[0] == (before.wire_dtype, not before.overlap)
        given = config_of(parallel={**TWO, "wire_dtype": "float16"})
        assert sharing.travel(given, Link(3.0), 1, LOADED, before)[0] == ("float16", before.overlap)


@pytest.mark.parametrize(
    ("about", "travel"),
    [
        ({}, ("float32", False)),  # of an earlier version
        ({"parallel.hogwild": False}, ("float32", False)),  # on one machine, exactly
        ({"parallel.hogwild": False, "parallel.wire_dtype": "bfloat16"}, ("bfloat16", False)),
        ({"parallel.hogwild": False, "parallel.wire_dtype": "int8", "parallel.overlap": True}, ("int8", True)),
        ({"parallel.hogwild": True, "parallel.wire_dtype": None}, None),  # nothing travelled
        ({"parallel.hogwild": None, "parallel.wire_dtype": None}, None),  # one process
    ],
)
def test_a_checkpoint_says_how_rows_travelled(
    about: dict[str, Any], travel: tuple[str, bool] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "about_of", lambda folder: about)
    assert sharing.travel_of_checkpoint(tmp_path) == travel
    monkeypatch.setattr(sharing, "about_of", lambda folder: None)
    assert sharing.travel_of_checkpoint(tmp_path) is None


@pytest.mark.parametrize("model", ["deepwalk", "transe", "rgcn"])
def test_float32_says_of_every_model_that_nothing_is_rounded(model: str) -> None:
    """It needs no exchange: trainers of one machine share rows as without it."""
    for parallel in ({}, TWO, SERVED, {**TWO, "trainers": 1}):
        config = config_of(model, {**parallel, "wire_dtype": "float32"})
        assert config.exchange_settings == []
        assert sharing.asked(config) == sharing.asked(config_of(model, parallel))
    with pytest.raises(
        ge.ConfigError, match=r"wire_dtype = 'float64': should be .*'float32', 'float16', 'bfloat16' or 'int8'"
    ):
        config_of(model, {**TWO, "wire_dtype": "float64"})


def test_false_says_of_one_process_and_of_other_models_how_they_are() -> None:
    """Earlier versions wrote it into every configuration."""
    assert config_of(parallel={"hogwild": False}).parallel.hogwild is False
    assert config_of("transe", {**TWO, "hogwild": False}).parallel.hogwild is False
    with pytest.raises(ge.ConfigError, match="hogwild has no effect on one process"):
        config_of(parallel={"hogwild": True})
    with pytest.raises(ge.ConfigError, match=r"parallel\.hogwild = 'always'"):
        config_of(parallel={**TWO, "hogwild": "always"})


@pytest.mark.parametrize(
    ("parallel", "train", "message"),
    [
        (SERVED, {}, "trainers of triples share rows in mode=collective"),
        (
            {**TWO, "wire_dtype": "float16"},
            {},
            r"parallel\.wire_dtype does not fit parallel\.hogwild, which exchanges no",
        ),
        (TWO, {"memory": "1GiB"}, r"train\.memory does not fit parallel\.hogwild, which needs all rows in memory"),
        (TWO, {"weight_decay": 0.1, "weight_decay_mode": "lazy"}, "whose trainers take no step together"),
    ],
)
def test_what_shared_rows_of_triples_cannot_do_is_refused(
    parallel: dict[str, Any], train: dict[str, Any], message: str
) -> None:
    with pytest.raises(ge.ConfigError, match=message):
        config_of("transe", {**parallel, "hogwild": True}, **train)
    config_of("transe", {**parallel, "hogwild": False}, **train)


def test_a_finished_seed_is_known_by_what_was_asked(tmp_path: Path) -> None:
    """``--seeds`` compared with the configuration that the run had filled in, and would have trained it again."""
    sections = config_of(lr=0.1, lr_decay="linear").sections()
    asked = config_from(sections, {"parallel": TWO})
    (tmp_path / METRICS).write_text(json.dumps({"status": "finished", "evaluation": {}}))
    for hogwild in (True, False):
        (tmp_path / CONFIG).write_text(config_text(config_from(sections, {"parallel": {**TWO, "hogwild": hogwild}})))
        assert is_finished(tmp_path, asked)
    told = config_from(sections, {"parallel": {**TWO, "hogwild": True}})
    assert not is_finished(tmp_path, told), "the run exchanged"


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    yield made
    made.close()


def trained(out: str, parallel: dict[str, Any], sockets: bool, options: dict[str, Any]) -> tuple[Any, ...] | None:
    """The choice, the line about it, and whether a row travelled; None on the second rank."""
    with pytest.MonkeyPatch.context() as patch:
        if sockets:
            patch.setenv(SHARED_VARIABLE, "0")
        result = ge.pipeline("deepwalk", "digits", out=out, parallel={**TWO, **parallel}, **{**SMALL, **options})
    if result.embeddings is None:
        return None
    metrics = result.metrics["train"]
    return result.config.parallel.hogwild, metrics.get("sharing"), metrics["local_share"] < 1, metrics["repeats"]


@pytest.mark.dist
@with_shared_memory
def test_two_trainers_share_rows_by_default_and_exchange_where_they_must(ranks: Ranks, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    hogwild, line, travelled, repeats = ranks.run(trained, 2, out, {}, False, {})[0]
    assert (hogwild, travelled, repeats) == (True, False, "never")
    assert line.startswith("parallel.hogwild=auto: trainers change the same rows in place")
    assert "hogwild: true" in (tmp_path / "run" / CONFIG).read_text()
    options = {"overwrite": True}
    for parallel, sockets, said in (
        ({"overlap": True}, False, "trainers exchange rows, because parallel.overlap is given"),
        ({}, True, "they are on several machines, or share no memory"),
    ):
        hogwild, line, travelled, repeats = ranks.run(trained, 2, out, parallel, sockets, options)[0]
        assert (hogwild, travelled, repeats) == (False, True, "always")
        assert said in line
    assert ranks.run(trained, 2, out, {"hogwild": False}, False, options)[0] == (False, None, True, "always")


@pytest.mark.dist
@with_shared_memory
def test_the_checkpoint_of_an_earlier_version_goes_on_with_its_exchange(ranks: Ranks, tmp_path: Path) -> None:
    out, saved = str(tmp_path / "run"), {"checkpoint": {"every": "1"}, "overwrite": True}
    again = {**saved, "resume": True}
    assert ranks.run(trained, 2, out, {}, False, saved)[0][0] is True
    assert ranks.run(trained, 2, out, {}, False, again)[0][0] is True, "as it was saved"
    (place,) = (tmp_path / "run-checkpoints").glob("*/manifest.json")
    manifest = json.loads(place.read_text())
    assert manifest["extra"]["about"].pop(sharing.PATH) is True
    del manifest[manifests.SELF]
    place.write_text(json.dumps({**manifest, manifests.SELF: manifests._digest(manifest)}))
    hogwild, line, *_ = ranks.run(trained, 2, out, {}, False, again)[0]
    assert hogwild is False
    assert "trainers exchange rows, because the run did so before its checkpoint" in line
    assert ranks.run(trained, 2, out, {"hogwild": True}, False, again)[0][0] is True, "free to be told otherwise"


def of_triples(folder: str, out: str, parallel: dict[str, Any], options: dict[str, Any]) -> Any:
    """A run on the ring: its choice, when it repeats, its rows, and ids whose rows were asked of other trainers."""
    small = {
        "dim": 8,
        "num_negatives": 4,
        "chunk_size": 2,
        "batch_size": 4,
        "epochs": 2,
        "threads": 1,
        "evaluate": False,
    }
    result = ge.pipeline("complex", folder, out=out, parallel={**TWO, **parallel}, **{**small, **options})
    if result.embeddings is None:
        return None
    metrics = result.metrics["train"]
    return result.config.parallel.hogwild, metrics.get("sharing"), metrics["repeats"], result.embeddings.weights


@pytest.mark.dist
@with_shared_memory
def test_trainers_of_triples_share_rows_by_default_and_false_repeats_the_bits(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "ring").mkdir()
    for part, triples in ring().parts.items():
        lines = [f"{h}\t{r}\t{t}\n" for h, r, t in triples.tolist()]
        (tmp_path / "ring" / f"{part}.txt").write_text("".join(lines))
    folder, out = str(tmp_path / "ring"), str(tmp_path / "run")
    saved = {"checkpoint": {"every": "1"}, "overwrite": True}
    hogwild, line, repeats, _ = ranks.run(of_triples, 2, folder, out, {}, saved)[0]
    assert (hogwild, repeats) == (True, "never")
    assert line.startswith("parallel.hogwild=auto: trainers change the same rows in place")
    assert "hogwild: true" in (tmp_path / "run" / CONFIG).read_text()
    more = {**saved, "resume": True}
    assert ranks.run(of_triples, 2, folder, out, {}, more)[0][0] is True, "as it was saved"
    hogwild, line, repeats, rows = ranks.run(of_triples, 2, folder, out, {"hogwild": False}, saved)[0]
    assert (hogwild, line, repeats) == (False, None, "always")
    again = ranks.run(of_triples, 2, folder, str(tmp_path / "again"), {"hogwild": False}, {})[0]
    assert (again[3] == rows).all()
    hogwild, line, *_ = ranks.run(of_triples, 2, folder, out, {}, more)[0]
    assert hogwild is False
    assert "trainers exchange rows, because the run did so before its checkpoint" in line
