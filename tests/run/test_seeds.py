"""Each seed runs once, and the numbers over seeds are spelled one way."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError
from graph_emb.models.gnn.config import RGCNConfig
from graph_emb.models.gnn.train import train_rgcn
from graph_emb.run.evaluation import SeedsResult, as_text, each_seed, mean_std, summary
from tests.models.gnn.planted import planted


def test_finished_seeds_are_not_run_again() -> None:
    ran: list[int] = []

    def run(seed: int) -> str:
        ran.append(seed)
        return f"new {seed}"

    kept = {2: "kept 2", 4: ""}
    assert list(each_seed([1, 2, 3, 4], run, kept.get)) == [(1, "new 1"), (2, "kept 2"), (3, "new 3"), (4, "")]
    assert ran == [1, 3]


def test_a_result_is_freed_before_the_next_seed_runs() -> None:
    """The tables of a trained network may fill the memory."""

    class Tables:
        pass

    alive: list[weakref.ref[Tables]] = []

    def run(seed: int) -> Tables:
        assert all(made() is None for made in alive)
        made = Tables()
        alive.append(weakref.ref(made))
        return made

    for _, result in each_seed(range(3), run):
        del result
    assert len(alive) == 3


def test_an_interrupt_ends_the_seeds() -> None:
    def run(seed: int) -> int:
        if seed == 2:
            raise KeyboardInterrupt
        return seed

    runs = each_seed([1, 2, 3], run)
    assert next(runs) == (1, 1)
    with pytest.raises(KeyboardInterrupt):
        next(runs)


@pytest.mark.parametrize("seeds", [(), (1, 1)])
def test_no_seed_and_a_seed_twice_are_refused(seeds: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="each once"):
        next(each_seed(seeds, lambda seed: pytest.fail("trained")))


def test_std_is_unbiased_and_absent_for_one_value() -> None:
    assert mean_std([1.0, 3.0]) == pytest.approx({"mean": 2.0, "std": 2.0**0.5})
    assert mean_std([1.0])["std"] is None
    assert summary([1.0, 3.0])["values"] == [1.0, 3.0]
    assert as_text([0.25, 0.75]) == "0.5000 ± 0.3536"
    assert as_text([0.25]) == "0.2500"


def test_seeds_are_summed_up() -> None:
    graph, task = planted()
    config = RGCNConfig(epochs=5, lr=0.02, dropout=0.0)
    runs = dict(each_seed((3, 4), lambda seed: train_rgcn(graph, task, config, seed=seed).as_dict()))
    found = SeedsResult(tuple(runs), tuple(runs.values()))
    values = found.values("test", "accuracy")
    numbers = found.as_dict()["summary"]["accuracy"]["test"]
    assert numbers["mean"] == pytest.approx(np.mean(values))
    assert numbers["std"] == pytest.approx(np.std(values, ddof=1))
    assert "accuracy" in str(found)
