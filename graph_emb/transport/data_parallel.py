"""Networks of which every rank holds a copy: torch's DistributedDataParallel, whose gradients are sums."""

from __future__ import annotations

import atexit
import contextlib
import time
from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from graph_emb.transport.process_group import ProcessGroup


class DataParallel:
    """A network of which every rank holds a copy, with gradients that are summed. Alone, it is the network itself.

    Tables sum the gradients of all ranks (``merge="sum"``); DistributedDataParallel divides by their number. Here both
    sum, so that a loss which each rank divides by the size of the whole step has the gradient of one process.

    Every rank runs forward and backward the same number of times; ``graph_emb.in_step`` gives empty batches to
    ranks that run out. All ranks start from the first one's values.

    Args:
        module: The network; parameters that a step leaves unused are fine.
        group: The ranks; None: this process alone.
        sums: Whether backward sums the gradients; False leaves that to the caller.
    """

    def __init__(self, module: nn.Module, group: ProcessGroup | None, sums: bool = True) -> None:
        self.module = module
        self._wrapped: Any = None
        if group is not None and group.world_size > 1 and not sums:
            group.copy_first([*module.parameters(), *module.buffers()], "values of a network")
        elif group is not None and group.world_size > 1:
            self._wrapped = DistributedDataParallel(module, process_group=group._group, find_unused_parameters=True)
            self._wrapped.register_comm_hook(group, _sum)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network; its gradients are summed over the ranks in backward."""
        return (self.module if self._wrapped is None else self._wrapped)(*args, **kwargs)

    def apart(self) -> contextlib.AbstractContextManager[None]:
        """Within it, a forward and its backward add to this rank's gradients only; the next one outside sends all."""
        return contextlib.nullcontext() if self._wrapped is None else self._wrapped.no_sync()


_SUMS: deque[Any] = deque(maxlen=4)
"""The last sums of gradients. A thread of gloo's that lets go of one as the last takes the interpreter's lock: it would
wait for ever for whoever ends the group under that lock, and waits for the thread."""
atexit.register(_SUMS.clear)


def _sum(group: ProcessGroup, bucket: dist.GradBucket) -> Any:
    """Sum gradients while backward waits: no Python runs in a thread of torch's."""
    gradients, begun = bucket.buffer(), time.perf_counter()
    _SUMS.append(dist.all_reduce(gradients, group=group._group, async_op=True))
    _SUMS[-1].wait()
    group.link.waited += time.perf_counter() - begun
    group.link.bytes_in += gradients.nbytes
    group.link.bytes_out += gradients.nbytes
    found: Any = torch.futures.Future()
    found.set_result(gradients)
    return found


# torch compares a hook's annotations with types, and refuses strings.
_sum.__annotations__.clear()
