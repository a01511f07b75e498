"""Decides which rank writes a tensor, from its name and the device mesh only: ranks need not communicate."""

from __future__ import annotations

import fnmatch
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from cairn.torch import _private

PIPELINE = ("pp", "pipe", "pipeline", "stage")  # names of mesh dimensions along which layers differ
GIVEN = "given-"
Replicas = Union[Sequence[int], Callable[[str], Optional[Sequence[int]]]]
Experts = Mapping[str, DeviceMesh]


def as_dtensors(state_dict: dict, experts: Optional[Experts]) -> dict:
    """The flat state dict with plain tensors of experts as DTensors, which have the same memory.

    experts: see CairnPlanner. Raises ValueError for a mesh of several dimensions.
    """
    found = dict(state_dict)
    for pattern, mesh in (experts or {}).items():
        if mesh.mesh.dim() != 1:
            raise ValueError(f"experts[{pattern!r}]: {mesh} has several dimensions; give that of the experts")
        for name in fnmatch.filter(state_dict, pattern):
            if _is_plain(state_dict[name]):
                found[name] = DTensor.from_local(state_dict[name].detach(), mesh, [Shard(0)])
    return found


def _is_plain(value: Any) -> bool:
    """Numbers, such as an optimizer's steps, are the same for all experts."""
    if not isinstance(value, torch.Tensor) or isinstance(value, DTensor) or _private.is_sharded_tensor(value):
        return False
    return value.dim() > 0


def choose(holders: Sequence[int], fqn: str, offset: Sequence[int]) -> int:
    """The rank of `holders` that writes the box at `offset` of tensor `fqn`. All ranks choose the same one.

    The boxes are spread evenly over the ranks.
    """
    digest = hashlib.blake2b(f"{fqn}\0{','.join(map(str, offset))}".encode(), digest_size=8).digest()
    return holders[int.from_bytes(digest, "little") % len(holders)]


def mesh_holders(mesh: torch.Tensor, coordinate: Sequence[int], replicated: Sequence[bool]) -> list[int]:
    """The ranks that hold the same box as the rank at `coordinate`.

    mesh: ranks, in the shape of the device mesh. replicated: for each dimension of the mesh, whether it
    replicates or shards.
    """
    place = tuple(slice(None) if copies else at for copies, at in zip(replicated, coordinate))
    return sorted(mesh[place].flatten().tolist())


def widened(
    ranks: Iterable[int], root: torch.Tensor, members: Iterable[int], apart: Sequence[bool]
) -> list[int]:
    """`ranks`, plus the ranks that differ only along dimensions of `root` that the mesh lacks.

    root: ranks, in the shape of the mesh from which the mesh was cut. members: all ranks of the mesh. apart:
    for each dimension of root, whether ranks along it hold different tensors.
    """
    # A flat root is a world from which meshes were unflattened: its dimensions are unknown, maybe stages.
    if root.dim() == 1:
        return sorted(ranks)
    place = {rank: at for at, rank in enumerate(root.flatten().tolist())}
    coordinates = {rank: _unravelled(place[rank], root.shape) for rank in (*ranks, *members)}
    all_ranks: set = set()
    own = [len({coordinates[member][dimension] for member in members}) > 1 for dimension in range(root.dim())]
    for rank in ranks:
        where = tuple(
            at if keeps or parts else slice(None) for at, keeps, parts in zip(coordinates[rank], own, apart)
        )
        all_ranks.update(root[where].flatten().tolist())
    return sorted(all_ranks)


def _unravelled(at: int, shape: Sequence[int]) -> list[int]:
    coordinate: list[int] = []
    for extent in reversed(shape):
        at, last = divmod(at, extent)
        coordinate.insert(0, last)
    return coordinate


def _check_dtensor(fqn: str, tensor: DTensor) -> None:
    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError(f"{fqn}: a DTensor of partial sums {tensor.placements}; redistribute it first")
    # With FSDP over TP on one dimension, a rank's rows are one box only if they divide evenly.
    for placement in tensor.placements:
        if type(placement).__name__ != "_StridedShard":
            continue
        dimension, shape = _dimension(placement), tuple(tensor.shape)
        if shape[dimension] % _shards(tensor, dimension):
            uneven = f"dimension {dimension} of {shape} is sharded unevenly by {tensor.placements}"
            raise ValueError(f"{fqn}: {uneven}")


def _widened_by_mesh(ranks: Iterable[int], mesh: DeviceMesh) -> list[int]:
    root = _private.root_mesh(mesh)
    names = root.mesh_dim_names or [""] * root.mesh.dim()
    return widened(ranks, root.mesh, mesh.mesh.flatten().tolist(), [name in PIPELINE for name in names])


def mesh_text(values: Iterable[Any], world: int) -> str:
    """The layout of the job's ranks, for people: "dp_shard=2 tp=2". It is the DTensors' largest mesh."""
    meshes = {id(value.device_mesh): value.device_mesh for value in values if isinstance(value, DTensor)}
    roots = map(_private.root_mesh, meshes.values())
    root = max(roots, key=lambda root: (root.mesh.numel(), root.mesh.dim()), default=None)
    ranks = f"{world} rank" + ("s" if world > 1 else "")
    if root is None or not root.mesh_dim_names:
        return ranks
    text = " ".join(f"{name}={size}" for name, size in zip(root.mesh_dim_names, root.mesh.shape))
    return text if root.mesh.numel() == world else f"{text}, {ranks}"


def _dimension(placement: Any) -> int:
    """The tensor's dimension that the placement shards; -1 if it does not shard."""
    return getattr(placement, "dim", -1)


def _shards(tensor: DTensor, dimension: int) -> int:
    sizes = zip(tensor.device_mesh.mesh.shape, tensor.placements)
    return math.prod(size for size, placement in sizes if _dimension(placement) == dimension)


class Ownership:
    """Decides for each tensor of this rank's state dict whether this rank writes it.

    values: all values of the flat state dict. replicas: the ranks that hold the same plain tensors as this
    rank, or a function from a name to these ranks. It is called for DTensors too; None: the default rule.
    """

    def __init__(self, rank: int, world: int, values: Iterable[Any], replicas: Optional[Replicas] = None):
        self._rank = rank
        self._replicas = replicas
        self._of_mesh: dict = {}
        meshes = {id(value.device_mesh): value.device_mesh for value in values if isinstance(value, DTensor)}
        members = {id(mesh): mesh.mesh.flatten().tolist() for mesh in meshes.values()}
        on_meshes = {rank for at, mesh in meshes.items() for rank in _widened_by_mesh(members[at], mesh)}
        self._plain_holders = sorted(on_meshes) or list(range(world))

    def writes(self, fqn: str, value: Any, offset: Sequence[int]) -> bool:
        """value: a torch.Tensor, DTensor or ShardedTensor. offset: this rank's box's, in the whole tensor."""
        return choose(self.holders(fqn, value), fqn, offset) == self._rank

    def holders(self, fqn: str, value: Any) -> list[int]:
        """All ranks that hold the same part as this one. Raises ValueError if `replicas` omits this rank."""
        if (given := self._given(fqn, value)) is not None:
            if self._rank not in given:
                but = f"replicas says that ranks {given} hold it, but rank {self._rank} does too"
                raise ValueError(f"{fqn}: {but}")
            return given
        if isinstance(value, DTensor):
            return self._dtensor_holders(fqn, value)
        if _private.is_sharded_tensor(value) or self._rank not in self._plain_holders:
            return [self._rank]
        return self._plain_holders

    def group(self, fqn: str, value: Any, learned: bool) -> Optional[str]:
        """A name for the ranks that hold the same part as this rank; None if no other rank does.

        It begins with GIVEN if `replicas` names them. Plain vectors that are not learned are not compared
        (None): the statistics of a batch norm and the states of random generators differ between ranks.
        """
        if value.dim() < 2 and not learned and not isinstance(value, DTensor):
            return None
        if len(holders := self.holders(fqn, value)) < 2:
            return None
        ranks = hashlib.blake2b(",".join(map(str, holders)).encode(), digest_size=8).hexdigest()
        return ranks if self._given(fqn, value) is None else GIVEN + ranks

    def _dtensor_holders(self, fqn: str, tensor: DTensor) -> list[int]:
        """The holders, from the DTensor's mesh and the mesh from which it was cut.

        Each TP rank holds the same part of a tensor that only FSDP shards.
        """
        _check_dtensor(fqn, tensor)
        mesh = tensor.device_mesh
        replicated = tuple(placement.is_replicate() for placement in tensor.placements)
        key = (id(mesh), replicated)
        if key not in self._of_mesh:
            if (coordinate := mesh.get_coordinate()) is None:
                raise ValueError(f"{fqn}: rank {self._rank} is not in its mesh {mesh}")
            self._of_mesh[key] = _widened_by_mesh(mesh_holders(mesh.mesh, coordinate, replicated), mesh)
        return self._of_mesh[key]

    def _given(self, fqn: str, value: Any) -> Optional[list[int]]:
        if callable(self._replicas):
            ranks = self._replicas(fqn)
            return None if ranks is None else sorted(ranks)
        if self._replicas is None or isinstance(value, DTensor) or _private.is_sharded_tensor(value):
            return None
        return sorted(self._replicas)
