"""A shard whose rows lie in a lower tier: an ordinary shard of the frames' rows behind a map from rows to places.

The frames are on the table's device, the lower tier is a file or, of a ``DeviceCache``, memory of the host. The rule,
the fused kernels, the order of merging and the transports do not know. Per-element state moves with its row in one
page; state of one value a row, clocks and the frozen mask lie on the device for all rows, and are copied to the frames'
rows and back around an update. The residency map is on the host.

Legend: R rows, B asked rows, D width.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.core.hidden import size_text
from graph_emb.table.bags import BagGradients
from graph_emb.table.initializers import FromFunction, OwnerInitializer, fill_rows_at_
from graph_emb.table.placement import Buckets, DeviceCache, File
from graph_emb.table.row_memory import allocate
from graph_emb.table.shard import WEIGHT, EmbeddingShard, RowCopy, copy_rows, gather
from graph_emb.table.spec import StateSpec, TableSpec
from graph_emb.table.tier.cache import SCAN_BYTES, CacheStats, LowerTier, PageCache, sum_of
from graph_emb.table.tier.frames import Frames
from graph_emb.table.tier.host_pages import HostPages
from graph_emb.table.tier.kept import KeptRows
from graph_emb.table.tier.pages import PageFile, PageLayout, least_pages
from graph_emb.table.tier.reader import PageReader
from graph_emb.table.tier.sizes import bytes_of_frames, bytes_of_row

MOST_SPARE = 4096
"""Frames whose last page is being written, at most."""


def shard_for(spec: TableSpec, first_id: int, num_rows: int, weight: Tensor | None = None) -> EmbeddingShard:
    """The rows [first_id, first_id + num_rows) of a table where its placement wants them.

    Args:
        weight: Memory that others see too; None takes own memory.
    Raises:
        ConfigError: there is no room for them, or memory that others see cannot be of a file.
    """
    if spec.placement is None:
        return EmbeddingShard(spec, first_id, num_rows, weight)
    if weight is not None:
        raise ConfigError(f"table {spec.name!r}: hogwild=True shares rows in memory; placement={spec.placement} cannot")
    return TieredShard(spec, first_id, num_rows)


class _FrameShard(EmbeddingShard):
    """The rows of all frames, (F * k, D), and their state: what kernels work on."""

    def __init__(self, spec: TableSpec, weight: Tensor, outer: weakref.ref[TieredShard]) -> None:
        self.spec, self.first_id, self.weight, self._outer = spec, 0, weight, outer
        super().free_state()

    def original_ids(self, rows: Tensor) -> np.ndarray:
        """The original ids of the rows that lie at places (B,)."""
        outer = self._outer()
        assert outer is not None
        return outer.original_ids(torch.from_numpy(outer.rows_at(rows.cpu().numpy())))


class TieredShard(EmbeddingShard):
    """A shard of which memory holds a part: see ``EmbeddingShard`` for the contract of its methods.

    ``weight`` and state of one value an element have no rows here (``in_memory`` is False): methods alone reach them.
    An optimizer that comes changes the layout of pages; rows that differ from their first values move then. What one
    that went leaves in them is read no more: at the end of a training no row moves.

    Args:
        spec, first_id, num_rows: As of ``EmbeddingShard``.
        sparse: Reserve room on the disk for the rows of ``claim`` alone; False reserves that of all.
    Raises:
        ConfigError: the placement's memory does not hold a page, the disk has no room, or the first values are no
            function of the id.
        StorageError: a file cannot be read or written; every later call raises it too.
    """

    in_memory = False

    def __init__(self, spec: TableSpec, first_id: int, num_rows: int, sparse: bool = False) -> None:
        assert spec.placement is not None
        if spec.device.type != "cpu" and isinstance(spec.placement, File):
            raise ConfigError(
                f"table {spec.name!r}: rows in a file are read to the CPU, not to device {spec.device}; rows in memory "
                "of the host are cached there by graph_emb.DeviceCache(memory=...)"
            )
        if isinstance(spec.initializer, (FromFunction, OwnerInitializer)):
            raise ConfigError(
                f"table {spec.name!r}: init_func must give the values of any ids where memory holds a part of the "
                "rows; pass an object such as graph_emb.initializers.Uniform(seed=0), or load a checkpoint into it"
            )
        self.spec, self.first_id, self._num_rows, self._claimed = spec, first_id, num_rows, 0 if sparse else num_rows
        self.weight = torch.empty((0, spec.dim), dtype=spec.dtype, device=spec.device)
        self._cache: PageCache | None = None
        self._past, self._saved = CacheStats(), ""
        self._set_state({}, {})
        self._open({})

    @property
    def num_rows(self) -> int:
        return self._num_rows

    def _set_state(self, specs: Mapping[str, StateSpec], state: Mapping[str, Tensor]) -> None:
        self.state_specs, self.state, self.attached = dict(specs), dict(state), bool(specs)

    # The file and its frames

    def _open(self, specs: Mapping[str, StateSpec]) -> None:
        """Lay out pages for the weight and the state of specs, and move the rows that changed."""
        spec, placement = self.spec, self.spec.placement
        assert placement is not None
        elements = {name: one for name, one in specs.items() if one.kind == "element"}
        per_row = {name: one.dtype_beside(spec.dtype) for name, one in specs.items() if one.kind == "row"}
        dtypes = [spec.dtype, *(one.dtype_beside(spec.dtype) for one in elements.values())]
        row_bytes, extra = bytes_of_row(spec.dim, spec.dtype, specs.values())
        layout = PageLayout.of(row_bytes) if isinstance(placement, File) else PageLayout.of_memory(row_bytes)
        num_pages = max(1, layout.num_pages(self._num_rows))
        num_frames = self._num_frames(layout, num_pages, extra)
        in_place = isinstance(placement, Buckets)  # a part leaves and comes in the same frames
        spare = min(num_frames // 16, MOST_SPARE) if num_frames < num_pages and not in_place else 0
        frames = Frames(num_pages, num_frames - spare, num_frames, layout.shift, placement.policy)
        shape, device = (num_frames << layout.shift, spec.dim), spec.device
        columns = [allocate(shape, dtype, device, spec.name) for dtype in dtypes]
        if self._cache is not None and not len(self._cache.changed_pages()):  # its room on the disk comes first
            self._leave(self._cache)
            self._cache = None
        reader: LowerTier
        if isinstance(placement, File):
            remove = placement.leftover == "remove"
            claimed = layout.num_pages(self._claimed)
            reader = PageReader(PageFile(placement.path, spec.name, self.first_id, layout, num_pages, remove, claimed))
        else:
            reader = HostPages(spec.name, layout, num_pages, dtypes)
        reader.note(self._saved or None)
        initial = [one.initial for one in elements.values()]
        cache = PageCache(frames, reader, columns, self._first_values(initial), self._num_rows)
        closing = weakref.finalize(self, reader.close)
        inner = _FrameShard(spec, columns[0], weakref.ref(self))
        inner.state_specs, inner.attached = dict(specs), bool(specs)
        inner.state = {name: self.state[name] for name, one in specs.items() if one.kind == "table"}
        inner.state |= {name: torch.empty(shape[0], dtype=dtype, device=device) for name, dtype in per_row.items()}
        inner.state |= dict(zip(elements, columns[1:], strict=True))
        self._sections = {WEIGHT: 0, **{name: k for k, name in enumerate(elements, 1)}}
        self._row_columns = list(per_row)
        old, self._cache, self._inner = self._cache, cache, inner
        if old is not None:
            old.leave_memory()  # the new frames have the whole budget
            self._move(old)
            self._leave(old)
        self._closing = closing

    def _leave(self, old: PageCache) -> None:
        """Close an earlier file."""
        self._past = sum_of(self._past, old.stats)
        self._closing()

    def _num_frames(self, layout: PageLayout, num_pages: int, row_bytes: int) -> int:
        """How many pages the budget holds beside the map and the state of one value a row."""
        assert self.spec.placement is not None
        budget, on_device = self.spec.placement.memory_bytes, isinstance(self.spec.placement, DeviceCache)
        fixed, each = bytes_of_frames(layout, num_pages, self._num_rows, row_bytes, on_device)
        if (num := (budget - fixed) // each) < 1:
            raise ConfigError(
                f"table {self.spec.name!r}: memory={size_text(budget)} is below the least, {fixed + each} bytes: "
                f"{fixed} for the map of {num_pages} pages and the state of one value a row, {each} for a page"
            )
        if isinstance(self.spec.placement, Buckets):
            parts = self.spec.placement.parts
            if num < (one := least_pages(num_pages, parts, held=1)):
                raise ConfigError(
                    f"table {self.spec.name!r}: memory={size_text(budget)} does not hold one of {parts} parts, "
                    f"{fixed + one * each} bytes; raise memory or parts"
                )
        return min(num, num_pages)

    def _first_values(self, initial: Sequence[float]) -> Any:
        spec, first_id, named = self.spec, self.first_id, weakref.WeakMethod(self.original_ids)

        def fill(rows: np.ndarray, columns: Sequence[Tensor | None]) -> None:
            weight, *state = columns
            if weight is not None:
                original = named()
                assert original is not None
                names = original(torch.from_numpy(rows))
                fill_rows_at_(spec.initializer, weight, rows + first_id, names, spec.original_ids)
            for column, value in zip(state, initial, strict=True):
                if column is not None:
                    column.fill_(value)

        return fill

    def _move(self, old: PageCache) -> None:
        """Take over the weights of pages that changed in an earlier layout."""
        pages, rows = old.changed_pages(), 1 << old.frames.shift
        for some in np.array_split(pages, max(1, len(pages) * rows * self.spec.row_bytes // SCAN_BYTES)):
            ids = (some[:, None] * rows + np.arange(rows)).ravel()
            ids = ids[ids < self._num_rows]
            values = self.weight.new_empty((len(ids), self.spec.dim))
            old.peek(ids, 0, values)
            self._put(ids, {WEIGHT: values})

    @property
    def _pages(self) -> PageCache:
        assert self._cache is not None
        return self._cache

    def cache_stats(self) -> CacheStats:
        """What the cache did since the table was made."""
        return sum_of(self._past, self._pages.stats)

    def claim(self, num_rows: int) -> None:
        """Reserve room on the disk for the first rows of a table that is ``sparse``; it is kept.

        Raises:
            StorageError: there is none; nothing has changed.
        """
        if num_rows > self._claimed:
            store = self._pages.reader
            assert isinstance(store, PageReader)
            store.file.claim(store.layout.num_pages(num_rows))
            self._claimed = num_rows

    def flush(self) -> None:
        """Write every page that the file lacks; a second call writes nothing."""
        self._pages.flush()

    def drop_cache(self) -> None:
        """Let every page leave memory; those that the lower tier lacks are written before."""
        self._pages.drop()

    def lower_column(self, name: str) -> Tensor:
        """All rows of the weight or of state of one value an element, (num_rows, D), in memory of the host.

        They are the newest, to be read and changed in place until the next call that reads or updates rows.
        """
        cache, store = self._pages, self._pages.reader
        assert isinstance(store, HostPages)
        cache.drop()
        cache.store_first_values()
        return store.section(self._sections[name]).view(-1, self.spec.dim)[: self._num_rows]

    def saved_to(self, checkpoint: str) -> None:
        """Note in the file which checkpoint stands for it, if the run does not end."""
        self._saved = checkpoint
        self._pages.reader.note(checkpoint)

    def hold(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._pages.hold([self._pages_in([one]) for one in ranges])

    def num_held(self, ranges: Sequence[tuple[int, int]]) -> int:
        """How many of the ranges memory holds at once, whichever; short ones that lie apart take a page each."""
        frames = self._pages.frames
        needed = np.cumsum(sorted((len(self._pages_in([one])) for one in ranges), reverse=True))
        return int((np.minimum(needed, len(frames.frame_of)) <= frames.capacity).sum())

    def held_rows(self, *ranges: tuple[int, int]) -> tuple[Tensor, list[np.ndarray]]:
        keys = np.concatenate([np.arange(*one) for one in ranges])
        if not self._pages.frames.fits(keys):
            said = " and ".join(f"{low} to {high}" for low, high in ranges)
            raise ConfigError(
                f"table {self.spec.name!r}: memory holds {self._pages.frames.capacity} pages, rows {said} "
                f"have {len(self._pages_in(ranges))}; raise memory or take more parts"
            )
        ((_, places),) = self._pages.chunks(keys, write=True)
        return self._inner.weight, np.split(places, np.cumsum([high - low for low, high in ranges])[:-1])

    def _pages_in(self, ranges: Sequence[tuple[int, int]]) -> np.ndarray:
        """The pages of ranges of rows, in the order of their first one, without repeats."""
        shift = self._pages.frames.shift
        pages = [np.arange(low >> shift, ((high - 1) >> shift) + 1) for low, high in ranges if low < high]
        both = np.concatenate([np.empty(0, np.int64), *pages])
        return both[np.sort(np.unique(both, return_index=True)[1])]

    def prefetch(self, rows: Tensor) -> None:
        """Note that rows (B,) will be read soon, in this order of calls, and start to bring them."""
        self._pages.prefetch(rows.cpu().numpy())

    def rows_at(self, places: np.ndarray) -> np.ndarray:
        """The rows that lie at places of the frames, (B,)."""
        frames = self._pages.frames
        return (frames.page_of[places >> frames.shift] << frames.shift) | (places & ((1 << frames.shift) - 1))

    # Rows

    def read(self, rows: Tensor, decay: float | None = None) -> Tensor:
        found = self.weight.new_empty((len(rows), self.spec.dim))
        self._get(rows, found)
        return self._decay_(found, rows, decay) if self.lazy else found

    def read_into(self, rows: Tensor, out: Tensor) -> None:
        self._get(rows, out)
        if self.lazy:
            self._decay_(out, rows.to(self.weight.device))

    def _at(self, numbers: np.ndarray) -> Tensor:
        """Positions, for the tensors of the device."""
        return torch.from_numpy(numbers).to(self.weight.device)

    def _get(self, rows: Tensor, out: Tensor) -> None:
        """Stored weights of rows; a scan, and a batch that memory does not hold, leave the cache as it is."""
        keys, cache = rows.cpu().numpy(), self._pages
        cache.arrived(keys)
        if _is_scan(keys, cache.frames.shift) or not cache.frames.fits(keys):
            cache.peek(keys, 0, out)
            return
        for _, places in cache.chunks(keys, write=False):
            gather(self._inner.weight, self._at(places), out)

    def copy_of(
        self, rows: Tensor, others: Tensor | None = None, place: Tensor | None = None, out: Tensor | None = None
    ) -> RowCopy:
        """As ``EmbeddingShard.copy_of``; the copy is made at once, before another call moves the rows."""
        keys, cache = rows.cpu().numpy(), self._pages
        if self.lazy or _is_scan(keys, cache.frames.shift) or not cache.frames.fits(keys):
            return super().copy_of(rows, others, place, out)  # from a copy of the rows
        cache.arrived(keys)
        ((_, places),) = cache.chunks(keys, write=False)
        copy = self._inner.copy_of(self._at(places), others, place, out)
        copy_rows([copy])
        return copy._replace(done=True)

    def _put(self, rows: np.ndarray, columns: Mapping[str, Tensor]) -> None:
        """Overwrite columns of pages at distinct rows."""
        inner = self._inner
        for chosen, places in self._pages.chunks(rows, write=True):
            for name, values in columns.items():
                target = inner.weight if name == WEIGHT else inner.state[name]
                some = values if chosen is None else values[self._at(chosen)]
                target.index_copy_(0, self._at(places), some.to(target.dtype))

    def write(self, rows: Tensor, values: Tensor) -> None:
        self._put(rows.cpu().numpy(), {WEIGHT: values.to(self.weight.device)})
        self.wrote(rows)

    def write_columns(self, rows: Tensor, columns: Mapping[str, Tensor]) -> None:
        """``write_column`` of several: each page comes into memory once."""
        paged = {name: values.to(self.weight.device) for name, values in columns.items() if name in self._sections}
        if paged:
            self._put(rows.cpu().numpy(), paged)
        for name in columns.keys() - paged.keys():
            super().write_column(name, rows, columns[name])

    def updating(
        self, rows: Tensor, grads: Tensor | BagGradients
    ) -> Iterator[tuple[EmbeddingShard, Tensor, Tensor | BagGradients]]:
        """As ``EmbeddingShard.updating``, in as many turns as memory needs; clocks go on once."""
        inner, keys = self._inner, rows.cpu().numpy()
        clocks = {name: self.state[name].clone() for name, one in self.state_specs.items() if one.kind == "table"}
        for turn, (chosen, places) in enumerate(self._pages.chunks(keys, write=True)):
            for name, value in clocks.items() if turn else ():
                self.state[name].copy_(value)
            at, own, part = self._at(places), rows, grads
            if chosen is not None:
                picked = self._at(chosen)
                own, part = rows[picked], grads[picked]
            elif isinstance(grads, BagGradients) and grads.groups is not None:
                _, first, following = grads.groups
                part = replace(grads, groups=(places[first], first, following))
            for name in self._row_columns:
                inner.state[name][at] = self.state[name][own]
            yield inner, at, part
            for name in self._row_columns:
                self.state[name][own] = inner.state[name][at]

    # State

    def allocate_state(self, specs: Iterable[StateSpec]) -> None:
        if self.attached:
            raise ModeError(f"table {self.spec.name!r} is trained by another optimizer; close() that one first")
        wanted = {spec.name: spec for spec in specs}
        fresh: dict[str, Tensor] = {}
        for name, spec in wanted.items():
            dtype = spec.dtype_beside(self.spec.dtype)
            shape = spec.shape(0 if spec.kind == "element" else self._num_rows, self.spec.dim)
            fresh[name] = self.weight.new_zeros(shape, dtype=dtype)
            if spec.initial:
                fresh[name].fill_(spec.initial)
        before = self.state_specs, self.state
        self._set_state(wanted, fresh)
        self.attached = True
        try:
            if wanted or len(self._pages.columns) > 1:  # the state of an optimizer that went
                self._open(wanted)
        except BaseException:
            self._set_state(*before)
            if self._cache is None:
                self._open({})
            raise

    def hold_state(self, specs: Mapping[str, StateSpec], state: Mapping[str, Tensor]) -> None:
        """Refused: state of rows in a file is made by ``allocate_state``."""
        raise ModeError(f"table {self.spec.name!r}: its rows lie in a file, and its state is made by an optimizer")

    def free_state(self) -> None:
        self._set_state({}, {})
        self._sections, self._row_columns = {WEIGHT: 0}, []
        self._inner.free_state()

    def state_rows(self, name: str, rows: Tensor) -> Tensor:
        return self._peek(name, rows) if name in self._sections else super().state_rows(name, rows)

    def _peek(self, name: str, rows: Tensor) -> Tensor:
        """Copies of rows of a column of pages, (B, D), as they are stored, without a trace in the cache."""
        section = self._sections[name]
        out = self._pages.columns[section].new_empty((len(rows), self.spec.dim))
        self._pages.peek(rows.cpu().numpy(), section, out)
        return out

    def peek(self, rows: Tensor) -> Tensor:
        """``read`` of rows, (B,), without a trace in the cache."""
        found = self._peek(WEIGHT, rows)
        return self._decay_(found, rows) if self.lazy else found

    def column(self, name: str, start: int, stop: int) -> Tensor:
        rows = torch.arange(start, stop, device=self.weight.device)
        if start == 0 and name == WEIGHT:  # the begin of a checkpoint
            self._pages.reader.check_own()
        if name == WEIGHT:
            return self.peek(rows)
        return self.state_rows(name, rows) if name in self._sections else super().column(name, start, stop)

    def memory(self, name: str) -> Tensor | None:
        return None

    def kept(self, run: int) -> KeptRows | None:
        """The rows as they are now, until they are closed, where they lie in a file; None: they have to be copied.

        Args:
            run: They are read in runs of at most so many; see ``KeptRows``.
        """
        cache = self._pages
        pages = cache.keep()
        return None if pages is None else KeptRows(self, pages, self._sections, cache.first_values, run)

    def write_column(self, name: str, rows: Tensor, values: Tensor) -> None:
        self.write_columns(rows, {name: values})

    def read_state(self, rows: Tensor) -> dict[str, Tensor]:
        return {
            name: self.state[name].clone() if spec.kind == "table" else self.state_rows(name, rows)
            for name, spec in self.state_specs.items()
        }

    def write_state(self, rows: Tensor, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            if self.state_specs[name].kind == "table":
                self.state[name].copy_(value)
            else:
                self.write_column(name, rows, value)

    def saved_state(self) -> dict[str, Tensor]:
        """As ``EmbeddingShard.saved_state``: copies in memory, of all rows."""
        whole = {name: self.column(name, 0, self._num_rows) for name in self._sections if name != WEIGHT}
        return {**super().saved_state(), **whole}

    def num_bytes(self) -> int:
        tensors = [tensor for name, tensor in self.state.items() if name not in self._sections]
        in_pages = self._num_rows * sum(self._pages.reader.layout.sections) >> self._pages.frames.shift
        return in_pages + sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _is_scan(rows: np.ndarray, shift: int) -> bool:
    """Whether rows are a run of ids over more than two pages: a reader of the table, not a batch."""
    num = len(rows)
    return num > 2 << shift and int(rows[-1]) - int(rows[0]) == num - 1 and bool((np.diff(rows) == 1).all())
