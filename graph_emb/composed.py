"""``ComposedEmbedding``: rows that are sums of few shared rows, those of a node's parts and of its hashes.

    row of a node = row of its part at level 1 + ... + row of its part at level L        position
                  + weight_1 * row of bucket_1(node) + ... + weight_h * row of bucket_h(node)     hash
                  + the node's own row, of chosen nodes

Position-based hash embeddings: Kalantzi and Karypis, arXiv 2109.00101; hash embeddings: Svenstrup et al., NeurIPS 2017;
quotient and remainder: Shi et al., KDD 2020. Each level is an ordinary table, and so are the buckets and the weights:
modes, rules, checkpoints and merge order are theirs.
Legend: N nodes, L levels, h hashes, D width, B asked ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.composed_surface import ComposedSurface
from graph_emb.core.compiled import mix64
from graph_emb.core.errors import ConfigError, PartitionError, ShapeError, unknown_name
from graph_emb.embedding import DistEmbedding, lookup_with, rows_to, transport_of
from graph_emb.graph.original_ids import OriginalIds, as_original_ids
from graph_emb.graph.partition_book import Ids, as_book, as_ids, check_ids
from graph_emb.open_tables import next_name
from graph_emb.table.composition import KINDS, Composition, hash_factors
from graph_emb.table.initializers import FromArray, Scaled, Uniform, Zeros, as_initializer
from graph_emb.table.nested_levels import checked_levels, digest_of, sizes_of
from graph_emb.table.own_rows import OwnRows
from graph_emb.table.placement import AUTO, as_placement
from graph_emb.table.row_sums import CaptureSums, RowTerms
from graph_emb.table.tier.sizes import shares_of
from graph_emb.transport import runtime


class ComposedEmbedding(ComposedSurface):
    """A table of N rows that keeps far fewer: each is a sum of rows that nodes share.

    ``emb(ids)`` returns rows that autograd follows, as of a ``DistEmbedding``; a sparse optimizer takes it in the place
    of one and trains ``emb.tables``. Nothing of N x D is ever made.

    Args:
        levels: The part of each node at each level, (N, L) integers, coarsest first: ``parts.levels()`` of a nested
            partition, or any. For kinds without levels N alone does.
        embedding_dim: D.
        kind: ``"position"``: rows of the parts; ``"hash"``: weighted rows of hashes; ``"position-hash"``: both;
            ``"quotient-remainder"``: the rows of id // num_buckets and id % num_buckets; ``"full"``: a row for each
            node, the table to compare with.
        num_hashes: h, of kinds that hash; default 2.
        num_buckets: Rows that the hashes, or quotients and remainders, share; default 4096.
        name: Of the table, and the stem of its tables' names; None counts, as of ``DistEmbedding``.
        init_func: An initializer whose values depend on ids, as for ``DistEmbedding``; None: ``Uniform(seed=seed)``.
            First values are divided by sqrt(L + h), so that sums have the norm of one row.
        part_policy: Who owns which node: of the hashes' weights, which are the nodes' own, and of ``"full"``.
        level_sizes: Rows of each level that is used; None: the largest part of each and one more.
        scope: ``"all"``: a node hashes into all buckets; ``"part"``: into those of its part of the coarsest level.
        own_rows: Nodes that have a row of their own beside, (k,) ids: those of highest degree, which train enough for
            one. It begins at 0, lies with the node's part, and is saved under its original id. Of any kind but
            ``"full"``; None: none has.
        seed: Of the hashes, and of first values where ``init_func`` is None; default 0.
        dtype, device, original_ids: As of ``DistEmbedding``. Hashes are of original ids, whatever the partition.
        placement: As of ``DistEmbedding``: its memory is that of all tables, which share it in proportion to their
            bytes. ``ge.Buckets`` is for kind ``"full"`` alone: rows that nodes share are in no bucket.
    Attributes:
        tables: The tables that are trained.
    Raises:
        ConfigError: an unknown kind, levels that are negative or not nested, numbers below 1, or an argument that is of
            no effect on the kind, or a placement whose memory is below what the tables need.
        ShapeError: levels are no integers of two dimensions.
        PartitionError: levels and policy are of different numbers of nodes.
    Example:
        >>> emb = ge.ComposedEmbedding(torch.tensor([[0, 0], [0, 1], [1, 2]]), 4, kind="position")
        >>> opt = ge.SparseSGD([emb], lr=0.1)
        >>> rows = emb(torch.tensor([0, 2]))
        >>> rows.shape, emb.num_parameters  # two parts and three parts, of four numbers each
        (torch.Size([2, 4]), 20)
        >>> rows.sum().backward()
        >>> opt.step()
    """

    def __init__(
        self,
        levels: Tensor | np.ndarray | int,
        embedding_dim: int,
        kind: str = "position-hash",
        *,
        num_hashes: int | None = None,
        num_buckets: int | None = None,
        name: str | None = None,
        init_func: Any = None,
        part_policy: Any = None,
        level_sizes: Sequence[int] | None = None,
        scope: str = "all",
        own_rows: Ids | None = None,
        seed: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        original_ids: OriginalIds | Tensor | np.ndarray | None = None,
        placement: Any = AUTO,
    ) -> None:
        if kind not in KINDS:
            raise unknown_name("kind of a composed table", kind, KINDS)
        if scope not in ("all", "part"):
            raise unknown_name("scope of the hashes", scope, ("all", "part"))
        self._name = name = next_name(runtime.current()) if name is None else name
        placed, hashed = kind.startswith("position"), kind.endswith("hash")
        given = {
            "num_hashes": (num_hashes is not None, hashed),
            "num_buckets": (num_buckets is not None, hashed or kind == "quotient-remainder"),
            "scope='part'": (scope == "part", hashed),
            "level_sizes": (level_sizes is not None, placed or scope == "part"),
            "seed": (seed is not None, hashed or init_func is None),
        }
        for what, (said, used) in given.items():
            if said and not used:
                raise ConfigError(f"table {name!r}: {what} has no effect on kind {kind!r} made so; leave it out")
        num_hashes, num_buckets, seed = (
            default if one is None else one for one, default in ((num_hashes, 2), (num_buckets, 4096), (seed, 0))
        )
        for what, number in (("num_hashes", num_hashes), ("num_buckets", num_buckets)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ConfigError(f"table {name!r}: {what} is {number!r}; it must be an integer of at least 1")
        self._dim, num_hashes = embedding_dim, num_hashes if hashed else 0
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise ConfigError(f"table {name!r}: seed is {seed!r}; it must be an integer in [0, 2**63)")
        levels = checked_levels(name, levels)
        self._num_rows = len(levels)
        if not levels.shape[1] and (placed or scope == "part"):
            what = f"kind {kind!r}" if placed else "scope 'part'"
            raise ConfigError(f"table {name!r}: {what} needs the levels of a partition, not {len(levels)} nodes")
        if not placed and scope == "all":
            levels = levels[:, :0]
        rows = getattr(getattr(part_policy, "book", None), "num_rows", self._num_rows)
        if rows != self._num_rows:
            raise PartitionError(
                f"table {name!r}: levels of {self._num_rows} nodes, part_policy of {rows}; are they of one graph?"
            )
        sizes = sizes_of(name, levels, level_sizes) if levels.shape[1] else ()
        found = as_original_ids(original_ids, part_policy, self._num_rows, name)
        hashes = hashed or kind == "quotient-remainder"
        self._original_ids = found
        self._book = as_book(part_policy, self._num_rows, name)
        keys = found.of(0, self._num_rows) if found is not None and hashes else None
        numbers: dict[str, Any] = {"num_hashes": num_hashes, "num_buckets": num_buckets, "seed": seed}
        self.composition = Composition.of(name, kind, levels, sizes, **numbers, scope=scope, original=keys)
        base: Any = as_initializer(Uniform(seed=seed) if init_func is None else init_func)
        if not hasattr(base, "fill_at_") or isinstance(base, FromArray):
            raise ConfigError(
                f"table {name!r}: init_func {init_func!r:.60} has a row for each node; shared rows need values that "
                "depend on ids, such as ge.initializers.Uniform"
            )
        own = {"part_policy": part_policy, "original_ids": original_ids}
        plan: list[tuple[int, int, str, Any, dict[str, Any]]] = []  # rows, width, name, first values, whose rows
        if kind == "full":
            plan = [(self._num_rows, embedding_dim, f"{name}.full", base, own)]
        elif kind == "quotient-remainder":
            counts = (-(-self._num_rows // num_buckets), min(num_buckets, self._num_rows))
            for place, (part, count) in enumerate(zip(("quotient", "remainder"), counts, strict=True)):
                plan.append((count, embedding_dim, f"{name}.{part}", Scaled(base, 2**-0.5, place), {}))
        else:
            factor = (len(sizes) * placed + num_hashes) ** -0.5
            stem = f"{name}.{digest_of(levels, found)}of{self._num_rows}" if placed else ""
            for place, size in enumerate(sizes if placed else ()):
                plan.append((size, embedding_dim, f"{stem}.level{place}", Scaled(base, factor, place), {}))
        num_positions = len(plan)
        if hashed:
            init = Scaled(base, factor, len(sizes) + 1)
            plan.append((num_buckets, embedding_dim, f"{name}.buckets", init, {}))
            plan.append((self._num_rows, num_hashes, f"{name}.weights", Zeros(), own))
        self._own = None if own_rows is None else OwnRows(name, kind, own_rows, self._book, found)
        if self._own is not None:
            of_nodes = {"part_policy": self._own.book, "original_ids": self._own.original_ids}
            plan.append((len(self._own), embedding_dim, f"{name}.own", Zeros(), of_nodes))
        self._placement = as_placement(placement, name)
        shares: list[Any] = [placement] * len(plan)
        if self._placement is not None:
            shares = shares_of(name, self._placement, [(rows, width) for rows, width, *_ in plan], dtype)
        self.tables = [
            DistEmbedding(rows, width, table, first, dtype=dtype, device=device, placement=share, **whose)
            for (rows, width, table, first, whose), share in zip(plan, shares, strict=True)
        ]
        self._positions = self.tables[:num_positions]
        of_hashes: list[DistEmbedding | None] = [None, None]
        if hashed:
            of_hashes = [*self.tables[num_positions : num_positions + 2]]
        self._buckets, self._weights = of_hashes
        self._check_alike(seed)

    def _check_alike(self, seed: int) -> None:
        """Raise a ConfigError on all ranks where they would make a node's row of other rows; tables tell the rest."""
        transport = self.transport
        if not transport.lockstep or transport.world_size == 1:
            return
        own = np.empty(0, np.uint64) if self._own is None else mix64(self._own.nodes.astype(np.uint64))
        told = np.array(transport.gather([seed, int(own.sum(dtype=np.uint64) >> np.uint64(1))]))
        for what, said in zip(("seed", "own_rows"), told.T, strict=True):
            if (others := np.flatnonzero(said != said[0])).size:
                raise ConfigError(
                    f"table {self._name!r}: rank {others[0]} gives another {what} than rank 0; give all ranks the same"
                )

    def __call__(self, idx: Ids, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
        """Rows of ids in request order, shape ``idx.shape + (D,)``; arguments and errors as of ``DistEmbedding``."""
        return lookup([(self, idx)], device, dtype)[0]

    forward = __call__

    def shared(self, ids: Tensor) -> RowTerms:
        """The rows of ``shared_tables`` that those of ids (B,) are sums of."""
        return self.composition.terms(ids, [table.num_embeddings for table in self.shared_tables])

    @property
    def kind(self) -> str:
        """Of which rows it is made."""
        return self.composition.kind

    @property
    def num_hashes(self) -> int:
        """h; 0 of kinds without."""
        return self.composition.num_hashes

    @property
    def num_buckets(self) -> int:
        """Rows that hashes, or quotients and remainders, share."""
        return self.composition.num_buckets

    @property
    def shared_tables(self) -> list[DistEmbedding]:
        """The tables whose rows nodes share: buckets, the finest level, the coarser ones; none of ``full``."""
        if self.kind == "full":
            return []
        positions = [*self._positions[-1:], *self._positions[:-1]] if self.composition.placed else self._positions
        return [*([] if self._buckets is None else [self._buckets]), *positions]

    @property
    def own_rows(self) -> Tensor:
        """Ids of the nodes that have a row of their own, (k,), int64, ascending; none of ``full``."""
        return torch.empty(0, dtype=torch.int64) if self._own is None else torch.from_numpy(self._own.nodes).sort()[0]

    @property
    def own_table(self) -> DistEmbedding | None:
        """The table that has a row for each node: the weights of hashes, or the rows of ``full``."""
        return self._positions[0] if self.kind == "full" else self._weights

    def of_nodes(self, ids: Tensor) -> list[tuple[DistEmbedding, Tensor]]:
        """Tables of rows that no nodes share, with those of ids (B,): ``own_table``, then that of ``own_rows``."""
        found = [] if self.own_table is None else [(self.own_table, ids)]
        return found if self._own is None else [*found, (self.tables[-1], self._own.find(ids)[1])]

    def with_own(self, found: Tensor, ids: Tensor, rows: Iterator[Tensor]) -> Tensor:
        """Rows (B, D) of ids (B,) with those of ``own_rows`` among them added, which are the next of ``rows``."""
        if self._own is None:
            return found
        return found.index_add(0, self._own.find(ids)[0].to(found.device), next(rows))

    def summed(
        self, shared: RowTerms, rows: Sequence[Tensor], own: Tensor | None, device: Any, dtype: torch.dtype | None
    ) -> Tensor:
        """Rows (B, D) of ids of ``shared``, recorded where gradients are enabled.

        Args:
            rows: Those of ``shared.wanted``.
            own: Of ``own_table``, (B, h).
        """
        factors = None
        if own is not None:
            factors = hash_factors(own, self.dtype)
        found = rows_to(shared.sums(rows, factors), device, dtype or self.dtype)
        if not torch.is_grad_enabled():
            return found
        traces, first = [table.live_trace for table in self.shared_tables], self.shared_tables[0].anchor
        return CaptureSums.apply(first, own, found, shared, traces, factors, rows[0])

    def buckets_of(self, ids: Tensor) -> Tensor:
        """The bucket of each hash of each id, (B, h), int64: a function of seed, original id and, by scope, part."""
        return self.composition.buckets_of(ids)

    @torch.no_grad()
    def rows_of_new(self, original_ids: Ids, levels: Tensor | np.ndarray | None = None) -> Tensor:
        """Rows of nodes that the table does not have, made of those that it shares: without training.

        A new node has the rows of the parts that it joins, which ``partition.extend`` tells, and those of its buckets,
        each with weight 1. In collective mode every rank calls it.

        Args:
            original_ids: Of the new nodes, (B,), each at least 0.
            levels: The part of each at each level, (B, L), as ``levels`` of the table; None for kinds without them.
        Returns:
            (B, D), those of a table that had these nodes from the start and did not train on them.
        Raises:
            ConfigError: a kind that has no row for a new node, or levels are missing or of no effect.
            ShapeError: levels are of another shape.
            PartitionError: an id is negative, or a part is not in the table, or lies in another one than there.
        Example:
            >>> emb = ge.ComposedEmbedding(torch.tensor([[0, 0], [0, 1], [1, 2]]), 4, kind="position")
            >>> new = emb.rows_of_new([3], torch.tensor([[0, 1]]))  # a node of the second one's parts
            >>> torch.equal(new[0], emb.weight[1])
            True
        """
        if self.kind in ("full", "quotient-remainder"):
            raise ConfigError(
                f"table {self._name!r}: kind {self.kind!r} has no row for a new node; make a larger table"
            )
        with self.transport.joint(f"pull of new nodes of table {self._name!r}"):
            ids = check_ids(as_ids(original_ids), 2**63, self._name).flatten()
            made = self.composition
            width = made.levels_of(made.finest[:0]).shape[1]
            if (levels is None) != (not width):
                what = (
                    "has no levels; leave them out" if levels is not None else f"needs the {width} levels of new nodes"
                )
                raise ConfigError(f"table {self._name!r}: kind {self.kind!r} {what}")
            chosen = np.empty((len(ids), 0), np.int64) if levels is None else np.asarray(levels)
            if chosen.shape != (len(ids), width) or chosen.dtype.kind not in "iu":
                expected = f"integers ({len(ids)}, {width})"
                raise ShapeError(
                    f"table {self._name!r}: levels have shape {chosen.shape} of {chosen.dtype}; give {expected}"
                )
            chosen = chosen.astype(np.int64)
            made.check_chains(self._name, chosen)
            within = chosen[:, 0] if made.scope == "part" else None
            rows = lookup([(table, chosen[:, place]) for place, table in enumerate(self._positions)])
            if self._buckets is not None:
                rows.insert(0, self._buckets.bag(made.hashes(ids.numpy(), within), mode="sum"))
            return torch.stack(rows).sum(dim=0)

    def names_in(self, saved: Mapping[str, int]) -> dict[str, str]:
        """What a checkpoint of fewer nodes, whose levels are those of the first ones here, calls the levels' tables.

        ``partition.extend`` keeps the chains of old nodes and numbers new ones after them, so that a table of the grown
        graph goes on with its rows; those of new nodes are made of the same.

        Args:
            saved: Rows of the checkpoint's tables, by name.
        Returns:
            Its names by the ones here; empty where they are the same, or it has no such tables.
        Raises:
            ConfigError: its levels are not those of the nodes here.
        """
        if not self.kind.startswith("position"):
            return {}
        own = self._positions[0].name.split(".")[-2]
        form = re.compile(rf"{re.escape(self._name)}\.([0-9a-f]{{8}})of([0-9]+)\.level0")
        found = {f"{match[1]}of{match[2]}": match for match in map(form.fullmatch, saved) if match}
        if not found or own in found:
            return {}
        chains, match = next(iter(found.items()))
        count = int(match[2])
        names = {table.name: f"{self._name}.{chains}.level{place}" for place, table in enumerate(self._positions)}
        known = sum(name.startswith(f"{self._name}.{chains}.level") for name in saved)
        same, made = known == len(names) and count < self._num_rows, self.composition
        if not same or digest_of(made.levels_of(made.finest), self._original_ids, count) != match[1]:
            raise ConfigError(
                f"table {self._name!r}: the checkpoint has other levels of its {count} nodes than the first ones of "
                f"these {self._num_rows}; use its partition, or one that partition.extend made of it"
            )
        if made.scope == "part" and saved[names[self._positions[0].name]] != self._positions[0].num_embeddings:
            raise ConfigError(
                f"table {self._name!r}: the checkpoint has {saved[names[self._positions[0].name]]} parts of level 0, "
                f"these are {self._positions[0].num_embeddings}, by which scope='part' hashes; pass level_sizes="
            )
        return names


def lookup(
    asked: Sequence[tuple[DistEmbedding | ComposedEmbedding, Ids]],
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """``emb(ids)`` of several tables at once: in one exchange in collective mode, in one wait in kvstore mode.

    Values and gradients are those of separate calls, bit for bit. The rows of all tables are copied in one pass, and
    the optimizer's step updates them in one. In collective mode every rank asks the same tables in
    the same order; a table may stand twice.

    Args:
        asked: Plain or composed tables, each with integer ids of any shape: a tensor, an array or a list.
        device, dtype: As ``DistEmbedding.__call__``.
    Returns:
        For each pair the rows, shape ``ids.shape + (D,)``.
    Raises:
        PartitionError, ShapeError, ConfigError: as ``DistEmbedding.__call__``; no row was pulled then.
        ModeError: tables of several modes.
    Example:
        >>> init = ge.initializers.FromArray(torch.arange(6.0).view(3, 2))
        >>> users, items = ge.DistEmbedding(3, 2, init_func=init), ge.DistEmbedding(3, 2, init_func=init)
        >>> of_user, of_items = ge.lookup([(users, torch.tensor(1)), (items, torch.tensor([2, 0]))])
        >>> (of_items @ of_user).tolist()
        [23.0, 3.0]
    """
    if not asked:
        return []
    transport = transport_of(expanded([table for table, _ in asked]))
    with transport.joint(f"pull of table {', '.join(repr(table.name) for table, _ in asked)}"):
        return _looked_up(asked, device, dtype)


def _looked_up(
    asked: Sequence[tuple[DistEmbedding | ComposedEmbedding, Ids]],
    device: torch.device | str,
    dtype: torch.dtype | None,
) -> list[Tensor]:
    """``lookup``, within its joint call."""
    flat = [
        check_ids(as_ids(ids), table.num_embeddings, table.name).flatten()
        if isinstance(table, ComposedEmbedding)
        else ids
        for table, ids in asked
    ]
    own: list[tuple[DistEmbedding, Ids]] = []
    shared: list[tuple[DistEmbedding, Tensor]] = []
    sums: list[RowTerms | None] = []
    for (table, _), ids in zip(asked, flat, strict=True):
        of = None
        if isinstance(table, ComposedEmbedding):
            assert isinstance(ids, Tensor)
            of = table.shared(ids) if table.shared_tables else None
            own += table.of_nodes(ids)
            if of is not None:
                distinct = map(torch.from_numpy, of.wanted)
                shared += zip(table.shared_tables, distinct, strict=True)
        else:
            own.append((table, ids))
        sums.append(of)
    pulled, rows = map(iter, lookup_with(own, shared, device, dtype))
    found = []
    for (table, given), ids, of in zip(asked, flat, sums, strict=True):
        if not isinstance(table, ComposedEmbedding):
            found.append(next(pulled))
            continue
        mine = None if table.own_table is None else next(pulled)
        if of is None:
            assert mine is not None
            total = mine
        else:
            assert isinstance(ids, Tensor)
            total = table.summed(of, list(islice(rows, len(of.wanted))), mine, device, dtype)
            total = table.with_own(total, ids, pulled)
        found.append(total.view(*as_ids(given).shape, table.embedding_dim))
    return found


def expanded(tables: Any) -> list[Any]:
    """Tables with those of composed ones in their places."""
    return [own for one in tables for own in (one.tables if isinstance(one, ComposedEmbedding) else [one])]
