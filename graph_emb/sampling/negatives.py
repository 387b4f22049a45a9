"""Negative nodes for contrastive losses: drawn by degree in constant time, the same at any number of threads."""

# N nodes, B walks, L nodes of a walk, S blocks of a walk, K negatives of a block, G types on a metapath;
# of pairs that no edge joins: E edges, B drawn pairs.

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError, PartitionError, ShapeError
from graph_emb.core.scratch_file import ScratchFile
from graph_emb.graph.csr import frozen
from graph_emb.sampling.part_graph import PartGraph
from graph_emb.sampling.walk_kernels import alias_rows, at_least_one, check_grown, fill_negatives, stream_key
from graph_emb.transport.process_group import ProcessGroup

LARGEST_EXPONENT = 127
"""Shares are below two to this power; float32 reaches 2 ** 128."""


@dataclass(frozen=True)
class NegativeKinds:
    """Kinds of contexts and negatives: a negative of a block counts for the contexts of its own kind, of G kinds.

    Attributes:
        places: The kind of each place of a walk, shape (L,), int8.
        drawn: The kind of each negative of a block, shape (K,), int8; every kind has at least one.
        weights: How much each negative counts, shape (K,), mean 1 within a kind; None: all the same.
    """

    places: np.ndarray
    drawn: np.ndarray
    weights: np.ndarray | None = None

    @classmethod
    def one(cls, walk_length: int, shared: int) -> NegativeKinds:
        """One kind: every negative counts for every context."""
        return cls(np.zeros(walk_length, np.int8), np.zeros(shared, np.int8))

    def shares(self, num_negatives: float) -> np.ndarray:
        """The weight of each negative of a block, such that ``num_negatives`` count per context; (K,), float32."""
        even = (num_negatives / np.bincount(self.drawn))[self.drawn]
        return (even if self.weights is None else even * self.weights).astype(np.float32)


class NegativeSampler:
    """Nodes drawn with a probability proportional to ``degree ** power``, with replacement.

    power 0.75 is word2vec's choice (Mikolov et al. 2013), 0 is uniform over all nodes. A draw is a function of
    (seed, epoch, walk, its number), so it does not depend on threads or batches.

    Args:
        degrees: Shape (N,), at least 0; ``WalkSampler.degrees`` gives those of a graph.
        power: Exponent, finite.
        seed: Any integer.
        low: The node of the first degree: N nodes from ``low`` on are drawn. Where each rank draws among its own
            nodes only, no row of a negative travels, but a token is never pushed away from nodes of other ranks
            that its walks do not meet: rows of different ranks are separated less well.
    Raises:
        ConfigError: power is not finite or below 0, or no node has a positive probability.

    Example:
        >>> from graph_emb.sampling.negatives import NegativeSampler
        >>> negatives = NegativeSampler([1, 0, 16], power=0.5)
        >>> negatives.probabilities.tolist(), negatives.sample(2, 5).shape
        ([0.2, 0.0, 0.8], (2, 5))
    """

    def __init__(self, degrees: np.ndarray, power: float = 0.75, *, seed: int = 0, low: int = 0) -> None:
        self.seed, self.low = int(seed), int(low)
        self.power, self._num = float(power), 0
        self.follow(degrees)

    def follow(self, degrees: np.ndarray) -> None:
        """Draw by other degrees from now on, as a sampler that is made of them: those of a graph that has grown.

        Args:
            degrees: As before, of as many nodes or more.
        Raises:
            ConfigError: of fewer nodes, or as when it was made.
        """
        check_grown(self._num, len(degrees))
        share = _shares(degrees, self.power)
        self.probabilities = share / share.sum()
        row = frozen(np.array([0, len(share)], np.int64))
        self.accept, self.other, _ = alias_rows(row, frozen(share.astype(np.float32)))
        self._num = len(share)

    def kinds(self, walk_length: int, shared: int) -> NegativeKinds:
        """The kinds of the ``shared`` negatives of a block and of the places of a walk of ``walk_length`` nodes."""
        return NegativeKinds.one(walk_length, shared)

    def key(self, epoch: int) -> np.uint64:
        """The key of an epoch's streams, for compiled loops that draw by themselves."""
        return stream_key(self.seed, epoch, 1)

    def sample(self, num_walks: int, per_walk: int, *, epoch: int = 0, first: int = 0) -> np.ndarray:
        """Negatives of consecutive walks.

        Args:
            num_walks: B.
            per_walk: Draws for each walk.
            epoch: Each epoch has draws of its own.
            first: Index of the first walk in the epoch.
        Returns:
            Shape (B, per_walk), int32.
        """
        return self.sample_for(np.arange(first, first + at_least_one("num_walks", num_walks)), per_walk, epoch=epoch)

    def sample_for(
        self, index: np.ndarray, per_walk: int, *, epoch: int = 0, pool: np.ndarray | None = None
    ) -> np.ndarray:
        """Negatives of walks by their index in the epoch.

        Args:
            index: Shape (B,), integers.
            per_walk, epoch: As in ``sample``.
            pool: Nodes of ``pool(...)``, of which each draw takes one; None draws among all.
        Returns:
            Shape (B, per_walk), int32.
        """
        out = np.empty((len(index), at_least_one("per_walk", per_walk)), np.int32)
        if pool is not None:
            empty = (np.empty(0, np.float32), np.empty(0, np.int32))
            fill_negatives(*empty, len(pool), self.key(epoch), index, 0, out)
            return pool[out]
        fill_negatives(self.accept, self.other, self._num, self.key(epoch), index, self.low, out)
        return out

    def pool(self, size: int, number: int, *, epoch: int = 0) -> np.ndarray:
        """Draw nodes that many walks share as negatives, so that few rows are needed; each is an ordinary draw.

        Args:
            size: Nodes, with repeats.
            number: Which pool of the epoch.
            epoch: As in ``sample``.
        Returns:
            Shape (size,), int32.
        """
        out = np.empty((1, at_least_one("size", size)), np.int32)
        key = stream_key(self.seed, epoch, 3)
        fill_negatives(self.accept, self.other, self._num, key, np.array([number]), self.low, out)
        return out[0]


def _shares(degrees: np.ndarray, power: float) -> np.ndarray:
    """``degree ** power``, of which all are multiples by a power of two, (N,), float64.

    The alias tables read float32: a power of two, which rounds nothing, brings the largest share below its limit.

    Raises:
        ConfigError: as ``NegativeSampler``.
    """
    if not (math.isfinite(power) and power >= 0):
        raise ConfigError(f"negative power {power}: must be finite and at least 0; 0 draws uniformly")
    share = np.asarray(degrees, np.float64) ** power
    if not (len(share) and np.isfinite(share).all() and share.min() >= 0 and share.sum() > 0):
        raise ConfigError(
            f"negatives of {len(share)} nodes: degrees must be finite, at least 0 and not all 0; "
            "use power=0 for a graph without edges"
        )
    return np.ldexp(share, LARGEST_EXPONENT - int(np.frexp(share.max())[1]), out=share)


class UniformSampler(NegativeSampler):
    """The draws of a ``NegativeSampler`` of power 0, without a table.

    Args:
        num: N, at least 1.
        seed, low: As there.
    """

    def __init__(self, num: int, *, seed: int = 0, low: int = 0) -> None:
        self.seed, self.low, self.power, self._num = int(seed), int(low), 0.0, num
        self.accept, self.other = np.empty(0, np.float32), np.empty(0, np.int32)

    def follow(self, degrees: np.ndarray) -> None:
        """As ``NegativeSampler.follow``; only the number of degrees counts."""
        check_grown(self._num, len(degrees))
        self._num = len(degrees)
        self.__dict__.pop("probabilities", None)

    @cached_property
    def probabilities(self) -> np.ndarray:
        """Of each node, (N,)."""
        return np.full(self._num, 1 / self._num)


class PartNegatives:
    """The negatives of a ``NegativeSampler``, part for part of its nodes: of each as many as its share of all draws.

    A token that meets all parts is pushed from as many nodes, and in expectation as far, as by draws among all nodes;
    strata vary less.

    Args:
        degrees, power, seed: As in ``NegativeSampler``.
        bounds: Part k has the nodes ``bounds[k]`` to ``bounds[k + 1]``, (P + 1,).
        num_drawn: Draws among all nodes that those of all parts take the place of.
        folder: In a file of which the tables of the parts lie, 8 bytes a node; None: in memory.
    Attributes:
        num_drawn: Of each part, (P,), at least 1 but for parts that are never drawn.
        weights: How much each draw of a part counts, (P,), float32: all draws of all parts 1.
    Raises:
        StorageError: the disk has no room for that file.
    """

    def __init__(
        self,
        degrees: np.ndarray,
        bounds: np.ndarray,
        num_drawn: int,
        *,
        power: float = 0.75,
        seed: int = 0,
        folder: Path | None = None,
    ) -> None:
        probabilities = _shares(degrees, power)
        probabilities /= probabilities.sum()
        shares = np.add.reduceat(probabilities, bounds[:-1])
        self.num_drawn = np.where(shares > 0, np.maximum(1, np.rint(num_drawn * shares)), 0).astype(np.int64)
        self.weights = (shares / np.maximum(1, self.num_drawn)).astype(np.float32)
        self._seed, self._bounds = int(seed), bounds
        tables = (
            _part_tables(probabilities[low:high], share)
            for (low, high), share in zip(pairwise(bounds.tolist()), shares.tolist(), strict=True)
        )
        self._tables: list[tuple[np.ndarray, np.ndarray]] = []
        if folder is None:
            self._tables = list(tables)
            return
        self._file = ScratchFile(folder, 8 * int(bounds[-1]), "negatives by part")
        for low, (accept, other) in zip(bounds.tolist(), tables, strict=False):
            self._file.write(8 * low, accept)
            self._file.write(8 * low + accept.nbytes, other)
        self._file.flush()

    def tables(self, part: int) -> tuple[np.ndarray, np.ndarray]:
        """Alias tables of a part's nodes, (R,) each: the chance to keep a node, and which one is drawn otherwise.

        Raises:
            StorageError: the file that they lie in cannot be read.
        """
        if self._tables:
            return self._tables[part]
        low, high = self._bounds[part : part + 2].tolist()
        accept = self._file.read(8 * low, np.empty(high - low, np.float32))
        return accept, self._file.read(8 * low + accept.nbytes, np.empty(high - low, np.int32))

    def key(self, epoch: int, token_part: int, part: int) -> np.uint64:
        """The key of the streams of a bucket of an epoch, one for each walk."""
        return stream_key(self._seed, epoch, 8, token_part, part)


def _part_tables(probabilities: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Alias tables of the nodes of a part, whose probabilities (R,) have the sum ``share``; even ones where it is 0."""
    within = probabilities / share if share else np.ones(len(probabilities))
    accept, other, _ = alias_rows(np.array([0, len(within)], np.int64), within.astype(np.float32))
    return accept, other


class NearNegativeSampler(NegativeSampler):
    """Most negatives of a block from this rank's nodes, few from the others', weighted so that no node is favoured.

    Of a block's K negatives the first K - F are drawn among nodes [low, high) and count q K / (K - F) each, where q is
    the probability of those nodes together; the last F are other nodes and count (1 - q) K / F: stratified sampling
    with importance weights. The expected step is that of one process, and the rows of others that a block needs are F
    instead of (1 - q) K.

    Args:
        negatives: Draws among all nodes; ``fits`` accepts it.
        owned: The range [low, high) of this rank's nodes.
        shared: K.
        far: F, at least 1 and below K.
    """

    def __init__(self, negatives: NegativeSampler, owned: tuple[int, int], shared: int, far: int) -> None:
        low, high = owned
        outside = negatives.probabilities.copy()
        near, inside = shared - far, outside[low:high].copy()
        share = float(inside.sum())
        outside[low:high] = 0.0
        self._near = NegativeSampler(inside, 1.0, seed=int(stream_key(negatives.seed, 7, 0)), low=low)
        self._far = NegativeSampler(outside, 1.0, seed=int(stream_key(negatives.seed, 7, 1)))
        self.seed, self.low, self.power = negatives.seed, 0, negatives.power
        self.probabilities = negatives.probabilities
        self._counts = (near, far)
        self._weights = np.repeat([share * shared / near, (1.0 - share) * shared / far], self._counts)

    @staticmethod
    def fits(negatives: NegativeSampler, owned: tuple[int, int]) -> bool:
        """Whether negatives are of one type and drawn among all nodes, inside and outside of the range."""
        if type(negatives) is not NegativeSampler or len(negatives.probabilities) <= owned[1] - owned[0]:
            return False
        inside = float(negatives.probabilities[owned[0] : owned[1]].sum())
        return 1e-6 < inside < 1.0 - 1e-6

    def kinds(self, walk_length: int, shared: int) -> NegativeKinds:
        """See ``NegativeSampler.kinds``."""
        assert shared == len(self._weights)
        one = NegativeKinds.one(walk_length, shared)
        return NegativeKinds(one.places, one.drawn, self._weights)

    def sample_for(
        self, index: np.ndarray, per_walk: int, *, epoch: int = 0, pool: np.ndarray | None = None
    ) -> np.ndarray:
        """Negatives of walks by their index in the epoch, shape (B, S * K), int32."""
        assert pool is None  # a pool is drawn among all
        blocks = per_walk // len(self._weights)
        parts = [
            sampler.sample_for(index, blocks * count, epoch=epoch).reshape(len(index), blocks, count)
            for sampler, count in zip((self._near, self._far), self._counts, strict=True)
        ]
        return np.concatenate(parts, axis=2).reshape(len(index), per_walk)


class TypedNegativeSampler(NegativeSampler):
    """Nodes drawn by ``degree ** power`` within each type; a block's K negatives are shared out among the types.

    The loss of metapath2vec++ (Dong et al. 2017, equation 5): the softmax of a pair runs over the nodes of the
    context's type. Types take turns among a block's negatives, so that each has K / G of them, rounded.

    Args:
        degrees: Shape (N,), at least 0.
        node_kinds: Shape (N,), the type of each node; those of types off the path are never drawn.
        path_kinds: The types along a walk, shape (P,), repeated from place P on.
        shared: K, at least G.
        power, seed: As in ``NegativeSampler``.
    Raises:
        ConfigError: K is below G, or no node of a type has a positive probability.
    """

    def __init__(
        self,
        degrees: np.ndarray,
        node_kinds: np.ndarray,
        path_kinds: np.ndarray,
        shared: int,
        power: float = 0.75,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(degrees, power, seed=seed)
        self._types, self._path = np.unique(path_kinds, return_inverse=True)
        if shared < len(self._types):
            raise ConfigError(
                f"shared_negatives is {shared} and the path has {len(self._types)} node types; "
                "give at least one negative to each"
            )
        self._nodes = [np.flatnonzero(node_kinds == kind).astype(np.int32) for kind in self._types]
        self._samplers = [
            NegativeSampler(degrees[nodes], power, seed=int(stream_key(seed, 5, place)))
            for place, nodes in enumerate(self._nodes)
        ]
        self._drawn = (np.arange(shared) % len(self._types)).astype(np.int8)

    def kinds(self, walk_length: int, shared: int) -> NegativeKinds:
        """See ``NegativeSampler.kinds``."""
        assert shared == len(self._drawn)
        return NegativeKinds(np.resize(self._path, walk_length).astype(np.int8), self._drawn)

    def sample_for(
        self, index: np.ndarray, per_walk: int, *, epoch: int = 0, pool: np.ndarray | None = None
    ) -> np.ndarray:
        """Negatives of walks by their index in the epoch, shape (B, S * K); ``pool`` is not for types."""
        assert pool is None  # SkipGramConfig refuses it
        blocks = per_walk // len(self._drawn)
        out = np.empty((len(index), blocks, len(self._drawn)), np.int32)
        for place, (nodes, sampler) in enumerate(zip(self._nodes, self._samplers, strict=True)):
            mine = self._drawn == place
            count = int(mine.sum())
            drawn = nodes[sampler.sample_for(index, blocks * count, epoch=epoch)]
            out[:, :, mine] = drawn.reshape(len(index), blocks, count)
        return out.reshape(len(index), per_walk)


def gathered_degrees(part: PartGraph, group: ProcessGroup | None, *, weighted: bool = True) -> np.ndarray:
    """Sum of the weights of the arcs at each node, shape (N,), float64; every rank must call it, and gets all.

    Not ``weighted``: how many arcs there are, exactly.

    Of a directed graph both ends of an arc count, so that a node that is only pointed at can be drawn as well.
    On an undirected graph this is, up to a factor, how often long DeepWalk walks visit a node.
    """
    degrees = np.zeros(part.num_nodes)
    degrees[part.low : part.low + part.num_own_nodes] = out_degrees(part) if weighted else part.degrees()
    if part.directed:
        weights = None if part.weights is None or not weighted else part.weights.astype(np.float64)
        degrees += np.bincount(part.indices, weights, minlength=part.num_nodes)
    return degrees if group is None else group.sum(torch.from_numpy(degrees), "sum of degrees").numpy()


def out_degrees(part: PartGraph) -> np.ndarray:
    """Summed weights of the arcs that leave each of the rank's own nodes, shape (R,), float64."""
    if part.weights is None:
        return part.degrees().astype(np.float64)
    rows = np.repeat(np.arange(part.num_own_nodes), part.degrees())
    return np.bincount(rows, part.weights.astype(np.float64), minlength=part.num_own_nodes)


MOST_AT_ONCE = 1 << 22  # drawn pairs, whatever share of them a dense graph rejects


class NonEdges:
    """Uniform draws, with replacement, from the ordered pairs (u, v), u != v, that are not among the edges.

    What PyG's ``negative_sampling(method="dense")`` draws from in OGB's link prediction scripts; that function draws
    without replacement, which at 65,536 of 16 million pairs differs in one pair of 250.

    Args:
        edges: Undirected edges, shape (E, 2), integers, in either direction, repeats and self loops allowed.
        num_nodes: N, at least 2.
    Raises:
        ShapeError: edges is not an (E, 2) integer tensor.
        PartitionError: an edge names a node outside [0, N).
        DataError: every pair is an edge, so nothing is left to draw.

    Example:
        >>> from graph_emb.sampling.negatives import NonEdges
        >>> non_edges = NonEdges(torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
        >>> sorted(set(map(tuple, non_edges.sample(50, torch.Generator().manual_seed(0)).tolist())))
        [(0, 2), (2, 0)]
    """

    def __init__(self, edges: Tensor, num_nodes: int) -> None:
        if edges.dim() != 2 or edges.shape[1] != 2 or edges.is_floating_point():
            raise ShapeError(f"edges have shape {tuple(edges.shape)} and dtype {edges.dtype}; give integers (E, 2)")
        if num_nodes < 2:
            raise ConfigError(f"num_nodes is {num_nodes}; pairs of distinct nodes need at least 2")
        edges = edges.long()
        if len(edges) and not 0 <= int(edges.min()) <= int(edges.max()) < num_nodes:
            wrong = edges[(edges < 0) | (edges >= num_nodes)][0].item()
            raise PartitionError(f"edges name node {wrong}, outside [0, {num_nodes}); pass row numbers")
        self.num_nodes = num_nodes
        left, right = edges[edges[:, 0] != edges[:, 1]].unbind(1)
        keys = torch.unique(torch.cat([left * num_nodes + right, right * num_nodes + left]))
        num_pairs = num_nodes * (num_nodes - 1)
        if len(keys) == num_pairs:
            raise DataError(f"all {num_pairs} ordered pairs of {num_nodes} nodes are edges; no negative exists")
        self._share = 1.0 - len(keys) / num_pairs
        self._is_edge = _membership(keys, num_nodes**2)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` pairs, shape (B, 2), int64."""
        parts: list[Tensor] = []
        missing = count
        while missing > 0:
            pairs = self._distinct_nodes(min(int(missing / self._share * 1.02) + 16, MOST_AT_ONCE), generator)
            pairs = pairs[~self._is_edge(pairs[:, 0] * self.num_nodes + pairs[:, 1])][:missing]
            parts.append(pairs)
            missing -= len(pairs)
        return torch.cat(parts) if parts else torch.empty((0, 2), dtype=torch.int64)

    def _distinct_nodes(self, count: int, generator: torch.Generator) -> Tensor:
        left = torch.randint(self.num_nodes, (count,), generator=generator)
        right = torch.randint(self.num_nodes - 1, (count,), generator=generator)
        return torch.stack([left, right + (right >= left)], dim=1)


def _membership(keys: Tensor, size: int) -> Callable[[Tensor], Tensor]:
    """A function that says which of its keys, below ``size``, are among ``keys`` (E,), sorted and distinct.

    A byte for each possible key answers without a search, where that is not much more than the keys take.
    """
    if size <= 2 * keys.nbytes:
        flags = torch.zeros(size, dtype=torch.bool)
        flags[keys] = True
        return lambda asked: flags[asked]
    last = torch.full((1,), size)  # larger than any: what lies behind all keys finds it
    ends = torch.cat([keys, last])
    return lambda asked: ends[torch.searchsorted(keys, asked)] == asked
