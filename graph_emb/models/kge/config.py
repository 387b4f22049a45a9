"""Settings of the knowledge-graph models. The defaults of each model were chosen on FB15k-237."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from graph_emb.core.errors import unknown_name
from graph_emb.core.settings import AutoIsNull, Count, Number
from graph_emb.models.schedule import RateSchedule, ScheduleName
from graph_emb.models.search import Space, Span, one_of
from graph_emb.models.settings import (
    OF_FROZEN_ROWS,
    At,
    BatchSize,
    Epochs,
    MaybeBatchSize,
    ModelSettings,
    MultilevelStart,
    RuleName,
    WeightDecay,
)
from graph_emb.models.shared_rows import TableKind

LossName = Literal["logistic", "margin", "softmax", "self_adversarial"]
TrainingName = Literal["negatives", "1vsall", "kvsall"]
OF_NEGATIVES = ("num_negatives", "chunk_size", "negative_power", "in_batch", "filter_negatives", "negative_scope")
"""Fields that mean nothing to a loss over all entities."""
DEFAULT_LR = {
    "sgd": 1.0, "adagrad": 0.1, "row_adagrad": 0.1, "adam": 0.002, "adamw": 0.002, "row_adam": 0.002, "lamb": 0.01,
    "row_lamb": 0.01, "lars": 3.0,
}  # fmt: skip
"""Learning rate of each rule where none is given."""
MOST_BUCKETS = 4_096
"""Parts of the entities."""


class TripleSettings(ModelSettings):
    """Fields of every model that learns from triples: loss, negatives and penalties of a step.

    Each field's description says what it does; beyond that:

    Attributes:
        loss: A name of ``graph_emb.models.kge.model.LOSSES``.
        negative_power: 0 is uniform, 0.75 by degree.
        subsampling: The weight is ``1 / sqrt(3 + #(h, r, .) + 3 + #(., r, t))`` (Sun et al. 2019, their code).
        n3, l2: Of the mean over a step's triples, so that rows count as often as they occur (N3: Lacroix et al. 2018,
            whose factor 1/3 is left out, as in their code).
        candidates: Data sets that give negatives for each triple are validated on those.
    """

    loss: LossName = Field(default="self_adversarial", description="of a triple against its negatives")
    margin: Number = Field(default=0.0, ge=0, le=1e4, description="gamma of the loss")
    temperature: Number = Field(default=1.0, gt=0, le=1e3, description="alpha of the self-adversarial loss")
    num_negatives: Count = Field(default=256, ge=0, le=1 << 20, description="entities drawn for each chunk")
    chunk_size: Count = Field(default=256, ge=1, le=1 << 20, description="triples that share negatives")
    negative_power: Number = Field(default=0.0, ge=0, le=10, description="negatives follow occurrences ** power")
    in_batch: bool = Field(default=False, description="entities of the chunk's other triples are negatives too")
    filter_negatives: bool = Field(default=True, description="leave out negatives that make a training triple true")
    subsampling: bool = Field(default=False, description="weigh triples of frequent pairs less, as RotatE's code")
    n3: Number = Field(default=0.0, ge=0, le=1e3, description="weight of the sum of abs(x)^3 of a triple's rows")
    l2: Number = Field(default=0.0, ge=0, le=1e3, description="weight of the sum of abs(x)^2 of a triple's rows")
    candidates: Count | None = Field(
        default=None, ge=1, description="entities sampled to rank against in validation and evaluation; null: all"
    )
    batch_size: MaybeBatchSize = Field(default=None, description="triples of a step, of all ranks; null: all")

    @model_validator(mode="after")
    def _every_value_has_an_effect(self) -> TripleSettings:
        if self.loss == "softmax" and self.margin and not isinstance(self, DistanceConfig):
            raise ValueError(f"margin = {self.margin:g} has no effect on the softmax loss; leave it at 0")
        if self.temperature != 1.0 and self.loss != "self_adversarial":
            raise ValueError(f"temperature = {self.temperature:g} belongs to loss=self_adversarial; leave it out")
        return self

    @property
    def against_all(self) -> bool:
        """Whether the loss is over all entities, without negatives."""
        return False

    @model_validator(mode="after")
    def _there_are_negatives(self) -> TripleSettings:
        if not self.num_negatives and not (self.in_batch and self.chunk_size > 1):
            raise ValueError("num_negatives = 0: without in_batch and chunks of 2 triples there are no negatives")
        return self


class KGEConfig(TripleSettings, TableKind, MultilevelStart, RateSchedule):
    """Fields of all knowledge-graph models: those of triples, validation and early stopping.

    ``KGEConfig(model="complex", ...)`` makes the settings of that model, a ``ComplExConfig``; without a name RotatE's.

    Attributes:
        dim: D, whatever the model makes of it: ComplEx, RotatE and SimplE see D / 2 numbers.
        buckets: The order is that of ``graph_emb.sampling.buckets``, and negatives come from the parts in memory, as
            many from each: this changes which triples and negatives meet, whatever the placement of the entities.
        at_once: The order is that of ``graph_emb.sampling.bucket_rounds`` instead; the steps are those of
            ``graph_emb.models.kge.bucket_ranks``, by that many ranks or by one process. ``train_kge`` takes null for 1.
        negative_scope, triple_scope: Negatives of one part are for chunks of that part, whatever ``triple_scope`` says.
        training: ``negatives`` compares a triple with drawn entities; ``1vsall`` each end of a triple with all
            entities by cross entropy (Lacroix et al. 2018); ``kvsall`` does so for each distinct query of the triples,
            whose answers share its target evenly (Dettmers et al. 2018), and steps count queries.
        reciprocal: Queries for heads have relations of their own, see ``Reciprocal``.
        label_smoothing: The share of a query's target that all entities have in equal parts, with ``1vsall``
            and ``kvsall``.
        products: ``bfloat16`` rounds the factors to 8 binary digits and adds in float32, where the processor has
            instructions for that; elsewhere it changes nothing.
        dropout: Of the given entity's row and the relation's; those that stay are scaled by ``1 / (1 - dropout)``.
    """

    family: ClassVar[str] = "kge"
    without: ClassVar[tuple[str, ...]] = (
        *(path for path in OF_FROZEN_ROWS if path not in ("dataset.test_edges", "parallel.hogwild")),
    )
    rates: ClassVar[Mapping[str, float]] = DEFAULT_LR
    halves: ClassVar[bool] = True
    """Whether a row is two halves, so that ``dim`` is even."""

    name: str = "rotate"
    dim: Count = Field(default=256, ge=1, le=65_536, description="width of an entity's row")
    training: TrainingName = Field(default="negatives", description="what a triple's ends are compared with")
    reciprocal: bool = Field(default=False, description="a second row of each relation for queries of heads")
    label_smoothing: Number = Field(
        default=0.0, ge=0, lt=1, description="share of a target that all entities have, of 1vsall and kvsall"
    )
    products: Literal["float32", "bfloat16"] = Field(
        default="float32", description="factors of matrix products of 1vsall and kvsall; bfloat16 is faster with AMX"
    )
    dropout: Number = Field(
        default=0.0, ge=0, lt=1, description="share of the numbers of a query's two rows that a step leaves out"
    )
    negative_scope: Annotated[Literal["global", "local"], At("parallel.negatives")] = Field(
        default="global", description="negatives come from all entities, or from the part that owns a chunk's heads"
    )
    triple_scope: Annotated[Literal["global", "local"], At("parallel.triples")] = Field(
        default="global", description="chunks hold triples of all parts, or of one, which its owner trains"
    )
    buckets: Annotated[Count | None, At("train.buckets"), AutoIsNull] = Field(
        default=0,
        ge=0,
        le=MOST_BUCKETS,
        description="parts of the entities; triples between two parts train together; 0: off; auto or null: they and "
        "train.resident as train.memory wants",
    )
    resident: Annotated[Count | None, At("train.resident")] = Field(
        default=None, ge=2, le=MOST_BUCKETS, description="parts of train.buckets in memory at a time; null: a quarter"
    )
    passes: Annotated[Count, At("train.passes")] = Field(
        default=1,
        ge=1,
        le=1_000,
        description="over train.buckets in an epoch, each with its share of their triples: nearer to a training "
        "without buckets, with as many times the swaps",
    )
    at_once: Annotated[Count | None, At("train.at_once")] = Field(
        default=None,
        ge=2,
        le=MOST_BUCKETS // 2,
        description="train.buckets that train at a time, of parts that no two share, each by a trainer of its own; "
        "null: as many as trainers of a run",
    )
    valid_every: Count = Field(default=5, ge=0, le=1_000_000, description="epochs between validations; 0: none")
    patience: Count = Field(
        default=3, ge=0, le=1_000_000, description="validations without a better MRR that end the training; 0: none do"
    )
    valid_triples: Count = Field(default=2000, ge=0, description="triples of a validation, drawn once; 0: all")
    batch_size: BatchSize = Field(default=1024, description="triples of a step, of all ranks that step together")
    rule: Annotated[RuleName, At("train.rule")] = Field(default="adam", description="update rule of both tables")
    lr_decay: Annotated[ScheduleName, At("train.lr_decay")] = Field(
        default="linear", description="linear or cosine: to zero over all epochs; plateau: by the validation; none"
    )
    epochs: Epochs = 15
    weight_decay: WeightDecay = None

    def __new__(cls, **values: Any) -> KGEConfig:
        """Settings of the class that belongs to the name."""
        chosen = cls
        if cls is KGEConfig:
            name = values.get("model", values.get("name", "rotate"))
            if not isinstance(name, str) or name not in KGE_MODELS:
                raise unknown_name("model", name, KGE_MODELS)
            chosen = KGE_MODELS[name]
        return super().__new__(chosen)

    def __init__(self, **values: Any) -> None:
        if "model" in values:
            values["name"] = values.pop("model")
        super().__init__(**values)

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # as in Settings

    def replace(self, **changes: Any) -> Self:
        """As in ``Settings``; another ``model`` keeps what was set and takes its own defaults for the rest."""
        return KGEConfig(**{**self.given(), "name": self.name, **changes})  # type: ignore[return-value]

    @property
    def against_all(self) -> bool:
        """Whether the loss is over all entities, without negatives."""
        return self.training != "negatives"

    def search_space(self) -> Space:
        """The part of ``search`` that means something to the kind of training."""
        return {name: own for name, own in self.search.items() if not (self.against_all and name in OF_NEGATIVES)}

    @model_validator(mode="after")
    def _training_fits(self) -> KGEConfig:
        if self.against_all:
            for name in OF_NEGATIVES:
                value, usual = getattr(self, name), type(self).model_fields[name].default
                if value != usual:
                    raise ValueError(f"{name} = {value!r} has no effect on training={self.training}; leave it out")
            if self.loss != "softmax":
                raise ValueError(f"loss = {self.loss!r}: training={self.training} is cross entropy; set loss=softmax")
        elif self.products != "float32":
            raise ValueError(f"products = {self.products!r} needs training=1vsall or kvsall")
        elif self.label_smoothing:
            raise ValueError(f"label_smoothing = {self.label_smoothing:g} needs training=1vsall or kvsall")
        if self.products != "float32" and isinstance(self, DistanceConfig):
            raise ValueError(
                f"products = {self.products!r} has no effect on the distances of {self.name}; leave it out"
            )
        if self.training == "kvsall" and self.triple_scope == "local":
            raise ValueError("triple_scope = 'local' places triples; training=kvsall has queries, leave it out")
        if self.training == "kvsall" and self.subsampling:
            raise ValueError("subsampling = True weighs triples; training=kvsall has queries, leave it out")
        return self

    @property
    def resident_parts(self) -> int:
        """How many of the parts of ``buckets`` are in memory at a time."""
        parts = self.buckets or 0
        if self.at_once is not None:
            return 2 * self.at_once
        return min(parts, max(2, parts // 4)) if self.resident is None else self.resident

    @model_validator(mode="after")
    def _buckets_fit(self) -> KGEConfig:
        if not self.buckets and self.resident is not None:
            raise ValueError(f"resident = {self.resident} belongs to buckets; set train.buckets or leave it out")
        if not self.buckets and self.at_once is not None:
            raise ValueError(f"at_once = {self.at_once} belongs to buckets; set train.buckets to a number of parts")
        if not self.buckets and self.passes > 1:
            raise ValueError(f"passes = {self.passes} belongs to buckets; set train.buckets to a number of parts")
        if self.buckets == 0:
            return self
        said = f"buckets = {'auto' if self.buckets is None else self.buckets}"
        if self.buckets is not None and self.at_once is not None:
            if self.buckets < 2 * self.at_once:
                raise ValueError(
                    f"{said}, at_once = {self.at_once}: no two of these may share a part; take at least "
                    f"{2 * self.at_once} buckets"
                )
            if self.resident is not None:
                raise ValueError(f"resident = {self.resident}: {self.at_once} buckets at once hold 2 parts each")
            if self.passes > 1:
                raise ValueError(f"passes = {self.passes}: {self.at_once} buckets at once pass over all once an epoch")
        if self.buckets is not None and not 2 <= self.resident_parts <= self.buckets:
            raise ValueError(
                f"{said}, resident = {self.resident}: at least 2 parts, and no more in memory than there are"
            )
        if self.against_all:
            raise ValueError(f"{said}: training={self.training} reads all entities in every step")
        for name in ("negative_scope", "triple_scope"):
            if getattr(self, name) != "global":
                raise ValueError(f"{name} = 'local' and {said} both place triples; leave one out")
        if self.table != "full":
            raise ValueError(f"{said}: table = {self.table!r} is of few rows, in memory; leave it out")
        return self

    @model_validator(mode="after")
    def _a_plateau_can_be_seen(self) -> KGEConfig:
        if self.lr_decay == "plateau" and not self.valid_every:
            raise ValueError("lr_decay = 'plateau' follows validations; set valid_every")
        return self

    @model_validator(mode="after")
    def _first_rows_are_of_entities(self) -> KGEConfig:
        if self.composed and self.multilevel is not False:
            raise ValueError(
                f"multilevel = {self.multilevel!r} gives each entity a first row, and those of table = {self.table!r} "
                "are sums of shared ones; leave it out, or take table=full"
            )
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> KGEConfig:
        if not self.against_all and self.batch_size % self.chunk_size:
            raise ValueError(
                f"batch_size = {self.batch_size}: should be a multiple of chunk_size, which is {self.chunk_size}"
            )
        if self.halves and self.dim % 2:
            raise ValueError(f"dim = {self.dim}: {self.name} needs an even width")
        return self


class DistanceConfig(KGEConfig):
    """Models whose score is a negative distance: the margin also bounds their first rows."""

    search: ClassVar[Space] = {
        "margin": Span(1.0, 24.0),
        "num_negatives": one_of(64, 128, 256, 512),
        "batch_size": one_of(256, 512, 1024, 2048),
        "lr": Span(0.0002, 0.05, log=True),
        "reciprocal": one_of(False, True),
    }

    margin: Number = Field(default=9.0, ge=0, le=1e4, description="gamma of the loss, and of the first rows' range")


class ProductConfig(KGEConfig):
    """Models whose score is a product.

    Attributes:
        init_std: Standard deviation of the first rows.
    """

    search: ClassVar[Space] = {
        "num_negatives": one_of(128, 256, 512, 1024),
        "batch_size": one_of(512, 1024, 2048),
        "n3": Span(0.0005, 0.5, log=True),
        "init_std": Span(0.001, 0.3, log=True),
        "dropout": Span(0.0, 0.5),
        "lr": Span(0.01, 0.5, log=True),
        "reciprocal": one_of(False, True),
    }

    loss: LossName = Field(default="softmax", description="of a triple against its negatives")
    num_negatives: Count = Field(default=512, ge=0, le=1 << 20, description="entities drawn for each chunk")
    chunk_size: Count = Field(default=512, ge=1, le=1 << 20, description="triples that share negatives")
    n3: Number = Field(default=0.05, ge=0, le=1e3, description="weight of the sum of abs(x)^3 of a triple's rows")
    init_std: Number = Field(default=0.1, gt=0, le=1e3, description="standard deviation of the first rows")
    rule: Annotated[RuleName, At("train.rule")] = Field(default="adagrad", description="update rule of both tables")
    epochs: Epochs = 10


class TransEConfig(DistanceConfig):
    """A relation is a translation; Bordes et al. 2013."""

    halves: ClassVar[bool] = False
    name: Literal["transe"] = "transe"
    norm: Literal[1, 2] = Field(default=1, description="of the distance")


class RotatEConfig(DistanceConfig):
    """A relation is a rotation of D / 2 complex numbers; Sun et al. 2019."""

    name: Literal["rotate"] = "rotate"
    epochs: Epochs = 35


class DistMultConfig(ProductConfig):
    """A relation weighs a dot product; Yang et al. 2015."""

    halves: ClassVar[bool] = False
    name: Literal["distmult"] = "distmult"


class ComplExConfig(ProductConfig):
    """DistMult over D / 2 complex numbers; Trouillon et al. 2016."""

    name: Literal["complex"] = "complex"


class SimplEConfig(ProductConfig):
    """D / 2 numbers of an entity as a head and D / 2 as a tail; Kazemi and Poole 2018."""

    name: Literal["simple"] = "simple"


KGE_MODELS: dict[str, type[KGEConfig]] = {
    "transe": TransEConfig,
    "distmult": DistMultConfig,
    "complex": ComplExConfig,
    "rotate": RotatEConfig,
    "simple": SimplEConfig,
}
