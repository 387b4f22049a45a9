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
from graph_emb.run.machine import bytes_of_rows, pages_of_rows
from graph_emb.run.parallel import Trainers
from graph_emb.sampling.bucket_rounds import RoundSchedule
from graph_emb.table.placement import in_memory
from graph_emb.table.tier.pages import least_pages

WITH_EARLY = 4
"""Of the bytes of a trainer's two parts, those of its memory of which parts travel before they train."""


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
    if model.passes > 1:
        raise ConfigError(
            f"train.passes = {model.passes}: {trainers} trainers pass over all buckets once an epoch; leave it out"
        )
    if buckets < 2 * trainers:
        raise ConfigError(
            f"{said}: {trainers} trainers hold two parts each, and no two the same; take at least {2 * trainers}, or "
            "fewer trainers"
        )


def beside_parts(placement: Any, num_entities: int, config: RunConfig) -> tuple[Any, int]:
    """A placement whose memory is what the parts of a trainer leave of ``train.memory``, and bytes for those that come.

    These are two that it holds, and where as much is left for its file two that it receives and two that it sends while
    a round trains.

    Raises:
        ConfigError: that is less than the two take.
    """
    model: Any = config.model
    if in_memory(placement) or model.at_once is None or config.parallel.trainers == 1:
        return placement, 0
    held = bytes_of_parts(num_entities, model)
    if placement.memory_bytes < 2 * held:
        raise ConfigError(
            f"train.memory = {config.train.memory!r}: a trainer holds two of {model.buckets} parts with their state, "
            f"{size_text(held)}, and as much of its file; raise it to {2 * held} bytes, or raise train.buckets"
        )
    early = 2 * held if has_room_ahead(placement, num_entities, config) else 0
    return replace(placement, memory=placement.memory_bytes - held - early), early


def has_room_ahead(placement: Any, num_entities: int, config: RunConfig) -> bool:
    """Whether memory holds four parts beside the two of a trainer, and as much as these of its file."""
    model: Any = config.model
    held, own = bytes_of_parts(num_entities, model), -(-num_entities // config.parallel.trainers)
    frames, pages = pages_of_rows(own, model, placement, max(0, placement.memory_bytes - 3 * held))
    return bool(placement.memory_bytes >= WITH_EARLY * held and frames >= least_pages(pages, model.buckets))


def bytes_of_parts(num_entities: int, model: Any) -> int:
    """Of the two parts that a trainer holds, with their state."""
    return bytes_of_rows(2 * -(-num_entities // model.buckets), model)


def plan_of_rounds(num_entities: int, config: RunConfig) -> str:
    """The order of training by rounds of buckets, in a line."""
    model: Any = config.model
    schedule = RoundSchedule(model.buckets, model.at_once, num_entities, config.seed)
    rounds = schedule.epoch(0)
    moved = schedule.num_moves(rounds) / model.buckets
    ahead = ""
    if config.train.memory is not None and config.parallel.trainers > 1:
        least = size_text(WITH_EARLY * bytes_of_parts(num_entities, model))
        has_room = has_room_ahead(config.train.table_placement(), num_entities, config)
        ahead = f", {'' if has_room else f'with train.memory above {least} '}while the round before trains"
    return (
        f"plan: {model.buckets} parts of the entities, {model.at_once} buckets at a time; an epoch has {len(rounds)} "
        f"rounds of {model.buckets**2} buckets, between which {moved:.1f} times the table moves to those who train it, "
        f"and back, where they share no memory{ahead}"
    )


def all_triples(dataset: KnowledgeGraph | None, facts: KnowledgeGraph, ranks: Trainers) -> KnowledgeGraph:
    """A graph with the training triples of the first rank's, which alone gives it. Every rank calls it."""
    triples = np.empty((facts.train_elsewhere, 3), np.int64) if dataset is None else dataset.train
    ranks.group.copy_first([torch.from_numpy(np.ascontiguousarray(triples))], "triples")
    return replace(facts, parts={"train": triples}, train_elsewhere=0) if dataset is None else dataset
