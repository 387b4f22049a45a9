"""Curves are found in the lines of every model."""

from __future__ import annotations

from graph_emb.run.report.curves import Curve, curves_of


def titles(curves: list[Curve]) -> list[str]:
    return [curve.title for curve in curves]


def test_walks_give_loss_speed_memory_and_locality_over_seconds() -> None:
    lines = [
        {"epoch": 0, "tokens": 100, "seconds": 1.0, "loss": 2.0, "local_share": 0.5, "memory_mib": 10, "elapsed": 1.5},
        {"epoch": 0, "tokens": 400, "seconds": 2.0, "loss": 1.0, "local_share": 0.6, "memory_mib": 12, "elapsed": 3.0},
    ]
    found = {curve.title: curve for curve in curves_of(lines)}
    assert found["loss"].x_title == "seconds"  # an epoch has two lines
    assert found["loss"].series == {"": [(1.0, 2.0), (2.0, 1.0)]}
    assert found["tokens per second"].series == {"": [(1.0, 100.0), (2.0, 300.0)]}
    assert found["memory of the first process, MiB"].series == {"": [(1.0, 10.0), (2.0, 12.0)]}
    assert "share of local rows" in found
    assert "epochs per second" not in found  # tokens say it


def test_several_trainers_give_the_pace_of_the_slowest() -> None:
    lines = [{"epoch": n, "seconds": 1.0 * n, "job": {"slowest": 1, "slowest_share": n / 4}} for n in (1, 2)]
    (found,) = (curve for curve in curves_of(lines) if curve.title.startswith("pace"))
    assert found == Curve("pace of the slowest trainer, of the mean", "epoch", {"": [(1.0, 0.25), (2.0, 0.5)]}, True)


def test_line_counts_edges_of_each_order() -> None:
    """A walk of LINE is an edge, which counted as two tokens."""
    lines = [{"order": order, "epoch": 0, "walks": 50 * n, "tokens": 100 * n, "seconds": float(n), "loss": 1.0}
             for order in ("first", "second") for n in (1, 2)]  # fmt: skip
    found = {curve.title: curve for curve in curves_of(lines)}
    assert found["edges per second"].series == {name: [(1.0, 50.0), (2.0, 50.0)] for name in ("first", "second")}
    assert sorted(found) == ["edges per second", "loss"]


def test_triples_give_validation_where_there_was_one() -> None:
    lines = [{"epoch": n, "triples": n * 10, "seconds": n / 2, "loss": 1.0 / n, "valid_mrr": v}
             for n, v in ((1, None), (2, 0.25), (3, None), (4, 0.5))]  # fmt: skip
    found = {curve.title: curve for curve in curves_of(lines)}
    assert found["validation"].series == {"mrr": [(2.0, 0.25), (4.0, 0.5)]}
    assert (found["loss"].x_title, len(found["loss"].series[""])) == ("epoch", 4)


def test_networks_give_their_metrics_and_epochs_per_second_by_seed() -> None:
    lines = [{"seed": seed, "epoch": n, "loss": 0.5, "valid": {"accuracy": 0.5}, "elapsed": 2.0 * n}
             for seed in (0, 1) for n in (5, 10)]  # fmt: skip
    found = {curve.title: curve for curve in curves_of(lines)}
    assert sorted(found["validation"].series) == ["seed 0 accuracy", "seed 1 accuracy"]
    assert found["epochs per second"].series["seed 1"] == [(10.0, 0.5), (20.0, 0.5)]


def test_nothing_is_drawn_of_one_line_or_of_numbers_that_are_none() -> None:
    assert curves_of([]) == []
    assert curves_of([{"epoch": 1, "loss": 1.0, "seconds": 1.0}]) == []
    assert titles(curves_of([{"epoch": n, "loss": float("nan"), "lr": 0.1} for n in (1, 2)])) == ["learning rate"]
