"""Optimizers by address: one for every rule, each the rule's own with its rate."""

from __future__ import annotations

import pytest
import torch

import graph_emb as ge
from graph_emb.core.errors import ConfigError
from graph_emb.optimizer import BY_ADDRESS
from graph_emb.sparse_optimizer import SparseOptimizer
from tests.growing_oracle import IDS, INIT

pytestmark = pytest.mark.usefixtures("local_mode")


def table(name: str) -> ge.DistEmbedding:
    return ge.DistEmbedding(ge.growing(max_rows=len(IDS)), 2, name, INIT)


def test_every_sparse_optimizer_has_a_rule_by_address() -> None:
    kinds = {kind for name in ge.__all__ if isinstance(kind := getattr(ge, name), type)}
    assert set(BY_ADDRESS.values()) == {kind for kind in kinds if issubclass(kind, SparseOptimizer)} - {SparseOptimizer}


@pytest.mark.parametrize("rule", BY_ADDRESS)
def test_an_optimizer_by_address_is_the_rules_with_its_rate(rule: str) -> None:
    grads, found = torch.tensor([[1.0, -2.0], [0.5, 0.5], [3.0, 0.0]]), []
    for make in (
        lambda emb: ge.create_hash_optimizer_by_address([emb], rule, learning_rate=0.25),
        lambda emb: BY_ADDRESS[rule]([emb], lr=0.25),
    ):
        emb = table(f"table {len(found)}")
        opt = make(emb)
        for _ in range(3):
            _, slots = emb.lookup([5, -7, 5])
            opt.apply_gradients([(grads, slots)])
        found.append(emb.weight[[5, -7]])
    assert torch.equal(*found)
    assert not torch.equal(found[0], table("first").weight[[5, -7]])


def test_what_an_optimizer_by_address_cannot_be_is_said() -> None:
    fixed, emb = ge.DistEmbedding(3, 2, "fixed"), table("growing")
    with pytest.raises(ConfigError, match=r"unknown rule 'adagard'.*did you mean 'adagrad'"):
        ge.create_hash_optimizer_by_address([emb], "adagard")
    with pytest.raises(ConfigError, match=r"lr=1\.0; give it as learning_rate"):
        ge.create_hash_optimizer_by_address([emb], lr=1.0)
    with pytest.raises(ConfigError, match="betta"):
        ge.create_hash_optimizer_by_address([emb], betta=1.0)
    with pytest.raises(ConfigError, match="table 'fixed' does not grow and has no slots"):
        ge.create_hash_optimizer_by_address([fixed])
    ge.SparseSGD([fixed], lr=1.0)  # the table is free


def test_forged_slots_change_no_later_look_up() -> None:
    """Slots were the places that the table keeps for the next call of the same ids, which then read other rows."""
    emb = ge.DistEmbedding(ge.growing(9), 2, "growing", ge.initializers.Uniform(seed=0))
    opt = ge.SparseSGD([emb], lr=1.0)
    opt.update([1, 2], torch.tensor([[0.0, 0.0], [5.0, 5.0]]), emb)
    before = emb.weight[[1, 2]]
    opt.update([], torch.empty(0, 2), emb)
    _, slots = emb.lookup([1, 2])
    assert slots.places is not None
    slots.places[:] = [1, 0]
    assert torch.equal(emb(torch.tensor([1, 2])), before)
    opt.update([1, 2], torch.tensor([[0.0, 0.0], [1.0, 1.0]]), emb)
    assert torch.equal(emb.weight[[1, 2]], before - torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
