"""``train_rgcn`` and ``train_sage``: from a graph and a task to a trained network with its learnable inputs."""

# E edges, B pairs, N nodes, O width of the network's rows.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.core.errors import ConfigError, ShapeError, unknown_name
from graph_emb.core.terminal import deferred_interrupts
from graph_emb.embedding import DistEmbedding
from graph_emb.evaluate.link_prediction import link_part, metric_values, pairs_of
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.epochs import Evaluation, TrainingResult, Values, run_epochs
from graph_emb.models.gnn.config import GNNConfig, RGCNConfig, SAGEConfig
from graph_emb.models.gnn.networks import RGCN, SAGE
from graph_emb.models.gnn.tasks import LinkTask, NodeTask, OwnNodeTask
from graph_emb.models.gnn.trainer import InputRows, Trainer, WeightAverage, group_of_trainers
from graph_emb.models.links.training import (
    CHUNK,
    FrozenRows,
    LinkPredictor,
    LinkPredictorConfig,
    negative_draw,
    score_links,
)
from graph_emb.sampling.partitioned_neighbors import OwnEdges
from graph_emb.transport.process_group import DataParallel, ProcessGroup


@dataclass(frozen=True, eq=False)
class GNNResult(TrainingResult):
    """A trained network; network and tables are as they were after the last epoch, or their averages until then.

    Attributes:
        model: The network; of link prediction a module with ``encoder`` and ``predictor``.
        tables: The learnable inputs by node type.
        interrupted: Whether Ctrl-C ended the training; the history may then be empty.
    """

    model: nn.Module
    tables: dict[str, DistEmbedding]
    interrupted: bool = False


def train_rgcn(
    graph: HeteroGraph | OwnEdges,
    task: NodeTask,
    config: RGCNConfig | None = None,
    *,
    features: Mapping[str, Any] | None = None,
    policies: Mapping[str, Any] | None = None,
    group: ProcessGroup | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    table_prefix: str | None = None,
    progress: bool = False,
    on_evaluation: Callable[[Evaluation], None] | None = None,
    checkpoints: PeriodicCheckpoints | None = None,
) -> GNNResult:
    """R-GCN that classifies the nodes of one type; every node type without features gets a learnable table.

    Messages follow the edges: add the reverse types first (``read(graph, reverse_types=True)``).
    Evaluation computes the whole graph.

    In collective and kvstore mode every rank calls it with the same arguments and trains on the target nodes that it
    owns. It may give its own part of the graph (``OwnEdges``) with the features of its nodes and the policies of all
    types: then no rank holds the whole, owners sample, and evaluation goes by parts. The task is the whole one, or
    that of its nodes (``OwnNodeTask``).

    In one process Ctrl-C ends the training early and the result so far is returned; among several ranks it raises.

    Args:
        graph: Node and edge types. Its node data is not read: give features and labels here. Or this rank's part.
        task: The node type, its labels and split.
        config: The recipe.
        features: By node type, shape (nodes, any width), floating, torch or numpy.
        policies: Partition policies by node type, which say who owns a row and trains on a node; ids stay the graph's.
        group: The trainers; needed in kvstore mode with several, else found.
        seed: Of first rows and weights, batches, samples and dropout.
        device: Where network and, in local mode, tables are.
        table_prefix: A table is named by its node type with this before it; None: by a fresh number.
        progress: Shows a bar.
        on_evaluation: Called with each evaluation.
        checkpoints: Saves tables, network, both optimizers and all random states between epochs (its steps), and
            continues from the newest checkpoint where it is told to resume. Give ``table_prefix`` too: tables are found
            by name.
    Raises:
        ConfigError: unknown node types, a setting without effect, or kvstore mode with several trainers and no group.
        ShapeError: labels or features that do not fit the graph.

    Example:
        >>> from graph_emb.graph.typed import HeteroGraph
        >>> from graph_emb.models.gnn.config import RGCNConfig
        >>> from graph_emb.models.gnn.tasks import NodeTask
        >>> from graph_emb.models.gnn.train import train_rgcn
        >>> users, items = np.arange(20), np.arange(20) % 2
        >>> graph = HeteroGraph(
        ...     {"user": 20, "item": 2},
        ...     {("user", "buys", "item"): (users, items), ("item", "rev_buys", "user"): (items, users)},
        ... )
        >>> split = {"train": users[:10], "valid": users[10:14], "test": users[14:]}
        >>> config = RGCNConfig(dim=8, hidden_dim=8, epochs=20)
        >>> result = train_rgcn(graph, NodeTask("user", items, split), config)
        >>> sorted(result.tables), result.best().test
        (['item', 'user'], {'accuracy': 1.0})
    """
    config = config or RGCNConfig()
    if task.ntype not in graph.num_nodes:
        raise unknown_name("node type", task.ntype, graph.num_nodes)

    config.check_inputs(features or {})

    def build(inputs: InputRows) -> nn.Module:
        return RGCN(graph.ntypes, graph.etypes, inputs.widths, task.num_outputs, config, set(inputs.tables))

    return fit(
        build,
        task.ntype,
        task,
        graph,
        config,
        features=features,
        policies=policies,
        group=group,
        seed=seed,
        device=device,
        table_prefix=table_prefix,
        progress=progress,
        on_evaluation=on_evaluation,
        checkpoints=checkpoints,
    )


def train_sage(
    graph: HeteroGraph | OwnEdges,
    task: NodeTask | LinkTask,
    config: SAGEConfig | None = None,
    *,
    features: Mapping[str, Any] | None = None,
    policies: Mapping[str, Any] | None = None,
    group: ProcessGroup | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    table_prefix: str | None = None,
    progress: bool = False,
    on_evaluation: Callable[[Evaluation], None] | None = None,
    checkpoints: PeriodicCheckpoints | None = None,
) -> GNNResult:
    """GraphSAGE on a graph of one node and one edge type, for node classes or for links.

    Without features the nodes' rows are a learnable table. For links OGB's predictor learns on the network's rows.

    Args:
        graph: With both directions of every edge where messages shall go both ways. For links: training edges only.
        task: ``NodeTask`` or ``LinkTask``.
        config: The recipe.
        features, policies, group, seed, device, table_prefix, progress, on_evaluation, checkpoints: As for R-GCN.
    Raises:
        ConfigError: several node or edge types; otherwise as ``train_rgcn``.
        DataError: a part of the link split is missing, empty, or names unknown nodes.

    Example:
        >>> from graph_emb.graph.typed import HeteroGraph
        >>> from graph_emb.models.gnn.config import SAGEConfig
        >>> from graph_emb.models.gnn.tasks import NodeTask
        >>> from graph_emb.models.gnn.train import train_sage
        >>> nodes = np.arange(20)
        >>> graph = HeteroGraph({"node": 20}, {("node", "to", "node"): (nodes, (nodes + 2) % 20)})  # two rings
        >>> split = {"train": nodes[:10], "valid": nodes[10:14], "test": nodes[14:]}
        >>> config = SAGEConfig(dim=8, hidden_dim=8, num_layers=2, epochs=3, eval_every=1)
        >>> result = train_sage(graph, NodeTask("node", nodes % 2, split), config)
        >>> [evaluation.epoch for evaluation in result.history]
        [1, 2, 3]
    """
    config = config or SAGEConfig()
    if len(graph.num_nodes) != 1 or len(graph.edges) != 1:
        raise ConfigError(
            f"GraphSAGE takes one node and one edge type; the graph has {len(graph.num_nodes)} and {len(graph.edges)}; "
            "take train_rgcn"
        )
    (ntype,) = graph.num_nodes
    if isinstance(task, NodeTask) and task.ntype != ntype:
        raise unknown_name("node type", task.ntype, graph.num_nodes)
    out_dim = task.num_outputs if isinstance(task, NodeTask) else config.hidden_dim

    def build(inputs: InputRows) -> nn.Module:
        return SAGE(inputs.widths[ntype], out_dim, config)

    return fit(
        build,
        ntype,
        task,
        graph,
        config,
        features=features,
        policies=policies,
        group=group,
        seed=seed,
        device=device,
        table_prefix=table_prefix,
        progress=progress,
        on_evaluation=on_evaluation,
        checkpoints=checkpoints,
    )


def fit(
    build: Callable[[InputRows], nn.Module],
    target: str,
    task: NodeTask | LinkTask,
    graph: HeteroGraph | OwnEdges,
    config: GNNConfig,
    *,
    features: Mapping[str, Any] | None = None,
    policies: Mapping[str, Any] | None = None,
    group: ProcessGroup | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    table_prefix: str | None = None,
    progress: bool = False,
    on_evaluation: Callable[[Evaluation], None] | None = None,
    checkpoints: PeriodicCheckpoints | None = None,
) -> GNNResult:
    """Train and evaluate the network that ``build`` makes of its input rows, which gives rows of type ``target``.

    The global random state of torch is left as found. The rest is as in ``train_rgcn``.
    """
    group = group_of_trainers(group)
    inputs = InputRows(
        graph.num_nodes,
        config,
        features=features,
        policies=policies,
        prefix=table_prefix,
        seed=seed,
        device=device,
        own=graph if isinstance(graph, OwnEdges) else None,
        etypes=graph.etypes,
    )
    if isinstance(task, NodeTask):
        num_nodes = graph.num_nodes[target]
        if isinstance(graph, OwnEdges) and isinstance(task, OwnNodeTask):
            num_nodes = len(graph.names[target])
        if len(task.truth) != num_nodes:
            raise ShapeError(f"{len(task.truth)} labels for {num_nodes} nodes of type {target!r}")
        if isinstance(graph, OwnEdges) and not isinstance(task, OwnNodeTask):
            task = OwnNodeTask.of(task, graph)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = build(inputs).to(device)
        trainer = Trainer(graph, target, network, inputs, config, group=group, seed=seed, device=device)
        training, model = _objective(trainer, network, task, graph.num_nodes[target], seed)
        torch.manual_seed(trainer.own_seed)  # of dropout: ranks differ
        if config.ema_decay:
            trainer.average = WeightAverage(training.networks, inputs, config.ema_decay)
        begun = None if checkpoints is None else _start(checkpoints, trainer, model)

        def epoch(number: int) -> float:
            trainer.start_epoch(number)
            loss = training.epoch()
            if trainer.average is not None:
                trainer.average.add()
            return loss

        interrupts: list[bool] = []
        several = trainer.num_ranks > 1
        with deferred_interrupts(several) as pressed:  # the others wait for this rank

            def stops() -> bool:
                if several and trainer.total(float(pressed()))[0]:
                    interrupts.append(True)
                return bool(interrupts)

            history, seconds = run_epochs(
                config,
                epoch,
                training.evaluate,
                has_valid=task.has_valid,
                progress=progress and trainer.rank == 0,
                on_evaluation=on_evaluation,
                begun=begun,
                after_epoch=None if checkpoints is None else checkpoints.after,
                on_interrupt=None if several else partial(interrupts.append, True),
                stops=stops,
            )
    if checkpoints is not None:
        checkpoints.finish()
    if trainer.average is not None:
        trainer.average.take_over()
    num_parameters = inputs.num_parameters + sum(parameter.numel() for parameter in model.parameters())
    return GNNResult(history, num_parameters, seconds, model, inputs.tables, bool(interrupts))


def _start(checkpoints: PeriodicCheckpoints, trainer: Trainer, model: nn.Module) -> Any:
    """The position from which a resumed training continues; None: the start."""
    optimizer = trainer.inputs.optimizer
    if optimizer is None:
        raise ConfigError("checkpoints keep the tables of a training; every node type has features, none learns")
    generators = {"batches": trainer.generator, "dropout": torch.default_generator}
    if isinstance(model, nn.ModuleDict):
        generators["predictor"] = cast(LinkPredictor, model["predictor"]).generator
    tables = list(trainer.inputs.tables.values())
    if trainer.average is not None:
        tables += trainer.average.tables.values()
        model = nn.ModuleDict({"last": model, "average": trainer.average})
    return checkpoints.start(
        tables, [optimizer], model=model, torch_optimizers=trainer.optimizers, generators=generators
    )


def _objective(
    trainer: Trainer, network: nn.Module, task: NodeTask | LinkTask, num_nodes: int, seed: int
) -> tuple[Objective, nn.Module]:
    """The training of a task, and all networks that it trains as one module."""
    if isinstance(task, NodeTask):
        return NodeClassTraining(trainer, task), network
    config = trainer.config
    assert isinstance(config, SAGEConfig)
    sizes = LinkPredictorConfig(
        hidden_dim=config.hidden_dim, num_layers=config.predictor_layers, dropout=config.dropout
    )
    predictor = LinkPredictor(config.hidden_dim, sizes, seed=seed).to(trainer.device)
    training = LinkTraining(trainer, task, predictor, num_nodes, config)
    return training, nn.ModuleDict({"encoder": network, "predictor": predictor})


class Objective(ABC):
    """Epochs over the training nodes or edges, of which a rank trains those that it owns.

    A step's nodes or edges, and their negatives, follow from the seed alone: any number of ranks shares the same ones.

    Args:
        trainer: The network and its inputs.
        items: Their numbers, shape (E,).
        owned: Places of those that this rank trains on.
        networks: All that the steps train.
    """

    def __init__(self, trainer: Trainer, items: Tensor, owned: Tensor, *networks: nn.Module) -> None:
        self._trainer, self._items, self.networks = trainer, items, networks
        self._owned = torch.zeros(len(items), dtype=torch.bool).index_fill_(0, owned, True)
        self._rows: Any = None  # of the last evaluation: valid and test share them

    def epoch(self) -> float:
        """One pass; the mean loss over all ranks' nodes or edges."""
        trainer = self._trainer
        self._rows = None
        loss_sum = 0.0
        for network in self.networks:
            network.train()
        for places in trainer.batches(len(self._items)):
            loss_sum += self._backward(self._items[places], self._owned[places])
            trainer.step(*self.networks)
        return trainer.total(loss_sum)[0] / len(self._items)

    @abstractmethod
    def _backward(self, numbers: Tensor, owned: Tensor) -> float:
        """Gradients of the mean loss of a step's nodes or edges (B,) as far as this rank owns them; returns the sum.

        Args:
            numbers: Of all ranks.
            owned: Which of them are this rank's, bool.
        """

    @abstractmethod
    def evaluate(self, part: str) -> Values:
        """The task's metrics of a part, from whole neighbourhoods."""


class NodeClassTraining(Objective):
    """Epochs over the training nodes that this rank owns.

    Args:
        trainer: The network and its inputs.
        task: Labels and split.
    """

    def __init__(self, trainer: Trainer, task: NodeTask) -> None:
        nodes = task.nodes["train"]
        if isinstance(task, OwnNodeTask):
            owned = task.places
            nodes = torch.zeros(task.sizes["train"], dtype=torch.int64).index_copy_(0, owned, nodes)
        else:
            owned = trainer.owned(nodes)
        super().__init__(trainer, nodes, owned, trainer.network.module)
        self._task = task

    def _backward(self, numbers: Tensor, owned: Tensor) -> float:
        own = numbers[owned]
        rows = self._trainer.compute(own + self._trainer.first_row, repeated=self._trainer.config.batch_size is None)
        loss = self._task.loss(rows, own)
        (loss / len(numbers)).backward()
        return loss.item()

    def evaluate(self, part: str) -> Values:
        """See ``Objective.evaluate``."""
        if self._rows is None:
            self._rows = self._trainer.own_rows()
        return self._trainer.agreed(self._task.measure(self._rows, part))


class LinkTraining(Objective):
    """Epochs over the training edges whose first end this rank owns, each with as many negatives.

    The loss is ``mean(-log sigmoid(edge)) + mean(-log(1 - sigmoid(negative)))``, as in ``train_link_predictor``.

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

    def __init__(
        self,
        trainer: Trainer,
        task: LinkTask,
        predictor: LinkPredictor,
        num_nodes: int,
        config: SAGEConfig,
    ) -> None:
        edges = pairs_of(task.split, "train", "edge", num_nodes)
        super().__init__(
            trainer, torch.arange(len(edges)), trainer.owned(edges[:, 0]), trainer.network.module, predictor
        )
        self._task, self._edges = task, edges
        self._parts = {part: link_part(task.split, part, num_nodes) for part in ("valid", "test")[not task.has_valid :]}
        self._draw = negative_draw(config.negatives, task.split, num_nodes)
        self._network = predictor
        self._predictor = DataParallel(predictor, trainer.group)
        self._precision = getattr(torch, config.precision)
        trainer.optimizers.append(
            torch.optim.Adam(predictor.parameters(), lr=config.network_lr, weight_decay=config.weight_decay)
        )

    def _backward(self, numbers: Tensor, owned: Tensor) -> float:
        trainer, edges, count = self._trainer, self._edges[numbers], len(numbers)
        negatives = self._draw(numbers, edges, trainer.generator)
        pairs = torch.cat([edges[owned], negatives[owned]])
        sign = torch.ones(len(pairs), device=trainer.device)
        sign[len(pairs) // 2 :] = -1.0
        if trainer.samples:
            nodes, places = torch.unique(pairs, return_inverse=True)
            rows = trainer.compute(trainer.rows_of(nodes))
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
        with torch.autocast(rows.device.type, self._precision, enabled=self._precision is not torch.float32):
            logits = self._predictor(rows, chunk, row_grads)
        loss = -F.logsigmoid(sign * logits.float()).sum()
        (loss / count).backward()
        return loss.item()

    def evaluate(self, part: str) -> Values:
        """See ``Objective.evaluate``."""
        if self._rows is None:
            self._rows = FrozenRows(self._trainer.final_rows().to(self._trainer.device))
        model, rows = cast(LinkPredictor, self._trainer.evaluated(self._network)), self._rows
        ranks = self._parts[part].ranks(lambda pairs: score_links(model, rows, pairs))
        return self._trainer.agreed(metric_values(ranks, self._task.metrics))
