"""Input rows of a graph network: the features of a node type, or a learnable table where it has none."""

# N nodes and B asked nodes of a type, D width.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ShapeError, unknown_name
from graph_emb.embedding import DistEmbedding
from graph_emb.models.gnn.config import GNNConfig
from graph_emb.optimizer import OPTIMIZERS
from graph_emb.table.initializers import Normal, XavierUniform
from graph_emb.transport.process_group import ProcessGroup


class InputRows:
    """Source of a network's input rows, and sink of their gradients: features, or learnable tables.

    Args:
        num_nodes: N of each node type.
        config: Width, rule, learning rate and first rows of the tables.
        features: Shape (N, any width), floating, for some node types; the others get a table.
        policies: Partition policies of node types; see ``DistEmbedding``.
        prefix: A table is named by its node type with this before it; None: by a fresh number.
        seed: Of the initial values.
        device: Where the network runs; in local mode the tables lie there too.
    Attributes:
        tables: By node type; empty where all have features.
        widths: D of each node type's rows.
        optimizer: Of the tables; None where there are none.
    Raises:
        ConfigError: features or a policy of an unknown node type.
        ShapeError: features that are no matrix with a row for each node.
    """

    def __init__(
        self,
        num_nodes: Mapping[str, int],
        config: GNNConfig,
        *,
        features: Mapping[str, Any] | None = None,
        policies: Mapping[str, Any] | None = None,
        prefix: str | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        for kind, given in (("features", features), ("policies", policies)):
            for ntype in given or {}:
                if ntype not in num_nodes:
                    raise unknown_name(f"node type of {kind}", ntype, num_nodes)
        self._num_nodes, self._device = dict(num_nodes), torch.device(device)
        self.features = {t: _matrix(t, f, num_nodes[t]) for t, f in (features or {}).items()}
        seeds = np.random.SeedSequence(seed).generate_state(len(num_nodes)).tolist()
        self._policies, self._prefix, self._dim = dict(policies or {}), prefix, config.dim
        self.tables: dict[str, DistEmbedding] = {}
        for (ntype, num), own_seed in zip(num_nodes.items(), seeds, strict=True):
            if ntype not in self.features:
                first: Any = XavierUniform(num, seed=own_seed) if config.init == "xavier" else Normal(seed=own_seed)
                self.tables[ntype] = self._table(ntype, first)
        self.widths = {t: self.features[t].shape[1] if t in self.features else config.dim for t in num_nodes}
        self.optimizer = None
        if self.tables:
            tables = list(self.tables.values())
            self.optimizer = OPTIMIZERS[config.rule](tables, lr=config.first_lr, **config.numbers())

    def _table(self, ntype: str, first: Any, suffix: str = "") -> DistEmbedding:
        name = None if self._prefix is None else f"{self._prefix}{ntype}{suffix}"
        policy = self._policies.get(ntype)
        return DistEmbedding(self._num_nodes[ntype], self._dim, name, first, policy, device=self._device)

    def make_averages(self) -> dict[str, DistEmbedding]:
        """A table of zeros for each table, with the same partition; "_average" is appended to its name."""
        return {ntype: self._table(ntype, None, "_average") for ntype in self.tables}

    @property
    def num_parameters(self) -> int:
        """Elements of all tables."""
        return sum(table.num_embeddings * table.embedding_dim for table in self.tables.values())

    def gather(self, ids: Mapping[str, Tensor], tables: Mapping[str, DistEmbedding] | None = None) -> dict[str, Tensor]:
        """Rows of ids (B,) of every node type, shape (B, D); of learnable ones with their gradients recorded.

        Every table is asked, also for no rows: ranks in lockstep make the same calls.

        Args:
            ids: By node type.
            tables: To ask instead of the learnable ones.
        """
        tables, found = self.tables if tables is None else tables, {}
        for ntype in self._num_nodes:
            if ntype in tables:
                found[ntype] = tables[ntype](ids[ntype], device=self._device)
            else:
                found[ntype] = self.features[ntype].index_select(0, ids[ntype]).to(self._device)
        return found

    def step(self, clip_norm: float | None = None, group: ProcessGroup | None = None) -> None:
        """Apply the gradients of the rows gathered since the last step.

        Args:
            clip_norm: The gradients of a table are scaled down to this norm. Over several ranks it is the norm of
                their concatenation, which is at least that of their mean.
            group: The ranks.
        """
        if self.optimizer is None:
            return
        if clip_norm is not None:
            for table in self.tables.values():
                _clip(table, clip_norm, group)
        self.optimizer.step()


def _clip(table: DistEmbedding, clip_norm: float, group: ProcessGroup | None) -> None:
    grads = [grad for _, grad in table.pending()]
    squares = torch.tensor([sum(float(grad.square().sum()) for grad in grads)], dtype=torch.float64)
    if group is not None:
        squares = group.sum(squares, f"norm of the gradients of table {table.name!r}")
    norm = float(squares.sqrt())
    if norm > clip_norm:
        table.scale_gradients(clip_norm / norm)


def _matrix(ntype: str, features: Any, num_nodes: int) -> Tensor:
    matrix = features if isinstance(features, Tensor) else torch.from_numpy(np.ascontiguousarray(features))
    if matrix.dim() != 2 or len(matrix) != num_nodes or not matrix.is_floating_point():
        raise ShapeError(
            f"features of {ntype!r} have shape {tuple(matrix.shape)} and dtype {matrix.dtype}; "
            f"expected floating ({num_nodes}, width)"
        )
    return matrix.float()
