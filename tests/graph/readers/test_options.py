"""An option of the wrong kind is told with its value and what is expected, before anything is read."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_origin

import numpy as np
import pytest

from graph_emb.core.errors import ConfigError
from graph_emb.graph.readers import READERS, read_graph
from graph_emb.graph.readers.source import KINDS, ReadOptions
from graph_emb.graph.typed import NODE_TYPE
from partition.cli import main


# A fraction was cut off, any word stood for true, and the rest raised whatever Python raises.
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_nodes": 4.7}, r"num_nodes=4.7: expected an integer, or one for each node type"),
        ({"num_nodes": "abc"}, "num_nodes='abc': expected an integer"),
        ({"num_nodes": True}, "num_nodes=True: expected an integer"),
        ({"num_nodes": {"_N": 4.7}}, r"num_nodes={'_N': 4.7}: expected an integer"),
        ({"directed": "maybe"}, "directed='maybe': expected True, False or None"),
        ({"reverse_types": "perhaps"}, "reverse_types='perhaps': expected True or False"),
        ({"reverse_types": None}, "reverse_types=None: expected True or False"),
        ({"header": "perhaps"}, "header='perhaps': expected True, False or None"),
        ({"comment": None}, "comment=None: expected text, '' for no comments"),
        ({"columns": 5}, "columns=5: expected a list of names"),
        ({"columns": "ab"}, "columns='ab': expected a list of names"),
        ({"columns": [0, 1]}, r"columns=\[0, 1\]: expected a list of names"),
        ({"separator": 5}, "separator=5: expected one character"),
        ({"edge_type": 5}, "edge_type=5: expected three names"),
        ({"name": 5}, "name=5: expected text"),
        ({"format": ["edges"]}, r"format=\['edges'\]: expected text"),
        ({"progress": "no"}, "progress='no': expected True, False or None"),
        ({"format": "triples", "order": 5}, "order=5: expected text, such as 'hrt'"),
        ({"format": "networkx", "node_attributes": "feat"}, "node_attributes='feat': expected a list of names"),
        ({"format": "networkx", "edge_attributes": 5}, "edge_attributes=5: expected a list of names"),
        ({"format": "dgl", "index": "1"}, "index='1': expected an integer"),
        ({"format": "ogb", "root": 5}, "root=5: expected a path"),
        ({"format": "ogb", "download": "no"}, "download='no': expected True or False"),
    ],
)
def test_a_value_of_another_kind_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    (tmp_path / "g.csv").write_text("0,1\n1,2\n")
    with pytest.raises(ConfigError, match=f"^{message}"):
        read_graph(tmp_path / "g.csv", **options)


@pytest.mark.parametrize("count", [0, 2**63, {"_N": 2**40}])
def test_more_nodes_than_pairs_of_them_have_numbers_are_refused(tmp_path: Path, count: Any) -> None:
    """2**63 was an OverflowError, and at 2**40 different edges counted as one."""
    (tmp_path / "g.csv").write_text("0,1\n1,2\n")
    with pytest.raises(ConfigError, match=r"^num_nodes=.*: must be at least 1 and at most 3037000499$"):
        read_graph(tmp_path / "g.csv", num_nodes=count)


def test_the_command_line_tells_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.csv").write_text("0,1\n1,2\n")
    words = ["build", str(tmp_path / "g.csv"), "--parts", "2", "--out", str(tmp_path / "o")]
    assert main([*words, "--read", "directed=maybe"]) == 2
    assert "directed='maybe': expected True, False or None" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_numbers_and_flags_of_numpy_are_of_the_kind(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text("0,1\n1,2\n")
    graph = read_graph(tmp_path / "g.csv", num_nodes=np.int64(5), directed=np.bool_(False), columns=None)
    assert (graph.num_nodes, graph.total_edges) == ({NODE_TYPE: 5}, 4)
    assert read_graph(tmp_path / "g.csv", edge_type=["a", "b", "c"], num_nodes={"a": 7}).num_nodes["a"] == 7


def test_each_option_has_a_kind_or_chooses_a_word() -> None:
    known = {field.name for field in fields(ReadOptions)}
    assert KINDS.keys() == known
    assert all(get_origin(kind) is Literal or isinstance(kind.__metadata__[-1], str) for kind in KINDS.values())
    assert {option for reader in READERS.values() for option in reader.options} == known
