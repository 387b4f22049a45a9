"""``train_rgcn`` and ``train_sage``: from a graph and a task to a trained network with its learnable inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.core.errors import ConfigError, ShapeError, unknown_name
from graph_emb.core.interrupts import deferred_interrupts
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.epochs import Evaluation, run_epochs
from graph_emb.models.gnn.average import WeightAverage
from graph_emb.models.gnn.config import GNNConfig, RGCNConfig, SAGEConfig
from graph_emb.models.gnn.inputs import InputRows
from graph_emb.models.gnn.objectives import LinkTraining, NodeClassTraining
from graph_emb.models.gnn.result import GNNResult
from graph_emb.models.gnn.rgcn import RGCN
from graph_emb.models.gnn.sage import SAGE
from graph_emb.models.gnn.tasks import LinkTask, NodeTask
from graph_emb.models.gnn.trainer import Trainer, count_parameters, group_of_trainers
from graph_emb.models.links.training import LinkPredictor, LinkPredictorConfig
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
