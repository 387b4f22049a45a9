"""Whether the trainers of a run change the same rows in place or exchange them and how rows then travel; and when its
seed repeats the bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from graph_emb.checkpoint.periodic import about_of
from graph_emb.config import RunConfig
from graph_emb.core.threads import thread_count
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.skipgram.config import SkipGramTraining
from graph_emb.run.cost import WIRE_SHARE, WalkLoad, rounding_pays, usual_forecast
from graph_emb.transport.link import Link

PATH, WIRE = "parallel.hogwild", "parallel.wire_dtype"
"""Fields of a run, and of what a checkpoint says about its run."""
EXACT, ROUNDED = "float32", "bfloat16"


def asked(config: RunConfig, before: bool | None = None) -> tuple[bool | None, str]:
    """The transport's ``hogwild`` for a run: as the configuration says, else by what trains.

    Args:
        before: What the run did before the checkpoint with which it goes on; None: it begins, or none is known.
    Returns:
        True, False, or None: where the machine allows it; and why, as the end of a sentence, empty where the
        configuration says it or the model always exchanges.
    """
    section = config.parallel
    if section.hogwild is not None:
        return section.hogwild, ""
    if section.trainers == 1 or not can_share(config):
        return False, ""
    reason = _reason_to_exchange(config)
    if reason:
        return False, reason
    if before is False:
        return False, "the run did so before its checkpoint"
    return None, "one machine holds them all"


def can_share(config: RunConfig) -> bool:
    """Whether trainers of the model can change rows in place: walks by SGD, and triples in collective mode."""
    model = config.model
    if isinstance(model, KGEConfig):
        return config.parallel.mode == "collective"
    return isinstance(model, SkipGramTraining) and model.in_place


def _reason_to_exchange(config: RunConfig) -> str:
    """Why trainers that could share rows exchange them, as the end of a sentence; empty where nothing speaks for it."""
    if settings := config.exchange_settings:
        return f"{settings[0]} is given"
    model = config.model
    if isinstance(model, KGEConfig):
        if config.train.memory is not None:
            return "train.memory is given, and rows in files are not shared"
        if model.against_all:
            return f"model.training={model.training} changes every row in every step"
        if model.buckets:
            return "train.buckets is given, and trainers hold parts of their own"
        if model.weight_decay_mode == "lazy":
            return "train.weight_decay_mode=lazy needs every trainer in every step"
    return ""


def settled(config: RunConfig, wish: bool | None, why: str, hogwild: bool) -> tuple[RunConfig, str]:
    """The configuration with the choice filled in, and a line that says it; empty where there was none to make.

    Args:
        wish, why: As ``asked`` gives them.
        hogwild: The transport's.
    """
    if not why:
        return config, ""
    if wish is None and not hogwild:
        why = "they are on several machines, or share no memory"
    what = "trainers change the same rows in place" if hogwild else "trainers exchange rows"
    repeat = ", so that a seed does not repeat the bits (false: it does)" if hogwild else ""
    section = config.parallel.model_copy(update={"hogwild": hogwild})
    return config.model_copy(update={"parallel": section}), f"{PATH}=auto: {what}, because {why}{repeat}"


def of_checkpoint(folder: Path) -> bool | None:
    """Whether trainers changed the same rows in place when the newest checkpoint in a folder was saved.

    Returns:
        None: there is no checkpoint, or one process alone had trained; of earlier versions, which exchanged by
        default, False.
    """
    saved = about_of(folder)
    return None if saved is None else saved.get(PATH, False)


def may_round(config: RunConfig) -> bool:
    """Whether a run leaves it open how rows travel: ranks train copies of each other's, in place.

    Where they take each step together gradients would be rounded, and are not unless a run says so.
    """
    model, section = config.model, config.parallel
    copies = isinstance(model, SkipGramTraining) and model.in_place
    return section.wire_dtype is None and section.mode == "collective" and not section.hogwild and copies


def wire_dtype(
    config: RunConfig, link: Link, on_machine: int, loads: Sequence[WalkLoad], before: str | None = None
) -> tuple[str, str]:
    """How rows travel where the run leaves it open, and a line that says it.

    Args:
        link: Between the machines.
        on_machine: Trainers of one machine, which share its link.
        loads: What is trained, one after the other.
        before: How they travelled before the checkpoint with which the run goes on; None: it begins, or none did.
    """
    if before is not None:
        return before, f"{WIRE}=auto: rows travel as {before}, because the run did so before its checkpoint"
    own, threads = replace(link, gbit=link.gbit / on_machine), thread_count(config.train.threads)
    found = [usual_forecast(load, own, config.parallel.trainers, threads) for load in loads]
    share = sum(one.wire for one in found) / sum(one.seconds for one in found)
    chosen = ROUNDED if rounding_pays(found) else EXACT
    why = f"a link of {link.gbit:g} Gb/s would take some {share:.0%} of the training as {EXACT}"
    bound = f"rounding begins at {WIRE_SHARE:.0%}" if chosen == EXACT else f"{EXACT}: they are not rounded"
    return chosen, f"{WIRE}=auto: rows travel as {chosen}, because {why} ({bound})"


def wire_of_checkpoint(folder: Path) -> str | None:
    """How rows travelled when the newest checkpoint in a folder was saved.

    Returns:
        None: there is no checkpoint, or none travelled; of earlier versions, which rounded nothing by default, exact.
    """
    saved = about_of(folder)
    exchanged = saved is not None and saved.get(PATH, False) is False
    return (saved.get(WIRE) or EXACT) if saved is not None and exchanged else None


def repeats(config: RunConfig, threads: int) -> str:
    """When another run of the same seed ends with the same bits: ``always``, with the ``same threads``, or ``never``.

    Hogwild trainers, and threads of SGD in place, change rows without locks; servers apply pushes as they come; and
    torch sums the products of a network by thread.
    """
    parallel, in_place = config.parallel, getattr(config.model, "in_place", False)
    unordered = bool(parallel.hogwild) or parallel.mode == "kvstore"
    if (in_place and threads > 1) or (unordered and parallel.trainers > 1):
        return "never"
    return "same threads" if config.model.family in ("gnn", "links") else "always"
