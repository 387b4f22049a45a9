"""First values depend on (seed, original id) alone: the table of any partition, mapped back, is the same."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
import partition
from graph_emb.core.errors import DataError, PartitionError
from graph_emb.graph.original_ids import ArrayIds, FileIds, SameIds
from graph_emb.table import initializers as ini
from partition.partitioned import PartPolicy
from tests.transport.kvstore.cluster import Cluster, close_idle

NUM, DIM = 30, 4


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    ge.shutdown()
    yield
    ge.shutdown()


@pytest.fixture(scope="module", autouse=True)
def _workers() -> Any:
    yield
    close_idle()


class Custom:
    """A user's initializer: ranges of ids only."""

    def fill_(self, weight: torch.Tensor, first_id: int) -> None:
        weight.copy_(torch.arange(first_id, first_id + len(weight)).unsqueeze(1).expand_as(weight))


INITIALIZERS: dict[str, Any] = {
    "uniform": ini.Uniform(seed=3),
    "normal": ini.Normal(seed=3),
    "xavier": ini.XavierUniform(NUM, seed=3),
    "array": ini.FromArray(np.arange(NUM * DIM, dtype=np.float32).reshape(NUM, DIM)),
    "custom": Custom(),
}


@pytest.fixture(scope="module")
def graph() -> partition.HeteroGraph:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, NUM, (2, 90))
    return partition.HeteroGraph({"_N": NUM}, {("_N", "_E", "_N"): (ends[0], ends[1])})


@pytest.fixture(scope="module")
def policies(graph: partition.HeteroGraph, tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Any, Any]]:
    """Policies of nodes and of edges, by the number of parts."""
    found = {}
    for parts in (1, 2, 3, 4):
        out = tmp_path_factory.mktemp("parts") / str(parts)
        made = partition.build(graph, num_parts=parts, method="random", out=out, report=False, progress=False)
        found[parts] = (made.policy(), made.policy(etype="_E"))
    return found


def mapped_back(num_rows: int, initializer: Any, policy: Any = None) -> torch.Tensor:
    """A table's first values by original id, in the active mode."""
    table = ge.DistEmbedding(num_rows, DIM, "t", initializer, policy)
    return table.weight[:][torch.from_numpy(table.original_ids.find(np.arange(num_rows)))]


@pytest.mark.parametrize("kind", [0, 1], ids=["nodes", "edges"])
@pytest.mark.parametrize("name", INITIALIZERS)
def test_a_table_mapped_back_does_not_depend_on_its_partition(
    name: str, kind: int, policies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_rows = policies[1][kind].book.num_rows
    initializer = ini.FromArray(torch.randn(num_rows, DIM)) if name == "array" else INITIALIZERS[name]
    expected = mapped_back(num_rows, initializer)
    assert len(expected.unique(dim=0)) == num_rows
    monkeypatch.setattr(ini, "CHUNK_ELEMENTS", 5 * DIM)
    for parts in (1, 2, 3, 4):
        assert torch.equal(mapped_back(num_rows, initializer, policies[parts][kind]), expected), parts


def in_a_rank(name: str, policy: Any) -> torch.Tensor:
    """In collective mode."""
    ge.init("collective")
    try:
        return mapped_back(NUM, INITIALIZERS[name], policy)
    finally:
        ge.shutdown()


def in_a_trainer(transport: Any, name: str, policy: Any) -> torch.Tensor:
    """In kvstore mode; nobody leaves before all have pulled."""
    found = mapped_back(NUM, INITIALIZERS[name], policy)
    transport.barrier()
    return found


@pytest.mark.dist
@pytest.mark.parametrize("name", ["uniform", "array"])
def test_neither_do_ranks_matter(name: str, policies: Any, ranks: Any) -> None:
    expected = mapped_back(NUM, INITIALIZERS[name])
    for found in ranks.run(in_a_rank, 2, name, policies[3][0]):
        assert torch.equal(found, expected)


@pytest.mark.dist
@pytest.mark.parametrize("where", ["files", "memory", "files of another host"])
def test_nor_do_servers(where: str, policies: Any, tmp_path: Path) -> None:
    policy, expected = policies[2][0], mapped_back(NUM, INITIALIZERS["uniform"])
    if where == "memory":
        policy = PartPolicy(policy.policy_str, policy.book, ArrayIds(policy.original_ids.of(0, NUM), NUM))
    if where == "files of another host":
        policy = PartPolicy(policy.policy_str, policy.book, Elsewhere(policy.original_ids.of(0, NUM), NUM))
    (found,) = Cluster(1, 2, 2).run(in_a_trainer, "uniform", policy)
    assert torch.equal(found, expected)


class Elsewhere(FileIds):
    """Files that this trainer sees and no server does: a server unpickles ``FileIds`` of paths that are not there."""

    def __init__(self, array: np.ndarray, num_rows: int) -> None:
        super().__init__(Path("/nowhere/a.npy"), Path("/nowhere/b.npy"))
        object.__setattr__(self, "held", ArrayIds(array, num_rows))

    def __reduce__(self) -> Any:
        from multiprocessing import current_process

        if "held" in self.__dict__ and current_process().name == "MainProcess":
            return Elsewhere, (self.held.of(0, NUM), NUM)  # type: ignore[attr-defined]
        return FileIds, (self.to_original, self.to_partition)

    @property
    def num_rows(self) -> int:
        return NUM

    def of(self, low: int, high: int) -> np.ndarray:
        return self.held.of(low, high)  # type: ignore[attr-defined]

    def find(self, original: np.ndarray) -> np.ndarray:
        return self.held.find(original)  # type: ignore[attr-defined]


def test_the_maps_agree_in_both_directions_and_read_only_what_is_asked(policies: Any) -> None:
    ids = policies[4][0].original_ids
    assert isinstance(ids, FileIds)
    assert isinstance(ids._map(ids.to_original), np.memmap)
    held = ArrayIds(ids.of(0, NUM), NUM)
    asked = np.array([3, -1, NUM, 0, 3, 2**40])
    for one in (ids, held, SameIds(NUM), pickle.loads(pickle.dumps(ids))):
        found = one.find(asked)
        assert found[[1, 2, 5]].tolist() == [-1, -1, -1]
        assert np.concatenate([one.of(place, place + 1) for place in found[[0, 3, 4]]]).tolist() == [3, 0, 3]
    sparse = ArrayIds(np.array([7, 10**12, 0]), 3)
    assert sparse.find(np.array([0, 1, 10**12, 7, 10**13])).tolist() == [2, -1, 1, 0, -1]
    assert ArrayIds(np.array([1, 0]), 2, first_id=5).find(np.array([0, 1, 2])).tolist() == [6, 5, -1]
    own = ArrayIds(ids.of(10, 20), 10, first_id=10)
    assert own.of(12, 15).tolist() == ids.of(12, 15).tolist()


def test_a_partition_of_dgl_without_maps_takes_its_ids_as_original(policies: Any) -> None:
    book = policies[3][0].book
    table = ge.DistEmbedding(NUM, DIM, "plain", ini.Uniform(seed=3), book)
    assert isinstance(table.original_ids, SameIds)
    assert torch.equal(table.weight[:], mapped_back(NUM, ini.Uniform(seed=3)))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 1, 2], r"original_ids has 3 ids but num_embeddings is 4"),
        ([0, 1, 2, 2], r"original id 2 is given to two rows"),
        ([0, 1, -2, 2], r"original id -2 is negative"),
        ([0.0, 1.0, 2.0, 3.0], r"shape \(4,\) of float64; pass \(num_embeddings,\) integers"),
    ],
)
def test_maps_that_are_none_are_refused(ids: list[Any], message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        ge.DistEmbedding(4, 2, "t", original_ids=np.array(ids))


def test_a_map_that_was_moved_away_is_named() -> None:
    with pytest.raises(DataError, match=r"/nowhere/map.npy: cannot be read .*on this host"):
        FileIds(Path("/nowhere/map.npy"), Path("/nowhere/back.npy")).of(0, 1)
