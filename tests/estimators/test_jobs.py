"""In the processes of a job an estimator is fitted by all of them together."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest

import graph_emb as ge
from graph_emb.core.errors import ModeError
from tests.ranks import Ranks

SETTINGS: dict[str, Any] = {"dim": 4, "num_walks": 2, "walk_length": 6, "threads": 1, "rule": "adagrad"}


def fit() -> tuple[Any, Any, str]:
    model = ge.DeepWalk(**SETTINGS).fit(nx.cycle_graph(8))
    try:
        said = str(model.transform([3]).tolist())
    except ModeError as error:
        said = str(error)
    return model.embedding_, model.config_.parallel.trainers, said


@pytest.mark.dist
def test_two_ranks_fit_one_model_and_the_first_has_its_rows(ranks: Ranks) -> None:
    (first, trainers, said), (second, _, other) = ranks.run(fit, 2)
    assert trainers == 2
    assert first.shape == (8, 4)
    assert said == str([first[3].tolist()])
    assert second is None
    assert "the rows are with the first process of the job" in other
    alone = ge.DeepWalk(**SETTINGS).fit_transform(nx.cycle_graph(8))
    np.testing.assert_allclose(first, alone, rtol=1e-5)  # all walks are in the first step of either
