"""Tiny data sets in OGB's layout on disk, and the example scripts as modules."""

from __future__ import annotations

import gzip
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "ogb"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a script of examples/ogb as running it from the checkout would."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == EXAMPLES:
            del sys.modules[name]


def write_csv(path: Path, table: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        np.savetxt(file, np.atleast_2d(table), fmt="%d", delimiter=",")


def group_edges(num_nodes: int, num_groups: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """All pairs (M, 2), shuffled: those within a group of node % num_groups, and those across."""
    rng = np.random.default_rng(seed)
    pairs = np.stack(np.triu_indices(num_nodes, 1), 1)
    pairs = pairs[rng.permutation(len(pairs))]
    same = pairs[:, 0] % num_groups == pairs[:, 1] % num_groups
    return pairs[same], pairs[~same]


@pytest.fixture
def ddi_root(tmp_path: Path) -> Path:
    """ogbl-ddi with 40 nodes: edges within two groups, negatives across."""
    folder = tmp_path / "data" / "ogbl_ddi"
    inside, across = group_edges(40, 2)
    train = inside[:250]
    write_csv(folder / "raw" / "edge.csv.gz", train)
    write_csv(folder / "raw" / "num-node-list.csv.gz", np.array([[40]]))
    write_csv(folder / "raw" / "num-edge-list.csv.gz", np.array([[len(train)]]))
    (folder / "RELEASE_v1.txt").touch()
    (folder / "mapping").mkdir()
    (folder / "processed").mkdir()
    parts = {
        "train": {"edge": train},
        "valid": {"edge": inside[250:310], "edge_neg": across[:150]},
        "test": {"edge": inside[310:370], "edge_neg": across[150:300]},
    }
    (folder / "split" / "target").mkdir(parents=True)
    for part, tables in parts.items():
        torch.save(tables, folder / "split" / "target" / f"{part}.pt")
    return folder.parent


@pytest.fixture
def arxiv_root(tmp_path: Path) -> Path:
    """ogbn-arxiv with 90 papers of 3 classes, which cite within their class, and no features."""
    folder = tmp_path / "data" / "ogbn_arxiv"
    inside, across = group_edges(90, 3)
    arcs = np.concatenate([inside[:400], across[:20]])
    write_csv(folder / "raw" / "edge.csv.gz", arcs)
    write_csv(folder / "raw" / "num-node-list.csv.gz", np.array([[90]]))
    write_csv(folder / "raw" / "num-edge-list.csv.gz", np.array([[len(arcs)]]))
    write_csv(folder / "raw" / "node-label.csv.gz", (np.arange(90) % 3)[:, None])
    write_csv(folder / "raw" / "node_year.csv.gz", np.full((90, 1), 2017))
    (folder / "RELEASE_v1.txt").touch()
    (folder / "mapping").mkdir()
    (folder / "processed").mkdir()
    for part, nodes in (("train", range(54)), ("valid", range(54, 72)), ("test", range(72, 90))):
        write_csv(folder / "split" / "time" / f"{part}.csv.gz", np.array(nodes)[:, None])
    return folder.parent
