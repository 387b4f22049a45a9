"""Estimators whose rows are judged by pairs of nodes: walk models and LINE, and walks along a path of node types."""

# E pairs.

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graph_emb.core.errors import DataError, ShapeError
from graph_emb.estimators.base import GraphEstimator, is_graph, pair_places
from graph_emb.evaluate.link_prediction import CentredDot, evaluate_link, score_pairs
from graph_emb.formats.embedding_files import places_of
from graph_emb.graph.csr import Graph
from graph_emb.graph.held_out import non_edges
from graph_emb.graph.readers import read_graph
from graph_emb.graph.readers.source import is_frame

SCORER = "centred-dot"


class PairEstimator(GraphEstimator):
    """An estimator of rows that are near where nodes are joined."""

    def score(self, X: Any = None, y: Any = None) -> float:
        """ROC-AUC of pairs of nodes by the dot product of their rows less the mean row.

        Args:
            X: Pairs of ids of the main table, shape (E, 2), or a data frame of two columns.
            y: 1 for an edge, 0 for none, shape (E,), both among them.
        Raises:
            ShapeError: no such pairs, or not as many labels.
            DataError: a node that the graph did not have, or labels of one kind.
        """
        pairs, truth = self._places(X), np.asarray(y)
        if truth.shape != (len(pairs),):
            raise ShapeError(f"y has shape {truth.shape}; give 1 (an edge) or 0 for each of the {len(pairs)} pairs")
        if {*np.unique(truth).tolist()} != {0, 1}:
            raise DataError("y must hold 1 (an edge) and 0 (none), both at least once")
        return self._auc(pairs[truth == 1], pairs[truth == 0])

    def predict_links(self, pairs: Any) -> NDArray[np.float32]:
        """Scores of pairs of nodes, shape (E,), higher for a likelier edge: dot products of rows less their mean.

        They order pairs and are no probabilities.

        Args:
            pairs: Of ids of the main table, shape (E, 2), or a data frame of two columns.
        Raises:
            ShapeError: no such pairs.
            DataError: a node that the graph did not have.
        """
        rows, places = torch.from_numpy(self._main().weights), torch.from_numpy(self._places(pairs))
        return score_pairs(rows, places, CentredDot().fit(rows, {})).numpy()

    def _places(self, X: Any) -> NDArray[np.int64]:
        """Pairs of ids as row numbers, shape (E, 2)."""
        return pair_places(self._main(), X)

    def _auc(self, edges: NDArray[np.int64], others: NDArray[np.int64]) -> float:
        split = {"test": {"edge": edges, "edge_neg": others}}
        return evaluate_link(self._main().weights, split, ("auc",), SCORER, ("test",)).value("test", "auc")


class NodeEstimator(PairEstimator):
    """Nodes and edges of one type each; weights of edges are followed."""

    threads: int | None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.pairwise = tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []  # rows are float32
        tags.non_deterministic = self.threads != 1  # SGD in place has no locks
        return tags

    def score(self, X: Any = None, y: Any = None) -> float:
        """ROC-AUC of edges against pairs that are none, by the dot product of their rows less the mean row.

        Args:
            X: Held-out edges: pairs of ids, shape (E, 2), or a graph of the same nodes, or some of them.
            y: Of pairs: 1 for an edge, 0 for none, shape (E,), both among them; of a graph it is not read. None: all
                are edges, and as many pairs are drawn by ``seed`` that are edges neither here nor in the graph of fit.
        Raises:
            ShapeError: no such pairs, or not as many labels.
            DataError: a node that the graph did not have, or labels of one kind.
            LackingError: y is None, and the graph is not there: the estimator is a run that was loaded.
        """
        listed = is_frame(X) or (isinstance(X, np.ndarray | list) and (not len(X) or np.size(X[0]) == 2))
        if is_graph(X) and not listed:
            X, y = edges_of(self._checked_array(X, reset=False)), None
        if y is not None:
            return super().score(X, y)
        pairs, main = self._places(X), self._main()
        trained: Graph = self._trained_on().graph
        order = places_of(main, trained.ids_of(np.arange(trained.num_nodes)))
        edges = trained.edges() if order is None else order[trained.edges()]
        ends = np.concatenate([edges, pairs])
        whole = Graph.from_edges(ends[:, 0], ends[:, 1], trained.num_nodes, directed=trained.directed)
        return self._auc(pairs, non_edges(whole, len(pairs), np.random.default_rng(self.config_.seed)))


class PathEstimator(PairEstimator):
    """Nodes of several types, joined by edges of several types; ``tables_`` has the rows of each type on the path."""


DeepWalk = NodeEstimator.of("DeepWalk", "deepwalk")
Node2Vec = NodeEstimator.of("Node2Vec", "node2vec")
LINE = NodeEstimator.of("LINE", "line")
NetMF = NodeEstimator.of("NetMF", "netmf")
ProNE = NodeEstimator.of("ProNE", "prone")
Metapath2Vec = PathEstimator.of("Metapath2Vec", "metapath2vec")


def edges_of(graph: Any) -> NDArray[Any]:
    """The edges of a graph of one edge type by the ids of its nodes, shape (E, 2); undirected ones once."""
    read = read_graph(graph)
    (src, dst), *more = read.edges.values()
    if more:
        raise DataError(f"the graph has {1 + len(more)} edge types; give pairs of ids")
    ids = next(iter(read.node_ids.values()), None)
    ends = np.stack([src, dst], axis=1)
    if read.symmetric:
        ends = ends[src <= dst]
    return ends if ids is None else ids[ends]
