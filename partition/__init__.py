"""Graph partitioning for ``graph_emb``. Not built yet: the functions raise until it is."""

from __future__ import annotations

from typing import Any, NoReturn

from graph_emb.errors import ModeError

_ADVICE = "partition/ is not built yet; use dgl.distributed.partition_graph and pass its policies to DistEmbedding"


def build(*args: Any, **kwargs: Any) -> NoReturn:
    """Partition a graph and write it in DGL's format. Raises ModeError until it is built."""
    raise ModeError(_ADVICE)


def load(*args: Any, **kwargs: Any) -> NoReturn:
    """Open a partition written by ``build`` or by DGL. Raises ModeError until it is built."""
    raise ModeError(_ADVICE)


__all__ = ["build", "load"]
