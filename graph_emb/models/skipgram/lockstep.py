"""Several ranks that train one skip-gram model in lockstep: what they have to agree on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np
import torch

from graph_emb.models.skipgram.local_sgd import ExchangeSteps
from graph_emb.models.skipgram.steps import InPlaceSteps, PacedSteps, Steps
from graph_emb.sampling.partitioned_walks import PartitionedWalkSampler
from graph_emb.transport.base import Traffic
from graph_emb.transport.process_group import ProcessGroup


class LockstepRanks:
    """The ranks whose walkers move together, for the training's log.

    Args:
        group: The ranks.
        traffic: Of the tables of this rank, collective or kvstore.
        sampler: Their walks.
        steps: How this rank trains.
    """

    def __init__(self, group: ProcessGroup, traffic: Traffic, sampler: PartitionedWalkSampler, steps: Steps) -> None:
        self.rank: int = group.rank
        self._group, self._traffic, self._sampler, self._steps = group, traffic, sampler, steps
        self._before = (traffic.distinct, traffic.local, traffic.bytes_sent + sampler.bytes_sent)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """See ``Ranks.sum``."""
        return self._group.sum(torch.from_numpy(values), "training log").numpy()

    def traffic(self) -> tuple[int, int, int]:
        """See ``Ranks.traffic``."""
        traffic, (needed, own, sent) = self._traffic, self._before
        sent = traffic.bytes_sent + self._sampler.bytes_sent - sent
        if isinstance(self._steps, PacedSteps) and isinstance(self._steps.steps, InPlaceSteps):
            return 0, 0, sent  # all rows are here
        if isinstance(self._steps, ExchangeSteps):  # own rows are not even asked for
            return self._steps.used, self._steps.own, sent
        return traffic.distinct - needed, traffic.local - own, sent


@contextmanager
def deferred_interrupt(deferred: bool) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed: a rank must not leave the others in the middle of a batch. The second one raises."""
    pressed = threading.Event()
    if not deferred or threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return
    before = signal.getsignal(signal.SIGINT)

    def press(number: int, frame: FrameType | None) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
