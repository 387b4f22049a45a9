"""Layers of R-GCN: messages through a matrix of each relation, or straight from rows of entities and relations."""

# R relations, B bases, S source rows and T destination rows of a node type, I and O widths of a layer, K blocks of a
# row or of a matrix, P pairs of a relation and a destination, Q pairs of a relation and a source.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from graph_emb.core.errors import ConfigError
from graph_emb.graph.typed import EdgeType
from graph_emb.models.gnn.aggregate import mean_neighbours, sum_neighbours
from graph_emb.models.gnn.config import RGCNConfig
from graph_emb.sampling.blocks import Block, BlockEdges


def glorot(*shape: int) -> nn.Parameter:
    """Matrices (..., I, O) of ``U(-a, a)``, ``a = sqrt(6 / (I + O))``, each by its own shape (Glorot 2010)."""
    bound = (6 / (shape[-2] + shape[-1])) ** 0.5
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))


def mix_of(num_relations: int, num_bases: int) -> nn.Parameter:
    """Coefficients ``c_rb``, (R, B), that keep the variance of the bases."""
    return nn.Parameter(torch.randn(num_relations, num_bases) * num_bases**-0.5)


class RelationMatrices(nn.Module):
    """A matrix for each relation: its own, ``W_r = sum_b c_rb V_b``, or blocks on a diagonal (the paper's eq. 3, 4).

    Args:
        num_relations: R.
        in_dim, out_dim: I and O.
        num_bases: B; None or at least R: no decomposition.
        num_blocks: K; None: one, the whole matrix.
    Raises:
        ConfigError: K blocks do not fit I and O.
    """

    def __init__(
        self,
        num_relations: int,
        in_dim: int,
        out_dim: int,
        num_bases: int | None = None,
        num_blocks: int | None = None,
    ) -> None:
        super().__init__()
        if num_blocks is not None and (in_dim % num_blocks or out_dim % num_blocks):
            raise ConfigError(
                f"num_blocks = {num_blocks} does not divide a layer's widths {in_dim} and {out_dim}; take one that does"
            )
        if num_blocks is not None:
            self.bases = glorot(num_relations, num_blocks, in_dim // num_blocks, out_dim // num_blocks)
            self.mix = None
        elif num_bases is None or num_bases >= num_relations:
            self.bases, self.mix = glorot(num_relations, in_dim, out_dim), None
        else:
            self.bases, self.mix = glorot(num_bases, in_dim, out_dim), mix_of(num_relations, num_bases)

    def forward(self) -> Tensor:
        """Shape (R, I, O), or of blocks (R, K, I / K, O / K)."""
        if self.mix is None:
            return self.bases
        return torch.einsum("rb,bio->rio", self.mix, self.bases)


def transformed(rows: Tensor, matrix: Tensor) -> Tensor:
    """Rows (Q, I) times a matrix (I, O), or the blocks of its diagonal (K, I / K, O / K); shape (Q, O)."""
    if matrix.dim() == 2:
        return rows @ matrix
    pieces = rows.view(len(rows), matrix.shape[0], matrix.shape[1]).transpose(0, 1)
    return (pieces @ matrix).transpose(0, 1).flatten(1)


class RelationalLayer(nn.Module, ABC):
    """``h_i' = b + own message of i + sum_r mean over the r-neighbours j of (message of j by r)``, b of the node type.

    Args:
        ntypes, etypes: Of the graph.
        out_dim: O.
        self_loop: Whether a node's own message is there.
        edge_dropout: Share of edges that carry no message in a training step.
    """

    def __init__(
        self, ntypes: Sequence[str], etypes: Sequence[EdgeType], out_dim: int, self_loop: bool, edge_dropout: float
    ) -> None:
        super().__init__()
        self.ntypes, self.etypes, self.self_loop = list(ntypes), list(etypes), self_loop
        self._edge_dropout = edge_dropout
        self.bias = nn.Parameter(torch.zeros(len(ntypes), out_dim))

    def forward(self, block: Block, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One round.

        Args:
            block: The edges.
            rows: Of each node type, shape (S, I).
        Returns:
            Of each node type, shape (T, O).
        """
        sent = self._sent(block, rows)
        sums = sum_neighbours(sent, block.relations.ends).split(
            [block.num_destinations[ntype] for ntype in self.ntypes]
        )
        out = {ntype: own + bias for ntype, own, bias in zip(self.ntypes, sums, self.bias.unbind(), strict=True)}
        if self.self_loop:
            for ntype in self.ntypes:
                out[ntype] = out[ntype] + self._own(ntype, rows[ntype][: block.num_destinations[ntype]])
        return out

    def _carrying(self, edges: BlockEdges) -> BlockEdges:
        """The edges that carry messages; means are over these."""
        return edges.without(self._edge_dropout) if self.training and self._edge_dropout else edges

    @abstractmethod
    def _sent(self, block: Block, rows: Mapping[str, Tensor]) -> Tensor:
        """The mean message of each pair of a relation and a destination, (P, O)."""

    @abstractmethod
    def _own(self, ntype: str, rows: Tensor) -> Tensor:
        """The messages of nodes to themselves, (T, O)."""


class RGCNLayer(RelationalLayer):
    """Messages ``W_r h_j``, own ones ``W_0 h_i`` (the paper's eq. 2, c_ir = |N_ir|); W_0 is of the node type.

    Args:
        ntypes, etypes: Of the graph.
        in_dim, out_dim: I and O.
        num_bases, num_blocks: Of the relations' matrices.
        self_loop: Whether W_0 is there.
        edge_dropout: Share of edges that a training step leaves out; means are over the others.
    """

    def __init__(
        self,
        ntypes: Sequence[str],
        etypes: Sequence[EdgeType],
        in_dim: int,
        out_dim: int,
        *,
        num_bases: int | None = None,
        num_blocks: int | None = None,
        self_loop: bool = True,
        edge_dropout: float = 0.0,
    ) -> None:
        super().__init__(ntypes, etypes, out_dim, self_loop, edge_dropout)
        self.relations = RelationMatrices(len(etypes), in_dim, out_dim, num_bases, num_blocks)
        self.loop = glorot(len(ntypes), in_dim, out_dim) if self_loop else None

    def _sent(self, block: Block, rows: Mapping[str, Tensor]) -> Tensor:
        everything = torch.cat([rows[ntype] for ntype in self.ntypes])
        edges = block.relations
        met = mean_neighbours(everything, self._carrying(edges.pairs)).split(edges.counts)  # fewer pairs than edges
        matrices = self.relations().unbind()
        return torch.cat([transformed(mean, matrix) for mean, matrix in zip(met, matrices, strict=True)])

    def _own(self, ntype: str, rows: Tensor) -> Tensor:
        assert self.loop is not None
        return rows @ self.loop[self.ntypes.index(ntype)]


class EntityLayer(RelationalLayer):
    """The paper's first layer, of nodes that have no features: a message by r is a row of the node and the relation.

    A row of a learned type has K blocks of width O: one for each relation that leaves the type ("onehot"), or B bases
    that the relations mix, ``sum_b c_rb v_jb`` ("basis"); then the node's own message, if there is one. Types with
    features send ``W_r h_j`` as in ``RGCNLayer``.

    Args:
        ntypes, etypes: Of the graph.
        in_dim: I, of the types with features.
        out_dim: O.
        learned: The node types whose rows are tables of ``RGCNConfig.learned_width``.
        config: ``inputs``, ``num_bases``, ``num_blocks``, ``self_loop`` and ``edge_dropout``.
    """

    def __init__(
        self,
        ntypes: Sequence[str],
        etypes: Sequence[EdgeType],
        in_dim: int,
        out_dim: int,
        learned: Collection[str],
        config: RGCNConfig,
    ) -> None:
        super().__init__(ntypes, etypes, out_dim, config.self_loop, config.edge_dropout)
        self._learned, self._width = frozenset(learned), out_dim
        given = [etype for etype in self.etypes if etype[0] not in self._learned]
        matrices = in_dim, out_dim, config.num_bases, config.num_blocks
        self.relations = RelationMatrices(len(given), *matrices) if given else None
        self._known = [ntype for ntype in self.ntypes if ntype not in self._learned]
        self.loop = glorot(len(self._known), in_dim, out_dim) if config.self_loop and self._known else None
        self.mix = None
        if config.inputs == "basis":
            assert config.num_bases is not None
            self.mix = mix_of(len(etypes) - len(given), config.num_bases)

    def _sent(self, block: Block, rows: Mapping[str, Tensor]) -> Tensor:
        senders = block.senders
        matrices = iter(() if self.relations is None else self.relations().unbind())
        asked: dict[str, list[Tensor]] = {ntype: [] for ntype in self._learned}
        for etype, places in zip(self.etypes, senders.rows, strict=True):
            asked.get(etype[0], []).append(places)
        mixes = self._mixes()
        taken = {
            ntype: iter(_EntityRows.apply(rows[ntype], self._width, mixes[ntype], places))
            for ntype, places in asked.items()
            if places
        }
        sent = [
            next(taken[etype[0]])
            if etype[0] in taken
            else transformed(rows[etype[0]].index_select(0, places), next(matrices))
            for etype, places in zip(self.etypes, senders.rows, strict=True)
        ]
        return mean_neighbours(torch.cat(sent), self._carrying(senders.edges))

    def _mixes(self) -> dict[str, Tensor | None]:
        """The coefficients of the relations that leave each learned type, (R of the type, B)."""
        if self.mix is None:
            return dict.fromkeys(self._learned)
        sources = [etype[0] for etype in self.etypes if etype[0] in self._learned]
        return {
            ntype: self.mix[[number for number, source in enumerate(sources) if source == ntype]]
            for ntype in self._learned
        }

    def _own(self, ntype: str, rows: Tensor) -> Tensor:
        if ntype in self._learned:
            return rows[:, -self._width :]
        assert self.loop is not None
        return rows @ self.loop[self._known.index(ntype)]


class _EntityRows(torch.autograd.Function):
    """The messages of nodes of one type by each relation that leaves it, Q x O in all.

    Args:
        rows: Shape (S, K * O).
        width: O.
        mix: ``c_rb``, (R, B); None: relation r has block r.
        places: The distinct rows that each relation asks.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, width: int, mix: Tensor | None, places: list[Tensor]) -> tuple[Tensor, ...]:
        ctx.save_for_backward(rows, mix)
        ctx.width, ctx.places = width, places
        blocks = rows.view(len(rows), rows.shape[1] // width, width)
        if mix is None:
            return tuple(blocks[asked, r] for r, asked in enumerate(places))
        bases = blocks[:, : mix.shape[1]]
        return tuple(torch.einsum("qbo,b->qo", bases.index_select(0, asked), mix[r]) for r, asked in enumerate(places))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor | None, None]:
        """Rows are gathered again: all relations' copies at once would be R times the table."""
        rows, mix = ctx.saved_tensors
        out = torch.zeros_like(rows)
        blocks = out.view(len(rows), rows.shape[1] // ctx.width, ctx.width)
        if mix is None:
            for r, (asked, grad) in enumerate(zip(ctx.places, grads, strict=True)):
                blocks[asked, r] = grad
            return out, None, None, None
        mix_grad = torch.zeros_like(mix)
        bases, old = blocks[:, : mix.shape[1]], rows.view_as(blocks)[:, : mix.shape[1]]
        for r, (asked, grad) in enumerate(zip(ctx.places, grads, strict=True)):
            mix_grad[r] = torch.einsum("qbo,qo->b", old.index_select(0, asked), grad)
            bases.index_add_(0, asked, mix[r][:, None] * grad[:, None])
        return out, None, mix_grad, None
