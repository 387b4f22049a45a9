"""What a training costs on several machines: work, exchange and wire, from constants measured on this one.

Of walks trained by SGD in place, whose rows travel in intervals of tokens, and of triples, whose rows travel each step.

Legend: N nodes, B walks, L nodes of a walk, S blocks of a walk, K negatives of a block, W machines with a trainer each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from tabulate import tabulate

from graph_emb.graph.csr import Graph
from graph_emb.graph.partition_book import RangeBook
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.batches import Batches
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.scorers import scorer_of
from graph_emb.models.skipgram.config import SkipGramConfig, WalkConfig
from graph_emb.models.skipgram.local_sgd import batching, growth_of, usual_walks
from graph_emb.models.skipgram.model import num_blocks
from graph_emb.models.skipgram.rates import rate_of_walks
from graph_emb.models.skipgram.steps import cut_sizes
from graph_emb.models.skipgram.training import joint_walks
from graph_emb.sampling.negatives import NegativeSampler
from graph_emb.sampling.walks import WalkSampler
from graph_emb.transport.copy_kernels import bytes_on_wire
from graph_emb.transport.link import Link

MESSAGES = 5
"""Exchanges of an interval of walks: numbers, ids and rows of the pull; numbers and rows of the changes."""
STEP_MESSAGES = 6
"""Exchanges of a step of an optimizer: numbers, ids and rows of the pull; numbers, ids and gradients of the push."""
SIZES = 6
"""Lengths of intervals whose rows are counted."""
CUT = 0.2
"""Share of the nodes of a trainer's walks that others hold, where nothing is known of the parts."""
WIRE_SHARE, OVERLAP_SHARE, WIRE_S = 0.05, 0.1, 1.0
"""The shares of a training from which on the wire is worth numbers of fewer bits, and rows that are older because they
travel while trainers train; and the seconds."""


@dataclass(frozen=True)
class Costs:
    """Constants of a machine.

    Attributes:
        item_us: Microseconds of a token or triple where one machine trains alone: walking, drawing, training.
        byte_ns: Nanoseconds of a byte that is sent and another that comes, wire left out: laying out, sockets, adding
            up.
    """

    item_us: float
    byte_ns: float


USUAL = Costs(item_us=1e6 / 785_000, byte_ns=2.1)
"""Of DeepWalk on ogbn-arxiv, a trainer of one thread and rows of 128 (AMD EPYC): 785,000 tokens/s; between two hosts
6.7 s of exchange, 1.8 of them wire, for 10.1 M tokens of 227 bytes from each host."""


@dataclass(frozen=True)
class WalkLoad:
    """A training on walks, of which only sizes are known.

    Attributes:
        config: Trains by SGD in place.
        num_nodes, num_arcs: Of the graph; an undirected edge counts twice.
        num_walks: Of all epochs, over all machines.
        walk_length: L.
    """

    config: SkipGramConfig
    num_nodes: int
    num_arcs: int
    num_walks: int
    walk_length: int


@dataclass(frozen=True)
class Forecast:
    """A training on W machines.

    Attributes:
        hosts: W.
        seconds: Of training.
        work, exchange, wire, start: What they are made of: training; laying out and sending by the processor; bytes on
            the wire; the start-up of messages.
        bytes_each: Sent for each token or triple.
        bound: Which of them is largest.
        unit: Of what is trained: "token" or "triple".
        wire_dtype: Of rows as they travel.
    """

    hosts: int
    seconds: float
    work: float
    exchange: float
    wire: float
    start: float
    bytes_each: float
    bound: str
    unit: str = "token"
    wire_dtype: str = "float32"

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return asdict(self)

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {getattr(self, name):,.1f} s" for name in ("work", "exchange", "wire", "start"))
        rows = [
            ("machines", f"{self.hosts}"),
            ("training there", f"{self.seconds:,.1f} s ({parts})"),
            (f"bytes a {self.unit}", f"{self.bytes_each:,.0f}, rows travel as {self.wire_dtype}"),
            ("bound by", self.bound),
        ]
        return tabulate(rows, tablefmt="plain", disable_numparse=True)


def forecast(
    costs: Costs,
    link: Link,
    hosts: int,
    items: float,
    bytes_each: float,
    interval: float,
    *,
    overlap: bool = False,
    cores: int | None = None,
    unit: str = "token",
    messages: int = MESSAGES,
) -> Forecast:
    """Seconds of a training on ``hosts`` machines with one trainer each.

    work = t/W, exchange = b t/W, wire = 8 b t/(W g), start = l m t/(W i), with t tokens or triples, b bytes of each, g
    bits a second, l the latency, m messages of an interval, or step, to each other machine, i of a machine in it.
    Overlapped, wire and start hide behind the rest, or it behind them.

    Args:
        items: Tokens or triples of all machines.
        bytes_each: Bytes that a machine sends for one of its own.
        interval: Of a machine between two exchanges.
        overlap: As ``parallel.overlap``.
        cores: Where all trainers share so many cores of this machine; None: each has its own machine.
        unit: As of ``Forecast``.
        messages: m.
    """
    share, crowd = items / hosts, max(1.0, hosts / cores) if cores else 1.0
    work = share * costs.item_us * 1e-6 * crowd
    sent = share * bytes_each if hosts > 1 else 0.0
    exchange, wire = sent * costs.byte_ns * 1e-9 * crowd, sent * 8 / (link.gbit * 1e9)
    start = share / interval * messages * (hosts - 1) * link.latency_us * 1e-6
    seconds = max(work + exchange, wire + start) if overlap else work + exchange + wire + start
    parts = {"work": work, "exchange": exchange, "wire": wire, "start": start}
    bound = max(parts, key=lambda name: parts[name])
    return Forecast(hosts, seconds, work, exchange, wire, start, bytes_each=sent / share, bound=bound, unit=unit)


def usual_forecast(load: WalkLoad, link: Link, hosts: int, threads: int, wire_dtype: str = "float32") -> Forecast:
    """``forecast`` before anything of a training is measured: work in proportion to the width of a row, else ``USUAL``.

    Args:
        threads: Of each trainer.
    """
    bytes_token, interval, _ = bytes_of_counts(load, hosts, CUT)
    bytes_token *= bytes_of_row(load.config.dim, wire_dtype) / bytes_of_row(load.config.dim)
    costs = replace(USUAL, item_us=USUAL.item_us * load.config.dim / 128 / threads)
    tokens = float(load.num_walks * load.walk_length)
    found = forecast(costs, link, hosts, tokens, bytes_token, interval, overlap=bool(load.config.overlap))
    return replace(found, wire_dtype=wire_dtype)


def rounding_pays(found: Sequence[Forecast]) -> bool:
    """Whether the wire is a substantial part of trainings one after the other, hidden or not: bytes are work too."""
    return _wire_takes(found, WIRE_SHARE)


def overlap_pays(found: Sequence[Forecast]) -> bool:
    """Whether it is so much, as rows travel, that it should hide behind work."""
    return _wire_takes(found, OVERLAP_SHARE)


def _wire_takes(found: Sequence[Forecast], share: float) -> bool:
    return sum(one.wire for one in found) >= max(WIRE_S, share * sum(one.seconds for one in found))


def bytes_of_row(dim: int, wire_dtype: str = "float32") -> int:
    """Bytes that a machine sends for a copied row: its id, the row of another that it serves, the changes back."""
    return 8 + 2 * bytes_on_wire(dim, getattr(torch, wire_dtype))


def bytes_of_token(
    graph: Graph, parts: np.ndarray, config: WalkConfig, hosts: int, seed: int = 0
) -> tuple[float, float]:
    """Bytes that a machine sends for each of its tokens, and its tokens between two exchanges, by walking some.

    The walks of the longest interval are drawn, and the distinct rows of other machines are counted that they, or
    ``SIZES`` shorter beginnings of them, and their negatives need; intervals between have rows between. Walkers that
    travel are left out.

    Args:
        graph: As the walks see it.
        parts: The machine of each node, (N,).
        config: Trains by SGD in place.
        hosts: W.
    """
    p, q = getattr(config, "p", 1.0), getattr(config, "q", 1.0)
    sampler = WalkSampler(graph, num_walks=config.num_walks, walk_length=config.walk_length, p=p, q=q, seed=seed)
    total = config.epochs * config.num_walks * graph.num_nodes
    sizes = _sizes(config, graph.num_nodes, graph.num_arcs, total, config.walk_length, hosts)
    negatives = NegativeSampler(sampler.degrees(), config.negative_power, seed=seed)
    walks, index = next(iter(sampler.numbered_batches(int(sizes.max()))))
    drawn = negatives.sample_for(index, num_blocks(config.walk_length, config) * config.shared_negatives)
    home = parts[walks[:, 0]]

    def rows_of(num: int) -> int:
        rows = 0
        for host in range(hosts):
            own = home[:num] == host
            nodes = _others(walks[:num][own].ravel(), parts, host)
            both = np.union1d(nodes, _others(drawn[:num][own].ravel(), parts, host))
            rows += len(both) + (len(nodes) if config.tables == 2 else 0)
        return rows

    tried = np.unique(np.geomspace(sizes.min(), len(walks), SIZES).astype(np.int64))
    rows = np.interp(sizes, tried, [rows_of(int(num)) for num in tried]).sum()
    tokens = float(sizes.sum()) * (walks >= 0).sum() / len(walks)
    return rows / tokens * bytes_of_row(config.dim), tokens / len(sizes) / hosts


def bytes_of_counts(load: WalkLoad, hosts: int, remote: float) -> tuple[float, float, float]:
    """As ``bytes_of_token``, of a graph of which only the size is known; and the copied rows of the longest interval.

    Nodes and negatives are taken as drawn uniformly: of m draws of R rows R (1 - exp(-m / R)) are distinct. Draws by
    degree repeat more, so that this is more than ``bytes_of_token`` counts.

    Args:
        remote: Share of the nodes of a machine's walks that other machines hold.
    """
    config, length, total = load.config, load.walk_length, load.num_walks
    sizes = _sizes(config, load.num_nodes, load.num_arcs, total, length, hosts)
    own, elsewhere = sizes / hosts, load.num_nodes * (1 - 1 / hosts)
    nodes = own * length * remote
    drawn = own * num_blocks(length, config) * config.shared_negatives * (1 - 1 / hosts)
    rows = elsewhere * -np.expm1(-(nodes + drawn) / elsewhere)
    if config.tables == 2:
        rows = rows + elsewhere * -np.expm1(-nodes / elsewhere)
    tokens = float(own.sum()) * length
    return rows.sum() / tokens * bytes_of_row(config.dim), tokens / len(sizes), float(rows.max())


def bytes_of_triple(
    graph: KnowledgeGraph, config: KGEConfig, hosts: int, seed: int = 0, wire_dtype: str = "float32"
) -> float:
    """Bytes that a machine sends for the rows of each of its triples, by drawing some steps.

    The chunks of ``SIZES`` steps are dealt out as to trainers, and the distinct rows of entities and relations counted
    that other machines hold: an id and a row of the pull, an id and a gradient of the push.

    Args:
        graph: With its training triples.
        config: Draws negatives; each table lies in even ranges.
        hosts: W.
    """
    drawn = Batches(graph, config.replace(filter_negatives=False), seed, 0, 1, lockstep=True)
    tables = [
        (RangeBook.even(num, hosts), 8 + bytes_of_row(dim, wire_dtype))
        for num, dim in ((graph.num_entities, config.dim), (graph.num_relations, scorer_of(config).relation_dim))
    ]
    sent = trained = 0
    for _, batch in islice(drawn.epoch(0), SIZES):
        trained += np.count_nonzero(batch.weights)
        for host, own in enumerate(np.array_split(np.arange(len(batch.triples)), hosts)):
            chunks = batch.triples[own]
            entities = np.concatenate([chunks[..., [0, 2]].ravel(), batch.negatives[own].ravel()])
            for (book, size), ids in zip(tables, (entities, chunks[..., 1].ravel()), strict=True):
                owner = book.owner(torch.from_numpy(np.unique(ids)))
                sent += int((owner != host).sum()) * size
    return sent / trained


def _sizes(
    config: SkipGramConfig, num_nodes: int, num_arcs: int, total: int, walk_length: int, hosts: int
) -> np.ndarray:
    """The walks of each interval of a training of ``total`` walks, over all machines."""
    rate = config.first_lr
    if config.rate_follows_walks:
        rate = config.rate_share * rate_of_walks(total * walk_length, num_arcs)
    size = hosts * (config.exchange_walks or usual_walks(num_nodes, hosts, walk_length, total, rate))
    growth, found = growth_of(config, num_nodes, walk_length), list[int]()
    per_epoch, (least, batches) = total // config.epochs, batching(config)
    whole = batches * joint_walks(hosts, walk_length, size, least)
    for begun in range(0, total, per_epoch):
        for first in range(begun, begun + per_epoch, whole):
            found += cut_sizes(first, min(whole, begun + per_epoch - first), size, *growth)
    return np.array(found)


def _others(nodes: np.ndarray, parts: np.ndarray, host: int) -> np.ndarray:
    """The distinct ones of nodes that are on other machines, ascending."""
    found: np.ndarray = np.unique(nodes[(nodes >= 0) & (parts[nodes] != host)])
    return found
