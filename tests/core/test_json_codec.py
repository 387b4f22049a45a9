"""State dicts survive JSON with their types, and what cannot is named."""

from __future__ import annotations

import json
import pickle
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from graph_emb.core.errors import ConfigError, DataError
from graph_emb.core.json_codec import CODES, decode, encode, pack, unpack

VALUES: list[Any] = [
    None,
    True,
    2**130,
    -0.1,
    "text",
    [1, [2.5, "x"]],
    (1, ("a",)),
    {"a": {"b": 1}},
    {0: "int key", "$odd": 1, (1, 2): 3},
    Counter({30: 1, 60: 2}),
    float("inf"),
    float("-inf"),
    {"empty": {}, "none": [], "tuple": ()},
    np.int64(3),
    np.float32(0.1),
    np.float64("inf"),
    np.bool_(True),
    {np.int64(7): 3, (np.int32(1), 2): 4},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_equal_and_of_its_type(value: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value, "here"), allow_nan=False)))
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, dict):
        assert [type(key) for key in back] == [type(key) for key in value]


def test_tensors_stand_in_a_file_under_their_path() -> None:
    tensors: dict[str, torch.Tensor] = {}
    tree = {"a": {"b": torch.arange(3)}, "c": [torch.tensor(2.5)], "a.b": torch.zeros(1)}
    text = json.dumps(encode(tree, "model", tensors))
    assert sorted(tensors) == ["model.a.b", "model.a.b#2", "model.c.0"]
    back = decode(json.loads(text), tensors)
    assert back["a"]["b"].tolist() == [0, 1, 2]
    assert back["a.b"].tolist() == [0.0]
    assert back["c"][0].item() == 2.5
    with pytest.raises(DataError, match=r"'model.c.0' is named in the manifest but is in no file"):
        decode(json.loads(text), {"model.a.b": torch.zeros(1), "model.a.b#2": torch.zeros(1)})


@pytest.mark.parametrize("dtype", ["uint32", "float64", "bool", "int16"])
def test_arrays_stand_inline(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    back = decode(json.loads(json.dumps(encode({"state": array}, "generator"))))["state"]
    assert (back.dtype, back.tolist()) == (array.dtype, array.tolist())
    tensor = decode(encode(torch.tensor([1, 2], dtype=torch.uint8), "generator"))
    assert torch.equal(tensor, torch.tensor([1, 2], dtype=torch.uint8))


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_tensors_of_every_dtype_may_stand_inline(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 8).to(dtype)
    back = decode(json.loads(json.dumps(encode({"t": tensor}, "extra"))))["t"]
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"fn": len}, r"extra.fn is a builtin_function_or_method"),
        ([1, {2}], r"extra.1 is a set"),
        ({"t": torch.zeros(1, dtype=torch.complex64)}, r"extra.t is a tensor of torch.complex64"),
        ({"t": torch.zeros(2).to_sparse()}, r"extra.t is a tensor of .* in layout torch.sparse_coo"),
        ({"o": np.array([object()])}, r"extra.o is an array of object"),
    ],
)
def test_what_only_pickle_could_write_is_named(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encode(value, "extra", {})


def test_an_ordered_dict_becomes_a_dict_in_its_order() -> None:
    assert list(decode(encode(OrderedDict(b=1, a=2), "x"))) == ["b", "a"]


@dataclass(frozen=True)
class Pair:
    left: dict[tuple[str, str], np.ndarray]
    right: np.ndarray | None = None


def test_a_message_brings_arrays_strings_and_dataclasses() -> None:
    sent = ("parts", 3, Pair({("a", "b"): np.arange(6).reshape(2, 3)}, np.array(["x", "long name"])))
    word, number, pair = unpack(pack(sent, "test"), (Pair,))
    assert (word, number, type(pair)) == ("parts", 3, Pair)
    assert pair.left[("a", "b")].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert pair.right.tolist() == ["x", "long name"]


@pytest.mark.parametrize(
    "message",
    [
        pickle.dumps({"a": 1}),
        b"",
        b"\xff" * 40,
        pack(Pair({}), "test"),  # a class that the reader did not name
        (2).to_bytes(8, "little") + b"[[",
        (10**5).to_bytes(8, "little") + b"[" * 10**5,
        pack(np.arange(9), "test")[:-1],
        pack(np.arange(9), "test").replace(b"<i8", b"|O8"),
        pack(np.arange(9), "test").replace(b"[9]", b"[-1]"),
    ],
    ids=["pickle", "empty", "noise", "class", "cut", "deep", "short", "objects", "negative"],
)
def test_no_message_of_a_stranger_does_more_than_fail(message: bytes) -> None:
    with pytest.raises(DataError, match=r"message|numbers"):
        unpack(message)


def test_what_a_message_cannot_hold_is_named() -> None:
    with pytest.raises(ConfigError, match=r"start\.1 is a function; a message holds"):
        pack((1, test_what_a_message_cannot_hold_is_named), "start")
