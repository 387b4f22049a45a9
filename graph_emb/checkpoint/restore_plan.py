"""Plan which objects a checkpoint restores: the caller's compared with the manifest, before a file is opened."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from graph_emb.checkpoint.dense import DenseObjects
from graph_emb.checkpoint.manifest import CheckpointManifest, OptimizerEntry, TableEntry
from graph_emb.checkpoint.safetensors_file import dtype_name
from graph_emb.checkpoint.snapshot import trained_by
from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.embedding import DistEmbedding
from graph_emb.optimizer import SparseOptimizer
from graph_emb.table.spec import accumulation_dtype

ASK = "pass it, or only=[names of tables] for a part of the checkpoint"


@dataclass(frozen=True)
class RestorePlan:
    """The objects that a load restores.

    Attributes:
        tables: Each table with whether its state is loaded.
        optimizers: Each optimizer with its saved header.
        dense: The objects that are restored.
        report: A line for each thing, and for each that is left out.
    """

    tables: list[tuple[DistEmbedding, bool]]
    optimizers: list[tuple[SparseOptimizer, dict[str, Any]]]
    dense: DenseObjects
    report: list[str]


def plan_restore(
    where: str,
    manifest: CheckpointManifest,
    tables: Sequence[DistEmbedding],
    optimizers: Sequence[SparseOptimizer],
    dense: DenseObjects,
    only: Collection[str] | None,
    weights_only: bool,
) -> RestorePlan:
    """Compare names, shapes and rules; arguments as ``load_checkpoint``, ``where`` is the manifest's path.

    Raises:
        ConfigError: something does not fit.
    """
    if isinstance(only, str):
        raise ConfigError(f"only={only!r} is a text; pass names of tables, such as [{only!r}]")
    trained = trained_by(tables, optimizers)
    if weights_only and (optimizers or dense.torch_optimizers or dense.schedulers or dense.generators):
        raise ConfigError("weights_only=True restores tables and model alone; leave optimizers and the rest out")
    chosen = _chosen_tables(where, manifest, tables, only)
    report = [f"table {name!r}: left out" for name in manifest.tables if name not in {table.name for table in chosen}]
    by_optimizer = {} if weights_only else _chosen_optimizers(where, manifest, optimizers, chosen, only)
    matched = []
    for table in chosen:
        entry = manifest.tables[table.name]
        _check_shape(where, table, entry)
        with_state = trained.get(table.name) in by_optimizer and entry.rule is not None
        if with_state:
            _check_state(where, table, entry)
        _check_left_state(where, table, entry, with_state, weights_only or only is not None)
        state = ", ".join(["weight", *(entry.state if with_state else ())])
        left = "" if with_state or entry.rule is None else f"; state of {entry.rule} left out"
        report.append(f"table {table.name!r}: {entry.num_rows} rows of {state}{left}")
        matched.append((table, with_state))
    report += _check_dense(where, manifest, dense, only, weights_only)
    return RestorePlan(matched, [(optimizers[k], header) for k, header in by_optimizer.items()], dense, report)


def _chosen_tables(
    where: str, manifest: CheckpointManifest, tables: Sequence[DistEmbedding], only: Collection[str] | None
) -> list[DistEmbedding]:
    given = {table.name: table for table in tables}
    for name in given if only is None else only:
        if name not in manifest.tables:
            raise unknown_name(f"table of {where}", name, manifest.tables)
    if only is None:
        if left := sorted(set(manifest.tables) - set(given)):
            raise ConfigError(f"{where}: has table {left[0]!r}, which is not among tables {sorted(given)}; {ASK}")
        return list(tables)
    for name in only:
        if name not in given:
            raise unknown_name("table in only=", name, given)
    return [table for table in tables if table.name in only]


def _chosen_optimizers(
    where: str,
    manifest: CheckpointManifest,
    optimizers: Sequence[SparseOptimizer],
    chosen: Sequence[DistEmbedding],
    only: Collection[str] | None,
) -> dict[int, dict[str, Any]]:
    """The saved header of each optimizer that is restored, by its position."""
    names = {table.name for table in chosen}
    saved = {frozenset(_tables_of(entry)): entry for entry in manifest.optimizers}
    found: dict[int, dict[str, Any]] = {}
    for k, optimizer in enumerate(optimizers):
        own = frozenset(optimizer.tables)
        if not own <= names:
            if own & names:
                raise ConfigError(
                    f"only={sorted(names)}: optimizers[{k}] trains {sorted(own)} and cannot be restored in part; "
                    "name all its tables, or leave it out"
                )
            continue
        if own not in saved:
            raise ConfigError(
                f"{where}: has optimizers of tables {[sorted(tables) for tables in saved]}, optimizers[{k}] trains "
                f"{sorted(own)}; weights_only=True loads the tables without state"
            )
        found[k] = _header(saved.pop(own))
    if only is None and saved:
        raise ConfigError(f"{where}: has the optimizer of tables {sorted(next(iter(saved)))}, which is not given; "
                          "pass it in optimizers, or weights_only=True")  # fmt: skip
    return found


def _tables_of(entry: OptimizerEntry) -> list[str]:
    return [name for group in entry.groups for name in group.tables]


def _header(entry: OptimizerEntry) -> dict[str, Any]:
    groups = [{"tables": group.tables, **group.numbers} for group in entry.groups]
    return {"rule": entry.rule, "options": entry.options, "param_groups": groups}


def _check_shape(where: str, table: DistEmbedding, entry: TableEntry) -> None:
    found = {"width": entry.dim, "dtype": entry.dtype}
    own = {"width": table.embedding_dim, "dtype": dtype_name(table.dtype)}
    for word, value in found.items():
        if value != own[word]:
            raise ConfigError(f"{where}: table {table.name!r} has {word} {value}, the one here {own[word]}")


def _check_state(where: str, table: DistEmbedding, entry: TableEntry) -> None:
    specs = table.shard.state_specs
    own = {name: (spec.kind, dtype_name(spec.dtype or accumulation_dtype(table.dtype))) for name, spec in specs.items()}
    found = {name: (state.kind, state.dtype) for name, state in entry.state.items()}
    if own != found:
        raise ConfigError(f"{where}: table {table.name!r} has state {found} of {entry.rule}, the one here keeps {own}")


def _check_left_state(where: str, table: DistEmbedding, entry: TableEntry, with_state: bool, asked: bool) -> None:
    if entry.rule is not None and not with_state and not asked:
        raise ConfigError(
            f"{where}: table {table.name!r} has state of {entry.rule}, and no optimizer is given for it; "
            "pass it in optimizers, or weights_only=True"
        )


def _check_dense(
    where: str, manifest: CheckpointManifest, dense: DenseObjects, only: Collection[str] | None, weights_only: bool
) -> list[str]:
    """A line for each of the other objects; everything saved must be given unless a part was asked for."""
    lines = []
    counts = {
        "model": (int(manifest.model is not None), int(dense.model is not None)),
        "torch_optimizers": (len(manifest.torch_optimizers), len(dense.torch_optimizers)),
        "schedulers": (len(manifest.schedulers), len(dense.schedulers)),
    }
    for kind, (saved, given) in counts.items():
        left_out = given == 0 and (only is not None or (weights_only and kind != "model"))
        if saved != given and not left_out:
            raise ConfigError(f"{where}: holds {saved} of {kind}, {given} given; {ASK}")
        if saved:
            lines.append(f"{kind}: {'left out' if saved != given else 'restored'}")
    left = sorted(set(manifest.generators) ^ set(dense.generators))
    strange = [name for name in left if name in dense.generators]
    if strange or (left and only is None and not weights_only):
        held = sorted(manifest.generators)
        raise ConfigError(f"{where}: holds generators {held}, {sorted(dense.generators)} given; {ASK}")
    lines += [f"generator {name!r}: {'left out' if name in left else 'restored'}" for name in manifest.generators]
    return lines
