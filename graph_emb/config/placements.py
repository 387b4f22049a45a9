"""Settings of where a run's tables lie, what they exclude, and the placement that they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import gettempdir
from typing import Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from graph_emb.core.errors import ConfigError
from graph_emb.core.settings import Settings, fields_at_default, memory_bytes, short
from graph_emb.models.skipgram.config import PlainWalkConfig, SkipGramTraining
from graph_emb.table.placement import DEVICE, HOST, SHARED, Buckets, DeviceCache, File

FILE: Final = "file"
BUCKETS: Final = "buckets"
DEVICE_CACHE: Final = "device-cache"


class PlacementSettings(Settings):
    """Where the tables of a run lie, and how much memory they may take. No result depends on it."""

    placement: Literal["auto", "host", "shared", "device", "file", "buckets", "device-cache"] = Field(
        default="auto",
        description="where rows and state lie: host, shared, device: all in memory of the processor, in memory that "
        "trainers share, on train.device; file, buckets, device-cache: train.memory of them at hand, the others in "
        "files, or in memory of the processor; auto: on train.device, or with train.memory in files",
    )
    device: str = Field(
        default="cpu", min_length=1, description="of graph networks and knowledge-graph models, such as cuda:0"
    )
    memory: str | None = Field(
        default=None,
        description="of a process (kvstore: a server) for rows and state, such as 2GiB; null: all",
    )
    scratch: str | None = Field(default=None, description="folder of these files; null: the one for temporary files")
    policy: Literal["lru", "lfu", "lookahead"] = Field(default="lookahead", description="which rows leave memory")

    @field_validator("memory", mode="after")
    @classmethod
    def _is_a_size(cls, value: str | None) -> str | None:
        try:
            if value is not None and memory_bytes(value) < 1:
                raise ValueError("must be at least 1 byte")
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _files_have_a_budget(self) -> PlacementSettings:
        unused = sorted({"scratch", "policy"} & (self.model_fields_set - fields_at_default(self)))
        if self.memory is None and unused:
            raise ValueError(
                f"{unused[0]} has no effect while all rows are in memory; set train.memory or leave it out"
            )
        return self

    def table_placement(self, parts: int = 0, tables: int = 1, share: float = 1.0) -> Any:
        """The ``placement`` of each table, as of ``DistEmbedding``.

        Args:
            parts: In as many for a schedule of buckets; 0: without one.
            tables: They share the memory.
            share: Of the memory that all of them have.
        """
        if self.memory is None:
            return self.placement
        memory = max(1, int(memory_bytes(self.memory) * share) // tables)
        if self.placement == DEVICE_CACHE:
            return DeviceCache(memory, self.policy)
        if parts:
            return Buckets(self.scratch or gettempdir(), memory, self.policy, leftover="remove", parts=parts)
        return File(self.scratch or gettempdir(), memory, self.policy, leftover="remove")

    def check_parts(self, parts: int) -> None:
        """Raise a ConfigError where tables should lie in parts, and ``train.buckets=auto`` found that none are needed.

        Args:
            parts: Found; 0: memory holds all rows.
        """
        if self.placement == BUCKETS and not parts:
            raise ConfigError(
                f"train.placement = {BUCKETS!r}: train.memory = {self.memory!r} holds all rows, so that "
                "train.buckets=auto is 0; give it a number of at least 2, or take train.placement=file"
            )


def check_placement(train: PlacementSettings, model: Any, *, mode: str, hogwild: bool | None, context: str) -> None:
    """Raise a ValueError where tables cannot lie as the settings of a run say.

    Args:
        model: Settings of the run's.
        mode, hogwild: Of ``parallel``.
        context: Of ``output``.
    """
    for words, refused, why in _exclusions(train, model, mode, hogwild):
        if train.placement in words and refused:
            raise ValueError(f"train.placement = {train.placement!r}: {why}")
    if train.memory is not None:
        _check_memory(train, model, mode, context)
    if model.family in ("kge", "gnn") and train.device != "cpu":
        said = f"train.device = {short(train.device)}"
        if mode != "local" and model.family == "kge":
            raise ValueError(f"{said}: one process trains {model.name} on a device; leave parallel.mode out")
        if train.memory and train.placement != DEVICE_CACHE:
            raise ValueError(f"{said}: rows in files are read to the processor; leave train.memory or it out")


def _exclusions(
    train: PlacementSettings, model: Any, mode: str, hogwild: bool | None
) -> Iterator[tuple[tuple[str, ...], bool, str]]:
    """Words, whether the other settings exclude them, and why, with the next step."""
    name, family = model.name, model.family
    memory, buckets = train.memory, getattr(model, "buckets", 0)
    said = f"train.buckets = {'auto' if buckets is None else buckets}"
    shares = mode == "kvstore" or (mode == "collective" and hogwild is True)
    yield (
        (HOST, SHARED, DEVICE),
        memory is not None,
        f"all rows lie in memory, and train.memory = {memory!r} bounds it; leave one of them out",
    )
    yield (
        (HOST, SHARED),
        train.device != "cpu",
        f"rows lie in memory of the processor, not of train.device = {train.device!r}; take train.placement=device, or "
        "leave one of them out",
    )
    yield (
        (SHARED,),
        not shares,
        "trainers share rows with parallel.mode=kvstore, and with parallel.mode=collective and parallel.hogwild=true; "
        "set one of them, or take train.placement=host",
    )
    yield (
        (DEVICE,),
        family not in ("kge", "gnn"),
        f"it is for models of triples and graph networks, and {name} trains on the processor; leave it out",
    )
    yield (
        (DEVICE, DEVICE_CACHE),
        mode != "local",
        f"one process trains on a device, not those of parallel.mode = {mode!r}; leave one of them out",
    )
    yield (
        (DEVICE,),
        train.device == "cpu",
        "train.device is the processor; set train.device=cuda, or take train.placement=host",
    )
    yield (
        (FILE, BUCKETS, DEVICE_CACHE),
        memory is None,
        "it needs train.memory, which says how much of the rows is at hand; set it, such as train.memory=2GiB",
    )
    yield (
        (BUCKETS,),
        not hasattr(model, "buckets"),
        f"{name} does not train by buckets; take train.placement=file",
    )
    yield (
        (BUCKETS,),
        buckets == 0,
        "rows come and leave by parts of train.buckets; set it, to auto or at least 2, or take train.placement=file",
    )
    yield (
        (DEVICE_CACHE,),
        family != "kge",
        f"it is for models of triples, not for {name}; leave it out",
    )
    yield (
        (DEVICE_CACHE,),
        train.scratch is not None,
        f"no row lies in a file, so that train.scratch = {train.scratch!r} has no effect; leave one of them out",
    )
    yield (
        (FILE, DEVICE_CACHE),
        buckets != 0,
        f"rows come and leave as steps ask for them, not by the parts of {said}; leave it out, or take "
        "train.placement=buckets",
    )


def _check_memory(train: PlacementSettings, model: Any, mode: str, context: str) -> None:
    """Raise a ValueError where all rows have to be in memory, or several processes would train them."""
    said = f"train.memory = {train.memory!r}"
    if not isinstance(model, SkipGramTraining):
        if model.family == "spectral":
            raise ValueError(
                f"{said}: {model.name} factorises a matrix of the whole graph in memory, and has no table of which a "
                "part could lie in files; leave it out and lower model.dim, or train a model that learns rows, such as "
                "deepwalk"
            )
        return
    if mode != "local":
        raise ValueError(f"{said}: one process trains walks from files; leave parallel.mode or train.memory out")
    for path, given in (
        ("model.table", model.composed),
        ("model.multilevel", getattr(model, "multilevel", False) is not False),
        ("model.from_run", getattr(model, "from_run", None) is not None),
        ("model.warm_start", isinstance(model, PlainWalkConfig) and model.warm_start is not None),
        ("output.context=concat", context == "concat"),
    ):
        if given:
            raise ValueError(f"{said}: {path} needs all rows in memory; leave one of them out")
