"""Steps of ranks that share rows and state and do not meet: each reads and changes them alone, without locks.

As the threads of Recht, Re, Wright and Niu, "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient
Descent", NIPS 2011: where steps touch few of the rows, two seldom change one row in the same moment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from torch import Tensor

from graph_emb.core.errors import ModeError
from graph_emb.table.bags import Bags
from graph_emb.table.shard import EmbeddingShard
from graph_emb.transport.base import Push
from graph_emb.transport.local import LocalTransport
from graph_emb.transport.lockstep import RankTable
from graph_emb.transport.traffic import Traffic


class StepCalls(Protocol):
    """The calls of a step that a transport in lockstep hands to somebody else; see ``Transport``."""

    def will_train(self, asked: Sequence[tuple[str, Tensor]]) -> None: ...
    def pull(self, table: str, ids: Tensor) -> Tensor: ...
    def pull_tables(self, asked: Sequence[tuple[str, Tensor]]) -> list[Tensor]: ...
    def pull_sums(self, table: str, bags: Bags) -> Tensor: ...
    def push(self, pushes: Sequence[Push]) -> None: ...
    def square_of_gradients(self, pushes: Sequence[Push]) -> list[float]: ...


class StepsAlone(Protocol):
    """The part of a transport in lockstep that a step alone changes; ``alone`` is that step."""

    alone: StepCalls | None
    num_steps: int
    lockstep: bool
    takes_bags: bool
    groups_ids: bool
    joint: Callable[[str], AbstractContextManager[Any]]
    counts: defaultdict[str, Traffic]


class InPlace(LocalTransport):
    """All rows of some tables, with their state, as one rank alone pulls from and pushes to them.

    A context manager, to be entered for each step: within it those calls of the ranks' transport come here. Clocks of a
    table are the rank's own (``SparseOptimizer.take_turns``).

    Args:
        ranks: The transport.
        tables: Those whose rows, and state, all ranks reach.
    """

    mode = "collective"

    def __init__(self, ranks: StepsAlone, tables: Mapping[str, RankTable]) -> None:
        super().__init__()
        self.counts = ranks.counts
        self._ranks, self._of_ranks = ranks, dict(tables)
        self._tables.update({name: WholeShard(table) for name, table in tables.items()})
        self._together: tuple[bool, Callable[[str], Any]] = ranks.lockstep, ranks.joint

    def __enter__(self) -> InPlace:
        for name, table in self._of_ranks.items():
            if table.shared_of is not table.shard.state and table.shard.state:
                raise ModeError(f"table {name!r} has another optimizer since in_place(); call it again")
            if table.shard.frozen is not None:
                raise ModeError(f"table {name!r}: ranks that step alone would change rows that others froze")
        ranks = self._ranks
        ranks.alone, ranks.lockstep, ranks.joint = self, False, nullcontext
        ranks.takes_bags = ranks.groups_ids = True
        return self

    def push(self, pushes: Sequence[Push]) -> None:
        """As ``Transport.push``; the ranks' transport counts the step."""
        super().push(pushes)
        self._ranks.num_steps += 1

    def __exit__(self, *_: object) -> None:
        ranks = self._ranks
        ranks.alone, (ranks.lockstep, ranks.joint) = None, self._together
        ranks.takes_bags = ranks.groups_ids = False


class WholeShard(EmbeddingShard):
    """The rows of all ranks, and their state, with this rank's clocks."""

    def __init__(self, table: RankTable) -> None:
        assert table.shared is not None
        self.spec, self.first_id, self.weight = table.spec, 0, table.shared
        self.free_state()
        if table.shard.attached:
            self.hold_state(table.shard.state_specs, {**table.shard.state, **table.shared_state})
