"""Rows of their own for chosen nodes of a composed table, beside those that they share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError, PartitionError
from graph_emb.optimizer import OPTIMIZERS
from graph_emb.table.own_rows import of_highest_degree
from tests.ranks import Ranks
from tests.test_composed import LEVELS, D, N, dense_rows, made

pytestmark = pytest.mark.usefixtures("fresh_mode")

HUBS = [17, 2, 5]


def with_own(emb: ge.ComposedEmbedding, tables: list[Tensor], ids: Tensor) -> Tensor:
    """``dense_rows`` and the rows of HUBS, whose table is the last one, in the order of ids."""
    place = torch.full((N,), -1)
    place[sorted(HUBS)] = torch.arange(len(HUBS))
    own = (place[ids] >= 0)[:, None] * tables[-1][place[ids]]
    return dense_rows(emb, tables[:-1], ids) + own


@pytest.mark.parametrize("kind", ["position-hash", "position", "hash", "quotient-remainder"])
@pytest.mark.parametrize("rule", ["sgd", "adagrad", "adam"])
def test_training_is_that_of_a_dense_reference(kind: str, rule: str) -> None:
    emb = made(kind, own_rows=HUBS)
    opt = OPTIMIZERS[rule]([emb], lr=0.02)
    dense = []
    for place, table in enumerate(emb.tables):
        first = ge.initializers.FromArray(table.weight[:])
        dense.append(ge.DistEmbedding(*table.weight.shape, f"dense{place}", first, dtype=torch.float64))
    dense_opt = OPTIMIZERS[rule](dense, lr=0.02)
    assert torch.equal(emb.weight[:], made(kind, name="plain").weight[:])
    gen = torch.Generator().manual_seed(0)
    for _ in range(6):
        ids = torch.cat([torch.randint(0, N, (10,), generator=gen), torch.tensor(HUBS)])
        wanted = torch.randn(13, D, generator=gen, dtype=torch.float64)
        ((emb(ids) - wanted) ** 2).sum().backward()
        opt.step()
        leaves = [table.weight[:].requires_grad_() for table in dense]
        ((with_own(emb, leaves, ids) - wanted) ** 2).sum().backward()
        for table, leaf in zip(dense, leaves, strict=True):
            touched = leaf.grad.abs().sum(dim=1).nonzero().flatten()
            dense_opt.update(touched, leaf.grad[touched], table)
    for table, other in zip(emb.tables, dense, strict=True):
        torch.testing.assert_close(table.weight[:], other.weight[:], rtol=1e-9, atol=1e-11)
    assert emb.tables[-1].weight[:].abs().min() > 0
    torch.testing.assert_close(emb.weight[:], with_own(emb, [t.weight[:] for t in dense], torch.arange(N)))
    assert emb.num_parameters == sum(table.weight[:].numel() for table in dense)


ORDER = np.random.default_rng(0).permutation(N)
"""Original ids of the rows of another partition."""
OWNERS = [0, 1, 1]
"""Of its rows of HUBS."""


def trained(folder: Path, rank: int, size: int) -> Tensor:
    """Rows by original id after two steps, the nodes in another order where there are two ranks; and a checkpoint."""
    order = ORDER if size > 1 else np.arange(N)
    row_of = np.argsort(order)
    policy = None if size == 1 else ge.RangeBook([0, 9, N])
    options: dict[str, Any] = {"num_buckets": 5, "name": "node", "seed": 3, "dtype": torch.float64}
    own = torch.from_numpy(row_of[HUBS])
    emb = ge.ComposedEmbedding(
        LEVELS[order], D, part_policy=policy, original_ids=torch.from_numpy(order), own_rows=own, **options
    )
    opt = ge.SparseAdam([emb], lr=0.1)
    for step in range(2):
        nodes = np.arange(N)[rank::size]  # together all of them, hubs of either rank's among them
        emb.prefetch(torch.from_numpy(row_of[nodes]))
        rows = emb(torch.from_numpy(row_of[nodes]))
        ((rows - step) ** 2).sum().backward()
        opt.step()
    if size > 1:  # with the rest of its node's part
        transport: Any = emb.transport
        of_rows, of_nodes = (transport.layout(book, "own rows") for book in (emb.tables[-1].spec.book, emb.book))
        assert of_rows.owner(torch.arange(3)).tolist() == of_nodes.owner(emb.own_rows).tolist() == OWNERS
    ge.save_checkpoint(folder / f"of-{size}", tables=[emb], optimizers=[opt])
    return emb.weight[torch.from_numpy(row_of)]


def in_ranks(folder: str) -> Tensor:
    transport: Any = ge.init("collective")
    try:
        return trained(Path(folder), transport.rank, transport.world_size)
    finally:
        ge.shutdown()


@pytest.mark.dist
def test_ranks_train_them_by_original_id_and_checkpoints_move(ranks: Ranks, tmp_path: Path) -> None:
    alone = trained(tmp_path, 0, 1)
    for rows in ranks.run(in_ranks, 2, str(tmp_path)):
        torch.testing.assert_close(rows, alone)
    ge.shutdown()
    emb = made(own_rows=HUBS[::-1])
    ge.load_checkpoint(tmp_path / "of-2", tables=[emb], weights_only=True)
    torch.testing.assert_close(emb.weight[:], alone)
    ge.shutdown()
    with pytest.raises(PartitionError, match=r"'node\.own'.* 5"):
        ge.load_checkpoint(tmp_path / "of-2", tables=[made(own_rows=[1, 2, 3])], weights_only=True)


def test_a_table_of_a_grown_graph_keeps_the_nodes_that_have_own_rows(tmp_path: Path) -> None:
    """New nodes have none, whatever their degrees; those of the old ones are found by their ids."""
    emb = made("position", own_rows=HUBS)
    emb.tables[-1].weight[:] = torch.arange(3.0, dtype=torch.float64)[:, None] + 1
    place = ge.save_checkpoint(tmp_path / "1", tables=[emb])
    kept, rows = emb.own_rows, emb.weight[:]
    assert kept.tolist() == sorted(HUBS)
    del emb
    ge.shutdown()
    levels = np.concatenate([LEVELS, LEVELS[:4]])
    grown = ge.ComposedEmbedding(levels, D, "position", name="node", seed=3, dtype=torch.float64, own_rows=kept)
    ge.load_checkpoint(place, tables=[grown], weights_only=True, allow_new_rows=True)
    torch.testing.assert_close(grown.weight[:N], rows)
    torch.testing.assert_close(grown.weight[N:], grown.rows_of_new(range(N, N + 4), levels[N:]))


def test_nodes_of_highest_degree_are_chosen_by_degree_type_and_id() -> None:
    degrees = [np.array([1, 5, 3, 3]), np.array([3, 9, 0])]
    for count, expected in (
        (1, [[], [1]]),
        (3, [[1, 2], [1]]),
        (5, [[1, 2, 3], [0, 1]]),
        (7, [[0, 1, 2, 3], [0, 1, 2]]),
    ):
        assert [own.tolist() for own in of_highest_degree(degrees, count)] == expected
    with pytest.raises(ConfigError, match="own_rows = 8: there are 7 entities; give at most as many"):
        of_highest_degree(degrees, 8, "entities")


@pytest.mark.parametrize(
    ("kind", "own", "error", "message"),
    [
        ("full", [1], ConfigError, "kind 'full' has a row for each node; leave out own_rows"),
        ("position", [], ConfigError, "own_rows has no node"),
        ("position", [3, 4, 3], ConfigError, "own_rows has 1 of 3 nodes again"),
        ("hash", [N], PartitionError, f"{N}"),
    ],
)
def test_nodes_that_do_not_fit_are_refused(kind: str, own: list[int], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        made(kind, own_rows=torch.tensor(own, dtype=torch.int64))
