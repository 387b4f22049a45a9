"""Compiled skip-gram with negative sampling (word2vec, Mikolov et al. 2013) on rows in place.

``SkipGram`` has the loss. The algorithm is pWord2Vec's (Ji et al. 2016, "Parallelizing word2vec in shared and
distributed memory") with a block of a walk in the place of one window: the dot products of a block's tokens with
their contexts and K shared negatives are one small matrix product, the gradients are two more. Three products a
block (``core.small_products``) instead of a loop over pairs run at the speed of the processor's multipliers. Threads
share rows without locks (Hogwild, Niu et al. 2011).
"""

# N nodes, D width, B walks, L tokens of a walk, T tokens of a block, M its contexts, K shared negatives, W window.

from __future__ import annotations

from typing import Any

import numpy as np

from graph_emb.core.compiled import GOLDEN, mix64, njit, unit_draw
from graph_emb.core.small_products import buffer_width, dot_products, row_squares, weighted_sums
from graph_emb.sampling.walk_kernels import PAD
from graph_emb.table.row_memory import prefetch_to_read

# Sums may be reordered and fused; NaN keeps its meaning, so that a diverged run shows.
FAST: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
    "error_model": "numpy",
}
LOSS_EVERY = 64  # the loss of one walk in 64 is enough for a progress bar
TINY = np.float32(1e-30)
f4 = np.float32


@njit(**FAST)
def sigmoid_in_place(values):
    """1 / (1 + exp(-x)) within 1e-6, by Eigen's rational form of tanh: no call of exp, so the loop is vectorised."""
    for i in range(len(values)):
        x = min(max(f4(0.5) * values[i], f4(-7.9)), f4(7.9))
        y = x * x
        p = f4(-2.76076847742355e-16)
        p = p * y + f4(2.00018790482477e-13)
        p = p * y + f4(-8.60467152213735e-11)
        p = p * y + f4(5.12229709037114e-08)
        p = p * y + f4(1.48572235717979e-05)
        p = p * y + f4(6.37261928875436e-04)
        p = p * y + f4(4.89352455891786e-03)
        q = f4(1.19825839466702e-06)
        q = q * y + f4(1.18534705686654e-04)
        q = q * y + f4(2.26843463243900e-03)
        q = q * y + f4(4.89352518554385e-03)
        values[i] = f4(0.5) + f4(0.5) * (x * p / q)


@njit(**FAST)
def ask_for_rows(table, ids):
    """Ask for the memory of rows that are gathered later; of no node and of rows elsewhere for none."""
    for i in range(len(ids)):
        if 0 <= ids[i] < len(table):
            prefetch_to_read(table, np.int64(ids[i]))


@njit(**FAST)
def copy_rows(table, far, ids, rows):
    """Copy the rows of ids (B,) to rows (B, S), S >= D; ids past the end of the table continue in ``far``."""
    for i in range(len(ids)):
        node = ids[i]
        if node < len(table):
            for d in range(table.shape[1]):
                rows[i, d] = table[node, d]
        else:
            for d in range(table.shape[1]):
                rows[i, d] = far[node - len(table), d]


@njit(**FAST)
def add_rows(table, far, ids, rows, frozen):
    """Add rows (B, S) to the places from which ``copy_rows`` reads; those of a ``frozen`` table stay as they are."""
    for i in range(len(ids)):
        node = ids[i]
        if node < len(table):
            if not frozen:
                for d in range(table.shape[1]):
                    table[node, d] += rows[i, d]
        else:
            for d in range(table.shape[1]):
                far[node - len(table), d] += rows[i, d]


@njit(**FAST)
def mean_square_norm(rows, count, width, squares):
    """Mean of the squared lengths of the first ``count`` rows (B, S), which ``squares`` (B,) takes."""
    row_squares(rows, count, width, squares)
    total = f4(0.0)
    for i in range(count):
        total += squares[i]
    return total / f4(count)


@njit(**FAST)
def shorten_steps(steps, ids, width, partners, most, squares):
    """Shorten each step (B, S) that could change its row's scores by more than ``most``.

    A score changes by at most the length of the step times that of the partner's row, whose mean square is
    ``partners``; a row that occurs several times in ``ids`` moves by the sum of its steps. Computed from rows as old as
    the block, the steps of a hub, or of any node of a tiny graph, would otherwise overshoot farther each time.
    ``squares`` (B,) takes the squared lengths of the steps.
    """
    row_squares(steps, len(ids), width, squares)
    for i in range(len(ids)):
        times, own = np.int32(0), ids[i]
        for j in range(len(ids)):
            times += np.int32(ids[j] == own)
        change = f4(times) * np.sqrt(squares[i] * partners)
        if change > most:
            scale = most / change
            for d in range(width):
                steps[i, d] *= scale


@njit(**FAST)
def block_loss(chances, ramp, middle, kinds, drawn_kinds, num_kinds, shares):
    """Loss and weight of the positive pairs of a block whose sigmoids are ``chances``, as ``step_factors`` reads it."""
    num_contexts = len(kinds)
    masses = np.empty(num_kinds, f4)
    loss, pairs = 0.0, 0.0
    for i in range(chances.shape[0]):
        masses[:] = f4(0.0)
        for j in range(num_contexts):
            weight = ramp[middle - i + j]
            masses[kinds[j]] += weight
            loss -= weight * np.log(max(chances[i, j], TINY))
        for n in range(len(drawn_kinds)):
            weight = shares[n] * masses[drawn_kinds[n]]
            loss -= weight * np.log(max(f4(1.0) - chances[i, num_contexts + n], TINY))
        pairs += masses.sum()
    return loss, pairs


@njit(**FAST)
def step_factors(chances, ramp, middle, kinds, drawn_kinds, num_kinds, shares, lr):
    """Turn sigmoids (T, M + K) into lr times the factors of the rows in the step.

    ramp[middle - i + j] is the weight of context j of token i, 0 outside the window and for the token itself. Negative
    n counts shares[n] times the summed weight of the token's contexts of its kind; context j is of kind kinds[j],
    negative n of kind drawn_kinds[n].
    """
    num_contexts = len(kinds)
    masses = np.empty(num_kinds, f4)
    for i in range(chances.shape[0]):
        weights = ramp[middle - i : middle - i + num_contexts]
        row = chances[i]
        if num_kinds == 1:  # the usual case, in loops that are vectorised
            mass = f4(0.0)
            for j in range(num_contexts):
                mass += weights[j]
                row[j] = lr * weights[j] * (f4(1.0) - row[j])
            for n in range(len(shares)):
                row[num_contexts + n] *= -lr * shares[n] * mass
            continue
        masses[:] = f4(0.0)
        for j in range(num_contexts):
            masses[kinds[j]] += weights[j]
            row[j] = lr * weights[j] * (f4(1.0) - row[j])
        for n in range(len(drawn_kinds)):
            row[num_contexts + n] *= -lr * shares[n] * masses[drawn_kinds[n]]


@njit(**FAST)
def train_walks(
    walks,
    negatives,
    embedding,
    context,
    embedding_out,
    context_out,
    embedding_far,
    context_far,
    frozen,
    ramp,
    window,
    block,
    kinds,
    drawn_kinds,
    shares,
    rates,
    most,
    index,
):
    """Add the steps of walks (B, L) with negatives (B, S * K), block by block, to rows of the two ``out`` tables.

    With ``out`` the tables themselves this is SGD in place; threads may then run at once on walks of their own, and
    rows are written without locks (Hogwild, Niu et al. 2011). With ``out`` zeros and rates -1 it sums up gradients.
    Nodes past the end of a table are rows of its ``far`` table, which change in place; it is empty where all are here.
    With ``frozen`` these alone change.
    No step may change a score by more than about ``most`` (see ``shorten_steps``); infinity leaves them all alone.
    Both sides may be one table. Place i of every walk is of kind kinds[i] and negative n of a block of kind
    drawn_kinds[n]; ``step_factors`` says what kinds and the shares (K,) do. Walk b is number index[b] of its epoch,
    and steps with rates[b].

    Returns:
        Loss and weight of the positive pairs, each summed over one in ``LOSS_EVERY`` walks.
    """
    num_walks, length = walks.shape
    width, shared = embedding.shape[1], len(drawn_kinds)
    block = min(block, length)
    longest = min(length, block + 2 * window) + shared
    stride = buffer_width(width)
    rows, row_steps = np.zeros((block, stride), f4), np.zeros((block, stride), f4)
    outputs, output_steps = np.zeros((longest, stride), f4), np.zeros((longest, stride), f4)
    products, squares = np.empty(block * longest, f4), np.empty(max(block, longest), f4)
    ids = np.empty(longest, np.int32)
    middle, num_kinds = len(ramp) // 2, max(drawn_kinds) + 1
    loss, pairs = 0.0, 0.0
    for b in range(num_walks):
        # The length of the walk; one node alone has no pair.
        tokens = walks[b]
        used = 0
        while used < length and tokens[used] != PAD:
            used += 1
        if used < 2:
            continue
        rate = rates[b]
        for begin in range(0, used, block):
            # Gather: tokens of the block, contexts of any of them, negatives that they share.
            end = min(begin + block, used)
            left, right = max(0, begin - window), min(used, end + window)
            size, num_contexts = end - begin, right - left
            count = num_contexts + shared
            drawn = begin // block * shared
            # In loops: with an assignment of slices numba (0.68, np/arrayobj.py) compiles the text of its error, 1.4 s.
            for j in range(num_contexts):
                ids[j] = tokens[left + j]
            for n in range(shared):
                ids[num_contexts + n] = negatives[b, drawn + n]
            copy_rows(embedding, embedding_far, tokens[begin:end], rows)
            copy_rows(context, context_far, ids[:count], outputs)
            # The rows of the next block come while this one computes: what it has that this one has not.
            if end < used:
                ask_for_rows(embedding, walks[b, end : min(end + block, used)])
                ask_for_rows(context, walks[b, right : min(end + block + window, used)])
                ask_for_rows(context, negatives[b, drawn + shared : drawn + 2 * shared])
            elif b + 1 < num_walks:
                ask_for_rows(embedding, walks[b + 1, :block])
                ask_for_rows(context, walks[b + 1, : block + window])
                ask_for_rows(context, negatives[b + 1, :shared])
            # Scores of all pairs (T, M + K), and their sigmoids.
            chances = products[: size * count].reshape(size, count)
            dot_products(rows, outputs, size, count, width, products)
            sigmoid_in_place(products[: size * count])
            # Loss of a sample; then the factor of each pair in the step: its weight times the residual.
            shift = middle + left - begin
            if index[b] % LOSS_EVERY == 0:
                more = block_loss(chances, ramp, shift, kinds[left:right], drawn_kinds, num_kinds, shares)
                loss, pairs = loss + more[0], pairs + more[1]
            step_factors(chances, ramp, shift, kinds[left:right], drawn_kinds, num_kinds, shares, rate)
            # Gradients of both sides from the rows as gathered, clipped and scattered.
            weighted_sums(products, count, 1, outputs, size, count, width, row_steps)
            weighted_sums(products, 1, count, rows, count, size, width, output_steps)
            partners = mean_square_norm(outputs, count, width, squares)
            shorten_steps(row_steps, tokens[begin:end], width, partners, most, squares)
            partners = mean_square_norm(rows, size, width, squares)
            shorten_steps(output_steps, ids[:count], width, partners, most, squares)
            add_rows(embedding_out, embedding_far, tokens[begin:end], row_steps, frozen)
            add_rows(context_out, context_far, ids[:count], output_steps, frozen)
    return loss, pairs


@njit(cache=True, nogil=True)
def drop_frequent(walks, keep, key, index):
    """Remove each token with probability 1 - keep[token] and close the gaps; changes walks (B, L) of index (B,).

    word2vec's subsampling of frequent words (Mikolov et al. 2013, section 2.3).
    """
    for b in range(walks.shape[0]):
        stream = mix64(key + np.uint64(index[b]) * GOLDEN)
        used = 0
        for i in range(walks.shape[1]):
            node = walks[b, i]
            if node == PAD:
                break
            if unit_draw(stream, i) < keep[node]:
                walks[b, used] = node
                used += 1
        walks[b, used:] = PAD


@njit(cache=True, nogil=True)
def number_rows(walks, negatives, block, shared, low, num_own, places, walks_out, negatives_out):
    """Number the rows that walks (B, L) and their negatives (B, S * K) need: own nodes first, then the others.

    Node low + r of this rank is row r. Nodes of other ranks are numbered from num_own, tokens before nodes that are
    negatives only. Whatever trains nothing is PAD: walks of one node, and negatives of blocks without a token.

    Args:
        places: Shape (N,), -1 everywhere, before and after.
        walks_out, negatives_out: Filled with the numbers.
    Returns:
        Other ranks' nodes by number - num_own, the number of tokens among them, uses of rows, and uses of own rows.
    """
    num_walks, length = walks.shape
    found = np.empty(256, np.int64)
    count, num_tokens, used, own = 0, 0, 0, 0
    for turn in range(2):  # first the tokens of all walks, then the negatives
        for b in range(num_walks):
            tokens = 0
            while tokens < length and walks[b, tokens] != PAD:
                tokens += 1
            if tokens < 2:
                tokens = 0
            nodes, numbers, size = walks[b], walks_out[b], tokens
            if turn == 1:
                nodes, numbers, size = negatives[b], negatives_out[b], (tokens + block - 1) // block * shared
            used += size
            for i in range(size):
                node = nodes[i]
                row = node - low
                if 0 <= row < num_own:
                    numbers[i] = row
                    own += 1
                    continue
                if places[node] < 0:  # a new node of another rank
                    if count == len(found):
                        longer = np.empty(2 * count, np.int64)
                        for k in range(count):
                            longer[k] = found[k]
                        found = longer
                    found[count] = node
                    places[node] = count
                    count += 1
                numbers[i] = num_own + places[node]
            numbers[size:] = PAD
        if turn == 0:
            num_tokens = count
    for i in range(count):  # leave the scratch array as it was
        places[found[i]] = -1
    return found[:count], num_tokens, used, own


@njit(cache=True, nogil=True)
def move_numbers(numbers, num_own, places):
    """Change the numbers of others' rows that ``number_rows`` gave, number num_own + i to num_own + places[i]."""
    flat = numbers.reshape(-1)
    for i in range(len(flat)):
        if flat[i] >= num_own:
            flat[i] = num_own + places[flat[i] - num_own]
