"""The tables of a skip-gram model and the loss of its walks in torch operations."""

# N nodes, D width, B walks, L nodes of a walk, S blocks of a walk, T tokens of a block, M = T + 2 * window contexts,
# K shared negatives.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from graph_emb.composed import expanded
from graph_emb.core.errors import unknown_name
from graph_emb.embedding import DistEmbedding
from graph_emb.formats.gathered_rows import all_rows, joined_rows
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.models.tables import Table, node_table, with_parts
from graph_emb.sampling.negatives import NegativeKinds
from graph_emb.table.initializers import Uniform, Zeros
from graph_emb.table.placement import AUTO, Buckets, File
from graph_emb.table.tier.cache import CacheStats
from graph_emb.table.tier.shard import TieredShard
from graph_emb.table.tier.sizes import sides_of

CONTEXT_USES = ("none", "add", "concat", "only")


class SkipGram:
    """Skip-gram with negative sampling over one or two embedding tables (Mikolov et al. 2013).

    For tokens t_i of a walk with rows x of ``embedding`` and c of ``context`` the loss is

        - sum_ij w_ij [ log sigmoid(x_i . c_j) + k * mean_n log sigmoid(-x_i . c_n) ]

    with w_ij the window's weight of the distance of i and j, k = ``num_negatives`` and n over ``shared_negatives``
    random nodes that the tokens of a block share; where negatives are typed, over those of the type of c_j. Its
    expectation is that of word2vec's loss with k negatives per pair; a negative that happens to be a neighbour is not
    left out, as in the analysis of Levy and Goldberg 2014.

    First values: with two tables those of word2vec, x uniform in +-0.5/D and c = 0; with one table, uniform in
    +-1/sqrt(D), because small rows on both sides would leave zero slowly.

    Args:
        num_nodes: N.
        config: The recipe; ``buckets="auto"`` are as many as the parts of ``ge.Buckets``, or none.
        seed: Of the first values.
        part_policy: The owner of each row, as in ``DistEmbedding``.
        name: Of the token table, and the stem of the context table's; None chooses names.
        init_func: First values of the token rows, as in ``DistEmbedding``; None: ``usual_rows``.
        context_func: First values of the context rows, where there are two tables; None: zeros.
        levels: The part of each node at each level, (N, L) by original id, for ``config.table`` of position.
        own_rows: Original ids of the nodes that have a row of their own, for ``config.own_rows``; see
            ``nodes_of_own_rows``.
        placement: Of each table, as in ``DistEmbedding``; of ``Buckets`` both tables share the sum (``sides_of``).

    Example:
        >>> from graph_emb.models.skipgram.training import SkipGram, SkipGramConfig
        >>> model = SkipGram(5, SkipGramConfig(dim=8), seed=1)
        >>> model.embeddings().shape, model.embeddings("concat").shape
        (torch.Size([5, 8]), torch.Size([5, 16]))
    """

    def __init__(
        self,
        num_nodes: int,
        config: SkipGramConfig | None = None,
        *,
        seed: int = 0,
        part_policy: Any = None,
        name: str | None = None,
        init_func: Any = None,
        context_func: Any = None,
        levels: Any = None,
        own_rows: Any = None,
        placement: Any = AUTO,
    ) -> None:
        self.config: SkipGramConfig = with_parts(config or SkipGramConfig(), placement)
        first = usual_rows(self.config, seed) if init_func is None else init_func
        shape = num_nodes, self.config.dim, self.config
        shared: Any = {"part_policy": part_policy, "levels": levels, "own_rows": own_rows, "seed": seed}
        own, others = placement, placement
        if self.config.tables == 2 and isinstance(placement, Buckets):
            own, others = sides_of(placement, num_nodes, self.config.dim)
        self.embedding: Table = node_table(*shape, name=name, init_func=first, placement=own, **shared)
        self.context = self.embedding
        if self.config.tables == 2:
            other = None if name is None else f"{name}.context"
            last = context_func or Zeros()
            self.context = node_table(*shape, name=other, init_func=last, placement=others, **shared)

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.embedding.num_embeddings

    @property
    def tables(self) -> list[Table]:
        """The distinct tables, the token's first."""
        return [self.embedding] if self.context is self.embedding else [self.embedding, self.context]

    @property
    def num_parameters(self) -> int:
        """Learned parameters, all tables together."""
        return sum(table.num_embeddings * table.embedding_dim for table in expanded(self.tables))

    @property
    def file(self) -> File | None:
        """Where each table lies, if in a file."""
        placement = self.embedding.spec.placement if isinstance(self.embedding, DistEmbedding) else None
        return placement if isinstance(placement, File) else None

    @property
    def own_file(self) -> File | None:
        """``file``, where memory of this process holds a part of the rows: in kvstore mode that of servers does."""
        here = isinstance(self.embedding, DistEmbedding) and isinstance(self.embedding.shard, TieredShard)
        return self.file if here else None

    def cache_stats(self) -> dict[str, CacheStats]:
        """Of the rows in files, "token" and "context"; empty where they lie in memory."""
        if self.file is None:
            return {}
        names = ("token", "context")
        return {name: table.cache_stats() for name, table in zip(names, self.tables, strict=False)}

    def embeddings(self, context: str = "none", *, copy: bool = True) -> Tensor:
        """Copy the rows, one per node; of tables in a file to another one there, which is mapped and has no name.

        Args:
            context: ``none`` gives the token rows, as word2vec exports; ``add`` their sum with the context rows;
                ``concat`` both side by side, ``only`` the context rows. With one table both sides are the same rows.
            copy: False gives the rows of ``none`` and ``only`` themselves where this process alone holds them in
                memory, for those who do not train them any more.
        Returns:
            Shape (N, D), or (N, 2D) for ``concat``; float32.
        """
        if context not in CONTEXT_USES:
            raise unknown_name("use of the context rows", context, CONTEXT_USES)
        if context in ("none", "only"):
            return self._rows(self.context if context == "only" else self.embedding, copy)
        rows = self._rows(self.embedding, context == "add")
        return self.with_context(context, rows, self._rows(self.context, False))

    def with_context(self, context: str, rows: Tensor, others: Tensor) -> Tensor:
        """Token rows and context rows, (N, D) each, as ``add`` or ``concat`` of ``embeddings`` has them.

        Sums of rows in memory take the token rows' place.
        """
        if self.file is None:
            return rows.add_(others) if context == "add" else _beside(rows, others)
        return joined_rows(torch.add if context == "add" else _beside, [rows, others], self.file.path)

    def _rows(self, table: Table, copy: bool) -> Tensor:
        """The rows of a table, float32: a copy, or those in memory."""
        if not copy and isinstance(table, DistEmbedding) and table.transport.mode == "local":
            shard = table.shard
            fit = shard.in_memory and not shard.lazy and not shard.grows and shard.weight.dtype is torch.float32
            if fit and shard.weight.device.type == "cpu":
                return shard.weight.detach()
        rows = table.weight[:].float() if self.file is None else all_rows(table, True)
        assert rows is not None
        return rows

    def loss(self, blocks: WalkBlocks) -> Tensor:
        """The loss of blocks, summed over their pairs; backward leaves the gradients with the tables.

        The fused kernel's steps are the gradients of this function.
        """
        rows, tokens = _pull(self.embedding, blocks.tokens)
        if self.context is self.embedding:
            ids = torch.cat([blocks.tokens, blocks.contexts, blocks.negatives], dim=1)
            rows, places = _pull(self.embedding, ids)
            tokens, contexts, negatives = places.split(
                [blocks.tokens.shape[1], blocks.contexts.shape[1], blocks.negatives.shape[1]], dim=1
            )
            others = rows
        else:
            others, places = _pull(self.context, torch.cat([blocks.contexts, blocks.negatives], dim=1))
            contexts, negatives = places.split([blocks.contexts.shape[1], blocks.negatives.shape[1]], dim=1)
        x = _take(rows, tokens)
        near = torch.bmm(x, _take(others, contexts).transpose(1, 2))
        far = torch.bmm(x, _take(others, negatives).transpose(1, 2))
        return (
            -(blocks.weights * functional.logsigmoid(near)).sum()
            - (blocks.negative_weights * functional.logsigmoid(-far)).sum()
        )


def _beside(rows: Tensor, others: Tensor) -> Tensor:
    return torch.cat([rows, others], dim=1)


def usual_rows(config: SkipGramConfig, seed: int) -> Uniform:
    """The token rows' initial values; see ``SkipGram``."""
    bound = 0.5 / config.dim if config.tables == 2 else config.dim**-0.5
    return Uniform(-bound, bound, seed=seed)


@dataclass(frozen=True)
class WalkBlocks:
    """Blocks of walks; a place of -1 is padding, and its weight is 0.

    Attributes:
        tokens: Shape (S, T), int64, S the number of all blocks.
        contexts: Shape (S, M), int64.
        negatives: Shape (S, K), int64.
        weights: Shape (S, T, M), float32, the weight of each pair.
        negative_weights: Shape (S, T, K), float32, that of each pair of a token and a negative.
    """

    tokens: Tensor
    contexts: Tensor
    negatives: Tensor
    weights: Tensor
    negative_weights: Tensor

    @property
    def num_pairs(self) -> float:
        """The summed weight of the positive pairs."""
        return float(self.weights.sum())


def num_blocks(walk_length: int, config: SkipGramConfig) -> int:
    """S, blocks of a walk."""
    return -(-walk_length // config.block)


def cut_blocks(
    walks: np.ndarray, negatives: np.ndarray, config: SkipGramConfig, kinds: NegativeKinds | None = None
) -> WalkBlocks:
    """Cut walks (B, L), padded with -1 at the end, and their negatives (B, S * K) into blocks.

    ``kinds`` assigns negatives to contexts; None: every negative counts for every context.
    """
    long_enough = walks[:, 1] >= 0 if walks.shape[1] > 1 else np.zeros(len(walks), bool)
    walks, negatives = walks[long_enough], negatives[long_enough]
    count, size, window = num_blocks(walks.shape[1], config), config.block, config.window
    kinds = kinds or NegativeKinds.one(walks.shape[1], config.shared_negatives)

    def windows(nodes: np.ndarray) -> Tensor:
        padded = torch.full((len(nodes), count * size + 2 * window), -1, dtype=torch.int64)
        padded[:, window : window + nodes.shape[1]] = torch.from_numpy(nodes)
        return padded.unfold(1, size + 2 * window, size).reshape(-1, size + 2 * window)

    contexts = windows(walks)
    tokens = contexts[:, window : window + size]
    drawn = torch.from_numpy(negatives).long().reshape(-1, config.shared_negatives)
    context_kinds = windows(np.broadcast_to(kinds.places[: walks.shape[1]], walks.shape).astype(np.int64))
    used = tokens[:, 0] >= 0
    tokens, contexts, drawn, context_kinds = tokens[used], contexts[used], drawn[used], context_kinds[used]
    ramp = torch.from_numpy(distance_ramp(config))
    middle = len(ramp) // 2
    shifts = torch.arange(size + 2 * window) - window
    weights = ramp[middle + shifts[None, :] - torch.arange(size)[:, None]]
    weights = weights * (tokens >= 0)[:, :, None] * (contexts >= 0)[:, None, :]
    shares, drawn_kinds = torch.from_numpy(kinds.shares(config.num_negatives)), torch.from_numpy(kinds.drawn).long()
    masses = torch.stack(
        [(weights * (context_kinds == kind)[:, None, :]).sum(dim=2) for kind in range(int(drawn_kinds.max()) + 1)]
    )
    negative_weights = masses.permute(1, 2, 0)[:, :, drawn_kinds] * shares
    return WalkBlocks(tokens, contexts, drawn, weights, negative_weights)


def distance_ramp(config: SkipGramConfig) -> np.ndarray:
    """Weights of the distances -(T + window) .. T + window of a context from its token, float32; 0 at itself."""
    reach = config.block + config.window
    distance = np.abs(np.arange(-reach, reach + 1))
    weight = np.ones(len(distance)) if config.window_weighting == "uniform" else 1 - (distance - 1) / config.window
    outside = (distance == 0) | (distance > config.window)
    if config.contexts == "after":
        outside[:reach] = True
    return np.where(outside, 0.0, weight).astype(np.float32)


def _pull(table: Table, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of ids with a row of zeros for padding at the end, and the place of each id among them."""
    distinct, places = torch.unique(ids, return_inverse=True)
    if len(distinct) and distinct[0] < 0:
        distinct, places = distinct[1:], places - 1
    rows = torch.cat([table(distinct, dtype=torch.float32), torch.zeros(1, table.embedding_dim)])
    return rows, torch.where(places < 0, len(distinct), places)


def _take(rows: Tensor, places: Tensor) -> Tensor:
    # index_select, whose backward is index_add: several times faster on CPUs than that of rows[places]
    return rows.index_select(0, places.flatten()).view(*places.shape, rows.shape[1])
