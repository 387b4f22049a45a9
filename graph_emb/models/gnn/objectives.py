"""Objectives of a graph network: the gradients of a step and the metrics of a part, for classes, links and triples."""

# E edges, B pairs or triples of a step, N nodes or entities, R relations, O and W widths of their rows.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from graph_emb.evaluate.dealt_triples import rank_part_dealt
from graph_emb.evaluate.link_prediction import dealt_scores, link_part, metric_values, pairs_of
from graph_emb.evaluate.triple_ranks import HITS_AT, check_candidates
from graph_emb.models.epochs import Values
from graph_emb.models.gnn.config import RGCNConfig, SAGEConfig
from graph_emb.models.gnn.relational import glorot
from graph_emb.models.gnn.tasks import LinkTask, NodeTask, OwnNodeTask, TripleTask
from graph_emb.models.gnn.trainer import Trainer
from graph_emb.models.kge.batches import Batches
from graph_emb.models.kge.best_rows import BestRows
from graph_emb.models.kge.model import TripleBatch, triple_loss
from graph_emb.models.kge.scorers import scorer_of
from graph_emb.models.links.training import (
    CHUNK,
    FrozenRows,
    LinkPredictor,
    link_chunks,
    link_loss,
    negative_draw,
    score_links,
    with_negatives,
)
from graph_emb.sampling.known_triples import KnownAnswers
from graph_emb.transport.process_group import ProcessGroup

Loss = float | Tensor
"""A sum of losses; a tensor may still be computed by a GPU, and nobody waits for it before the epoch ends."""


class Objective(ABC):
    """Epochs of steps that all ranks take together.

    A step's nodes, edges or triples, and their negatives, follow from the seed alone: any number of ranks shares the
    same ones.

    Args:
        trainer: The network and its inputs.
        networks: All that the steps train.
    Attributes:
        unit: What its items are, a plural.
    """

    unit: ClassVar[str]

    def __init__(self, trainer: Trainer, *networks: nn.Module) -> None:
        self._trainer, self.networks = trainer, networks
        self._rows: Any = None  # of the last evaluation: valid and test share them

    def epoch(self, number: int) -> float:
        """One pass, the ``number``-th from 1; the mean loss over all ranks' nodes, edges or triples."""
        self._rows = None
        sums: list[Loss] = []
        weight_sum = 0.0
        for network in self.networks:
            network.train()
        for losses, weight in self._steps(number):
            sums = [before + loss for before, loss in zip(sums or [0.0] * len(losses), losses, strict=True)]
            weight_sum += weight
            self._trainer.step(*self.networks)
        return self._trainer.mean_loss([float(value) for value in sums], weight_sum)

    def _count(self, num: int) -> None:
        """Note that this rank trains so many items."""
        if self._trainer.meter is not None:
            self._trainer.meter.items += num

    @abstractmethod
    def _steps(self, number: int) -> Iterator[tuple[Sequence[Loss], float]]:
        """The gradients of a step of an epoch, one after the other, as far as this rank trains it.

        Yields:
            The sum of losses of each of this rank's blocks, or of all that it trains; and the weight of the whole step,
            which is the number of its items.
        """

    @abstractmethod
    def evaluate(self, part: str) -> Values:
        """The task's metrics of a part, from whole neighbourhoods."""


class ItemTraining(Objective):
    """Epochs over training nodes or edges, of which a rank trains those that it owns, or its blocks of each step.

    Args:
        trainer: The network and its inputs.
        num_items: E.
        owned: Places of those that this rank owns, and trains on unless steps have blocks.
        networks: All that the steps train.
    """

    def __init__(self, trainer: Trainer, num_items: int, owned: Tensor, *networks: nn.Module) -> None:
        super().__init__(trainer, *networks)
        self._num = num_items
        trainer.steps_per_epoch = max(1, -(-num_items // (trainer.config.batch_size or max(1, num_items))))
        self._owned = torch.zeros(num_items, dtype=torch.bool).index_fill_(0, owned, True)

    def _steps(self, number: int) -> Iterator[tuple[Sequence[Loss], float]]:
        drawn = ((places, self._drawn(places)) for places in self._trainer.batches(self._num))
        steps = self._trainer.announced(drawn, lambda step: self._asked(step[1]))
        step = next(steps, None)
        while step is not None:
            places, items = step
            losses = []
            for share in self._trainer.shares(self._owned[places], self.networks):
                own = items[share]
                self._count(len(own))
                losses.append(self._backward(own, len(places)))
            step = next(steps, None)  # while a GPU still computes
            yield losses, len(places)

    def _drawn(self, places: Tensor) -> Tensor:
        """The items of a step of all ranks, with what belongs to them, (B, *), from their places (B,)."""
        return places

    @abstractmethod
    def _asked(self, items: Tensor) -> Tensor:
        """The target nodes, as ``Trainer.rows_of`` numbers them, that ``_backward`` computes for items; distinct."""

    @abstractmethod
    def _backward(self, items: Tensor, count: int) -> Loss:
        """Gradients of some items' part in the mean loss of a step of ``count`` ones; returns the sum."""


class NodeClassTraining(ItemTraining):
    """Epochs over training nodes.

    Args:
        trainer: The network and its inputs.
        task: Labels and split.
    """

    unit = "nodes"

    def __init__(self, trainer: Trainer, task: NodeTask) -> None:
        nodes = task.nodes["train"]
        self._nodes, self._truth = nodes + trainer.first_row, task.truth[nodes]
        if isinstance(task, OwnNodeTask):
            owned = task.places
            shared = None if trainer.blocks is None else task.group  # a block has nodes of every rank
            self._nodes, self._truth = (
                _of_all(own, owned, task.sizes["train"], shared) for own in (self._nodes, self._truth)
            )
        else:
            owned = trainer.owned(nodes)
        super().__init__(trainer, len(self._nodes), owned, trainer.network.module)
        self._task = task

    def _asked(self, items: Tensor) -> Tensor:
        return self._nodes[items]

    def _backward(self, items: Tensor, count: int) -> Loss:
        rows = self._trainer.compute(self._asked(items), repeated=self._trainer.config.batch_size is None)
        loss = self._task.loss(rows, self._truth[items])
        (loss / count).backward()
        return loss.detach().double()

    def evaluate(self, part: str) -> Values:
        """See ``Objective.evaluate``."""
        if self._rows is None:
            self._rows = self._trainer.own_rows()
        return self._trainer.agreed(self._task.measure(self._rows, part))


def _of_all(own: Tensor, places: Tensor, size: int, group: ProcessGroup | None) -> Tensor:
    """Values (R, *) at their places among ``size`` ones, of all ranks where there is a group, else zeros elsewhere."""
    found = own.new_zeros((size, *own.shape[1:])).index_copy_(0, places, own)
    return found if group is None else group.sum(found, "training nodes")


class LinkTraining(ItemTraining):
    """Epochs over training edges, of which those are a rank's whose first end it owns, each with its negatives.

    The loss is that of ``train_link_predictor``.

    Args:
        trainer: The network and its inputs.
        task: The split.
        predictor: On the network's rows.
        num_nodes: N.
        config: The recipe.
    Raises:
        DataError: a part of the split is missing, empty, or names unknown nodes.
        ShapeError: a table of another shape.
    """

    unit = "edges"

    def __init__(
        self,
        trainer: Trainer,
        task: LinkTask,
        predictor: LinkPredictor,
        num_nodes: int,
        config: SAGEConfig,
    ) -> None:
        edges = pairs_of(task.split, "train", "edge", num_nodes)
        super().__init__(trainer, len(edges), trainer.owned(edges[:, 0]), trainer.network.module, predictor)
        if trainer.blocks is not None:
            trainer.blocks.generators.append(predictor.generator)
        self._task, self._edges = task, edges
        self._parts = {part: link_part(task.split, part, num_nodes) for part in ("valid", "test")[not task.has_valid :]}
        self._draw = negative_draw(config.negatives, task.split, num_nodes)
        self._network = predictor
        self._predictor = trainer.shared(predictor)
        self._config = config
        trainer.optimizers.append(
            torch.optim.Adam(predictor.parameters(), lr=config.network_lr, weight_decay=config.weight_decay)
        )

    def _drawn(self, places: Tensor) -> Tensor:
        """Edges, each before its negatives, (B, 1 + K, 2)."""
        count = self._config.num_negatives
        return with_negatives(self._draw, places, self._edges[places], count, self._trainer.generator)

    def _asked(self, items: Tensor) -> Tensor:
        return self._trainer.rows_of(items.unique())

    def _backward(self, items: Tensor, count: int) -> Loss:
        trainer = self._trainer
        if trainer.samples:
            nodes, places = torch.unique(items, return_inverse=True)
            rows = trainer.compute(trainer.rows_of(nodes))
        else:
            places, rows = items, trainer.compute_all()
        # Chunks of the predictor's activations stay in the cache; their gradients add up.
        leaf = rows.detach().requires_grad_()
        row_grads = torch.zeros_like(leaf)
        chunks = link_chunks(places.to(trainer.device))
        loss_sum: Loss = 0.0
        for chunk in chunks[:-1]:
            with self._predictor.apart():
                loss_sum += self._chunk(leaf, row_grads, chunk, count)
        loss_sum += self._chunk(leaf, row_grads, chunks[-1], count)
        rows.backward(row_grads)
        return loss_sum

    def _chunk(self, rows: Tensor, row_grads: Tensor, chunk: Tensor, count: float) -> Loss:
        loss = link_loss(self._predictor, rows, chunk, row_grads, self._config)
        (loss / count).backward()
        return loss.detach().double()

    def evaluate(self, part: str) -> Values:
        """See ``Objective.evaluate``."""
        if self._rows is None:
            self._rows = FrozenRows(self._trainer.final_rows().to(self._trainer.device))
        model, rows = cast(LinkPredictor, self._trainer.evaluated(self._network)), self._rows
        score = dealt_scores(self._trainer.group, lambda pairs: score_links(model, rows, pairs), CHUNK)
        ranks = self._parts[part].ranks(score)
        return self._trainer.agreed(metric_values(ranks, self._task.metrics))


SCORES = 1 << 23
"""Scores of triples against negatives that are held at once, about."""


class TripleDecoder(nn.Module):
    """Scores of triples by the network's rows of entities, and a row for each relation: DistMult in the paper.

    Schlichtkrull et al. 2018, section 4.

    Args:
        num_relations: R.
        config: The scorer, its width, loss, negatives and penalties.
    """

    def __init__(self, num_relations: int, config: RGCNConfig) -> None:
        super().__init__()
        settings = config.decoder_settings
        self.scorer, self._config = scorer_of(settings), config
        self.relation = glorot(num_relations, self.scorer.relation_dim)

    def forward(self, rows: Tensor, places: Tensor, batch: TripleBatch) -> Tensor:
        """``triple_loss`` of a batch, its entities' rows being ``rows`` (N, O) at ``places``; a scalar."""
        asked = torch.from_numpy(batch.triples[..., 1].ravel()).to(rows.device)
        entities = rows.index_select(0, places.to(rows.device))
        return triple_loss(self.scorer, self._config, batch, entities, self.relation.index_select(0, asked))


class TripleTraining(Objective):
    """Epochs over the training triples of a knowledge graph, judged by filtered ranks as its own models are.

    Ranks, or blocks, share the chunks of each step. Each computes the entities of its triples and negatives once, and
    the scores of a few chunks at a time.

    Args:
        trainer: The network and its inputs.
        task: The triples.
        decoder: On the network's rows.
        config: The recipe.
        seed: Of order and negatives.
    Raises:
        ConfigError: candidates that cannot be sampled.
    """

    unit = "triples"

    def __init__(
        self, trainer: Trainer, task: TripleTask, decoder: TripleDecoder, config: RGCNConfig, seed: int
    ) -> None:
        super().__init__(trainer, trainer.network.module, decoder)
        graph = task.triples
        judged = ("valid", "test")[not task.has_valid :]
        check_candidates(graph, judged, config.candidates)
        self._graph, self._config, self._seed, self._chosen_by = graph, config, seed, judged[0]
        ranked = np.concatenate(
            [np.empty((0, 3), np.int64), *(graph.parts[part] for part in judged if part in graph.parts)]
        )
        self._known = None if trainer.rank else KnownAnswers.to(ranked, graph)
        shares, num_shares = [int(trainer.rank)], trainer.num_ranks
        if trainer.blocks is not None:
            shares, num_shares = list(trainer.blocks.own), config.blocks
        self._shares = shares
        self._batches = [Batches(graph, config, seed, share, num_shares, lockstep=True) for share in shares]
        trainer.steps_per_epoch = self._batches[0].steps_per_epoch
        self._network, self._decoder = decoder, trainer.shared(decoder)
        self._best, self._epoch = BestRows(), 0
        self._places = torch.arange(graph.num_entities)  # of entities among a step's rows; those of a sample change
        trainer.optimizers.append(
            torch.optim.Adam(decoder.parameters(), lr=config.network_lr, weight_decay=config.weight_decay)
        )

    def _steps(self, number: int) -> Iterator[tuple[Sequence[Loss], float]]:
        self._epoch = number
        steps = zip(*(batches.epoch(number - 1) for batches in self._batches), strict=True)
        for found in self._trainer.announced(steps, lambda step: self._asked(step[0][1])):
            losses = []
            for share, (_, batch) in zip(self._shares, found, strict=True):
                self._count(int(np.count_nonzero(batch.weights)))
                with self._trainer.computing(share, self.networks):
                    losses.append(self._backward(batch) * batch.total_weight)
            yield losses, found[0][1].total_weight

    def _asked(self, batch: TripleBatch) -> Tensor:
        return self._trainer.rows_of(torch.from_numpy(batch.entities()).unique())

    def _backward(self, batch: TripleBatch) -> float:
        trainer = self._trainer
        places = self._places
        if trainer.samples:
            nodes = torch.from_numpy(batch.entities()).unique()
            places[nodes] = torch.arange(len(nodes))
            rows = trainer.compute(trainer.rows_of(nodes))
        else:
            rows = trainer.compute_all()
        leaf, loss_sum = rows.detach().requires_grad_(), 0.0
        pieces = list(batch.pieces(SCORES))
        for piece in pieces[:-1]:
            with self._decoder.apart():
                loss_sum += self._piece(leaf, places, piece)
        loss_sum += self._piece(leaf, places, pieces[-1])
        rows.backward(leaf.grad)
        return loss_sum

    def _piece(self, leaf: Tensor, places: Tensor, piece: TripleBatch) -> float:
        loss = self._decoder(leaf, places[torch.from_numpy(piece.entities())], piece)
        loss.backward()
        return float(loss.detach())

    def evaluate(self, part: str) -> Values:
        """See ``Objective.evaluate``: filtered MRR and Hits@K; none of a part that is not there."""
        if self._rows is None:
            self._rows = self._judged_rows()
        found = self._ranks(part) if part in self._graph.parts else {}
        if self._trainer.rank == 0 and part == self._chosen_by:
            self._best.add(found.get("mrr", 0.0), self._epoch, self._rows)
        return self._trainer.agreed(found)

    def _ranks(self, part: str) -> Values:
        """The metrics of a part on the first rank, nothing elsewhere; every rank calls it."""
        sampled: dict[str, Any] = {"num_candidates": self._config.candidates, "seed": self._seed}
        first, group, scorer = self._trainer.rank == 0, self._trainer.group, self._network.scorer
        rows, graph = self._rows if first else None, self._graph if first else None
        ranks = rank_part_dealt(group, scorer, rows, graph, part, known=self._known, **sampled)
        if ranks is None:
            return {}
        return {"mrr": ranks.mrr().realistic, **{f"hits@{k}": ranks.hits(k).realistic for k in HITS_AT}}

    def _judged_rows(self) -> tuple[Tensor, Tensor]:
        """Rows of all entities and relations, shapes (N, O) and (R, W), on the CPU; every rank calls it."""
        decoder = cast(TripleDecoder, self._trainer.evaluated(self._network))
        return self._trainer.final_rows(), decoder.relation.detach().cpu().clone()

    def keep_best_in(self, folder: Path, begun: Mapping[str, Any] | None) -> None:
        """Write the best rows into a folder of checkpoints, and take those of a training that goes on.

        Args:
            begun: The position of ``run_epochs`` from which it goes on; None: the start.
        """
        if self._trainer.rank:
            return
        self._best = BestRows(folder)
        history = [] if begun is None else begun["history"]
        if history:
            best = max(history, key=lambda evaluation: (evaluation["valid"] or {}).get("mrr", 0.0))
            self._best.resume({"epoch": best["epoch"], "since": 0})

    def best_rows(self) -> tuple[Tensor, Tensor] | None:
        """Rows of the best evaluation, else of the last epoch, on the first rank; every rank calls it."""
        if self._trainer.total(float(self._best.rows is not None))[0] == 0:
            rows = self._judged_rows()
            return None if self._trainer.rank else rows
        return self._best.rows
