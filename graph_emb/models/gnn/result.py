"""Result of training a graph network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from graph_emb.embedding import DistEmbedding
from graph_emb.models.epochs import Evaluation, best, best_values


@dataclass(frozen=True, eq=False)
class GNNResult:
    """A trained network; network and tables are as they were after the last epoch, or their averages until then.

    Attributes:
        model: The network; of link prediction a module with ``encoder`` and ``predictor``.
        tables: The learnable inputs by node type.
        history: Evaluations in order.
        num_parameters: Of network and tables.
        seconds_per_epoch: Wall time of training, evaluations left out.
        interrupted: Whether Ctrl-C ended the training; the history may then be empty.
    """

    model: nn.Module
    tables: dict[str, DistEmbedding]
    history: tuple[Evaluation, ...]
    num_parameters: int
    seconds_per_epoch: float
    interrupted: bool = False

    def best(self, metric: str | None = None) -> Evaluation:
        """The first evaluation with the highest validation value of a metric, by default the first one; without a
        validation part the last evaluation. Its ``test`` is what is reported.
        """
        return best(self.history, metric)

    def as_dict(self) -> dict[str, Any]:
        """Numbers for a JSON file."""
        return {
            "metrics": best_values(self.history),
            "history": [evaluation.as_dict() for evaluation in self.history],
            "num_parameters": self.num_parameters,
            "seconds_per_epoch": self.seconds_per_epoch,
        }
