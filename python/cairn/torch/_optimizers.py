"""Makes an optimizer's next step wait for a copy: its values can then be copied while training continues."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Union

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from cairn.torch._device import Copying

Optimizers = Union[Optimizer, Sequence[Optimizer]]

# The copies that each optimizer's next step waits for.
_held: "weakref.WeakKeyDictionary[Optimizer, list]" = weakref.WeakKeyDictionary()


def listed(optimizers: Optimizers) -> list:
    """A list of the optimizers. Raises TypeError if one is not torch's, because its steps would not wait."""
    every = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
    for optimizer in every:
        if not isinstance(optimizer, Optimizer) or not hasattr(optimizer, "_optimizer_step_pre_hooks"):
            raise TypeError(
                f"optimizer: a {type(optimizer).__name__}; "
                "give the torch.optim.Optimizer whose step() changes the parameters"
            )
    return every


def storages(optimizers: Sequence[Optimizer]) -> frozenset:
    """The addresses of the values that the optimizers' steps change: parameters and states."""
    tensors = (tensor for optimizer in optimizers for tensor in _tensors_of(optimizer))
    return frozenset(address for tensor in tensors if (address := storage(tensor)))


def storage(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage; 0 if it cannot be copied later."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return 0 if local.is_inference() or local.layout != torch.strided else local.untyped_storage().data_ptr()


def _tensors_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def hold(optimizers: Sequence[Optimizer], copying: Copying) -> None:
    """Makes the next step of each optimizer wait for the copy."""
    for optimizer in optimizers:
        if optimizer not in _held:
            _held[optimizer] = []
            optimizer.register_step_pre_hook(_wait)
        _held[optimizer].append(copying)


def _wait(optimizer: Optimizer, *_: Any) -> None:
    held = _held[optimizer]
    while held:
        held.pop().wait()
