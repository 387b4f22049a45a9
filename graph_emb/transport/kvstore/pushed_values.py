"""DGL's push, checked before anything leaves: ids of the table, and rows where no handler takes the values.

Legend: B ids, D width.
"""

from __future__ import annotations

from torch import Tensor

from graph_emb.core.errors import ShapeError
from graph_emb.graph.partition_book import check_ids
from graph_emb.table.spec import TableSpec


def checked(spec: TableSpec, ids: Tensor, values: Tensor, handled: bool) -> tuple[Tensor, Tensor]:
    """Ids, (B,), int64, and values, (B, ...), both on the CPU and outside autograd.

    Args:
        spec: Of the table.
        ids: Any integer tensor.
        values: One entry for each id.
        handled: Whether a handler takes them; else they are rows, (B, D).
    Raises:
        PartitionError: an id is out of range.
        ShapeError: ids are no integer tensor, or values do not fit them or the table.
    """
    ids = check_ids(ids, spec.num_rows, spec.name).flatten()
    if len(ids) != len(values):
        raise ShapeError(f"table {spec.name!r}: {len(ids)} ids but {len(values)} rows of values")
    if not handled and tuple(values.shape) != (len(ids), spec.dim):
        raise ShapeError(
            f"table {spec.name!r}: values have shape {tuple(values.shape)}, its rows ({len(ids)}, {spec.dim}); "
            "only a push handler takes other shapes"
        )
    return ids.cpu(), values.detach().cpu()
