from __future__ import annotations

import pytest

import graph_emb as ge
from graph_emb.config import MODELS
from graph_emb.models.search import OneOf, Span, parse_range


@pytest.mark.parametrize("model", MODELS)
def test_every_model_declares_ranges_that_hold_its_defaults(model: str) -> None:
    settings = MODELS[model]()
    assert settings.search
    for name, own in settings.search_space().items():
        value = getattr(settings, name)
        value = settings.first_lr if name == "lr" and not own.holds(value) else value
        assert own.holds(value), f"{name} = {value!r} is outside {own}"


@pytest.mark.parametrize("model", MODELS)
def test_both_ends_of_every_range_are_accepted(model: str) -> None:
    for name, own in MODELS[model].search.items():
        for value in (own.low, own.high) if isinstance(own, Span) else own.values:
            assert getattr(MODELS[model](**{name: value}), name) == value


def test_a_loss_over_all_entities_has_no_negatives_to_search() -> None:
    space = MODELS["complex"](training="1vsall").search_space()
    assert "num_negatives" not in space
    assert "n3" in space


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("model.window=2,5", ("model.window", OneOf((2, 5)))),
        ("order=first, both", ("order", OneOf(("first", "both")))),
        ("reciprocal=true,false,null", ("reciprocal", OneOf((True, False, None)))),
        ("train.lr=0.01:0.3:log", ("train.lr", Span(0.01, 0.3, log=True))),
        ("dim=16:64", ("dim", Span(16, 64))),
    ],
)
def test_ranges_are_read(text: str, found: object) -> None:
    assert parse_range(text) == found


def test_a_span_of_integers_holds_no_fractions_and_true_is_no_number() -> None:
    assert Span(1, 3).whole
    assert [Span(1, 3).holds(value) for value in (1, 3, 2.5, 4, True)] == [True, True, False, False, False]
    assert [OneOf((1, 2)).holds(value) for value in (1, 1.0, True)] == [True, True, False]


@pytest.mark.parametrize("text", ["window", "=1,2", "lr=", "lr=0.3:0.1", "lr=0:1:log", "lr=1:2:linear", "lr=a:b"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ge.ConfigError, match="search"):
        parse_range(text)
