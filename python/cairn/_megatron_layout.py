"""The parts of a Megatron-Core sharded state dict that this rank writes, as a Layout of cairn.torch."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, is_main_replica
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from cairn.torch._layout import Layout
from cairn.torch._planner import CairnPlanner

_COMMON_STATE = "common_state"  # since 0.19 also the key of common.pt's content, which is still written there


class _Shards(torch.Tensor):
    """This rank's parts of one tensor, in the form that torch.distributed.checkpoint's planners need."""

    @staticmethod
    def __new__(cls, parts: list) -> "_Shards":
        shape = torch.Size(parts[0].global_shape)
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=parts[0].dtype)

    def __init__(self, parts: list):
        in_order = sorted(parts, key=lambda part: part.global_offset)  # the helper's order
        self._parts = {torch.Size(part.global_offset): part for part in in_order}

    def __create_write_items__(self, fqn: str, _: Any) -> list[WriteItem]:
        described = [self._described(chunk) for chunk in self.__create_chunk_list__()]
        return [
            WriteItem(MetadataIndex(fqn, data.chunk.offsets), WriteItemType.SHARD, tensor_data=data)
            for data in described
        ]

    def _described(self, chunk: ChunkStorageMetadata) -> TensorWriteData:
        properties = TensorProperties.create_from_tensor(self._parts[chunk.offsets].data)
        return TensorWriteData(chunk, properties, self.size())

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        extents = {offset: torch.Size(_extent(part)) for offset, part in self._parts.items()}
        return [ChunkStorageMetadata(offset, extent) for offset, extent in extents.items()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        return with_prepended_axes(self._parts[torch.Size(index.offset or ())])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{func} of a tensor that only describes parts of a checkpoint")


def layout_of(sharded_state_dict: dict) -> Layout:
    """The layout of this rank's main replicas, which it writes."""
    objects: dict = {}
    parts: dict = {}
    for item in nested_values(sharded_state_dict):
        if not is_main_replica(item.replica_id) or item.key == _COMMON_STATE:
            continue
        if isinstance(item, ShardedObject):
            objects[item.unique_key] = item.data
        elif item.data is None:
            raise ValueError(f"{item.key}: the tensor has no data")
        elif item.flattened_range is not None:
            raise ValueError(f"{item.key}: flattened_range is not supported; Megatron-Core has dropped it")
        else:
            parts.setdefault(item.key, []).append(item)
    planner = CairnPlanner(replicas=lambda _: [dist.get_rank()])
    planner.flatten_state_dict = planner.flatten_sharded_tensors = False
    planner.set_up_planner({**objects, **{key: _Shards(found) for key, found in parts.items()}})
    return planner.layout(warn=False)  # a load accepts pickles of the classes that Megatron allows


def _extent(item: ShardedTensor) -> list[int]:
    return [1] * item.prepend_axis_num + list(item.local_shape)


def with_prepended_axes(item: ShardedTensor) -> torch.Tensor:
    tensor = item.data.detach()
    for _ in range(item.prepend_axis_num):
        tensor = tensor[None]
    return tensor


def take_common(sharded_state_dict: dict) -> Optional[ShardedObject]:
    found = sharded_state_dict.get(_COMMON_STATE)
    return found if isinstance(found, ShardedObject) else None
