"""Shared by the commands: when to show progress, lists in flags."""

from __future__ import annotations

import argparse
import os
import sys

WATCHED = "GRAPH_EMB_WATCHED"
"""Set by a launcher with a terminal: its first trainer's output goes there."""


def show_progress(args: argparse.Namespace) -> bool:
    """Whether to show bars: on a terminal, or for a launcher that runs on one."""
    return not args.quiet and (sys.stderr.isatty() or os.environ.get(WATCHED) == "1")


def say(args: argparse.Namespace, text: str) -> None:
    """A line for the person at the terminal, kept out of the results on stdout."""
    if not args.quiet:
        print(text, file=sys.stderr)


def listed(text: str) -> list[str]:
    """The parts of ``a,b,c``."""
    return [part.strip() for part in text.split(",") if part.strip()]
