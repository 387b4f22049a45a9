"""Entry of the command line: parse, run one command, and turn every failure into an exit code and one line."""

from __future__ import annotations

import io
import os
import pkgutil
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence

from graph_emb.cli.parser import build_parser, parse
from graph_emb.core.errors import GraphEmbError
from graph_emb.core.interrupts import raising
from graph_emb.core.terminal import BAD_INPUT, INTERRUPTED, one_line
from partition.cli import COMMANDS as partition_commands

COMMANDS = {
    "demo": "graph_emb.cli.demo.run",
    "train": "graph_emb.cli.train.run",
    "launch": "graph_emb.cli.launch.run",
    "eval node-class": "graph_emb.cli.evaluate.run",
    "eval link": "graph_emb.cli.evaluate.run",
    "export": "graph_emb.cli.inspect.export",
    "checkpoint inspect": "graph_emb.cli.inspect.inspect",
    "info": "graph_emb.cli.inspect.info",
    "ogb report": "graph_emb.cli.inspect.ogb_report",
    **{f"partition {name}": "partition.cli.run" for name in partition_commands},
}
"""The function of each command; it takes the arguments and returns the exit code. Imported when it is chosen."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments after the program's name; None takes those of the process.
    Returns:
        0 on success, 2 on bad input or a full disk or memory, 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal's encoding lacks is shown escaped
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    noted: list[int] = []

    def note(number: int) -> KeyboardInterrupt:
        noted.append(number)
        return KeyboardInterrupt()

    stops = [signal.SIGTERM]  # a scheduler's, which keeps what was trained, as Ctrl-C does
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background job ignores it
        stops.append(signal.SIGINT)
    with warnings.catch_warnings(), raising(note, *stops):
        if not debug:  # warnings of the libraries below us are for developers; ours stay
            warnings.simplefilter("ignore")
            warnings.filterwarnings("default", module=r"graph_emb(\..*)?$")
            warnings.showwarning = lambda message, *_, **__: print(f"graph-emb: warning: {message}", file=sys.stderr)
        try:
            code = _run(words)
            sys.stdout.flush()  # here, where a reader that has left is no error
            return code
        except BrokenPipeError:  # the reader of our output, such as head, has left
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except KeyboardInterrupt:
            return _say_interrupted()
        except (GraphEmbError, OSError, MemoryError) as error:
            if debug:
                traceback.print_exc()
            print(f"graph-emb: error: {one_line(error, 'use a smaller model.dim or a smaller graph')}", file=sys.stderr)
            return BAD_INPUT
        except Exception:
            if noted and not debug:  # an import turns Ctrl-C into an ImportError or a SystemError
                return _say_interrupted()
            raise


def _say_interrupted() -> int:
    print("graph-emb: interrupted", file=sys.stderr)
    return INTERRUPTED


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
    return pkgutil.resolve_name(COMMANDS[args.command])(args)


if __name__ == "__main__":
    sys.exit(main())
