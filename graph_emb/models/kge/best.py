"""The rows of the best validation, kept until the training ends, also by a run that is resumed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from graph_emb.core.errors import DataError

FILE = "best.safetensors"


class BestRows:
    """Entities and relations of the best validation so far; on the first rank.

    Args:
        folder: Of the run's checkpoints, where the rows are written so that a resumed run has them; None: nowhere.
    Attributes:
        mrr: Of the best validation; -1 before the first.
        epoch: Its number, from 1; 0 before the first.
        since: Validations after it.
        rows: Of the entities and the relations; None before the first.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.mrr, self.epoch, self.since = -1.0, 0, 0
        self.rows: tuple[Tensor, Tensor] | None = None
        self._file = None if folder is None else folder / FILE

    def add(self, mrr: float, epoch: int, rows: tuple[Tensor, Tensor]) -> None:
        """Take a validation's rows if they are better, or are those of the best epoch once more."""
        if mrr <= self.mrr and epoch != self.epoch:
            self.since += 1
            return
        self.mrr, self.epoch, self.since, self.rows = mrr, epoch, 0, rows
        if self._file is not None:
            from safetensors.torch import save_file

            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._file.with_name(f".{FILE}.{os.getpid()}.tmp")
            facts = {"mrr": repr(mrr), "epoch": str(epoch)}
            save_file({"entities": rows[0], "relations": rows[1]}, temporary, metadata=facts)
            temporary.replace(self._file)

    def position(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"epoch": self.epoch, "since": self.since}

    def resume(self, position: dict[str, Any]) -> None:
        """Go on from a checkpoint: the rows are read from the file, which may be of a later validation.

        Raises:
            DataError: the file is missing or damaged.
        """
        if not position["epoch"]:
            return
        from safetensors import SafetensorError, safe_open

        assert self._file is not None
        try:
            with safe_open(str(self._file), framework="pt") as file:
                facts = file.metadata()
                self.rows = file.get_tensor("entities"), file.get_tensor("relations")
        except (OSError, SafetensorError) as error:
            raise DataError(f"{self._file}: cannot be read ({error}); start the run anew with overwrite") from error
        self.mrr, self.epoch = float(facts["mrr"]), int(facts["epoch"])
        self.since = position["since"] if self.epoch == position["epoch"] else 0
