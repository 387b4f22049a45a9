from __future__ import annotations

from collections.abc import Iterator

import numba
import numpy as np
import pytest
import torch
from torch import Tensor

from graph_emb.models.kge import comparisons
from graph_emb.models.kge.comparisons import DOT, L1, L2, MODULUS, Comparison

ALL = {"dot": DOT, "l1": L1, "l2": L2, "modulus": MODULUS}
SHAPES = [(1, 1, 1, 2), (2, 5, 3, 6), (3, 33, 17, 70), (0, 4, 3, 6), (2, 4, 0, 6)]


@pytest.fixture
def threads() -> Iterator[None]:
    before = numba.get_num_threads()
    yield
    numba.set_num_threads(before)


def sides(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    chunks, queries, entities, width = shape
    generator = torch.Generator().manual_seed(1)
    made = [
        torch.randn(*size, generator=generator, dtype=torch.float64)
        for size in ((chunks, queries, width), (chunks, entities, width), (chunks, queries, entities))
    ]
    return made[0].to(dtype).requires_grad_(), made[1].to(dtype).requires_grad_(), made[2].to(dtype)


def plain(comparison: Comparison, queries: Tensor, entities: Tensor) -> Tensor:
    """The dense form: every query against every entity, number by number."""
    return comparison.pairs(queries[:, :, None], entities[:, None])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ALL)
def test_chunks_equal_autograd_of_the_plain_form(name: str, shape: tuple[int, ...]) -> None:
    q, e, pull = sides(shape, torch.float32)
    wide_q, wide_e, wide_pull = sides(shape, torch.float64)
    scores, expected = ALL[name].chunks(q, e), plain(ALL[name], wide_q, wide_e)
    torch.testing.assert_close(scores.double(), expected, rtol=2e-5, atol=2e-5)
    (scores * pull).sum().backward()
    (expected * wide_pull).sum().backward()
    for found, oracle in ((q.grad, wide_q.grad), (e.grad, wide_e.grad)):
        assert found is not None
        assert oracle is not None
        torch.testing.assert_close(found.double(), oracle, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
def test_lists_of_any_pieces_are_the_pairs(name: str, dtype: torch.dtype) -> None:
    q, e, _ = (side.detach() for side in sides((1, 40, 70, 34), dtype))
    ids = np.random.default_rng(2).integers(0, 70, (40, 13))
    whole, pieces = torch.empty(40, 13, dtype=dtype), torch.full((40, 13), torch.nan, dtype=dtype)
    ALL[name].lists(q[0], e[0], ids, whole)
    expected = ALL[name].pairs(q[0][:, None].double(), e[0].double()[torch.from_numpy(ids)])
    torch.testing.assert_close(whole.double(), expected, rtol=2e-5 if dtype is torch.float32 else 1e-12, atol=2e-5)
    for low, high in ((0, 9), (9, 10), (10, 70)):
        ALL[name].lists(q[0], e[0][low:high], ids, pieces, low)
        assert torch.equal(pieces.isnan(), torch.from_numpy(ids >= high)), "the rest stays"
    assert torch.equal(pieces, whole)
    one = torch.empty(1, 1, dtype=dtype)
    for i, n in ((0, 0), (3, 12), (39, 7)):  # a query and an entity by themselves
        at = int(ids[i, n])
        ALL[name].lists(q[0, i : i + 1], e[0, at : at + 1], np.array([[at]]), one, at)
        assert torch.equal(one[0, 0], whole[i, n])


@pytest.mark.parametrize("name", ["l1", "modulus"])
def test_threads_change_no_bit(name: str, threads: None) -> None:
    found = []
    for number in (1, 2):
        numba.set_num_threads(min(number, numba.config.NUMBA_NUM_THREADS))
        q, e, pull = sides((2, 70, 40, 130), torch.float32)
        scores = ALL[name].chunks(q, e)
        (scores * pull).sum().backward()
        found.append((scores.detach(), q.grad, e.grad))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("block", [1, 64, 1 << 23])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["l1", "modulus"])
def test_blocks_equal_autograd_of_the_plain_form(
    name: str, shape: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparisons, "scores_that_learn", None)  # calling it would fail: float64 has no kernel
    monkeypatch.setattr(comparisons, "BLOCK", block)
    q, e, pull = sides(shape, torch.float64)
    plain_q, plain_e = (side.detach().clone().requires_grad_() for side in (q, e))
    scores, expected = ALL[name].chunks(q, e), plain(ALL[name], plain_q, plain_e)
    torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-9)
    (scores * pull).sum().backward()
    (expected * pull).sum().backward()
    torch.testing.assert_close((q.grad, e.grad), (plain_q.grad, plain_e.grad), rtol=1e-6, atol=1e-6)  # TINY


@pytest.mark.parametrize("name", ["l1", "modulus"])
def test_equal_rows_have_gradient_zero_in_blocks(name: str) -> None:
    q = torch.ones(1, 1, 4, dtype=torch.float64, requires_grad=True)
    ALL[name].chunks(q, torch.ones(1, 1, 4, dtype=torch.float64)).sum().backward()
    assert q.grad is not None
    assert torch.equal(q.grad, torch.zeros(1, 1, 4, dtype=torch.float64))


@pytest.mark.parametrize("name", ["l1", "l2", "modulus"])
def test_equal_rows_have_distance_and_gradient_zero(name: str) -> None:
    q = torch.ones(1, 1, 4, requires_grad=True)
    scores = ALL[name].chunks(q, torch.ones(1, 1, 4))
    scores.sum().backward()
    assert float(scores.detach()) == pytest.approx(0.0, abs=1e-5)
    assert q.grad is not None
    assert torch.equal(q.grad, torch.zeros(1, 1, 4))


def test_only_the_side_that_learns_gets_a_gradient() -> None:
    q, e, _ = sides((1, 3, 2, 4), torch.float32)
    L1.chunks(q, e.detach()).sum().backward()
    assert q.grad is not None
    assert e.grad is None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["l2", "modulus"])
def test_scores_without_a_gradient_are_the_plain_differences(name: str, shape: tuple[int, ...]) -> None:
    q, e, _ = (side.detach() for side in sides(shape, torch.float32))
    expected = plain(ALL[name], q.double(), e.double())
    torch.testing.assert_close(ALL[name].chunks(q, e).double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 10.0, 1000.0])
def test_l2_keeps_its_order_far_from_the_origin(offset: float) -> None:
    """The square was expanded: at an offset of 10 the norms took the digits that tell near entities apart."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 20, 64, generator=generator) * 0.1 + offset
    e = torch.randn(1, 500, 64, generator=generator) * 0.1 + offset
    exact = plain(L2, q.double(), e.double())
    ranks, wanted = (scores.argsort().argsort() for scores in (L2.chunks(q, e), exact))
    assert (ranks - wanted).abs().double().mean() < 0.01, "float32 swaps neighbours 1e-7 apart; the norms gave 1.1"
    learned = L2.chunks(q.requires_grad_(), e).detach()
    torch.testing.assert_close(learned.double(), exact, rtol=1e-5, atol=1e-5)


def test_equal_sums_of_moduli_are_ties() -> None:
    """1e-12 stood under each root, so that moduli 2 and 0 summed up to more than 1 and 1."""
    q = torch.zeros(1, 1, 4)
    e = torch.tensor([[[2.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.3, 0.0, 0.4, 1.5]]])
    assert MODULUS.chunks(q, e).tolist() == [[[-2.0] * 4]]
    assert MODULUS.pairs(q[0], e[0]).tolist() == [-2.0] * 4
    swapped = torch.rand(1, 50, 2, generator=torch.Generator().manual_seed(2))
    x, y = swapped.unbind(2)
    a, b = torch.stack([x, x, y, y], 2), torch.stack([y, y, x, x], 2)
    assert torch.equal(MODULUS.chunks(q, a), MODULUS.chunks(q, b))
