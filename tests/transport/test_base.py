"""The contracts where many modules meet: every method of a protocol says what it does, and every transport has it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from graph_emb.graph.partition_book import PartitionBook
from graph_emb.optim.rule import SparseRule
from graph_emb.table.shard import EmbeddingShard
from graph_emb.transport.base import TableRows, Transport
from graph_emb.transport.collective import CollectiveTransport
from graph_emb.transport.kvstore.client import KVStoreTransport
from graph_emb.transport.local import LocalTransport, StandaloneTransport

CONTRACTS: list[type] = [Transport, PartitionBook, SparseRule, EmbeddingShard, TableRows]
TRANSPORTS: list[type] = [LocalTransport, CollectiveTransport, KVStoreTransport, StandaloneTransport]


def methods(contract: type) -> dict[str, Any]:
    """Its own public methods and properties."""
    return {
        name: member
        for name, member in vars(contract).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
def test_every_method_of_a_contract_is_described(contract: type) -> None:
    found = methods(contract)
    assert found
    assert [name for name, member in found.items() if not (member.__doc__ or "").strip()] == []
    assert (contract.__doc__ or "").strip()


@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: transport.__name__)
def test_every_transport_takes_the_arguments_of_the_contract(transport: type) -> None:
    for name, member in methods(Transport).items():
        own = inspect.getattr_static(transport, name)
        assert isinstance(own, property) == isinstance(member, property), name
        if not isinstance(member, property):
            assert list(inspect.signature(own).parameters) == list(inspect.signature(member).parameters), name
