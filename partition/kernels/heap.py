"""A binary heap of nodes, the greatest key first, that knows where each node stands.

``heap`` holds nodes, ``places`` the position of each node in it, ``keys`` the key of each node.
"""

from __future__ import annotations

from numba import njit


@njit(cache=True, nogil=True)
def sift_up(heap, places, keys, at):
    """Restore the order of a binary heap whose greatest key comes first, after the key at a place rose."""
    node = heap[at]
    while at > 0:
        above = (at - 1) >> 1
        if keys[heap[above]] >= keys[node]:
            break
        heap[at] = heap[above]
        places[heap[at]] = at
        at = above
    heap[at] = node
    places[node] = at


@njit(cache=True, nogil=True)
def sift_down(heap, places, keys, at, size):
    """The same after the key at a place fell."""
    node = heap[at]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and keys[heap[below + 1]] > keys[heap[below]]:
            below += 1
        if keys[heap[below]] <= keys[node]:
            break
        heap[at] = heap[below]
        places[heap[at]] = at
        at = below
    heap[at] = node
    places[node] = at


@njit(cache=True, nogil=True)
def pop(heap, places, keys, size):
    """Remove the first node of a heap of at least one: the new size."""
    size -= 1
    if size > 0:
        heap[0] = heap[size]
        places[heap[0]] = 0
        sift_down(heap, places, keys, 0, size)
    return size
