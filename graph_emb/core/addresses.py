"""Arrays of several jobs of one compiled loop: of each job its own, found by address where the loop comes to it.

numba compiles a function for the types of its arguments, so arrays of any number of jobs cannot be arguments of one
function; their addresses can.

Legend: J jobs, A arrays of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np.numpy_support import as_dtype

Columns = tuple[np.ndarray | None, ...]
"""The arrays of a job, contiguous, of one or two dimensions; None where it has none at this place."""


def kinds_of(arrays: Columns) -> tuple[Any, ...]:
    """What of a job's arrays the compiled code depends on; jobs of one loop have equal ones."""
    return tuple(None if array is None else (array.dtype.char, array.ndim) for array in arrays)


@cache
def _like(dtype: str, ndim: int) -> np.ndarray:
    return np.empty((0,) * ndim, dtype)


def addressed(jobs: Sequence[Columns]) -> tuple[Columns, np.ndarray]:
    """The arrays of jobs of equal kinds as a compiled loop takes them, which the caller holds until it has run.

    Returns:
        An empty array for each of A, or None, which stands for its type; and where those of the jobs are, shape
        (J, A, 3), int64: address, rows and width.
    """
    likes = tuple(None if array is None else _like(array.dtype.char, array.ndim) for array in jobs[0])
    found = [_NOWHERE if array is None else _where(array) for arrays in jobs for array in arrays]
    return likes, np.array(found, np.int64).reshape(len(jobs), len(likes), 3)


_NOWHERE = (0, 0, 0)


def _where(array: np.ndarray) -> tuple[int, int, int]:
    shape = array.shape
    return array.__array_interface__["data"][0], shape[0], shape[-1]


def _emit_pointer(typingctx: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


_pointer: Any = intrinsic(_emit_pointer)


def array_at(like, where, j, k):  # type: ignore[no-untyped-def]
    """Array k of job j, inside a compiled function; ``like`` stands for its type, None gives None."""


@overload(array_at, jit_options={"forceinline": True})
def _array_at(like, where, j, k):  # type: ignore[no-untyped-def]
    if not isinstance(like, types.Array):
        return lambda like, where, j, k: None
    dtype = as_dtype(like.dtype)
    if like.ndim == 1:
        return lambda like, where, j, k: carray(_pointer(where[j, k, 0]), (where[j, k, 1],), dtype)
    return lambda like, where, j, k: carray(_pointer(where[j, k, 0]), (where[j, k, 1], where[j, k, 2]), dtype)
