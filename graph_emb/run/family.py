"""Contract between a run and a family of models: read the data, train the tables, judge them.

``graph_emb.run.pipeline`` does the rest for all of them: configuration, run folder, clock, metrics, errors.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.config import RunConfig
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.run.evaluation import Finding
from graph_emb.run.parallel import Trainers

Log = Callable[[dict[str, Any]], None]
"""Takes a line of metrics.jsonl."""


@dataclass(frozen=True)
class Trained:
    """Rows and metrics of a finished training.

    Attributes:
        tables: Rows by table with their original ids; the first one is the model's main table. Empty on every rank
            but the first.
        interrupted: Whether Ctrl-C ended the training; what was trained is kept.
        metrics: The ``train`` section of metrics.json; ``parameters`` is among it.
        model: What the family needs besides rows to judge them.
    """

    tables: dict[str, Embeddings]
    interrupted: bool
    metrics: dict[str, Any]
    model: Any = field(default=None, repr=False)


class Family(Protocol):
    """Models that read the same kind of data and train in the same way. Made anew for each run.

    Args:
        config: The run's configuration.
    Attributes:
        config: The same with values filled in that follow from others; it is what the run folder keeps.
    """

    config: RunConfig

    def __init__(self, config: RunConfig) -> None: ...

    def load(self) -> Any:
        """Read the data; called on the first rank, before a folder is made. It has a ``name``.

        Raises:
            DataError: missing, damaged or empty data, or data of another kind.
            ConfigError: an option that means nothing to the data, or tables that the memory cannot hold.
        """
        ...

    def describe(self, dataset: Any) -> dict[str, Any]:
        """The ``dataset`` section of metrics.json: its name and counts."""
        ...

    def num_saved(self, dataset: Any) -> int:
        """Numbers in all rows that the run will save."""
        ...

    def train(
        self,
        dataset: Any,
        *,
        ranks: Trainers | None,
        log: Log,
        progress: bool,
        checkpoints: PeriodicCheckpoints | None,
    ) -> Trained:
        """Train. Every rank of a job calls it; ``dataset`` is None on all but the first.

        Args:
            dataset: What ``load`` gave.
            ranks: The trainers of a job; None: this process alone.
            log: Takes the lines of the history; called on the first rank only.
            progress: Show a bar on stderr.
            checkpoints: To be started with what is trained, and called after every step; None: none are wanted.
        """
        ...

    def judge(self, trained: Trained, dataset: Any, *, progress: bool) -> list[Finding]:
        """Evaluate as far as the data allows; called on the first rank after the rows were saved."""
        ...


FAMILIES = {
    "gnn": "graph_emb.run.families.gnn:GNNFamily",
    "kge": "graph_emb.run.families.kge:KGEFamily",
    "line": "graph_emb.run.families.line:LineFamily",
    "links": "graph_emb.run.families.links:LinkFamily",
    "metapath": "graph_emb.run.families.metapath:MetapathFamily",
    "walks": "graph_emb.run.families.walks:WalkFamily",
}
"""Where the class of each family is, by the ``family`` of a model's section."""


def family_of(config: RunConfig) -> Family:
    """The family that trains the configured model."""
    module, _, name = FAMILIES[config.model.family].partition(":")
    return getattr(importlib.import_module(module), name)(config)
