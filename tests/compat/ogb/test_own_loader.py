"""The reader here and ogb's own classes find the same arrays in every data set."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_emb.compat.ogb import metadata, read_hetero_dataset, read_link_dataset, read_node_dataset
from tests.ogb_layout import WRITERS

# ogb as published, in a process of its own: here graph_emb may have patched it. torch must read its pickles, and ogb
# must not look for a newer version of itself.
LOADER = """
import pickle, sys, warnings
sys.modules["outdated"] = None
warnings.simplefilter("ignore")
from ogb.linkproppred import LinkPropPredDataset
from ogb.nodeproppred import NodePropPredDataset
root, out, *names = sys.argv[1:]
found = {}
for name in names:
    if name.startswith("ogbl"):
        data = LinkPropPredDataset(name, root=root)
        found[name] = {"graph": data[0], "split": data.get_edge_split()}
    else:
        data = NodePropPredDataset(name, root=root)
        found[name] = {"graph": data[0][0], "labels": data[0][1], "split": data.get_idx_split()}
with open(out, "wb") as file:
    pickle.dump(found, file)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ogb")
    for write in WRITERS.values():
        write(place)
    return place


@pytest.fixture(scope="module")
def ours(root: Path) -> dict[str, Any]:
    """Read before ogb's loader leaves its cache and renames a file of ogbn-proteins."""
    found = {}
    for name in WRITERS:
        plain = read_link_dataset if name.startswith("ogbl") else read_node_dataset
        found[name] = (read_hetero_dataset if metadata(name).is_hetero else plain)(name, root)
    return found


@pytest.fixture(scope="module")
def theirs(root: Path, ours: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("dump") / "found.pkl"
    environment = {**os.environ, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    words = [sys.executable, "-c", LOADER, str(root), str(out), *WRITERS]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return pickle.loads(out.read_bytes())


def same(left: Any, right: Any) -> None:
    """Equal arrays, by key where they stand in dicts; absent (None or {}) on both sides or on none."""
    if isinstance(left, dict) and left:
        assert set(left) == set(right)
        for key in left:
            same(left[key], right[key])
    elif left is None or (isinstance(left, dict) and not left):
        assert right is None or (isinstance(right, dict) and not right)
    else:
        assert np.asarray(left).dtype.kind == np.asarray(right).dtype.kind
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right))


@pytest.mark.parametrize("name", WRITERS)
def test_ogbs_loader_and_ours_find_the_same(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    data, graph = ours[name], theirs[name]["graph"]
    same(data.split, theirs[name]["split"])
    if metadata(name).is_hetero:
        assert data.num_nodes == graph["num_nodes_dict"]
        same(data.edge_index, graph["edge_index_dict"])
        same(data.node_feat, graph["node_feat_dict"])
        same(data.edge_feat, graph["edge_feat_dict"])
    else:
        # ogb adds the other direction of an undirected edge behind it
        once = slice(None, None, 2 if data.metadata.add_inverse_edge else 1)
        assert data.num_nodes == graph["num_nodes"]
        same(data.edge_index, graph["edge_index"][:, once])
        same(data.node_feat, graph["node_feat"])
        same(data.edge_feat, None if graph["edge_feat"] is None else graph["edge_feat"][once])
    taken = {"edge_index", "node_feat", "edge_feat", "num_nodes"}
    more = {key: value for key, value in graph.items() if key.removesuffix("_dict") not in taken}
    assert set(data.extra) == set(more)
    for key, values in data.extra.items():
        if not metadata(name).is_hetero and key.startswith("edge_"):
            more[key] = more[key][once]
        same(values, more[key])


@pytest.mark.parametrize("name", [name for name in WRITERS if metadata(name).kind == "node"])
def test_ogbs_labels_and_ours_are_the_same(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    labels, own = ours[name].labels, theirs[name]["labels"]
    if isinstance(own, dict):
        assert set(labels) == set(own)
        own = {kind: table.reshape(-1) for kind, table in own.items()}
    elif metadata(name).num_tasks == 1:
        own = own.reshape(-1)
    same(labels, own)


@pytest.mark.parametrize("name", WRITERS)
def test_a_tiny_set_has_every_table_that_master_csv_names(name: str, ours: dict[str, Any]) -> None:
    meta, data = metadata(name), ours[name]
    assert bool(meta.has_node_attr) == bool(len(data.node_feat) if data.node_feat is not None else 0)
    assert bool(meta.has_edge_attr) == bool(len(data.edge_feat) if data.edge_feat is not None else 0)
    assert set(data.extra) >= {*meta.node_files, *meta.edge_files}
