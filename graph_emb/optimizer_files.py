"""``opt.save`` and ``opt.load``: a file for each process, for any number of processes and any partition of the graph;
and DGL's form of a process's state.

A file names its rows by original ids; whoever reads it sends them to their owners.

Legend: N rows of a table in a file, B rows of a piece.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError, ModeError
from graph_emb.embedding import DistEmbedding
from graph_emb.optim.state_file import IDS, StateFile, write_state
from graph_emb.table.initializers import CHUNK_ELEMENTS
from graph_emb.table.lazy_decay import DECAY, DECAYED
from graph_emb.transport.agreement import agree, highest
from graph_emb.transport.base import Transport


class Optimizer(Protocol):
    """A sparse optimizer as its files know it."""

    transport: Transport

    @property
    def tables(self) -> Mapping[str, DistEmbedding]: ...
    def header(self) -> dict[str, Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...
    def checked_groups(self, saved: dict[str, Any], where: str) -> list[dict[str, Any]]: ...
    def set_groups(self, fresh: list[dict[str, Any]]) -> None: ...


def check_fixed(tables: Mapping[str, DistEmbedding]) -> None:
    """Raise a ModeError where a table grows: files of states know no ids."""
    for name, table in tables.items():
        if table.spec.growth:
            raise ModeError(f"table {name!r} grows: its optimizer is saved and loaded with it, by ge.save_checkpoint")


def rank_file(f: str | Path, rank: int) -> Path:
    """DGL's name of the file of a process."""
    return Path(f).with_name(f"{Path(f).name}_{rank}")


def save(optimizer: Optimizer, f: str | Path) -> None:
    """Write the rows of this process and of machines without one; see ``SparseOptimizer.save``."""
    transport = optimizer.transport
    check_fixed(optimizer.tables)
    transport.flush()
    number = transport.votes(secrets.randbits(48) if transport.rank == 0 else 0)  # every step of all is applied

    def write() -> None:
        tensors: dict[str, Tensor] = {}
        for name, table in optimizer.tables.items():
            tensors.update({f"{name}/{key}": value for key, value in _shares(table).items()})
        sizes = {name: table.num_embeddings for name, table in optimizer.tables.items()}
        about = {"world_size": transport.world_size, "save": number, "num_rows": sizes, **optimizer.header()}
        write_state(rank_file(f, transport.rank), tensors, about)

    agree(transport, write, f"save of optimizer state {f}")


def _shares(table: DistEmbedding) -> dict[str, Tensor]:
    """The original ids of this process's rows, (N,), and their state, as rows are read."""
    shard, shares = table.shard, table.transport.rows(table.name)
    ids = [table.original_ids.of(share.first_id, share.first_id + share.num_rows) for share in shares]
    found = {IDS: torch.from_numpy(np.concatenate(ids).astype(np.int64))}
    for name, spec in shard.state_specs.items():
        if spec.kind == "table":
            found[name] = shard.state[name].clone()
        elif name == DECAYED:
            found[name] = shard.state[DECAY].repeat(len(found[IDS]))
        else:
            found[name] = torch.cat([share.read(name, 0, share.num_rows) for share in shares])
    return {name: value.contiguous().cpu() for name, value in found.items()}


@dataclass(frozen=True)
class _Read:
    """A checked file: the ids here of each table's rows in it, (N,), and the groups of its header."""

    file: StateFile
    ids: dict[str, Tensor]
    groups: list[dict[str, Any]]


def load(optimizer: Optimizer, f: str | Path) -> None:
    """Read this process's share of the files and send their rows to the owners; see ``SparseOptimizer.load``."""
    transport, what = optimizer.transport, f"load of optimizer state {f}"
    check_fixed(optimizer.tables)
    transport.flush()

    def first() -> dict[str, Any]:
        return StateFile(rank_file(f, 0)).header if transport.rank == 0 else {}

    told = agree(transport, first, what)
    saved, number = (transport.votes(int(told.get(key, 0))) for key in ("world_size", "save"))
    mine = [rank_file(f, rank) for rank in range(transport.rank, saved, transport.world_size)]
    files = agree(transport, lambda: [_checked(optimizer, file, saved, number) for file in mine], what)
    for name, table in optimizer.tables.items():
        rows = transport.votes(sum(len(file.ids[name]) for file in files))
        if rows != table.num_embeddings:
            raise DataError(f"{what}: the files have {rows} rows of table {name!r} of {table.num_embeddings}")
    groups = agree(transport, lambda: _groups(optimizer, f, saved, number, files), what)
    optimizer.set_groups(groups)
    for table in optimizer.tables.values():
        _write_rows(table, files)
        _set_clocks(table, files, own=saved == transport.world_size)
    transport.votes(True)  # rows of the others are there too


def _checked(optimizer: Optimizer, path: Path, saved: int, number: int) -> _Read:
    file = StateFile(path)
    said = file.header.get("world_size"), file.header.get("save")
    if said != (saved, number):
        raise DataError(
            f"{path} is of another save than the file of rank 0 ({said[0]} processes, that one {saved}); remove the "
            "files of earlier saves, or save under a name of its own"
        )
    groups = optimizer.checked_groups(file.header, str(path))
    ids = {name: _ids_here(file, table) for name, table in optimizer.tables.items()}
    return _Read(file, ids, groups)


def _ids_here(file: StateFile, table: DistEmbedding) -> Tensor:
    """The ids here of a table's rows, (N,), once its state is known to fit.

    Raises:
        ConfigError: another shape, or other state.
        DataError: ids that the table has not, or has twice.
    """
    name, specs, num_rows = table.name, table.shard.state_specs, file.header["num_rows"][table.name]
    if num_rows != table.num_embeddings:
        raise ConfigError(f"{file.path}: table {name!r} has {num_rows} rows, the one here {table.num_embeddings}")
    if file.names(name) != {IDS, *specs}:
        found = sorted(file.names(name) - {IDS})
        raise ConfigError(f"{file.path}: table {name!r}: saved state is {found}, the rule keeps {sorted(specs)}")
    original = file.ids(name)
    for key, spec in specs.items():
        file.check(name, key, spec.shape(len(original), table.embedding_dim), spec.dtype_beside(table.dtype))
    ids = table.original_ids.find(original)
    if (ids < 0).any() or len(np.unique(ids)) < len(ids):
        raise DataError(f"{file.path}: table {name!r} has original ids that the one here has not; is it another graph?")
    return torch.from_numpy(ids)


def _groups(optimizer: Optimizer, f: str | Path, saved: int, number: int, files: list[_Read]) -> list[dict[str, Any]]:
    """The numbers of this process's file; where there are fewer files than processes, of one that it can see."""
    if files:
        return files[0].groups
    seen = next((path for path in (rank_file(f, rank) for rank in range(saved)) if path.is_file()), rank_file(f, 0))
    return _checked(optimizer, seen, saved, number).groups


def _write_rows(table: DistEmbedding, files: list[_Read]) -> None:
    """Send all rows to their owners, in as many pieces on each rank."""
    transport, name = table.transport, table.name
    size = max(1, CHUNK_ELEMENTS // table.embedding_dim)
    pieces = [
        (read, start, min(start + size, len(read.ids[name])))
        for read in files
        for start in range(0, len(read.ids[name]), size)
    ]
    columns = [(key, spec) for key, spec in table.shard.state_specs.items() if spec.kind != "table"]
    for turn in range(highest(transport, len(pieces))):
        for key, spec in columns:
            ids = torch.empty(0, dtype=torch.int64)
            values = torch.empty(spec.shape(0, table.embedding_dim), dtype=spec.dtype_beside(table.dtype))
            if turn < len(pieces):
                read, start, stop = pieces[turn]
                ids, values = read.ids[name][start:stop], read.file.read(name, key, start, stop)
            transport.write_state(name, key, ids, values)


def _set_clocks(table: DistEmbedding, files: list[_Read], own: bool) -> None:
    """Give clocks of the table their values: this process's own, or the highest of all."""
    for key, spec in table.shard.state_specs.items():
        if spec.kind == "table":
            value = max((float(read.file.read(table.name, key)) for read in files), default=0.0)
            if not own:  # numbers of at least 0 are in the order of their bits
                (bits,) = struct.unpack("<q", struct.pack("<d", value))
                (value,) = struct.unpack("<d", struct.pack("<q", highest(table.transport, bits)))
            table.shard.state[key].fill_(value)


def local_form(optimizer: Optimizer) -> dict[str, Any]:
    """See ``SparseOptimizer.local_state_dict``."""
    header = optimizer.state_dict()
    state = header.pop("state")
    numbers = {f"_{key}": value for key, value in header["param_groups"][0].items() if key != "tables"}
    if "_betas" in numbers:
        numbers["_beta1"], numbers["_beta2"] = numbers.pop("_betas")
    emb_states = {
        name: {"ids": torch.arange(table.shard.num_rows) + table.shard.first_id, "states": state[name]}
        for name, table in optimizer.tables.items()
    }
    params = {"world_size": optimizer.transport.world_size, **numbers}
    return {"params": params, "emb_states": emb_states, "header": header}


def load_local_form(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """See ``SparseOptimizer.load_local_state_dict``."""
    missing = {"params", "emb_states", "header"} - set(state)
    if missing:
        raise ConfigError(f"local state lacks {sorted(missing)}; pass what local_state_dict() returned")
    for name, table in optimizer.tables.items():
        ids, low = state["emb_states"].get(name, {}).get("ids", torch.empty(0)), table.shard.first_id
        if not torch.equal(ids, torch.arange(table.shard.num_rows) + low):
            raise ConfigError(
                f"table {name!r}: saved state covers {len(ids)} ids, this rank owns "
                f"[{low}, {low + table.shard.num_rows}); save() and load() take any number of processes"
            )
    states = {name: entry["states"] for name, entry in state["emb_states"].items()}
    optimizer.load_state_dict({**state["header"], "state": states})
