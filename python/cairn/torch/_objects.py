"""Values that are not tensors, as JSON that restores them exactly.

None, bool, int, float, str, list, and dict with str keys are written as themselves. Other types become an
object whose key ``__cairn__`` names the type. A value of an unknown type becomes a pickle (by torch.save),
which is loaded only if the user allows it.
"""

from __future__ import annotations

import base64
import collections
import ctypes
import io
import json
import math
import sys
from collections.abc import Sequence
from typing import Any, Callable, Union

import torch

from cairn import _values
from cairn._values import TAG
from cairn.torch._loaded import Loaded

MAX_DEPTH = 64  # of a state dict and of a value in it
_INT64 = range(-(2**63), 2**63)


class _NoJson(Exception):
    """The value has no exact form in JSON."""


class PickleRefused(ValueError):
    """A value to load was saved as a pickle, and ``allow_pickle`` is not set."""


def encode(value: Any, name: str) -> dict:
    """``{"json": TEXT}`` if that is exact, else ``{"pickle": bytes}``.

    name: the value's, for errors. Raises TypeError if the value cannot be pickled either.
    """
    try:
        return {"json": json.dumps(_to_json(value, 0), allow_nan=False)}
    except _NoJson:
        pass
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
    except Exception as error:
        raise TypeError(
            f"{name}: a {type(value).__name__} that neither JSON nor a pickle can hold ({error}); "
            "leave it out, or save its state"
        ) from error
    return {"pickle": buffer.getvalue()}


def decode(entry: dict, name: str, allow_pickle: bool) -> Any:
    """The value that `encode` was given. Raises PickleRefused for a pickle unless allow_pickle."""
    if "json" in entry:
        return _values.from_json(json.loads(entry["json"]), _DECODERS)
    if not allow_pickle:
        raise PickleRefused(
            f"{name}: saved as a pickle, which can run any code; "
            "give allow_pickle=True if you trust the checkpoint"
        )
    return torch.load(io.BytesIO(entry["pickle"]), weights_only=False)


def encode_key(key: Any, text: str) -> Union[str, dict]:
    """A path's part for a key that is not a string; just `text`, its text, if JSON cannot hold the key."""
    try:
        return {"key": _to_json(key, 0), "text": text}
    except _NoJson:
        return text


def decode_key(part: Any) -> Any:
    """The key that `encode_key` was given. A position in a list is returned as it is."""
    return _values.from_json(part["key"], _DECODERS) if isinstance(part, dict) else part


def encode_tensor(tensor: torch.Tensor, dtype: str, shape: Sequence[int]) -> dict:
    """The entry of a small plain tensor, or of a large one's empty part. Elements are in row-major order.

    dtype: the checkpoint's name of the type. shape: the whole tensor's.
    """
    return {"tensor": {"dtype": dtype, "shape": list(shape), "data": _bytes_of(tensor)}}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """The tensor's elements in row-major order. It does not use numpy, because torch does not need numpy."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.numel() else b""


def _tagged(kind: str, **fields: Any) -> dict:
    return {TAG: kind, **fields}


def _to_json(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise _NoJson
    if value is None or type(value) is bool:
        return value
    if encoder := _ENCODERS.get(type(value)):
        return encoder(value, depth + 1)
    numpy = sys.modules.get("numpy")
    if numpy and type(value) is numpy.ndarray:
        return _numpy_to_json("ndarray", value, shape=list(value.shape))
    if numpy and isinstance(value, numpy.generic):
        return _numpy_to_json("numpy", value)
    raise _NoJson


def _int_to_json(value: int, _: int) -> Any:
    return value if value in _INT64 else _tagged("int", value=str(value))


def _float_to_json(value: float, _: int) -> Any:
    return value if math.isfinite(value) else _tagged("float", value=repr(value))


def _str_to_json(value: str, _: int) -> Any:
    if is_unicode(value):
        return value
    return _tagged("str", utf16=_base64(value.encode("utf-16-le", "surrogatepass")))


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold the text. It cannot hold lone surrogates, which os.listdir may return."""
    return text.isascii() or not any(0xD800 <= ord(letter) < 0xE000 for letter in text)


def _list_to_json(value: list, depth: int) -> list:
    return [_to_json(item, depth) for item in value]


def _items_to_json(kind: str) -> Callable[[Any, int], dict]:
    return lambda value, depth: _tagged(kind, items=_list_to_json(list(value), depth))


def _set_to_json(kind: str) -> Callable[[Any, int], dict]:
    """Items are sorted, so equal sets are equal bytes on every rank."""
    return lambda value, depth: _tagged(kind, items=sorted(_list_to_json(list(value), depth), key=json.dumps))


def _dict_to_json(value: dict, depth: int) -> dict:
    if TAG not in value and all(type(key) is str and is_unicode(key) for key in value):
        return {key: _to_json(item, depth) for key, item in value.items()}
    return _pairs_to_json("dict", value, depth)


def _pairs_to_json(kind: str, value: dict, depth: int) -> dict:
    return _tagged(kind, items=[[_to_json(key, depth), _to_json(item, depth)] for key, item in value.items()])


def _numpy_to_json(kind: str, value: Any, **fields: Any) -> dict:
    if value.dtype.kind not in "biufcSU" or value.dtype.names:
        raise _NoJson
    return _tagged(kind, dtype=value.dtype.str, **fields, data=_base64(value.tobytes()))


def _tensor_to_json(value: torch.Tensor, _: int) -> dict:
    plain = value.layout == torch.strided and not value.is_quantized and value.device.type != "meta"
    if not plain or value.requires_grad:
        raise _NoJson
    data = _base64(_bytes_of(value))
    return _tagged("tensor", dtype=_name(value.dtype), shape=list(value.shape), data=data)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


_ENCODERS: dict = {
    int: _int_to_json,
    Loaded: lambda value, _: int(value),
    float: _float_to_json,
    str: _str_to_json,
    list: _list_to_json,
    dict: _dict_to_json,
    collections.OrderedDict: lambda value, depth: _pairs_to_json("OrderedDict", value, depth),
    tuple: _items_to_json("tuple"),
    torch.Size: _items_to_json("torch.Size"),
    set: _set_to_json("set"),
    frozenset: _set_to_json("frozenset"),
    bytes: lambda value, _: _tagged("bytes", data=_base64(value)),
    bytearray: lambda value, _: _tagged("bytearray", data=_base64(bytes(value))),
    torch.dtype: lambda value, _: _tagged("torch.dtype", name=_name(value)),
    torch.device: lambda value, _: _tagged("torch.device", name=str(value)),
    torch.Tensor: _tensor_to_json,
}


def _torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"a tensor has type {name!r}, which this version of torch lacks")
    return dtype


def _tensor_of(value: dict, _: dict) -> torch.Tensor:
    dtype, data = _torch_dtype(value["dtype"]), bytearray(_values.data(value))
    flat = torch.frombuffer(data, dtype=torch.uint8).view(dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(value["shape"])


_DECODERS: dict = {
    **_values.DECODERS,
    "torch.Size": lambda value, decoders: torch.Size(_values.items(value, decoders)),
    "torch.dtype": lambda value, _: _torch_dtype(value["name"]),
    "torch.device": lambda value, _: torch.device(value["name"]),
    "tensor": _tensor_of,
}
