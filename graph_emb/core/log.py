"""One logger for the library; it stays silent until an application configures logging."""

from __future__ import annotations

import logging

ROOT_NAME = "graph_emb"
logging.getLogger(ROOT_NAME).addHandler(logging.NullHandler())


def get_logger(name: str) -> logging.Logger:
    """The logger of a module, below the library's root logger."""
    return logging.getLogger(name if name.startswith(ROOT_NAME) else f"{ROOT_NAME}.{name}")
