"""Go on with a run of walks on a graph that has grown: first rows of new nodes, and the nodes where walks begin.

The rule: walks begin at every new node, at both ends of every edge between old nodes that was added, removed or has
another weight, and at the nodes within ``reach`` steps of these. An edge of a new node is walked from the new node.
Walks are short, see ``cut_walks``. LINE draws the edges that have an end among these nodes.

Legend: N nodes of the graph now, K of the old run, D width, S starts.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graph_emb.config import RunConfig
from graph_emb.core.errors import ConfigError, DataError, LackingError
from graph_emb.core.paths import user_path
from graph_emb.graph.csr import Graph
from graph_emb.graph.readers.tables import read_npy
from graph_emb.graph.views import ids_of_nodes
from graph_emb.models.skipgram.config import MOST_WALKS, GoesOn, LineConfig, PlainWalkConfig
from graph_emb.models.skipgram.model import usual_rows
from graph_emb.run.fitted_means import fitted_means
from graph_emb.run.inputs import edge_policy, read_own, read_plain_dataset
from graph_emb.run.run_folder import read_run
from graph_emb.table.initializers import FromArray
from graph_emb.table.neighbour_mean import NeighbourMean

CONTEXT = "context.npy"
"""The context rows in a run folder, float32, in the order of the embeddings; of LINE those of the second order."""
LENGTHS = "lengths.npy"
"""There of LINE, whose embeddings have length 1: the lengths of the rows that were trained, a column an order."""
SHORTEST = 3
"""Steps of walks that go on, where the window has as many: after one alone a new node meets its neighbours only."""


def check_stays(config: RunConfig, place: Path) -> None:
    """Raise a ConfigError where a run would replace the one that it goes on from, with which its changes are found."""
    before = getattr(config.model, "from_run", None)
    if before is not None and user_path(before).resolve() == place:
        raise ConfigError(f"{place} is the run that goes on, and stays as it is; give another --out")


@dataclass(frozen=True)
class OldRun:
    """Rows of a finished run of walks.

    Attributes:
        config: Its configuration, whose model is a ``GoesOn``.
        ids: Of its nodes, (K,).
        make_graph: Makes that it was trained on.
        token: Rows of its nodes, (K, D) float32; of LINE those of both orders side by side.
        context: The same of the context table; None where the model has one table.
    """

    config: RunConfig
    ids: NDArray[Any]
    make_graph: Callable[[], Graph]
    token: NDArray[np.float32]
    context: NDArray[np.float32] | None

    @cached_property
    def graph(self) -> Graph:
        """That it was trained on; only changes of it need it."""
        return self.make_graph()

    @property
    def tables(self) -> list[NDArray[np.float32]]:
        """The distinct tables, the token's first."""
        return [self.token] if self.context is None else [self.token, self.context]

    @classmethod
    def read(cls, place: str | Path) -> OldRun:
        """A run folder, and the data set that it names.

        Raises:
            ConfigError: no run folder.
            LackingError: the run is of another model, has no context rows, or was of a graph in memory.
            DataError: its data set is gone, or has other nodes.
        """
        config, _, tables = read_run(place)
        model = config.model
        if not isinstance(model, GoesOn):
            raise LackingError(
                f"{place}: a run of {model.name} does not go on: its folder does not have all that was trained; "
                "deepwalk, node2vec and line do"
            )
        section = config.dataset
        if section.digest is not None:
            raise LackingError(f"{place}: its graph {section.name} was in memory and is not saved; train from a file")
        if section.hold_out:
            raise LackingError(
                f"{place}: dataset.hold_out = {section.hold_out} keeps other edges of a grown graph out of training "
                "than this run did; train with dataset.test_edges, a file"
            )
        rows = next(iter(tables.values()))
        held = read_own(section)
        section.hold(held)  # for those who grow it
        if not np.array_equal(rows.node_ids, ids_of_nodes(held)):
            raise DataError(f"{place}: its rows are of other nodes than those of {section.name}, which has changed")
        return cls(
            config,
            rows.node_ids,
            lambda: read_plain_dataset(section, config.seed, **edge_policy(model)).graph,
            *_both_tables(user_path(place), config, rows.weights),
        )


def _both_tables(
    place: Path, config: RunConfig, rows: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    model: Any = config.model
    rows = rows.astype(np.float32, copy=False)
    if isinstance(model, LineConfig):
        width = model.dim // len(model.orders)
        if model.normalize:
            rows = rows * _kept(place, LENGTHS, (len(rows), len(model.orders))).repeat(width, axis=1)
        return rows, _kept(place, CONTEXT, (len(rows), width)) if "second" in model.orders else None
    if model.tables == 1:
        return rows, None
    if config.output.context == "concat":
        return rows[:, : model.dim], rows[:, model.dim :]
    context = _kept(place, CONTEXT, (len(rows), model.dim))
    return (rows - context if config.output.context == "add" else rows), context


def _kept(place: Path, name: str, shape: tuple[int, int]) -> NDArray[np.float32]:
    """A file of a run folder with which training goes on."""
    what = {CONTEXT: "the context rows", LENGTHS: "the lengths of the rows"}[name]
    if not (place / name).is_file():
        raise LackingError(
            f"{place} has no {name}, {what} with which training goes on; an earlier version wrote it, or "
            "output.keep_context was false: train it again"
        )
    found: NDArray[np.float32] = read_npy(place / name)
    if found.shape != shape:
        raise DataError(f"{place / name} has shape {found.shape}; expected {shape}")
    return found


@dataclass(frozen=True)
class GrownStart:
    """With what a training of a grown graph begins, by its nodes.

    Attributes:
        token, context: First rows, (N, D) float32; no context rows of a model with one table.
        is_new: Which nodes had no row, (N,) bool.
        starts: Where walks begin, (S,) int64, ascending.
        report: Counts for metrics.json.
    """

    token: NDArray[np.float32]
    context: NDArray[np.float32] | None
    is_new: NDArray[np.bool_]
    starts: NDArray[np.int64]
    report: dict[str, int]

    @property
    def first(self) -> tuple[FromArray, FromArray | None]:
        """Initializers of both tables, by original id."""
        return FromArray(self.token), None if self.context is None else FromArray(self.context)


def start_of(
    old: OldRun, graph: Graph, model: PlainWalkConfig | LineConfig, seed: int, *, only_new: bool = False
) -> GrownStart:
    """First rows on the graph as it is now, and where walks begin, by the module's rule.

    New nodes begin with their neighbours' mean (``NeighbourMean``), led to where trained rows lie (``fitted_means``);
    where no old node is near, as usual.

    Args:
        model: Of the new training; its width and number of tables, of LINE the orders, are the old ones.
        only_new: Walks begin at new nodes alone.
    Raises:
        ConfigError: the tables have another shape, or nothing has changed.
    """
    was: Any = old.config.model
    for name in ("dim", "order" if isinstance(model, LineConfig) else "tables"):
        if getattr(model, name) != getattr(was, name):
            raise ConfigError(
                f"model.{name} = {getattr(model, name)}: the run that goes on has {getattr(was, name)}; leave it out"
            )
    place = graph.find_nodes(old.ids)
    is_new = np.ones(graph.num_nodes, bool)
    is_new[place[place >= 0]] = False
    with ThreadPoolExecutor(1) as pool:  # neither needs what the other one finds
        changed = pool.submit(_starts, old, graph, place, is_new, model.reach, only_new)
        tables = _first_tables(old, graph, place, is_new, model, seed)
        starts, num_changed = changed.result()
    report = {"new_nodes": int(is_new.sum()), "changed_arcs": num_changed, "starts": len(starts)}
    return GrownStart(tables[0], tables[1] if len(tables) > 1 else None, is_new, starts, report)


def _starts(
    old: OldRun, graph: Graph, place: NDArray[np.int64], is_new: NDArray[np.bool_], reach: int, only_new: bool
) -> tuple[NDArray[np.int64], int]:
    """Where walks begin, (S,), and how many arcs between old nodes have changed."""
    ends = np.empty((0, 2), np.int64) if only_new else changed_arcs(old.graph, graph, place)
    seeds = is_new.copy()
    seeds[ends.ravel()] = True
    starts = np.flatnonzero(_around(graph, seeds, reach))
    if not len(starts):
        what = "node" if only_new else "node and no edge"
        raise ConfigError(f"the graph has no {what} that the run did not have; there is nothing to train")
    return starts, len(ends)


def _first_tables(
    old: OldRun,
    graph: Graph,
    place: NDArray[np.int64],
    is_new: NDArray[np.bool_],
    model: PlainWalkConfig | LineConfig,
    seed: int,
) -> list[NDArray[np.float32]]:
    """The first rows of each table, (N, D)."""
    src = graph.sources()
    near = is_new[src] | is_new[graph.indices] if graph.directed else is_new[src]  # which has the others' reverses
    means = NeighbourMean((src[near], graph.indices[near]))
    kept, lead = place >= 0, len(place)
    in_front = np.array_equal(place, np.arange(lead))  # the usual case: new nodes have numbers past the old ones
    tables = [np.zeros((graph.num_nodes, own.shape[1]), np.float32) for own in old.tables]
    for table, own in zip(tables, old.tables, strict=True):
        if in_front:
            table[:lead] = own
        else:
            table[place[kept]] = own if kept.all() else own[kept]  # what is mapped is copied once
    new, values = means.values(np.flatnonzero(is_new), np.flatnonzero(~is_new), partial(_side_by_side, tables))
    # A token row is told by the context rows of its neighbours; of LINE those are of one order.
    width = old.token.shape[1]
    read = slice(width, None) if values.shape[1] == 2 * width else slice(width)
    values = fitted_means(graph, is_new, tables, new, values, seed, read)
    for table, columns in zip(tables, (slice(width), slice(width, None)), strict=False):
        table[new] = values[:, columns]
    alone = np.setdiff1d(np.flatnonzero(is_new), new, assume_unique=True)
    tables[0][alone] = _usual_rows(model, seed, graph.directed, alone)
    return tables


def _side_by_side(tables: list[NDArray[np.float32]], nodes: NDArray[np.int64]) -> NDArray[np.float32]:
    """The rows of some nodes in all tables, (B, D)."""
    wanted = torch.from_numpy(nodes)
    rows: NDArray[np.float32] = torch.cat([torch.from_numpy(own).index_select(0, wanted) for own in tables], 1).numpy()
    return rows


def cut_walks(model: PlainWalkConfig) -> dict[str, int]:
    """Walks from a node where the graph has changed: cut after half the window, with as many tokens as before.

    Nearly all pairs of the rest of a walk from a new node are of old nodes, whose rows are trained, and what lies far
    away says little of a new one: short walks give new rows several times as many updates in the same time. A block has
    as many negatives a token as the model's. What a run that went on took from here stays as it is.

    Example:
        >>> from graph_emb.models.skipgram.config import DeepWalkConfig
        >>> cut_walks(DeepWalkConfig(num_walks=80, walk_length=40, window=10))
        {'num_walks': 534, 'walk_length': 6, 'block': 6, 'shared_negatives': 10}
    """
    steps = min(model.window, max(SHORTEST, -(-model.window // 2)))
    length = min(model.walk_length, steps + 1)
    block = min(model.block, length)
    walks = min(MOST_WALKS, -(-model.num_walks * model.walk_length // length))
    negatives = -(-model.shared_negatives * block // model.block)
    return {"num_walks": walks, "walk_length": length, "block": block, "shared_negatives": negatives}


def changed_arcs(old: Graph, new: Graph, place: NDArray[np.int64]) -> NDArray[np.int64]:
    """Arcs between old nodes that are in one of both graphs only, or have another weight: (C, 2) nodes of the new one.

    Args:
        place: The new number of each old node, (K,); -1 where it is gone, and its neighbours stand for both ends.
    """
    known = np.zeros(new.num_nodes, bool)
    known[place[place >= 0]] = True
    heads, tails = place[old.sources()], place[old.indices]
    gone = np.concatenate([heads[tails < 0], tails[heads < 0]])
    gone = np.unique(gone[gone >= 0])
    both = (heads >= 0) & (tails >= 0)
    src = new.sources()
    inside = known[src] & known[new.indices]
    before = heads[both] * new.num_nodes + tails[both]
    now = src[inside].astype(np.int64) * new.num_nodes + new.indices[inside]
    keys = [_in_one(before, now)]
    if old.weights is not None or new.weights is not None:
        common, first, second = np.intersect1d(before, now, assume_unique=True, return_indices=True)
        weights = (_weights(graph, chosen) for graph, chosen in ((old, both), (new, inside)))
        moved = np.not_equal(*(own[at] for own, at in zip(weights, (first, second), strict=True)))
        keys.append(common[moved])
    found = np.concatenate(keys)
    return np.concatenate([np.stack([found // new.num_nodes, found % new.num_nodes], 1), np.stack([gone, gone], 1)])


def _in_one(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """Keys that one of two arrays without repeats has and the other one lacks, ascending."""
    keys = np.concatenate([first, second])
    keys.sort(kind="stable")  # arcs lie by their ends: two runs are merged, in a quarter of the time
    edges = np.ones(len(keys) + 1, bool)
    np.not_equal(keys[1:], keys[:-1], out=edges[1:-1])
    return keys[edges[1:] & edges[:-1]]


def _weights(graph: Graph, chosen: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Of the chosen arcs."""
    return np.ones(int(chosen.sum()), np.float32) if graph.weights is None else graph.weights[chosen]


def _around(graph: Graph, seeds: NDArray[np.bool_], reach: int) -> NDArray[np.bool_]:
    """The seeds and all nodes at most ``reach`` steps from one, along arcs or against them, (N,) bool."""
    found, src = seeds, graph.sources() if reach else None
    for _ in range(reach):
        further = found.copy()
        further[graph.indices[found[src]]] = True
        further[src[found[graph.indices]]] = True  # type: ignore[index]
        if (further == found).all():
            break
        found = further
    return found


def _usual_rows(
    model: PlainWalkConfig | LineConfig, seed: int, directed: bool, nodes: NDArray[np.int64]
) -> NDArray[np.float32]:
    """The usual first token rows of some nodes, (B,) to (B, D)."""
    parts: list[Any] = [model]
    if isinstance(model, LineConfig):
        parts = [model.skipgram(order, directed=directed) for order in model.orders]
    made = [torch.empty(len(nodes), part.dim) for part in parts]
    for part, own in zip(parts, made, strict=True):
        usual_rows(part, seed).fill_at_(own, nodes)
    rows: NDArray[np.float32] = torch.cat(made, dim=1).numpy()
    return rows
