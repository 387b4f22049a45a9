"""Both command lines' parser, exit codes and one-line errors; nothing heavy is imported."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, NoReturn

from graph_emb.core.errors import ConfigError, unknown_name

BAD_INPUT, INTERRUPTED = 2, 130


class Parser(argparse.ArgumentParser):
    """argparse that raises ConfigError, with the nearest known word, instead of ending the process."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # argparse lists the choices without a suggestion; this hook is the same in 3.10 - 3.13
        if action.choices is not None and value not in action.choices:
            kind = action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest)
            raise unknown_name(kind.lower(), value, [str(choice) for choice in action.choices])

    def flags(self) -> list[str]:
        """Every option of this parser."""
        return list(self._option_string_actions)


def one_line(error: BaseException, when_out_of_memory: str) -> str:
    """The error as one line for a person; after a MemoryError ``when_out_of_memory`` is the next step."""
    if isinstance(error, MemoryError):
        detail = f" ({' '.join(str(error).split())})" if str(error) else ""
        return f"out of memory{detail}; {when_out_of_memory}"
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename is not None else ""
        return f"{' '.join(error.strerror.split())}{where}"
    return " ".join(str(error).split()) or type(error).__name__


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
