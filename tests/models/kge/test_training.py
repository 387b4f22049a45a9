from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.checkpoint.periodic import PeriodicCheckpoints
from graph_emb.composed import expanded
from graph_emb.config.schema import MAX_SEED
from graph_emb.core.errors import ConfigError
from graph_emb.evaluate.triple_ranks import rank_part
from graph_emb.graph.datasets import load_dataset
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.graph.views import knowledge_graph
from graph_emb.models.kge import training
from graph_emb.models.kge.best_rows import BEST_FILE, BestRows
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.model import KGEModel
from graph_emb.models.kge.scorers import SCORERS
from graph_emb.models.kge.training import KGEResult, train_kge
from tests.models.kge.references import ring, two_rings
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster, close_idle

pytestmark = pytest.mark.usefixtures("fresh_mode")

TINY = KGEConfig(
    dim=8, num_negatives=4, chunk_size=2, batch_size=8, epochs=4, valid_every=2, loss="self_adversarial", margin=2.0,
    n3=0.0, rule="adam", lr=0.05,
)  # fmt: skip
UMLS: dict[str, Any] = {"num_negatives": 64, "chunk_size": 64, "batch_size": 256, "epochs": 8, "valid_every": 4}
FLOORS = {"transe": 0.55, "distmult": 0.45, "complex": 0.7, "rotate": 0.65, "simple": 0.6}


def umls_config(model: str) -> KGEConfig:
    if model in ("transe", "rotate"):
        return KGEConfig(model=model, dim=64, lr=0.02, **UMLS)
    return KGEConfig(model=model, dim=64, loss="softmax", n3=0.01, rule="adagrad", margin=0.0, **UMLS)


@pytest.mark.data
@pytest.mark.parametrize("model", SCORERS)
def test_every_model_learns_umls(model: str, shared_data: Path) -> None:
    graph = knowledge_graph(load_dataset("umls", shared_data))
    result = train_kge(graph, umls_config(model), num_threads=1)
    assert result.entities is not None
    assert result.relations is not None
    scorer = result.model.scorer
    found = rank_part(scorer, result.entities, result.relations, graph, "test").mrr().realistic
    assert found > FLOORS[model], "a model of first rows has an MRR of .04"
    assert result.best_epoch in (4, 8)


def rows(config: KGEConfig = TINY, graph: KnowledgeGraph | None = None, **options: Any) -> KGEResult:
    result = train_kge(graph or ring(), config, num_threads=1, **options)
    result.model.entity.reset_trace()
    return result


def test_a_seed_repeats_the_rows_and_another_does_not() -> None:
    first, again, other = rows(seed=1), rows(seed=1), rows(seed=2)
    assert torch.equal(first.entities, again.entities)
    assert torch.equal(first.relations, again.relations)
    assert not torch.equal(first.entities, other.entities)


CHANGES: list[dict[str, Any]] = [
    {"norm": 2}, {"loss": "logistic"}, {"loss": "margin"}, {"loss": "softmax"}, {"margin": 3.0}, {"temperature": 0.5},
    {"num_negatives": 5}, {"chunk_size": 4}, {"negative_power": 0.75}, {"in_batch": True},
    {"n3": 0.1}, {"l2": 0.1}, {"batch_size": 4}, {"rule": "adagrad"}, {"rule": "row_adagrad"}, {"rule": "row_adam"},
    {"rule": "sgd"}, {"lr": 0.01}, {"lr_decay": "none"}, {"lr_decay": "cosine"}, {"warmup": 0.3}, {"epochs": 5},
    {"dropout": 0.3}, {"reciprocal": True}, {"dim": 6}, {"model": "distmult"},
    {"table": "hash", "num_buckets": 4}, {"table": "hash", "num_buckets": 4, "num_hashes": 1},
    {"table": "hash", "num_buckets": 4, "own_rows": 2},
]  # fmt: skip


@pytest.fixture(scope="module")
def plain() -> torch.Tensor:
    return rows(TINY.replace(model="transe", valid_every=0)).entities


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_value_changes_the_rows(plain: torch.Tensor, change: dict[str, Any]) -> None:
    found = rows(TINY.replace(**{"model": "transe", "valid_every": 0, **change})).entities
    assert torch.isfinite(found).all()
    assert found.shape != plain.shape or not torch.equal(found, plain)


def test_weights_of_frequent_pairs_first_rows_and_filtering_count() -> None:
    skewed = KnowledgeGraph("skewed", 6, 1, {"train": np.array([[0, 0, t] for t in range(1, 6)] + [[1, 0, 2]])})
    changes: list[dict[str, Any]] = [{}, {"subsampling": True}, {"init_std": 0.3}, {"filter_negatives": False}]
    first, *others = (rows(TINY.replace(model="distmult", **change), skewed).entities for change in changes)
    assert not any(torch.equal(first, other) for other in others)


def test_the_best_validation_is_returned_and_ends_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, kept = iter([0.2, 0.5, 0.4, 0.5, 0.9]), []

    class Found:
        def mrr(self) -> Any:
            return type("Value", (), {"realistic": next(scores)})

    def fake(group: Any, scorer: Any, found: tuple[torch.Tensor, torch.Tensor], *rest: Any, **options: Any) -> Found:
        kept.append(found[0])
        return Found()

    monkeypatch.setattr(training, "rank_part_dealt", fake)
    result = rows(TINY.replace(epochs=20, patience=2))
    assert [line.valid_mrr for line in result.history[1::2]] == [0.2, 0.5, 0.4, 0.5]
    assert result.best_epoch == 4
    assert torch.equal(result.entities, kept[1])
    assert [line.epoch for line in result.history] == list(range(1, 9))


def test_without_patience_all_epochs_run() -> None:
    assert len(rows(TINY.replace(lr=1e-6, epochs=12, patience=0)).history) == 12


def test_without_validation_the_last_rows_are_returned() -> None:
    result = rows(TINY.replace(valid_every=0))
    assert torch.equal(result.entities, result.model.entity.weight[:])
    assert result.best_epoch == 4
    assert all(line.valid_mrr is None for line in result.history)


def test_validation_samples_triples_and_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    true = training.rank_part_dealt

    def watched(*args: Any, **options: Any) -> Any:
        seen.append((options["chosen"].tolist(), options["num_candidates"]))
        return true(*args, **options)

    monkeypatch.setattr(training, "rank_part_dealt", watched)
    rows(TINY.replace(epochs=2, valid_triples=2, candidates=5))
    rows(TINY.replace(epochs=2, valid_triples=0))
    assert (len(seen[0][0]), seen[0][1]) == (2, 5)
    assert seen[1] == ([0, 1, 2], None)


def test_candidates_that_cannot_be_sampled_are_refused_before_training() -> None:
    """They were refused by the first validation, after epochs of training."""
    with pytest.raises(ge.ConfigError, match=r"num_candidates is 12; it must be in \[1, 12\)"):
        rows(TINY.replace(candidates=12), on_epoch=lambda line: pytest.fail("trained"))


def test_the_largest_seed_makes_first_rows() -> None:
    """The tables' seeds are 2 * seed and the one after it, which left the initializers' range from 2 ** 62 on."""
    for seed in (2**62, MAX_SEED):
        assert rows(TINY.replace(epochs=1), seed=seed).history
    one, other = (KGEModel(5, 2, TINY, seed=seed).tables for seed in (0, MAX_SEED))
    assert not torch.equal(one[0].weight[:], other[0].weight[:])
    assert not torch.equal(other[0].weight[:2], other[1].weight[:])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    "change",
    [
        *({"model": name, "loss": "softmax", "margin": 0.0} for name in SCORERS),
        {"model": "transe", "norm": 2},
        {"model": "rotate", "dropout": 0.2, "in_batch": True, "n3": 0.01},
        {"model": "complex", "training": "1vsall", "n3": 0.01, "l2": 0.01, "dropout": 0.1, "loss": "softmax"},
        {"model": "distmult", "training": "kvsall", "label_smoothing": 0.1, "n3": 0.01, "loss": "softmax"},
        {"model": "complex", "training": "1vsall", "products": "bfloat16", "loss": "softmax"},
        {"model": "transe", "training": "1vsall", "loss": "softmax", "margin": 0.0},
        {"model": "complex", "table": "hash", "num_buckets": 4, "loss": "softmax"},
    ],
    ids=str,
)
def test_a_training_on_the_gpu_ends_with_the_rows_of_the_processor(change: dict[str, Any]) -> None:
    of_negatives = {} if change.get("training") else {"num_negatives": 4, "chunk_size": 2}
    margin = {"margin": 2.0} if change["model"] in ("transe", "rotate") and "margin" not in change else {}
    shared = {"dim": 8, "batch_size": 8, "epochs": 3, "valid_every": 2, "rule": "sgd", "lr": 0.2}
    config = KGEConfig(**{**shared, **of_negatives, **margin, **change})
    on_cpu, on_gpu = (rows(config, device=device) for device in ("cpu", "cuda"))
    assert all(table.shard.weight.is_cuda for table in expanded(on_gpu.model.tables))
    for found, expected in ((on_gpu.entities, on_cpu.entities), (on_gpu.relations, on_cpu.relations)):
        assert found is not None
        assert expected is not None
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert on_gpu.history[-1].valid_mrr == pytest.approx(on_cpu.history[-1].valid_mrr, abs=0.02)


def test_rates_that_diverge_are_named() -> None:
    with pytest.raises(ge.ConfigError, match=r"distmult: the loss is nan|the loss is inf"):
        rows(TINY.replace(model="distmult", loss="logistic", rule="sgd", lr=1e3, valid_every=0))


def test_ctrl_c_keeps_what_was_trained() -> None:
    def stop(line: Any) -> None:
        if line.epoch == 3:
            raise KeyboardInterrupt

    result = rows(on_epoch=stop)
    assert result.interrupted
    assert result.best_epoch == 2
    assert result.entities is not None


@pytest.mark.parametrize(("step", "seed", "best"), [(1, 5, 4), (4, 5, 4), (7, 1, 2)])
def test_a_resumed_training_ends_with_the_same_rows(tmp_path: Path, step: int, seed: int, best: int) -> None:
    """Three steps an epoch: stopped in the middle of the first, and after a validation, which may be the best one."""
    whole = rows(seed=seed)
    assert whole.best_epoch == best

    class Stopping(PeriodicCheckpoints):
        def after(self, at: int, position: Any) -> bool:
            saved = super().after(at, position)
            if at == step:
                raise ConnectionError("the machine went away")
            return saved

    with pytest.raises(ConnectionError):
        rows(seed=seed, checkpoints=Stopping(tmp_path, 1))
    ge.shutdown()
    resumed = rows(seed=seed, checkpoints=PeriodicCheckpoints(tmp_path, 1, resume=True))
    assert torch.equal(resumed.entities, whole.entities)
    assert torch.equal(resumed.relations, whole.relations)
    assert resumed.best_epoch == whole.best_epoch
    assert [replace(a, seconds=0.0) for a in resumed.history] == [replace(a, seconds=0.0) for a in whole.history]


def collective(config: KGEConfig, graph: KnowledgeGraph) -> Any:
    ge.init(mode="collective")
    try:
        result = train_kge(graph, config, seed=3, num_threads=1)
        return result.entities, result.relations, [line.valid_mrr for line in result.history]
    finally:
        ge.shutdown()


@pytest.mark.dist
@pytest.mark.parametrize(("model", "rule"), [("transe", "adam"), ("complex", "row_adagrad")])
def test_two_ranks_take_the_steps_of_one(ranks: Ranks, model: str, rule: str) -> None:
    margin = 2.0 if model == "transe" else 0.0  # of a product's loss it has no effect
    config = TINY.replace(model=model, rule=rule, loss="softmax", margin=margin, n3=0.01, subsampling=True)
    alone = train_kge(ring(), config, seed=3, num_threads=1)
    (entities, relations, mrrs), other = ranks.run(collective, 2, config, ring())
    torch.testing.assert_close(entities, alone.entities, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(relations, alone.relations, rtol=1e-3, atol=1e-4)
    assert mrrs[1::2] == pytest.approx([line.valid_mrr for line in alone.history[1::2]], abs=1e-6)
    assert other[:2] == (None, None)


OVER_ALL = KGEConfig(
    model="complex", dim=8, training="1vsall", batch_size=8, epochs=4, valid_every=2, n3=0.01, reciprocal=True,
    label_smoothing=0.1, dropout=0.2, lr_decay="cosine", warmup=0.2,
)  # fmt: skip


@pytest.mark.dist
@pytest.mark.parametrize("training", ["1vsall", "kvsall"])
def test_two_ranks_take_the_steps_of_one_over_all_entities(ranks: Ranks, training: str) -> None:
    config = OVER_ALL.replace(training=training)
    alone = train_kge(ring(), config, seed=3, num_threads=1)
    (entities, relations, mrrs), _ = ranks.run(collective, 2, config, ring())
    torch.testing.assert_close(entities, alone.entities, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(relations, alone.relations, rtol=1e-4, atol=1e-5)
    assert mrrs[1::2] == pytest.approx([line.valid_mrr for line in alone.history[1::2]], abs=1e-6)


def served(transport: Any, config: KGEConfig) -> float | None:
    """The best validation's MRR of a training by trainers of servers, on the first one."""
    result = train_kge(ring(), config, seed=3, num_threads=1)
    scores = [line.valid_mrr for line in result.history if line.valid_mrr is not None]
    return max(scores, default=None)


@pytest.mark.dist
@pytest.mark.parametrize("training", ["1vsall", "kvsall"])
def test_trainers_of_servers_learn_over_all_entities(training: str) -> None:
    config = OVER_ALL.replace(training=training, epochs=40, valid_every=10, dropout=0.0, lr=0.3)
    first, other = Cluster(2).run(served, config)
    assert first > 0.5, "first rows have an MRR of .25"
    assert other is None


@pytest.mark.parametrize("change", [{"training": "kvsall"}, {"training": "1vsall"}, {"lr_decay": "plateau"}], ids=str)
def test_a_training_over_all_entities_resumes_with_the_same_rows(tmp_path: Path, change: dict[str, Any]) -> None:
    config = OVER_ALL.replace(**change, valid_every=1, patience=0)
    whole = train_kge(ring(), config, num_threads=1)

    class Stopping(PeriodicCheckpoints):
        def after(self, at: int, position: Any) -> bool:
            saved = super().after(at, position)
            if at == 7:
                raise ConnectionError("the machine went away")
            return saved

    with pytest.raises(ConnectionError):
        train_kge(ring(), config, num_threads=1, checkpoints=Stopping(tmp_path, 1))
    ge.shutdown()
    resumed = train_kge(ring(), config, num_threads=1, checkpoints=PeriodicCheckpoints(tmp_path, 1, resume=True))
    assert torch.equal(resumed.entities, whole.entities)
    assert torch.equal(resumed.relations, whole.relations)


def test_the_rate_takes_a_step_down_at_a_plateau(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.2, 0.5, 0.4, 0.5, 0.3, 0.6])

    class Found:
        def mrr(self) -> Any:
            return type("Value", (), {"realistic": next(scores)})

    monkeypatch.setattr(training, "rank_part_dealt", lambda *rest, **options: Found())
    config = OVER_ALL.replace(lr_decay="plateau", lr_factor=0.1, lr_patience=2, warmup=0.0, valid_every=1, epochs=6)
    rates = [line.lr for line in train_kge(ring(), config.replace(patience=0), num_threads=1).history]
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.01, 0.01, 0.01])


def test_a_plateau_without_a_validation_part_is_refused() -> None:
    graph = ring()
    without = replace(graph, parts={"train": graph.train})
    with pytest.raises(ConfigError, match="lr_decay='plateau' needs a validation part"):
        train_kge(without, OVER_ALL.replace(lr_decay="plateau", valid_every=1), num_threads=1)


def test_the_rate_rises_from_the_first_step_of_a_warm_up() -> None:
    config = OVER_ALL.replace(epochs=10, valid_every=0, lr_decay="linear", warmup=0.2)
    rates = [line.lr for line in train_kge(ring(), config, num_threads=1).history]  # of each epoch's next step
    assert rates[0] == pytest.approx(0.1 * 4 / 6), "three steps an epoch; the fourth of the six that warm up is next"
    assert rates[1] == pytest.approx(0.1)
    assert rates[-1] == 0.0


@pytest.mark.parametrize("training", ["1vsall", "kvsall"])
def test_entities_of_several_types_are_not_compared_with_all(training: str) -> None:
    typed = replace(ring(), entity_types={"a": 0, "b": 6})
    with pytest.raises(ge.ConfigError, match=f"training={training}: the entities of ring have types"):
        train_kge(typed, OVER_ALL.replace(training=training), num_threads=1)


def clock(transport: Any, config: KGEConfig, folder: Path | None = None) -> int:
    """Of this trainer after a training, which begins with the folder's checkpoint if there is one."""
    checkpoints = None if folder is None else PeriodicCheckpoints(folder, 1, resume=True)
    adam, made = training.OPTIMIZERS["adam"], []

    def kept(*tables: Any, **options: Any) -> Any:
        made.append(adam(*tables, **options))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(training.OPTIMIZERS, "adam", kept)
        train_kge(ring(), config, seed=3, num_threads=1, checkpoints=checkpoints)
    (clocks,) = {int(state["step"]) for state in made[0].state_dict()["state"].values()}
    return clocks


@pytest.mark.dist
def test_adam_counts_the_steps_of_all_trainers() -> None:
    """Three steps in each of three epochs: the trainers take five and four of them."""
    clocks = Cluster(2).run(clock, TINY.replace(epochs=3, valid_every=0))
    assert clocks == [2 * 5, 2 * 4 + 1]


@pytest.mark.dist
def test_adam_goes_on_counting_with_more_trainers(tmp_path: Path) -> None:
    config = TINY.replace(valid_every=0)
    assert Cluster(2).run(clock, config.replace(epochs=2), tmp_path) == [2 * 3, 2 * 3 + 1]
    clocks = Cluster(3).run(clock, config.replace(epochs=3), tmp_path)
    assert [value % 3 for value in clocks] == [0, 1, 2], "each stands at its own turn"
    assert min(clocks) >= 9, "nobody counts again"


def judged(transport: Any, config: KGEConfig, graph: KnowledgeGraph, seeds: range) -> list[float]:
    """Test MRR of a training with each seed; none on ranks that have no rows."""
    found = []
    for seed in seeds:
        result = train_kge(graph, config, seed=seed, num_threads=1)
        if result.entities is not None and result.relations is not None:
            ranks = rank_part(result.model.scorer, result.entities, result.relations, graph, "test")
            found.append(ranks.mrr().realistic)
    return found


def judged_collective(config: KGEConfig, graph: KnowledgeGraph, seeds: range) -> list[float]:
    transport = ge.init(mode="collective")
    try:
        return judged(transport, config, graph, seeds)
    finally:
        ge.shutdown()


@pytest.mark.dist
@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("model", ["complex", "transe"])
def test_umls_is_learnt_as_well_in_every_mode(model: str, ranks: Ranks, shared_data: Path) -> None:
    """One std of the test MRR over seeds in local mode bounds the difference of the modes. Ranks in lockstep take the
    local steps, seed by seed; trainers of servers take turns as they come, so that their mean over the seeds is judged.
    """
    graph, seeds = knowledge_graph(load_dataset("umls", shared_data)), range(16)
    config = umls_config(model).replace(batch_size=128, epochs=4, valid_every=0)
    local = judged(ge.init(mode="local"), config, graph, seeds)
    ge.shutdown()
    spread = float(np.std(local, ddof=1))
    together = ranks.run(judged_collective, 2, config, graph, seeds[:2])[0]
    assert together == pytest.approx(local[:2], abs=spread)
    try:
        served = Cluster(trainers=2).run(judged, config, graph, seeds)[0]
    finally:
        close_idle()
    assert np.mean(served) == pytest.approx(np.mean(local), abs=spread)


def test_best_rows_that_cannot_be_written_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They went to ``.best.safetensors.<pid>.tmp``, which no later run knew: a kill or a full disk left it for good."""
    import safetensors.torch

    best, rows = BestRows(tmp_path), (torch.zeros(2, 3), torch.zeros(1, 3))
    best.add(0.1, 1, rows)

    def full(tensors: object, filename: Path, metadata: object) -> None:
        filename.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        best.add(0.2, 2, rows)
    assert [file.name for file in tmp_path.iterdir()] == [BEST_FILE]
    again = BestRows(tmp_path)
    again.resume({"epoch": 1, "since": 0})
    assert again.mrr == 0.1


def test_what_is_local_needs_parts() -> None:
    with pytest.raises(ge.ConfigError, match=r"parallel\.negatives = 'local' needs parts"):
        train_kge(two_rings()[0], TINY.replace(negative_scope="local", valid_every=0))
    with pytest.raises(ge.ConfigError, match=r"parallel\.triples = 'local' needs parts"):
        train_kge(two_rings()[0], TINY.replace(triple_scope="local", valid_every=0))
    typed = replace(two_rings()[0], entity_types={"a": 0, "b": 12})
    with pytest.raises(ge.ConfigError, match="follow the types of its entities; take global"):
        train_kge(typed, TINY.replace(negative_scope="local", valid_every=0), part_policy=two_rings()[1])


def rows_by_parts(mode: str) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Rows trained over a partition, in local mode without it; in the order of the graph."""
    graph, parts = two_rings()
    policy = None if mode == "local" else parts
    transport: Any = ge.init(mode=mode)
    try:
        result = train_kge(graph, TINY.replace(valid_every=0, rule="sgd", lr=0.1), part_policy=policy, num_threads=1)
        return None if transport.rank else (result.entities, result.relations)
    finally:
        ge.shutdown()


def test_rows_over_a_partition_are_those_of_the_graphs_entities() -> None:
    graph, policy = two_rings()
    still = TINY.replace(valid_every=0, rule="sgd", lr=1e-30)
    plain, cut = train_kge(graph, still), train_kge(graph, still, part_policy=policy)
    assert plain.entities is not None
    assert cut.entities is not None
    assert torch.equal(cut.entities, plain.entities)
    assert not torch.equal(cut.model.entity.weight[:], plain.entities), "the table itself is in partition order"


@pytest.mark.dist
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_partition_trains_the_steps_of_one_process_at_any_number_of_ranks(ranks: Ranks, world_size: int) -> None:
    alone, found = rows_by_parts("local"), ranks.run(rows_by_parts, world_size, "collective")[0]
    for ours, theirs in zip(found, alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
