"""The base of the sparse optimizers: its tables and its step."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from graph_emb.composed import ComposedEmbedding
from graph_emb.core.errors import ConfigError, ModeError, check_flags
from graph_emb.core.notebook import Card
from graph_emb.dgl_names import DGLNames
from graph_emb.embedding import DistEmbedding, transport_of
from graph_emb.graph.partition_book import Ids, as_ids
from graph_emb.growing_embedding import Slots, checked_slots
from graph_emb.optim.apply import Merge, check_gradient
from graph_emb.optim.rounding import DIGITS
from graph_emb.optim.rule import ROW_OPTIONS, TABLE_STEP, RowOptions, Rule, advance, split_options
from graph_emb.optimizer_state import OptimizerState
from graph_emb.parameter_groups import groups_of
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import StateSpec
from graph_emb.transport.base import Push, Transport

Params = Iterable[DistEmbedding | ComposedEmbedding] | Iterable[dict[str, Any]]


class SparseOptimizer(OptimizerState, DGLNames, Card):
    """Applies the gradients of touched rows by one rule. Base of the named optimizers.

    A ``torch.optim.Optimizer``, so that torch's learning-rate schedulers drive ``param_groups``; numbers are
    read at ``step()``. A group's ``params`` are the scalar anchors of its ``tables``.

    Args:
        params: Tables, or dicts with ``params`` (tables) and numbers of their own.
        rule: The rule's class.
        numbers: The default of each number in a group.
        options: The choices that fix the rule's state: equal for all groups.
        merge: The treatment of duplicates.
        row_options: Those that are not at their default.
    Attributes:
        rule_type: The rule's class.
        transport: Of all tables.
    """

    _rule_class: type[Rule]

    @classmethod
    def state_of(cls, options: Mapping[str, Any]) -> list[StateSpec]:
        """The pieces of state that a table has with options, of which those that change none may be others."""
        names = cls._rule_class.__dataclass_fields__
        given = {name: value for name, value in options.items() if name in names and value is not None}
        return list(cls._rule_class(1.0, **given).state_specs())

    def __init__(
        self,
        params: Params,
        rule: type[Rule],
        numbers: dict[str, Any],
        options: dict[str, Any],
        merge: Merge,
        row_options: RowOptions,
    ) -> None:
        fixed, given = split_options(type(self).__name__, row_options, [*numbers, *options])
        options = {**options, **fixed}
        mode = {} if rule.own_decay is None else {"weight_decay_mode": rule.own_decay}
        numbers = {**numbers, **ROW_OPTIONS, **mode, **given}
        self.rule_type = rule
        self._options = options
        self._merge = merge
        self._tables: dict[str, DistEmbedding] = {}
        self._lazy: set[str] = set()
        self._turns = 1
        groups = groups_of(params)
        self.transport = transport_of(table for group in groups for table in group["params"])
        self._detach = weakref.finalize(self, _detach, self.transport, self._tables)
        try:
            super().__init__(groups, dict(numbers))  # it calls add_param_group for each
        except Exception:
            self._detach()
            raise

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train further tables, from the next step on; state begins as in a new optimizer.

        Every process of a job calls it at the same step.

        Args:
            param_group: ``params``, a table or several, and numbers of their own.
        Raises:
            ConfigError: an unknown option, a number out of its limits, or a table that is trained already.
            ModeError: a table of another mode, or the optimizer was closed.
        """
        (group,) = groups_of([param_group])
        tables = group.pop("params")
        unknown = set(group) - set(self.defaults)
        if unknown:
            raise ConfigError(f"{type(self).__name__}: unknown option {sorted(unknown)} in a parameter group")
        self._check_open()
        names = [*self._tables, *(table.name for table in tables)]
        for table in tables:
            if names.count(table.name) > 1:
                raise ConfigError(f"table {table.name!r} is given twice to one optimizer")
        transport_of([*self._tables.values(), *tables])
        group = {"tables": tables, **self.defaults, **group}
        rule = self.rule_of(group)
        for table in tables if rule.stochastic_rounding else ():
            if table.dtype not in DIGITS:
                raise ConfigError(
                    f"stochastic_rounding is for tables of float16 and bfloat16; {table.name!r} is {table.dtype}"
                )
        attached: list[str] = []
        try:
            for table in tables:
                self.transport.attach(table.name, rule)
                attached.append(table.name)
        except Exception:
            _detach(self.transport, attached)
            raise
        self._lazy |= {table.name for table in tables if rule.lazy}
        self._tables.update((table.name, table) for table in tables)
        # Unwrapped: torch 2.13's wrapper (torch/_compile.py) imports the compiler, torch._dynamo, which takes a process
        # two thirds of the time that torch itself does.
        add = inspect.unwrap(torch.optim.Optimizer.add_param_group)
        add(self, {"params": [table.anchor for table in tables], **group})

    def _facts(self) -> dict[str, Any]:
        rates = ", ".join(str(group["lr"]) for group in self.param_groups)
        return {"rule": self.rule_type.__name__, "lr": rates, "tables": ", ".join(self._tables)}

    def _check_open(self) -> None:
        if not self._detach.alive:
            names = ", ".join(map(repr, self._tables))
            raise ModeError(f"{type(self).__name__} of {names} was closed; make another one")

    def rule_of(self, group: dict[str, Any]) -> Rule:
        """The group's rule with the numbers as they stand now.

        Raises:
            ConfigError: a number is NaN or out of its limits.
        """
        numbers = {name: group[name] for name in self.defaults}
        maximize = numbers.pop("maximize")
        check_flags(**{f"{type(self).__name__}: maximize": maximize})
        if isinstance(numbers.get("lr"), Tensor):
            numbers["lr"] = float(numbers["lr"])
        if "betas" in numbers:
            betas = numbers.pop("betas")
            if not isinstance(betas, (tuple, list)) or len(betas) != 2:
                raise ConfigError(f"betas={betas!r} must be two numbers in [0, 1)")
            numbers["beta1"], numbers["beta2"] = betas
        try:
            rule = self.rule_type(**{**self._options, **numbers})
            if any(rule.lazy != (table.name in self._lazy) for table in group["tables"] if table.name in self._tables):
                raise ConfigError(
                    f"weight_decay_mode={rule.weight_decay_mode!r} is not the first one; 'lazy' has state and cannot "
                    "be switched on or off: make another optimizer"
                )
            return rule
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
        self._check_open()
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        with self.transport.joint(f"push of table {', '.join(map(repr, self._tables))}"):
            pushes = self._checked_pushes()
            try:
                self.transport.push(pushes)
            finally:  # an error may come when some, or all, of them are applied
                for push in pushes:
                    self._tables[push.table].clear_gradients()
        self._let_others_count(pushes)
        return result

    def _let_others_count(self, pushes: list[Push]) -> None:
        if self._turns > 1:
            for push in pushes:
                if push.touched:
                    advance(push.rule, self.transport.shard(push.table), self._turns - 1)

    @torch.no_grad()
    def update(self, idx: Ids, grad: Tensor, emb: DistEmbedding) -> None:
        """Apply gradients of rows at once, as a ``step()`` of this table alone: merge, rule, owner in one call.

        What came back by ``backward()`` stays for the next ``step()``. In collective mode every rank calls it, with no
        ids if need be.

        Args:
            idx: Ids, (B,), repeats allowed; those outside are left out where the table drops them.
            grad: Shape (B, D), floating.
            emb: One of the optimizer's tables.
        Raises:
            ConfigError, ShapeError, ModeError: as ``step``; a table that the optimizer does not train.
            PartitionError: an id is out of range.
        Example:
            >>> emb = ge.DistEmbedding(3, 1)
            >>> ge.SparseSGD([emb], lr=0.5).update([2, 0, 2], torch.ones(3, 1), emb)
            >>> emb.weight[:].flatten().tolist()
            [-0.5, 0.0, -1.0]
        """
        self._check_open()
        group = self._group_of(emb)
        with self.transport.joint(f"push of table {emb.name!r}"):
            ids, inside = emb.kept(given := as_ids(idx))
            check_gradient(emb.name, given, grad, emb.embedding_dim)
            grad = grad if inside is None else grad[inside.to(grad.device)]
            grad = -grad if group["maximize"] else grad
            pushes = [Push(emb.name, ids, grad, self.rule_of(group), self._merge)]
            self.transport.push(pushes)
        self._let_others_count(pushes)

    @torch.no_grad()
    def apply_gradients(self, pairs: Iterable[tuple[Tensor, Slots]]) -> None:
        """Apply gradients of rows of growing tables at the slots where ``emb.lookup(ids)`` found them, as one step.

        Ids without a row are admitted, and get theirs, as in ``step()``. In collective mode every rank calls it for
        the same tables.

        Args:
            pairs: (gradients, (B, D), floating; slots of B ids), at most one of a table.
        Raises:
            ConfigError: slots that are stale (rows were evicted since), forged, or of a table that is not trained, or a
                table given twice; nothing has changed then.
            ShapeError: gradients do not fit their slots.
        Example:
            >>> item = ge.DistEmbedding(ge.growing(max_rows=100), 1)
            >>> opt = ge.SparseSGD([item], lr=0.5)
            >>> rows, slots = item.lookup([10**12, 3])
            >>> opt.apply_gradients([(torch.ones(2, 1), slots)])
            >>> item.weight[[3, 10**12]].flatten().tolist()
            [-0.5, -0.5]
        """
        self._check_open()
        with self.transport.joint(f"push of table {', '.join(map(repr, self._tables))}"):
            pairs, names = checked_slots(pairs)
            pushes = []
            for name, (grads, slots) in zip(names, pairs, strict=True):
                group = self._group_of(slots.table)
                check_gradient(name, slots.keys, grads, slots.table.embedding_dim)
                grads = -grads if group["maximize"] else grads
                pushes.append(Push(name, slots.keys, grads, self.rule_of(group), self._merge, places=slots.places))
            self.transport.push(pushes)

    def _group_of(self, emb: DistEmbedding) -> dict[str, Any]:
        """The group that a table is in; a ConfigError where it is in none."""
        for group in self.param_groups:
            if any(table.anchor is emb.anchor for table in group["tables"]):
                return group
        raise ConfigError(f"{type(self).__name__} does not train {emb!r:.80}; its tables: {', '.join(self._tables)}")

    def _checked_pushes(self) -> list[Push]:
        pushes = []
        for group in self.param_groups:
            rule = self.rule_of(group)
            for table in group["tables"]:
                if table.touched or self.transport.lockstep:
                    spread = self._merge == "mean" or rule.per_occurrence
                    kept = "kept" if self.transport.takes_bags else "spread" if spread else "merged"
                    ids, grads = table.joined_pending(kept)
                    if isinstance(grads, Tensor):
                        check_gradient(table.name, ids, grads, table.embedding_dim)
                    grads = -grads if group["maximize"] else grads
                    pushes.append(Push(table.name, ids, grads, rule, self._merge, table.touched))
        return pushes

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
        if trainers > 1 and self._lazy:
            raise ConfigError(
                f"table {min(self._lazy)!r}: lazy weight decay needs every trainer in every step, no turns"
            )
        self._turns = trainers
        for clock in self._clocks(self._tables):
            clock.add_((position - int(clock)) % trainers)

    def _clocks(self, tables: Iterable[str]) -> list[Tensor]:
        shards = [self.transport.shard(table) for table in tables]
        return [s.state[name] for s in shards for name, spec in s.state_specs.items() if spec.kind == "table"]

    def set_lr(self, lr: float | Tensor) -> None:
        """Give every group a learning rate, which the next ``step()`` takes, for gradients that are there already too.

        It is that of this process: in collective mode every rank calls it, in kvstore mode it travels with each push.
        A scheduler goes on from its own rate.

        Raises:
            ConfigError: NaN, infinite or negative; no group has changed then.
        """
        fresh = [{**group, "lr": lr} for group in self.param_groups]
        for trial in fresh:
            self.rule_of(trial)
        self.set_groups(fresh)

    def set_step(self, step: int) -> None:
        """Let the tables count as many steps as given: the next ``step()`` is ``step + 1`` to them, at once.

        Adam's global clock, Adagrad's with ``lr_decay`` and that of stochastic rounding take it, those of this process:
        in collective mode every rank calls it, in kvstore mode clocks travel with each push.

        Raises:
            ConfigError: step is no integer of at least 0, or the optimizer counts no steps, or those of each row.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ConfigError(f"{type(self).__name__}: step={step!r} must be an integer of at least 0")
        shards = [self.transport.shard(table) for table in self._tables]
        clocks = [shard.state[name] for shard in shards for name in _counted(shard)]
        if not clocks:
            of_rows = any("step" in shard.state for shard in shards)
            why = "counts the steps of each row; set emb.optm_state['step']" if of_rows else "keeps no count of steps"
            raise ConfigError(f"{type(self).__name__} {why}: set_step({step}) would change nothing")
        for clock in clocks:
            clock.fill_(step)

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
        """Free the optimizer's state, so that another optimizer may train the tables.

        What rows lack of lazy decay is made up for: of servers when every trainer closed its own, flushed and met.
        """
        self._detach()

    @property
    def tables(self) -> dict[str, DistEmbedding]:
        """The tables by name."""
        return dict(self._tables)

    @property
    def choices(self) -> dict[str, Any]:
        """The options that every group shares, ``merge`` among them."""
        return {**self._options, "merge": self._merge}

    @property
    def rank(self) -> int:
        """This process."""
        return self.transport.rank

    @property
    def world_size(self) -> int:
        """Processes that share the tables."""
        return self.transport.world_size


def _counted(shard: EmbeddingShard) -> list[str]:
    """The names of the clocks that say which step of the table is next."""
    return [n for n in ("step", TABLE_STEP) if n in shard.state and shard.state_specs[n].kind == "table"]


def _detach(transport: Transport, names: Iterable[str]) -> None:
    for name in list(names):
        transport.detach(name)
