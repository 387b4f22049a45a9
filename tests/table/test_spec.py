"""A table's shape is checked before any memory is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import graph_emb as ge
from graph_emb.table.spec import checked_shape
from tests.transport.kvstore.cluster import Cluster

WRONG: list[tuple[Any, Any, str]] = [
    (4.5, 4, "num_embeddings 4.5 must be an integer, not float"),
    (4.0, 4, "num_embeddings 4.0 must be an integer, not float"),
    (True, 4, "num_embeddings True must be an integer, not bool"),
    (np.True_, 4, "must be an integer, not bool"),
    (torch.tensor(True), 4, "num_embeddings tensor(True) must be an integer, not Tensor"),
    (torch.tensor([1, 2]), 4, "must be an integer, not Tensor"),
    (None, 4, "num_embeddings None must be an integer, not NoneType"),
    ("4", 4, "num_embeddings '4' must be an integer, not str"),
    (4, 4.5, "embedding_dim 4.5 must be an integer, not float"),
    (4, True, "embedding_dim True must be an integer, not bool"),
    (-1, 4, "num_embeddings -1 must not be negative"),
    (4, 0, "embedding_dim 0 must be at least 1"),
    (2**62, 4, "num_embeddings 4611686018427387904 and embedding_dim 4 of torch.float32 take"),
    (2**64, 1, "num_embeddings 18446744073709551616 and embedding_dim 1 of torch.float32 take"),
    (2**31, 2**31, "num_embeddings 2147483648 and embedding_dim 2147483648 of torch.float32 take 18446744073709551616"),
]


def errors() -> list[str]:
    """The errors of the wrong shapes in the mode that is on."""
    found = []
    for num_embeddings, embedding_dim, _ in WRONG:
        with pytest.raises(ge.ConfigError) as caught:
            ge.DistEmbedding(num_embeddings, embedding_dim, "t")
        found.append(str(caught.value))
    ge.DistEmbedding(4, 2, "t")  # the name is free, and the mode goes on
    return found


def check(found: list[str]) -> None:
    for text, (*_, part) in zip(found, WRONG, strict=True):
        assert text.startswith("table 't': "), text
        assert part in text


def test_a_shape_that_is_none_is_named_with_its_value() -> None:
    """4.5 and True were taken as 4 and 1; large products overflowed on the way to the allocation."""
    check(errors())


def test_a_shape_that_is_none_is_refused_in_collective_mode() -> None:
    ge.shutdown()
    ge.init(mode="collective", timeout=60)
    try:
        check(errors())
    finally:
        ge.shutdown()


def errors_of_a_trainer(transport: Any) -> list[str]:
    return errors()


@pytest.mark.dist
def test_a_shape_that_is_none_is_refused_before_a_server_hears_of_it() -> None:
    check(Cluster(1).run(errors_of_a_trainer)[0])


@pytest.mark.parametrize("number", [4, np.int32(4), np.uint8(4), torch.tensor(4)])
def test_integers_of_every_library_are_shapes(number: Any) -> None:
    shape = checked_shape("t", number, number, torch.float32)
    assert shape == (4, 4)
    assert [type(one) for one in shape] == [int, int]


def test_the_largest_table_has_int64_offsets() -> None:
    assert checked_shape("t", 2**61 - 1, 1, torch.float32) == (2**61 - 1, 1)
    with pytest.raises(ge.ConfigError, match="at most 9223372036854775807 are possible"):
        checked_shape("t", 2**61, 1, torch.float32)
