"""Rows of a table in memory that every rank of a machine maps; it has no name, so nothing stays behind."""

from __future__ import annotations

import mmap
import os

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, PeerError
from graph_emb.table.spec import TableSpec
from graph_emb.transport.process_group import ProcessGroup
from graph_emb.transport.shm_all_to_all import map_memory, new_memory


def shared_rows(group: ProcessGroup, spec: TableSpec) -> Tensor:
    """Memory for all rows of a table, shape (rows, D), the same for every rank. Every rank must call it.

    Raises:
        ConfigError: the table is not in host memory, there is no room, or the ranks give it other shapes.
        PeerError: the rank that made it is gone.
    """
    if spec.device.type != "cpu":
        raise ConfigError(f"table {spec.name!r}: device {spec.device}; ranks share rows in host memory only, use 'cpu'")
    size = spec.num_rows * spec.dim * spec.dtype.itemsize
    what, descriptor, memory, failed = f"create of table {spec.name!r}", -1, None, ""
    if group.rank == 0:
        try:
            descriptor, memory = new_memory(max(1, size))
        except OSError as error:
            failed = (
                f"table {spec.name!r}: cannot share {size:,} bytes: {error.strerror}; "
                "use fewer rows, or a container with more memory"
            )
    try:
        shape = f"({spec.num_rows}, {spec.dim}) of {spec.dtype}"
        told = group.gather_objects((os.getpid(), descriptor, failed, shape), what)
        shapes = [entry[3] for entry in told]
        if len(set(shapes)) > 1:
            raise ConfigError(f"table {spec.name!r}: the ranks make it {shapes}; make the same tables on every rank")
        pid, file, reason, _ = told[0]
        if reason:
            raise ConfigError(reason)
        try:
            found: mmap.mmap = memory if memory is not None else map_memory(pid, file, max(1, size))
        except OSError as error:
            raise PeerError(f"{what}: rank 0 (process {pid}) is gone ({error})") from error
        group.gather_objects(None, what)  # every rank has mapped it
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    values = torch.from_numpy(np.frombuffer(found, np.uint8))
    return values[:size].view(spec.dtype).view(spec.num_rows, spec.dim)
