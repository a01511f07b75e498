"""Planners for torch.distributed.checkpoint: DCP's own, which flatten state dicts, with Cairn's ownership."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional

import torch
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_load_plan,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from cairn.torch import _collector, _job, _private
from cairn.torch._layout import Layout, Recipe, check, listed, signature_of
from cairn.torch._nested import Nested
from cairn.torch._ownership import Experts, Ownership, Replicas, as_dtensors
from cairn.torch._saving import Staged

if TYPE_CHECKING:
    from cairn.torch._reader import TorchOpened

logger = logging.getLogger("cairn.torch")
STAGED = "__cairn_staged__"  # the key of the value that CairnStager hands to dcp.save


class LoadMismatch(ValueError):
    """A state dict does not match the checkpoint. The message names each tensor and both sides."""

    @classmethod
    def of(cls, what: str, faults: list) -> LoadMismatch:
        """Names the first 20 faults."""
        more = f"\n  and {len(faults) - 20} more" if len(faults) > 20 else ""
        return cls(f"{what}:\n  " + "\n  ".join(faults[:20]) + more)


class CairnPlanner(DefaultSavePlanner):
    """Plans a save that writes each element once, without communication between the ranks.

    replicas: the ranks that hold the same plain tensors (not DTensors) as this rank, or a function from a
    name to these ranks. The function is called for DTensors too, and may return None for the default rule.

    The default rule: a DTensor's mesh says which ranks hold the same part. If that mesh was cut from a larger
    one, the tensor counts as replicated along the larger mesh's other dimensions, except those named pp,
    pipe, pipeline or stage. Plain tensors count as replicated on all ranks of these meshes, or on all ranks
    of the job if the state dict has no DTensor. Ranks that hold the same part compare some of its elements:
    a save fails if they differ, and names the tensor, unless `replicas` names these ranks.

    experts: {pattern of names: device mesh of one dimension}, for plain tensors of which each rank of the
    mesh has the rows of its own experts, in the order of the ranks: {"*.experts.*": mesh["ep"]}. They are
    saved as one tensor of all experts. A pattern is matched with the whole flat name, also
    "optim.state.w1.exp_avg".
    """

    def __init__(self, replicas: Optional[Replicas] = None, experts: Optional[Experts] = None):
        super().__init__()
        self.replicas = replicas
        self.experts = experts
        self.staged: Optional[Staged] = None
        self.keys: dict = {}  # {path of a dict: {text in a path: key}} for keys that are not strings

    def set_up_planner(
        self, state_dict: dict, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        self.staged = state_dict.get(STAGED)
        with _depth_of_stack():
            super().set_up_planner({} if self.staged else state_dict, storage_meta, is_coordinator)
            if not self.staged:
                self.state_dict = as_dtensors(self.state_dict, self.experts)
            if self.flatten_state_dict and not self.staged:
                self._keep_shape_of(state_dict)

    def _keep_shape_of(self, state_dict: dict) -> None:
        """Keeps what flat names lose: the types of keys, and empty dicts."""
        for path, found in Nested(state_dict).dicts:
            if keys := {str(key): key for key in found if not isinstance(key, str)}:
                self.keys[path] = keys
            if path and not found:
                name = ".".join(map(str, path))
                self.state_dict.setdefault(name, {})
                self.mappings.setdefault(name, path)

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([], planner_data=self.mappings)  # a coordinator has nothing to do
        return self.plan

    def create_global_plan(self, all_plans: list) -> tuple:
        self.global_plan, self.metadata = all_plans, Metadata({})
        return self.global_plan, self.metadata

    def layout(self, warn: bool = True) -> Layout:
        """This rank's parts. warn: log values that become pickles.

        Raises TypeError or ValueError naming a value that cannot be saved.
        """
        with _collector.paused():
            return _recipes.of(self).layout(self, warn)


class _Recipes:
    """Keeps the last Recipe: making one is the longest wait of a training at a save."""

    def __init__(self) -> None:
        self._last: tuple = (None, None)

    def of(self, planner: CairnPlanner) -> Recipe:
        signature = signature_of(planner.state_dict, planner.mappings)
        key = signature and [*signature, *_job.rank_and_world(), planner.replicas, planner.keys]
        last, recipe = self._last
        if key is None or key != last:
            recipe = self._make(planner)
            self._last = (key, recipe)
        return recipe

    @staticmethod
    def _make(planner: CairnPlanner) -> Recipe:
        for fqn, value in planner.state_dict.items():
            if isinstance(value, torch.Tensor) and not _private.is_sharded_tensor(value):
                check(fqn, value)  # before DCP, whose errors do not name the value
        items = create_default_local_save_plan(planner.state_dict, is_coordinator=True).items
        rank, world = _job.rank_and_world()
        return Recipe(items, planner, Ownership(rank, world, planner.state_dict.values(), planner.replicas))


_recipes = _Recipes()


class CairnLoadPlanner(DefaultLoadPlanner):
    """Plans a load. Objects are not pickled in between. One error names every mismatch.

    strict: every name of the state dict must be in the checkpoint, and a dict that was saved with values must
    not be empty here, as an optimizer's is before its first step. cast: a tensor may have another type than
    the saved one. experts: as for CairnPlanner; the mesh may have another size than that of the save.
    """

    def __init__(self, strict: bool = True, cast: bool = False, experts: Optional[Experts] = None):
        super().__init__(allow_partial_load=not strict)
        self.missing_keys: list[str] = []  # names that only the state dict has; see cairn.torch.Loaded
        self.unexpected_keys: list[str] = []  # names that only the checkpoint has
        self.cast = cast
        self.experts = experts
        self._opened: Optional[TorchOpened] = None  # if `metadata` lacks a part of the checkpoint

    def plan_rest(self, state_dict: dict, opened: TorchOpened) -> LoadPlan:
        """Plans the load of this part of the flat state dict. Somebody else loads the others, which fit."""
        self.state_dict, self._opened = state_dict, opened
        self.metadata = opened.metadata(state_dict)
        return self.create_local_plan()

    def set_up_planner(
        self, state_dict: dict, metadata: Optional[Metadata] = None, is_coordinator: bool = False
    ) -> None:
        """As DCP's, without its first step, which replaces each value of an unknown type by None."""
        with _depth_of_stack():
            nested = Nested(state_dict)
            _leave_meta(nested)
            if nested.sharded and self.flatten_sharded_tensors:
                nested.flat, nested.paths = _private.flattened(state_dict)
        self.original_state_dict, self._dicts = state_dict, nested.dicts
        self.mappings = nested.paths
        self.state_dict = as_dtensors(nested.flat, self.experts)
        self.metadata, self.is_coordinator, self._opened = metadata, is_coordinator, None

    def create_local_plan(self) -> LoadPlan:
        if (metadata := self.metadata) is None:
            raise ValueError("call set_up_planner first, with the metadata of the checkpoint")
        saved = metadata.state_dict_metadata
        checked = (self._fault(fqn, value, saved.get(fqn)) for fqn, value in self.state_dict.items())
        faults = [fault for fault in checked if fault]
        if not self.allow_partial_load:
            empty = {tuple(map(str, path)) for path, found in self._dicts if path and not found}
            faults += _lost(empty, self._saved_paths() if empty else ())
        if faults:
            raise LoadMismatch.of("the state dict does not fit the checkpoint", faults)
        self.missing_keys = [fqn for fqn in self.state_dict if fqn not in saved]
        self.unexpected_keys = self._unexpected(saved)
        if self.allow_partial_load:
            _log_names("not in the checkpoint, so their values stay", self.missing_keys)
            _log_names("only in the checkpoint, so they are passed over", self.unexpected_keys)
        return create_default_local_load_plan(self.state_dict, metadata, not self.allow_partial_load)

    def _unexpected(self, saved: Mapping) -> list[str]:
        """saved: by FQN, at least what the state dict has, too."""
        if self._opened is not None and not self.missing_keys and self._opened.count == len(self.mappings):
            return []  # without a look at 100,000 names
        dicts = {".".join(map(str, path)) for path, _ in self._dicts}  # saved by name if they were empty
        known, names = {*self.mappings, *dicts}, self._opened.names() if self._opened else saved
        return [fqn for fqn in names if fqn not in known]

    def _saved_paths(self) -> Iterable[tuple]:
        if self._opened is not None:
            return self._opened.paths()
        return ((self.metadata and self.metadata.planner_data) or {}).values()

    def _fault(self, fqn: str, here: Any, saved: Any) -> Optional[str]:
        if saved is None:
            return None if self.allow_partial_load else f"{fqn}: not in the checkpoint"
        if isinstance(here, torch.Tensor) and (why := _unfit(here)):
            return f"{fqn}: {why}"
        is_object, is_tensor = isinstance(saved, BytesStorageMetadata), isinstance(here, torch.Tensor)
        if is_object and not is_tensor:
            return None
        if not is_object and is_tensor and saved.size == here.size():
            if self.cast or saved.properties.dtype == here.dtype:
                return None
        before = "an object" if is_object else _describe(saved.properties.dtype, saved.size)
        now = _describe(here.dtype, here.size()) if is_tensor else f"a {type(here).__name__}"
        return f"{fqn}: saved as {before}; here {now}"

    def load_object(self, item: ReadItem, value: Any) -> None:
        """Replaces the state dict's object of that name by the loaded one."""
        fqn = item.dest_index.fqn
        container: Any = self.original_state_dict
        path = self.mappings[fqn]
        for part in path[:-1]:
            container = container[_key(container, part)]
        container[_key(container, path[-1])] = value


@contextlib.contextmanager
def _depth_of_stack() -> Iterator[None]:
    """Raises ValueError in place of RecursionError."""
    try:
        yield
    except RecursionError:
        raise ValueError("the state dict contains itself, or too many levels; make it flatter") from None


def _log_names(what: str, names: list[str]) -> None:
    if names:
        logger.warning("load: %d names are %s: %s", len(names), what, listed(names))


def _leave_meta(nested: Nested) -> None:
    """Moves tensors from the meta device to the job's, as DCP does. Raises LoadMismatch outside of a job."""
    for container, key, fqn in nested.meta:
        if not _job.in_a_job():
            raise LoadMismatch(
                f"{fqn}: a tensor on the meta device, which holds no values; "
                "call to_empty(device=...) of its module first"
            )
        container[key] = nested.flat[fqn] = _private.off_meta(container[key])


def _unfit(tensor: torch.Tensor) -> Optional[str]:
    """Why the tensor cannot be loaded into; None if it can."""
    if isinstance(tensor, DTensor):
        if not any(placement.is_partial() for placement in tensor.placements):
            return None
        return f"a DTensor of partial sums {tensor.placements}, which checkpoints lack; redistribute it first"
    if _private.is_sharded_tensor(tensor):
        return None
    if is_lazy(tensor):
        return "a parameter that is not initialized yet; run the module once first"
    if tensor.is_nested or tensor.layout != torch.strided:
        return f"a {'nested' if tensor.is_nested else tensor.layout} tensor; only dense tensors are loaded"
    if _overlaps_itself(tensor):
        return "a tensor whose elements share memory, as in an expanded one; give a clone() of it"
    return None


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of a strided tensor share one place in memory."""
    if tensor.numel() == 0:
        return False
    steps = sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if size > 1)
    last = 0  # the last place within reach of the dimensions with smaller strides
    for stride, size in steps:
        if stride <= last:
            break
        last += stride * (size - 1)
    else:
        return False
    if steps[0][0] == 0 or 1 + sum(stride * (size - 1) for stride, size in steps) < tensor.numel():
        return True
    places = torch.zeros((), dtype=torch.int64)
    for stride, size in steps:  # few tensors need this
        places = places[..., None] + torch.arange(0, stride * size, stride)
    return places.unique().numel() < places.numel()


def _lost(empty: set, saved: Iterable[tuple]) -> list[str]:
    """A fault for each dict that is empty now and was saved with values. saved: paths of values."""
    begins = (tuple(map(str, path[:length])) for path in saved for length in range(1, len(path)))
    counts = Counter(begin for begin in begins if begin in empty)
    remedy = (
        "get_optimizer_state_dict of torch.distributed.checkpoint.state_dict "
        "makes the state of an optimizer before its first step"
    )
    return [
        f"{'.'.join(path)}: {count} values were saved in it, and here it is empty; {remedy}"
        for path, count in sorted(counts.items())
    ]


def _key(container: Any, part: Any) -> Any:
    """Finds the key itself: flat names have str(key) instead."""
    if isinstance(container, Mapping) and part not in container:
        return next((key for key in container if str(key) == part), part)
    return part


def _describe(dtype: torch.dtype, size: Any) -> str:
    return f"{str(dtype).replace('torch.', '')} {list(size)}"
