"""All uses of torch's private interfaces: only these can break with a new torch."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint._sharded_tensor_utils import _flatten_sharded_tensors
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.planner_helpers import _init_state_dict
from torch.distributed.device_mesh import DeviceMesh


def default_store() -> Any:
    """The store of the default process group. It lives as long as the group."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def async_save_takes_futures() -> bool:
    """Whether dcp.async_save accepts a Future from a stager (torch 2.9 and later)."""
    return hasattr(state_dict_saver, "AsyncSaveResponse")


def root_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The mesh from which `mesh` was cut, or `mesh` itself."""
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    from torch.distributed.device_mesh import _mesh_resources  # before torch 2.8

    return _mesh_resources.get_root_mesh(mesh)


def is_sharded_tensor(value: Any) -> bool:
    """Whether the value is a ShardedTensor, as in FSDP1's state dicts. It is a torch.Tensor too."""
    return isinstance(value, ShardedTensor)


def waited_for(tensor: torch.Tensor) -> torch.Tensor:
    """The result of a collective that may still be running; any other tensor as it is."""
    return tensor.trigger_wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor


def off_meta(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor like it, on the device of the default process group."""
    state = {"": tensor}
    _init_state_dict(state)
    return state[""]


def flattened(state_dict: Any) -> tuple[dict, dict]:
    """Returns ({FQN: value}, {FQN: path in the nested state dict}).

    ShardedTensors inside ShardedTensors are replaced by the inner ones.
    """
    return flatten_state_dict(_flatten_sharded_tensors(state_dict))


def mappings(planner: Any) -> dict:
    """{FQN: path in the nested state dict} of a planner that has flattened one."""
    return getattr(planner, "mappings", {})


def looks_up(planner: Any) -> bool:
    """Whether the planner can return a value that it has not pickled."""
    return isinstance(planner, DefaultSavePlanner)


def look_up(planner: DefaultSavePlanner, item: WriteItem) -> Any:
    return planner.lookup_object(item.index)
