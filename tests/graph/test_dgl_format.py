"""DGL's files without DGL: what we write DGL reads, what DGL writes we read, and the bytes are the same."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from graph_emb.compat import dgl as compat_dgl
from graph_emb.core.errors import DataError
from graph_emb.graph import dgl_format

dgl = compat_dgl.load()
COLUMNS = {
    "a/float": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a/half": np.array([0.5, 2], np.float16),
    "b/empty": np.zeros((0, 4), np.float64),
    "b/byte": np.array([1, 255], np.uint8),
    "c/long": np.array([[1], [-(2**40)]]),
}


def a_graph() -> dgl_format.StoredGraph:
    return dgl_format.StoredGraph(
        4,
        np.array([2, 0, 2]),
        np.array([1, 3, 1]),
        {"_ID": np.array([7, 8, 9, 10]), "inner_node": np.array([1, 1, 1, 0], np.uint8)},
        {"_ID": np.array([5, 6, 4])},
    )


def bytes_of(write, *args) -> bytes:
    sink = io.BytesIO()
    write(sink, *args)
    return sink.getvalue()


def same_columns(found, expected) -> None:
    assert set(found) == set(expected)
    for name, values in expected.items():
        got = np.asarray(found[name])
        assert (got.dtype, got.shape) == (values.dtype, values.shape)
        assert np.array_equal(got, values), name


@pytest.mark.parametrize(
    "columns", [{}, *({name: values} for name, values in COLUMNS.items())], ids=lambda c: "".join(c) or "none"
)
def test_tensors_have_the_bytes_that_dgl_writes(tmp_path: Path, columns: dict[str, np.ndarray]) -> None:
    path = tmp_path / "theirs.dgl"  # one tensor at most: DGL writes several in the order of a hash table
    dgl.data.utils.save_tensors(str(path), {name: torch.tensor(values) for name, values in columns.items()})
    assert bytes_of(dgl_format.write_tensors, columns) == path.read_bytes()


def test_tensors_come_back_from_dgl_and_from_us(tmp_path: Path) -> None:
    path = tmp_path / "ours.dgl"
    path.write_bytes(bytes_of(dgl_format.write_tensors, COLUMNS))
    same_columns(dgl.data.utils.load_tensors(str(path)), COLUMNS)
    same_columns(dgl_format.read_tensors(path), COLUMNS)


def test_booleans_become_bytes_as_in_dgl(tmp_path: Path) -> None:
    path = tmp_path / "mask.dgl"
    dgl.data.utils.save_tensors(str(path), {"m": torch.tensor([True, False])})
    assert bytes_of(dgl_format.write_tensors, {"m": np.array([True, False])}) == path.read_bytes()


def test_rows_are_gathered_while_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dgl_format, "CHUNK_BYTES", 16)  # two rows of two floats: two chunks and a rest
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    positions = np.array([5, 0, 3, 3, 1])
    rows = dgl_format.gathered(values, positions)
    assert [len(chunk) for chunk in rows.chunks()] == [2, 2, 1]
    ours = bytes_of(dgl_format.write_tensors, {"x": rows})
    assert ours == bytes_of(dgl_format.write_tensors, {"x": values[positions]})


def test_a_graph_has_the_bytes_of_dgl_but_for_its_uninitialised_header(tmp_path: Path) -> None:
    stored, path = a_graph(), tmp_path / "theirs.dgl"
    graph = dgl.graph((torch.tensor(stored.src), torch.tensor(stored.dst)), num_nodes=4)
    graph.edata["_ID"] = torch.tensor(stored.edge_data["_ID"])
    dgl.save_graphs(str(path), [graph])
    plain = dgl_format.StoredGraph(4, stored.src, stored.dst, {}, stored.edge_data)
    ours, theirs = bytes_of(dgl_format.write_graph, plain), path.read_bytes()
    assert ours[:32] == theirs[:32]
    assert ours[4096:] == theirs[4096:]
    assert set(ours[32:4096]) == {0}


def test_dgl_loads_our_graph(tmp_path: Path) -> None:
    path = tmp_path / "ours.dgl"
    path.write_bytes(bytes_of(dgl_format.write_graph, a_graph()))
    ((graph,), _) = dgl.load_graphs(str(path))
    src, dst = graph.edges(order="eid")
    assert (src.tolist(), dst.tolist(), graph.num_nodes()) == ([2, 0, 2], [1, 3, 1], 4)
    same_columns(graph.ndata, a_graph().node_data)
    same_columns(graph.edata, a_graph().edge_data)
    assert graph.formats()["not created"] == ["csr", "csc"]


@pytest.mark.parametrize("formats", [["coo"], ["csr"], ["csc"], ["csr", "csc"], ["coo", "csr", "csc"]])
def test_we_read_graphs_of_dgl_in_every_sparse_format(tmp_path: Path, formats: list[str]) -> None:
    stored, path = a_graph(), tmp_path / "theirs.dgl"
    graph = dgl.graph((torch.tensor(stored.src), torch.tensor(stored.dst)), num_nodes=4)
    graph.ndata["x"] = torch.arange(4.0)
    graph.edata["_ID"] = torch.tensor(stored.edge_data["_ID"])
    dgl.save_graphs(str(path), [graph], formats=formats)
    back = dgl_format.read_graph(path)
    assert (back.num_nodes, back.src.tolist(), back.dst.tolist()) == (4, [2, 0, 2], [1, 3, 1])
    same_columns(back.node_data, {"x": np.arange(4, dtype=np.float32)})
    same_columns(back.edge_data, stored.edge_data)


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.dgl"
    whole = bytes_of(dgl_format.write_tensors, COLUMNS)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"cut\.dgl: cut short"):
            dgl_format.read_tensors(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.dgl"
    path.write_bytes(bytes_of(dgl_format.write_tensors, {}))
    with pytest.raises(DataError, match=r"other\.dgl: not a DGL graph file"):
        dgl_format.read_graph(path)
    path.write_bytes(bytes_of(dgl_format.write_graph, a_graph()))
    with pytest.raises(DataError, match=r"other\.dgl: not a DGL tensor file"):
        dgl_format.read_tensors(path)


def test_an_array_whose_shape_does_not_fit_its_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.dgl"
    data = bytearray(bytes_of(dgl_format.write_tensors, {"x": np.arange(3)}))
    at = data.index((3).to_bytes(8, "little") + (24).to_bytes(8, "little"))
    data[at] = 4
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"shape \(4,\) with 64 bits each has 24 bytes"):
        dgl_format.read_tensors(path)


def test_a_graph_of_several_types_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "typed.dgl"
    pair = (torch.tensor([0]), torch.tensor([0]))
    dgl.save_graphs(str(path), [dgl.heterograph({("a", "x", "a"): pair, ("a", "y", "a"): pair})])
    with pytest.raises(DataError):
        dgl_format.read_graph(path)


@pytest.mark.parametrize("dtype", ["U3", "c16", "u2", "M8[s]", "O"])
def test_a_dtype_that_dgl_lacks_is_refused(dtype: str) -> None:
    with pytest.raises(DataError, match="has no counterpart in DGL"):
        bytes_of(dgl_format.write_tensors, {"x": np.zeros(2, dtype)})
