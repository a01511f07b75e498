"""The parts of a state dict that one rank writes, as described to the helper."""

from __future__ import annotations

import dataclasses
import logging
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch.distributed.checkpoint.planner import SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from cairn.torch import _collector, _job, _private
from cairn.torch._device import with_memory
from cairn.torch._dtypes import NAME_OF
from cairn.torch._objects import MAX_DEPTH, encode, encode_key, encode_tensor, is_unicode
from cairn.torch._ownership import Ownership, mesh_text

MAX_VALUE_BYTES = 1 << 30  # of all objects; the helper limits those of all ranks together to the same
_MAX_NAME = 65535  # bytes
_MAX_DIMENSIONS = 8
logger = logging.getLogger("cairn.torch")
SMALL = 8192  # bytes; plain tensors up to this size are saved with the objects
GROUPS = 16  # at most per layout; each is a file of the save


class Copy(NamedTuple):
    """A tensor of which other ranks have copies. shared: (group, part); see Ownership.group.

    piece: its number among the Layout's sources; None if another rank writes it.
    """

    name: str
    tensor: torch.Tensor
    shared: tuple[str, str]
    piece: Optional[int]


@dataclasses.dataclass
class Layout:
    """What one rank writes.

    tensors: as in the request "plan". names: of all objects. small: the objects that are tensors, described
    like `tensors`. sources: (FQN, local tensor) of all pieces, in order. encode: encodes the other values in
    groups, by the first component of their names, or by its CRC-32 if there are many; ranks with equal groups
    share the bytes.
    copies: the parts that other ranks hold, too.
    mesh: see mesh_text.
    """

    tensors: list = dataclasses.field(default_factory=list)
    names: list = dataclasses.field(default_factory=list)
    small: list = dataclasses.field(default_factory=list)
    sources: list = dataclasses.field(default_factory=list)
    encode: Callable[[], dict] = dict
    copies: list = dataclasses.field(default_factory=list)
    mesh: str = ""

    def objects(self) -> tuple[dict, bytes]:
        """Returns (the objects as in "write", that message's tail). Call it before the state dict changes.

        Raises TypeError or ValueError naming a value that cannot be saved.
        """
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
    """values: JSON. tail: the bytes that values refer to by [begin, count]."""

    values: dict = dataclasses.field(default_factory=dict)
    tail: bytearray = dataclasses.field(default_factory=bytearray)

    def put(self, data: bytes) -> list:
        self.tail += data
        return [len(self.tail) - len(data), len(data)]


class Recipe:
    """The common part of the layouts of all state dicts with the same names, types, shapes and placements."""

    def __init__(self, items: Iterable[WriteItem], planner: SavePlanner, ownership: Optional[Ownership]):
        """items: of a local plan. ownership: decides which items this rank writes; None: all.

        Raises TypeError or ValueError naming a value that cannot be saved.
        """
        self._tensors: list = []
        self._written: list = []  # the items of the pieces
        self._others: list = []  # (item, path, name of its group) of all other values
        self._copies: list = []  # (item, group, part, number) of a Copy
        numbers: dict = {}
        mappings = _private.mappings(planner)
        keys, state = getattr(planner, "keys", {}), getattr(planner, "state_dict", {})
        copies: list = []  # (item, group)
        learned = Learned(mappings.values())
        for item in items:
            named = mappings.get(item.index.fqn, (item.index.fqn,))
            path = list(named)
            data, first = item.tensor_data, _first(item.index.fqn, path)
            _check_name(item.index.fqn, path, data is not None)
            if keys:
                path = _with_keys(tuple(path), keys)
            if data is not None:
                check(item.index.fqn, planner.resolve_data(item))
            if data is not None and ownership is not None:
                group = ownership.group(item.index.fqn, state[item.index.fqn], learned.has(named))
                if group is not None and data.chunk.sizes.numel():
                    copies.append((item, group))
            if data is None or _is_small(item, data):
                self._others.append((item, path, first))
            else:
                self._add_tensor(item, data, path, planner, numbers, ownership)
        if len({group for _, _, group in self._others}) > GROUPS:
            hashed = [str(zlib.crc32(group.encode()) % GROUPS) for _, _, group in self._others]
            self._others = [(item, path, group) for (item, path, _), group in zip(self._others, hashed)]
        self._names = [item.index.fqn for item, _, _ in self._others]
        small = ((item, path) for item, path, _ in self._others if item.tensor_data is not None)
        self._small = [_described(item.index.fqn, item.tensor_data, path) for item, path in small]
        self._written.sort(key=lambda item: numbers[item.index.fqn])
        places = {id(item): number for number, item in enumerate(self._written)}
        for item, group in copies:
            part = ",".join(map(str, (item.index.fqn, *item.tensor_data.chunk.offsets)))
            self._copies.append((item, (group, part), places.get(id(item))))
        self._mesh = mesh_text(state.values(), _job.rank_and_world()[1])

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
        if not math.prod(chunk.sizes):
            return
        if ownership is None or ownership.writes(fqn, planner.state_dict[fqn], chunk.offsets):
            piece = {"offset": list(chunk.offsets), "extent": list(chunk.sizes)}
            self._tensors[numbers[fqn]]["pieces"].append(piece)
            self._written.append(item)

    def layout(self, planner: Any, warn: bool = True) -> Layout:
        """The layout of the planner's current state dict. warn: log values that become pickles."""
        pieces = ((item.index.fqn, planner.resolve_data(item)) for item in self._written)
        sources = [(fqn, with_memory(fqn, tensor).detach()) for fqn, tensor in pieces]
        encode = lambda: self._groups(planner, warn)
        copies = [self._copy(planner, sources, *copy) for copy in self._copies]
        return Layout(self._tensors, self._names, self._small, sources, encode, copies, self._mesh)

    @staticmethod
    def _copy(planner: Any, sources: list, item: WriteItem, shared: tuple, number: Optional[int]) -> Copy:
        fqn = item.index.fqn
        if number is not None:
            return Copy(fqn, sources[number][1], shared, number)
        return Copy(fqn, with_memory(fqn, planner.resolve_data(item)).detach(), shared, None)

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


class Learned:
    """Which tensors of a state dict its training learns: parameters and the states of their optimizer.

    Known by their names alone, so that all ranks agree: names end with "weight" or "bias", or an optimizer (a
    dict with "state" and "param_groups") has states of that name.
    """

    def __init__(self, paths: Iterable[tuple]):
        paths = list(paths)
        groups = {path[: path.index("param_groups")] for path in paths if "param_groups" in path}
        self._optimizers = [(*path, "state") for path in groups]
        self._names = {str(state[0]) for path in paths if (state := self._state(path))}

    def _state(self, path: Sequence) -> tuple:
        """The rest of the path in the states of an optimizer."""
        for begin in self._optimizers:
            if tuple(path[: len(begin)]) == begin:
                return tuple(path[len(begin) :])
        return ()

    def has(self, path: Sequence) -> bool:
        parts = ".".join(map(str, path)).split(".")
        tails = (".".join(parts[at:]) for at in range(len(parts)))
        return parts[-1] in ("weight", "bias") or bool(self._state(path)) or not self._names.isdisjoint(tails)


def signature_of(state_dict: dict, mappings: dict) -> Optional[list]:
    """Equal for flat state dicts with the same Recipe, while the meshes in it live. None: do not compare."""
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
    """The path with the keys themselves instead of their texts. keys: see CairnPlanner."""
    exact = list(path)
    for at, part in enumerate(path):
        if (found := keys.get(path[:at])) and part in found:
            exact[at] = encode_key(found[part], part)
    return exact


def _add_object(group: Group, fqn: str, path: list, entry: dict) -> None:
    if path != [fqn]:
        entry["path"] = path
    if "pickle" in entry:
        _check_name(fqn, [fqn], True)  # a pickle becomes a tensor of bytes
        entry["pickle"] = group.put(entry["pickle"])
    if "tensor" in entry:
        entry["tensor"]["data"] = group.put(entry["tensor"]["data"])
    group.values[fqn] = entry


def _entry(item: WriteItem, planner: Any) -> tuple[dict, str]:
    """Returns (the entry, the name of the value's type)."""
    if item.type != WriteItemType.BYTE_IO:
        tensor = with_memory(item.index.fqn, planner.resolve_data(item))
        shape = item.tensor_data.size if item.tensor_data else tensor.shape
        return encode_tensor(tensor, NAME_OF[tensor.dtype], shape), "Tensor"
    if _private.looks_up(planner):
        value = _private.look_up(planner, item)
        return encode(value, item.index.fqn), type(value).__name__
    return {"pickle": planner.resolve_data(item).getvalue()}, "value that the planner pickled"


_warned: set = set()  # names of pickles


def _warn_of(pickles: dict) -> None:
    """Warns of each name once per process. pickles: types by name."""
    if new := {name: kind for name, kind in pickles.items() if name not in _warned}:
        _warned.update(new)
        logger.warning(
            "saved as pickles; load needs allow_pickle=True: %s. "
            "Save plain values or a state_dict() instead",
            listed([f"{name} (a {kind})" for name, kind in new.items()]),
        )


def listed(names: list[str]) -> str:
    """The first nine of the names, for a log."""
    return ", ".join(names[:9]) + (f" and {len(names) - 9} more" if len(names) > 9 else "")


def _check_size(sizes: dict) -> None:
    """Refuses objects that are together too large for a load. sizes: by name."""
    if (total := sum(sizes.values())) > MAX_VALUE_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise ValueError(
            f"{largest}: non-tensor values take {total} bytes, {sizes[largest]} of them in this one; "
            f"a step holds {MAX_VALUE_BYTES}; save large arrays as tensors (torch.from_numpy)"
        )


def _size(entry: dict) -> int:
    """The bytes of an object. A tensor does not count: its bytes are not among the objects'."""
    return len(entry.get("json", "")) + (entry["pickle"][1] if "pickle" in entry else 0)


def _described(fqn: str, data: TensorWriteData, path: list) -> dict:
    described = {"fqn": fqn, "dtype": NAME_OF[data.properties.dtype], "shape": list(data.size)}
    return {**described, "path": path} if path != [fqn] else described


def _check_name(fqn: str, path: list, of_tensor: bool) -> None:
    """Raises ValueError for a name with which the step could not be read."""
    if len(path) > MAX_DEPTH:
        raise ValueError(
            f"{fqn[:99]!r}: {len(path)} levels of dicts and lists; a step holds {MAX_DEPTH}; make it flatter"
        )
    for text in (fqn, *(part for part in path if isinstance(part, str))):
        if (of_tensor and not text) or "\0" in text or not is_unicode(text):
            raise ValueError(
                f"{fqn!r}: its key {text!r} is not a name that a step can hold "
                "(it is empty, has a NUL, or is not Unicode); rename it"
            )
    if not of_tensor:
        return
    parts = [part for text in (fqn, str(path[-1])) for part in text.split("/")]
    if len(fqn.encode()) > _MAX_NAME or "" in parts or "." in parts:
        raise ValueError(
            f"{fqn[:99]!r}: a tensor's name has at most {_MAX_NAME} bytes, "
            "and no part between slashes is empty or a dot; rename it"
        )


def check(fqn: str, tensor: Any) -> None:
    """Raises TypeError or ValueError for a tensor that cannot be saved."""
    if is_lazy(tensor):
        raise ValueError(f"{fqn}: not initialized yet; run the module once first")
    if tensor.is_nested:
        raise TypeError(f"{fqn}: a nested tensor; only dense tensors are saved")
    if tensor.device.type == "meta":
        raise ValueError(f"{fqn}: a tensor on the meta device has no values to save")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"{fqn}: a {tensor.layout} tensor of {tensor.dtype}; only dense tensors are saved")
    if tensor.dtype not in NAME_OF:
        types = ", ".join(NAME_OF.values())
        raise TypeError(f"{fqn}: {tensor.dtype} is not a type of a checkpoint; save it as one of {types}")
    if tensor.dim() > _MAX_DIMENSIONS:
        raise ValueError(f"{fqn}: {tensor.dim()} dimensions; a tensor has at most {_MAX_DIMENSIONS}")
