"""What the rules of OGB's leaderboards forbid is refused, and what they want said is said."""

from __future__ import annotations

from typing import Any

import pytest

from graph_emb.core.errors import ConfigError
from graph_emb.ogb.record import BestScore
from graph_emb.ogb.rules import check
from tests.ogb.records import VERSIONS, record, result, started, ten


def test_ten_seeds_by_the_rules_pass_without_a_note() -> None:
    assert check(ten()) == []
    assert check(ten()[::-1]) == []


@pytest.mark.parametrize(
    ("seeds", "told"),
    [
        (range(3), "seeds 0, 1, 2 instead of 0 to 9"),
        (range(1, 11), "seeds 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 instead of 0 to 9"),
        (range(11), "instead of 0 to 9"),
    ],
)
def test_fewer_or_other_seeds_need_partial_and_are_said(seeds: range, told: str) -> None:
    records = [record(seed) for seed in seeds]
    with pytest.raises(ConfigError, match=rf"{told}; run the others, or report these with --partial"):
        check(records)
    (note,) = check(records, partial=True)
    assert note.startswith("PARTIAL: seeds ")
    assert told in note


def test_papers100m_asks_for_three() -> None:
    found = result(metric="acc")
    assert check([record(seed, found, dataset="ogbn-papers100M") for seed in range(3)]) == []


def broken(**change: Any) -> list:
    """Ten seeds of which the fourth differs."""
    return [*ten()[:3], record(3, **change), *ten()[4:]]


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ([], "no records"),
        ([*ten(), record(4)], "seed 4 is there 2 times"),
        ([*ten()[:9], started(9)], "seed 9 was started and not finished"),
        (broken(dataset="ogbl-ppa"), "several data sets, ogbl-ddi and ogbl-ppa"),
        (broken(model="mf"), "several models, deepwalk and mf"),
        (
            broken(settings={"predictor": {"lr": 0.2, "epochs": 100}, "features": "none"}),
            "seeds 0 and 3 have different settings: predictor.lr is 0.01 and 0.2",
        ),
        (broken(embedding_seed=0), "some seeds trained their own embedding and others took that of another"),
        (broken(found=result(parameters={"embedding": 7})), "different numbers of parameters"),
        (broken(found=result(metric="hits@50")), "seed 3 reports hits@50; ogbl-ddi is judged by hits@20"),
        (broken(found=result(selected_on="test")), "seed 3: its epoch was chosen by test values"),
        (broken(settings_selected_on="test"), "seed 3: its settings were chosen by test values"),
        (broken(settings_selected_on="valid"), "disagree on how settings were chosen: none, valid"),
        (ten(validation_edges="trained on"), "validation edges were trained on; the rules allow that for ogbl-collab"),
        (broken(validation_edges="trained on"), "several uses of validation edges"),
        (broken(versions={**VERSIONS, "ogb": "1.2.0"}), "seed 3 was judged under ogb 1.2.0; ogbl-ddi needs 1.2.1"),
        (broken(versions={"torch": "2"}), "under ogb not installed"),
    ],
)
@pytest.mark.parametrize("partial", [False, True])
def test_what_the_rules_forbid_is_refused_partial_or_not(records: list, text: str, partial: bool) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        check(records, partial=partial)
    assert "\n" not in str(caught.value)


def test_a_missing_setting_is_a_different_setting() -> None:
    with pytest.raises(ConfigError, match="features is 'none' and None"):
        check(broken(settings={"predictor": {"lr": 0.01, "epochs": 100}}))


@pytest.mark.parametrize(("dataset", "version"), [("ogbl-vessel", "1.3.3"), ("ogbl-citation2", "1.3.3")])
def test_a_release_that_judges_otherwise_is_refused(dataset: str, version: str) -> None:
    metric = "rocauc" if dataset == "ogbl-vessel" else "mrr"
    found = result(metric=metric)
    old = [record(seed, found, dataset=dataset, versions={"ogb": version}) for seed in range(10)]
    with pytest.raises(ConfigError, match=rf"under ogb {version}; {dataset} needs 1.3.4 or later"):
        check(old)
    assert check([one.model_copy(update={"versions": VERSIONS}) for one in old]) == []


def test_validation_edges_may_be_trained_on_in_collab_and_are_said() -> None:
    found = result(metric="hits@50")
    records = [record(s, found, dataset="ogbl-collab", validation_edges="trained on") for s in range(10)]
    (note,) = check(records)
    assert "Validation edges were trained on" in note


def test_a_frozen_embedding_is_said() -> None:
    (note,) = check([record(seed, embedding_seed=0) for seed in range(10)])
    assert note.startswith("One embedding, of seed 0, lies under all seeds")
    with pytest.raises(ConfigError, match="some seeds trained their own"):
        check([record(seed, embedding_seed=min(seed, 1)) for seed in range(10)])


def test_no_choice_of_an_epoch_is_said() -> None:
    last = result(selected_on="none", scores={"hits@20": BestScore(epoch=None, valid=0.3, test=0.2)})
    (note,) = check([record(seed, last) for seed in range(10)])
    assert note.startswith("No epoch was chosen")


def test_several_commands_and_versions_are_said() -> None:
    notes = check(broken(command="python other.py", versions={**VERSIONS, "ogb": "1.3.5"}))
    assert notes == [
        "The seeds ran under 2 versions; all are listed.",
        "The seeds ran under 2 commands; all are listed.",
    ]
