"""Estimators of graph networks: rows that are a network's learnable inputs, from classes of nodes or held-out edges."""

# N nodes of the labelled type.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError, ShapeError, unknown_name
from graph_emb.estimators.base import GraphEstimator, as_names
from graph_emb.formats.embedding_files import Embeddings, places_of
from graph_emb.graph.datasets import Dataset, NodeSplit, load_dataset
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers.source import is_networkx

SHARE = 0.1
"""Of the labelled nodes, drawn for validation and as many for testing where the graph brings no split."""


class NetworkEstimator(GraphEstimator):
    """A network on a graph whose nodes have classes, or on a data set with held-out edges.

    Nodes with features of their own have no rows here; ``features=False`` learns all inputs.
    """

    evaluates: ClassVar[bool] = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, graph: Any, y: Any = None) -> NetworkEstimator:
        """Train on a graph and the classes of its nodes.

        Args:
            graph: As for the other estimators.
            y: Class of each node in the order of the graph, shape (N,), with -1, None or NaN where it is unknown; or
                of several node types ``{type: classes}`` with one of them. None: what the graph or data set brings.
                Where it brings no train, valid and test nodes, a tenth of the labelled nodes each is drawn by ``seed``
                for validation and test.
        Raises:
            ConfigError: a setting outside its limits, or without effect; or several node types y could be of.
            DataError: a graph that is damaged, or fewer than three labelled nodes.
            LackingError: neither y nor the graph has classes or held-out edges.
        """
        super().fit(graph, y)
        return self

    def score(self, X: Any = None, y: Any = None) -> float:
        """The metric of the test nodes or edges, at the epoch that the validation part chose.

        Args:
            X, y: None; the network judges the nodes and edges that ``fit`` kept out of training.
        """
        if X is not None or y is not None:
            raise ConfigError("score takes no X and no y: it tells the metric of the test part that fit kept apart")
        self._main()
        summary: dict[str, Any] = self.metrics_["evaluation"]["graph_network"]["summary"]
        return next(iter(summary.values()))["test"]["mean"]

    def _data_of(self, graph: Any, y: Any) -> Any:
        if y is None:
            return graph
        dataset = load_dataset(graph)
        types = dataset.graph.ntypes
        if not isinstance(y, Mapping):
            if len(types) > 1:
                raise ConfigError(f"the graph has the node types {', '.join(types)}; give y as {{type: classes}}")
            y = {types[0]: y}
        if len(y) != 1:
            raise ConfigError(f"y names {len(y)} node types; give the classes of one")
        ((ntype, given),) = y.items()
        if ntype not in types:
            raise unknown_name("node type", ntype, types)
        labels = labels_of(given, dataset.graph.num_nodes[ntype])
        if is_networkx(graph):  # whose nodes are read in the order of their ids
            ids = dataset.graph.node_ids.get(ntype, np.arange(len(labels[0])))
            rows = Embeddings(np.zeros((len(ids), 1)), ids)
            places = places_of(rows, as_names(graph))
            if places is not None:
                codes = np.empty_like(labels[0])
                codes[places] = labels[0]
                labels = codes, labels[1]
        split = dataset.node_split.get(ntype) or drawn_split(labels[0], self.seed)
        known = Labels.from_single(labels[0], class_names=labels[1])
        return _with_classes(dataset, ntype, known, split)


def _with_classes(dataset: Dataset, ntype: str, labels: Labels, split: NodeSplit) -> Dataset:
    return replace(dataset, labels={ntype: labels}, node_split={ntype: split}, groups=frozenset(), link_split=None)


def labels_of(y: Any, num_nodes: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Classes as numbers, shape (N,), -1 where unknown; and their names in order.

    Raises:
        ShapeError: not one class for each node.
    """
    values = np.asarray(y)
    if values.shape != (num_nodes,):
        raise ShapeError(f"y has shape {values.shape}; give a class, or -1, for each of the {num_nodes} nodes")
    missing = (None, -1, "")
    known = np.array([value == value and value not in missing for value in values.tolist()])  # NaN differs from itself
    given = values[known]
    names, codes = np.unique(given.astype(str) if given.dtype.kind == "O" else given, return_inverse=True)
    classes = np.full(num_nodes, -1, np.int64)
    classes[known] = codes
    return classes, tuple(map(str, names.tolist()))


def drawn_split(classes: NDArray[np.int64], seed: int) -> NodeSplit:
    """A tenth of the labelled nodes each for validation and test, at least one, and the rest to train on.

    Raises:
        DataError: fewer than three nodes are labelled.
    """
    labelled = np.random.default_rng(seed).permutation(np.flatnonzero(classes >= 0))
    if len(labelled) < 3:
        raise DataError(f"y has {len(labelled)} labelled nodes; give at least 3: to train, to validate and to test")
    count = max(1, round(SHARE * len(labelled)))
    parts = {"valid": labelled[:count], "test": labelled[count : 2 * count], "train": labelled[2 * count :]}
    return {part: np.sort(nodes) for part, nodes in parts.items()}
