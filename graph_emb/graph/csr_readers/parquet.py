"""Edge lists as Parquet: columns by name (src, dst, weight and their usual synonyms) or the first two or three."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.graph.csr_readers.layout import MAX_ID_LENGTH, fault_of_id, find_columns
from graph_emb.graph.csr_readers.source import GraphFile, ReadOptions, parsing, register
from graph_emb.graph.csr_readers.text import EdgeBlock, graph_of_blocks

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 1 << 20


@register("parquet", "pq", options=frozenset({"num_nodes", "ids", "columns"}))
def read_parquet(file: Path, options: ReadOptions) -> GraphFile:
    """A graph of an edge table, undirected unless ``directed=True``."""
    with parsing(file, "a Parquet file"):
        blocks = _blocks(file, options)
    return GraphFile(graph_of_blocks(file, blocks, options))


def _blocks(file: Path, options: ReadOptions) -> list[EdgeBlock]:
    from pyarrow import parquet

    blocks, row = [], 1
    with parquet.ParquetFile(file) as table:
        schema = table.schema_arrow
        places = find_columns(str(file), schema.names, True, options)
        kinds = [_kind(file, schema.field(place), options) for place in places[:2]]
        if kinds[0] != kinds[1]:
            raise DataError(f"{file}: one end of the edges is {kinds[0]}, the other {kinds[1]}; pass ids='str'")
        if kinds[0] == "str" and options.num_nodes is not None:
            raise ConfigError(f"num_nodes={options.num_nodes} needs ids 0 .. N-1, but the ids of {file} are names")
        for batch in table.iter_batches(_ROWS, columns=[schema.names[place] for place in places]):
            columns = [batch.column(schema.names[place]) for place in places]
            for column, place in zip(columns, places, strict=True):
                _refuse(file, row, schema.names[place], column, column.is_null(), "is missing (null)")
            read = _names if kinds[0] == "str" else _numbers
            src, dst = (
                read(file, row, schema.names[place], column, options)
                for column, place in zip(columns[:2], places[:2], strict=True)
            )
            weights = None
            if len(places) == 3:
                weights = _weights(file, row, schema.names[places[2]], columns[2])
            if len(columns[0]):
                blocks.append(EdgeBlock(src, dst, weights))
            row += len(columns[0])
    return blocks


def _kind(file: Path, field: pa.Field, options: ReadOptions) -> str:
    import pyarrow as pa

    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if pa.types.is_integer(kind):
        return "str" if options.ids == "str" else "int"
    if options.ids != "int" and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return "str"
    expected = "integers" if options.ids == "int" else "integers or strings"
    raise DataError(f"{file}: column {field.name!r} holds {field.type}; expected {expected} as ids")


def _refuse(file: Path, row: int, name: str, column: Any, bad: Any, fault: str) -> None:
    """An error for the first value that ``bad`` (Arrow or numpy booleans) marks."""
    marks = np.asarray(bad)
    if marks.any():
        place = int(np.argmax(marks))
        raise DataError(f"{file}, row {row + place}: {name} {column[place].as_py()!r} {fault}")


def _numbers(file: Path, row: int, name: str, column: Any, options: ReadOptions) -> NDArray[np.int64]:
    values = column.to_numpy(zero_copy_only=False)
    limit = min(2**63, options.num_nodes or 2**63) - 1
    bad = (values < 0) | (values > limit)
    if bad.any():
        place = int(np.argmax(bad))
        fault = fault_of_id(str(values[place]), "int", options.num_nodes)
        raise DataError(f"{file}, row {row + place}: {fault}")
    return values.astype(np.int64, copy=False)


def _names(file: Path, row: int, name: str, column: Any, options: ReadOptions) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    names = column.cast(pa.string())
    lengths = compute.utf8_length(names).to_numpy(zero_copy_only=False)
    bad = (lengths == 0) | (lengths > MAX_ID_LENGTH)
    if bad.any():
        place = int(np.argmax(bad))
        raise DataError(f"{file}, row {row + place}: {fault_of_id(names[place].as_py(), 'str', None)}")
    return names


def _weights(file: Path, row: int, name: str, column: Any) -> NDArray[np.float32]:
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "biuf":
        raise DataError(f"{file}: column {name!r} holds {column.type}; expected numbers as weights")
    return narrowed_weights(file, row, name, values)


def narrowed_weights(file: Path, row: int, name: str, values: NDArray) -> NDArray[np.float32]:
    """Weights as float32.

    Args:
        row: Number of the first value, for errors.
        values: Shape (E,), numbers.
    Raises:
        DataError: a weight is not finite or not above 0 in float32; names its row.
    """
    with np.errstate(over="ignore"):
        weights = values.astype(np.float32)
    bad = ~(np.isfinite(weights) & (weights > 0))
    if bad.any():
        place = int(np.argmax(bad))
        raise DataError(
            f"{file}, row {row + place}: {name} {values[place].item()!r} is not finite and above 0; "
            "drop the edge or rescale the weights"
        )
    return weights
