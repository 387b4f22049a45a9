"""What the training of a knowledge-graph model may be told, with the limit of every value."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.models.kge.losses import LOSSES
from graph_emb.models.kge.scorers import SCORERS

DEFAULT_LR = {"sgd": 1.0, "adagrad": 0.1, "row_adagrad": 0.1, "adam": 0.002, "row_adam": 0.002}
"""Learning rate of each rule where none is given."""
DECAYS = ("linear", "none")


@dataclass(frozen=True)
class KGEConfig:
    """The recipe of a knowledge-graph model.

    Attributes:
        model: A name of ``SCORERS``.
        dim: D, the width of an entity's row, whatever the model makes of it: ComplEx, RotatE and SimplE see D / 2
            numbers.
        norm: Of TransE: 1 or 2.
        init_std: Standard deviation of the first rows of the models with a dot product.
        loss: A name of ``LOSSES``.
        margin: gamma of the loss; with TransE and RotatE it also bounds the first rows.
        temperature: alpha of the self-adversarial loss.
        num_negatives: Drawn for each chunk and shared by its triples.
        chunk_size: C, triples that share negatives.
        negative_power: Negatives follow occurrences ** power; 0 is uniform, 0.75 by degree.
        in_batch: Add the entities of the chunk's other triples to its negatives.
        filter_negatives: Leave out negatives that make a training triple true.
        subsampling: Weigh a triple by ``1 / sqrt(3 + #(h, r, .) + 3 + #(., r, t))`` (Sun et al. 2019, their code).
        n3: Weight of the mean over a step's triples of ``sum |x|^3`` of its three rows (Lacroix et al. 2018).
        l2: The same of ``sum |x|^2``.
        batch_size: Triples of a step, of all ranks that step together.
        rule: Of the sparse optimizer.
        lr: Learning rate of both tables; None takes the rule's in ``DEFAULT_LR``.
        lr_decay: ``linear`` to zero over all epochs, or ``none``.
        epochs: Passes over the training triples, at most.
        valid_every: Epochs between two validations; 0: none, and training ends with ``epochs``.
        patience: Validations without a better MRR after which training stops; 0 never stops early.
        valid_triples: Triples of the validation, drawn once; 0: all.
        candidates: Entities that a validation samples to rank against; None: all. Data sets that give negatives for
            each triple are validated on those.
    Raises:
        ConfigError: a value is outside its limits.
    """

    model: str = "rotate"
    dim: int = 256
    norm: int = 1
    init_std: float = 0.1
    loss: str = "self_adversarial"
    margin: float = 9.0
    temperature: float = 1.0
    num_negatives: int = 256
    chunk_size: int = 128
    negative_power: float = 0.0
    in_batch: bool = False
    filter_negatives: bool = True
    subsampling: bool = False
    n3: float = 0.0
    l2: float = 0.0
    batch_size: int = 1024
    rule: str = "adam"
    lr: float | None = None
    lr_decay: str = "linear"
    epochs: int = 50
    valid_every: int = 5
    patience: int = 3
    valid_triples: int = 2000
    candidates: int | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("dim", 1), ("chunk_size", 1), ("batch_size", 1), ("epochs", 1), ("num_negatives", 0),
            ("valid_every", 0), ("patience", 0), ("valid_triples", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} is {value!r}; it must be an integer of at least {least}")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and (not math.isfinite(value) or value < 0):
                raise ConfigError(f"{field.name} is {value}; it must be finite and at least 0")
        if self.candidates is not None and self.candidates < 1:
            raise ConfigError(f"candidates is {self.candidates}; it must be at least 1, or None for all entities")
        for name in ("lr", "init_std", "temperature"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name, known in (("model", SCORERS), ("loss", LOSSES), ("rule", DEFAULT_LR), ("lr_decay", DECAYS)):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        if self.batch_size % self.chunk_size:
            raise ConfigError(f"batch_size is {self.batch_size}; it must be a multiple of chunk_size {self.chunk_size}")
        if not self.num_negatives and not (self.in_batch and self.chunk_size > 1):
            raise ConfigError("num_negatives is 0; without in_batch and chunks of 2 triples there are no negatives")
        SCORERS[self.model](self)  # checks the width

    @property
    def first_lr(self) -> float:
        """The learning rate at the start."""
        return DEFAULT_LR[self.rule] if self.lr is None else float(self.lr)
