"""Files of an optimizer's state: safetensors with a header as JSON, no pickle, replaced atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.storage import replacing

FORMAT = 1

State = Mapping[str, Mapping[str, Tensor]]
"""Tensors by table and name."""


def write_state(target: Path, state: State, world_size: int, header: Mapping[str, Any]) -> None:
    """Write the state of one of ``world_size`` processes, with a header that JSON can hold.

    Raises:
        DataError: the folder is missing.
    """
    from safetensors.torch import save_file

    if not target.parent.is_dir():
        raise DataError(f"{target.parent} is no folder; make it before save()")
    tensors = {f"{table}/{key}": value for table, named in state.items() for key, value in named.items()}
    tensors = {key: value for key, value in tensors.items() if value.numel()}
    about = {"format": FORMAT, "world_size": world_size, **header}
    with replacing(target) as draft:
        save_file(tensors, draft, metadata={"graph_emb": json.dumps(about)})


def read_state(target: Path, own: State, world_size: int) -> dict[str, Any]:
    """The header that ``write_state`` wrote, with the tensors as ``state``; empty ones are made as ``own`` has them.

    Raises:
        DataError: the file is missing or damaged.
        ConfigError: another number of processes wrote it.
    """
    from safetensors import SafetensorError, safe_open

    if not target.is_file():
        raise DataError(f"no optimizer state at {target}; save() writes it")
    try:
        with safe_open(target, framework="pt") as file:
            about = json.loads((file.metadata() or {})["graph_emb"])
            names = set(file.keys())
            state = {
                table: {
                    key: file.get_tensor(f"{table}/{key}") if f"{table}/{key}" in names else torch.empty_like(value)
                    for key, value in named.items()
                    if f"{table}/{key}" in names or not value.numel()
                }
                for table, named in own.items()
            }
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise DataError(f"{target} is no optimizer state of graph_emb or is damaged: {error}") from error
    if about.get("format") != FORMAT:
        raise DataError(f"{target} has format {about.get('format')}, this version reads {FORMAT}")
    if about.get("world_size") != world_size:
        raise ConfigError(
            f"{target} was written by {about.get('world_size')} processes, this job has {world_size}; "
            "use a checkpoint to change the number of processes"
        )
    return {**about, "state": state}
