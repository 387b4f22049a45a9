"""Settings of the models that train skip-gram with negative sampling: on walks of nodes, and on edges (LINE)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from graph_emb.core.errors import ConfigError
from graph_emb.core.settings import AutoIsNull, Count, Number, Settings
from graph_emb.models.schedule import WarmUp
from graph_emb.models.search import Space, Span, one_of
from graph_emb.models.settings import PLAIN_FILES, At, DecayName, Epochs, MaybeBatchSize, MultilevelStart, WeightDecay
from graph_emb.models.shared_rows import TableKind
from graph_emb.models.skipgram.rates import GOING_ON_SHARE

DEFAULT_LR = {
    "sgd": 0.025, "adagrad": 0.05, "row_adagrad": 0.05, "adam": 0.01, "adamw": 0.01, "row_adam": 0.01, "lamb": 0.01,
    "row_lamb": 0.01, "lars": 3.0,
}  # fmt: skip
"""Learning rate of each rule where none is given: word2vec's for SGD, OGB's node2vec examples' for Adam."""
SPECTRAL_STARTS = ("netmf", "prone")
"""Models whose rows can be the first ones; a file of such a name is ``./prone``."""
STEP_WALKS = 128
"""Walks of an optimizer step where no batch size is given."""
MOST_WALKS = 100_000
"""From each first node, per epoch."""
MOST_BUCKETS = 1_024
"""Parts of the nodes."""
OF_WHOLE_WALKS = (("negative_scope", "global"), ("negative_pool", 0), ("remote_negatives", None), ("subsample", 0))
"""Fields that typed negatives do without, and their defaults."""


class SkipGramTraining(TableKind, WarmUp):
    """Fields that skip-gram on walks and on edges share: negatives, rule, schedule, exchange between ranks."""

    rates: ClassVar[Mapping[str, float]] = DEFAULT_LR
    without: ClassVar[tuple[str, ...]] = ("train.device",)

    dim: Count = Field(default=128, ge=1, le=65_536, description="width of an embedding")
    num_negatives: Number = Field(default=5.0, gt=0, le=1_000, description="weight of the negatives of a context pair")
    shared_negatives: Count = Field(default=32, ge=1, le=100_000, description="nodes drawn for a block of a walk")
    negative_power: Number = Field(
        default=0.75, ge=0, le=10, description="negatives follow degree ** power; 0: uniform"
    )
    lr_decay: Annotated[DecayName | None, At("train.lr_decay")] = Field(
        default=None, description="linear or cosine: to zero over the training; none; null: linear for sgd"
    )
    epochs: Epochs = 1
    path: Annotated[Literal["auto", "optimizer", "autograd"], At("train.path")] = Field(
        default="auto", description="optimizer: sparse optimizers for sgd too; autograd: torch's gradients"
    )
    batch_size: MaybeBatchSize = Field(default=None, description=f"walks of an optimizer step; null: {STEP_WALKS}")
    weight_decay: WeightDecay = None
    negative_scope: Annotated[Literal["global", "local"], At("parallel.negatives")] = Field(
        default="global", description="local: drawn from the rank's own nodes, which biases them and saves traffic"
    )
    exchange_walks: Annotated[Count | None, At("parallel.exchange_walks")] = Field(
        default=None,
        ge=1,
        le=1 << 24,
        description="sgd, and kvstore: walks of each trainer between two exchanges; null: by graph and training",
    )
    reduction: Annotated[Literal["adasum", "sum"] | None, At("parallel.reduction")] = Field(
        default=None,
        description="sgd: what an exchange makes of several trainers' changes of a row; null: adasum where it can",
    )
    overlap: Annotated[bool | None, At("parallel.overlap"), AutoIsNull] = Field(
        default=None,
        description="sgd: rows travel between trainers while they train, and are half an interval older; auto or null: "
        "between machines where the wire would be a tenth of the training",
    )
    remote_negatives: Annotated[Count | None, At("parallel.remote_negatives")] = Field(
        default=None,
        ge=1,
        le=100_000,
        description="sgd: of shared_negatives, how many are of other ranks, weighted; null: as in one process",
    )
    negative_pool: Annotated[Count, At("parallel.negative_pool")] = Field(
        default=0, ge=0, le=1 << 31, description="sgd: nodes that serve as negatives until the next exchange; 0: all"
    )

    buckets: Annotated[Count | None, At("train.buckets"), AutoIsNull] = Field(
        default=0,
        ge=0,
        le=MOST_BUCKETS,
        description="parts of the nodes; pairs between two parts train together; 0: off; auto or null: as few as "
        "train.memory wants",
    )
    episode_walks: Annotated[Count | None, At("train.episode_walks")] = Field(
        default=None, ge=1, le=1 << 31, description="walks whose pairs pass all buckets together; null: by memory"
    )

    def adaptive(self, *, lockstep: bool) -> bool:
        """Whether an exchange joins the changes of trainers by AdaSum; those of servers add up."""
        return self.reduction != "sum" and lockstep

    @property
    def decay(self) -> DecayName:
        """How the learning rate falls."""
        return self.lr_decay or ("linear" if self.rule == "sgd" else "none")

    @property
    def in_place(self) -> bool:
        """Whether rows are changed in place by the compiled kernel, without an optimizer."""
        return self.rule == "sgd" and self.path == "auto" and self.dtype == "float32"

    @model_validator(mode="after")
    def _buckets_fit(self) -> SkipGramTraining:
        if self.buckets == 0:
            if self.episode_walks is not None:
                raise ValueError(
                    f"episode_walks = {self.episode_walks} belongs to buckets; set train.buckets or leave it out"
                )
            return self
        said = f"buckets = {'auto' if self.buckets is None else self.buckets}"
        if self.buckets == 1:
            raise ValueError(f"{said}: at least 2 parts")
        if not self.in_place:
            raise ValueError(f"{said}: sgd in place trains by buckets; take rule=sgd, path=auto and dtype=float32")
        if self.negative_scope != "global":
            raise ValueError(
                f"{said} and negative_scope = {self.negative_scope!r}: take 'global', or leave buckets out"
            )
        return self

    @model_validator(mode="after")
    def _shared_rows_need_an_optimizer(self) -> SkipGramTraining:
        if self.composed and self.rule == "sgd" and self.path == "auto":
            raise ValueError(
                f"table = {self.table!r}: rows that nodes share are trained by an optimizer, not by sgd in place; set "
                "rule=adagrad, or path=optimizer to take sgd all the same"
            )
        return self

    @model_validator(mode="after")
    def _first_rows_are_of_nodes(self) -> SkipGramTraining:
        for name in ("warm_start", "multilevel", "from_run") if self.composed else ():
            if getattr(self, name, None):
                raise ValueError(
                    f"{name} = {getattr(self, name)!r} gives each node a first row, and those of table = "
                    f"{self.table!r} are sums of shared ones; leave it out, or take table=full"
                )
        return self

    @model_validator(mode="after")
    def _remote_negatives_are_some_of_all(self) -> SkipGramTraining:
        if self.remote_negatives and self.remote_negatives >= self.shared_negatives:
            raise ValueError(
                f"remote_negatives is {self.remote_negatives} of {self.shared_negatives} shared_negatives; leave some "
                "to the rank's own nodes, or leave it out"
            )
        if self.remote_negatives and (self.negative_pool or self.negative_scope == "local"):
            other = "negative_pool" if self.negative_pool else "negative_scope 'local'"
            raise ValueError(f"remote_negatives has no effect with {other}; leave one of them out")
        return self

    @model_validator(mode="after")
    def _numbers_need_an_optimizer(self) -> SkipGramTraining:
        for name in self.numbers() if self.in_place else ():
            if name != "compat":
                raise ValueError(f"{name} has no effect on sgd in place; set path=optimizer or leave it out")
        return self


class SkipGramConfig(SkipGramTraining):
    """Skip-gram with negative sampling on walks of nodes.

    Attributes:
        dim: D, width of a row.
        window: Largest distance of a context in the walk.
        window_weighting: ``linear`` weighs a context at distance d by (window + 1 - d) / window, the chance that
            word2vec's randomly reduced window contains it; ``uniform`` by 1.
        num_negatives: Weight of the negative part: negatives per context pair, as word2vec counts them.
        shared_negatives: K, negatives that are drawn for each block of a walk and shared by its tokens, each
            counted ``num_negatives / K`` times. More of them lower the variance and cost time.
        negative_power: Negatives follow degree ** power; 0 is uniform.
        typed_negatives: Draw negatives by type: a pair's are of its context's own type (metapath2vec++); needs walks
            whose nodes have types, with none dropped.
        contexts: ``both`` sides of a token, or only those ``after`` it (arcs of a directed graph, as LINE has it).
        negative_scope: ``global`` draws among all nodes; ``local``, where several ranks train, each among its own:
            fewer rows travel, and nodes of different ranks are told apart less well.
        subsample: word2vec's threshold t: a node with share f of all visits is kept with min(1, sqrt(t/f) + t/f);
            0 keeps all.
        tables: 2, a row as token and another as context; 1, one row for both.
        dtype: How rows are stored; the arithmetic is float32. SGD trains those of 16 bits by an optimizer.
        rule, lr, betas, eps, momentum, weight_decay, compat: The optimizer's; ``lr`` None takes, for SGD in
            place, ``rate_of_walks``, else the rule's in ``DEFAULT_LR``; another None the optimizer's own default.
        lr_decay: ``linear`` or ``cosine`` to zero over the whole training, or ``none``; None: linear for sgd, none
            otherwise.
        epochs: Passes over the sampler's walks, each with walks of its own.
        block: T, tokens of a walk that are updated together and share negatives.
        buckets: P, parts of the nodes: SGD in place goes bucket by bucket through a grid of P x P, pairs of tokens of
            one part and contexts of another, with negatives of the latter, see ``bucket_steps``. It changes the order
            of the updates, whatever the placement of the tables.
        episode_walks: Walks whose pairs pass the grid together; None: as ``bucket_steps.episode_walks`` has it.
        batch_size: Walks of one step of an optimizer, of each rank; None: ``STEP_WALKS``. SGD in place steps after
            every block instead.
        exchange_walks: Where several ranks train by SGD in place: walks of each rank between two exchanges of rows;
            None: a 400th of its walks in the whole training, or as many as have a token for each node of the graph
            between them, whichever is more, at most 16,384 (in kvstore mode 262,144 tokens); with AdaSum
            (``reduction``) that is the first interval, and later ones are .2 of the walks before, up to 32 tokens of a
            node and a batch. More let the ranks wait less and learn less from each other. In kvstore mode whatever the
            rule, and in Hogwild, trainers exchange nothing then but wait for each other; in Hogwild by default a 50th
            of the walks, at most 262,144 tokens.
        remote_negatives: There, in collective mode: how many of a block's ``shared_negatives`` are nodes of other
            ranks, whose rows travel; the rest are the rank's own, and all are weighted so that the expected step is
            that of one process (``NearNegativeSampler``). Few of them count much each: steps are bounded, and vary
            more, which costs quality at high rates. None: as one process draws them. Refused with typed negatives.
        reduction: There, what becomes of the changes that several ranks made to one row: ``adasum`` (Maleki et al.
            2021) takes what two of them have in common once, in collective mode, where it is the default; ``sum`` adds
            them up.
        overlap: There, in collective mode: exchanges travel in the background while walks train, and changes are seen
            half an interval later: less waiting between machines, other rows. None: a run decides by the link of its
            machines; in Python no.
        negative_pool: There, a rank's draws that its walks share as negatives until the next exchange, each used
            several times: without bias, and fewer rows travel, but the negatives vary less. 0: no pool.
        path: ``auto`` trains SGD in place by a compiled kernel, on float32 rows in this process's reach and on copies
            of those of other ranks or servers; all else goes through ``DistEmbedding`` and a sparse optimizer,
            with gradients from the same kernel; ``optimizer`` takes the second for SGD too; ``autograd`` takes
            torch's gradients of ``SkipGram.loss``.
    """

    hidden: ClassVar[tuple[str, ...]] = ("contexts", "typed_negatives")

    @property
    def rate_follows_walks(self) -> bool:
        """Whether the first rate is ``rate_share`` of ``rates.rate_of_walks``: of SGD in place where none is given."""
        return self.lr is None and self.in_place

    @property
    def rate_share(self) -> float:
        """Below 1 where most rows are trained."""
        return 1.0

    window: Count = Field(default=10, ge=1, le=10_000, description="largest distance of a context in a walk")
    window_weighting: Literal["linear", "uniform"] = Field(
        default="linear", description="linear: near contexts count more, as in word2vec"
    )
    typed_negatives: bool = Field(default=False, description="negatives of the context's own type: metapath2vec++")
    contexts: Literal["both", "after"] = Field(default="both", description="sides of a token that are its contexts")
    subsample: Number = Field(default=0.0, ge=0, le=1, description="threshold for frequent nodes; 0: off")
    tables: Literal[1, 2] = Field(default=2, description="2: separate context rows; 1: one row for both")
    block: Count = Field(default=20, ge=1, le=100_000, description="tokens that are updated together")

    @model_validator(mode="after")
    def _buckets_have_negatives_of_one_kind(self) -> SkipGramConfig:
        if self.buckets != 0 and self.typed_negatives:
            raise ValueError(f"buckets = {self.buckets} and typed_negatives = True: take False, or leave buckets out")
        return self

    @model_validator(mode="after")
    def _typed_negatives_need_whole_walks(self) -> SkipGramConfig:
        for name, usual in OF_WHOLE_WALKS:
            if self.typed_negatives and getattr(self, name) != usual:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r} with typed_negatives, which are drawn by the type of each "
                    f"place of a walk; leave it at {usual!r}"
                )
        return self


class WalkConfig(SkipGramConfig):
    """The walks of DeepWalk, node2vec and metapath2vec, and the skip-gram on them."""

    family: ClassVar[str] = "walks"
    search: ClassVar[Space] = {
        "num_walks": one_of(10, 20, 40),
        "walk_length": one_of(20, 40, 80, 100),
        "window": one_of(2, 3, 5, 7, 10, 15),
        "window_weighting": one_of("linear", "uniform"),
        "num_negatives": one_of(1.0, 2.0, 5.0, 10.0),
        "negative_power": one_of(0.0, 0.5, 0.75, 1.0),
        "lr": one_of(None, 0.01, 0.025, 0.05, 0.1, 0.2),
    }

    num_walks: Count = Field(default=10, ge=1, le=MOST_WALKS, description="walks from each first node, per epoch")
    walk_length: Count = Field(default=40, ge=2, le=100_000, description="nodes in a walk")


class EdgePolicy(Settings):
    """How models of plain graphs take the edges that were read."""

    symmetrize: bool = Field(default=True, description="edges mean both directions; false: edges as they are")
    duplicates: Literal["first", "sum"] | None = Field(
        default=None, description="weight of a repeated edge; null: as the data set is defined, else first"
    )


class GoesOn(Settings):
    """Of models whose training goes on when the graph has grown, see ``graph_emb.run.continuing``."""

    from_run: str | None = Field(
        default=None,
        min_length=1,
        description="folder of a run to go on from: training begins where the graph changed",
    )
    reach: Count = Field(
        default=0, ge=0, le=1_000, description="steps from changed edges of old nodes where walks begin, with from_run"
    )
    keep_context: Annotated[bool, At("output.keep_context")] = Field(
        default=True, description="write the context rows to context.npy, with which from_run and infer go on"
    )

    @model_validator(mode="after")
    def _a_run_gives_the_first_rows(self) -> GoesOn:
        if self.from_run is None and self.reach:
            raise ValueError(f"reach = {self.reach} has no effect without from_run; leave it out")
        for name in ("warm_start", "multilevel") if self.from_run is not None else ():
            if getattr(self, name, None):
                raise ValueError(
                    f"{name} = {getattr(self, name)!r} and from_run = {self.from_run!r} both give first rows; take one"
                )
        return self


class PlainWalkConfig(WalkConfig, EdgePolicy, MultilevelStart, GoesOn):
    """Walks on nodes of one type, whose rows may begin with those of a file."""

    warm_start: str | None = Field(
        default=None,
        min_length=1,
        description="file of first rows by the graph's ids: npy, pt, parquet or word2vec; or prone or netmf: computed",
    )
    warm_start_partial: bool = Field(
        default=False, description="let ids be in one of file and graph only; false: that is an error"
    )

    @property
    def spectral_start(self) -> bool:
        """Whether the first rows are computed by a spectral model, which ``warm_start`` names."""
        return self.warm_start in SPECTRAL_STARTS

    @property
    def bias(self) -> tuple[float, float]:
        """node2vec's return and in-out parameters; 1 and 1 follow the edge weights alone."""
        return 1.0, 1.0

    @property
    def rate_follows_walks(self) -> bool:
        """As ``SkipGramConfig``, but for rows that begin with a file's or parts': they want the low rate throughout."""
        own_rows = self.warm_start is None and not self.multilevel
        return super().rate_follows_walks and own_rows

    @property
    def rate_share(self) -> float:
        """As ``SkipGramConfig``."""
        return 1.0 if self.from_run is None else GOING_ON_SHARE

    @model_validator(mode="after")
    def _multilevel_gives_the_first_rows(self) -> PlainWalkConfig:
        if self.multilevel is not False and self.warm_start is not None:
            raise ValueError(
                f"multilevel = {self.multilevel} and warm_start = {self.warm_start!r} both give first rows; take one"
            )
        return self

    @model_validator(mode="after")
    def _partial_has_an_effect(self) -> PlainWalkConfig:
        if self.warm_start_partial and self.warm_start is None:
            raise ValueError("warm_start_partial has no effect without warm_start; give a file or leave it out")
        if self.warm_start_partial and self.spectral_start:
            raise ValueError(f"warm_start_partial has no effect on warm_start={self.warm_start}; leave it out")
        return self


class DeepWalkConfig(PlainWalkConfig):
    """Random walks that follow the edge weights; Perozzi et al. 2014."""

    name: Literal["deepwalk"] = "deepwalk"


class Node2VecConfig(PlainWalkConfig):
    """Second-order walks with return (p) and in-out (q) parameters; Grover and Leskovec 2016.

    The default p = 4, q = 0.25 is what validation parts of Cora, BlogCatalog and ogbn-arxiv choose for each other
    (``benchmarks/node2vec_bias.py``); p = q = 0.25 is the paper's choice for BlogCatalog, p = q = 1 is DeepWalk.
    """

    search: ClassVar[Space] = {
        **WalkConfig.search,
        "p": one_of(0.25, 0.5, 1.0, 2.0, 4.0),
        "q": one_of(0.25, 0.5, 1.0, 2.0, 4.0),
    }

    name: Literal["node2vec"] = "node2vec"
    walk_length: Count = Field(default=80, ge=2, le=100_000, description="nodes in a walk")
    p: Number = Field(default=4.0, gt=0, le=1e6, description="return parameter: small values stay near")
    q: Number = Field(default=0.25, gt=0, le=1e6, description="in-out parameter: small values move away")

    @property
    def bias(self) -> tuple[float, float]:
        """p and q."""
        return self.p, self.q


class Metapath2VecConfig(WalkConfig):
    """Walks that follow a metapath such as ``author-paper-venue-paper-author``; Dong et al. 2017.

    With ``typed_negatives`` it is metapath2vec++. Window, length and negatives are the paper's.
    """

    name: Literal["metapath2vec"] = "metapath2vec"
    family: ClassVar[str] = "metapath"
    hidden: ClassVar[tuple[str, ...]] = ("contexts",)
    without: ClassVar[tuple[str, ...]] = (
        "train.device",
        "evaluate.hits",
        "evaluate.scorer",
        "evaluate.predictor",
        *(f"dataset.{field}" for field in (*PLAIN_FILES, "download")),
    )
    rate_follows_walks: ClassVar[bool] = False  # arcs of several types, of which a path takes some
    metapath: str | None = Field(
        default=None, min_length=1, description="node types joined by '-', relations in brackets; null: the data set's"
    )
    walk_length: Count = Field(default=100, ge=2, le=100_000, description="nodes in a walk")
    window: Count = Field(default=7, ge=1, le=10_000, description="largest distance of a context in a walk")


Order = Literal["first", "second"]
LINE_TABLES: dict[Order, Literal[1, 2]] = {"first": 1, "second": 2}
LINE_LR = {**DEFAULT_LR, "sgd": 0.05}
"""SGD's is twice the paper's, for graphs of thousands to millions of edges: the paper draws billions of times."""


class LineConfig(SkipGramTraining, EdgePolicy, MultilevelStart, GoesOn):
    """LINE: first- and second-order proximity of edges; Tang et al. 2015.

    For an edge (i, j), drawn in proportion to its weight, and k negatives n drawn by degree ** power, the loss is

        first order:   - log sigmoid(x_i . x_j) - k * mean_n log sigmoid(-x_i . x_n)
        second order:  - log sigmoid(x_i . c_j) - k * mean_n log sigmoid(-x_i . c_n)

    and the same with i and j exchanged where the graph is undirected: an undirected edge is two arcs. The first order
    has one row per node and is defined for undirected graphs only; the second has a row as source (x, which is the
    embedding) and one as destination (c).

    Attributes:
        dim: D, width of the result.
        order: ``both``: each trained at D / 2, side by side.
        num_negatives: k; of the ``shared_negatives`` of an edge, which its ends share, each counts
            ``num_negatives / shared_negatives`` times.
        batch_size, path, exchange_walks, remote_negatives, negative_pool, buckets, episode_walks: As in
            ``SkipGramConfig``, a walk being a drawn edge.
    """

    name: Literal["line"] = "line"
    family: ClassVar[str] = "line"
    without: ClassVar[tuple[str, ...]] = ("train.device", "output.context")
    rates: ClassVar[Mapping[str, float]] = LINE_LR
    search: ClassVar[Space] = {
        "draws_per_edge": one_of(50, 100, 200, 400),
        "num_negatives": one_of(1.0, 2.0, 5.0, 10.0),
        "negative_power": one_of(0.0, 0.5, 0.75, 1.0),
        "lr": Span(0.01, 0.4, log=True),
    }

    dim: Count = Field(default=128, ge=1, le=65_536, description="width of an embedding; of both: halves of it")
    order: Literal["first", "second", "both"] = Field(default="both", description="which proximity is learnt")
    draws_per_edge: Count = Field(default=100, ge=1, le=1_000_000, description="draws of each edge, mean, per epoch")
    shared_negatives: Count = Field(default=5, ge=1, le=100_000, description="nodes drawn for both ends of an edge")
    normalize: bool = Field(default=True, description="each order's rows to length 1, as the paper does")

    @model_validator(mode="after")
    def _halves_are_whole(self) -> LineConfig:
        if self.order == "both" and self.dim % 2:
            raise ValueError(f"dim = {self.dim} has no halves; order=both needs an even width")
        return self

    @property
    def orders(self) -> tuple[Order, ...]:
        """Which orders are trained, one after the other."""
        return ("first", "second") if self.order == "both" else (self.order,)

    @property
    def num_tables(self) -> int:
        """Tables of all orders."""
        return sum(LINE_TABLES[order] for order in self.orders)

    def skipgram(self, order: Order, *, directed: bool) -> SkipGramConfig:
        """The skip-gram that an order is: on walks of two nodes, an arc's end being its source's only context.

        Raises:
            ConfigError: the first order on a directed graph.
        """
        if directed and order == "first":
            raise ConfigError(
                f"order {self.order!r} on a directed graph: first-order proximity has no direction; take order "
                "'second', or read the graph as undirected"
            )
        shared = {name: getattr(self, name) for name in SkipGramTraining.model_fields}
        own = {"dim": self.dim // len(self.orders), "lr": self.first_lr, "tables": LINE_TABLES[order]}
        return SkipGramConfig(**{**shared, **own}, window=1, block=2, contexts="after" if directed else "both")
