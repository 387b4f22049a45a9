"""Estimators of graph networks: rows that are a network's learnable inputs, from classes of nodes or held-out edges."""

# N nodes of the labelled type.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError, LackingError, ShapeError, unknown_name
from graph_emb.estimators.base import GraphEstimator, as_names, pair_places
from graph_emb.estimators.triples import TriplePredictions
from graph_emb.formats.embedding_files import Embeddings, align, places_of
from graph_emb.graph.datasets import Dataset, NodeSplit, load_dataset
from graph_emb.graph.labels import Labels
from graph_emb.graph.readers.source import is_networkx
from graph_emb.models.gnn.kept import RebuiltNetwork
from graph_emb.models.kge.scorers import KGEScorer, scorer_of
from graph_emb.run.families.gnn import GNNFamily
from graph_emb.run.families.links import kept_scores

SHARE = 0.1
"""Of the labelled nodes, drawn for validation and as many for testing where the graph brings no split."""


class NetworkEstimator(TriplePredictions):
    """A network on a graph whose nodes have classes, or on a data set with held-out edges.

    Nodes with features of their own have no rows here; ``features=False`` learns all inputs.
    """

    evaluates: ClassVar[bool] = True
    seed: int
    _made: tuple[Embeddings, RebuiltNetwork] | None = None
    """Rows of the target nodes under their names, with the network that gave them."""

    @property
    def _scorer(self) -> KGEScorer:
        model: Any = self.config_.model
        return scorer_of(model.decoder_settings)

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

    def predict(self, ids: Any) -> NDArray[Any]:
        """The class of each node by the trained network, shape (Q,): its name, or its number where it has none.

        Of nodes with several labels 1 for each that is likelier than not, shape (Q, C).

        Args:
            ids: Of nodes of the type that has classes, shape (Q,).
        Raises:
            DataError: a node that the graph does not have.
            LackingError: the network predicts links or triples, or is not kept; or the graph was in memory.
        """
        likely, (_, made) = self.predict_proba(ids), self._rebuilt()
        if not made.one_class:
            return (likely > 0.5).astype(np.int64)
        names = made.class_names
        return np.argmax(likely, axis=1) if names is None else _typed(names)[np.argmax(likely, axis=1)]

    def predict_proba(self, ids: Any) -> NDArray[np.float32]:
        """The network's probability of each class of each node, shape (Q, C). Arguments and errors as ``predict``."""
        known, made = self._rebuilt()
        if made.predictor is not None:
            raise LackingError(f"the network of this {self.model} predicts links, not classes; take predict_links")
        logits = torch.from_numpy(align(known, as_names(ids)))
        return (logits.softmax(dim=1) if made.one_class else logits.sigmoid()).numpy()

    def predict_links(self, pairs: Any) -> NDArray[np.float32]:
        """Scores of pairs of nodes, shape (E,), higher for a likelier edge: logits of the trained network.

        Args:
            pairs: Of ids, shape (E, 2), or a data frame of two columns.
        Raises:
            ShapeError: no such pairs.
            DataError: a node that the graph does not have.
            LackingError: as ``predict``.
        """
        known, made = self._rebuilt()
        if made.predictor is None:
            raise LackingError(f"the network of this {self.model} predicts classes, not links; take predict")
        return made.scores(torch.from_numpy(pair_places(known, pairs))).numpy()

    def _rebuilt(self) -> tuple[Embeddings, RebuiltNetwork]:
        """The network at work on the graph that it was trained on."""
        self._main()
        if self._made is None:
            if self._network is None:
                raise LackingError(
                    f"no network is kept with this {self.model}: it is of an earlier version, or predicts triples, for "
                    "which its rows are enough (predict_triples)"
                )
            data, family = self._trained_on(), GNNFamily(self.config_)
            made = family.rebuilt(family.aligned(self.tables_, data), data, self._network)
            ids = data.ids(made.target)
            self._made = Embeddings(made.rows.numpy(), np.arange(len(made.rows)) if ids is None else ids), made
        return self._made

    def _keep(self, *args: Any) -> None:
        super()._keep(*args)
        self._made = None

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


class LinkEstimator(GraphEstimator):
    """Rows that learn with OGB's predictor, on a data set that holds edges out for validation and test."""

    evaluates: ClassVar[bool] = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []
        return tags

    def score(self, X: Any = None, y: Any = None) -> float:
        """The first metric of the test edges, at the epoch that the validation part chose. X and y: None."""
        if X is not None or y is not None:
            raise ConfigError("score takes no X and no y: it tells the metric of the data set's test edges")
        self._main()
        found: dict[str, Any] = self.metrics_["evaluation"]["link_predictor"]["metrics"]
        return next(iter(found.values()))["test"]

    def predict_links(self, pairs: Any) -> NDArray[np.float32]:
        """Scores of pairs of nodes, shape (E,), higher for a likelier edge: logits of the trained predictor.

        Args:
            pairs: Of ids, shape (E, 2), or a data frame of two columns.
        Raises:
            ShapeError: no such pairs.
            DataError: a node that the graph does not have.
            LackingError: an earlier version wrote the run, and did not keep the predictor.
        """
        main = self._main()
        if self._network is None:
            raise LackingError("the predictor is not kept with this mf, of an earlier version; train it again")
        return kept_scores(self._network, main.weights)(torch.from_numpy(pair_places(main, pairs))).numpy()


RGCN = NetworkEstimator.of("RGCN", "rgcn")
GraphSAGE = NetworkEstimator.of("GraphSAGE", "sage")
MatrixFactorization = LinkEstimator.of("MatrixFactorization", "mf")


def _typed(names: Sequence[str]) -> NDArray[Any]:
    """Names of classes, (C,); as integers where all are, or as truth values."""
    if {*names} <= {"False", "True"}:
        return np.array([name == "True" for name in names])
    whole = all(name.removeprefix("-").isdecimal() and str(int(name)) == name for name in names)
    return np.array(names, np.int64 if whole else str)


def labels_of(y: Any, num_nodes: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Classes as numbers, shape (N,), -1 where unknown; and their names in order.

    Whole numbers are named as integers, also where a missing class, NaN, made them floats.

    Raises:
        ShapeError: not one class for each node.
    """
    try:
        values = np.asarray(y)
    except ValueError:
        raise ShapeError(
            f"y holds lists of several lengths; give one class, or -1, for each node: {num_nodes}"
        ) from None
    if values.dtype.kind == "U" and not hasattr(y, "dtype"):  # in which numpy wrote -1 and NaN as text
        values = np.array([*y, None], object)[:-1]
    if values.shape != (num_nodes,):
        raise ShapeError(f"y has shape {values.shape}; give a class, or -1, for each of the {num_nodes} nodes")
    known = np.array([not _is_missing(value) for value in values.tolist()], bool)
    given = values[known]
    if given.dtype.kind == "f" and (given == np.rint(given)).all() and (np.abs(given) < 2**53).all():
        given = given.astype(np.int64)
    names, codes = np.unique(given.astype(str) if given.dtype.kind == "O" else given, return_inverse=True)
    classes = np.full(num_nodes, -1, np.int64)
    classes[known] = codes
    return classes, tuple(map(str, names.tolist()))


def _is_missing(value: Any) -> bool:
    """NaN and NaT differ from themselves; pandas' NA says neither yes nor no."""
    if type(value).__name__ == "NAType":
        return True
    return value != value or value in (None, -1, "")


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
