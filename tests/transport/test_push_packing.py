"""What a push sends: merged rows, owner after owner."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graph_emb.graph.partition_book import RankRanges, cut
from graph_emb.optim.apply import Merge, merge
from graph_emb.optim.rule import Rule
from graph_emb.optim.rules import SGD, OccurrenceRowAdagrad
from graph_emb.table.spec import CPU
from graph_emb.transport.base import Push
from graph_emb.transport.push_packing import pack, pack_share, settle

OWNERS = RankRanges([0, 4, 4, 9], [0, 1, 2], 3)
IDS = torch.tensor([8, 1, 8, 0, 5, 1, 8])


def push(rule: Rule, how: Merge, dtype: torch.dtype) -> Push:
    grads = torch.arange(14, dtype=dtype).view(7, 2) / 3
    return Push("t", IDS, grads, rule, how)


def fresh(ids: Tensor, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return ids.clone(), torch.full((len(ids), width), torch.nan, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("how", ["sum", "mean"])
def test_each_owner_gets_its_rows_merged(how: Merge, dtype: torch.dtype) -> None:
    sent = push(SGD(0.1), how, dtype)
    packed = pack(sent, OWNERS, dtype, CPU, fresh)
    assert cut(packed.counts) == [(0, 0, 2), (2, 2, 4)]
    assert packed.distinct
    ids, grads = merge(sent.ids, sent.grads, how)
    order = torch.argsort(packed.ids)
    assert torch.equal(packed.ids[order], ids)
    assert torch.allclose(packed.grads[order], grads)
    assert sorted(packed.ids[:2].tolist()) == [0, 1]


def test_a_rule_that_wants_every_occurrence_gets_it() -> None:
    packed = pack(push(OccurrenceRowAdagrad(0.1), "sum", torch.float32), OWNERS, torch.float32, CPU, fresh)
    assert sorted(packed.ids.tolist()) == sorted(IDS.tolist())
    assert cut(packed.counts) == [(0, 0, 3), (2, 3, 7)]
    assert not packed.distinct


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("how", ["sum", "mean"])
def test_a_share_of_one_rank_alone_settles_to_the_merged_push(how: Merge, dtype: torch.dtype) -> None:
    sent = push(SGD(0.1), how, dtype)
    packed = pack_share(sent, OWNERS, dtype, CPU)
    assert OWNERS.owner(packed.ids).tolist() == sorted(OWNERS.owner(packed.ids).tolist())
    assert sum(packed.counts) == len(packed.ids) == len(packed.grads)
    ids, grads = merge(*settle(packed)[:2], "sum")
    expected = merge(sent.ids, sent.grads, how)
    assert torch.equal(ids, expected[0])
    assert torch.allclose(grads, expected[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("how", ["sum", "mean"])
def test_a_share_tells_how_often_each_id_was_pushed_where_owners_count(how: Merge, dtype: torch.dtype) -> None:
    sent = push(SGD(0.1), how, dtype)
    assert settle(pack_share(sent, OWNERS, dtype, CPU))[2] is None or how == "mean"
    ids, _, occurrences = settle(pack_share(sent, OWNERS, dtype, CPU, counted=True))
    assert occurrences is not None
    assert torch.bincount(ids, occurrences).tolist() == torch.bincount(IDS).tolist()


def test_a_share_of_a_prepared_rule_carries_its_column() -> None:
    packed = pack_share(push(OccurrenceRowAdagrad(0.1), "sum", torch.float32), OWNERS, torch.float32, CPU)
    assert packed.grads.shape == (4, 3)
