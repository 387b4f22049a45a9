"""``graph-emb launch``: the processes of a job, on this machine or on many."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from graph_emb.core.errors import ConfigError
from graph_emb.core.terminal import say
from graph_emb.run.launch.plan import LOOPBACK, Host, check_processes, own_index, read_hosts
from graph_emb.run.launch.watch import log_folder


def run(args: argparse.Namespace) -> int:
    """Start this machine's trainers, and by ssh the other machines, and wait for the end."""
    from graph_emb.run.launch.job import PORT, other_hosts, run_host

    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise ConfigError("nothing to launch; write graph-emb launch ... -- train MODEL ..., or -- SCRIPT.py ...")
    if args.servers < 0:
        raise ConfigError(f"--servers {args.servers} must not be negative")
    if args.trainers < 1 or (args.threads is not None and args.threads < 1):
        raise ConfigError(f"--trainers {args.trainers}, --threads {args.threads}: both must be at least 1")
    hosts = [Host(LOOPBACK, args.trainers, args.servers)]
    if args.hosts:
        hosts = read_hosts(args.hosts, args.trainers, args.servers)
    index = args.host_index if args.host_index is not None else (own_index(hosts) if args.hosts else 0)
    if not 0 <= index < len(hosts):
        raise ConfigError(f"--host-index {index} is outside [0, {len(hosts)}); the hosts file names {len(hosts)}")
    if args.ssh and not args.hosts:
        raise ConfigError("--ssh starts the other machines of a hosts file; give --hosts")
    check_processes(hosts[index], args.oversubscribe)  # before other machines are asked to start theirs
    port = args.port if args.port is not None else (PORT if len(hosts) > 1 else 0)
    if words[0] != "train" and not Path(words[0]).is_file():
        raise ConfigError(f"launch: {words[0]!r} is neither 'train' nor a Python script that exists")
    if args.partition is not None and words[0] == "train":
        raise ConfigError("launch --partition is for scripts with DistGraph; write it behind 'train'")
    command = [sys.executable, *(("-m", "graph_emb") if words[0] == "train" else ()), *words]
    same = {"hosts": args.hosts, "port": port, "trainers": args.trainers, "servers": args.servers, "logs": args.logs}
    if args.threads is not None:
        same["threads"] = args.threads
    if args.partition is not None:
        same["partition"] = args.partition
    others = [word for name, value in same.items() for word in (f"--{name}", str(value))]
    others += [*(["--oversubscribe"] if args.oversubscribe else []), "--", *words]
    with ExitStack() as stack:
        by_ssh = stack.enter_context(other_hosts(hosts, index, others)) if args.ssh else []
        with log_folder(Path(args.logs), sum(host.trainers for host in hosts[:index])) as logs:
            run_host(
                command,
                hosts,
                index,
                logs=logs.path,
                port=port,
                threads=args.threads,
                oversubscribe=args.oversubscribe,
                partition=args.partition,
            )
        for process in by_ssh:
            process.wait()
    say(args, f"graph-emb: all {hosts[index].trainers} trainers of this machine ended well; logs: {logs.path}")
    return 0
