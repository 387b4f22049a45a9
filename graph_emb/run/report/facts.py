"""What a page tells of a run: read from its folder, or taken from memory when the run ends."""

# N rows, C classes.

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.config import RunConfig, config_from, fields_of
from graph_emb.core.errors import DataError
from graph_emb.core.paths import user_path
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.graph.labels import Labels
from graph_emb.run.family import family_of
from graph_emb.run.run_folder import LOG, read_run

PLACES = ("model.name", "dataset.name", "dataset.root", "dataset.digest")
"""Settings that say where things are, or that a page tells elsewhere."""


@dataclass(frozen=True, eq=False)
class RunFacts:
    """A run as its page tells it.

    Attributes:
        name: Of its folder, or of what was trained.
        config: The complete configuration.
        metrics: What metrics.json holds.
        history: The lines of metrics.jsonl.
        tables: Rows by table, the main one first; empty where they are not asked for.
        labels: Classes of the nodes of some tables, by table.
    """

    name: str
    config: RunConfig
    metrics: dict[str, Any]
    history: list[dict[str, Any]]
    tables: Mapping[str, Embeddings] = field(default_factory=dict)
    labels: Mapping[str, Labels] = field(default_factory=dict)

    @classmethod
    def of_folder(cls, folder: str | Path) -> RunFacts:
        """Read a run folder; labels are not in it.

        Raises:
            ConfigError: the folder is no run.
            DataError: damaged files.
        """
        place = user_path(folder)
        config, metrics, tables = read_run(place)
        return cls(place.name, config, metrics, read_history(place), tables)

    def changed(self) -> dict[str, tuple[Any, Any]]:
        """The settings that differ from the model's defaults, by path: the value and the default."""
        ours, model, dataset = fields_of(self.config), self.config.model.name, self.config.dataset.name
        usual = fields_of(family_of(config_from({"model": model, "dataset": {"name": dataset}})).config)
        kept = {path: value for path, value in ours.items() if path not in PLACES}
        return {path: (value, usual.get(path)) for path, value in kept.items() if value != usual.get(path)}


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl.

    Raises:
        DataError: a line is no JSON.
    """
    try:
        text = (folder / LOG).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise DataError(f"{folder / LOG}: a line is no JSON ({error})") from None


def labels_of(dataset: Any, tables: Mapping[str, Embeddings]) -> dict[str, Labels]:
    """The classes that a data set gives to the nodes of tables, whatever family read it."""
    found: dict[str, Any] = {}
    labels, task = getattr(dataset, "labels", None), getattr(dataset, "task", None)
    if isinstance(labels, Labels):
        found = dict.fromkeys(tables, labels)
    elif isinstance(labels, Mapping):
        found = dict(labels)
    elif task is not None and hasattr(task, "ntype") and hasattr(task, "labels"):
        given = np.asarray(task.labels)
        if given.ndim == 1 and given.dtype.kind in "iu":
            known = Labels.from_single(given, class_names=getattr(dataset, "class_names", None))
            found = dict.fromkeys((task.ntype, *(["node"] if len(tables) == 1 else [])), known)
    return {
        name: found[name]
        for name, table in tables.items()
        if isinstance(found.get(name), Labels) and found[name].num_nodes == len(table.weights)
    }


def classes_of(labels: Labels) -> tuple[NDArray[np.int64], list[str]]:
    """A class of each node, (N,), and the names of the classes, the most frequent first; -1 for nodes of none.

    Of a node with several labels it is the most frequent one.
    """
    counts = labels.class_counts()
    order = np.argsort(-counts, kind="stable")[: int((counts > 0).sum())]
    place = np.full(labels.num_classes, -1)
    place[order] = np.arange(len(order))
    classes = np.full(labels.num_nodes, len(order), np.int64)
    np.minimum.at(classes, np.repeat(np.arange(labels.num_nodes), np.diff(labels.indptr)), place[labels.indices])
    names = labels.class_names or tuple(map(str, range(labels.num_classes)))
    return np.where(classes == len(order), -1, classes), [str(names[own]) for own in order]
