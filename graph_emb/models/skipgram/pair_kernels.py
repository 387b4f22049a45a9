"""Compiled skip-gram on a bucket of a p x p grid: tokens of one part of the nodes, contexts and negatives of another.

The arithmetic is that of ``kernels.train_walks``: three small matrix products for the tokens of a stretch of a walk,
but of these tokens only those of the bucket's token part take part, and of their contexts those of its context part.
Walks are not cut into pairs: their places are sorted by part once, and a bucket finds its pairs among those of two.
"""

# B walks, L tokens of a walk, D width, W window, R and Q rows of the token and the context part, K negatives.

from __future__ import annotations

import numpy as np

from graph_emb.core.compiled import GOLDEN, mix64, njit, unit_draw
from graph_emb.core.small_products import buffer_width, dot_products, weighted_sums
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
from graph_emb.table.row_memory import prefetch_to_read

f4 = np.float32


@njit(cache=True, nogil=True)
def sort_by_part(walks, bounds, order, starts):
    """Sort the places of walks (B, L) by the parts of their nodes, places of one part ascending: a counting sort.

    Args:
        bounds: Part k has the nodes bounds[k] to bounds[k + 1], (P + 1,).
        order: Filled with the places, (B, L), int32.
        starts: Filled with where each part's begin in them, (B, P + 1), int32; all 0 of a walk of one node.
    """
    num_parts = len(bounds) - 1
    part_of, following = np.empty(walks.shape[1], np.int32), np.empty(num_parts, np.int32)
    for b in range(walks.shape[0]):
        used = 0
        starts[b] = 0
        while used < walks.shape[1] and walks[b, used] != PAD:
            used += 1
        if used < 2:
            continue
        for place in range(used):
            part_of[place] = np.searchsorted(bounds, walks[b, place], side="right") - 1
            starts[b, part_of[place] + 1] += 1
        for part in range(num_parts):
            starts[b, part + 1] += starts[b, part]
            following[part] = starts[b, part]
        for place in range(used):
            order[b, following[part_of[place]]] = place
            following[part_of[place]] += 1


@njit(**FAST)
def contexts_of(places, chosen, count, window, near):
    """Collect those of ascending places that are in reach of any of ``count`` tokens at ``chosen``; how many."""
    found, first = 0, 0
    for place in places:
        while first < count and chosen[first] < place - window:
            first += 1
        if first == count:
            break
        if chosen[first] <= place + window:
            near[found] = place
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
        masses: The summed weight of all contexts of a token, those of other buckets among them, (T,).
        share: What a negative counts, in units of that.
    """
    for i in range(weights.shape[0]):
        row = chances[i]
        for j in range(weights.shape[1]):
            row[j] = rate * weights[i, j] * (f4(1.0) - row[j])
        for n in range(weights.shape[1], chances.shape[1]):
            row[n] *= -rate * share * masses[i]


@njit(**FAST)
def next_with_tokens(starts, part, walk):
    """The first walk from ``walk`` on that has tokens of a part; their number where none has."""
    while walk < len(starts) and starts[walk, part] == starts[walk, part + 1]:
        walk += 1
    return walk


@njit(**FAST)
def draw_rows(stream, first, accept, other, table, places, drawn):
    """Draw negatives, numbers ``first`` and on of a stream, and ask for the memory of their rows; drawn (K,) int64."""
    for n in range(len(drawn)):
        drawn[n] = places[pick(unit_draw(stream, first + n), 0, len(places), accept, other)]
        prefetch_to_read(table, drawn[n])


@njit(**FAST)
def train_pairs(
    walks,
    index,
    order,
    starts,
    token_part,
    context_part,
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
    rates,
    most,
):
    """Add the steps of a bucket's pairs of walks (B, L) of number index (B,) to the rows of both tables, in place.

    Args:
        order, starts: Of ``sort_by_part``.
        token_part, context_part: The bucket.
        embedding, places, low: Row r of the token part, node low + r, is row places[r] of the table; places (R,).
        context, context_places, context_low: The same of the context part, (Q,).
        accept, other: Alias tables of the negatives of the context part, (Q,).
        num_drawn: K, drawn for each stretch; may be 0.
        share: What each of them counts for a token, in units of the summed weight of all its contexts.
        key: Of the streams that draw.
        ramp: Weights of the distances -W .. W, 0 at 0, (2 W + 1,).
        sums: Of the weights before each distance, (2 W + 2,).
        stretch: Places of a walk whose tokens are updated together.
        rates, most: As of ``train_walks``.
    Returns:
        Loss and weight of the positive pairs, each summed over one in ``LOSS_EVERY`` walks.
    """
    num_walks, length = walks.shape
    width, window = embedding.shape[1], len(ramp) // 2
    stretch = min(stretch, length)
    longest = min(length, stretch + 2 * window)
    chosen, near = np.empty(stretch, np.int64), np.empty(longest, np.int64)
    ids, others = np.empty(stretch, np.int64), np.empty(longest + num_drawn, np.int64)
    most_outputs, apart = longest + num_drawn, buffer_width(width)
    rows, row_steps = np.zeros((stretch, apart), f4), np.zeros((stretch, apart), f4)
    outputs, output_steps = np.zeros((most_outputs, apart), f4), np.zeros((most_outputs, apart), f4)
    products, pair_weights = np.empty(stretch * most_outputs, f4), np.empty(stretch * longest, f4)
    masses, squares = np.empty(stretch, f4), np.empty(max(stretch, most_outputs), f4)
    drawn, at_distance = np.empty(num_drawn, np.int64), np.zeros(2 * length + 1, f4)
    reach = min(window, length)
    for distance in range(-reach, reach + 1):
        at_distance[length + distance] = ramp[window + distance]
    loss, pairs = 0.0, 0.0
    b = next_with_tokens(starts, token_part, 0)
    if b < num_walks:
        first = order[b, starts[b, token_part]] // stretch * num_drawn
        draw_rows(mix64(key + np.uint64(index[b]) * GOLDEN), first, accept, other, context, context_places, drawn)
    while b < num_walks:
        coming, last = starts[b, token_part], starts[b, token_part + 1]
        tokens, used = walks[b], starts[b, -1]
        contexts = order[b, starts[b, context_part] : starts[b, context_part + 1]]
        following = next_with_tokens(starts, token_part, b + 1)
        if following < num_walks:  # the rows of the next walk come while this one computes
            for k in range(starts[following, token_part], starts[following, token_part + 1]):
                prefetch_to_read(embedding, np.int64(places[walks[following, order[following, k]] - low]))
            for k in range(starts[following, context_part], starts[following, context_part + 1]):
                place = context_places[walks[following, order[following, k]] - context_low]
                prefetch_to_read(context, np.int64(place))
        rate = rates[b]
        stream = mix64(key + np.uint64(index[b]) * GOLDEN)
        while coming < last:
            # Gather: the part's tokens in a stretch, contexts of any of them in the other part, negatives from it.
            number, size = order[b, coming] // stretch, 0
            while coming < last and order[b, coming] < (number + 1) * stretch:
                chosen[size] = order[b, coming]
                ids[size] = places[tokens[chosen[size]] - low]
                size, coming = size + 1, coming + 1
            num_contexts = contexts_of(contexts, chosen, size, window, near)
            for j in range(num_contexts):
                others[j] = context_places[tokens[near[j]] - context_low]
            count = num_contexts + num_drawn
            if count == 0:
                continue
            for n in range(num_drawn):
                others[num_contexts + n] = drawn[n]
            weights = pair_weights[: size * num_contexts].reshape(size, num_contexts)
            for i in range(size):
                for j in range(num_contexts):
                    weights[i, j] = at_distance[length + near[j] - chosen[i]]
                after, before = min(used - 1 - chosen[i], window), min(chosen[i], window)
                masses[i] = sums[window + after + 1] - sums[window - before]
            copy_rows(embedding, embedding[:0], ids[:size], rows)
            copy_rows(context, context[:0], others[:count], outputs)
            if coming < last:  # the negatives of what comes next, whose rows come while this one computes
                first = order[b, coming] // stretch * num_drawn
                draw_rows(stream, first, accept, other, context, context_places, drawn)
            elif following < num_walks:
                first = order[following, starts[following, token_part]] // stretch * num_drawn
                stream = mix64(key + np.uint64(index[following]) * GOLDEN)
                draw_rows(stream, first, accept, other, context, context_places, drawn)
            # Scores of all pairs, their sigmoids, the loss of a sample, the factors of the step.
            chances = products[: size * count].reshape(size, count)
            dot_products(rows, outputs, size, count, width, products)
            sigmoid_in_place(products[: size * count])
            if index[b] % LOSS_EVERY == 0:
                more = pair_loss(chances, weights, masses, share)
                loss, pairs = loss + more[0], pairs + more[1]
            pair_factors(chances, weights, masses, share, rate)
            # Gradients of both sides from the rows as gathered, clipped and scattered.
            weighted_sums(products, count, 1, outputs, size, count, width, row_steps)
            weighted_sums(products, 1, count, rows, count, size, width, output_steps)
            partners = mean_square_norm(outputs, count, width, squares)
            shorten_steps(row_steps, ids[:size], width, partners, most, squares)
            partners = mean_square_norm(rows, size, width, squares)
            shorten_steps(output_steps, others[:count], width, partners, most, squares)
            add_rows(embedding, embedding[:0], ids[:size], row_steps, False)
            add_rows(context, context[:0], others[:count], output_steps, False)
        b = following
    return loss, pairs
