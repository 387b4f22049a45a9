"""Methods that take nodes one by one: ranges of ids, shuffled, by a hash, from a file; and by neighbours, in passes.

The passes are LDG's and Fennel's, restreamed (Nishimura, Ugander, "Restreaming graph partitioning", KDD 2013); parts
above a limit are rebalanced after the last.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from graph_emb.core.compiled import GOLDEN, mix64
from graph_emb.core.errors import ConfigError, DataError, unknown_name
from graph_emb.graph.readers.tables import read_npy
from partition.kernels import clustering as kernels
from partition.methods.base import Problem, any_but_none, at_least, method, node_counts_only
from partition.methods.coarsening import Level, random_order
from partition.methods.multilevel import Parts
from partition.problem import Constraints

SUFFIXES = (".npy", ".txt")
SHOWN_LETTERS = 60
"""Of a line that is wrong."""
ORDERS = ("random", "natural")
EXPONENT = 1.5
"""Fennel's gamma."""


@method("range", refusal=node_counts_only, balance=("nodes",), seeded=False, weighted=False)
def id_range(problem: Problem) -> np.ndarray:
    """Each type's ids in equal ranges; the parts that get one more go round from type to type.

    Good where the input's order already keeps neighbours together, as in crawls.
    """
    parts = np.empty(problem.num_nodes, np.int32)
    extra = 0
    for ntype, start in problem.graph.node_offsets.items():
        num, rest = divmod(problem.graph.num_nodes[ntype], problem.num_parts)
        sizes = np.full(problem.num_parts, num)
        sizes[(extra + np.arange(rest)) % problem.num_parts] += 1
        extra += rest
        stop = start + problem.graph.num_nodes[ntype]
        parts[start:stop] = np.repeat(np.arange(problem.num_parts, dtype=np.int32), sizes)
    return parts


@method("random", refusal=node_counts_only, balance=("nodes",), weighted=False)
def random(problem: Problem) -> np.ndarray:
    """Shuffle each type, then deal the types one after the other: counts of nodes and of types differ by 1 at most."""
    rng = np.random.default_rng(problem.seed)
    parts = np.empty(problem.num_nodes, np.int32)
    dealt = 0
    for ntype, start in problem.graph.node_offsets.items():
        num = problem.graph.num_nodes[ntype]
        order = rng.permutation(num)
        parts[start + order] = (np.arange(dealt, dealt + num) % problem.num_parts).astype(np.int32)
        dealt += num
    return parts


@method(
    "hash",
    refusal=lambda names: f"a hash promises nothing, not {', '.join(names)}; try random or multilevel" if names else "",
    balance=(),
    weighted=False,
)
def hash_of_id(problem: Problem) -> np.ndarray:
    """SplitMix64 of the original id (its characters, for strings), salted with the seed, modulo the parts.

    A node's part can be told from its id alone, on any machine.
    """
    graph = problem.graph
    out = [np.empty(0, np.int32)]
    for ntype, num in graph.num_nodes.items():
        ids = graph.node_ids.get(ntype)
        hashed = hashes(np.arange(num) if ids is None else ids, problem.seed)
        out.append((hashed % np.uint64(problem.num_parts)).astype(np.int32))
    return np.concatenate(out)


def hashes(ids: np.ndarray, seed: int) -> np.ndarray:
    """(N,), uint64, of integers or strings; a string's hash does not depend on the width of the array."""
    salt = _mixed(np.full(len(ids), seed & (2**64 - 1), np.uint64))
    if ids.dtype.kind in "iu":
        return _mixed(ids.astype(np.uint64) ^ salt)
    text = np.ascontiguousarray(ids.astype(str))
    letters = text.view(np.uint32).reshape(len(ids), -1) if len(ids) else np.empty((0, 0), np.uint32)
    for column in letters.T:
        salt = np.where(column == 0, salt, _mixed(salt ^ column.astype(np.uint64)))
    return salt


def _mixed(values: np.ndarray) -> np.ndarray:
    return mix64(values + GOLDEN)


# It is what it is: nothing is refused, and the tolerance is checked afterwards.
@method("file", refusal=lambda _: "", balance=("nodes",), seeded=False, weighted=False)
def from_file(problem: Problem, *, path: str | Path | None = None) -> np.ndarray:
    """Parts from ``.npy``, or text with one part a line or ``node part`` a line (ParMETIS's pm_dglpart, any order).

    Args:
        path: One file for all nodes, types one after the other; or a folder with ``<node type>.npy`` or ``.txt``.
    Raises:
        ConfigError: no path, or something else.
        DataError: the file cannot be read as an assignment of this graph.
    """
    if not isinstance(path, str | Path):
        given = "" if path is None else f", not {path!r}"
        raise ConfigError(
            f"method 'file' needs the option path: a .npy or text file, or a folder with one a node type{given}"
        )
    place, graph = Path(path), problem.graph
    if not place.is_dir():
        return read_parts(place, graph.total_nodes, problem.num_parts)
    parts = [np.empty(0, np.int32)]
    for ntype, num in graph.num_nodes.items():
        found = [file for suffix in SUFFIXES if (file := place / f"{ntype}{suffix}").is_file()]
        if len(found) != 1:
            raise DataError(f"{place}: {len(found)} files for node type {ntype!r}; expected {ntype}.npy or {ntype}.txt")
        parts.append(read_parts(found[0], num, problem.num_parts))
    return np.concatenate(parts)


def read_parts(path: Path, num_nodes: int, num_parts: int) -> np.ndarray:
    """(num_nodes,), int32.

    Raises:
        DataError: not integers, a wrong length, a node twice or missing, a part out of range; names the row.
    """
    values = read_npy(path) if path.suffix == ".npy" else _text(path)
    if values.ndim not in (1, 2) or values.dtype.kind not in "iu" or (values.ndim == 2 and values.shape[1] != 2):
        raise DataError(f"{path}: {values.dtype} of shape {values.shape}; expected integers, (nodes,) or (nodes, 2)")
    if values.ndim == 2:
        nodes, parts = values.T
        bad = np.flatnonzero((nodes < 0) | (nodes >= num_nodes))
        if len(bad):
            raise DataError(f"{path}: row {bad[0]} names node {nodes[bad[0]]}, outside [0, {num_nodes})")
        times = np.bincount(nodes, minlength=num_nodes)
        if (times != 1).any():
            node = int(np.flatnonzero(times != 1)[0])
            raise DataError(f"{path}: node {node} has {times[node]} rows; expected 1")
        values = np.empty(num_nodes, np.int64)
        values[nodes] = parts
    if len(values) != num_nodes:
        raise DataError(f"{path}: {len(values)} parts for {num_nodes} nodes; was it made for another graph?")
    bad = np.flatnonzero((values < 0) | (values >= num_parts))
    if len(bad):
        raise DataError(f"{path}: node {bad[0]} has part {values[bad[0]]}, outside [0, {num_parts})")
    return values.astype(np.int32)


def _text(path: Path) -> np.ndarray:
    """(rows,) or (rows, 2) integers."""
    rows: list[list[int]] = []
    with path.open(encoding="utf-8", errors="replace") as lines:  # a file that is no text fails at its first line
        for number, line in enumerate(lines, 1):
            words = line.split()
            try:
                row = [int(word) for word in words]
            except ValueError:
                row = []
            if len(row) not in (1, 2) or (rows and len(row) != len(rows[0])):
                shown = line.strip()[:SHOWN_LETTERS]
                raise DataError(f"{path}, line {number}: {shown!r}; expected 'part', or 'node part' on every line")
            rows.append(row)
    width = len(rows[0]) if rows else 1
    values = np.array(rows, np.int64).reshape(-1, width)
    return values[:, 0] if width == 1 else values


@method("ldg", refusal=any_but_none)
def ldg(problem: Problem, *, passes: int = 5, order: str = "random") -> np.ndarray:
    """Neighbours in the part times its free share (Stanton and Kliot, KDD 2012), every limit kept.

    Args:
        passes: 1 is LDG, more restream it.
        order: ``"random"``, or ``"natural"`` as the ids stand.
    """
    return _stream(problem, passes, order, fennel=False)


@method("fennel", refusal=any_but_none)
def fennel(problem: Problem, *, passes: int = 5, order: str = "random") -> np.ndarray:
    """Neighbours in the part less a price for its size (Tsourakakis et al., WSDM 2014; gamma 1.5), every limit kept.

    The size is that of the constraint that is fullest, in units of nodes.

    Args:
        passes: 1 is Fennel, more restream it.
        order: ``"random"``, or ``"natural"`` as the ids stand.
    """
    return _stream(problem, passes, order, fennel=True)


def _stream(problem: Problem, passes: int, order: str, *, fennel: bool) -> np.ndarray:
    """(N,), int32, after ``passes`` over all nodes; the later ones see where everything was."""
    passes = checked_passes(passes, order)
    adjacency, rng = problem.adjacency, np.random.default_rng(problem.seed)
    weight = adjacency.weight_array.sum(dtype=np.int64) if adjacency.weights is not None else adjacency.num_entries
    placed = Placed(problem.constraints, problem.num_parts, float(weight), fennel=fennel)
    for _ in range(passes):
        nodes = random_order(problem.num_nodes, rng) if order == "random" else np.arange(problem.num_nodes)
        placed.place(nodes, adjacency.indptr, adjacency.indices, adjacency.weight_array)
    placed.mend(rng, adjacency.indptr, adjacency.indices, adjacency.weight_array)
    return placed.parts


def checked_passes(passes: int, order: str) -> int:
    """passes, when both options can be used; else a ConfigError."""
    if order not in ORDERS:
        raise unknown_name("order", order, ORDERS)
    return at_least("passes", passes, 1)


class Placed:
    """Where nodes are so far; ``place`` puts some more, or the same ones again.

    Args:
        constraints: What must be even.
        num_parts: P.
        weight: Of all entries of the adjacency: every edge counts twice.
        fennel: Fennel's score; else LDG's.
        parts: Where nodes are already, (N,) int32, -1 for nowhere; changed. None: none is placed.
    """

    def __init__(
        self,
        constraints: Constraints,
        num_parts: int,
        weight: float,
        *,
        fennel: bool,
        parts: np.ndarray | None = None,
    ) -> None:
        num_nodes = constraints.weights.shape[1]
        self.node_weights = np.ascontiguousarray(constraints.weights.T)
        self.limits = constraints.limits(num_parts)
        self.parts = np.full(num_nodes, -1, np.int32) if parts is None else parts
        self._loads = np.zeros((num_parts, len(self.limits)), np.int64)
        here = np.flatnonzero(self.parts >= 0)
        np.add.at(self._loads, self.parts[here], self.node_weights[here])
        self._shares = num_nodes / np.maximum(constraints.weights.sum(axis=1), 1)
        self._alpha = np.sqrt(num_parts) * weight / 2 / max(num_nodes, 1) ** EXPONENT
        self._fennel = fennel

    def place(self, nodes: np.ndarray, indptr: np.ndarray, indices: np.ndarray, weights: np.ndarray) -> None:
        """Give each of these nodes, in this order, its best part; the rest of ``indptr`` is not looked at."""
        kernels.stream(
            nodes.astype(np.int32), indptr, indices, weights, self.node_weights, self.limits, self.parts, self._loads,
            np.zeros(len(self._loads), np.int64), self._fennel, self._alpha, EXPONENT, self._shares,
        )  # fmt: skip

    def mend(self, rng: np.random.Generator, indptr: np.ndarray, indices: np.ndarray, weights: np.ndarray) -> None:
        """Move nodes out of parts above a limit, those first that lose the fewest of the given neighbours."""
        level = Level(indptr, indices, weights, self.node_weights)
        Parts(level, self.parts, self.limits, len(self._loads)).rebalance(rng)
