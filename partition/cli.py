"""The commands of ``python -m partition`` and ``graph-emb partition``; nothing heavy is imported to parse."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from graph_emb.core.command_line import BAD_INPUT, INTERRUPTED, Parser, one_line
from graph_emb.core.errors import ConfigError, GraphEmbError
from graph_emb.core.yaml_text import parse_yaml

if TYPE_CHECKING:
    from partition.partitioned import PartitionedGraph

SOURCE = (
    "an edge list, a folder, a data set of OGB, a saved DGL or networkx graph, metadata.json of DGL's chunked format"
)
PARTITION = "the folder of a partition, or the JSON in it"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments after the program's name; None takes those of the process.
    Returns:
        0 on success, 2 on bad input or a full disk or memory, 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _parser().parse_args(words)
        return run(args)
    except KeyboardInterrupt:
        print("partition: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (GraphEmbError, OSError, MemoryError) as error:
        if "--debug" in words:
            raise
        print(f"partition: error: {one_line(error, 'use fewer threads or a machine with more')}", file=sys.stderr)
        return BAD_INPUT


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
    for name, (text, add_arguments) in COMMANDS.items():
        add_arguments(commands.add_parser(name, help=text, description=text, parents=[everywhere]))
    return top


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the partition")
    parser.add_argument("--overwrite", action="store_true", help="replace a partition that is in --out")


def _add_methods(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", metavar="N", type=int, required=True, help="number of parts")
    parser.add_argument("--method", help="how nodes are assigned; default: auto, which says why")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="an option of the method; may be repeated"
    )
    parser.add_argument(
        "--balance",
        metavar="A,B",
        help="nodes, edges, type:<node type>, train, valid, test, weight:<column>; default: nodes,edges",
    )
    parser.add_argument(
        "--tolerance", metavar="T", help="what a part may hold above the mean, or NAME=T,NAME=T; default: 0.05"
    )
    parser.add_argument("--seed", type=int, help="default: 0")
    parser.add_argument("--threads", metavar="N", type=int, help="default: all cores")
    parser.add_argument(
        "--edge-owner",
        help="whose part owns a cut edge: destination (default), source, balanced",
    )
    _add_layout(parser)
    parser.add_argument("--graphbolt", action="store_true", help="add the sampling graphs of dgl.graphbolt")
    parser.add_argument("--allow-empty", action="store_true", help="accept parts without rows of a type that has data")
    parser.add_argument("--no-report", action="store_true", help="write no report.json, report.html and timings.json")


def _add_layout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--halo", help="dgl (default): every edge with an end inside; inbound: in-edges only")
    parser.add_argument("--hops", metavar="N", type=int, help="in-edges of how many steps away are kept; default: 1")


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--read", metavar="KEY=VALUE", action="append", default=[], help="an option of the reader; may be repeated"
    )
    parser.add_argument(
        "--trust-pickle",
        dest="read",
        action="append_const",
        const="trust_pickle=true",
        help="read a pickled graph, which can run any code",
    )


def _build_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="GRAPH", help=SOURCE)
    _add_methods(parser)
    _add_output(parser)
    parser.add_argument("--name", help="the graph's name in DGL; default: from the source")
    parser.add_argument(
        "--memory", metavar="SIZE", help="hold at most this much, such as 2GB; for edge lists with integer ids"
    )
    _add_reading(parser)


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="DIR", help=PARTITION)
    parser.add_argument("--json", metavar="FILE", help="write the numbers there as well")
    parser.add_argument("--html", metavar="FILE", help="write the page with charts there")


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="DIR", help=PARTITION)
    parser.add_argument("--graph", metavar="GRAPH", help="compare every edge, column and id with this graph")
    parser.add_argument("--no-checksums", action="store_true", help="compare sizes of files only")
    _add_reading(parser)


def _repartition_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="DIR", help=PARTITION)
    _add_methods(parser)
    _add_output(parser)


def _convert_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FROM", help=f"{PARTITION}; for chunked also {SOURCE}")
    parser.add_argument("out", metavar="TO", help="folder to write")
    parser.add_argument("--to", required=True, help="dgl, graphbolt, chunked or assignment")
    _add_layout(parser)
    parser.add_argument("--chunks", metavar="N", type=int, help="files per type and column of chunked; default: 1")
    parser.add_argument("--edge-format", help="parquet (default) or csv, for chunked")
    parser.add_argument("--overwrite", action="store_true", help="replace a partition that is in TO")
    _add_reading(parser)


COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "build": ("partition a graph and write it in DGL's distributed format", _build_arguments),
    "report": ("cut, balance, halo and expected remote rows of a partition", _report_arguments),
    "verify": ("check files, ranges, halo, edges, data and id maps of a partition", _verify_arguments),
    "repartition": ("partition the graph of a partition anew", _repartition_arguments),
    "convert": ("write a partition or a graph in another form", _convert_arguments),
}
"""Help text of each command, and the function that adds its arguments to a parser."""


def _build(args: argparse.Namespace) -> int:
    from partition.building import build
    from partition.streaming.shared_stages import Workers

    made = build(args.source, **_build_options(args))
    if args.memory is None or Workers.of_environment().rank == 0:  # the workers of a build say the same
        _say_built(made)
    return 0


def _repartition(args: argparse.Namespace) -> int:
    from partition.building import repartition

    _say_built(repartition(args.source, **_build_options(args)))
    return 0


def _report(args: argparse.Namespace) -> int:
    from partition.partitioned import load
    from partition.report import report, to_html
    from partition.verification import verify

    verify(args.source, progress=_progress(args)).raise_problems()
    whole = load(args.source)
    found = report(whole.to_graph(), whole.assignment(), edge_owner=whole.edge_owner, progress=_progress(args))
    if args.json:
        found.to_json(args.json)
    if args.html:
        to_html(found, args.html)
    print(found.table())
    return 0


def _verify(args: argparse.Namespace) -> int:
    from partition.verification import verify

    graph = None
    if args.graph is not None:
        from graph_emb.graph.datasets import read_source
        from partition.options import READ_ARGUMENTS, refuse_arguments

        options = _options(args.read, "--read")
        refuse_arguments("--read", options, READ_ARGUMENTS)
        graph = read_source(args.graph, progress=_progress(args), **options)
    elif args.read:
        raise ConfigError("--read has no effect without --graph")
    found = verify(args.source, graph, checksums=not args.no_checksums, progress=_progress(args))
    found.raise_problems()
    print("sound: " + ", ".join(f"{number:,} {what}" for what, number in found.checked.items()))
    return 0


def _convert(args: argparse.Namespace) -> int:
    from partition.conversion import convert

    place = convert(
        args.source,
        args.out,
        args.to,
        halo=args.halo,
        num_hops=args.hops,
        num_chunks=args.chunks,
        edge_format=args.edge_format,
        reader_options=_options(args.read, "--read"),
        overwrite=args.overwrite,
        progress=_progress(args),
    )
    print(place)
    return 0


_RUN = {"build": _build, "report": _report, "verify": _verify, "repartition": _repartition, "convert": _convert}


def _build_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, by their names in ``BuildOptions``; the others keep the defaults there."""
    options = {
        "num_parts": args.parts,
        "method": args.method,
        "out": args.out,
        "name": getattr(args, "name", None),
        "balance": None if args.balance is None else tuple(_words(args.balance)),
        "tolerance": _tolerance(args.tolerance),
        "seed": args.seed,
        "num_threads": args.threads,
        "method_options": _options(args.set, "--set"),
        "reader_options": _options(getattr(args, "read", []), "--read"),
        "edge_owner": args.edge_owner,
        "halo": args.halo,
        "num_hops": args.hops,
        "graphbolt": args.graphbolt,
        "allow_empty": args.allow_empty,
        "report": False if args.no_report else None,
        "memory": getattr(args, "memory", None),
        "overwrite": args.overwrite,
        "progress": _progress(args),
    }
    return {name: value for name, value in options.items() if value is not None}


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _tolerance(text: str | None) -> float | dict[str, float] | None:
    """A number, or ``nodes=0.03,edges=0.1``."""
    if text is None:
        return None
    try:
        if "=" not in text:
            return float(text)
        return {name: float(number) for name, _, number in (word.partition("=") for word in _words(text))}
    except ValueError:
        raise ConfigError(f"--tolerance {text!r}: write a number, or name=number,name=number") from None


def _options(words: list[str], flag: str) -> dict[str, Any]:
    """``key=value`` words; a value is YAML: numbers, true, null and [lists] keep their kinds."""
    found = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{flag} {word!r}: write key=value")
        try:
            found[key] = parse_yaml(text)
        except ConfigError as error:
            raise ConfigError(f"{flag} {word[:60]!r}: no YAML value ({error})") from error
    return found


def _progress(args: argparse.Namespace) -> bool | None:
    return False if args.quiet else None


def _say_built(made: PartitionedGraph) -> None:
    """Print the facts of a new partition."""
    from partition.manifest import TIMINGS, read_json

    assert made.manifest is not None
    method = made.manifest.made
    why = f" ({method['why']})" if method["why"] else ""
    print(f"{made.path}: {made.num_nodes():,} nodes and {made.num_edges():,} edges in {made.num_parts} parts")
    print(f"method: {method['method']}{why}, seed {method['seed']}")
    timings = made.path / TIMINGS
    if timings.exists():
        took = read_json(timings)
        print(
            f"time: {took['assign_seconds']:.2f} s, memory: {took['assign_peak_bytes'] / 2**30:.2f} GB above the graph"
        )
    if (made.path / "report.html").exists():
        print(f"report: {made.path / 'report.html'}")
