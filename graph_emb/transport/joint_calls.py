"""Calls that all ranks make together, checked to be the same one on each.

Legend: W ranks, K numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from graph_emb.transport import lockstep
from graph_emb.transport.lockstep import FIXED, HEAD, RankTable
from graph_emb.transport.process_group import ProcessGroup


class JointCalls:
    """The joint calls of a rank, numbered in their order.

    A call counts from its first check on: a rank that refuses its ids, and goes on, has skipped the call that the
    others wait in, and both sides can name it. An error after numbers have travelled leaves the ranks out of step
    (``ProcessGroup.fail``).

    Args:
        group: The ranks; it keeps the number.
        tables: The live ones, which errors describe.
    """

    def __init__(self, group: ProcessGroup, tables: Mapping[str, RankTable] | None = None) -> None:
        self._group, self._tables = group, {} if tables is None else tables
        self._within = self._travels = False

    @contextlib.contextmanager
    def call(self, what: str) -> Iterator[None]:
        """A joint call with its checks; within another one it is a part of that."""
        if self._within:
            yield
            return
        if self._group.failed:
            self._group.check()
        self._group.num_calls += 1
        self._group.last_calls.append(what)
        self._within, self._travels = True, False
        try:
            yield
        except BaseException as error:
            if self._travels:
                self._group.fail(what, error)
            raise
        finally:
            self._within = False

    def agree(self, call: int, number: int, per_rank: Tensor, what: str) -> Tensor:
        """Exchange one row of K numbers with every rank, and check that all are in the same call. Every rank calls it.

        Args:
            call: This rank's call (``PULL`` ...).
            number: What it is about: the ``signature`` of its tables, the round of walks.
            per_rank: The numbers for each rank, (W, K), int64.
            what: The words with which an error names the call.
        Returns:
            The numbers of each rank for this one, (W, K).
        Raises:
            PeerError: a process is gone, is in another call, or has skipped one.
        """
        with self.call(what):
            self._travels = True
            ranks, num, room = self._group.world_size, per_rank.shape[1], HEAD - FIXED
            head = torch.zeros(ranks, HEAD, dtype=torch.int64)
            head[:, :FIXED] = torch.tensor([call, number, num, self._group.num_calls])
            head[:, FIXED : FIXED + num] = per_rank[:, :room]
            got = self._group.exchange_numbers(head, what)
            wrong = (got[:, :FIXED] != head[:, :FIXED]).any(dim=1).nonzero().flatten().tolist()
            if wrong:
                others = {rank: (int(got[rank, 0]), int(got[rank, 1])) for rank in wrong}
                skipped = self._skipped({rank: int(got[rank, 3]) for rank in wrong})
                raise lockstep.told_apart(self._group.rank, what, others, self._tables, skipped)
            if num <= room:
                return got[:, FIXED : FIXED + num]
            rest = self._group.exchange_numbers(per_rank[:, room:].contiguous(), what)
            return torch.cat([got[:, FIXED:], rest], dim=1)

    def _skipped(self, places: Mapping[int, int]) -> str:
        """Who skipped which call, from the number of the call that each rank is in."""
        own, place = self._group.num_calls, min(places.values())
        ahead = [rank for rank, theirs in places.items() if theirs > own]
        if ahead:
            return f"; rank {', '.join(map(str, ahead))} skipped {self._group.last_calls[-1]} (joint call {own})"
        back = own - place
        known = self._group.last_calls[-1 - back] if back < len(self._group.last_calls) else "a call"
        return f"; rank {self._group.rank} skipped {known} (joint call {place})" if back else ""
