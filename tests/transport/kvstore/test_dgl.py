"""Beside DGL's distributed graphs: policies, samplers, and scripts in which only the import changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graph_emb as ge
from graph_emb.compat import dgl as compat_dgl
from graph_emb.transport import guard
from graph_emb.transport.kvstore.layout import free_ports
from tests import dgl_servers
from tests.transport.kvstore.cluster import Cluster

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("one_dgl_graph", "warm_starts")]

NUM = 60


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two rings of friends joined by one edge; papers and their authors. One part each: DGL's own shared memory has
    one name per host, whatever the part."""
    dgl = compat_dgl.load()
    folder = tmp_path_factory.mktemp("parts")
    half = NUM // 2
    source = torch.tensor([(i // half) * half + (i + step) % half for i in range(NUM) for step in (1, 2, 3)])
    target = torch.arange(NUM).repeat_interleave(3)
    ring = dgl.to_bidirected(dgl.graph((source, target), num_nodes=NUM))
    ring.ndata["half"] = (torch.arange(NUM) >= half).long()
    papers, authors = torch.arange(40), torch.arange(40) % 20
    academic = dgl.heterograph(
        {
            ("author", "writes", "paper"): (authors, papers),
            ("paper", "written", "author"): (papers, authors),
            ("paper", "cites", "paper"): (papers, (papers + 2) % 40),
        }
    )
    academic.nodes["paper"].data["field"] = papers % 2
    for name, graph in (("ring", ring), ("academic", academic)):
        dgl.distributed.partition_graph(graph, name, 1, str(folder / name), part_method="random")
    return {name: str(folder / name / f"{name}.json") for name in ("ring", "academic")}


class Sage(nn.Module):
    """Two mean-aggregating layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        from dgl.nn.pytorch import SAGEConv

        self.layers = nn.ModuleList([SAGEConv(width, width, "mean") for _ in range(2)])

    def forward(self, blocks: list[Any], rows: Tensor) -> Tensor:
        rows = functional.relu(self.layers[0](blocks[0], rows))
        return self.layers[1](blocks[1], rows)


def link_prediction(dist_embedding: Any, sparse_optimizer: Any, num_epochs: int) -> list[float]:
    """Train GraphSAGE and input embeddings to tell edges from random pairs: DGL's unsupervised example, retold."""
    import dgl

    torch.manual_seed(0)
    graph = dgl.distributed.DistGraph("ring")
    edges = dgl.distributed.edge_split(torch.ones(graph.num_edges(), dtype=torch.bool), graph.get_partition_book())
    loader = dgl.dataloading.DistEdgeDataLoader(
        graph,
        edges,
        dgl.dataloading.NeighborSampler([4, 4]),
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(2),
        batch_size=120,
        shuffle=True,
        drop_last=False,
    )
    emb = dist_embedding(
        graph.num_nodes(), 8, name="input", init_func=spread, part_policy=graph.get_node_partition_policy("_N")
    )
    model = Sage(8)
    sparse = sparse_optimizer([emb], lr=0.05)
    dense = torch.optim.Adam(model.parameters(), lr=0.05)
    means = []
    for _ in range(num_epochs):
        losses = []
        for inputs, positive, negative, blocks in loader:
            rows = model(blocks, emb(inputs))
            scores = []
            for pairs in (positive, negative):
                u, v = pairs.edges()
                scores.append((rows[u] * rows[v]).sum(1))
            labels = torch.cat([torch.ones_like(scores[0]), torch.zeros_like(scores[1])])
            loss = functional.binary_cross_entropy_with_logits(torch.cat(scores), labels)
            sparse.zero_grad()
            dense.zero_grad()
            loss.backward()
            sparse.step()
            dense.step()
            losses.append(float(loss))
        means.append(sum(losses) / len(losses))
    return means


def spread(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An initializer in DGL's form."""
    return torch.linspace(-1, 1, shape[0] * shape[1], dtype=dtype).view(shape).sin()


class RGCN(nn.Module):
    """Two relational layers."""

    def __init__(self, relations: list[str], width: int, classes: int) -> None:
        super().__init__()
        from dgl.nn.pytorch import GraphConv, HeteroGraphConv

        self.layers = nn.ModuleList(
            HeteroGraphConv(
                {relation: GraphConv(width, out, norm="right", allow_zero_in_degree=True) for relation in relations}
            )
            for out in (width, classes)
        )

    def forward(self, blocks: list[Any], rows: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = {ntype: functional.relu(values) for ntype, values in self.layers[0](blocks[0], rows).items()}
        return self.layers[1](blocks[1], rows)


def entity_classification(dist_embedding: Any, sparse_optimizer: Any, num_epochs: int) -> list[float]:
    """Train R-GCN with an embedding per node type to classify papers: DGL's R-GCN example, retold."""
    import dgl

    torch.manual_seed(0)
    graph = dgl.distributed.DistGraph("academic")
    tables = {
        ntype: dist_embedding(
            graph.num_nodes(ntype), 8, name=ntype, init_func=spread, part_policy=graph.get_node_partition_policy(ntype)
        )
        for ntype in graph.ntypes
    }
    book = graph.get_partition_book()
    papers = dgl.distributed.node_split(torch.ones(graph.num_nodes("paper"), dtype=torch.bool), book, "paper")
    loader = dgl.dataloading.DistNodeDataLoader(
        graph, {"paper": papers}, dgl.dataloading.NeighborSampler([3, 3]), batch_size=20, shuffle=True, drop_last=False
    )
    model = RGCN(graph.etypes, 8, 2)
    sparse = sparse_optimizer(list(tables.values()), lr=0.05)
    dense = torch.optim.Adam(model.parameters(), lr=0.05)
    means = []
    for _ in range(num_epochs):
        losses = []
        for inputs, seeds, blocks in loader:
            logits = model(blocks, {ntype: tables[ntype](ids) for ntype, ids in inputs.items()})["paper"]
            loss = functional.cross_entropy(logits, graph.nodes["paper"].data["field"][seeds["paper"]])
            sparse.zero_grad()
            dense.zero_grad()
            loss.backward()
            sparse.step()
            dense.step()
            losses.append(float(loss))
        means.append(sum(losses) / len(losses))
    return means


SCRIPTS = {"ring": link_prediction, "academic": entity_classification}


def with_ours(transport: Any, name: str) -> list[float]:
    return SCRIPTS[name](ge.DistEmbedding, ge.SparseAdam, 5)


def with_dgls(transport: Any, name: str) -> int:
    """The same script with DGL's own classes, to know that it is a DGL script."""
    from dgl.distributed.nn.pytorch import DistEmbedding
    from dgl.distributed.optim.pytorch import SparseAdam

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)  # DGL 2.1.0's optimizers ask for it
    return len(SCRIPTS[name](DistEmbedding, SparseAdam, 1))


@pytest.mark.parametrize("name", list(SCRIPTS))
@pytest.mark.parametrize("trainers", [1, 2])
def test_a_dgl_script_trains_when_only_the_import_changed(graphs: dict[str, str], name: str, trainers: int) -> None:
    for losses in Cluster(trainers, 1, 2).run(with_ours, name, part_config=graphs[name]):
        assert losses[-1] < 0.9 * losses[0], losses


@pytest.mark.parametrize("name", list(SCRIPTS))
def test_the_scripts_are_dgl_scripts(graphs: dict[str, str], name: str) -> None:
    assert Cluster(1).run(with_dgls, name, part_config=graphs[name]) == [1]


def beside_distgraph(transport: Any) -> dict[str, Any]:
    import dgl

    def new_graph() -> Any:
        return dgl.distributed.DistGraph("ring")

    graph = new_graph()
    emb = ge.DistEmbedding(NUM, 2, name="e", part_policy=graph.get_node_partition_policy("_N"))
    edges = ge.DistEmbedding(graph.num_edges(), 2, name="f", part_policy=graph.get_edge_partition_policy("_E"))
    transport.register_push_handler("e", Plain())
    transport.barrier()
    again = new_graph()  # maps all that DGL's servers hold; our tables are none of its business
    mine = dgl.distributed.node_split(torch.ones(NUM, dtype=torch.bool), graph.get_partition_book())
    return {
        "names": sorted(again.ndata.keys()),
        "halves": int(again.ndata["half"][torch.arange(NUM)].sum()),
        "mine": mine.tolist(),
        "rank": graph.rank() == transport.rank,
        "edges": edges.num_embeddings == graph.num_edges(),
        "rows": emb.shard.num_rows,
    }


def without_policies(transport: Any) -> list[str]:
    import dgl

    graph = dgl.distributed.DistGraph("academic")
    sizes = [graph.num_nodes("author"), graph.num_edges(("author", "writes", "paper")), 7]
    found = []
    for size in sizes:
        try:
            found.append(str(getattr(ge.DistEmbedding(size, 2).part_policy, "policy_str", "even")))
        except ge.PartitionError as error:
            found.append(str(error))
    again = ge.DistEmbedding(sizes[0], 2, "named")
    found.append(ge.DistEmbedding(sizes[0], 2, "named").part_policy.policy_str)
    return [*found, again.name]


def test_a_table_without_a_policy_finds_the_one_of_its_size_as_in_dgl(graphs: dict[str, str]) -> None:
    (found,) = Cluster(1).run(without_policies, part_config=graphs["academic"])
    author, several, other, again, _ = found
    assert author == again == "node~author"
    assert "node~paper and edge~author:writes:paper and" in several
    assert "have 40 ids each; pass part_policy" in several
    assert other == "even"


class Plain:
    """A handler without __eq__."""

    def __call__(self, data: Any, name: str, ids: Tensor, values: Tensor) -> None:
        data[name][ids] = values


def test_distgraph_sees_its_own_data_only_and_splits_among_our_trainers(graphs: dict[str, str]) -> None:
    found = Cluster(2, 1, 2).run(beside_distgraph, part_config=graphs["ring"])
    assert sorted(found[0]["mine"] + found[1]["mine"]) == list(range(NUM))
    for one in found:
        assert one["names"] == ["half"]
        assert one["halves"] == NUM // 2
        assert one["rank"]
        assert one["edges"]
        assert one["rows"] == NUM // 2


def waits_in_dgl(transport: Any) -> None:
    import dgl
    from dgl.distributed import kvstore

    dgl.distributed.DistGraph("ring")
    transport.barrier()
    if transport.rank == 1:
        os._exit(9)
    kvstore.get_kvstore().barrier()


def test_dgls_own_waits_end_when_a_trainer_dies(graphs: dict[str, str]) -> None:
    cluster = Cluster(2)
    cluster.start(waits_in_dgl, part_config=graphs["ring"])
    outcomes = cluster.join()
    assert outcomes["trainer 1"].exit_code == 9
    assert "trainer 1" in outcomes["trainer 0"].error
    assert "PeerError" in outcomes["trainer 0"].error


INITIALIZED_BY_DGL = """
import os, sys
import graph_emb as ge
import dgl
import torch
dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])  # a server never returns
if "WORLD_SIZE" in os.environ:
    torch.distributed.init_process_group("gloo")
for pool in filter(None, [dgl.distributed.dist_context.SAMPLER_POOL]):
    pool.submit_task_to_all_workers(exec, os.environ["IN_SAMPLERS"])
graph = dgl.distributed.DistGraph("ring")
emb = ge.DistEmbedding(graph.num_nodes(), 4, name="e")
assert emb.part_policy.policy_str == "node~_N", emb.part_policy
opt = ge.SparseSGD([emb], lr=1.0)
for _ in range(3):
    emb(torch.arange(graph.num_nodes())).sum().backward()
    opt.step()
transport = emb.transport
transport.flush()
transport.barrier()
assert transport.mode == "kvstore"
assert transport.world_size == 2
assert torch.equal(emb.weight[:], torch.full((graph.num_nodes(), 4), -6.0)), emb.weight[:]
transport.barrier()
ge.shutdown()
"""
IN_SAMPLERS = """
import graph_emb as ge
try:
    ge.DistEmbedding(3, 2)
except ge.ModeError as error:
    print("refused:", error, flush=True)
"""
LAUNCHED = {
    "IN_SAMPLERS": IN_SAMPLERS,
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "DGL_NUM_SAMPLER": "1",
    "DGL_NUM_CLIENT": "4",
}
"""What DGL's launcher sets too: with it the script makes a process group, and each trainer has a sampler."""


@pytest.mark.slow
@pytest.mark.parametrize("launched", [{}, LAUNCHED])
def test_servers_that_dgl_started_serve_our_tables(
    graphs: dict[str, str], tmp_path: Path, launched: dict[str, str]
) -> None:
    """``dgl.distributed.initialize`` made the servers and the connection; they learn our service from a message, and no
    line of the script says so. Before, each trainer had a table of its own in silence."""
    more = {**launched, "MASTER_PORT": str(free_ports(1))} if launched else {}
    said = dgl_servers.run(["-c", INITIALIZED_BY_DGL], tmp_path, graphs["ring"], servers=2, trainers=2, **more)
    assert "\n".join(said).count("refused: this process is a sampler of DGL") == (2 if launched else 0), said


def test_connect_without_hosts_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from graph_emb.transport import kvstore

    monkeypatch.delenv(kvstore.HOSTS_VARIABLE, raising=False)
    assert kvstore.connect().world_size == 1
    with pytest.raises(ge.ConfigError, match="rank is given without hosts"):
        kvstore.connect(rank=0)
    with pytest.raises(ge.ConfigError, match="timeout 0 must be a positive number"):
        kvstore.connect(timeout=0)
    monkeypatch.setenv(kvstore.HOSTS_VARIABLE, "gone.txt")
    monkeypatch.setenv(guard.TOKEN_VARIABLE, guard.new_token())
    with pytest.raises(ge.ConfigError, match=r"hosts file gone\.txt does not exist"):
        kvstore.connect()
