"""Bags of rows: the numbers of torch.nn.EmbeddingBag, forward, back and after a step, in every mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError, PartitionError, ShapeError
from graph_emb.optim import apply as apply_module
from graph_emb.table.bags import Bags
from tests.ranks import Ranks
from tests.transport.kvstore.cluster import Cluster

pytestmark = pytest.mark.usefixtures("fresh_mode", "idle_servers")

ROWS, DIM = 30, 4


def table(name: str = "t", dtype: torch.dtype = torch.float64) -> ge.DistEmbedding:
    return ge.DistEmbedding(ROWS, DIM, name, ge.initializers.Uniform(-1, 1, seed=1), dtype=dtype)


def bags(rank: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Bags of 0 to 7 ids with repeats inside and across; the first, a middle one and the last are empty."""
    gen = torch.Generator().manual_seed(rank)
    sizes = torch.randint(0, 8, (9,), generator=gen)
    sizes[[0, 4, 8]] = 0
    ids = torch.randint(0, ROWS, (int(sizes.sum()),), generator=gen)
    return ids, sizes.cumsum(0) - sizes, torch.randn(len(ids), generator=gen, dtype=torch.float64)


@pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("mean", False), ("sum", True)])
def test_values_and_gradients_are_torchs(mode: str, weighted: bool) -> None:
    """FBGEMM's CPU path ignores the weights without pooling, and its means make gradients too large by the length."""
    emb = table()
    peer = torch.nn.EmbeddingBag(ROWS, DIM, mode=mode, dtype=torch.float64)
    peer.weight.data.copy_(emb.weight[:])
    ids, offsets, factors = bags()
    weights = [factors.clone().requires_grad_() if weighted else None for _ in range(2)]
    ours, theirs = emb.bag(ids, offsets, mode, weights[0]), peer(ids, offsets, weights[1])
    assert torch.equal(ours, theirs)
    assert not ours[[0, 4, 8]].any()
    grad = torch.randn(9, DIM, dtype=torch.float64)
    ours.backward(grad)
    theirs.backward(grad)
    if weighted:
        torch.testing.assert_close(weights[0].grad, weights[1].grad, rtol=1e-12, atol=1e-14)
    ge.SparseSGD([emb], lr=1.0).step()
    torch.testing.assert_close(emb.weight[:], peer.weight - peer.weight.grad, rtol=1e-12, atol=1e-13)


def test_bags_of_one_size_need_no_offsets() -> None:
    emb = table()
    ids = torch.tensor([[1, 2, 2], [0, 0, 7]], dtype=torch.int32)
    torch.testing.assert_close(emb.bag(ids, mode="mean"), emb(ids).mean(dim=1))
    factors = torch.tensor([[1.0, 0.5, 0.0], [2.0, -1.0, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(emb.bag(ids, None, "sum", factors), (emb(ids) * factors.unsqueeze(2)).sum(dim=1))


def test_bags_of_nothing() -> None:
    emb = table()
    none = torch.empty(0, dtype=torch.int64)
    assert emb.bag(none, torch.zeros(3, dtype=torch.int64)).tolist() == [[0.0] * DIM] * 3
    assert emb.bag(none, none).shape == (0, DIM)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_types(dtype: torch.dtype) -> None:
    emb = table(dtype=dtype)
    ids, offsets, factors = bags()
    found = emb.bag(ids, offsets, "sum", factors)
    exact = (emb(ids).double() * factors.unsqueeze(1)).split(
        torch.cat([offsets, torch.tensor([len(ids)])]).diff().tolist()
    )
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), torch.stack([part.sum(dim=0) for part in exact]), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_over_many_occurrences_are_float32(dtype: torch.dtype) -> None:
    """Summed in bfloat16, a thousand ones are 256."""
    emb = ge.DistEmbedding(2, 1, "ones", ge.initializers.FromArray(torch.ones(2, 1)), dtype=dtype)
    ids = torch.ones(1000, dtype=torch.int64)
    rows = emb.bag(ids, torch.tensor([0]))
    assert (rows.dtype, rows.item()) == (dtype, 1000.0)
    rows.backward(torch.ones_like(rows))
    assert emb.sparse_grad().to_dense().flatten().tolist() == [0.0, 1000.0]
    emb.clear_gradients()
    emb(ids).sum().backward()
    assert emb.sparse_grad().to_dense().flatten().tolist() == [0.0, 1000.0]


def as_rows(emb: ge.DistEmbedding, ids: Tensor, offsets: Tensor, mode: str, factors: Tensor | None) -> Tensor:
    """The bags from one row for each id."""
    rows = emb(ids) if factors is None else emb(ids) * factors.to(emb.dtype).unsqueeze(1)
    parts = rows.split(torch.cat([offsets, torch.tensor([len(ids)])]).diff().tolist())
    return torch.stack([part.mean(dim=0) if mode == "mean" and len(part) else part.sum(dim=0) for part in parts])


KINDS: dict[str, dict[str, Any]] = {
    "SparseSGD": {"momentum": 0.5, "max_norm": 1.0},
    "SparseAdagrad": {"weight_decay": 0.1},
    "SparseRowAdagrad": {},
    "SparseAdam": {"merge": "mean"},
    "SparseRowAdam": {"maximize": True},
    "SparseLAMB": {"clip_row_norm": 0.5},
    "SparseLARS": {"eta": 0.1},
}
PRESETS = [("SparseAdagrad", {"compat": "dgl-0.5"})]


@pytest.mark.parametrize(("kind", "options"), [*KINDS.items(), *PRESETS], ids=[*KINDS, "each occurrence"])
@pytest.mark.parametrize("mode", ["sum", "mean", "weighted"])
def test_steps_are_those_of_a_row_for_each_id(kind: str, options: dict[str, Any], mode: str) -> None:
    """20 steps in float32, merged from the bags, against float64 rows; some rows are frozen, some enter late."""
    found = []
    for dtype, bagged in ((torch.float32, True), (torch.float64, False)):
        emb = table(f"{kind} {dtype}", dtype)
        emb.freeze(torch.tensor([3, 8]))
        opt = getattr(ge, kind)([emb], **{"lr": 0.05, **options})
        for step in range(20):
            ids, offsets, factors = bags(step)
            ids = ids % (ROWS if step > 10 else 20)
            weights = factors.to(dtype) if mode == "weighted" else None
            take = emb.bag if bagged else lambda *given, emb=emb: as_rows(emb, *given)
            pooled = take(ids, offsets, "mean" if mode == "mean" else "sum", weights)
            pooled.backward(torch.linspace(-1, 2, pooled.numel(), dtype=dtype).view(pooled.shape))
            opt.step()
        found.append(emb.weight[:].double())
    assert (found[0] - table("first").weight[:]).abs().amax(dim=1).gt(1e-3).sum() == ROWS - 2
    torch.testing.assert_close(found[0], found[1], rtol=2e-4, atol=2e-5)


def test_a_gradient_of_bags_counts_as_one_of_each_id() -> None:
    emb = table()
    emb.bag(torch.tensor([1, 2, 1]), torch.tensor([0, 2]), "mean").backward(torch.ones(2, DIM, dtype=torch.float64))
    ((ids, grads),) = emb.pending()
    assert (ids.tolist(), grads[:, 0].tolist()) == ([1, 2, 1], [0.5, 0.5, 1.0])
    emb.scale_gradients(2.0)
    assert emb.sparse_grad().coalesce().values()[:, 0].tolist() == [3.0, 1.0]
    emb.bag(torch.tensor([2]), torch.tensor([0])).sum().backward()
    emb(torch.tensor([2])).sum().backward()
    assert emb.sparse_grad().coalesce().values()[:, 0].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("drops", [False, True])
def test_a_step_finds_repeated_ids_once(monkeypatch: pytest.MonkeyPatch, drops: bool) -> None:
    found = []
    for once in (False, True):
        emb = ge.DistEmbedding(ROWS, 2, f"{once}", ge.initializers.Uniform(seed=1), bounds="drop" if drops else "raise")
        opt = ge.SparseAdagrad([emb], lr=0.1)
        ids, offsets, _ = bags()
        ids[2] = -1 if drops else 2
        pooled = emb.bag(ids, offsets)
        if once:
            monkeypatch.setattr(apply_module, "group_each", list)  # of no ids; others would be no groups
        pooled.backward(torch.linspace(-1, 2, pooled.numel()).view(pooled.shape))
        opt.step()
        kept = ids[ids >= 0]
        assert (emb.traffic.asked, emb.traffic.distinct) == (len(kept), len(kept.unique()))
        with torch.no_grad():
            emb.bag(ids, offsets)  # no groups: nothing comes back
        assert emb.traffic.distinct == 2 * len(kept.unique())
        found.append(emb.weight[:])
    assert torch.equal(*found)


def test_ids_outside_count_in_a_mean_and_are_zeros() -> None:
    emb = ge.DistEmbedding(3, 1, "drops", ge.initializers.FromArray(torch.ones(3, 1)), bounds="drop")
    weights = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    ids, offsets = torch.tensor([0, 3, -1]), torch.tensor([0, 2])
    pooled = emb.bag(ids, offsets, "mean")
    assert (pooled.tolist(), emb.dropped) == ([[0.5], [0.0]], 2)
    pooled.sum().backward()
    assert emb.sparse_grad().to_dense().flatten().tolist() == [0.5, 0.0, 0.0]
    emb.bag(ids, offsets, "sum", weights).sum().backward()
    assert weights.grad.tolist() == [1.0, 0.0, 0.0]
    assert ids.tolist() == [0, 3, -1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_torch_form_of_sums_is_the_compiled_one(dtype: torch.dtype) -> None:
    """Devices take it."""
    ids, offsets, factors = bags()
    ids[2] = -1
    rows = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1)).to(dtype)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    starts = torch.cat([offsets, torch.tensor([len(ids)])])
    for made in (Bags(ids, starts, None, True), Bags(ids, starts, factors.to(wide), False)):
        found = made.sums(rows, ids)
        assert found.dtype == wide
        torch.testing.assert_close(made._sums_by_torch(rows.to(wide), ids), found)


MODES: list[tuple[str, dict[str, Any]]] = [
    ("SparseAdagrad", {}),
    ("SparseAdam", {"merge": "mean"}),
    ("SparseAdagrad", {"compat": "dgl-0.5"}),
]


def train(ranks_played: list[int], num_ranks: int) -> list[Tensor]:
    """Weights after steps on sums, weighted sums and means, every id at one rank."""
    found = []
    for kind, options in MODES:
        emb = table(f"{kind} {options}")
        opt = getattr(ge, kind)([emb], lr=0.1, **options)
        for step in range(3):
            for rank in ranks_played:
                ids, offsets, factors = bags(10 * step + rank)
                ids = ids // num_ranks * num_ranks % ROWS + rank
                emb.bag(ids, offsets, "sum", factors).square().sum().backward()
                emb.bag(ids, offsets, "mean").square().sum().backward()
            opt.step()
        emb.transport.flush()
        emb.transport.barrier()
        found.append(emb.weight[:])
    return found


def train_on_a_rank(num_ranks: int) -> list[Tensor]:
    transport = ge.init(mode="collective", timeout=60)
    try:
        return train([transport.rank], num_ranks)
    finally:
        ge.shutdown()


def train_as_a_trainer(transport: Any) -> list[Tensor]:
    return train([transport.rank], transport.world_size)


@pytest.mark.dist
def test_every_mode_trains_bags_bit_for_bit(ranks: Ranks) -> None:
    expected = train([0, 1], 2)
    ge.shutdown()
    ge.init("kvstore")  # alone
    alone = train([0, 1], 2)
    ge.shutdown()
    others = [*ranks.run(train_on_a_rank, 2, 2), *Cluster(trainers=2, machines=1, servers=2).run(train_as_a_trainer)]
    for found in [alone, *others]:
        for mine, theirs in zip(found, expected, strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1, 2],), ShapeError, r"\(B,\) needs offsets"),
        (([[1, 2]], [0]), ShapeError, r"\(bags, n\) none"),
        (([1, 2], [1]), ShapeError, "ascend from 0 to at most 2"),
        (([1, 2], [0, 2, 1]), ShapeError, "ascend from 0"),
        (([1, 2], [0, 3]), ShapeError, "at most 2"),
        (([1, 2], [0.0]), ShapeError, "must be integers"),
        (([1, 2], []), ShapeError, "integers|no bag"),
        (([1, ROWS], [0]), PartitionError, f"id {ROWS} is outside"),
        (([1, 2], [0], "max"), ConfigError, "unknown mode 'max'"),
        (([1, 2], [0], "mean", [1.0, 1.0]), ConfigError, "for mode='sum'"),
        (([1, 2], [0], "sum", [1.0]), ShapeError, "a floating factor for each of 2 ids"),
        (([1, 2], [0], "sum", [1, 2]), ShapeError, "a floating factor"),
    ],
)
def test_what_is_no_bag_is_refused(arguments: tuple[Any, ...], error: type, message: str) -> None:
    emb = table()
    given = [torch.tensor(value) if isinstance(value, list) else value for value in arguments]
    with pytest.raises(error, match=message):
        emb.bag(*given)
