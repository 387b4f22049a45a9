"""Agreement of clusters of embeddings with classes."""

# N nodes, B labelled nodes, C classes.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError
from graph_emb.evaluate.arrays import as_embeddings, mean_and_std
from graph_emb.evaluate.node_classification import labelled_nodes
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
