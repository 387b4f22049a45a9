"""The rows of a table that one process stores, with the optimizer state beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from graph_emb.core.errors import ModeError
from graph_emb.table import memory
from graph_emb.table.gather import gather
from graph_emb.table.spec import StateSpec, TableSpec, accumulation_dtype


class EmbeddingShard:
    """Weight rows [first_id, first_id + num_rows) of a table and named state for the same rows.

    Args:
        spec: The table.
        first_id: The id of row 0.
        num_rows: Rows stored here.
        weight: Memory for them that others see too, shape (num_rows, D); None takes own memory.

    Attributes:
        weight: Shape (num_rows, D), the table's dtype.
        state: Name to tensor: (num_rows, D) per element, (num_rows,) per row, (1,) per table.
        frozen: Which rows no optimizer may change, (num_rows,) bool; None: none, and no update looks for them.
    """

    frozen: Tensor | None = None

    def __init__(self, spec: TableSpec, first_id: int, num_rows: int, weight: Tensor | None = None) -> None:
        self.spec = spec
        self.first_id = first_id
        shape = (num_rows, spec.dim)
        self.weight = memory.empty(shape, spec.dtype, spec.device, spec.name) if weight is None else weight
        spec.fill_(self.weight, first_id)
        self.state_specs: dict[str, StateSpec] = {}
        self.state: dict[str, Tensor] = {}

    @property
    def num_rows(self) -> int:
        """Rows stored here."""
        return self.weight.shape[0]

    def read(self, rows: Tensor) -> Tensor:
        """A copy of rows, shape (B, D), in the order asked, repeats kept."""
        return gather(self.weight, rows)

    def read_into(self, rows: Tensor, out: Tensor) -> None:
        """``read`` into memory that the caller holds, shape (B, D), contiguous, of the table's dtype."""
        gather(self.weight, rows.to(self.weight.device), out)

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Overwrite distinct rows with values, shape (B, D)."""
        self.weight.index_copy_(0, rows, values.to(self.weight.dtype))

    def freeze(self, rows: Tensor, frozen: bool = True) -> None:
        """Keep rows, and their state, from every update; ``frozen=False`` gives them back."""
        if self.frozen is None:
            self.frozen = torch.zeros(self.num_rows, dtype=torch.bool, device=self.weight.device)
        self.frozen[rows.to(self.frozen.device)] = frozen

    def without_frozen(self, rows: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
        """The rows that may change, with their gradients."""
        if self.frozen is None or not len(rows):
            return rows, grads
        free = ~self.frozen[rows.to(self.frozen.device)]
        return rows[free.to(rows.device)], grads[free.to(grads.device)]

    def allocate_state(self, specs: Iterable[StateSpec]) -> None:
        """Allocate the state of a rule, each entry at its initial value.

        Raises:
            ModeError: state of another rule is here already.
        """
        if self.state:
            raise ModeError(f"table {self.spec.name!r} holds state {sorted(self.state)} already; free it first")
        wanted = {spec.name: spec for spec in specs}
        shapes = {"element": tuple(self.weight.shape), "row": (self.num_rows,), "table": (1,)}
        fresh: dict[str, Tensor] = {}
        for name, spec in wanted.items():
            dtype = spec.dtype or accumulation_dtype(self.weight.dtype)
            fresh[name] = memory.empty(shapes[spec.kind], dtype, self.spec.device, f"{self.spec.name}.{name}")
            fresh[name].fill_(spec.initial)
        self.state, self.state_specs = fresh, wanted

    def free_state(self) -> None:
        """Drop all optimizer state."""
        self.state, self.state_specs = {}, {}

    def read_state(self, rows: Tensor) -> dict[str, Tensor]:
        """Copies of the state of rows; a per-table entry comes whole, shape (1,)."""
        return {
            name: tensor.clone() if self.state_specs[name].kind == "table" else tensor.index_select(0, rows)
            for name, tensor in self.state.items()
        }

    def write_state(self, rows: Tensor, values: Mapping[str, Tensor]) -> None:
        """Overwrite the state of distinct rows."""
        for name, value in values.items():
            target = self.state[name]
            if self.state_specs[name].kind == "table":
                target.copy_(value)
            else:
                target.index_copy_(0, rows, value.to(target.dtype))

    def num_bytes(self) -> int:
        """Bytes of weight and state."""
        tensors = [self.weight, *self.state.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
