"""A trained graph network out of its file: built again, and its rows computed from input rows and the graph."""

# N nodes of the target type, O output width.

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from graph_emb.core.errors import DataError
from graph_emb.evaluate.link_prediction import link_part, metric_values
from graph_emb.formats.network_files import KeptNetwork
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.epochs import Values
from graph_emb.models.gnn.config import GNNConfig, RGCNConfig, SAGEConfig
from graph_emb.models.gnn.inputs import InputRows
from graph_emb.models.gnn.networks import RGCN, SAGE
from graph_emb.models.gnn.tasks import LinkTask, NodeTask
from graph_emb.models.gnn.train import GNNResult, arithmetic, predictor_of
from graph_emb.models.gnn.trainer import Trainer
from graph_emb.models.links.training import FrozenRows, LinkPredictor, score_links
from graph_emb.sampling.partitioned_neighbors import OwnEdges


def kept_network(
    result: GNNResult,
    graph: HeteroGraph | OwnEdges,
    task: NodeTask | LinkTask,
    widths: Mapping[str, int],
    class_names: Sequence[str] | None = None,
) -> KeptNetwork:
    """What a run keeps of R-GCN or GraphSAGE, besides the rows that it learned.

    Args:
        graph, task: Of the training.
        widths: Of the input rows by node type.
        class_names: Of the classes, where they have names.
    """
    about = {
        "epoch": result.epochs,
        "target": task.ntype if isinstance(task, NodeTask) else next(iter(graph.num_nodes)),
        "ntypes": list(graph.ntypes),
        "etypes": [list(etype) for etype in graph.etypes],
        "widths": dict(widths),
        "learned": sorted(result.tables),
        "one_class": isinstance(task, NodeTask) and task.is_single,
        "classes": None if class_names is None else list(class_names),
        "outputs": task.num_outputs if isinstance(task, NodeTask) else None,
    }
    return KeptNetwork.of(result.model, about)


class RebuiltNetwork:
    """R-GCN or GraphSAGE of a run, as it was when the training ended, on the run's graph.

    Args:
        kept: Its tensors.
        config: The recipe that trained it.
        graph: Whole, of the same types.
        rows: Input rows of every node type, (N, D): features, or what was learned.
    Attributes:
        rows: Of the target type, (N, O), from whole neighbourhoods, without dropout.
        target: That type.
        predictor: Of links; None for classes.
        one_class: Whether a node has one class.
        class_names: Where they have names.
    Raises:
        DataError: the graph has other types, or the settings are others.
    """

    predictor: LinkPredictor | None = None

    def __init__(self, kept: KeptNetwork, config: GNNConfig, graph: HeteroGraph, rows: Mapping[str, Any]) -> None:
        about, self._config = kept.about, config
        self.target: str = about["target"]
        self.one_class: bool = about["one_class"]
        self.class_names: list[str] | None = about["classes"]
        ntypes, etypes = about["ntypes"], [tuple(etype) for etype in about["etypes"]]
        for kind, saved, found in (("node", ntypes, graph.ntypes), ("edge", etypes, graph.etypes)):
            if set(saved) != set(found):
                raise DataError(
                    f"the network was trained on the {kind} types {_listed(saved)}; the graph has {_listed(found)}"
                )
        out_dim = config.hidden_dim if about["outputs"] is None else about["outputs"]
        with arithmetic(config):
            self.rows: Tensor = self._computed(kept, config, graph, rows, out_dim)

    def _computed(
        self, kept: KeptNetwork, config: GNNConfig, graph: HeteroGraph, rows: Mapping[str, Any], out_dim: int
    ) -> Tensor:
        about, ntypes = kept.about, kept.about["ntypes"]
        etypes = [tuple(etype) for etype in about["etypes"]]
        if isinstance(config, RGCNConfig):
            network: nn.Module = RGCN(ntypes, etypes, about["widths"], out_dim, config, set(about["learned"]))
        else:
            network = SAGE(about["widths"][self.target], out_dim, cast(SAGEConfig, config))
        model: nn.Module = network
        if about["outputs"] is None:
            self.predictor = predictor_of(cast(SAGEConfig, config), seed=0)
            model = nn.ModuleDict({"encoder": network, "predictor": self.predictor})
        kept.load_into(model)
        whole = config.model_copy(update={"fanouts": None})
        inputs = InputRows(graph.num_nodes, whole, features=rows, etypes=etypes)
        trainer = Trainer(graph, self.target, network, inputs, whole, group=None, seed=0, device="cpu")
        return trainer.final_rows()

    def scores(self, pairs: Tensor) -> Tensor:
        """Logits of pairs of nodes (B, 2), shape (B,)."""
        assert self.predictor is not None
        with arithmetic(self._config):
            return score_links(self.predictor, FrozenRows(self.rows), pairs)

    def measure(self, task: NodeTask | LinkTask) -> dict[str, Values]:
        """The task's metrics of the validation part, where there is one, and of the test part."""
        parts = ("valid", "test")[not task.has_valid :]
        if isinstance(task, NodeTask):
            return {part: task.measure(self.rows, part) for part in parts}
        found = {part: link_part(task.split, part, len(self.rows)) for part in parts}
        return {part: metric_values(own.ranks(self.scores), task.metrics) for part, own in found.items()}


def _listed(types: Collection[Any]) -> str:
    return ", ".join(sorted("/".join(one) if isinstance(one, tuple) else one for one in types))
