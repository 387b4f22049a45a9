"""Sums of messages and their gradients, against torch's own."""

from __future__ import annotations

import pytest
import torch

from graph_emb.core import listed_sums
from graph_emb.core.errors import ShapeError
from graph_emb.models.gnn import aggregate
from graph_emb.sampling.blocks import BlockEdges


def edges(num_edges: int = 40, seed: int = 0) -> BlockEdges:
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(7, (num_edges,), generator=generator)
    dst = torch.randint(5, (num_edges,), generator=generator) + 1  # nothing reaches row 0
    return BlockEdges.from_pairs(src, dst, 7, 6)


def dense(e: BlockEdges) -> torch.Tensor:
    matrix = torch.zeros(e.num_destinations, e.num_sources, dtype=torch.float64)
    return matrix.index_put((e.destinations, e.sources), torch.ones(e.num_edges, dtype=torch.float64), accumulate=True)


@pytest.mark.parametrize("small", [0, 1 << 30], ids=["all cores", "one core"])
def test_sums_and_gradients_are_those_of_a_dense_product(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed_sums, "SMALL", small)
    e, rows = edges(), torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(aggregate.sum_neighbours(rows, e), dense(e) @ rows)
    degrees = dense(e).sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(aggregate.mean_neighbours(rows, e), dense(e) @ rows / degrees)
    assert torch.autograd.gradcheck(lambda x: aggregate.mean_neighbours(x, e), (rows,))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_has_the_same_sums_and_gradients() -> None:
    e, rows = edges(), torch.randn(7, 3, dtype=torch.float64)
    found = []
    for device in ("cpu", "cuda"):
        own = rows.to(device).requires_grad_()
        sums = aggregate.sum_neighbours(own, e.to(device))
        (grads,) = torch.autograd.grad(sums.square().sum(), own)
        found.append((sums.detach().cpu(), grads.cpu()))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("small", [0, 1 << 30], ids=["all cores", "one core"])
def test_rows_are_added_one_after_the_other_at_any_degree(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed_sums, "SMALL", small)
    degrees = torch.arange(27)  # sums of eight at a time, and what remains
    num_edges = int(degrees.sum())
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(9, (num_edges,), generator=generator)
    e = BlockEdges.from_pairs(src, degrees.repeat_interleave(degrees), 9, len(degrees))
    rows = torch.randn(9, 19, generator=generator) * 10.0 ** torch.arange(-4, 5).unsqueeze(1)
    out = aggregate.sum_neighbours(rows, e)
    for number, sources in enumerate(e.sources.split(degrees.tolist())):
        expected = torch.zeros(19)
        for source in sources.tolist():
            expected += rows[source]
        assert torch.equal(out[number], expected)


def test_messages_go_from_sources_to_means_of_destinations() -> None:
    e, rows = edges(), torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    gathered = aggregate.gather_sources(rows, e)
    assert torch.equal(gathered, rows[e.sources])
    torch.testing.assert_close(aggregate.mean_messages(gathered, e), aggregate.mean_neighbours(rows, e))
    assert torch.autograd.gradcheck(lambda x: aggregate.gather_sources(x, e), (rows,))
    messages = torch.randn(40, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: aggregate.mean_messages(x, e), (messages,))


def test_rows_that_do_not_fit_the_edges_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"source rows have shape \(6, 3\); the edges name \(7, D\)"):
        aggregate.sum_neighbours(torch.zeros(6, 3), edges())
    with pytest.raises(ShapeError, match=r"messages have shape \(39, 3\); the edges name \(40, D\)"):
        aggregate.mean_messages(torch.zeros(39, 3), edges())


def test_off_the_cpu_the_sparse_matrix_is_made_without_a_warning() -> None:
    """torch 2.13 warns of sparse tensors where nobody says whether to check them, and here warnings are errors."""
    e = edges().to("meta")
    with pytest.raises(NotImplementedError, match="addmm"):  # the product itself is all that "meta" lacks
        aggregate.sum_neighbours(torch.empty(7, 3, device="meta"), e)
