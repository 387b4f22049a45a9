"""Products of small matrices inside compiled loops, of a few to some hundred rows, whose operands lie in the cache.

A BLAS call copies its operands into an order of its own, which does not pay for matrices of this size. Here tiles of
the result stay in registers while the operands pass as they lie: the innermost loop of "Anatomy of high-performance
matrix multiplication" (Goto and van de Geijn 2008) alone, written in LLVM's vectors.
"""

# M and C rows, D width; S the distance of rows in memory, at least D.

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from graph_emb.core.compiled import INSIDE, njit

LANES = 16
"""Numbers of a row that are taken at once: two registers of AVX2, one of AVX-512."""
_WIDE = 2 * LANES if "+avx512f" in llvmlite.binding.get_host_cpu_features().flatten() else LANES
_FLOAT, _WORD, _LANE = ir.FloatType(), ir.IntType(64), ir.IntType(32)


@njit(**INSIDE)
def buffer_width(width):  # type: ignore[no-untyped-def]
    """S for rows of ``width`` numbers: an odd number of times ``LANES``, so that rows meet all sets of the cache."""
    lines = (width + LANES - 1) // LANES
    return LANES * (lines + 1 - lines % 2)


def _at(builder: Any, address: Any, lanes: int) -> Any:
    """A pointer to as many numbers from an address on."""
    return builder.inttoptr(address, (ir.VectorType(_FLOAT, lanes) if lanes > 1 else _FLOAT).as_pointer())


def _load(builder: Any, address: Any, lanes: int) -> Any:
    return builder.load(_at(builder, address, lanes), align=4)


def _plus(builder: Any, address: Any, numbers: Any) -> Any:
    """The address as many float32 further."""
    return builder.add(address, builder.mul(numbers, _WORD(4)))


def _spread(builder: Any, number: Any, lanes: int) -> Any:
    """A vector of one number."""
    undefined = ir.Constant(ir.VectorType(_FLOAT, lanes), ir.Undefined)
    one = builder.insert_element(undefined, number, _LANE(0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(_LANE, lanes), [0] * lanes))


def _fused(builder: Any, first: Any, second: Any, third: Any) -> Any:
    """first * second + third."""
    kind = first.type
    name = f"llvm.fmuladd.v{kind.count}f32"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
    return builder.call(function, [first, second, third])


def _loop(builder: Any, stop: Any, step: int, started: list[Any], body: Any) -> list[Any]:
    """Count from 0 by ``step`` to ``stop``, at least once; ``body`` of a count and values gives the next values."""
    before = builder.basic_block
    inside, after = builder.append_basic_block("inside"), builder.append_basic_block("after")
    builder.branch(inside)
    builder.position_at_end(inside)
    counter = builder.phi(_WORD)
    counter.add_incoming(_WORD(0), before)
    values = [builder.phi(value.type) for value in started]
    for value, first in zip(values, started, strict=True):
        value.add_incoming(first, before)
    following = body(counter, values)
    counted = builder.add(counter, _WORD(step))
    counter.add_incoming(counted, inside)
    for value, more in zip(values, following, strict=True):
        value.add_incoming(more, inside)
    builder.cbranch(builder.icmp_signed("<", counted, stop), inside, after)
    builder.position_at_end(after)
    return following


def _chosen(builder: Any, first: Any, second: Any, places: list[int]) -> Any:
    """Lanes of two vectors, counted through both."""
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(_LANE, len(places)), places))


def _sums_in_turn(builder: Any, first: Any, second: Any, run: int) -> Any:
    """Sums of each two neighbouring runs of lanes, one of the first vector and one of the second in turn."""
    lanes = first.type.count
    low = [side + at + k for at in range(0, lanes, 2 * run) for side in (0, lanes) for k in range(run)]
    high = [place + run for place in low]
    return builder.fadd(_chosen(builder, first, second, low), _chosen(builder, first, second, high))


def _half_sum(builder: Any, vector: Any) -> Any:
    """The sum of both halves of a vector."""
    lanes = [*range(vector.type.count)]
    half = len(lanes) // 2
    return builder.fadd(_chosen(builder, vector, vector, lanes[:half]), _chosen(builder, vector, vector, lanes[half:]))


def _sums(builder: Any, vectors: list[Any]) -> Any:
    """The sums of one vector, a number, or of each of four, a vector; in the same order, so with the same bits."""
    if len(vectors) == 1:
        return builder.extract_element(_sums(builder, vectors * 4), _LANE(0))
    one, two, three, four = vectors
    four = _sums_in_turn(builder, _sums_in_turn(builder, one, two, 1), _sums_in_turn(builder, three, four, 1), 2)
    while four.type.count > 4:
        four = _half_sum(builder, four)
    return four


def _emit_dots(
    typingctx: Any, num: Any, of: Any, out: Any, apart: Any, first: Any, own: Any, second: Any, other: Any, width: Any
) -> Any:
    """Dot products of ``num`` rows, ``own`` apart, and ``of`` rows, 1 or 4, ``other`` apart; ``apart`` in ``out``."""
    rows, columns, lanes = num.literal_value, of.literal_value, _WIDE // 2
    signature = types.void(num, of, *[types.int64] * 7)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        out, apart, first, own, second, other, width = args[2:]
        zero = ir.Constant(ir.VectorType(_FLOAT, lanes), None)
        lefts = [_plus(builder, first, builder.mul(own, _WORD(i))) for i in range(rows)]
        rights = [_plus(builder, second, builder.mul(other, _WORD(j))) for j in range(columns)]

        def body(place: Any, sums: list[Any]) -> list[Any]:
            left = [_load(builder, _plus(builder, address, place), lanes) for address in lefts]
            right = [_load(builder, _plus(builder, address, place), lanes) for address in rights]
            return [
                _fused(builder, left[i], right[j], sums[i * columns + j]) for i in range(rows) for j in range(columns)
            ]

        sums = _loop(builder, width, lanes, [zero] * (rows * columns), body)
        for i in range(rows):
            found = _sums(builder, sums[i * columns : (i + 1) * columns])
            target = _plus(builder, out, builder.mul(apart, _WORD(i)))
            builder.store(found, _at(builder, target, columns), align=4)
        return context.get_dummy_value()

    return signature, generate


def _emit_squares(typingctx: Any, num: Any, out: Any, first: Any, own: Any, width: Any) -> Any:
    """The dot products of ``num`` rows, 1 or 4 and ``own`` apart, with themselves."""
    rows, lanes = num.literal_value, _WIDE // 2
    signature = types.void(num, *[types.int64] * 4)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        out, first, own, width = args[1:]
        zero = ir.Constant(ir.VectorType(_FLOAT, lanes), None)
        starts = [_plus(builder, first, builder.mul(own, _WORD(i))) for i in range(rows)]

        def body(place: Any, sums: list[Any]) -> list[Any]:
            numbers = [_load(builder, _plus(builder, start, place), lanes) for start in starts]
            return [_fused(builder, one, one, total) for one, total in zip(numbers, sums, strict=True)]

        found = _sums(builder, _loop(builder, width, lanes, [zero] * rows, body))
        builder.store(found, _at(builder, out, rows), align=4)
        return context.get_dummy_value()

    return signature, generate


def _emit_weighted(
    typingctx: Any,
    num: Any,
    lanes: Any,
    out: Any,
    apart: Any,
    factors: Any,
    of_row: Any,
    of_term: Any,
    terms: Any,
    step: Any,
    count: Any,
) -> Any:
    """``lanes`` numbers of ``num`` rows, ``apart`` in ``out``: each the sum of ``count`` terms by its own factors."""
    rows, width = num.literal_value, lanes.literal_value
    signature = types.void(num, lanes, *[types.int64] * 8)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        out, apart, factors, of_row, of_term, terms, step, count = args[2:]
        zero = ir.Constant(ir.VectorType(_FLOAT, width), None)
        own = [_plus(builder, factors, builder.mul(of_row, _WORD(i))) for i in range(rows)]

        def body(term: Any, sums: list[Any]) -> list[Any]:
            numbers = _load(builder, _plus(builder, terms, builder.mul(term, step)), width)
            place = builder.mul(term, of_term)
            found = []
            for address, total in zip(own, sums, strict=True):
                factor = _load(builder, _plus(builder, address, place), 1)
                found.append(_fused(builder, _spread(builder, factor, width), numbers, total))
            return found

        for i, total in enumerate(_loop(builder, count, 1, [zero] * rows, body)):
            target = _plus(builder, out, builder.mul(apart, _WORD(i)))
            builder.store(total, _at(builder, target, width), align=4)
        return context.get_dummy_value()

    return signature, generate


def _emit_address(typingctx: Any, array: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ptrtoint(context.make_array(sig.args[0])(context, builder, args[0]).data, _WORD)

    return types.int64(array), generate


_dots: Any = intrinsic(prefer_literal=True)(_emit_dots)
_squares: Any = intrinsic(prefer_literal=True)(_emit_squares)
_weighted: Any = intrinsic(prefer_literal=True)(_emit_weighted)
_address: Any = intrinsic(_emit_address)


@njit(**INSIDE)
def dot_products(first, second, num, count, width, out):  # type: ignore[no-untyped-def]
    """The dot products of the first ``num`` and the first ``count`` rows of two buffers (M, S) and (C, S).

    Two rows have the same bits wherever they stand.

    Args:
        width: D; up to the next multiple of ``LANES`` both buffers hold 0.
        out: Of which the first num * count numbers are filled, row after row, float32.
    """
    left, right, target = _address(first), _address(second), _address(out)
    own, other = np.int64(4 * first.shape[1]), np.int64(4 * second.shape[1])
    one, two = np.int64(first.shape[1]), np.int64(second.shape[1])
    j = np.int64(0)
    while j < count:
        columns = 4 if j + 4 <= count else 1
        i = np.int64(0)
        while i < num:
            at, row, column = target + 4 * (i * count + j), left + i * own, right + j * other
            pair = i + 2 <= num
            if columns == 4:
                if pair:
                    _dots(2, 4, at, count, row, one, column, two, width)
                else:
                    _dots(1, 4, at, count, row, one, column, two, width)
            elif pair:
                _dots(2, 1, at, count, row, one, column, two, width)
            else:
                _dots(1, 1, at, count, row, one, column, two, width)
            i += 2 if pair else 1
        j += columns


@njit(**INSIDE)
def row_squares(rows, num, width, out):  # type: ignore[no-untyped-def]
    """The squared lengths of the first ``num`` rows of a buffer (M, S).

    Args:
        width: As of ``dot_products``.
        out: Of which the first ``num`` numbers are filled, float32.
    """
    source, target = _address(rows), _address(out)
    apart, i = np.int64(rows.shape[1]), np.int64(0)
    while i < num:
        at, row = target + 4 * i, source + 4 * i * apart
        if i + 4 <= num:
            _squares(4, at, row, apart, width)
            i += 4
        else:
            _squares(1, at, row, apart, width)
            i += 1


@njit(**INSIDE)
def weighted_sums(factors, of_row, of_term, terms, num, count, width, out):  # type: ignore[no-untyped-def]
    """Rows (M, S), of which the i-th is the sum of ``count`` rows of ``terms`` (C, S) by factors.

    Args:
        factors: That of row i and term k at i * of_row + k * of_term, float32.
        num: Rows that are made.
        count: At least 1.
        width: D; up to the next multiple of ``LANES`` rows of ``terms`` are read and rows of ``out`` written as well.
        out: The rows.
    """
    scales, source, target = _address(factors), _address(terms), _address(out)
    apart, step = np.int64(out.shape[1]), np.int64(terms.shape[1])
    place = np.int64(0)
    while place < width:
        wide = place + _WIDE <= width
        i = np.int64(0)
        while i < num:
            at, own, low = target + 4 * (i * apart + place), scales + 4 * i * of_row, source + 4 * place
            four = i + 4 <= num
            if wide:
                if four:
                    _weighted(4, _WIDE, at, apart, own, of_row, of_term, low, step, count)
                else:
                    _weighted(1, _WIDE, at, apart, own, of_row, of_term, low, step, count)
            elif four:
                _weighted(4, LANES, at, apart, own, of_row, of_term, low, step, count)
            else:
                _weighted(1, LANES, at, apart, own, of_row, of_term, low, step, count)
            i += 4 if four else 1
        place += _WIDE if wide else LANES
