"""A checkpoint before and while it is written: checked and fixed, each rank's part, and the manifest over all parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim

from graph_emb.checkpoint.composed import Described, describe_composed, write_composed
from graph_emb.checkpoint.deltas import ChainRows, chain_of, changed_since
from graph_emb.checkpoint.manifest import (
    NAME,
    CheckpointManifest,
    FileEntry,
    GroupEntry,
    OptimizerEntry,
    ParentEntry,
    Retention,
    TableEntry,
    WorldEntry,
    digest_of,
    hidden,
)
from graph_emb.checkpoint.reader import Checkpoint
from graph_emb.checkpoint.row_files import IDS, TableShare, dtype_name, folder_of, write_shares, write_tensors
from graph_emb.composed import ComposedEmbedding
from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.json_codec import decode, encode
from graph_emb.core.storage import PendingFolder, write_text
from graph_emb.embedding import DistEmbedding
from graph_emb.optimizer import SparseOptimizer
from graph_emb.table.growing_rows import GrowingRows
from graph_emb.table.spec import StateSpec
from graph_emb.transport.base import Transport

MODEL = "model"


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint before it is written, as one rank has it."""

    place: Path  # where it will be
    rank: int
    ranks: int  # that write
    shares: list[TableShare]  # this rank's rows
    tables: dict[str, dict[str, Any]]  # the manifest's entry of each table, without files and clocks
    about: dict[str, Any]  # other entries of the manifest
    tensors: dict[str, Tensor]  # of model, torch optimizers and schedulers; the first rank's
    generators: dict[str, Any]  # this rank's, as JSON
    extra: dict[str, Any]  # this rank's, as JSON
    retention: Retention  # which older checkpoints stay
    composed: dict[str, Described]  # what the rows of composed tables are sums of; the first rank's, none of a delta

    def kept(self) -> Snapshot:
        """The same, whatever the training changes after: in memory of its own, rows in files kept there."""
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in self.tensors.items()}
        return replace(self, shares=[share.kept() for share in self.shares], tensors=tensors)

    def hurry(self) -> None:
        """Let the writer rest no more: somebody waits for it."""
        for share in list(self.shares):
            share.hurry()

    def release(self) -> None:
        """Let go of all rows. May be repeated."""
        for share in self.shares:
            share.release()
        self.shares.clear()


def take(
    place: Path,
    transport: Transport,
    tables: Sequence[DistEmbedding],
    optimizers: Sequence[SparseOptimizer],
    dense: DenseObjects,
    step: int,
    extra: dict[str, Any],
    retention: Retention,
    base: Path | None = None,
    composed: Sequence[ComposedEmbedding] = (),
) -> Snapshot:
    """Check everything that is to be saved; copies nothing.

    Args:
        composed: Tables whose rows are sums of those of ``tables``.
        base: The checkpoint that a delta follows.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ConfigError(f"step={step!r} must be an integer of at least 0")
    trained = trained_by(tables, optimizers)
    headers = [optimizer.header() for optimizer in optimizers]
    entries, tensors = dense.encoded()
    about = {
        "step": step,
        "created": datetime.now(timezone.utc).isoformat(timespec="microseconds"),
        "world": WorldEntry(mode=transport.mode, ranks=transport.world_size, library=version("graph_emb")),
        "metric": None if retention.metric is None else float(retention.metric),
        "optimizers": [
            OptimizerEntry(
                rule=header["rule"],
                options=header["options"],
                groups=[
                    GroupEntry(tables=group["tables"], numbers=_numbers(group)) for group in header["param_groups"]
                ],
            )
            for header in headers
        ],
        **entries,
    }
    described = {table.name: _describe(table, headers, trained.get(table.name)) for table in tables}
    if base is not None:
        about["parent"] = parent_of(place, base, tables, described)
    shares = [TableShare.of(table, table.name in trained, base is not None) for table in tables]
    if base is not None:
        chain = [Checkpoint(folder) for folder in chain_of(base)]
        for k, share in enumerate(shares):
            if share.step is None:  # of a table of a fixed size
                shares[k] = changed_since(share, ChainRows([one.part(share.name) for one in chain]))
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
        describe_composed(composed) if transport.rank == 0 and base is None else {},
    )


def trained_by(tables: Sequence[DistEmbedding], optimizers: Sequence[SparseOptimizer]) -> dict[str, int]:
    """The position of the optimizer of each table that has one."""
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


def state_dtypes(table: DistEmbedding) -> dict[str, tuple[StateSpec, str]]:
    """Each piece of a table's optimizer state with the name of its dtype."""
    specs = table.shard.state_specs
    return {name: (spec, dtype_name(spec.dtype_beside(table.dtype))) for name, spec in specs.items()}


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "tables"}


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
        entry["numbers"] = _numbers(numbers)
        entry["state"] = {
            name: {"kind": spec.kind, "dtype": dtype} for name, (spec, dtype) in state_dtypes(table).items()
        }
    return entry


def parent_of(
    place: Path, base: Path, tables: Sequence[DistEmbedding], described: Mapping[str, Mapping[str, Any]]
) -> ParentEntry:
    """What a delta at ``place`` says of the checkpoint that it follows.

    Raises:
        ConfigError: base lies elsewhere or is the same folder, or lacks a table or has it with other state; the changes
            of a growing table since base are not known.
        DataError: base is no checkpoint.
    """
    if base.parent != place.parent or base == place:
        raise ConfigError(f"base={str(base)!r}: a delta lies beside its base, under another name than {place.name!r}")
    manifest, digest = CheckpointManifest.read(base), digest_of(base)
    for table in tables:
        if table.name not in manifest.tables:
            raise ConfigError(f"base={str(base)!r}: has no table {table.name!r}; save a full checkpoint first")
        entry, grows = manifest.tables[table.name], isinstance(table.shard, GrowingRows)
        if grows != (entry.growth is not None):
            how = "with a fixed size" if grows else "that grows"
            raise ConfigError(f"base={str(base)!r}: has table {table.name!r} {how}; save a full checkpoint first")
        if grows and table.shard.since != digest:  # type: ignore[attr-defined]
            raise ConfigError(
                f"base={str(base)!r}: what changed in table {table.name!r} since that checkpoint is not known; base is "
                "the one that was saved in the foreground, or loaded with all state, last"
            )
        if not grows and entry.total > table.num_embeddings:
            raise ConfigError(
                f"base={str(base)!r}: has {entry.total} rows of table {table.name!r}, it has {table.num_embeddings} "
                "now; save a full checkpoint first"
            )
        saved, now = manifest.tables[table.name].model_dump(mode="json"), described[table.name]
        kinds = [{key: [one["kind"], one["dtype"]] for key, one in of["state"].items()} for of in (saved, now)]
        if kinds[0] != kinds[1]:
            raise ConfigError(
                f"base={str(base)!r}: has table {table.name!r} with state {kinds[0]}, it has {kinds[1]} now"
            )
    before = manifest.parent
    first, number = (digest, 1) if before is None else (before.base, before.sequence + 1)
    return ParentEntry(name=base.name, digest=digest, base=first, sequence=number)


DENSE = "dense.safetensors"
PARTS = "ranks"
"""Folder in the hidden folder: what each rank wrote, until the first rank has put it into the manifest."""


def part_file(place: Path, rank: int) -> Path:
    """The file that appears when a rank has written everything."""
    return hidden(place) / PARTS / f"{rank}.json"


def write_part(snapshot: Snapshot) -> None:
    """Write this rank's files, then the list of them."""
    folder = hidden(snapshot.place)
    if not folder.is_dir():
        raise DataError(
            f"{folder}: rank {snapshot.rank} does not see it; a checkpoint needs a folder that all ranks share"
        )
    files = write_shares(folder, snapshot.shares, snapshot.rank)
    dense = None
    if snapshot.tensors:
        num_bytes, checksum = write_tensors(folder / DENSE, snapshot.tensors)
        dense = FileEntry(name=DENSE, bytes=num_bytes, xxh64=checksum).model_dump()
    part = {
        "files": {name: [entry.model_dump() for entry in entries] for name, entries in files.items()},
        "clocks": {share.name: share.clocks for share in snapshot.shares},
        "growth": {
            share.name: _growth(folder, share, snapshot.rank) for share in snapshot.shares if share.step is not None
        },
        "changed": {share.name: share.changed for share in snapshot.shares},
        "dense": dense,
        "composed": write_composed(folder, snapshot.composed),
        "generators": snapshot.generators,
        "extra": snapshot.extra,
    }
    target = part_file(snapshot.place, snapshot.rank)
    target.parent.mkdir(exist_ok=True)
    write_text(target.with_suffix(".new"), json.dumps(part))
    target.with_suffix(".new").rename(target)


def _growth(folder: Path, share: TableShare, rank: int) -> dict[str, Any]:
    """What the manifest says of this rank's share of a growing table; writes its candidates."""
    found: dict[str, Any] = {"step": share.step, "candidates": []}
    if len(share.candidates[IDS]):
        name = f"{folder_of(share.name)}/{rank:05d}-candidates.safetensors"
        num_bytes, checksum = write_tensors(folder / name, share.candidates)
        found["candidates"] = [FileEntry(name=name, bytes=num_bytes, xxh64=checksum).model_dump()]
    if share.gone is not None:
        found["delta"] = {"total": share.total, "gone": [], "halvings": share.halvings}
        if len(share.gone):
            name = f"{folder_of(share.name)}/{rank:05d}-gone.safetensors"
            num_bytes, checksum = write_tensors(folder / name, {IDS: share.gone})
            found["delta"]["gone"] = [FileEntry(name=name, bytes=num_bytes, xxh64=checksum).model_dump()]
    return found


def finish(snapshot: Snapshot, folder: PendingFolder) -> None:
    """Write the manifest from all ranks' parts, give the checkpoint its name, remove older ones; the first rank's."""
    parts: list[dict[str, Any]] = []
    for rank in range(snapshot.ranks):
        file = part_file(snapshot.place, rank)
        if not file.is_file():
            raise DataError(f"{file}: rank {rank} wrote elsewhere; a checkpoint needs a folder that all ranks share")
        parts.append(json.loads(file.read_text(encoding="utf-8")))
    tables = {name: _table(name, entry, parts) for name, entry in snapshot.tables.items()}
    extras = [part["extra"] for part in parts]
    manifest = CheckpointManifest(
        **snapshot.about,
        tables=tables,
        composed=parts[0]["composed"] or None,
        dense=parts[0]["dense"],
        generators={name: _once([part["generators"][name] for part in parts]) for name in snapshot.generators},
        extra=extras[0],
        extras=extras if len(_once(extras)) > 1 else None,
    )
    for rank in range(snapshot.ranks):
        part_file(snapshot.place, rank).unlink()
    (folder.path / PARTS).rmdir()
    write_text(folder.path / NAME, manifest.to_json())
    folder.publish()
    snapshot.retention.apply(snapshot.place)


def _table(name: str, entry: dict[str, Any], parts: list[dict[str, Any]]) -> TableEntry:
    state = {}
    for key, about in entry["state"].items():
        clocks = [part["clocks"][name][key] for part in parts] if about["kind"] == "table" else None
        state[key] = {**about, "values": clocks}
    files = [file for part in parts for file in part["files"][name]]
    grown: dict[str, Any] = {}
    if any(part["changed"].get(name) for part in parts):
        grown = {"num_rows": sum(file["rows"] for file in files), "changed_of": entry["num_rows"]}
    if name in parts[0]["growth"]:
        shares = [part["growth"][name] for part in parts]
        candidates = [file for share in shares for file in share["candidates"]]
        grown = {"num_rows": sum(file["rows"] for file in files)}
        grown["growth"] = {"step": shares[0]["step"], "candidates": candidates}
        if "delta" in shares[0]:
            deltas = [share["delta"] for share in shares]
            grown["growth"]["delta"] = {
                "total": sum(delta["total"] for delta in deltas),
                "gone": [file for delta in deltas for file in delta["gone"]],
                "halvings": deltas[0]["halvings"],
            }
    return TableEntry(**{**entry, "state": state, "files": files, **grown})


def _once(values: list[Any]) -> list[Any]:
    """One value where all are equal."""
    return values[:1] if all(value == values[0] for value in values) else values


@dataclass(frozen=True)
class DenseObjects:
    """The caller's objects, other than tables, that a checkpoint holds or restores."""

    model: nn.Module | None
    torch_optimizers: Sequence[optim.Optimizer]
    schedulers: Sequence[Any]
    generators: Mapping[str, Any]

    def encoded(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Entries of the manifest, and the tensors that they name."""
        for k, one in enumerate(self.torch_optimizers):
            if isinstance(one, SparseOptimizer):
                raise ConfigError(f"torch_optimizers[{k}] is a {type(one).__name__} of tables; pass it in optimizers")
        tensors: dict[str, Tensor] = {}
        model = None if self.model is None else encode(_bare(self.model).state_dict(), MODEL, tensors)
        entries: dict[str, Any] = {MODEL: model}
        for kind in ("torch_optimizers", "schedulers"):
            entries[kind] = [
                {"class": type(one).__name__, "state": encode(one.state_dict(), f"{kind}.{k}", tensors)}
                for k, one in enumerate(getattr(self, kind))
            ]
        return entries, tensors

    def generator_states(self) -> dict[str, Any]:
        """The state of each generator as JSON."""
        return {name: encode(_state(name, one), f"generator {name!r}") for name, one in self.generators.items()}

    def restorer(
        self, where: str, manifest: CheckpointManifest, tensors: Mapping[str, Tensor], rank: int, ranks: int
    ) -> Restorer:
        """Everything checked; call what it returns to change the objects. Each rank takes its own generators."""
        steps: list[Callable[[], object]] = []
        if self.model is not None:
            state = decode(manifest.model, tensors)
            _check_model(where, _bare(self.model), state)
            steps.append(partial(_bare(self.model).load_state_dict, state))
        for kind in ("torch_optimizers", "schedulers"):
            for k, one in enumerate(getattr(self, kind)):
                saved = getattr(manifest, kind)[k]
                if saved["class"] != type(one).__name__:
                    raise ConfigError(
                        f"{where}: {kind}[{k}] is a {saved['class']!r}, the one here a {type(one).__name__}"
                    )
                state = decode(saved["state"], tensors)
                if isinstance(one, optim.Optimizer):
                    found, own = (
                        [len(g["params"]) for g in groups] for groups in (state["param_groups"], one.param_groups)
                    )
                    if found != own:
                        raise ConfigError(f"{where}: {kind}[{k}] has groups of {found} parameters, the one here {own}")
                steps.append(partial(one.load_state_dict, state))
        for name, one in self.generators.items():
            state = decode(_own(where, name, manifest.generators[name], rank, ranks))
            own = _state(name, one)["bit_generator"]
            if state["bit_generator"] != own:
                raise ConfigError(f"{where}: generator {name!r} is a {state['bit_generator']!r}, the one here a {own}")
            if isinstance(one, torch.Generator):
                steps.append(partial(one.set_state, state["state"]))
            else:
                steps.append(partial(setattr, one.bit_generator, "state", state))
        return lambda: [step() for step in steps]


Restorer = Callable[[], object]


def _bare(model: nn.Module) -> nn.Module:
    """The model that DistributedDataParallel wraps: its names are the same at any number of ranks."""
    return model.module if type(model).__name__ == "DistributedDataParallel" else model  # type: ignore[return-value]


def _check_model(where: str, model: nn.Module, saved: Mapping[str, Any]) -> None:
    own = model.state_dict()
    if odd := sorted(set(saved) ^ set(own)):
        side = "the checkpoint" if odd[0] in saved else "the model"
        raise ConfigError(f"{where}: model: {len(odd)} names differ; only {side} has {odd[0]!r}")
    for name, value in own.items():
        shapes = [tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for v in (saved[name], value)]
        if shapes[0] != shapes[1]:
            raise ConfigError(f"{where}: model {name!r} has shape {shapes[0]}, the one here {shapes[1]}")


def _own(where: str, name: str, states: list[Any], rank: int, ranks: int) -> Any:
    if len(states) == 1:
        return states[0]
    if len(states) != ranks:
        raise ConfigError(
            f"{where}: generator {name!r} has a state for each of {len(states)} ranks, this job has {ranks}; "
            "seed it anew and leave it out of generators, with only=[...] naming the tables"
        )
    return states[rank]


def _state(name: str, generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return {"bit_generator": f"torch {generator.device.type}", "state": generator.get_state()}
    if isinstance(generator, np.random.Generator):
        return dict(generator.bit_generator.state)
    raise ConfigError(
        f"generator {name!r} is a {type(generator).__name__}; pass a torch.Generator or a numpy.random.Generator"
    )
