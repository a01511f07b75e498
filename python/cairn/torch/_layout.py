"""What one rank holds of a state dict and what of it this rank writes, as the helper is told it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Optional

import torch
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType

from cairn.torch import _private
from cairn.torch._dtypes import NAME_OF
from cairn.torch._objects import encode, encode_tensor
from cairn.torch._ownership import Ownership

SMALL = 8192  # bytes: a plain tensor up to this size goes with the objects


@dataclasses.dataclass
class Layout:
    """tensors: as the request "plan" has them. sources: the local tensors of all pieces, in their order.
    groups: what else there is, by the first component of its name: ranks with an equal group share its bytes."""

    tensors: list = dataclasses.field(default_factory=list)
    sources: list = dataclasses.field(default_factory=list)
    groups: dict = dataclasses.field(default_factory=dict)

    def names(self) -> list:
        """Of all objects."""
        return [fqn for group in self.groups.values() for fqn in group.values]

    def objects(self) -> tuple[dict, bytes]:
        """(as in "save", the tail of that message)"""
        fields, tail = {}, bytearray()
        for name, group in self.groups.items():
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


def layout_of(items: Iterable[WriteItem], planner: SavePlanner, ownership: Optional[Ownership]) -> Layout:
    """Of the items of a local plan.

    ownership: decides which of them this rank writes; None: all. Raises TypeError or ValueError that names what cannot be saved.
    """
    layout, numbers = Layout(), {}
    mappings = _private.mappings(planner)
    for item in items:
        fqn = item.index.fqn
        path = list(mappings.get(fqn, (fqn,)))
        if item.type == WriteItemType.BYTE_IO:
            _add_object(layout, fqn, path, _object_entry(item, planner))
            continue
        tensor = planner.resolve_data(item)
        _check(fqn, tensor)
        if _is_small(item):
            _add_object(layout, fqn, path, encode_tensor(tensor, NAME_OF[tensor.dtype]))
            continue
        if fqn not in numbers:
            numbers[fqn] = len(numbers)
            described = {"fqn": fqn, "dtype": NAME_OF[tensor.dtype], "shape": list(item.tensor_data.size), "pieces": []}
            layout.tensors.append({**described, "path": path} if path != [fqn] else described)
        chunk = item.tensor_data.chunk
        if tensor.numel() and (ownership is None or ownership.writes(fqn, planner.state_dict[fqn], chunk.offsets)):
            layout.tensors[numbers[fqn]]["pieces"].append({"offset": list(chunk.offsets), "extent": list(chunk.sizes)})
            layout.sources.append((numbers[fqn], tensor.detach()))
    layout.sources = [source for _, source in sorted(layout.sources, key=lambda numbered: numbered[0])]
    return layout


def _is_small(item: WriteItem) -> bool:
    plain_and_small = item.type == WriteItemType.TENSOR and (item.tensor_storage_size() or 0) <= SMALL
    return plain_and_small or item.tensor_data.size.numel() == 0


def _add_object(layout: Layout, fqn: str, path: list, entry: dict) -> None:
    if path != [fqn]:
        entry["path"] = path
    group = layout.groups.setdefault(str(path[0]) if len(path) > 1 else fqn.partition(".")[0], Group())
    if "pickle" in entry:
        entry["pickle"] = group.put(entry["pickle"])
    if "tensor" in entry:
        entry["tensor"]["data"] = group.put(entry["tensor"]["data"])
    group.values[fqn] = entry


def _object_entry(item: WriteItem, planner: Any) -> dict:
    if _private.looks_up(planner):
        return encode(_private.look_up(planner, item), item.index.fqn)
    return {"pickle": planner.resolve_data(item).getvalue()}


def _check(fqn: str, tensor: torch.Tensor) -> None:
    if tensor.device.type == "meta":
        raise ValueError(f"{fqn}: a tensor on the meta device has no values to save")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"{fqn}: a {tensor.layout} tensor of {tensor.dtype}; only dense tensors are saved")
    if tensor.dtype not in NAME_OF:
        raise TypeError(f"{fqn}: {tensor.dtype} is not a type that a checkpoint holds ({', '.join(NAME_OF.values())}); save it as one of them")
