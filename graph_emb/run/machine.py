"""Versions of the packages that results depend on, and peak memory of the process."""

from __future__ import annotations

import platform
import resource
import shutil
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from graph_emb.core.errors import ConfigError
from graph_emb.core.hidden import size_text
from graph_emb.table.placement import DEVICE, HOST, SHARED, Buckets, Cached, DeviceCache, File

if TYPE_CHECKING:
    from graph_emb.config.placements import PlacementSettings  # a launcher starts without pydantic
    from graph_emb.config.schema import ParallelSection

PACKAGES = ("graph_emb", "torch", "dgl", "numpy", "numba", "scikit-learn", "ogb")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on, without importing them."""
    return {"python": platform.python_version(), **{package: _version(package) for package in PACKAGES}}


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def peak_memory_mib() -> int:
    """Most memory that the process has held, MiB."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 2**20


def memory_mib() -> int:
    """Memory that the process holds now, MiB."""
    import psutil

    return int(psutil.Process().memory_info().rss // 2**20)


def check_device(name: str) -> None:
    """Raise a ConfigError where ``train.device`` is no device of this machine."""
    from graph_emb.core.devices import device_of  # here: a launcher starts without torch

    device_of("train.device", name)


STATE_SHARE = {
    **dict.fromkeys(("sgd", "row_adagrad"), 0.0),
    **dict.fromkeys(("adagrad", "row_adam", "row_lamb", "lars"), 1.0),
    **dict.fromkeys(("adam", "adamw", "lamb"), 2.0),
}
"""Optimizer state of each rule as a share of the tables."""


def bytes_of_rows(num_rows: int, model: Any, tables: float = 1.0) -> int:
    """Bytes of rows of a model's width and their state; arguments as of ``file_plan``."""
    row, state = model.number_bytes
    return int(tables * num_rows * model.dim * (row + state * STATE_SHARE[model.rule]))


def pages_of_rows(num_rows: int, model: Any, placement: Cached, memory: int | None = None) -> tuple[int, int]:
    """How many pages of a model's rows with their state memory holds, and how many there are.

    Args:
        num_rows: Rows of the table.
        model: Settings with its width, dtype and rule.
        placement: Of the table.
        memory: Bytes; None: those of the placement.
    """
    from graph_emb.optimizer import OPTIMIZERS, PRESETS  # here: a launcher starts without torch
    from graph_emb.table.tier.sizes import held_pages

    clock = {} if model.compat is None else {"clock": PRESETS[model.compat].clock}
    rule: Any = OPTIMIZERS[model.rule]
    specs = rule.state_of({**model.numbers(), **clock})
    memory, on_device = placement.memory_bytes if memory is None else memory, isinstance(placement, DeviceCache)
    return held_pages(num_rows, model.dim, memory, model.table_dtype, specs, on_device=on_device)


def owners_of(section: ParallelSection) -> int:
    """Processes of a job that own rows, each with ``train.memory``: ``section.servers`` are those of each machine."""
    if section.mode != "kvstore":
        return 1 if section.mode == "local" else section.trainers
    from graph_emb.transport import runtime  # here: a launcher starts without torch

    return section.servers * getattr(runtime.begun(), "num_machines", 1)  # 1: before it has joined its servers


def file_plan(
    num_rows: int,
    model: Any,
    placement: File,
    *,
    copies: float = 1,
    tables: float = 1,
    of: str = "entities",
    beside: str = "",
    processes: int = 1,
) -> str:
    """What tables in files will take, in a line.

    Args:
        num_rows: Rows of a table.
        model: As in ``check_memory``.
        placement: Of all tables together.
        copies: Of all rows, which are gathered for validation and saving.
        tables: How many, in units of one of the model's width.
        of: Whose rows.
        beside: What else lies in files.
        processes: That have the placement's memory each, and all tables together.
    Raises:
        ConfigError: the disk has no room for them, and for the copies.
    """
    table = bytes_of_rows(num_rows, model, tables)
    gathered = int(num_rows * model.dim * 4 * copies)
    placement.path.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(placement.path).free
    if table + gathered > free:
        raise ConfigError(
            f"train.memory: {placement.path} has {size_text(free)} free; rows and state of {num_rows} {of} take "
            f"{size_text(table)}, the rows that are gathered at the end {size_text(gathered)}; set train.scratch"
        )
    share = min(1.0, processes * placement.memory_bytes / table)
    rate, missing = "", 1 - share
    if missing and not isinstance(placement, Buckets):  # a miss costs a page that goes and one that comes
        rate = f"random ids miss {missing:.0%}, a disk of 100,000 pages/s keeps up with {5e4 / missing:,.0f} rows/s; "
    where = f"in {'a file' if tables == 1 and processes == 1 else 'files'} in {placement.path}"
    each = "" if processes == 1 else f" of each of {processes} processes"
    return (
        f"plan: {num_rows:,} {of} with their state{beside}, {size_text(table)}, {where}; "
        f"{size_text(placement.memory_bytes)} of memory{each} hold {share:.0%}; policy {placement.policy}; "
        f"{rate}at most {size_text(table + gathered)} of disk"
    )


def memory_plan(num_rows: int, model: Any, train: PlacementSettings, *, tables: float = 1, of: str = "entities") -> str:
    """Where rows lie that are all in memory, in a line; empty where ``train.placement`` names no memory.

    Args:
        num_rows, model, tables, of: As of ``file_plan``.
        train: Of the run.
    """
    where, placement = "in memory of the processor", train.table_placement()
    if isinstance(placement, DeviceCache):
        table = bytes_of_rows(num_rows, model, tables)
        share, memory = min(1.0, placement.memory_bytes / table), size_text(placement.memory_bytes)
        where += f"; {memory} of {train.device} hold {share:.0%}; policy {placement.policy}"
    elif placement in (SHARED, DEVICE):
        where = f"in memory of {train.device}" if placement == DEVICE else "in memory that trainers share"
    elif placement != HOST:
        return ""
    size = size_text(bytes_of_rows(num_rows, model, tables))
    return f"plan: {num_rows:,} {of} with their state, {size}, {where}"


def check_memory(
    num_rows: int, tables: float, model: Any, *, averages: int = 0, width: float | None = None, kept: float = 1.0
) -> None:
    """Raise a ConfigError when the tables cannot fit.

    Counted are weights, optimizer state, and the copy of the rows that is returned and saved.

    Args:
        num_rows: Rows of a table.
        tables: How many such tables are trained; half a one has half the width.
        model: Settings with the width of a row, and the dtype of rows and of the rule's state.
        averages: Further tables that hold averages, without state.
        width: Of a row, the mean where rows differ; None: ``model.dim``.
        kept: Numbers that a table learns for each of its rows' numbers: less than 1 where nodes share rows.
    """
    import psutil

    row, state = model.number_bytes
    copies = tables * kept * (row + state * STATE_SHARE[model.rule]) + 4 * (averages * kept + 1)
    numbers, said = (model.dim, "") if width is None else (width, f", {width:,.0f} numbers a node")
    needed, free = int(num_rows * numbers * copies), psutil.virtual_memory().available
    if needed > free:
        raise ConfigError(
            f"model.dim = {model.dim}{said}: {num_rows} nodes need {needed / 2**30:.1f} GiB, "
            f"{free / 2**30:.1f} GiB of memory is free; {_fitting(model.dim, free / needed)}"
        )


def _fitting(dim: int, share: float) -> str:
    """The next step where this share of what tables need is free."""
    fits = int(dim * share * 0.9) // 8 * 8  # a tenth for the graph and the process
    step = f"model.dim={fits} would fit, or " if fits else "lower model.dim or model.tables, or "
    return f"{step}take a rule with less state"
