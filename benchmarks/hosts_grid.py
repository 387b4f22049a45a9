"""Every model in both modes on two hosts by the command line: trained, judged, one run folder, and which rows?

    sudo python benchmarks/hosts_grid.py --json hosts_grid.json

Hosts are network namespaces of this machine that share no memory, a trainer of one thread on each, in kvstore mode a
server too. Data sets are small ones that the tests write, in the layouts of their published versions, and ``digits``;
settings are the models' defaults but for sizes. Rows are compared with those of the same layout on one machine (two
trainers that exchange rows, two servers): in collective mode they must be equal, bit for bit; servers apply pushes as
they come, so rows of kvstore mode may differ by ten times as much as two runs of one machine do, or by 1e-5. Models
of one process must be refused in a line on both hosts. ``--json`` goes on with the rows of the table that the file has.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from graph_emb.config import MODELS
from graph_emb.transport.guard import new_token

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.graph.test_datasets import write_dbis
from tests.models.kge.references import ring
from tests.netns import Network, network
from tests.ogb_layout import write_ddi, write_mag

MODES = ("collective", "kvstore")
WALKS = "--dataset digits --dim 16 model.num_walks=2"
KGE = "--dataset ring --dim 8 model.num_negatives=4 model.chunk_size=2 train.batch_size=8 train.epochs=3"
NETWORK = "--dim 8 model.hidden_dim=8 train.epochs=3 model.eval_every=1 train.batch_size=16"
FAMILIES = {
    "walks": WALKS,
    "line": "--dataset digits --dim 16 model.draws_per_edge=2",
    "metapath": "--dataset dbis --dim 8 model.num_walks=2 model.walk_length=10",
    "kge": KGE,
    "sage": f"--dataset ogbl-ddi {NETWORK}",
    "rgcn": f"--dataset ogbn-mag {NETWORK}",
}
"""Settings by family, of graph networks by model."""
ALONE = ("links", "spectral")
"""Families of models that one process trains."""
LEAST = 1e-5


def write_data(root: Path) -> None:
    """The data sets that lie in a folder."""
    write_ddi(root)
    write_mag(root)
    write_dbis(root / "dbis")
    (root / "ring").mkdir()
    for part, triples in ring().parts.items():
        (root / "ring" / f"{part}.txt").write_text("".join("\t".join(map(str, t)) + "\n" for t in triples.tolist()))


def words_of(model: str, mode: str, root: Path, out: str) -> list[str]:
    """A run, without where its processes are."""
    settings = FAMILIES.get(model) or FAMILIES.get(MODELS[model].family, "--dataset digits")
    common = f"--root {root} --threads 1 --seed 1 --quiet --mode {mode} output.report=none --out {out}"
    return ["train", model, *settings.split(), *common.split()]


def on_hosts(net: Network, folder: Path, words: list[str]) -> list[tuple[int, str]]:
    """Exit code and output of the command on each host."""
    (folder / "hosts.txt").write_text("".join(f"{address}\n" for address in net.addresses))
    environment = {**os.environ, "GRAPH_EMB_TOKEN": new_token(), "GRAPH_EMB_SHARED_MEMORY": "0"}
    started = []
    for host in range(len(net.hosts)):
        command = net.on(host, [sys.executable, "-m", "graph_emb", *words, "--hosts", "hosts.txt"])
        with (folder / f"host-{host}").open("wb") as log:
            started.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment))
    codes = [process.wait() for process in started]
    return [(code, (folder / f"host-{host}").read_text(errors="replace")) for host, code in enumerate(codes)]


def on_one(folder: Path, words: list[str], mode: str) -> None:
    """The same layout on one machine."""
    layout = ["--trainers", "2", "parallel.hogwild=false", *(["--servers", "2"] if mode == "kvstore" else [])]
    command = [sys.executable, "-m", "graph_emb", *words, *layout]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}, on one machine: {done.stderr[-2000:]}")


def rows_of(run: Path) -> np.ndarray:
    """All rows that a run saved, one table after the other."""
    files = json.loads((run / "metrics.json").read_text())["files"]
    return np.concatenate([np.load(run / file).ravel() for file in sorted(files) if file.endswith("embeddings.npy")])


def compared(model: str, mode: str, root: Path) -> dict[str, Any]:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as place, network(2) as net:
        folder, begun = Path(place), time.monotonic()
        ended = on_hosts(net, folder, words_of(model, mode, root, "hosts"))
        found: dict[str, Any] = {"model": model, "mode": mode, "seconds": time.monotonic() - begun, "ok": False}
        errors = [[line for line in text.splitlines() if "error: " in line] for _, text in ended]
        if MODELS[model].family in ALONE:
            refused = [code for code, _ in ended] == [2, 2] and all(len(lines) == 1 for lines in errors)
            return {**found, "ok": refused, "rows": f"refused: {errors[0][0] if errors[0] else ended[0][1]}"}
        if [code for code, _ in ended] != [0, 0]:
            return {**found, "rows": f"exit codes {[code for code, _ in ended]}: {errors}"}
        metrics = json.loads((folder / "hosts" / "metrics.json").read_text())
        if metrics["status"] != "finished" or not metrics.get("evaluation"):
            return {**found, "rows": f"{metrics['status']}, evaluation {metrics.get('evaluation')}"}
        if [path.parent.name for path in folder.glob("*/metrics.json")] != ["hosts"]:
            return {**found, "rows": "more than one run folder"}
        for number in range(1 if mode == "collective" else 2):
            on_one(folder, words_of(model, mode, root, f"one-{number}"), mode)
        rows, first = rows_of(folder / "hosts"), rows_of(folder / "one-0")
        if mode == "collective":
            return {**found, "ok": np.array_equal(rows, first), "rows": _differ(rows, first)}
        spread = float(np.abs(rows_of(folder / "one-1") - first).max())
        differ = float(np.abs(rows - first).max())
        fine = bool(np.isfinite(rows).all()) and differ <= max(LEAST, 10 * spread)
        return {**found, "ok": fine, "rows": f"{_differ(rows, first)}; one machine from itself {spread:.1e}"}


def _differ(rows: np.ndarray, others: np.ndarray) -> str:
    most = float(np.abs(rows - others).max())
    return "equal" if most == 0.0 else f"{most:.1e} of {np.abs(others).max():.2f} at most"


def main() -> None:
    """Go over the grid and print it; exit code 1 where a cell is not well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after them")
    parser.add_argument("--json", type=Path, help="written after each cell, and gone on with")
    args = parser.parse_args()
    begun = time.monotonic()
    found: list[dict[str, Any]] = []
    if args.json is not None and args.json.exists():
        found = json.loads(args.json.read_text())
    known = {(one["model"], one["mode"]) for one in found}
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        write_data(root)
        for model in args.models:
            for mode in [mode for mode in args.modes if (model, mode) not in known]:
                if time.monotonic() - begun > 60 * args.minutes:
                    continue
                found.append(compared(model, mode, root))
                print(json.dumps(found[-1]), flush=True)
                if args.json is not None:
                    args.json.write_text(json.dumps(found, indent=1) + "\n")
    shown = [[one["model"], one["mode"], "yes" if one["ok"] else "NO", one["rows"], one["seconds"]] for one in found]
    print(tabulate(shown, ["model", "mode", "ok", "rows, beside one machine's", "s"], floatfmt=".1f"))
    sys.exit(not all(one["ok"] for one in found))


if __name__ == "__main__":
    main()
