"""The first learning rate of SGD on walks where none is given, by how often the walks pass an arc."""

from __future__ import annotations

LOWEST, HIGHEST = 0.025, 0.1
AT_ONE, POWER = 0.2, 0.6
GOING_ON_SHARE = 0.3
"""Of that rate, where walks begin at new nodes alone and most rows are trained: the rate that a training has left after
70 % of its walks. First rows of new nodes are led by thousands of trained ones, and their own walks are a sample, which
long steps follow too far: on BlogCatalog, old rows frozen, four times the walks at .0075 lift micro-F1 by .003, at .015
they lower it."""


def rate_of_walks(num_tokens: float, num_arcs: int) -> float:
    """``0.2 * (tokens / arcs) ** -0.6``, within [0.025, 0.1], to three digits.

    Tokens over arcs is how often a training passes each arc on average, and so the updates that a row gets for each of
    its neighbours. Few of them need long steps; from 30 on word2vec's 0.025 is best. Fitted to a few
    rates on BlogCatalog and ogbn-arxiv. On Cora and Epinions shorter trainings want less than it gives
    (docs/results.md): there word2vec's rate is best, however few the walks.

    Args:
        num_tokens: Of all walks of the training, were none to end early.
        num_arcs: Of the whole graph, an undirected edge counting twice.
    Example:
        >>> from graph_emb.models.skipgram.rates import rate_of_walks
        >>> [rate_of_walks(passes * 1000, 1000) for passes in (1, 8.8, 30, 500)]
        [0.1, 0.0542, 0.026, 0.025]
    """
    passes = max(num_tokens, 1.0) / max(num_arcs, 1)
    return float(f"{min(HIGHEST, max(LOWEST, AT_ONE * passes**-POWER)):.3g}")
