"""Memory for tables: large, touched at random, alive for weeks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, table: str) -> Tensor:
    """Uninitialised memory of a table, or an error that names the table and the bytes it asked for.

    On the CPU numpy allocates, because it asks the kernel for huge pages: random rows of a
    table of gigabytes then cost fewer misses of the address cache than in torch's own memory.
    """
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    try:
        if device.type == "cpu" and num_bytes:  # torch cannot view an empty buffer as another dtype
            return torch.from_numpy(np.empty(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
        return torch.empty(shape, dtype=dtype, device=device)
    except (MemoryError, RuntimeError) as error:
        raise ConfigError(
            f"table {table!r}: cannot allocate {num_bytes:,} bytes for shape {shape} of {dtype} on {device}; "
            "use fewer rows, a smaller embedding_dim, or a row-wise optimizer"
        ) from error
