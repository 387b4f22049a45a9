"""Knowledge graphs: triples of names go in, entities and relations get rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import graph_emb as ge
from graph_emb.core.errors import ConfigError, DataError, ShapeError

QUICK: dict[str, Any] = {"dim": 8, "epochs": 2, "batch_size": 4, "chunk_size": 4, "num_negatives": 4, "threads": 1}
TRIPLES = [("ann", "likes", "bob"), ("bob", "likes", "cat"), ("cat", "knows", "ann"), ("bob", "knows", "ann")]


@pytest.mark.parametrize("kind", [ge.TransE, ge.DistMult, ge.ComplEx, ge.RotatE, ge.SimplE])
def test_every_model_fits_names(kind: Any) -> None:
    model = kind(**QUICK).fit(pd.DataFrame(TRIPLES, columns=["who", "does", "whom"]))
    assert model.ids_.tolist() == ["ann", "bob", "cat"]
    assert model.embedding_.shape == (3, 8)
    assert model.tables_["relation"].node_ids.tolist() == ["knows", "likes"]
    assert model.transform(["likes"], table="relation").shape[0] == 1
    assert len(model.nearest("ann", k=2)) == 2
    assert 0 < model.score(TRIPLES) <= 1


def test_arrays_lists_and_files_are_the_same_graph(tmp_path: Path) -> None:
    file = tmp_path / "triples.tsv"
    file.write_text("".join("\t".join(triple) + "\n" for triple in TRIPLES))
    rows = ge.TransE(**QUICK).fit_transform(np.array(TRIPLES))
    np.testing.assert_array_equal(rows, ge.TransE(**QUICK).fit_transform([list(triple) for triple in TRIPLES]))
    np.testing.assert_array_equal(rows, ge.TransE(**QUICK).fit_transform(file))


def test_score_is_the_filtered_rank() -> None:
    """Ranks of both sides by hand: other true answers are left out."""
    model = ge.DistMult(**{**QUICK, "epochs": 30}).fit(np.array(TRIPLES))
    entities, relations = model.tables_["entity"], model.tables_["relation"]
    names = entities.node_ids.tolist()
    true = {(names.index(h), r, names.index(t)) for h, r, t in TRIPLES}
    found = []
    for h, r, t in [("bob", "likes", "cat"), ("cat", "likes", "ann")]:
        new = true | {(names.index("cat"), "likes", names.index("ann"))}
        kind = relations.weights[relations.node_ids.tolist().index(r)]
        head, tail = names.index(h), names.index(t)
        scores = entities.weights[head] * kind @ entities.weights.T
        found.append(1 / (1 + sum(scores[e] > scores[tail] for e in range(3) if (head, r, e) not in new)))
        scores = entities.weights[tail] * kind @ entities.weights.T
        found.append(1 / (1 + sum(scores[e] > scores[head] for e in range(3) if (e, r, tail) not in new)))
    assert model.score([("bob", "likes", "cat"), ("cat", "likes", "ann")]) == pytest.approx(np.mean(found))


def test_a_saved_model_has_both_tables(tmp_path: Path) -> None:
    model = ge.RotatE(**QUICK).fit(np.array(TRIPLES))
    loaded = ge.load_run(model.save(tmp_path / "run"))
    for name in ("entity", "relation"):
        np.testing.assert_array_equal(loaded.tables_[name].weights, model.tables_[name].weights)


def test_triples_at_fault_are_refused() -> None:
    model = ge.TransE(**QUICK).fit(np.array(TRIPLES))
    with pytest.raises(DataError, match="no embedding, the first is id 'dan'"):
        model.score([("ann", "likes", "dan")])
    with pytest.raises(ShapeError, match="X holds no triples"):
        model.score([("ann", "likes")])
    with pytest.raises(DataError, match="has no relations; models of triples need them"):
        ge.TransE(**QUICK).fit(pd.DataFrame({"source": [0, 1], "target": [1, 2]}))


def test_triples_are_scored_and_completed_by_the_models_function() -> None:
    model = ge.DistMult(**QUICK).fit(np.array(TRIPLES))
    entity, relation = (dict(zip(t.node_ids.tolist(), t.weights, strict=True)) for t in model.tables_.values())
    expected = {h: float((entity[h] * relation["likes"] * entity["cat"]).sum()) for h in entity}
    np.testing.assert_allclose(
        model.predict_triples([("ann", "likes", "cat"), ("bob", "likes", "cat")]),
        [expected["ann"], expected["bob"]],
        rtol=1e-5,
    )
    order = sorted(expected, key=lambda name: -expected[name])
    found = model.complete(relation="likes", tail="cat", k=2)
    assert [name for name, _ in found] == order[:2]
    assert found[0][1] == pytest.approx(expected[order[0]], rel=1e-5)
    assert len(model.complete("ann", "likes", k=3)) == 3


def test_the_missing_place_is_head_or_tail_of_a_model_that_tells_them_apart() -> None:
    model = ge.TransE(**QUICK).fit(np.array(TRIPLES))
    heads = dict(model.complete(relation="likes", tail="bob", k=3))
    tails = dict(model.complete("bob", "likes", k=3))
    names = list(heads)
    np.testing.assert_allclose([heads[n] for n in names], model.predict_triples([(n, "likes", "bob") for n in names]))
    np.testing.assert_allclose([tails[n] for n in names], model.predict_triples([("bob", "likes", n) for n in names]))
    assert heads != tails
    with pytest.raises(ConfigError, match="one of head and tail"):
        model.complete(relation="likes")
    with pytest.raises(ConfigError, match="k=4 of 3"):
        model.complete("ann", "likes", k=4)


def test_lists_and_arrays_that_are_no_triples_are_refused() -> None:
    """The first row of none, and the shape of rows of several lengths, ended in errors of Python and numpy."""
    for given in (np.zeros((0, 3), np.int64), [("a", "r", "b"), ("a", "b")], [("a", "b")], []):
        with pytest.raises((ShapeError, DataError), match=r"holds no triples|has no triples"):
            ge.TransE(**QUICK).fit(given)
    with pytest.raises(DataError, match="column 'head' holds an integer outside int64"):
        ge.TransE(**QUICK).fit([(2**70, 0, 1)])
