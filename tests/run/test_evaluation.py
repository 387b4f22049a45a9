"""Evaluations of a run, and settings of them that mean nothing to a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_emb as ge
from graph_emb.config import EvaluateSection
from graph_emb.graph import Graph
from graph_emb.graph.labels import Labels
from graph_emb.graph.views import PlainDataset
from graph_emb.run.evaluation import check_section, with_features
from graph_emb.run.families import plain

RING = Graph.from_edges(np.arange(8), (np.arange(8) + 1) % 8)
CLASSES = Labels.from_single(np.arange(8) % 2)
SPLIT = {"train": np.arange(4), "test": np.arange(4, 8)}
EDGES = {"test": {"edge": np.array([[0, 2]]), "edge_neg": np.array([[0, 4]])}}

PLAIN = PlainDataset("ring", RING)
LABELLED = PlainDataset("ring", RING, CLASSES)
DIVIDED = PlainDataset("ring", RING, CLASSES, node_split=SPLIT)
LINKED = PlainDataset("ring", RING, link_split=EDGES)
HELD_OUT = PlainDataset("ring", RING, link_split={"train": EDGES["test"], "valid": EDGES["test"], **EDGES})
THREE_PARTS = PlainDataset("ring", RING, CLASSES, node_split={**SPLIT, "train": np.arange(2), "valid": np.arange(2, 4)})


@pytest.mark.parametrize(
    ("dataset", "fields", "message"),
    [
        (LABELLED, {"hits": (3,)}, r"evaluate\.hits = \(3,\) has no effect on ring, which holds out no edges"),
        (DIVIDED, {"scorer": "cosine"}, r"evaluate\.scorer = 'cosine' has no effect on ring"),
        (DIVIDED, {"shuffles": 7}, r"evaluate\.shuffles = 7 has no effect on ring, of whose labelled nodes no shares"),
        (LINKED, {"ratios": (0.3,)}, r"evaluate\.ratios = \(0\.3,\) has no effect on ring"),
        (PLAIN, {"ratios": (0.3,)}, r"evaluate\.ratios"),
        (
            LINKED,
            {"predictor": {}},
            r"evaluate\.predictor = .* has no effect on ring, which holds out no edges for valid",
        ),
        (
            HELD_OUT,
            {"predictor": {}, "hits": (3,)},
            r"evaluate\.hits = \(3,\) has no effect on scores that the predictor",
        ),
        (
            DIVIDED,
            {"mlp": {}},
            r"evaluate\.mlp = .* has no effect on ring, which has no labels with a split into train",
        ),
        (LABELLED, {"mlp": {}}, r"evaluate\.mlp = .* has no effect on ring"),
        (THREE_PARTS, {"mlp": {}, "shuffles": 7}, r"evaluate\.shuffles = 7 has no effect on ring"),
        (THREE_PARTS, {"mlp": {}}, None),
        (HELD_OUT, {"predictor": {}, "enabled": False, "node_features": "raw"}, None),
        (HELD_OUT, {"predictor": {}}, None),
        (LABELLED, {"ratios": (0.3,), "shuffles": 7}, None),
        (LINKED, {"hits": (3,), "scorer": "cosine"}, None),
        (PLAIN, {}, None),
        (PLAIN, {"enabled": False, "hits": (3,)}, None),
        (PLAIN, EvaluateSection().model_dump(), None),
    ],
)
def test_fields_that_are_set_mean_something_to_the_data(
    dataset: PlainDataset, fields: dict[str, Any], message: str | None
) -> None:
    section = EvaluateSection(**fields)
    if message is None:
        check_section(section, dataset)
    else:
        with pytest.raises(ge.ConfigError, match=message):
            check_section(section, dataset)


def test_features_that_are_not_there_are_asked_for() -> None:
    with pytest.raises(ge.DataError, match=r"'ring' has no node features here; take evaluate\.node_features=none"):
        check_section(EvaluateSection(predictor={}, node_features="raw"), HELD_OUT)


def test_features_stand_before_the_embedding() -> None:
    rows, given = np.ones((8, 2), np.float32), np.arange(24, dtype=np.float32).reshape(8, 3)
    assert np.array_equal(with_features(rows, given, "none"), rows)
    raw = with_features(rows, given, "raw").numpy()
    assert np.array_equal(raw[:, :3], given)
    assert np.array_equal(raw[:, 3:], rows)
    unit = with_features(rows, given, "unit columns")
    assert unit[:, :3].norm(dim=0).tolist() == pytest.approx([1.0] * 3)  # over the nodes, as OGB's vessel scripts do


@pytest.mark.parametrize("model", ["deepwalk", "line"])
def test_they_are_refused_before_training(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were ignored: the run trained, judged what it could and exited with 0."""
    for name in ("fit_skipgram", "train_line"):
        monkeypatch.setattr(plain, name, lambda *args, **options: pytest.fail("trained"))
    with pytest.raises(ge.ConfigError, match=r"evaluate\.hits = \(3,\) has no effect on digits"):
        ge.pipeline(model, "digits", out=tmp_path / "run", evaluate={"hits": [3]})
    assert not list(tmp_path.iterdir())
