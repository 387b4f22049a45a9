"""``graph-emb launch`` and ``graph-emb partition ship``: a job of scripts, and the parts of the machines of a job."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from graph_emb.core.errors import ConfigError
from graph_emb.core.terminal import say
from graph_emb.run.launch.command import PACKAGE, index_of, machines_of, others_started, restarts_of
from graph_emb.run.launch.flags import resumed
from graph_emb.run.launch.plan import Machines, Restarts, check_processes, read_hosts
from graph_emb.run.launch.watch import log_folder


def run(args: argparse.Namespace) -> int:
    """Start this machine's trainers, and by ssh the other machines, and wait for the end."""
    from graph_emb.run.launch.restarts import run_healing

    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise ConfigError("nothing to launch; write graph-emb launch ... -- train MODEL ..., or -- SCRIPT.py ...")
    if args.servers < 0:
        raise ConfigError(f"--servers {args.servers} must not be negative")
    if args.trainers < 1 or (args.threads is not None and args.threads < 1):
        raise ConfigError(f"--trainers {args.trainers}, --threads {args.threads}: both must be at least 1")
    machines = machines_of(args, args.trainers, args.servers, joins=False)
    check_processes(machines.own, args.oversubscribe)  # before other machines are asked to start theirs
    if words[0] != "train" and not Path(words[0]).is_file():
        raise ConfigError(f"launch: {words[0]!r} is neither 'train' nor a Python script that exists")
    if args.partition is not None and words[0] == "train":
        raise ConfigError("launch --partition is for scripts with DistGraph; write it behind 'train'")
    trains = words[0] == "train"
    python = [sys.executable, *(PACKAGE if trains else ())]
    command, again = [*python, *words], [*python, *(resumed(words) if trains else words)]
    own_words = args.argv[: len(args.argv) - len(words)]
    own_words = own_words[:-1] if own_words[-1] == "--" else own_words
    with (
        others_started(args, machines, own_words, ["--", *words]) as lost,
        log_folder(Path(args.logs), machines.ranks.start) as logs,
    ):
        run_healing(
            command,
            machines,
            restarts_of(args) or Restarts(),
            lambda _: again,
            logs=logs.path,
            threads=args.threads,
            oversubscribe=args.oversubscribe,
            partition=args.partition,
            lost=lost,
        )
    say(args, f"graph-emb: all {machines.own.trainers} trainers of this machine ended well; logs: {logs.path}")
    return 0


def ship(args: argparse.Namespace) -> int:
    """Copy the parts of a partition to the machines whose trainers take them."""
    from graph_emb.run.launch import shipping

    hosts = read_hosts(args.hosts, None, 0, args.trainers)
    index = index_of(args, hosts)
    for line in shipping.ship(args.source, Machines(hosts, index), args.to):
        print(line)
    return 0
