"""The domain's words as types, so that a rank is never taken for a part."""

from __future__ import annotations

from typing import NewType

Rank = NewType("Rank", int)
"""A process of the job, 0 .. world_size - 1."""

Part = NewType("Part", int)
"""A piece of a table, 0 .. num_parts - 1."""
