"""Tables on a GPU hold the rows of tables on the CPU: every rule, kind of table, cache and option of a look-up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.composed import KINDS
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.training import train_kge
from graph_emb.optimizer import OPTIMIZERS
from graph_emb.table.placement import POLICIES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.usefixtures("fresh_mode"),
]

N, D = 600, 16
LEVELS = np.stack([np.arange(N) // 150, np.arange(N) // 25], axis=1)


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        ids = torch.randint(0, N, (80,), generator=generator)
        yield torch.cat([ids, ids[:20]]), torch.randn(100, D, generator=generator)


def trained(emb: Any, rule: str, device: str, **options: Any) -> dict[str, Tensor]:
    """Rows and state after a few steps on one device, brought to the CPU."""
    opt = OPTIMIZERS[rule]([emb], lr=0.05, **options)
    for ids, wanted in batches():
        rows = emb(ids, device=device)
        assert rows.device.type == device
        (rows.float() - wanted.to(device)).square().sum().backward()
        opt.step()
    tables = getattr(emb, "tables", [emb])
    found = {"rows": emb.weight[:].cpu()}
    for number, table in enumerate(tables):
        for name, state in getattr(table, "optm_state", {}).items():
            found[f"{number}.{name}"] = (state if isinstance(state, Tensor) else state[:]).cpu()
    return found


def assert_alike(on_gpu: dict[str, Tensor], on_cpu: dict[str, Tensor], rtol: float = 1e-4) -> None:
    assert on_gpu.keys() == on_cpu.keys()
    for name, expected in on_cpu.items():
        scale = max(1.0, float(expected.float().abs().max()))
        torch.testing.assert_close(on_gpu[name], expected, rtol=rtol, atol=0.1 * rtol * scale)


def pair(**options: Any) -> list[ge.DistEmbedding]:
    first = ge.initializers.Uniform(seed=3)
    return [ge.DistEmbedding(N, D, init_func=first, device=device, **options) for device in ("cuda", "cpu")]


@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_every_rule_trains_as_on_the_cpu(rule: str) -> None:
    on_gpu, on_cpu = pair()
    found = trained(on_gpu, rule, "cuda")
    assert on_gpu.shard.weight.is_cuda
    assert_alike(found, trained(on_cpu, rule, "cpu"))


def test_the_word_device_lays_rows_and_state_on_the_gpu() -> None:
    first = ge.initializers.Uniform(seed=3)
    by_word = ge.DistEmbedding(N, D, init_func=first, placement="device")
    found = trained(by_word, "adagrad", "cuda")
    assert by_word.shard.weight.is_cuda
    assert by_word.shard.state["sum"].is_cuda
    expected = trained(ge.DistEmbedding(N, D, init_func=first, device="cuda"), "adagrad", "cuda")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_rows_of_other_types_train_as_on_the_cpu(dtype: torch.dtype) -> None:
    on_gpu, on_cpu = pair(dtype=dtype)
    rtol = {torch.float64: 1e-9, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    assert_alike(trained(on_gpu, "adagrad", "cuda"), trained(on_cpu, "adagrad", "cpu"), rtol)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rule", ["sgd", "adagrad", "adam", "row_adagrad"])
def test_a_cache_on_the_gpu_gives_the_rows_of_the_host(rule: str, policy: Any) -> None:
    first = ge.initializers.Uniform(seed=3)
    cache = ge.DeviceCache("10KiB", policy)  # fewer rows than a few steps touch
    on_gpu = ge.DistEmbedding(N, D, init_func=first, device="cuda", placement=cache)
    found = trained(on_gpu, rule, "cuda")
    assert on_gpu.cache_stats().dirty_writes > 0
    assert_alike(found, trained(ge.DistEmbedding(N, D, init_func=first), rule, "cpu"))


@pytest.mark.parametrize("kind", KINDS)
def test_composed_rows_train_as_on_the_cpu(kind: str) -> None:
    options = {} if kind in ("position", "full") else {"num_buckets": 40}
    made = [
        ge.ComposedEmbedding(LEVELS, D, kind, name=f"t-{device}", seed=3, device=device, **options)
        for device in ("cuda", "cpu")
    ]
    assert_alike(trained(made[0], "adagrad", "cuda"), trained(made[1], "adagrad", "cpu"))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_are_summed_as_on_the_cpu(mode: Any) -> None:
    on_gpu, on_cpu = pair()
    found = []
    for emb, device in ((on_gpu, "cuda"), (on_cpu, "cpu")):
        opt = ge.SparseRowAdagrad([emb], lr=0.05)
        for ids, _ in batches():
            sums = emb.bag(ids, torch.arange(0, 100, 5), mode=mode, device=device)
            sums.square().sum().backward()
            opt.step()
        found.append({"rows": emb.weight[:].cpu()})
    assert_alike(found[0], found[1])


def test_a_network_on_the_gpu_trains_rows_in_host_memory() -> None:
    on_gpu, on_cpu = pair()
    in_host = ge.DistEmbedding(N, D, init_func=ge.initializers.Uniform(seed=3))
    expected = trained(on_cpu, "adam", "cpu")
    assert_alike(trained(in_host, "adam", "cuda"), expected)
    assert not in_host.shard.weight.is_cuda
    assert_alike(trained(on_gpu, "adam", "cuda"), expected)


OPTIONS: dict[str, dict[str, Any]] = {
    "maximize": {"maximize": True},
    "values": {"clip_value": 0.1},
    "norms": {"clip_row_norm": 0.5},
    "ratios": {"clip_row_ratio": 0.5},
    "l2": {"weight_decay": 0.1},
    "decoupled": {"weight_decay": 0.1, "weight_decay_mode": "decoupled"},
    "lazy": {"weight_decay": 0.1, "weight_decay_mode": "lazy"},
    "lengths": {"max_norm": 0.5},
    "counts": {"count_rows": True, "count_power": 0.5},
    "falling": {"lr_decay": 0.01},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options_of_an_update_hold_on_the_gpu(options: str) -> None:
    on_gpu, on_cpu = pair()
    found = trained(on_gpu, "adagrad", "cuda", **OPTIONS[options])
    assert_alike(found, trained(on_cpu, "adagrad", "cpu", **OPTIONS[options]))


def test_rounding_by_chance_draws_the_same_on_the_gpu() -> None:
    on_gpu, on_cpu = pair(dtype=torch.bfloat16)
    options = {"stochastic_rounding": True, "state_dtype": torch.bfloat16}
    assert_alike(trained(on_gpu, "adam", "cuda", **options), trained(on_cpu, "adam", "cpu", **options), 2e-2)


def test_a_checkpoint_of_a_gpu_loads_on_the_cpu_and_back(tmp_path: Path) -> None:
    for source, target in (("cuda", "cpu"), ("cpu", "cuda")):
        folder, first = tmp_path / source, ge.initializers.Uniform(seed=3)
        emb = ge.DistEmbedding(N, D, "t", first, device=source)
        opt = ge.SparseAdam([emb], lr=0.05)
        for ids, _ in batches():
            emb(ids, device=source).sum().backward()
            opt.step()
        before = {"rows": emb.weight[:].cpu(), **{name: state[:].cpu() for name, state in emb.optm_state.items()}}
        ge.save_checkpoint(folder, tables=[emb], optimizers=[opt])
        ge.shutdown()
        again = ge.DistEmbedding(N, D, "t", device=target)
        own = ge.SparseAdam([again], lr=0.05)
        ge.load_checkpoint(folder, tables=[again], optimizers=[own])
        assert again.shard.weight.device.type == target
        after = {"rows": again.weight[:].cpu(), **{name: state[:].cpu() for name, state in again.optm_state.items()}}
        assert before.keys() == after.keys()
        assert all(torch.equal(after[name], before[name]) for name in before)
        ge.shutdown()


def ring() -> KnowledgeGraph:
    steps = np.array([(head, kind, (head + kind + 1) % N) for head in range(N) for kind in (0, 1)])
    return KnowledgeGraph("ring", N, 2, {"train": steps})


@pytest.mark.parametrize("placement", ["device", ge.DeviceCache("20KiB", "lookahead")], ids=["device", "cache"])
def test_entities_placed_on_the_gpu_train_as_on_the_cpu(placement: Any) -> None:
    config = KGEConfig(
        model="distmult", dim=D, num_negatives=8, chunk_size=8, batch_size=64, epochs=2, valid_every=0, rule="adagrad"
    )
    device = None if placement == "device" else "cuda"
    on_gpu = train_kge(ring(), config, placement=placement, device=device)
    on_cpu = train_kge(ring(), config)
    assert on_gpu.model.device.type == "cuda"
    assert all(table.shard.weight.is_cuda for table in on_gpu.model.tables)  # type: ignore[union-attr]
    for found, expected in ((on_gpu.entities, on_cpu.entities), (on_gpu.relations, on_cpu.relations)):
        assert found is not None
        assert expected is not None
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-4)


def test_runs_place_their_rows_on_the_gpu(tmp_path: Path) -> None:
    lines = [f"a{h}\tr{r}\ta{t}\n" for h, r, t in ring().parts["train"].tolist()]
    for part, own in {"train": lines, "valid": lines[:20], "test": lines[20:40]}.items():
        (tmp_path / f"{part}.txt").write_text("".join(own), encoding="utf-8")
    options: dict[str, Any] = {"dim": D, "num_negatives": 8, "chunk_size": 8, "batch_size": 64, "epochs": 2}
    found = []
    for place in ({}, {"placement": "device"}, {"placement": "device-cache", "memory": "20KiB"}):
        train = {"device": "cuda", **place} if place else {}
        run = ge.pipeline("distmult", tmp_path, evaluate=False, train=train, **options)
        assert run.embeddings is not None
        found.append(torch.from_numpy(run.embeddings.weights))
        ge.shutdown()
    for on_gpu in found[1:]:
        torch.testing.assert_close(on_gpu, found[0], rtol=1e-3, atol=1e-4)
