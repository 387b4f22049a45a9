"""The job of this process, as DGL, torch.distributed and launchers tell it: by it the mode is chosen."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import psutil

from graph_emb.core.errors import ModeError

HOSTS_VARIABLE = "GRAPH_EMB_HOSTS"
RANK, WORLD_SIZE = "RANK", "WORLD_SIZE"
INTERFACE = "GLOO_SOCKET_IFNAME"
"""Where torch's gloo listens, by the name of a network interface."""
MACHINES = "GRAPH_EMB_MACHINES"
"""The machines of a job that the launcher started on several, in the order of ranks: ``10.0.0.1*4 10.0.0.2*2``."""
WORDS = (RANK, WORLD_SIZE, "MASTER_ADDR", "MASTER_PORT")
"""The variables by which torchrun, our launcher and torch's ``env://`` tell a rank its job."""
DGL_MODE = "DGL_DIST_MODE"
OTHER_LAUNCHERS = {"OMPI_COMM_WORLD_SIZE": "mpirun", "PMI_SIZE": "mpiexec", "SLURM_STEP_NUM_TASKS": "srun"}
"""Who tells the number of processes by a variable of its own, and sets none of ``WORDS``."""
BY_NAME = "or graph_emb.init(mode='local'), if each is to train tables of its own"


def named(rank: int) -> str:
    """A rank as errors name it: with its machine, where the launcher says it."""
    left = rank
    for word in os.environ.get(MACHINES, "").split():
        address, _, trainers = word.rpartition("*")
        left -= int(trainers)
        if left < 0:
            return f"{rank} (host {address})"
    return str(rank)


def choose() -> tuple[str, str]:
    """The mode that fits the job of this process, and why, as words that go on after the mode.

    DGL's servers where ``dgl.distributed`` is initialised; our servers where the launcher names them; the process group
    where the job has several processes; else local.

    Raises:
        ModeError: the job has several processes, or may have, and this one cannot find the others: a half set
            environment, DGL before ``initialize``, a launcher that sets none of ``WORDS``, a process that
            multiprocessing started and that was told nothing. It never becomes one with tables of its own.
    """
    if is_loader_worker():
        raise ModeError("this is a worker of a torch DataLoader; use tables in the trainer, which starts the workers")
    if dgl_is_initialised():
        return "kvstore", "dgl.distributed is initialised"
    _check_dgl()
    size, found = _world_size(), HOSTS_VARIABLE in os.environ
    if (size > 1 or found) and _inherits_rank():
        raise ModeError(
            f"this process was started by rank {os.environ[RANK]} of the job and is none of its ranks; use tables in "
            f"that one, {BY_NAME}"
        )
    if found:
        return "kvstore", f"${HOSTS_VARIABLE} names the servers"
    group = _group_size()
    if group > 1:
        return "collective", f"torch.distributed has {group} processes"
    if size > 1:
        if group:
            raise ModeError(f"{WORLD_SIZE}={size}, but torch.distributed has one process; make them agree, {BY_NAME}")
        _check_words(size)
        return "collective", f"{WORLD_SIZE}={size}"
    check_alone("no mode")
    return "local", "torch.distributed has one process" if group else "nothing tells of another process"


def job_section(given: Mapping[str, Any]) -> dict[str, Any]:
    """The ``parallel`` section by which a run joins the job of this process; empty where it stands alone.

    Args:
        given: What the user says in that section; a mode or a number of trainers there decides.
    Raises:
        ModeError: as ``choose``.
    """
    size = _group_size() or _world_size()
    if size < 2 or {"mode", "trainers"} & given.keys() or dgl_is_initialised():
        return {}
    mode, _ = choose()
    return {"mode": mode, "trainers": size, **({"servers": given.get("servers", 1)} if mode == "kvstore" else {})}


def check_alone(asked: str) -> None:
    """Refuse to stand alone, with tables that no other process sees, in a job of several processes.

    Args:
        asked: What was asked for, in the words of the error.
    Raises:
        ModeError: there are others, or there may be.
    """
    why = several()
    if why:
        refuse(asked, why)
    told = _group_size() == 1 or (WORLD_SIZE in os.environ and not _inherits_rank())
    if multiprocessing.parent_process() is not None and not told:
        refuse(asked, "a process that multiprocessing started and told nothing of the others")


def refuse(asked: str, why: str) -> NoReturn:
    """Raise the ModeError of a process that would stand alone in a job of several.

    Args:
        asked: As ``check_alone``.
        why: As ``several`` returns it.
    """
    raise ModeError(
        f"{asked}, in {why}: this process would train a copy of the tables that the others never see; set "
        f"{', '.join(WORDS)} (torchrun and graph-emb launch do) or call torch.distributed.init_process_group() first, "
        f"{BY_NAME}"
    )


def several() -> str:
    """What says that the job has, or may have, several processes; empty where nothing does."""
    if dgl_is_initialised() or os.environ.get(DGL_MODE) == "distributed":
        return "a job of DGL"
    if (group := _group_size()) > 1:
        return f"a job of {group} processes (torch.distributed)"
    try:
        size = _world_size()
    except ModeError as error:
        return f"an environment that contradicts itself ({error})"
    if size > 1:
        return f"a job of {size} processes ({WORLD_SIZE}={size})"
    for variable, launcher in OTHER_LAUNCHERS.items() if WORLD_SIZE not in os.environ else ():
        if (text := os.environ.get(variable, "")).isdecimal() and int(text) > 1:
            return f"a job of {text} processes ({launcher}'s {variable}={text})"
    return ""


def dgl_is_initialised() -> bool:
    """Whether ``dgl.distributed`` is connected to servers. DGL is not imported to find out."""
    context = sys.modules.get("dgl.distributed.dist_context")
    return context is not None and bool(context.is_initialized())


def is_loader_worker() -> bool:
    """Whether a torch ``DataLoader`` started this process."""
    data = sys.modules.get("torch.utils.data")  # not imported to find out either: it takes its time
    return data is not None and data.get_worker_info() is not None


def _group_size() -> int:
    """The processes of the program's group of torch.distributed, 0 where there is none."""
    dist = sys.modules.get("torch.distributed")  # launchers need no torch
    return dist.get_world_size() if dist is not None and dist.is_available() and dist.is_initialized() else 0


def _check_dgl() -> None:
    if os.environ.get(DGL_MODE) == "distributed":
        raise ModeError(
            f"{DGL_MODE}=distributed, but dgl.distributed is not initialised; call dgl.distributed.initialize() before "
            "the first table, or name a mode"
        )


def _world_size() -> int:
    """$WORLD_SIZE, else 1; a ModeError where it is no number, or $RANK does not fit it."""
    text, rank = os.environ.get(WORLD_SIZE), os.environ.get(RANK, "0")
    if text is not None and not (text.isdecimal() and int(text) > 0):
        raise ModeError(f"{WORLD_SIZE}={text!r} must be a number from 1")
    size = int(text or 1)
    if not rank.isdecimal() or int(rank) >= size:
        said = f"{WORLD_SIZE}={size}" if text else f"no {WORLD_SIZE}"
        raise ModeError(f"{RANK}={rank!r} and {said} in the environment: expected a {RANK} from 0 to {WORLD_SIZE} - 1")
    return size


def _check_words(size: int) -> None:
    absent = [word for word in WORDS if word not in os.environ]
    if absent:
        raise ModeError(
            f"{WORLD_SIZE}={size}, but {', '.join(absent)} not set; start the program with torchrun or graph-emb "
            f"launch, {BY_NAME}"
        )


def _inherits_rank() -> bool:
    """Whether multiprocessing started this process, and $RANK is the one of the process that did."""
    parent = multiprocessing.parent_process()
    if parent is None or RANK not in os.environ:
        return False
    try:
        variables = Path(f"/proc/{parent.pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another system, or the parent is gone
        return False
    return f"{RANK}={os.environ[RANK]}".encode() in variables


def interface_to(master: str) -> str | None:
    """The network interface from which a machine is reached; None where there is no way.

    Left alone, gloo takes the address of this machine's name, which may be another network or 127.0.0.1.
    """
    found = None
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 1))  # sends nothing: asks the routing table only
        own = probe.getsockname()[0]
        for name, addresses in psutil.net_if_addrs().items():
            if any(entry.family == socket.AF_INET and entry.address == own for entry in addresses):
                return name
            if own.startswith("127.") and any(entry.address == "127.0.0.1" for entry in addresses):
                found = name
    return found
