"""A command that trains starts the processes of its job itself: ``graph-emb train`` and the scripts of examples/ogb."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graph_emb.config import RunConfig, fields_of, parse_override, place_key
from graph_emb.core.errors import ConfigError
from graph_emb.core.progress import WATCHED
from graph_emb.core.terminal import BAD_INPUT
from graph_emb.run.launch.flags import Flags, without
from graph_emb.run.launch.plan import LOOPBACK, Host, Machines, Restarts, check_processes, own_index, read_hosts
from graph_emb.transport.job import job_section

if TYPE_CHECKING:  # it imports torch
    from graph_emb.run.launch.meeting import Lost

PACKAGE = ("-m", "graph_emb")
"""What Python runs for ``graph-emb``."""


def layers_of(args: argparse.Namespace, flags: Flags) -> list[dict[str, Any]]:
    """The fields that the given flags set."""
    layers: list[dict[str, Any]] = []
    for name, (path, value, _, _) in flags.items():
        given = getattr(args, name)
        if isinstance(value, bool):
            layers += [place_key(path, value)] if given else []
        elif given is not None:
            layers.append(parse_override(f"{path}={given}") if value is None else place_key(path, value(given)))
    return layers


def with_job(layers: list[dict[str, Any]], hosts_file: str | None) -> list[dict[str, Any]]:
    """Layers of a configuration with the mode and the counts that follow from them and from a hosts file.

    Raises:
        DataError: a bad hosts file.
        ConfigError: the hosts do not fit the mode or the number of trainers.
    """
    return [*_implied_mode(layers), *layers, *_of_hosts(layers, hosts_file)]


def _implied_mode(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A process of a job joins it; several trainers without a mode are a collective job; a kvstore job without a count
    has one server.
    """
    given: dict[str, Any] = {}
    for layer in layers:
        given.update(layer.get("parallel") or {})
    joined = job_section(given)
    if joined:
        return [{"parallel": joined}]
    if "mode" not in given and given.get("trainers", 1) != 1:
        return [place_key("parallel.mode", "kvstore" if given.get("servers") else "collective")]
    if given.get("mode") == "kvstore" and "servers" not in given:
        return [place_key("parallel.servers", 1)]
    return []


def _of_hosts(layers: list[dict[str, Any]], hosts_file: str | None) -> list[dict[str, Any]]:
    """The trainers and servers of a hosts file; the mode that fits them, where none is named."""
    if hosts_file is None:
        return []
    given: dict[str, Any] = {}
    for layer in layers:
        given.update(layer.get("parallel") or {})
    servers = given.get("servers", 1 if given.get("mode") == "kvstore" else 0)
    hosts = read_hosts(hosts_file, None, servers, given.get("trainers"))
    mode = given.get("mode", "kvstore" if hosts[0].servers else "collective")
    if mode == "local":
        raise ConfigError("parallel.mode = 'local' is one process; leave --hosts out, or take --mode collective")
    counts = {"trainers": sum(host.trainers for host in hosts), "servers": hosts[0].servers}
    return [{"parallel": {"mode": mode, **counts}}]


def starts_job(config: RunConfig) -> bool:
    """Whether other processes run a configuration, which this one has to start; not where it is one of them."""
    return config.parallel.mode != "local" and "RANK" not in os.environ


def machines_of(
    args: argparse.Namespace, trainers: int | None, servers: int, total: int | None = None, *, joins: bool = True
) -> Machines:
    """The machines that a command line names; without ``--hosts`` this one alone.

    Args:
        args: With the flags of ``PLACING``.
        trainers, servers: Of each machine whose line gives none.
        total: As in ``read_hosts``.
        joins: Whether the command, without hosts, joins a job that it is in.
    Raises:
        ConfigError: this process is in a job already, or it cannot be told which of the hosts this machine is.
        DataError: a bad hosts file.
    """
    given = {"--host-index": args.host_index is not None, "--ssh": args.ssh}
    given["--port"] = args.port is not None and joins
    for name in given:
        if given[name] and not args.hosts:
            raise ConfigError(f"{name} is about the machines of a hosts file; give --hosts, or leave it out")
    if "RANK" in os.environ and (args.hosts or not joins):
        raise ConfigError(
            f"this process is rank {os.environ['RANK']} of a job of {os.environ.get('WORLD_SIZE', '?')}, in which no "
            "second one starts; a command that trains joins it without --hosts"
        )
    if not args.hosts:
        return Machines([Host(LOOPBACK, total or trainers or 1, servers)], port=args.port or 0)
    from graph_emb.run.launch.job import PORT

    hosts = read_hosts(args.hosts, trainers, servers, total)
    index = index_of(args, hosts)
    port = args.port if args.port is not None else (PORT if len(hosts) > 1 else 0)
    return Machines(hosts, index, port)


def restarts_of(args: argparse.Namespace) -> Restarts | None:
    """The restarts that a command line asks for; None: it asks for none.

    Raises:
        ConfigError: numbers that are none.
    """
    if args.restarts is None:
        if args.restart_wait is not None:
            raise ConfigError("--restart-wait is about the machines of a restart; give --restarts, or leave it out")
        return None
    if args.restart_wait is not None and not (args.hosts and args.restarts):
        raise ConfigError(
            f"--restart-wait {args.restart_wait:g} is about the machines of a restart: give --hosts and --restarts 1 "
            "or more, or leave it out"
        )
    if args.restarts < 0 or not 0 < (args.restart_wait or 1.0) < math.inf:
        raise ConfigError(
            f"--restarts {args.restarts}, --restart-wait {args.restart_wait}: give a number of at least 0, and seconds"
        )
    return Restarts(args.restarts) if args.restart_wait is None else Restarts(args.restarts, args.restart_wait)


def index_of(args: argparse.Namespace, hosts: Sequence[Host]) -> int:
    """The place of this machine among the hosts."""
    index = args.host_index if args.host_index is not None else own_index(hosts)
    if not 0 <= index < len(hosts):
        raise ConfigError(f"--host-index {index} is outside [0, {len(hosts)}); the hosts file names {len(hosts)}")
    return index


@contextmanager
def others_started(
    args: argparse.Namespace,
    machines: Machines,
    words: Sequence[str],
    behind: Sequence[str] = (),
    program: Sequence[str] = PACKAGE,
) -> Iterator[Lost]:
    """With ``--ssh`` the same command on the other machines, ended with the context.

    Args:
        words, behind: Of this command line: those with its own flags, and those that follow them.
        program: What Python runs.
    Yields:
        Tells of a machine whose ssh ended early.
    """
    from graph_emb.run.launch.job import other_hosts
    from graph_emb.run.launch.meeting import never

    if not args.ssh:
        yield never
        return
    same = [*program, *without(words, {"--ssh": 0, "--host-index": 1})]
    with other_hosts(machines, lambda index: [*same, "--host-index", str(index), *behind]) as lost:
        yield lost


@dataclass(frozen=True)
class Start:
    """How a command starts the processes of a run.

    Attributes:
        machines: All of them, as this one sees them.
        hosts_named: Whether a hosts file names them.
        watched: Whether trainers show progress.
        lost: Tells of a machine whose ssh ended early.
        restarts: How often a failed job starts again; None: never.
    """

    machines: Machines
    hosts_named: bool
    watched: bool = False
    lost: Lost | None = None
    restarts: Restarts | None = None

    def counts(self, config: RunConfig) -> list[str]:
        """Overrides that say to a trainer, which gets no hosts file, what that file says."""
        names = ("mode", "trainers", "servers") if self.hosts_named else ()
        return [f"parallel.{name}={getattr(config.parallel, name)}" for name in names]

    def run(
        self,
        command: Sequence[str],
        config: RunConfig,
        place: Path,
        *,
        overwrite: bool,
        again: Callable[[Machines], Sequence[str]] | None = None,
        finished: Callable[[], bool] = lambda: False,
    ) -> int | None:
        """Run a command as the trainers of this machine and wait for them; their output stays beside the run.

        Args:
            command: What each trainer runs.
            again: The command of a restart, by the machines that came; None: ``command``.
            config: What the command trains.
            place: The run folder.
            overwrite: Whether a run that is there may be replaced.
            finished: Asked on the first machine before anything starts: whether the place holds this very run.
        Returns:
            0, also where a process failed when the run was written already; 2 where the first trainer refused its
            input, which it has said on this terminal; None where nothing was started, because the run is finished.
        Raises:
            ConfigError: a taken place, too many processes, or a machine that is about to run something else.
            DataError: no partition, or not all of its parts, where ``parallel.partition`` says.
            ProcessFailure: a process failed; all were ended.
        """
        from graph_emb.run.launch.meeting import MachinesDifferError
        from graph_emb.run.launch.restarts import run_healing
        from graph_emb.run.launch.watch import ProcessFailure, log_folder

        machines, before = self.machines, _inode(place)

        def complete() -> bool:
            return machines.index == 0 and _inode(place) not in (None, before)

        if len(machines.hosts) == 1:
            if finished():
                return None
            _check(config, place, overwrite, machines.own)
            if config.parallel.partition is not None:
                _digest_of_parts(config.parallel.partition, machines)
        with log_folder(place.with_name(f"{place.name}-logs"), machines.ranks.start) as logs:
            try:
                ran = run_healing(
                    command,
                    machines,
                    self.restarts or Restarts(),
                    again or (lambda _: command),
                    logs=logs.path,
                    threads=config.train.threads,
                    environment={WATCHED: "1"} if self.watched else {},
                    oversubscribe=config.parallel.oversubscribe,
                    facts=lambda: _facts(config, place, overwrite, machines, finished),
                    complete=complete,
                    **self._lost(),
                )
            except MachinesDifferError:
                if logs.is_new:
                    shutil.rmtree(logs.path, ignore_errors=True)
                raise
            except ProcessFailure as failure:
                if failure.complete:
                    where = "" if machines.index == 0 else f" on {machines.hosts[0].address}"
                    print(f"graph-emb: {failure}; the run was complete{where}: {place}", file=sys.stderr)
                    return 0
                if failure.exit_code == BAD_INPUT and failure.process == "trainer 0":
                    if logs.is_new:
                        shutil.rmtree(logs.path, ignore_errors=True)
                    return BAD_INPUT
                raise
            if not ran and logs.is_new:
                shutil.rmtree(logs.path, ignore_errors=True)
        return 0 if ran else None

    def unfinished(self, seeds: Sequence[int], finished: Callable[[int], bool]) -> list[int]:
        """The seeds that have to run, as the first machine sees them, whose folders hold the runs."""
        from graph_emb.run.launch.meeting import TOLD, met

        machines = self.machines

        def own() -> dict[str, str]:
            left = [seed for seed in seeds if not finished(seed)]
            return {"seeds": str(list(seeds)), TOLD: json.dumps(left if machines.index == 0 else [])}

        with met(machines, own, **self._lost()) as meeting:
            return json.loads(meeting.told)

    def _lost(self) -> dict[str, Any]:
        return {} if self.lost is None else {"lost": self.lost}


def _inode(place: Path) -> int | None:
    """Tells a folder from one that was there before under its name; None: there is none."""
    return place.stat().st_ino if place.exists() else None


def _facts(
    config: RunConfig, place: Path, overwrite: bool, machines: Machines, finished: Callable[[], bool]
) -> dict[str, Any]:
    """What this machine is about to run, to be compared with the others; the run folder is the first one's."""
    from graph_emb.run.launch.meeting import COMPLETE, TOLD

    if len(machines.hosts) == 1:
        return {}  # it has been checked
    facts = fields_of(config)
    if machines.index == 0 and finished():
        facts[TOLD] = COMPLETE
    elif machines.index == 0:
        _check(config, place, overwrite, machines.own)
    if config.parallel.partition is not None:
        facts["the digest of the partition"] = _digest_of_parts(config.parallel.partition, machines)
    return facts


def _digest_of_parts(folder: str, machines: Machines) -> str:
    from graph_emb.run.launch.shipping import check_parts  # a second, of DGL's format

    return check_parts(folder, machines)


def _check(config: RunConfig, place: Path, overwrite: bool, own: Host) -> None:
    """Refuse a run folder that is taken, and processes that have no core, or no node, before the first one starts.

    More trainers than cores are worth a look at the data first: with fewer, the first trainer says so soon enough.

    Raises:
        ConfigError: a taken place, or too many trainers for the machine or for the data.
    """
    from graph_emb.run.run_folder import check_place

    check_place(place.resolve(), overwrite)
    check_processes(own, config.parallel.oversubscribe)
    trainers = config.parallel.trainers
    if trainers > (os.cpu_count() or 1):
        from graph_emb.run.family import family_of

        family = family_of(config)
        counts = family.describe(family.load())
        nodes = counts.get("nodes", counts.get("entities", trainers))
        if trainers > nodes:
            raise ConfigError(f"parallel.trainers = {trainers}: the graph has {nodes} nodes; take fewer trainers")
