"""Which rank writes what: a pure function of the device mesh and the name, so no rank has to ask another."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional, Union

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from cairn.torch import _private

PIPELINE = (
    "pp",
    "pipe",
    "pipeline",
    "stage",
)  # names of a mesh's dimension along which ranks hold other layers
EXPERTS = {
    "ep",
    "expert",
    "experts",
}  # a word of the name of a dimension along which ranks hold other experts
Replicas = Union[Sequence[int], Callable[[str], Optional[Sequence[int]]]]


def choose(holders: Sequence[int], fqn: str, offset: Sequence[int]) -> int:
    """The one of `holders` that writes the box at `offset` of tensor `fqn`: spread evenly, and the same on all ranks."""
    digest = hashlib.blake2b(f"{fqn}\0{','.join(map(str, offset))}".encode(), digest_size=8).digest()
    return holders[int.from_bytes(digest, "little") % len(holders)]


def mesh_holders(mesh: torch.Tensor, coordinate: Sequence[int], replicated: Sequence[bool]) -> list[int]:
    """The ranks that hold the same box as the one at `coordinate`.

    mesh: ranks, of the shape of the device mesh. replicated: for each of its dimensions, whether it replicates (or shards).
    """
    return sorted(
        mesh[tuple(slice(None) if copies else at for copies, at in zip(replicated, coordinate))]
        .flatten()
        .tolist()
    )


def widened(
    ranks: Iterable[int], root: torch.Tensor, members: Iterable[int], apart: Sequence[bool]
) -> list[int]:
    """`ranks`, and those that differ from them along the dimensions of `root` that a mesh cut out of it has not.

    root: ranks, of the shape of the mesh that it was cut out of. members: all ranks of the mesh. apart: for each dimension of root,
    whether ranks along it hold other tensors.
    """
    if (
        root.dim() == 1
    ):  # a world that meshes were unflattened from says nothing of its dimensions: stages may be among them
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
    for (
        placement
    ) in tensor.placements:  # FSDP over TP on one dimension: its rows are one box only if they divide evenly
        if type(placement).__name__ == "_StridedShard" and tensor.shape[
            dimension := _dimension(placement)
        ] % _shards(tensor, dimension):
            raise ValueError(
                f"{fqn}: dimension {dimension} of {tuple(tensor.shape)} is sharded unevenly by {tensor.placements}"
            )


def _widened_by_mesh(ranks: Iterable[int], mesh: DeviceMesh) -> list[int]:
    root = _private.root_mesh(mesh)
    names = root.mesh_dim_names or [""] * root.mesh.dim()
    return widened(ranks, root.mesh, mesh.mesh.flatten().tolist(), [name in PIPELINE for name in names])


def mesh_text(values: Iterable[Any], world: int) -> str:
    """How the job's ranks are laid out, for people: "dp_shard=2 tp=2", by the largest mesh that DTensors among the values have."""
    meshes = {id(value.device_mesh): value.device_mesh for value in values if isinstance(value, DTensor)}
    root = max(
        map(_private.root_mesh, meshes.values()),
        key=lambda root: (root.mesh.numel(), root.mesh.dim()),
        default=None,
    )
    ranks = f"{world} rank" + ("s" if world > 1 else "")
    if root is None or not root.mesh_dim_names:
        return ranks
    text = " ".join(f"{name}={size}" for name, size in zip(root.mesh_dim_names, root.mesh.shape))
    return text if root.mesh.numel() == world else f"{text}, {ranks}"


def expert_dimension(meshes: Iterable[tuple[Sequence[str], Sequence[int]]]) -> Optional[str]:
    """The name of a dimension along which ranks hold other experts; None if there is none.

    meshes: of each, the names and the sizes of its dimensions.
    """
    dimensions = [dimension for names, sizes in meshes for dimension in zip(names, sizes)]
    return next((name for name, size in dimensions if size > 1 and EXPERTS & set(name.split("_"))), None)


def _names_and_sizes(mesh: DeviceMesh) -> tuple[Sequence[str], Sequence[int]]:
    return mesh.mesh_dim_names or (), mesh.mesh.shape


def _dimension(placement: Any) -> int:
    """The dimension of the tensor that it shards; -1 if it shards none."""
    return getattr(placement, "dim", -1)


def _shards(tensor: DTensor, dimension: int) -> int:
    sizes = zip(tensor.device_mesh.mesh.shape, tensor.placements)
    return math.prod(size for size, placement in sizes if _dimension(placement) == dimension)


class Ownership:
    """Says for each tensor of one rank's state dict whether this rank writes it.

    values: all values of the flat state dict. replicas: the ranks that hold the same plain tensors as this rank; or a function
    that says it for each name (None: by the rule that holds without it), and that is asked about DTensors, too.
    """

    def __init__(self, rank: int, world: int, values: Iterable[Any], replicas: Optional[Replicas] = None):
        self._rank = rank
        self._replicas = replicas
        self._of_mesh: dict = {}
        meshes = {id(value.device_mesh): value.device_mesh for value in values if isinstance(value, DTensor)}
        on_meshes = {
            holder
            for mesh in meshes.values()
            for holder in _widened_by_mesh(mesh.mesh.flatten().tolist(), mesh)
        }
        self._plain_holders = sorted(on_meshes) or list(range(world))
        roots = (_private.root_mesh(mesh) for mesh in meshes.values())
        self._experts = expert_dimension(map(_names_and_sizes, (*meshes.values(), *roots)))

    def writes(self, fqn: str, value: Any, offset: Sequence[int]) -> bool:
        """value: a torch.Tensor, DTensor or ShardedTensor. offset: where this rank's box begins in the whole tensor."""
        return choose(self.holders(fqn, value), fqn, offset) == self._rank

    def holders(self, fqn: str, value: Any) -> list[int]:
        """All ranks that hold what this rank holds of the tensor. Raises ValueError if `replicas` leaves this rank out."""
        if (given := self._given(fqn, value)) is not None:
            if self._rank not in given:
                raise ValueError(
                    f"{fqn}: replicas says that ranks {given} hold it, but rank {self._rank} does, too"
                )
            return given
        if isinstance(value, DTensor):
            return self._dtensor_holders(fqn, value)
        if _private.is_sharded_tensor(value) or self._rank not in self._plain_holders:
            return [self._rank]
        self.check_plain(fqn, value)
        return self._plain_holders

    def check_plain(self, fqn: str, value: torch.Tensor) -> None:
        """Raises ValueError if the ranks may hold different experts under this name, and `replicas` does not decide."""
        if self._experts and value.dim() > 1 and self._given(fqn, value) is None:
            raise ValueError(
                f"{fqn}: a plain tensor, and the ranks along {self._experts!r} of the mesh may hold different experts; make it a DTensor,"
                " or say with replicas= which ranks hold the same"
            )

    def _dtensor_holders(self, fqn: str, tensor: DTensor) -> list[int]:
        """By its mesh, and by the one that this was cut out of: each rank of TP has the whole of a tensor that only FSDP has sharded."""
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
