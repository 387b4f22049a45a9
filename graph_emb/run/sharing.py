"""Whether the trainers of a run change the same rows in place or exchange them and how rows then travel; and when its
seed repeats the bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from graph_emb.checkpoint.periodic import about_of
from graph_emb.config import RunConfig
from graph_emb.core.threads import thread_count
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.skipgram.config import SkipGramTraining
from graph_emb.run.cost import WIRE_SHARE, Forecast, WalkLoad, overlap_pays, rounding_pays, usual_forecast
from graph_emb.transport.link import Link

PATH, WIRE, OVERLAP = "parallel.hogwild", "parallel.wire_dtype", "parallel.overlap"
"""Fields of a run."""
TOLD = (PATH, WIRE, OVERLAP)
"""Those that a checkpoint says of its run, for who goes on and may choose otherwise."""
EXACT, ROUNDED = "float32", "int8"


class Travel(NamedTuple):
    """How rows travel between machines: as which numbers, and whether while trainers train."""

    wire_dtype: str
    overlap: bool


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


def travels_openly(config: RunConfig) -> bool:
    """Whether a run leaves it open how rows travel: ranks train copies of each other's, in place.

    Where they take each step together gradients would be rounded, and are not unless a run says so.
    """
    model, section = config.model, config.parallel
    copies = isinstance(model, SkipGramTraining) and model.in_place
    left_open = section.wire_dtype is None or getattr(model, "overlap", False) is None
    return left_open and section.mode == "collective" and not section.hogwild and copies


def travel(
    config: RunConfig, link: Link, on_machine: int, loads: Sequence[WalkLoad], before: Travel | None = None
) -> tuple[Travel, str]:
    """How rows travel, where the run leaves it open as the link says, and a line that says it.

    Args:
        link: Between the machines.
        on_machine: Trainers of one machine, which share its link.
        loads: What is trained, one after the other.
        before: How they travelled before the checkpoint with which the run goes on; None: it begins, or none did.
    """
    model: Any = config.model
    given = Travel(config.parallel.wire_dtype or EXACT, bool(model.overlap))
    settings = [f"{WIRE}=auto"] if config.parallel.wire_dtype is None else []
    settings += [f"{OVERLAP}=auto"] if model.overlap is None else []
    if before is not None:
        why = "the run did so before its checkpoint"
        chosen = Travel(config.parallel.wire_dtype or before.wire_dtype,
                        before.overlap if model.overlap is None else model.overlap)  # fmt: skip
    else:
        own, threads = replace(link, gbit=link.gbit / on_machine), thread_count(config.train.threads)

        def foreseen(wire_dtype: str) -> list[Forecast]:
            return [usual_forecast(load, own, config.parallel.trainers, threads, wire_dtype) for load in loads]

        found, chosen = foreseen(given.wire_dtype), given
        if config.parallel.wire_dtype is None and rounding_pays(found):
            chosen = chosen._replace(wire_dtype=ROUNDED)
        if model.overlap is None and overlap_pays(foreseen(chosen.wire_dtype)):
            chosen = chosen._replace(overlap=True)
        share = sum(one.wire for one in found) / sum(one.seconds for one in found)
        why = f"a link of {link.gbit:g} Gb/s would take some {share:.0%} of the training as {given.wire_dtype}"
        why += f" (rounding begins at {WIRE_SHARE:.0%})" if chosen == given else f" ({_undoing(given, chosen)})"
    when = ", while trainers train" if chosen.overlap else ""
    return chosen, f"{', '.join(settings)}: rows travel as {chosen.wire_dtype}{when}, because {why}"


def _undoing(given: Travel, chosen: Travel) -> str:
    """What to set so that rows travel otherwise than chosen."""
    ways = [f"{WIRE}={EXACT}: they are not rounded"] if chosen.wire_dtype != given.wire_dtype else []
    ways += [f"{OVERLAP}=false: they are waited for"] if chosen.overlap != given.overlap else []
    return "; ".join(ways)


def travel_of_checkpoint(folder: Path) -> Travel | None:
    """How rows travelled when the newest checkpoint in a folder was saved.

    Returns:
        None: there is no checkpoint, or none travelled; of earlier versions, which rounded nothing by default, exact.
    """
    saved = about_of(folder)
    exchanged = saved is not None and saved.get(PATH, False) is False
    return Travel(saved.get(WIRE) or EXACT, bool(saved.get(OVERLAP))) if saved is not None and exchanged else None


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
