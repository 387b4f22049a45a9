"""No server: the same interface, the same numbers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
import torch

import graph_emb as ge
from graph_emb.transport import runtime
from graph_emb.transport.kvstore.client import KVStoreTransport
from graph_emb.transport.local import StandaloneTransport
from tests.transport.kvstore.test_client import HANDLED, with_handlers
from tests.transport.kvstore.test_laws import reference, train


@pytest.fixture
def alone() -> Iterator[StandaloneTransport]:
    ge.shutdown()
    made = StandaloneTransport()
    runtime._active = made
    yield made
    ge.shutdown()


def test_standalone_equals_local(alone: StandaloneTransport) -> None:
    found = train(alone, 2, [0], 1)
    ge.shutdown()
    expected = reference(2, 1)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_handlers_run_here(alone: StandaloneTransport) -> None:
    assert [rows.tolist() for rows in with_handlers(alone)] == HANDLED


def test_what_a_trainer_can_call_can_be_called_alone() -> None:
    public = {name for name in vars(KVStoreTransport) if not name.startswith("_")}
    for name in public - {"lockstep", "mode"}:
        ours, theirs = getattr(StandaloneTransport, name), getattr(KVStoreTransport, name)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name


def test_mistakes_are_named(alone: StandaloneTransport) -> None:
    emb = ge.DistEmbedding(3, 2, name="t")
    with pytest.raises(ge.ShapeError, match="1 ids but 2 rows"):
        alone.push_data("t", torch.tensor([0]), torch.ones(2, 2))
    with pytest.raises(ge.PartitionError, match=r"id 3 is outside \[0, 3\)"):
        alone.push_data("t", torch.tensor([3]), torch.ones(1, 2))
    with pytest.raises(ge.ModeError, match="no table 'gone'"):
        alone.register_push_handler("gone", print)
    assert emb.num_embeddings == 3
