"""Settings that all models share: the update rule of their tables with its numbers, and where a run says each field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from graph_emb.core.settings import Count, Number, Settings
from graph_emb.models.search import Space

if TYPE_CHECKING:
    import torch

RuleName = Literal["sgd", "adagrad", "row_adagrad", "adam", "adamw", "row_adam", "lamb", "row_lamb", "lars"]
CompatName = Literal["torch", "dgl-1.x", "dgl-0.5", "fbgemm"]
DecayName = Literal["linear", "cosine", "none"]

DTypeName = Literal["float32", "float16", "bfloat16"]
BYTES_OF = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Of a number by the name of its dtype."""

OF_ROWS = (
    "weight_decay", "weight_decay_mode", "clip_value", "clip_row_norm", "clip_row_ratio", "clip_row_least", "max_norm",
    "count_rows", "count_power", "state_dtype", "stochastic_rounding",
)  # fmt: skip
"""The options of every rule, see ``graph_emb.optim.rule.RowOptions``."""
NUMBERS: dict[str, tuple[str, ...]] = {
    "sgd": ("momentum", *OF_ROWS),
    "adagrad": ("eps", "initial_accumulator_value", *OF_ROWS),
    "row_adagrad": ("eps", "initial_accumulator_value", *OF_ROWS),
    **dict.fromkeys(("adam", "adamw", "row_adam", "lamb", "row_lamb"), ("betas", "eps", *OF_ROWS)),
    "lars": ("momentum", "eta", *OF_ROWS),
}
"""The numbers of each rule besides its learning rate, by the names of its optimizer. Of a run's rate ``train.lr_decay``
is the schedule; Adagrad's own ``lr_decay`` is for programs."""
CONVENTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sgd", "lamb", "row_lamb", "lars"), ("torch",)),
    **dict.fromkeys(("adagrad", "row_adagrad"), ("torch", "dgl-1.x", "dgl-0.5")),
    **dict.fromkeys(("adam", "adamw", "row_adam"), ("torch", "dgl-1.x", "fbgemm")),
}
"""The conventions in which a rule differs; see ``graph_emb.optimizer.PRESETS``."""

PLAIN_FILES = (
    "new_edges", "hold_out", "test_edges", "directed", "weight", "duplicates", "self_loops", "num_nodes", "ids",
    "header", "separator", "comment", "columns", "validation_edges",
)  # fmt: skip
"""Fields of the data set that are about graphs of one node type."""
OF_LABELS = ("dataset.labels", "dataset.split", "dataset.label_type")
"""Fields about the classes of nodes."""
OF_FROZEN_ROWS = (
    *OF_LABELS,
    *(f"dataset.{field}" for field in (*PLAIN_FILES, "format")),
    "train.log_interval",
    "parallel.hogwild",
    "evaluate.ratios",
    "evaluate.shuffles",
    "evaluate.hits",
    "evaluate.scorer",
    "evaluate.predictor",
    "evaluate.mlp",
    "evaluate.node_features",
    "evaluate.seed",
    "output.context",
)
"""Fields of a run that mean nothing to models with a task of their own, such as triples or node classes."""


@dataclass(frozen=True)
class At:
    """The path of a field in a run's configuration where it is not ``model.<field>``: ``At("train.lr")``."""

    path: str


Beta = Annotated[Number, Field(ge=0, lt=1)]
Epochs = Annotated[Count, Field(ge=1, le=1_000_000, description="passes over the training data"), At("train.epochs")]
BatchSize = Annotated[Count, Field(ge=1, le=1 << 24), At("train.batch_size")]
MaybeBatchSize = Annotated[Count | None, Field(ge=1, le=1 << 24), At("train.batch_size")]
WeightDecay = Annotated[
    Number | None, Field(ge=0, le=1e3, description="of touched rows; null: 0, of adamw 0.01"), At("train.weight_decay")
]


class ModelSettings(Settings):
    """Fields of every model whose tables learn.

    A run's configuration says some of them in other sections than ``model``: those are marked by ``At``.

    Attributes:
        family: Who trains it in a run; a key of ``graph_emb.run.family.FAMILIES``.
        without: Fields of the run's own sections that mean nothing to the model, by path; setting one is an error.
        hidden: Fields that a run cannot set, because its family decides them.
        rates: The learning rate of each rule where ``lr`` is None.
        search: The range of each field that ``graph-emb tune`` tries where the user sets none; the default is in it.
    """

    family: ClassVar[str]
    without: ClassVar[tuple[str, ...]] = ()
    hidden: ClassVar[tuple[str, ...]] = ()
    rates: ClassVar[Mapping[str, float]]
    search: ClassVar[Space]

    rule: Annotated[RuleName, At("train.rule")] = Field(default="sgd", description="update rule of the tables")
    lr: Annotated[Number | None, At("train.lr")] = Field(
        default=None,
        gt=0,
        le=1e3,
        description="learning rate; auto or null: the rule's own, of sgd on walks by their number",
    )
    betas: Annotated[tuple[Beta, Beta] | None, At("train.betas")] = Field(
        default=None, description="decay of the moments of the adam and lamb kinds; null: 0.9, 0.999"
    )
    eps: Annotated[Number | None, At("train.eps")] = Field(
        default=None, ge=0, le=1e3, description="of the divisor, not of sgd and lars; null: the rule's own"
    )
    momentum: Annotated[Number | None, At("train.momentum")] = Field(
        default=None, ge=0, lt=1, description="of sgd, null: 0; of lars, null: 0.9"
    )
    eta: Annotated[Number | None, At("train.eta")] = Field(
        default=None, ge=0, le=1e3, description="trust coefficient of lars; null: 0.001"
    )
    weight_decay_mode: Annotated[Literal["l2", "decoupled", "lazy"] | None, At("train.weight_decay_mode")] = Field(
        default=None,
        description="joins the gradient (l2), shrinks touched rows, or all (lazy); null: the rule's own",
    )
    clip_value: Annotated[Number | None, At("train.clip_value")] = Field(
        default=None, gt=0, le=1e30, description="most of a number of a row's gradient; null: any"
    )
    clip_row_norm: Annotated[Number | None, At("train.clip_row_norm")] = Field(
        default=None, gt=0, le=1e30, description="most of the norm of a row's gradient; null: any"
    )
    clip_row_ratio: Annotated[Number | None, At("train.clip_row_ratio")] = Field(
        default=None, gt=0, le=1e30, description="most of a row's gradient per norm of the row (CowClip); null: any"
    )
    clip_row_least: Annotated[Number | None, At("train.clip_row_least")] = Field(
        default=None, ge=0, le=1e30, description="least of that bound, for rows near zero; null: 1e-5"
    )
    max_norm: Annotated[Number | None, At("train.max_norm")] = Field(
        default=None, gt=0, le=1e30, description="most of the norm of a row that a step touched; null: any"
    )
    count_rows: Annotated[bool, At("train.count_rows")] = Field(
        default=False, description="count the steps that touch each row; for count_power, and kept in checkpoints"
    )
    count_power: Annotated[Number | None, At("train.count_power")] = Field(
        default=None, ge=0, le=10, description="a row's n-th step is n ** -count_power of the rule's; null: 0"
    )
    dtype: DTypeName = Field(default="float32", description="how rows are stored; they are saved as float32")
    state_dtype: Annotated[Literal["bfloat16"] | None, At("train.state_dtype")] = Field(
        default=None, description="how moments and sums are stored; null: float32"
    )
    stochastic_rounding: Annotated[bool, At("train.stochastic_rounding")] = Field(
        default=False, description="round rows of 16 bits by chance, so that small steps count on average"
    )
    initial_accumulator_value: Annotated[Number | None, At("train.initial_accumulator_value")] = Field(
        default=None, ge=0, le=1e9, description="first state of adagrad, row_adagrad; null: 0"
    )
    compat: Annotated[CompatName | None, At("train.compat")] = Field(
        default=None, description="whose convention of duplicates, clock and eps the rule follows; null: torch"
    )

    @field_validator("lr", mode="before")
    @classmethod
    def _auto_is_none(cls, value: Any) -> Any:
        return None if value == "auto" else value

    @property
    def first_lr(self) -> float:
        """The learning rate at the start."""
        return self.rates[self.rule] if self.lr is None else self.lr

    @property
    def table_dtype(self) -> torch.dtype:
        """``dtype`` as tables take it."""
        import torch  # here: a configuration is read and refused without it

        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def number_bytes(self) -> tuple[int, int]:
        """Bytes of a number of a row, and of the rule's state."""
        row = BYTES_OF[self.dtype]
        return row, max(4, row) if self.state_dtype is None else BYTES_OF[self.state_dtype]

    def search_space(self) -> Space:
        """The part of ``search`` that means something beside the other settings."""
        return self.search

    def numbers(self, seed: int | None = None) -> dict[str, Any]:
        """The rule's numbers and options that were chosen, by the optimizer's names; without the learning rate.

        Args:
            seed: Of the training, which what rounds by chance takes too; None: that has the optimizer's own.
        """
        names = {path.removeprefix("train."): name for name, path in paths_of(type(self)).items()}
        chosen = {number: getattr(self, names[number]) for number in NUMBERS[self.rule] if number in names}
        chosen["compat"] = self.compat
        if seed is not None and (chosen["stochastic_rounding"] or chosen["state_dtype"]):
            chosen["rounding_seed"] = seed
        return {name: value for name, value in chosen.items() if value is not None and value is not False}

    @model_validator(mode="after")
    def _numbers_fit_the_rule(self) -> ModelSettings:
        everywhere = {number for numbers in NUMBERS.values() for number in numbers}
        for name, path in paths_of(type(self)).items():
            number, value = path.removeprefix("train."), getattr(self, name)
            if path.startswith("train.") and number in everywhere - {*NUMBERS[self.rule]} and value is not None:
                raise ValueError(f"{name} = {value!r} has no effect on rule={self.rule}; leave it out")
        decays = self.rule == "adamw" or self.numbers().get("weight_decay")
        if self.weight_decay_mode is not None and not decays:
            raise ValueError(f"weight_decay_mode = {self.weight_decay_mode!r} has no effect without a weight_decay")
        if self.clip_row_least is not None and self.clip_row_ratio is None:
            raise ValueError(f"clip_row_least = {self.clip_row_least!r} has no effect without a clip_row_ratio")
        if self.count_power and not self.count_rows:
            raise ValueError(f"count_power = {self.count_power!r} needs count_rows = True")
        if self.state_dtype is not None and self.rule == "sgd" and not self.momentum:
            raise ValueError("state_dtype has no effect on rule=sgd without momentum, which keeps no state")
        if self.stochastic_rounding and self.dtype in ("float32", "float64"):
            raise ValueError(
                f"stochastic_rounding has no effect on rows of {self.dtype}; set dtype=bfloat16 or leave it out"
            )
        if self.compat is not None and self.compat not in CONVENTIONS[self.rule]:
            known = ", ".join(CONVENTIONS[self.rule])
            raise ValueError(f"compat = {self.compat!r} has no effect on rule={self.rule}, which knows {known}")
        return self


class MultilevelStart(Settings):
    """Of models whose rows may begin with those of a partition's parts, see ``graph_emb.run.multilevel``."""

    multilevel: bool | tuple[Count, ...] = Field(
        default=False,
        description="begin with rows trained on the graph of a partition's parts; or the numbers of parts, rising",
    )

    @field_validator("multilevel", mode="before")
    @classmethod
    def _truth_or_levels(cls, value: Any) -> Any:
        levels = value if isinstance(value, list | tuple) else [0]
        counts = all(
            isinstance(count, Integral) and not isinstance(count, bool) and int(count) >= 2 for count in levels
        )
        if not isinstance(value, bool) and not counts:
            raise ValueError("should be true, false, or numbers of parts, each at least 2, such as [1024, 16384]")
        return value

    @model_validator(mode="after")
    def _there_is_a_level(self) -> MultilevelStart:
        if self.multilevel == ():
            raise ValueError("multilevel names no level; give numbers of parts such as [1024, 16384], or true")
        return self


@cache
def paths_of(settings: type[ModelSettings]) -> Mapping[str, str]:
    """Where a run's configuration says each field of a model that it can set: ``{"lr": "train.lr", ...}``."""
    found = {}
    for name, field in settings.model_fields.items():
        if name not in settings.hidden:
            path = next((mark.path for mark in field.metadata if isinstance(mark, At)), None)
            found[name] = f"model.{name}" if path is None else path
    return MappingProxyType(found)
