"""Read-only rows of int8, with a scale for each row, of a table that has been trained.

Legend: B asked ids, D width.
"""

from __future__ import annotations

import weakref
from dataclasses import replace

import torch
from torch import Tensor

from graph_emb.core.devices import device_of
from graph_emb.core.errors import ConfigError, unknown_name
from graph_emb.graph.partition_book import Ids, check_ids
from graph_emb.table.initializers import Zeros
from graph_emb.table.shard import WEIGHT
from graph_emb.table.spec import FLOAT_DTYPES, TableSpec
from graph_emb.transport.base import Transport

KINDS = ("int8",)
LARGEST = 127
PIECE = 1 << 16  # rows that are rounded at a time


class QuantizedEmbedding:
    """Rows ``scale * code``, the codes int8, ``scale = max |w| / 127`` of each row: D + 4 bytes a row.

    ``DistEmbedding.quantize`` makes it, and every process calls that together, in every mode; the rows lie where those
    of the table do. Each number is at most half a scale from the one it stands for. It stays as it is while the table
    trains on, and no optimizer takes it.

    Args:
        transport: Of the table.
        spec: The table's.
        kind: ``"int8"``.
        name: Unique among live tables; None: that of the table with the kind.
    Raises:
        ConfigError: an unknown kind, or a live table has the name.
    Example:
        >>> emb = ge.DistEmbedding(2, 3, "node", ge.initializers.FromArray(torch.tensor([[1.0, -2.0, 0.5], [0, 0, 0]])))
        >>> small = emb.quantize("int8")
        >>> [round(x, 2) for x in small(torch.tensor([0]))[0].tolist()], small.num_bytes
        ([1.01, -2.0, 0.5], 14)
    """

    def __init__(self, transport: Transport, spec: TableSpec, kind: str, name: str | None) -> None:
        if kind not in KINDS:
            raise unknown_name("kind of quantized rows", kind, KINDS)
        self.name = f"{spec.name}.{kind}" if name is None else name
        self._transport, self._spec = transport, spec
        self._scales = f"{self.name}.scale"
        made = ((self.name, spec.dim, torch.int8), (self._scales, 1, torch.float32))
        for table, dim, dtype in made:
            transport.create(replace(spec, name=table, dim=dim, dtype=dtype, initializer=Zeros(), placement=None))
            weakref.finalize(self, transport.destroy, table)
        transport.flush()
        transport.barrier()
        shares = [transport.rows(spec.name), *(transport.rows(table, overwrite=True) for table, _, _ in made)]
        for source, codes, scales in zip(*shares, strict=True):
            for start in range(0, source.num_rows, PIECE):
                places = torch.arange(start, min(start + PIECE, source.num_rows))
                rows = source.read(WEIGHT, start, start + len(places)).float()
                scale = rows.abs().amax(dim=1, keepdim=True) / LARGEST
                steps = torch.where(scale > 0, rows / scale, 0.0)
                codes.write(WEIGHT, places, steps.round().to(torch.int8))
                scales.write(WEIGHT, places, scale)
        transport.barrier()

    @torch.no_grad()
    def __call__(self, idx: Ids, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
        """Rows of ids, in request order, duplicates kept, outside autograd. In collective mode every rank calls it.

        Args:
            idx: Integer ids of any shape: a tensor, an array or a list.
            device: Where the rows are wanted.
            dtype: Of the rows handed out; None: that of the table.
        Returns:
            Shape ``idx.shape + (D,)``.
        Raises:
            PartitionError: an id is out of range.
            ShapeError: idx holds no integers.
            ConfigError: dtype is no floating one, or device none of this machine.
        """
        if dtype is not None and dtype not in FLOAT_DTYPES:
            raise ConfigError(
                f"table {self.name!r}: dtype={dtype!r} must be one of {', '.join(map(str, FLOAT_DTYPES))}"
            )
        with self._transport.joint(f"pull of table {self.name!r}"):
            given = check_ids(idx, self.num_embeddings, self.name)
            ids = given.flatten()
            codes, scales = self._transport.pull_tables([(self.name, ids), (self._scales, ids)])
        device = device_of("device", device)
        rows = (codes.to(device).float() * scales.to(device)).to(dtype or self._spec.dtype)
        return rows.view(*given.shape, self.embedding_dim)

    @property
    def num_embeddings(self) -> int:
        """Rows of the whole table."""
        return self._spec.num_rows

    @property
    def embedding_dim(self) -> int:
        """Width of a row."""
        return self._spec.dim

    @property
    def num_bytes(self) -> int:
        """Memory of the whole table, over all processes."""
        return self._spec.num_rows * (self._spec.dim + 4)
