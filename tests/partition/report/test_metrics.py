"""Every count equals the one made edge by edge in plain Python, and DGL's own halo."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from partition.assignment import EdgeOwner
from partition.report.flat import FlatGraph
from partition.report.metrics import measure_cut
from partition.vertex_cut import edge_owner
from tests.partition.report.graphs import CITES, WRITES, communities, random_typed


@pytest.mark.parametrize("num_parts", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_every_count_equals_brute_force(seed: int, num_parts: int) -> None:
    graph, assignment = random_typed(seed, num_parts)
    cut = measure_cut(FlatGraph(graph), FlatGraph(graph).parts_of(assignment), num_parts)
    pairs, halo, inbound, of_type = Counter(), set(), set(), {}
    for etype, ends in graph.edges.items():
        crossing = []
        for u, v in zip(*ends, strict=True):
            a, b = int(assignment.parts[etype[0]][u]), int(assignment.parts[etype[2]][v])
            pairs[a, b] += 1
            crossing.append(a != b)
            if a != b:
                inbound.add((b, etype[0], int(u)))
                halo |= {(b, etype[0], int(u)), (a, etype[2], int(v))}
        of_type[etype] = crossing
    crossing = of_type[WRITES] + of_type[CITES]
    assert cut.edge_matrix.tolist() == [[pairs[i, j] for j in range(num_parts)] for i in range(num_parts)]
    assert cut.cut == pytest.approx(sum(crossing) / len(crossing), abs=1e-12)
    assert cut.cut_by_relation == {e: pytest.approx(sum(of_type[e]) / len(of_type[e])) for e in (WRITES, CITES)}
    assert cut.edges.tolist() == [sum(pairs[i, j] for i in range(num_parts)) for j in range(num_parts)]
    assert cut.halo.tolist() == [sum(held[0] == part for held in halo) for part in range(num_parts)]
    assert cut.halo_inbound.tolist() == [sum(held[0] == part for held in inbound) for part in range(num_parts)]
    assert cut.replication_factor == pytest.approx((20 + len(halo)) / 20)
    assert cut.replication_factor_inbound == pytest.approx((20 + len(inbound)) / 20)


def test_balance_is_the_largest_over_the_mean_of_each_kind() -> None:
    graph, assignment = random_typed(seed=0, num_parts=2)
    assignment.parts = {
        "author": np.array([0, 0, 0, 0, 0, 0, 1], np.int32),
        "paper": np.array([0] * 4 + [1] * 7, np.int32),
        "venue": np.array([1, 1], np.int32),
    }
    graph.node_data["paper"]["train_mask"] = np.arange(11) < 5
    balance = measure_cut(FlatGraph(graph), FlatGraph(graph).parts_of(assignment), 2).balance
    edges = sum(int((assignment.parts["paper"][graph.edges[etype][1]] == 0).sum()) for etype in (WRITES, CITES))
    assert balance == {
        "nodes": 1.0,
        "edges": pytest.approx(max(edges, 55 - edges) / 27.5),
        "type:author": pytest.approx(6 / 3.5),
        "type:paper": pytest.approx(7 / 5.5),
        "type:venue": 2.0,
        "train": pytest.approx(4 / 2.5),
        "test": 2.0,
    }


@pytest.mark.parametrize("rule", ["destination", "source", "balanced"])
def test_a_part_owns_the_edges_that_the_rule_gives_it(rule: EdgeOwner) -> None:
    """Edges were always counted where they enter, so a hub looked like the load of one part."""
    graph, assignment = random_typed(seed=0, num_parts=3)
    cut = measure_cut(FlatGraph(graph), assignment.homogeneous(), 3, rule)
    owners = np.concatenate(list(edge_owner(graph, assignment, rule).values()))
    assert cut.edges.tolist() == np.bincount(owners, minlength=3).tolist()
    assert cut.balance["edges"] == pytest.approx(cut.edges.max() / (55 / 3))


def test_the_halo_is_the_one_that_dgl_makes() -> None:
    from graph_emb.compat.dgl import load

    dgl = load()
    graph, assignment = communities(seed=3, num_nodes=400)
    (ends,) = graph.edges.values()
    whole = dgl.graph(ends, num_nodes=400)
    import torch

    halos, _, _ = dgl.partition.partition_graph_with_halo(
        whole, torch.from_numpy(assignment.homogeneous().astype(np.int64)), 1, reshuffle=True
    )
    cut = measure_cut(FlatGraph(graph), assignment.homogeneous(), 4)
    assert [int((halos[part].ndata["inner_node"] == 0).sum()) for part in range(4)] == cut.halo.tolist()
    assert [int((halos[part].edata["inner_edge"] == 1).sum()) for part in range(4)] == cut.edges.tolist()


def test_a_graph_without_edges_cuts_none() -> None:
    graph, assignment = random_typed(seed=0, num_parts=2)
    graph.edges = {etype: (src[:0], dst[:0]) for etype, (src, dst) in graph.edges.items()}
    cut = measure_cut(FlatGraph(graph), assignment.homogeneous(), 2)
    assert (cut.cut, cut.cut_by_relation, cut.replication_factor) == (0.0, {}, 1.0)
    assert "edges" not in cut.balance
