"""Tiny data sets in OGB's exact layout on the disk, under real names, so that master.csv describes them."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

TRAIN = [[0, 1], [1, 2], [2, 3], [3, 4]]
VALID, VALID_NEG = [[0, 2]], [[0, 3], [0, 4]]
TEST, TEST_NEG = [[1, 3]], [[1, 4]]


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)


def write_split(path: Path, tables: Mapping[str, Any], *, numpy_1: bool = True) -> None:
    """A part as OGB published it: torch's format before 1.6, arrays pickled under numpy 1's names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(dict(tables), path, _use_new_zipfile_serialization=False)
    if numpy_1:
        written = path.read_bytes()
        path.write_bytes(written.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))


def write_graph(folder: Path, edges: list[list[int]], num_nodes: int, release: int = 1) -> None:
    write_csv(folder / "raw" / "edge.csv.gz", edges)
    write_csv(folder / "raw" / "num-node-list.csv.gz", [[num_nodes]])
    write_csv(folder / "raw" / "num-edge-list.csv.gz", [[len(edges)]])
    (folder / f"RELEASE_v{release}.txt").write_text("# Release note\n")


def write_ddi(root: Path) -> Path:
    """Five nodes on a path; each edge stored once."""
    folder = root / "ogbl_ddi"
    write_graph(folder, TRAIN, num_nodes=5)
    place = folder / "split" / "target"
    write_split(place / "train.pt", {"edge": np.array(TRAIN)})
    write_split(place / "valid.pt", {"edge": np.array(VALID), "edge_neg": np.array(VALID_NEG)})
    write_split(place / "test.pt", {"edge": np.array(TEST), "edge_neg": np.array(TEST_NEG)})
    return folder


def write_arxiv(root: Path, *, features: bool = True) -> Path:
    """Four papers, two classes, three citations."""
    folder = root / "ogbn_arxiv"
    write_graph(folder, [[0, 1], [2, 1], [3, 0]], num_nodes=4)
    write_csv(folder / "raw" / "node-label.csv.gz", [[7], [0], [7], [39]])
    write_csv(folder / "raw" / "node_year.csv.gz", [[2017], [2018], [2019], [2020]])
    if features:
        write_csv(folder / "raw" / "node-feat.csv.gz", [[0.5, -1.0], [1.5, 2.0], [0.0, 0.25], [3.0, 1.0]])
    for part, ids in {"train": [0, 1], "valid": [2], "test": [3]}.items():
        write_csv(folder / "split" / "time" / f"{part}.csv.gz", [[node] for node in ids])
    return folder


def write_mag(root: Path) -> Path:
    """Two authors, three papers; only papers have labels, years and a split."""
    folder = root / "ogbn_mag"
    raw = folder / "raw"
    write_csv(raw / "num-node-dict.csv.gz", [["paper", "author"], [3, 2]])
    triplets = {("paper", "cites", "paper"): [[0, 1]], ("author", "writes", "paper"): [[0, 2], [1, 0]]}
    write_csv(raw / "triplet-type-list.csv.gz", triplets)
    for number, (triplet, edges) in enumerate(triplets.items()):
        place = raw / "relations" / "___".join(triplet)
        write_csv(place / "edge.csv.gz", edges)
        write_csv(place / "num-edge-list.csv.gz", [[len(edges)]])
        write_csv(place / "edge_reltype.csv.gz", [[number]] * len(edges))
    write_csv(raw / "node-feat" / "paper" / "node-feat.csv.gz", [[0.5], [1.5], [2.5]])
    write_csv(raw / "node-feat" / "paper" / "node_year.csv.gz", [[2010], [2011], [2012]])
    write_csv(raw / "nodetype-has-label.csv.gz", [["paper", "author"], [True, False]])
    write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", [[4], [5], [6]])
    place = folder / "split" / "time"
    write_csv(place / "nodetype-has-split.csv.gz", [["paper", "author"], [True, False]])
    for part, ids in {"train": [0], "valid": [1], "test": [2]}.items():
        write_csv(place / "paper" / f"{part}.csv.gz", [[node] for node in ids])
    (folder / "RELEASE_v2.txt").write_text("# Release note\n")
    return folder


def contents(root: Path) -> dict[str, tuple[int, int]]:
    """Every path under a folder with its size and time of change."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(root.rglob("*"))}
