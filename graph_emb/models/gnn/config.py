"""Settings of R-GCN and GraphSAGE. The defaults are the recipes that the examples of DGL and OGB publish."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from graph_emb.core.errors import ConfigError
from graph_emb.core.settings import Count, Number
from graph_emb.graph.typed import EdgeType
from graph_emb.models.kge.config import KGEConfig, LossName, TripleSettings
from graph_emb.models.links.config import LinkLossName, MetricName, NegativesName, PrecisionName, check_negatives
from graph_emb.models.schedule import RateSchedule
from graph_emb.models.search import Space, Span, one_of
from graph_emb.models.settings import (
    OF_FROZEN_ROWS,
    OF_LABELS,
    At,
    DTypeName,
    Epochs,
    MaybeBatchSize,
    RuleName,
    WeightDecay,
)
from graph_emb.models.shared_rows import ComposedName, SharedRows

InputsName = Literal["table", "basis", "onehot", ComposedName]
LearningRate = Annotated[Number, Field(gt=0, le=1e3), At("train.lr")]


class GNNConfig(SharedRows, RateSchedule):
    """Fields that R-GCN and GraphSAGE share.

    Each field's description says what it does; beyond that:

    Attributes:
        dim: Features of another width pass through a linear map to it.
        hidden_dim: Also the width of the rows from which links are predicted.
        input_dropout: Those that stay are scaled by ``1 / (1 - input_dropout)``.
        init: "xavier" is uniform, by the table's shape; "normal" is standard.
        fanouts: Of each edge type: steps are mini-batches of sampled neighbourhoods.
        clip_norm: Of each table and of each network, whose gradients are scaled down to it.
        ema_decay: See ``WeightAverage``.
        blocks: See ``graph_emb.models.gnn.step_blocks``; a number of trainers divides it. 1: ranks share the nodes of a
            step by owner, and agree within rounding.
    """

    family: ClassVar[str] = "gnn"
    kind_field: ClassVar[str] = "inputs"
    without: ClassVar[tuple[str, ...]] = tuple(path for path in OF_FROZEN_ROWS if path not in OF_LABELS)
    rates: ClassVar[Mapping[str, float]] = {}  # lr has a value
    search: ClassVar[Space] = {
        "hidden_dim": one_of(16, 32, 64, 128, 256),
        "num_layers": one_of(1, 2, 3),
        "dropout": Span(0.0, 0.8),
        "lr": Span(0.001, 0.1, log=True),
    }

    dim: Count = Field(default=64, ge=1, le=65_536, description="width of the learnable inputs")
    hidden_dim: Count = Field(default=64, ge=1, le=65_536, description="width between layers")
    num_layers: Count = Field(default=2, ge=1, le=100, description="rounds of messages")
    dropout: Number = Field(default=0.5, ge=0, lt=1, description="after each hidden layer")
    input_dropout: Number = Field(
        default=0.0, ge=0, lt=1, description="share of the numbers of input rows that a step leaves out"
    )
    weight_decay: Number = Field(default=0.0, ge=0, le=1e3, description="of the network's Adam")
    dense_lr: Number | None = Field(default=None, gt=0, le=1e3, description="of the network; null: train.lr")
    init: Literal["xavier", "normal"] = Field(default="xavier", description="first rows of the tables")
    fanouts: tuple[Count, ...] | None = Field(
        default=None, description="in-edges kept for each layer, -1: all; null: a step computes the whole graph"
    )
    clip_norm: Number | None = Field(default=None, gt=0, le=1e9, description="norm of gradients at most; null: any")
    ema_decay: Number = Field(
        default=0.0, ge=0, lt=1, description="judge and keep the average of the weights over epochs; 0: the last ones"
    )
    eval_every: Count = Field(default=1, ge=1, le=1_000_000, description="epochs between evaluations")
    patience: Count | None = Field(
        default=None, ge=1, description="evaluations without a better validation value that end the training"
    )
    num_seeds: Count = Field(
        default=1, ge=1, le=1_000, description="trainings, of seed, seed + 1 ...; rows: the first's"
    )
    features: bool = Field(default=True, description="take the data set's features; false: learn all inputs")
    dtype: Literal[DTypeName, "float64"] = Field(  # type: ignore[assignment]  # a wider choice than other models have
        default="float32", description="how rows are stored, saved as float32; float64: the network computes in it too"
    )
    blocks: Annotated[Count, At("parallel.blocks")] = Field(
        default=1, ge=1, le=1 << 16, description="of each step, computed one by one: equal bits for any number of ranks"
    )
    inputs: InputsName = Field(default="table", description="a row a node, or one composed of rows that nodes share")
    rule: Annotated[RuleName, At("train.rule")] = Field(default="adam", description="update rule of the tables")
    lr: LearningRate = Field(default=0.01, description="of tables and network")
    epochs: Epochs = 50
    batch_size: MaybeBatchSize = Field(
        default=None, description="target nodes or edges of a step, of all ranks; null: all"
    )
    table_weight_decay: WeightDecay = None

    def learned_width(self, ntype: str, etypes: Sequence[EdgeType]) -> int:
        """Of a row of a node type without features, in a graph of these edge types."""
        return self.dim

    def check_trainers(self, num_trainers: int) -> None:
        """Raise a ConfigError unless trainers share the blocks of a step evenly."""
        if self.blocks > 1 and self.blocks % num_trainers:
            fitting = [str(n) for n in range(1, min(self.blocks, 64) + 1) if self.blocks % n == 0]
            raise ConfigError(
                f"parallel.blocks = {self.blocks} are not shared evenly by {num_trainers} trainers; take "
                f"{', '.join(fitting)} trainers, or as many blocks as a multiple of {num_trainers}"
            )

    @property
    def network_lr(self) -> float:
        """The learning rate of the network's Adam."""
        return self.lr if self.dense_lr is None else self.dense_lr

    @model_validator(mode="after")
    def _sizes_fit(self) -> GNNConfig:
        if self.fanouts is not None and len(self.fanouts) != self.num_layers:
            raise ValueError(
                f"fanouts = {self.fanouts} names {len(self.fanouts)} layers; num_layers is {self.num_layers}"
            )
        if any(fanout < 1 and fanout != -1 for fanout in self.fanouts or ()):
            raise ValueError(f"fanouts = {self.fanouts}: give a positive number or -1 (all) for each layer")
        if self.epochs < self.eval_every:
            raise ValueError(f"epochs = {self.epochs} ends before the first evaluation, eval_every={self.eval_every}")
        return self


class RGCNConfig(GNNConfig, TripleSettings):
    """Messages through a matrix of each relation; Schlichtkrull et al. 2018.

    The defaults are those of DGL's ``rgcn-hetero`` example for AIFB, with dropout.

    Attributes:
        inputs: What a node without features sends in the first layer: its row of ``dim`` numbers through the matrix of
            each relation ("table"); or, as in the paper, whose one-hot features make of that matrix a table, a row of
            ``hidden_dim`` numbers for each relation ("onehot"), or the relation's mix of ``num_bases`` such rows
            ("basis"). With ``self_loop`` one more row is its own message. A table has all rows of a node side by side.
        num_bases: Matrices of which each relation's is a mix; None: every relation has its own.
        num_blocks: Each relation's matrix is that many blocks on its diagonal (the paper's block decomposition).
        edge_dropout: Of the paper's two shares the one of edges; a mean is over the edges that stay.
        decoder: Of triples, whose entities have rows of ``hidden_dim``; classes of nodes do without it and without
            the fields of ``TripleSettings``.
        self_loop: Whether a node's own row, through a matrix of its node type, joins the messages.
        within_types: Of a run: relations inside a node type hold both directions of their edges ("both ways"), as
            DGL's ``AddReverse`` makes them; None: such a relation has a reverse of its own, too.
    """

    without: ClassVar[tuple[str, ...]] = tuple(path for path in GNNConfig.without if path != "dataset.test_edges")
    for_triples: ClassVar[tuple[str, ...]] = (
        "decoder",
        *(name for name in TripleSettings.model_fields if name not in GNNConfig.model_fields),
    )
    """Fields of triples, which classes of nodes do without."""

    name: Literal["rgcn"] = "rgcn"
    dim: Count = Field(default=16, ge=1, le=65_536, description="width of the learnable inputs")
    hidden_dim: Count = Field(default=16, ge=1, le=65_536, description="width between layers")
    inputs: InputsName = Field(
        default="table",
        description="a row a node; one a relation: its own (onehot), a mix (basis); or composed of shared rows",
    )
    num_bases: Count | None = Field(default=None, ge=1, description="matrices that relations mix; null: each its own")
    num_blocks: Count | None = Field(
        default=None, ge=1, description="blocks on the diagonal of each relation's matrix; null: it is full"
    )
    self_loop: bool = Field(default=True, description="a node's own row joins its messages")
    edge_dropout: Number = Field(default=0.0, ge=0, lt=1, description="share of edges that a step leaves out")
    within_types: Literal["both ways"] | None = Field(
        default=None, description="both ways: relations inside a type get no reverse of their own, but both directions"
    )
    decoder: Literal["distmult", "complex", "simple"] = Field(default="distmult", description="score of triples")
    loss: LossName = Field(default="softmax", description="of a triple against its negatives")
    num_negatives: Count = Field(default=512, ge=0, le=1 << 20, description="entities drawn for each chunk")
    chunk_size: Count = Field(default=512, ge=1, le=1 << 20, description="triples that share negatives")
    l2: Number = Field(default=0.01, ge=0, le=1e3, description="weight of the sum of abs(x)^2 of a triple's rows")

    @property
    def decoder_settings(self) -> KGEConfig:
        """The decoder as a knowledge-graph model's settings."""
        return KGEConfig(name=self.decoder, dim=self.hidden_dim)

    def check_classes(self) -> None:
        """Raise a ConfigError where a field of triples is set, which classes of nodes do without."""
        for name in self.for_triples:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ConfigError(f"{name} = {getattr(self, name)!r} has no effect on classes of nodes; leave it out")

    @property
    def by_relation(self) -> bool:
        """Whether a node without features has rows for relations instead of one row."""
        return self.inputs in ("basis", "onehot")

    def learned_width(self, ntype: str, etypes: Sequence[EdgeType]) -> int:
        """See ``GNNConfig.learned_width``."""
        if not self.by_relation:
            return self.dim
        shares = self.num_bases or 0 if self.inputs == "basis" else sum(etype[0] == ntype for etype in etypes)
        return max(1, shares + self.self_loop) * self.hidden_dim

    def check_inputs(self, features: Collection[str]) -> None:
        """Raise a ConfigError where nothing has the width ``dim``; ``features``: the node types that have some."""
        if self.by_relation and not features and self.dim != type(self).model_fields["dim"].default:
            raise ConfigError(
                f"dim = {self.dim} has no effect on inputs={self.inputs!r} where no node type has features; "
                "set hidden_dim, or leave it out"
            )

    @model_validator(mode="after")
    def _matrices_fit(self) -> RGCNConfig:
        if self.num_blocks is not None and self.num_bases is not None:
            raise ValueError(f"num_blocks = {self.num_blocks} and num_bases = {self.num_bases}: give one of them")
        if self.decoder != "distmult" and self.hidden_dim % 2:
            raise ValueError(f"hidden_dim = {self.hidden_dim}: decoder = {self.decoder!r} needs an even width")
        return self

    @model_validator(mode="after")
    def _inputs_fit(self) -> RGCNConfig:
        if self.inputs == "basis" and self.num_bases is None:
            raise ValueError("inputs = 'basis' mixes num_bases rows of a node; set num_bases, or inputs = 'onehot'")
        if self.by_relation and self.num_layers < 2:
            raise ValueError(f"inputs = {self.inputs!r} learns rows of hidden_dim; num_layers = 1 has no such width")
        return self


class SAGEConfig(GNNConfig):
    """GraphSAGE, mean aggregator; Hamilton et al. 2017.

    The defaults are those of OGB's ``examples/linkproppred/ddi/gnn.py --use_sage``.

    Attributes:
        aggregator: Of a node's neighbours: "mean" beside a matrix of its own row, or "gcn", one matrix of the mean of
            the neighbours and the node itself.
        predictor_layers: Linear layers of the link predictor, at least 2; of no effect on node classification.
        negatives, num_negatives, loss: Of links; see ``LinkPredictorConfig``.
        precision: Of the link predictor's products in training.
        metrics: Of a run: "hits@K", "mrr" or "rocauc" of links, the first one decides about early stopping; None: the
            data set's.
    """

    without: ClassVar[tuple[str, ...]] = tuple(path for path in GNNConfig.without if path != "dataset.test_edges")
    for_links: ClassVar[tuple[str, ...]] = (
        "predictor_layers", "negatives", "num_negatives", "loss", "precision", "metrics",
    )  # fmt: skip
    """Fields of the link predictor, which classes of nodes do without."""

    name: Literal["sage"] = "sage"
    inputs: Literal["table", ComposedName] = Field(
        default="table", description="a row a node, or one composed of rows that nodes share"
    )
    dim: Count = Field(default=256, ge=1, le=65_536, description="width of the learnable inputs")
    hidden_dim: Count = Field(default=256, ge=1, le=65_536, description="width between layers")
    aggregator: Literal["mean", "gcn"] = Field(
        default="mean", description="neighbours beside the own row, or one mean of both (gcn)"
    )
    clip_norm: Number | None = Field(default=1.0, gt=0, le=1e9, description="norm of gradients at most; null: any")
    eval_every: Count = Field(default=5, ge=1, le=1_000_000, description="epochs between evaluations")
    predictor_layers: Count = Field(default=2, ge=2, le=100, description="linear layers of the link predictor")
    negatives: NegativesName = Field(default="non_edges", description="what training edges are told from")
    num_negatives: Count = Field(default=1, ge=1, le=1_024, description="of each edge")
    loss: LinkLossName = Field(default="logistic", description="of an edge against its negatives")
    precision: PrecisionName = Field(default="float32", description="of the link predictor's products")
    metrics: tuple[MetricName, ...] | None = Field(
        default=None, min_length=1, description="of links, the first one decides; null: the data set's"
    )
    lr: LearningRate = Field(default=0.005, description="of tables and network")
    epochs: Epochs = 200
    batch_size: MaybeBatchSize = Field(default=64 * 1024, description="target edges of a step, of all ranks; null: all")

    @model_validator(mode="after")
    def _products_are_as_wide_as_rows(self) -> SAGEConfig:
        if self.dtype == "float64" and self.precision != "float32":
            raise ValueError(f"precision = {self.precision!r} rounds what dtype = float64 keeps; leave one of them out")
        return self

    @model_validator(mode="after")
    def _there_are_negatives(self) -> SAGEConfig:
        check_negatives(self.negatives, self.num_negatives)
        return self


GNN_MODELS: dict[str, type[GNNConfig]] = {"rgcn": RGCNConfig, "sage": SAGEConfig}
