"""DeepWalk and node2vec in one process, on two ranks and with two trainers and a server: are the embeddings as good?

    python benchmarks/walk_modes.py --root ../shared/data --seeds 3 --json walk_modes.json

Every run is the command ``graph-emb train`` as a user types it. BlogCatalog is judged by the micro-F1 at half of the
labels (10 shuffles), ogbl-ddi by the area under the curve of its test edges against its test non-edges, by dot
products. Mean and unbiased standard deviation are over the seeds; a mode is as good as one process where its mean is at
most one standard deviation (that of one process) below.
"""

from __future__ import annotations

import argparse
import json
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
MODELS = {"deepwalk": [], "node2vec": ["model.p=0.25", "model.q=0.25"]}
BLOGCATALOG = ["model.num_walks=20", "evaluate.ratios=[0.5]", "evaluate.shuffles=10"]


def micro_f1(evaluation: dict[str, Any]) -> float:
    """Micro-F1 at half of the labels, in percent."""
    return 100 * evaluation["node_classification"]["ratios"][0]["micro_mean"]


def test_auc(evaluation: dict[str, Any]) -> float:
    """Area under the curve of the test edges, in percent."""
    return 100 * evaluation["link_prediction"]["parts"]["test"]["metrics"]["auc"]["value"]


DATASETS: dict[str, tuple[list[str], str, Callable[[dict[str, Any]], float]]] = {
    "blogcatalog": (BLOGCATALOG, "micro-F1 %", micro_f1),
    "ogbl-ddi": ([], "test AUC %", test_auc),
}


def trained(model: str, dataset: str, mode: str, seed: int, root: str) -> float:
    """The figure of one run; ends the benchmark where the command fails."""
    options, _, figure = DATASETS[dataset]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        words = ["train", model, "--dataset", dataset, "--root", root, "--threads", "1", "--seed", str(seed)]
        words += ["--out", str(out), *MODES[mode], *MODELS[model], *options]
        done = subprocess.run([sys.executable, "-m", "graph_emb", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"graph-emb {' '.join(words)}: {done.stderr.strip().splitlines()[-1]}")
        return figure(json.loads((out / "metrics.json").read_text())["evaluation"])


def main() -> None:
    """Run the modes in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="../shared/data", help="folder of the data sets")
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to this - 1, at least 2")
    parser.add_argument("--json", help="write every figure to this file")
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error(f"--seeds {args.seeds}: a standard deviation needs at least 2")
    lines, rows = [], []
    for dataset in args.datasets:
        for model in args.models:
            found: dict[str, list[float]] = {mode: [] for mode in MODES}
            for seed in range(args.seeds):
                for mode in MODES:
                    found[mode].append(trained(model, dataset, mode, seed, args.root))
            least = statistics.mean(found["local"]) - statistics.stdev(found["local"])
            for mode, figures in found.items():
                mean = statistics.mean(figures)
                lines.append({"dataset": dataset, "model": model, "mode": mode, "figures": figures})
                verdict = "" if mode == "local" else "yes" if mean >= least else "NO"
                shown = f"{mean:.2f} +- {statistics.stdev(figures):.2f}"
                rows.append([dataset, model, DATASETS[dataset][1], mode, shown, verdict])
                print(f"{dataset} {model} {mode}: {shown} {verdict}", flush=True)
    print(tabulate(rows, ["graph", "model", "figure", "mode", "mean +- std", "within one std"]))
    if args.json:
        Path(args.json).write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
