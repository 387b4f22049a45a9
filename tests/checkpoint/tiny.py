"""A training small enough to save and load hundreds of times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.graph.original_ids import ArrayIds
from graph_emb.graph.partition_book import RangeBook
from partition.partitioned import PartPolicy

NUM, DIM = 23, 3


class Tiny:
    """Two tables under one optimizer each, a model with its own, a schedule, generators.

    Args:
        seed: Of everything that is random; another seed makes other numbers everywhere.
        num: Rows of the table ``node``, whose parts hold permuted ids.
        dim, rule: Of the same table.
    """

    def __init__(self, seed: int = 0, num: int = NUM, dim: int = DIM, rule: Any = ge.SparseAdam) -> None:
        ge.shutdown()
        rng = np.random.default_rng(7)
        first_ids = rng.permutation(NUM)
        ids = np.concatenate([first_ids, np.arange(NUM, num)])[:num]
        policy = PartPolicy("node~_N", RangeBook([0, min(9, num), num]), ArrayIds(ids, num))
        first = ge.initializers.Uniform(seed=seed)
        self.node = ge.DistEmbedding(num, dim, "node", first, policy)
        self.word = ge.DistEmbedding(5, 2, "word", first)
        self.rule = rule([self.node], lr=0.1)
        self.plain = ge.SparseSGD([self.word], lr=0.5)
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(dim, 2)
        self.dense = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.rule, [2, 4])
        self.generators = {"torch": torch.Generator().manual_seed(seed), "numpy": np.random.default_rng(seed)}

    def all(self) -> dict[str, Any]:
        """Every argument that save and load share."""
        return {
            "tables": [self.node, self.word],
            "optimizers": [self.rule, self.plain],
            "model": self.model,
            "torch_optimizers": [self.dense],
            "schedulers": [self.schedule],
            "generators": self.generators,
        }

    def run(self, steps: int) -> None:
        """Steps whose ids and factors come from the generators."""
        for _ in range(steps):
            ids = torch.randint(0, 10, (8,), generator=self.generators["torch"])
            factor = float(self.generators["numpy"].random())
            (self.model(self.node(ids)).pow(2).sum() * factor + self.word(ids % 5).pow(2).sum()).backward()
            for one in (self.rule, self.plain, self.dense):
                one.step()
            self.dense.zero_grad()
            self.schedule.step()

    def save(self, path: Path, **options: Any) -> Any:
        """A checkpoint of everything."""
        return ge.save_checkpoint(path, **{**self.all(), **options})

    def load(self, path: Path, **options: Any) -> Any:
        """Restore everything."""
        return ge.load_checkpoint(path, **{**self.all(), **options})

    def look(self) -> dict[str, Tensor]:
        """Copies of all numbers."""
        found = {"lr": torch.tensor(self.rule.param_groups[0]["lr"]), "epoch": torch.tensor(self.schedule.last_epoch)}
        for table in (self.node, self.word):
            found[table.name] = table.weight[:]
            found.update({f"{table.name} {name}": value.clone() for name, value in table.shard.state.items()})
        found.update({f"model {name}": value.clone() for name, value in self.model.state_dict().items()})
        found["torch"] = self.generators["torch"].get_state()
        found["numpy"] = torch.tensor(self.generators["numpy"].bit_generator.state["state"]["state"] % 2**62)
        for k, state in self.dense.state_dict()["state"].items():
            found.update({f"dense {k} {name}": value.clone() for name, value in state.items()})
        return found


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether all numbers are equal, bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
