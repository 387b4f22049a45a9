"""``graph-emb launch``, and where ``graph-emb train`` starts the processes of a job: on this machine or on many."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from graph_emb.core.errors import ConfigError
from graph_emb.core.terminal import say
from graph_emb.run.launch.plan import LOOPBACK, Host, Machines, check_processes, own_index, read_hosts
from graph_emb.run.launch.watch import log_folder

if TYPE_CHECKING:  # it imports torch
    from graph_emb.run.launch.meeting import Lost

PLACING = {"--hosts": 1, "--host-index": 1, "--port": 1, "--ssh": 0}
"""Flags that say where the processes of a job run, and how many words follow each."""


def run(args: argparse.Namespace) -> int:
    """Start this machine's trainers, and by ssh the other machines, and wait for the end."""
    from graph_emb.run.launch.job import run_host

    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise ConfigError("nothing to launch; write graph-emb launch ... -- train MODEL ..., or -- SCRIPT.py ...")
    if args.servers < 0:
        raise ConfigError(f"--servers {args.servers} must not be negative")
    if args.trainers < 1 or (args.threads is not None and args.threads < 1):
        raise ConfigError(f"--trainers {args.trainers}, --threads {args.threads}: both must be at least 1")
    machines = machines_of(args, args.trainers, args.servers)
    check_processes(machines.own, args.oversubscribe)  # before other machines are asked to start theirs
    if words[0] != "train" and not Path(words[0]).is_file():
        raise ConfigError(f"launch: {words[0]!r} is neither 'train' nor a Python script that exists")
    if args.partition is not None and words[0] == "train":
        raise ConfigError("launch --partition is for scripts with DistGraph; write it behind 'train'")
    command = [sys.executable, *(("-m", "graph_emb") if words[0] == "train" else ()), *words]
    own_words = args.argv[: len(args.argv) - len(words)]
    own_words = own_words[:-1] if own_words[-1] == "--" else own_words
    with (
        others_started(args, machines, own_words, ["--", *words]) as lost,
        log_folder(Path(args.logs), machines.ranks.start) as logs,
    ):
        run_host(
            command,
            machines.hosts,
            machines.index,
            logs=logs.path,
            port=machines.port,
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
    index = _index(args, hosts)
    for line in shipping.ship(args.source, Machines(hosts, index), args.to):
        print(line)
    return 0


def machines_of(args: argparse.Namespace, trainers: int | None, servers: int, total: int | None = None) -> Machines:
    """The machines that a command line names; without ``--hosts`` this one alone.

    Args:
        trainers, servers: Of each machine whose line gives none.
        total: As in ``read_hosts``.
    Raises:
        ConfigError: this process is in a job already, or it cannot be told which of the hosts this machine is.
        DataError: a bad hosts file.
    """
    given = {"--host-index": args.host_index is not None, "--ssh": args.ssh}
    given["--port"] = args.port is not None and args.command != "launch"
    for name in given:
        if given[name] and not args.hosts:
            raise ConfigError(f"{name} is about the machines of a hosts file; give --hosts, or leave it out")
    if "RANK" in os.environ and (args.hosts or args.command == "launch"):
        raise ConfigError(
            f"this process is rank {os.environ['RANK']} of a job of {os.environ.get('WORLD_SIZE', '?')}, in which no "
            "second one starts; graph-emb train without --hosts joins it"
        )
    if not args.hosts:
        return Machines([Host(LOOPBACK, total or trainers or 1, servers)], port=args.port or 0)
    from graph_emb.run.launch.job import PORT

    hosts = read_hosts(args.hosts, trainers, servers, total)
    index = _index(args, hosts)
    port = args.port if args.port is not None else (PORT if len(hosts) > 1 else 0)
    return Machines(hosts, index, port)


def _index(args: argparse.Namespace, hosts: Sequence[Host]) -> int:
    """The place of this machine among the hosts."""
    index = args.host_index if args.host_index is not None else own_index(hosts)
    if not 0 <= index < len(hosts):
        raise ConfigError(f"--host-index {index} is outside [0, {len(hosts)}); the hosts file names {len(hosts)}")
    return index


@contextmanager
def others_started(
    args: argparse.Namespace, machines: Machines, words: Sequence[str], behind: Sequence[str] = ()
) -> Iterator[Lost]:
    """With ``--ssh`` the same command on the other machines, ended with the context.

    Args:
        words, behind: Of this command line: those with its own flags, and those that follow them.
    Yields:
        Tells of a machine whose ssh ended early.
    """
    from graph_emb.run.launch.job import other_hosts
    from graph_emb.run.launch.meeting import never

    if not args.ssh:
        yield never
        return
    same = without(words, {"--ssh": 0, "--host-index": 1})
    with other_hosts(machines, lambda index: [*same, "--host-index", str(index), *behind]) as lost:
        yield lost


def without(words: Sequence[str], flags: dict[str, int]) -> list[str]:
    """Words of a command line without some flags, each with the number of words that follow it."""
    kept, skip = [], 0
    for word in words:
        if skip:
            skip -= 1
        elif word in flags:
            skip = flags[word]
        elif word.partition("=")[0] not in flags:
            kept.append(word)
    return kept
