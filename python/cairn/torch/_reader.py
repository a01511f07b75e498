"""Storage reader for torch.distributed.checkpoint."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
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

from cairn._boxes import CALL_BYTES, Box, batches, read_boxes
from cairn._opened import Opened
from cairn.torch._device import buffer_of, copy_values, is_plain, with_memory
from cairn.torch._dtypes import NUMBER_OF, TORCH_OF
from cairn.torch._objects import decode, decode_key
from cairn.torch._planner import CairnLoadPlanner


class TorchOpened(Opened):
    """An opened checkpoint, as torch objects."""

    def metadata(self, names: Optional[Iterable[str]] = None) -> Metadata:
        """DCP's metadata. Each tensor is one chunk, so DCP requests exactly the boxes that a rank holds.

        names: leaves out others.
        """
        found = self.names() if names is None else filter(self.has, names)
        entries = {fqn: self._metadata_of(fqn) for fqn in found}
        return Metadata(entries, planner_data={fqn: self.texts(fqn) for fqn in entries})

    def _metadata_of(self, fqn: str) -> Union[BytesStorageMetadata, TensorStorageMetadata]:
        if fqn in self.objects:
            return BytesStorageMetadata()
        saved = self.tensors[fqn]
        size = torch.Size(saved.shape)
        chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
        return TensorStorageMetadata(TensorProperties(TORCH_OF[saved.dtype]), size, [chunk])

    def texts(self, fqn: str) -> tuple:
        """Its path, with keys as texts."""
        return tuple(part["text"] if isinstance(part, dict) else part for part in self.path(fqn))

    def paths(self) -> Iterator[tuple]:
        """The paths of all values, with keys as texts."""
        return map(self.texts, self.names())

    def nested(self, allow_pickle: bool) -> dict[str, Any]:
        """The saved state dict with whole tensors on the CPU. Raises PickleRefused, CorruptError, OSError."""
        values = {fqn: self.value(fqn, allow_pickle) for fqn in self.objects}
        fresh = lambda saved: torch.empty(saved.shape, dtype=TORCH_OF[saved.dtype])
        made = {fqn: fresh(saved) for fqn, saved in self.tensors.items()}
        read_whole(self, [(saved.number, made[fqn]) for fqn, saved in self.tensors.items()])
        self.check()
        values.update(made)
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
        saved = self.tensors[item.storage_index.fqn]
        return box_of(saved.number, item.storage_offsets, TORCH_OF[saved.dtype], target)


class Whole:
    """Plain tensors of a flat state dict, which need no plan of DCP if they have the saved form.

    Those of no subclass that are as is_plain() says, each with all of its memory.
    """

    def __init__(self, state_dict: dict):
        self._state_dict = state_dict
        here = {
            fqn: value
            for fqn, value in state_dict.items()
            if (type(value) is torch.Tensor or type(value) is torch.nn.Parameter)
            and value.layout is torch.strided
            and value.is_cpu
            and not value.is_nested
            and value.is_contiguous()
            and not value.is_conj()
            and not value.is_neg()
            and value.untyped_storage().nbytes() >= value.storage_offset() * value.itemsize + value.nbytes
        }
        self._names, self._tensors = list(here), list(here.values())
        self._dtypes = [NUMBER_OF.get(tensor.dtype, 0) for tensor in self._tensors]
        self._shapes = [tensor.shape for tensor in self._tensors]
        self._numbers: Sequence[int] = ()

    def match(self, opened: Opened) -> dict:
        """Finds them in the checkpoint. Returns the part of the state dict that is left."""
        self._numbers = opened.match(self._names, self._dtypes, self._shapes)
        if len(self._names) == len(self._state_dict) and min(self._numbers, default=0) >= 0:
            return {}
        found = {fqn for fqn, number in zip(self._names, self._numbers) if number >= 0}
        return {fqn: value for fqn, value in self._state_dict.items() if fqn not in found}

    def read(self, opened: Opened) -> None:
        """Reads those that were found. Raises CorruptError, OSError."""
        places = [(number, tensor) for number, tensor in zip(self._numbers, self._tensors) if number >= 0]
        read_whole(opened, places)


def read_whole(opened: Opened, tensors: Sequence[tuple[int, torch.Tensor]]) -> None:
    """Fills tensors that have the saved form. Raises CorruptError, OSError."""
    for batch in batches(tensors, lambda numbered: numbered[1].nbytes, CALL_BYTES):
        opened.fill_whole([number for number, _ in batch], [tensor.data_ptr() for _, tensor in batch])


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

    def load(self, planner: CairnLoadPlanner, whole: Whole) -> None:
        """Fills the state dict that the planner was set up with. Raises LoadMismatch, and as `read_data`.

        whole: made of the same flat state dict.
        """
        opened = self._alive()
        plan = planner.plan_rest(whole.match(opened), opened)
        self.read_data(plan, planner, whole)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list) -> list:
        return plans

    def read_data(
        self, plan: LoadPlan, planner: LoadPlanner, whole: Optional[Whole] = None
    ) -> torch.futures.Future:
        """Fills the planner's tensors, and `whole`. Raises PickleRefused, CorruptError, OSError."""
        opened = self._alive()
        tensors = [item for item in plan.items if item.type == LoadItemType.TENSOR]
        others = [item for item in plan.items if item.type == LoadItemType.BYTE_IO]
        objects = [(item, opened.value(item.storage_index.fqn, self._allow_pickle)) for item in others]
        resolved = ((item.dest_index.fqn, planner.resolve_tensor(item)) for item in tensors)
        targets = [with_memory(fqn, tensor).detach() for fqn, tensor in resolved]
        if whole is not None:
            whole.read(opened)
        read_boxes(opened, map(opened.box, tensors, targets), buffer_of(targets))
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
