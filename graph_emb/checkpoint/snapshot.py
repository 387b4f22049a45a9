"""Check and fix the content of a checkpoint before the first byte is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor

from graph_emb import optimizer_state
from graph_emb.checkpoint.dense import DenseObjects
from graph_emb.checkpoint.manifest import GroupEntry, OptimizerEntry, WorldEntry
from graph_emb.checkpoint.retention import Retention
from graph_emb.checkpoint.safetensors_file import dtype_name
from graph_emb.checkpoint.table_writer import TableShare
from graph_emb.core.errors import ConfigError
from graph_emb.core.json_codec import encode
from graph_emb.embedding import DistEmbedding
from graph_emb.optimizer import SparseOptimizer
from graph_emb.table.spec import accumulation_dtype
from graph_emb.transport.base import Transport


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint before it is written, as one rank has it.

    Attributes:
        place: Where it will be.
        rank, ranks: This process, and how many write.
        shares: This rank's rows.
        tables: What the manifest says of each table, without files and clocks.
        about: Other entries of the manifest.
        tensors: Of model, torch optimizers and schedulers; the first rank's.
        generators, extra: This rank's, as JSON.
        retention: Which older checkpoints stay.
    """

    place: Path
    rank: int
    ranks: int
    shares: list[TableShare]
    tables: dict[str, dict[str, Any]]
    about: dict[str, Any]
    tensors: dict[str, Tensor]
    generators: dict[str, Any]
    extra: dict[str, Any]
    retention: Retention

    def copied(self) -> Snapshot:
        """The same in memory of its own."""
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in self.tensors.items()}
        return replace(self, shares=[share.copied() for share in self.shares], tensors=tensors)


def take(
    place: Path,
    transport: Transport,
    tables: Sequence[DistEmbedding],
    optimizers: Sequence[SparseOptimizer],
    dense: DenseObjects,
    step: int,
    extra: dict[str, Any],
    retention: Retention,
) -> Snapshot:
    """Check everything that is to be saved; copies nothing.

    Raises:
        ConfigError: an argument cannot be saved.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ConfigError(f"step={step!r} must be an integer of at least 0")
    trained = trained_by(tables, optimizers)
    headers = [optimizer_state.header(optimizer) for optimizer in optimizers]
    entries, tensors = dense.encoded()
    about = {
        "step": step,
        "created": datetime.now(timezone.utc).isoformat(timespec="microseconds"),
        "world": WorldEntry(mode=transport.mode, ranks=transport.world_size, library=version("graph_emb")),
        "metric": None if retention.metric is None else float(retention.metric),
        "optimizers": [_optimizer_entry(header) for header in headers],
        **entries,
    }
    described = {table.name: _describe(table, headers, trained.get(table.name)) for table in tables}
    shares = [TableShare.of(table, table.name in trained) for table in tables]
    return Snapshot(
        place,
        transport.rank,
        transport.world_size,
        shares,
        described,
        about,
        tensors if transport.rank == 0 else {},
        dense.generator_states(),
        encode(extra, "extra"),
        retention,
    )


def trained_by(tables: Sequence[DistEmbedding], optimizers: Sequence[SparseOptimizer]) -> dict[str, int]:
    """The position of the optimizer of each table that has one.

    Raises:
        ConfigError: an optimizer trains a table that is not given.
    """
    names = {table.name: table for table in tables}
    found: dict[str, int] = {}
    for k, optimizer in enumerate(optimizers):
        for name, table in optimizer.tables.items():
            if names.get(name) is not table:
                raise ConfigError(f"optimizers[{k}] trains table {name!r}, which is not in tables; pass it there too")
            if name in found:
                raise ConfigError(f"optimizers[{found[name]}] and optimizers[{k}] both train table {name!r}")
            found[name] = k
    return found


def _optimizer_entry(header: dict[str, Any]) -> OptimizerEntry:
    groups = [
        GroupEntry(tables=group["tables"], numbers={key: value for key, value in group.items() if key != "tables"})
        for group in header["param_groups"]
    ]
    return OptimizerEntry(rule=header["rule"], options=header["options"], groups=groups)


def _describe(table: DistEmbedding, headers: list[dict[str, Any]], optimizer: int | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "num_rows": table.num_embeddings,
        "dim": table.embedding_dim,
        "dtype": dtype_name(table.dtype),
        "state": {},
    }
    if optimizer is not None:
        header = headers[optimizer]
        numbers = next(group for group in header["param_groups"] if table.name in group["tables"])
        entry["rule"], entry["options"] = header["rule"], header["options"]
        entry["numbers"] = {key: value for key, value in numbers.items() if key != "tables"}
        entry["state"] = {
            name: {"kind": spec.kind, "dtype": dtype_name(spec.dtype or accumulation_dtype(table.dtype))}
            for name, spec in table.shard.state_specs.items()
        }
    return entry
