"""A switch takes True and False: ``"no"`` and ``2`` would count as true in silence."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
import partition
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.core.errors import ConfigError
from graph_emb.estimators.base import GraphEstimator
from graph_emb.formats.embedding_files import copy_embeddings, save_embeddings
from partition import HeteroGraph, PartitionedGraph

OTHERS = {
    "GraphEstimator.get_params": "scikit-learn's",
    "SparseOptimizer.zero_grad": "torch's: all that is false is refused with what to pass",
    "pipeline.evaluate": "a field of the configuration, which takes what the command line takes",
    "Verification.expect": "the outcome of a check, of numpy too",
}
"""Switches that are not checked so, and why, by the beginning of the name."""


def entries() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions, classes and methods by name; what is inherited from torch and scikit-learn is theirs."""
    bases = {ge.SparseOptimizer, GraphEstimator}
    for package in (ge, partition):
        for name in package.__all__:
            entry = getattr(package, name)
            if not callable(entry) or (inspect.isclass(entry) and issubclass(entry, Exception)):
                continue
            if not inspect.isclass(entry):
                yield name, entry
                continue
            made_of = next((base for base in bases if issubclass(entry, base)), entry)
            if made_of is entry or made_of is ge.SparseOptimizer:
                yield name, entry
            for word, member in vars(made_of).items():
                if not word.startswith("_") and callable(member):
                    yield f"{made_of.__name__}.{word}", member
    yield from (("PeriodicCheckpoints", PeriodicCheckpoints), ("copy_embeddings", copy_embeddings))
    yield "save_embeddings", save_embeddings


def switches() -> dict[str, tuple[Callable[..., Any], str]]:
    """What is called, and the argument, by the names of both."""
    found = {}
    for name, call in entries():
        for parameter in inspect.signature(call).parameters.values():
            full = f"{name}.{parameter.name}"
            if "bool" in str(parameter.annotation) and not full.startswith(tuple(OTHERS)):
                found[full] = call, parameter.name
    return found


SWITCHES = switches()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> PartitionedGraph:
    ring = np.arange(8)
    graph = HeteroGraph({"node": 8}, {("node", "to", "node"): (ring, np.roll(ring, 1))})
    return partition.build(graph, 2, out=tmp_path_factory.mktemp("flags") / "parts", report=False)


@pytest.fixture(scope="module")
def fitted() -> ge.ProNE:
    return ge.ProNE(dim=2).fit(np.ones((4, 4)))


NEEDED: dict[str, Callable[[PartitionedGraph, ge.ProNE], dict[str, Any]]] = {
    "build": lambda parts, _: {"graph": parts.to_graph(), "num_parts": 2, "out": "made"},
    "clip_grad_norm_": lambda *_: {"parameters": [], "max_norm": 1.0},
    "extend": lambda parts, _: {"source": parts.path, "new_edges": ([0], [1]), "out": "made"},
    "GraphEstimator.save": lambda _, fitted: {"self": fitted, "folder": "made"},
    "load_checkpoint": lambda *_: {"path": "not-there", "tables": [ge.DistEmbedding(3, 2)]},
    "PartitionedGraph.edge_map": lambda parts, _: {"self": parts},
    "PartitionedGraph.id_map": lambda parts, _: {"self": parts, "kind": "node", "given": None},
    "PartitionedGraph.node_map": lambda parts, _: {"self": parts},
    "pipeline": lambda *_: {"model": "deepwalk", "dataset": "digits", "out": "made"},
    "repartition": lambda parts, _: {"source": parts.path, "num_parts": 2, "out": "made"},
    "save_checkpoint": lambda *_: {"path": "made", "tables": [ge.DistEmbedding(3, 2)]},
    "tune": lambda *_: {"model": "deepwalk", "dataset": "digits", "out": "made"},
}
"""Arguments without which a call ends earlier, by its name; the other calls get None for what they must have."""


def test_the_switches_of_the_public_names_are_found() -> None:
    assert {"pipeline.overwrite", "tune.resume", "build.report", "save_checkpoint.background"} <= set(SWITCHES)
    assert len(SWITCHES) > 40


@pytest.mark.parametrize("value", ["no", 2])
@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_is_true_or_false(switch: str, value: Any, parts, fitted, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, name = SWITCHES[switch]
    least = {word: None for word, known in inspect.signature(call).parameters.items() if known.default is known.empty}
    given = NEEDED.get(switch.rpartition(".")[0], lambda *_: least)(parts, fitted)
    with pytest.raises(ConfigError, match=f"{name}={value!r} must be True or False"):
        call(**{**given, name: value})
    assert not list(tmp_path.iterdir())
