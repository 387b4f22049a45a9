"""Three small tables in FBGEMM's module, batches for them, and the same in plain loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.compat.fbgemm import (
    ComputeDevice,
    EmbeddingLocation,
    PoolingMode,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from tests.optim.oracles import Oracle

ROWS, TABLE_OF = (7, 5, 9), (0, 1, 2, 1)


def module(**options: Any) -> SplitTableBatchedEmbeddingBagsCodegen:
    """Three tables and four features, two of one table; widths differ where rows are pooled."""
    widths = options.pop("widths", (4, 4, 4) if options.get("pooling_mode") == PoolingMode.NONE else (4, 6, 3))
    places = options.pop("places", ("HOST",) * len(ROWS))
    specs = [
        (n, d, EmbeddingLocation[place], ComputeDevice.CPU) for n, d, place in zip(ROWS, widths, places, strict=True)
    ]
    options.setdefault("feature_table_map", list(TABLE_OF))
    tbe = SplitTableBatchedEmbeddingBagsCodegen(specs, **options)
    for k, weight in enumerate(tbe.split_embedding_weights()):
        values = np.random.default_rng(k).normal(size=(ROWS[k], widths[k]))
        shard = tbe.tables[k].shard
        weight.copy_(torch.from_numpy(values)[shard.first_id : shard.first_id + len(weight)])
    return tbe


def batch(
    step: int, bags: int = 3, late: bool = True, table_of: tuple[int, ...] = TABLE_OF
) -> tuple[Tensor, Tensor, Tensor]:
    """Bags of 0 to 4 ids of each feature, rows of the upper half from step 3 on; factors of the ids."""
    rng = np.random.default_rng(100 + step)
    sizes = rng.integers(0, 5, len(table_of) * bags)
    sizes[0] = 0
    ids = []
    for feature, table in enumerate(table_of):
        high = ROWS[table] if step >= 3 or not late else ROWS[table] // 2
        ids.append(rng.integers(0, high, sizes[feature * bags : (feature + 1) * bags].sum()))
    offsets = np.concatenate([[0], sizes.cumsum()])
    return (
        torch.from_numpy(np.concatenate(ids)),
        torch.from_numpy(offsets),
        torch.from_numpy(rng.normal(size=int(sizes.sum()))).float(),
    )


class Loops:
    """The module again: bag by bag, id by id, in float64."""

    def __init__(self, tbe: SplitTableBatchedEmbeddingBagsCodegen, mode: PoolingMode, oracle: Oracle) -> None:
        self.weights = [weight.double().numpy().copy() for weight in tbe.split_embedding_weights()]
        self.mode, self.oracle = mode, oracle
        self.memory: list[dict] = [{} for _ in self.weights]

    def bags(self, offsets: Tensor) -> Iterator[tuple[int, int, int, range]]:
        """(feature, table, bag, positions of its ids)."""
        per_feature = (len(offsets) - 1) // len(TABLE_OF)
        for k in range(len(offsets) - 1):
            feature = k // per_feature
            yield feature, TABLE_OF[feature], k % per_feature, range(int(offsets[k]), int(offsets[k + 1]))

    def forward(self, ids: Tensor, offsets: Tensor, factors: Tensor | None) -> np.ndarray:
        widths = [self.weights[t].shape[1] for t in TABLE_OF]
        starts = np.concatenate([[0], np.cumsum(widths)])
        pooled = self.mode != PoolingMode.NONE
        out = np.zeros(((len(offsets) - 1) // len(TABLE_OF), starts[-1]) if pooled else (len(ids), widths[0]))
        for feature, table, bag, places in self.bags(offsets):
            for i in places:
                row = self.weights[table][int(ids[i])] * (1.0 if factors is None else float(factors[i]))
                if pooled:
                    row = row / len(places) if self.mode == PoolingMode.MEAN else row
                    out[bag, starts[feature] : starts[feature + 1]] += row
                else:
                    out[i] = row
        return out

    def backward(self, ids: Tensor, offsets: Tensor, factors: Tensor | None, grad: np.ndarray) -> np.ndarray:
        """Update the tables; returns the gradient of the factors."""
        widths = [self.weights[t].shape[1] for t in TABLE_OF]
        starts = np.concatenate([[0], np.cumsum(widths)])
        touched: list[dict[int, list[np.ndarray]]] = [{} for _ in self.weights]
        of_factors = np.zeros(len(ids))
        for feature, table, bag, places in self.bags(offsets):
            for i in places:
                g = grad[i] if self.mode == PoolingMode.NONE else grad[bag, starts[feature] : starts[feature + 1]]
                g = g / len(places) if self.mode == PoolingMode.MEAN else g
                of_factors[i] = g @ self.weights[table][int(ids[i])]
                touched[table].setdefault(int(ids[i]), []).append(g * (1.0 if factors is None else float(factors[i])))
        for weight, memory, rows in zip(self.weights, self.memory, touched, strict=True):
            self.oracle(weight, memory, rows)
        return of_factors


def close(found: Any, expected: Any, tolerance: float = 2e-4) -> None:
    found = found.detach().double().numpy() if isinstance(found, Tensor) else found
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
