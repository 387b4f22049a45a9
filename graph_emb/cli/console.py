"""What commands share: when to show progress, lists in flags, tables, JSON files."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from graph_emb.run.run_folder import json_text

WATCHED = "GRAPH_EMB_WATCHED"
"""Set by a launcher whose terminal somebody watches: its first trainer's output goes there."""


def show_progress(args: argparse.Namespace) -> bool:
    """Bars only where somebody watches."""
    return not args.quiet and (sys.stderr.isatty() or os.environ.get(WATCHED) == "1")


def say(args: argparse.Namespace, text: str) -> None:
    """A line for the person at the terminal, kept out of the results on stdout."""
    if not args.quiet:
        print(text, file=sys.stderr)


def listed(text: str) -> list[str]:
    """The parts of ``a,b,c``."""
    return [part.strip() for part in text.split(",") if part.strip()]


def write_json(path: str | Path, content: Any) -> None:
    """Replace a JSON file in one step, so that a reader or a full disk never sees half of it."""
    target = Path(path)
    text = json_text(content)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
