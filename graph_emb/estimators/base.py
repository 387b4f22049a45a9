"""What all estimators share: settings as parameters, training by a run, rows by name, run folders."""

# N nodes, D width, Q asked nodes.

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from inspect import Parameter, Signature, cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from typing_extensions import Self

from graph_emb.config import MODELS, RunConfig, config_text
from graph_emb.core.errors import ConfigError, DataError, LackingError, ModeError, ShapeError, unknown_name
from graph_emb.core.notebook import card
from graph_emb.estimators.parameters import Transformer
from graph_emb.evaluate.nearest import NearestNeighbors
from graph_emb.formats.embedding_files import Embeddings, align, places_of
from graph_emb.formats.network_files import KeptNetwork, load_network
from graph_emb.graph.csr import Graph
from graph_emb.graph.readers import read_graph
from graph_emb.graph.readers.source import is_frame, is_networkx
from graph_emb.graph.typed import HeteroGraph
from graph_emb.models.settings import ModelSettings, paths_of
from graph_emb.run.family import read_again
from graph_emb.run.pipeline import PipelineResult, is_section, pipeline, save_tables
from graph_emb.run.run_folder import CONFIG, RunFolder, read_run
from graph_emb.run.scores import scores_of

OF_RUNS = ("seed", "train.threads", "train.device", "output.context")
"""Fields of a run, by path, that change rows and are no settings of a model."""
_NO_NUMBERS = "mMV"
"""Kinds of numpy's types, times and records, that scikit-learn's checks fall over and readers refuse."""


class GraphEstimator(Transformer, ABC):
    """A model that gives each node of a graph a row of numbers; ``of`` makes the class of a model.

    Settings are keyword arguments and are checked by ``fit``. In a process of a job (torchrun, ``graph-emb launch``)
    all processes fit one model together; the first one has the rows, in the others ``embedding_`` is None.

    Attributes:
        embedding_: Rows of the main table, shape (N, D), float32, in the order in which the graph has its nodes.
        ids_: Their names, shape (N,), integers or strings; other nodes of networkx as Python writes them.
        tables_: Rows and names of every table by its name: node types, or entities and relations; the main one first.
        metrics_: What metrics.json of a run holds.
    """

    model: ClassVar[str]
    paths: ClassVar[dict[str, str]]
    """Of each parameter the path in a run's configuration."""
    evaluates: ClassVar[bool] = False
    """Whether a training's own evaluation is wanted."""

    if TYPE_CHECKING:  # ``of`` makes it from the settings

        def __init__(self, **settings: Any) -> None: ...

    @classmethod
    def of(cls, name: str, model: str) -> type[Self]:
        """The class of a model, with its settings as parameters; it is found, also by pickle, in the package."""
        settings = MODELS[model]
        paths = {field: path for field, path in paths_of(settings).items() if field != "name"}
        paths |= {path.rpartition(".")[2]: path for path in OF_RUNS if path not in settings.without}
        fields = {field: _field(settings, field, path) for field, path in paths.items()}
        made = type(name, (cls,), {"model": model, "paths": paths, "__module__": __package__})
        made.__init__ = _constructor({field: known.default for field, known in fields.items()})  # type: ignore[misc]
        lines = [f"    {field}: {known.description}; default {known.default!r}" for field, known in fields.items()]
        pieces = (settings.__doc__ or name, "\n".join(["Parameters, by keyword:", *lines]), cls.__doc__ or "")
        made.__doc__ = "\n\n".join(map(cleandoc, pieces))
        return made

    def _repr_html_(self) -> str:
        """Parameters that are no defaults and, of a fitted one, sizes and scores; scikit-learn's own takes 46 KB."""
        facts: dict[str, Any] = self._changed()
        if "config_" not in self.__dict__:
            return card(f"{type(self).__name__}, not fitted", facts)
        for name, table in self.tables_.items():
            facts[f"rows of {name}"] = "{:,} x {}".format(*table.weights.shape)
        scores = scores_of(self.metrics_.get("evaluation", {}))
        return card(type(self).__name__, {**facts, **{name: f"{value:.4f}" for name, value in scores.items()}})

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    @abstractmethod
    def score(self, X: Any = None, y: Any = None) -> float:
        """A number that is higher for better rows."""

    def fit(self, graph: Any, y: Any = None) -> Self:
        """Train on a graph.

        Args:
            graph: A graph of networkx, DGL or this library, a scipy or numpy matrix of weights, a data frame of edges,
                a data set, an opened partition, or the path or name of what ``ge.load_dataset`` reads.
            y: Not read; a scikit-learn pipeline passes it to every step.
        Raises:
            ConfigError: a setting outside its limits, or without effect.
            DataError: a graph that is damaged, empty, or not of the kind that the model takes.
        """
        if graph is None:
            raise ConfigError(
                f"{type(self).__name__}.fit got no graph; give one in memory, a path or a data set's name"
            )
        if is_section(graph):
            raise ConfigError(
                f"{type(self).__name__}.fit got a {type(graph).__name__}, which is no graph; give one in memory, "
                "such as networkx.Graph(neighbours_by_node), a path or a data set's name"
            )
        graph = self._checked_array(graph, reset=True)
        result = self._run(self._data_of(graph, y))
        tables = dict(result.tables)
        if tables and is_networkx(graph):
            main, names = next(iter(tables)), as_names(graph)
            tables[main] = Embeddings(align(tables[main], names), names)
        self._keep(result.config, result.metrics, tables, result.network, result.dataset)
        return self

    def _data_of(self, graph: Any, y: Any) -> Any:
        """What a run is given for the arguments of ``fit``."""
        return graph

    def fit_transform(self, graph: Any, y: Any = None) -> NDArray[np.float32]:
        """``fit``, then the rows of all nodes, shape (N, D), in the order of ``ids_``."""
        self.fit(graph, y)
        return self._main().weights

    def transform(self, X: Any, table: str | None = None) -> NDArray[np.float32]:
        """Rows of nodes, shape (Q, D).

        Args:
            X: Ids of nodes, shape (Q,); or a graph in memory, whose nodes are meant, in its order.
            table: Name of one of ``tables_``; None: the main one.
        Raises:
            DataError: a node that the graph did not have.
        """
        found = self._main(table)
        if isinstance(X, str | os.PathLike):
            raise ConfigError(f"transform takes ids, such as [{os.fspath(X)!r}], or a graph in memory; not a path")
        if is_graph(X):
            X = nodes_of(self._checked_array(X, reset=False))
        return align(found, as_names(X))

    def nearest(self, id: Any, k: int = 10, table: str | None = None) -> list[tuple[Any, float]]:
        """The k nodes of highest cosine with a node, and the cosines, highest first.

        Raises:
            DataError: a node that the graph did not have.
            ConfigError: k outside [1, N - 1].
        """
        found = self._main(table)
        places = places_of(found, as_names([id]))
        own = np.zeros(1, np.int64) if places is None else places  # None: the table has this row alone
        near = NearestNeighbors(found.weights, found.node_ids).nearest_rows(own, k)
        return list(zip(near.ids[0].tolist(), near.scores[0].tolist(), strict=True))

    def most_similar(
        self, positive: Any, negative: Any = (), k: int = 10, table: str | None = None
    ) -> list[tuple[Any, float]]:
        """The k nodes of highest cosine with the mean direction of some nodes, less that of others.

        Args:
            positive, negative: Ids of nodes, or one id; they are not among the answers.
        Returns:
            Nodes and cosines, highest first.
        Raises:
            DataError: a node that the graph did not have.
            ConfigError: no positive node, or k outside [1, N - number of nodes given].
        """
        found, sides = self._main(table), [as_names(_listed(side)) for side in (positive, negative)]
        if not len(sides[0]):
            raise ConfigError("most_similar needs a positive node; give its id")
        units = []
        for side in (side for side in sides if len(side)):
            rows = align(found, side)
            units.append((rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)).sum(axis=0))
        given = {str(id) for side in sides for id in side.tolist()}
        most = len(found.node_ids) - len(given)
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= most:
            raise ConfigError(f"k={k} nodes besides the {len(given)} given: give one in [1, {most}]")
        asked = units[0] if len(units) == 1 else units[0] - units[1]
        near = NearestNeighbors(found.weights, found.node_ids).search(asked[None], k + len(given))
        pairs = zip(near.ids[0].tolist(), near.scores[0].tolist(), strict=True)
        return [pair for pair in pairs if str(pair[0]) not in given][:k]

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write a run folder, which ``load``, ``ge.load_run`` and the commands of ``graph-emb`` read.

        Args:
            overwrite: Replace a run that is there.
        Raises:
            ConfigError: the place is taken.
            OSError: it cannot be written; nothing is left.
        """
        self._main()
        with RunFolder(folder, overwrite=overwrite) as run:
            run.write_text(CONFIG, config_text(self.config_))
            save_tables(self.tables_, run.path, self.config_.output.formats, self._network)
            return run.publish_run(self.metrics_)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The fitted estimator of a run folder of this model.

        Raises:
            ConfigError: the folder is no run, or one of another model.
            DataError: its files are damaged.
        """
        config, metrics, tables = read_run(folder)
        if config.model.name != cls.model:
            raise ConfigError(f"{folder}: is a run of {config.model.name}, not of {cls.model}; take ge.load_run")
        return cls.of_run(config, metrics, tables, load_network(folder))

    @classmethod
    def of_run(
        cls,
        config: RunConfig,
        metrics: dict[str, Any],
        tables: dict[str, Embeddings],
        network: KeptNetwork | None = None,
    ) -> Self:
        """A fitted estimator with the settings, metrics, tables and network of a run."""
        made = cls(**{field: _value(config, field, path) for field, path in cls.paths.items()})
        made._keep(config, metrics, tables, network, None)
        return made

    def _run(self, data: Any) -> PipelineResult:
        """Train with the settings that differ from their defaults."""
        defaults = {name: known.default for name, known in type(self)._parameters().items()}
        given = {name: value for name, value in self.get_params(deep=False).items() if value is not defaults[name]}
        given = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
        fields = {self.paths[name]: value for name, value in given.items()}
        settings = MODELS[self.model]
        try:
            settings(**{name: value for name, value in given.items() if name in settings.model_fields})
            return pipeline(self.model, data, evaluate=self.evaluates, **fields)
        except ConfigError as error:
            raise ConfigError(self._by_parameter(str(error))) from error

    def _by_parameter(self, text: str) -> str:
        """A message that begins with the name of a field, with the parameter's name in its place."""
        name, settings = type(self).__name__, MODELS[self.model].__name__
        for field, path in self.paths.items():
            if text.startswith((f"{path} ", f"{path}:")):
                return f"{name}.{field}{text.removeprefix(path)}"
        return f"{name}{text.removeprefix(settings)}" if text.startswith(settings) else text

    def _keep(
        self,
        config: RunConfig,
        metrics: dict[str, Any],
        tables: dict[str, Embeddings],
        network: KeptNetwork | None,
        data: Any,
    ) -> None:
        self.config_, self.metrics_, self.tables_ = config, metrics, tables
        main = next(iter(tables.values()), None)
        self.embedding_ = None if main is None else main.weights
        self.ids_ = None if main is None else main.node_ids
        self._network, self._data = network, data

    def _trained_on(self) -> Any:
        """The data of the training; of a run that was loaded it is read again.

        Raises:
            LackingError: the run was of a graph in memory.
        """
        if self._data is None or getattr(self._data, "train_elsewhere", False):  # triples that were left elsewhere
            if self.config_.dataset.digest is not None:
                raise LackingError(
                    f"this needs the graph, and the run was of {self.config_.dataset.name}, which is not saved with "
                    "it; fit again"
                )
            self._data = read_again(self.config_).load()
        return self._data

    def _main(self, table: str | None = None) -> Embeddings:
        """A table; None: the main one."""
        if "config_" not in self.__dict__:
            from sklearn.utils.validation import check_is_fitted

            check_is_fitted(self)  # raises scikit-learn's NotFittedError
        if not self.tables_:
            raise ModeError("the rows are with the first process of the job; ask there, where embedding_ is not None")
        if table is not None and table not in self.tables_:
            raise unknown_name("table", table, self.tables_)
        return self.tables_[table or next(iter(self.tables_))]

    def _checked_array(self, graph: Any, *, reset: bool) -> Any:
        """Arrays, lists of rows and sparse matrices as scikit-learn checks them; anything else as it is."""
        if is_matrix(graph) and getattr(getattr(graph, "dtype", None), "kind", "f") not in _NO_NUMBERS:
            from sklearn.utils.validation import check_non_negative, validate_data

            graph = validate_data(self, graph, accept_sparse=("coo", "csr", "csc"), reset=reset)
            check_non_negative(graph, type(self).__name__)
            return graph
        if reset:
            self.__dict__.pop("n_features_in_", None)
        return graph


def _listed(ids: Any) -> Any:
    """Ids, or one id as a list of it; a tuple is a node, as of networkx's grids, only within a list."""
    return ids if isinstance(ids, list | tuple | np.ndarray | set) else [ids]


def is_matrix(source: Any) -> bool:
    """Whether a source is a matrix: of numpy or scipy, or a list of rows."""
    if isinstance(source, list):
        return bool(source) and isinstance(source[0], list | np.ndarray)
    array = hasattr(source, "__array__") and not is_frame(source)
    return sparse.issparse(source) or (array and np.asarray(source).ndim > 1)


def is_graph(source: Any) -> bool:
    """Whether a source is a graph in memory, rather than ids of nodes."""
    ours = isinstance(source, HeteroGraph | Graph) or hasattr(source, "canonical_etypes")  # of DGL
    return ours or is_matrix(source) or is_frame(source) or is_networkx(source)


def pair_places(known: Embeddings, X: Any) -> NDArray[np.int64]:
    """Pairs of ids, shape (E, 2), or a data frame of two columns, as row numbers, shape (E, 2).

    Raises:
        ShapeError: no such pairs.
        DataError: a node that has no row.
    """
    given = X.itertuples(index=False) if is_frame(X) else X.tolist() if hasattr(X, "tolist") else X
    try:
        pairs = list(map(list, given))
    except TypeError:
        pairs = []
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise ShapeError("X holds no pairs of ids; give shape (E, 2), such as [('a', 'b'), ('b', 'c')]")
    places = places_of(known, as_names([node for pair in pairs for node in pair]))
    return (np.arange(2 * len(pairs)) if places is None else places).reshape(-1, 2)


def as_names(nodes: Any) -> NDArray[Any]:
    """Nodes as ids, shape (Q,): integers where all are, else each as Python writes it.

    Raises:
        ShapeError: a single value.
        DataError: an integer outside int64.
    """
    if hasattr(nodes, "dtype") and np.asarray(nodes).dtype.kind in "iu" and np.ndim(nodes):
        return np.asarray(nodes)
    try:
        listed = [node.item() if hasattr(node, "dtype") and np.ndim(node) == 0 else node for node in nodes]
    except TypeError:
        raise ShapeError(f"{nodes!r} is one value; give ids of nodes, shape (Q,), such as [{nodes!r}]") from None
    if all(isinstance(node, int | np.integer) and not isinstance(node, bool) for node in listed):
        limits = np.iinfo(np.int64)
        for node in listed:
            if not limits.min <= node <= limits.max:
                raise DataError(f"nodes: id {node} is outside [{limits.min}, {limits.max}]; pass such ids as strings")
        return np.array(listed, np.int64)
    return np.array([str(node) for node in listed])


def nodes_of(graph: Any) -> NDArray[Any]:
    """The ids of a graph's nodes in its order.

    Raises:
        ConfigError: it has several node types.
    """
    if is_networkx(graph):
        return as_names(graph)
    read = read_graph(graph)
    if len(read.ntypes) > 1:
        raise ConfigError(f"the graph has the node types {', '.join(read.ntypes)}; give ids of one, and its table=")
    return read.node_ids.get(read.ntypes[0], np.arange(read.total_nodes))


def _field(settings: type[ModelSettings], name: str, path: str) -> Any:
    """The field of a model's settings, or of a run, that a parameter is."""
    section, _, field = path.rpartition(".")
    if name in settings.model_fields:
        return settings.model_fields[name]
    owner: Any = RunConfig if not section else RunConfig.model_fields[section].annotation
    return owner.model_fields[field]


def _value(config: RunConfig, name: str, path: str) -> Any:
    section, _, field = path.rpartition(".")
    if name in type(config.model).model_fields:
        return getattr(config.model, name)
    return getattr(getattr(config, section) if section else config, field)


def _constructor(defaults: dict[str, Any]) -> Callable[..., None]:
    """``__init__`` with these keyword arguments, as ``inspect.signature`` and so scikit-learn see it."""

    def __init__(self: Any, **settings: Any) -> None:
        for name in settings:
            if name not in defaults:
                raise unknown_name(f"setting of {type(self).__name__}", name, defaults)
        for name, default in defaults.items():
            setattr(self, name, settings.get(name, default))

    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    keywords = [Parameter(name, Parameter.KEYWORD_ONLY, default=default) for name, default in defaults.items()]
    __init__.__signature__ = Signature([own, *keywords])  # type: ignore[attr-defined]
    return __init__
