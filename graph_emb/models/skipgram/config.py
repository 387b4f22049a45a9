"""What skip-gram training may be told, with the limit of every value."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from graph_emb.core.errors import ConfigError, unknown_name

DEFAULT_LR = {"sgd": 0.025, "adagrad": 0.05, "row_adagrad": 0.05, "adam": 0.01, "row_adam": 0.01}
"""Learning rate of each rule where none is given: word2vec's for SGD, OGB's node2vec examples' for Adam."""

WEIGHTINGS = ("linear", "uniform")
DECAYS = ("linear", "none")
PATHS = ("auto", "optimizer", "autograd")
NEGATIVE_SCOPES = ("global", "local")
CONTEXTS = ("both", "after")


@dataclass(frozen=True)
class SkipGramConfig:
    """The recipe of skip-gram with negative sampling.

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
        rule: A name in ``DEFAULT_LR``.
        lr: Learning rate; None takes the rule's in ``DEFAULT_LR``.
        lr_decay: ``linear`` to zero over the whole training, or ``none``; None: linear for sgd, none otherwise.
        epochs: Passes over the sampler's walks, each with walks of its own.
        block: T, tokens of a walk that are updated together and share negatives.
        batch_size: Walks of one step of an optimizer, of each rank. SGD in place steps after every block instead.
        exchange_walks: Where several ranks train by SGD in place: walks of each rank between two exchanges of rows;
            None: a 400th of its walks in the whole training, at most 16,384 (in kvstore mode 262,144 tokens). More
            let the ranks wait less and learn less from each other (``ExchangeSteps`` has numbers). In Hogwild, and in
            kvstore mode whatever the rule, trainers exchange nothing then but wait for each other as often.
        negative_pool: There, a rank's draws that its walks share as negatives until the next exchange, each used
            several times: without bias, and fewer rows travel, but the negatives vary less. 0: no pool.
        path: ``auto`` trains SGD in place by a compiled kernel, on float32 rows in this process's reach and on copies
            of those of other ranks or servers; all else goes through ``DistEmbedding`` and a sparse optimizer,
            with gradients from the same kernel; ``optimizer`` takes the second for SGD too; ``autograd`` takes
            torch's gradients of ``SkipGram.loss``.
    Raises:
        ConfigError: a value is outside its limits.
    """

    dim: int = 128
    window: int = 10
    window_weighting: str = "linear"
    num_negatives: float = 5.0
    shared_negatives: int = 32
    negative_power: float = 0.75
    typed_negatives: bool = False
    contexts: str = "both"
    negative_scope: str = "global"
    subsample: float = 0.0
    tables: int = 2
    rule: str = "sgd"
    lr: float | None = None
    lr_decay: str | None = None
    epochs: int = 1
    block: int = 20
    batch_size: int = 128
    exchange_walks: int | None = None
    negative_pool: int = 0
    path: str = "auto"

    def __post_init__(self) -> None:
        for name in ("dim", "window", "shared_negatives", "epochs", "block", "batch_size", "exchange_walks"):
            value = getattr(self, name)
            if name == "exchange_walks" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}; it must be an integer of at least 1")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{field.name} is {value}; it must be finite")
        if isinstance(self.negative_pool, bool) or not isinstance(self.negative_pool, int) or self.negative_pool < 0:
            raise ConfigError(f"negative_pool is {self.negative_pool!r}; it must be an integer of at least 0")
        if self.num_negatives <= 0:
            raise ConfigError(f"num_negatives is {self.num_negatives}; it must be above 0, or all rows collapse")
        for name in ("negative_power", "subsample"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if self.tables not in (1, 2):
            raise ConfigError(f"tables is {self.tables!r}; it must be 1 or 2")
        if self.lr is not None and self.lr <= 0:
            raise ConfigError(f"lr is {self.lr}; it must be above 0")
        for name, known in (
            ("window_weighting", WEIGHTINGS),
            ("rule", DEFAULT_LR),
            ("lr_decay", DECAYS),
            ("path", PATHS),
            ("negative_scope", NEGATIVE_SCOPES),
            ("contexts", CONTEXTS),
        ):
            value = getattr(self, name)
            if value not in known and not (name == "lr_decay" and value is None):
                raise unknown_name(name, value, known)
        if self.typed_negatives:
            self._check_typed_negatives()

    def _check_typed_negatives(self) -> None:
        for name, usual in (("negative_scope", "global"), ("negative_pool", 0), ("subsample", 0)):
            if getattr(self, name) != usual:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r} with typed_negatives, which are drawn by the type of each "
                    f"place of a walk; leave it at {usual!r}"
                )

    @property
    def first_lr(self) -> float:
        """The learning rate at the start."""
        return DEFAULT_LR[self.rule] if self.lr is None else float(self.lr)

    @property
    def decays(self) -> bool:
        """Whether the learning rate falls linearly to zero."""
        return (self.lr_decay or ("linear" if self.rule == "sgd" else "none")) == "linear"
