"""Parts of the nodes in a build beyond memory."""

from __future__ import annotations

from pathlib import Path

import pytest

import graph_emb.graph.readers
import partition
from tests.partition.streaming.edge_files import MEMORY


@pytest.mark.parametrize("num_parts", [6, 9])
@pytest.mark.parametrize("method", ["ldg", "fennel"])
def test_streamed_parts_have_a_node_each(tmp_path: Path, method: str, num_parts: int) -> None:
    """Neighbours that attract each other left parts empty, which a build in memory repairs."""
    edges = tmp_path / "pairs.csv"
    edges.write_text("".join(f"{2 * pair},{2 * pair + 1}\n" for pair in range(5)))
    whole = partition.build(edges, num_parts, method, out=tmp_path / "out", memory=MEMORY)
    assert whole.nodes.sizes.min() == 1
    assert "moved so that every part has what it needs" in whole.manifest.made["why"]
    assert partition.verify(whole.path, graph_emb.graph.readers.read_graph(edges)).problems == []
