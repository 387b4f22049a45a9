"""Comparisons of a query with entities, in which every scorer ends: an inner product or a negative distance.

TransE's L1 distance (Bordes et al. 2013) and RotatE's sum of complex moduli (Sun et al. 2019) of chunks are compiled,
with nothing of size (C, N, D), tiled as a matrix product is: a task takes ``ROWS`` queries, and ``ENTITIES`` rows stay
in the nearest cache while they pass. On a device torch's operators take a block of queries at a time. The plain torch
form, which holds C * N * D numbers, is the oracle in the tests.
Each sum runs in one thread in a fixed order, so any number of threads gives the same bits.

Legend: K chunks, C queries and N entities of a chunk, D width, M = D / 2 complex numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from graph_emb.core.addresses import RowLoop, array_at, kind_of
from graph_emb.core.compiled import njit
from graph_emb.core.threads import threads_for


class Comparison(Protocol):
    """The score of a query and an entity, higher for a better match.

    Sides that learn are compared as fast as training needs: products of norms, and ``TINY`` under a root, which keeps
    it differentiable at 0. Without a gradient, as ranks call it, float32 rows on the CPU are compared by their plain
    differences, so that rows far from the origin keep their digits and equal distances stay equal.
    """

    def pairs(self, queries: Tensor, entities: Tensor) -> Tensor:
        """Scores of row against row, shapes (..., D) and (..., D), which broadcast; shape (...)."""
        ...

    def chunks(self, queries: Tensor, entities: Tensor) -> Tensor:
        """Scores of all queries (K, C, D) against all entities (K, N, D) of their chunk; shape (K, C, N)."""
        ...

    def lists(self, queries: Tensor, entities: Tensor, ids: np.ndarray, out: Tensor, first: int = 0) -> None:
        """Write scores of queries (B, D) against the entities of each one's own list, ids (B, M), int64, on the CPU.

        Those in [first, first + N) are compared, of which ``entities`` (N, D) has the rows; the rest of ``out`` (B, M)
        stays. No score depends on which others are made with it: entities may come in any pieces.
        """
        ...


class _Lists:
    """``Comparison.lists`` by a compiled loop; ``form`` are its flags."""

    form: ClassVar[tuple[bool, bool, bool]]

    def lists(self, queries: Tensor, entities: Tensor, ids: np.ndarray, out: Tensor, first: int = 0) -> None:
        """See ``Comparison.lists``."""
        listed, begin = np.ascontiguousarray(ids, np.int64), np.array([first], np.int64)
        arrays = (_array(queries), _array(entities), listed, out.numpy(), begin)
        with threads_for(ids.size) as parts:
            scores_of_lists.run(kind_of(arrays, self.form), [arrays], parts)


class InnerProduct(_Lists):
    """``s = sum_d q_d e_d``: a matrix product for each chunk."""

    form = (True, False, False)

    def pairs(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.pairs``."""
        return (queries * entities).sum(dim=-1)

    def chunks(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.chunks``."""
        if len(queries) == 1:
            return (queries[0] @ entities[0].T)[None]  # a batched product of rounded factors copies the transpose
        return queries @ entities.transpose(1, 2)


class NegativeL2(_Lists):
    """``s = -sqrt(sum_d (q_d - e_d)^2)``; of chunks that learn by norms and a matrix product."""

    form = (False, False, False)

    def pairs(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.pairs``."""
        return -((queries - entities).square().sum(dim=-1) + _tiny(queries, entities)).sqrt()

    def chunks(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.chunks``."""
        if _compiled(queries, entities) and not _learns(queries, entities):
            return _plain_scores(queries, entities, moduli=False)
        centre = queries.mean(dim=1, keepdim=True).detach()  # far from the origin the norms would swallow the distance
        scores: Tensor = _L2Chunks.apply(queries - centre, entities - centre)
        return scores


class NegativeL1(_Lists):
    """``s = -sum_d |q_d - e_d|``; of chunks by a compiled kernel."""

    form = (False, True, False)

    def pairs(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.pairs``."""
        return -(queries - entities).abs().sum(dim=-1)

    def chunks(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.chunks``."""
        form = _KernelChunks if _compiled(queries, entities) else _BlockedChunks
        scores: Tensor = form.apply(queries, entities, False)
        return scores


class NegativeModulus(_Lists):
    """``s = -sum_m |q_m - e_m|`` of complex numbers; a row holds D / 2 real parts, then as many imaginary ones."""

    form = (False, False, True)

    def pairs(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.pairs``."""
        real, imaginary = (queries - entities).chunk(2, dim=-1)
        return -(real.square() + imaginary.square() + _tiny(queries, entities)).sqrt().sum(dim=-1)

    def chunks(self, queries: Tensor, entities: Tensor) -> Tensor:
        """See ``Comparison.chunks``."""
        if not _compiled(queries, entities):
            return cast(Tensor, _BlockedChunks.apply(queries, entities, True))
        if not _learns(queries, entities):
            return _plain_scores(queries, entities, moduli=True)
        scores: Tensor = _KernelChunks.apply(queries, entities, True)
        return scores


DOT, L1, L2, MODULUS = InnerProduct(), NegativeL1(), NegativeL2(), NegativeModulus()


def _compiled(queries: Tensor, entities: Tensor) -> bool:
    return all(side.dtype is torch.float32 and side.device.type == "cpu" for side in (queries, entities))


def _learns(*sides: Tensor) -> bool:
    return torch.is_grad_enabled() and any(side.requires_grad for side in sides)


def _tiny(*sides: Tensor) -> float:
    return float(TINY) if _learns(*sides) else 0.0


def _plain_scores(queries: Tensor, entities: Tensor, *, moduli: bool) -> Tensor:
    out = torch.empty(*queries.shape[:2], entities.shape[1])
    _run(plain_scores, queries, entities, None, out, moduli)
    return out


class _L2Chunks(torch.autograd.Function):
    """Distances by norms and a product: ``torch.cdist``'s gradient holds C * N * D numbers or runs without BLAS."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, entities: Tensor) -> Tensor:
        norms = queries.square().sum(-1)[:, :, None] + entities.square().sum(-1)[:, None]
        squares = torch.baddbmm(norms, queries, entities.transpose(1, 2), alpha=-2)
        distances = squares.clamp_(min=float(TINY)).sqrt_()
        ctx.save_for_backward(queries, entities, distances)
        return -distances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        queries, entities, distances = ctx.saved_tensors
        pull = grad / distances
        query_grad = pull @ entities - pull.sum(2, keepdim=True) * queries
        turned = pull.transpose(1, 2)
        return query_grad, turned @ queries - turned.sum(2, keepdim=True) * entities


class _KernelChunks(torch.autograd.Function):
    """A compiled distance with its compiled gradient."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, entities: Tensor, moduli: bool) -> Tensor:
        ctx.save_for_backward(queries, entities)
        ctx.moduli = moduli
        out = torch.empty(*queries.shape[:2], entities.shape[1])
        _run(scores_that_learn, queries, entities, None, out, moduli)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        queries, entities = ctx.saved_tensors
        sides = [(queries, entities, grad), (entities, queries, grad.transpose(1, 2))]
        grads = []
        for (rows, others, pull), needed in zip(sides, ctx.needs_input_grad[:2], strict=True):
            out = torch.empty_like(rows, memory_format=torch.contiguous_format) if needed else None
            if out is not None:
                _run(distance_gradients, rows, others.transpose(1, 2), pull, out, ctx.moduli)
            grads.append(out)
        return grads[0], grads[1], None


class _BlockedChunks(torch.autograd.Function):
    """The same distances in torch's own operators, a block of queries at a time: on a device, and of other dtypes.

    Autograd would keep C * N * D numbers several times.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, entities: Tensor, moduli: bool) -> Tensor:
        ctx.save_for_backward(queries, entities)
        ctx.moduli = moduli
        out = queries.new_empty(*queries.shape[:2], entities.shape[1])
        for k, rows in _blocks(queries, entities):
            real, *imaginary = _differences(queries[k, rows], entities[k], moduli)
            lengths = torch.hypot(real, *imaginary, out=real) if moduli else real.abs_()
            torch.sum(lengths, dim=-1, out=out[k, rows])
        return out.neg_()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        queries, entities = ctx.saved_tensors
        query_grad, entity_grad = torch.empty_like(queries), torch.zeros_like(entities)
        for k, rows in _blocks(queries, entities):
            pull = grad[k, rows]
            parts = _differences(queries[k, rows], entities[k], ctx.moduli)
            if ctx.moduli:
                lengths = torch.hypot(*parts).clamp_(min=float(TINY) ** 0.5)
            to = (side.chunk(len(parts), -1) for side in (query_grad[k, rows], entity_grad[k]))
            for part, to_queries, to_entities in zip(parts, *to, strict=True):
                signs = part.div_(lengths) if ctx.moduli else part.sign_()
                to_queries.copy_(-(pull[:, None] @ signs)[:, 0])
                to_entities.add_((pull.T[:, None] @ signs.transpose(0, 1))[:, 0])
        return query_grad, entity_grad, None


def _blocks(queries: Tensor, entities: Tensor) -> Iterator[tuple[int, slice]]:
    """Chunks and their queries, as many at a time as ``BLOCK`` holds against all entities."""
    chunks, size, width = queries.shape
    step = max(1, BLOCK // max(1, entities.shape[1] * width))
    for k in range(chunks):
        for first in range(0, size, step):
            yield k, slice(first, first + step)


def _differences(queries: Tensor, entities: Tensor, moduli: bool) -> tuple[Tensor, ...]:
    """Queries (B, D) less entities (N, D), shape (B, N, D), of moduli the real and the imaginary ones (B, N, M)."""
    parts = 2 if moduli else 1
    sides = zip(queries.chunk(parts, -1), entities.chunk(parts, -1), strict=True)
    return tuple(q[:, None] - e for q, e in sides)


def _array(values: Tensor) -> np.ndarray:
    return values.detach().contiguous().numpy()


BLOCK = 1 << 23
"""Differences that are held at once where no kernel is compiled."""
FAST = {"contract", "reassoc", "nsz", "arcp", "afn"}  # NaN and infinity keep their meaning
ROWS = 32  # of a task, so that one chunk keeps several threads busy
ENTITIES = 16  # whose rows stay in the nearest cache while the queries of a task pass by
ZERO = np.float32(0.0)
TINY = np.float32(1e-12)  # keeps the modulus of 0 differentiable; its gradient there is 0


ONE, OTHER, PULL, OUT = range(4)
"""The places of the arrays of a loop (``graph_emb.core.addresses``), chunk after chunk: two sides, the gradient of
scores or None, and what is found."""
IDS, FIRST = 2, 4
"""Of lists: the entities of each query, and the first one that has a row."""


def _by_rows(function: Any) -> RowLoop:
    """A loop over the rows of the first side; its flag says whether numbers are halves of complex ones."""
    return RowLoop(function, ONE, fastmath=FAST, error_model="numpy")


def _run(loop: RowLoop, one: Tensor, other: Tensor, pull: Tensor | None, out: Tensor, moduli: bool) -> None:
    """Run a loop over chunks, (K, ...) each."""
    if out.numel() == 0 or (pull is not None and pull.numel() == 0):
        out.zero_()
        return
    sides = (_array(one), _array(other), None if pull is None else _array(pull), out.numpy())
    arrays = tuple(None if side is None else side.reshape(-1, side.shape[-1]) for side in sides)
    with threads_for(out.numel() if pull is None else pull.numel()) as parts:
        loop.run(kind_of(arrays, (moduli,)), [arrays], parts)


@njit(inline="always")
def _task(begin, high, size):  # type: ignore[no-untyped-def]
    """The chunk of a row, of ``size`` rows, and where the task that begins there ends."""
    chunk = begin // size
    return chunk, min(begin + ROWS, (chunk + 1) * size, high)


@_by_rows
def scores_that_learn(kind, where, j, low, high, moduli, _, __):  # type: ignore[no-untyped-def]
    """Negative L1 distances, or sums of complex moduli: shapes (K C, D) and (K N, D) to (K C, N).

    Of query i and entity j of a chunk -sum_d |q_d - e_d|, of complex numbers with m in the place of d: a row has its
    real halves, then the imaginary ones.
    """
    queries, entities = array_at(kind, where, j, ONE), array_at(kind, where, j, OTHER)
    out = array_at(kind, where, j, OUT)
    num, width = out.shape[1], queries.shape[1]
    size, half = len(queries) * num // len(entities), width // 2
    begin = low
    while begin < high:
        chunk, end = _task(begin, high, size)
        for first in range(0, num, ENTITIES):  # a tile of entities, against each query of the task
            for i in range(begin, end):
                q = queries[i]
                for n in range(first, min(first + ENTITIES, num)):
                    e = entities[chunk * num + n]
                    total = np.float32(0.0)
                    if moduli is None:
                        for d in range(width):
                            total += abs(q[d] - e[d])
                    else:
                        for m in range(half):
                            x, y = q[m] - e[m], q[half + m] - e[half + m]
                            total += np.sqrt(x * x + y * y + TINY)
                    out[i, n] = -total
        begin = end


def _plain(kind, where, j, low, high, moduli, _, __):  # type: ignore[no-untyped-def]
    """The scores of ``NegativeModulus``, or else of ``NegativeL2``, for ranks: exact roots, no fused products.

    A fused product rounds one of the squares of x * x + y * y only, and ``TINY`` makes two short moduli longer than one
    of the same length: both tell apart entities of equal distance.
    """
    queries, entities = array_at(kind, where, j, ONE), array_at(kind, where, j, OTHER)
    out = array_at(kind, where, j, OUT)
    num, width = out.shape[1], queries.shape[1]
    size, half = len(queries) * num // len(entities), width // 2
    begin = low
    while begin < high:
        chunk, end = _task(begin, high, size)
        for first in range(0, num, ENTITIES):  # a tile of entities, against each query of the task
            for i in range(begin, end):
                q = queries[i]
                for n in range(first, min(first + ENTITIES, num)):
                    e = entities[chunk * num + n]
                    total = np.float32(0.0)
                    if moduli is None:
                        for d in range(width):
                            total += (q[d] - e[d]) * (q[d] - e[d])
                        total = np.sqrt(total)
                    else:
                        for m in range(half):
                            x, y = q[m] - e[m], q[half + m] - e[half + m]
                            total += np.sqrt(x * x + y * y)
                    out[i, n] = -total
        begin = end


PLAIN = {"reassoc", "nsz"}
plain_scores = RowLoop(_plain, ONE, fastmath=PLAIN, error_model="numpy")


def _of_lists(kind, where, j, low, high, dot, l1, moduli):  # type: ignore[no-untyped-def]
    """Scores of queries [low, high) against the entities of their lists, as far as these have rows; see ``_plain``.

    Of query q and entity e sum_d q_d e_d, or -sum_d |q_d - e_d|, or -sum_m |q_m - e_m| of complex numbers, or else
    -sqrt(sum_d (q_d - e_d)^2).
    """
    queries, entities = array_at(kind, where, j, ONE), array_at(kind, where, j, OTHER)
    ids, out = array_at(kind, where, j, IDS), array_at(kind, where, j, OUT)
    first, width = array_at(kind, where, j, FIRST)[0], queries.shape[1]
    half = width // 2
    for i in range(low, high):
        q = queries[i]
        for n in range(ids.shape[1]):
            at = ids[i, n] - first
            if at < 0 or at >= len(entities):
                continue
            e, total = entities[at], queries.dtype.type(0.0)
            if dot is not None:
                for d in range(width):
                    total += q[d] * e[d]
                out[i, n] = total
            elif l1 is not None:
                for d in range(width):
                    total += abs(q[d] - e[d])
                out[i, n] = -total
            elif moduli is not None:
                for m in range(half):
                    x, y = q[m] - e[m], q[half + m] - e[half + m]
                    total += np.sqrt(x * x + y * y)
                out[i, n] = -total
            else:
                for d in range(width):
                    total += (q[d] - e[d]) * (q[d] - e[d])
                out[i, n] = -np.sqrt(total)


scores_of_lists = RowLoop(_of_lists, ONE, fastmath=PLAIN, error_model="numpy")


@_by_rows
def distance_gradients(kind, where, j, low, high, moduli, _, __):  # type: ignore[no-untyped-def]
    """Of row a of a chunk sum_b pull[a, b] * sign(others[d, b] - rows[a, d]), of moduli the complex sign, z / |z|.

    The gradient of ``scores_that_learn`` for either side: rows (K A, D) against the other side transposed, (K D, B).
    """
    rows, others = array_at(kind, where, j, ONE), array_at(kind, where, j, OTHER)
    pull, out = array_at(kind, where, j, PULL), array_at(kind, where, j, OUT)
    num, width = pull.shape[1], rows.shape[1]
    size, half = len(rows) * width // len(others), width // 2
    begin = low
    while begin < high:
        chunk, end = _task(begin, high, size)
        at = chunk * width
        if moduli is None:
            for d in range(width):  # one dimension of all partners is contiguous
                other = others[at + d]
                for a in range(begin, end):
                    g, x = pull[a], rows[a, d]
                    total = np.float32(0.0)
                    for b in range(num):
                        y = other[b] - x
                        total += g[b] if y > ZERO else (-g[b] if y < ZERO else ZERO)
                    out[a, d] = total
        else:
            for m in range(half):  # one complex dimension of all partners is contiguous
                other_x, other_y = others[at + m], others[at + half + m]
                for a in range(begin, end):
                    g, x, y = pull[a], rows[a, m], rows[a, half + m]
                    total_x, total_y = np.float32(0.0), np.float32(0.0)
                    for b in range(num):
                        u, v = other_x[b] - x, other_y[b] - y
                        s = g[b] / np.sqrt(u * u + v * v + TINY)
                        total_x += s * u
                        total_y += s * v
                    out[a, m] = total_x
                    out[a, half + m] = total_y
        begin = end
