"""Parts that the first rank has cut, brought over the job's own connections to ranks that cannot read its folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import torch

import partition
from graph_emb.core.storage import write_file
from graph_emb.run.launch.plan import LOOPBACK, Host, Machines
from graph_emb.run.launch.shipping import files_of
from graph_emb.transport.process_group import ProcessGroup

CHUNK = 1 << 26
"""Bytes of a file that travel at once."""


def at_hand(group: ProcessGroup, folder: Path, new_folder: Callable[[], Path]) -> Path:
    """The folder of a partition where this rank can read it; every rank calls it.

    Args:
        folder: Of the first rank, under a name that no other folder has.
        new_folder: Makes an empty one, for the parts of a rank that does not find the first rank's.
    """
    lacking = [
        rank for rank, sees in enumerate(group.gather_objects(folder.is_dir(), "who finds the parts")) if not sees
    ]
    if not lacking:
        return folder
    wanted: dict[int, list[tuple[str, int]]] = {}
    if group.rank == 0:
        held, ranks = partition.load(folder), [Host(LOOPBACK, 1)] * group.world_size
        for rank in lacking:
            names = files_of(held, Machines(ranks, rank).parts(held.num_parts))
            wanted[rank] = [(name, (folder / name).stat().st_size) for name in names]
    wanted = dict(group.gather_objects(list(wanted.items()), "the files of parts")[0])
    own = new_folder() if group.rank in wanted else folder
    for rank, files in wanted.items():
        for name, size in files:
            _send(group, rank, folder / name, own / name, size)
    return own


def _send(group: ProcessGroup, to: int, source: Path, place: Path, size: int) -> None:
    """A file of the first rank becomes one of another rank; every rank calls it, as all exchange."""
    coming = _pieces(group, to, source, size)
    if group.rank == to:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_file(place, lambda stream: [stream.write(piece) for piece in coming])
    else:
        for _ in coming:
            pass


def _pieces(group: ProcessGroup, to: int, source: Path, size: int) -> Iterator[bytes]:
    """The bytes of the file at ``to``, nothing elsewhere."""
    first, ranks = group.rank == 0, range(group.world_size)
    with source.open("rb") if first else nullcontext() as reading:
        for start in range(0, size, CHUNK):
            num = min(CHUNK, size - start)
            send = torch.empty(0, dtype=torch.uint8)
            if reading is not None:
                send = torch.frombuffer(bytearray(reading.read(num)), dtype=torch.uint8)
            to_send = [num if first and rank == to else 0 for rank in ranks]
            to_receive = [num if group.rank == to and rank == 0 else 0 for rank in ranks]
            yield group.exchange(send, to_send, to_receive, f"{source.name} of the parts").numpy().tobytes()
