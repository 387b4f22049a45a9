"""What the rows of a composed table are sums of: its levels and its hashes, without the tables that hold them.

Legend: N nodes, L levels, F parts of the finest, h hashes, B asked ids, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.compiled import GOLDEN, mix64
from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.table.nested_levels import hash_keys
from graph_emb.table.row_sums import RowTerms, columns_at
from graph_emb.table.spec import accumulation_dtype

Kind = Literal["position-hash", "position", "hash", "quotient-remainder", "full"]
KINDS: tuple[str, ...] = get_args(Kind)
Scope = Literal["all", "part"]


@dataclass(frozen=True, eq=False)
class Composition:
    """Which shared rows each node's row is a sum of.

    Attributes:
        kind: Of ``KINDS``.
        num_hashes: h; 0 of kinds without.
        num_buckets: Rows that hashes, or quotients and remainders, share.
        seed: Of the hashes.
        scope: ``"all"``, or ``"part"``: a node hashes into the buckets of its part of the coarsest level.
        finest: The part of each node at the finest level, (N, 1) integers; (N, 0) where parts tell nothing.
        above: Those in which each finest part lies, coarsest first, (F, L - 1), int64.
        num_coarsest: Parts of the coarsest level; 0 where parts tell nothing.
        original: The original id of each node, (N,), int64, by which it hashes; None: its number.
    """

    kind: Kind
    num_hashes: int
    num_buckets: int
    seed: int
    scope: Scope
    finest: np.ndarray
    above: np.ndarray
    num_coarsest: int
    original: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        name: str,
        kind: Any,
        levels: np.ndarray,
        sizes: Sequence[int],
        *,
        num_hashes: int,
        num_buckets: int,
        seed: int,
        scope: Any,
        original: np.ndarray | None,
    ) -> Composition:
        """Of nested levels (N, L), with ``sizes`` parts each.

        Args:
            name: Of the table.
        Raises:
            ConfigError: fewer buckets than parts that share them out.
        """
        if scope == "part" and num_buckets < sizes[0]:
            raise ConfigError(f"table {name!r}: {num_buckets} buckets for {sizes[0]} parts; give each at least one")
        finest = np.ascontiguousarray(levels[:, -1:])  # parts are nested: it tells the others
        above = np.zeros((sizes[-1] if sizes else 0, max(0, len(sizes) - 1)), np.int64)
        if sizes:
            above[finest[:, 0]] = levels[:, :-1]
        coarsest = sizes[0] if sizes else 0
        return cls(kind, num_hashes, num_buckets, seed, scope, finest, above, coarsest, original)

    @property
    def placed(self) -> bool:
        """Whether the parts' rows are terms."""
        return self.kind.startswith("position")

    @property
    def hashed(self) -> bool:
        """Whether weighted rows of buckets are terms."""
        return self.num_hashes > 0

    def terms(self, ids: Tensor, sizes: Sequence[int]) -> RowTerms:
        """The shared rows that those of nodes (B,) are sums of.

        Args:
            sizes: Rows of the shared tables: of the buckets, of the finest level, then of the coarser ones; or of
                quotients and remainders.
        """
        terms = [self.buckets_of(ids).numpy().T] if self.hashed else []
        if self.kind == "quotient-remainder":
            own = self.keys(ids)[None]
            terms += [own // self.num_buckets, own % self.num_buckets]
        elif self.placed:
            terms.append(columns_at(self.finest, ids.numpy()))
        return RowTerms.of(terms, sizes, self.above if self.placed else None)

    def levels_of(self, finest: np.ndarray) -> np.ndarray:
        """The part at each level of nodes whose finest ones are these, (B, 1): shape (B, L)."""
        return np.concatenate([self.above[finest[:, 0]], finest], axis=1) if finest.shape[1] else finest

    def check_chains(self, name: str, levels: np.ndarray) -> None:
        """Raise a PartitionError unless the parts of new nodes, (B, L), lie in each other as those of the nodes do.

        Args:
            name: Of the table. Parts that it does not have, and those without a node, are not looked at.
        """
        if self.above.shape[1] == 0 or not len(levels):
            return
        finest = levels[:, -1]
        used = np.isin(finest, self.finest[:, 0])
        wrong = np.flatnonzero(used & (self.above[np.where(used, finest, 0)] != levels[:, :-1]).any(axis=1))
        if len(wrong):
            told = levels[wrong[0]].tolist()
            there = [*self.above[told[-1]].tolist(), told[-1]]
            raise PartitionError(
                f"table {name!r}: a new node has the parts {told}, and the finest of them lies in {there} here; take "
                "the levels that partition.extend gives it"
            )

    def keys(self, ids: Tensor) -> np.ndarray:
        """Original ids of nodes (B,), int64."""
        return ids.numpy() if self.original is None else self.original[ids.numpy()]

    def buckets_of(self, ids: Tensor) -> Tensor:
        """The bucket of each hash of each node, (B, h), int64: a function of seed, original id and, by scope, part."""
        parts = None
        if self.scope == "part":
            parts = columns_at(self.finest, ids.numpy())[0]
            parts = self.above[parts, 0] if self.above.shape[1] else parts
        return self.hashes(self.keys(ids), parts)

    def hashes(self, original: np.ndarray, parts: np.ndarray | None) -> Tensor:
        """As ``buckets_of``, of original ids (B,) and, where the scope is the part, their parts of the coarsest level.

        A view of memory in which the buckets of one hash lie side by side.
        """
        of_part = self.num_buckets // self.num_coarsest if self.scope == "part" else self.num_buckets
        found = np.empty((self.num_hashes, len(original)), np.int64)
        start = mix64(np.full(1, self.seed % 2**64, np.uint64) + np.uint64(GOLDEN))[0]
        hash_keys(np.ascontiguousarray(original), start, np.uint64(of_part), found)
        if parts is not None:
            found += parts * of_part
        return torch.from_numpy(found.T)

    def by_original(self, original: np.ndarray) -> Composition:
        """The same of nodes that stand in ascending order of their original ids (N,)."""
        order: Any = slice(None) if (original[1:] > original[:-1]).all() else np.argsort(original)
        ids = original[order]
        return Composition(
            self.kind, self.num_hashes, self.num_buckets, self.seed, self.scope, self.finest[order], self.above,
            self.num_coarsest, None if np.array_equal(ids, np.arange(len(ids))) else ids,
        )  # fmt: skip


def hash_factors(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """The factors of hashed rows of ``dtype``, (B, h), on the CPU: tables keep how far they are from 1."""
    return torch.from_numpy(1 + weights.detach().to("cpu", accumulation_dtype(dtype)).numpy())
