"""Sparse optimizers over ``DistEmbedding`` tables: DGL's spelling, torch's interface, one rule for every mode."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from graph_emb.composed import ComposedEmbedding, expanded
from graph_emb.core.errors import ConfigError, check_flags, unknown_name
from graph_emb.embedding import DistEmbedding
from graph_emb.optim.apply import Merge, check_gradient, check_merge
from graph_emb.optim.rule import RowOptions, Rule
from graph_emb.optim.rules import (
    CHOICES,
    LAMB,
    LARS,
    SGD,
    Adagrad,
    Adam,
    Clock,
    EpsPlacement,
    OccurrenceRowAdagrad,
    RowAdagrad,
    RowAdam,
    RowLAMB,
)
from graph_emb.sparse_optimizer import Params, SparseOptimizer, transport_of
from graph_emb.table.spec import accumulation_dtype
from graph_emb.transport.base import Push

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Convention:
    """The three choices on which systems differ; numbers that the caller gives (lr, eps, betas) stay as they are.

    Args:
        merge: ``"sum"`` or ``"mean"`` over the duplicates of an id.
        clock: Adam's ``t``: ``"row"`` or ``"global"``.
        eps_placement: Adam's eps: ``"corrected"`` or ``"raw"``.
    """

    merge: Merge
    clock: Clock
    eps_placement: EpsPlacement


PRESETS: dict[str, Convention] = {
    "torch": Convention("sum", "global", "raw"),
    "dgl-1.x": Convention("mean", "row", "corrected"),
    "dgl-0.5": Convention("sum", "row", "corrected"),  # row-wise Adagrad only; squares before it sums
    "fbgemm": Convention("sum", "global", "corrected"),
}


def convention(compat: str, merge: str | None = None, bias_correction: str | None = None) -> Convention:
    """A preset with the caller's explicit options in place of its own.

    Raises:
        ConfigError: an unknown preset or option.
    """
    if compat not in PRESETS:
        raise unknown_name("compat", compat, PRESETS)
    chosen = PRESETS[compat]
    if merge is not None:
        check_merge(merge)
        if compat == "dgl-0.5":
            raise ConfigError(
                f"compat='dgl-0.5' squares every occurrence by itself; merge={merge!r} cannot be honoured"
            )
        chosen = replace(chosen, merge=merge)  # type: ignore[arg-type]
    if bias_correction is not None:
        if bias_correction not in CHOICES["clock"]:
            raise unknown_name("bias_correction", bias_correction, CHOICES["clock"])
        chosen = replace(chosen, clock=bias_correction)  # type: ignore[arg-type]
    return chosen


class SparseSGD(SparseOptimizer):
    """Stochastic gradient descent on touched rows, as ``torch.optim.SGD`` with dampening 0.

    ``b <- momentum * b + g;  w <- w - lr * b`` (heavy ball: Polyak 1964), with ``b = g`` and no state without momentum.
    A row's buffer does not decay while the row is untouched.

    Args:
        params: Tables or groups.
        lr: Learning rate.
        momentum: In [0, 1); above 0 each weight has a buffer, and a scheduler may change it in ``param_groups``.
        merge: ``"sum"`` or ``"mean"`` over duplicates; None follows ``compat``.
        compat: ``"torch"`` or ``"fbgemm"``.
        rows: See ``RowOptions``.
    Example:
        >>> emb = ge.DistEmbedding(4, 2, init_func=ge.initializers.Zeros())
        >>> opt = ge.SparseSGD([emb], lr=0.5)
        >>> emb(torch.tensor([1, 1, 3])).sum().backward()
        >>> opt.step()
        >>> emb.weight[:][:, 0].tolist()
        [0.0, -1.0, 0.0, -0.5]
    """

    _rule_class: type[Rule] = SGD

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        *,
        merge: str | None = None,
        compat: str = "torch",
        **rows: Unpack[RowOptions],
    ) -> None:
        _refuse(compat, ("dgl-0.5", "dgl-1.x"), "had no sparse SGD")
        options = {"momentum": momentum}  # this one is fixed: it decides whether there is state
        numbers = {"lr": lr, "momentum": momentum}
        super().__init__(params, self._rule_class, numbers, options, convention(compat, merge).merge, rows)

    def rule_of(self, group: dict[str, Any]) -> Rule:
        """As in ``SparseOptimizer``; a group's momentum needs the buffers that only a first momentum above 0 makes."""
        if group["momentum"] and not self._options["momentum"]:
            raise ConfigError(
                f"momentum={group['momentum']!r}: the optimizer was made without momentum and has no buffers; "
                "make it with a momentum above 0, which a scheduler may then change"
            )
        return super().rule_of(group)


class SparseAdagrad(SparseOptimizer):
    """Element-wise Adagrad (Duchi, Hazan and Singer 2011) on touched rows, as ``torch.optim.Adagrad``.

    ``s <- s + g * g;  w <- w - lr * g / (sqrt(s) + eps)``

    Args:
        params: Tables or groups.
        lr: Learning rate.
        eps: Outside the root.
        lr_decay: Above 0 the rate falls as ``lr / (1 + n * lr_decay)`` over the n earlier steps, a table's own.
        initial_accumulator_value: The first value of the state.
        merge: ``"sum"`` or ``"mean"`` over duplicates; None follows ``compat``.
        compat: ``"torch"``, ``"dgl-1.x"`` (mean), ``"dgl-0.5"`` (row-wise, each occurrence squared), ``"fbgemm"``.
        rows: See ``RowOptions``.
    Example:
        >>> emb = ge.DistEmbedding(3, 1, init_func=ge.initializers.Zeros())
        >>> opt = ge.SparseAdagrad([emb], lr=0.1)
        >>> for _ in range(2):
        ...     emb(torch.tensor([2])).sum().backward()
        ...     opt.step()
        >>> emb.optm_state["sum"][:].flatten().tolist()
        [0.0, 0.0, 2.0]
        >>> [round(x, 4) for x in emb.weight[:].flatten().tolist()]
        [0.0, 0.0, -0.1707]
    """

    _rule_class: type[Rule] = Adagrad

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        eps: float = 1e-10,
        *,
        lr_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        merge: str | None = None,
        compat: str = "torch",
        **rows: Unpack[RowOptions],
    ) -> None:
        rule = OccurrenceRowAdagrad if compat == "dgl-0.5" else self._rule_class
        options = {"initial_accumulator_value": initial_accumulator_value}
        options |= {"lr_decay": lr_decay} if lr_decay else {}  # left out, as in states of earlier versions
        super().__init__(params, rule, {"lr": lr, "eps": eps}, options, convention(compat, merge).merge, rows)


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
        rows: See ``RowOptions``.
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
    _absent: tuple[tuple[str, ...], str] = (("dgl-0.5",), "had no Adam")
    _eps_placement: EpsPlacement | None = None
    _row_defaults: ClassVar[RowOptions] = {}

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        merge: str | None = None,
        bias_correction: str | None = None,
        compat: str = "torch",
        **rows: Unpack[RowOptions],
    ) -> None:
        _refuse(compat, *self._absent)
        chosen = convention(compat, merge, bias_correction)
        options = {"clock": chosen.clock, "eps_placement": self._eps_placement or chosen.eps_placement}
        numbers = {"lr": lr, "betas": betas, "eps": eps}
        super().__init__(params, self._rule_class, numbers, options, chosen.merge, {**self._row_defaults, **rows})


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

    _row_defaults: ClassVar[RowOptions] = {"weight_decay": 0.01, "weight_decay_mode": "decoupled"}


class SparseLAMB(SparseAdam):
    """LAMB (You et al. 2020, "Large batch optimization for deep learning") on touched rows, each a layer of its own.

    ``r = (m / c1) / (sqrt(v / c2) + eps) + weight_decay * w;  w <- w - lr * (|w| / |r|) * r`` with the moments of
    ``SparseAdam``. Where a norm is 0 the ratio is 1, so that rows of zeros move. Arguments as ``SparseAdam``;
    ``compat`` is ``"torch"`` or ``"fbgemm"``, which are the same here.

    Example:
        >>> emb = ge.DistEmbedding(2, 2, init_func=ge.initializers.FromArray(torch.tensor([[3.0, 4.0], [1.0, 1.0]])))
        >>> opt = ge.SparseLAMB([emb], lr=0.1)
        >>> emb(torch.tensor([0])).sum().backward()
        >>> opt.step()
        >>> [round(x, 4) for x in emb.weight[0].tolist()]  # a step of lr * |w| = 0.5
        [2.6464, 3.6464]
    """

    _rule_class = LAMB
    _absent = (("dgl-0.5", "dgl-1.x"), "had no LAMB")
    _eps_placement = "corrected"


class SparseRowLAMB(SparseLAMB):
    """LAMB (You et al. 2020) with one second moment per row: FBGEMM's partial row-wise LAMB.

    As ``SparseLAMB`` but ``v <- b2 v + (1 - b2) mean(g * g)`` over the row's columns.

    Example:
        >>> emb = ge.DistEmbedding(1000, 64)
        >>> opt = ge.SparseRowLAMB([emb], lr=0.001)
        >>> emb.optm_state["exp_avg_sq"].shape
        torch.Size([1000])
    """

    _rule_class = RowLAMB


class SparseLARS(SparseOptimizer):
    """LARS (You, Gitman and Ginsburg 2017) on touched rows, each a layer of its own.

    ``a = eta * |w| / (|g| + weight_decay * |w|);  b <- momentum * b + lr * a * (g + weight_decay * w);  w <- w - b``.
    The rate is folded into the buffer, as in the paper and FBGEMM. Where ``|w|`` or the divisor is 0, ``a = 1``.

    Args:
        params: Tables or groups.
        lr: Learning rate.
        momentum: In [0, 1).
        eta: The trust coefficient.
        merge: ``"sum"`` or ``"mean"`` over duplicates; None follows ``compat``.
        compat: ``"torch"`` or ``"fbgemm"``, which are the same here.
        rows: See ``RowOptions``.
    Example:
        >>> emb = ge.DistEmbedding(1, 2, init_func=ge.initializers.FromArray(torch.tensor([[3.0, 4.0]])))
        >>> opt = ge.SparseLARS([emb], lr=1.0, momentum=0.0, eta=0.1)
        >>> emb(torch.tensor([0]))[0, 0].backward()
        >>> opt.step()
        >>> [round(x, 4) for x in emb.weight[0].tolist()]
        [2.5, 4.0]
    """

    _rule_class: type[Rule] = LARS

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        momentum: float = 0.9,
        eta: float = 1e-3,
        *,
        merge: str | None = None,
        compat: str = "torch",
        **rows: Unpack[RowOptions],
    ) -> None:
        _refuse(compat, ("dgl-0.5", "dgl-1.x"), "had no LARS")
        numbers = {"lr": lr, "momentum": momentum, "eta": eta}
        super().__init__(params, self._rule_class, numbers, {}, convention(compat, merge).merge, rows)


OPTIMIZERS: dict[str, Callable[..., SparseOptimizer]] = {
    "sgd": SparseSGD,
    "adagrad": SparseAdagrad,
    "row_adagrad": SparseRowAdagrad,
    "adam": SparseAdam,
    "adamw": SparseAdamW,
    "row_adam": SparseRowAdam,
    "lamb": SparseLAMB,
    "row_lamb": SparseRowLAMB,
    "lars": SparseLARS,
}
"""By the name that a configuration gives the rule."""


BY_ADDRESS: dict[str, type[SparseOptimizer]] = {
    "sgd": SparseSGD,
    "adagrad": SparseAdagrad,
    "row_adagrad": SparseRowAdagrad,
    "lazy_adam": SparseAdam,
    "row_adam": SparseRowAdam,
    "adamw": SparseAdamW,
    "lamb": SparseLAMB,
    "row_lamb": SparseRowLAMB,
    "lars": SparseLARS,
}
"""The rules of ``create_hash_optimizer_by_address``, by the words of mxRec where it has the rule."""


def create_hash_optimizer_by_address(
    params: Params, rule: str = "lazy_adam", learning_rate: float = 0.001, **numbers: Any
) -> SparseOptimizer:
    """An optimizer of growing tables for ``rows, slots = emb.lookup(ids)`` and ``apply_gradients([(grads, slots)])``.

    The name and the flow are mxRec's; slots are checked, where a wrong address stops an accelerator there.

    Args:
        params: Growing tables, as the optimizers take them.
        rule: One of ``BY_ADDRESS``.
        learning_rate: Of the rule, as ``lr``.
        numbers: Its other numbers and options.
    Raises:
        ConfigError: an unknown rule, a table that does not grow, or a number that the rule does not take.
    Example:
        >>> item = ge.DistEmbedding(ge.growing(max_rows=1000), 2, "item")
        >>> opt = ge.create_hash_optimizer_by_address([item], "sgd", learning_rate=1.0)
        >>> rows, slots = item.lookup(torch.tensor([-7, 10**12]))
        >>> opt.apply_gradients([(torch.ones_like(rows), slots)])
        >>> item.ids().tolist(), item.weight[[-7]].tolist()
        ([-7, 1000000000000], [[-1.0, -1.0]])
    """
    if rule not in BY_ADDRESS:
        raise unknown_name("rule", rule, BY_ADDRESS)
    if "lr" in numbers:
        raise ConfigError(f"create_hash_optimizer_by_address: lr={numbers['lr']!r}; give it as learning_rate")
    kind = BY_ADDRESS[rule]
    made = kind(params, lr=learning_rate, **numbers)  # type: ignore[call-arg]
    for table in made.tables.values():
        if table.spec.growth is None:
            made.close()
            raise ConfigError(
                f"create_hash_optimizer_by_address: table {table.name!r} does not grow and has no slots; make it with "
                f"ge.growing(max_rows=...), or take {kind.__name__}"
            )
    return made


def clip_grad_norm_(
    parameters: DistEmbedding | Tensor | Iterable[DistEmbedding | Tensor],
    max_norm: float,
    *,
    merge: Merge = "sum",
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale the gradients of tables and of dense parameters down to a norm, taken over all together.

    As ``torch.nn.utils.clip_grad_norm_``. The gradient of a table is merged first: an id's occurrences are summed, in
    collective mode over all ranks, whose call it is together, in kvstore mode those of this trainer's step. Dense
    gradients count as this process has them: average them over the ranks before, as data-parallel modules do. Call it
    between ``backward()`` and ``step()``.

    Args:
        parameters: Tables, and tensors whose ``grad`` is scaled in place; those without one count as zeros.
        max_norm: The Euclidean norm that the gradients have at most afterwards.
        merge: The optimizer's treatment of duplicates.
        error_if_nonfinite: Raise instead of scaling by NaN.
    Returns:
        The norm before, a scalar; float64 where a table or a gradient is, else float32.
    Raises:
        ConfigError: max_norm is negative or NaN, or something that is neither a table nor a tensor.
        RuntimeError: the norm is infinite or NaN, where asked.
    Example:
        >>> emb, bias = ge.DistEmbedding(4, 1), torch.zeros(1, requires_grad=True)
        >>> (3 * emb(torch.tensor([2])) + 4 * bias).sum().backward()
        >>> ge.clip_grad_norm_([emb, bias], 0.5).item()
        5.0
        >>> [round(x, 4) for x in (emb.sparse_grad().to_dense()[2].item(), bias.grad.item())]
        [0.3, 0.4]
    """
    check_merge(merge)
    check_flags(error_if_nonfinite=error_if_nonfinite)
    one = isinstance(parameters, (DistEmbedding, ComposedEmbedding, Tensor))
    given = expanded([parameters] if one else parameters)
    tables = [one for one in given if isinstance(one, DistEmbedding)]
    dense = [one for one in given if isinstance(one, Tensor)]
    if len(tables) + len(dense) < len(given):
        odd = next(one for one in given if not isinstance(one, (DistEmbedding, Tensor)))
        raise ConfigError(f"clip_grad_norm_: {odd!r:.80} is neither a table nor a tensor")
    if not max_norm >= 0:
        raise ConfigError(f"clip_grad_norm_: max_norm={max_norm!r} must be at least 0")
    grads = [one.grad for one in dense if one.grad is not None]
    parts = [float(grad.detach().double().square().sum()) for grad in grads]
    if tables:
        transport, names = transport_of(tables), ", ".join(repr(table.name) for table in tables)
        with transport.joint(f"norm of the gradients of table {names}"):
            pushes = []
            for table in tables:
                ids, merged = table.joined_pending("spread" if merge == "mean" else "merged")
                check_gradient(table.name, ids, merged, table.embedding_dim)
                merged = merged.to(accumulation_dtype(table.dtype))
                pushes.append(Push(table.name, ids, merged, SGD(0.0), merge, table.touched))
            parts += transport.square_of_gradients(pushes)
    norm = math.sqrt(max(0.0, math.fsum(parts))) if all(map(math.isfinite, parts)) else math.sqrt(sum(parts))
    if error_if_nonfinite and not math.isfinite(norm):
        raise RuntimeError(
            f"clip_grad_norm_: the norm of the gradients is {norm}; leave error_if_nonfinite out to scale"
        )
    factor = max_norm / (norm + 1e-6)
    if not factor >= 1.0:  # NaN too
        for table in tables:
            table.scale_gradients(factor)
        for grad in grads:
            grad.mul_(factor)
    wide = [table.dtype for table in tables] + [grad.dtype for grad in grads]
    return torch.tensor(norm, dtype=torch.float64 if torch.float64 in wide else torch.float32)


def _refuse(compat: str, absent: tuple[str, ...], why: str) -> None:
    if compat in absent:
        raise ConfigError(f"compat={compat!r} {why}; use compat='torch' or 'fbgemm'")
