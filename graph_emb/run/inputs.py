"""The data of a run: the configured data set with its labels and held-out edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.config import DatasetSection, RunConfig
from graph_emb.config.schema import IN_MEMORY
from graph_emb.core.errors import ConfigError, DataError, LackingError
from graph_emb.core.settings import Settings
from graph_emb.graph import Graph, read_graph, read_labels
from graph_emb.graph.csr import Duplicates
from graph_emb.graph.datasets import Dataset, find_dataset, load_dataset
from graph_emb.graph.readers.partitions import holds_partition
from graph_emb.graph.typed import HeteroGraph
from graph_emb.graph.views import PlainDataset, digest, hold_out_edges, plain_dataset
from graph_emb.models.skipgram.config import EdgePolicy


def read_dataset(section: DatasetSection, *, file_format: str | None = None) -> Dataset:
    """The configured data set.

    Args:
        section: Its name, its root and the options of its reader.
        file_format: Format of a single file, where the section does not say it.
    Raises:
        DataError: missing or damaged data.
        ConfigError: an option that means nothing to this data set.
    """
    options = section.read_options()
    if section.held is not None and section.digest is None:
        return section.held  # what an earlier seed has read
    if section.held is not None:
        return load_dataset(section.held, section.root, download=section.download, **options)
    if section.digest is not None:
        raise ConfigError(
            f"dataset.digest = {section.digest!r}: this run was of {section.name}; give the same graph to "
            "graph_emb.pipeline(dataset=...), or name another data set"
        )
    place = find_dataset(section.name, section.root)
    if file_format is not None and place is not None and place.is_file():
        options = {"format": file_format, **options}
    return load_dataset(section.name, section.root, download=section.download, **options)


def partition_of(section: DatasetSection) -> Path | None:
    """The folder of the partition that is the data set; None where it is none."""
    place = None if section.digest is not None else find_dataset(section.name, section.root)
    return place.absolute() if place is not None and holds_partition(place) else None


def following(config: RunConfig) -> RunConfig:
    """The configuration under which trainers take the parts of a data set that is a partition.

    Raises:
        ConfigError: ``parallel`` names another partition, or a method to cut the graph anew.
    """
    place, section = partition_of(config.dataset), config.parallel
    if place is None:
        return config
    if section.partition is not None and _folder_of(section.partition) != place.resolve():
        raise ConfigError(
            f"parallel.partition = {section.partition!r}: the data set is a partition itself, {place}, whose parts the "
            "trainers take; leave it out, or give the data set that both were built from"
        )
    if section.method != "auto":
        raise ConfigError(
            f"parallel.method = {section.method!r} has no effect on the parts of {place}, which is the data set; leave "
            "it out, or cut the graph anew by graph-emb partition repartition"
        )
    if section.mode == "local":
        return config
    return config.model_copy(update={"parallel": section.model_copy(update={"partition": str(place)})})


def _folder_of(partition: str) -> Path:
    path = Path(partition).expanduser().resolve()
    return path.parent if path.is_file() else path


@contextmanager
def lacks_explained(section: DatasetSection, *, trainers: bool = False) -> Iterator[None]:
    """Where the data set is a partition and lacks something, the error says where that is.

    Args:
        trainers: Whether there are some, which can follow the parts with another data set too.
    Raises:
        LackingError: the one from inside, with the next step.
    """
    try:
        yield
    except LackingError as error:
        place = partition_of(section)
        if place is None:
            raise
        follow = f", and --partition {place} to follow its parts" if trainers else ""
        raise LackingError(
            f"{error}. {place} is a partition: it holds the training edges and the columns of what it was built from, "
            f"and no held-out edges; give that data set as --dataset{follow}"
        ) from error


def in_memory(source: Any) -> tuple[Dataset | HeteroGraph, dict[str, str]]:
    """A graph in memory for a section to hold, and the fields of that section that describe it."""
    held = source if isinstance(source, Dataset) else read_graph(source)
    dataset = load_dataset(held)
    graph = dataset.graph
    name = f"{IN_MEMORY}{type(source).__name__} of {graph.total_nodes:,} nodes and {graph.total_edges:,} edges"
    return held, {"name": name, "digest": digest(dataset)}


def read_plain_dataset(
    section: DatasetSection, seed: int = 0, *, symmetrize: bool = True, duplicates: Duplicates | None = None
) -> PlainDataset:
    """The view that walks and LINE take, with the labels of a file and without the edges that are held out.

    Args:
        section: The data set and the options of its reader.
        seed: Chooses the held-out edges.
        symmetrize, duplicates: As in ``plain_dataset``.
    Raises:
        DataError: missing, damaged or empty data, more than one type, or labels of another graph.
        ConfigError: an option that means nothing to this data set.
    """
    if symmetrize and section.directed:
        raise ConfigError("dataset.directed = True has no effect with model.symmetrize = True; set it to false")
    dataset = plain_dataset(read_dataset(section), symmetrize=symmetrize, duplicates=duplicates)
    if dataset.graph.num_arcs == 0:
        raise DataError(f"{section.name}: the graph has {dataset.graph.num_nodes} nodes and no edges to walk on")
    if section.labels is not None:
        dataset = replace(dataset, labels=read_labels(section.labels, dataset.graph), node_split=None)
    if section.hold_out > 0:
        dataset = _hold_out(dataset, section.hold_out, seed)
    return dataset if section.validation_edges is None else with_validation_edges(dataset)


def with_validation_edges(data: PlainDataset) -> PlainDataset:
    """The data set with its validation edges in the graph and among the training edges.

    Weights of repeated edges add up; an edge without one counts 1.

    Raises:
        LackingError: there are none.
    """
    split, graph = data.link_split, data.graph
    if split is None or "valid" not in split or "train" not in split:
        raise LackingError(f"dataset.validation_edges: {data.name} has no validation edges; leave it out")
    held = split["valid"]
    known = graph.edge_weights()
    weights = [np.ones(graph.num_edges, np.float32) if known is None else known, _weights(held)]
    ends = np.concatenate([graph.edges(), held["edge"]])
    joined = Graph.from_edges(
        ends[:, 0],
        ends[:, 1],
        graph.num_nodes,
        np.concatenate(weights),
        graph.directed,
        graph.node_ids,
        duplicates="sum",
    )
    train = {"edge": np.concatenate([split["train"]["edge"], held["edge"]])}
    return replace(data, graph=joined, link_split={**split, "train": train})


def _weights(tables: Mapping[str, Any]) -> NDArray[np.float32]:
    given = tables.get("weight")
    return np.ones(len(tables["edge"]), np.float32) if given is None else np.asarray(given, np.float32).reshape(-1)


def edge_policy(model: Settings) -> dict[str, Any]:
    """The arguments of ``read_plain_dataset`` that a model of plain graphs sets; others set none."""
    if not isinstance(model, EdgePolicy):
        return {}
    return {"symmetrize": model.symmetrize, "duplicates": model.duplicates}


def absolute_paths(section: DatasetSection) -> DatasetSection:
    """The section with its local paths made absolute, so that a written configuration works from any folder."""
    paths = {name: getattr(section, name) for name in ("name", "root", "labels")}
    found = {name: str(Path(path).absolute()) for name, path in paths.items() if path and _exists(path)}
    return section.model_copy(update=found)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a name that no file system takes
        return False


def _hold_out(dataset: PlainDataset, share: float, seed: int) -> PlainDataset:
    if dataset.link_split is not None:
        raise ConfigError(f"dataset.hold_out = {share}: {dataset.name} has held-out edges of its own; leave it at 0")
    graph, split = hold_out_edges(dataset.graph, valid=0.0, test=share, seed=seed)
    if not len(split["test"]["edge"]):
        raise ConfigError(f"dataset.hold_out = {share}: less than one of {dataset.graph.num_edges} edges; raise it")
    parts = {part: tables for part, tables in split.items() if len(tables["edge"])}
    return replace(dataset, graph=graph, link_split=parts)
