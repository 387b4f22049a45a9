"""A job of one or many machines: the store that brings its processes together, and the processes of this machine."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from graph_emb.errors import ConfigError, PeerError
from graph_emb.train.launch import plan, watch
from graph_emb.train.launch.hosts import LOOPBACK, Host

PORT = 29_417
"""Where the first machine's launcher listens when several machines take part and no port is given."""
TOGETHER = timedelta(seconds=300)
LAST_WORD = timedelta(seconds=20)


def run_local(command: Sequence[str], trainers: int, logs: Path, threads: int | None = None) -> None:
    """Run a command as ``trainers`` processes of this machine, over loopback and a free port.

    Raises:
        ProcessFailure: one failed; all were ended.
    """
    run_host(command, [Host(LOOPBACK, trainers)], 0, logs=logs, threads=threads, port=0)


def run_host(
    command: Sequence[str], hosts: Sequence[Host], index: int, *, logs: Path, port: int, threads: int | None = None
) -> None:
    """Run this machine's share of a job and return when all machines have ended theirs.

    Args:
        command: What each trainer runs.
        hosts: All machines, the same list on each.
        index: This machine's place among them.
        logs: Folder of the log files.
        port: Of the store on the first machine; 0 takes a free one (one machine only).
        threads: Of each trainer; None shares the cores evenly.
    Raises:
        ConfigError: the port cannot be had.
        PeerError: the machines did not come together, or one of them failed.
    """
    from torch.distributed import TCPStore

    if len(hosts) > 1 and port == 0:
        raise ConfigError("several hosts need a port that all of them know; give --port")
    try:
        store = TCPStore(
            hosts[0].address, port, is_master=index == 0, wait_for_workers=False, timeout=TOGETHER, multi_tenant=False
        )
    except RuntimeError as error:
        raise PeerError(
            f"no meeting point at {hosts[0].address}:{port}: {str(error).splitlines()[0]}; "
            "is the first host's launcher running, and is the port free and open?"
        ) from None
    per_trainer = threads or max(1, (os.cpu_count() or 1) // hosts[index].trainers)
    processes = plan.trainers(command, hosts, index, port=store.port, logs=logs, threads=per_trainer)
    meeting = _Meeting(store, hosts, index)
    try:
        watch.run(processes, stop=meeting.failure)
    except BaseException as error:
        meeting.leave(failed=str(error) or type(error).__name__)
        raise
    meeting.leave()


class _Meeting:
    """What the launchers of several machines tell each other through the store. Alone, nothing is said."""

    def __init__(self, store: Any, hosts: Sequence[Host], index: int) -> None:
        self._store, self._hosts, self._index = store, hosts, index
        self._others = [number for number in range(len(hosts)) if number != index]
        self._first_left = False

    def failure(self) -> str | None:
        """Why the job must end, if another machine's share failed."""
        if not self._others:
            return None
        try:
            self._first_left = self._first_left or self._store.check(["left/0"])
            failed = [number for number in self._others if self._store.check([f"failed/{number}"])]
            text = self._store.get(f"failed/{failed[0]}").decode() if failed else ""
        except RuntimeError:
            return None if self._first_left else f"the launcher of host {self._hosts[0].address} is gone"
        return f"host {self._hosts[failed[0]].address}: {text}" if failed else None

    def leave(self, failed: str | None = None) -> None:
        """Tell the others. The first machine holds the store until they have heard, for 20 seconds at most."""
        if not self._others:
            return
        with contextlib.suppress(RuntimeError):  # the store is gone, or somebody never answers: nobody left to tell
            if failed is not None:
                self._store.set(f"failed/{self._index}", failed)
            self._store.set(f"left/{self._index}", "")
            if self._index == 0:
                self._store.wait([f"left/{number}" for number in self._others], LAST_WORD)


def start_by_ssh(hosts: Sequence[Host], own: int, arguments: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """Start ``graph-emb launch`` on every other host by ssh, in the same folder, with the same interpreter.

    Args:
        hosts: All machines.
        own: This one's place.
        arguments: Of ``graph-emb launch`` without ``--ssh`` and ``--host-index``.
    """
    folder, python = shlex.quote(os.getcwd()), shlex.quote(sys.executable)
    started = []
    for index, host in enumerate(hosts):
        if index == own:
            continue
        words = ["launch", "--host-index", str(index), *arguments]
        remote = f"cd {folder} && exec {python} -m graph_emb {shlex.join(words)}"
        started.append(subprocess.Popen(["ssh", "-tt", "-o", "BatchMode=yes", host.address, remote],
                                        stdin=subprocess.DEVNULL))  # fmt: skip
    return started
