"""The parts of a partition on the machines of a job: whether each holds its own, and copies for those that do not."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

import partition
from graph_emb.core.errors import DataError, PeerError
from graph_emb.run.launch.plan import Machines
from partition import PartitionedGraph
from partition.manifest import NAME


def files_of(held: PartitionedGraph, parts: Collection[int]) -> Iterator[str]:
    """The files that a machine needs which takes some parts: these, and those that are of no part, the JSON last."""
    folders = [Path(held.config[f"part-{part}"]["part_graph"]).parent.as_posix() for part in range(held.num_parts)]
    others = {folder for part, folder in enumerate(folders) if part not in parts}
    if held.manifest is None:
        for part in parts:
            yield from sorted(set(held.config[f"part-{part}"].values()))
    else:
        for name in held.manifest.files:
            if name != held.config_path.name and Path(name).parent.as_posix() not in others:
                yield name
        yield NAME
    yield held.config_path.name


def check_parts(folder: str | Path, machines: Machines) -> str:
    """Look for the files that this machine's trainers take, by name and size.

    Returns:
        A digest of the partition, the same for each copy of all of it or of some parts.
    Raises:
        DataError: no partition, or a file is missing or has another size.
    """
    held = partition.load(folder)
    wanted = machines.parts(held.num_parts)
    for name in files_of(held, wanted):
        path, facts = held.path / name, None if held.manifest is None else held.manifest.files.get(name)
        size = path.stat().st_size if path.is_file() else None
        if size is None or (facts is not None and size != facts["bytes"]):
            what = "is missing" if size is None else f"has {size} bytes, not the manifest's {facts and facts['bytes']}"
            raise DataError(
                f"{path} {what}; this machine's trainers take part {', '.join(map(str, wanted))} of {held.num_parts}: "
                "copy it here, or let graph-emb partition ship do so"
            )
    listed = held.path / NAME if held.manifest is not None else held.config_path
    return hashlib.sha256(listed.read_bytes()).hexdigest()


def ship(folder: str | Path, machines: Machines, to: str | Path | None = None) -> list[str]:
    """Copy each other machine the parts that its trainers take, by rsync over ssh, and compare checksums there.

    The JSON that makes the folder a partition goes last. What a machine has already is not sent again.

    Args:
        folder: The whole partition.
        machines: All of them and this one's place.
        to: The folder there; None: where it is here.
    Returns:
        A line for each machine.
    Raises:
        DataError: no partition of ours, or a file that its manifest lists is missing here.
        PeerError: rsync or ssh failed, or a file arrived with another checksum.
    """
    held = partition.load(folder)
    if held.manifest is None:
        raise DataError(f"{held.path}: has no manifest with checksums; write it anew by graph-emb partition convert")
    place = str(to) if to is not None else str(held.path.absolute())
    told = []
    for index, host in enumerate(machines.hosts):
        parts = Machines(machines.hosts, index).parts(held.num_parts)
        which = f"part {', '.join(map(str, parts))}"
        here = index == machines.index
        if here and to is None:
            check_parts(folder, machines)
            told.append(f"{host.address}: {which}, here")
            continue
        names, address = list(files_of(held, parts)), None if here else host.address
        sums = [f"{held.manifest.files[name]['sha256']}  {name}\n" for name in names if name in held.manifest.files]
        sums.append(f"{hashlib.sha256((held.path / NAME).read_bytes()).hexdigest()}  {NAME}\n")
        _shell(address, f"mkdir -p {shlex.quote(place)}")
        for some in (names[:-1], names[-1:]):
            _rsync(held.path, some, f"{place}/" if here else f"{host.address}:{place}/")
        _shell(address, f"cd {shlex.quote(place)} && sha256sum --check --quiet --strict -", "".join(sums))
        told.append(f"{host.address}: {which}, {len(names)} files in {place}, checksums right")
    return told


def _rsync(source: Path, names: Collection[str], target: str) -> None:
    command = ["rsync", "-t", "--partial", "--files-from=-", "-e", "ssh -o BatchMode=yes", f"{source}/", target]
    _run(command, "\n".join(names), target)


def _shell(address: str | None, command: str, given: str = "") -> None:
    """Run a command on a machine by ssh, or here."""
    if address is None:
        _run(["sh", "-c", command], given, "this machine")
    else:
        _run(["ssh", "-o", "BatchMode=yes", address, command], given, f"host {address}")


def _run(command: list[str], given: str, where: str) -> None:
    try:
        done = subprocess.run(command, input=given.encode(), capture_output=True, check=False)
    except FileNotFoundError:
        raise PeerError(f"{where}: needs {command[0]}, which is not installed on this machine") from None
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        raise PeerError(f"{where}: {command[0]} ended with exit code {done.returncode}: {'; '.join(said[:3])}")
