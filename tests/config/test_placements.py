"""``train.placement``: the placement that each word stands for, and what it excludes."""

from __future__ import annotations

from tempfile import gettempdir
from typing import Any, get_args

import pytest

import graph_emb as ge
from graph_emb.config import MODELS, RunConfig, TrainSection, config_from
from graph_emb.core.errors import ConfigError
from graph_emb.run.about import about
from graph_emb.table.placement import WORDS

WALKS, TRIPLES, NETWORK = "deepwalk", "complex", "rgcn"
ALL = get_args(TrainSection.model_fields["placement"].annotation)
IN_RANKS = {"parallel": {"mode": "collective", "trainers": 2}}
SHARED_RANKS = {"parallel": {"mode": "collective", "trainers": 2, "hogwild": True}}
SERVERS = {"parallel": {"mode": "kvstore", "trainers": 2, "servers": 1}}


def configured(model: str, sections: dict[str, Any] | None = None, **train: Any) -> RunConfig:
    return config_from({"dataset": "cora", "model": model, "train": train}, sections or {})


def test_every_word_of_tables_is_one_of_runs() -> None:
    assert ALL[: len(WORDS)] == WORDS
    assert ALL[len(WORDS) :] == ("file", "buckets", "device-cache")


@pytest.mark.parametrize(
    ("model", "sections", "train"),
    [
        (WALKS, {}, {"placement": "host"}),
        (TRIPLES, IN_RANKS, {"placement": "host"}),
        (NETWORK, SERVERS, {"placement": "host"}),
        (WALKS, SERVERS, {"placement": "shared"}),
        (TRIPLES, SERVERS, {"placement": "shared"}),
        (WALKS, SHARED_RANKS, {"placement": "shared"}),
        (TRIPLES, SHARED_RANKS, {"placement": "shared"}),
        (TRIPLES, {}, {"placement": "device", "device": "cuda:1"}),
        (NETWORK, {}, {"placement": "device", "device": "cuda"}),
        (TRIPLES, {}, {"placement": "auto", "device": "cuda"}),
    ],
)
def test_words_of_memory_are_the_placement_of_the_tables(model: str, sections: Any, train: dict[str, Any]) -> None:
    assert configured(model, sections, **train).train.table_placement(4) == train["placement"]


def test_files_and_caches_have_their_share_of_the_memory() -> None:
    memory = {"memory": "8KiB", "policy": "lfu"}

    def placed(word: str, parts: int = 0, **more: Any) -> Any:
        return configured(TRIPLES, placement=word, **memory, **more).train.table_placement(parts, tables=2, share=0.5)

    file = ge.File(gettempdir(), 2048, "lfu", leftover="remove")
    parted = ge.Buckets(gettempdir(), 2048, "lfu", leftover="remove", parts=4)
    assert placed("auto") == placed("file") == file
    assert placed("auto", 4, buckets=4) == placed("buckets", 4, buckets=4) == parted
    assert placed("file", scratch="rows") == ge.File("rows", 2048, "lfu", leftover="remove")
    assert placed("device-cache", device="cuda") == ge.DeviceCache(2048, "lfu")


MEMORY = {"memory": "1MiB"}
CUDA = {"device": "cuda"}
REFUSED: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    ("host", TRIPLES, {}, MEMORY, "all rows lie in memory, and train.memory = '1MiB' bounds it; leave one of them out"),
    ("shared", TRIPLES, SERVERS, MEMORY, "all rows lie in memory, and train.memory"),
    ("device", TRIPLES, {}, {**MEMORY, **CUDA}, "all rows lie in memory, and train.memory"),
    (
        "host",
        TRIPLES,
        {},
        CUDA,
        "in memory of the processor, not of train.device = 'cuda'; take train.placement=device",
    ),
    ("shared", NETWORK, IN_RANKS, CUDA, "in memory of the processor, not of train.device = 'cuda'"),
    ("shared", WALKS, {}, {}, "trainers share rows with parallel.mode=kvstore, and with .*take train.placement=host"),
    ("shared", WALKS, IN_RANKS, {}, "and with parallel.mode=collective and parallel.hogwild=true; set one of them"),
    ("device", WALKS, {}, {}, "models of triples and graph networks, and deepwalk trains on the processor; leave it"),
    ("device", TRIPLES, {}, {}, "train.device is the processor; set train.device=cuda, or take train.placement=host"),
    ("device", NETWORK, IN_RANKS, CUDA, "one process trains on a device, not those of parallel.mode = 'collective'"),
    ("file", WALKS, {}, {}, "it needs train.memory, .*; set it, such as train.memory=2GiB"),
    ("buckets", TRIPLES, {}, {"buckets": 4}, "it needs train.memory"),
    ("device-cache", TRIPLES, {}, CUDA, "it needs train.memory"),
    ("file", WALKS, {}, {**MEMORY, "buckets": 4}, "not by the parts of train.buckets = 4; leave it out, or take"),
    ("file", TRIPLES, {}, {**MEMORY, "buckets": "auto"}, "train.buckets = auto; .*take train.placement=buckets"),
    ("buckets", TRIPLES, {}, MEMORY, "parts of train.buckets; set it, to auto or at least 2, or take train.placement"),
    ("buckets", NETWORK, {}, MEMORY, "rgcn does not train by buckets; take train.placement=file"),
    ("device-cache", NETWORK, {}, {**MEMORY, **CUDA}, "it is for models of triples, not for rgcn; leave it out"),
    ("device-cache", TRIPLES, IN_RANKS, MEMORY, "one process trains on a device, not those of parallel.mode"),
    ("device-cache", TRIPLES, {}, {**MEMORY, "scratch": "rows"}, "so that train.scratch = 'rows' has no effect; leave"),
    ("device-cache", TRIPLES, {}, {**MEMORY, "buckets": 4}, "not by the parts of train.buckets = 4"),
]


@pytest.mark.parametrize(("word", "model", "sections", "train", "said"), REFUSED)
def test_a_word_is_refused_with_what_it_excludes(
    word: str, model: str, sections: dict[str, Any], train: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^train\.placement = '{word}': .*{said}"):
        configured(model, sections, placement=word, **train)


def test_no_word_but_auto_is_without_a_refusal() -> None:
    assert {word for word, *_ in REFUSED} == {*ALL} - {"auto"}


@pytest.mark.parametrize("model", ["netmf", "prone"])
def test_factorised_matrices_have_no_table_to_page(model: str) -> None:
    said = rf"train\.memory = '1GiB': {model} factorises a matrix .*lower model\.dim, or train .* such as deepwalk"
    with pytest.raises(ConfigError, match=said):
        configured(model, memory="1GiB")


@pytest.mark.parametrize("model", ["netmf", "prone"])
def test_models_without_placed_tables_refuse_every_word(model: str) -> None:
    for word in ALL[1:]:
        with pytest.raises(ConfigError, match=rf"train\.placement = .*{word}.* has no effect on {model}; leave it out"):
            configured(model, placement=word)


def test_an_unknown_word_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"train\.placement = .*disk.*'auto', 'host', 'shared', 'device', 'file'"):
        configured(WALKS, placement="disk")


@pytest.mark.parametrize("model", MODELS)
def test_auto_is_what_runs_did_before_there_was_a_word(model: str) -> None:
    written = configured(model)
    assert configured(model, placement="auto") == written
    assert written.train.table_placement() == "auto"


def test_a_run_may_go_on_with_another_placement() -> None:
    assert about(configured(TRIPLES, placement="host")) == about(configured(TRIPLES, placement="file", memory="1MiB"))


@pytest.mark.parametrize(("word", "parts"), [("file", 0), ("auto", 0), ("buckets", 2)])
def test_buckets_that_are_none_are_for_other_words(word: str, parts: int) -> None:
    buckets = {"buckets": "auto"} if word == "buckets" else {}
    train = configured(TRIPLES, placement=word, memory="1MiB", **buckets).train
    train.check_parts(parts)
    if word == "buckets":
        with pytest.raises(
            ConfigError, match=r"train\.memory = '1MiB' holds all rows, .*; give it a number of at least 2"
        ):
            train.check_parts(0)
