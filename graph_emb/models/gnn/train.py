"""``train_rgcn`` and ``train_sage``: from a graph and a task to a trained network with its learnable inputs."""

# E edges, B pairs, N nodes, O width of the network's rows.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.composed import ComposedEmbedding, expanded
from graph_emb.core.errors import ConfigError, ShapeError, unknown_name
from graph_emb.core.terminal import deferred_interrupts
from graph_emb.core.threads import torch_threads
from graph_emb.embedding import DistEmbedding
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.epochs import Evaluation, TrainingResult, run_epochs
from graph_emb.models.gnn.config import GNNConfig, RGCNConfig, SAGEConfig
from graph_emb.models.gnn.inputs import InputRows, nodes_of_own_rows
from graph_emb.models.gnn.networks import RGCN, SAGE
from graph_emb.models.gnn.objectives import (
    LinkTraining,
    NodeClassTraining,
    Objective,
    TripleDecoder,
    TripleTraining,
)
from graph_emb.models.gnn.tasks import LinkTask, NodeTask, OwnNodeTask, Task, TripleTask
from graph_emb.models.gnn.trainer import Trainer, WeightAverage, group_of_trainers
from graph_emb.models.links.training import LinkPredictor, LinkPredictorConfig
from graph_emb.sampling.partitioned_neighbors import OwnEdges
from graph_emb.table.placement import AUTO
from graph_emb.transport.process_group import ProcessGroup


@dataclass(frozen=True, eq=False)
class GNNResult(TrainingResult):
    """A trained network; network and tables are as they were after the last epoch, or their averages until then.

    Attributes:
        model: The network; of link prediction a module with ``encoder`` and ``predictor``, of triples with ``encoder``
            and ``decoder``.
        tables: The learnable inputs by node type.
        epochs: That were trained, of a training that went on all of them.
        interrupted: Whether Ctrl-C ended the training; the history may then be empty.
        ranked: Of triples the rows of the best evaluation, by which they are ranked: the network's of the entities,
            shape (E, O), and the decoder's of the relations, (R, W). None on every rank but the first.
    """

    model: nn.Module
    tables: dict[str, DistEmbedding | ComposedEmbedding]
    epochs: int = 0
    interrupted: bool = False
    ranked: tuple[Tensor, Tensor] | None = None


def train_rgcn(
    graph: HeteroGraph | OwnEdges,
    task: NodeTask | TripleTask,
    config: RGCNConfig | None = None,
    *,
    features: Mapping[str, Any] | None = None,
    policies: Mapping[str, Any] | None = None,
    levels: Mapping[str, Any] | None = None,
    group: ProcessGroup | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    table_prefix: str | None = None,
    progress: bool = False,
    on_evaluation: Callable[[Evaluation], None] | None = None,
    checkpoints: PeriodicCheckpoints | None = None,
    placement: Any = AUTO,
) -> GNNResult:
    """R-GCN for the classes of one node type, or for triples; every node type without features gets a learnable table.

    Messages follow the edges: add the reverse types first (``read(graph, reverse_types=True)``).
    Evaluation computes the whole graph.

    In collective and kvstore mode every rank calls it with the same arguments and trains on the target nodes that it
    owns. It may give its own part of the graph (``OwnEdges``) with the features of its nodes and the policies of all
    types: then no rank holds the whole, owners sample, and evaluation goes by parts. The task is the whole one, or
    that of its nodes (``OwnNodeTask``).

    In one process Ctrl-C ends the training early and the result so far is returned; among several ranks it raises.

    Args:
        graph: Node and edge types. Its node data is not read: give features and labels here. Or this rank's part.
        task: The node type, its labels and split; or triples, whose entities are the nodes of the only type.
        config: The recipe.
        features: By node type, shape (nodes, any width), floating, torch or numpy.
        policies: Partition policies by node type, which say who owns a row and trains on a node; ids stay the graph's.
        levels: By node type the parts of its nodes at each level of a nested partition, (N, L), in the order of the
            graph; for ``inputs`` of position.
        group: The trainers; needed in kvstore mode with several, else found.
        seed: Of first rows and weights, batches, samples and dropout.
        device: Where network and, in local mode, tables are; None: the processor, or of placement ``"device"`` the GPU.
        table_prefix: A table is named by its node type with this before it; None: by a fresh number.
        progress: Shows a bar.
        on_evaluation: Called with each evaluation.
        checkpoints: Saves tables, network, both optimizers and all random states between epochs (its steps), and
            continues from the newest checkpoint where it is told to resume. Give ``table_prefix`` too: tables are found
            by name.
        placement: A word as in ``DistEmbedding``, of tables that learn; or ``ge.File(folder, memory=...)``: tables and
            rows between layers lie in files there and share the memory; evaluation goes by pieces of nodes, which
            agrees within rounding. ``config.fanouts`` is needed.
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
    if isinstance(task, TripleTask):
        target, out_dim = task.target_of(graph.num_nodes), config.hidden_dim
    else:
        target, out_dim = task.ntype, task.num_outputs
        config.check_classes()
    if target not in graph.num_nodes:
        raise unknown_name("node type", target, graph.num_nodes)

    config.check_inputs(features or {})

    def build(inputs: InputRows) -> nn.Module:
        return RGCN(graph.ntypes, graph.etypes, inputs.widths, out_dim, config, set(inputs.tables))

    return fit(
        build,
        target,
        task,
        graph,
        config,
        features=features,
        policies=policies,
        levels=levels,
        group=group,
        seed=seed,
        device=device,
        table_prefix=table_prefix,
        progress=progress,
        on_evaluation=on_evaluation,
        checkpoints=checkpoints,
        placement=placement,
    )


def train_sage(
    graph: HeteroGraph | OwnEdges,
    task: NodeTask | LinkTask,
    config: SAGEConfig | None = None,
    *,
    features: Mapping[str, Any] | None = None,
    policies: Mapping[str, Any] | None = None,
    levels: Mapping[str, Any] | None = None,
    group: ProcessGroup | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    table_prefix: str | None = None,
    progress: bool = False,
    on_evaluation: Callable[[Evaluation], None] | None = None,
    checkpoints: PeriodicCheckpoints | None = None,
    placement: Any = AUTO,
) -> GNNResult:
    """GraphSAGE on a graph of one node and one edge type, for node classes or for links.

    Without features the nodes' rows are a learnable table. For links OGB's predictor learns on the network's rows.

    Args:
        graph: With both directions of every edge where messages shall go both ways. For links: training edges only.
        task: ``NodeTask`` or ``LinkTask``.
        config: The recipe.
        features, policies, levels, group, seed, device, table_prefix, progress, on_evaluation, checkpoints, placement:
            As for R-GCN.
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
        levels=levels,
        group=group,
        seed=seed,
        device=device,
        table_prefix=table_prefix,
        progress=progress,
        on_evaluation=on_evaluation,
        checkpoints=checkpoints,
        placement=placement,
    )


def fit(
    build: Callable[[InputRows], nn.Module],
    target: str,
    task: Task,
    graph: HeteroGraph | OwnEdges,
    config: GNNConfig,
    *,
    features: Mapping[str, Any] | None = None,
    policies: Mapping[str, Any] | None = None,
    levels: Mapping[str, Any] | None = None,
    group: ProcessGroup | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    table_prefix: str | None = None,
    progress: bool = False,
    on_evaluation: Callable[[Evaluation], None] | None = None,
    checkpoints: PeriodicCheckpoints | None = None,
    placement: Any = AUTO,
) -> GNNResult:
    """Train and evaluate the network that ``build`` makes of its input rows, which gives rows of type ``target``.

    The global random state of torch is left as found. The rest is as in ``train_rgcn``.
    """
    group = group_of_trainers(group)
    with arithmetic(config):
        inputs = InputRows(
            graph.num_nodes,
            config,
            features=features,
            policies=policies,
            levels=levels,
            own_rows=nodes_of_own_rows(graph, config, features or {}, policies or {}),
            prefix=table_prefix,
            seed=seed,
            device=device,
            own=graph if isinstance(graph, OwnEdges) else None,
            etypes=graph.etypes,
            placement=placement,
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
            network = build(inputs).to(inputs.device)
            trainer = Trainer(graph, target, network, inputs, config, group=group, seed=seed, device=inputs.device)
            training, model = _objective(trainer, network, task, graph.num_nodes[target], seed)
            torch.manual_seed(trainer.own_seed)  # of dropout: ranks differ
            if config.ema_decay:
                trainer.average = WeightAverage(training.networks, inputs, config.ema_decay)
            begun = None if checkpoints is None else _start(checkpoints, trainer, model)
            if checkpoints is not None and isinstance(training, TripleTraining):
                training.keep_best_in(checkpoints.folder, begun)

            def epoch(number: int) -> float:
                trainer.start_epoch(number)
                if trainer.meter is not None:
                    trainer.meter.begin()
                loss = training.epoch(number)
                if trainer.meter is not None:
                    trainer.meter.end()
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

                history, seconds, epochs = run_epochs(
                    config,
                    epoch,
                    training.evaluate,
                    has_valid=task.has_valid,
                    progress=progress and trainer.rank == 0,
                    on_evaluation=on_evaluation,
                    begun=begun,
                    plateau=trainer.plateau if config.lr_decay == "plateau" else None,
                    after_epoch=None if checkpoints is None else checkpoints.after,
                    on_interrupt=None if several else partial(interrupts.append, True),
                    stops=stops,
                    pace=trainer.pace,
                    unit=training.unit,
                )
            ranked = training.best_rows() if isinstance(training, TripleTraining) else None
        if checkpoints is not None:
            checkpoints.finish()
        if trainer.average is not None:
            trainer.average.take_over()
        num_parameters = inputs.num_parameters + sum(parameter.numel() for parameter in model.parameters())
        return GNNResult(history, num_parameters, seconds, model, inputs.tables, epochs, bool(interrupts), ranked)


@contextmanager
def arithmetic(config: GNNConfig) -> Iterator[None]:
    """Networks in float64 where rows are, and on one thread where steps have blocks.

    The order in which a product is summed may follow from the number of threads, which differs between layouts.
    """
    before = torch.get_default_dtype()
    with torch_threads(1) if config.blocks > 1 else nullcontext():
        if config.dtype == "float64":
            torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def _start(checkpoints: PeriodicCheckpoints, trainer: Trainer, model: nn.Module) -> Any:
    """The position from which a resumed training continues; None: the start."""
    optimizer = trainer.inputs.optimizer
    if optimizer is None:
        raise ConfigError("checkpoints keep the tables of a training; every node type has features, none learns")
    generators = {"batches": trainer.generator, "dropout": torch.default_generator}
    if isinstance(model, nn.ModuleDict) and "predictor" in model:
        generators["predictor"] = cast(LinkPredictor, model["predictor"]).generator
    tables = expanded(trainer.inputs.tables.values())
    if trainer.average is not None:
        tables += expanded(trainer.average.tables.values())
        model = nn.ModuleDict({"last": model, "average": trainer.average})
    return checkpoints.start(
        tables, [optimizer], model=model, torch_optimizers=trainer.optimizers, generators=generators
    )


def _objective(
    trainer: Trainer, network: nn.Module, task: Task, num_nodes: int, seed: int
) -> tuple[Objective, nn.Module]:
    """The training of a task, and all networks that it trains as one module."""
    if isinstance(task, NodeTask):
        return NodeClassTraining(trainer, task), network
    config = trainer.config
    if isinstance(task, TripleTask):
        assert isinstance(config, RGCNConfig)
        decoder = TripleDecoder(task.triples.num_relations, config).to(trainer.device)
        return TripleTraining(trainer, task, decoder, config, seed), nn.ModuleDict(
            {"encoder": network, "decoder": decoder}
        )
    assert isinstance(config, SAGEConfig)
    predictor = predictor_of(config, seed).to(trainer.device)
    training = LinkTraining(trainer, task, predictor, num_nodes, config)
    return training, nn.ModuleDict({"encoder": network, "predictor": predictor})


def predictor_of(config: SAGEConfig, seed: int) -> LinkPredictor:
    """OGB's predictor on a network's rows."""
    sizes = LinkPredictorConfig(
        hidden_dim=config.hidden_dim, num_layers=config.predictor_layers, dropout=config.dropout
    )
    return LinkPredictor(config.hidden_dim, sizes, seed=seed)
