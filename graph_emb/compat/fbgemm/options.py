"""FBGEMM's enumerations, and its arguments as our tables and optimizers take them.

Enumerations take FBGEMM's own members as well, which have the same names.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.optimizer import (
    SparseAdagrad,
    SparseAdam,
    SparseLAMB,
    SparseLARS,
    SparseRowAdagrad,
    SparseRowAdam,
    SparseRowLAMB,
    SparseSGD,
)
from graph_emb.sparse_optimizer import SparseOptimizer
from graph_emb.table.spec import StateSpec

E = TypeVar("E", bound=enum.Enum)


class OptimType(enum.Enum):
    """Optimizers by FBGEMM's names."""

    SGD = "sgd"
    EXACT_SGD = "exact_sgd"
    LAMB = "lamb"
    ADAM = "adam"
    EXACT_ADAGRAD = "exact_adagrad"
    EXACT_ROWWISE_ADAGRAD = "exact_row_wise_adagrad"
    LARS_SGD = "lars_sgd"
    PARTIAL_ROWWISE_ADAM = "partial_row_wise_adam"
    PARTIAL_ROWWISE_LAMB = "partial_row_wise_lamb"
    ROWWISE_ADAGRAD = "row_wise_adagrad"
    SHAMPOO = "shampoo"
    SHAMPOO_V2 = "shampoo_v2"
    MADGRAD = "madgrad"
    EXACT_ROWWISE_WEIGHTED_ADAGRAD = "exact_row_wise_weighted_adagrad"
    ENSEMBLE_ROWWISE_ADAGRAD = "ensemble_row_wise_adagrad"
    EMAINPLACE_ROWWISE_ADAGRAD = "ema_in_place_row_wise_adagrad"
    NONE = "none"


EmbOptimType = OptimType
EmbeddingLocation = enum.IntEnum("EmbeddingLocation", "DEVICE MANAGED MANAGED_CACHING HOST MTIA", start=0)
ComputeDevice = enum.IntEnum("ComputeDevice", "CPU CUDA MTIA", start=0)
PoolingMode = enum.IntEnum("PoolingMode", "SUM MEAN NONE", start=0)
WeightDecayMode = enum.IntEnum("WeightDecayMode", "NONE L2 DECOUPLE COUNTER COWCLIP DECOUPLE_GLOBAL", start=0)
BoundsCheckMode = enum.IntEnum("BoundsCheckMode", "FATAL WARNING IGNORE NONE V2_IGNORE V2_WARNING V2_FATAL", start=0)
CacheAlgorithm = enum.IntEnum("CacheAlgorithm", "LRU LFU", start=0)
MANAGED_CACHING = "MANAGED_CACHING"


class SparseType(enum.Enum):
    """Precisions by FBGEMM's names."""

    FP32 = "fp32"
    FP16 = "fp16"
    FP8 = "fp8"
    NFP8 = "nfp8"
    INT8 = "int8"
    INT4 = "int4"
    INT2 = "int2"
    BF16 = "bf16"
    MX4 = "mx4"

    def as_dtype(self) -> torch.dtype:
        """torch's dtype of a precision that is offered here: FP32, FP16 or BF16."""
        return dtype_of(self, "SparseType")


@dataclass(frozen=True)
class UserEnabledConfigDefinition:
    """Adam's clock: ``use_rowwise_bias_correction`` counts the steps that touched the row. The others are refused."""

    use_rowwise_bias_correction: bool = False
    use_writeback_bwd_prehook: bool = False
    writeback_first_feature_only: bool = False
    precompute_writeback: bool = False


@dataclass(frozen=True)
class GlobalWeightDecayDefinition:
    """Of DECOUPLE_GLOBAL: the first step that decays, and the least factor; theirs other than 0 are refused."""

    start_iter: int = 0
    lower_bound: float = 0.0


_ADAM = ("eps", "beta1", "beta2")
RULES: dict[OptimType, tuple[type[SparseOptimizer], tuple[str, ...]]] = {
    OptimType.EXACT_SGD: (SparseSGD, ()),
    OptimType.EXACT_ADAGRAD: (SparseAdagrad, ("eps",)),
    OptimType.EXACT_ROWWISE_ADAGRAD: (SparseRowAdagrad, ("eps",)),
    OptimType.ADAM: (SparseAdam, _ADAM),
    OptimType.PARTIAL_ROWWISE_ADAM: (SparseRowAdam, _ADAM),
    OptimType.LAMB: (SparseLAMB, _ADAM),
    OptimType.PARTIAL_ROWWISE_LAMB: (SparseRowLAMB, _ADAM),
    OptimType.LARS_SGD: (SparseLARS, ("momentum", "eta")),
}
"""The optimizer of each type, and the numbers that it has a use for."""
NUMBERS = {"eps": 1e-8, "momentum": 0.9, "eta": 0.001, "beta1": 0.9, "beta2": 0.999}
DTYPES = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}
STATE = ("sum", "exp_avg", "exp_avg_sq", "momentum_buffer", "row_counter")
"""What ``split_optimizer_states`` has of each table, in FBGEMM's order."""
ABSENT: dict[str, Any] = {
    **dict.fromkeys(("ensemble_mode", "emainplace_mode")),
    **dict.fromkeys(("counter_based_regularization", "cowclip_regularization")),
    **dict.fromkeys(("stats_reporter_config", "multipass_prefetch_config")),
    **dict.fromkeys(("enforce_hbm", "uvm_non_rowwise_momentum"), False),
    **dict.fromkeys(("use_experimental_tbe", "uvm_host_mapped"), False),
    **dict.fromkeys(
        ("tbe_input_multiplexer_config", "embedding_shard_info", "res_params", "preallocated_host_buffers")
    ),
    **dict.fromkeys(("enable_raw_embedding_streaming", "is_qr_tbe"), False),
    "cache_reserved_memory": 0.0,
}
"""Arguments of FBGEMM that have no meaning here, with the defaults that may be given."""


def member(kind: type[E], value: Any, name: str, *known: Any) -> E:
    """The member of ours that a member of ours or FBGEMM's names; refused unless it is known here."""
    word = getattr(value, "name", value)
    if word not in kind.__members__ or kind[word] not in known:
        names = ", ".join(one.name for one in known)
        raise ConfigError(f"{name}={word!s} is not offered here; offered: {names}")
    return kind[word]


def check_others(given: Mapping[str, Any]) -> None:
    """Refuse arguments that FBGEMM does not have, and those without a meaning here unless they are at their default."""
    for name, value in given.items():
        if name not in ABSENT and name not in NUMBERS:
            raise unknown_name("argument", name, [*ABSENT, *NUMBERS])
        if name in ABSENT and getattr(value, "name", value) != getattr(ABSENT[name], "name", ABSENT[name]):
            raise ConfigError(f"{name}={value!r}: there is no such thing here; leave it at {ABSENT[name]!r}")


def check_call(given: Mapping[str, Any]) -> None:
    """Refuse arguments of ``forward`` that FBGEMM does not have, and those without a meaning here unless None."""
    known = ("hash_zch_identities", "hash_zch_runtime_meta", "vbe_output", "vbe_output_offsets")
    for name, value in given.items():
        if name not in known:
            raise unknown_name("argument", name, known)
        if value is not None:
            raise ConfigError(f"{name}: there is no such thing here; leave it out")


def dtype_of(precision: Any, name: str) -> torch.dtype:
    """The dtype of rows that are stored or handed out."""
    return DTYPES[member(SparseType, precision, name, SparseType.FP32, SparseType.FP16, SparseType.BF16).name]


LOCATIONS = {
    "CPU": (EmbeddingLocation.HOST, EmbeddingLocation.MANAGED, EmbeddingLocation.MANAGED_CACHING),
    "CUDA": (EmbeddingLocation.DEVICE, EmbeddingLocation.MANAGED, EmbeddingLocation.MANAGED_CACHING),
}
"""Where the tables of a compute device may lie."""


def device_of(specs: Sequence[tuple[int, int, Any, Any]], device: Any) -> torch.device:
    """Where rows are handed out, and those lie that a device holds."""
    if not specs:
        raise ConfigError("embedding_specs is empty; give (rows, width, location, compute device) of a table")
    kinds = {member(ComputeDevice, spec[3], "compute device", ComputeDevice.CPU, ComputeDevice.CUDA) for spec in specs}
    if len(kinds) > 1:
        raise ConfigError("embedding_specs say CPU and CUDA; all tables of a module have one compute device")
    (compute,) = kinds
    for spec in specs:
        member(EmbeddingLocation, spec[2], f"location of a table of {compute.name}", *LOCATIONS[compute.name])
    kind = compute.name.lower()
    try:
        found = torch.device(kind if device is None else device)
    except RuntimeError as error:
        raise ConfigError(f"device={device!r}: {error}; embedding_specs say {kind}") from None
    if found.type != kind:
        raise ConfigError(f"device={device!r}, but embedding_specs say {kind}")
    return found


def devices_of(specs: Sequence[tuple[int, int, Any, Any]], device: torch.device) -> list[torch.device]:
    """Where each table lies, or its cache."""
    managed = (getattr(spec[2], "name", "") == "MANAGED" for spec in specs)
    return [torch.device("cpu") if on_host else device for on_host in managed]


def outside(mode: Any) -> Any:
    """What our tables do with ids outside."""
    known = (BoundsCheckMode.FATAL, BoundsCheckMode.WARNING, BoundsCheckMode.IGNORE, BoundsCheckMode.NONE)
    found = member(BoundsCheckMode, mode, "bounds_check_mode", *known)
    return "drop" if found in (BoundsCheckMode.WARNING, BoundsCheckMode.IGNORE) else "raise"


DECAYS = {"NONE": None, "L2": "l2", "DECOUPLE": "decoupled", "DECOUPLE_GLOBAL": "lazy"}


def decay(optimizer: OptimType, weight_decay: float, mode: Any, of_all_rows: Any) -> dict[str, Any]:
    """Our options for FBGEMM's weight decay."""
    word = DECAYS[member(WeightDecayMode, mode, "weight_decay_mode", *(WeightDecayMode[name] for name in DECAYS)).name]
    if of_all_rows is not None and (word != "lazy" or of_all_rows.start_iter or of_all_rows.lower_bound):
        raise ConfigError(
            f"global_weight_decay={of_all_rows!r} needs weight_decay_mode=DECOUPLE_GLOBAL, start_iter 0 and "
            "lower_bound 0"
        )
    if word is None:
        if weight_decay and not set(RULES[optimizer][1]) & {"beta1", "eta"}:
            raise ConfigError(
                f"weight_decay={weight_decay!r} has no effect on {optimizer.name} with weight_decay_mode=NONE; "
                "take L2 or DECOUPLE"
            )
        word = "l2" if optimizer is OptimType.LARS_SGD else "decoupled"
    return {"weight_decay": weight_decay, "weight_decay_mode": word}


def state_dtype_of(optimizer: OptimType, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Our option for the precision of each piece of state, ``momentum1`` and ``momentum2``: all FP32, or all BF16."""
    names = ("momentum1", "momentum2") if "beta1" in RULES[optimizer][1] else ("momentum1",)
    known = SparseType.FP32, SparseType.BF16
    found = {
        name: member(SparseType, one, f"optimizer_state_dtypes of {name}", *known)
        for name, one in (given or {}).items()
    }
    kinds = {found.get(name, SparseType.FP32) for name in names}
    if set(found) - set(names) or len(kinds) > 1:
        raise ConfigError(
            f"optimizer_state_dtypes={given!r}: {optimizer.name} takes one precision for {', '.join(names)}"
        )
    return {"state_dtype": torch.bfloat16} if kinds == {SparseType.BF16} else {}


def state_of(optimizer: OptimType, options: Mapping[str, Any]) -> list[StateSpec]:
    """The pieces of state of an optimizer with our options."""
    fields = {**options, "state_dtype": str(options.get("state_dtype", "")).removeprefix("torch.") or None}
    fields["clock"] = fields.pop("bias_correction", "global")
    return RULES[optimizer][0].state_of(fields)


def numbers_of(optimizer: OptimType, given: Mapping[str, Any], clock: Any) -> dict[str, Any]:
    """The numbers and the clock of an optimizer, as ours takes them."""
    used = RULES[optimizer][1]
    for name, default in NUMBERS.items():
        if name not in used and given.get(name, default) != default:
            raise ConfigError(f"{name}={given[name]!r} has no effect on {optimizer.name}; leave it at {default!r}")
    numbers = {name: given.get(name, NUMBERS[name]) for name in used}
    if "beta1" in numbers:
        numbers["betas"] = (numbers.pop("beta1"), numbers.pop("beta2"))
    for name in ("use_writeback_bwd_prehook", "writeback_first_feature_only", "precompute_writeback"):
        if getattr(clock, name, False):
            raise ConfigError(f"extra_optimizer_config: {name}=True: there is no such thing here; leave it at False")
    if clock is not None and clock.use_rowwise_bias_correction:
        if "betas" not in numbers:
            raise ConfigError(f"use_rowwise_bias_correction has no effect on {optimizer.name}; it counts no steps")
        numbers["bias_correction"] = "row"
    return numbers
