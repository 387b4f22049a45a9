"""Embeddings against classes: node classification by DeepWalk's protocol, agreement of clusters, nearest neighbours."""

# N nodes, D width, C classes, n fitted and B evaluated or labelled nodes, Q asked nodes, K neighbours.

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.progress import bar
from graph_emb.evaluate.by_degree import JudgedNodes
from graph_emb.evaluate.nearest import NearestNeighbors
from graph_emb.evaluate.ranks import as_embeddings, mean_and_std
from graph_emb.graph.labels import Labels

RATIOS = tuple(tenth / 10 for tenth in range(1, 10))


class RatioScores(NamedTuple):
    """F1 at one share of training nodes; means and unbiased standard deviations (NaN of one shuffle) over shuffles."""

    ratio: float
    num_train: int
    micro_mean: float
    micro_std: float
    macro_mean: float
    macro_std: float


@dataclass(frozen=True, eq=False)
class NodeClassification:
    """F1 scores by ratio and shuffle.

    Attributes:
        ratios: The R shares of training nodes.
        num_train: Training nodes at each of them.
        num_nodes: Labelled nodes.
        num_classes: C.
        micro, macro: Shape (R, shuffles), in [0, 1].
        judged: What was found of each labelled node at the middle ratio, over the shuffles.
    """

    ratios: tuple[float, ...]
    num_train: tuple[int, ...]
    num_nodes: int
    num_classes: int
    micro: NDArray[np.float64]
    macro: NDArray[np.float64]
    judged: JudgedNodes | None = None

    @property
    def table(self) -> list[RatioScores]:
        """A row for each ratio."""
        columns = [column.tolist() for scores in (self.micro, self.macro) for column in mean_and_std(scores)]
        return [RatioScores(*row) for row in zip(self.ratios, self.num_train, *columns, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file."""
        return {
            "num_nodes": self.num_nodes,
            "num_classes": self.num_classes,
            "shuffles": self.micro.shape[1],
            "ratios": [row._asdict() for row in self.table],
        }

    def __str__(self) -> str:
        from tabulate import tabulate

        rows = [
            [f"{row.ratio:.0%}", row.num_train, *(100 * value for value in row[2:])]  # in percent, as papers print
            for row in self.table
        ]
        return tabulate(rows, ["train", "nodes", "micro-F1 %", "std", "macro-F1 %", "std"], floatfmt=".2f")


def node_classification(
    embeddings: Any,
    labels: Labels,
    ratios: Sequence[float] = RATIOS,
    shuffles: int = 10,
    seed: int = 0,
    *,
    threads: int | None = None,
    progress: bool = False,
) -> NodeClassification:
    """F1 of one-vs-rest logistic regression, fitted on a share of the labelled nodes and evaluated on the others.

    The protocol of DeepWalk's ``scoring.py`` (Perozzi et al. 2014): liblinear with C=1; a node is assigned its k
    likeliest classes, k being its number of labels. The shuffles are the same at every ratio. ``f1`` defines
    the averages.

    Args:
        embeddings: Shape (N, D), floating, torch or numpy.
        labels: Of the same N nodes; nodes without a label are left out.
        ratios: Shares of training nodes, in (0, 1).
        shuffles: Random orders of the nodes.
        seed: Of the orders.
        threads: Classes fitted at a time; None: all cores.
        progress: Shows a bar.
    Raises:
        ConfigError: a ratio outside (0, 1) or one that leaves no node to train on; shuffles or threads below 1.
        DataError: labels of another number of nodes, or of fewer than two classes; embeddings that are not finite.
        ShapeError: embeddings is no floating matrix.

    Example:
        >>> from graph_emb.evaluate.node_classification import node_classification
        >>> from graph_emb.graph.labels import Labels
        >>> classes = torch.arange(20) % 2
        >>> rows = torch.stack([classes * 2.0 - 1.0, torch.ones(20)], dim=1)
        >>> found = node_classification(rows, Labels.from_single(classes.numpy()), ratios=(0.5,), shuffles=2, threads=1)
        >>> found.table[0].micro_mean
        1.0
    """
    matrix = as_embeddings(embeddings)
    nodes = labelled_nodes(labels, len(matrix))
    cuts = tuple(int(ratio * len(nodes)) if 0 < ratio < 1 else 0 for ratio in ratios)
    for ratio, cut in zip(ratios, cuts, strict=True):
        if cut < 1:  # the other side has a node whenever the ratio is below 1
            least = f"at least 1/{len(nodes)}" if 0 < ratio < 1 else "one in (0, 1)"
            raise ConfigError(f"ratio {ratio} of {len(nodes)} labelled nodes trains on none; give {least}")
    if shuffles < 1 or not cuts:
        raise ConfigError(f"{shuffles} shuffles at {len(cuts)} ratios; give at least one of each")
    features = matrix[nodes].astype(np.float64)
    targets = labels.subset(nodes).to_matrix().toarray()
    micro, macro = np.empty((len(cuts), shuffles)), np.empty((len(cuts), shuffles))
    right, asked = np.zeros(len(nodes), np.int64), np.zeros(len(nodes), np.int64)
    with bar(total=micro.size, desc="node classification", unit="split", shown=progress) as splits:
        for shuffle in range(shuffles):
            order = np.random.default_rng([seed, shuffle]).permutation(len(nodes))
            for place, cut in enumerate(cuts):
                train, test = order[:cut], order[cut:]
                model = fit_one_vs_rest(features[train], targets[train], threads=threads)
                predicted = top_k(model.decide(features[test]), targets[test].sum(axis=1))
                micro[place, shuffle], macro[place, shuffle] = f1(targets[test], predicted)
                if place == len(cuts) // 2:
                    right[test] += (targets[test] & predicted).sum(axis=1)
                    asked[test] += targets[test].sum(axis=1)
                splits.update()
    judged = JudgedNodes(nodes, right, asked)
    return NodeClassification(tuple(ratios), cuts, len(nodes), labels.num_classes, micro, macro, judged)


def top_k(scores: NDArray[np.float64], counts: NDArray[np.integer]) -> NDArray[np.bool_]:
    """The ``counts[i]`` classes of highest score for each node; of equal scores, the lower class.

    Args:
        scores: Shape (B, C).
        counts: Shape (B,), in [0, C].
    Returns:
        Shape (B, C).
    """
    order = np.argsort(-scores, axis=1, kind="stable")
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.broadcast_to(np.arange(scores.shape[1]), scores.shape), axis=1)
    return places < np.asarray(counts)[:, None]


def f1(truth: NDArray[np.bool_], predicted: NDArray[np.bool_]) -> tuple[float, float]:
    """Micro and macro F1 of indicator matrices (B, C).

    Macro is the mean over all C classes; a class that is neither present nor predicted counts 0. Both are what
    scikit-learn's ``f1_score`` gives for these matrices with ``zero_division=0``.
    """
    hit = (truth & predicted).sum(axis=0)
    all_of = truth.sum(axis=0) + predicted.sum(axis=0)
    micro = 2 * hit.sum() / max(all_of.sum(), 1)
    return float(micro), float((2 * hit / np.maximum(all_of, 1)).mean())


def labelled_nodes(labels: Labels, num_nodes: int) -> NDArray[np.int64]:
    """Nodes with a label, where labels fit embeddings of ``num_nodes`` rows.

    Raises:
        DataError: another number of nodes, or fewer than two classes in use.
    """
    if labels.num_nodes != num_nodes:
        raise DataError(f"labels are of {labels.num_nodes} nodes, embeddings of {num_nodes}; are they of one graph?")
    used = int((labels.class_counts() > 0).sum())
    if used < 2:
        raise DataError(f"labels use {used} of {labels.num_classes} classes; at least 2 are needed to tell apart")
    return labels.labelled()


# liblinear copies the matrix into nodes of 16 bytes for each class it fits.
_BYTES_PER_VALUE = 16


@dataclass(frozen=True, eq=False)
class LinearClassifier:
    """C fitted classifiers.

    Attributes:
        weights: Shape (D, C), float64.
        biases: Shape (C,); -inf for a class that no fitted node had, +inf for one that all had.
    """

    weights: NDArray[np.float64]
    biases: NDArray[np.float64]

    @property
    def num_parameters(self) -> int:
        """Weights and biases."""
        return self.weights.size + self.biases.size

    def decide(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Logits of shape (B, C) for features (B, D); each orders the nodes as the class's probability does."""
        return features @ self.weights + self.biases


def fit_one_vs_rest(
    features: NDArray[np.float64], targets: NDArray[np.bool_], *, threads: int | None = None, progress: bool = False
) -> LinearClassifier:
    """scikit-learn's liblinear (C=1) on each class against the rest; L2-regularised, the bias included.

    liblinear works without the interpreter's lock, so threads share the matrix and scale.

    Args:
        features: Shape (n, D), float64, contiguous (or each class would copy it).
        targets: Shape (n, C).
        threads: Classes fitted at a time; None: all cores, as far as half of the free memory holds their copies.
        progress: Shows a bar.
    Raises:
        ConfigError: threads below 1.
    """
    num_classes = targets.shape[1]
    counts = targets.sum(axis=0)
    fitted = np.flatnonzero((counts > 0) & (counts < len(targets)))
    weights = np.zeros((features.shape[1], num_classes))
    biases = np.where(counts == 0, -np.inf, np.inf)

    def fit(column: np.int64) -> None:
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(solver="liblinear", C=1.0).fit(features, targets[:, column])
        weights[:, column] = model.coef_[0]
        biases[column] = model.intercept_[0]

    # The largest classes take longest: they start first.
    fitted = fitted[np.argsort(-counts[fitted], kind="stable")]
    with ThreadPoolExecutor(num_threads(threads, features.size)) as pool:
        done = pool.map(fit, fitted)
        list(bar(done, desc="logistic regression", total=len(fitted), unit="class", shown=progress))
    return LinearClassifier(weights, biases)


def num_threads(asked: int | None, num_values: int) -> int:
    """Threads for a matrix of ``num_values`` numbers: as asked, else by cores and free memory."""
    if asked is not None:
        if asked < 1:
            raise ConfigError(f"threads is {asked}; give at least 1, or None for all cores")
        return asked
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    fitting = psutil.virtual_memory().available // (2 * _BYTES_PER_VALUE * max(num_values, 1))
    return max(1, min(cores, fitting))


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
        >>> from graph_emb.evaluate.node_classification import cluster_agreement
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
    cosines: NDArray[np.floating]

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
        >>> from graph_emb.evaluate.node_classification import nearest_nodes
        >>> rows = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
        >>> nearest_nodes(rows, np.array(["a", "b", "c"]), np.array([0]), k=1).nearest
        [['b']]
    """
    table = NearestNeighbors(embeddings)
    if len(names) != len(table.rows):
        raise DataError(f"{len(names)} names for {len(table.rows)} nodes; expected one for each")
    asked = np.asarray(asked)
    if len(asked) and not 0 <= asked.min() <= asked.max() < len(names):
        raise DataError(f"asked for nodes {asked.min()} to {asked.max()} of {len(names)}")
    found = table.nearest_rows(asked, k)
    nearest = [[str(name) for name in names[row]] for row in found.ids]
    return NearestNodes([str(name) for name in names[asked]], nearest, found.scores)
