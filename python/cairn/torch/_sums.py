"""Sums of the bits of tensors (ckpt/base/value_sum.h). Ranks that hold copies of one compare its sums."""

from __future__ import annotations

import array
from collections.abc import Sequence

import torch

from cairn._library import library

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def sums(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The sum of each tensor, all on the CPU, on this thread and without the GIL."""
    places, rows, columns = array.array("Q"), array.array("Q"), array.array("Q")
    sizes = array.array("B")
    kept = []  # the copies of tensors that are not contiguous
    for tensor in tensors:
        if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
            tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
            kept.append(tensor)
        row = tensor.shape[-1] if tensor.dim() else 1
        places.append(tensor.data_ptr())
        rows.append(tensor.numel() // row if row else 0)
        columns.append(row)
        sizes.append(tensor.itemsize)
    return library().sums(places, rows, columns, sizes).tolist() if places else []


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """The same sum, as a scalar on the tensor's device."""
    values = tensor.detach().view(_INTEGERS[tensor.itemsize])
    rows = values.view(1) if values.dim() == 0 else values
    rows = rows.sum(-1, dtype=torch.int64).reshape(-1)
    return (rows * (2 * torch.arange(len(rows), device=rows.device) + 1)).sum()


def text(value: int) -> str:
    """A sum as in the request "copied"; the negative ones are torch's."""
    return f"{value % 2**64:016x}"
