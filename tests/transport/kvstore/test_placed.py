"""Tables at DGL's servers with rows in files are those in memory, where no row is pushed by two trainers at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graph_emb as ge
from graph_emb.core.errors import ConfigError, ModeError
from graph_emb.graph.csr import Graph
from graph_emb.graph.original_ids import ArrayIds
from graph_emb.graph.triples import KnowledgeGraph
from graph_emb.models.kge.config import KGEConfig
from graph_emb.models.kge.training import train_kge
from graph_emb.models.skipgram.config import SkipGramConfig
from graph_emb.models.skipgram.training import SkipGram, train_skipgram
from graph_emb.sampling.walks import WalkSampler
from partition.partitioned import PartPolicy
from tests.transport.kvstore.cluster import Cluster, shared_memory_is_clean
from tests.transport.kvstore.test_growing import check_same, locally

pytestmark = pytest.mark.dist

NUM, DIM, STEPS = 1000, 16, 8
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any], torch.dtype]] = {
    "sgd": (ge.SparseSGD, {"lr": 0.1}, torch.float32),
    "adagrad": (ge.SparseAdagrad, {"lr": 0.1}, torch.float64),
    "adam, lazy decay": (ge.SparseAdam, {"lr": 0.1, "weight_decay": 0.1}, torch.float64),
    "row adam": (ge.SparseRowAdam, {"lr": 0.1}, torch.float32),
}
PARTED = PartPolicy("node~_N", ge.RangeBook([0, 400, NUM]), ArrayIds(np.random.default_rng(0).permutation(NUM), NUM))


def placed(folder: str | None, memory: int = 24_000) -> Any:
    """Memory for about a third of the rows of a server that has them all."""
    return "host" if folder is None else ge.File(folder, memory=memory, policy="lookahead")


def share(step: int, rank: int, world_size: int) -> Tensor:
    """Ids, with repeats; those of different trainers never meet."""
    ids = np.random.default_rng(step).integers(0, NUM, 120)
    return torch.from_numpy(ids[ids % world_size == rank])


def train(
    transport: Any, ranks: list[int], world_size: int, placement: Any, policy: Any = None, freezes: bool = True
) -> dict[str, Any]:
    """Rows and state of tables after some steps, each with another rule; local mode trains all shares."""
    found: dict[str, Any] = {}
    for name, (make, numbers, dtype) in OPTIMIZERS.items():
        emb = ge.DistEmbedding(
            NUM, DIM, f"t {name}", ge.initializers.Uniform(seed=3), policy, dtype=dtype, placement=placement
        )
        opt = make([emb], **numbers)
        for step in range(STEPS):
            shares = [share(step, rank, world_size) for rank in ranks]
            ids, named = torch.cat(shares), torch.cat([one[:5] for one in shares]).unique()
            if step == 3 and freezes:
                emb.freeze(named)
            if step == 5:
                emb.reset_rows(named)
            if step == 6:
                emb.weight[named] = torch.ones(len(named), DIM)
            transport.barrier()
            rows = emb(ids)
            emb.prefetch(torch.cat([share(step + 1, rank, world_size) for rank in ranks]))
            (rows * torch.arange(DIM)).square().sum().backward()
            opt.step()
            opt.zero_grad()
            transport.flush()
            transport.barrier()
        found[name] = emb.weight[:]
        found |= {f"{name}: {k}": v[:] for k, v in emb.optm_state.items() if not isinstance(v, Tensor)}
        if placement != "host":
            assert emb.cache_stats().dirty_writes > 0
        transport.barrier()
    return found


def as_rank(transport: Any, *args: Any) -> dict[str, Any]:
    return train(transport, [transport.rank], transport.world_size, *args)


@pytest.mark.parametrize(
    ("machines", "servers", "trainers", "policy", "options"),
    [
        (2, 2, 3, PARTED, {}),
        (2, 1, 1, None, {}),  # no trainer runs on the second machine
        (1, 2, 2, None, {"hogwild": True}),
    ],
)
def test_rows_in_files_of_servers_are_those_in_memory(
    tmp_path: Path, machines: int, servers: int, trainers: int, policy: Any, options: dict[str, Any]
) -> None:
    freezes = not options
    expected = locally(train, list(range(trainers)), trainers, "host", policy, freezes)
    with shared_memory_is_clean():
        everyone = Cluster(trainers, machines, servers, **options).run(
            as_rank, placed(str(tmp_path), 24_000 if servers * machines == 1 else 14_000), policy, freezes
        )
    for found in everyone:
        check_same(found, expected)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_of_memory_at_servers_gives_the_rows_of_memory() -> None:
    expected = locally(train, [0, 1], 2, "host")
    for found in Cluster(2).run(as_rank, ge.DeviceCache(memory=24_000)):
        check_same(found, expected)


def go_on(
    transport: Any, ranks: list[int], world_size: int, placement: Any, steps: tuple[int, int], load: Any, save: Any
) -> dict[str, Any]:
    """Steps [first, last) with the given trainers' shares, after a load and before a save."""
    emb = ge.DistEmbedding(NUM, DIM, "t", ge.initializers.Uniform(seed=3), dtype=torch.float64, placement=placement)
    opt = ge.SparseAdam([emb], lr=0.1, weight_decay=0.1)
    if load:
        ge.load_checkpoint(load, tables=[emb], optimizers=[opt])
    for step in range(*steps):
        emb(torch.cat([share(step, rank, world_size) for rank in ranks])).square().sum().backward()
        opt.step()
        transport.flush()
        transport.barrier()
    if save:
        ge.save_checkpoint(save, tables=[emb], optimizers=[opt], step=steps[1], background=True).wait()
    transport.barrier()
    return {"rows": emb.weight[:], **{k: v[:] for k, v in emb.optm_state.items() if not isinstance(v, Tensor)}}


def go_on_as_rank(transport: Any, *args: Any) -> dict[str, Any]:
    return go_on(transport, [transport.rank], transport.world_size, *args)


@pytest.mark.parametrize("way", ["from servers", "to servers"])
def test_a_checkpoint_goes_on_in_another_mode_with_the_same_bits(tmp_path: Path, way: str) -> None:
    expected = locally(go_on, [0, 1], 2, "host", (0, STEPS), None, None)
    place, files = str(tmp_path / "saved"), placed(str(tmp_path / "rows"))
    if way == "to servers":
        locally(go_on, [0, 1], 2, "host", (0, 4), None, place)
    else:
        Cluster(2, 1, 2).run(go_on_as_rank, files, (0, 4), None, place)
    if way == "from servers":
        found = [locally(go_on, [0, 1], 2, "host", (4, STEPS), place, None)]
    else:
        found = Cluster(2, 2, 1).run(go_on_as_rank, files, (4, STEPS), place, None)
    for one in found:
        check_same(one, expected)


def refusals(transport: Any, folder: str) -> list[str]:
    said: list[str] = []

    def refused(error: type[Exception], call: Any) -> None:
        with pytest.raises(error) as found:
            call()
        said.append(str(found.value))

    refused(ConfigError, lambda: ge.DistEmbedding(NUM, DIM, "small", placement=ge.File(folder, memory=100)))
    before = os.getcwd()
    os.chdir(folder)  # where the servers are not
    emb = ge.DistEmbedding(NUM, DIM, "t", ge.initializers.Uniform(seed=3), placement=ge.File("rows", memory=24_000))
    os.chdir(before)
    assert len(os.listdir(Path(folder, "rows"))) == 2  # of a server each
    refused(ModeError, lambda: transport.register_push_handler("t", lambda *_: None))
    opt = ge.SparseAdagrad([emb], lr=0.1)
    refused(ModeError, opt.state_dict)
    emb.hold([(0, 50), (700, 750)])
    before = emb.cache_stats()
    emb(torch.cat([torch.arange(50), torch.arange(700, 750)]))
    after = emb.cache_stats()
    assert after.hit_rows - before.hit_rows == after.requested - before.requested == 100
    refused(ConfigError, lambda: ge.DistEmbedding(NUM, DIM, "host").cache_stats())
    opt.close()
    other = ge.SparseAdam([emb], lr=0.1)  # rows stay, and another layout holds its state
    emb(torch.arange(NUM)).sum().backward()
    other.step()
    transport.flush()
    return said


def test_what_servers_cannot_do_with_rows_in_files_is_refused(tmp_path: Path) -> None:
    ((small, handler, state, memory),) = Cluster(1, 1, 2).run(refusals, str(tmp_path))
    assert "memory=100 B is below the least" in small
    assert "a push handler needs all of them in memory" in handler
    assert "servers have them: emb(ids), emb.weight[ids], save_checkpoint()" in state
    assert "lies in memory and has no cache" in memory
    assert list((tmp_path / "rows").iterdir()) == []


def different_placements(transport: Any, folder: str) -> str:
    if transport.rank == 0:
        emb = ge.DistEmbedding(NUM, DIM, "t", placement=ge.File(folder, memory=24_000))
    transport.barrier()
    if transport.rank == 1:
        with pytest.raises(ConfigError) as found:
            ge.DistEmbedding(NUM, DIM, "t")
        transport.barrier()
        return str(found.value)
    transport.barrier()
    return emb.name


def test_trainers_that_place_a_table_differently_are_told(tmp_path: Path) -> None:
    said = Cluster(2).run(different_placements, str(tmp_path))[1]
    assert "trainer 1 makes it (1000, 16) of torch.float32, placement=host, another one (1000, 16)" in said
    assert f"placement=File(folder='{tmp_path}'" in said


def walk(transport: Any, placement: Any) -> Tensor:
    ends = np.random.default_rng(0).integers(0, 400, (2, 1500))
    graph = Graph.from_edges(*ends, num_nodes=400, self_loops="drop")
    model = SkipGram(400, SkipGramConfig(dim=16, epochs=1), placement=placement, name="node")
    sampler = WalkSampler(graph, num_walks=1, walk_length=10, seed=0)
    train_skipgram(sampler, model=model, num_threads=1, progress=False)
    transport.flush()
    return model.embeddings()


def by_buckets(transport: Any, folder: str) -> str:
    triples = np.random.default_rng(0).integers(0, (400, 4, 400), (1000, 3))
    graph = KnowledgeGraph("some", 400, 4, {"train": triples})
    config = KGEConfig(model="complex", dim=16, batch_size=64, chunk_size=16, epochs=1, valid_every=0, buckets=4)
    with pytest.raises(ConfigError) as found:
        train_kge(graph, config, placement=ge.Buckets(folder, memory=60_000, parts=4), progress=False)
    return str(found.value)


def test_models_train_alike_where_servers_hold_the_files(tmp_path: Path) -> None:
    """Steps that copy rows of a file in this process are for one that has it."""
    (expected,), (found,) = (Cluster().run(walk, one) for one in ("host", placed(str(tmp_path))))
    assert torch.equal(found, expected)
    (said,) = Cluster().run(by_buckets, str(tmp_path))
    assert "train.buckets = 4: servers hold the files of the entities; leave it out" in said
