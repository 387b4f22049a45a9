"""scikit-learn's own checks of estimators, and those that graphs cannot pass, each with its reason."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from sklearn.utils import estimator_checks

import graph_emb as ge
from graph_emb.estimators import ESTIMATORS

WARM_START = "sets warm_start=False, which is the path of a file of first rows here, as in a run"
COMPLETE = "scores the complete graph of its kernel, in which no pair of nodes is without an edge"
NOT_OF_GRAPHS = {
    "check_n_features_in": WARM_START,
    "check_n_features_in_after_fitting": WARM_START,
    "check_fit_check_is_fitted": WARM_START,
    "check_fit_idempotent": "asks for rows of nodes that the graph of fit did not have",
    "check_fit_score_takes_y": COMPLETE,
    "check_pipeline_consistency": COMPLETE,
    "check_methods_sample_order_invariance": "samples are nodes of one graph: in another order it is another graph",
    "check_methods_subset_invariance": "samples are nodes of one graph: some rows of its matrix are no graph",
    "check_fit2d_predict1d": "one dimension is ids of nodes",
}
"""Checks that the estimators of nodes do not pass, and why."""
WITHOUT_DATA = (
    estimator_checks.check_estimator_cloneable,
    estimator_checks.check_estimator_tags_renamed,
    estimator_checks.check_valid_tag_types,
    estimator_checks.check_estimator_repr,
    estimator_checks.check_no_attributes_set_in_init,
    estimator_checks.check_mixin_order,
    estimator_checks.check_parameters_default_constructible,
    estimator_checks.check_get_params_invariance,
    estimator_checks.check_set_params,
    estimator_checks.check_do_not_raise_errors_in_init_or_set_params,
)
"""Checks of all estimators, which train on nothing: triples and classes of nodes are no matrices of numbers."""
WALKS = {"num_walks": 1, "walk_length": 5}
NODES = {"deepwalk": WALKS, "node2vec": WALKS, "line": {"draws_per_edge": 1}, "prone": {}, "netmf": {"rank": 3}}


@pytest.mark.parametrize("model", NODES)
def test_estimators_of_nodes_pass_the_checks_that_apply_to_graphs(model: str) -> None:
    made: Any = ESTIMATORS[model](dim=4, threads=1, **NODES[model])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ties, and of what scikit-learn skips
        results = estimator_checks.check_estimator(
            made, expected_failed_checks=NOT_OF_GRAPHS, on_skip=None, on_fail=None
        )
    assert {one["check_name"]: one["exception"] for one in results if one["status"] == "failed"} == {}
    assert sum(one["status"] == "passed" for one in results) >= 35
    starts = hasattr(made, "warm_start")
    expected = {name for name, why in NOT_OF_GRAPHS.items() if starts or why != WARM_START}
    assert {one["check_name"] for one in results if one["status"] == "xfail"} == expected


@pytest.mark.parametrize("check", WITHOUT_DATA, ids=lambda check: check.__name__)
@pytest.mark.parametrize("model", ESTIMATORS)
def test_every_estimator_passes_the_checks_without_data(model: str, check: Any) -> None:
    kind = ESTIMATORS[model]
    check(kind.__name__, kind())


def test_settings_are_shown_short() -> None:
    assert repr(ge.TransE(dim=8)) == "TransE(dim=8)"
