"""Accuracy on a given train, valid and test split of nodes, by regression or by OGB's ``mlp.py`` of its node sets."""

# N nodes, n nodes of a part, D width, H hidden width, C classes, T tasks of yes or no, S seeds.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from graph_emb.core.errors import ConfigError, DataError, unknown_name
from graph_emb.core.progress import bar
from graph_emb.evaluate.by_degree import JudgedNodes
from graph_emb.evaluate.mlp_config import MLPConfig
from graph_emb.evaluate.node_classification import labelled_nodes
from graph_emb.evaluate.ranks import accuracy, as_embeddings, mean_and_std, mean_auc, task_aucs
from graph_emb.evaluate.softmax import fit_softmax
from graph_emb.graph.labels import Labels

ROWS_AT_ONCE = 1 << 14
PARTS = ("train", "valid", "test")
CLASSIFIERS = ("logreg", "mlp")


@dataclass(frozen=True)
class MLPRun:
    """One trained network.

    Attributes:
        metric: "acc" of classes, "rocauc" of several tasks, as OGB names them.
        epoch: Of the highest validation value, the first of equals; 1-based.
        scores: The metric by part ("train", "valid", "test"), at that epoch.
        num_parameters: Of the network.
    """

    metric: str
    epoch: int
    scores: dict[str, float]
    num_parameters: int


def build_mlp(in_dim: int, num_outputs: int, config: MLPConfig) -> nn.Sequential:
    """The network with torch's default initial values, drawn from its global generator."""
    layers: list[nn.Module] = []
    width = in_dim
    for _ in range(config.num_layers - 1):
        hidden = nn.Linear(width, config.hidden_dim)
        norm: list[nn.Module] = [nn.BatchNorm1d(config.hidden_dim)] if config.batch_norm else []
        layers += [hidden, *norm, nn.ReLU(), nn.Dropout(config.dropout)]
        width = config.hidden_dim
    return nn.Sequential(*layers, nn.Linear(width, num_outputs))


def train_mlp(
    parts: Mapping[str, tuple[Tensor, Tensor]],
    num_outputs: int,
    config: MLPConfig | None = None,
    *,
    seed: int = 0,
    progress: bool = False,
) -> MLPRun:
    """Train on one part with cross entropy and Adam; the epoch is chosen by the validation value alone.

    The global random state of torch is left as found.

    Args:
        parts: "train", "valid" and "test": features (n, D), float32, and classes (n,), int64, or answers (n, T),
            float32, 1 or 0 (NaN: unknown, and left out). Two training nodes at least.
        num_outputs: C or T.
        config: The recipe.
        seed: Of the initial values, the batches and dropout.
        progress: Shows a bar.
    """
    config = config or MLPConfig()
    features, truth = parts["train"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_mlp(features.shape[1], num_outputs, config)
        optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
        best_epoch, best = 0, {"valid": -1.0}
        epochs = bar(range(1, config.epochs + 1), desc=f"mlp, seed {seed}", unit="epoch", shown=progress)
        for epoch in epochs:
            _train_epoch(model, optimizer, features, truth, config.batch_size)
            if epoch % config.eval_every:
                continue
            valid = _score(model, *parts["valid"])
            if valid > best["valid"]:
                best_epoch = epoch
                best = {name: valid if name == "valid" else _score(model, *part) for name, part in parts.items()}
            epochs.set_postfix({"valid": f"{valid:.4f}", "best": f"{best['valid']:.4f}"})
    metric = "acc" if truth.dim() == 1 else "rocauc"
    return MLPRun(metric, best_epoch, best, sum(parameter.numel() for parameter in model.parameters()))


def _train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, features: Tensor, truth: Tensor, batch_size: int | None
) -> None:
    model.train()
    # A full batch needs no order, and no copy of the features.
    batches = [slice(None)] if batch_size is None else torch.randperm(len(features)).split(batch_size)
    for batch in batches:
        if not isinstance(batch, slice) and len(batch) == 1:
            continue
        optimizer.zero_grad()
        logits, answers = model(features[batch]), truth[batch]
        if truth.dim() == 1:
            loss = F.cross_entropy(logits, answers)
        else:
            known = ~answers.isnan()
            loss = F.binary_cross_entropy_with_logits(logits[known], answers[known])
        loss.backward()
        optimizer.step()


def _score(model: nn.Module, features: Tensor, truth: Tensor) -> float:
    """Accuracy of classes; of several tasks OGB's ROC-AUC, the mean over those that have both answers."""
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(rows) for rows in features.split(ROWS_AT_ONCE)])
    if truth.dim() == 1:
        return accuracy(logits, truth)
    return mean_auc(task_aucs(logits, truth), truth.shape[1])


@dataclass(frozen=True)
class SplitAccuracy:
    """Accuracies by part and seed.

    Attributes:
        classifier: "logreg" or "mlp".
        seeds: S seeds; one None for logreg, which draws nothing.
        accuracy: ``accuracy["test"]`` holds S values in [0, 1].
        epochs: S epochs chosen by the validation accuracy; None for logreg.
        num_parameters: Of the classifier, the embeddings not included; OGB counts both.
        judged: Which test nodes logreg got right; None for mlp.
    """

    classifier: str
    seeds: tuple[int | None, ...]
    accuracy: dict[str, tuple[float, ...]]
    epochs: tuple[int, ...] | None
    num_parameters: int
    judged: JudgedNodes | None = field(default=None, compare=False)

    def mean(self, part: str) -> float:
        """Mean over seeds."""
        return float(mean_and_std(self.accuracy[part])[0])

    def std(self, part: str) -> float:
        """Unbiased standard deviation over seeds, as OGB asks; NaN of one."""
        return float(mean_and_std(self.accuracy[part])[1])

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file."""
        return {
            "classifier": self.classifier,
            "seeds": list(self.seeds),
            "num_parameters": self.num_parameters,
            "epochs": self.epochs,
            "accuracy": {
                part: {"mean": self.mean(part), "std": self.std(part), "values": list(values)}
                for part, values in self.accuracy.items()
            },
        }

    def __str__(self) -> str:
        from tabulate import tabulate

        rows = [[part, 100 * self.mean(part), 100 * self.std(part)] for part in self.accuracy]
        return tabulate(rows, ["part", "accuracy %", "std"], floatfmt=".2f")


def split_accuracy(
    embeddings: Any,
    labels: Labels,
    split: Mapping[str, NDArray[np.integer]],
    classifier: str = "logreg",
    *,
    seeds: Sequence[int] | None = None,
    mlp: MLPConfig | None = None,
    threads: int | None = None,
    progress: bool = False,
) -> SplitAccuracy:
    """Share of nodes whose class is found, on each part of a split.

    "logreg" is softmax regression with C=1 (``fit_softmax``): nothing is chosen, so the validation part is only
    reported, and may be absent. "mlp" is OGB's network: its epoch is the best on the validation part.

    Args:
        embeddings: Shape (N, D), floating, torch or numpy.
        labels: Of the same N nodes, one class for each node of the split.
        split: Node numbers of "train", "valid" and "test", disjoint.
        classifier: "logreg" or "mlp".
        seeds: Of the networks; default 0. Not for logreg, which draws nothing.
        mlp: The network's recipe. Not for logreg.
        threads: Of logreg; None: all cores. Not for mlp, which follows torch's setting.
        progress: Shows a bar for each fit.
    Raises:
        ConfigError: an unknown classifier, or an argument that it does not use.
        DataError: a node with several labels or none; parts that are missing, overlap or name unknown nodes.
        ShapeError: embeddings is no floating matrix.

    Example:
        >>> from graph_emb.evaluate.split_accuracy import split_accuracy
        >>> from graph_emb.graph.labels import Labels
        >>> classes = np.arange(20) % 2
        >>> rows = np.stack([classes * 2.0 - 1.0, np.ones(20)], axis=1)
        >>> split = {"train": np.arange(10), "test": np.arange(10, 20)}
        >>> split_accuracy(rows, Labels.from_single(classes), split, threads=1).mean("test")
        1.0
    """
    if classifier not in CLASSIFIERS:
        raise unknown_name("classifier", classifier, CLASSIFIERS)
    unused = {"threads": threads} if classifier == "mlp" else {"seeds": seeds, "mlp": mlp}
    for name, value in unused.items():
        if value is not None:
            raise ConfigError(f"{name}={value!r} has no effect on classifier {classifier!r}; leave it out")
    matrix = as_embeddings(embeddings)
    nodes = _nodes_of(split, len(matrix), classifier)
    labelled_nodes(labels, len(matrix))
    if not labels.is_single:
        raise DataError("labels: some nodes have several; accuracy needs one each, use node_classification (F1)")
    classes = labels.to_single()
    for name, part in nodes.items():
        if (classes[part] < 0).any():
            raise DataError(f"{name} node {_first(part, classes[part] < 0)} has no label; take it out of the split")
    if classifier == "logreg":
        train, count = nodes["train"], labels.num_classes
        model = fit_softmax(matrix[train], classes[train], count, threads=threads, progress=progress)
        found = {name: model.decide(matrix[part].astype(np.float64)).argmax(axis=1) for name, part in nodes.items()}
        right = {name: float((own == classes[nodes[name]]).mean()) for name, own in found.items()}
        shares: dict[str, tuple[float, ...]] = {name: (share,) for name, share in right.items()}
        test = nodes["test"]
        judged = JudgedNodes(test, (found["test"] == classes[test]).astype(np.int64), np.ones(len(test), np.int64))
        return SplitAccuracy(classifier, (None,), shares, None, model.num_parameters, judged)
    chosen = (0,) if seeds is None else tuple(seeds)
    if not chosen:
        raise ConfigError("seeds is empty; give at least one")
    parts = {
        name: (torch.from_numpy(matrix[part].astype(np.float32)), torch.from_numpy(classes[part]))
        for name, part in nodes.items()
    }
    runs = [train_mlp(parts, labels.num_classes, mlp, seed=seed, progress=progress) for seed in chosen]
    accuracy = {name: tuple(run.scores[name] for run in runs) for name in parts}
    return SplitAccuracy(classifier, chosen, accuracy, tuple(run.epoch for run in runs), runs[0].num_parameters)


def _nodes_of(split: Mapping[str, NDArray[np.integer]], num_nodes: int, classifier: str) -> dict[str, NDArray]:
    """The parts in order, checked."""
    needed = PARTS if classifier == "mlp" else ("train", "test")
    nodes = {name: np.asarray(split[name], dtype=np.int64) for name in PARTS if name in split}
    for name in needed:
        if name not in nodes or not len(nodes[name]):
            raise DataError(f"the split has no {name} nodes; {classifier} needs {', '.join(needed)}")
    if len(nodes["train"]) < 2:
        raise DataError("the split has one train node; at least 2 are needed to tell classes apart")
    seen = np.zeros(num_nodes, dtype=bool)
    for name, part in nodes.items():
        if len(part) and (part.min() < 0 or part.max() >= num_nodes):
            raise DataError(f"{name} node {_first(part, (part < 0) | (part >= num_nodes))} is outside [0, {num_nodes})")
        if seen[part].any():
            raise DataError(f"{name} node {_first(part, seen[part])} is in an earlier part too; parts must be disjoint")
        seen[part] = True
    return {name: part for name, part in nodes.items() if len(part)}


def _first(part: NDArray[np.int64], bad: NDArray[np.bool_]) -> int:
    return int(part[np.argmax(bad)])
