"""The commands of ``python -m partition`` and ``graph-emb partition``; nothing heavy is imported to parse."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from graph_emb.core.errors import ConfigError
from graph_emb.core.imports import resolve
from graph_emb.core.terminal import Parser, exit_code, listed
from graph_emb.core.yaml_text import parse_yaml

if TYPE_CHECKING:
    from partition.partitioned import PartitionedGraph

SOURCE = (
    "a data set that graph-emb train knows, an edge list, a folder, a saved DGL or networkx graph, metadata.json of "
    "DGL's chunked format"
)
ROOT = "folder of the known data sets; default: $GRAPH_EMB_DATA"
PARTITION = "the folder of a partition, or the JSON in it"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments after the program's name; None takes those of the process.
    Returns:
        0 on success, 2 on bad input or a full disk or memory, 130 after Ctrl-C.
    """
    more = "use fewer threads or a machine with more"
    return exit_code(lambda words: run(_parser().parse_args(words)), argv, "partition", more)


def run(args: argparse.Namespace) -> int:
    """Run the command that ``args.command`` names (its last word)."""
    return _RUN[args.command.split()[-1]](args)


def _parser() -> Parser:
    everywhere = Parser(add_help=False)
    everywhere.add_argument("--debug", action="store_true", help="show tracebacks")
    everywhere.add_argument("-q", "--quiet", action="store_true", help="no progress")
    top = Parser(prog="python -m partition", description="Partition graphs for distributed DGL.")
    commands = top.add_subparsers(
        metavar="COMMAND", title="commands", dest="command", required=True, parser_class=Parser
    )
    for name, (text, _) in COMMANDS.items():
        add_arguments(commands.add_parser(name, help=text, description=text, parents=[everywhere]), name)
    return top


Rows = dict[str, dict[str, Any]]
"""Arguments of a command: flag or name, and what argparse takes; their ``dest`` is the parameter in the library."""


_NUMBER: dict[str, Any] = {"metavar": "N", "type": int}
_PAIRS: dict[str, Any] = {"metavar": "KEY=VALUE", "action": "append", "default": []}
_OUTPUT: Rows = {
    "--out": dict(help="folder of the partition", metavar="DIR", required=True),
    "--overwrite": dict(help="replace a partition that is in --out", action="store_true"),
}
_LAYOUT: Rows = {
    "--halo": dict(help="dgl (default): every edge with an end inside; inbound: in-edges only"),
    "--hops": dict(help="in-edges of how many steps away are kept; default: 1", dest="num_hops", **_NUMBER),
}
_METHODS: Rows = {
    "--parts": dict(help="number of parts; default: the first of --levels", dest="num_parts", **_NUMBER),
    "--levels": dict(help="numbers of parts of a nested partition, such as 8,64,512", metavar="A,B"),
    "--method": dict(help="how nodes are assigned; default: auto, which says why"),
    "--set": dict(help="an option of the method; may be repeated", dest="method_options", **_PAIRS),
    "--balance": dict(
        help="nodes, edges, type:<node type>, train, valid, test, weight:<column>; default: nodes,edges", metavar="A,B"
    ),
    "--tolerance": dict(help="what a part may hold above the mean, or NAME=T,NAME=T; default: 0.05", metavar="T"),
    "--seed": dict(help="default: 0", type=int),
    "--threads": dict(help="default: all cores", dest="num_threads", **_NUMBER),
    "--edge-owner": dict(help="whose part owns a cut edge: destination (default), source, balanced"),
    **_LAYOUT,
    "--trainers-per-machine": dict(
        help="pieces of each part, named by the columns trainer_id of nodes and edges; default: 1",
        dest="num_trainers_per_machine",
        **_NUMBER,
    ),
    "--graph-formats": dict(help="what parts hold their edges as: coo (default), csr, csc", metavar="A,B"),
    "--graphbolt": dict(help="add the sampling graphs of dgl.graphbolt", action="store_true"),
    "--allow-empty": dict(help="accept parts without rows of a type that has data", action="store_true"),
    "--no-report": dict(
        help="write no report.json, report.html and timings.json", dest="report", action="store_false", default=None
    ),
}
_READING: Rows = {
    "--read": dict(help="an option of the reader; may be repeated", dest="reader_options", **_PAIRS),
    "--trust-pickle": dict(dest="reader_options", action="append_const", const="trust_pickle=true")
    | dict(help="read a pickled graph, which can run any code"),
}
_ROOT: Rows = {
    "--root": dict(help=ROOT, dest="reader_options", type=lambda text: f"root={json.dumps(text)}")
    | dict(metavar="DIR", action="append", default=[])
}
_SOURCE: Rows = {"source": dict(help=PARTITION, metavar="DIR")}
COMMANDS: dict[str, tuple[str, Rows]] = {
    "build": (
        "partition a graph and write it in DGL's distributed format",
        {
            "graph": dict(help=SOURCE, metavar="GRAPH"),
            **_METHODS,
            **_OUTPUT,
            "--name": dict(help="the graph's name in DGL; default: from the source"),
            "--memory": dict(
                help="hold at most this much, such as 2GB; for edge lists with integer ids", metavar="SIZE"
            ),
            **_READING,
            **_ROOT,
        },
    ),
    "report": (
        "cut, balance, halo and expected remote rows of a partition",
        {
            **_SOURCE,
            "--json": dict(help="write the numbers there as well", metavar="FILE"),
            "--html": dict(help="write the page with charts there", metavar="FILE"),
        },
    ),
    "verify": (
        "check files, ranges, halo, edges, data and id maps of a partition",
        {
            **_SOURCE,
            "--graph": dict(help="compare every edge, column and id with this graph", metavar="GRAPH"),
            "--no-checksums": dict(help="compare sizes of files only", action="store_true"),
            **_READING,
            **_ROOT,
        },
    ),
    "repartition": ("partition the graph of a partition anew", {**_SOURCE, **_METHODS, **_OUTPUT}),
    "extend": (
        "add new nodes and edges to a partition; no node that was there moves",
        {
            **_SOURCE,
            "--edges": dict(
                help="new edges by the ids of the input; other ids are new nodes: an edge list, or any graph",
                dest="new_edges",
                metavar="GRAPH",
                required=True,
            ),
            **{flag: _METHODS[flag] for flag in ("--balance", "--tolerance", "--seed", "--threads")},
            "--compare": dict(help="also partition the grown graph anew, to compare the cut", action="store_true"),
            **_LAYOUT,
            **{
                flag: _METHODS[flag]
                for flag in ("--edge-owner", "--levels", "--graph-formats", "--graphbolt", "--allow-empty")
            },
            "--no-report": _METHODS["--no-report"],
            **_OUTPUT,
            **_READING,
        },
    ),
    "convert": (
        "write a partition or a graph in another form",
        {
            "source": dict(help=f"{PARTITION}; for chunked also {SOURCE}", metavar="FROM"),
            "out": dict(help="folder to write", metavar="TO"),
            "--to": dict(help="dgl, graphbolt, chunked or assignment", required=True),
            **_LAYOUT,
            "--chunks": dict(help="files per type and column of chunked; default: 1", dest="num_chunks", **_NUMBER),
            "--edge-format": dict(help="parquet (default) or csv, for chunked"),
            "--overwrite": dict(help="replace a partition that is in TO", action="store_true"),
            **_READING,
            **_ROOT,
        },
    ),
}
"""Help text and arguments of each command."""


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Give a parser the arguments of a command."""
    for flag, settings in COMMANDS[command][1].items():
        parser.add_argument(flag, **settings)


_BUILDS = {
    "build": "partition.building:build",
    "repartition": "partition.building:repartition",
    "extend": "partition.extending:extend",
}
"""Commands that write a partition, and their functions."""


def _build(args: argparse.Namespace) -> int:
    from partition.streaming.shared_stages import Workers

    function = resolve(_BUILDS[args.command.split()[-1]])
    made = function(**_arguments(args, function))
    streamed = getattr(args, "memory", None) is not None
    if not streamed or Workers.of_environment().rank == 0:  # the workers of a build say the same
        _say_built(made)
    return 0


def _report(args: argparse.Namespace) -> int:
    from partition.partitioned import load
    from partition.report import report, to_html
    from partition.verification import verify

    verify(args.source, progress=_progress(args)).raise_problems()
    whole = load(args.source)
    made = {} if whole.manifest is None else whole.manifest.made
    levels = made.get("levels", {}).get("of", ())
    options = {"edge_owner": whole.edge_owner, "levels": levels, "progress": _progress(args)}
    found = report(whole.to_graph(), whole.assignment(), **options)
    if args.json:
        found.to_json(args.json)
    if args.html:
        to_html(found, args.html)
    print(found.table())
    return 0


def _verify(args: argparse.Namespace) -> int:
    from partition.options import READ_ARGUMENTS, refuse_arguments
    from partition.verification import verify

    options = _options(args.reader_options, "--read")
    refuse_arguments("--read", options, READ_ARGUMENTS)
    if options and args.graph is None:
        raise ConfigError("--read has no effect without --graph")
    shown, checksums = _progress(args), not args.no_checksums
    found = verify(args.source, args.graph, checksums=checksums, reader_options=options, progress=shown)
    found.raise_problems()
    print("sound: " + ", ".join(f"{number:,} {what}" for what, number in found.checked.items()))
    return 0


def _convert(args: argparse.Namespace) -> int:
    from partition.conversion import convert

    print(convert(**_arguments(args, convert)))
    return 0


_RUN = {
    "build": _build,
    "report": _report,
    "verify": _verify,
    "repartition": _build,
    "extend": _build,
    "convert": _convert,
}


def _arguments(args: argparse.Namespace, function: Callable[..., object]) -> dict[str, Any]:
    """What was given of a function's parameters; the others keep the defaults there."""
    texts: dict[str, Callable[[Any], Any]] = {
        "balance": lambda text: tuple(listed(text)),
        "graph_formats": lambda text: tuple(listed(text)),
        "levels": _levels,
        "tolerance": _tolerance,
        "method_options": partial(_options, flag="--set"),
        "reader_options": partial(_options, flag="--read"),
    }
    given = {name: getattr(args, name, None) for name in inspect.signature(function).parameters}
    given["progress"] = _progress(args)
    return {name: texts[name](value) if name in texts else value for name, value in given.items() if value is not None}


def _levels(text: str) -> tuple[int, ...]:
    """``8,64,512``."""
    try:
        return tuple(int(word) for word in listed(text))
    except ValueError:
        raise ConfigError(f"--levels {text!r}: write numbers of parts, such as 8,64,512") from None


def _tolerance(text: str) -> float | dict[str, float]:
    """A number, or ``nodes=0.03,edges=0.1``."""
    try:
        if "=" not in text:
            return float(text)
        return {name: float(number) for name, _, number in (word.partition("=") for word in listed(text))}
    except ValueError:
        raise ConfigError(f"--tolerance {text!r}: write a number, or name=number,name=number") from None


def _options(words: list[str], flag: str) -> dict[str, Any]:
    """``key=value`` words; a value is YAML: numbers, true, null and [lists] keep their kinds."""
    found = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{flag} {word!r}: write key=value")
        if key in found:
            raise ConfigError(f"{key} is given twice, the second time as {text}; leave one of them out")
        try:
            found[key] = parse_yaml(text)
        except ConfigError as error:
            raise ConfigError(f"{flag} {word[:60]!r}: no YAML value ({error})") from error
    return found


def _progress(args: argparse.Namespace) -> bool | None:
    return False if args.quiet else None


def _say_built(made: PartitionedGraph) -> None:
    """Print the facts of a new partition."""
    from graph_emb.core.storage import read_json
    from partition.manifest import TIMINGS
    from partition.report.report import level_text

    assert made.manifest is not None
    method = made.manifest.made
    why = f" ({method['why']})" if method["why"] else ""
    print(f"{made.path}: {made.num_nodes():,} nodes and {made.num_edges():,} edges in {made.num_parts} parts")
    print(f"method: {method['method']}{why}, seed {method['seed']}")
    for level in method.get("levels", {}).get("of", ()):
        print(f"level of {level['num_parts']:,} parts: {level_text(level)}")
    timings = made.path / TIMINGS
    if timings.exists():
        took = read_json(timings)
        print(
            f"time: {took['assign_seconds']:.2f} s, memory: {took['assign_peak_bytes'] / 2**30:.2f} GB above the graph"
        )
    if (made.path / "report.html").exists():
        print(f"report: {made.path / 'report.html'}")
