"""Dense references of the scorers, written from the papers' formulas number by number, and a tiny knowledge graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from graph_emb.graph.original_ids import ArrayIds
from graph_emb.graph.partition_book import RangeBook
from graph_emb.graph.triples import KnowledgeGraph
from partition.partitioned import PartPolicy

MARGIN = 4.0


def transe_l1(h: Tensor, r: Tensor, t: Tensor) -> float:
    return -sum(abs(float(a + b - c)) for a, b, c in zip(h, r, t, strict=True))


def transe_l2(h: Tensor, r: Tensor, t: Tensor) -> float:
    return -(sum(float(a + b - c) ** 2 for a, b, c in zip(h, r, t, strict=True)) ** 0.5)


def distmult(h: Tensor, r: Tensor, t: Tensor) -> float:
    return sum(float(a * b * c) for a, b, c in zip(h, r, t, strict=True))


def as_complex(row: Tensor) -> list[complex]:
    half = len(row) // 2
    return [complex(float(row[m]), float(row[half + m])) for m in range(half)]


def complex_(h: Tensor, r: Tensor, t: Tensor) -> float:
    rows = zip(as_complex(h), as_complex(r), as_complex(t), strict=True)
    return sum((a * b * c.conjugate()).real for a, b, c in rows)


def rotate(h: Tensor, r: Tensor, t: Tensor) -> float:
    bound = (MARGIN + 2) / len(r)
    turned = [a * np.exp(1j * np.pi * float(p) / bound) for a, p in zip(as_complex(h), r, strict=True)]
    return -sum(abs(a - c) for a, c in zip(turned, as_complex(t), strict=True))


def simple(h: Tensor, r: Tensor, t: Tensor) -> float:
    half = len(h) // 2
    forward = sum(float(h[m] * r[m] * t[half + m]) for m in range(half))
    backward = sum(float(t[m] * r[half + m] * h[half + m]) for m in range(half))
    return (forward + backward) / 2


REFERENCES: dict[str, Callable[[Tensor, Tensor, Tensor], float]] = {
    "transe_l1": transe_l1,
    "transe_l2": transe_l2,
    "distmult": distmult,
    "complex": complex_,
    "rotate": rotate,
    "simple": simple,
}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def ring(num_entities: int = 12) -> KnowledgeGraph:
    """Relation 0 goes one step round a ring, relation 1 two; every fourth step of relation 0 is held out."""
    steps = [(e, r, (e + r + 1) % num_entities) for e in range(num_entities) for r in (0, 1)]
    valid = [t for t in steps if t[1] == 0 and t[0] % 4 == 0]
    train = [t for t in steps if t not in valid]
    return KnowledgeGraph("ring", num_entities, 2, {"train": np.array(train), "valid": np.array(valid)})


def two_rings() -> tuple[KnowledgeGraph, PartPolicy]:
    """The even entities and the odd ones, two rings without a triple between them, and a policy of both as parts."""
    train = np.array([(e, r, (e + 2 * (r + 1)) % 24) for e in range(24) for r in (0, 1)])
    order = np.concatenate([np.arange(0, 24, 2), np.arange(1, 24, 2)])
    return KnowledgeGraph("rings", 24, 2, {"train": train}), PartPolicy(
        "node~_N", RangeBook([0, 12, 24]), ArrayIds(order, 24)
    )
