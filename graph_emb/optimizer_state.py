"""The tables of an optimizer, and its state: dicts in torch's and DGL's form, and safetensors files.

State of rows is copied whole; ids are the table's (partition order). Files hold no pickle and are replaced atomically.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError, ModeError
from graph_emb.core.storage import replacing
from graph_emb.embedding import DistEmbedding
from graph_emb.optim.rule import Rule
from graph_emb.transport.base import Transport


def as_groups(params: Any) -> list[dict[str, Any]]:
    """Groups with their ``tables``: tables given plainly share one group, dicts are a group each."""
    if isinstance(params, DistEmbedding):
        raise ConfigError("params is one DistEmbedding; pass a list of tables, such as [emb]")
    entries = list(params)
    if not entries:
        raise ConfigError("params is empty; pass at least one DistEmbedding")
    if not any(isinstance(entry, dict) for entry in entries):
        entries = [{"params": entries}]
    return [_as_group(entry) for entry in entries]


def _as_group(entry: Any) -> dict[str, Any]:
    group = dict(entry) if isinstance(entry, dict) else {"params": [entry]}
    params = group.pop("params", None)
    if isinstance(params, (DistEmbedding, Tensor)):
        params = [params]
    tables = list(params) if isinstance(params, Iterable) else []  # a generator can be looked through only once
    if not tables or not all(isinstance(table, DistEmbedding) for table in tables):
        raise ConfigError(f"params holds {entry!r:.80}; sparse optimizers train DistEmbedding tables only")
    return {"tables": tables, **group}


def common_transport(tables: Iterable[DistEmbedding]) -> Transport:
    transports = {id(table.transport): table.transport for table in tables}
    if len(transports) > 1:
        raise ModeError("the tables were made before and after a shutdown(); make them in one mode")
    return next(iter(transports.values()))


def attach_all(transport: Transport, rules: dict[str, Rule]) -> None:
    """Attach every table or none."""
    done: list[str] = []
    try:
        for name, rule in rules.items():
            transport.attach(name, rule)
            done.append(name)
    except Exception:
        detach_all(transport, done)
        raise


def detach_all(transport: Transport, names: Iterable[str]) -> None:
    for name in names:
        transport.detach(name)


FORMAT = 1


class StatefulOptimizer(Protocol):
    """The part of ``graph_emb.optimizer.SparseOptimizer`` on which its state depends."""

    param_groups: list[dict[str, Any]]

    @property
    def tables(self) -> dict[str, DistEmbedding]: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def choices(self) -> dict[str, Any]: ...
    @property
    def rule_type(self) -> type[Rule]: ...
    def rule_of(self, group: dict[str, Any]) -> Rule: ...


def header(optimizer: StatefulOptimizer) -> dict[str, Any]:
    """Rule, options and parameter groups with their numbers: everything but the state of rows."""
    groups = [
        {"tables": [table.name for table in group["tables"]], **_numbers(group)} for group in optimizer.param_groups
    ]
    return {"rule": optimizer.rule_type.__name__, "options": optimizer.choices, "param_groups": groups}


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    return {
        name: float(value) if isinstance(value, Tensor) else value
        for name, value in group.items()
        if name not in ("params", "tables")
    }


def snapshot(optimizer: StatefulOptimizer) -> dict[str, Any]:
    """Header and copies of all state, every step of this process applied."""
    optimizer.transport.flush()
    state = {
        name: {key: value.clone() for key, value in table.optm_state.items()}
        for name, table in optimizer.tables.items()
    }
    return {**header(optimizer), "state": state}


def restore(optimizer: StatefulOptimizer, saved: dict[str, Any]) -> None:
    """Check a snapshot against the optimizer, then copy it in."""
    missing = {"rule", "options", "param_groups", "state"} - set(saved)
    if missing:
        raise ConfigError(f"state_dict lacks {sorted(missing)}; pass what state_dict() returned")
    fresh = checked_groups(optimizer, saved, "state_dict")
    _check_tensors(optimizer, saved["state"])
    optimizer.transport.flush()  # steps on their way would change what is copied in
    set_groups(optimizer, fresh)
    _copy_in(optimizer, saved["state"])


def checked_groups(optimizer: StatefulOptimizer, saved: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The optimizer's groups with the numbers of a saved ``header``; changes nothing.

    Raises:
        ConfigError: it belongs to another rule, other options or other tables, or a number is out of its limits.
    """
    mine = header(optimizer)
    for key in ("rule", "options"):
        if saved[key] != mine[key]:
            raise ConfigError(f"{where} has {key} {saved[key]}, this optimizer {mine[key]}; make them equal")
    tables = [group["tables"] for group in saved["param_groups"]]
    own = [group["tables"] for group in mine["param_groups"]]
    if tables != own:
        raise ConfigError(f"{where} is for tables {tables}, this optimizer trains {own}")
    fresh = []
    for group, values in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        numbers = _with_tuple_betas({key: value for key, value in values.items() if key != "tables"})
        trial = {**group, **numbers}
        optimizer.rule_of(trial)
        fresh.append(trial)
    return fresh


def set_groups(optimizer: StatefulOptimizer, fresh: list[dict[str, Any]]) -> None:
    """Give the optimizer the numbers that ``checked_groups`` returned."""
    for group, trial in zip(optimizer.param_groups, fresh, strict=True):
        group.update(trial)


def _check_tensors(optimizer: StatefulOptimizer, state: dict[str, dict[str, Tensor]]) -> None:
    for name, table in optimizer.tables.items():
        own = table.optm_state
        found = state.get(name, {})
        if set(found) != set(own):
            raise ConfigError(f"table {name!r}: saved state is {sorted(found)}, the rule keeps {sorted(own)}")
        for key, value in found.items():
            if tuple(value.shape) != tuple(own[key].shape) or value.dtype != own[key].dtype:
                raise ConfigError(
                    f"table {name!r}: saved {key} has shape {tuple(value.shape)} of {value.dtype}, "
                    f"the table needs {tuple(own[key].shape)} of {own[key].dtype}"
                )


def _copy_in(optimizer: StatefulOptimizer, state: dict[str, dict[str, Tensor]]) -> None:
    for name, table in optimizer.tables.items():
        for key, target in table.optm_state.items():
            target.copy_(state[name][key])


def local_snapshot(optimizer: StatefulOptimizer) -> dict[str, Any]:
    """DGL's ``local_state_dict``: hyper-parameters under their private names, states with the ids of this rank."""
    full = snapshot(optimizer)
    first = full["param_groups"][0]
    params = {
        "world_size": optimizer.transport.world_size,
        **{f"_{key}": value for key, value in first.items() if key != "tables"},
    }
    if "_betas" in params:
        params["_beta1"], params["_beta2"] = params.pop("_betas")
    emb_states = {
        name: {
            "ids": torch.arange(table.shard.num_rows) + table.shard.first_id,
            "states": full["state"][name],
        }
        for name, table in optimizer.tables.items()
    }
    return {
        "params": params,
        "emb_states": emb_states,
        "header": {key: full[key] for key in full if key != "state"},
    }


def restore_local(optimizer: StatefulOptimizer, saved: dict[str, Any]) -> None:
    """Check and copy in what ``local_snapshot`` returned."""
    missing = {"params", "emb_states", "header"} - set(saved)
    if missing:
        raise ConfigError(f"local state lacks {sorted(missing)}; pass what local_state_dict() returned")
    for name, table in optimizer.tables.items():
        ids = saved["emb_states"].get(name, {}).get("ids", torch.empty(0))
        expected = torch.arange(table.shard.num_rows) + table.shard.first_id
        if not torch.equal(ids, expected):
            raise ConfigError(
                f"table {name!r}: saved state covers {len(ids)} ids, this rank owns "
                f"[{table.shard.first_id}, {table.shard.first_id + table.shard.num_rows})"
            )
    state = {name: entry["states"] for name, entry in saved["emb_states"].items()}
    restore(optimizer, {**saved["header"], "state": state})


def _rank_file(f: str | Path, rank: int) -> Path:
    path = Path(f)
    return path.with_name(f"{path.name}_{rank}")


def save(optimizer: StatefulOptimizer, f: str | Path) -> None:
    """Write ``f_<rank>``, every step of this process applied; it appears complete or not at all."""
    from safetensors.torch import save_file

    target = _rank_file(f, optimizer.transport.rank)
    if not target.parent.is_dir():
        raise DataError(f"{target.parent} is no folder; make it before save()")
    optimizer.transport.flush()
    tensors = {
        f"{name}/{key}": value
        for name, table in optimizer.tables.items()
        for key, value in table.optm_state.items()
        if value.numel()
    }
    about = {"format": FORMAT, "world_size": optimizer.transport.world_size, **header(optimizer)}
    with replacing(target) as draft:
        save_file(tensors, draft, metadata={"graph_emb": json.dumps(about)})


def load(optimizer: StatefulOptimizer, f: str | Path) -> None:
    """Read ``f_<rank>``, check it, copy it in."""
    from safetensors import SafetensorError, safe_open

    target = _rank_file(f, optimizer.transport.rank)
    if not target.is_file():
        raise DataError(f"no optimizer state at {target}; save() writes it")
    try:
        with safe_open(target, framework="pt") as file:
            about = json.loads((file.metadata() or {})["graph_emb"])
            names = set(file.keys())
            state = {
                name: {
                    key: file.get_tensor(f"{name}/{key}") if f"{name}/{key}" in names else torch.empty_like(value)
                    for key, value in table.optm_state.items()
                    if f"{name}/{key}" in names or not value.numel()
                }
                for name, table in optimizer.tables.items()
            }
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise DataError(f"{target} is no optimizer state of graph_emb or is damaged: {error}") from error
    if about.get("format") != FORMAT:
        raise DataError(f"{target} has format {about.get('format')}, this version reads {FORMAT}")
    writers, readers = about.get("world_size"), optimizer.transport.world_size
    if writers != readers:
        raise ConfigError(
            f"{target} was written by {writers} processes, this job has {readers}; "
            "use a checkpoint to change the number of processes"
        )
    restore(optimizer, {**about, "state": state})


def _with_tuple_betas(group: dict[str, Any]) -> dict[str, Any]:
    return {**group, "betas": tuple(group["betas"])} if "betas" in group else group
