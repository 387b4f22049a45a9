"""The record of a walker, the order of starts, alias tables and keys of random streams."""

# N nodes of the whole graph, R rows, E arcs of those rows, B walks of a batch.

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from graph_emb.core.compiled import GOLDEN, mix64
from graph_emb.core.errors import ConfigError
from graph_emb.graph.csr import frozen
from graph_emb.sampling import walk_kernels

MAX_NODES = 2**31 - 1
THREAD_SHARE = 64  # walks below which a further thread costs more than it brings

WALKER = np.dtype(
    [
        ("index", np.int64),  # of the walk in its epoch
        ("far", np.int64),  # where the row of the previous node starts among the rows that travelled,
        ("far_size", np.int32),  # and how many neighbours it has; 0: it did not travel
        ("home", np.int32),  # the rank that asked for the walk,
        ("slot", np.int32),  # and the walk's place in its batch
        ("node", np.int32),  # the walker's node; -1 after a dead end
        ("previous", np.int32),  # the node before; -1 at the start
        ("step", np.int32),  # nodes of the walk so far
        ("draw", np.int32),  # random numbers that node2vec has used
    ],
    align=True,
)
"""An unfinished walk. It depends on this record and the seed only, so that another process can continue it."""


def start_batches(
    seed: int, epoch: int, num_nodes: int, num_walks: int, batch_size: int, first: int = 0
) -> Iterator[np.ndarray]:
    """The start nodes of an epoch, batch by batch: ``num_walks`` random orders of all nodes, one after the other.

    ``first`` walks are left out, without being walked.

    Yields:
        Shape (B,), int32; the last batch may be shorter.
    """
    total = num_walks * num_nodes
    order, order_of = np.empty(0, np.int32), -1
    for low in range(first, total, batch_size):
        high = min(low + batch_size, total)
        starts = np.empty(high - low, np.int32)
        for round_ in range(low // num_nodes, (high - 1) // num_nodes + 1):
            if round_ != order_of:
                stream = np.random.default_rng([seed & (2**64 - 1), epoch, round_])
                order, order_of = stream.permutation(np.arange(num_nodes, dtype=np.int32)), round_
            a, b = max(low, round_ * num_nodes), min(high, (round_ + 1) * num_nodes)
            starts[a - low : b - low] = order[a - round_ * num_nodes : b - round_ * num_nodes]
        yield starts


def alias_rows(indptr: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Alias tables of all rows of weights, for draws in constant time.

    Args:
        indptr: Shape (R+1,), int64.
        weights: Shape (E,), float32, at least 0 with a positive sum in every row that is not empty; or empty.
    Returns:
        The chance to keep an arc, shape (E,), float32; the offset in its row that is taken otherwise, shape (E,),
        int32; the sum of each row, shape (R,), float64. All are empty where ``weights`` is.
    """
    accept, other = np.empty(len(weights), np.float32), np.empty(len(weights), np.int32)
    total = np.empty(len(indptr) - 1 if len(weights) else 0, np.float64)
    if len(weights):
        walk_kernels.fill_alias_rows(frozen(indptr), frozen(weights), accept, other, total)
    return accept, other, total


def stream_key(*words: int) -> np.uint64:
    """One 64-bit key from several integers; any change of any of them changes all its bits."""
    key = 0
    for word in words:
        key = int(mix64(np.uint64((key + word * int(GOLDEN)) % 2**64)))
    return np.uint64(key)


def thread_count(num_threads: int | None) -> int:
    """Threads to use; None takes as many as torch."""
    return at_least_one("num_threads", torch.get_num_threads() if num_threads is None else num_threads)


def at_least_one(option: str, value: int) -> int:
    """``value`` as an integer, or a ConfigError that names ``option``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ConfigError(f"{option} = {value!r}: must be an integer of at least 1")
    return int(value)


def finite_positive(option: str, value: float) -> float:
    """``value`` as a float, or a ConfigError that names ``option``."""
    value = float(value)
    if not (0.0 < value < math.inf and 1.0 / value < math.inf):
        raise ConfigError(f"{option} = {value}: must be finite and above 0; 1 means no bias")
    return value
