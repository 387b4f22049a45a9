"""A growing table equals a dict over random programs, for every rule, and says no to what it cannot do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.core.errors import ConfigError, ModeError, PartitionError, ShapeError
from graph_emb.graph.csr import Graph
from graph_emb.graph.original_ids import ArrayIds
from graph_emb.graph.partition_book import RangeBook
from graph_emb.table.growth import Growth
from partition.partitioned import PartPolicy
from tests.growing_oracle import IDS, INIT, Oracle
from tests.transport.test_collective import OPTIMIZERS

pytestmark = pytest.mark.usefixtures("local_mode")

POLICIES: dict[str, dict[str, Any]] = {
    "all stay": {},
    "admission": {"admission": ge.SeenAtLeast(3)},
    "candidates are forgotten": {"admission": ge.SeenAtLeast(2, candidate_steps=3)},
    "few candidates": {"admission": ge.SeenAtLeast(3, candidate_steps=5, max_candidates=3)},
    "unused": {"eviction": ge.Unused(4)},
    "unused, few at once": {"eviction": ge.Unused(2, every=3, per_pass=2, floor=3)},
    "unused, at most": {"eviction": ge.Unused(4, every=2, max_rows=6, low_water=0.7)},
    "least recent": {"eviction": ge.LeastRecent(max_rows=7, low_water=0.6)},
    "least used": {"eviction": ge.LeastUsed(max_rows=6, half_life=4), "admission": ge.SeenAtLeast(2)},
    "occurrences": {
        "admission": ge.SeenAtLeast(5, count="occurrences"),
        "eviction": ge.LeastUsed(max_rows=5, half_life=4, count="occurrences"),
    },
    "small norm": {"eviction": ge.SmallNorm(threshold=1.3, every=2)},
    "smallest norms": {"eviction": ge.SmallNorm(max_rows=8, low_water=0.9)},
}
KNOWN = PartPolicy("node~_N", RangeBook([0, 2, 5]), ArrayIds(np.array([4, 2, 0, 1, 3]), 5))


def table(name: str, dim: int, dtype: torch.dtype, **policies: Any) -> ge.DistEmbedding:
    return ge.DistEmbedding(ge.growing(max_rows=len(IDS)), dim, name, INIT, dtype=dtype, **policies)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_random_programs_equal_a_dict(kind: str, policy: str, tmp_path: Path) -> None:
    seed = list(OPTIMIZERS).index(kind) * 100 + list(POLICIES).index(policy)
    rng = np.random.default_rng(seed)
    dtype = torch.float32 if seed % 2 else torch.float64
    owners = [None, ge.HashPolicy(3), KNOWN][seed % 3]

    def fresh() -> tuple[ge.DistEmbedding, ge.SparseOptimizer]:
        emb = table("growing", 3, dtype, part_policy=owners, **POLICIES[policy])
        return emb, getattr(ge, OPTIMIZERS[kind][0])([emb], **OPTIMIZERS[kind][1])

    emb, opt = fresh()
    saved: Path | None = None
    oracle = Oracle(Growth(len(IDS), **POLICIES[policy]), 3, OPTIMIZERS[kind], dtype)
    for turn in range(14):
        ids = [IDS[k] for k in rng.zipf(1.6, rng.integers(0, 9)) % len(IDS)]
        grads = torch.from_numpy(rng.normal(size=(len(ids), 3))).to(dtype)
        match 3 if turn == 7 else rng.integers(0, 9):
            case 0:
                emb.grow(ids)
                oracle.grow(ids)
            case 1 if emb.spec.growth is not None and emb.spec.growth.eviction:
                assert emb.evict().tolist() == oracle.evict()
            case 2:
                rows, slots = emb.lookup(ids)
                assert torch.equal(rows, oracle.read(ids))
                opt.apply_gradients([(grads, slots)])
                assert emb.shard.evicted.tolist() == oracle.push(ids, grads)
                del rows, slots
            case 3:  # a new table of the name goes on with what the old one left on disk, whole or as a delta
                base = saved if turn % 2 else None
                saved = ge.save_checkpoint(tmp_path / str(turn), tables=[emb], optimizers=[opt], base=base)
                del emb, opt
                emb, opt = fresh()
                assert emb.num_rows == 0
                ge.load_checkpoint(saved, tables=[emb], optimizers=[opt])
            case _:
                emb(torch.tensor(ids, dtype=torch.int64)).backward(grads)
                opt.step()
                assert emb.shard.evicted.tolist() == oracle.push(ids, grads)
        assert emb.ids().tolist() == sorted(oracle.uses)
        assert torch.equal(emb.weight[IDS], oracle.read(IDS))
        waiting = zip(*(column.tolist() for column in emb.shard.candidates().values()), strict=True)
        assert list(waiting) == sorted((id, *told) for id, told in oracle.waiting.items())
        check_state(emb, oracle)


def check_state(emb: ge.DistEmbedding, oracle: Oracle) -> None:
    for piece, rows in emb.optm_state.items():
        expected = oracle.rows.optm_state[piece]
        if isinstance(rows, torch.Tensor):
            assert torch.equal(rows, expected)  # the table's clock
        elif piece != "last":
            assert torch.equal(rows[IDS], expected[list(range(len(IDS)))])


def test_reading_makes_no_row() -> None:
    emb = table("growing", 2, torch.float32)
    first = emb(torch.tensor(IDS))
    emb.prefetch(torch.tensor(IDS))
    emb.bag([IDS[:4]])
    assert emb.contains(IDS).tolist() == [False] * len(IDS)
    assert emb.num_rows == 0
    fixed = ge.DistEmbedding(len(IDS), 2, "fixed", INIT, original_ids=ArrayIds(np.array(IDS), len(IDS)))
    assert torch.equal(first, fixed.weight[list(range(len(IDS)))])


def test_slots_of_an_id_without_a_row_reach_the_row_that_it_has_got_since() -> None:
    """``lookup`` told that there is no place; the step made a second row of the id and left the first one behind."""
    emb = table("growing", 1, torch.float32)
    opt = ge.SparseSGD([emb], lr=1.0)
    _, slots = emb.lookup([5, 7])
    emb.grow([5], torch.tensor([[10.0]]))
    opt.apply_gradients([(torch.tensor([[1.0], [2.0]]), slots)])
    assert emb.weight[[5]].tolist() == [[9.0]]
    assert emb.ids().tolist() == [5, 7]


def test_ids_that_are_read_again_have_the_rows_that_they_have_got_since() -> None:
    """The second look-up was answered by what the first one had found, and told first values."""
    emb = table("growing", 1, torch.float32)
    first = emb.weight[[5, 7]]
    emb.weight[[7]] = torch.tensor([[10.0]])
    assert emb.weight[[5, 7]].tolist() == [*first[:1].tolist(), [10.0]]


def test_look_ups_that_an_update_recalls_are_those_of_its_ids() -> None:
    """Two look-ups, one of them never back-propagated, a growth and an eviction lie before the step."""
    emb = table("growing", 1, torch.float32, eviction=ge.Unused(1, every=100))
    opt = ge.SparseSGD([emb], lr=1.0)
    opt.update([1, 2, 3], torch.zeros(3, 1), emb)
    opt.update([3], torch.zeros(1, 1), emb)
    opt.update([3], torch.zeros(1, 1), emb)
    before = emb.weight[[1, 2, 3, 5]]
    emb(torch.tensor([9, 9, 9]))
    rows = emb(torch.tensor([2, 1])), emb(torch.tensor([5, 3, 1]))
    emb.grow([5])
    assert emb.evict().tolist() == [1, 2]
    torch.cat(rows).backward(torch.tensor([[1.0], [10.0], [100.0], [1000.0], [10000.0]]))
    opt.step()
    assert emb.ids().tolist() == [1, 2, 3, 5]
    assert (before - emb.weight[[1, 2, 3, 5]]).flatten().tolist() == pytest.approx([10010, 1, 1000, 100])


@pytest.mark.parametrize("missing", ["zeros", "error"])
def test_what_an_id_without_a_row_reads_as_is_a_choice_and_its_row_begins_with_its_first_value(missing: Any) -> None:
    emb = ge.DistEmbedding(ge.growing(10, missing), 2, "growing", INIT)
    if missing == "zeros":
        assert emb.weight[[5, -5]].tolist() == [[0, 0], [0, 0]]
    else:
        with pytest.raises(PartitionError, match=r"table 'growing': id -5 has no row"):
            emb(torch.tensor([-5]))
    ge.SparseSGD([emb], lr=0.0).update([-5], torch.ones(1, 2), emb)
    assert torch.equal(emb.weight[[-5]], table("other", 2, torch.float32).weight[[-5]])


def test_a_candidates_gradient_in_the_middle_changes_exactly_the_others() -> None:
    emb = table("growing", 1, torch.float32, admission=ge.SeenAtLeast(2))
    emb.grow([1, 3], torch.zeros(2, 1))
    opt = ge.SparseSGD([emb], lr=1.0)
    opt.update([1, 2, 3], torch.tensor([[1.0], [10.0], [100.0]]), emb)
    assert emb.weight[[1, 3]].tolist() == [[-1], [-100]]
    assert emb.ids().tolist() == [1, 3]


def test_a_candidate_is_counted_anew_after_more_than_candidate_steps_without_a_use() -> None:
    emb = table("growing", 1, torch.float32, admission=ge.SeenAtLeast(2, candidate_steps=3))
    opt = ge.SparseSGD([emb], lr=1.0)
    for ids in ([1, 2], [5], [5], [1], [2]):  # 1 waits for three steps, 2 for four
        opt.update(ids, torch.ones(len(ids), 1), emb)
    assert emb.ids().tolist() == [1, 5]


def test_beyond_max_candidates_those_unused_for_longest_are_counted_anew() -> None:
    emb = table("growing", 1, torch.float32, admission=ge.SeenAtLeast(3, max_candidates=4))
    opt = ge.SparseSGD([emb], lr=1.0)
    for ids in ([1, 2, 3, 4], [1, 4], [5]):  # 2 and 3 leave, the lowest of which would do for the limit alone
        opt.update(ids, torch.ones(len(ids), 1), emb)
    assert emb.shard.candidates()["ids"].tolist() == [1, 4, 5]
    opt.update([1, 2], torch.ones(2, 1), emb)
    assert emb.ids().tolist() == [1]
    assert emb.shard.candidates()["uses"].tolist() == [1, 2, 1]


@pytest.mark.parametrize("bagged", [False, True])
def test_each_occurrence_in_a_batch_is_a_use_where_the_policy_says_so(bagged: bool) -> None:
    """``bag`` pulls each distinct id once, and so told of one use."""
    admission = ge.SeenAtLeast(3, count="occurrences")
    eviction = ge.LeastUsed(max_rows=2, low_water=0.5, count="occurrences", every=100)
    emb = table("growing", 1, torch.float32, admission=admission, eviction=eviction)
    opt = ge.SparseSGD([emb], lr=1.0)
    first = emb.weight[[1, 2, 3]]
    for ids in ([1, 2, 1, 1], [2, 2, 3], [1, 2, 3, 3, 3]):
        rows = emb.bag(torch.tensor([ids])) if bagged else emb(torch.tensor(ids))
        rows.sum().backward()
        opt.step()
    assert (first - emb.weight[[1, 2, 3]]).flatten().tolist() == pytest.approx([4, 3, 3])  # from the admission on
    at = emb.shard.in_order()
    assert emb.shard.column_at("growth.uses", at).tolist() == [4, 3, 3]
    assert emb.evict().tolist() == [2, 3]


def test_admission_and_eviction_count_each_in_its_way() -> None:
    eviction = ge.LeastUsed(max_rows=2, count="occurrences", every=100)
    emb = table("growing", 1, torch.float32, admission=ge.SeenAtLeast(2), eviction=eviction)
    opt = ge.SparseSGD([emb], lr=1.0)
    for ids in ([1, 1, 1], [1, 1]):
        opt.update(ids, torch.ones(len(ids), 1), emb)
        assert emb.shard.candidates()["uses"].tolist() == ([1] if len(ids) == 3 else [])
    assert emb.shard.column_at("growth.uses", emb.shard.in_order()).tolist() == [2]


def test_an_evicted_id_that_comes_back_begins_anew() -> None:
    emb = table("growing", 2, torch.float32, eviction=ge.Unused(1))
    opt = ge.SparseAdagrad([emb], lr=0.5)
    emb.grow([7], torch.full((1, 2), 9.0))
    for ids in ([7], [8], [8], [8]):
        opt.update(ids, torch.ones(1, 2), emb)
    assert emb.ids().tolist() == [8]
    opt.update([7], torch.ones(1, 2), emb)
    fresh = table("fresh", 2, torch.float32)
    again = ge.SparseAdagrad([fresh], lr=0.5)
    again.update([7], torch.ones(1, 2), fresh)
    assert torch.equal(emb.weight[[7]], fresh.weight[[7]])
    assert torch.equal(emb.optm_state["sum"][[7]], fresh.optm_state["sum"][[7]])


@pytest.mark.parametrize("tracked", [False, True])
def test_rows_that_come_and_go_leave_nothing_behind(tracked: bool) -> None:
    """The ids that had left were kept for ever, twice: 16 bytes each."""
    import psutil

    emb = ge.DistEmbedding(ge.growing(40_000), 1, "growing", eviction=ge.LeastRecent(max_rows=10_000, low_water=0.0))
    opt = ge.SparseSGD([emb], lr=1.0)
    if tracked:
        emb.shard.track("digest")
    ids = torch.arange(40_000)
    opt.update(ids, torch.ones(40_000, 1), emb)
    before = psutil.Process().memory_info().rss
    for _ in range(100):
        opt.update(ids, torch.ones(40_000, 1), emb)
    assert psutil.Process().memory_info().rss - before < 24 << 20
    assert emb.shard.evicted.tolist() == ids.tolist()
    assert len(emb.shard.gone()) == (40_000 if tracked else 0)
    opt.update([7], torch.ones(1, 1), emb)
    assert emb.shard.evicted.tolist() == []


def test_beyond_max_rows_those_unused_for_longest_leave_beside_those_that_are_unused_for_too_long() -> None:
    """Rows that leave anyhow do not count: 3 of 5 may stay, and of 4 that are left of 5 only one."""
    emb = table("growing", 1, torch.float32, eviction=ge.Unused(2, max_rows=3, low_water=0.4, every=100))
    opt = ge.SparseSGD([emb], lr=1.0)
    for ids in ([1, 2], [3], [4, 5], [5]):
        opt.update(ids, torch.ones(len(ids), 1), emb)
    assert emb.evict().tolist() == [1, 2]
    opt.update([6, 7], torch.ones(2, 1), emb)
    assert emb.evict().tolist() == [3, 4, 5, 6]
    assert emb.ids().tolist() == [7]


def test_frozen_rows_never_leave_or_change() -> None:
    emb = table("growing", 2, torch.float32, eviction=ge.Unused(1))
    opt = ge.SparseSGD([emb], lr=0.5)
    emb.freeze([7])
    before = emb.weight[[7]]
    for _ in range(4):
        opt.update([7, 8], torch.ones(2, 2), emb)
        opt.update([9], torch.ones(1, 2), emb)
        opt.update([9], torch.ones(1, 2), emb)
    assert emb.ids().tolist() == [7, 9]
    assert torch.equal(emb.weight[[7]], before)


def test_rows_beyond_max_rows_are_refused_and_nothing_changes() -> None:
    emb = ge.DistEmbedding(ge.growing(max_rows=2), 2, "small", INIT)
    opt = ge.SparseSGD([emb], lr=1.0)
    opt.update([1], torch.ones(1, 2), emb)
    before = emb.weight[[1, 2, 3]]
    with pytest.raises(ConfigError, match=r"table 'small': 2 new ids beside 1 rows exceed max_rows=2"):
        opt.update([1, 2, 3], torch.ones(3, 2), emb)
    assert torch.equal(emb.weight[[1, 2, 3]], before)
    assert emb.ids().tolist() == [1]


def test_pairs_may_be_zipped_and_a_gradient_is_a_tensor() -> None:
    """``zip``, as programs of mxRec and TensorFlow write it, was looked through twice, the second time empty."""
    emb = table("growing", 1, torch.float32)
    opt = ge.SparseSGD([emb], lr=1.0)
    rows, slots = emb.lookup([5, 7])
    before = rows.clone()
    opt.apply_gradients(zip([torch.ones_like(rows)], [slots], strict=True))
    assert torch.equal(emb.weight[[5, 7]], before - 1)
    for pairs in (None, [(torch.ones(2, 1), slots, 1)], [slots]):
        with pytest.raises(ConfigError, match=r"apply_gradients: pass pairs of gradients and slots"):
            opt.apply_gradients(pairs)  # type: ignore[arg-type]
    for wrong in (None, np.ones((2, 1), np.float32)):
        with pytest.raises(ConfigError, match="is no tensor; leave out tables without a gradient"):
            opt.apply_gradients([(wrong, slots)])  # type: ignore[list-item]


def test_slots_that_are_stale_forged_or_of_another_table_are_refused() -> None:
    emb = table("growing", 2, torch.float32, eviction=ge.Unused(1))
    other = table("other", 2, torch.float32)
    opt = ge.SparseSGD([emb], lr=1.0)
    emb.grow([1, 2])
    _, slots = emb.lookup([1, 2])
    _, strange = other.lookup([1, 2])
    grads = torch.ones(2, 2)
    before = emb.weight[[1, 2]]
    with pytest.raises(ConfigError, match=r"SparseSGD does not train GrowingEmbedding\('other'"):
        opt.apply_gradients([(grads, strange)])
    with pytest.raises(ConfigError, match=r"is no Slots"):
        opt.apply_gradients([(grads, torch.tensor([0, 1]))])  # type: ignore[list-item]
    with pytest.raises(ShapeError, match=r"expected \(2, 2\)"):
        opt.apply_gradients([(grads[:1], slots)])
    with pytest.raises(ConfigError, match=r"given twice"):
        opt.apply_gradients([(grads, slots), (grads, slots)])
    assert slots.places is not None
    for wrong in ([1, 0], [0, 2**40], [-2, 1]):
        slots.places[:] = wrong
        with pytest.raises(ConfigError, match=r"is not that of id"):
            opt.apply_gradients([(grads, slots)])
    slots.places[:] = [0, 1]
    assert torch.equal(emb.weight[[1, 2]], before)
    for _ in range(3):
        opt.update([3], torch.ones(1, 2), emb)
    with pytest.raises(ConfigError, match=r"the slots of 2 ids are stale: rows were evicted 1 times"):
        opt.apply_gradients([(grads, slots)])


def test_growth_leaves_slots_as_they_are() -> None:
    emb = table("growing", 1, torch.float32)
    opt = ge.SparseSGD([emb], lr=1.0)
    _, slots = emb.lookup([2, 1, 2])
    emb.grow([3, 1], torch.zeros(2, 1))
    opt.apply_gradients([(torch.tensor([[1.0], [10.0], [100.0]]), slots)])
    assert emb.weight[[1, 3]].tolist() == [[-10], [0]]
    assert emb.weight[[2]].item() == pytest.approx(INIT_OF_2 - 101)


INIT_OF_2 = 0.0


@pytest.fixture(autouse=True)
def _first_value() -> None:
    global INIT_OF_2
    row = torch.empty(1, 1)
    INIT.fill_at_(row, np.array([2]))
    INIT_OF_2 = row.item()


def test_patterned_ids_spread_over_parts() -> None:
    policy = ge.HashPolicy(4)
    for ids in (torch.arange(0, 80_000, 2), torch.arange(40_000) << 32, -torch.arange(40_000)):
        shares = torch.bincount(policy.owner(ids), minlength=4) / 40_000
        assert shares.min() > 0.23
        assert shares.max() < 0.27


def test_memory_is_taken_as_rows_are_made() -> None:
    import psutil

    before = psutil.Process().memory_info().rss
    emb = ge.DistEmbedding(ge.growing(max_rows=50_000_000), 128, "wide")  # 25.6 GB of address space
    opt = ge.SparseAdagrad([emb], lr=0.1)
    opt.update(torch.arange(1000), torch.ones(1000, 128), emb)
    assert psutil.Process().memory_info().rss - before < 64 << 20
    assert emb.shard.num_bytes() < 1000 * (1024 + 16) + (1 << 20)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: ge.DistEmbedding(ge.growing(5), 2, bounds="drop"), ConfigError, "bounds='drop'"),
        (lambda: ge.NodeEmbedding(ge.growing(5), 2, "node"), ConfigError, "'node': a NodeEmbedding has a fixed number"),
        (lambda: ge.DistEmbedding(ge.growing(5), 2).lookup({3}), ShapeError, "ids are set; pass integers"),
        (lambda: ge.DistEmbedding(ge.growing(5), 2).grow([1], "x"), ShapeError, "values are a str"),
        (lambda: ge.NeighbourMean(None), ShapeError, "NeighbourMean: None is no graph"),
        (lambda: ge.NeighbourMean(([1], [2], [3])), ShapeError, "is no graph; give a HeteroGraph or"),
        (lambda: ge.DistEmbedding(ge.growing(5), 2, original_ids=[1]), ConfigError, r"original_ids=\[1\]"),
        (lambda: ge.DistEmbedding(ge.growing(5), 2, part_policy=ge.RangeBook([0, 5])), ConfigError, "HashPolicy"),
        (lambda: ge.DistEmbedding(ge.growing(5), 2, part_policy="node~_N"), ConfigError, "part_policy='node~_N'"),
        (lambda: ge.DistEmbedding(ge.growing(5), 2, device="meta"), ConfigError, "use 'cpu'"),
        (lambda: ge.DistEmbedding(ge.growing(5), 2, init_func=lambda s, d: torch.ones(s)), ConfigError, "init_func"),
        (lambda: ge.DistEmbedding(5, 2, admission=ge.SeenAtLeast(2)), TypeError, "admission"),
        (lambda: ge.DistEmbedding(ge.growing(5), 2).weight[0:3], ShapeError, "its ids are no range"),
        (lambda: ge.DistEmbedding(ge.growing(5), 2).weight[torch.ones(5) > 0], ShapeError, "its ids are no range"),
        (lambda: ge.DistEmbedding(ge.growing(5), 2).sparse_grad(), ModeError, "grows"),
        (lambda: ge.DistEmbedding(ge.growing(5), 2).quantize(), ModeError, "grows"),
        (lambda: ge.DistEmbedding(ge.growing(5), 2).evict(), ConfigError, "has no eviction"),
        (lambda: ge.DistEmbedding(ge.growing(5), 2)(torch.ones(2)), ShapeError, "ids have dtype torch.float32"),
    ],
)
def test_bad_calls_are_named(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()


def test_a_fixed_table_does_not_grow() -> None:
    emb = ge.DistEmbedding(5, 2, "fixed")
    with pytest.raises(ModeError, match=r"table 'fixed' does not grow; make it with num_embeddings=ge.growing"):
        emb.transport.grow("fixed", torch.tensor([1]))


def test_tables_of_one_name_are_one_table() -> None:
    emb = table("growing", 2, torch.float32)
    again = table("growing", 2, torch.float32)
    again.grow([5])
    assert emb.ids().tolist() == [5]
    with pytest.raises(ConfigError, match="of another growth is alive"):
        table("growing", 2, torch.float32, admission=ge.SeenAtLeast(2))


def test_kvstore_mode_without_servers_grows_and_refuses_handlers() -> None:
    ge.shutdown()
    transport = ge.init(mode="kvstore", use_dynamic_expansion=True)
    emb = ge.DistEmbedding(3, 1, "growing")
    ge.SparseSGD([emb], lr=1.0).update([10**15], torch.ones(1, 1), emb)
    assert emb.ids().tolist() == [10**15]
    with pytest.raises(ModeError, match="table 'growing' grows: a handler takes tables of a fixed size"):
        transport.register_push_handler("growing", print)  # type: ignore[attr-defined]
    with pytest.raises(ModeError, match="table 'growing' grows: push_data takes"):
        transport.push_data("growing", torch.tensor([1]), torch.ones(1, 1))  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["option", "environment"])
def test_dynamic_expansion_makes_tables_grow_that_are_tied_to_no_ids(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ge.shutdown()
    if how == "environment":
        monkeypatch.setenv("USE_DYNAMIC_EXPANSION", "1")
        ge.init(mode="local")
    else:
        monkeypatch.setenv("USE_DYNAMIC_EXPANSION", "0")
        ge.init(mode="local", use_dynamic_expansion=True)
    emb = ge.DistEmbedding(1, 2, "grows", admission=ge.SeenAtLeast(1), part_policy=ge.HashPolicy(2))
    ge.SparseSGD([emb], lr=1.0).update([10**15, -1, 7], torch.ones(3, 2), emb)
    assert emb.ids().tolist() == [-1, 7, 10**15]
    tied = [
        ge.DistEmbedding(3, 2, "policy", part_policy=RangeBook([0, 1, 3])),
        ge.DistEmbedding(3, 2, "ids", original_ids=torch.tensor([5, 4, 9])),
        ge.DistEmbedding(3, 2, "drop", bounds="drop"),
        ge.NodeEmbedding(3, 2, "dgl"),
    ]
    assert all(one.spec.growth is None for one in tied)
    ge.shutdown()
    monkeypatch.setenv("USE_DYNAMIC_EXPANSION", "1")
    ge.init(mode="local", use_dynamic_expansion=False)
    assert ge.DistEmbedding(1, 2).spec.growth is None


def test_a_run_has_the_tables_of_its_graph_whatever_grows_by_default() -> None:
    graph = Graph.from_edges(range(8), [*range(1, 8), 0])
    options: dict[str, Any] = {"dim": 4, "num_walks": 2, "threads": 1, "evaluate": False}
    ge.shutdown()
    plain = ge.pipeline("deepwalk", graph, **options)
    ge.shutdown()
    ge.init(mode="local", use_dynamic_expansion=True)
    found = ge.pipeline("deepwalk", graph, **options)
    assert found.embeddings is not None
    assert plain.embeddings is not None
    assert np.array_equal(found.embeddings.weights, plain.embeddings.weights)
    assert ge.DistEmbedding(1, 2).spec.growth is not None
    with pytest.raises(ConfigError, match="reach"):
        ge.pipeline("deepwalk", graph, reach=3)
    assert ge.DistEmbedding(1, 2).spec.growth is not None


def test_a_choice_of_dynamic_expansion_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ge.shutdown()
    with pytest.raises(ConfigError, match="use_dynamic_expansion='1' must be True or False"):
        ge.init(mode="local", use_dynamic_expansion="1")
    monkeypatch.setenv("USE_DYNAMIC_EXPANSION", "yes")
    with pytest.raises(ConfigError, match="USE_DYNAMIC_EXPANSION='yes' must be 0 or 1"):
        ge.init(mode="local")
