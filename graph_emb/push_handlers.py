"""Push handlers that are rules: a plain push of gradients, by any client, is a step of Adagrad or Adam at the owner.

They have DGL's signature and pickle, so they run in our servers, in DGL's own and in programs without servers.

Legend: B pushed ids, N rows of the server's part, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, ShapeError
from graph_emb.graph.partition_book import RangeBook
from graph_emb.optim import rules
from graph_emb.optim.apply import Merge, apply_update, check_merge
from graph_emb.optim.rule import Rule, split_options
from graph_emb.table.initializers import Zeros
from graph_emb.table.spec import TableSpec
from graph_emb.transport.kvstore.shared import SharedShard


@dataclass(frozen=True)
class Filled:
    """DGL's ``init_func(shape, dtype)``: one number everywhere."""

    number: float

    def __call__(self, shape: Any, dtype: torch.dtype) -> Tensor:
        return torch.full(tuple(shape), self.number, dtype=dtype)


@dataclass(frozen=True)
class PushHandler:
    """``f(data_store, name, local_offset, data)``: the rule's step, on the rows where they lie.

    The state is data of the store, ``<table>_<state>``: that of an optimizer of the table, or what ``init_data`` made.

    Args:
        rule: Any whose state belongs to rows: a handler has no clock for the steps of a table.
        merge: ``"sum"`` or ``"mean"`` over the duplicates of a push.
    """

    rule: Rule
    merge: Merge = "sum"

    def __post_init__(self) -> None:
        check_merge(self.merge)
        clocks = [spec.name for spec in self.rule.state_specs() if spec.kind == "table"]
        if clocks:
            raise ConfigError(
                f"{type(self.rule).__name__} counts the steps of a table ({', '.join(clocks)}), which a push handler "
                "does not see; leave out what needs it, or use the sparse optimizer"
            )

    def init_data(self, kvstore: Any, name: str) -> None:
        """Make the state of a table: the ``init_data`` that each client calls, for ``<table>_sum`` and the like.

        Args:
            kvstore: ``emb.kvstore``, or DGL's ``KVClient``.
            name: The table, which exists.
        """
        dtype, shape, policy = kvstore.get_data_meta(name)
        for spec in self.rule.state_specs():
            width = shape[1] if spec.kind == "element" else 1
            kept = torch.float64 if spec.dtype is torch.int64 else spec.dtype_beside(dtype)  # counts, exact to 2^53
            kvstore.init_data(f"{name}_{spec.name}", (shape[0], width), kept, policy, Filled(float(spec.initial)))

    def __call__(self, data_store: MutableMapping[str, Tensor], name: str, local_offset: Tensor, data: Tensor) -> None:
        """Apply gradients to rows.

        Args:
            data_store: Tensors of the server's part by name: the rows, (N, D), and their state.
            name: The table.
            local_offset: Positions in the part, (B,), repeats allowed.
            data: Gradients, (B, D).
        Raises:
            ConfigError: the table has no state of this rule.
            ShapeError: gradients or state do not fit the rows.
        """
        weight = data_store[name]
        num_rows, dim = weight.shape
        shard = SharedShard(TableSpec(name, num_rows, dim, RangeBook.even(num_rows), Zeros(), weight.dtype), 0, weight)
        specs = {spec.name: spec for spec in self.rule.state_specs()}
        shard.hold_state(specs, {key: _state(data_store, name, key, specs[key].shape(num_rows, dim)) for key in specs})
        apply_update(self.rule, shard, local_offset, data.to(weight.dtype), self.merge)


def _state(data_store: Mapping[str, Tensor], table: str, name: str, shape: tuple[int, ...]) -> Tensor:
    """A piece of state in the rule's shape, in the memory of the store."""
    key = f"{table}_{name}"
    if key not in data_store:
        raise ConfigError(f"table {table!r}: its push handler finds no data {key!r}; call handler.init_data() first")
    found = data_store[key]
    if found.numel() != torch.Size(shape).numel():
        raise ShapeError(f"data {key!r} has shape {tuple(found.shape)}; the push handler's rule needs {shape}")
    return found.view(shape)


def Adagrad(
    lr: float = 1e-2,
    eps: float = 1e-10,
    *,
    merge: Merge = "sum",
    initial_accumulator_value: float = 0.0,
    **options: Any,
) -> PushHandler:
    """``ge.SparseAdagrad`` as a push handler; its state is ``<table>_sum``, (N, D).

    Args:
        lr: Learning rate.
        eps: Outside the root.
        merge: ``"sum"`` or ``"mean"`` over the duplicates of a push.
        initial_accumulator_value: The first value of the state.
        options: Bounds and decay of rows, as ``RowOptions`` has them.
    Raises:
        ConfigError: a number is out of its limits, or an option is unknown or needs a clock of the table.
    Example:
        >>> store, handler = {"t": torch.zeros(3, 1), "t_sum": torch.zeros(3, 1)}, ge.push_handlers.Adagrad(lr=0.5)
        >>> handler(store, "t", torch.tensor([2, 2]), torch.ones(2, 1))
        >>> store["t"].flatten().tolist(), store["t_sum"].flatten().tolist()
        ([0.0, 0.0, -0.5], [0.0, 0.0, 4.0])
    """
    return _adagrad(rules.Adagrad, merge, options, lr, eps, initial_accumulator_value)


def RowAdagrad(
    lr: float = 1e-2,
    eps: float = 1e-10,
    *,
    merge: Merge = "sum",
    initial_accumulator_value: float = 0.0,
    **options: Any,
) -> PushHandler:
    """``ge.SparseRowAdagrad``; its state is ``<table>_sum``, one number a row. Arguments as ``Adagrad``."""
    return _adagrad(rules.RowAdagrad, merge, options, lr, eps, initial_accumulator_value)


def OccurrenceRowAdagrad(
    lr: float = 1e-2, eps: float = 1e-10, *, initial_accumulator_value: float = 0.0, **options: Any
) -> PushHandler:
    """The handler that DGL 0.5 published: ``RowAdagrad`` where each occurrence in a push is squared by itself."""
    return _adagrad(rules.OccurrenceRowAdagrad, "sum", options, lr, eps, initial_accumulator_value)


def Adam(
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    *,
    merge: Merge = "sum",
    eps_placement: rules.EpsPlacement = "corrected",
    **options: Any,
) -> PushHandler:
    """``ge.SparseAdam`` as a push handler, its clock counting the pushes that touched the row, as DGL's does.

    The state is ``<table>_exp_avg`` and ``<table>_exp_avg_sq``, (N, D), and ``<table>_step``, one number a row.

    Args:
        lr: Learning rate.
        betas: Decay of the two moments.
        eps: See ``eps_placement``.
        merge: ``"sum"`` or ``"mean"`` over the duplicates of a push.
        eps_placement: ``"corrected"`` (DGL, FBGEMM) or ``"raw"`` (``torch.optim.SparseAdam``).
        options: Bounds and decay of rows, as ``RowOptions`` has them.
    Raises:
        ConfigError: as ``Adagrad``.
    """
    numbers = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": eps}
    return _handler(rules.Adam, merge, {**numbers, "clock": "row", "eps_placement": eps_placement}, options)


def _adagrad(rule: type[Rule], merge: Merge, options: Any, lr: float, eps: float, initial: float) -> PushHandler:
    return _handler(rule, merge, {"lr": lr, "eps": eps, "initial_accumulator_value": initial}, options)


def _handler(rule: type[Rule], merge: Merge, numbers: dict[str, Any], options: Any) -> PushHandler:
    if "maximize" in options:
        raise ConfigError("maximize has no effect on a push handler; push the negative gradients")
    fixed, given = split_options(rule.__name__, options, list(numbers))
    return PushHandler(rule(**numbers, **fixed, **given), merge)
