"""Compiled skip-gram on a block of a p x p grid: tokens of one part of the nodes, contexts and negatives of another.

The arithmetic is that of ``kernels.train_walks``: three small matrix products for the tokens of a stretch of a walk,
but of these tokens only those of the block's token part take part, and of their contexts those of its context part.
Walks are not cut into pairs: a block scans them, which takes a nanosecond a token where its pairs take microseconds.
"""

# B walks, L tokens of a walk, D width, W window, R and Q rows of the token and the context part, K negatives.

from __future__ import annotations

import numpy as np

from graph_emb.core.compiled import GOLDEN, mix64, njit, unit_draw
from graph_emb.models.skipgram.kernels import (
    FAST,
    LOSS_EVERY,
    TINY,
    add_rows,
    copy_rows,
    mean_square_norm,
    shorten_steps,
    sigmoid_in_place,
)
from graph_emb.sampling.walk_kernels import PAD, pick

f4 = np.float32


@njit(**FAST)
def places_in_part(tokens, begin, end, low, places, chosen, ids):
    """Collect the places of a walk in [begin, end) whose nodes are of a part, and the rows of these; how many."""
    count = 0
    for place in range(begin, end):
        row = tokens[place] - low
        if 0 <= row < len(places):
            chosen[count] = place
            ids[count] = places[row]
            count += 1
    return count


@njit(**FAST)
def contexts_in_part(tokens, used, chosen, count, window, low, places, near, ids):
    """Collect the places of a walk that are in reach of any of ``count`` tokens at ``chosen``, as above."""
    found, first = 0, 0
    for place in range(max(0, chosen[0] - window), min(used, chosen[count - 1] + window + 1)):
        while first < count and chosen[first] < place - window:
            first += 1
        if first == count:
            break
        row = tokens[place] - low
        if chosen[first] <= place + window and 0 <= row < len(places):
            near[found] = place
            ids[found] = places[row]
            found += 1
    return found


@njit(**FAST)
def pair_loss(chances, weights, masses, share):
    """Loss and weight of a stretch's positive pairs, whose sigmoids are ``chances``, as ``pair_factors`` reads it."""
    loss, pairs = 0.0, 0.0
    for i in range(weights.shape[0]):
        for j in range(weights.shape[1]):
            loss -= weights[i, j] * np.log(max(chances[i, j], TINY))
            pairs += weights[i, j]
        for n in range(weights.shape[1], chances.shape[1]):
            loss -= share * masses[i] * np.log(max(f4(1.0) - chances[i, n], TINY))
    return loss, pairs


@njit(**FAST)
def pair_factors(chances, weights, masses, share, rate):
    """Turn sigmoids (T, M + K) into the rate times the factors of the rows in the step.

    Args:
        weights: Of the pairs of T tokens and M contexts, (T, M).
        masses: The summed weight of all contexts of a token, those of other blocks among them, (T,).
        share: What a negative counts, in units of that.
    """
    for i in range(weights.shape[0]):
        row = chances[i]
        for j in range(weights.shape[1]):
            row[j] = rate * weights[i, j] * (f4(1.0) - row[j])
        for n in range(weights.shape[1], chances.shape[1]):
            row[n] *= -rate * share * masses[i]


@njit(**FAST)
def train_pairs(
    walks,
    index,
    embedding,
    places,
    low,
    context,
    context_places,
    context_low,
    accept,
    other,
    num_drawn,
    share,
    key,
    ramp,
    sums,
    stretch,
    lr,
    lr_slope,
    most,
):
    """Add the steps of a block's pairs of walks (B, L) of number index (B,) to the rows of both tables, in place.

    Args:
        embedding, places, low: Row r of the token part, node low + r, is row places[r] of the table; places (R,).
        context, context_places, context_low: The same of the context part, (Q,).
        accept, other: Alias tables of the negatives of the context part, (Q,).
        num_drawn: K, drawn for each stretch; may be 0.
        share: What each of them counts for a token, in units of the summed weight of all its contexts.
        key: Of the streams that draw.
        ramp: Weights of the distances -W .. W, 0 at 0, (2 W + 1,).
        sums: Of the weights before each distance, (2 W + 2,).
        stretch: Places of a walk whose tokens are updated together.
        lr, lr_slope, most: As of ``train_walks``.
    Returns:
        Loss and weight of the positive pairs, each summed over one in ``LOSS_EVERY`` walks.
    """
    num_walks, length = walks.shape
    width, window = embedding.shape[1], len(ramp) // 2
    stretch = min(stretch, length)
    longest = min(length, stretch + 2 * window)
    chosen, near = np.empty(stretch, np.int64), np.empty(longest, np.int64)
    ids, others = np.empty(stretch, np.int64), np.empty(longest + num_drawn, np.int64)
    rows, row_steps = np.empty((stretch, width), f4), np.empty((stretch, width), f4)
    most_outputs = longest + num_drawn
    outputs, output_steps = np.empty((most_outputs, width), f4), np.empty((most_outputs, width), f4)
    products, pair_weights = np.empty(stretch * most_outputs, f4), np.empty(stretch * longest, f4)
    masses = np.empty(stretch, f4)
    loss, pairs = 0.0, 0.0
    for b in range(num_walks):
        tokens = walks[b]
        used = 0
        while used < length and tokens[used] != PAD:
            used += 1
        if used < 2:
            continue
        rate = f4(lr + (index[b] - index[0]) * lr_slope)
        stream = mix64(key + np.uint64(index[b]) * GOLDEN)
        for begin in range(0, used, stretch):
            # Gather: the part's tokens, contexts of any of them in the other part, negatives from it.
            size = places_in_part(tokens, begin, min(begin + stretch, used), low, places, chosen, ids)
            if size == 0:
                continue
            num_contexts = contexts_in_part(
                tokens, used, chosen, size, window, context_low, context_places, near, others
            )
            count = num_contexts + num_drawn
            if count == 0:
                continue
            drawn = begin // stretch * num_drawn
            for n in range(num_drawn):
                node = pick(unit_draw(stream, drawn + n), 0, len(context_places), accept, other)
                others[num_contexts + n] = context_places[node]
            weights = pair_weights[: size * num_contexts].reshape(size, num_contexts)
            for i in range(size):
                for j in range(num_contexts):
                    distance = near[j] - chosen[i]
                    weights[i, j] = ramp[window + distance] if abs(distance) <= window else f4(0.0)
                after, before = min(used - 1 - chosen[i], window), min(chosen[i], window)
                masses[i] = sums[window + after + 1] - sums[window - before]
            copy_rows(embedding, embedding[:0], ids[:size], rows)
            copy_rows(context, context[:0], others[:count], outputs)
            # Scores of all pairs, their sigmoids, the loss of a sample, the factors of the step.
            chances = products[: size * count].reshape(size, count)
            np.dot(rows[:size], outputs[:count].T, chances)
            sigmoid_in_place(products[: size * count])
            if index[b] % LOSS_EVERY == 0:
                more = pair_loss(chances, weights, masses, share)
                loss, pairs = loss + more[0], pairs + more[1]
            pair_factors(chances, weights, masses, share, rate)
            # Gradients of both sides from the rows as gathered, clipped and scattered.
            np.dot(chances, outputs[:count], row_steps[:size])
            np.dot(chances.T, rows[:size], output_steps[:count])
            shorten_steps(row_steps, ids[:size], mean_square_norm(outputs, count), most)
            shorten_steps(output_steps, others[:count], mean_square_norm(rows, size), most)
            add_rows(embedding, embedding[:0], ids[:size], row_steps)
            add_rows(context, context[:0], others[:count], output_steps)
    return loss, pairs
