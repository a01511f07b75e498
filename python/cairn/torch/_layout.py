"""The parts of a state dict that one rank holds and writes, as they are described to the helper."""

from __future__ import annotations

import dataclasses
import logging
import math
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Optional

import torch
from torch.distributed.checkpoint.planner import SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from cairn.torch import _collector, _job, _private
from cairn.torch._device import with_memory
from cairn.torch._dtypes import NAME_OF
from cairn.torch._objects import encode, encode_key, encode_tensor, is_unicode
from cairn.torch._ownership import Ownership, mesh_text

MAX_VALUE_BYTES = 1 << 30  # of all objects; the helper has the same limit for those of all ranks
_MAX_NAME = 65535  # bytes
_MAX_DIMENSIONS = 8
logger = logging.getLogger("cairn.torch")
SMALL = 8192  # bytes: a plain tensor up to this size goes with the objects
GROUPS = 16  # of a layout at most: each is a file of a save


@dataclasses.dataclass
class Layout:
    """tensors: as the request "plan" has them. names: of all objects. small: those of them that are tensors, described alike.
    sources: (FQN, local tensor) of all pieces, in their order. encode: makes the groups of the other values, by the first component of
    their names (by its CRC-32, if there are many): ranks with an equal group share its bytes. mesh: see mesh_text."""

    tensors: list = dataclasses.field(default_factory=list)
    names: list = dataclasses.field(default_factory=list)
    small: list = dataclasses.field(default_factory=list)
    sources: list = dataclasses.field(default_factory=list)
    encode: Callable[[], dict] = dict
    mesh: str = ""

    def objects(self) -> tuple[dict, bytes]:
        """(as in "write", the tail of that message). Call it before the state dict changes. Raises TypeError or ValueError naming a value."""
        with _collector.paused():
            groups = self.encode()
        fields, tail = {}, bytearray()
        _check_size({fqn: _size(entry) for group in groups.values() for fqn, entry in group.values.items()})
        for name, group in groups.items():
            fields[name] = {"tail": [len(tail), len(group.tail)], "values": group.values}
            tail += group.tail
        return fields, bytes(tail)


@dataclasses.dataclass
class Group:
    """values: JSON. tail: the bytes that the values name by [begin, count]."""

    values: dict = dataclasses.field(default_factory=dict)
    tail: bytearray = dataclasses.field(default_factory=bytearray)

    def put(self, data: bytes) -> list:
        self.tail += data
        return [len(self.tail) - len(data), len(data)]


class Recipe:
    """What the layouts of all state dicts with the same names, types, shapes and placements have in common."""

    def __init__(self, items: Iterable[WriteItem], planner: SavePlanner, ownership: Optional[Ownership]):
        """items: of a local plan. ownership: decides which of them this rank writes; None: all.

        Raises TypeError or ValueError naming a value that cannot be saved.
        """
        self._tensors: list = []
        self._written: list = []  # the items of the pieces
        self._others: list = []  # (item, path, name of its group) of everything else
        numbers: dict = {}
        mappings = _private.mappings(planner)
        keys = getattr(planner, "keys", {})
        for item in items:
            path = list(mappings.get(item.index.fqn, (item.index.fqn,)))
            data, first = item.tensor_data, _first(item.index.fqn, path)
            _check_name(item.index.fqn, path, data is not None)
            if keys:
                path = _with_keys(tuple(path), keys)
            if data is not None:
                check(item.index.fqn, planner.resolve_data(item))
            if data is None or _is_small(item, data):
                if data is not None and ownership is not None and item.type == WriteItemType.TENSOR:
                    ownership.check_plain(item.index.fqn, planner.state_dict[item.index.fqn])
                self._others.append((item, path, first))
            else:
                self._add_tensor(item, data, path, planner, numbers, ownership)
        if len({group for _, _, group in self._others}) > GROUPS:
            self._others = [
                (item, path, str(zlib.crc32(group.encode()) % GROUPS)) for item, path, group in self._others
            ]
        self._names = [item.index.fqn for item, _, _ in self._others]
        self._small = [
            _described(item.index.fqn, item.tensor_data, path)
            for item, path, _ in self._others
            if item.tensor_data is not None
        ]
        self._written.sort(key=lambda item: numbers[item.index.fqn])
        self._mesh = mesh_text(getattr(planner, "state_dict", {}).values(), _job.rank_and_world()[1])

    def _add_tensor(
        self,
        item: WriteItem,
        data: TensorWriteData,
        path: list,
        planner: Any,
        numbers: dict,
        ownership: Optional[Ownership],
    ) -> None:
        fqn, chunk = item.index.fqn, data.chunk
        if fqn not in numbers:
            numbers[fqn] = len(numbers)
            self._tensors.append({**_described(fqn, data, path), "pieces": []})
        if math.prod(chunk.sizes) and (
            ownership is None or ownership.writes(fqn, planner.state_dict[fqn], chunk.offsets)
        ):
            self._tensors[numbers[fqn]]["pieces"].append(
                {"offset": list(chunk.offsets), "extent": list(chunk.sizes)}
            )
            self._written.append(item)

    def layout(self, planner: Any, warn: bool = True) -> Layout:
        """The layout of the planner's current state dict. warn: about values that become pickles."""
        sources = [
            (item.index.fqn, with_memory(item.index.fqn, planner.resolve_data(item)).detach())
            for item in self._written
        ]
        return Layout(
            self._tensors, self._names, self._small, sources, lambda: self._groups(planner, warn), self._mesh
        )

    def _groups(self, planner: Any, warn: bool) -> dict:
        groups: dict = {}
        pickles: dict = {}
        for item, path, group in self._others:
            entry, kind = _entry(item, planner)
            if "pickle" in entry:
                pickles[item.index.fqn] = kind
            _add_object(groups.setdefault(group, Group()), item.index.fqn, path, entry)
        if warn:
            _warn_of(pickles)
        return groups


def signature_of(state_dict: dict, mappings: dict) -> Optional[list]:
    """Equal if two flat state dicts have one Recipe, as long as the meshes in it live. None: of a kind that is not compared."""
    kinds = [_kind_of(value) for value in state_dict.values()]
    return None if None in kinds else [list(mappings.items()), kinds]


def _kind_of(value: Any) -> Any:
    kind = type(value)
    if kind is DTensor:
        return value.dtype, value.shape, value.placements, value.device, value.device_mesh
    if (kind is torch.Tensor or kind is torch.nn.Parameter) and not value.is_nested:
        return value.dtype, value.shape, value.layout, value.device
    return None if isinstance(value, torch.Tensor) else "object"


def _is_small(item: WriteItem, data: TensorWriteData) -> bool:
    plain_and_small = item.type == WriteItemType.TENSOR and (item.tensor_storage_size() or 0) <= SMALL
    return plain_and_small or data.size.numel() == 0


def _first(fqn: str, path: list) -> str:
    return str(path[0]) if len(path) > 1 else fqn.partition(".")[0]


def _with_keys(path: tuple, keys: dict) -> list:
    """keys: as of CairnPlanner."""
    exact = list(path)
    for at, part in enumerate(path):
        if (found := keys.get(path[:at])) and part in found:
            exact[at] = encode_key(found[part], part)
    return exact


def _add_object(group: Group, fqn: str, path: list, entry: dict) -> None:
    if path != [fqn]:
        entry["path"] = path
    if "pickle" in entry:
        _check_name(fqn, [fqn], True)  # it becomes a tensor of bytes
        entry["pickle"] = group.put(entry["pickle"])
    if "tensor" in entry:
        entry["tensor"]["data"] = group.put(entry["tensor"]["data"])
    group.values[fqn] = entry


def _entry(item: WriteItem, planner: Any) -> tuple[dict, str]:
    """(the entry, the name of the value's type)"""
    if item.type != WriteItemType.BYTE_IO:
        tensor = with_memory(item.index.fqn, planner.resolve_data(item))
        return encode_tensor(
            tensor, NAME_OF[tensor.dtype], item.tensor_data.size if item.tensor_data else tensor.shape
        ), "Tensor"
    if _private.looks_up(planner):
        value = _private.look_up(planner, item)
        return encode(value, item.index.fqn), type(value).__name__
    return {"pickle": planner.resolve_data(item).getvalue()}, "value that the planner pickled"


_told: set = set()  # names of pickles


def _warn_of(pickles: dict) -> None:
    """Of each name once in a process. pickles: types by name."""
    if new := {name: kind for name, kind in pickles.items() if name not in _told}:
        _told.update(new)
        listed = ", ".join(f"{name} (a {kind})" for name, kind in list(new.items())[:9]) + (
            f" and {len(new) - 9} more" if len(new) > 9 else ""
        )
        logger.warning(
            "saved as pickles, which load takes only with allow_pickle=True: %s; save plain values, or what state_dict() says",
            listed,
        )


def _check_size(sizes: dict) -> None:
    """By name. What is larger than a load takes would be written and never be read again."""
    if (total := sum(sizes.values())) > MAX_VALUE_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        what = f"{largest}: non-tensor values take {total} bytes, this alone {sizes[largest]}"
        raise ValueError(
            f"{what}, and a step holds {MAX_VALUE_BYTES}; save large arrays as tensors (torch.from_numpy)"
        )


def _size(entry: dict) -> int:
    """Of an object; a tensor has its own place."""
    return len(entry.get("json", "")) + (entry["pickle"][1] if "pickle" in entry else 0)


def _described(fqn: str, data: TensorWriteData, path: list) -> dict:
    described = {"fqn": fqn, "dtype": NAME_OF[data.properties.dtype], "shape": list(data.size)}
    return {**described, "path": path} if path != [fqn] else described


def _check_name(fqn: str, path: list, of_tensor: bool) -> None:
    """A step with such a key in it could not be read."""
    for text in (fqn, *(part for part in path if isinstance(part, str))):
        if (of_tensor and not text) or "\0" in text or not is_unicode(text):
            raise ValueError(
                f"{fqn!r}: its key {text!r} is not a name that a step can hold (empty, with a NUL, or not Unicode); rename it"
            )
    if of_tensor and (
        len(fqn.encode()) > _MAX_NAME
        or any(part in ("", ".") for text in (fqn, str(path[-1])) for part in text.split("/"))
    ):
        raise ValueError(
            f"{fqn[:99]!r}: a tensor's name has at most {_MAX_NAME} bytes, and no part between slashes that is empty or a dot"
        )


def check(fqn: str, tensor: Any) -> None:
    """Raises TypeError or ValueError for a tensor that is not saved."""
    if is_lazy(tensor):
        raise ValueError(f"{fqn}: not initialized yet; run the module once before")
    if tensor.is_nested:
        raise TypeError(f"{fqn}: a nested tensor; only dense tensors are saved")
    if tensor.device.type == "meta":
        raise ValueError(f"{fqn}: a tensor on the meta device has no values to save")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"{fqn}: a {tensor.layout} tensor of {tensor.dtype}; only dense tensors are saved")
    if tensor.dtype not in NAME_OF:
        raise TypeError(
            f"{fqn}: {tensor.dtype} is not a type that a checkpoint holds ({', '.join(NAME_OF.values())}); save it as one of them"
        )
    if tensor.dim() > _MAX_DIMENSIONS:
        raise ValueError(f"{fqn}: {tensor.dim()} dimensions; a checkpoint holds {_MAX_DIMENSIONS}")
