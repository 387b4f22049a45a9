"""The data of a run: the configured data set with its labels and held-out edges."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import partition
from graph_emb.config import DatasetSection, RunConfig
from graph_emb.config.schema import IN_MEMORY
from graph_emb.core.errors import ConfigError, DataError, LackingError, unknown_name
from graph_emb.core.paths import user_path
from graph_emb.core.settings import Settings
from graph_emb.graph import Graph, read_graph
from graph_emb.graph.csr import Duplicates
from graph_emb.graph.datasets import Dataset, find_dataset, load_dataset
from graph_emb.graph.edge_files import read_held_out_edges, read_held_out_triples, without_held_out
from graph_emb.graph.grown import grown_by
from graph_emb.graph.held_out import hold_out_edges, hold_out_given
from graph_emb.graph.label_files import read_labels_and_split, read_split
from graph_emb.graph.readers.partitions import holds_partition
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.typed import HeteroGraph
from graph_emb.graph.views import PlainDataset, digest, plain_dataset
from graph_emb.models.skipgram.config import EdgePolicy
from partition import PartitionedGraph

log = logging.getLogger("graph_emb.run.inputs")

REMOVED = "held-out edges removed"
"""The count of edges of the graph that a file keeps out of training."""


def read_dataset(section: DatasetSection, *, file_format: str | None = None) -> Dataset:
    """The configured data set, with the labels and the split of files in place of its own.

    Args:
        section: Its name, its root, the options of its reader, and those files.
        file_format: Format of a single file, where the section does not say it.
    Raises:
        DataError: missing or damaged data, or labels or a split of another graph.
        ConfigError: an option that means nothing to this data set.
    """
    return with_files(read_own(section, file_format), section)


def read_own(section: DatasetSection, file_format: str | None = None) -> Dataset:
    """The configured data set, grown by ``new_edges``, with the labels and the split that it brings itself; otherwise
    as ``read_dataset``.
    """
    if section.held is not None and section.digest is None:
        return section.held  # what an earlier seed has read
    dataset, number = section.base or (_read_first(section, file_format), 0)
    for edges in section.new_edges[number:]:
        dataset = grown_dataset(dataset, edges)
    return dataset


def grown_dataset(dataset: Dataset, edges: Any) -> Dataset:
    """A data set with more edges, and with new nodes, which have no labels, no features and no part in a split.

    Args:
        edges: As of ``graph_emb.graph.grown.grown_by``.
    Raises:
        ConfigError: the data set is of triples, or has columns of edges or nodes that the new ones lack.
        DataError: the edges cannot be read, or have ids of another kind.
    """
    if dataset.triples is not None:
        raise ConfigError(f"{dataset.name} is of triples; new edges have no relations, leave dataset.new_edges out")
    graph = grown_by(dataset.graph, edges)
    again = Dataset.of_graph(graph, dataset.name)
    fresh = {ntype: num - dataset.graph.num_nodes[ntype] for ntype, num in graph.num_nodes.items()}
    lost = [ntype for ntype in dataset.features if fresh[ntype] and ntype not in again.features]
    if lost:
        log.warning("%s: nodes of type %s are left without features, which the new ones lack", dataset.name, lost[0])
    names = {t: np.concatenate([own, _texts_of_new(graph, t, len(own))]) for t, own in dataset.names.items()}
    return replace(
        dataset,
        graph=graph,
        labels={t: again.labels.get(t) or own.longer(fresh[t]) for t, own in dataset.labels.items()},
        node_split={**dataset.node_split, **again.node_split},
        features={t: again.features.get(t, own) for t, own in dataset.features.items() if t not in lost},
        names=names,
    )


def _texts_of_new(graph: HeteroGraph, ntype: str, first: int) -> NDArray[Any]:
    """The ids of the nodes of a type from one on, as texts."""
    return graph.node_ids.get(ntype, np.arange(graph.num_nodes[ntype]))[first:].astype(str)


def _read_first(section: DatasetSection, file_format: str | None) -> Dataset:
    """The data set before it grew."""
    options = section.read_options()
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
    """The partition that is the data set, its folder or the JSON in it; None where it is none."""
    place = None if section.digest is not None else find_dataset(section.name, section.root)
    return place.absolute() if place is not None and holds_partition(place) else None


def own_partition(config: RunConfig, *, held_out: bool = False) -> PartitionedGraph | None:
    """The partition that is the data set, where each trainer reads its own parts; None: the first one reads all.

    None in one process, where options of readers or held-out edges change the graph first, and where edges do not lie
    with their destinations.

    Args:
        held_out: Trainers leave the edges of ``dataset.test_edges`` out of their own parts.
    """
    return None if config.parallel.mode == "local" else unchanged_partition(config.dataset, held_out=held_out)


def unchanged_partition(section: DatasetSection, *, held_out: bool = False) -> PartitionedGraph | None:
    """The partition that is the data set, where its parts are the graph that is trained: nothing changes it first, and
    edges lie with their destinations.

    Args:
        held_out: Whoever reads the parts leaves the edges of ``dataset.test_edges`` out.
    """
    place = partition_of(section)
    changed = section.hold_out or section.validation_edges is not None
    changed = changed or (section.test_edges is not None and not held_out)
    if place is None or section.read_options() or changed:
        return None
    parts = partition.load(place)
    return parts if parts.edge_owner == "destination" else None


def following(config: RunConfig) -> RunConfig:
    """The configuration under which trainers take the parts of a data set that is a partition.

    Raises:
        ConfigError: ``parallel`` names another partition, or a method to cut the graph anew.
    """
    place, section = partition_of(config.dataset), config.parallel
    if place is None:
        return config
    if config.dataset.new_edges and section.mode != "local":
        raise ConfigError(
            f"dataset.new_edges: {place} is a partition, in whose parts the new nodes are not; make one that has them: "
            f"graph-emb partition extend {shlex.quote(str(place))} --edges FILE --out DIR"
        )
    if section.partition is not None and folder_of(section.partition) != folder_of(place):
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


def folder_of(place: str | Path) -> Path:
    """The folder of a partition that is named by it or by the JSON in it."""
    path = user_path(place).resolve()
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
        follow = f", and --partition {shlex.quote(str(place))} to follow its parts" if trainers else ""
        raise LackingError(
            f"{error}. {place} is a partition: it holds what was read when it was built, by an earlier version without "
            f"held-out edges; give that data set as --dataset{follow}, or build it again"
        ) from error


def with_files(dataset: Dataset, section: DatasetSection) -> Dataset:
    """The data set with the labels and split of one node type that ``labels`` and ``split`` name, and no others.

    Without these two it stays as it is. A split that both files have is that of ``split``; labels of a file without a
    split have none.

    Raises:
        DataError: the files are damaged, of another graph, or the split does not fit the labels.
        ConfigError: no labels, or several node types they could be of.
    """
    if section.labels is None and section.split is None:
        return dataset
    ntype, split = _labelled_type(dataset, section), None
    nodes = Graph.without_edges(dataset.graph.num_nodes[ntype], dataset.graph.node_ids.get(ntype))
    if section.labels is not None:
        labels, split = read_labels_and_split(section.labels, nodes)
    elif ntype in dataset.labels:
        labels = dataset.labels[ntype]
    else:
        raise ConfigError(f"dataset.split = {section.split}: {dataset.name} has no labels; give dataset.labels, too")
    if section.split is not None:
        split = read_split(section.split, nodes)
    return replace(
        dataset,
        labels={ntype: labels},
        node_split={} if split is None else {ntype: split.checked(labels)},
        groups=dataset.groups if section.labels is None else dataset.groups - {ntype},
    )


def _labelled_type(dataset: Dataset, section: DatasetSection) -> str:
    """The node type that the files are of."""
    types, asked = dataset.graph.ntypes, section.label_type
    if asked is not None and len(types) == 1:
        raise ConfigError(f"dataset.label_type = {asked!r} has no effect on {dataset.name}, which has one node type")
    if asked is not None:
        if asked not in types:
            raise unknown_name("node type", asked, types)
        return asked
    choices = list(dataset.labels) if section.labels is None and dataset.labels else types
    if len(choices) > 1:
        raise ConfigError(f"dataset.label_type is missing; {dataset.name} has the node types {', '.join(choices)}")
    return choices[0]


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
    """The view that walks and LINE take, without the edges that are held out.

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
        raise no_edges(section.name, dataset.graph.num_nodes)
    dataset = with_held_out(dataset, section, seed)
    return dataset if section.validation_edges is None else with_validation_edges(dataset)


def no_edges(name: str, num_nodes: int) -> DataError:
    """The error of a graph without edges."""
    return DataError(f"{name}: the graph has {num_nodes} nodes and no edges to walk on")


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
    paths = {name: getattr(section, name) for name in ("name", "root", "labels", "split", "test_edges")}
    found: dict[str, Any] = {name: str(Path(path).absolute()) for name, path in paths.items() if path and _exists(path)}
    found["new_edges"] = tuple(str(Path(path).absolute()) for path in section.new_edges)
    return section.model_copy(update=found)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a name that no file system takes
        return False


def with_held_out(dataset: PlainDataset, section: DatasetSection, seed: int) -> PlainDataset:
    """The data set without the edges that ``hold_out`` or ``test_edges`` keep out of training, and judged by them.

    Raises:
        DataError: a file that is damaged or of another graph, or no edge is left.
        ConfigError: the data set has held-out edges of its own.
    """
    key = "test_edges" if section.test_edges is not None else "hold_out"
    if not getattr(section, key):
        return dataset
    if dataset.link_split is not None:
        raise ConfigError(
            f"dataset.{key} = {getattr(section, key)}: {dataset.name} has held-out edges of its own; leave it out"
        )
    given = None if section.test_edges is None else read_held_out_edges(section.test_edges, dataset.graph)
    try:
        if given is not None:
            graph, split, removed = hold_out_given(dataset.graph, given, seed)
            counts = {**dataset.counts, **({REMOVED: removed} if removed else {})}
            return replace(dataset, graph=graph, link_split=split, counts=counts)
        graph, split = hold_out_edges(dataset.graph, valid=0.0, test=section.hold_out, seed=seed)
    except DataError as error:
        raise DataError(f"dataset.{key} = {getattr(section, key)}: {error}") from None
    if not len(split["test"]["edge"]):
        raise ConfigError(
            f"dataset.hold_out = {section.hold_out}: less than one of {dataset.graph.num_edges} edges; raise it"
        )
    parts = {part: tables for part, tables in split.items() if len(tables["edge"])}
    return replace(dataset, graph=graph, link_split=parts)


def with_held_out_triples(graph: KnowledgeGraph, section: DatasetSection) -> tuple[KnowledgeGraph, dict[str, int]]:
    """The triples without those that ``test_edges`` keeps out of training, and how many these were.

    Raises:
        DataError: no triple is left; and as ``test_triples``.
    """
    given = test_triples(graph, section)
    if not given:
        return graph, {}
    held, removed = without_held_out(graph, given)
    return held, {REMOVED: removed} if removed else {}


def test_triples(graph: KnowledgeGraph, section: DatasetSection) -> dict[str, np.ndarray]:
    """The triples of ``test_edges`` by part, (T, 3) each; {}: none is configured.

    Raises:
        DataError: a file that is damaged or of another graph.
        ConfigError: the graph has a part of its own with one of that name.
    """
    if section.test_edges is None:
        return {}
    given = read_held_out_triples(section.test_edges, graph)
    for part in given:
        if part in graph.parts:
            raise ConfigError(
                f"dataset.test_edges = {section.test_edges}: {graph.name} has {part} triples of its own; leave it out"
            )
    return dict(given)
