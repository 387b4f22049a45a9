"""The rows of the best validation of a training, kept and written for a run that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from graph_emb.core.errors import DataError
from graph_emb.core.storage import replacing

BEST_FILE = "best.safetensors"


class BestRows:
    """Entities and relations of the best validation so far, on the first rank.

    They are written to the run's checkpoint folder, if there is one, for a resumed run. Before the first validation
    ``mrr`` is -1, ``epoch`` 0 and ``rows`` None; ``since`` counts the validations after the best one.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.mrr, self.epoch, self.since = -1.0, 0, 0
        self.rows: tuple[Tensor, Tensor] | None = None
        self._file = None if folder is None else folder / BEST_FILE

    def add(self, mrr: float, epoch: int, rows: tuple[Tensor, Tensor]) -> None:
        """Keep the rows if this validation beats the best so far, or repeats the best epoch."""
        if mrr <= self.mrr and epoch != self.epoch:
            self.since += 1
            return
        self.mrr, self.epoch, self.since, self.rows = mrr, epoch, 0, rows
        if self._file is not None:
            from safetensors.torch import save_file

            self._file.parent.mkdir(parents=True, exist_ok=True)
            facts = {"mrr": repr(mrr), "epoch": str(epoch)}
            with replacing(self._file) as draft:
                save_file({"entities": rows[0], "relations": rows[1]}, draft, metadata=facts)

    def resume(self, position: dict[str, Any]) -> None:
        """Continue from a checkpoint; the rows are read from the file, which may hold a later validation."""
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
