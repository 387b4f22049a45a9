"""Dense parameters that all trainers hold: torch's DistributedDataParallel with gradients that are summed.

Tables sum the gradients of all ranks (``merge="sum"``); DistributedDataParallel divides by their number. Here both sum,
so that a loss which each rank divides by the size of the whole step has the gradient of one process, table and network.
"""

# No "from __future__ import annotations": torch compares the hook's annotations with types, and refuses strings.

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from graph_emb.transport.process_group import ProcessGroup


class DataParallel:
    """A network of which every rank holds a copy. Alone, it is the network itself.

    Every rank runs forward and backward the same number of times; ``graph_emb.in_step`` gives empty batches to
    ranks that run out. All ranks start from the first one's values.

    Args:
        module: The network; parameters that a step leaves unused are fine.
        group: The ranks; None: this process alone.
    Attributes:
        module: The network, for its parameters and modes.
    """

    def __init__(self, module: nn.Module, group: ProcessGroup | None) -> None:
        self.module = module
        self._wrapped: DistributedDataParallel | None = None
        if group is not None and group.world_size > 1:
            made = DistributedDataParallel(module, process_group=group.torch_group, find_unused_parameters=True)
            made.register_comm_hook(group.torch_group, _sum)
            self._wrapped = made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network; its gradients are summed over the ranks in backward."""
        return (self.module if self._wrapped is None else self._wrapped)(*args, **kwargs)

    def apart(self) -> contextlib.AbstractContextManager[None]:
        """Within it, a forward and its backward add to this rank's gradients only; the next one outside sends all."""
        return contextlib.nullcontext() if self._wrapped is None else self._wrapped.no_sync()


def _sum(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work is not None
    done: torch.futures.Future[Tensor] = work.get_future().then(lambda future: future.value()[0])
    return done
