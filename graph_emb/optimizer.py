"""Sparse optimizers over ``DistEmbedding`` tables: DGL's spelling, torch's interface, one rule for every mode."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graph_emb import optimizer_state
from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.embedding import DistEmbedding
from graph_emb.optim.adagrad import Adagrad, OccurrenceRowAdagrad, RowAdagrad
from graph_emb.optim.adam import Adam, RowAdam
from graph_emb.optim.apply import check_gradient
from graph_emb.optim.presets import Convention, convention
from graph_emb.optim.rule import Rule
from graph_emb.optim.sgd import SGD
from graph_emb.optimizer_state import as_groups, attach_all, common_transport, detach_all
from graph_emb.transport.base import Push

Params = Iterable[DistEmbedding] | Iterable[dict[str, Any]]


class SparseOptimizer(torch.optim.Optimizer):
    """Applies the gradients of touched rows by one rule. Base of the named optimizers.

    A ``torch.optim.Optimizer``, so that torch's learning-rate schedulers drive ``param_groups``; numbers are
    read at ``step()``. A group's ``params`` are the scalar anchors of its ``tables``.

    Args:
        params: Tables, or dicts with ``params`` (tables) and numbers of their own.
        rule: The rule's class.
        numbers: The default of each number in a group.
        options: The choices that fix the rule's state: equal for all groups.
        chosen: The convention of duplicates and clocks.
    Attributes:
        rule_type: The rule's class.
        transport: Of all tables.
    """

    def __init__(
        self,
        params: Params,
        rule: type[Rule],
        numbers: dict[str, Any],
        options: dict[str, Any],
        chosen: Convention,
    ) -> None:
        self.rule_type = rule
        self._options = options
        self._convention = chosen
        self._tables: dict[str, DistEmbedding] = {}
        self._turns = 1
        groups = as_groups(params)
        merged: list[dict[str, Any]] = []
        for group in groups:
            unknown = set(group) - set(numbers) - {"tables"}
            if unknown:
                raise ConfigError(f"{type(self).__name__}: unknown option {sorted(unknown)} in a parameter group")
            for table in group["tables"]:
                if table.name in self._tables:
                    raise ConfigError(f"table {table.name!r} is given twice to one optimizer")
                self._tables[table.name] = table
            merged.append({"params": [table.anchor for table in group["tables"]], **group})
        super().__init__(merged, dict(numbers))
        rules = {table.name: self.rule_of(group) for group in self.param_groups for table in group["tables"]}
        self.transport = common_transport(self._tables.values())
        attach_all(self.transport, rules)
        self._detach = weakref.finalize(self, detach_all, self.transport, list(rules))

    def rule_of(self, group: dict[str, Any]) -> Rule:
        """The group's rule with the numbers as they stand now.

        Raises:
            ConfigError: a number is NaN or out of its limits.
        """
        numbers = {name: group[name] for name in self.defaults}
        if isinstance(numbers.get("lr"), Tensor):
            numbers["lr"] = float(numbers["lr"])
        if "betas" in numbers:
            numbers["beta1"], numbers["beta2"] = _two(numbers.pop("betas"))
        try:
            return self.rule_type(**numbers, **self._options)
        except ConfigError as error:
            names = ", ".join(repr(table.name) for table in group["tables"])
            raise ConfigError(f"{type(self).__name__}: table {names}: {error}") from None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Apply and consume the gradients that came back since the last step.

        Everything is checked before the first row changes. Tables that no backward reached are left alone. Once
        gradients are on their way they count as consumed, even where an error ends the step: none is applied twice.

        Args:
            closure: Called first with gradients enabled; its value is returned.
        Raises:
            ConfigError: a number of a group is NaN or out of its limits.
            ShapeError: a gradient does not fit its table.
            ModeError: the optimizer was closed.
        """
        if not self._detach.alive:
            names = ", ".join(map(repr, self._tables))
            raise ModeError(f"{type(self).__name__} of {names} was closed; make another one")
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        pushes = []
        for group in self.param_groups:
            rule = self.rule_of(group)
            for table in group["tables"]:
                if table.touched or self.transport.lockstep:
                    ids, grads = _concatenate(table)
                    check_gradient(table.name, ids, grads, table.embedding_dim)
                    pushes.append(Push(table.name, ids, grads, rule, self._convention.merge, table.touched))
        try:
            self.transport.push(pushes)
        finally:  # an error may come when some, or all, of them are applied
            for push in pushes:
                self._tables[push.table].clear_gradients()
        if self._turns > 1:
            for clock in [clock for push in pushes if push.touched for clock in self._clocks(push.table)]:
                clock.add_(self._turns - 1)
        return result

    def take_turns(self, position: int, trainers: int) -> None:
        """Say that trainers of kvstore mode take whole steps in turn, this one every ``trainers``-th from ``position``.

        Adam's global clock then counts the steps of all, whose gradients its moments hold. Without it each trainer
        counts its own, which is right where every step is shared out among the trainers. Row clocks need nothing.

        Args:
            position: In [0, trainers).
            trainers: At least 1.
        Raises:
            ConfigError: the position is none of the trainers'.
            ModeError: ranks in lockstep share every step.
        """
        if not 0 <= position < trainers:
            raise ConfigError(f"take_turns({position}, {trainers}): the position must be at least 0 and below trainers")
        if trainers > 1 and self.transport.lockstep:
            raise ModeError(f"take_turns({position}, {trainers}): ranks of {self.transport.mode} mode share each step")
        self._turns = trainers
        for clock in [clock for table in self._tables for clock in self._clocks(table)]:
            clock.add_((position - int(clock)) % trainers)

    def _clocks(self, table: str) -> list[Tensor]:
        shard = self.transport.shard(table)
        return [shard.state[name] for name, spec in shard.state_specs.items() if spec.kind == "table"]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that came back; ``step()`` has consumed its own already.

        Args:
            set_to_none: Torch's argument; False raises, because there is no dense gradient to fill with zeros.
        """
        if not set_to_none:
            raise ConfigError("zero_grad(set_to_none=False): sparse tables keep no dense gradient; pass True")
        for table in self._tables.values():
            table.clear_gradients()

    def close(self) -> None:
        """Free the optimizer's state, so that another optimizer may train the tables."""
        self._detach()

    def state_dict(self) -> dict[str, Any]:
        """Copies of numbers and state: ``{"rule", "options", "param_groups", "state": {table: {name: tensor}}}``."""
        return optimizer_state.snapshot(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned; everything is checked before anything changes.

        Raises:
            ConfigError: another rule, other options, other tables or shapes.
        """
        optimizer_state.restore(self, state_dict)

    def save(self, f: str | Path) -> None:
        """Write the state to ``f_<rank>`` (DGL's naming) as safetensors, atomically; no pickle."""
        optimizer_state.save(self, f)

    def load(self, f: str | Path) -> None:
        """Read what ``save`` wrote.

        Raises:
            DataError: the file is missing or damaged.
            ConfigError: it belongs to another rule or other tables.
        """
        optimizer_state.load(self, f)

    def local_state_dict(self) -> dict[str, Any]:
        """DGL's form: ``{"params": {...}, "emb_states": {table: {"ids", "states": {name: tensor}}}}``."""
        return optimizer_state.local_snapshot(self)

    def load_local_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``local_state_dict`` returned."""
        optimizer_state.restore_local(self, state)

    @property
    def tables(self) -> dict[str, DistEmbedding]:
        """The tables by name."""
        return dict(self._tables)

    @property
    def choices(self) -> dict[str, Any]:
        """The options that every group shares, ``merge`` among them."""
        return {**self._options, "merge": self._convention.merge}

    @property
    def rank(self) -> int:
        """This process."""
        return self.transport.rank

    @property
    def world_size(self) -> int:
        """Processes that share the tables."""
        return self.transport.world_size


class SparseSGD(SparseOptimizer):
    """Stochastic gradient descent on touched rows, as ``torch.optim.SGD`` with dampening 0.

    ``b <- momentum * b + g;  w <- w - lr * b`` (heavy ball: Polyak 1964), with ``b = g`` and no state without momentum.
    A row's buffer does not decay while the row is untouched.

    Args:
        params: Tables or groups.
        lr: Learning rate.
        momentum: In [0, 1); above 0 each weight has a buffer.
        merge: ``"sum"`` or ``"mean"`` over duplicates; None follows ``compat``.
        compat: ``"torch"`` or ``"fbgemm"``.
    Example:
        >>> emb = ge.DistEmbedding(4, 2, init_func=ge.initializers.Zeros())
        >>> opt = ge.SparseSGD([emb], lr=0.5)
        >>> emb(torch.tensor([1, 1, 3])).sum().backward()
        >>> opt.step()
        >>> emb.weight[:][:, 0].tolist()
        [0.0, -1.0, 0.0, -0.5]
    """

    def __init__(
        self,
        params: Params,
        lr: float,
        momentum: float = 0.0,
        *,
        merge: str | None = None,
        compat: str = "torch",
    ) -> None:
        _refuse(compat, ("dgl-0.5", "dgl-1.x"), "had no sparse SGD")
        options = {"momentum": momentum}  # fixed: it decides whether there is state
        super().__init__(params, SGD, {"lr": lr}, options, convention(compat, merge))


class SparseAdagrad(SparseOptimizer):
    """Element-wise Adagrad (Duchi, Hazan and Singer 2011) on touched rows, as ``torch.optim.Adagrad``.

    ``s <- s + g * g;  w <- w - lr * g / (sqrt(s) + eps)``

    Args:
        params: Tables or groups.
        lr: Learning rate.
        eps: Outside the root.
        initial_accumulator_value: The first value of the state.
        merge: ``"sum"`` or ``"mean"`` over duplicates; None follows ``compat``.
        compat: ``"torch"``, ``"dgl-1.x"`` (mean), ``"dgl-0.5"`` (row-wise, each occurrence squared), ``"fbgemm"``.
    Example:
        >>> emb = ge.DistEmbedding(3, 1, init_func=ge.initializers.Zeros())
        >>> opt = ge.SparseAdagrad([emb], lr=0.1)
        >>> for _ in range(2):
        ...     emb(torch.tensor([2])).sum().backward()
        ...     opt.step()
        >>> emb.optm_state["sum"].flatten().tolist()
        [0.0, 0.0, 2.0]
        >>> [round(x, 4) for x in emb.weight[:].flatten().tolist()]
        [0.0, 0.0, -0.1707]
    """

    _rule_class: type[Rule] = Adagrad

    def __init__(
        self,
        params: Params,
        lr: float,
        eps: float = 1e-10,
        *,
        initial_accumulator_value: float = 0.0,
        merge: str | None = None,
        compat: str = "torch",
    ) -> None:
        rule = OccurrenceRowAdagrad if compat == "dgl-0.5" else self._rule_class
        options = {"initial_accumulator_value": initial_accumulator_value}
        super().__init__(params, rule, {"lr": lr, "eps": eps}, options, convention(compat, merge))


class SparseRowAdagrad(SparseAdagrad):
    """Row-wise Adagrad: one scalar per row, so that the state takes 1/D of ``SparseAdagrad``'s memory.

    ``s <- s + mean(g * g);  w <- w - lr * g / (sqrt(s) + eps)`` with the mean over the row's columns: Adagrad (Duchi,
    Hazan and Singer 2011) as FBGEMM and PyTorch-BigGraph (Lerer et al. 2019) keep it. Arguments as ``SparseAdagrad``.

    Example:
        >>> emb = ge.DistEmbedding(1000, 64)
        >>> opt = ge.SparseRowAdagrad([emb], lr=0.1)
        >>> emb.optm_state["sum"].shape
        torch.Size([1000])
    """

    _rule_class = RowAdagrad


class SparseAdam(SparseOptimizer):
    """Adam (Kingma and Ba 2015) on touched rows, as ``torch.optim.SparseAdam``.

    ``m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g * g;  w <- w - lr * (m / c1) / (sqrt(v / c2) + e)`` with
    ``c = 1 - b ** t``. The moments of a row do not decay while it is untouched.

    Args:
        params: Tables or groups.
        lr: Learning rate.
        betas: Decay of the two moments.
        eps: Its place follows ``compat``.
        merge: ``"sum"`` or ``"mean"`` over duplicates; None follows ``compat``.
        bias_correction: ``"row"`` or ``"global"`` clock; None follows ``compat``.
        compat: ``"torch"`` (``torch.optim.SparseAdam``), ``"dgl-1.x"`` or ``"fbgemm"``.
    Example:
        >>> emb = ge.DistEmbedding(4, 1, init_func=ge.initializers.Zeros())
        >>> opt = ge.SparseAdam([emb], lr=0.01)
        >>> emb(torch.tensor([0, 2])).sum().backward()
        >>> opt.step()
        >>> [round(x, 4) for x in emb.weight[:].flatten().tolist()]
        [-0.01, 0.0, -0.01, 0.0]
        >>> sorted(emb.optm_state)
        ['exp_avg', 'exp_avg_sq', 'step']
    """

    _rule_class: type[Rule] = Adam

    def __init__(
        self,
        params: Params,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        merge: str | None = None,
        bias_correction: str | None = None,
        compat: str = "torch",
    ) -> None:
        numbers = {"lr": lr, "betas": betas, "eps": eps}
        self._start(params, numbers, merge, bias_correction, compat)

    def _start(
        self,
        params: Params,
        numbers: dict[str, Any],
        merge: str | None,
        bias_correction: str | None,
        compat: str,
    ) -> None:
        _refuse(compat, ("dgl-0.5",), "had no Adam")
        chosen = convention(compat, merge, bias_correction)
        options = {"clock": chosen.clock, "eps_placement": chosen.eps_placement}
        SparseOptimizer.__init__(self, params, self._rule_class, numbers, options, chosen)


class SparseRowAdam(SparseAdam):
    """Adam (Kingma and Ba 2015) with one second moment per row: FBGEMM's partial row-wise Adam.

    As ``SparseAdam`` but ``v <- b2 v + (1 - b2) mean(g * g)`` over the row's columns; arguments as ``SparseAdam``.

    Example:
        >>> emb = ge.DistEmbedding(1000, 64)
        >>> opt = ge.SparseRowAdam([emb], lr=0.001)
        >>> emb.optm_state["exp_avg"].shape, emb.optm_state["exp_avg_sq"].shape
        (torch.Size([1000, 64]), torch.Size([1000]))
    """

    _rule_class = RowAdam


class SparseAdamW(SparseAdam):
    """AdamW (Loshchilov and Hutter 2019) on touched rows: ``SparseAdam`` with decoupled weight decay.

    ``w <- (1 - lr * weight_decay) w - lr * (m / c1) / (sqrt(v / c2) + e)``; moments and other arguments as
    ``SparseAdam``.

    Args:
        weight_decay: A touched row shrinks by ``1 - lr * weight_decay`` in each step that touches it.
    Example:
        >>> emb = ge.DistEmbedding(2, 1, init_func=ge.initializers.FromArray(torch.ones(2, 1)))
        >>> opt = ge.SparseAdamW([emb], lr=0.5, weight_decay=0.5)
        >>> (0 * emb(torch.tensor([1]))).sum().backward()
        >>> opt.step()
        >>> emb.weight[:].flatten().tolist()
        [1.0, 0.75]
    """

    def __init__(
        self,
        params: Params,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        merge: str | None = None,
        bias_correction: str | None = None,
        compat: str = "torch",
    ) -> None:
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        self._start(params, numbers, merge, bias_correction, compat)


OPTIMIZERS: dict[str, Callable[..., SparseOptimizer]] = {
    "sgd": SparseSGD,
    "adagrad": SparseAdagrad,
    "row_adagrad": SparseRowAdagrad,
    "adam": SparseAdam,
    "adamw": SparseAdamW,
    "row_adam": SparseRowAdam,
}
"""By the name that a configuration gives the rule."""


def _refuse(compat: str, absent: tuple[str, ...], why: str) -> None:
    if compat in absent:
        raise ConfigError(f"compat={compat!r} {why}; use compat='torch' or 'fbgemm'")


def _two(betas: Any) -> tuple[float, float]:
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ConfigError(f"betas={betas!r} must be two numbers in [0, 1)")
    return betas[0], betas[1]


def _concatenate(table: DistEmbedding) -> tuple[Tensor, Tensor]:
    entries = table.pending()
    if not entries:  # a backward that met no row still counts as a step of the table
        return torch.empty(0, dtype=torch.int64), torch.empty(0, table.embedding_dim)
    if len(entries) == 1:
        return entries[0]
    device = entries[0][1].device
    ids = torch.cat([ids.to(device) for ids, _ in entries])
    return ids, torch.cat([grads.to(device) for _, grads in entries])
