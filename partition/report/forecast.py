"""How many rows of other parts training will pull: exact for random walks, a stated estimate for sampled batches."""

# N nodes and E edges of all types, P parts, L nodes of a walk, B seeds of a batch

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from partition.hetero import EdgeType
from partition.readers.progress import reading
from partition.report.flat import FlatGraph

PARTS_AT_ONCE = 8  # N * 8 float64 at a time, whatever P is
_CERTAIN = 1.0 - 2.0**-53  # log1p(-1) would be minus infinity


@dataclass(frozen=True)
class WalkForecast:
    """Rows that walks of L nodes pull, counted at every visit; a walker works at the part of its start.

    Attributes:
        visits: Expected visits at each step, (L,), as a share of the walks: below 1 after dead ends.
        remote: Those of them in other parts than the start's, (L,).
        by_part: Remote share of the walks that start in each part, (P,); 0 of an empty part.
    """

    visits: np.ndarray
    remote: np.ndarray
    by_part: np.ndarray

    @property
    def share(self) -> float:
        """Remote share of all visits, the starts included."""
        return float(self.remote.sum() / self.visits.sum())


def forecast_walks(flat: FlatGraph, parts: np.ndarray, num_parts: int, walk_length: int) -> WalkForecast:
    """The exact expectation for one walk from every node along its out-edges.

    The distribution of the walkers of each part is carried through the graph step by step: with the start's
    x(0) = 1/N on the nodes of part p, x(t+1)[v] = sum over edges u -> v of x(t)[u] * w(u, v) / sum of w(u, .), and
    x(t) outside of p is remote. A node without out-edges ends the walk. All edge types count alike, weighted where
    every type has weights.

    Args:
        walk_length: L.
    """
    step = _transitions(flat)
    num_nodes = flat.num_nodes
    visits, remote = np.zeros(walk_length), np.zeros(walk_length)
    visits_of, remote_of = np.zeros(num_parts), np.zeros(num_parts)
    groups = range(0, num_parts, PARTS_AT_ONCE)
    with reading("forecast of walks", walk_length * len(groups), "steps") as advance:
        for low in groups:
            own = np.arange(low, min(low + PARTS_AT_ONCE, num_parts))
            inside = parts[:, None] == own
            mass = inside / num_nodes
            for t in range(walk_length):
                here = mass.sum(axis=0)
                away = here - (mass * inside).sum(axis=0)
                visits[t] += here.sum()
                remote[t] += away.sum()
                visits_of[own] += here
                remote_of[own] += away
                mass = step @ mass
                advance(1)
    by_part = np.divide(remote_of, visits_of, out=np.zeros(num_parts), where=visits_of > 0)
    return WalkForecast(visits, np.maximum(remote, 0.0), np.maximum(by_part, 0.0))


def _transitions(flat: FlatGraph) -> sparse.csr_array:
    """Row v, column u: the probability that a walk at u goes to v, (N, N)."""
    num = flat.num_nodes
    weights = flat.weights
    out = np.zeros(num)
    for etype, src, _ in flat.edges():
        out += np.bincount(src, weights=None if weights is None else weights[etype], minlength=num)
    total = sparse.csr_array((num, num), dtype=np.float64)
    for etype, src, dst in flat.edges():
        value = (1.0 if weights is None else weights[etype]) / out[src]
        total = total + sparse.coo_array((value, (dst, src)), shape=(num, num)).tocsr()
    return total


@dataclass(frozen=True)
class SampleForecast:
    """Distinct rows that a batch of sampled neighbourhoods needs, the seeds included.

    Attributes:
        rows: Expected distinct input rows of one batch of each part, (P,); 0 of a part without seeds.
        remote: Those of them in other parts, (P,).
        batches: Batches of each part in an epoch, (P,); the last one counts by its share.
    """

    rows: np.ndarray
    remote: np.ndarray
    batches: np.ndarray

    @property
    def share(self) -> float:
        """Remote share of the rows of an epoch."""
        return float((self.remote * self.batches).sum() / (self.rows * self.batches).sum())


def forecast_samples(
    flat: FlatGraph, parts: np.ndarray, num_parts: int, fanouts: tuple[int, ...], batch_size: int
) -> list[SampleForecast]:
    """The forecast after each hop of DGL's sampling: B seeds of one part, in-edges, without replacement.

    Mean field: nodes enter a batch independently. A seed is in it with probability B / seeds of its part; if r(s) is
    the probability that s is in the input of a hop, v is in the next one's with
    1 - (1 - r(v)) * prod over edges v -> s of (1 - r(s) * min(1, fanout / in-degree of s)),
    in-degrees and fanouts by edge type. It is exact for fanouts above every degree and batches of all seeds; else
    the error is that nodes of one batch are slightly dependent.

    Args:
        fanouts: Sampled in-edges of a node and edge type, the seeds' own first.
        batch_size: B, at most the seeds of the part.
    Returns:
        One forecast for each hop.
    """
    incoming = _incoming(flat)
    seeds = np.bincount(parts[flat.seeds], minlength=num_parts)
    size = np.minimum(seeds, batch_size)
    batches = np.divide(seeds, size, out=np.zeros(num_parts), where=size > 0)
    rows, remote = np.zeros((len(fanouts), num_parts)), np.zeros((len(fanouts), num_parts))
    groups = range(0, num_parts, PARTS_AT_ONCE)
    with reading("forecast of samples", len(fanouts) * len(groups), "hops") as advance:
        for low in groups:
            own = np.arange(low, min(low + PARTS_AT_ONCE, num_parts))
            inside = parts[:, None] == own
            chance = (inside & flat.seeds[:, None]) * np.divide(size, seeds, out=np.zeros(num_parts), where=seeds > 0)[
                own
            ]
            for hop, fanout in enumerate(fanouts):
                chance = _next_hop(incoming, chance, fanout)
                rows[hop, own] = chance.sum(axis=0)
                remote[hop, own] = rows[hop, own] - (chance * inside).sum(axis=0)
                advance(1)
    return [SampleForecast(rows[hop], np.maximum(remote[hop], 0.0), batches) for hop in range(len(fanouts))]


def _incoming(flat: FlatGraph) -> dict[EdgeType, tuple[sparse.csr_array, np.ndarray]]:
    """For each edge type the matrix with row v, column s: edges v -> s; and the in-degree of each node, (N,)."""
    num = flat.num_nodes
    found = {}
    for etype, src, dst in flat.edges():
        ones = np.ones(len(src))
        matrix = sparse.coo_array((ones, (src, dst)), shape=(num, num)).tocsr()
        found[etype] = (matrix, np.bincount(dst, minlength=num))
    return found


def _next_hop(
    incoming: dict[EdgeType, tuple[sparse.csr_array, np.ndarray]], chance: np.ndarray, fanout: int
) -> np.ndarray:
    """The probability of each node (N, columns) to be among a hop's inputs, by that to be among its outputs."""
    log_absent = np.log1p(-np.minimum(chance, _CERTAIN))
    for matrix, degree in incoming.values():
        sampled = np.minimum(1.0, fanout / np.maximum(degree, 1))[:, None]
        log_absent = log_absent + matrix @ np.log1p(-np.minimum(chance * sampled, _CERTAIN))
    return -np.expm1(log_absent)
