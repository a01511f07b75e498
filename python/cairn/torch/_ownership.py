"""Which rank writes what: a pure function of the device mesh and the name, so that no rank has to ask another."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional, Union

import torch
from torch.distributed.tensor import DTensor

from cairn.torch import _private

Replicas = Union[Sequence[int], Callable[[str], Optional[Sequence[int]]]]


def choose(holders: Sequence[int], fqn: str, offset: Sequence[int]) -> int:
    """The one of `holders` that writes the box at `offset` of tensor `fqn`: spread evenly, and the same on all ranks."""
    digest = hashlib.blake2b(f"{fqn}\0{','.join(map(str, offset))}".encode(), digest_size=8).digest()
    return holders[int.from_bytes(digest, "little") % len(holders)]


def mesh_holders(mesh: torch.Tensor, coordinate: Sequence[int], replicated: Sequence[bool]) -> list[int]:
    """The ranks that hold the same box as the one at `coordinate`.

    mesh: ranks, of the shape of the device mesh. replicated: for each of its dimensions, whether it replicates (or shards).
    """
    return sorted(mesh[tuple(slice(None) if copies else at for copies, at in zip(replicated, coordinate))].flatten().tolist())


def dtensor_holders(fqn: str, tensor: DTensor) -> list[int]:
    """The ranks that hold this rank's box of the tensor, by its own mesh. Raises ValueError for partial sums."""
    mesh = tensor.device_mesh
    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError(f"{fqn}: a DTensor of partial sums {tensor.placements}; redistribute it first")
    for placement in tensor.placements:  # FSDP over TP on one dimension: its rows are one box only where they divide evenly
        if type(placement).__name__ == "_StridedShard" and tensor.shape[placement.dim] % _shards(tensor, placement.dim):
            raise ValueError(f"{fqn}: dimension {placement.dim} of {tuple(tensor.shape)} is sharded unevenly by {tensor.placements}")
    return mesh_holders(mesh.mesh, mesh.get_coordinate(), [placement.is_replicate() for placement in tensor.placements])


def _shards(tensor: DTensor, dimension: int) -> int:
    sizes = zip(tensor.device_mesh.mesh.shape, tensor.placements)
    return math.prod(size for size, placement in sizes if getattr(placement, "dim", None) == dimension)


class Ownership:
    """Says for each tensor of one rank's state dict whether this rank writes it.

    values: all values of the flat state dict. replicas: the ranks that hold the same plain tensors as this rank; or a function
    that says it for each name (None: by the rule that holds without it), and that is asked about DTensors, too.
    """

    def __init__(self, rank: int, world: int, values: Iterable[Any], replicas: Optional[Replicas] = None):
        self._rank = rank
        self._replicas = replicas
        on_meshes = {holder for value in values if isinstance(value, DTensor) for holder in value.device_mesh.mesh.flatten().tolist()}
        self._plain_holders = sorted(on_meshes) or list(range(world))

    def writes(self, fqn: str, value: Any, offset: Sequence[int]) -> bool:
        """value: a torch.Tensor, DTensor or ShardedTensor. offset: where this rank's box begins in the whole tensor."""
        return choose(self.holders(fqn, value), fqn, offset) == self._rank

    def holders(self, fqn: str, value: Any) -> list[int]:
        """All ranks that hold what this rank holds of the tensor. Raises ValueError where `replicas` leaves this rank out."""
        if (given := self._given(fqn, value)) is not None:
            if self._rank not in given:
                raise ValueError(f"{fqn}: replicas says that ranks {given} hold it, but rank {self._rank} does, too")
            return given
        if isinstance(value, DTensor):
            return dtensor_holders(fqn, value)
        if _private.is_sharded_tensor(value) or self._rank not in self._plain_holders:
            return [self._rank]
        return self._plain_holders

    def _given(self, fqn: str, value: Any) -> Optional[list[int]]:
        if callable(self._replicas):
            ranks = self._replicas(fqn)
            return None if ranks is None else sorted(ranks)
        if self._replicas is None or isinstance(value, DTensor) or _private.is_sharded_tensor(value):
            return None
        return sorted(self._replicas)
