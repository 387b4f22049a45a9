"""R-GCN (Schlichtkrull et al. 2018), and GraphSAGE of one node type with the mean aggregator (Hamilton et al. 2017)."""

# S source rows and T destination rows of a node type, I and O widths of a layer.

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from graph_emb.graph.typed import EdgeType
from graph_emb.models.gnn.aggregate import mean_neighbours, sum_neighbours
from graph_emb.models.gnn.config import GNNConfig, RGCNConfig, SAGEConfig
from graph_emb.models.gnn.relational import EntityLayer, RGCNLayer
from graph_emb.sampling.blocks import Block, BlockEdges


class LayeredNetwork(nn.Module):
    """Layers with ReLU and dropout between them, on input rows of one width.

    Args:
        widths: Of the input rows, for each node type; those other than ``config.dim`` pass through a linear map.
        out_dim: Width of the last layer.
        config: Sizes and dropout.
        layer: Makes a layer of its number and its two widths.
    """

    def __init__(
        self, widths: Mapping[str, int], out_dim: int, config: GNNConfig, layer: Callable[[int, int, int], nn.Module]
    ) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.inputs = InputMaps(widths, config.dim)
        sizes = [config.dim, *[config.hidden_dim] * (config.num_layers - 1), out_dim]
        self.layers = nn.ModuleList(layer(number, *both) for number, both in enumerate(pairwise(sizes)))

    def forward(self, blocks: Sequence[Block], rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of the last block's destinations, (T, ``out_dim``), by node type."""
        hidden = dict(rows)
        for number, block in zip(range(len(self.layers)), blocks, strict=True):
            hidden = self.one_layer(number, block, hidden)
        return hidden

    def one_layer(self, number: int, block: Block, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of a block's destinations after a layer, from those of its sources, by node type.

        Args:
            number: Of the layer; the first one, 0, takes input rows.
        """
        hidden = self.inputs(rows) if number == 0 else dict(rows)
        hidden = self._round(self.layers[number], block, hidden)
        if number < len(self.layers) - 1:
            hidden = {t: F.dropout(F.relu(h), self.dropout, self.training) for t, h in hidden.items()}
        return hidden

    def _round(self, layer: nn.Module, block: Block, hidden: dict[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = layer(block, hidden)
        return found


class RGCN(LayeredNetwork):
    """Layers of R-GCN with ReLU and dropout between them.

    Args:
        ntypes, etypes: Of the graph.
        widths: Of the input rows, for each node type; those other than ``config.dim`` pass through a linear map.
        out_dim: Width of the last layer, classes for example.
        config: Sizes, kind of inputs, bases and dropout.
        learned: The node types whose rows are tables, of ``config.learned_width``; of effect where those are not
            ``config.dim``.

    Example:
        >>> from graph_emb.graph.typed import HeteroGraph
        >>> from graph_emb.models.gnn.config import RGCNConfig
        >>> from graph_emb.models.gnn.networks import RGCN
        >>> from graph_emb.sampling.blocks import whole_graph
        >>> likes = {("user", "likes", "item"): (np.array([0, 1]), np.array([0, 0]))}
        >>> graph = HeteroGraph({"user": 2, "item": 1}, likes)
        >>> config = RGCNConfig(dim=4, hidden_dim=4, num_layers=2)
        >>> network = RGCN(graph.ntypes, graph.etypes, {"user": 4, "item": 4}, 3, config)
        >>> rows = {"user": torch.randn(2, 4), "item": torch.randn(1, 4)}
        >>> network(whole_graph(graph, 2).blocks, rows)["item"].shape
        torch.Size([1, 3])
    """

    def __init__(
        self,
        ntypes: Sequence[str],
        etypes: Sequence[EdgeType],
        widths: Mapping[str, int],
        out_dim: int,
        config: RGCNConfig,
        learned: Collection[str] = (),
    ) -> None:
        by_relation = config.by_relation
        names = ("num_bases", "num_blocks", "self_loop", "edge_dropout")
        matrices = {name: getattr(config, name) for name in names}

        def layer(number: int, a: int, b: int) -> nn.Module:
            if by_relation and number == 0:
                return EntityLayer(ntypes, etypes, a, b, learned, config)
            return RGCNLayer(ntypes, etypes, a, b, **matrices)

        if by_relation:
            widths = {ntype: width for ntype, width in widths.items() if ntype not in learned}
        super().__init__(widths, out_dim, config, layer)


class InputMaps(nn.Module):
    """Brings input rows of all node types to one width.

    Args:
        widths: Of each node type's rows.
        dim: The common width; rows that have it stay as they are.
    """

    def __init__(self, widths: Mapping[str, int], dim: int) -> None:
        super().__init__()
        self.mapped = [ntype for ntype, width in widths.items() if width != dim]
        self.maps = nn.ModuleList(nn.Linear(widths[ntype], dim) for ntype in self.mapped)

    def forward(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Shape (S, ``dim``) for each node type."""
        found = dict(rows)
        for ntype, linear in zip(self.mapped, self.maps, strict=True):
            found[ntype] = linear(rows[ntype])
        return found


class SAGELayer(nn.Module):
    """``h_i' = W_1 h_i + W_2 mean over the neighbours j of h_j + b``, as ``SAGEConv`` of PyG and of DGL.

    Of "gcn" ``h_i' = W mean over i and its neighbours + b`` (Hamilton et al. 2017, section 3.3; DGL's "gcn").
    It takes as long as DGL's; DGL need not be there.

    Args:
        in_dim, out_dim: I and O.
        aggregator: "mean" or "gcn".
    """

    def __init__(self, in_dim: int, out_dim: int, aggregator: str = "mean") -> None:
        super().__init__()
        self.neighbours = nn.Linear(in_dim, out_dim)
        self.own = nn.Linear(in_dim, out_dim, bias=False) if aggregator == "mean" else None

    def forward(self, edges: BlockEdges, rows: Tensor) -> Tensor:
        """From rows (S, I) to rows (T, O)."""
        own = rows[: edges.num_destinations]
        if self.own is None:
            counts = edges.degrees[:, None]
            mixed: Tensor = self.neighbours((sum_neighbours(rows, edges) + own) / (counts + 1))
            return mixed
        out: Tensor = self.neighbours(mean_neighbours(rows, edges)) + self.own(own)
        return out


class SAGE(LayeredNetwork):
    """Layers of GraphSAGE with ReLU and dropout between them.

    Args:
        width: Of the input rows; another one than ``config.dim`` passes through a linear map.
        out_dim: Width of the last layer.
        config: Sizes and dropout.

    Example:
        >>> from graph_emb.graph.typed import HeteroGraph
        >>> from graph_emb.models.gnn.config import SAGEConfig
        >>> from graph_emb.models.gnn.networks import SAGE
        >>> from graph_emb.sampling.blocks import whole_graph
        >>> graph = HeteroGraph({"node": 3}, {("node", "to", "node"): (np.array([0, 1]), np.array([1, 2]))})
        >>> network = SAGE(4, 5, SAGEConfig(dim=4, hidden_dim=4, num_layers=2))
        >>> network(whole_graph(graph, 2).blocks, {"node": torch.randn(3, 4)})["node"].shape
        torch.Size([3, 5])
    """

    def __init__(self, width: int, out_dim: int, config: SAGEConfig) -> None:
        super().__init__({"": width}, out_dim, config, lambda number, a, b: SAGELayer(a, b, config.aggregator))

    def one_layer(self, number: int, block: Block, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As ``LayeredNetwork.one_layer``, by the name of the only node type."""
        ((ntype, given),) = rows.items()
        return {ntype: super().one_layer(number, block, {"": given})[""]}

    def _round(self, layer: nn.Module, block: Block, hidden: dict[str, Tensor]) -> dict[str, Tensor]:
        (edges,) = block.edges.values()
        return {"": layer(edges, hidden[""])}
