"""The local transport and the choice of the active one."""

from __future__ import annotations

import pytest
import torch

import graph_emb as ge
from graph_emb.graph.partition_book import RangeBook
from graph_emb.optim import apply as apply_module
from graph_emb.optim.rules import SGD, Adagrad
from graph_emb.table.initializers import FromArray
from graph_emb.table.spec import TableSpec
from graph_emb.transport import local as local_module
from graph_emb.transport import runtime
from graph_emb.transport.base import Push
from graph_emb.transport.local import LocalTransport

ROWS = torch.arange(14.0).view(7, 2)


def transport(num_parts: int = 1) -> LocalTransport:
    made = LocalTransport()
    made.create(TableSpec("t", 7, 2, RangeBook.even(7, num_parts), FromArray(ROWS)))
    return made


@pytest.fixture(autouse=True)
def fresh_mode() -> None:
    ge.shutdown()


@pytest.mark.parametrize("num_parts", [1, 3, 9])
def test_pull_keeps_order_and_duplicates_for_any_number_of_parts(num_parts: int) -> None:
    ids = torch.tensor([6, 0, 6, 3])
    assert torch.equal(transport(num_parts).pull("t", ids), ROWS[ids])


def test_push_is_an_update_at_the_owner() -> None:
    made = transport()
    made.push([Push("t", torch.tensor([1, 1]), torch.ones(2, 2), SGD(0.5), "sum")])
    assert made.pull("t", torch.tensor([1]))[0].tolist() == [1.0, 2.0]
    made.flush()
    made.barrier()


def test_attach_and_detach_own_the_state() -> None:
    made = transport()
    made.attach("t", Adagrad(0.1))
    assert set(made.shard("t").state) == {"sum"}
    with pytest.raises(ge.ModeError, match="another optimizer"):
        made.attach("t", Adagrad(0.1))
    made.detach("t")
    assert made.shard("t").state == {}
    made.detach("gone")
    made.attach("t", Adagrad(0.1))


def test_a_name_is_given_once_and_freed_by_destroy() -> None:
    made = transport()
    spec = TableSpec("t", 1, 1, RangeBook.even(1), FromArray(torch.zeros(1, 1)))
    with pytest.raises(ge.ConfigError, match=r"shape \(7, 2\) is alive"):
        made.create(spec)
    made.destroy("t")
    made.destroy("t")
    made.create(spec)
    assert made.shard("t").num_rows == 1


def test_a_closed_transport_says_what_to_do() -> None:
    made = transport()
    made.close()
    for call in (made.flush, made.barrier, lambda: made.shard("t"), lambda: made.pull("t", torch.tensor([0]))):
        with pytest.raises(ge.ModeError, match=r"graph_emb\.init"):
            call()


def test_init_chooses_once_and_shutdown_frees() -> None:
    assert ge.init("local").world_size == 1
    with pytest.raises(ge.ModeError, match="already"):
        ge.init()
    emb = ge.DistEmbedding(3, 2, name="a")
    ge.shutdown()
    ge.shutdown()
    with pytest.raises(ge.ModeError, match="shut down"):
        emb(torch.tensor([0]))
    assert ge.DistEmbedding(3, 2, name="a")(torch.tensor([0])).shape == (1, 2)


@pytest.mark.parametrize("mode", ["local", "collective", "kvstore"])
def test_an_option_that_a_mode_does_not_have_names_the_nearest(mode: str) -> None:
    with pytest.raises(ge.ConfigError, match=f"unknown option of mode '{mode}' 'stalenes'"):
        ge.init(mode, stalenes=1)
    assert runtime.current().rank == 0


def test_an_unknown_mode_names_the_nearest() -> None:
    with pytest.raises(ge.ConfigError, match="did you mean 'local'"):
        ge.init("lokal")


def test_ids_are_grouped_once_for_a_pull_and_its_push(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    for module in (local_module, apply_module):
        known = module.group_each
        monkeypatch.setattr(module, "group_each", lambda each, known=known: calls.extend(map(len, each)) or known(each))
    emb = ge.DistEmbedding(7, 2, init_func=FromArray(ROWS))
    opt = ge.SparseSGD([emb], lr=1.0)
    ids = torch.tensor([3, 1, 3])
    rows = emb(ids)
    ids.fill_(0)  # the caller's memory, not the table's
    rows.sum().backward()
    opt.step()
    assert calls == [3]
    assert torch.equal(emb.weight[:] - ROWS, -torch.tensor([0.0, 1, 0, 2, 0, 0, 0]).unsqueeze(1).expand(7, 2))
    assert emb.traffic.distinct == 2 + 7


def test_groups_of_another_lookup_are_not_taken() -> None:
    emb = ge.DistEmbedding(7, 2, init_func=FromArray(ROWS))
    opt = ge.SparseSGD([emb], lr=1.0)
    first = emb(torch.tensor([3, 1, 3]))
    emb(torch.tensor([0, 2, 5]))
    first.sum().backward()
    opt.step()
    assert (emb.weight[:] - ROWS)[:, 0].tolist() == [0.0, -1.0, 0.0, -2.0, 0.0, 0.0, 0.0]
    both = emb(torch.tensor([6])).sum() + emb(torch.tensor([4])).sum()
    both.backward()
    opt.update(torch.tensor([0, 0]), torch.ones(2, 2), emb)
    opt.step()
    assert (emb.weight[:] - ROWS)[:, 0].tolist() == [-2.0, -1.0, 0.0, -2.0, -1.0, 0.0, -1.0]


def test_groups_leave_with_their_table() -> None:
    made = transport()
    made.attach("t", Adagrad(0.1))
    made.will_train([("t", torch.tensor([3, 1, 3]))])
    made.destroy("t")
    assert not made._grouped  # names count up, and nothing else would ever take them out
