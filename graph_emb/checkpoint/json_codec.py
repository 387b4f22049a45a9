"""State dicts as JSON and tensors, without pickle: what comes back is equal to what went in, types included.

JSON's own types stand for themselves. Others are objects with one key: ``{"$tensor": name}`` (in the safetensors file),
``{"$array": ...}`` (base64), ``{"$tuple": [...]}``, ``{"$dict": [[key, value], ...]}`` (keys that are no strings),
``{"$counter": ...}`` (milestones of a torch scheduler) and ``{"$float": "inf"}``.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.checkpoint.safetensors_file import CODES, dtype_name
from graph_emb.core.errors import ConfigError, DataError


def encode(value: Any, where: str, tensors: dict[str, Tensor] | None = None) -> Any:
    """A value as JSON.

    Args:
        value: Nested dicts, lists, tuples, numbers, texts, None, tensors and numpy arrays.
        where: The words with which names of tensors begin and an error names the place.
        tensors: Receives the tensors by name; None: they stand inline, for small ones.
    Raises:
        ConfigError: something that cannot be written without pickle.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (np.ndarray, np.generic)):  # before floats: numpy's float64 is one of them
        return _encode_array(value, where)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, Tensor):
        return _encode_tensor(value.detach(), where, tensors)
    if isinstance(value, Mapping):
        return _encode_mapping(value, where, tensors)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        items = [encode(item, f"{where}.{k}", tensors) for k, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    raise ConfigError(
        f"{where} is a {type(value).__name__}; a checkpoint holds numbers, texts, lists, dicts, tensors and arrays"
    )


def _encode_mapping(value: Mapping[Any, Any], where: str, tensors: dict[str, Tensor] | None) -> Any:
    if type(value) not in (dict, OrderedDict, Counter):
        raise ConfigError(f"{where} is a {type(value).__name__}; a checkpoint holds plain dicts")
    pairs = [(key, encode(item, f"{where}.{key}", tensors)) for key, item in value.items()]
    if isinstance(value, Counter):
        return {"$counter": [[encode(key, where), item] for key, item in pairs]}
    if all(isinstance(key, str) and not key.startswith("$") for key, _ in pairs):
        return dict(pairs)
    return {"$dict": [[encode(key, where), item] for key, item in pairs]}


def _encode_tensor(value: Tensor, where: str, tensors: dict[str, Tensor] | None) -> Any:
    if value.layout != torch.strided or value.dtype not in CODES:
        raise ConfigError(f"{where} is a tensor of {value.dtype} in layout {value.layout}; a checkpoint has no such")
    if tensors is None:
        bits = value.view(torch.int16) if value.dtype == torch.bfloat16 else value  # numpy has no bfloat16
        held = _encode_array(bits.cpu().numpy(), where)["$array"]
        return {"$array": {**held, "torch": dtype_name(value.dtype)}}
    name, more = where, 1
    while name in tensors:
        more += 1
        name = f"{where}#{more}"
    tensors[name] = value
    return {"$tensor": name}


def _encode_array(value: np.ndarray | np.generic, where: str) -> Any:
    if value.dtype.kind not in "biuf":
        raise ConfigError(f"{where} is an array of {value.dtype}; a checkpoint holds numbers")
    data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    held = {"dtype": value.dtype.str, "shape": list(value.shape), "data": data}
    return {"$array": held if isinstance(value, np.ndarray) else {**held, "scalar": True}}


def decode(value: Any, tensors: Mapping[str, Tensor] | None = None) -> Any:
    """Turn JSON back into the value that ``encode`` was given.

    Raises:
        DataError: a tensor is not among ``tensors``.
    """
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    kind = next(iter(value), "")
    if len(value) != 1 or not kind.startswith("$"):
        return {key: decode(item, tensors) for key, item in value.items()}
    held = value[kind]
    if kind == "$tensor":
        if tensors is None or held not in tensors:
            raise DataError(f"tensor {held!r} is named in the manifest but is in no file of the checkpoint")
        return tensors[held]
    if kind == "$array":
        array = np.frombuffer(base64.b64decode(held["data"]), held["dtype"]).reshape(held["shape"]).copy()
        if held.get("scalar"):
            return array[()]  # numpy's number, which may be a key
        if not held.get("torch"):
            return array
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if held["torch"] == "bfloat16" else tensor
    if kind == "$tuple":
        return tuple(decode(item, tensors) for item in held)
    if kind == "$float":
        return float(held)
    pairs = {decode(key, tensors): decode(item, tensors) for key, item in held}
    return Counter(pairs) if kind == "$counter" else pairs
