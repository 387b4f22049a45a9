"""DistEmbedding: DGL's public surface, exact gradients, clear errors."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge

pytestmark = pytest.mark.usefixtures("fresh_mode")


def counting(num: int = 6, dim: int = 2, **kwargs: Any) -> ge.DistEmbedding:
    rows = torch.arange(float(num * dim)).view(num, dim)
    return ge.DistEmbedding(num, dim, init_func=ge.initializers.FromArray(rows), **kwargs)


def test_a_call_keeps_order_duplicates_and_shape() -> None:
    emb = counting()
    assert emb(torch.tensor([4, 0, 4, 2])).tolist() == [[8, 9], [0, 1], [8, 9], [4, 5]]
    assert emb(torch.tensor([[4, 0], [1, 2]])).tolist() == [[[8, 9], [0, 1]], [[2, 3], [4, 5]]]
    assert emb(torch.tensor([5], dtype=torch.int32), device=torch.device("cpu")).tolist() == [[10, 11]]


def test_gradients_are_those_of_torch_embedding() -> None:
    emb, dense = counting(), torch.nn.Embedding(6, 2)
    dense.weight.data.copy_(emb.weight[0:6])
    ids = torch.tensor([3, 1, 3, 0])
    factor = torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8]])
    for table in (emb, dense):
        (table(ids).pow(2) * factor).sum().backward()
    ((got_ids, got),) = emb.pending()
    total = torch.zeros(6, 2).index_add_(0, got_ids, got)
    assert torch.equal(total, dense.weight.grad)


def test_two_uses_of_one_output_give_one_summed_gradient() -> None:
    emb = counting()
    rows = emb(torch.tensor([2]))
    (rows.sum() + 2 * rows.sum()).backward()
    assert [(ids.tolist(), grads.tolist()) for ids, grads in emb.pending()] == [([2], [[3, 3]])]


def test_ids_that_the_caller_overwrites_after_the_call_are_those_of_the_call() -> None:
    emb, buffer = counting(), torch.tensor([2, 4])
    emb(buffer).sum().backward()
    buffer.fill_(0)
    assert [ids.tolist() for ids, _ in emb.pending()] == [[2, 4]]


def test_a_gradient_that_is_overwritten_before_the_step_is_refused() -> None:
    emb, grad = counting(), torch.ones(2, 2)
    emb(torch.tensor([2, 4])).backward(grad)
    grad.zero_()
    with pytest.raises(ge.ModeError, match="changed in place after backward"):
        emb.pending()


def test_gradients_are_scaled_without_a_change_of_those_that_autograd_gave() -> None:
    emb, grad = counting(), torch.ones(2, 2)
    emb(torch.tensor([2, 4])).backward(grad)
    emb.scale_gradients(0.5)
    assert [grads.tolist() for _, grads in emb.pending()] == [[[0.5, 0.5], [0.5, 0.5]]]
    assert torch.equal(grad, torch.ones(2, 2))


def test_backward_twice_accumulates_as_in_torch() -> None:
    emb = counting()
    loss = emb(torch.tensor([2])).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert len(emb.pending()) == 2


def test_pulled_rows_are_copies_of_the_table() -> None:
    emb = counting()
    with torch.no_grad():
        emb(torch.tensor([1])).zero_()
    assert emb.weight[1].tolist() == [2, 3]


def test_nothing_is_recorded_without_gradients_or_without_use() -> None:
    emb = counting()
    with torch.no_grad():
        assert not emb(torch.tensor([1])).requires_grad
    emb(torch.tensor([1, 2]))
    assert emb.pending() == []
    assert not emb.touched


def test_an_empty_batch_is_fine_and_still_counts_as_a_use() -> None:
    emb = counting()
    emb(torch.empty(0, dtype=torch.int64)).sum().backward()
    assert emb.touched
    assert [g.shape for _, g in emb.pending()] == [(0, 2)]


def test_reset_trace_forgets_what_is_still_to_come() -> None:
    emb = counting()
    before = emb(torch.tensor([1]))
    emb.reset_trace()
    before.sum().backward()
    assert emb.pending() == []
    kept = emb(torch.tensor([1]))
    emb.clear_gradients()
    kept.sum().backward()
    assert len(emb.pending()) == 1


def test_the_public_surface_of_dgl_is_there() -> None:
    book = ge.RangeBook.even(6, 2)
    emb = ge.DistEmbedding(6, 2, "user", None, book)
    assert (emb.name, emb.data_name, emb.num_embeddings, emb.embedding_dim) == ("user", "user", 6, 2)
    assert emb.part_policy is book
    assert emb.book is book
    assert emb.kvstore.world_size == 1
    assert emb.kvstore.flush == emb.transport.flush
    assert emb.optm_state == {}
    opt = ge.SparseAdagrad([emb], lr=0.1)
    assert set(emb.optm_state) == {"sum"}
    assert opt.tables == {"user": emb}
    assert emb.weight.shape == (6, 2)
    assert len(emb.weight) == 6
    assert (emb.weight.dtype, emb.weight.name, emb.weight.part_policy) == (torch.float32, "user", book)
    assert emb._tensor[torch.tensor([1])].shape == (1, 2)
    assert repr(emb) == "DistEmbedding('user', 6, 2, dtype=torch.float32)"


def test_rows_are_read_and_written_by_id_slice_integer_and_mask() -> None:
    emb = counting()
    emb.weight[torch.tensor([5, 0])] = torch.tensor([[1.0, 1], [2, 2]])
    emb.weight[1:3] = 9.0
    emb.weight[3] = torch.tensor([7.0, 8.0])
    mask = torch.tensor([False, False, False, False, True, False])
    emb.weight[mask] = -1.0
    assert emb.weight[:].tolist() == [[2, 2], [9, 9], [9, 9], [7, 8], [-1, -1], [1, 1]]
    assert emb.weight[-1:].tolist() == [[1, 1]]
    assert emb.weight[mask].tolist() == [[-1, -1]]


@pytest.mark.parametrize("key", [slice(3, 2), slice(5, None, 2), slice(9, 12), 2, np.int64(2), torch.tensor(2), [2]])
def test_a_key_gives_the_rows_and_the_shape_that_torch_gives(key: Any) -> None:
    emb, plain = counting(), torch.arange(12.0).view(6, 2)
    assert torch.equal(emb.weight[key], plain[key])
    emb.weight[key] = plain[key] = -1.0
    assert torch.equal(emb.weight[:], plain)


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        (torch.tensor([0, 6]), 0.0, ge.PartitionError, r"id 6 is outside \[0, 6\)"),
        (-1, 0.0, ge.PartitionError, "id -1"),
        (torch.tensor([1, 1]), 0.0, ge.ShapeError, "assigned twice"),
        (torch.tensor([0, 1]), torch.zeros(3, 2), ge.ShapeError, r"shape \(3, 2\); expected \(2, 2\)"),
        (torch.tensor([True]), 0.0, ge.ShapeError, "mask of shape"),
        (torch.tensor([0.5]), 0.0, ge.ShapeError, "dtype torch.float32"),
        ((1, 0), 5.0, ge.ShapeError, "takes the ids of whole rows, got 2 indices; read columns by"),
        ((slice(None), 1), 5.0, ge.ShapeError, "takes the ids of whole rows"),
        ((torch.tensor([1, 2]),), 5.0, ge.ShapeError, "got 1 indices"),
    ],
)
def test_a_bad_assignment_changes_nothing(key: Any, value: Any, error: type[Exception], message: str) -> None:
    emb = counting()
    with pytest.raises(error, match=message):
        emb.weight[key] = value
    assert torch.equal(emb.weight[:], torch.arange(12.0).view(6, 2))


def test_a_table_keeps_no_graph_of_the_values_that_it_is_given() -> None:
    """Its memory became part of autograd: each assignment made the graph longer, and reads gave no arrays."""
    layer = torch.nn.Linear(2, 2)
    given: list[Any] = [
        None,
        ge.initializers.FromArray(torch.nn.Parameter(torch.ones(6, 2))),
        ge.initializers.FromArray(layer(torch.ones(6, 2))),
        lambda shape, dtype: layer(torch.ones(shape, dtype=dtype)),
    ]
    for init in given:
        emb = ge.DistEmbedding(6, 2, init_func=init)
        assert not emb.shard.weight.requires_grad
        emb.weight[1:3] = layer(emb.weight[1:3])
        emb.weight[4] = layer.bias
        assert not emb.shard.weight.requires_grad
        assert torch.equal(emb.weight[4], layer.bias.detach())
        emb.weight[:].numpy()


def test_ids_out_of_range_and_of_wrong_dtype_name_the_table() -> None:
    emb = counting(name="user")
    for bad in (6, -1):
        with pytest.raises(ge.PartitionError, match=rf"table 'user': id {bad} is outside \[0, 6\)"):
            emb(torch.tensor([0, bad]))
    with pytest.raises(ge.ShapeError, match=r"table 'user': ids have dtype torch\.float32"):
        emb(torch.tensor([0.0]))


def test_names_are_unique_among_live_tables_and_free_again_afterwards() -> None:
    emb = counting(name="user")
    with pytest.raises(ge.ConfigError, match="'user' of another shape is alive"):
        counting(7, name="user")
    del emb
    gc.collect()
    assert counting(name="user").name == "user"
    assert counting().name != counting().name


def test_first_values_do_not_depend_on_the_partition() -> None:
    init = ge.initializers.Uniform(seed=3)
    tables = [
        ge.DistEmbedding(50, 4, init_func=init, part_policy=ge.RangeBook.even(50, p)).weight[:] for p in (1, 2, 7)
    ]
    assert torch.equal(tables[0], tables[1])
    assert torch.equal(tables[0], tables[2])


def test_edge_ids_train_as_node_ids_do() -> None:
    from graph_emb.compat import dgl as compat_dgl

    compat_dgl.load()
    from dgl.distributed.graph_partition_book import EdgePartitionPolicy, RangePartitionBook

    etype = ("_N", "_E", "_N")
    book = RangePartitionBook(
        0, 2, {"_N": torch.tensor([[0, 2], [2, 4]])}, {etype: torch.tensor([[0, 3], [3, 7]])}, {"_N": 0}, {etype: 0}
    )
    emb = ge.DistEmbedding(7, 2, "edge", part_policy=EdgePartitionPolicy(book, etype))
    opt = ge.SparseSGD([emb], lr=1.0)
    emb(torch.tensor([6, 2, 6])).sum().backward()
    opt.step()
    assert emb.weight[torch.tensor([6, 2, 0])].tolist() == [[-2, -2], [-1, -1], [0, 0]]
    assert emb.book.part_size(1) == 4


def test_half_tables_train_through_a_float32_loss() -> None:
    emb = ge.DistEmbedding(4, 3, dtype=torch.bfloat16)
    opt = ge.SparseSGD([emb], lr=0.5)
    emb(torch.tensor([1, 1])).float().sum().backward()
    opt.step()
    assert emb.weight[1].tolist() == [-1.0, -1.0, -1.0]
    assert emb.weight.dtype == torch.bfloat16


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_table_on_the_gpu_equals_one_on_the_cpu() -> None:
    init = ge.initializers.Uniform(seed=0)
    tables = [ge.DistEmbedding(50, 8, init_func=init, device=device) for device in ("cpu", "cuda")]
    for emb in tables:
        opt = ge.SparseAdam([emb], lr=0.1)
        for step in range(5):
            ids = torch.tensor([1, 4, 4, step + 6])
            emb(ids, device=emb.shard.weight.device).pow(2).sum().backward()
            opt.step()
    torch.testing.assert_close(tables[0].weight[:], tables[1].weight[:].cpu(), rtol=1e-5, atol=1e-6)


def test_a_sparse_grad_is_the_merged_gradient_that_torch_would_have() -> None:
    emb, peer = counting(), torch.nn.Embedding(counting().num_embeddings, 2, sparse=True)
    assert not emb.sparse_grad().to_dense().any()
    with torch.sparse.check_sparse_tensor_invariants(False):
        for ids in ([4, 1, 4], [0], []):
            for table in (emb, peer):
                (table(torch.tensor(ids, dtype=torch.int64)) * (1 + len(ids))).sum().backward()
        found = emb.sparse_grad()
        assert found.is_coalesced()
        assert found.indices().tolist() == [[0, 1, 4]]
        assert torch.equal(found.to_dense(), peer.weight.grad.to_dense())
    emb.clear_gradients()
    assert emb.sparse_grad().indices().numel() == 0


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_dropped_ids_are_zeros_without_a_gradient_and_counted(shape: tuple[int, ...]) -> None:
    """FBGEMM writes 0 over a wrong id in the caller's tensor, and trains row 0 with its gradient."""
    first = ge.initializers.FromArray(torch.arange(10.0).view(5, 2))
    emb = ge.DistEmbedding(5, 2, init_func=first, bounds="drop")
    opt = ge.SparseSGD([emb], lr=1.0)
    ids = torch.tensor([4, -1, 99, 4]).view(shape)
    rows = emb(ids)
    assert rows.shape == (*shape, 2)
    assert rows.view(4, 2).tolist() == [[8.0, 9.0], [0.0, 0.0], [0.0, 0.0], [8.0, 9.0]]
    rows.sum().backward()
    opt.step()
    assert emb.weight[:].tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0], [6.0, 7.0]]
    assert (emb.dropped, ids.flatten().tolist()) == (2, [4, -1, 99, 4])
    assert emb.bag(torch.tensor([7, 4, 7]), torch.tensor([0, 2]), "mean").tolist() == [[3.0, 3.5], [0.0, 0.0]]
    assert emb.dropped == 4
    assert emb(torch.tensor([8, 9])).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert emb(torch.tensor([1])).tolist() == [[2.0, 3.0]]
    assert emb(torch.tensor(7)).tolist() == [0.0, 0.0]
    emb.prefetch(torch.tensor([1, 8]))
    assert emb.dropped == 7


def test_bounds_are_raise_or_drop() -> None:
    with pytest.raises(ge.ConfigError, match=r"unknown bounds 'drpo'.*did you mean 'drop'"):
        ge.DistEmbedding(1, 1, bounds="drpo")
    with pytest.raises(ge.ShapeError, match=r"dtype torch\.float32"):
        ge.DistEmbedding(1, 1, bounds="drop")(torch.tensor([0.5]))
    with pytest.raises(ge.ShapeError, match="ids are set"):
        ge.DistEmbedding(1, 1, bounds="drop")({0})
