"""A small network that predicts classes or several labels from frozen embeddings: OGB's ``mlp.py`` of its node sets."""

# N nodes, n nodes of a part, D width, H hidden width, C classes, T tasks of yes or no.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from graph_emb.evaluate.class_metrics import accuracy, task_aucs
from graph_emb.evaluate.mlp_config import MLPConfig

ROWS_AT_ONCE = 1 << 14


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
        bar = tqdm(range(1, config.epochs + 1), desc=f"mlp, seed {seed}", unit="epoch", disable=not progress)
        for epoch in bar:
            _train_epoch(model, optimizer, features, truth, config.batch_size)
            if epoch % config.eval_every:
                continue
            valid = _score(model, *parts["valid"])
            if valid > best["valid"]:
                best_epoch = epoch
                best = {name: valid if name == "valid" else _score(model, *part) for name, part in parts.items()}
            bar.set_postfix({"valid": f"{valid:.4f}", "best": f"{best['valid']:.4f}"})
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
    found = task_aucs(logits, truth)
    return sum(value.realistic for value in found) / len(found)
