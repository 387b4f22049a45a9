"""Time and traffic of a training on several machines, from probes of one trainer and of two on this one."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from graph_emb.config import RunConfig, config_from
from graph_emb.core.errors import ConfigError
from graph_emb.graph.typed import EDGE_TYPE, NODE_TYPE, HeteroGraph
from graph_emb.graph.views import knowledge_graph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.skipgram.config import EdgePolicy, WalkConfig
from graph_emb.run import sharing
from graph_emb.run.cost import (
    STEP_MESSAGES,
    Costs,
    Forecast,
    bytes_of_row,
    bytes_of_token,
    bytes_of_triple,
    forecast,
    overlap_pays,
    rounding_pays,
)
from graph_emb.run.estimate import PROBE_S, Line, probed_run, quiet_settings
from graph_emb.run.inputs import absolute_paths, edge_policy, read_dataset, read_plain_dataset, with_held_out_triples
from graph_emb.run.parallel import WALKS, assigned
from graph_emb.transport.link import Link

PACE = ("walks", "tokens", "elapsed", "exchange_seconds", "bytes_sent")
"""Counts of a line of walks from which the costs of a machine follow."""
UNCOUNTED = {"remote_negatives": None, "negative_pool": 0}
"""Fields of ``parallel`` that change which rows a machine asks for, other than by its walks, and what leaves them."""
JOB: dict[str, Any] = {"mode": "collective", "servers": 0, "oversubscribe": True}


def estimate_on(config: RunConfig, hosts: int, link: Link, seconds: float = PROBE_S) -> Forecast:
    """Seconds and traffic of a training of walks or triples on several machines like this one, one trainer each.

    Two trainers that exchange through sockets, and of triples one alone, are measured here for some seconds each; which
    rows of other machines are needed is counted, of walks by the partition of the graph into ``hosts`` parts.

    Args:
        config: Of one process, or of as many collective trainers as there are machines, with the settings of their
            exchange; its model trains walks by SGD in place, or triples against drawn negatives.
        hosts: Machines, 2 at least.
        link: Between them.
        seconds: Of each probe.
    Raises:
        ConfigError: another model, rule, mode or number of trainers; rows that are not counted: of negatives that are
            not drawn from all nodes, of buckets, of shared rows; a partition of another number of parts, one machine,
            or fewer nodes than machines.
    """
    check_estimated(config, hosts)
    if hosts < 2:
        raise ConfigError(f"hosts = {hosts}: give 2 machines at least, or leave --hosts out")
    section = config.parallel
    if section.mode != "local" and (section.mode, section.trainers) != ("collective", hosts):
        raise ConfigError(
            f"hosts = {hosts}: one collective trainer on each machine is estimated, not parallel.mode={section.mode} "
            f"with parallel.trainers={section.trainers}; leave them out"
        )
    _check_counted(config, hosts)
    return (_triples_on if isinstance(config.model, KGEConfig) else _walks_on)(config, hosts, link, seconds)


def check_estimated(config: RunConfig, hosts: int) -> None:
    """Raise a ConfigError where the model's training on machines is not estimated, with what to do instead."""
    model: Any = config.model
    if "parallel.mode" in model.without:
        raise ConfigError(
            f"hosts = {hosts}: one process trains {model.name}, so that more machines change nothing; leave --hosts out"
        )
    walks, triples = isinstance(model, WalkConfig) and isinstance(model, EdgePolicy), isinstance(model, KGEConfig)
    if (walks and model.in_place) or (triples and not model.composed and not model.against_all):
        return
    why = f"{model.name} with train.rule={model.rule}" if walks else model.name
    if (walks or triples) and model.composed:
        why = f"{model.name} with model.table={model.table}, rows that nodes share"
    elif triples:
        why = f"{model.name} with model.training={model.training}, all rows in each step"
    raise ConfigError(
        f"hosts = {hosts}: machines are estimated for deepwalk and node2vec by sgd in place, and for models of triples "
        f"by drawn negatives, not for {why}; leave --hosts out, or train an epoch there (graph-emb train --hosts FILE)"
    )


def _check_counted(config: RunConfig, hosts: int) -> None:
    """Raise a ConfigError where machines need other rows than are counted."""
    model: Any = config.model
    section = config.parallel
    given: dict[str, tuple[Any, Any]] = {"parallel.negatives": (model.negative_scope, "global")}
    if isinstance(model, KGEConfig):
        given |= {
            "parallel.triples": (model.triple_scope, "global"),
            "parallel.partition": (section.partition, None),
            "parallel.method": (section.method, "auto"),
            "train.buckets": (model.buckets, 0),
            "train.memory": (config.train.memory, None),
            "model.multilevel": (model.multilevel, False),
        }
    else:
        given |= {f"parallel.{name}": (getattr(model, name), UNCOUNTED[name]) for name in UNCOUNTED}
    for path, (value, usual) in given.items():
        if value != usual:
            said = f"{path}={'auto' if value is None else value}"
            raise ConfigError(f"hosts = {hosts}: the rows of {said} are not counted; leave it out")


class _Probes:
    """Short trainings on this machine: of one trainer alone, and of two that exchange through sockets.

    Args:
        config, seconds: As of ``estimate_on``.
        train: Settings of ``train`` for them.
    Attributes:
        crowd: How many times the cores of one trainer the two have, with half of its threads each, one at least.
    """

    def __init__(self, config: RunConfig, train: dict[str, Any], seconds: float) -> None:
        self._held = config.model_copy(update={"dataset": absolute_paths(config.dataset)}).sections()
        self._exchange = {**self._held.pop("parallel"), **JOB, "trainers": 2, "partition": None, "method": "auto"}
        self._train, self._seconds = train, seconds
        cores = os.cpu_count() or 1
        self._threads = config.train.threads or cores
        self._each = max(1, self._threads // 2)
        self.crowd = min(2 * self._each, cores) / min(self._threads, cores)

    def alone(self) -> list[Line]:
        """The lines of one trainer."""
        return self._lines(self._threads, {})

    def pair(self) -> list[Line]:
        """The lines of two."""
        return self._lines(self._each, {"parallel": self._exchange})

    def _lines(self, threads: int, more: dict[str, Any]) -> list[Line]:
        probed = config_from(self._held, quiet_settings({**self._train, "threads": threads}), more)
        with tempfile.TemporaryDirectory(prefix="graph-emb-estimate-") as folder:
            (lines,), _, _ = probed_run(Path(folder), probed, self._seconds, sockets=True)
        return lines


def _gained(lines: list[Line], keys: tuple[str, ...]) -> dict[str, float]:
    """How much counts grew from the first line to the last, or of one line what it has."""
    first, last = (lines[0] if len(lines) > 1 else {}), lines[-1]
    return {key: last[key] - first.get(key, 0) for key in keys}


def _walks_on(config: RunConfig, hosts: int, link: Link, seconds: float) -> Forecast:
    """``estimate_on`` of walks.

    Work is what two trainers that exchange do between exchanges: walkers travel, and nodes get numbers, which one alone
    does without.
    """
    model: Any = config.model
    graph = read_plain_dataset(config.dataset, config.seed, **edge_policy(model)).graph
    whole = HeteroGraph({NODE_TYPE: graph.num_nodes}, {EDGE_TYPE: tuple(graph.edges().T)})
    sections = config.sections()
    job = config_from(sections, {"parallel": {**sections["parallel"], **JOB, "trainers": hosts}})
    cut = assigned(whole, job, limits=WALKS)
    if cut.num_parts != hosts:
        raise ConfigError(f"parallel.partition has {cut.num_parts} parts for {hosts} machines; give one of {hosts}")
    often = {"log_interval": min(config.train.log_interval, seconds / 8)}
    probes = _Probes(config, often, seconds)
    two = _gained(probes.pair(), PACE)
    costs = Costs(
        item_us=1e6 * probes.crowd * (two["elapsed"] - two["exchange_seconds"]) / two["tokens"],
        byte_ns=1e9 * two["exchange_seconds"] / (two["bytes_sent"] / 2),
    )
    tokens = model.epochs * model.num_walks * graph.num_nodes * two["tokens"] / two["walks"]

    section = config.parallel

    def travelling_as(wire_dtype: str, overlap: bool) -> Forecast:
        own = model.model_copy(update={"overlap": overlap})
        bytes_token, interval = bytes_of_token(graph, cut.homogeneous(), own, hosts, config.seed)
        row, probed = (bytes_of_row(model.dim, one) for one in (wire_dtype, section.wire_dtype or sharing.EXACT))
        of_row = replace(costs, byte_ns=costs.byte_ns * probed / row)  # a row takes as long as in the probe
        sent = bytes_token * row / bytes_of_row(model.dim)
        found = forecast(of_row, link, hosts, tokens, sent, interval, overlap=overlap)
        return replace(found, wire_dtype=wire_dtype)

    overlap = bool(model.overlap)
    found = travelling_as(section.wire_dtype or sharing.EXACT, overlap)
    if section.wire_dtype is None and rounding_pays([found]):
        found = travelling_as(sharing.ROUNDED, overlap)
    if model.overlap is None and overlap_pays([found]):
        found = travelling_as(found.wire_dtype, True)
    return found


def _triples_on(config: RunConfig, hosts: int, link: Link, seconds: float) -> Forecast:
    """``estimate_on`` of triples.

    The processor's part of an exchange is what the two trainers took beyond one alone for as many triples.
    Triples and marks of true negatives, which travel beside rows, are what they sent beyond the rows that are counted;
    on W machines (1 - 1/W) / (1 - 1/2) times as much.
    """
    model: Any = config.model
    graph, _ = with_held_out_triples(
        knowledge_graph(read_dataset(config.dataset, file_format="triples")), config.dataset
    )
    wire_dtype = config.parallel.rounded_to or sharing.EXACT
    counted, of_two = (bytes_of_triple(graph, model, num, config.seed, wire_dtype) for num in (hosts, 2))
    probes = _Probes(config, {}, seconds)
    single = _gained(probes.alone(), ("triples", "seconds"))
    two = _gained([{**line, **line["job"]} for line in probes.pair()], ("triples", "seconds", "bytes_out"))
    triple_us, pair_us = (1e6 * one["seconds"] / one["triples"] for one in (single, two))
    sent = two["bytes_out"] / two["triples"]
    beside = max(0.0, sent - of_two) * 2 * (1 - 1 / hosts)
    costs = Costs(item_us=triple_us, byte_ns=max(0.0, pair_us - triple_us / probes.crowd) * 1e3 / (sent / 2))
    found = forecast(
        costs,
        link,
        hosts,
        model.epochs * graph.num_triples,
        counted + beside,
        model.batch_size / hosts,
        unit="triple",
        messages=STEP_MESSAGES,
    )
    return replace(found, wire_dtype=wire_dtype)
