"""Local SGD: a process trains its own rows in place and the rows of others as copies, exchanged at intervals."""

# B walks, L nodes of a walk, S blocks of a walk, K shared negatives, D width.

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.models.skipgram.kernels import move_numbers, number_rows
from graph_emb.models.skipgram.model import SkipGram, num_blocks
from graph_emb.models.skipgram.rates import LOWEST
from graph_emb.models.skipgram.steps import (
    MOST_CHANGE,
    Kernel,
    WalkBatch,
    WalkRates,
    in_parts,
    summed,
    trainable_in_place,
)
from graph_emb.optimizer import SparseSGD
from graph_emb.sampling.negatives import NearNegativeSampler, NegativeSampler
from graph_emb.transport.local_sgd_rows import LocalSGDRows

EXCHANGES = 400
"""Exchanges of a whole training by default, at most."""
MEETINGS = 50
"""How often trainers that share all rows wait for each other in a training by default, at most."""
TOKENS_OF_A_NODE = 1.0
"""Tokens for each node of the graph that all ranks train between two exchanges by default, at least: so few changes of
a row do no harm when they are added up late."""
MOST_WALKS = 1 << 14
"""Walks of a rank between two exchanges, at most, by default where own rows are not copied."""
MOST_TOKENS = 1 << 18
"""Tokens of a trainer between two exchanges, at most, by default where all rows are copied."""
COPIES = 0.125
"""Memory of copies of rows that lie in files, in units of what is held of these."""
GROWTH, LATE_GROWTH = 0.2, 0.13
"""Of all walks so far, the share that an interval is long by default where changes are joined by AdaSum: rows move far
at first, and less and less. The second where exchanges overlap, and rows are older."""
MOST_TOKENS_OF_A_NODE = 32.0
"""Tokens for each node of the graph that all ranks train in such an interval, at most: where many are trained, rows go
far from each other in little of the training."""
LEAST_INTERVALS = 2
"""Intervals of a batch, at least, where exchanges overlap."""
BATCHES_OF_A_ROUND = 8
"""Batches after which rows are whole there: the first and the last exchange of a round are waited for."""


def walks_together(
    model: SkipGram, ranks: int, walk_length: int, total_walks: int, rate: float, *, shared: bool = False
) -> int:
    """Walks between two exchanges, over all ranks that walk together.

    By default fewer where the first rate is higher than 0.025, in proportion: rows then go as far from each other.
    Where rows lie in files, as many as have copies in ``COPIES`` of what memory holds of the tables.

    Args:
        shared: All rows are in reach of each rank, which has nothing to exchange: they only wait for each other.
    """
    if shared:
        usual = min(-(-total_walks // (ranks * MEETINGS)), MOST_TOKENS // walk_length)
        return ranks * (model.config.exchange_walks or max(1, usual))
    if model.own_file is not None:
        config = model.config
        nodes = walk_length + num_blocks(walk_length, config) * config.shared_negatives
        fitting = int(COPIES * model.own_file.memory_bytes) // (nodes * config.dim * 4)
        return config.exchange_walks or max(1, fitting)
    most = MOST_WALKS if model.embedding.transport.lockstep else max(1, MOST_TOKENS // walk_length)
    return ranks * (
        model.config.exchange_walks or usual_walks(model.num_nodes, ranks, walk_length, total_walks, rate, most)
    )


def usual_walks(
    num_nodes: int, ranks: int, walk_length: int, total_walks: int, rate: float, most: int = MOST_WALKS
) -> int:
    """Walks of a rank between two exchanges by default, at most ``most``; the rest as of ``walks_together``."""
    of_training = -(-total_walks // (ranks * EXCHANGES))
    of_graph = int(TOKENS_OF_A_NODE * num_nodes) // (ranks * walk_length)
    drift = min(1.0, LOWEST / rate) if rate > 0 else 1.0
    return max(1, int(drift * min(most, max(of_training, of_graph))))


def growth_of(config: SkipGramConfig, num_nodes: int, walk_length: int) -> tuple[float, int]:
    """The share of all walks so far that an interval of ranks in lockstep is long, and its most walks, of all ranks."""
    if not config.adaptive(lockstep=True) or config.exchange_walks:
        return 0.0, 0
    return (LATE_GROWTH if config.overlap else GROWTH), int(MOST_TOKENS_OF_A_NODE * num_nodes) // walk_length


def batching(config: SkipGramConfig) -> tuple[int, int]:
    """Intervals that a batch of ranks in lockstep should have, at least, and after how many batches rows are whole."""
    return (LEAST_INTERVALS, BATCHES_OF_A_ROUND) if config.overlap else (1, 1)


def near_negatives(model: SkipGram, negatives: NegativeSampler) -> NegativeSampler:
    """The source of negatives where other ranks' rows travel: mostly own nodes where the recipe says so."""
    config, transport = model.config, model.embedding.transport
    reach = transport.in_reach(model.embedding.name)
    owned = (reach.first_id, reach.first_id + len(reach.weight))
    if config.remote_negatives is None or not transport.lockstep or not NearNegativeSampler.fits(negatives, owned):
        return negatives
    return NearNegativeSampler(negatives, owned, config.shared_negatives, config.remote_negatives)


@dataclass(frozen=True)
class Numbered:
    """Walks of an interval, and the rows that they need by number: own rows first, then copies.

    Attributes:
        piece: The walks as they came.
        walks, negatives: Shapes (B, L) and (B, S * K), of numbers.
        others: Nodes of other ranks by number, (N,), the first ``num_tokens`` of them tokens.
        num_own: Own rows.
    """

    piece: WalkBatch
    walks: np.ndarray
    negatives: np.ndarray
    others: Tensor
    num_tokens: int
    num_own: int


class LockstepCopies:
    """Copies of other ranks' rows: one exchange fetches the rows of all tables, another returns their changes.

    Args:
        model: Tables in collective mode.
        adaptive, overlap: As of ``LocalSGDRows``.
    """

    def __init__(self, model: SkipGram, adaptive: bool, overlap: bool) -> None:
        self._claim = SparseSGD(model.tables, lr=1.0)  # no other optimizer may train these tables meanwhile
        names = [table.name for table in model.tables]
        self.rows = LocalSGDRows(model.embedding.transport, names, adaptive=adaptive, overlap=overlap)
        self._tables = len(model.tables)

    def pull(self, numbered: Numbered) -> list[np.ndarray]:
        """Copies of other ranks' rows, those of tokens in all tables and others in the last; they are numbered anew."""
        self.ask(numbered)
        self.rows.lay_out()
        return self.arrived(numbered)

    def ask(self, numbered: Numbered) -> None:
        """Ask for the rows that ``arrived`` gives."""
        tokens, rest = numbered.others[: numbered.num_tokens], numbered.others[numbered.num_tokens :]
        self.rows.ask([tokens, rest] if self._tables == 2 else [numbered.others])

    def arrived(self, numbered: Numbered) -> list[np.ndarray]:
        """What ``pull`` gives, of rows that were asked for."""
        copies = self.rows.arrived()
        for numbers in (numbered.walks, numbered.negatives):
            move_numbers(numbers, numbered.num_own, copies.places.numpy())
        return [rows.numpy() for rows in copies.rows]

    def give_back(self) -> None:
        """Bring to the owners' rows by how much the copies have changed."""
        self.rows.give_back()


class PushedCopies:
    """Copies of rows on servers, pulled table by table; changes are pushed as gradients of SGD at rate 1.

    Args:
        model: Tables in kvstore mode.
        wait: Barrier between pulling rows and pushing changes, so that every trainer pulls before any pushes.
    """

    def __init__(self, model: SkipGram, wait: Callable[[], None] | None) -> None:
        self._model, self._wait = model, wait
        self._optimizer = SparseSGD(model.tables, lr=1.0)
        self._pulled: list[Tensor] = []
        self._copies: list[np.ndarray] = []

    def pull(self, numbered: Numbered) -> list[np.ndarray]:
        """Copies of all rows that are trained, of tokens and of contexts."""
        asked = [numbered.others[: numbered.num_tokens], numbered.others][-len(self._model.tables) :]
        self._pulled = [table(some) for table, some in zip(self._model.tables, asked, strict=True)]
        self._copies = [rows.detach().numpy().copy() for rows in self._pulled]
        if self._wait is not None:
            self._wait()
        return self._copies

    def give_back(self) -> None:
        """See ``LockstepCopies.give_back``."""
        both = zip(self._pulled, self._copies, strict=True)
        changes = [rows.detach() - torch.from_numpy(copy) for rows, copy in both]
        torch.autograd.backward(self._pulled, changes)  # a gradient is a change with its sign turned
        self._optimizer.step()
        self._optimizer.zero_grad()


class CachedCopies:
    """Copies of rows that lie in files, of which memory holds a part; they are written back as they were trained.

    Args:
        model: Tables in a file each, which this process alone trains.
    """

    def __init__(self, model: SkipGram) -> None:
        self._model, self._transport = model, model.embedding.transport
        self._claim = SparseSGD(model.tables, lr=1.0)  # no other optimizer may train these tables meanwhile
        self._held: list[tuple[str, Tensor, Tensor]] = []

    def announce(self, numbered: Numbered) -> None:
        """Let the rows of the next ``pull`` come meanwhile."""
        for table, some in self._asked(numbered):
            self._transport.prefetch(table, some)

    def pull(self, numbered: Numbered) -> list[np.ndarray]:
        """See ``PushedCopies.pull``."""
        asked = self._asked(numbered)
        self._held = [(table, some, self._transport.pull(table, some)) for table, some in asked]
        return [rows.numpy() for *_, rows in self._held]

    def give_back(self) -> None:
        """Write the rows."""
        for table, ids, rows in self._held:
            self._transport.write(table, ids, rows)
        self._held = []

    def _asked(self, numbered: Numbered) -> list[tuple[str, Tensor]]:
        names = [table.name for table in self._model.tables]
        asked = [numbered.others[: numbered.num_tokens], numbered.others]
        return list(zip(names, asked[-len(names) :], strict=True))


class ExchangeSteps:
    """SGD as ``InPlaceSteps`` takes it, with an exchange every ``exchange_walks`` walks of each rank.

    One process whose rows lie in files copies all that its walks need and writes them back: the rows of one thread have
    the bits of ``InPlaceSteps``. Of several ranks:

    Before its walks a rank pulls the rows of other ranks that they need. It then trains on its own rows in place and
    on the copies as if all were here, and sends the owners by how much each copy has changed; an owner joins what
    comes with its own changes (``reduction``). Ranks thus see each other's changes with a delay of an interval (local
    SGD, as word2vec's distributed trainers do). With one thread per rank a seed gives the same rows each time.

    What the delay costs: both ranks move a row as if the other did not. Their sum goes too far, the more the longer
    they are apart, and dot products feel it more than directions. AdaSum takes what both changes have in common once,
    so that exchanges may be fewer: few where much has been trained, since rows move less and less (``GROWTH``).

    With ``overlap`` they travel while walks train. Half way through an interval a rank has the others' changes of the
    last one and asks for the rows of the next; these come during the second half, and the changes travel during the
    first half of the next interval. Every change is thus seen half an interval later. Intervals go on from batch to
    batch: the last walks of a batch wait for the next one, while their rows come. All rows are whole after a batch that
    says so.

    In kvstore mode the servers write every row, so a trainer copies all that it needs (in Hogwild: all but those of its
    machine). The changes of trainers add up in the order of arrival: where they wait for each other, a seed gives the
    same rows but for rounding.

    Args:
        model: Tables that ``fits`` accepts.
        negatives, decay: As for every stepper.
        pool, threads: Threads of this rank; they share rows without locks.
        size: Walks between two exchanges, of all ranks that walk together, at least; see ``walks_together``.
        wait: Barrier between pulling rows and pushing changes, so that every trainer pulls before any pushes.
    """

    def __init__(
        self,
        model: SkipGram,
        negatives: NegativeSampler,
        decay: WalkRates,
        pool: ThreadPoolExecutor,
        threads: int,
        size: int,
        wait: Callable[[], None] | None = None,
    ) -> None:
        self._model, self._decay, self._pool, self._threads = model, decay, pool, threads
        self.config = model.config
        self._negatives = near_negatives(model, negatives)
        self._kernel = Kernel(model.config, self._negatives)
        transport = model.embedding.transport
        self._copies: LockstepCopies | PushedCopies | CachedCopies | None = None
        self._overlap = bool(model.config.overlap and transport.lockstep)
        if model.own_file is not None:
            self._copies = CachedCopies(model)
        elif transport.lockstep:
            self._copies = LockstepCopies(model, model.config.adaptive(lockstep=True), self._overlap)
        else:
            self._copies = PushedCopies(model, wait)
        self.size = size
        self._places = np.full(model.num_nodes, -1, np.int32)
        self.used, self.own, self.optimizer = 0, 0, None
        self._seconds = 0.0
        self._rest: WalkBatch | None = None  # of the batches so far, whose interval has not ended
        self._current: Numbered | None = None  # its rows travel
        self._before: Numbered | None = None  # its changes travel
        self._done = self._laid = self._was_laid = 0.0
        """Walks of all ranks since rows were whole: trained, and when rows of this piece and the one before left."""

    @staticmethod
    def fits(model: SkipGram) -> bool:
        """Whether several processes share float32 rows on the CPU, each table cut in the same way, or one has files."""
        reaches = [table.transport.in_reach(table.name) for table in model.tables]
        return (model.embedding.transport.world_size > 1) is (model.own_file is None) and all(
            trainable_in_place(reach)
            and (reach.first_id, len(reach.weight)) == (reaches[0].first_id, len(reaches[0].weight))
            for reach in reaches
        )

    @property
    def exchange_seconds(self) -> tuple[float, float]:
        """Time of exchanges so far, waiting for others included, and of it the time during which this rank trained."""
        if self._overlap and isinstance(self._copies, LockstepCopies):
            return self._copies.rows.seconds, self._copies.rows.hidden
        return self._seconds, 0.0

    def run(self, batch: WalkBatch) -> tuple[float, float]:
        """See ``Steps.run``."""
        if isinstance(self._copies, CachedCopies):
            return summed(self._cached(self._copies, batch))
        if self._overlap and isinstance(self._copies, LockstepCopies):
            return summed(self._overlapping(self._copies, batch))
        return summed(map(self._exchange, map(self._number, self._pieces(batch))))

    def _pieces(self, batch: WalkBatch) -> Iterator[WalkBatch]:
        """The intervals of a batch."""
        growth: tuple[float, int] | tuple[()] = ()
        if isinstance(self._copies, LockstepCopies):
            growth = growth_of(self.config, self._model.num_nodes, batch.walks.shape[1])
        return batch.cut(self.size, *growth)

    def _overlapping(self, copies: LockstepCopies, batch: WalkBatch) -> Iterator[tuple[float, float]]:
        """Train each piece while the changes of the last one, then the rows of the next one travel.

        The last piece that is known waits for the next batch, unless rows are to be whole.
        """
        pieces = list(self._pieces(batch if self._rest is None else self._rest.joined(batch)))
        self._rest = None if batch.whole or not pieces else pieces.pop()  # more walks may belong to its interval
        numbered = map(self._number, pieces)
        if self._current is None and (first := next(numbered, None)) is not None:
            copies.ask(first)
            copies.rows.lay_out()
            self._current = first
        while (current := self._current) is not None:
            following = next(numbered, None)
            if following is None and not batch.whole:
                return
            held, half = copies.arrived(current), len(current.walks) // 2
            if following is not None:
                copies.ask(following)
            yield self._train(current, held, 0, half)
            self._done += current.piece.total / 2
            self._take(copies)
            self._was_laid, self._laid = self._laid, self._done
            if following is not None:
                copies.rows.lay_out()
            yield self._train(current, held, half)
            self._done += current.piece.total / 2
            copies.rows.send()
            self._before, self._current = current, following
        self._take(copies)
        self._before, self._done, self._laid, self._was_laid = None, 0.0, 0.0, 0.0

    def _take(self, copies: LockstepCopies) -> None:
        """Join the changes that travel with what was done here since their rows were laid out."""
        if self._before is not None:
            copies.rows.take(self._before.piece.total / (self._done - self._was_laid))

    def _cached(self, copies: CachedCopies, batch: WalkBatch) -> Iterator[tuple[float, float]]:
        """Train each piece while the rows of the next one come."""
        pieces = map(self._number, batch.cut(self.size))
        current = next(pieces, None)
        while current is not None:
            following = next(pieces, None)
            if following is not None:
                copies.announce(following)
            yield self._exchange(current)
            current = following

    def _exchange(self, numbered: Numbered) -> tuple[float, float]:
        """Pull, train, push; also without a walk, because other ranks may have some."""
        assert self._copies is not None
        begun = time.perf_counter()
        copies = self._copies.pull(numbered)
        pulled = time.perf_counter()
        sums = self._train(numbered, copies)
        trained = time.perf_counter()
        self._copies.give_back()
        self._seconds += pulled - begun + time.perf_counter() - trained
        return sums

    def _number(self, piece: WalkBatch) -> Numbered:
        """Draw the negatives of the walks and number the rows of both."""
        reach = self._model.embedding.transport.in_reach(self._model.embedding.name)
        drawn = self._kernel.draw(piece.walks, piece.epoch, piece.index, self._shared_negatives(piece))
        walks, negatives = np.empty_like(piece.walks), np.empty_like(drawn)
        config = self._model.config
        block = (config.block, config.shared_negatives, reach.first_id, len(reach.weight))
        others, num_tokens, used, own = number_rows(piece.walks, drawn, *block, self._places, walks, negatives)
        if self._model.own_file is None:  # else nothing travels
            self.used, self.own = self.used + used, self.own + own
        return Numbered(piece, walks, negatives, torch.from_numpy(others), num_tokens, len(reach.weight))

    def _train(
        self, numbered: Numbered, copies: list[np.ndarray], first: int = 0, end: int | None = None
    ) -> tuple[float, float]:
        """Train the walks [first, end) on own rows and on copies of others in place."""
        tables = [table.transport.in_reach(table.name).weight.numpy() for table in self._model.tables]
        pair, far = (tables[0], tables[-1]), (copies[0], copies[-1])
        piece = numbered.piece

        def part(low: int, high: int) -> tuple[float, float]:
            index = piece.index[low:high]
            rates = self._decay.of(piece.begun + index)
            walks, negatives = numbered.walks[low:high], numbered.negatives[low:high]
            return self._kernel.run(walks, negatives, pair, pair, rates, MOST_CHANGE, index, far)

        num = (len(piece.walks) if end is None else end) - first
        return in_parts(lambda low, high: part(first + low, first + high), num, self._pool, self._threads)

    def _shared_negatives(self, piece: WalkBatch) -> np.ndarray | None:
        """The nodes among which negatives are drawn until the next exchange; None: all nodes."""
        if not self._model.config.negative_pool:
            return None
        number = piece.first + self._model.embedding.transport.rank  # exchanges are as many walks apart as ranks
        return self._negatives.pool(self._model.config.negative_pool, number, epoch=piece.epoch)
