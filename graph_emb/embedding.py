"""``DistEmbedding``: a table of learnable rows for node or edge ids, with DGL's public surface.

Legend: B asked ids, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from graph_emb.core.devices import device_of
from graph_emb.core.errors import ConfigError, ModeError, unknown_name
from graph_emb.core.notebook import Card
from graph_emb.gradient_trace import PendingGradients, Trace
from graph_emb.graph.hash_book import HashPolicy, growing_book
from graph_emb.graph.original_ids import OriginalIds, SameIds, as_original_ids
from graph_emb.graph.partition_book import Ids, PartitionBook, as_book, as_ids, check_ids
from graph_emb.named_store import NamedStore
from graph_emb.open_tables import Lifetime, next_name, objects_of
from graph_emb.quantized import QuantizedEmbedding
from graph_emb.stored_rows import StoredRows
from graph_emb.table.bags import Bags, CaptureBags, checked_bags
from graph_emb.table.growth import Growth
from graph_emb.table.initializers import initializer_for
from graph_emb.table.placement import AUTO, as_placement, device_for
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import FLOAT_DTYPES, TableSpec, checked_shape
from graph_emb.transport import runtime
from graph_emb.transport.base import Named, Transport
from graph_emb.weight import Weight, state_by_name


class _Capture(torch.autograd.Function):
    """Identity whose backward hands the gradient to the table instead of to a parameter.

    The anchor is a scalar that requires a gradient, so that autograd visits this node; it never gets one.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, rows: Tensor, trace: Trace, ids: Tensor) -> Tensor:
        ctx.trace, ctx.ids = trace, ids
        return rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None, None]:
        ctx.trace.add(ctx.ids, grad.reshape(ctx.ids.numel(), grad.shape[-1]))
        return None, None, None, None


class DistEmbedding(StoredRows, PendingGradients, Card):
    """Learnable rows, partitioned by the graph's partition policy, trained by a sparse optimizer.

    ``emb(ids)`` returns rows that autograd follows; ``optimizer.step()`` applies what came back.

    Args:
        num_embeddings: Rows of the whole table: the nodes or edges of one type; or ``ge.growing(max_rows=...)``, see
            ``GrowingEmbedding``, which then takes ``admission`` and ``eviction`` as well.
        embedding_dim: Width D of a row.
        name: Of the table; None counts: trainers must then make the same tables in the same order. Where a table of the
            name is alive, this is another object of it, on every trainer: rows, gradients that came back and optimizer
            are one. ``init_func`` and ``part_policy`` may then be None.
        init_func: None (zeros), an object of ``graph_emb.initializers``, DGL's ``f(shape, dtype) -> tensor``, or
            ``f(tensor)`` of ``dgl.nn.NodeEmbedding`` and ``torch.nn.init``, which fills the rows of a process.
        part_policy: None (DGL's of as many ids where its graph is in the job, else one range), a partition book, a
            policy of ``partition`` or a DGL node or edge policy.
        dtype: Storage; 16-bit tables accumulate in float32.
        device: Where the rows lie; None: the processor, or the current GPU where the placement says ``"device"``.
        bounds: ``"raise"``, or ``"drop"``: ids outside the table get rows of zeros and no gradient, and ``dropped``
            counts them; the caller's ids stay as they are.
        original_ids: The original id of each row, (num_embeddings,) distinct integers or an ``OriginalIds``: what first
            values and checkpoints are keyed by. None: those of the policy where it is one of ``partition``; any other
            policy's ids (DGL's too) are taken as original.
        placement: Memory: ``"auto"``, of ``device``; ``"host"``, of the processor; ``"shared"``, there and in reach of
            other processes (kvstore mode, or collective mode with ``hogwild=True``); ``"device"``, of a GPU. Or
            ``graph_emb.File(folder, memory="4GiB")``: a file, of which each owner of rows (a process; in kvstore mode
            a server) holds as many bytes, state included; or ``Buckets``, or ``DeviceCache``. No result depends on it.
    Raises:
        ConfigError: a bad shape, dtype or name, or one in which a live table of the name differs; a placement that
            excludes the device, or that mode or machine do not have.
        PartitionError: the policy or original_ids do not cover num_embeddings ids.
    Example:
        >>> emb = ge.DistEmbedding(5, 2, "node", ge.initializers.FromArray(torch.arange(10.0).view(5, 2)))
        >>> opt = ge.SparseSGD([emb], lr=0.1)
        >>> rows = emb(torch.tensor([3, 0, 3]))
        >>> rows.tolist()
        [[6.0, 7.0], [0.0, 1.0], [6.0, 7.0]]
        >>> rows.sum().backward()
        >>> opt.step()
        >>> emb.weight[3].tolist()
        [5.800000190734863, 6.800000190734863]
    """

    kinds: ClassVar[dict[type, type[DistEmbedding]]] = {}
    """The class of a table by the type of what stands for its number of rows, where that is no integer."""

    def __new__(
        cls,
        num_embeddings: Any = None,
        embedding_dim: Any = None,
        name: Any = None,
        init_func: Any = None,
        part_policy: Any = None,
        **options: Any,
    ) -> DistEmbedding:
        kind = type(num_embeddings)
        if cls is DistEmbedding and kind is int and runtime.current().grows_by_default:
            tied = part_policy is not None and not isinstance(part_policy, HashPolicy)
            kind = kind if tied or options.keys() & {"original_ids", "bounds", "placement"} else Growth
        found = DistEmbedding.kinds.get(kind, cls)
        return super().__new__(found if issubclass(found, cls) else cls)

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        name: str | None = None,
        init_func: Any = None,
        part_policy: Any = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        original_ids: OriginalIds | Tensor | np.ndarray | None = None,
        bounds: Literal["raise", "drop"] = "raise",
        placement: Any = AUTO,
    ) -> None:
        if bounds not in ("raise", "drop"):
            raise unknown_name("bounds", bounds, ("raise", "drop"))
        self._drops, self.dropped = bounds == "drop", 0
        self._transport = runtime.current()
        self._name = name = next_name(self._transport) if name is None else name
        growth = num_embeddings if isinstance(num_embeddings, Growth) else None
        num_rows, dim = checked_shape(self._name, growth.max_rows if growth else num_embeddings, embedding_dim, dtype)
        objects = objects_of(self._transport, name)
        if part_policy is None and not objects and growth is None:
            part_policy = self._transport.policy_for(num_rows, name)
        book = growing_book(part_policy, name) if growth else as_book(part_policy, num_rows, self._name)
        ids = None if growth else as_original_ids(original_ids, part_policy, num_rows, self._name)
        self._spec = TableSpec(
            name=self._name,
            num_rows=num_rows,
            dim=dim,
            book=book,
            initializer=initializer_for(init_func, num_rows, dim, self._name, ids),
            dtype=dtype,
            device=device_for(placement, device, name, mode=self._transport.mode, hogwild=self._transport.hogwild),
            original_ids=ids,
            growth=growth,
            placement=as_placement(placement, self._name),
        )
        for other in objects:
            if self._drops != other._drops:
                raise ConfigError(f"a table {name!r} is alive with other bounds than {bounds!r}; choose another name")
            other.spec.check_same(self._spec, policy=part_policy is not None, first=init_func is not None)
            self._transport.reopen(name)
            self.__dict__ = other.__dict__
            objects.add(self)
            return
        self._part_policy = part_policy if part_policy is not None else book
        self._transport.create(self._spec)
        self._transport.named[name] = Named(self._part_policy)
        self._lifetime = Lifetime(self._transport, name)
        objects.add(self)
        self.anchor = torch.zeros((), requires_grad=True)
        self._live_trace = Trace()

    def __call__(self, idx: Ids, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
        """Rows of ids, in request order, duplicates kept; ``graph_emb.lookup`` asks several tables at once.

        Args:
            idx: Integer ids of any shape (DGL passes (B,)): a tensor, an array or a list.
            device: Where the rows are wanted.
            dtype: Floating, that of the rows which are handed out, and so of their gradients; None: the table's.
        Returns:
            Shape ``idx.shape + (D,)``; recorded for the optimizer where gradients are enabled.
        Raises:
            PartitionError: an id is out of range, unless the table drops those.
            ShapeError: idx holds no integers.
            ConfigError: dtype is no floating one, or device none of this machine.
        """
        return lookup_with([(self, idx)], [], device, dtype)[0][0]

    forward = __call__

    def _checked(self, ids: Ids) -> Tensor:
        """Ids as the transport takes them, any shape, int64, after a check that the table can have them."""
        return self._spec.checked_ids(ids) if self._spec.growth else check_ids(ids, self.num_embeddings, self._name)

    def kept(self, idx: Tensor) -> tuple[Tensor, Tensor | None]:
        """The checked ids that are pulled, (B,), and their positions among all where some are dropped."""
        if self._drops:
            inside = self._inside(idx)
            self.dropped += idx.numel() - len(inside)
            if len(inside) < idx.numel():
                return idx.flatten()[inside].long(), inside
        return self._checked(idx).flatten(), None

    def _handed_out(self, rows: Tensor, ids: Tensor, inside: Tensor | None, shape: torch.Size) -> Tensor:
        """Rows of ``kept`` ids, (B, D), as the caller asked for them; where gradients are enabled those come back to
        ids, which stay as they are."""
        rows = rows.view(*(shape if inside is None else ids.shape), self.embedding_dim)
        if torch.is_grad_enabled():
            rows = _Capture.apply(self.anchor, rows, self._live_trace, ids)
        if inside is None:
            return rows
        found = rows.new_zeros(shape.numel(), self.embedding_dim).index_copy(0, inside.to(rows.device), rows)
        return found.view(*shape, self.embedding_dim)

    def _inside(self, ids: Ids) -> Tensor:
        """Positions of the ids that the table has among all, of a table that drops the others."""
        ids = as_ids(ids)
        check_ids(ids.flatten()[:0] if isinstance(ids, Tensor) else ids, self.num_embeddings, self._name)
        return ((ids >= 0) & (ids < self.num_embeddings)).flatten().nonzero().flatten()

    def bag(
        self,
        ids: Ids,
        offsets: Ids | None = None,
        mode: str = "sum",
        per_sample_weights: Tensor | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Sums or means of rows over bags of ids, with the conventions of ``torch.nn.EmbeddingBag``.

        Rows are summed where they lie, or each distinct one is pulled once; gradients of the bags are merged into the
        rows of their ids: nothing is copied for each of the ids.

        Args:
            ids: Shape (B,) with offsets, or (bags, ids of each) without.
            offsets: Where each bag begins, shape (bags,), integers from 0 to B, ascending, the first one 0.
            mode: ``"sum"``, or ``"mean"``, which divides by the number of ids. An empty bag is zeros.
            per_sample_weights: Factor of each id, floating, shaped as ids; gradients reach it. For ``"sum"`` only.
            device: Where the result is wanted, and the weights are.
            dtype: As ``emb(ids, dtype=...)``.
        Returns:
            Shape (bags, D).
        Raises:
            PartitionError: an id is out of range.
            ShapeError: offsets or weights do not fit the ids.
            ConfigError: an unknown mode, weights of a mean, or a dtype that is no floating one, or no such device.
        Example:
            >>> emb = ge.DistEmbedding(4, 1, init_func=ge.initializers.FromArray(torch.arange(4.0).view(4, 1)))
            >>> emb.bag(torch.tensor([1, 3, 3]), torch.tensor([0, 1, 1])).tolist()  # bags of 1, of none, of 3 and 3
            [[1.0], [0.0], [6.0]]
        """
        ids = as_ids(ids)
        limit = None if self._spec.growth else self.num_embeddings
        check_ids(ids.flatten()[:0] if self._drops else ids, limit, self._name)
        _check_dtype(dtype)
        offsets = None if offsets is None else as_ids(offsets)
        bags = checked_bags(self._name, ids, offsets, mode, per_sample_weights, self.dtype)
        if self._drops:
            outside = (bags.ids < 0) | (bags.ids >= self.num_embeddings)
            bags.ids[outside] = -1
            self.dropped += int(outside.sum())
        return self._summed(bags, per_sample_weights, device, dtype)

    def _summed(
        self, bags: Bags, per_sample_weights: Tensor | None, device: torch.device | str, dtype: torch.dtype | None
    ) -> Tensor:
        """The sums of ``bag``, (bags, D), recorded where gradients are enabled."""
        traced = torch.is_grad_enabled()
        rows = places = None
        with self._transport.joint(f"pull of table {self._name!r}"):
            if traced and per_sample_weights is not None and per_sample_weights.requires_grad:
                distinct, places = bags.distinct()
                rows = self._transport.pull(self._name, distinct)
                found = bags.sums(rows, places)
            else:
                found = self._transport.pull_sums(self._name, bags)
        found = rows_to(found, device, dtype or self.dtype)
        if not traced:
            return found
        return CaptureBags.apply(self.anchor, per_sample_weights, found, self._live_trace, bags, rows, places)

    def prefetch(self, idx: Ids) -> None:
        """Start to fetch rows that the next call will ask for, while this process goes on.

        In collective mode every rank calls it, and the next call of the table must ask for the same ids. In local mode
        rows in memory are here already; of a table in a file call it for several batches ahead, in their order. Of a
        growing table the owners bring what lies in their files.

        Raises:
            PartitionError: an id is out of range.
            ShapeError: idx holds no integers.
        """
        with self._transport.joint(f"prefetch of table {self._name!r}"):
            if self._drops:
                idx = as_ids(idx).flatten()[self._inside(idx)]
            self._transport.prefetch(self._name, self._checked(idx).flatten())

    @property
    def name(self) -> str:
        return self._name

    @property
    def data_name(self) -> str:
        """The name under which the transport stores the rows."""
        return self._name

    @property
    def num_embeddings(self) -> int:
        """Rows of the whole table."""
        return self._spec.num_rows

    @property
    def embedding_dim(self) -> int:
        """Width of a row."""
        return self._spec.dim

    @property
    def part_policy(self) -> Any:
        """The policy as given, or the book that stands for None."""
        return self._part_policy

    @property
    def book(self) -> PartitionBook:
        """Who owns which id."""
        return self._spec.book

    @property
    def spec(self) -> TableSpec:
        """The table's specification: shape, storage, owners, first values."""
        return self._spec

    @property
    def original_ids(self) -> OriginalIds:
        """The original id of each row, and the row of each original id."""
        return self._spec.original_ids or SameIds(self.num_embeddings)

    @property
    def dtype(self) -> torch.dtype:
        return self._spec.dtype

    @property
    def transport(self) -> Any:
        """The transport that stores the rows (``graph_emb.transport.base.Transport``)."""
        return self._transport

    @property
    def kvstore(self) -> NamedStore:
        """The mode's tables by name, with the words of DGL's kvstore client."""
        return NamedStore(self._transport)

    @property
    def shard(self) -> EmbeddingShard:
        """The rows and optimizer state that this process stores."""
        return self._transport.shard(self._name)

    @property
    def optm_state(self) -> dict[str, Any]:
        """The optimizer's state by name, read and written by id as ``weight`` (``StateRows``); empty without one."""
        return state_by_name(self)

    def quantize(self, kind: str = "int8", name: str | None = None) -> QuantizedEmbedding:
        """The rows as they are now, read-only, in D + 4 bytes each: see ``QuantizedEmbedding``; all processes call."""
        return QuantizedEmbedding(self._transport, self._spec, kind, name)

    @property
    def weight(self) -> Weight:
        """The rows, to be read and overwritten by id: ``emb.weight[ids]``, ``emb.weight[0:10] = values``."""
        return Weight(self)

    _tensor = weight  # DGL's private spelling, which GraphStorm and user scripts read

    def __repr__(self) -> str:
        return f"DistEmbedding({self._name!r}, {self.num_embeddings}, {self.embedding_dim}, dtype={self._spec.dtype})"

    def _facts(self) -> dict[str, Any]:
        whole, transport = f"{self.num_embeddings:,} x {self.embedding_dim}", self._transport
        facts = {"name": self._name, "rows": whole, "dtype": self._spec.dtype, "mode": transport.mode}
        return {**facts, "trainers": transport.world_size, "placement": self._spec.placement}


def lookup_with(
    asked: Sequence[tuple[DistEmbedding, Ids]],
    shared: Sequence[tuple[DistEmbedding, Tensor]],
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """As ``graph_emb.lookup`` of plain tables; and in the same exchange rows of distinct ids (R,) of others.

    Those, (R, D), are no part of autograd: whoever asks for them hands their gradients to the tables.
    """
    _check_dtype(dtype)
    if not asked and not shared:
        return [], []
    tables = [table for table, _ in (*asked, *shared)]
    transport = transport_of(tables)
    with transport.joint(f"pull of table {', '.join(repr(table.name) for table in tables)}"):
        given = [(table, as_ids(ids)) for table, ids in asked]
        kept = [table.kept(ids) for table, ids in given]
        if torch.is_grad_enabled():
            kept = [(ids.clone(), inside) for ids, inside in kept]  # the caller may refill idx
            if transport.groups_ids:
                transport.will_train([(table.name, ids) for (table, _), (ids, _) in zip(given, kept, strict=True)])
        wanted = [(table.name, ids) for (table, _), (ids, _) in zip(given, kept, strict=True)]
        wanted += [(table.name, ids) for table, ids in shared]
        pulled = [transport.pull(*wanted[0])] if len(wanted) == 1 else transport.pull_tables(wanted)
    found = [
        table._handed_out(rows_to(rows, device, dtype), *of, idx.shape)
        for (table, idx), of, rows in zip(given, kept, pulled, strict=False)
    ]
    return found, pulled[len(asked) :]


def rows_to(rows: Tensor, device: torch.device | str, dtype: torch.dtype | None) -> Tensor:
    """Rows where they are wanted; a ConfigError where this machine has no such device.

    The device is looked at when torch refuses it: every read of rows passes here, and the ranks have pulled together.
    """
    try:
        return rows.to(device, dtype)
    except (RuntimeError, AssertionError, TypeError):
        device_of("device", device)
        raise


def _check_dtype(dtype: Any) -> None:
    if dtype is not None and dtype not in FLOAT_DTYPES:
        raise ConfigError(f"dtype={dtype!r} of the rows handed out must be one of {', '.join(map(str, FLOAT_DTYPES))}")


def transport_of(tables: Iterable[DistEmbedding]) -> Transport:
    """The transport of all tables; a ModeError where they have several, a ConfigError where one is something else."""
    transports: dict[int, Transport] = {}
    for table in tables:
        if not isinstance(table, DistEmbedding):
            raise ConfigError(f"{table!r:.80} is no DistEmbedding; a quantized table is called by itself: small(ids)")
        transports[id(table.transport)] = table.transport
    if len(transports) > 1:
        raise ModeError("the tables were made before and after a shutdown(); make them in one mode")
    return next(iter(transports.values()))
