"""Metadata of OGB's data sets (`master.csv` of the installed ogb), read without importing ogb."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from graph_emb.core.errors import CompatError, unknown_name

TABLES = {"link": "linkproppred", "node": "nodeproppred"}

# master.csv cannot say this: the vessel graph is undirected, stored as it is (OGB's documentation).
UNDIRECTED_AS_STORED = ("ogbl-vessel",)


@dataclass(frozen=True)
class Metadata:
    """One column of master.csv: what the files of a data set are and how OGB judges it."""

    name: str
    kind: str  # "link" or "node"
    task_type: str
    eval_metric: str
    version: int
    url: str
    download_name: str  # the folder inside the zip file
    split: str  # folder under split/
    add_inverse_edge: bool  # each undirected edge is stored once; OGB's classes add the other direction
    has_node_attr: bool
    has_edge_attr: bool
    node_files: tuple[str, ...]  # further per-node tables, such as node_year
    edge_files: tuple[str, ...]
    is_hetero: bool
    binary: bool  # raw/data.npz instead of csv.gz files
    num_tasks: int | None = None  # node data sets only
    num_classes: int | None = None

    @property
    def folder(self) -> str:
        """Name of the data set's folder under the root."""
        return self.name.replace("-", "_")

    @property
    def is_directed(self) -> bool:
        """False when an edge of `edge_index` means both directions."""
        return not self.add_inverse_edge and self.name not in UNDIRECTED_AS_STORED

    @property
    def raw_file(self) -> str:
        """The file, relative to the folder, whose presence says that the data set was downloaded."""
        if self.binary:
            return "raw/data.npz"
        return "raw/triplet-type-list.csv.gz" if self.is_hetero else "raw/edge.csv.gz"

    @property
    def release_file(self) -> str:
        return f"RELEASE_v{self.version}.txt"


def metadata(name: str) -> Metadata:
    """OGB's description of a data set.

    Args:
        name: As OGB writes it ("ogbl-ddi") or as its folder is called ("ogbl_ddi").
    Raises:
        ConfigError: no such link or node data set.
        CompatError: ogb is not installed.
    """
    name = name.replace("_", "-")
    for kind in TABLES:
        table = _master(kind)
        if name in table:
            return parse(name, kind, table[name])
    raise unknown_name("OGB data set", name, known_names())


def known_names() -> list[str]:
    """Every link and node data set that the installed ogb knows."""
    return [name for kind in TABLES for name in _master(kind)]


def parse(name: str, kind: str, row: Mapping[str, object]) -> Metadata:
    """A column of master.csv (ogb's `meta_info`) as typed values."""
    text = {key: str(value) for key, value in row.items()}
    return Metadata(
        name=name,
        kind=kind,
        task_type=text["task type"],
        eval_metric=text["eval metric"],
        version=int(text["version"]),
        url=text["url"],
        download_name=text["download_name"],
        split=text["split"],
        add_inverse_edge=text["add_inverse_edge"] == "True",
        has_node_attr=text["has_node_attr"] == "True",
        has_edge_attr=text["has_edge_attr"] == "True",
        node_files=_listed(text["additional node files"]),
        edge_files=_listed(text["additional edge files"]),
        is_hetero=text["is hetero"] == "True",
        binary=text["binary"] == "True",
        num_tasks=int(text["num tasks"]) if "num tasks" in text else None,
        num_classes=int(text["num classes"]) if "num classes" in text else None,
    )


def _listed(names: str) -> tuple[str, ...]:
    return () if names == "None" else tuple(names.split(","))


def _master(kind: str) -> dict[str, dict[str, str]]:
    spec = importlib.util.find_spec("ogb")  # finds the folder; ogb's code, which starts a thread, stays unrun
    if spec is None or not spec.submodule_search_locations:
        raise CompatError("ogb is not installed; run: pip install 'ogb>=1.3.6'")
    path = Path(spec.submodule_search_locations[0]) / TABLES[kind] / "master.csv"
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return {name: {row[0]: row[column] for row in rows} for column, name in enumerate(header) if column}
