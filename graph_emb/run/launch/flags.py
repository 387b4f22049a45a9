"""The flags by which a command starts the processes of its job, and the words of a command line. Nothing heavy here."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

OVERSUBSCRIBE = "take more trainers than four times a machine's cores"
HOSTS = "a line for each machine: address [trainers [servers]]"
HOST_INDEX = "this machine's line; default: found by address"
RESTARTS = {"--restarts": 1, "--restart-wait": 1}
PLACING = {"--hosts": 1, "--host-index": 1, "--port": 1, "--ssh": 0, **RESTARTS}
"""Flags that say where the processes of a job run, and how many words follow each."""

Flags = Mapping[str, tuple[str, Any, str | None, str]]
"""Flags that set a field: its path; what makes the value of the flag's text, None: it is read as an override's is, or
the value that a flag without text stands for; metavar; help."""

JOB_FLAGS: Flags = {
    "mode": ("parallel.mode", str, None, "local, collective or kvstore; default: local, or collective with --trainers"),
    "trainers": ("parallel.trainers", None, "N", "processes that train; default: 1"),
    "servers": ("parallel.servers", None, "N", "of kvstore mode, on each machine; default there: 1"),
    "partition": (
        "parallel.partition",
        str,
        "DIR",
        "a partition of the data set, whose parts the trainers take",
    ),
    "oversubscribe": ("parallel.oversubscribe", True, None, OVERSUBSCRIBE),
}
"""Of every command that trains: how many processes, and which rows they take."""


def add_flags(parser: argparse.ArgumentParser, flags: Flags) -> None:
    """Add flags of fields; each is None, or False where it has no text, unless it is given."""
    for name, (_, value, metavar, text) in flags.items():
        kind: dict[str, Any] = {"action": "store_true"} if isinstance(value, bool) else {"metavar": metavar}
        parser.add_argument(f"--{name.replace('_', '-')}", help=text, **kind)


def add_placing(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``PLACING``."""
    parser.add_argument("--hosts", metavar="FILE", help=HOSTS)
    parser.add_argument("--host-index", metavar="I", type=int, help=HOST_INDEX)
    parser.add_argument("--port", type=int, help="of the first machine, open to the others; one machine: a free one")
    parser.add_argument("--ssh", action="store_true", help="start the other machines too, in this folder, by ssh")


def add_restarts(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``RESTARTS``."""
    parser.add_argument("--restarts", metavar="N", type=int, help="start a failed job again, N times; default: 0")
    wait = "seconds for the machines of a restart to come; it goes on with those that do; default: 60"
    parser.add_argument("--restart-wait", metavar="S", type=float, help=wait)


def without(words: Sequence[str], flags: Mapping[str, int]) -> list[str]:
    """Words of a command line without some flags, each with the number of words that follow it."""
    kept, skip = [], 0
    for word in words:
        if skip:
            skip -= 1
        elif word in flags:
            skip = flags[word]
        elif word.partition("=")[0] not in flags:
            kept.append(word)
    return kept


def resumed(words: Sequence[str]) -> list[str]:
    """A command line of ``train`` that goes on from the newest checkpoint; flags of the program may stand before it."""
    others = without(words, {"--resume": 0})
    at = others.index("train") + 1
    return [*others[:at], "--resume", *others[at:]]
