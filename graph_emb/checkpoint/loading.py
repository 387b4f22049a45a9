"""``load_checkpoint``: everything is checked before anything changes; rows go back wherever they lie now.

Legend: N rows of a share, B rows of a piece.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim

from graph_emb.checkpoint.composed import match_composed
from graph_emb.checkpoint.deltas import chain_of
from graph_emb.checkpoint.growing import IDS_AT_A_TIME, GrowingRestorer
from graph_emb.checkpoint.manifest import NAME, CheckpointManifest, RowsEntry, TableEntry, digest_of
from graph_emb.checkpoint.reader import Checkpoint, TableReader
from graph_emb.checkpoint.row_files import (
    GROWTH,
    SCATTERED_BYTES,
    STATE,
    THREADS,
    WEIGHT,
    PieceReader,
    dtype_name,
    row_pieces,
)
from graph_emb.checkpoint.saving import common_transport, growing, wait_for_running
from graph_emb.checkpoint.snapshot import DenseObjects, Restorer, state_dtypes, trained_by
from graph_emb.composed import ComposedEmbedding, expanded
from graph_emb.core.errors import ConfigError, DataError, GraphEmbError, PartitionError, check_flags, unknown_name
from graph_emb.core.json_codec import decode
from graph_emb.core.paths import user_path
from graph_emb.embedding import DistEmbedding
from graph_emb.graph.original_ids import OriginalIds, SameIds
from graph_emb.growing_embedding import GrowingEmbedding
from graph_emb.optimizer import SparseOptimizer
from graph_emb.table.initializers import FromFunction, OwnerInitializer
from graph_emb.transport.agreement import agree
from graph_emb.transport.base import TableRows, Transport


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


def load_checkpoint(
    path: str | Path,
    *,
    tables: Sequence[DistEmbedding | ComposedEmbedding],
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
        DataError: the checkpoint is missing, incomplete, damaged or of an unknown version; or another rank failed. A
            file that can no longer be read after the checks leaves rows restored in part; the message says so.
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
    composed = [table for table in tables if isinstance(table, ComposedEmbedding)]
    tables = expanded(tables)
    transport = common_transport(tables)
    transport.flush()
    transport.barrier()
    place = user_path(path)
    what = f"checkpoint {place}"
    dense = DenseObjects(model, torch_optimizers, schedulers, generators or {})

    def begin() -> tuple[list[Checkpoint], str, RestorePlan]:
        check_flags(weights_only=weights_only, allow_new_rows=allow_new_rows)
        chain = [Checkpoint(folder) for folder in chain_of(place)]
        match_composed(chain, composed, only, allow_new_rows)
        where = str(place / NAME)
        plan = plan_restore(where, chain[-1].manifest, tables, optimizers, dense, only, weights_only)
        return chain, digest_of(place) if growing(tables) else "", plan

    chain, digest, matched = agree(transport, begin, what)
    checkpoint = chain[-1]
    try:  # each file on one rank; a rank that hears of damage looks for it itself
        agree(transport, lambda: _verify(chain, transport.rank, transport.world_size), what)
    except GraphEmbError:
        _verify(chain, 0, 1)
        raise
    rows, groups, restore_dense, extra = agree(
        transport, lambda: _prepare(chain, matched, transport, allow_new_rows), what
    )

    def change() -> None:
        restore_dense()
        for (optimizer, _), fresh in zip(matched.optimizers, groups, strict=True):
            optimizer.set_groups(fresh)
        try:
            for restorer in rows:
                restorer.load()
        except (OSError, DataError) as error:
            raise DataError(f"{error}; rows are restored in part: load a checkpoint before you go on") from error
        for table, with_state in matched.tables:
            table.reset_trace()
            if table.shard.lazy and not with_state and not table.spec.growth:
                table.shard.wrote(torch.arange(table.shard.num_rows))
            for name, state in checkpoint.manifest.tables[table.name].state.items() if with_state else ():
                if values := state.values:  # a clock: this rank's own where as many ranks saved it, else the highest
                    mine = values[transport.rank] if len(values) == transport.world_size else max(values)
                    table.shard.state[name].fill_(mine)

    agree(transport, change, what)
    manifest = checkpoint.manifest
    whole = [table for table, with_state in matched.tables if with_state or not manifest.tables[table.name].rule]
    for shard in growing(whole):
        shard.track(digest)
    fixed = [table for table, _ in matched.tables if not table.spec.growth]
    grown = {table.name: table.num_embeddings - manifest.tables[table.name].total for table in fixed}
    new = [f"table {name!r}: {more} new rows begin with their first values" for name, more in grown.items() if more]
    return LoadedCheckpoint(manifest.step, extra, (*matched.report, *new))


def _verify(chain: Sequence[Checkpoint], rank: int, ranks: int) -> None:
    """Check this rank's share of the files of a checkpoint and of what it follows."""
    for checkpoint in chain:
        checkpoint.verify(checkpoint.manifest.files()[rank::ranks])


def _prepare(
    chain: Sequence[Checkpoint], matched: RestorePlan, transport: Transport, allow_new_rows: bool
) -> tuple[list[TableRestorer | GrowingRestorer], list[list[dict[str, Any]]], Restorer, dict[str, Any]]:
    """Rows, numbers of the optimizers, other objects and extra values, all checked."""
    checkpoint = chain[-1]
    manifest, where = checkpoint.manifest, str(checkpoint.path / NAME)
    rows: list[TableRestorer | GrowingRestorer] = []
    for table, with_state in matched.tables:
        back: TableRestorer | GrowingRestorer
        if isinstance(table, GrowingEmbedding):
            back = GrowingRestorer(table, [one.part(table.name) for one in chain], with_state)
        else:
            if manifest.tables[table.name].growth is not None:
                checkpoint.table(table.name)  # refuses a delta
            back = TableRestorer(table, [one.part(table.name) for one in chain], with_state)
        back.check(allow_new_rows)
        rows.append(back)
    groups = [optimizer.checked_groups(header, where) for optimizer, header in matched.optimizers]
    tensors: dict[str, Tensor] = {}
    if manifest.dense is not None:
        with PieceReader(checkpoint.path / manifest.dense.name) as reader:
            tensors = {name: reader.read(name) for name in reader.columns}
    restorer = matched.dense.restorer(where, manifest, tensors, transport.rank, transport.world_size)
    extras, rank = manifest.extras, transport.rank
    own = extras[rank] if extras is not None and len(extras) == transport.world_size else manifest.extra
    return rows, groups, restorer, decode(own)


ASK = "pass it, or only=[names of tables] for a part of the checkpoint"


@dataclass(frozen=True)
class RestorePlan:
    """The objects that a load restores."""

    tables: list[tuple[DistEmbedding, bool]]  # each with whether its state is loaded
    optimizers: list[tuple[SparseOptimizer, dict[str, Any]]]  # each with its saved header
    dense: DenseObjects
    report: list[str]  # a line for each thing, and for each that is left out


def plan_restore(
    where: str,
    manifest: CheckpointManifest,
    tables: Sequence[DistEmbedding],
    optimizers: Sequence[SparseOptimizer],
    dense: DenseObjects,
    only: Collection[str] | None,
    weights_only: bool,
) -> RestorePlan:
    """Compare names, shapes and rules; arguments as ``load_checkpoint``, ``where`` is the manifest's path."""
    if isinstance(only, str):
        raise ConfigError(f"only={only!r} is a text; pass names of tables, such as [{only!r}]")
    trained = trained_by(tables, optimizers)
    if weights_only and (optimizers or dense.torch_optimizers or dense.schedulers or dense.generators):
        raise ConfigError("weights_only=True restores tables and model alone; leave optimizers and the rest out")
    given = {table.name: table for table in tables}
    for name in given if only is None else only:
        if name not in manifest.tables:
            raise unknown_name(f"table of {where}", name, manifest.tables)
    if only is None and (more := sorted(set(manifest.tables) - set(given))):
        raise ConfigError(f"{where}: has table {more[0]!r}, which is not among tables {sorted(given)}; {ASK}")
    for name in only or ():
        if name not in given:
            raise unknown_name("table in only=", name, given)
    chosen = [table for table in tables if only is None or table.name in only]
    report = [f"table {name!r}: left out" for name in manifest.tables if name not in {table.name for table in chosen}]
    by_optimizer = {} if weights_only else _chosen_optimizers(where, manifest, optimizers, chosen, only)
    matched = []
    for table in chosen:
        entry = manifest.tables[table.name]
        with_state = trained.get(table.name) in by_optimizer and entry.rule is not None
        _check_table(where, table, entry, with_state, weights_only or only is not None)
        state = ", ".join(["weight", *(entry.state if with_state else ())])
        left = "" if with_state or entry.rule is None else f"; state of {entry.rule} left out"
        report.append(f"table {table.name!r}: {entry.total} rows of {state}{left}")
        matched.append((table, with_state))
    report += _check_dense(where, manifest, dense, only, weights_only)
    return RestorePlan(matched, [(optimizers[k], header) for k, header in by_optimizer.items()], dense, report)


def _chosen_optimizers(
    where: str,
    manifest: CheckpointManifest,
    optimizers: Sequence[SparseOptimizer],
    chosen: Sequence[DistEmbedding],
    only: Collection[str] | None,
) -> dict[int, dict[str, Any]]:
    """The saved header of each optimizer that is restored, by its position."""
    names = {table.name for table in chosen}
    saved = {frozenset(name for group in e.groups for name in group.tables): e for e in manifest.optimizers}
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
        entry = saved.pop(own)
        groups = [{"tables": group.tables, **group.numbers} for group in entry.groups]
        found[k] = {"rule": entry.rule, "options": entry.options, "param_groups": groups}
    if only is None and saved:
        raise ConfigError(f"{where}: has the optimizer of tables {sorted(next(iter(saved)))}, which is not given; "
                          "pass it in optimizers, or weights_only=True")  # fmt: skip
    return found


def _check_table(where: str, table: DistEmbedding, entry: TableEntry, with_state: bool, in_part: bool) -> None:
    """Raise a ConfigError unless shape and state fit; ``in_part``: state without an optimizer was asked to be left."""
    for word, value, own in (
        ("width", entry.dim, table.embedding_dim),
        ("dtype", entry.dtype, dtype_name(table.dtype)),
    ):
        if value != own:
            raise ConfigError(f"{where}: table {table.name!r} has {word} {value}, the one here {own}")
    if with_state:
        held = {name: (spec.kind, dtype) for name, (spec, dtype) in state_dtypes(table).items()}
        found = {name: (state.kind, state.dtype) for name, state in entry.state.items()}
        if held != found:
            raise ConfigError(
                f"{where}: table {table.name!r} has state {found} of {entry.rule}, the one here keeps {held}"
            )
    elif entry.rule is not None and not in_part:
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


class TableRestorer:
    """Brings one table's rows back; ``check`` first, then ``load``.

    Args:
        table: The table; its ids decide which rows of the checkpoint belong where.
        readers: Its rows in the checkpoint; of a delta those of all that it follows, in their order, and its own.
        with_state: Load optimizer state too.
    Attributes:
        covered: For each share of this process which of its rows the checkpoint has, (N,) bool; after ``check``.
    """

    def __init__(self, table: DistEmbedding, readers: Sequence[TableReader], with_state: bool) -> None:
        # Those before the last one that has all rows are not read.
        whole = max(k for k, one in enumerate(readers) if not one.entry.is_delta)
        self._table, self._readers, reader = table, readers[whole:], readers[-1]
        columns = [name for name in reader.columns if not name.startswith(GROWTH)]
        self._columns = columns if with_state else [WEIGHT]
        self._shares: Sequence[TableRows] = table.transport.rows(table.name)
        self._ids: OriginalIds = table.original_ids
        self.covered = [np.zeros(rows.num_rows, bool) for rows in self._shares]
        self._first_values: list[Tensor | None] = []

    def check(self, allow_new_rows: bool) -> None:
        """Compare ids, and get first values that come all at once; reads no row and changes none.

        Raises:
            DataError: the ids of a file are damaged, or new rows begin with those of a file that is gone.
            ShapeError: new rows begin with what a function returns, and it is no tensor of their shape.
            PartitionError: the checkpoint has an id that the table has not, has one twice, or, unless new rows are
                allowed, lacks one.
        """
        where = f"{self._readers[-1].folder}: table {self._readers[-1].name!r}"
        for reader in self._readers:
            self.covered = list(map(np.bitwise_or, self.covered, self._found(reader)))
        for rows, covered in zip(self._shares, self.covered, strict=True):
            if covered.all():
                self._first_values.append(None)
                continue
            if not allow_new_rows:
                row = int(np.flatnonzero(~covered)[0])
                lacking = int(self._ids.of(rows.first_id + row, rows.first_id + row + 1)[0])
                raise PartitionError(
                    f"{where}: {int((~covered).sum())} ids of the table are not in the checkpoint, such as {lacking}; "
                    "pass allow_new_rows=True if the graph has grown"
                )
            self._first_values.append(self._at_once(rows, ~covered))

    def _found(self, source: TableReader) -> list[np.ndarray]:
        """For each share of this process which of its rows one checkpoint has, (N,) bool; each in one file."""
        where = f"{source.folder}: table {source.name!r}"
        found = [np.zeros(rows.num_rows, bool) for rows in self._shares]
        for file in source.entry.files:
            with source.open(file) as reader:
                for start, stop in row_pieces(file.rows, 1, IDS_AT_A_TIME):
                    original = source.ids(reader, file, start, stop)
                    if not (original[1:] > original[:-1]).all():
                        raise DataError(f"{where}: the ids of {file.name} do not ascend; the file is damaged")
                    places = self._ids.find(original)
                    if len(strange := np.flatnonzero(places < 0)):
                        raise PartitionError(
                            f"{where}: {file.name} has original id {original[strange[0]]}, which is not among the "
                            f"{self._table.num_embeddings} ids of the table here; is it another graph?"
                        )
                    for rows, covered in zip(self._shares, found, strict=True):
                        own = places[(places >= rows.first_id) & (places < rows.first_id + rows.num_rows)]
                        if covered[own - rows.first_id].any():
                            raise PartitionError(f"{where}: {file.name} repeats an id of another file")
                        covered[own - rows.first_id] = True
        return found

    def load(self) -> None:
        """Overwrite the rows that the checkpoint has, and give the others their first values."""
        self._table.transport.rows(self._table.name, overwrite=True)
        for rows, covered, first in zip(self._shares, self.covered, self._first_values, strict=True):
            for source in self._readers:  # a later one's rows take the place of an earlier one's
                load = partial(self._load_file, source, rows)
                if rows.memory(WEIGHT) is not None:
                    with ThreadPoolExecutor(THREADS) as pool:
                        for _ in pool.map(load, source.entry.files):
                            pass
                else:
                    for file in source.entry.files:
                        load(file)
            if not covered.all():
                self._begin(rows, ~covered, first)

    def _load_file(self, source: TableReader, rows: TableRows, file: RowsEntry) -> None:
        with source.open(file) as reader:
            for first, places in self._wanted(source, reader, file, rows):
                in_a_row = places[0] >= 0 and bool((np.diff(places) == 1).all())
                for name in self._columns:
                    column = name.removeprefix(STATE)
                    memory = rows.memory(column)
                    if in_a_row and memory is not None:  # straight from the file to where the rows lie
                        reader.read_into(name, first, memory[int(places[0]) : int(places[0]) + len(places)])
                        continue
                    for low, high in row_pieces(len(places), reader.columns[name].row_bytes, SCATTERED_BYTES):
                        ours = np.flatnonzero(places[low:high] >= 0)
                        if not len(ours):
                            continue
                        values = reader.read(name, first + low, first + high)
                        if len(ours) < high - low:
                            values = values.index_select(0, torch.from_numpy(ours))
                        rows.write(column, torch.from_numpy(places[low:high][ours]), values)

    def _wanted(
        self, source: TableReader, reader: PieceReader, file: RowsEntry, rows: TableRows
    ) -> Iterator[tuple[int, np.ndarray]]:
        """(first row in the file, place in ``rows`` of it and of the rows after it; -1: not ours), piece by piece."""
        first, end = 0, file.rows
        if isinstance(self._ids, SameIds):
            first, end = source.span(reader, file, rows.first_id, rows.first_id + rows.num_rows)
        for start, stop in row_pieces(end - first, 1, IDS_AT_A_TIME):
            original = source.ids(reader, file, first + start, first + stop)
            places = self._ids.find(original) - rows.first_id
            ours = np.flatnonzero((places >= 0) & (places < rows.num_rows))
            if len(ours):
                low, high = ours[0], ours[-1] + 1
                places = places[low:high]
                yield first + start + int(low), np.where((places >= 0) & (places < rows.num_rows), places, -1)

    def _at_once(self, rows: TableRows, new: np.ndarray) -> Tensor | None:
        """First values of the new rows where the initializer is called once for all rows, new or not; else None."""
        spec = self._table.spec
        if not isinstance(spec.initializer, (FromFunction, OwnerInitializer)):
            return None
        values = torch.empty((rows.num_rows, spec.dim), dtype=spec.dtype)
        spec.fill_(values, rows.first_id)
        return values[torch.from_numpy(new)]

    def _begin(self, rows: TableRows, new: np.ndarray, first: Tensor | None) -> None:
        """Give new rows their first values and their state its initial ones."""
        spec, shard = self._table.spec, self._table.shard
        states = shard.state_specs if len(self._columns) > 1 else {}
        done = 0
        for start, stop in row_pieces(len(new), spec.dim * spec.dtype.itemsize):
            fresh = torch.from_numpy(np.flatnonzero(new[start:stop]))
            if not len(fresh):
                continue
            if first is None:
                values = torch.empty((stop - start, spec.dim), dtype=spec.dtype)
                spec.fill_(values, rows.first_id + start)
                values = values[fresh]
            else:
                values = first[done : done + len(fresh)]
                done += len(fresh)
            rows.write(WEIGHT, fresh + start, values)
            for name, state in states.items():
                if state.kind != "table":
                    like = rows.read(name, 0, 0)
                    rows.write(name, fresh + start, like.new_full((len(fresh), *like.shape[1:]), state.initial))
