"""Rows of new nodes: the mean of their neighbours, inference and going on with a run, beside training again.

    python benchmarks/new_nodes.py --root ../shared/data --json new_nodes.json
    python benchmarks/new_nodes.py --root ../shared/data --seeds 1 --no-scores
    python benchmarks/new_nodes.py --root ../shared/data --split 1 --again 8
    python benchmarks/new_nodes.py --root ../shared/data --dataset ogbn-arxiv --walks 3 --order year

Hides a share of the nodes with their edges and trains DeepWalk on the rest; then the hidden nodes come back. Of their
edges a tenth is kept to judge by. Scores are those of the hidden nodes: micro-F1 of a classifier that is fitted on the
others (DeepWalk's protocol; accuracy where each node has one class), and AUC of the kept edges against pairs of a
hidden node that are no edges, by the centred dot product. Times are of whole calls, reading and comparing graphs
included: s by the clock, cpu s of all threads, which a loaded machine hardly changes and by which the aim is judged.
Each method is run with every seed, on each old run; aims hold for the means. The spread of three seeds says little:
--again trains with more seeds than the others. One old run is one draw, whose rows all seeds begin with: --olds trains
several.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate

import graph_emb as ge
from graph_emb.evaluate.link_prediction import roc_auc
from graph_emb.evaluate.node_classification import f1, fit_one_vs_rest, top_k
from graph_emb.evaluate.softmax import fit_softmax
from graph_emb.formats.embedding_files import Embeddings
from graph_emb.graph.views import PlainDataset, plain_dataset

AIM_MEAN, AIM_TIME = 0.9, 0.15
TIMES = ("s", "cpu s")


@dataclass(frozen=True)
class Growth:
    """A graph some of whose nodes come later.

    Attributes:
        data: The whole graph, with labels.
        hidden: Which nodes come later, (N,) bool.
        edges: Those at first, those that come later, and those that are kept to judge by, (E, 2) each.
        negatives: As many pairs of a hidden node and another one that are no edges.
    """

    data: PlainDataset
    hidden: np.ndarray
    edges: tuple[np.ndarray, np.ndarray, np.ndarray]
    negatives: np.ndarray

    @classmethod
    def of(cls, data: PlainDataset, share: float, seed: int, years: np.ndarray | None = None) -> Growth:
        rng, num = np.random.default_rng(seed), data.graph.num_nodes
        hidden, order = np.zeros(num, bool), rng.permutation(num)
        if years is not None:  # the newest ones; those of a year at random
            order = order[np.argsort(-years[order], kind="stable")]
        hidden[order[: int(share * num)]] = True
        edges = data.graph.edges()
        later = hidden[edges].any(axis=1)
        kept = np.zeros(len(edges), bool)
        kept[rng.choice(np.flatnonzero(later), int(later.sum()) // 10, replace=False)] = True
        negatives = np.empty((0, 2), np.int64)
        while len(negatives) < kept.sum():
            size = 2 * int(kept.sum())
            drawn = np.stack([rng.choice(np.flatnonzero(hidden), size), rng.integers(num, size=size)], axis=1)
            free = ~data.graph.has_edges(*drawn.T) & (drawn[:, 0] != drawn[:, 1])
            negatives = np.concatenate([negatives, drawn[free]])[: kept.sum()]
        return cls(data, hidden, (edges[~later], edges[later & ~kept], edges[kept]), negatives)

    def scores(self, rows: Embeddings, old: Embeddings | None = None) -> dict[str, float]:
        """Of the hidden nodes; nodes without edges have rows of zeros."""
        table = np.zeros((self.data.graph.num_nodes, rows.weights.shape[1]), np.float32)
        for own in (old, rows):
            if own is not None:
                table[own.node_ids] = own.weights
        return {"F1": self._f1(table), "AUC": self._auc(torch.from_numpy(table))}

    def _f1(self, table: np.ndarray) -> float:
        labels = self.data.labels
        assert labels is not None
        known = np.zeros(len(table), bool)
        known[labels.labelled()] = True
        train, test = np.flatnonzero(known & ~self.hidden), np.flatnonzero(known & self.hidden)
        truth = labels.to_matrix().toarray()
        if labels.is_single:
            model = fit_softmax(table[train], labels.to_single()[train], labels.num_classes)
        else:
            model = fit_one_vs_rest(table[train].astype(np.float64), truth[train])
        return f1(truth[test], top_k(model.decide(table[test].astype(np.float64)), truth[test].sum(axis=1)))[0]

    def _auc(self, table: torch.Tensor) -> float:
        centred = table - table.mean(dim=0)
        positive, negative = (
            (centred[pairs[:, 0]] * centred[pairs[:, 1]]).sum(dim=1) for pairs in (self.edges[2], self.negatives)
        )
        return roc_auc(positive, negative)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="blogcatalog")
    parser.add_argument("--root", default="../shared/data")
    parser.add_argument("--share", type=float, default=0.1, help="of the nodes that come later; default: %(default)s")
    parser.add_argument("--split", type=int, default=0, help="seed of which nodes come later; default: %(default)s")
    parser.add_argument("--order", choices=("random", "year"), default="random", help="of coming; default: %(default)s")
    parser.add_argument("--walks", type=int, default=80, help="from each node; default: %(default)s, DeepWalk's")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--olds", type=int, default=1, help="old runs; default: %(default)s")
    parser.add_argument("--again", type=int, default=0, help="seeds of training again; default: those of --seeds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-scores", action="store_true", help="times alone")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    dataset = ge.load_dataset(args.dataset, root=args.root)
    years = next(iter(dataset.graph.node_data.values()))["year"].ravel() if args.order == "year" else None
    growth = Growth.of(plain_dataset(dataset), args.share, args.split, years)
    with tempfile.TemporaryDirectory() as folder:
        report(measure(growth, Path(folder), args), args)


def measure(growth: Growth, folder: Path, args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Times and scores of each method, one a seed."""
    first, later, kept = growth.edges
    print(
        f"{args.dataset}: {growth.hidden.sum():,} of {len(growth.hidden):,} nodes come later, with {len(later):,} "
        f"edges; {len(kept):,} more are judged"
    )
    files = {}
    for name, edges in (("first", first), ("later", later), ("all", np.concatenate([first, later]))):
        files[name] = folder / f"{name}.csv"
        np.savetxt(files[name], edges, "%d", ",")
    options: dict[str, Any] = {"num_walks": args.walks, "threads": args.threads, "evaluate": False, "report": "none"}
    tiny = folder / "tiny.csv"  # compiles what is not yet
    np.savetxt(tiny, first[:100], "%d", ",")
    ge.pipeline("deepwalk", tiny, out=folder / "tiny", **{**options, "num_walks": 1})
    ge.infer(folder / "tiny", (np.array([10**9]), first[0, :1]))
    ge.continue_run(folder / "tiny", files["first"])
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(method: str, make: Callable[[], Embeddings | None], base: Embeddings | None = None) -> None:
        begin, spent = time.perf_counter(), time.process_time()
        rows = make()
        found[method]["s"].append(time.perf_counter() - begin)
        found[method]["cpu s"].append(time.process_time() - spent)
        assert rows is not None
        for name, score in {} if args.no_scores else growth.scores(rows, base).items():
            found[method][name].append(score)

    def go_on(place: Path, seed: int) -> Embeddings | None:
        return ge.continue_run(place, files["later"], seed=seed).embeddings

    def train_again(seed: int) -> Embeddings | None:
        return ge.pipeline("deepwalk", files["all"], seed=seed, **options).embeddings

    for number in range(args.olds):
        place = folder / f"old-{number}"
        old = ge.pipeline("deepwalk", files["first"], out=place, seed=100 + number, **options)
        for seed in range(args.seeds):
            both: dict[str, Any] = {"seed": seed, "num_threads": args.threads}
            for epochs, name in ((0, "neighbour mean"), (1, "infer")):
                add(name, partial(ge.infer, place, files["later"], epochs=epochs, **both), old.embeddings)
            add("going on", partial(go_on, place, seed))
            scores = {name: values[-1] for name, values in found["going on"].items()}
            print(f"old run {number}, seed {seed}:", scores, flush=True)
    for seed in range(args.again or args.seeds):
        add("trained again", partial(train_again, seed))
    return found


def report(found: dict[str, dict[str, list[float]]], args: argparse.Namespace) -> None:
    """Print means with unbiased standard deviations, and whether the aims are met."""
    again, rows = found["trained again"], []
    for method, own in found.items():
        row: dict[str, Any] = {"rows of new nodes": method}
        for name in TIMES:
            row[name], row[f"{name} / again"] = np.mean(own[name]), np.mean(own[name]) / np.mean(again[name])
        for name in [key for key in own if key not in TIMES]:
            std = np.std(own[name], ddof=1) if len(own[name]) > 1 else float("nan")
            row[name], row[f"{name} std"] = np.mean(own[name]), std
            row[f"{name} / again"] = row[name] / np.mean(again[name])
            row[f"{name}, stds below"] = (np.mean(again[name]) - row[name]) / np.std(again[name], ddof=1)
        rows.append(row)
    print(tabulate(rows, headers="keys", floatfmt=".4g"))
    print(f"aims: the mean at least {AIM_MEAN} of training again; going on within one std, in {AIM_TIME} of its time")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
