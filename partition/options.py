"""Options of a build, checked once, before anything is read."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_args

from graph_emb.core.errors import CompatError, ConfigError, check_flags, unknown_name
from graph_emb.graph.dgl_format import FORMATS
from graph_emb.graph.typed import HeteroGraph
from partition.assignment import Assignment, EdgeOwner, Halo
from partition.relabel import check_layout

Function = TypeVar("Function", bound=Callable[..., Any])
ASSIGN_ARGUMENTS = {
    "graph": "GRAPH",
    "num_parts": "--parts",
    "method": "--method",
    "balance": "--balance",
    "tolerance": "--tolerance",
    "seed": "--seed",
    "num_threads": "--threads",
    "edge_owner": "--edge-owner",
}
"""Arguments of ``partition.methods.assign`` that are no options of a method, each with its flag."""
READ_ARGUMENTS = {"source": "GRAPH", "progress": "--quiet"}
"""The same of ``graph_emb.graph.readers.read_graph``; ``build`` has ``name`` too."""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """How to partition a graph and where to write it.

    Attributes:
        out: Folder of the partition; it appears when the partition is complete.
        num_parts: Parts to make; taken from ``assignment`` when that is given, else from the first of ``levels``.
        levels: Numbers of parts of a nested partition, rising, such as 8, 64, 512, see
            ``PartitionedGraph.levels``. Each is a multiple of ``num_parts`` or divides it, so that a node's parts live
            with its part.
        method: A name in ``partition.methods``; ``"auto"`` picks one and says why.
        name: The graph's name in DGL; default: the graph's own.
        assignment: Use this instead of a method; the options of methods are then refused, and a seed other than 0.
        balance, tolerance, seed: See ``partition.methods.assign``.
        num_threads: Of every step; changes the time, not the result. None: all that this process may use.
        method_options: Of the method, and ``relation_weights``.
        reader_options: Passed to ``graph_emb.graph.readers.read_graph``.
        edge_owner: ``"destination"``, ``"source"`` or ``"balanced"``, see ``partition.relabel.relabel``.
        halo, num_hops: See ``partition.relabel.PartBuilder``.
        num_trainers_per_machine: N above 1: the method makes N pieces of each part, and the columns ``trainer_id`` of
            nodes and edges say whose piece they are in (part * N + trainer), as ``dgl.distributed.partition_graph``
            has them for ``node_split(..., node_trainer_ids=)``. They take the place of columns of that name;
            types of which a part has no row have none.
        graph_formats: What the parts hold their edges as: ``"coo"`` (default), ``"csr"``, ``"csc"`` or several. DGL's
            servers need not make then what is there; csc and csr have the edges of a row sorted by type, as DGL's
            samplers of several edge types take them to be.
        graphbolt: Add the sampling graphs of ``dgl.graphbolt``.
        allow_empty: Accept a part without rows of a type that has data; DGL's servers do not.
        report: Write report.json, report.html and timings.json; None: unless ``memory`` is given, as the report needs
            the graph.
        memory: What this process may hold, such as ``"2GB"``: the edges of the graph, a path to edge lists with
            integer ids, are then in memory only where they fit, and ``"auto"`` is ``"ldg"``. Under torchrun
            every worker must call, and each may hold as much. ``levels`` split the parts one by one, and must have
            room for each. See ``docs/concepts/partition-streaming.md``.
        overwrite: Replace a partition that is in ``out``.
        progress: Show bars for what lasts longer than two seconds; None: where standard error is a terminal.
    Raises:
        ConfigError: an option is wrong, or has no effect with another one.
        CompatError: graphbolt is asked for but is not there.
    """

    out: str | Path
    num_parts: int | None = None
    method: str = "auto"
    levels: Sequence[int] | None = None
    name: str | None = None
    assignment: Assignment | None = None
    balance: Sequence[str] | None = None
    tolerance: float | Mapping[str, float] | None = None
    seed: int = 0
    num_threads: int | None = None
    method_options: Mapping[str, Any] | None = None
    reader_options: Mapping[str, Any] | None = None
    edge_owner: EdgeOwner = "destination"
    halo: Halo = "dgl"
    num_hops: int = 1
    num_trainers_per_machine: int = 1
    graph_formats: str | Sequence[str] | None = None
    graphbolt: bool = False
    allow_empty: bool = False
    report: bool | None = None
    memory: str | int | None = None
    overwrite: bool = False
    progress: bool | None = None

    def __post_init__(self) -> None:
        check_flags(graphbolt=self.graphbolt, allow_empty=self.allow_empty, overwrite=self.overwrite)
        check_flags(none=True, report=self.report, progress=self.progress)
        if self.graphbolt:
            check_graphbolt()
        check_layout(self.halo, self.num_hops)
        self._check_trainers()
        if not self.formats:
            raise ConfigError(f"graph_formats is empty; leave it out, or name some of {', '.join(FORMATS)}")
        for form in self.formats:
            if form not in FORMATS:
                raise unknown_name("graph format", form, FORMATS)
        refuse_arguments("method_options", self.method_options, ASSIGN_ARGUMENTS)
        refuse_arguments("reader_options", self.reader_options, {**READ_ARGUMENTS, "name": "--name"})
        if self.edge_owner not in get_args(EdgeOwner):
            raise unknown_name("edge owner", self.edge_owner, get_args(EdgeOwner))
        if self.num_parts is None and self.assignment is None and self.levels:
            object.__setattr__(self, "num_parts", self.levels[0])
        if self.num_parts is None and self.assignment is None:
            raise ConfigError("num_parts is missing; give the number of parts or an assignment")
        if self.assignment is not None:
            self._check_assigned(self.assignment)
        if self.levels is not None and self.total_parts > 0:
            from partition.nesting import MANY, checked_levels

            checked_levels(self.levels, self.total_parts, MANY)
        if self.memory is None:
            return
        refused = {  # needs the whole graph in memory
            "report=True": self.report,
            f"edge_owner={self.edge_owner!r}": self.edge_owner != "destination",
            f"num_hops={self.num_hops}": self.num_hops != 1,
            f"num_trainers_per_machine={self.num_trainers_per_machine}": self.num_trainers_per_machine != 1,
            f"graph_formats={self.graph_formats!r}": self.graph_formats is not None,
            "graphbolt=True": self.graphbolt,
            "allow_empty=True": self.allow_empty,
        }
        for option, given in refused.items():
            if given:
                raise ConfigError(f"{option} needs the whole graph in memory; leave out it or memory")
        if self.num_threads is not None:
            raise ConfigError(
                f"num_threads={self.num_threads}: memory= works with one thread; start workers by torchrun"
            )

    @classmethod
    def of(cls, **given: Any) -> BuildOptions:
        """Options by name; an unknown one is a ConfigError with the nearest known one."""
        known = [option.name for option in fields(cls)]
        for name in given:
            if name not in known:
                raise unknown_name("option of a build", name, known)
        return cls(**given)

    @property
    def total_parts(self) -> int:
        """Parts to make, the assignment's where one is given."""
        if self.assignment is not None:
            return self.assignment.num_parts
        assert self.num_parts is not None
        return self.num_parts

    @property
    def formats(self) -> tuple[str, ...]:
        """``graph_formats`` as a tuple."""
        given = self.graph_formats
        return ("coo",) if given is None else (given,) if isinstance(given, str) else tuple(given)

    def assigned(self, graph: HeteroGraph, pieces: int = 1) -> Assignment:
        """The parts that are given, or ``pieces`` times as many that the method makes."""
        from partition.methods import assign

        shared = ("method", "balance", "tolerance", "seed", "num_threads", "edge_owner")
        options = {**{name: getattr(self, name) for name in shared}, **(self.method_options or {})}
        return self.assignment or assign(graph, self.total_parts * pieces, **options)

    def _check_trainers(self) -> None:
        number = self.num_trainers_per_machine
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ConfigError(f"num_trainers_per_machine is {number!r}; it must be an integer of at least 1")
        if number > 1 and self.edge_owner == "balanced":
            raise ConfigError(
                f"num_trainers_per_machine={number}: an edge is its destination's or source's trainer's; "
                "edge_owner='balanced' gives it to neither"
            )

    def _check_assigned(self, assignment: Assignment) -> None:
        """Refuse options that a given assignment leaves without effect."""
        if self.num_parts not in (None, assignment.num_parts):
            raise ConfigError(f"num_parts is {self.num_parts} but the assignment has {assignment.num_parts} parts")
        chosen = {
            "method": None if self.method == "auto" else self.method,
            "seed": self.seed or None if self.levels is None else None,
            "balance": self.balance,
            "tolerance": self.tolerance,
            "num_trainers_per_machine": None if self.num_trainers_per_machine == 1 else self.num_trainers_per_machine,
            **(self.method_options or {}),
        }
        idle = [name for name, value in chosen.items() if value is not None]
        if idle:
            raise ConfigError(f"{idle[0]} has no effect on parts that are given; leave it or the assignment out")


def with_options(function: Function, without: Sequence[str] = ()) -> Function:
    """Decorator that puts the fields of ``BuildOptions`` in the place of ``**options`` in a function's signature.

    Args:
        without: Fields that the function does not take.
    """
    shown = inspect.signature(function)
    own = {name: value for name, value in shown.parameters.items() if value.kind is not value.VAR_KEYWORD}
    options = inspect.signature(BuildOptions).parameters
    more = [value for name, value in options.items() if name not in own and name not in without]
    function.__signature__ = shown.replace(parameters=[*own.values(), *more])  # type: ignore[attr-defined]
    return function


def refuse_arguments(what: str, options: Mapping[str, Any] | None, arguments: Mapping[str, str]) -> None:
    """Raise a ConfigError for an option that is an argument of its own: one of both would win in silence, or collide.

    Args:
        what: Name of the group of options.
        arguments: Names of the arguments, each with its flag on the command line.
    """
    for name in options or {}:
        if name in arguments:
            place = f"{arguments[name]} on the command line"
            raise ConfigError(f"{what}: {name!r} is an argument of its own, {place}; give it there")


def check_graphbolt() -> None:
    """Raise a CompatError unless ``dgl.graphbolt`` works here."""
    from graph_emb.compat import dgl as compat_dgl
    from graph_emb.compat.graphbolt import StubModule

    version = compat_dgl.load().__version__
    try:
        found = importlib.import_module("dgl.graphbolt")
    except ImportError as error:
        raise CompatError(f"graphbolt of dgl {version}: {error}; build the partition without it") from error
    if isinstance(found, StubModule):
        raise CompatError(f"graphbolt of dgl {version}: {found.reason}; build the partition without it")
