"""Training objectives of a graph network: classes of nodes, or links by OGB's predictor on the network's rows."""

# E edges, B pairs, N nodes, O width of the network's rows.

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graph_emb.evaluate.link_prediction import metric_values
from graph_emb.evaluate.link_split import link_part, pairs_of
from graph_emb.models.epochs import Values
from graph_emb.models.gnn.config import SAGEConfig
from graph_emb.models.gnn.tasks import LinkTask, NodeTask
from graph_emb.models.gnn.trainer import Trainer, owned_by
from graph_emb.models.links.training import CHUNK, FrozenRows, LinkPredictor, negative_draw, score_links
from graph_emb.transport.data_parallel import Replicas


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

    def evaluate(self, part: str) -> Values:
        """The task's metric of a part, from whole neighbourhoods."""
        if self._logits is None:  # valid and test share these rows
            self._logits = self._trainer.final_rows()
        return self._trainer.agreed(self._task.measure(self._logits, part))


class LinkTraining:
    """Epochs over the training edges whose first end this rank owns, each with as many negatives.

    The loss is ``mean(-log sigmoid(edge)) + mean(-log(1 - sigmoid(negative)))``, as in ``train_link_predictor``.

    Args:
        trainer: The network and its inputs.
        task: The split.
        predictor: On the network's rows.
        num_nodes: N.
        config: The recipe.
        policy: Who owns the nodes; None: even ranges.
    Raises:
        DataError: a part of the split is missing, empty, or names unknown nodes.
        ShapeError: a table of another shape.
    """

    def __init__(
        self,
        trainer: Trainer,
        task: LinkTask,
        predictor: LinkPredictor,
        num_nodes: int,
        config: SAGEConfig,
        policy: Any = None,
    ) -> None:
        self._trainer, self._task, self._config = trainer, task, config
        edges = pairs_of(task.split, "train", "edge", num_nodes)
        self._parts = {part: link_part(task.split, part, num_nodes) for part in ("valid", "test")}
        self._draw = negative_draw(config.negatives, task.split, num_nodes)
        self._own = owned_by(trainer.rank, trainer.num_ranks, edges[:, 0], num_nodes, policy)
        self._edges = edges
        self._network = predictor
        self._predictor = Replicas(predictor, trainer.group)
        trainer.optimizers.append(
            torch.optim.Adam(predictor.parameters(), lr=config.network_lr, weight_decay=config.weight_decay)
        )
        self._rows: FrozenRows | None = None

    def epoch(self) -> float:
        """One pass; the mean loss over all ranks' edges."""
        trainer = self._trainer
        self._rows = None
        self._network.train()
        loss_sum = 0.0
        for positions in trainer.batches(len(self._own)):
            numbers = self._own[positions]
            edges = self._edges[numbers]
            pairs = torch.cat([edges, self._draw(numbers, edges, trainer.generator)])
            sign = torch.ones(len(pairs), device=trainer.device)
            sign[len(positions) :] = -1.0
            (count,) = trainer.total(len(positions))
            loss_sum += self._backward(pairs, sign, count)
            trainer.step(trainer.network.module, self._network)
        loss_sum, count = trainer.total(loss_sum, len(self._own))
        return loss_sum / count

    def _backward(self, pairs: Tensor, sign: Tensor, count: float) -> float:
        """Gradients of the loss of pairs (B, 2), divided by ``count`` edges; returns its sum."""
        trainer = self._trainer
        if trainer.samples:
            nodes, places = torch.unique(pairs, return_inverse=True)
            rows = trainer.compute(nodes)
        else:
            places, rows = pairs, trainer.compute_all()
        # Chunks of the predictor's activations stay in the cache; their gradients add up.
        leaf = rows.detach().requires_grad_()
        row_grads = torch.zeros_like(leaf)
        chunks = list(zip(places.to(trainer.device).split(CHUNK), sign.split(CHUNK), strict=True))
        loss_sum = 0.0
        for chunk, chunk_sign in chunks[:-1]:
            with self._predictor.apart():
                loss_sum += self._chunk(leaf, row_grads, chunk, chunk_sign, count)
        loss_sum += self._chunk(leaf, row_grads, *chunks[-1], count)
        rows.backward(row_grads)
        return loss_sum

    def _chunk(self, rows: Tensor, row_grads: Tensor, chunk: Tensor, sign: Tensor, count: float) -> float:
        precision = getattr(torch, self._config.precision)
        with torch.autocast(rows.device.type, precision, enabled=precision is not torch.float32):
            logits = self._predictor(rows, chunk, row_grads)
        loss = -F.logsigmoid(sign * logits.float()).sum()
        (loss / count).backward()
        return loss.item()

    def evaluate(self, part: str) -> Values:
        """The task's metrics of a part, from whole neighbourhoods."""
        if self._rows is None:  # valid and test share these rows
            self._rows = FrozenRows(self._trainer.final_rows().to(self._trainer.device))
        model, rows = self._trainer.evaluated(self._network), self._rows
        assert isinstance(model, LinkPredictor)
        ranks = self._parts[part].ranks(lambda pairs: score_links(model, rows, pairs))
        return self._trainer.agreed(metric_values(ranks, self._task.metrics))
