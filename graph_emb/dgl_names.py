"""What DGL's sparse optimizers call by private names, which scripts read and set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from graph_emb.embedding import DistEmbedding
from graph_emb.weight import as_dgl


class DGLNames(torch.optim.Optimizer):
    """Names of DGL's, of a ``SparseOptimizer``."""

    _tables: dict[str, DistEmbedding]

    if TYPE_CHECKING:

        def set_lr(self, lr: float) -> None: ...

    @property
    def _state(self) -> dict[str, Any]:
        """The tables' ``optm_state``, see ``as_dgl``."""
        return {name: as_dgl(table.optm_state) for name, table in self._tables.items()}

    @property
    def _lr(self) -> float:
        """The learning rate of all groups; assigning it is ``set_lr``."""
        return self._of_all("lr")

    @_lr.setter
    def _lr(self, lr: float) -> None:
        self.set_lr(lr)

    @property
    def _eps(self) -> float:
        """The eps of all groups, for reading."""
        return self._of_all("eps")

    def _of_all(self, name: str) -> float:
        values = {float(group[name]) for group in self.param_groups if name in group}
        if len(values) != 1:
            raise AttributeError(f"groups have {sorted(values) or 'no'} {name}: see param_groups")
        return values.pop()
