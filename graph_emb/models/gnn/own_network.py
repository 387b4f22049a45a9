"""Networks of users: any torch module on DGL's blocks, with these tables, samplers, trainers and checkpoints."""

# N nodes of a type, S source rows and T destination rows of a node type, D width of input rows, O of output rows.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from graph_emb.compat import dgl as compat_dgl
from graph_emb.core.errors import ConfigError, ShapeError, unknown_name
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.gnn.config import GNNConfig, SAGEConfig
from graph_emb.models.gnn.tasks import LinkTask, NodeTask
from graph_emb.models.gnn.train import GNNResult, fit
from graph_emb.sampling.blocks import Block
from graph_emb.sampling.partitioned_neighbors import OwnEdges

_made: WeakKeyDictionary[Block, Any] = WeakKeyDictionary()
"""DGL's blocks of ours that live: that of a whole graph serves every step."""


def dgl_block(block: Block) -> Any:
    """The same round of messages as a block of DGL.

    Edges of each type are in the order of ``block.edges``, with their positions in the graph's list as ``dgl.EID``.
    """
    if block not in _made:
        dgl = compat_dgl.load()
        ends = {etype: (edges.sources, edges.destinations) for etype, edges in block.edges.items()}
        found = dgl.create_block(ends, block.num_sources, block.num_destinations)
        for etype, edges in block.edges.items():
            found.edges[etype].data[dgl.EID] = edges.edge_ids
        _made[block] = found
    return _made[block]


class OnDGLBlocks(nn.Module):
    """A network that takes DGL's blocks, called with ours.

    Args:
        network: Of the user.
        target: The node type of the rows that count.
        width: O that the task needs.
    """

    def __init__(self, network: nn.Module, target: str, width: int) -> None:
        super().__init__()
        self.network, self._target, self._width = network, target, width

    def forward(self, blocks: Sequence[Block], rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of the target nodes, (T, O).

        Raises:
            ShapeError: the network gave others, or none.
        """
        given = dict(rows) if len(rows) > 1 else next(iter(rows.values()))
        out = self.network([dgl_block(block) for block in blocks], given)
        found = out.get(self._target) if isinstance(out, Mapping) else out
        wanted = (blocks[-1].num_destinations[self._target], self._width)
        if not isinstance(found, Tensor) or tuple(found.shape) != wanted:
            said = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"{type(out).__name__} without them"
            raise ShapeError(f"the network's rows of {self._target!r}: {said}; the task needs {wanted}")
        return {self._target: found}


def train_network(
    network: nn.Module,
    graph: HeteroGraph | OwnEdges,
    task: NodeTask | LinkTask,
    config: GNNConfig | None = None,
    **options: Any,
) -> GNNResult:
    """Train a network of your own, of layers of ``dgl.nn`` for example, with learnable inputs.

    It is called as ``network(blocks, rows)``: ``blocks`` are DGL's, one for each of ``config.num_layers`` rounds, and
    ``rows`` the input rows of the first block's source nodes, (S, D): a tensor where the graph has one node type, else
    a dict by type. It returns the rows of the last block's destination nodes, (T, O), as a tensor or a dict by type:
    one column for each class of a ``NodeTask``, ``config.hidden_dim`` columns for a ``LinkTask``. Sampling, steps,
    modes, trainers, evaluation and checkpoints are those of ``train_rgcn``. A sampled node may have no neighbour:
    layers that refuse it want ``allow_zero_in_degree=True``.

    Args:
        network: Trained in place, by torch's Adam. Every rank gives the same module; the first one's values count.
        graph: As for ``train_rgcn``.
        task: As for ``train_sage``.
        config: ``GNNConfig`` for classes, ``SAGEConfig`` for links; ``dim`` is the width of the tables.
        options: ``features``, ``policies``, ``levels``, ``group``, ``seed``, ``device``, ``table_prefix``,
            ``progress``, ``on_evaluation`` and ``checkpoints`` of ``train_rgcn``; ``seed`` does not reach the network's
            first values.
    Returns:
        As ``train_rgcn``; of classes ``model`` is the network itself.
    Raises:
        CompatError: DGL is not installed.
        ConfigError: an unknown node type, or a setting that has no effect on this network.
        ShapeError: rows of another shape than the task needs.

    Example:
        >>> from graph_emb.graph.typed import HeteroGraph
        >>> from graph_emb.models.gnn.config import GNNConfig
        >>> from graph_emb.models.gnn.own_network import train_network
        >>> from graph_emb.models.gnn.tasks import NodeTask
        >>> class TwoRounds(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         from dgl.nn import SAGEConv
        ...         self.layers = torch.nn.ModuleList([SAGEConv(8, 8, "mean"), SAGEConv(8, 2, "mean")])
        ...     def forward(self, blocks, rows):
        ...         return self.layers[1](blocks[1], self.layers[0](blocks[0], rows).relu())
        >>> nodes = np.arange(20)
        >>> graph = HeteroGraph({"node": 20}, {("node", "to", "node"): (nodes, (nodes + 2) % 20)})  # two rings
        >>> split = {"train": nodes[:10], "valid": nodes[10:14], "test": nodes[14:]}
        >>> result = train_network(TwoRounds(), graph, NodeTask("node", nodes % 2, split), GNNConfig(dim=8, epochs=3))
        >>> [evaluation.epoch for evaluation in result.history]
        [1, 2, 3]
    """
    compat_dgl.load()
    links = isinstance(task, LinkTask)
    config = config or (SAGEConfig() if links else GNNConfig())
    target = next(iter(graph.num_nodes)) if isinstance(task, LinkTask) else task.ntype
    if target not in graph.num_nodes:
        raise unknown_name("node type", target, graph.num_nodes)
    if links and (len(graph.num_nodes) > 1 or not isinstance(config, SAGEConfig)):
        raise ConfigError("links take a graph of one node type and a SAGEConfig, which has the predictor's settings")
    if not links and type(config) is not GNNConfig:
        raise ConfigError(f"{type(config).__name__} has settings of another network; classes take a GNNConfig")
    for field in () if links else ("hidden_dim", "dropout"):
        if getattr(config, field) != GNNConfig.model_fields[field].default:
            raise ConfigError(f"{field} = {getattr(config, field)!r} has no effect on a network of your own")
    width = config.hidden_dim if isinstance(task, LinkTask) else task.num_outputs
    module = OnDGLBlocks(network, target, width)
    result = fit(lambda inputs: module, target, task, graph, config, **options)
    return result if links else replace(result, model=network)
