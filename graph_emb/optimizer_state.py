"""The state of a sparse optimizer as dicts and as safetensors files.

State of rows is copied whole; ids are the table's (partition order). Files hold no pickle and are replaced atomically.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graph_emb import optimizer_files
from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.embedding import DistEmbedding
from graph_emb.optim.rule import Rule
from graph_emb.parameter_groups import by_place


class OptimizerState(torch.optim.Optimizer):
    """What a ``SparseOptimizer`` keeps besides its tables, saved and restored."""

    rule_type: type[Rule]
    transport: Any
    _tables: dict[str, DistEmbedding]

    if TYPE_CHECKING:

        @property
        def choices(self) -> dict[str, Any]: ...
        @property
        def tables(self) -> dict[str, DistEmbedding]: ...
        def rule_of(self, group: dict[str, Any]) -> Rule: ...

    def header(self) -> dict[str, Any]:
        """Rule, options and parameter groups with their numbers: everything but the state of rows."""
        groups = [
            {
                "tables": [table.name for table in group["tables"]],
                **{
                    name: float(value) if isinstance(value, Tensor) else value
                    for name, value in group.items()
                    if name not in ("params", "tables")
                },
            }
            for group in self.param_groups
        ]
        return {"rule": self.rule_type.__name__, "options": self.choices, "param_groups": groups}

    def state_dict(self) -> dict[str, Any]:
        """Copies of numbers and state: ``{"rule", "options", "param_groups", "state": {table: {name: tensor}}}``.

        Every step of this process is applied. Hooks run as torch's do.
        """
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        self.transport.flush()
        states = {name: table.shard.saved_state() for name, table in self._tables.items()}
        state = {name: {key: value.clone() for key, value in values.items()} for name, values in states.items()}
        found = {**self.header(), "state": state}
        for after in self._optimizer_state_dict_post_hooks.values():
            changed = after(self, found)
            found = found if changed is None else changed
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned; everything is checked before anything changes. Hooks run as torch's do.

        Where no saved table has the name of one here, tables take the state of those at their places, as in torch.

        Raises:
            ConfigError: another rule, other options, other tables or shapes.
        """
        state_dict = state_dict.copy()
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state_dict)
            state_dict = state_dict if changed is None else changed
        missing = {"rule", "options", "param_groups", "state"} - set(state_dict)
        if missing:
            raise ConfigError(f"state_dict lacks {sorted(missing)}; pass what state_dict() returned")
        state_dict = by_place(state_dict, [[table.name for table in group["tables"]] for group in self.param_groups])
        fresh, state = self.checked_groups(state_dict, "state_dict"), state_dict["state"]
        for name, table in self._tables.items():
            if table.spec.growth:
                raise ModeError(f"table {name!r} grows: load_state_dict knows no ids; use ge.load_checkpoint")
            own, found = table.shard.state, state.get(name, {})
            if set(found) != set(own):
                raise ConfigError(f"table {name!r}: saved state is {sorted(found)}, the rule keeps {sorted(own)}")
            for key, value in found.items():
                shape = table.shard.state_specs[key].shape(table.shard.num_rows, table.embedding_dim)
                if tuple(value.shape) != shape or value.dtype != own[key].dtype:
                    raise ConfigError(
                        f"table {name!r}: saved {key} has shape {tuple(value.shape)} of {value.dtype}, "
                        f"the table needs {shape} of {own[key].dtype}"
                    )
        self.transport.flush()  # steps on their way would change what is copied in
        self.set_groups(fresh)
        for name, table in self._tables.items():
            table.shard.settle()
            for key, target in table.shard.state.items():
                if table.shard.in_memory or table.shard.state_specs[key].kind == "table":
                    target.copy_(state[name][key])
                else:
                    table.shard.write_column(key, torch.arange(table.shard.num_rows), state[name][key])
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def checked_groups(self, saved: dict[str, Any], where: str) -> list[dict[str, Any]]:
        """The groups with the numbers of a saved ``header``; changes nothing.

        Raises:
            ConfigError: it belongs to another rule, other options or other tables, or a number is out of its limits.
        """
        mine = self.header()
        for key in ("rule", "options"):
            if saved[key] != mine[key]:
                raise ConfigError(f"{where} has {key} {saved[key]!r}, this optimizer {mine[key]!r}; make them equal")
        tables, own = ([group["tables"] for group in one["param_groups"]] for one in (saved, mine))
        if tables != own:
            raise ConfigError(f"{where} is for tables {tables}, this optimizer trains {own}")
        fresh = []
        for group, values in zip(self.param_groups, saved["param_groups"], strict=True):
            numbers = {key: value for key, value in values.items() if key != "tables"}
            if isinstance(numbers.get("betas"), list):  # JSON has no tuples
                numbers["betas"] = tuple(numbers["betas"])
            fresh.append({**group, **numbers})
            try:
                self.rule_of(fresh[-1])
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from None
        return fresh

    def set_groups(self, fresh: list[dict[str, Any]]) -> None:
        """Take the numbers that ``checked_groups`` returned."""
        for group, trial in zip(self.param_groups, fresh, strict=True):
            group.update(trial)

    def save(self, f: str | Path) -> None:
        """Write the state to ``f_<rank>`` (DGL's naming) as safetensors, atomically; no pickle. Every process calls it.

        All steps of all processes that came before are in it.

        Raises:
            DataError: the folder is missing, or another process failed.
        """
        optimizer_files.save(self, f)

    def load(self, f: str | Path) -> None:
        """Read what ``save`` wrote, by any number of processes, of any partition of the graph. Every process calls it.

        As in DGL process r of W reads the files r, r + W, ... and sends rows to their owners. Numbers come from its
        file; clocks that count the steps of a table are its own, of another number of processes the highest.
        Everything is checked on all processes before anything changes.

        Raises:
            DataError: a file is missing, damaged or of another save, or another process failed.
            ConfigError: it belongs to another rule or other tables.
        """
        optimizer_files.load(self, f)

    def local_state_dict(self) -> dict[str, Any]:
        """DGL's form: ``{"params": {...}, "emb_states": {table: {"ids", "states": {name: tensor}}}}``.

        Hyper-parameters have their private names, states the ids of this rank.
        """
        return optimizer_files.local_form(self)

    def load_local_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``local_state_dict`` returned to as many processes."""
        optimizer_files.load_local_form(self, state)
