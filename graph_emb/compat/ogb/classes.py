"""ogb itself: imported without its version look-up, its own classes and Evaluator working.

Patches for ogb 1.3.6, each on the class or module that needs it:

* `LinkPropPredDataset`, `NodePropPredDataset` and their Dgl forms cache with a pickle that `weights_only`
  refuses, into the data set's folder: their `pre_process` reads the raw files instead.
* their constructors ask on standard input about another release: they raise DataError.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from graph_emb.compat.dgl import load as load_dgl
from graph_emb.compat.ogb import raw
from graph_emb.compat.ogb.catalog import Metadata, metadata, parse
from graph_emb.compat.ogb.datasets import find_folder, read_hetero_labels, read_labels
from graph_emb.compat.ogb.raw import allow_numpy_arrays
from graph_emb.core.errors import CompatError, ConfigError, DataError

NODE_TYPE, EDGE_TYPE = "_N", ("_N", "_E", "_N")
"""DGL's names in a graph without types."""


def load() -> ModuleType:
    """The `ogb` package with `ogb.linkproppred` and `ogb.nodeproppred`, patched as this module says.

    Its classes then read what is on the disk: they never download, ask or write. `torch.load` accepts numpy
    arrays with `weights_only` on from here on.

    Raises:
        CompatError: ogb is absent or cannot be imported.
    """
    package = _import_quietly()
    allow_numpy_arrays()
    for kind, title in (("link", "LinkPropPredDataset"), ("node", "NodePropPredDataset")):
        _patch(f"ogb.{kind}proppred.dataset", title, kind, _pre_process)
        if f"ogb.{kind}proppred.dataset_dgl" in sys.modules:  # absent when DGL is
            _patch(f"ogb.{kind}proppred.dataset_dgl", f"Dgl{title}", kind, _pre_process_dgl)
    return package


def evaluator(name: str, kind: str | None = None) -> Any:
    """OGB's Evaluator of a data set; its `eval` takes a dict of torch or numpy arrays.

    Args:
        name: "ogbl-ddi" or "ogbl_ddi".
        kind: "link" or "node"; taken from the name when None, and checked against it otherwise.
    Raises:
        ConfigError: no such data set, or it is of the other kind.
    """
    meta = metadata(name)
    if kind is not None and kind != meta.kind:
        raise ConfigError(f"{meta.name} is a {meta.kind} data set, not {kind!r}")
    load()
    return importlib.import_module(f"ogb.{meta.kind}proppred").Evaluator(meta.name)


def _import_quietly() -> ModuleType:
    """Import ogb while `outdated` cannot be found.

    ogb/version.py starts a thread that asks the package index for a newer ogb when `outdated` imports, and
    `outdated` starts one of its own; without it ogb skips both.
    """
    absent = object()
    before: Any = sys.modules.get("outdated", absent)
    sys.modules["outdated"] = None  # type: ignore[assignment]  # the documented way to make an import fail
    try:
        for module in ("ogb.linkproppred", "ogb.nodeproppred"):
            importlib.import_module(module)
    except ImportError as error:
        raise CompatError(f"ogb cannot be imported ({error}); run: pip install 'ogb>=1.3.6'") from error
    finally:
        del sys.modules["outdated"]
        if before is not absent:
            sys.modules["outdated"] = before
    return sys.modules["ogb"]


def _patch(module_name: str, class_name: str, kind: str, pre_process: Any) -> None:
    module: Any = importlib.import_module(module_name)

    def read_instead(dataset: Any) -> None:
        pre_process(dataset, parse(dataset.name, kind, dataset.meta_info))

    module.input = _no_prompt
    getattr(module, class_name).pre_process = read_instead


def _no_prompt(question: str = "") -> str:
    raise DataError(
        f"ogb asks {question.strip()!r}: the folder is of another release than OGB judges now; "
        "move it away and read it with download=True"
    )


def _pre_process(dataset: Any, meta: Metadata) -> None:
    folder = _folder_of(dataset, meta)
    dataset.graph = _ogb_graph(meta, folder)
    if meta.kind == "node":
        dataset.labels = read_hetero_labels(folder) if meta.is_hetero else read_labels(meta, folder)


def _pre_process_dgl(dataset: Any, meta: Metadata) -> None:
    folder = _folder_of(dataset, meta)
    dataset.graph = [_dgl_graph(_ogb_graph(meta, folder), meta)]
    if meta.kind == "node" and meta.is_hetero:
        dataset.labels = {kind: _label_tensor(table) for kind, table in read_hetero_labels(folder).items()}
    elif meta.kind == "node":
        dataset.labels = _label_tensor(read_labels(meta, folder))


def _folder_of(dataset: Any, meta: Metadata) -> Path:
    # `meta_dict` may name a folder that is not called after the data set.
    folder = Path(dataset.root)
    return find_folder(meta, folder.parent, download=False) if folder.name == meta.folder else folder


def _ogb_graph(meta: Metadata, folder: Path) -> dict[str, Any]:
    """The graph as ogb's dict; where OGB adds inverse edges, each follows its edge."""
    if meta.is_hetero:  # none of these has inverse edges to add
        typed = raw.read_hetero_graph(meta, folder)
        return {
            "edge_index_dict": typed.edge_index,
            "edge_feat_dict": typed.edge_feat or None,
            "node_feat_dict": typed.node_feat or None,
            "num_nodes_dict": typed.num_nodes,
            **typed.extra,
        }
    graph = raw.read_graph(meta, folder)
    repeats = 2 if meta.add_inverse_edge else 1
    edge_index = np.repeat(graph.edge_index, repeats, axis=1)
    if meta.add_inverse_edge:
        edge_index[:, 1::2] = graph.edge_index[::-1]
    edge_feat = None if graph.edge_feat is None else np.repeat(graph.edge_feat, repeats, axis=0)
    extra = {
        name: np.repeat(table, repeats, axis=0) if name.startswith("edge_") else table
        for name, table in graph.extra.items()
    }
    return {
        "edge_index": edge_index,
        "edge_feat": edge_feat,
        "node_feat": graph.node_feat,
        "num_nodes": graph.num_nodes,
        **extra,
    }


def _dgl_graph(graph: dict[str, Any], meta: Metadata) -> Any:
    """ogb's dict as a DGLGraph; node_year becomes ndata["year"], the features "feat", as in ogb."""
    import torch

    suffix = "_dict" if meta.is_hetero else ""

    def by_type(name: str, only: Any) -> dict[Any, Any]:
        return (graph[name] or {}) if meta.is_hetero else {only: graph[name]}

    edges = by_type(f"edge_index{suffix}", EDGE_TYPE)
    built = load_dgl().heterograph(
        {triplet: tuple(torch.from_numpy(index)) for triplet, index in edges.items()},
        num_nodes_dict=by_type(f"num_nodes{suffix}", NODE_TYPE),
    )
    for prefix, frames, only, more in (
        ("node_", built.nodes, NODE_TYPE, meta.node_files),
        ("edge_", built.edges, EDGE_TYPE, meta.edge_files),
    ):
        for name in (f"{prefix}feat{suffix}", *more):
            for kind, table in by_type(name, only).items():
                if table is not None:
                    frames[kind].data[name.removeprefix(prefix).removesuffix("_dict")] = torch.from_numpy(table)
    return built


def _label_tensor(table: np.ndarray) -> Any:
    """Classes as int64; float32 when some are missing (NaN), as in ogb's Dgl classes."""
    import torch

    whole = table.dtype.kind != "f" or not np.isnan(table).any()
    return torch.from_numpy(table).to(torch.long if whole else torch.float32)
