"""``graph-emb info``: this installation, a data set, a run, or embeddings."""

from __future__ import annotations

import argparse
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.run.run_folder import is_run, read_metrics
from graph_emb.run.versions import versions

if TYPE_CHECKING:
    from graph_emb.formats.embedding_files import Embeddings


def run(args: argparse.Namespace) -> int:
    """Print a table of facts."""
    if args.target is None:
        if args.root is not None:
            raise ConfigError(f"--root {args.root} means nothing without the name of a data set")
        facts = _installation()
    else:
        facts = _described(args.target, args.root, args.trust_pickle)
    _print(facts)
    return 0


def _described(target: str, root: str | None, trust_pickle: bool) -> dict[str, Any]:
    if root is None and is_run(Path(target)):
        return _run(Path(target))
    if root is None and Path(target).exists():
        from graph_emb.formats.embedding_files import load_embeddings

        try:
            return _embeddings(target, load_embeddings(target))
        except DataError:  # no embeddings: then it is a graph, or its reader says what is wrong
            pass
    from graph_emb.graph.datasets import load_dataset
    from graph_emb.graph.describe import describe

    return describe(load_dataset(target, root, **({"trust_pickle": True} if trust_pickle else {})))


def _installation() -> dict[str, Any]:
    import psutil
    import torch

    from graph_emb.graph.datasets import available

    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        **versions(),
        "cores": cores,
        "threads": torch.get_num_threads(),
        "memory": f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free",
        "GRAPH_EMB_DATA": os.environ.get("GRAPH_EMB_DATA", "not set"),
        "data sets": ", ".join(available()),
    }


def _run(folder: Path) -> dict[str, Any]:
    """Facts of metrics.json; the tables of its evaluations are for ``graph-emb eval``."""
    metrics = read_metrics(folder)
    chosen = ("status", "model", "dataset", "train", "seconds", "files")
    facts = {"run": str(folder), **{key: metrics[key] for key in chosen if key in metrics}}
    links = metrics.get("evaluation", {}).get("link_prediction")
    if links:
        facts["link prediction"] = {
            f"{part} {name}": round(value["value"], 4)
            for part, scores in links["parts"].items()
            for name, value in scores["metrics"].items()
        }
    classes = metrics.get("evaluation", {}).get("node_classification")
    if classes:
        facts["node classification"] = {
            f"micro-F1 at {row['ratio']:.0%}": round(row["micro_mean"], 4) for row in classes["ratios"]
        }
    return {**facts, "versions": metrics.get("versions")}


def _embeddings(source: str, loaded: Embeddings) -> dict[str, Any]:
    import numpy as np

    weights, ids = loaded.weights, loaded.node_ids
    lengths = np.linalg.norm(weights, axis=1)
    return {
        "embeddings": source,
        "rows": weights.shape[0],
        "width": weights.shape[1],
        "dtype": str(weights.dtype),
        "ids": f"{ids[0]} .. {ids[-1]} ({'text' if ids.dtype.kind == 'U' else 'integers'})",
        "norm": {"mean": float(lengths.mean()), "min": float(lengths.min()), "max": float(lengths.max())},
        "zero rows": int((lengths == 0).sum()),
        "not finite": int((~np.isfinite(lengths)).sum()),
    }


def _print(facts: dict[str, Any]) -> None:
    from tabulate import tabulate

    rows: list[list[str]] = []
    for key, value in facts.items():
        nested = value.items() if isinstance(value, dict) else [("", value)]
        rows.extend([f"{key} {inner}".strip(), _wrapped(item)] for inner, item in nested)
    print(tabulate(rows, tablefmt="plain", disable_numparse=True))


def _wrapped(value: Any) -> str:
    return "\n".join(textwrap.wrap(_shown(value), 90, break_on_hyphens=False, break_long_words=False))


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items())
    return str(value)
