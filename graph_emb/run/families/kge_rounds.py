"""Runs of several trainers on triples by buckets: what they need, and the triples that each one holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from graph_emb.config.schema import RunConfig
from graph_emb.core.errors import ConfigError
from graph_emb.core.hidden import size_text
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.run.machine import bytes_of_rows
from graph_emb.run.parallel import Trainers
from graph_emb.sampling.bucket_rounds import RoundSchedule
from graph_emb.table.placement import in_memory


def with_rounds(config: RunConfig) -> RunConfig:
    """The configuration with ``train.at_once`` of several trainers filled in: as many buckets as trainers."""
    model: Any = config.model
    trainers = config.parallel.trainers
    if not model.buckets or model.at_once is not None or config.parallel.mode != "collective" or trainers == 1:
        return config
    return config.model_copy(update={"model": model.model_copy(update={"at_once": trainers})})


def check_rounds(config: RunConfig) -> None:
    """Raise a ConfigError where the job cannot train ``train.buckets``, with what it needs."""
    model: Any = config.model
    section = config.parallel
    buckets, places, trainers = model.buckets, model.at_once, section.trainers
    if not buckets or section.mode == "local":
        return
    said = f"train.buckets = {buckets}"
    if section.mode == "kvstore":
        raise ConfigError(
            f"{said}: trainers of kvstore mode push every batch to servers and hold no parts of their own; set "
            "parallel.mode=collective (--mode collective), or leave train.buckets out"
        )
    for name, given, usual in (("partition", section.partition, None), ("method", section.method, "auto")):
        if given != usual:
            raise ConfigError(f"parallel.{name} = {given!r}: the parts of {said} are its own; leave one of them out")
    refused = {
        "parallel.hogwild": (section.hogwild, "each trainer changes the rows of its own parts alone"),
        "parallel.wire_dtype": (section.rounded_to, "parts would be rounded whenever they move"),
        "model.multilevel": (model.multilevel, "its levels share triples out by entities"),
    }
    for name, (value, reason) in refused.items():
        if value and trainers > 1:
            raise ConfigError(f"{name} = {value!r} does not go with {said} by trainers: {reason}; leave it out")
    if trainers == 1:
        return
    if places != trainers:
        raise ConfigError(
            f"train.at_once = {places}: each of {trainers} trainers takes one bucket at a time; leave it out"
        )
    if model.resident is not None:
        raise ConfigError(f"train.resident = {model.resident}: {trainers} trainers hold 2 parts each; leave it out")
    if buckets < 2 * trainers:
        raise ConfigError(
            f"{said}: {trainers} trainers hold two parts each, and no two the same; take at least {2 * trainers}, or "
            "fewer trainers"
        )


def beside_parts(placement: Any, num_entities: int, config: RunConfig) -> Any:
    """A placement whose memory is what the two parts that a trainer holds leave of ``train.memory``.

    Raises:
        ConfigError: that is less than they take.
    """
    model: Any = config.model
    if in_memory(placement) or model.at_once is None or config.parallel.trainers == 1:
        return placement
    parts = 2 * -(-num_entities // model.buckets)
    held = bytes_of_rows(parts, model)
    if placement.memory_bytes < 2 * held:
        raise ConfigError(
            f"train.memory = {config.train.memory!r}: a trainer holds two of {model.buckets} parts with their state, "
            f"{size_text(held)}, and as much of its file; raise it to {2 * held} bytes, or raise train.buckets"
        )
    return replace(placement, memory=placement.memory_bytes - held)


def plan_of_rounds(num_entities: int, parts: int, places: int, seed: int) -> str:
    """The order of training by rounds of buckets, in a line."""
    schedule = RoundSchedule(parts, places, num_entities, seed)
    rounds = schedule.epoch(0)
    moved = schedule.num_moves(rounds) / parts
    return (
        f"plan: {parts} parts of the entities, {places} buckets at a time; an epoch has {len(rounds)} rounds of "
        f"{parts**2} buckets, between which {moved:.1f} times the table moves to those who train it, and back, where "
        "they share no memory"
    )


def all_triples(dataset: KnowledgeGraph | None, facts: KnowledgeGraph, ranks: Trainers) -> KnowledgeGraph:
    """A graph with the training triples of the first rank's, which alone gives it. Every rank calls it."""
    triples = np.empty((facts.train_elsewhere, 3), np.int64) if dataset is None else dataset.train
    ranks.group.copy_first([torch.from_numpy(np.ascontiguousarray(triples))], "triples")
    return replace(facts, parts={"train": triples}, train_elsewhere=0) if dataset is None else dataset
