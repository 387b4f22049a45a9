"""Contract between a run and a family of models: read the data, train the tables, judge them.

``graph_emb.run.pipeline`` does the rest for all of them: configuration, run folder, clock, metrics, errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.config import RunConfig, config_from
from graph_emb.core.imports import resolve
from graph_emb.core.paths import user_path
from graph_emb.formats.embedding_files import Embeddings, align
from graph_emb.formats.network_files import KeptNetwork
from graph_emb.models.skipgram.config import GoesOn, PlainWalkConfig, SkipGramConfig, SkipGramTraining
from graph_emb.run.cost import WalkLoad
from graph_emb.run.evaluation import Finding
from graph_emb.run.inputs import absolute_paths
from graph_emb.run.parallel import Trainers

Log = Callable[[dict[str, Any]], None]
"""Takes a line of metrics.jsonl."""


@dataclass(frozen=True)
class TrainingJob:
    """How a training runs.

    Attributes:
        ranks: The trainers of a job; None: this process alone.
        log: Takes the lines of the history; those of ranks other than the first go nowhere.
        progress: Show a bar on stderr; False on all ranks but the first.
        checkpoints: To be started with what is trained, and called after every step; None: none are wanted.
    """

    ranks: Trainers | None = None
    log: Log = field(default=lambda line: None)
    progress: bool = False
    checkpoints: PeriodicCheckpoints | None = None

    def goes_on(self) -> bool:
        """Whether a checkpoint has the rows, at every rank, so that none need be made first. Every rank calls it."""
        found = self.checkpoints is not None and self.checkpoints.goes_on
        return found if self.ranks is None else all(self.ranks.group.gather_objects(found, "resume"))


@dataclass(frozen=True)
class Trained:
    """Rows and metrics of a finished training.

    Attributes:
        tables: Rows by table with their original ids; the first one is the model's main table. Empty on every rank
            but the first.
        interrupted: Whether Ctrl-C ended the training; what was trained is kept.
        metrics: The ``train`` section of metrics.json besides threads and memory; ``parameters`` is among it.
        model: What the family needs besides rows to judge them.
        network: To be kept with the rows; None: there is none, or the rows are all that it gives.
        files: Arrays that the run folder keeps beside the tables, by the names of their ``.npy`` files.
    """

    tables: dict[str, Embeddings]
    interrupted: bool
    metrics: dict[str, Any] = field(default_factory=dict)
    model: Any = field(default=None, repr=False)
    network: KeptNetwork | None = field(default=None, repr=False)
    files: dict[str, NDArray[Any]] = field(default_factory=dict, repr=False)


class Family(ABC):
    """Models that read the same kind of data and train in the same way. Made anew for each run.

    Args:
        config: The run's configuration.
    Attributes:
        config: The same with values filled in that follow from others, after ``train`` also from the data, and absolute
            paths; the run folder keeps it.
        model: Its model's settings.
        reads_whole: Whether ``load`` reads all data, also what a training leaves on the disk.
    """

    reads_whole = False

    def __init__(self, config: RunConfig) -> None:
        model = config.model
        later = isinstance(model, SkipGramConfig) and model.rate_follows_walks  # when the walks are known
        filled: dict[str, Any] = {} if later or "lr" in model.hidden else {"lr": model.first_lr}
        if isinstance(model, SkipGramTraining):
            filled["lr_decay"] = model.decay
        if isinstance(model, PlainWalkConfig) and model.warm_start is not None and not model.spectral_start:
            filled["warm_start"] = str(user_path(model.warm_start).absolute())
        if isinstance(model, GoesOn) and model.from_run is not None:
            filled["from_run"] = str(user_path(model.from_run).absolute())
        self.model: Any = model.model_copy(update=filled)
        self.config = config.model_copy(update={"model": self.model, "dataset": absolute_paths(config.dataset)})

    def take(self, config: RunConfig) -> None:
        """Go on with a configuration in which values are filled in."""
        self.config, self.model = config, config.model

    @abstractmethod
    def load(self) -> Any:
        """Read the data; called on the first rank, before a folder is made. It has a ``name``.

        Raises:
            DataError: missing, damaged or empty data, or data of another kind.
            ConfigError: an option that means nothing to the data, or tables that the memory cannot hold.
        """

    @abstractmethod
    def describe(self, dataset: Any) -> dict[str, Any]:
        """The ``dataset`` section of metrics.json: its name and counts."""

    def walk_loads(self, dataset: Any) -> list[WalkLoad]:
        """The trainings on walks, one after the other, by SGD in place; none of other models."""
        return []

    @abstractmethod
    def num_saved(self, dataset: Any) -> int:
        """Numbers in all rows that the run will save."""

    def num_kept(self, dataset: Any) -> int:
        """Numbers in the arrays that the run folder keeps besides (``Trained.files``)."""
        return 0

    @abstractmethod
    def train(self, dataset: Any, job: TrainingJob) -> Trained:
        """Train. Every rank of a job calls it; ``dataset`` is what ``load`` gave, None on all ranks but the first."""

    @abstractmethod
    def judge(self, trained: Trained, dataset: Any, *, progress: bool) -> list[Finding]:
        """Evaluate as far as the data allows; called on the first rank after the rows were saved."""

    @abstractmethod
    def ids(self, dataset: Any) -> dict[str, NDArray[Any]]:
        """By table the original ids (N,) in the order in which ``judge`` has its rows."""

    def aligned(self, tables: Mapping[str, Embeddings], dataset: Any) -> dict[str, Embeddings]:
        """Saved rows in the order of ``ids``."""
        return {name: Embeddings(align(tables[name], ids), ids) for name, ids in self.ids(dataset).items()}

    def judge_rows(
        self, tables: dict[str, Embeddings], dataset: Any, network: KeptNetwork | None = None, *, progress: bool
    ) -> list[Finding]:
        """Evaluate saved rows as ``judge`` does, and the network that was kept with them.

        Args:
            tables: Rows in the order of ``ids``.
            network: None: the family keeps none, or an earlier version did not.
        """
        return self.judge(Trained(tables, False), dataset, progress=progress)


FAMILIES = {
    "gnn": "graph_emb.run.families.gnn:GNNFamily",
    "kge": "graph_emb.run.families.kge:KGEFamily",
    "line": "graph_emb.run.families.plain:LineFamily",
    "links": "graph_emb.run.families.links:LinkFamily",
    "spectral": "graph_emb.run.families.spectral:SpectralFamily",
    "metapath": "graph_emb.run.families.metapath:MetapathFamily",
    "walks": "graph_emb.run.families.plain:WalkFamily",
}
"""Where the class of each family is, by the ``family`` of a model's section."""


def read_again(config: RunConfig, *layers: Mapping[str, Any]) -> Family:
    """The family of a finished run, which reads the whole data in this process, whoever trained it.

    Args:
        layers: Fields that go before the run's.
    """
    sections = {name: section for name, section in config.sections().items() if name != "parallel"}
    family = family_of(config_from(sections, *layers))
    family.reads_whole = True
    return family


def family_of(config: RunConfig) -> Family:
    """The family that trains the configured model."""
    family: Family = resolve(FAMILIES[config.model.family])(config)
    return family
