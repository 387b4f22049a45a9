"""``train_rgcn`` and ``train_sage``: from a graph and a task to a trained network with its learnable inputs."""

# E edges, B pairs, N nodes, O width of the network's rows.

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.core.errors import ConfigError, ShapeError, unknown_name
from graph_emb.core.interrupts import deferred_interrupts
from graph_emb.evaluate.link_prediction import link_part, metric_values, pairs_of
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.epochs import Evaluation, Values, run_epochs
from graph_emb.models.gnn.config import GNNConfig, RGCNConfig, SAGEConfig
from graph_emb.models.gnn.inputs import InputRows
from graph_emb.models.gnn.result import GNNResult
from graph_emb.models.gnn.rgcn import RGCN
from graph_emb.models.gnn.sage import SAGE
from graph_emb.models.gnn.tasks import LinkTask, NodeTask
from graph_emb.models.gnn.trainer import Trainer, WeightAverage, count_parameters, group_of_trainers, owned_by
from graph_emb.models.links.training import (
    CHUNK,
    FrozenRows,
    LinkPredictor,
    LinkPredictorConfig,
    negative_draw,
    score_links,
)
from graph_emb.transport.data_parallel import Replicas
from graph_emb.transport.process_group import ProcessGroup


def train_rgcn(
    graph: HeteroGraph,
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

    In collective and kvstore mode every rank calls it with the same arguments, trains on the target nodes that it
    owns and holds the structure of the whole graph; only the tables are distributed.

    In one process Ctrl-C ends the training early and the result so far is returned; among several ranks it raises.

    Args:
        graph: Node and edge types. Its node data is not read: give features and labels here.
        task: The node type, its labels and split.
        config: The recipe.
        features: By node type, shape (nodes, any width), floating, torch or numpy.
        policies: Partition policies by node type; graph, features and task are then in partition order.
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
        ConfigError: unknown node types, or kvstore mode with several trainers and no group.
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

    def build(inputs: InputRows) -> nn.Module:
        return RGCN(graph.ntypes, graph.etypes, inputs.widths, task.num_outputs, config)

    run = _NetworkTraining(graph, config, features, policies, group, seed, device, table_prefix)
    return run.fit(build, task.ntype, task, progress, on_evaluation, checkpoints)


def train_sage(
    graph: HeteroGraph,
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

    run = _NetworkTraining(graph, config, features, policies, group, seed, device, table_prefix)
    return run.fit(build, ntype, task, progress, on_evaluation, checkpoints)


class _NetworkTraining:
    """One training; the global random state of torch is left as found."""

    def __init__(
        self,
        graph: HeteroGraph,
        config: GNNConfig,
        features: Mapping[str, Any] | None,
        policies: Mapping[str, Any] | None,
        group: ProcessGroup | None,
        seed: int,
        device: torch.device | str,
        table_prefix: str | None,
    ) -> None:
        self.graph, self.config, self.seed, self.device = graph, config, seed, device
        self.policies = dict(policies or {})
        self.group = group_of_trainers(group)
        self.inputs = InputRows(
            graph.num_nodes,
            config,
            features=features,
            policies=policies,
            prefix=table_prefix,
            seed=seed,
            device=device,
        )

    def fit(
        self,
        build: Callable[[InputRows], nn.Module],
        target: str,
        task: NodeTask | LinkTask,
        progress: bool,
        on_evaluation: Callable[[Evaluation], None] | None,
        checkpoints: PeriodicCheckpoints | None,
    ) -> GNNResult:
        """Build the network, train and evaluate it."""
        if isinstance(task, NodeTask) and len(task.truth) != self.graph.num_nodes[target]:
            raise ShapeError(f"{len(task.truth)} labels for {self.graph.num_nodes[target]} nodes of type {target!r}")
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            network = build(self.inputs).to(self.device)
            trainer = Trainer(
                self.graph,
                target,
                network,
                self.inputs,
                self.config,
                group=self.group,
                seed=self.seed,
                device=self.device,
            )
            model, training = self._training(trainer, network, target, task)
            torch.manual_seed(trainer.own_seed)  # of dropout: ranks differ
            if self.config.ema_decay:
                networks = list(model.values()) if isinstance(model, nn.ModuleDict) else [model]
                trainer.average = WeightAverage(networks, self.inputs, self.config.ema_decay)
            begun = None if checkpoints is None else self._start(checkpoints, trainer, model)

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
                    self.config,
                    epoch,
                    training.evaluate,
                    has_valid=isinstance(task, LinkTask) or "valid" in task.nodes,
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
        parameters = count_parameters(self.inputs.tables, model)
        return GNNResult(model, self.inputs.tables, history, parameters, seconds, bool(interrupts))

    def _start(self, checkpoints: PeriodicCheckpoints, trainer: Trainer, model: nn.Module) -> Any:
        """The position from which a resumed training continues; None: the start."""
        optimizer = self.inputs.optimizer
        if optimizer is None:
            raise ConfigError("checkpoints keep the tables of a training; every node type has features, none learns")
        generators = {"batches": trainer.generator, "dropout": torch.default_generator}
        if isinstance(model, nn.ModuleDict):
            predictor = model["predictor"]
            assert isinstance(predictor, LinkPredictor)
            generators["predictor"] = predictor.generator
        tables = list(self.inputs.tables.values())
        if trainer.average is not None:
            tables += trainer.average.tables.values()
            model = nn.ModuleDict({"last": model, "average": trainer.average})
        return checkpoints.start(
            tables,
            [optimizer],
            model=model,
            torch_optimizers=trainer.optimizers,
            generators=generators,
        )

    def _training(
        self, trainer: Trainer, network: nn.Module, target: str, task: NodeTask | LinkTask
    ) -> tuple[nn.Module, NodeClassTraining | LinkTraining]:
        policy = self.policies.get(target)
        if isinstance(task, NodeTask):
            return network, NodeClassTraining(trainer, task, policy)
        config = self.config
        assert isinstance(config, SAGEConfig)
        sizes = LinkPredictorConfig(
            hidden_dim=config.hidden_dim, num_layers=config.predictor_layers, dropout=config.dropout
        )
        predictor = LinkPredictor(config.hidden_dim, sizes, seed=self.seed).to(self.device)
        model = nn.ModuleDict({"encoder": network, "predictor": predictor})
        return model, LinkTraining(trainer, task, predictor, self.graph.num_nodes[target], config, policy)


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
