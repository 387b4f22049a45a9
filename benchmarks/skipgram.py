"""Skip-gram on BlogCatalog: quality over training time, ours beside gensim, from one run.

    python benchmarks/skipgram.py --root ../shared/data --json skipgram.json

Corpus: 80 walks of 40 nodes from every node, window 10, 128 dimensions, negative sampling (gensim also hierarchical
softmax). Quality: micro-F1 at 50 % labels (one-vs-rest logistic regression, label counts given), in percent. The
clock stops while quality is measured. Our time includes walking; gensim's excludes it: its corpus, made by our walks,
waits in a file, which gensim reads faster than a list of sentences, and ``batch_words`` stays at 10,000, because
gensim drops what exceeds 10,000 words of a job. Compilation is warmed up before both. ``--skip-gensim`` leaves the
peer out (``pip install .[bench]``); ``--quality`` adds the settings that are tuned for the best scores, with node2vec.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from graph_emb.evaluate.node_classification import node_classification
from graph_emb.graph.csr import Graph
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.views import PlainDataset, plain_dataset
from graph_emb.models.skipgram.training import SkipGram, SkipGramConfig, SkipGramProgress, train_skipgram
from graph_emb.sampling.walks import WalkSampler

TARGET_RATIO = 0.3
OURS = {"ours": ({}, SkipGramConfig())}
QUALITY = {
    "ours, quality": ({}, SkipGramConfig(epochs=2, lr=0.02)),
    "ours, node2vec": ({"p": 0.25, "q": 0.25}, SkipGramConfig(epochs=2, lr=0.02)),
}
GENSIM: dict[str, dict[str, Any]] = {
    "gensim sgns": {"negative": 5, "alpha": 0.025, "epochs": 3},
    "gensim sgns, 2 negatives": {"negative": 2, "alpha": 0.05, "epochs": 2},
    "gensim hs": {"hs": 1, "negative": 0, "alpha": 0.025, "epochs": 2},
    "gensim hs, twice the rate": {"hs": 1, "negative": 0, "alpha": 0.05, "epochs": 1},
}
"""Defaults of word2vec, and what did best of alpha 0.025 and 0.05, 5 or 2 negatives and hs on 4 walks a node."""


class Curve:
    """Points (seconds of training, tokens, micro-F1, macro-F1) of one system."""

    def __init__(self, name: str, dataset: PlainDataset, shuffles: int) -> None:
        self.name = name
        self.points: list[dict[str, float]] = []
        self._labels, self._shuffles = dataset.labels, shuffles

    def add(self, seconds: float, tokens: int, rows: Any, shuffles: int | None = None) -> None:
        """Measure rows (N, D), in the order of nodes."""
        result = node_classification(rows, self._labels, ratios=(0.5,), shuffles=shuffles or self._shuffles)
        (scores,) = result.table
        point = {
            "seconds": seconds,
            "tokens": tokens,
            "micro": 100 * scores.micro_mean,
            "macro": 100 * scores.macro_mean,
            "shuffles": shuffles or self._shuffles,
        }
        self.points.append(point)
        print(f"{self.name:28s} {seconds:8.1f} s  micro {point['micro']:.2f}  macro {point['macro']:.2f}", flush=True)

    def seconds_to(self, target: float) -> float | None:
        """Training time of the first point at or above the target."""
        return next((point["seconds"] for point in self.points if point["micro"] >= target), None)


def sampler(graph: Graph, args: argparse.Namespace, **options: float) -> WalkSampler:
    """The walks of the comparison."""
    return WalkSampler(graph, num_walks=args.num_walks, walk_length=args.walk_length, seed=args.seed, **options)


def ours(
    name: str, dataset: PlainDataset, options: dict[str, float], config: SkipGramConfig, args: argparse.Namespace
) -> Curve:
    """Our training, with a point every ``--every`` seconds and one at the end."""
    curve = Curve(name, dataset, args.curve_shuffles)
    model = SkipGram(dataset.graph.num_nodes, config, seed=args.seed)

    def measure(line: SkipGramProgress) -> None:
        if line.walks < config.epochs * walks.num_walks_per_epoch:
            curve.add(line.seconds, line.tokens, model.embeddings().numpy())

    begin = time.perf_counter()
    walks = sampler(dataset.graph, args, **options)
    prepared = time.perf_counter() - begin
    result = train_skipgram(
        walks,
        model=model,
        seed=args.seed,
        num_threads=args.threads,
        progress=False,
        log_interval=args.every,
        on_batch=measure,
    )
    last = result.history[-1]
    curve.add(prepared + last.seconds, last.tokens, model.embeddings().numpy(), args.shuffles)
    return curve


def warm_up(args: argparse.Namespace) -> float:
    """Seconds to compile or load our kernels."""
    begin = time.perf_counter()
    ring = Graph.from_edges(np.arange(64), (np.arange(64) + 1) % 64)
    for p in (1.0, 0.5):
        walks = WalkSampler(ring, num_walks=1, walk_length=args.walk_length, p=p)
        train_skipgram(walks, SkipGramConfig(), num_threads=args.threads, progress=False)
    return time.perf_counter() - begin


def write_corpus(dataset: PlainDataset, args: argparse.Namespace, path: Path) -> int:
    """The walks of one epoch as lines of words; returns the number of words."""
    tokens = 0
    with path.open("w", encoding="utf-8") as file:
        for batch in sampler(dataset.graph, args).batches():
            for walk in batch.tolist():
                words = [str(node) for node in walk if node >= 0]
                tokens += len(words)
                file.write(" ".join(words) + "\n")
    return tokens


def gensim_peer(
    name: str, settings: dict[str, Any], dataset: PlainDataset, corpus: Path, tokens: int, args: argparse.Namespace
) -> Curve:
    """``gensim.models.Word2Vec`` on the same corpus in every epoch, with a point after each."""
    from gensim.models import Word2Vec
    from gensim.models.callbacks import CallbackAny2Vec

    curve = Curve(name, dataset, args.shuffles)
    options = dict(settings)
    if args.epochs is not None:
        options["epochs"] = args.epochs
    model = Word2Vec(
        vector_size=args.dim, window=args.window, min_count=0, sg=1, sample=0, workers=args.threads, seed=args.seed,
        **options,
    )  # fmt: skip
    model.build_vocab(corpus_file=str(corpus))

    class Clock(CallbackAny2Vec):
        """Takes a point after each epoch with the clock stopped."""

        def __init__(self) -> None:
            self.seconds, self.epoch, self.begin = 0.0, 0, time.perf_counter()

        def on_epoch_end(self, model: Any) -> None:
            self.seconds += time.perf_counter() - self.begin
            self.epoch += 1
            order = np.array([model.wv.key_to_index[str(node)] for node in range(dataset.graph.num_nodes)])
            curve.add(self.seconds, self.epoch * tokens, model.wv.vectors[order])
            self.begin = time.perf_counter()

    model.train(
        corpus_file=str(corpus),
        total_words=tokens,
        total_examples=model.corpus_count,
        epochs=model.epochs,
        callbacks=[Clock()],
    )
    return curve


def peers(dataset: PlainDataset, args: argparse.Namespace) -> list[Curve]:
    """Curves of all gensim settings that were asked for."""
    if args.skip_gensim:
        return []
    try:
        import gensim
    except ImportError as error:
        print(f"gensim: skipped, {error}")
        return []
    print(f"gensim {gensim.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "walks.txt")
        tokens = write_corpus(dataset, args, corpus)
        return [gensim_peer(name, GENSIM[name], dataset, corpus, tokens, args) for name in args.gensim]


def report(curves: list[Curve], target: float) -> dict[str, Any]:
    """Print time to the target of every system and the ratio; returns them."""
    reached = {curve.name: curve.seconds_to(target) for curve in curves}
    mine = reached["ours"]
    rows = [
        [
            curve.name,
            curve.points[-1]["seconds"],
            curve.points[-1]["tokens"] / curve.points[-1]["seconds"] / 1e6,
            curve.points[-1]["micro"],
            curve.points[-1]["macro"],
            reached[curve.name],
        ]
        for curve in curves
    ]
    print(tabulate(rows, ["system", "s", "M tokens/s", "micro-F1 %", "macro-F1 %", f"s to {target:g}"], floatfmt=".2f"))
    others = [seconds for name, seconds in reached.items() if name.startswith("gensim") and seconds is not None]
    ratio = mine / min(others) if mine is not None and others else None
    if ratio is not None:
        print(f"time to micro-F1 {target:g} %: ours / best of gensim = {ratio:.3f} (target: at most {TARGET_RATIO})")
    return {"target": target, "seconds_to_target": reached, "ratio": ratio}


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of the data sets; default $GRAPH_EMB_DATA")
    parser.add_argument("--dataset", default="blogcatalog", help="a graph with node labels")
    parser.add_argument("--target", type=float, default=39.5, help="micro-F1 in percent")
    parser.add_argument("--num-walks", type=int, default=80)
    parser.add_argument("--walk-length", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between points of our curve")
    parser.add_argument("--shuffles", type=int, default=10, help="label splits of a last or gensim point")
    parser.add_argument("--curve-shuffles", type=int, default=3, help="label splits of our points on the way")
    parser.add_argument("--epochs", type=int, help="epochs of every gensim setting; default: its own")
    parser.add_argument("--gensim", nargs="*", default=list(GENSIM), choices=list(GENSIM), help="settings to run")
    parser.add_argument("--skip-gensim", action="store_true")
    parser.add_argument("--quality", action="store_true", help="also our settings for the best scores")
    parser.add_argument("--json", type=Path, help="also write the numbers there")
    args = parser.parse_args()
    default = SkipGramConfig()
    args.dim, args.window = default.dim, default.window
    dataset = plain_dataset(load_dataset(args.dataset, args.root))
    print(f"kernels ready after {warm_up(args):.1f} s")
    wanted = {**OURS, **(QUALITY if args.quality else {})}
    curves = [ours(name, dataset, options, config, args) for name, (options, config) in wanted.items()]
    curves += peers(dataset, args)
    summary = report(curves, args.target)
    if args.json:
        options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        configs = {name: {**walks, **config.model_dump(mode="json")} for name, (walks, config) in wanted.items()}
        record = {
            "options": options,
            "settings": {**configs, **({} if args.skip_gensim else {name: GENSIM[name] for name in args.gensim})},
            "curves": {curve.name: curve.points for curve in curves},
            **summary,
        }
        args.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
