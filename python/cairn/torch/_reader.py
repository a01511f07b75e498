"""Storage reader for torch.distributed.checkpoint."""

from __future__ import annotations

import io
import os
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

from cairn.torch._dtypes import TORCH_OF
from cairn.torch._helper import Helper, helper
from cairn.torch._objects import decode
from cairn.torch._planner import CairnLoadPlanner
from cairn.torch._windows import Box, read_boxes


class Opened:
    """A checkpoint that the helper has open. path: a step, a run (its newest step that opens), or another system's checkpoint."""

    def __init__(self, path: Union[str, os.PathLike]):
        self.helper: Helper = helper()
        reply = self.helper.ask("open", path=os.path.abspath(path))
        fields = reply.fields
        self.handle: int = fields["handle"]
        self.directory: str = fields["dir"]
        self.step: int = fields["step"]
        self.state: dict = fields.get("state", {})
        self.model: dict = fields.get("model", {})
        numbered = enumerate(fields["tensors"])  # one without a name holds objects
        self.tensors: dict = {tensor["fqn"]: (number, tensor) for number, tensor in numbered if tensor["fqn"] is not None}
        self.objects: dict = fields["objects"]
        self._paths: dict = fields["paths"]
        self._tail = reply.tail

    def metadata(self) -> Metadata:
        """As DCP has it, with one chunk for each tensor: so DCP asks for the very boxes that a rank holds."""
        entries: dict = {fqn: BytesStorageMetadata() for fqn in self.objects}
        for fqn, (_, tensor) in self.tensors.items():
            size = torch.Size(tensor["shape"])
            chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
            entries[fqn] = TensorStorageMetadata(TensorProperties(TORCH_OF[tensor["dtype"]]), size, [chunk])
        return Metadata(entries, planner_data={fqn: self._path(fqn) for fqn in entries})

    def value(self, fqn: str, allow_pickle: bool) -> Any:
        """The object of that name. Raises PickleRefused."""
        pickled = self.pickle(fqn)
        return decode(self.objects[fqn] if pickled is None else {"pickle": pickled}, fqn, allow_pickle)

    def pickle(self, fqn: str) -> Optional[bytes]:
        """The object of that name as it was pickled; None where it is JSON."""
        begin, count = self.objects[fqn].get("pickle", (None, None))
        return None if begin is None else self._tail[begin : begin + count]

    def _path(self, fqn: str) -> tuple:
        return tuple(self.objects.get(fqn, {}).get("path") or self._paths.get(fqn) or (fqn,))

    def check(self) -> None:
        """What was read counts only after this. Raises CorruptError where a record of another system's file is not what its CRC-32 says."""
        self.helper.ask("check", handle=self.handle)

    def close(self) -> None:
        if self.helper.alive:
            self.helper.request("close", handle=self.handle)


class CairnReader(StorageReader):
    """``dcp.load(state_dict, storage_reader=CairnReader(path), no_dist=True)``

    path: a step's or a run's directory, or any checkpoint that `cairn ls` lists. Opened here: FileNotFoundError, CorruptError.
    allow_pickle: load what was saved as a pickle, too; only from a source that you trust.
    """

    def __init__(self, path: Union[str, os.PathLike], allow_pickle: bool = False):
        self._allow_pickle = allow_pickle
        self._opened: Optional[Opened] = None
        self.reset(path)

    @property
    def step(self) -> int:
        return self._opened.step

    def reset(self, checkpoint_id: Union[str, os.PathLike, None] = None) -> None:
        """checkpoint_id: another path."""
        if checkpoint_id is not None:
            self.close()
            self._opened = Opened(checkpoint_id)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def __enter__(self) -> "CairnReader":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_opened", None) is not None:
            self.close()

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._opened.metadata()

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list) -> list:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future:
        """Fills the planner's tensors. Raises PickleRefused, CorruptError, OSError."""
        tensors = [item for item in plan.items if item.type == LoadItemType.TENSOR]
        objects = [(item, self._opened.value(item.storage_index.fqn, self._allow_pickle)) for item in plan.items if item.type == LoadItemType.BYTE_IO]
        targets = [planner.resolve_tensor(item).detach() for item in tensors]
        read_boxes(self._opened.helper, self._opened.handle, map(self._box, tensors, targets))
        self._opened.check()
        for item, target in zip(tensors, targets):
            planner.commit_tensor(item, target)
        for item, value in objects:
            _give_object(planner, item, value)
        done: torch.futures.Future = torch.futures.Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Union[str, os.PathLike]) -> bool:
        return os.path.exists(checkpoint_id)

    def _box(self, item: ReadItem, target: torch.Tensor) -> Box:
        number, tensor = self._opened.tensors[item.storage_index.fqn]
        return Box(number, item.storage_offsets, TORCH_OF[tensor["dtype"]], target)


def _give_object(planner: LoadPlanner, item: ReadItem, value: Any) -> None:
    if isinstance(planner, CairnLoadPlanner):
        planner.load_object(item, value)
        return
    buffer = io.BytesIO()
    torch.save(value, buffer)  # what DCP's planners expect
    buffer.seek(0)
    planner.load_bytes(item, buffer)
