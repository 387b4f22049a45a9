"""``dgl.nn.NodeEmbedding``'s constructor and whole-table calls on a table of ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, ShapeError
from graph_emb.embedding import DistEmbedding
from graph_emb.table.growth import Growth


class NodeEmbedding(DistEmbedding):
    """A ``DistEmbedding`` with the arguments of ``dgl.nn.NodeEmbedding``.

    Rows lie with the ranks of the process group, where DGL keeps one whole table in shared memory.

    Args:
        num_embeddings: Rows N of the whole table.
        embedding_dim: Width D of a row.
        name: Of the table.
        init_func: ``f(tensor)``, which fills the rows of each process, or any other of ``DistEmbedding``.
        device: Where the rows lie; None: the CPU.
        partition: DGL's split over GPUs: refused, because the table's policy says where a row lies.
    Raises:
        ConfigError: a partition, ``ge.growing(...)``, or as ``DistEmbedding``.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        name: str,
        init_func: Any = None,
        device: torch.device | str | None = None,
        partition: Any = None,
    ) -> None:
        if isinstance(num_embeddings, Growth):
            raise ConfigError(
                f"table {name!r}: a NodeEmbedding has a fixed number of rows; ge.DistEmbedding takes ge.growing(...)"
            )
        if partition is not None:
            raise ConfigError(
                f"table {name!r}: partition={partition!r} is DGL's split over GPUs; give "
                "graph_emb.DistEmbedding(..., part_policy=...) a policy instead"
            )
        super().__init__(num_embeddings, embedding_dim, name, init_func, device=device)

    @property
    def rank(self) -> int:
        """This process."""
        return int(self.transport.rank)

    @property
    def world_size(self) -> int:
        """Processes that share the table."""
        return int(self.transport.world_size)

    def all_set_embedding(self, values: Tensor) -> None:
        """Overwrite the whole table, (N, D); every process calls it with the same values.

        Raises:
            ShapeError: another shape; no row has changed then.
        """
        if tuple(values.shape) != (wanted := self.weight.shape):
            raise ShapeError(f"table {self.name!r}: values have shape {tuple(values.shape)}; expected {wanted}")
        mine = torch.arange(self.rank, self.num_embeddings, self.world_size)
        self.weight[mine] = values[mine.to(values.device)]
        self.transport.barrier()

    def all_get_embedding(self) -> Tensor:
        """A copy of the whole table on the CPU, (N, D); every process calls it."""
        self.transport.barrier()
        rows = self.weight[:].cpu()
        self.transport.barrier()
        return rows
