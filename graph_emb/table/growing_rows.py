"""What checkpoints, look-ups and optimizers ask of the rows of a growing table, wherever its owners are.

Legend: B asked keys, R rows, D width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from graph_emb.core.errors import ConfigError
from graph_emb.table.shard import EmbeddingShard
from graph_emb.table.spec import TableSpec

COUNTS = ("uses", "last")
"""What is counted of each row, and of each id that waits for one: steps that used it, and the last of them."""


class GrowingRows(EmbeddingShard, ABC):
    """The rows of a growing table that a process stores, or saves and restores for those that do.

    Attributes:
        step: Updates of the table so far.
        epoch: Counts the passes in which rows of any owner left: equal on all of them. Rows never move.
        since: The digest of the checkpoint since which changes are known (``track``); None: they are not.
    """

    grows = True
    step: int
    epoch: int
    since: str | None

    @abstractmethod
    def contains(self, rows: Tensor) -> Tensor:
        """Whether each key has a row, (B,) bool."""

    @abstractmethod
    def frozen_ids(self) -> np.ndarray:
        """The ids of frozen rows, ascending."""

    @abstractmethod
    def candidates(self) -> dict[str, np.ndarray]:
        """The ids that wait for a row, ascending, with their uses and last steps, (N,) int64 each."""

    @abstractmethod
    def clear(self, step: int) -> None:
        """Give up all rows and candidates; the table has made ``step`` steps."""

    @abstractmethod
    def restore(
        self,
        ids: np.ndarray,
        weight: Tensor,
        state: Mapping[str, Tensor],
        uses: np.ndarray | None = None,
        last: np.ndarray | None = None,
    ) -> None:
        """Make rows of distinct ids without one, (R,), ascending, as a checkpoint has them."""

    @abstractmethod
    def restore_candidates(self, ids: np.ndarray, uses: np.ndarray, last: np.ndarray) -> None:
        """Let distinct ids wait for a row; those of a table that admits every id do not."""

    @abstractmethod
    def track(self, checkpoint: str | None) -> None:
        """Know the changes from now on: the rows are as the checkpoint of this digest has them; None: know none."""


def check_evicts(spec: TableSpec) -> None:
    """Raise a ConfigError where a growing table has no eviction."""
    if spec.growth is None or spec.growth.eviction is None:
        raise ConfigError(f"table {spec.name!r} has no eviction; make it with eviction=ge.Unused(steps=...)")


def check_total(spec: TableSpec, num_rows: int) -> None:
    """Raise a ConfigError where all owners together have more rows than a growing table may."""
    if spec.growth is not None and num_rows > spec.growth.max_rows:
        raise ConfigError(
            f"table {spec.name!r}: {num_rows} rows of all ranks exceed max_rows={spec.growth.max_rows}; load the last "
            "checkpoint into a larger table, or give it an eviction"
        )
