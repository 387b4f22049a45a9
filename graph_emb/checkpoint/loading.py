"""``load_checkpoint``: everything is checked before anything changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn, optim

from graph_emb import optimizer_state
from graph_emb.checkpoint.all_or_none import agree, common_transport
from graph_emb.checkpoint.dense import DenseObjects, Restorer
from graph_emb.checkpoint.manifest import NAME, CheckpointManifest
from graph_emb.checkpoint.reader import Checkpoint
from graph_emb.checkpoint.restore_plan import RestorePlan, plan_restore
from graph_emb.checkpoint.restore_rows import TableRestorer, restore_clocks
from graph_emb.checkpoint.safetensors_file import PieceReader
from graph_emb.checkpoint.saving import wait_for_running
from graph_emb.core.errors import GraphEmbError
from graph_emb.core.json_codec import decode
from graph_emb.embedding import DistEmbedding
from graph_emb.optimizer import SparseOptimizer
from graph_emb.transport.base import Transport


@dataclass(frozen=True)
class LoadedCheckpoint:
    """Step, extra values and report of a checkpoint that was loaded.

    Attributes:
        step: Of the save.
        extra: What was given to the save: this rank's own where as many ranks saved it, else the first rank's.
        report: A line for each thing that was restored, left out or begun anew.
    """

    step: int
    extra: dict[str, Any]
    report: tuple[str, ...]


@dataclass(frozen=True)
class _Prepared:
    rows: list[TableRestorer]
    groups: list[tuple[SparseOptimizer, list[dict[str, Any]]]]
    dense: Restorer
    extra: dict[str, Any]


def load_checkpoint(
    path: str | Path,
    *,
    tables: Sequence[DistEmbedding],
    optimizers: Sequence[SparseOptimizer] = (),
    model: nn.Module | None = None,
    torch_optimizers: Sequence[optim.Optimizer] = (),
    schedulers: Sequence[Any] = (),
    generators: Mapping[str, Any] | None = None,
    only: Collection[str] | None = None,
    weights_only: bool = False,
    allow_new_rows: bool = False,
) -> LoadedCheckpoint:
    """Restore a checkpoint into tables and objects of the same names, whatever their parts, ranks, servers and mode.

    Every rank calls it with equal arguments. Manifest, sizes, checksums, shapes, rules and ids are checked before the
    first row changes. Gradients that came back to the tables before are forgotten. Everything that the checkpoint holds
    must be given, and nothing else, unless the last three arguments say so; ``LoadedCheckpoint.report`` tells what was
    left out.

    Args:
        path: The folder that ``save_checkpoint`` wrote.
        tables, optimizers, model, torch_optimizers, schedulers, generators: As for ``save_checkpoint``; optimizers in
            the same order.
        only: Names of tables: no other table is loaded, and of the rest only what is given. The numbers and state of an
            optimizer are loaded where all its tables are named.
        weights_only: Load rows and the model, and no state of any optimizer, scheduler or generator.
        allow_new_rows: The tables may have ids that the checkpoint has not (the graph grew): these rows begin with
            their first values.
    Raises:
        DataError: the checkpoint is missing, incomplete, damaged or of an unknown version; or another rank failed.
        ConfigError: another rule, option, dimension or dtype; or something is given that the checkpoint has not, or
            the other way round.
        PartitionError: it has ids that the graph has not, or, without ``allow_new_rows``, the other way round.

    Example:
        >>> import tempfile
        >>> emb = ge.DistEmbedding(3, 2, "node", ge.initializers.FromArray(torch.ones(3, 2)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     place = ge.save_checkpoint(f"{folder}/10", tables=[emb], step=10, extra={"epoch": 4})
        ...     emb.weight[:] = 0.0
        ...     loaded = ge.load_checkpoint(place, tables=[emb])
        >>> loaded.step, loaded.extra, emb.weight[2].tolist()
        (10, {'epoch': 4}, [1.0, 1.0])
        >>> loaded.report
        ("table 'node': 3 rows of weight",)
    """
    wait_for_running()
    transport = common_transport(tables)
    transport.flush()
    transport.barrier()
    place = Path(path).expanduser()
    what = f"checkpoint {place}"
    dense = DenseObjects(model, torch_optimizers, schedulers, generators or {})

    def begin() -> tuple[Checkpoint, RestorePlan]:
        checkpoint = Checkpoint(place)
        where = str(place / NAME)
        return checkpoint, plan_restore(where, checkpoint.manifest, tables, optimizers, dense, only, weights_only)

    checkpoint, matched = agree(transport, begin, what)
    _verify(checkpoint, transport, what)
    plan = agree(transport, lambda: _prepare(checkpoint, matched, transport, allow_new_rows), what)

    def change() -> None:
        plan.dense()
        for optimizer, groups in plan.groups:
            optimizer_state.set_groups(optimizer, groups)
        for rows in plan.rows:
            rows.load()
        for table, with_state in matched.tables:
            table.reset_trace()
            if with_state:
                restore_clocks(table, checkpoint.table(table.name), transport.rank, transport.world_size)

    agree(transport, change, what)
    manifest = checkpoint.manifest
    report = (*matched.report, *_new_rows(manifest, matched))
    return LoadedCheckpoint(manifest.step, plan.extra, report)


def _verify(checkpoint: Checkpoint, transport: Transport, what: str) -> None:
    """Check sizes and checksums, each file on one rank; a rank that hears of damage looks for it itself."""
    files = checkpoint.manifest.files()
    mine = files[transport.rank :: transport.world_size]
    try:
        agree(transport, lambda: checkpoint.verify(mine), what)
    except GraphEmbError:
        checkpoint.verify()
        raise


def _prepare(checkpoint: Checkpoint, matched: RestorePlan, transport: Transport, allow_new_rows: bool) -> _Prepared:
    manifest, where = checkpoint.manifest, str(checkpoint.path / NAME)
    rows = []
    for table, with_state in matched.tables:
        back = TableRestorer(table, checkpoint.table(table.name), with_state)
        back.check(allow_new_rows)
        rows.append(back)
    groups = [
        (optimizer, optimizer_state.checked_groups(optimizer, header, where))
        for optimizer, header in matched.optimizers
    ]
    tensors: dict[str, Tensor] = {}
    if manifest.dense is not None:
        with PieceReader(checkpoint.path / manifest.dense.name) as reader:
            tensors = {name: reader.whole(name) for name in reader.columns}
    restorer = matched.dense.restorer(where, manifest, tensors, transport.rank, transport.world_size)
    return _Prepared(rows, groups, restorer, _extra(manifest, transport))


def _extra(manifest: CheckpointManifest, transport: Transport) -> dict[str, Any]:
    extras = manifest.extras
    own = extras[transport.rank] if extras is not None and len(extras) == transport.world_size else manifest.extra
    found: dict[str, Any] = decode(own)
    return found


def _new_rows(manifest: CheckpointManifest, matched: RestorePlan) -> list[str]:
    lines = []
    for table, _ in matched.tables:
        grown = table.num_embeddings - manifest.tables[table.name].num_rows
        if grown:
            lines.append(f"table {table.name!r}: {grown} new rows begin with their first values")
    return lines
