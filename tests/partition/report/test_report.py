"""One report tells the same numbers as a table, as JSON and as a page that needs nothing else."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError, PartitionError
from partition.assignment import EdgeOwner
from partition.report import ForecastOptions, PartitionReport, report, to_html
from partition.report.forecast import FlatGraph
from partition.report.report import measure_cut, random_parts
from partition.vertex_cut import edge_owner
from tests.partition.report.graphs import CITES, WRITES, communities, random_typed

SMALL = ForecastOptions(walk_length=4, fanouts=(2, 3), batch_size=5, vertex_cut=True)


@pytest.fixture(scope="module")
def made() -> PartitionReport:
    graph, assignment = random_typed(seed=1, num_parts=3)
    assignment.method, assignment.why = "fennel", "<asked for>"
    graph.counts["self loops dropped"] = 1234
    return report(graph, assignment, SMALL)


def test_the_table_shows_given_beside_random(made: PartitionReport) -> None:
    table = made.table()
    lines = {line.strip().split("  ")[0]: line.split() for line in table.splitlines() if line.strip()}
    assert lines["cut edges"][-4:] == [
        f"{100 * made.given.cut.cut:.2f}",
        "%",
        f"{100 * made.random.cut.cut:.2f}",
        "%",
    ]
    assert lines["balance of train nodes"][-2] == f"{made.given.cut.balance['train']:.3f}"
    assert "author:writes:paper" in lines
    assert "remote rows of 2-hop samples (2, 3)" in table
    assert "1,234" in table
    assert "fennel, seed 0" in table


def test_json_holds_every_number(made: PartitionReport, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    text = made.to_json(path)
    read = json.loads(path.read_text())
    assert json.loads(text) == read
    assert read["given"]["cut_ratio"] == made.given.cut.cut
    assert read["given"]["edge_matrix"] == made.given.cut.edge_matrix.tolist()
    assert read["given"]["walks"]["remote_share"] == made.given.walks.share
    assert len(read["random"]["walks"]["remote_share_by_step"]) == 4
    assert [entry["remote_share"] for entry in read["given"]["sampling"]] == [hop.share for hop in made.given.hops]
    assert read["vertex_cut"]["replication_factor"] >= 1
    assert (read["method"], read["num_parts"], read["fanouts"]) == ("fennel", 3, [2, 3])
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_the_page_is_whole_in_itself_and_escapes_texts(made: PartitionReport, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    text = to_html(made, path)
    assert path.read_text() == text
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert len(images) == 5
    assert all(b64decode(image).startswith(b"\x89PNG\r\n") for image in images)
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert "&lt;asked for&gt;" in text
    assert "<asked for>" not in text
    assert f"{100 * made.given.cut.cut:.2f} %" in text


def test_a_graph_of_one_type_has_no_chart_of_relations() -> None:
    graph, assignment = communities(seed=0, num_nodes=200, groups=4)
    made = report(graph, assignment, SMALL)
    assert to_html(made).count("<img") == 4
    assert not any(label.startswith(" ") for label, _, _ in made.rows())


def test_masks_of_several_splits_are_left_out() -> None:
    """DGL's WikiCS has train_mask of shape (N, 20), which did not fit into a mask of (N,)."""
    graph, assignment = random_typed(seed=1, num_parts=3)
    graph.node_data["paper"]["train_mask"] = np.ones((11, 20), bool)
    graph.node_data["author"] = {"val_mask": np.arange(7)[:, None] < 3}
    made = report(graph, assignment, SMALL)
    assert {"train", "valid", "test"} & set(made.given.cut.balance) == {"valid", "test"}
    assert made.seeds == "all nodes"


def test_a_failed_write_leaves_nothing(made: PartitionReport, tmp_path: Path) -> None:
    (tmp_path / "report.json").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        made.to_json(tmp_path / "report.json")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_random_parts_have_equal_sizes_in_each_type() -> None:
    graph, _ = random_typed(seed=1, num_parts=3)
    parts = random_parts(FlatGraph(graph), 3, seed=7)
    assert sorted(np.bincount(parts[:7], minlength=3).tolist()) == [2, 2, 3]
    assert sorted(np.bincount(parts[7:18], minlength=3).tolist()) == [3, 4, 4]
    assert np.array_equal(parts, random_parts(FlatGraph(graph), 3, seed=7))
    assert not np.array_equal(parts, random_parts(FlatGraph(graph), 3, seed=8))


def test_the_same_input_makes_the_same_report() -> None:
    graph, assignment = random_typed(seed=2, num_parts=2)
    slower = replace(assignment, seconds=9.5, peak_bytes=1 << 30)
    first, second = (report(graph, made, SMALL) for made in (assignment, slower))
    assert first.to_dict() == second.to_dict()
    assert to_html(first) == to_html(second)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"walk_length": 0}, "walk_length = 0"),
        ({"batch_size": 2.5}, "batch_size = 2.5"),
        ({"fanouts": (3, 0)}, r"fanouts\[1\] = 0"),
        ({"fanouts": ()}, "fanouts is empty"),
    ],
)
def test_a_recipe_outside_its_limits_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ForecastOptions(**changes)


def test_an_assignment_of_another_graph_is_refused() -> None:
    graph, assignment = random_typed(seed=2, num_parts=2)
    assignment.parts["paper"] = assignment.parts["paper"][:-1]
    with pytest.raises(PartitionError, match="paper"):
        report(graph, assignment, SMALL)


@pytest.mark.parametrize("num_parts", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_every_count_equals_brute_force(seed: int, num_parts: int) -> None:
    graph, assignment = random_typed(seed, num_parts)
    cut = measure_cut(FlatGraph(graph), assignment.homogeneous(), num_parts)
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
    balance = measure_cut(FlatGraph(graph), assignment.homogeneous(), 2).balance
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
