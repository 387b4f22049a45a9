"""Training a graph network to tell the classes of nodes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from graph_emb.models.gnn.result import Values
from graph_emb.models.gnn.tasks import NodeTask
from graph_emb.models.gnn.trainer import Trainer, owned_by


class NodeClassTraining:
    """Epochs over the training nodes that this rank owns.

    Args:
        trainer: The network and its inputs.
        task: Labels and split.
        policy: Who owns the target nodes; None: even ranges.
    """

    def __init__(self, trainer: Trainer, task: NodeTask, policy: Any = None) -> None:
        self._trainer, self._task = trainer, task
        nodes = task.nodes["train"]
        self._own = nodes[owned_by(trainer.rank, trainer.num_ranks, nodes, len(task.truth), policy)]
        self._logits: Tensor | None = None

    def epoch(self) -> float:
        """One pass; the mean loss over all ranks' nodes."""
        trainer, task = self._trainer, self._task
        self._logits = None
        loss_sum = 0.0
        for positions in trainer.batches(len(self._own)):
            nodes = self._own[positions]
            loss = task.loss(trainer.compute(nodes), nodes)
            (count,) = trainer.total(len(nodes))
            (loss / count).backward()
            trainer.step(trainer.network.module)
            loss_sum += loss.item()
        loss_sum, count = trainer.total(loss_sum, len(self._own))
        return loss_sum / count

    def judge(self, part: str) -> Values:
        """The task's metric of a part, by whole neighbourhoods."""
        if self._logits is None:  # valid and test are judged by the same rows
            self._logits = self._trainer.final_rows()
        return self._trainer.agreed(self._task.measure(self._logits, part))
