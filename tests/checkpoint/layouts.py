"""One training at any number of parts, ranks and in any mode: the same numbers by original id, bit for bit.

Ranks share a step's batch by original id, so that no row is pushed by two trainers in one step: then kvstore mode too
gives the numbers of one process (law 2). Parts hold random ids, other ones for each layout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.graph.original_ids import ArrayIds
from graph_emb.graph.partition_book import RangeBook
from graph_emb.transport import runtime
from partition.partitioned import PartPolicy

NUM, DIM, BEFORE, AFTER = 37, 3, 5, 10


class Layout(NamedTuple):
    """A mode with its numbers of parts and ranks."""

    mode: str
    parts: int
    ranks: int

    @property
    def name(self) -> str:
        """For folders and ids of tests."""
        return f"{self.mode}-{self.parts}-{self.ranks}"


EVERY = [Layout("local", parts, 1) for parts in (1, 2, 3, 4)] + [
    Layout(mode, parts, ranks) for mode in ("collective", "kvstore") for parts in (1, 2, 3, 4) for ranks in (1, 2, 4)
]


def policy(layout: Layout) -> PartPolicy:
    """Parts of uneven sizes with random ids."""
    rng = np.random.default_rng([layout.parts, layout.ranks, len(layout.mode)])
    cuts = sorted(rng.choice(np.arange(1, NUM), layout.parts - 1, replace=False).tolist())
    return PartPolicy("node~_N", RangeBook([0, *cuts, NUM]), ArrayIds(rng.permutation(NUM), NUM))


class Training:
    """Two tables, their optimizers and a schedule, and steps that depend on original ids alone."""

    def __init__(self, layout: Layout) -> None:
        self.policy = policy(layout)
        common: dict[str, Any] = {"part_policy": self.policy, "dtype": torch.float64}
        self.tables = [
            ge.DistEmbedding(NUM, DIM, name="first", init_func=ge.initializers.Uniform(seed=3), **common),
            ge.DistEmbedding(NUM, 1, name="second", init_func=ge.initializers.Normal(seed=4), **common),
        ]
        self.optimizers = [
            ge.SparseAdam([self.tables[0]], lr=0.1),
            ge.SparseRowAdagrad([self.tables[1]], lr=0.1),
        ]
        self.schedulers = [torch.optim.lr_scheduler.MultiStepLR(self.optimizers[0], [3, 8])]
        self.transport = runtime.current()

    def run(self, first: int, num_steps: int) -> None:
        """Steps from a number on."""
        rank, ranks = self.transport.rank, self.transport.world_size
        for step in range(first, first + num_steps):
            original = np.random.default_rng(step).integers(0, NUM, 40)
            original = original[original % ranks == rank]
            ids = torch.from_numpy(self.policy.original_ids.find(original))  # type: ignore[union-attr]
            factor = torch.from_numpy(original + step + 1.0).unsqueeze(1) / NUM
            for table, optimizer in zip(self.tables, self.optimizers, strict=True):
                (table(ids).pow(2) * factor).sum().backward()
                optimizer.step()
            self.schedulers[0].step()
        self.transport.flush()
        self.transport.barrier()

    def save(self, path: Path, step: int, **options: Any) -> Any:
        """A checkpoint of everything."""
        return ge.save_checkpoint(path, **self._all(), step=step, extra={"step": step}, **options)

    def load(self, path: Path, **options: Any) -> Any:
        """Restore everything."""
        return ge.load_checkpoint(path, **self._all(), **options)

    def _all(self) -> dict[str, Any]:
        return {"tables": self.tables, "optimizers": self.optimizers, "schedulers": self.schedulers}

    def rows(self) -> dict[str, Tensor]:
        """Everything that this process can read, by original id; -1 marks the rows of others' state."""
        found: dict[str, Tensor] = {"lr": torch.tensor(self.optimizers[0].param_groups[0]["lr"])}
        for table in self.tables:
            places = torch.from_numpy(table.original_ids.find(np.arange(NUM)))
            found[table.name] = table.weight[:][places]
            for rows in self.transport.rows(table.name):
                for name, spec in table.shard.state_specs.items():
                    if spec.kind == "table":
                        found[f"{table.name} {name}"] = table.shard.state[name].clone()
                        continue
                    own = rows.read(name, 0, rows.num_rows)
                    key = f"{table.name} {name}"
                    whole = found.setdefault(key, torch.full((NUM, *own.shape[1:]), -1.0, dtype=own.dtype))
                    original = table.original_ids.of(rows.first_id, rows.first_id + rows.num_rows)
                    whole[torch.from_numpy(original)] = own
        return found


def differs(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    """Names of what is not equal, bit for bit; rows of other processes are left out."""
    wrong = []
    for name, values in expected.items():
        mine = found[name]
        here = mine != -1.0 if " exp" in name or " sum" in name else torch.ones_like(mine, dtype=torch.bool)
        if mine.shape != values.shape or not torch.equal(mine[here], values[here]):
            wrong.append(name)
    return wrong


Reference = dict[int, dict[str, Tensor]]


def reference() -> Reference:
    """The uninterrupted run of one process, after each number of steps that a test looks at."""
    ge.shutdown()
    try:
        training = Training(Layout("local", 1, 1))
        found = {0: training.rows()}
        training.run(0, BEFORE)
        found[BEFORE] = training.rows()
        training.run(BEFORE, AFTER)
        found[BEFORE + AFTER] = training.rows()
        return found
    finally:
        ge.shutdown()


def save_at(layout: Layout, folder: Path, expected: Reference) -> list[str]:
    """Train, save; what is not as in the uninterrupted run. Runs on every rank."""
    training = Training(layout)
    wrong = [f"first values: {name}" for name in differs(training.rows(), expected[0])]
    training.transport.barrier()
    training.run(0, BEFORE)
    training.save(folder / layout.name, BEFORE)
    return wrong + [f"before the save: {name}" for name in differs(training.rows(), expected[BEFORE])]


def load_at(layout: Layout, saved: list[Path], expected: Reference) -> list[str]:
    """Load each checkpoint, compare, go on, compare. Runs on every rank."""
    training = Training(layout)
    wrong = []
    for path in saved:
        loaded = training.load(path)
        found = [] if (loaded.step, loaded.extra) == (BEFORE, {"step": BEFORE}) else [f"{loaded.step}, {loaded.extra}"]
        wrong += [f"{path.name} at {layout.name}: {one}" for one in found + went_on(training, expected)]
    return wrong


def went_on(training: Training, expected: Reference) -> list[str]:
    """The rows that are not the uninterrupted run's, as they were loaded and after more steps. Runs on every rank."""
    found = [f"loaded: {name}" for name in differs(training.rows(), expected[BEFORE])]
    training.transport.barrier()
    training.run(BEFORE, AFTER)
    found += [f"went on: {name}" for name in differs(training.rows(), expected[BEFORE + AFTER])]
    training.transport.barrier()
    return found


def save_state_at(layout: Layout, folder: Path, expected: Reference) -> list[str]:
    """Train, save the optimizers alone, each to files of its ranks. Runs on every rank."""
    training = Training(layout)
    training.run(0, BEFORE)
    for k, optimizer in enumerate(training.optimizers):
        optimizer.save(folder / f"{layout.name}-{k}")
    return []


def load_state_at(layout: Layout, saved: list[Path], expected: Reference) -> list[str]:
    """Load the optimizers of each layout beside the rows of the uninterrupted run, compare, go on, compare."""
    training, wrong = Training(layout), []
    for path in saved:
        for table in training.tables:
            table.weight[torch.from_numpy(table.original_ids.find(np.arange(NUM)))] = expected[BEFORE][table.name]
        for k, optimizer in enumerate(training.optimizers):
            optimizer.load(path.with_name(f"{path.name}-{k}"))
        training.schedulers[0].last_epoch = BEFORE
        wrong += [f"{path.name} at {layout.name}: {one}" for one in went_on(training, expected)]
    return wrong


def as_collective(function: str, layout: Layout, *args: Any) -> list[str]:
    """One of both in a rank's process."""
    ge.init("collective", timeout=60.0)
    try:
        found: list[str] = globals()[function](layout, *args)
        return found
    finally:
        ge.shutdown()


def as_trainer(transport: Any, function: str, layout: Layout, *args: Any) -> list[str]:
    """One of both in a trainer of kvstore mode."""
    found: list[str] = globals()[function](layout, *args)
    return found


def everywhere(function: str, layout: Layout, *args: Any, ranks: Any) -> list[str]:
    """Run ``save_at`` or ``load_at`` in the layout's mode; the differences that any process found."""
    from tests.transport.kvstore.cluster import Cluster, shared_memory_is_clean

    ge.shutdown()
    if layout.mode == "local":
        found = [globals()[function](layout, *args)]
        ge.shutdown()
    elif layout.mode == "collective":
        found = ranks.run(as_collective, layout.ranks, function, layout, *args)
    else:
        with shared_memory_is_clean():
            found = Cluster(layout.ranks, layout.parts, 1).run(as_trainer, function, layout, *args)
    return [one for process in found for one in process]
