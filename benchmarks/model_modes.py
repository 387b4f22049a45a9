"""Every family of models in one process, on two ranks and with two trainers and a server: are they as good?

    python benchmarks/model_modes.py --root ../shared/data --seeds 3 --json model_modes.json
    python benchmarks/model_modes.py --datasets umls aifb --seeds 10
    python benchmarks/model_modes.py --datasets fb15k237 --parts 2 4

Every run is the command ``graph-emb train`` as a user types it, with the options of ``DATASETS``, for short runs.
BlogCatalog is judged by the micro-F1 at half of the labels (10 shuffles); walk models on ogbl-ddi by Hits@20, the
data set's own measure, and the area under the curve, each by plain dot products (what the command does unless told
otherwise) and by a logistic regression on the products of two rows; GraphSAGE there by Hits@100; knowledge graphs by
the filtered MRR; AIFB by accuracy; dbis by the clusters of its venues; all but these on the test part. Ranks
of walk models and knowledge graphs change the same rows in place, and trainers with servers those of walk models; with
``--exchange`` they exchange rows. With ``--parts``
there are as many trainers as parts, which follow a partition by ``--method``, in collective mode. Mean and
unbiased standard deviation are over the seeds; a mode is as good as one process where its mean is at most one
standard deviation (that of one process) below.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tabulate import tabulate

MODES = {
    "local": [],
    "collective": ["--trainers", "2", "--mode", "collective"],
    "kvstore": ["--trainers", "2", "--servers", "1", "--mode", "kvstore"],
}
Figures = dict[str, float]


def evaluation(folder: Path) -> dict[str, Any]:
    """What a run says of itself."""
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())["evaluation"]
    return found


def of_labels(folder: Path, root: str) -> Figures:
    """Micro-F1 at half of the labels."""
    return {"micro-F1": 100 * evaluation(folder)["node_classification"]["ratios"][0]["micro_mean"]}


def of_triples(folder: Path, root: str) -> Figures:
    """Filtered, both sides, realistic ties."""
    return {"MRR": 100 * evaluation(folder)["triples_test"]["both"]["mrr"]["realistic"]}


def of_network(folder: Path, root: str) -> Figures:
    """The last metric of the data set, at the best validation value where there is a validation part."""
    summary = evaluation(folder)["graph_network"]["summary"]
    name = list(summary)[-1]
    return {name: 100 * summary[name]["test"]["mean"]}


def of_venues(folder: Path, root: str) -> Figures:
    """Mutual information of k-means clusters and areas."""
    return {"NMI": 100 * evaluation(folder)["clusters_venue"]["nmi_mean"]}


def of_links(folder: Path, root: str) -> Figures:
    """Of the test edges, by both scorers."""
    found = {}
    for scorer in ("dot", "hadamard-logreg"):
        file = folder / f"{scorer}.json"
        run(["eval", "link", "--embeddings", str(folder), "--root", root, "--scorer", scorer, "--json", str(file)])
        metrics = json.loads(file.read_text())["parts"]["test"]["metrics"]
        found[f"Hits@20, {scorer}"] = 100 * metrics["hits@20"]["value"]
        found[f"AUC, {scorer}"] = 100 * metrics["auc"]["value"]
    return found


WALKS = {"deepwalk": [], "node2vec": ["model.p=0.25", "model.q=0.25"]}
LABELS = ["evaluate.ratios=[0.5]", "evaluate.shuffles=10"]
SMALL = ["model.dim=64", "model.num_negatives=64", "model.chunk_size=128", "train.batch_size=256", "train.epochs=10"]

DATASETS: dict[str, dict[str, tuple[list[str], Callable[[Path, str], Figures]]]] = {
    "blogcatalog": {
        **{model: ([*own, "model.num_walks=20", *LABELS], of_labels) for model, own in WALKS.items()},
        "line": (["model.draws_per_edge=20", *LABELS], of_labels),
    },
    "ogbl-ddi": {
        **{model: (own, of_links) for model, own in WALKS.items()},
        "sage": (["model.dim=32", "model.hidden_dim=32", "train.epochs=20"], of_network),
    },
    "umls": {
        **{model: ([*SMALL, "train.lr=0.02"], of_triples) for model in ("transe", "rotate")},
        **{model: (SMALL, of_triples) for model in ("distmult", "complex", "simple")},
    },
    "fb15k237": {
        model: (["model.dim=128", "train.epochs=4", "model.valid_every=0"], of_triples)
        for model in ("complex", "transe")
    },
    "aifb": {"rgcn": ([], of_network)},
    "dbis": {"metapath2vec": (["model.num_walks=2"], of_venues)},
}
"""Options and figures, in percent, of each model on each data set."""
IN_PLACE = ("deepwalk", "node2vec", "line", "metapath2vec", "transe", "rotate", "distmult", "complex", "simple")
"""Models whose trainers may exchange rows or share them."""


def run(words: list[str]) -> None:
    """A command of graph-emb; ends the benchmark where it fails."""
    done = subprocess.run([sys.executable, "-m", "graph_emb", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"graph-emb {' '.join(words)}: {done.stderr.strip().splitlines()[-1]}")


def trained(
    model: str, dataset: str, words_of_mode: list[str], seed: int, root: str, given: list[str], more: list[str]
) -> Figures:
    """The figures of one run; ``given`` are options of all, ``more`` of several processes."""
    options, figures = DATASETS[dataset][model]
    options = [*options, *given]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        words = ["train", model, "--dataset", dataset, "--root", root, "--threads", "1", "--seed", str(seed)]
        run([*words, "--out", str(out), *words_of_mode, *options, *(more if words_of_mode else [])])
        return figures(out, root)


def modes_of_parts(dataset: str, root: str, parts: list[int], method: str, folder: Path) -> dict[str, list[str]]:
    """One process, and trainers by partitions that are built here, one for each of these numbers of parts."""
    found: dict[str, list[str]] = {"local": []}
    for number in parts:
        out = str(folder / f"{dataset}-{number}")
        run(["partition", "build", dataset, "--parts", str(number), "--method", method, "--no-report", "--out", out])
        found[f"{number} parts"] = ["--trainers", str(number), "--mode", "collective", "--partition", out]
    return found


def verdicts(dataset: str, model: str, found: dict[str, list[Figures]]) -> list[list[str]]:
    """A row of the table for each figure and mode."""
    rows = []
    for name in found["local"][0]:
        values = {mode: [one[name] for one in figures] for mode, figures in found.items()}
        least = statistics.mean(values["local"]) - statistics.stdev(values["local"])
        for mode, own in values.items():
            verdict = "" if mode == "local" else "yes" if statistics.mean(own) >= least else "NO"
            shown = f"{statistics.mean(own):.2f} +- {statistics.stdev(own):.2f}"
            rows.append([dataset, model, f"{name} %", mode, shown, verdict])
    return rows


def main() -> None:
    """Run the modes in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="../shared/data", help="folder of the data sets")
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    models = sorted({model for models in DATASETS.values() for model in models})
    parser.add_argument("--models", nargs="+", choices=models, default=models)
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to this - 1, at least 2")
    parser.add_argument("--exchange", action="store_true", help="several processes exchange rows")
    parser.add_argument("--exchange-walks", type=int, help="walks of a process between two exchanges")
    parser.add_argument("--parts", type=int, nargs="+", help="trainers that follow the parts of as large a partition")
    parser.add_argument("--method", default="multilevel", help="of that partition")
    parser.add_argument("--options", nargs="+", default=[], help="key=value of every run, over those of DATASETS")
    parser.add_argument("--json", help="write every figure to this file")
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error(f"--seeds {args.seeds}: a standard deviation needs at least 2")
    os.environ["GRAPH_EMB_DATA"] = args.root  # for partition build
    lines: list[dict[str, Any]] = []
    rows: list[list[str]] = []
    in_place = ["parallel.hogwild=false"] * args.exchange
    if args.exchange_walks:
        in_place.append(f"parallel.exchange_walks={args.exchange_walks}")
    with tempfile.TemporaryDirectory() as folder:
        for dataset in args.datasets:
            modes = MODES
            if args.parts:
                modes = modes_of_parts(dataset, args.root, args.parts, args.method, Path(folder))
            for model in [model for model in DATASETS[dataset] if model in args.models]:
                more = in_place if model in IN_PLACE else []
                found: dict[str, list[Figures]] = {mode: [] for mode in modes}
                for seed in range(args.seeds):
                    for mode, words in modes.items():
                        found[mode].append(trained(model, dataset, words, seed, args.root, args.options, more))
                        print(dataset, model, mode, seed, found[mode][-1], flush=True)
                lines += [{"dataset": dataset, "model": model, "mode": m, "figures": one} for m, one in found.items()]
                rows += verdicts(dataset, model, found)
    print(tabulate(rows, ["graph", "model", "figure", "mode", "mean +- std", "within one std"]))
    if args.json:
        Path(args.json).write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
