"""Ranks that train a bucket each: the rows of one process that trains the same rounds, whatever the rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.config import config_from
from graph_emb.core.errors import ConfigError
from graph_emb.models.kge.bucket_ranks import HeldParts, RoundBatches
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.training import train_kge
from graph_emb.run.families.kge import KGEFamily
from graph_emb.run.families.kge_rounds import beside_parts, plan_of_rounds, with_rounds
from graph_emb.run.machine import file_plan, owners_of
from graph_emb.sampling.bucket_rounds import RoundSchedule
from graph_emb.transport.lockstep import PREFETCH, PULL
from graph_emb.transport.row_moves import RowMoves
from tests.models.kge.test_tiered import graph
from tests.ranks import Ranks, raised, with_shared_memory

RULES: dict[str, dict[str, Any]] = {
    "sgd": {"rule": "sgd"},
    "adagrad": {"rule": "adagrad", "in_batch": True, "negative_power": 0.75, "subsampling": True},
    "adam": {"rule": "adam", "model": "rotate", "dropout": 0.1, "l2": 1e-4, "dtype": "bfloat16"},
    "a sum a row": {"rule": "row_adagrad", "weight_decay": 0.01},
    "global clock": {"rule": "adam", "compat": "torch", "dtype": "float16"},
}


def config(**more: Any) -> KGEConfig:
    sizes: dict[str, Any] = {"dim": 16, "num_negatives": 8, "chunk_size": 4, "batch_size": 16, "epochs": 2}
    return KGEConfig(**{"model": "complex", "buckets": 5, "at_once": 2, "valid_every": 1, **sizes, **more})


def start(mode: str, shared: bool = False) -> Any:
    """The mode; in collective mode ``shared`` leaves rows in memory of all ranks, else they move."""
    return ge.init(mode=mode, **({"timeout": 60, "shared_memory": shared} if mode == "collective" else {}))


IN_PLACE = pytest.param(True, marks=with_shared_memory, id="in place")
HOW = pytest.mark.parametrize("shared", [IN_PLACE, pytest.param(False, id="moved")])


def trained(chosen: KGEConfig, mode: str, shared: bool = False, **more: Any) -> Any:
    """The rows that are returned and those of the tables, the validations, and bytes that left this process."""
    transport = start(mode, shared)
    result = train_kge(graph(), chosen, num_threads=1, **more)
    sent = {name: transport.traffic_of(table.name).bytes_sent for name, table in tables(result).items()}
    rows = [table.weight[:] for table in result.model.tables]
    ge.shutdown()
    return result.entities, result.relations, [line.valid_mrr for line in result.history], rows, sent


def tables(result: Any) -> dict[str, Any]:
    return dict(zip(("entity", "relation"), result.model.tables, strict=True))


def same(alone: Any, found: Any) -> None:
    for k in range(2):
        assert torch.equal(alone[k], found[k])
        assert torch.equal(alone[3][k], found[3][k])  # the last rows lie at their owners
    assert alone[2] == found[2]


@HOW
@pytest.mark.parametrize("rule", RULES)
def test_two_ranks_train_the_rows_of_one_process_bit_for_bit(
    ranks: Ranks, fresh_mode: None, rule: str, shared: bool
) -> None:
    chosen = config(**RULES[rule])
    alone, (found, other) = trained(chosen, "local"), ranks.run(trained, 2, chosen, "collective", shared)
    assert other[0] is None
    same(alone, found)


def test_three_ranks_too_and_entities_travel_between_rounds_alone(ranks: Ranks, fresh_mode: None) -> None:
    chosen = config(buckets=6, at_once=3, batch_size=4, epochs=1, valid_every=0)
    alone, found = trained(chosen, "local"), ranks.run(trained, 3, chosen, "collective")
    same(alone, found[0])
    # Of the bytes that the same triples take when all ranks share each step, which leave the state where it is.
    shared = ranks.run(
        trained, 3, config(buckets=6, at_once=None, batch_size=12, epochs=1, valid_every=0), "collective"
    )
    assert found[0][4]["relation"] > 0
    assert sum(own[4]["entity"] for own in found) < 0.7 * sum(own[4]["entity"] for own in shared)


def told(chosen: KGEConfig, announces: bool, **more: Any) -> Any:
    """``trained`` by parts that move, and the rows that came to this rank while it trained, and while it waited."""
    start_of, rows = RowMoves.start, [0, 0]

    def counted(own: RowMoves, call: int, moves: Any, *args: Any, background: bool = False) -> Any:
        own_rank = own._transport.rank
        if call in (PREFETCH, PULL):
            rows[not background] += sum(move.high - move.low for move in moves if move.target == own_rank)
        return start_of(own, call, moves, *args, background=background)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowMoves, "start", counted)
        if not announces:
            patch.setattr(HeldParts, "announce", lambda *_: None)
        return trained(chosen, "collective", **more), rows


def test_parts_that_rest_travel_while_a_round_trains_and_change_no_bit(ranks: Ranks, fresh_mode: None) -> None:
    chosen = config(rule="adam", buckets=8, batch_size=4)
    alone = trained(chosen, "local")
    (early, rows), _ = ranks.run(told, 2, chosen, True)
    same(alone, early)
    assert rows[0] > 2 * rows[1]  # of each epoch all parts of the first round come while the rank waits
    (late, rows), _ = ranks.run(told, 2, chosen, False)
    same(alone, late)
    assert rows[0] == 0


def from_files(chosen: KGEConfig, folder: str, early: int) -> Any:
    return told(chosen, True, placement=ge.File(folder, "30KiB"), early=early)


def test_parts_in_files_travel_while_a_round_trains_as_far_as_there_is_room(
    ranks: Ranks, fresh_mode: None, tmp_path: Path
) -> None:
    chosen = config(rule="adam", buckets=8, batch_size=4)
    alone, came = trained(chosen, "local"), []
    for early in (0, 12_000, 1 << 20):  # a part with its state takes 10 KB
        (found, own), (_, other) = ranks.run(from_files, 2, chosen, str(tmp_path), early)
        same(alone, found)
        came.append(own[0] + other[0])
    assert came[0] == 0 < came[1] < came[2]


def test_parts_are_known_before_their_round_in_the_next_epoch_too(fresh_mode: None) -> None:
    own, schedule = graph(200), RoundSchedule(8, 2, 200, seed=0)
    batches = RoundBatches(own, config(buckets=8, epochs=2), 0, 0, 1, schedule)
    last = batches.steps_per_epoch - 1
    begins = [batches.parts(1, step) for step in range(batches.steps_per_epoch)]
    first, *others = [
        parts
        for parts, before in zip(begins, [None, *begins], strict=False)
        if before is None or not np.array_equal(parts, before)
    ]
    coming = batches.next_parts(0, last)
    assert coming is not None
    assert np.array_equal(coming, first)
    assert {*schedule.ranges(coming)} <= {*batches.ranges(0, last)}
    following = batches.next_parts(1, 0)
    assert following is not None
    assert np.array_equal(following, others[0])
    assert batches.next_parts(1, last) is None
    assert batches.ranges(1, last) == schedule.ranges(batches.parts(1, last))


@with_shared_memory
def test_ranks_of_one_machine_move_no_rows(ranks: Ranks, fresh_mode: None) -> None:
    chosen = config(buckets=6, at_once=3, batch_size=4, epochs=1, valid_every=0)
    found = ranks.run(trained, 3, chosen, "collective", True)
    same(trained(chosen, "local"), found[0])
    # What leaves is for the rows of the result, which each rank reads.
    rows = 400 * 16 * 4
    assert sum(own[4]["entity"] for own in found) < 4 * rows


def test_steps_of_a_round_have_triples_and_negatives_of_its_parts(fresh_mode: None) -> None:
    own, rows = graph(200), np.random.default_rng(1).permutation(200)
    schedule, chosen = RoundSchedule(5, 2, 200, seed=0), config(chunk_size=4, batch_size=8)
    whole = RoundBatches(own, chosen, 0, 0, 1, schedule, rows)
    seen, numbers = [], []
    for step, batches in whole.epoch(1):
        numbers.append(step)
        for parts, batch in zip(whole.parts(1, step), batches, strict=True):
            of = np.searchsorted(schedule.bounds, rows[batch.entities()], side="right") - 1
            assert set(of.tolist()) <= set(parts.tolist())
            assert not np.isnan(batch.total_weight)
            seen.append(batch.triples.reshape(-1, 3)[batch.weights.ravel() > 0])
    assert numbers == [*range(whole.steps_per_epoch)]
    found = np.concatenate(seen)
    assert np.array_equal(found[np.lexsort(found.T)], own.train[np.lexsort(own.train.T)])
    later = dict(whole.epoch(1, first=7))
    assert [*later] == [*range(7, whole.steps_per_epoch)]
    of_rank = RoundBatches(own, chosen, 0, 1, 2, schedule, rows)
    for step, (batch,) in of_rank.epoch(1):
        expected = later.get(step, (None, None))[1]
        if expected is not None:
            assert np.array_equal(batch.triples, expected.triples)
            assert np.array_equal(batch.negatives, expected.negatives)


class Stopping(PeriodicCheckpoints):
    """Ends the training at a step, as a crash does."""

    at = 13

    def after(self, step: int, position: Any) -> bool:
        if step == self.at + 1:
            raise RuntimeError("stopped")
        return super().after(step, position)


def interrupted(chosen: KGEConfig, folder: str, shared: bool, **more: Any) -> Any:
    start("collective", shared)
    with pytest.raises(RuntimeError, match="stopped"):
        train_kge(graph(), chosen, num_threads=1, checkpoints=Stopping(Path(folder), 13), **more)
    ge.shutdown()
    again = PeriodicCheckpoints(Path(folder), 1000, resume=True)
    return trained(chosen, "collective", shared, checkpoints=again, **more)


def interrupted_with_files(chosen: KGEConfig, folder: str) -> Any:
    placement = ge.File(f"{folder}/rows", "30KiB", leftover="remove")
    return interrupted(chosen, folder, False, placement=placement, early=25_000)


def test_a_training_from_files_goes_on_while_parts_were_on_their_way(
    ranks: Ranks, fresh_mode: None, tmp_path: Path
) -> None:
    chosen = config(rule="adam", compat="torch", buckets=8, batch_size=4, valid_every=0)
    same(trained(chosen, "local"), ranks.run(interrupted_with_files, 2, chosen, str(tmp_path))[0])


@HOW
def test_a_training_goes_on_in_the_middle_of_a_round_by_ranks_or_by_one(
    ranks: Ranks, fresh_mode: None, tmp_path: Path, shared: bool
) -> None:
    chosen = config(rule="adam", compat="torch", batch_size=4)
    alone = trained(chosen, "local")
    same(alone, ranks.run(interrupted, 2, chosen, str(tmp_path), shared)[0])
    same(alone, trained(chosen, "local", checkpoints=PeriodicCheckpoints(tmp_path, 1000, resume=True)))


def lost(chosen: KGEConfig) -> str:
    """What a rank is told when another one fails in the middle of an epoch."""
    transport = start("collective")
    batches = RoundBatches.epoch

    def failing(own: RoundBatches, epoch: int, first: int = 0) -> Any:
        for step, batch in batches(own, epoch, first):
            if step == 5 and transport.rank:
                raise OSError("a broken disk")
            yield step, batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoundBatches, "epoch", failing)
        return raised(train_kge, graph(), chosen)


def test_a_rank_that_fails_ends_the_training_of_all(ranks: Ranks) -> None:
    first, second = ranks.run(lost, 2, config())
    assert "PeerError" in first
    assert "rank 1" in first
    assert "a broken disk" in second


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"buckets": 3}, "buckets = 3, at_once = 2: no two of these may share a part; take at least 4 buckets"),
        ({"buckets": 0}, "at_once = 2 belongs to buckets"),
        ({"buckets": None}, "at_once = 2 belongs to buckets; set train.buckets to a number"),
        ({"resident": 4}, "resident = 4: 2 buckets at once hold 2 parts each"),
        ({"passes": 3}, "passes = 3: 2 buckets at once pass over all once an epoch"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(**change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"compat": "dgl-1.x"}, "averages the gradients"),
        ({"rule": "row_adagrad", "compat": "dgl-0.5"}, "takes each occurrence"),
        ({"rule": "adam", "weight_decay": 0.1, "weight_decay_mode": "lazy"}, "lets rows decay"),
        ({"dtype": "bfloat16", "stochastic_rounding": True}, "rounds by chance"),
        ({"rule": "adam", "state_dtype": "bfloat16"}, "rounds by chance"),
    ],
)
def test_rules_that_would_depend_on_who_trains_are_refused(local_mode: None, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"train.at_once = 2: .*{said}"):
        train_kge(graph(), config(**change), num_threads=1)


def too_many(chosen: KGEConfig) -> str:
    start("collective")
    return raised(train_kge, graph(), chosen)


def test_other_numbers_of_ranks_than_buckets_at_once_are_refused(ranks: Ranks) -> None:
    said = "train.at_once = 3: 2 trainers; take as many as buckets at once, or one"
    assert said in ranks.run(too_many, 2, config(buckets=6, at_once=3))[1]


PIPELINE: dict[str, Any] = {
    "model": "transe", "evaluate": False, "dim": 8, "num_negatives": 4, "chunk_size": 8, "buckets": 8, "valid_every": 0,
    "train": {"epochs": 2, "batch_size": 16, "threads": 1},
}  # fmt: skip


def run_of_trainers(dataset: str, settings: dict[str, Any]) -> Any:
    found = ge.pipeline(dataset=dataset, parallel={"mode": "collective", "trainers": 2}, **settings)
    cache = found.metrics["train"].get("cache", {}) if found.embeddings is not None else {}
    return None if found.embeddings is None else (found.embeddings.weights, found.config.model.at_once, cache)


def test_trainers_of_a_run_take_a_bucket_each_from_memory_or_files_and_one_process_takes_all(
    ranks: Ranks, fresh_mode: None, tmp_path: Path
) -> None:
    triples = tmp_path / "triples.tsv"
    triples.write_text("\n".join(f"a{h}\tr{r}\ta{t}" for h, r, t in graph().train) + "\n", encoding="utf-8")
    alone = ge.pipeline(dataset=str(triples), at_once=2, **PIPELINE)
    rows, at_once, _ = ranks.run(run_of_trainers, 2, str(triples), PIPELINE)[0]
    assert at_once == 2
    assert np.array_equal(alone.embeddings.weights, rows)
    # A trainer owns 19 KB and holds 9 KB, its two parts; four more come and go while it trains, if there is room.
    for memory in ("24KiB", "44KiB"):
        in_files = {"memory": memory, "scratch": str(tmp_path / "rows"), **PIPELINE["train"]}
        rows, _, cache = ranks.run(run_of_trainers, 2, str(triples), {**PIPELINE, "train": in_files})[0]
        assert np.array_equal(alone.embeddings.weights, rows)
        assert cache["dirty_writes"] > 0


@pytest.mark.parametrize(
    ("memory", "early", "plan"), [("24KiB", 0, "with train.memory above 37.50 KiB "), ("44KiB", 19_200, "")]
)
def test_parts_that_travel_early_are_taken_off_the_memory(tmp_path: Path, memory: str, early: int, plan: str) -> None:
    own = config_from(
        {
            "model": {"name": "transe", "dim": 8},
            "dataset": {"name": "nothing.tsv"},
            "train": {"memory": memory, "buckets": 8, "scratch": str(tmp_path)},
            "parallel": {"mode": "collective", "trainers": 2},
        }
    )
    chosen = with_rounds(own)
    placement, found = beside_parts(chosen.train.table_placement(8), 400, chosen)
    assert found == early
    assert placement.memory_bytes == chosen.train.table_placement().memory_bytes - 9_600 - early
    assert "24.00 KiB of memory of each of 2 processes hold 100%" in file_plan(
        512, chosen.model, replace(placement, memory=24 << 10), processes=owners_of(chosen.parallel)
    )
    assert plan_of_rounds(400, chosen).endswith(f"where they share no memory, {plan}while the round before trains")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train.buckets": 3}, "train.buckets = 3: 2 trainers hold two parts each, .* at least 4"),
        ({"train.resident": 2}, "train.resident = 2: 2 trainers hold 2 parts each"),
        ({"train.passes": 2}, "train.passes = 2: 2 trainers pass over all buckets once"),
        ({"train.at_once": 3, "train.buckets": 6}, "train.at_once = 3: each of 2 trainers takes one"),
        ({"train.buckets": "auto"}, "train.buckets = auto follows train.memory"),
        ({"train.memory": "150KiB"}, "train.memory = '150KiB': a trainer holds two of 4 parts .* raise it to"),
        ({"parallel.method": "random"}, "parallel.method = 'random': the parts of train.buckets = 4 are its own"),
        ({"parallel.hogwild": True}, "parallel.hogwild = True does not go"),
        ({"parallel.wire_dtype": "bfloat16"}, "parallel.wire_dtype = 'bfloat16' does not go"),
        ({"model.multilevel": True}, "model.multilevel = True does not go"),
        ({"parallel.mode": "kvstore", "parallel.servers": 1}, "kvstore mode push .* parallel.mode=collective"),
    ],
)  # fmt: skip
def test_runs_that_cannot_train_by_buckets_say_what_to_pass(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    triples = tmp_path / "triples.tsv"
    triples.write_text("".join(f"a{k}\tr\tb{k}\n" for k in range(30)), encoding="utf-8")
    values = {"train.buckets": 4, "parallel.mode": "collective", "parallel.trainers": 2, **change}
    sections: dict[str, Any] = {"model": {"name": "transe"}, "dataset": {"name": str(triples)}}
    for path, value in values.items():
        section, _, name = path.partition(".")
        sections.setdefault(section, {})[name] = value
    with pytest.raises(ConfigError, match=said):
        KGEFamily(config_from(sections)).load()
