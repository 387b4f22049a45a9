"""A job of one or many machines: the store that brings its processes together, and the processes of this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graph_emb.core.errors import ConfigError
from graph_emb.core.left_behind import left_in_shared_memory
from graph_emb.core.storage import replace_text
from graph_emb.core.terminal import postponed_interrupts
from graph_emb.run.launch import plan, watch
from graph_emb.run.launch.meeting import COMPLETE, TOGETHER, Facts, Lost, met, never
from graph_emb.run.launch.plan import LOOPBACK, Host, Machines
from graph_emb.transport.guard import TOKEN_VARIABLE, new_token
from graph_emb.transport.job import INTERFACE, MACHINES, interface_to

log = logging.getLogger("graph_emb.launch")

Again = Callable[[Machines, int], Sequence[str]]
RESTART = "TORCHELASTIC_RESTART_COUNT"
"""How often the job was started again, as torchrun says it to its processes."""
PORT = 29_417
"""Where the first machine's launcher listens when several machines take part and no port is given."""


def run_local(
    command: Sequence[str],
    trainers: int,
    logs: Path,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    servers: int = 0,
    oversubscribe: bool = False,
) -> None:
    """Run a command as ``trainers`` processes of this machine, with kvstore servers if asked for, over loopback.

    Raises:
        ProcessFailure: one failed; all were ended.
    """
    hosts, spare = [Host(LOOPBACK, trainers, servers)], oversubscribe
    run_host(command, hosts, 0, logs=logs, threads=threads, environment=environment, oversubscribe=spare)


def run_host(
    command: Sequence[str],
    hosts: Sequence[Host],
    index: int,
    *,
    logs: Path,
    port: int = 0,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    oversubscribe: bool = False,
    partition: str | Path | None = None,
    facts: Facts = dict,
    lost: Lost = never,
    within: float = TOGETHER,
    restart: int = 0,
    restart_within: float = TOGETHER,
    again: Again | None = None,
    complete: Callable[[], bool] = lambda: False,
) -> bool:
    """Run this machine's share of a job and return when all machines have ended theirs.

    No process starts before the launchers of all machines have met and found that they are about to run the same.

    Args:
        command: What each trainer runs.
        hosts: All machines, the same list on each.
        index: This machine's place among them.
        logs: Folder of the log files.
        port: Of the store on the first machine; 0 takes a free one (one machine only).
        threads: Of each trainer and server; None shares the cores evenly among the trainers, and once more among the
            servers, which work while trainers wait for them.
        environment: Further variables of every trainer.
        oversubscribe: Take more than four trainers or servers for each core.
        partition: Folder of a partition whose graph the servers hold, a part a machine, for DGL's ``DistGraph``.
        facts, lost, within, restart, restart_within: As in ``met``.
        again: The command of a restart, by the machines that came and its number.
        complete: Asked after a failure: whether the work is done, so that it need not start again. Others hear of it.
    Returns:
        Whether it ran; not where the first machine's ``facts`` have COMPLETE as TOLD: the work was done before.
    Raises:
        ConfigError: the port cannot be had, several machines have no token in common, or a machine differs from the
            first one, has too many processes, or another number of parts.
        DataError: no partition, on one machine.
        PeerError: the machines did not come together, or one of them failed.
    """
    machines = Machines(hosts, index, port)
    counts = {host.servers for host in hosts}
    if len(counts) > 1:
        raise ConfigError(f"hosts have {sorted(counts)} servers; give every host the same number")
    part_config: Path | None = None

    def own_facts() -> Mapping[str, Any]:
        nonlocal part_config
        plan.check_processes(hosts[index], oversubscribe)
        part_config = None if partition is None else _part_config(partition, hosts)
        return facts()

    cores = os.cpu_count() or 1
    per_trainer = threads or max(1, cores // hosts[index].trainers)
    with met(machines, own_facts, lost, within, restart, restart_within) as meeting:
        if meeting.told == COMPLETE:
            return False
        if meeting.restart and again is not None:
            machines = machines.only(meeting.present)
            hosts, index, command = machines.hosts, machines.index, again(machines, meeting.restart)
        variables = {**(environment or {}), TOKEN_VARIABLE: meeting.token, RESTART: str(meeting.restart)}
        if len(hosts) > 1:
            variables[MACHINES] = " ".join(f"{host.address}*{host.trainers}" for host in hosts)
            if INTERFACE not in os.environ and (found := interface_to(hosts[0].address)) is not None:
                variables[INTERFACE] = found  # for a script's own groups, which listen at this machine's name otherwise
        processes = []
        if hosts[index].servers:
            for path in left_in_shared_memory(remove=True):
                log.warning("removed %s, which a killed process left", path)
            hosts_file = logs / "servers.txt"
            variables |= _kvstore_variables(machines, hosts_file)
            per_server = threads or max(1, cores // hosts[index].servers)
            serving = {**variables, **_modules_of(command)}
            processes = plan.servers(hosts, index, hosts_file, logs, per_server, serving, part_config)
        processes += plan.trainers(command, hosts, index, meeting.port, logs, per_trainer, variables)
        try:
            watch.run(processes, stop=meeting.failure)
            if reason := meeting.stay():
                raise watch.ProcessFailure(reason, 1)
        except watch.ProcessFailure as failure:
            failure.complete = meeting.end == COMPLETE or complete()
            failure.final = failure.final or meeting.end is not None or failure.complete
            raise
    return True


def _part_config(folder: str | Path, hosts: Sequence[Host]) -> Path:
    """DGL's JSON of a partition that the servers can hold."""
    import partition

    held = partition.load(folder)
    if not hosts[0].servers:
        raise ConfigError(f"the graph of {folder} is held by servers, and there are none; give --servers")
    if held.num_parts != len(hosts):
        raise ConfigError(
            f"{folder} has {held.num_parts} parts, and DGL's servers hold one on each of {len(hosts)} machines; "
            f"cut it anew (graph-emb partition repartition), or give as many hosts"
        )
    return held.config_path.absolute()


def _modules_of(command: Sequence[str]) -> dict[str, str]:
    """Where servers find the modules beside a script, as its trainers do: handlers and initializers come from them."""
    if len(command) < 2 or not command[1].endswith(".py"):
        return {}
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(Path(command[1]).resolve().parent), *([before] if before else [])])}


def _kvstore_variables(machines: Machines, hosts_file: Path) -> dict[str, str]:
    """Write down where the servers listen, and what servers and trainers read of it."""
    from graph_emb.transport import kvstore
    from graph_emb.transport.kvstore.layout import free_ports

    hosts = machines.hosts
    first = machines.port + 1 if len(hosts) > 1 else free_ports(hosts[0].servers, hosts[0].address)
    hosts_file.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{plan.resolved(host.address)} {first}\n" for host in hosts]
    replace_text(hosts_file, "".join(lines))  # hosts may share the folder
    return {
        kvstore.HOSTS_VARIABLE: str(hosts_file.absolute()),
        kvstore.SERVERS_VARIABLE: str(hosts[0].servers),
        kvstore.MACHINE_VARIABLE: str(machines.index),
    }


@contextmanager
def other_hosts(machines: Machines, words: Callable[[int], Sequence[str]]) -> Iterator[Lost]:
    """Start this command on every other host by ssh, in the same folder, with the same interpreter.

    The job's token goes through ssh's standard input: arguments are visible to all users of a machine. The context ends
    when the commands have; after an error in it they are ended.

    Args:
        machines: All of them and this one's place.
        words: Gives the words after ``python`` of each, by its place.
    Yields:
        Tells of an ssh that ended early.
    """
    folder, python = shlex.quote(os.getcwd()), shlex.quote(sys.executable)
    token = os.environ.setdefault(TOKEN_VARIABLE, new_token())
    started: list[tuple[str, subprocess.Popen[bytes]]] = []

    def lost() -> str | None:
        ended = [(address, process.returncode) for address, process in started if process.poll()]
        return f"host {ended[0][0]}: ssh ended with exit code {ended[0][1]}" if ended else None

    try:
        for index, host in enumerate(machines.hosts):
            if index == machines.index:
                continue
            take = f"IFS= read -r {TOKEN_VARIABLE} && export {TOKEN_VARIABLE}"
            remote = f"{take} && cd {folder} && exec {python} {shlex.join(words(index))}"
            command = ["ssh", "-o", "BatchMode=yes", host.address, remote]
            with postponed_interrupts():
                started.append((host.address, subprocess.Popen(command, stdin=subprocess.PIPE)))
            pipe = started[-1][1].stdin
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended; its exit code says why
                pipe.write(f"{token}\n".encode())
                pipe.close()
        yield lost
        for _, process in started:
            process.wait()
    finally:
        for _, process in started:
            process.terminate()
            process.wait()
