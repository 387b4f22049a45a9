"""networkx graphs: pickled ones, read with a list of allowed types, and GraphML."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graph_emb.core.errors import DataError
from graph_emb.graph.csr_readers.layout import fault_of_id, is_integer
from graph_emb.graph.csr_readers.source import (
    GraphFile,
    ReadOptions,
    graph_of_arcs,
    open_bytes,
    parsing,
    register,
    split_suffix,
)

_GRAPHS = ("graph.Graph", "digraph.DiGraph", "multigraph.MultiGraph", "multidigraph.MultiDiGraph")
_VIEWS = ("coreviews", "reportviews")  # caches of a graph that are pickled with it
_BUILTINS = (
    *("bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int"),
    *("list", "object", "range", "set", "slice", "str", "tuple"),
)
_OTHERS = {
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
    ("copyreg", "_reconstructor"),
    ("_codecs", "encode"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
}
_NUMPY = {"multiarray._reconstruct", "multiarray.scalar", "numeric._frombuffer"}


class _GraphUnpickler(pickle.Unpickler):
    """A pickle is a program; this one can only build graphs of plain values and numpy arrays."""

    def find_class(self, module: str, name: str) -> Any:
        module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)
        if not _is_allowed(module, name):
            raise DataError(f"the pickle asks for {module}.{name}, which no graph needs; save it as GraphML")
        return super().find_class(module, name)


def _is_allowed(module: str, name: str) -> bool:
    if "." in name:  # an attribute of something allowed
        return False
    if module == "builtins":
        return name in _BUILTINS
    if module.startswith("networkx.classes."):
        kind = module.removeprefix("networkx.classes.")
        return f"{kind}.{name}" in _GRAPHS or (kind in _VIEWS and name.endswith(("View", "Atlas")))
    if module.startswith(("numpy.core.", "numpy._core.")):  # before and after numpy 2
        return f"{module.rpartition('.')[2]}.{name}" in _NUMPY
    return (module, name) in _OTHERS


@register("gpickle", "pkl", "pickle", gzipped=True)
def read_gpickle(file: Path, options: ReadOptions) -> GraphFile:
    """A pickled networkx graph of any of its four classes; edge attribute ``weight``, 1 where it is absent."""
    graph = unpickled(file)
    with parsing(file, "a pickled networkx graph"):
        return _graph_file(file, graph, options, _typed_ids(file, list(graph)))


def unpickled(file: Path) -> Any:
    """The networkx graph of a pickle file; nothing in it is run."""
    import networkx

    with parsing(file, "a pickled networkx graph"), open_bytes(file, split_suffix(file)[1]) as stream:
        graph = _GraphUnpickler(stream).load()
        if not isinstance(graph, networkx.Graph):
            raise DataError(f"holds a {type(graph).__name__}; expected a networkx graph")
        return graph


@register("graphml", options=frozenset({"ids"}), gzipped=True)
def read_graphml(file: Path, options: ReadOptions) -> GraphFile:
    """A GraphML file; ids that are all integers become integers, unless ``ids='str'``."""
    import networkx

    with parsing(file, "GraphML"), open_bytes(file, split_suffix(file)[1]) as stream:
        graph = networkx.read_graphml(stream)
        return _graph_file(file, graph, options, _text_ids(file, list(graph), options))


def _graph_file(file: Path, graph: Any, options: ReadOptions, ids: NDArray) -> GraphFile:
    """The graph with nodes in the order of their ids; ``ids`` (N,) is in the order of networkx."""
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    repeated = np.flatnonzero(ids[1:] == ids[:-1])
    if repeated.size:
        raise DataError(f"{file}: two nodes have the id {ids[repeated[0]].item()!r}; expected distinct ids")
    nodes = list(graph)
    place = {nodes[old]: new for new, old in enumerate(order.tolist())}
    arcs = [(place[u], place[v], w) for u, v, w in graph.edges(data="weight")]
    has_weights = any(w is not None for _, _, w in arcs)
    src, dst = (np.array([arc[end] for arc in arcs], dtype=np.int64) for end in (0, 1))
    weights = np.array([1.0 if w is None else w for _, _, w in arcs]) if has_weights else None
    is_dense = ids.dtype.kind == "i" and len(ids) and ids[0] == 0 and ids[-1] == len(ids) - 1
    read = graph_of_arcs(
        file,
        src,
        dst,
        weights,
        options,
        directed=graph.is_directed(),
        num_nodes=len(ids),
        node_ids=None if is_dense else ids,
    )
    return GraphFile(read)


def _typed_ids(file: Path, nodes: list[Any]) -> NDArray:
    """Ids as int64 where all are integers, else as strings (of a tuple: as Python writes it)."""
    if all(isinstance(node, int | np.integer) and not isinstance(node, bool) for node in nodes):
        return _checked_ids(file, [str(int(node)) for node in nodes], "int").astype(np.int64)
    return _checked_ids(file, [str(node) for node in nodes], "str")


def _text_ids(file: Path, nodes: list[str], options: ReadOptions) -> NDArray:
    kind = options.ids
    if kind == "auto":
        kind = "int" if all(is_integer(node) for node in nodes) else "str"
    ids = _checked_ids(file, nodes, kind)
    return ids.astype(np.int64) if kind == "int" else ids


def _checked_ids(file: Path, ids: list[str], kind: str) -> NDArray:
    for position, text in enumerate(ids):
        fault = fault_of_id(text, kind, None)
        if fault is not None:
            raise DataError(f"{file}, node {position}: {fault}")
    return np.array(ids, dtype=str)
