from __future__ import annotations

import pytest
import torch

from graph_emb.core.errors import ConfigError
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.scorers import (
    SCORERS,
    ComplEx,
    DistMult,
    KGEScorer,
    Reciprocal,
    RotatE,
    SimplE,
    TransE,
    score,
)
from graph_emb.sampling.known_triples import HEAD, TAIL
from tests.models.kge.references import MARGIN, REFERENCES, normal

MADE: dict[str, KGEScorer] = {
    "transe_l1": TransE(6, MARGIN, 1),
    "transe_l2": TransE(6, MARGIN, 2),
    "distmult": DistMult(6),
    "complex": ComplEx(6),
    "rotate": RotatE(6, MARGIN),
    "simple": SimplE(6),
}


def test_every_model_has_a_reference() -> None:
    assert {type(scorer) for scorer in MADE.values()} == {type(SCORERS[n](KGEConfig(model=n))) for n in SCORERS}
    assert set(MADE) == set(REFERENCES)


@pytest.mark.parametrize("name", MADE)
def test_the_score_is_the_papers(name: str) -> None:
    scorer, reference = MADE[name], REFERENCES[name]
    h, t, r = normal(5, 6), normal(5, 6, seed=1), normal(5, scorer.relation_dim, seed=2)
    expected = [reference(*rows) for rows in zip(h, r, t, strict=True)]
    assert score(scorer, h, r, t).tolist() == pytest.approx(expected, abs=1e-6)
    by_head = scorer.comparison.pairs(scorer.head_query(r, t), h)
    assert by_head.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", MADE)
def test_chunks_score_every_query_with_every_entity(name: str) -> None:
    scorer, reference = MADE[name], REFERENCES[name]
    h, r, candidates = normal(2, 3, 6), normal(2, 3, scorer.relation_dim, seed=1), normal(2, 4, 6, seed=2)
    found = scorer.comparison.chunks(scorer.tail_query(h, r), candidates)
    assert found.shape == (2, 3, 4)
    for k, i, j in ((0, 0, 0), (0, 2, 3), (1, 1, 2)):
        assert float(found[k, i, j]) == pytest.approx(reference(h[k, i], r[k, i], candidates[k, j]), abs=1e-6)


def test_scores_by_hand() -> None:
    h, r, t = (torch.tensor(row) for row in ([1.0, 2.0], [0.5, -1.0], [0.0, 3.0]))
    assert float(score(TransE(2, norm=1), h, r, t)) == pytest.approx(-3.5)  # |1.5| + |1 - 3|
    assert float(score(TransE(2, norm=2), h, r, t)) == pytest.approx(-2.5)  # sqrt(2.25 + 4)
    assert float(score(DistMult(2), h, r, t)) == pytest.approx(-6.0)
    # (1 + 2i)(0.5 - i) = 2.5; times conj(3i) = -7.5i; its real part:
    assert float(score(ComplEx(2), h, r, t)) == pytest.approx(0.0)
    assert float(score(ComplEx(2), h, r, torch.tensor([2.0, 3.0]))) == pytest.approx(5.0)
    # <h, r, t'> = 1 * 0.5 * 3; <t, r', h'> = 0 * -1 * 2
    assert float(score(SimplE(2), h, r, t)) == pytest.approx(0.75)
    # range = 6, so 3 is a quarter turn: (1 + 2i) i = -2 + i; minus 3i: |-2 - 2i|
    assert float(score(RotatE(2, 4.0), h, torch.tensor([3.0]), t)) == pytest.approx(-(8**0.5))


def test_complex_and_simple_tell_directions_apart_and_distmult_does_not() -> None:
    h, t, r = normal(1, 6), normal(1, 6, seed=1), normal(1, 6, seed=2)
    torch.testing.assert_close(score(DistMult(6), h, r, t), score(DistMult(6), t, r, h))
    for scorer in (ComplEx(6), SimplE(6)):
        assert not torch.isclose(score(scorer, h, r, t), score(scorer, t, r, h))


@pytest.mark.parametrize("name", MADE)
def test_first_rows_depend_on_the_seed_and_are_in_bounds(name: str) -> None:
    rows = []
    for seed in (0, 0, 1):
        pair = [torch.empty(50, MADE[name].dim), torch.empty(50, MADE[name].relation_dim)]
        for weight, first in zip(pair, MADE[name].initializers(seed), strict=True):
            first.fill_(weight, 0)
        rows.append(pair)
    assert all(torch.equal(a, b) for a, b in zip(rows[0], rows[1], strict=True))
    assert not torch.equal(rows[0][0], rows[2][0])
    limit = {"transe_l1": 1.0, "transe_l2": 1.0, "rotate": 2.0}.get(name)  # (4 + 2) / 6, (4 + 2) / 3
    if limit is not None:
        assert all(0.8 * limit < float(weight.abs().max()) <= limit for weight in rows[0])
    else:
        assert 0.08 < float(rows[0][0].std()) < 0.12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TransE(4, norm=3), "norm is 3; it must be 1 or 2"),
        (lambda: RotatE(5), "rotate: dim is 5; it must be a positive multiple of 2"),
        (lambda: ComplEx(7), "complex: dim is 7"),
        (lambda: SimplE(3), "simple: dim is 3"),
        (lambda: DistMult(0), "distmult: dim is 0; it must be a positive multiple of 1"),
    ],
)
def test_a_width_that_does_not_fit_is_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("name", MADE)
def test_inverse_relations_make_a_query_for_heads_one_for_tails(name: str) -> None:
    base = MADE[name]
    scorer = Reciprocal(base.dim, base)
    width = base.relation_dim
    h, r, t = normal(4, base.dim), normal(4, 2 * width, seed=1), normal(4, base.dim, seed=2)
    torch.testing.assert_close(scorer.tail_query(h, r), base.tail_query(h, r[:, :width]))
    torch.testing.assert_close(scorer.head_query(r, t), base.tail_query(t, r[:, width:]))
    assert scorer.relation_dim == 2 * width
    assert scorer.comparison is base.comparison
    assert torch.equal(scorer.read_by(TAIL, r), r[:, :width])
    assert torch.equal(scorer.read_by(HEAD, r), r[:, width:])
    torch.testing.assert_close(scorer.moduli(scorer.read_by(HEAD, r)), base.moduli(r[:, width:]))
