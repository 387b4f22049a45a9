"""The tables of an optimizer: their groups, where they live, and the optimizer's claim on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from graph_emb.core.errors import ConfigError, ModeError
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
    """The transport of all tables."""
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
    """Give tables back."""
    for name in names:
        transport.detach(name)
