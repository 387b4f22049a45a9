"""Each metric has one short name, whatever model was trained."""

from __future__ import annotations

from graph_emb.run.scores import scores_of

TIES = {"optimistic": 0.6, "pessimistic": 0.4}


def test_every_task_gives_one_number_a_metric() -> None:
    evaluation = {
        "link_prediction": {"parts": {"test": {"metrics": {"auc": {"value": 0.5, "realistic": 0.5, **TIES}}}}},
        "node_classification": {"ratios": [{"ratio": 0.1, "micro_mean": 0.2, "macro_mean": 0.1, "micro_std": 9.0}]},
        "node_classification_author": {"ratios": [{"ratio": 0.1, "micro_mean": 0.3, "macro_mean": 0.4}]},
        "split_accuracy": {"accuracy": {"test": {"mean": 0.7, "std": None}}, "by_degree": [{"score": 0.1}]},
        "triples_valid": {"both": {"mrr": {"realistic": 0.25, **TIES}}, "head": {"mrr": 0.9}},
        "link_predictor": {"metrics": {"hits@20": {"epoch": 3, "valid": 0.8, "test": None}}},
        "graph_network": {"summary": {"accuracy": {"test": {"mean": 0.75, "std": 0.0}}}, "runs": [{"f": 0.1}]},
        "clusters_venue": {"nmi_mean": 0.875, "nmi_std": 0.0},
        "nearest_venue": {"KDD": [["ICDM", 0.9]]},
        "error": "no labels",
    }
    assert scores_of(evaluation) == {
        "test auc": 0.5,
        "micro-F1 at 10%": 0.2,
        "macro-F1 at 10%": 0.1,
        "micro-F1 at 10% of author": 0.3,
        "macro-F1 at 10% of author": 0.4,
        "test accuracy": 0.7,
        "valid mrr": 0.25,
        "valid hits@20": 0.8,
        "NMI of venue": 0.875,
    } | {"test accuracy": 0.7}
