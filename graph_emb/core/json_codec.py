"""Python values as JSON and arrays, without pickle: decoding gives back equal values of equal types.

JSON's own types stand for themselves. Others are objects with one key: ``{"$tensor": name}`` (in a file of its own),
``{"$array": ...}`` (base64), ``{"$bytes": ...}`` (an array behind the JSON of a message), ``{"$tuple": [...]}``,
``{"$dict": [[key, value], ...]}`` (keys that are no strings), ``{"$counter": ...}`` (milestones of a torch scheduler),
``{"$float": "inf"}`` and ``{"$object": [class, fields]}`` (a dataclass that the reader named).

``encode`` and ``decode`` serve checkpoints, ``pack`` and ``unpack`` the messages between processes of a job: whoever
sends one can choose values, never code.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graph_emb.core.errors import ConfigError, DataError

CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The dtypes that safetensors files and messages hold, with safetensors' names."""


def encode(value: Any, where: str, tensors: dict[str, Tensor] | None = None) -> Any:
    """A value as JSON.

    Args:
        value: Nested dicts, lists, tuples, numbers, texts, None, tensors and numpy arrays.
        where: The words with which names of tensors begin and an error names the place.
        tensors: Receives the tensors by name; None: they stand inline, for small ones.
    Raises:
        ConfigError: something that cannot be written without pickle.
    """
    return _Encoder("a checkpoint", tensors, None).encode(value, where)


def decode(value: Any, tensors: Mapping[str, Tensor] | None = None) -> Any:
    """The value that ``encode`` was given.

    Raises:
        DataError: a tensor is not among ``tensors``.
    """
    return _Decoder(tensors or {}, None, ()).decode(value)


def pack(value: Any, what: str) -> bytes:
    """A value as one message: the length of its JSON, the JSON, and the bytes of its arrays.

    Args:
        value: As ``encode``, and arrays of strings and dataclass objects of arrays.
        what: The words with which an error names the message.
    Raises:
        ConfigError: something that cannot be sent without pickle.
    """
    arrays: list[np.ndarray] = []
    text = json.dumps(_Encoder("a message", None, arrays).encode(value, what)).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in arrays)])


def unpack(message: bytes, kinds: Sequence[type] = ()) -> Any:
    """The value that ``pack`` was given.

    Args:
        message: From a process that may be a stranger: it decides values and nothing else.
        kinds: The dataclasses that the message may hold, besides plain values and arrays.
    Raises:
        DataError: no such message.
    """
    try:
        end = 8 + int.from_bytes(message[:8], "little")
        return _Decoder({}, memoryview(message)[end:], kinds).decode(json.loads(message[8:end]))
    except (ValueError, TypeError, KeyError, LookupError, RecursionError) as error:
        raise DataError(f"a message of {len(message)} bytes cannot be read: {str(error)[:120]}") from error


@dataclass(frozen=True)
class _Encoder:
    """Where tensors and arrays go: into ``tensors`` by name, behind the JSON as ``arrays``, or inline (None)."""

    holder: str
    tensors: dict[str, Tensor] | None
    arrays: list[np.ndarray] | None

    def encode(self, value: Any, where: str) -> Any:
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, (np.ndarray, np.generic)):  # before floats: numpy's float64 is one of them
            return self._array(value, where)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
        if isinstance(value, Tensor):
            return self._tensor(value.detach(), where)
        if isinstance(value, Mapping):
            return self._mapping(value, where)
        if type(value) in (list, tuple):
            items = [self.encode(item, f"{where}.{k}") for k, item in enumerate(value)]
            return {"$tuple": items} if isinstance(value, tuple) else items
        if self.arrays is not None and is_dataclass(value) and not isinstance(value, type):
            own = {f.name: self.encode(getattr(value, f.name), f"{where}.{f.name}") for f in fields(value) if f.init}
            return {"$object": [type(value).__name__, own]}
        raise ConfigError(
            f"{where} is a {type(value).__name__}; {self.holder} holds numbers, texts, lists, dicts, tensors and arrays"
        )

    def _mapping(self, value: Mapping[Any, Any], where: str) -> Any:
        if type(value) not in (dict, OrderedDict, Counter):
            raise ConfigError(f"{where} is a {type(value).__name__}; {self.holder} holds plain dicts")
        pairs = [(key, self.encode(item, f"{where}.{key}")) for key, item in value.items()]
        if isinstance(value, Counter):
            return {"$counter": [[self.encode(key, where), item] for key, item in pairs]}
        if all(isinstance(key, str) and not key.startswith("$") for key, _ in pairs):
            return dict(pairs)
        return {"$dict": [[self.encode(key, where), item] for key, item in pairs]}

    def _tensor(self, value: Tensor, where: str) -> Any:
        if value.layout != torch.strided or value.dtype not in CODES:
            raise ConfigError(
                f"{where} is a tensor of {value.dtype} in layout {value.layout}; {self.holder} has no such"
            )
        if self.tensors is None:
            bits = value.view(torch.int16) if value.dtype == torch.bfloat16 else value  # numpy has no bfloat16
            ((kind, held),) = self._array(bits.cpu().numpy(), where).items()
            return {kind: {**held, "torch": str(value.dtype).removeprefix("torch.")}}
        name, more = where, 1
        while name in self.tensors:
            more += 1
            name = f"{where}#{more}"
        self.tensors[name] = value
        return {"$tensor": name}

    def _array(self, value: np.ndarray | np.generic, where: str) -> Any:
        if value.dtype.kind not in ("biuf" if self.arrays is None else "biufU"):
            raise ConfigError(f"{where} is an array of {value.dtype}; {self.holder} holds numbers")
        held = {"dtype": value.dtype.str, "shape": list(value.shape)}
        if self.arrays is not None and isinstance(value, np.ndarray):
            self.arrays.append(np.ascontiguousarray(value))
            return {"$bytes": held}
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"$array": {**held, "data": data} | ({} if isinstance(value, np.ndarray) else {"scalar": True})}


class _Decoder:
    """Reads an encoder's JSON; the arrays of a message lie in ``data``, in the order in which the JSON names them."""

    def __init__(self, tensors: Mapping[str, Tensor], data: memoryview | None, kinds: Sequence[type]) -> None:
        self._tensors, self._data, self._place = tensors, data, 0
        self._kinds = {kind.__name__: kind for kind in kinds}

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        kind = next(iter(value), "")
        if len(value) != 1 or not kind.startswith("$"):
            return {key: self.decode(item) for key, item in value.items()}
        held = value[kind]
        if kind == "$tensor":
            if held not in self._tensors:
                raise DataError(f"tensor {held!r} is named in the manifest but is in no file of the checkpoint")
            return self._tensors[held]
        if kind in ("$array", "$bytes"):
            return self._array(held, base64.b64decode(held["data"]) if kind == "$array" else None)
        if kind == "$tuple":
            return tuple(self.decode(item) for item in held)
        if kind == "$float":
            return float(held)
        if kind == "$object":
            return self._kinds[held[0]](**{name: self.decode(item) for name, item in held[1].items()})
        pairs = {self.decode(key): self.decode(item) for key, item in held}
        return Counter(pairs) if kind == "$counter" else pairs

    def _array(self, held: Mapping[str, Any], data: bytes | None) -> Any:
        dtype, shape = np.dtype(held["dtype"]), tuple(held["shape"])
        if dtype.kind not in "biufU" or not all(type(size) is int and size >= 0 for size in shape):
            raise DataError(f"an array of {dtype} and shape {shape} is neither of numbers nor of texts")
        if data is None:
            num_bytes = dtype.itemsize * math.prod(shape)
            if self._data is None or self._place + num_bytes > len(self._data):
                raise DataError(f"an array of {num_bytes} bytes is longer than the message")
            data = bytes(self._data[self._place : self._place + num_bytes])
            self._place += num_bytes
        array = np.frombuffer(data, dtype).reshape(shape).copy()
        if held.get("scalar"):
            return array[()]  # numpy's number, which may be a key
        if not held.get("torch"):
            return array
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if held["torch"] == "bfloat16" else tensor
