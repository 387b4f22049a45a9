"""``graph-emb info``: an installation, a data set, a run or embeddings; few of them need torch, a second of import."""

from __future__ import annotations

import argparse
import os
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tabulate import tabulate

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.formats.embedding_files import Embeddings, load_embeddings
from graph_emb.formats.network_files import NETWORK, load_network
from graph_emb.graph.datasets import available, find_dataset, load_dataset
from graph_emb.graph.readers.partitions import holds_partition
from graph_emb.graph.views import describe
from graph_emb.run.machine import versions
from graph_emb.run.run_folder import is_run, read_metrics
from graph_emb.run.scores import scores_of


def info(args: argparse.Namespace) -> int:
    """Describe this installation, a data set, a run, or embeddings."""
    if args.target is None and args.root is not None:
        raise ConfigError(f"--root {args.root} means nothing without the name of a data set")
    print_facts(installation() if args.target is None else _described(args.target, args.root, args.trust_pickle))
    return 0


def print_facts(facts: dict[str, Any]) -> None:
    """Print facts, a line for each and for each of a mapping."""
    rows: list[list[str]] = []
    for key, value in facts.items():
        for inner, item in value.items() if isinstance(value, dict) else [("", value)]:
            lines = textwrap.wrap(_shown(item), 90, break_on_hyphens=False, break_long_words=False)
            rows.append([f"{key} {inner}".strip(), "\n".join(lines)])
    print(tabulate(rows, tablefmt="plain", disable_numparse=True))


def _described(target: str, root: str | None, trust_pickle: bool) -> dict[str, Any]:
    if root is None and is_run(Path(target)):
        return _run(Path(target))
    if root is None and Path(target).exists():
        try:
            return _embeddings(target, load_embeddings(target))
        except DataError:  # no embeddings: then it is a graph, or its reader says what is wrong
            pass
    facts = describe(load_dataset(target, root, **({"trust_pickle": True} if trust_pickle else {})))
    place = find_dataset(target, root)
    return facts | ({"partition": _parts(place)} if place is not None and holds_partition(place) else {})


def _parts(place: Path) -> dict[str, Any]:
    """How the graph of a partition is cut."""
    import partition

    whole = partition.load(place)
    return {
        "parts": whole.num_parts,
        "method": whole.assignment().method,
        "nodes of each": whole.nodes.sizes.sum(axis=1).tolist(),
        "edges of each": whole.edges.sizes.sum(axis=1).tolist(),
        "original ids": whole.has_id_map("node"),
    }


def installation() -> dict[str, Any]:
    """Versions, cores, memory and data sets."""
    import torch

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
    """Facts of metrics.json, and its scores by short names."""
    metrics = read_metrics(folder)
    chosen = ("status", "model", "dataset", "train", "seconds", "files")
    facts = {"run": str(folder), **{key: metrics[key] for key in chosen if key in metrics}}
    evaluation = metrics.get("evaluation", {})
    scores = {name: round(value, 4) for name, value in scores_of(evaluation).items()}
    if "error" in evaluation:
        scores = {"not evaluated": evaluation["error"]}
    if (network := load_network(folder)) is not None:
        kept = {"file": NETWORK, "parameters": network.num_parameters, "after epoch": network.about["epoch"]}
        facts["network"] = {**kept, **({"classes": names} if (names := network.about.get("classes")) else {})}
    return {**facts, **({"score": scores} if scores else {}), "versions": metrics.get("versions")}


def _embeddings(source: str, loaded: Embeddings) -> dict[str, Any]:
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
