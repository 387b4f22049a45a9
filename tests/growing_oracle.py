"""A growing table told again: a dict of counts and steps beside a fixed table of the few ids that a program uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.graph.original_ids import ArrayIds
from graph_emb.table.growth import Eviction, Growth, SeenAtLeast

IDS = [-(2**63), -7, -1, 0, 1, 2, 3, 5, 64, 128, 4096, 10**12, 2**40, 2**40 + 1, 2**62, 2**63 - 1]
INIT = ge.initializers.Normal(seed=4)


def placed(policies: dict[str, Any], folder: Path | str) -> dict[str, Any]:
    """What a table takes beside its size: with a file of two pages in the folder where its rows are demoted."""
    here = {"placement": ge.File(folder, memory="10KiB")} if policies.get("on_evict") == "demote" else {}
    return {**policies, **here}


def times(rule: Eviction | SeenAtLeast | None, ids: list[int], id: int) -> int:
    """How often a step that touches an id uses it, as a rule counts."""
    return ids.count(id) if getattr(rule, "count", "steps") == "occurrences" else 1


class Oracle:
    """Ids with a row are those in ``uses``; others are rows of the fixed table that keep their first values."""

    def __init__(self, growth: Growth, dim: int, optimizer: tuple[str, dict[str, Any]], dtype: torch.dtype) -> None:
        self.growth, self.step = growth, 0
        self.place = {id: k for k, id in enumerate(IDS)}
        self.rows = ge.DistEmbedding(
            len(IDS), dim, "oracle", INIT, dtype=dtype, original_ids=ArrayIds(np.array(IDS), len(IDS))
        )
        name, numbers = optimizer
        self.optimizer = getattr(ge, name)([self.rows], **numbers)
        self.uses: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.waiting: dict[int, tuple[int, int]] = {}  # uses and last step of ids without a row

    def push(self, ids: list[int], grads: Tensor) -> list[int]:
        """A step; the ids that leave after it."""
        self.step += 1
        rule = self.growth.admission or SeenAtLeast(1)
        for id in sorted(set(ids)):
            if id not in self.uses:
                uses, last = self.waiting.get(id, (0, self.step))
                counted = times(rule, ids, id)
                uses = counted if self.step - last > rule.candidate_steps else uses + counted
                self.waiting[id] = uses, self.step
                if uses >= rule.uses:
                    self.make(id)
            if id in self.uses:
                self.uses[id], self.last[id] = self.uses[id] + times(self.growth.eviction, ids, id), self.step
        self.forget(rule)
        kept = [k for k, id in enumerate(ids) if id in self.uses]
        self.optimizer.update([self.place[ids[k]] for k in kept], grads[kept], self.rows)
        eviction = self.growth.eviction
        half = getattr(eviction, "half_life", None)
        if half and self.step % half == 0:
            self.uses = {id: uses // 2 for id, uses in self.uses.items()}
        return self.evict() if eviction and self.step % eviction.every == 0 else []

    def forget(self, rule: SeenAtLeast) -> None:
        """Candidates leave that are not used any more, and beyond a number those unused for longest."""
        if self.step % rule.candidate_steps == 0:
            old = self.step - rule.candidate_steps
            self.waiting = {id: told for id, told in self.waiting.items() if told[1] > old}
        if rule.max_candidates is not None and len(self.waiting) > rule.max_candidates:
            order = sorted((last, id) for id, (_, last) in self.waiting.items())
            for _, id in order[: len(order) - int(0.95 * rule.max_candidates)]:
                del self.waiting[id]

    def make(self, id: int) -> None:
        self.waiting.pop(id, None)
        self.uses[id], self.last[id] = 0, self.step

    def grow(self, ids: list[int]) -> None:
        for id in ids:
            if id not in self.uses:
                self.make(id)

    def evict(self) -> list[int]:
        rule = self.growth.eviction
        assert rule is not None
        order = sorted((self.score(rule, id), id) for id in self.uses)
        low = -1.0
        if isinstance(rule, ge.Unused):
            low = self.step - rule.steps
        elif isinstance(rule, ge.SmallNorm) and rule.threshold is not None:
            low = rule.threshold
        num = sum(score < low for score, _ in order)
        if rule.max_rows is not None and len(order) - num > rule.max_rows:
            num = len(order) - int((0.95 if rule.low_water is None else rule.low_water) * rule.max_rows)
        num = min(num, max(0, len(order) - rule.floor), rule.per_pass or num)
        gone = sorted(id for _, id in order[:num])
        self.rows.reset_rows([self.place[id] for id in gone])
        for id in gone:
            del self.uses[id], self.last[id]
        return gone

    def score(self, rule: Eviction, id: int) -> float:
        if isinstance(rule, ge.SmallNorm):
            # norm() rounds otherwise on some processors, and rows at a rule's max_norm differ by that rounding alone
            return float(self.rows.weight[[self.place[id]]].double().square().sum(dim=1).sqrt())
        return self.uses[id] if isinstance(rule, ge.LeastUsed) else self.last[id]

    def read(self, ids: list[int]) -> Tensor:
        return self.rows.weight[[self.place[id] for id in ids]]
