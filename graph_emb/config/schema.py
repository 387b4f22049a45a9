"""Typed configuration of a run: its own sections, and the settings of the model that it trains.

Every field changes a result or a file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from graph_emb.config.placements import PlacementSettings, check_placement
from graph_emb.core.errors import ConfigError
from graph_emb.core.settings import AutoIsNull, Count, Number, Settings, fields_at_default, parse_interval, short
from graph_emb.evaluate.mlp_config import MLPConfig
from graph_emb.models.gnn.config import GNN_MODELS, GNNConfig, RGCNConfig, SAGEConfig
from graph_emb.models.kge.config import (
    KGE_MODELS,
    ComplExConfig,
    DistMultConfig,
    KGEConfig,
    RotatEConfig,
    SimplEConfig,
    TransEConfig,
)
from graph_emb.models.links.config import LinkPredictorConfig, MatrixFactorizationConfig
from graph_emb.models.settings import ModelSettings, paths_of
from graph_emb.models.skipgram.config import (
    DeepWalkConfig,
    LineConfig,
    Metapath2VecConfig,
    Node2VecConfig,
    SkipGramTraining,
)
from graph_emb.models.spectral.config import SPECTRAL_MODELS, NetMFConfig, ProNEConfig

MAX_SEED = 2**63 - 1

FormatName = Literal["npy", "parquet", "word2vec", "pt"]
Ratio = Annotated[Number, Field(gt=0, lt=1)]
HitsAt = Annotated[Count, Field(ge=1)]


IN_MEMORY = "in memory: "
"""How the name of a data set begins that describes a graph in memory."""


_NOT_OF_THE_FIRST = {"labels", "split", "label_type", "hold_out", "test_edges", "validation_edges", "new_edges"}
NO_READ_OPTIONS = {"name", "digest", "root", "download", *_NOT_OF_THE_FIRST}


class DatasetSection(Settings):
    """Which graph is read and how. Options of a file format are refused where they mean nothing."""

    name: str = Field(min_length=1, description="a known data set or a path to a graph file")
    digest: str | None = Field(default=None, description="of a graph in memory, whose description is the name")
    root: str | None = Field(default=None, description="folder of the known data sets; null: $GRAPH_EMB_DATA")
    download: bool = Field(default=False, description="fetch an OGB data set that is missing")
    labels: str | None = Field(default=None, description="a file of node labels, read by the graph's ids")
    split: str | None = Field(
        default=None, description="file or folder of the train, valid and test nodes; null: the labels file's columns"
    )
    label_type: str | None = Field(default=None, description="the node type that labels and split are of")
    new_edges: tuple[str, ...] = Field(
        default=(), description="files of edges that came later, by the graph's ids; other ids are new nodes"
    )
    test_edges: str | None = Field(
        default=None, description="a file of edges or triples kept out of training, of test or valid"
    )
    hold_out: Number = Field(
        default=0.0, ge=0, lt=1, description="share of the edges kept out of training to judge link prediction"
    )
    directed: bool | None = Field(
        default=None, description="false: add the reverse of every edge; null: where the data set or file says so"
    )
    weight: bool | str | None = Field(
        default=None,
        description="edge weights: true or a column's name, or false for none; null: the column named so",
    )
    duplicates: Literal["keep", "first", "sum"] | None = Field(
        default=None, description="repeated edges while reading; null: keep, the model merges them"
    )
    self_loops: Literal["keep", "drop"] | None = Field(default=None, description="arcs from a node to itself")
    format: str | None = Field(default=None, description="how to read a file of another name: edges, npz, dgl, ...")
    num_nodes: Count | None = Field(default=None, ge=1, description="ids are node numbers below this")
    ids: Literal["auto", "int", "str"] | None = Field(default=None, description="how a file's ids are read")
    header: bool | None = Field(default=None, description="whether a text file begins with column names")
    separator: str | None = Field(default=None, description="of the columns of a text file")
    comment: str | None = Field(default=None, description="text lines that begin with one of it are skipped; null: #%")
    columns: tuple[str, ...] | None = Field(default=None, description="names of source, target [, weight]")
    validation_edges: Literal["trained on"] | None = Field(
        default=None, description="trained on: they join the graph and the training edges; null: held out"
    )
    trust_pickle: Literal[True] | None = Field(default=None, description="read a pickle, which can run any code")

    _held: Any = PrivateAttr(default=None)
    _base: tuple[Any, int] | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _digest_is_of_a_graph_in_memory(self) -> DatasetSection:
        if self.digest is not None and not self.name.startswith(IN_MEMORY):
            raise ValueError(f"digest={self.digest} is of a graph in memory, not of {self.name}; set it to null")
        return self

    @model_validator(mode="after")
    def _own_files_fit(self) -> DatasetSection:
        if self.label_type is not None and self.labels is None and self.split is None:
            raise ValueError(f"label_type={self.label_type!r} has no effect without labels or split; leave it out")
        if self.test_edges is not None and self.hold_out:
            raise ValueError(f"test_edges and hold_out={self.hold_out} both hold out edges; give one of them")
        return self

    @property
    def held(self) -> Any:
        """The data set in memory that this section describes, or None."""
        return self._held

    def hold(self, dataset: Any) -> None:
        """Keep the data set in memory that this section describes; it is no part of a written configuration."""
        self._held = dataset

    @property
    def base(self) -> tuple[Any, int] | None:
        """A data set in memory, and how many of ``new_edges`` it has grown by; None: what is read first."""
        return self._base

    def grow_from(self, other: DatasetSection | None) -> None:
        """Take what another section holds for the data set that grows, if it is the same with fewer ``new_edges``."""
        self._base = None
        if other is None or other.held is None:
            return
        number = len(other.new_edges)
        first, own = (section.model_dump(exclude=_NOT_OF_THE_FIRST) for section in (other, self))
        if first == own and self.new_edges[:number] == other.new_edges:
            self._base = other.held, number

    def read_options(self) -> dict[str, Any]:
        """The options of ``graph_emb.read_graph`` that are set."""
        chosen = self.model_dump(exclude=NO_READ_OPTIONS)
        return {key: value for key, value in chosen.items() if value is not None}


class TrainSection(PlacementSettings):
    """How a training runs; the update rule and its numbers are the model's settings, which a run says here too."""

    threads: Count | None = Field(
        default=None, ge=1, le=4_096, description="null: all cores; 1 with sgd repeats a run exactly"
    )
    log_interval: Number = Field(default=1.0, gt=0, le=86_400, description="seconds between lines of metrics.jsonl")


EARLIER_DEFAULTS = {"evaluate.scorer": "dot", "parallel.hogwild": False}
"""Former defaults, which the configurations of older runs name for every model."""


class ParallelSection(Settings):
    """How many processes train, and how they share the tables."""

    mode: Literal["local", "collective", "kvstore"] = Field(
        default="local", description="local: one process; collective: ranks in lockstep; kvstore: DGL's servers"
    )
    trainers: Count = Field(default=1, ge=1, le=65_536, description="processes that train, over all machines")
    servers: Count = Field(default=0, ge=0, le=65_536, description="of kvstore mode, on each machine")
    method: str = Field(default="auto", min_length=1, description="how the graph is cut; see partition.methods")
    partition: str | None = Field(
        default=None, min_length=1, description="folder of a partition of the data set, whose parts the tables follow"
    )
    hogwild: Annotated[bool | None, AutoIsNull] = Field(
        default=None,
        description="walks by sgd, triples, and kvstore: trainers of one machine change the same rows in place, "
        "without locks; auto or null: of walks and triples where one machine holds all trainers and nothing needs an "
        "exchange; false: they exchange rows, so that a seed repeats the bits",
    )
    wire_dtype: Annotated[Literal["float32", "float16", "bfloat16", "int8"] | None, AutoIsNull] = Field(
        default=None,
        description="rows and gradients are rounded to it where they are exchanged; int8: rows of walks by sgd in "
        "collective mode, 8 bits a number and a scale for each row; float32: exact; auto or null: of walks by sgd "
        "between machines int8 where the wire would be a twentieth of the training; else exact",
    )
    oversubscribe: bool = Field(default=False, description="take more trainers than four times a machine's cores")
    timeout: Number = Field(default=300.0, gt=0, le=86_400, description="seconds until a silent process is an error")

    @property
    def rounded_to(self) -> str | None:
        """``wire_dtype`` where it rounds."""
        return None if self.wire_dtype == "float32" else self.wire_dtype

    @model_validator(mode="after")
    def _counts_fit_the_mode(self) -> ParallelSection:
        if self.mode == "local" and (self.trainers > 1 or self.servers):
            raise ValueError(f"trainers={self.trainers}, servers={self.servers} need mode=collective or kvstore")
        if self.mode == "collective" and self.servers:
            raise ValueError(f"servers={self.servers} belongs to mode=kvstore; collective mode has none")
        if self.mode == "kvstore" and not self.servers:
            raise ValueError("mode=kvstore needs servers of at least 1")
        if self.partition is not None and self.method != "auto":
            raise ValueError(f"method={self.method!r} has no effect on the parts of partition; leave one of them out")
        if self.rounded_to is not None and self.mode == "collective" and self.trainers == 1:
            raise ValueError("wire_dtype has no effect on one trainer, which exchanges nothing; leave it out")
        if self.mode == "local":
            meant = {"mode", "trainers", "servers"} | fields_at_default(self)
            if self.hogwild is False:  # as earlier versions wrote it
                meant.add("hogwild")
            if self.rounded_to is None:  # so that the file of a run on several machines says what one process does
                meant.add("wire_dtype")
            unused = sorted(self.model_fields_set - meant)
            if unused:
                raise ValueError(f"{unused[0]} has no effect on one process; set mode=collective or leave it out")
        return self


class CheckpointSection(Settings):
    """Intervals and retention of checkpoints, which lie next to the run folder."""

    every: str | None = Field(default=None, description="steps (500) or a time (90s, 10m, 2h); null: never")
    keep_last: Count = Field(default=2, ge=1, le=1_000_000, description="complete checkpoints that stay")
    background: bool = Field(default=False, description="train on while one is written; copies rows, of files on disk")

    @model_validator(mode="after")
    def _counts_only_where_something_is_saved(self) -> CheckpointSection:
        unused = sorted(self.model_fields_set - {"every"} - fields_at_default(self))
        if self.every is None and unused:
            raise ValueError(f"{unused[0]} has no effect while nothing is saved; set checkpoint.every or leave it out")
        return self

    @field_validator("every", mode="after")
    @classmethod
    def _is_an_interval(cls, value: str | None) -> str | None:
        try:
            if value is not None:
                parse_interval(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return value


class EvaluateSection(Settings):
    """Evaluation after training, as far as the data allows it."""

    enabled: bool = Field(default=True, description="evaluate after training")
    ratios: tuple[Ratio, ...] = Field(
        default=(0.1, 0.5, 0.9), min_length=1, description="shares of labelled nodes to train on"
    )
    shuffles: Count = Field(default=3, ge=1, le=1_000, description="random label splits per ratio")
    hits: tuple[HitsAt, ...] = Field(default=(10, 20, 50, 100), min_length=1, description="the K of Hits@K")
    scorer: Literal["centred-dot", "dot", "cosine", "hadamard-logreg"] = Field(
        default="centred-dot", description="score of an edge"
    )
    predictor: LinkPredictorConfig | None = Field(
        default=None, description="train OGB's link predictor on the rows instead of the scorer"
    )
    mlp: MLPConfig | None = Field(default=None, description="train OGB's MLP on the rows instead of the regression")
    node_features: Literal["none", "raw", "unit columns"] = Field(
        default="none", description="which predictor or mlp read before the rows; unit columns: of length 1"
    )
    seed: Count | None = Field(default=None, ge=0, le=MAX_SEED, description="of predictor or mlp; null: the run's")

    @model_validator(mode="after")
    def _networks_alone_read_features(self) -> EvaluateSection:
        for name in ("node_features", "seed") if self.predictor is None and self.mlp is None else ():
            if name not in fields_at_default(self):
                raise ValueError(f"{name}={getattr(self, name)!r} has no effect without predictor or mlp; leave it out")
        return self


class OutputSection(Settings):
    """Files of the run folder."""

    formats: tuple[FormatName, ...] = Field(default=("npy",), min_length=1, description="files of the embeddings")
    context: Literal["none", "add", "concat"] = Field(
        default="none", description="what becomes of the context rows; none: token rows only"
    )
    report: Literal["auto", "pca", "tsne", "umap", "none"] = Field(
        default="auto",
        description="map of report.html; auto: tsne for up to 1,000 labelled rows, else pca; none: no page",
    )

    trackers: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] = Field(
        default=(), description="where the numbers of metrics.jsonl and the scores go besides; each needs its extra"
    )

    @field_validator("formats", "trackers", mode="after")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("names one twice")
        return value


Model = Annotated[
    DeepWalkConfig
    | Node2VecConfig
    | LineConfig
    | MatrixFactorizationConfig
    | Metapath2VecConfig
    | TransEConfig
    | DistMultConfig
    | ComplExConfig
    | RotatEConfig
    | SimplEConfig
    | RGCNConfig
    | SAGEConfig
    | NetMFConfig
    | ProNEConfig,
    Field(discriminator="name"),
]
MODELS: dict[str, type[ModelSettings]] = {
    "deepwalk": DeepWalkConfig,
    "node2vec": Node2VecConfig,
    "line": LineConfig,
    "mf": MatrixFactorizationConfig,
    "metapath2vec": Metapath2VecConfig,
    **KGE_MODELS,
    **GNN_MODELS,
    **SPECTRAL_MODELS,
}


EXCHANGE = ("exchange_walks", "negative_pool", "remote_negatives", "overlap", "reduction", "wire_dtype")
"""Fields of ``parallel`` about the exchange of rows between trainers."""


class RunConfig(Settings):
    """Everything that decides the result of a run."""

    seed: Count = Field(0, ge=0, le=MAX_SEED, description="one number for walks, initial rows, negatives, splits")
    dataset: DatasetSection
    model: Model
    train: TrainSection = TrainSection()
    parallel: ParallelSection = ParallelSection()
    checkpoint: CheckpointSection = CheckpointSection()
    evaluate: EvaluateSection = EvaluateSection()
    output: OutputSection = OutputSection()

    def sections(self) -> dict[str, Any]:
        """The configuration as a file says it, in plain values: the model's fields in the sections of their paths."""
        own, fields = self.model_dump(mode="json", exclude={"model"}), self.model.model_dump(mode="json")
        nested = {"seed": own["seed"], "dataset": own["dataset"], "model": {"name": self.model.name}, **own}
        for name, path in paths_of(type(self.model)).items():
            section, _, key = path.partition(".")
            nested[section][key] = fields[name]
        return nested

    @property
    def exchange_settings(self) -> list[str]:
        """The fields of the exchange of rows between trainers that are given, by path.

        Trainers that share rows in place (``parallel.hogwild``) exchange none, nor does one that is alone.
        """
        return [f"parallel.{name}" for name in EXCHANGE if self._exchanges_by(name)]

    def _exchanges_by(self, name: str) -> bool:
        """Whether a field of ``parallel`` is given that has no effect but on an exchange."""
        if name == "wire_dtype":
            return self.parallel.rounded_to is not None
        return bool(getattr(self.model, name, None) or getattr(self.parallel, name, None))

    @model_validator(mode="after")
    def _every_field_has_a_meaning(self) -> RunConfig:
        for path in self.model.without:
            name, _, field = path.partition(".")
            section = getattr(self, name)
            if field in fields_at_default(section) or getattr(section, field) == EARLIER_DEFAULTS.get(path):
                continue
            if field in section.model_fields_set:
                raise ValueError(
                    f"{path} = {short(getattr(section, field))} has no effect on {self.model.name}; leave it out"
                )
        return self

    @model_validator(mode="after")
    def _one_process_trains_walks_by_buckets(self) -> RunConfig:
        if isinstance(self.model, SkipGramTraining) and self.model.buckets != 0 and self.parallel.mode != "local":
            said = f"train.buckets = {'auto' if self.model.buckets is None else self.model.buckets}"
            raise ValueError(f"{said}: one process trains walks by buckets; leave parallel.mode or train.buckets out")
        return self

    @model_validator(mode="after")
    def _tables_may_lie_so(self) -> RunConfig:
        check_placement(
            self.train,
            self.model,
            mode=self.parallel.mode,
            hogwild=self.parallel.hogwild,
            context=self.output.context,
        )
        return self

    @model_validator(mode="after")
    def _exchanges_have_an_effect(self) -> RunConfig:
        """Ranks exchange rows where SGD trains copies in place; servers' trainers meet as often under any rule."""
        model = self.model
        if model.count_rows and not model.count_power and self.checkpoint.every is None:
            raise ValueError(
                "train.count_rows has no effect while nothing is saved; set train.count_power, or leave it out"
            )
        if isinstance(model, SkipGramTraining) and model.batch_size is not None and model.in_place:
            raise ValueError("train.batch_size has no effect on sgd in place; set train.path=optimizer or leave it out")
        if isinstance(model, GNNConfig):
            model.check_trainers(self.parallel.trainers)
            if model.blocks > 1 and self.parallel.rounded_to is not None:
                raise ValueError(
                    f"parallel.blocks = {model.blocks} is for equal bits, and parallel.wire_dtype rounds what ranks "
                    "exchange; leave one of them out"
                )
        if self.parallel.mode == "local":
            paths = {name: path for name, path in paths_of(type(model)).items() if path != "parallel.blocks"}
            for name, path in paths.items():  # blocks decide about the bits of one process, too
                value = getattr(model, name)
                given = value is not False and value != type(model).model_fields[name].default
                if path.startswith("parallel.") and given:
                    raise ValueError(
                        f"{path} has no effect on one process; set parallel.mode=collective or leave it out"
                    )
        if isinstance(model, KGEConfig) and self.parallel.hogwild:
            self._check_shared_triples(model)
        copies = isinstance(model, SkipGramTraining) and model.in_place and self.parallel.mode == "collective"
        if self.parallel.wire_dtype == "int8" and not copies:
            raise ValueError(
                "parallel.wire_dtype = int8 is for walks by sgd in place with parallel.mode=collective; set bfloat16, "
                "or leave it out"
            )
        if not isinstance(model, SkipGramTraining):
            return self
        hogwild, paced = self.parallel.hogwild, self.parallel.mode == "kvstore"
        rule = f"train.rule={model.rule}, train.path={model.path}, model.dtype={model.dtype}; it is for sgd in place"
        for name, by_any_rule, of_copies in (
            ("exchange_walks", paced, False),
            ("negative_pool", False, True),
            ("remote_negatives", False, True),
            ("overlap", False, True),
            ("reduction", False, True),
            ("wire_dtype", True, not paced),  # servers on several machines have an exchange all the same
            ("hogwild", paced, False),
        ):
            alone = self.parallel.trainers == 1 and (of_copies or name == "exchange_walks")
            reason = "" if model.in_place or by_any_rule else rule
            reason = "parallel.trainers=1, which exchanges nothing" if alone else reason
            if of_copies and hogwild:
                reason = reason or "parallel.hogwild=true, which copies no rows"
            if paced and name in ("remote_negatives", "overlap", "reduction"):
                reason = reason or "parallel.mode=kvstore; it is for mode=collective"
            if reason and self._exchanges_by(name):
                raise ValueError(f"parallel.{name} has no effect with {reason}, leave it out")
        return self

    def _check_shared_triples(self, model: KGEConfig) -> None:
        """Raise a ValueError where trainers of triples cannot share rows in place."""
        if self.parallel.mode != "collective":
            raise ValueError(
                "parallel.hogwild = True: trainers of triples share rows in mode=collective; set that, or leave it out"
            )
        for path, given, why in (
            ("parallel.wire_dtype", self.parallel.rounded_to is not None, "which exchanges no rows"),
            ("train.memory", self.train.memory is not None, "which needs all rows in memory"),
            ("train.weight_decay_mode=lazy", model.weight_decay_mode == "lazy", "whose trainers take no step together"),
        ):
            if given:
                raise ValueError(f"{path} does not fit parallel.hogwild, {why}; leave one of them out")
