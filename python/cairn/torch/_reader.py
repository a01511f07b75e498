"""Storage reader for torch.distributed.checkpoint."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Container, Iterable, Sequence
from typing import Any, Optional, Union

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader

from cairn._boxes import Box, read_boxes
from cairn._opened import Opened
from cairn.torch._device import buffer_of, copy_values, is_plain, with_memory
from cairn.torch._dtypes import TORCH_OF
from cairn.torch._objects import decode, decode_key
from cairn.torch._planner import CairnLoadPlanner


class TorchOpened(Opened):
    """An opened checkpoint, as torch objects."""

    def metadata(self, planned: Container[str] = ()) -> Metadata:
        """DCP's metadata. Each tensor is one chunk, so DCP requests exactly the boxes that a rank holds.

        planned: names to leave out.
        """
        entries: dict = {fqn: BytesStorageMetadata() for fqn in self.objects}
        for fqn, (_, tensor) in self.tensors.items():
            if fqn in planned:
                continue
            size = torch.Size(tensor["shape"])
            chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
            entries[fqn] = TensorStorageMetadata(TensorProperties(TORCH_OF[tensor["dtype"]]), size, [chunk])
        text = lambda part: part["text"] if isinstance(part, dict) else part
        return Metadata(entries, planner_data={fqn: tuple(map(text, self.path(fqn))) for fqn in entries})

    def whole(self, state_dict: dict) -> dict[str, Box]:
        """Boxes of the plain tensors that need no plan of DCP: whole, in memory that has the saved form."""
        found = {}
        for fqn, here in state_dict.items():
            if type(here) not in (torch.Tensor, torch.nn.Parameter) or fqn not in self.tensors:
                continue
            number, saved = self.tensors[fqn]
            if _has_form(here, saved):
                shape = saved["shape"]
                found[fqn] = Box(number, [0] * len(shape), shape, here.nbytes, here.data_ptr(), None, here)
        return found

    def nested(self, allow_pickle: bool) -> dict[str, Any]:
        """The saved state dict with whole tensors on the CPU. Raises PickleRefused, CorruptError, OSError."""
        values = {fqn: self.value(fqn, allow_pickle) for fqn in self.objects}
        boxes = []
        for fqn, (number, tensor) in self.tensors.items():
            dtype, shape = TORCH_OF[tensor["dtype"]], tensor["shape"]
            values[fqn] = torch.empty(shape, dtype=dtype)
            boxes.append(box_of(number, [0] * len(shape), dtype, values[fqn]))
        read_boxes(self, boxes)
        self.check()
        root = _Node()
        for fqn, value in values.items():
            root.put([(type(part) is int, decode_key(part)) for part in self.path(fqn)], value)
        return root.container()

    def value(self, fqn: str, allow_pickle: bool) -> Any:
        """The object of that name. Raises PickleRefused."""
        return decode(self.entry(fqn), fqn, allow_pickle)

    def pickle(self, fqn: str) -> Optional[bytes]:
        """The pickle of the object of that name; None if it is JSON."""
        return self.entry(fqn).get("pickle")

    def box(self, item: ReadItem, target: torch.Tensor) -> Box:
        """The box to read into `target`, which has the box's shape."""
        number, tensor = self.tensors[item.storage_index.fqn]
        return box_of(number, item.storage_offsets, TORCH_OF[tensor["dtype"]], target)


def _has_form(tensor: torch.Tensor, saved: dict) -> bool:
    """Whether a tensor of no subclass has the saved type and shape, and is_plain, with all of its memory."""
    return (
        tensor.dtype is TORCH_OF[saved["dtype"]]
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and list(tensor.shape) == saved["shape"]
        and is_plain(tensor)
        and tensor.untyped_storage().nbytes() >= tensor.storage_offset() * tensor.itemsize + tensor.nbytes
    )


class _Node(dict):
    """A dict or a list of a state dict. Keys are (True, list position) or (False, dict key)."""

    def put(self, path: list, value: Any) -> None:
        node = self
        for part in path[:-1]:
            # A dict that is empty on one rank may have values on another.
            if not isinstance(node.get(part), _Node):
                node[part] = _Node()
            node = node[part]
        if not isinstance(node.get(path[-1]), _Node):
            node[path[-1]] = value

    def container(self) -> Any:
        opened = lambda value: value.container() if isinstance(value, _Node) else value
        values = {part: opened(value) for part, value in self.items()}
        positions = [at for in_list, at in values if in_list]
        if positions:
            return [values.get((True, at)) for at in range(1 + max(positions))]
        return {key: value for (_, key), value in values.items()}


def box_of(number: int, offset: Sequence[int], dtype: torch.dtype, target: torch.Tensor) -> Box:
    """A Box that reads into `target`. dtype: the type of the saved bytes."""
    nbytes = target.numel() * dtype.itemsize
    if target.dtype == dtype and is_plain(target):
        return Box(number, offset, target.shape, nbytes, target.data_ptr(), memory=target)

    def deliver(elements: memoryview, begin: Sequence[int], extent: Sequence[int]) -> None:
        part = tuple(slice(at - first, at - first + count) for at, first, count in zip(begin, offset, extent))
        copy_values(torch.frombuffer(elements, dtype=dtype).view(tuple(extent)), target[part])

    return Box(number, offset, target.shape, nbytes, deliver=deliver)


class CairnReader(StorageReader):
    """``dcp.load(state_dict, storage_reader=CairnReader(path), no_dist=True)``

    path: a step's or a run's directory, or any checkpoint that `cairn ls` lists. The constructor raises
    FileNotFoundError or CorruptError.
    allow_pickle: also load values that were saved as pickles; only from a source that you trust.
    """

    def __init__(
        self, path: Union[str, os.PathLike], allow_pickle: bool = False, _peers: Optional[dict] = None
    ):
        self._allow_pickle = allow_pickle
        self._peers = _peers or None
        self._opened: Optional[TorchOpened] = None
        self.reset(path)

    @property
    def step(self) -> int:
        return self._alive().step

    def reset(self, checkpoint_id: Union[str, os.PathLike, None] = None) -> None:
        """checkpoint_id: another path."""
        if checkpoint_id is not None:
            self.close()
            self._opened = TorchOpened(checkpoint_id, local=self._peers)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def __enter__(self) -> "CairnReader":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if (opened := getattr(self, "_opened", None)) is not None:
            opened.close()

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._alive().metadata()

    def whole(self, state_dict: dict) -> dict[str, Box]:
        """See TorchOpened."""
        return self._alive().whole(state_dict)

    def metadata(self, planned: Container[str]) -> Metadata:
        """See TorchOpened."""
        return self._alive().metadata(planned)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list) -> list:
        return plans

    def read_data(
        self, plan: LoadPlan, planner: LoadPlanner, planned: Iterable[Box] = ()
    ) -> torch.futures.Future:
        """Fills the planner's tensors. Raises PickleRefused, CorruptError, OSError.

        planned: further boxes.
        """
        opened = self._alive()
        tensors = [item for item in plan.items if item.type == LoadItemType.TENSOR]
        others = [item for item in plan.items if item.type == LoadItemType.BYTE_IO]
        objects = [(item, opened.value(item.storage_index.fqn, self._allow_pickle)) for item in others]
        resolved = ((item.dest_index.fqn, planner.resolve_tensor(item)) for item in tensors)
        targets = [with_memory(fqn, tensor).detach() for fqn, tensor in resolved]
        boxes = itertools.chain(planned, map(opened.box, tensors, targets))
        read_boxes(opened, boxes, buffer_of(targets))
        opened.check()
        for item, target in zip(tensors, targets):
            planner.commit_tensor(item, target)
        for item, value in objects:
            _give_object(planner, item, value)
        done: torch.futures.Future = torch.futures.Future()
        done.set_result(None)
        return done

    def _alive(self) -> TorchOpened:
        if self._opened is None:
            raise ValueError("the reader is closed")
        return self._opened

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Union[str, os.PathLike]) -> bool:
        return os.path.exists(checkpoint_id)


def _give_object(planner: LoadPlanner, item: ReadItem, value: Any) -> None:
    if isinstance(planner, CairnLoadPlanner):
        planner.load_object(item, value)
        return
    buffer = io.BytesIO()
    torch.save(value, buffer)  # the form that DCP's planners expect
    buffer.seek(0)
    planner.load_bytes(item, buffer)
