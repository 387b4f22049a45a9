"""The grammar of the command line. It imports nothing heavy, so that --help and a typing error answer at once."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any

from graph_emb.core.errors import ConfigError, nearest
from graph_emb.core.terminal import Parser, listed
from graph_emb.run.launch.flags import (
    HOST_INDEX,
    HOSTS,
    JOB_FLAGS,
    OVERSUBSCRIBE,
    Flags,
    add_flags,
    add_placing,
    add_restarts,
)
from partition.cli import COMMANDS as partition_commands
from partition.cli import ROOT
from partition.cli import add_arguments as add_partition_arguments

MODELS_HELP = (
    "deepwalk, node2vec, line, mf, metapath2vec, transe, distmult, complex, rotate, simple, rgcn, sage, netmf or prone"
)
PRESET_HELP = "settings of MODEL that were chosen on a data set, such as codex_s; train MODEL --help names them"
OVERRIDES = "key=value sets any field of the configuration, such as train.lr=0.05 or model.window=5"
EMBEDDINGS = "a run folder, or a folder or file that graph-emb exported"
OF_RUN = "default: what the run was trained on"
RAW = argparse.RawDescriptionHelpFormatter
LAUNCH_USAGE = "graph-emb launch [--hosts FILE] [options] -- (train MODEL ... | SCRIPT.py ...)"
DATASET = (
    "a known data set or a path: edge list (csv, tsv, txt, gz, parquet), npz, mat, DGL or networkx file, folder of "
    "triples, of RDF or of a partition"
)

LABELS = "node labels: a row for each node, its id and its classes; perhaps a column split"
SPLIT = "parts of the labelled nodes: rows id,part (train, valid, test), npz masks, or a folder of train and test"
TEST_EDGES = "edges (or triples) kept out of training to judge links: rows source,target[,part], of test or valid"
NEW_EDGES = "edges that the data set lacks, by its ids; other ids are new nodes; may be given again"
TRUST_PICKLE = "read a pickled graph, which can run any code"


TRAINS = ("train", "estimate", "tune")
"""Commands that take a whole configuration."""


def parse(argv: list[str]) -> argparse.Namespace:
    """The parsed command line; ``command`` names the subcommand and ``overrides`` holds every key=value.

    Raises:
        ConfigError: a subcommand, flag or value is unknown or missing.
    """
    parser, leaves = build_parser()
    at = next((place for place, word in enumerate(argv) if not word.startswith("-")), len(argv))  # past -q, --debug
    command, words = argv[at : at + 1], argv[at + 1 :]
    judged = next((word for word in words if not word.startswith("-")), None) if command == ["eval"] else None
    if judged is not None and f"eval {judged}" not in leaves and (os.sep in judged or os.path.exists(judged)):
        argv = [*argv[:at], "eval", "run", *words]
    _refuse_unknown_flags(argv, leaves)
    if command == ["train"] and {"-h", "--help"} & set(words):
        leaves["train"].epilog = _epilog_of(words)
    args, rest = parser.parse_known_args(argv)
    _refuse_empty_words(args, leaves)
    overrides = [word for word in rest if "=" in word and args.command in (*TRAINS, "eval run")]
    unexpected = [word for word in rest if word not in overrides]
    if unexpected:
        hint = "; key=value belongs to graph-emb train" if "=" in unexpected[0] else ""
        raise ConfigError(f"unexpected argument {unexpected[0]!r}{hint}; see {leaves[args.command].prog} --help")
    args.overrides = overrides
    if args.command in TRAINS and args.model and "=" in args.model:
        args.overrides, args.model = [args.model, *overrides], None  # train --config FILE key=value
    return args


def _refuse_empty_words(args: argparse.Namespace, leaves: dict[str | None, Parser]) -> None:
    """``--out "$PLACE"`` of a shell where PLACE is not set would be the default, and a path the current folder."""
    for dest, name in leaves[args.command].names().items() if args.command else ():
        value = getattr(args, dest, None)
        if value == "" or (isinstance(value, list) and "" in value):
            raise ConfigError(f"{name} is empty; give a value or leave it out")


def _epilog_of(words: list[str]) -> str:
    """The end of the help of ``train``: the settings of the model that the line names."""
    model = next((word for word in words if word in re.findall(r"\w+", MODELS_HELP)), None)
    if model is None:
        return f"{OVERRIDES};\ngraph-emb train MODEL --help lists those of a model"
    from graph_emb.config.reference import help_of  # half a second: other helps do without

    return help_of(model)


def _refuse_unknown_flags(argv: list[str], leaves: dict[str | None, Parser]) -> None:
    """Named before a missing argument is, which is often the one with the typing error."""
    words = [word for word in argv if not word.startswith("-")]
    fitting = [name for name in leaves if name and words[: len(name.split())] == name.split()]
    leaf = leaves[fitting[0] if fitting else None]
    for word in argv:
        flag = word.partition("=")[0]
        if word == "--":
            return
        if re.match(r"-\D", word) and flag not in leaf.flags():
            near = nearest(flag, leaf.flags())
            hint = f"did you mean {near}?" if near else f"see {leaf.prog} --help"
            raise ConfigError(f"unknown flag {flag!r} ({hint})")


def build_parser() -> tuple[Parser, dict[str | None, Parser]]:
    """The top parser and the parser of each command by its full name, such as ``eval link``."""
    everywhere = Parser(add_help=False)
    everywhere.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    everywhere.add_argument("-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help="no progress")
    top = Parser(prog="graph-emb", description="Train, judge and export node embeddings.", parents=[everywhere])
    top.add_argument("--version", action="store_true", help="print the version and leave")
    top.set_defaults(command=None)
    commands = top.add_subparsers(metavar="COMMAND", title="commands", parser_class=Parser)
    leaves: dict[str | None, Parser] = {None: top}

    def leaf(group: Any, name: str, text: str, full_name: str, **options: Any) -> Parser:
        parser = group.add_parser(name, help=text, description=text, parents=[everywhere], **options)
        parser.set_defaults(command=full_name)
        leaves[full_name] = parser
        return parser

    _demo(leaf(commands, "demo", "train and judge DeepWalk on scikit-learn's digits, in under a minute", "demo"))
    usage = "graph-emb train [MODEL] --dataset NAME [--out DIR] [options] [key=value ...]"
    _train(leaf(commands, "train", "train embeddings of a graph", "train", usage=usage, formatter_class=RAW))
    _estimate(leaf(commands, "estimate", "measure a few seconds of a training: memory, disk, time", "estimate"))
    search_usage = "graph-emb tune [MODEL] --dataset NAME --trials N [--out DIR] [options] [key=value ...]"
    _tune(leaf(commands, "tune", "search for settings by validation", "tune", usage=search_usage, epilog=SEARCHED))
    judge = commands.add_parser("eval", help="judge embeddings", description="Judge embeddings.")
    kinds = judge.add_subparsers(metavar="TASK", title="tasks", required=True, parser_class=Parser)
    run_usage = "graph-emb eval RUN [options] [evaluate.KEY=VALUE ...]"
    _eval_run(leaf(kinds, "run", "judge a run again, as after its training", "eval run", usage=run_usage))
    _node_class(leaf(kinds, "node-class", "node classification from frozen embeddings", "eval node-class"))
    _link(leaf(kinds, "link", "link prediction by the dot product of two embeddings", "eval link"))
    _infer(leaf(commands, "infer", "rows of nodes that a run did not have, from their edges", "infer"))
    _neighbors(leaf(commands, "neighbors", "print the nearest rows of some nodes", "neighbors"))
    _report(leaf(commands, "report", "write the page of a run, report.html, again", "report"))
    _compare(leaf(commands, "compare", "put runs side by side: scores, costs, differing settings", "compare"))
    _launch(leaf(commands, "launch", "start a job on one or many machines and watch it", "launch", usage=LAUNCH_USAGE))
    _export(leaf(commands, "export", "write embeddings by original id", "export"))
    saved = commands.add_parser("checkpoint", help="look into checkpoints", description="Look into checkpoints.")
    looks = saved.add_subparsers(metavar="TASK", title="tasks", required=True, parser_class=Parser)
    _inspect(leaf(looks, "inspect", "print what a checkpoint holds and verify its checksums", "checkpoint inspect"))
    _merge(leaf(looks, "merge", "write the full checkpoint that a base and its deltas are", "checkpoint merge"))
    _info(leaf(commands, "info", "describe this installation, a data set, a run or embeddings", "info"))
    _doctor(leaf(commands, "doctor", "describe this installation and find what killed processes left", "doctor"))
    _completion(leaf(commands, "completion", "print a script that completes commands in a shell", "completion"))
    board = commands.add_parser("ogb", help="records for OGB's leaderboards", description="Records for leaderboards.")
    boards = board.add_subparsers(metavar="TASK", title="tasks", required=True, parser_class=Parser)
    _ogb_report(leaf(boards, "report", "the record that a leaderboard asks for, or what it forbids", "ogb report"))
    cut = commands.add_parser("partition", help="partition graphs for distributed DGL", description="Partition graphs.")
    cuts = cut.add_subparsers(metavar="TASK", title="tasks", required=True, parser_class=Parser)
    for name, (text, _) in partition_commands.items():
        add_partition_arguments(leaf(cuts, name, text, f"partition {name}"), name)
    _ship(leaf(cuts, "ship", "copy each machine of a job the parts that its trainers take", "partition ship"))
    return top, leaves


def _demo(parser: Parser) -> None:
    parser.add_argument(
        "--out", metavar="DIR", help="run folder; default: runs/demo, where a new demo replaces the old"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a run that is in --out")
    parser.add_argument("--seed", default="0", help="default: %(default)s")


TRAIN_FLAGS: Flags = {
    "dataset": ("dataset.name", str, "NAME", DATASET),
    "root": ("dataset.root", str, "DIR", ROOT),
    "checkpoint_every": ("checkpoint.every", str, "N", "save every N steps, or 90s, 10m, 2h; beside --out"),
    "seed": ("seed", None, None, "walks, first rows, negatives and splits follow from it; default: 0"),
    "dim": ("model.dim", None, None, "width of an embedding"),
    "epochs": ("train.epochs", None, None, "passes over the walks"),
    "rule": ("train.rule", None, None, "sgd, adagrad, row_adagrad, adam, adamw, row_adam, lamb, row_lamb or lars"),
    "lr": ("train.lr", None, None, "learning rate"),
    "threads": ("train.threads", None, None, "of each trainer; default: all cores, shared evenly"),
    **JOB_FLAGS,
    "formats": ("output.formats", listed, "A,B", "npy, parquet, word2vec, pt; default: npy"),
    "trackers": ("output.trackers", listed, "A,B", "tensorboard, mlflow, wandb (each needs its extra)"),
    "download": ("dataset.download", True, None, "fetch a known data set that is missing"),
    "labels": ("dataset.labels", str, "FILE", LABELS),
    "split": ("dataset.split", str, "FILE", SPLIT),
    "test_edges": ("dataset.test_edges", str, "FILE", TEST_EDGES),
    "hold_out": ("dataset.hold_out", None, "SHARE", "edges kept out of training to judge link prediction"),
    "directed": ("model.symmetrize", False, None, "walk along the edges only, not against them"),
    "trust_pickle": ("dataset.trust_pickle", True, None, TRUST_PICKLE),
    "no_eval": ("evaluate.enabled", False, None, "do not evaluate after training"),
}
"""Flags of ``train`` that set a field."""


OF_TUNE = (
    "dataset",
    "root",
    "seed",
    "dim",
    "epochs",
    "rule",
    "lr",
    "threads",
    "download",
    "labels",
    "split",
    "directed",
)
TUNE_FLAGS: Flags = {name: TRAIN_FLAGS[name] for name in OF_TUNE}
"""Those of ``train`` that mean something to a search."""
SEARCHED = "a setting that is given, by a flag or key=value, is not searched"


def _tune(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODELS_HELP)
    parser.add_argument("--config", metavar="FILE", help="YAML, whose settings of the model are not searched")
    parser.add_argument("--out", metavar="DIR", help="folder of the search; default: searches/<model>-<data set>")
    parser.add_argument(
        "--trials", metavar="N", type=int, default=30, help="with those there are; default: %(default)s"
    )
    parser.add_argument("--hours", metavar="H", type=float, help="begin no trial later than this")
    parser.add_argument(
        "--metric", metavar="NAME", default="valid", help="such as valid.mrr; default: the data's usual"
    )
    ranges = "its values in place of the model's: model.window=2,5,10 or train.lr=0.01:0.3:log; may be given again"
    parser.add_argument("--search", metavar="NAME=RANGE", action="append", default=[], help=ranges)
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="trials at a time, each in its own process")
    parser.add_argument("--resume", action="store_true", help="go on with the search in --out")
    add_flags(parser, TUNE_FLAGS)


def _train(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODELS_HELP)
    recipe = "a published recipe in place of model and data set, such as ogbl-ddi/deepwalk; key=value changes it"
    parser.add_argument("--recipe", metavar="NAME", help=recipe)
    chosen = "of --recipe, for the record: the part by whose values settings were chosen among several; default: none"
    parser.add_argument("--settings-selected-on", choices=("none", "valid", "test"), help=chosen)
    parser.add_argument("--preset", metavar="NAME", help=PRESET_HELP)
    parser.add_argument("--out", metavar="DIR", help="run folder; default: runs/<model>-<data set>")
    parser.add_argument("--overwrite", action="store_true", help="replace a run that is in --out")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint beside --out")
    parser.add_argument("--config", metavar="FILE", help="YAML, such as the config.yaml of an earlier run")
    old = "go on with this run of deepwalk, node2vec or line, as it was set, where the graph changed; see --new-edges"
    parser.add_argument("--from", metavar="RUN", dest="from_run", help=old)
    parser.add_argument("--new-edges", metavar="FILE", action="append", default=[], help=NEW_EDGES)
    parser.add_argument("--seeds", metavar="A,B", help="0,1,2 or 0-9: a run for each below --out, then mean and std")
    add_placing(parser)
    add_restarts(parser)
    add_flags(parser, TRAIN_FLAGS)


def _estimate(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODELS_HELP)
    parser.add_argument("--preset", metavar="NAME", help=PRESET_HELP)
    parser.add_argument("--config", metavar="FILE", help="YAML, such as the config.yaml of an earlier run")
    parser.add_argument("--seconds", metavar="S", type=float, help="of training to measure; default: 8")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there as well")
    parser.add_argument(
        "--hosts",
        metavar="N",
        dest="num_hosts",
        type=int,
        help="of deepwalk, node2vec and triples: seconds and bytes on N machines like this one, with a trainer each",
    )
    parser.add_argument("--link", metavar="RATE", help="between them: 10gbit (default), 250mbit, or 10gbit,80us")
    add_flags(parser, TRAIN_FLAGS)
    parser.set_defaults(recipe=None, hosts=None, from_run=None, new_edges=[], settings_selected_on=None)


def _ship(parser: Parser) -> None:
    parser.add_argument("source", metavar="DIR", help="the folder of a partition, whole")
    parser.add_argument("--hosts", metavar="FILE", required=True, help=HOSTS)
    parser.add_argument("--host-index", metavar="I", type=int, help=HOST_INDEX)
    parser.add_argument("--trainers", metavar="N", type=int, help="of the job, over all machines, as train takes it")
    parser.add_argument("--to", metavar="DIR", help="the folder on each machine; default: where DIR is here")


def _report(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    drawn = "pca, tsne or umap (pip install umap-learn); default: tsne for up to 1,000 labelled rows, else pca"
    parser.add_argument("--map", metavar="NAME", help=drawn)
    parser.add_argument("--root", metavar="DIR", help=ROOT)


def _compare(parser: Parser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folders, two at least")
    parser.add_argument("--html", metavar="FILE", help="write a page with the curves of all")
    parser.add_argument("--json", metavar="FILE", help="write the numbers and settings there as well")


def _launch(parser: Parser) -> None:
    add_placing(parser)
    add_restarts(parser)
    parser.add_argument("--trainers", metavar="N", type=int, default=1, help="of each machine; default: %(default)s")
    parser.add_argument("--servers", metavar="N", type=int, default=0, help="of each machine, for kvstore mode")
    parser.add_argument("--partition", metavar="DIR", help="the servers hold its graph, for a script with DistGraph")
    parser.add_argument("--oversubscribe", action="store_true", help=OVERSUBSCRIBE)
    parser.add_argument("--threads", metavar="N", type=int, help="of each trainer; default: the cores, shared evenly")
    parser.add_argument("--logs", metavar="DIR", default="logs", help="a file for each process; default: %(default)s")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="train ..., or a Python script")


def _judged(parser: Parser) -> None:
    parser.add_argument("--embeddings", metavar="DIR", required=True, help=EMBEDDINGS)
    parser.add_argument("--json", metavar="FILE", help="write the table's numbers there as well")


def _infer(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder of deepwalk or node2vec")
    edges = "edges of the new nodes, by the ids of its graph; an edge list, or any graph that train reads"
    parser.add_argument("--edges", metavar="FILE", required=True, help=edges)
    parser.add_argument("--out", metavar="DIR", help="folder for the rows of the new nodes; default: RUN-infer")
    passes = "over walks from each new node; 0: from its neighbours' rows alone; default: %(default)s"
    parser.add_argument("--epochs", metavar="N", type=int, default=1, help=passes)
    parser.add_argument("--seed", metavar="N", type=int, help="of walks and negatives; default: the run's")
    parser.add_argument("--threads", metavar="N", type=int, help="default: all cores; 1 repeats a seed bit by bit")
    parser.add_argument("--formats", metavar="A,B", default="npy", help="npy, parquet, word2vec, pt; default: npy")
    parser.add_argument("--overwrite", action="store_true", help="replace files of the same name in --out")


def _eval_run(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder, of any model")
    parser.add_argument("--root", metavar="DIR", help=ROOT)
    parser.add_argument("--threads", metavar="N", type=int, help="default: those of the run")
    parser.add_argument("--json", metavar="FILE", help="write the evaluations there as well")


def _node_class(parser: Parser) -> None:
    _judged(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--labels", metavar="FILE", help=LABELS)
    source.add_argument("--dataset", metavar="NAME", help=f"take the labels of this data set; {OF_RUN}")
    parser.add_argument("--root", metavar="DIR", help=ROOT)
    parser.add_argument("--split", metavar="FILE", help=f"accuracy on its test nodes, not F1 of shares; {SPLIT}")
    parser.add_argument("--ratios", metavar="A,B", help="shares of nodes to train on; default: 0.1,0.2,...,0.9")
    parser.add_argument("--shuffles", help="random splits per ratio; default: 10")
    parser.add_argument("--seed", help="of the splits; default: 0")


def _link(parser: Parser) -> None:
    _judged(parser)
    parser.add_argument("--dataset", metavar="NAME", help=f"a data set with held-out edges; {OF_RUN}")
    parser.add_argument("--test-edges", metavar="FILE", help="held-out edges of --dataset: rows source,target[,part]")
    parser.add_argument("--root", metavar="DIR", help=ROOT)
    parser.add_argument("--hits", metavar="K,K", help="the K of Hits@K; default: 10,20,50,100")
    parser.add_argument("--scorer", help="centred-dot, dot, cosine or hadamard-logreg; default: centred-dot")


def _neighbors(parser: Parser) -> None:
    parser.add_argument("embeddings", metavar="RUN", help=EMBEDDINGS)
    parser.add_argument("--id", metavar="ID", action="append", default=[], help="of a node; may be given again")
    parser.add_argument("-k", metavar="K", type=int, default=10, help="neighbours of each; default: %(default)s")
    parser.add_argument("--metric", default="cosine", help="cosine, dot or euclidean; default: %(default)s")
    parser.add_argument("--table", metavar="NAME", help="of a run, such as relation; default: its main one")
    parser.add_argument("--index", default="exact", help="exact, hnswlib or faiss; default: %(default)s")
    parser.add_argument("--effort", metavar="N", type=int, help="candidates of a search by an index; default: 200")
    parser.add_argument("--save-index", metavar="FILE", help="write the index, with or without --id")
    parser.add_argument("--load-index", metavar="FILE", help="an index that --save-index wrote, instead of building it")
    parser.add_argument("--json", metavar="FILE", help="write the table's numbers there as well")


def _export(parser: Parser) -> None:
    parser.add_argument("source", metavar="SOURCE", help=f"{EMBEDDINGS}; a checkpoint, or a folder of checkpoints")
    parser.add_argument("--format", required=True, choices=["npy", "parquet", "word2vec", "pt"], help="file format")
    parser.add_argument("--table", metavar="NAME", help="which one; default: a run's main, a checkpoint's only table")
    ids = "of a checkpoint's rows: a .npy file, a run or export of the graph; default: ids/<table>.npy beside it"
    parser.add_argument("--ids", metavar="PATH", help=ids)
    parser.add_argument("--out", metavar="DIR", required=True, help="folder to write to")
    parser.add_argument("--overwrite", action="store_true", help="replace files of the same name")


def _inspect(parser: Parser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a checkpoint, or a folder of checkpoints: the newest one")
    parser.add_argument("--json", metavar="FILE", nargs="?", const="-", help="print JSON, or write it to FILE as well")


def _merge(parser: Parser) -> None:
    parser.add_argument("base", metavar="BASE", help="a full checkpoint")
    parser.add_argument("deltas", metavar="DELTA", nargs="+", help="the deltas that follow it, in order")
    parser.add_argument("--out", metavar="DIR", required=True, help="the new checkpoint; one of that name is replaced")


def _info(parser: Parser) -> None:
    parser.add_argument("target", metavar="WHAT", nargs="?", help="data set name or path, run or embeddings folder")
    parser.add_argument("--root", metavar="DIR", help=ROOT)
    parser.add_argument("--trust-pickle", action="store_true", help=TRUST_PICKLE)


def _doctor(parser: Parser) -> None:
    looked = "look there and in the folders directly in it; default: the working folder, runs and $TMPDIR"
    parser.add_argument("folders", metavar="DIR", nargs="*", help=looked)
    parser.add_argument("--clean", action="store_true", help="remove what killed processes left, and nothing else")
    parser.add_argument("--jobs", action="store_true", help="try a job of two trainers in each mode, too")


def _completion(parser: Parser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=["bash", "zsh", "fish"], help="bash, zsh or fish")


def _ogb_report(parser: Parser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder of a method's seeds, as examples/ogb writes it")
    parser.add_argument("--partial", action="store_true", help="accept fewer seeds, or others; the record then says so")
    parser.add_argument("--markdown", metavar="FILE", help="write the text there as well")
    parser.add_argument("--json", metavar="FILE", help="write the record there as well")
    tried = "values that were compared, such as predictor.lr=0.001,0.01; may be given again"
    parser.add_argument("--tried", metavar="SETTING=V,V", action="append", default=[], help=tried)
    for name, text in (("method", "name of the row"), ("contact", "name and address"), ("code", "public repository")):
        parser.add_argument(f"--{name}", metavar="TEXT", help=text)
    parser.add_argument("--paper", metavar="URL", help="of the method")
    parser.add_argument("--external-data", action="store_true", help="more than the data set was learned from")
