"""Several trainers of one thread against one, as a user types it: rates of ``graph-emb train``, in turns.

    python benchmarks/trainers.py --cases arxiv blogcatalog --modes collective kvstore
    python benchmarks/trainers.py --cases complex transe sage rgcn
    python benchmarks/trainers.py --cases planted --nodes 5000000 --edges 46000000 --repeats 1
    python benchmarks/trainers.py --cases buckets triples --nodes 250000 --edges 1000000
    sudo python benchmarks/trainers.py --cases arxiv --links 10gbit 1gbit

Every run is a command of its own, with its defaults and without judging. The rate counts what training counts (tokens
of walks, triples), else epochs, by the time that the run itself tells: without reading, cutting and saving. One trainer
and several take turns; the median of the ratios of neighbouring runs counts. ``planted`` is a graph that is generated,
``triples`` are random ones of as many entities and 20 relations. ``buckets`` and ``triples``, of collective mode alone,
train a bucket of eight parts on each trainer, and one trainer takes the same buckets in turn. With ``--links``
each of several trainers is on a host of its own, a network namespace of this machine that sends at
most so much and shares no memory with the others. Run on as many idle cores as trainers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import graphs as generated
import hosts_grid
import numpy as np
from tabulate import tabulate

from graph_emb.transport.link import Link

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.netns import network

BY_BUCKETS = "train.epochs=2 model.valid_every=0 train.buckets=8 train.at_once={trainers}"
CASES = {
    "arxiv": "deepwalk --dataset ogbn-arxiv model.num_walks=3",
    "arxiv-1": "deepwalk --dataset ogbn-arxiv model.num_walks=1",
    "blogcatalog": "deepwalk --dataset blogcatalog model.num_walks=8",
    "planted": "deepwalk --dataset {planted} model.num_walks=1",
    "complex": "complex --dataset fb15k237 train.epochs=2 model.valid_every=0",
    "transe": "transe --dataset fb15k237 train.epochs=2 model.valid_every=0",
    "buckets": f"complex --dataset fb15k237 {BY_BUCKETS}",
    "triples": "complex --dataset {triples} " + BY_BUCKETS,
    "sage": "sage --dataset ogbn-arxiv train.epochs=3 model.eval_every=3",
    "rgcn": "rgcn --dataset aifb",
}
MODES = {"collective": ["--mode", "collective"], "kvstore": ["--mode", "kvstore", "--servers", "1"]}
COMMON = ["--threads", "1", "--seed", "0", "--no-eval", "--quiet", "output.report=none"]


def rate_of(words: list[str], out: Path, hosts: int = 1, link: str | None = None) -> tuple[float, str]:
    """Tokens, triples or epochs a second of one run, and of its exchange; ends the benchmark where it fails."""
    command = ["train", *words, *COMMON, "--out", str(out)]
    if link is None:
        done = subprocess.run(
            [sys.executable, "-m", "graph_emb", *command], capture_output=True, text=True, check=False
        )
        ended = [(done.returncode, done.stderr)]
    else:
        with network(hosts) as net:
            for host in range(hosts) if link != "none" else ():
                net.throttle(host, round(Link.parse(link).gbit * 1_000))
            ended = hosts_grid.on_hosts(net, out.parent, command)
    if any(code for code, _ in ended):
        raise SystemExit(f"graph-emb {' '.join(words)}: {[said.strip().splitlines()[-1:] for _, said in ended]}")
    train = json.loads((out / "metrics.json").read_text())["train"]
    rates = [value for name, value in train.items() if name.endswith("_per_second") and value]
    return float(rates[0] if rates else 1 / train["seconds_per_epoch"]), _exchange(train)


def _exchange(train: dict[str, float]) -> str:
    """Bytes, seconds and what of them was hidden, as far as a run tells them."""
    told = []
    if train.get("bytes_sent") and train.get("tokens"):
        told.append(f"{train['bytes_sent'] / train['tokens']:.0f} bytes a token")
    if train.get("exchange_seconds"):
        told.append(
            f"{train['exchange_seconds']:.1f} of {train['seconds']:.1f} s exchange, {train['hidden_share']:.2f} hidden"
        )
    return ", ".join(told)


def measure(case: str, modes: list[str], args: argparse.Namespace, folder: Path) -> list[list[object]]:
    """A row of the table for each mode."""
    files = {"planted": folder / "planted.npz", "triples": folder / "triples.tsv"}
    words = [*CASES[case].format(**files, trainers=args.trainers).split(), "--root", str(Path(args.root).resolve())]
    layouts = {(mode, link): MODES[mode] for mode in modes for link in args.links or [None]}
    rates: dict[tuple[str, str | None], list[float]] = {layout: [] for layout in (("one", None), *layouts)}
    for repeat in range(args.repeats):
        for number, ((mode, link), found) in enumerate(rates.items()):
            more = [] if mode == "one" else ["--trainers", str(args.trainers), *MODES[mode], *args.more]
            rate, told = rate_of([*words, *more], folder / f"{case}-{number}-{repeat}", args.trainers, link)
            found.append(rate)
            print(case, mode, link or "", repeat, f"{rate:,.1f}", told, flush=True)
    one = rates.pop(("one", None))
    return [
        [case, mode, link, statistics.median(one), statistics.median(own), float(np.median(np.divide(own, one)))]
        for (mode, link), own in rates.items()
    ]


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["arxiv", "blogcatalog"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["collective"])
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--links", nargs="+", help="of hosts, such as 10gbit; none: between hosts, as fast as it goes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--root", default="../shared/data", help="folder of the data sets")
    parser.add_argument("--nodes", type=int, default=1_000_000, help="of the generated graph")
    parser.add_argument("--edges", type=int, default=9_200_000, help="of the generated graph")
    parser.add_argument("--more", nargs="*", default=[], help="key=value of several trainers")
    args = parser.parse_args()
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as name:
        if "planted" in args.cases:
            generated.write(Path(name, "planted.npz"), generated.planted(args.nodes, args.edges))
        if "triples" in args.cases:
            sizes, rng = (args.nodes, 20, args.nodes), np.random.default_rng(0)
            triples = np.stack([rng.integers(0, size, args.edges) for size in sizes], axis=1)
            np.savetxt(Path(name, "triples.tsv"), triples, "%d", "\t")
        for case in args.cases:
            rows += measure(case, args.modes, args, Path(name))
    headers = ["case", "mode", "link", "one, a second", f"{args.trainers}, a second", "gain"]
    print(tabulate(rows, headers, floatfmt=",.2f"))


if __name__ == "__main__":
    main()
