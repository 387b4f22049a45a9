"""``graph-emb partition``: the commands of ``python -m partition``."""

from __future__ import annotations

from partition.cli import run

__all__ = ["run"]
