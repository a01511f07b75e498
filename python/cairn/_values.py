"""Decodes the JSON of a step's values that are not tensors, as cairn.torch (torch/_objects.py) wrote it.

It never loads a pickle. torch's types become plain ones: a Size a tuple, a dtype or device its name, a small
tensor in a list a numpy array.
"""

from __future__ import annotations

import base64
import collections
from typing import Any, Callable

from cairn._arrays import as_array_of_torch, load_numpy

TAG = "__cairn__"
Decoders = dict[str, Callable[[dict, dict], Any]]


def from_json(value: Any, decoders: Decoders) -> Any:
    """Decodes a value. decoders: by name of the type, called with (the tagged object, decoders).

    Raises ValueError for a type without a decoder.
    """
    if isinstance(value, list):
        return [from_json(item, decoders) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: from_json(item, decoders) for key, item in value.items()}
    if value[TAG] not in decoders:
        raise ValueError(f"a value has type {value[TAG]!r}, unknown to this cairn; install a newer version")
    return decoders[value[TAG]](value, decoders)


def items(value: dict, decoders: Decoders) -> list:
    return [from_json(item, decoders) for item in value["items"]]


def data(value: dict) -> bytes:
    return base64.b64decode(value["data"])


def _array(value: dict, _: Decoders) -> Any:
    numpy = load_numpy()
    content, dtype = data(value), numpy.dtype(value["dtype"])
    if dtype.itemsize == 0:  # numpy's type of an empty string
        return dtype.type() if value[TAG] == "numpy" else numpy.empty(value["shape"], dtype)
    if value[TAG] == "numpy" and dtype.kind in "SU":  # an array's element would lose null bytes at its end
        if dtype.kind == "S":
            return dtype.type(content)
        encoding = "utf-32-le" if dtype.str[0] == "<" else "utf-32-be"
        return dtype.type(content.decode(encoding, "surrogatepass"))
    flat = numpy.frombuffer(content, dtype=dtype)
    return flat[0] if value[TAG] == "numpy" else flat.reshape(value["shape"]).copy()


def _tensor(value: dict, _: Decoders) -> Any:
    return as_array_of_torch(data(value), value["dtype"]).reshape(value["shape"])


def _name(value: dict, _: Decoders) -> str:
    return value["name"]


DECODERS: Decoders = {
    "int": lambda value, _: int(value["value"]),
    "float": lambda value, _: float(value["value"]),
    "str": lambda value, _: base64.b64decode(value["utf16"]).decode("utf-16-le", "surrogatepass"),
    "dict": lambda value, decoders: dict(items(value, decoders)),
    "OrderedDict": lambda value, decoders: collections.OrderedDict(items(value, decoders)),
    "tuple": lambda value, decoders: tuple(items(value, decoders)),
    "set": lambda value, decoders: set(items(value, decoders)),
    "frozenset": lambda value, decoders: frozenset(items(value, decoders)),
    "bytes": lambda value, _: data(value),
    "bytearray": lambda value, _: bytearray(data(value)),
    "numpy": _array,
    "ndarray": _array,
    "torch.Size": lambda value, decoders: tuple(items(value, decoders)),
    "torch.dtype": _name,
    "torch.device": _name,
    "tensor": _tensor,
}
