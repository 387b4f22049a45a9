"""Files of rows as other programs write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from graph_emb.core.errors import DataError
from graph_emb.embedding import DistEmbedding
from graph_emb.formats.embedding_files import copy_embeddings, load_embeddings, save_embeddings
from graph_emb.formats.warm_start import FromFile


def test_lines_may_end_with_a_space_as_those_of_fasttext(tmp_path: Path) -> None:
    (tmp_path / "wiki.vec").write_text("2 3\n7 1.5 2 -3 \n5 4 5e-1 6 \n")
    found = load_embeddings(tmp_path / "wiki.vec")
    assert found.weights.tolist() == [[1.5, 2.0, -3.0], [4.0, 0.5, 6.0]]
    assert found.node_ids.tolist() == [7, 5]


@pytest.mark.usefixtures("local_mode")
def test_a_pt_file_of_a_parameter_is_read(tmp_path: Path) -> None:
    """Its tensor requires a gradient, and torch gives no array of such a one."""
    layer = torch.nn.Embedding(5, 4)
    torch.save(layer.weight, tmp_path / "layer.pt")
    assert np.array_equal(load_embeddings(tmp_path / "layer.pt").weights, layer.weight.detach().numpy())
    copy_embeddings(tmp_path / "layer.pt", tmp_path / "out", ("npy",))
    assert np.array_equal(np.load(tmp_path / "out" / "embeddings.npy"), layer.weight.detach().numpy())
    rows = DistEmbedding(5, 4, init_func=FromFile(tmp_path / "layer.pt")).weight[:]
    assert torch.equal(rows, layer.weight.detach())


def test_a_parquet_file_whose_names_are_no_utf_8_is_damaged(tmp_path: Path) -> None:
    """pyarrow opens it and raises a UnicodeDecodeError as it lists the columns."""
    (path,) = save_embeddings(tmp_path, np.float32([[1, 2]]), formats=("parquet",))
    path.write_bytes(path.read_bytes().replace(b"embedding", b"embedd\x80ng"))
    with pytest.raises(DataError, match=r"embeddings\.parquet is damaged or no parquet file"):
        load_embeddings(path)
