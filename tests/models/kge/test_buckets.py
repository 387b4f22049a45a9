"""Knowledge graphs by buckets: the order alone decides the rows, wherever they lie; each part comes in time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

import graph_emb as ge
from graph_emb.config import config_from
from graph_emb.core.errors import ConfigError
from graph_emb.core.terminal import notes_shown
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.batches import Batches
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.training import train_kge
from graph_emb.run.families.kge import KGEFamily
from graph_emb.sampling.buckets import BucketSchedule, num_swaps
from tests.models.kge.test_tiered import graph
from tests.ranks import Ranks

PARTS, RESIDENT = 6, 3
STATES = {"complex": 1, "transe": 2}
"""Numbers of state for each number of a row: Adagrad's, Adam's."""


def config(model: str = "complex", **more: Any) -> KGEConfig:
    sizes: dict[str, Any] = {"dim": 64, "num_negatives": 8, "chunk_size": 8, "batch_size": 8, "epochs": 3}
    return KGEConfig(**{"model": model, "buckets": PARTS, "resident": RESIDENT, "valid_every": 1, **sizes, **more})


def memory(pages: int, model: str = "complex") -> int:
    """Bytes for as many of the 50 pages of 400 entities, 8 each; a part touches up to 10 of them."""
    return 50 * 5 + pages * (8 * 64 * 4 * (1 + STATES[model]) + 64)


def placements(folder: Path, model: str) -> dict[str, Any]:
    return {
        "four parts": ge.Buckets(folder, memory(44, model), parts=PARTS),
        "three parts, no room ahead": ge.Buckets(folder, memory(33, model), parts=PARTS),
        "file": ge.File(folder, memory(44, model), "lfu"),
        "device": ge.DeviceCache(memory(44, model), "lookahead"),
    }


@pytest.mark.parametrize(("model", "passes"), [("complex", 1), ("transe", 1), ("complex", 2)])
def test_buckets_on_any_placement_train_the_rows_of_buckets_in_memory(
    tmp_path: Path, local_mode: None, model: str, passes: int
) -> None:
    twice = config(model, epochs=2, passes=passes)
    host = train_kge(graph(), twice, num_threads=1)
    assert host.entities is not None
    for name, placement in placements(tmp_path, model).items():
        found = train_kge(graph(), twice, num_threads=1, placement=placement)
        assert found.entities is not None
        assert torch.equal(host.entities, found.entities), name
        assert [line.valid_mrr for line in host.history] == [line.valid_mrr for line in found.history], name
        assert [line.loss for line in host.history] == [line.loss for line in found.history], name
        assert found.model.entity.cache_stats().dirty_writes > 0, name


def test_a_schedule_changes_the_order_and_a_step_has_triples_of_parts_that_are_in_memory(local_mode: None) -> None:
    own, *others = (
        train_kge(graph(), config(**more), num_threads=1).entities for more in ({}, {"resident": PARTS}, {"passes": 2})
    )
    assert own is not None
    for other in others:
        assert other is not None
        assert not torch.equal(own, other)


@pytest.mark.parametrize("passes", [1, 3])
def test_entities_of_a_step_lie_in_the_parts_that_it_names(local_mode: None, passes: int) -> None:
    triples = graph(200)
    rows = np.random.default_rng(1).permutation(200)
    schedule = BucketSchedule(PARTS, RESIDENT, 200, seed=0, passes=passes)
    batches = Batches(triples, config(), 0, 0, 1, True, buckets=schedule, rows=rows)
    seen = []
    for step, batch in batches.epoch(1):
        ranges = batches.ranges(1, step)
        assert ranges is not None
        assert RESIDENT <= len(ranges) <= RESIDENT + 3
        at = rows[batch.entities()]
        assert all(any(low <= row < high for low, high in ranges) for row in at.tolist())
        kept = schedule.part_of(rows[batch.negatives])
        assert all(len(set(of.tolist())) == RESIDENT for of in kept)  # each part in memory gives some
        seen.append(batch.triples.reshape(-1, 3)[batch.weights.ravel() > 0])
    assert np.array_equal(np.unique(np.concatenate(seen), axis=0), np.unique(triples.train, axis=0))
    assert sum(map(len, seen)) == triples.num_triples


def test_parts_come_before_they_are_needed_one_a_swap(tmp_path: Path, local_mode: None) -> None:
    """With state of one value an element a part moves once in and once out."""
    counts: list[tuple[int, int]] = []
    chosen = config(epochs=4, valid_every=0)
    placement = ge.Buckets(tmp_path, memory(44), parts=PARTS)
    original = ge.DistEmbedding.hold

    def hold(table: ge.DistEmbedding, ranges: Any) -> None:
        original(table, ranges)
        stats = table.cache_stats()
        counts.append((stats.evictions, stats.misses))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ge.DistEmbedding, "hold", hold)
        train_kge(graph(), chosen, num_threads=1, placement=placement)
    evictions, misses = np.array(counts).T
    assert misses.max() == 0
    moved = np.diff(evictions, prepend=0)
    assert 5 <= moved.max() <= 10  # pages of a part, less those that were there
    assert evictions[-1] <= 4 * 10 * (num_swaps(PARTS, RESIDENT) + 1)


def test_the_next_epochs_parts_are_announced_while_the_last_bucket_trains(tmp_path: Path, local_mode: None) -> None:
    told: list[tuple[int, int]] = []
    original = ge.DistEmbedding.hold

    def hold(table: ge.DistEmbedding, ranges: Any) -> None:
        told.append((int(optimizer_steps(table)), len(ranges)))
        original(table, ranges)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ge.DistEmbedding, "hold", hold)
        train_kge(graph(), config(), num_threads=1, placement=ge.Buckets(tmp_path, memory(44), parts=PARTS))
    per_epoch = -(-900 // 8)
    last_of = [[num for at, num in told if at < (epoch + 1) * per_epoch][-1] for epoch in range(3)]
    assert last_of == [RESIDENT + 1, RESIDENT + 1, RESIDENT]


def optimizer_steps(table: ge.DistEmbedding) -> int:
    return table.transport.num_steps


def on_a_rank(folder: str) -> Tensor | None:
    transport = ge.init(mode="collective", timeout=60)
    placement: Any = ge.Buckets(folder, memory(44), parts=PARTS) if transport.rank else "host"
    found = train_kge(graph(), config(valid_every=0), num_threads=1, placement=placement).entities
    ge.shutdown()
    return found


def test_ranks_that_hold_all_triples_train_the_rows_of_one(ranks: Ranks, tmp_path: Path, local_mode: None) -> None:
    expected = train_kge(graph(), config(valid_every=0), num_threads=1).entities
    found = ranks.run(on_a_rank, 2, str(tmp_path))[0]
    assert expected is not None
    assert found is not None
    assert torch.allclose(expected, found, atol=1e-6)


def test_settings_choose_buckets_and_change_no_row_with_the_memory(
    tmp_path: Path, fresh_mode: None, capfd: Any
) -> None:
    triples = tmp_path / "triples.tsv"
    triples.write_text("\n".join(f"a{h}\tr{r}\ta{t}" for h, r, t in graph().parts["train"]) + "\n", encoding="utf-8")
    rows = {}
    for name, train in {"memory": {}, "file": {"memory": "64KiB", "scratch": str(tmp_path / "rows")}}.items():
        result = ge.pipeline(
            model="transe", dataset=str(triples), out=tmp_path / name, evaluate=False, dim=16, num_negatives=8,
            chunk_size=64, progress=True,
            train={"epochs": 2, "batch_size": 64, "threads": 1, "buckets": PARTS, "passes": 2, **train},
        )  # fmt: skip
        rows[name] = result.embeddings.weights
        ge.shutdown()
    assert np.array_equal(rows["memory"], rows["file"])
    assert result.metrics["train"]["cache"]["dirty_writes"] > 0
    assert list((tmp_path / "rows").iterdir()) == []
    plan = rf"has {2 * num_swaps(PARTS, 2)} swaps, which read and write [\d.]+ times the table each"
    plan += r"; a disk of 1 GB/s keeps up with [\d,]+ triples/s"
    assert len(re.findall(plan, capfd.readouterr().err)) == 1, "rows in memory need no disk"


@pytest.mark.parametrize("place", [{}, {"memory": "64KiB"}])
def test_parts_that_are_all_in_memory_are_never_swapped(
    tmp_path: Path, fresh_mode: None, capfd: Any, place: dict[str, str]
) -> None:
    """The plan divided by the bytes that a disk moves, of which there are none."""
    triples = tmp_path / "triples.tsv"
    triples.write_text("\n".join(f"a{h}\tr{r}\ta{t}" for h, r, t in graph().parts["train"]) + "\n", encoding="utf-8")
    train = {"epochs": 1, "batch_size": 64, "threads": 1, "buckets": 2, **place}
    train |= {"scratch": str(tmp_path / "rows")} if place else {}
    ge.pipeline("transe", str(triples), evaluate=False, dim=4, chunk_size=64, train=train, progress=True)
    told = capfd.readouterr().err
    assert "has 0 swaps, which read and write 0.0 times the table each\n" in told


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ({"rule": "adagrad", "memory": "512KiB"}, (36, 7)),
        ({"rule": "row_adagrad", "memory": "512KiB"}, (18, 7)),
        ({"rule": "adam", "compat": "dgl-1.x", "memory": "2MiB"}, (13, 7)),
        ({"rule": "adagrad", "memory": "64KiB"}, (125, 2)),
        ({"rule": "adagrad", "memory": "3MiB"}, (0, None)),
        ({"rule": "adagrad"}, (0, None)),
    ],
)
def test_parts_are_chosen_by_the_memory(
    train: dict[str, Any], expected: tuple[int, int | None], tmp_path: Path, fresh_mode: None
) -> None:
    edges = [f"a{k}\tr{k % 3}\ta{7 * k % 4_000}" for k in range(4_000)]
    (tmp_path / "triples.tsv").write_text("\n".join(edges) + "\n", encoding="utf-8")
    if "memory" in train:
        train = {**train, "scratch": str(tmp_path / "rows")}
    found = {}
    numbers = dict(zip(("buckets", "resident"), expected, strict=True))
    for name, buckets in {"auto": {"buckets": "auto"}, "numbers": numbers}.items():
        run = ge.pipeline(
            model="distmult", dataset=str(tmp_path / "triples.tsv"), out=tmp_path / name, evaluate=False, dim=64,
            report="none", num_negatives=8, chunk_size=64,
            train={"epochs": 1, "batch_size": 512, "threads": 1, **train, **buckets},
        )  # fmt: skip
        kept = yaml.safe_load((tmp_path / name / "config.yaml").read_text())["train"]
        assert (kept["buckets"], kept["resident"]) == expected
        found[name] = run.embeddings.weights
        ge.shutdown()
    assert np.array_equal(found["auto"], found["numbers"])


def test_too_little_memory_for_parts_and_trainers_are_refused(tmp_path: Path, fresh_mode: None) -> None:
    triples = tmp_path / "triples.tsv"
    triples.write_text("\n".join(f"a{k}\tr\ta{7 * k % 400}" for k in range(400)) + "\n", encoding="utf-8")
    train = {"buckets": "auto", "memory": "8KiB", "scratch": str(tmp_path / "rows")}
    with pytest.raises(ConfigError, match=r"train.memory = '8KiB' does not hold 3 of 400 parts of 400 entities"):
        ge.pipeline("distmult", str(triples), dim=64, train=train)
    ge.shutdown()
    with pytest.raises(ConfigError, match=r"train.memory = '8KiB' does not hold two of 4 parts of 400 entities with"):
        ge.pipeline("distmult", str(triples), dim=64, train={**train, "buckets": 4})
    ge.shutdown()
    with pytest.raises(ConfigError, match=r"train.memory = '900' does not hold a page of 400 entities with"):
        ge.pipeline("distmult", str(triples), dim=64, train={**train, "memory": "900", "buckets": 0})
    ge.shutdown()
    with pytest.raises(ConfigError, match=r"train.buckets = auto follows train.memory, which one process has"):
        ge.pipeline("distmult", str(triples), train={"buckets": "auto"}, parallel={"mode": "collective"})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"buckets": 1}, "buckets = 1, resident = None: at least 2 parts"),
    ({"buckets": 4, "resident": 5}, "buckets = 4, resident = 5"),
    ({"resident": 5}, "resident = 5 belongs to buckets"),
    ({"buckets": 4, "training": "1vsall", "loss": "softmax"}, "reads all entities in every step"),
    ({"buckets": 4, "negative_scope": "local"}, "both place triples"),
    ({"buckets": 4, "table": "hash"}, "is of few rows, in memory"),
    ({"buckets": "auto", "table": "hash"}, "buckets = auto: table = 'hash' is of few rows"),
    ({"buckets": "auto", "resident": 5}, "resident = 5 belongs to buckets"),
    ({"passes": 2}, "passes = 2 belongs to buckets; set train.buckets to a number"),
    ({"buckets": "auto", "passes": 2}, "passes = 2 belongs to buckets"),
    ({"buckets": 4, "passes": 0}, "passes"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_settings_that_do_not_go_with_buckets_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        KGEConfig(model="distmult", **options)


def test_memory_that_does_not_hold_the_parts_is_refused_with_the_number_that_it_holds(
    tmp_path: Path, local_mode: None
) -> None:
    with pytest.raises(ConfigError, match=r"holds 2 of 6 parts of the entities, train.resident = 3 train together"):
        train_kge(graph(), config(), placement=ge.Buckets(tmp_path, memory(24), parts=PARTS))
    with pytest.raises(ConfigError, match=r"holds 1 of 6 parts of the entities, train.resident = 3 train together"):
        train_kge(graph(), config(), placement=ge.Buckets(tmp_path, memory(12), parts=PARTS))
    with pytest.raises(ConfigError, match=r"placement of 4 parts, train.buckets = 6"):
        train_kge(graph(), config(), placement=ge.Buckets(tmp_path, memory(44), parts=4))
    with pytest.raises(ConfigError, match="parts=1 must be at least 2"):
        ge.Buckets(tmp_path, "60KiB", parts=1)


def test_parts_below_a_page_need_a_page_each(tmp_path: Path, local_mode: None) -> None:
    """The widest parts lay in one page side by side: memory of 2 of 9 pages "held" 33 of 135 parts, here and there."""
    many = config().replace(buckets=135, resident=None)
    with pytest.raises(ConfigError, match=r"holds \d of 135 parts of the entities, train.resident = 33 train together"):
        train_kge(graph(), many, placement=ge.Buckets(tmp_path, memory(12), parts=135))


def test_more_swaps_than_steps_are_said_with_the_memory_that_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    triples = tmp_path / "triples.tsv"
    triples.write_text("\n".join(f"a{k}\tr\ta{7 * k % 4_000}" for k in range(4_000)) + "\n", encoding="utf-8")

    def said(memory: str) -> str:
        sections = {
            "dataset": {"name": str(triples)},
            "model": {"name": "distmult", "dim": 64, "num_negatives": 8, "chunk_size": 64},
            "train": {"rule": "adagrad", "batch_size": 512, "buckets": "auto", "memory": memory},
        }
        with notes_shown(True):
            KGEFamily(config_from(sections)).load()
        return capsys.readouterr().err

    line = said("48KiB")
    assert "warning: train.memory = '48KiB' takes 31,124 swaps of parts in an epoch of 8 steps" in line
    found = re.search(r"with train.memory='(.*)' train.buckets=auto takes (\d+)$", line)
    assert found is not None
    assert int(found[2]) <= 8
    assert said(found[1]) == ""


def test_entities_with_types_are_refused(local_mode: None) -> None:
    typed = KnowledgeGraph("typed", 40, 3, {"train": graph(40).train}, entity_types={"a": 0, "b": 20})
    with pytest.raises(ConfigError, match="follow the types of its entities"):
        train_kge(typed, config(valid_every=0))
