"""Storage writer and stager for torch.distributed.checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Optional, Union

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult

from cairn._errors import CopiesDiffer
from cairn.torch import _private
from cairn.torch._device import Copying
from cairn.torch._layout import Recipe
from cairn.torch._optimizers import Optimizers
from cairn.torch._options import Every, OnCopies, Options
from cairn.torch._ownership import Experts, Replicas
from cairn.torch._planner import STAGED, CairnPlanner
from cairn.torch._saving import Save, SaveHandle, Staged, stage


class CairnWriter(StorageWriter):
    """``dcp.save(state_dict, storage_writer=CairnWriter(dir, step=100), planner=CairnPlanner(),
    no_dist=True)``

    dir: the run's directory; every rank needs write access. compress, model, state, deadline, keep_last,
    require_space, local, every, redundancy, keep_local, copies, on_alarm: see Options; `cairn.torch.load`
    resumes from steps on the nodes. With DCP's own planner omit no_dist: that planner divides the work by
    collectives.
    """

    def __init__(
        self,
        dir: Union[str, os.PathLike],
        step: int,
        *,
        compress: bool = False,
        model: Optional[dict] = None,
        state: Optional[dict] = None,
        deadline: float = 600.0,
        keep_last: int = 0,
        require_space: bool = False,
        local: Union[str, os.PathLike, None] = None,
        every: Every = 1,
        redundancy: str = "",
        keep_local: int = 2,
        copies: OnCopies = "fail",
        on_alarm: Optional[Callable[[CopiesDiffer], Any]] = None,
    ):
        self._directory = dir
        self._step = step
        self._options = Options(
            compress,
            model,
            state,
            deadline,
            keep_last,
            require_space=require_space,
            local=local,
            every=every,
            redundancy=redundancy,
            keep_local=keep_local,
            copies=copies,
            on_alarm=on_alarm,
        )
        self._alone = False
        self._handle: Optional[SaveHandle] = None

    def reset(self, checkpoint_id: Union[str, os.PathLike, None] = None) -> None:
        """checkpoint_id: the directory of another run."""
        self._directory = checkpoint_id or self._directory

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._alone = kwargs.get("use_collectives") is False

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list) -> list:
        self._alone = self._alone or len(plans) == 1
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future:
        """Saves this rank's part, and waits until it is on disk. Raises the errors of cairn.torch.save."""
        several = dist.is_initialized() and dist.get_world_size() > 1
        if self._alone and several and not isinstance(planner, CairnPlanner):
            raise ValueError("with no_dist=True each rank would write all; give planner=CairnPlanner()")
        save = Save(self._directory, self._step, self._options, log=False)
        try:
            handle = self._handle = save.hand_over(_staged_by(planner, plan, save))
        except BaseException as error:
            save.abort(error)
            raise
        handle.written.result()
        done: torch.futures.Future = torch.futures.Future()
        sizes = [(item.index, item.tensor_storage_size() or 0) for item in plan.items]
        done.set_result([WriteResult(index, size, None) for index, size in sizes])
        return done

    def finish(self, metadata: Metadata, results: list) -> None:
        """Waits until the step is committed."""
        if self._handle is None:
            raise ValueError("call write_data before finish")
        self._handle.result()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Union[str, os.PathLike]) -> bool:
        return "://" not in os.fspath(checkpoint_id)


def _staged_by(planner: SavePlanner, plan: SavePlan, save: Save) -> Staged:
    if not isinstance(planner, CairnPlanner):
        return save.stage(Recipe(plan.items, planner, None).layout(planner))
    return planner.staged or save.stage(planner.layout())


class CairnStager(AsyncStager):
    """``dcp.async_save(..., planner=CairnPlanner(), async_stager=CairnStager())``

    Copies the tensors once, into the memory that the helper writes from.
    replicas, experts: see CairnPlanner. optimizer: see async_save. With torch 2.9 or later it returns a
    Future, and dcp.async_save an AsyncSaveResponse; with an older torch it waits for the copy.
    """

    _synchronize_after_execute = False

    def __init__(
        self,
        replicas: Optional[Replicas] = None,
        optimizer: Optimizers = (),
        experts: Optional[Experts] = None,
    ):
        self._replicas = replicas
        self._experts = experts
        self._optimizer = optimizer
        self._copying: Optional[Copying] = None

    def stage(self, state_dict: dict) -> Union[dict, Future]:
        planner = CairnPlanner(self._replicas, self._experts)
        planner.set_up_planner(state_dict)
        staged = stage(planner.layout(), self._optimizer)
        staged.start()
        self._copying = staged.copying
        if not _private.async_save_takes_futures():
            staged.copying.future.result()
            return {STAGED: staged}
        future: Future = Future()
        # Popped when used, because the copy's future, which this stager keeps, must not keep them.
        waiting = [(future, staged)]
        staged.copying.future.add_done_callback(lambda copied: _follow(copied, *waiting.pop()))
        return future

    def synchronize_staging(self) -> None:
        """Changes that this thread makes to the tensors after this call are not in the checkpoint."""
        if self._copying is not None:
            self._copying.wait()

    def close(self) -> None:
        self._copying = None


def _follow(done: Future, future: Future, staged: Staged) -> None:
    if (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result({STAGED: staged})
