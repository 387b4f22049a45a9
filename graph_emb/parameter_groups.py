"""Groups of tables with numbers of their own: those that a caller passes as ``params``, and those of a state dict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from graph_emb.composed import ComposedEmbedding, expanded
from graph_emb.core.errors import ConfigError
from graph_emb.embedding import DistEmbedding


def groups_of(params: Any) -> list[dict[str, Any]]:
    """Groups whose ``params`` are lists: tables given plainly share one group, dicts are a group each."""
    if isinstance(params, DistEmbedding):
        raise ConfigError("params is one DistEmbedding; pass a list of tables, such as [emb]")
    if not isinstance(params, Iterable):
        raise ConfigError(f"params is {params!r}; pass a list of tables, such as [emb]")
    entries = list(params)
    if not entries:
        raise ConfigError("params is empty; pass at least one DistEmbedding")
    if not any(isinstance(entry, dict) for entry in entries):
        entries = [{"params": entries}]
    found = []
    for entry in entries:
        group = dict(entry) if isinstance(entry, dict) else {"params": [entry]}
        own = group.pop("params", None)
        if isinstance(own, (DistEmbedding, Tensor)):
            own = [own]
        if isinstance(own, ComposedEmbedding):
            own = own.tables
        tables = expanded(own) if isinstance(own, Iterable) else []  # a generator can be looked through only once
        if not tables or not all(isinstance(table, DistEmbedding) for table in tables):
            raise ConfigError(f"params holds {entry!r:.80}; sparse optimizers train DistEmbedding tables only")
        found.append({"params": tables, **group})
    return found


def by_place(saved: dict[str, Any], own: list[list[str]]) -> dict[str, Any]:
    """A state dict with the names of the tables of each group here, ``own``, in place of those at their places.

    Only where it has as many in each group and none by a name of those here; else it stays as it is.
    """
    theirs = [group["tables"] for group in saved["param_groups"]]
    flat, mine = ([name for names in groups for name in names] for groups in (theirs, own))
    if [len(names) for names in own] != [len(names) for names in theirs] or set(flat) & set(mine):
        return saved
    groups = [{**group, "tables": names} for group, names in zip(saved["param_groups"], own, strict=True)]
    state = {name: saved["state"].get(old, {}) for name, old in zip(mine, flat, strict=True)}
    return {**saved, "param_groups": groups, "state": state}
