"""Agreement of clusters of embeddings with classes, and nearest neighbours by cosine."""

# N nodes, B labelled nodes, C classes, Q asked nodes, K neighbours.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.evaluate.node_classification import labelled_nodes
from graph_emb.evaluate.ranks import as_embeddings, mean_and_std
from graph_emb.graph.labels import Labels


@dataclass(frozen=True, eq=False)
class ClusterAgreement:
    """Normalised mutual information of k-means clusters and classes, over the starts of k-means.

    Attributes:
        num_nodes: B.
        num_classes: C, as many as clusters.
        nmi: Shape (runs,), in [0, 1]; 1: the clusters are the classes.
    """

    num_nodes: int
    num_classes: int
    nmi: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Mean over the runs."""
        return float(mean_and_std(self.nmi)[0])

    @property
    def std(self) -> float:
        """Unbiased standard deviation over the runs; NaN of one."""
        return float(mean_and_std(self.nmi)[1])

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file."""
        return {
            "num_nodes": self.num_nodes,
            "num_classes": self.num_classes,
            "runs": len(self.nmi),
            "nmi_mean": self.mean,
            "nmi_std": self.std,
        }

    def __str__(self) -> str:
        return (
            f"NMI {self.mean:.3f} +- {self.std:.3f} of {self.num_nodes} nodes in {self.num_classes} classes, "
            f"{len(self.nmi)} runs of k-means"
        )


def cluster_agreement(embeddings: Any, labels: Labels, *, runs: int = 10, seed: int = 0) -> ClusterAgreement:
    """Cluster the labelled nodes by k-means, with as many clusters as classes in use, and compare with the classes.

    The protocol of metapath2vec (Dong et al. 2017, section 4.2): the mean of the normalised mutual information over 10
    runs of k-means. Rows are scaled to length 1 before, so that directions are clustered and not popularity.

    Args:
        embeddings: Shape (N, D), floating.
        labels: Of the same N nodes, at most one each; nodes without a label are left out.
        runs: Starts of k-means, each scored by itself.
        seed: Of the starts.
    Raises:
        DataError: labels of another number of nodes, or of fewer than two classes, or several for a node.
        ConfigError: runs below 1.

    Example:
        >>> from graph_emb.evaluate.clustering import cluster_agreement
        >>> from graph_emb.graph.labels import Labels
        >>> classes = np.arange(20) % 2
        >>> rows = np.stack([classes * 2.0 - 1.0, np.ones(20)], axis=1)
        >>> round(cluster_agreement(rows, Labels.from_single(classes), runs=2).mean, 6)
        1.0
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import normalized_mutual_info_score

    rows = as_embeddings(embeddings)
    nodes, classes = labelled_nodes(labels, len(rows)), labels.to_single()
    count = len(np.unique(classes[nodes]))
    if runs < 1:
        raise ConfigError(f"{runs} runs of k-means; give at least one")
    chosen = rows[nodes].astype(np.float64)
    chosen /= np.maximum(np.linalg.norm(chosen, axis=1, keepdims=True), 1e-12)
    found = [
        normalized_mutual_info_score(
            classes[nodes], KMeans(count, n_init=1, random_state=(seed + run) % 2**32).fit_predict(chosen)
        )
        for run in range(runs)
    ]
    return ClusterAgreement(len(nodes), count, np.array(found))


@dataclass(frozen=True, eq=False)
class NearestNodes:
    """Neighbours by cosine, nearest first.

    Attributes:
        asked: Names of the asked nodes, Q.
        nearest: Names of their neighbours, (Q, K).
        cosines: Shape (Q, K).
    """

    asked: list[str]
    nearest: list[list[str]]
    cosines: NDArray[np.float64]

    def as_dict(self) -> dict[str, Any]:
        """Names and cosines for a JSON file."""
        rows = zip(self.asked, self.nearest, self.cosines.round(4).tolist(), strict=True)
        return {name: [[other, cosine] for other, cosine in zip(near, far, strict=True)] for name, near, far in rows}

    def __str__(self) -> str:
        from tabulate import tabulate

        columns = {name: near for name, near in zip(self.asked, self.nearest, strict=True)}
        return tabulate(columns, headers="keys")


def nearest_nodes(embeddings: Any, names: NDArray[np.str_], asked: NDArray[np.integer], k: int = 9) -> NearestNodes:
    """The k nodes of highest cosine for each asked node, itself left out.

    Args:
        embeddings: Shape (N, D), floating.
        names: Shape (N,), strings.
        asked: Shape (Q,), node numbers.
        k: K, below N.
    Raises:
        DataError: names of another number of nodes, or an asked node that is none.
        ConfigError: k outside [1, N - 1].

    Example:
        >>> from graph_emb.evaluate.clustering import nearest_nodes
        >>> rows = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
        >>> nearest_nodes(rows, np.array(["a", "b", "c"]), np.array([0]), k=1).nearest
        [['b']]
    """
    rows = as_embeddings(embeddings).astype(np.float64)
    if len(names) != len(rows):
        raise DataError(f"{len(names)} names for {len(rows)} nodes; expected one for each")
    if not 1 <= k < len(rows):
        raise ConfigError(f"k={k} nearest of {len(rows)} nodes: give one in [1, {len(rows) - 1}]")
    asked = np.asarray(asked)
    if len(asked) and not 0 <= asked.min() <= asked.max() < len(rows):
        raise DataError(f"asked for nodes {asked.min()} to {asked.max()} of {len(rows)}")
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    cosines = rows[asked] @ rows.T
    cosines[np.arange(len(asked)), asked] = -np.inf
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    found = [[str(name) for name in names[row]] for row in order]
    return NearestNodes([str(name) for name in names[asked]], found, np.take_along_axis(cosines, order, axis=1))
