"""A job that heals: after a failure its machines meet again and go on from the last checkpoint, as fewer if need be."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from graph_emb.run.launch import job
from graph_emb.run.launch.meeting import TOGETHER, Lost, never
from graph_emb.run.launch.plan import Machines, Restarts
from graph_emb.run.launch.watch import ProcessFailure


def run_healing(
    command: Sequence[str],
    machines: Machines,
    restarts: Restarts,
    again: Callable[[Machines], Sequence[str]],
    *,
    logs: Path,
    lost: Lost = never,
    **options: Any,
) -> bool:
    """``run_host``, and again after a failure that need not repeat itself.

    A process that was killed or stopped, and a machine that died or lost its link, end the processes of all machines;
    their launchers then meet anew on the first machine, which holds the run and must be among them. The logs of restart
    n are in ``<logs>/restart-<n>``. An input that was refused, Ctrl-C and SIGTERM start nothing again.

    Args:
        command: What each trainer runs at first.
        machines: All of them and this one's place.
        restarts: How often; the same on every machine.
        again: The command of a restart on the machines that came.
        logs, lost, options: As in ``run_host``.
    Returns:
        As ``run_host``.
    Raises:
        ProcessFailure: the last failure, with the number of restarts before it.
        PeerError: the first machine did not come, or did not come back.
    """
    number, present = 0, machines

    def of_those(came: Machines, restart: int) -> Sequence[str]:
        nonlocal present, number
        absent = [host.address for host in present.hosts if host not in came.hosts]
        if absent:
            trainers = sum(host.trainers for host in came.hosts)
            _say(f"host {', '.join(absent)} did not come within {restarts.wait:g} s; going on as {trainers} trainers")
        present, number = came, restart  # of a replacement it is the first start
        return again(came)

    while True:
        try:
            return job.run_host(
                command,
                present.hosts,
                present.index,
                port=present.port,
                logs=logs / f"restart-{number}" if number else logs,
                lost=never if number else lost,
                within=restarts.wait if number else TOGETHER,
                restart=number,
                restart_within=restarts.wait,
                again=of_those,
                **options,
            )
        except ProcessFailure as failure:
            if failure.final or number >= restarts.most:
                raise
            number += 1
            _say(f"{failure}; restart {number} of {restarts.most} from the last checkpoint")


def _say(text: str) -> None:
    print(f"graph-emb: {text}", file=sys.stderr, flush=True)
