"""Entry of the command line: parse and run one command."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence

from graph_emb.cli.parser import build_parser, parse
from graph_emb.core.imports import resolve
from graph_emb.core.terminal import exit_code, notes_shown, progress_shown
from partition.cli import COMMANDS as partition_commands

COMMANDS = {
    "demo": "graph_emb.cli.demo:run",
    "train": "graph_emb.cli.train:run",
    "estimate": "graph_emb.cli.train:estimate",
    "tune": "graph_emb.cli.tune:run",
    "launch": "graph_emb.cli.launch:run",
    "infer": "graph_emb.cli.train:infer",
    "eval run": "graph_emb.cli.evaluate:run_again",
    "eval node-class": "graph_emb.cli.evaluate:run",
    "eval link": "graph_emb.cli.evaluate:run",
    "neighbors": "graph_emb.cli.evaluate:neighbors",
    "report": "graph_emb.cli.report:report",
    "compare": "graph_emb.cli.report:compare",
    "export": "graph_emb.cli.inspect:export",
    "checkpoint inspect": "graph_emb.cli.inspect:inspect",
    "checkpoint merge": "graph_emb.cli.inspect:merge",
    "info": "graph_emb.cli.info:info",
    "completion": "graph_emb.cli.completion:run",
    "doctor": "graph_emb.cli.doctor:run",
    "ogb report": "graph_emb.cli.inspect:ogb_report",
    "partition ship": "graph_emb.cli.launch:ship",
    **{f"partition {name}": "partition.cli:run" for name in partition_commands},
}
"""The function of each command; it takes the arguments and returns the exit code. Imported when it is chosen."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments after the program's name; None takes those of the process.
    Returns:
        0 on success, 2 on bad input or a full disk or memory, 3 where a peer is lost, 130 after Ctrl-C.
    """
    return exit_code(_run, argv, "graph-emb", "use a smaller model.dim or a smaller graph")


def _run(words: list[str]) -> int:
    args = parse(words)
    args.argv = words
    if args.version:
        from importlib.metadata import version

        print(f"graph-emb {version('graph_emb')}")
        return 0
    if args.command is None:
        build_parser()[0].print_help()
        return 0
    args.quiet = getattr(args, "quiet", False)
    atexit.register(gc.freeze)  # the end of a process looks for garbage in all of torch: half a second
    with notes_shown(not args.quiet), progress_shown(not args.quiet):
        code: int = resolve(COMMANDS[args.command])(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
