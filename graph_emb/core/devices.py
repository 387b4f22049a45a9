"""The device that an argument names: one of this machine's, or an error that says which there are."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from graph_emb.core.errors import ConfigError


def device_of(what: str, device: Any, *, here: bool = True) -> torch.device:
    """The device that an argument names.

    Args:
        what: The argument as an error names it, such as ``"table 'node': device"``.
        device: A name such as ``"cuda:1"``, the number of a GPU, or a ``torch.device``.
        here: Whether this machine must have it.
    Raises:
        ConfigError: it is no device, or none of this machine.
    """
    reason = "it is no name of a device"
    if isinstance(device, str | int | torch.device) and not isinstance(device, bool):
        try:
            return _usable(torch.device(device)) if here else torch.device(device)
        except (RuntimeError, AssertionError) as error:  # AssertionError: a torch without CUDA
            reason = str(error).partition("\n")[0].rstrip(".")
    known = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    raise ConfigError(f"{what}={device!r} is no device of this machine ({reason:.80}); here: {', '.join(known)}")


@lru_cache(maxsize=64)
def _usable(device: torch.device) -> torch.device:
    torch.empty(0, device=device)
    return device
