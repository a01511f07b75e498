"""Lets torchtitan save and load with Cairn.

Set ``config.checkpoint = cairn.titan.CheckpointManager.Config(enable=True, ...)``. Needs torchtitan 0.3: the
import checks that torchtitan's own manager has the methods used here. The user guide is
docs/guide/save-from-torchtitan.md.
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from typing import Any, Literal, Optional, Union

import torch

import cairn.torch
from cairn._opened import Opened
from cairn._steps import steps
from cairn.torch import _job
from cairn.torch._options import local_options

try:
    from torchtitan.components.checkpointer import dcp as _dcp
    from torchtitan.tools import filesystem
except ImportError as error:
    raise ImportError(
        f"cairn.titan needs torchtitan 0.3 or later, with torchtitan.components.checkpointer ({error})"
    ) from error

_USED = """
    _close _create_checkpoint_id _find_load_step _flattened_model_states_sd _load _maybe_wait_for_staging
    _save _save_last_step _should_save _states_to_load _wait_for_saving dcp_load dcp_save
    maybe_wait_for_saving
""".split()
if missing := [name for name in _USED if not hasattr(_dcp.CheckpointManager, name)]:
    raise ImportError(
        f"cairn.titan supports the checkpoint manager of torchtitan 0.3; this one lacks {', '.join(missing)}"
    )

logger = logging.getLogger("cairn.titan")
_PATIENCE = 600.0  # seconds that a rank waits for rank 0 to choose the step to load


class CheckpointManager(_dcp.CheckpointManager):
    """torchtitan's checkpoint manager on cairn.torch: the same settings, without its own process group.

    ``folder`` is a run of Cairn. With async_mode "async", ``save`` returns when the tensors are copied; with
    "async_with_pinned_mem" they are copied before the next optimizer step. The next save, or ``close``,
    raises the error of a save that failed. torchtitan's own code handles the formats of Hugging Face and DCP.
    """

    save_future: Optional[cairn.torch.SaveHandle] = None
    staging_future: Optional[cairn.torch.SaveHandle] = None

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(_dcp.CheckpointManager.Config):
        cast_on_load: bool = False
        """Convert tensors of another type than the model's, such as a bfloat16 export into float32."""

        compress: bool = False
        """Store tensors compressed."""

        local: Optional[str] = None
        """Keep the newest steps on the nodes, too, such as in /dev/shm/cairn; each save goes there first."""

        every: Union[int, Literal["auto"]] = 1
        """With local: each one of this many saves goes to the folder, too, and the last of a training."""

        redundancy: str = ""
        """With local: the lost nodes that parity covers, such as xor:8."""

        keep_local: int = 2
        """With local: how many steps stay on the nodes."""

    def __init__(self, config: Config, **parts: Any) -> None:
        # Turns off asynchronous DCP, which makes a gloo group, and retention, which would remove all step-N.
        without: dict[str, Any] = {"async_mode": "disabled", "keep_latest_k": 0}
        super().__init__(dataclasses.replace(config, **without), **parts)
        if not self.enable:
            return
        if filesystem.is_remote(self.folder):
            raise ValueError(f"checkpoint.folder {self.folder}: Cairn saves to file systems; give a path")
        self.async_mode = _dcp.AsyncMode(config.async_mode)
        self.keep_latest_k = config.keep_latest_k
        self._cast = config.cast_on_load
        self._level = local_options(config)
        self._options = {"compress": config.compress, "keep_last": config.keep_latest_k, **self._level}
        cairn.torch.Options(**self._options)  # raises ValueError or TypeError before the training
        self._loads = 0

    @torch.no_grad()
    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        if not self._should_save(curr_step, last_step):
            return False
        self.maybe_wait_for_saving()
        if last_step:
            self._options["every"] = 1  # the end of a job may clear its nodes' memory
            self._save_last_step(curr_step)
        else:
            state_dict = self._flattened_model_states_sd()
            self.dcp_save(state_dict, self._create_checkpoint_id(curr_step), self.async_mode)
        return True

    def dcp_save(
        self,
        state_dict: dict,
        checkpoint_id: str,
        async_mode: Any,
        enable_garbage_collection: bool = False,
        to_hf: bool = False,
    ) -> Any:
        """Saves `state_dict` as step `checkpoint_id`. to_hf: by torchtitan's writer, next to the steps."""
        if to_hf:
            return super().dcp_save(
                state_dict, f"{checkpoint_id}-hf", _dcp.AsyncMode.DISABLED, enable_garbage_collection, to_hf
            )
        contents = "all" if _dcp.OPTIMIZER in state_dict else "model"
        step = int(checkpoint_id.rpartition("-")[2])
        state = {"torchtitan": {"contents": contents}}
        handle = cairn.torch.async_save(state_dict, self.folder, step, state=state, **self._options)
        self.save_future = handle
        if async_mode == _dcp.AsyncMode.DISABLED:
            self.maybe_wait_for_saving()
        elif async_mode == _dcp.AsyncMode.ASYNC:
            handle.wait_staged()
        else:
            self.staging_future = handle
        return handle

    def _maybe_wait_for_staging(self) -> None:
        if self.staging_future is not None:
            self.staging_future.wait_staged()
            self.staging_future = None

    def _wait_for_saving(self) -> None:
        handle, self.save_future = self.save_future, None
        self.staging_future = None
        if handle is None:
            return
        saved = handle.result()
        logger.info("%s is committed, %.1f s after the save began", saved.step_dir, saved.durable_s)

    def _close(self) -> None:
        self.maybe_wait_for_saving()

    def _load(self, step: int = -1) -> bool:
        """With local: the newest step of the nodes or the folder that is whole for all ranks, if any."""
        if self._level["local"] is None or step != -1:
            return super()._load(step)
        level = {name: value for name, value in self._level.items() if name != "every"}
        states = self._states_to_load(model_only=False)
        try:
            cairn.torch.load(states, self.folder, cast=self._cast, **level)
        except FileNotFoundError:
            return super()._load(step)
        self._take_model(states)
        return True

    def _take_model(self, state_dict: dict) -> None:
        if _dcp.MODEL in self.states:  # its tensors are at the top level, not in a Stateful
            self.states[_dcp.MODEL].load_state_dict(state_dict)

    def dcp_load(self, state_dict: dict, checkpoint_id: str, from_hf: bool, from_quantized: bool) -> None:
        """Loads a step of Cairn on any mesh. torchtitan's own code loads Hugging Face's files and DCP's."""
        if from_hf or (pathlib.Path(checkpoint_id) / ".metadata").is_file():
            return super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)
        _refuse_model_alone(checkpoint_id, state_dict)
        cairn.torch.load(state_dict, checkpoint_id, cast=self._cast)
        self._take_model(state_dict)

    def _find_load_step(self, folder: str = "") -> int:
        """The newest step of Cairn that opens, or a newer one of DCP's. Rank 0 finds it for all ranks."""
        self._loads += 1
        found = str(self._newest_step(folder or self.folder)) if _job.rank_and_world()[0] == 0 else ""
        return int(_job.agree(f"cairn.titan/load/{self._loads}", found, _PATIENCE))

    def _newest_step(self, folder: str) -> int:
        dcps = super()._find_load_step(folder)
        if not steps(pathlib.Path(folder)):
            return dcps
        opened = Opened(folder)  # raises if no step opens, because the training must not start from scratch
        opened.close()
        return opened.step if opened.gave_up(dcps) else max(opened.step, dcps)

    def _create_checkpoint_id(self, step: int, folder: str = "") -> str:
        """Cairn's path of a step, or DCP's if only that exists."""
        ours = pathlib.Path(folder or self.folder) / f"step-{step:08d}"
        dcps = super()._create_checkpoint_id(step, folder)
        return dcps if not ours.is_dir() and filesystem.isdir(dcps) else str(ours)


def _refuse_model_alone(path: str, state_dict: dict) -> None:
    """Raises LoadMismatch with one sentence instead of a list of all missing names."""
    opened = Opened(path)
    contents = opened.state.get("torchtitan", {}).get("contents")
    opened.close()
    if contents == "model" and _dcp.OPTIMIZER in state_dict:
        raise cairn.torch.LoadMismatch(
            f"{opened.directory} holds only the model, because of checkpoint.last_save_model_only; "
            "resume from an earlier step (checkpoint.load_step), "
            "or start from it in a new folder with checkpoint.initial_load_path"
        )


__all__ = ["CheckpointManager"]
