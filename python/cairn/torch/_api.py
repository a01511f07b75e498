"""save, async_save, load."""

from __future__ import annotations

import os
import warnings
from typing import Any, Optional, Union

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.stateful import Stateful

from cairn.torch._optimizers import Optimizers
from cairn.torch._ownership import Replicas
from cairn.torch._planner import CairnLoadPlanner, CairnPlanner
from cairn.torch._reader import CairnReader
from cairn.torch._saving import Options, Save, Saved, SaveHandle, stage

Path = Union[str, os.PathLike]


def async_save(
    state_dict: dict, dir: Path, step: int, *, optimizer: Optimizers = (), replicas: Optional[Replicas] = None, **options: Any
) -> SaveHandle:
    """Begins to save step `step` in the run directory `dir`. Every rank of the job calls it, for one step after the other in the same order; none
    waits for another.

    state_dict: as torch.distributed.checkpoint takes it: nested dicts and lists of tensors, DTensors and other values, or objects with
    state_dict(). optimizer: one or more of torch's. Their parameters and states are copied while training continues, and their next
    step() waits for that; nothing else may change these tensors before. All other tensors are copied at once (on a GPU all are copied
    beside the training: without optimizer, call SaveHandle.wait_staged before the next step).
    replicas: see CairnPlanner. options: compress, model, state, deadline, keep_last, see Options.
    What goes wrong later is in the handle's exception. Raises TypeError or ValueError for what cannot be saved, naming it; the other
    ranks' saves fail, too.
    """
    save = Save(dir, step, Options(**options))
    try:
        planner = CairnPlanner(replicas)
        planner.set_up_planner({key: _state_of(value) for key, value in state_dict.items()})
        return save.hand_over(stage(planner.layout(), optimizer))
    except BaseException as error:
        save.abort(error)
        raise


def _state_of(value: Any) -> Any:
    plain = type(value) is dict or isinstance(value, torch.Tensor)  # to ask whether it is a Stateful takes long
    return value.state_dict() if not plain and isinstance(value, Stateful) else value


def save(state_dict: dict, dir: Path, step: int, *, replicas: Optional[Replicas] = None, **options: Any) -> Saved:
    """Saves step `step` in the run directory `dir`, and returns when all ranks' parts are on disk and the step is committed.

    Arguments as of async_save. A step that is there already is kept beside the new one, as `cairn ls` says. Raises SaveFailed where a rank died,
    gave up or was late (the message names it; the steps before are whole), OSError where there is no space, HelperDied.
    """
    return async_save(state_dict, dir, step, replicas=replicas, **options).result()


def load(state_dict: dict, path: Path, *, allow_pickle: bool = False, strict: bool = True, cast: bool = False) -> int:
    """Fills `state_dict` in place from a checkpoint, and returns its step. Ranks and their meshes may differ from those that saved.

    path: a step's or a run's directory (its newest whole step), or a checkpoint of another system that Cairn reads. Tensors must have the saved
    shape, and the saved type unless `cast`. Each name must be in the checkpoint, unless strict=False; the checkpoint may have more,
    but not where a dict is empty here: an optimizer that never stepped has no states to fill.
    Raises LoadMismatch that names all that does not fit, PickleRefused, FileNotFoundError, CorruptError.
    """
    named = {str(key): value for key, value in state_dict.items()}  # DCP sorts the keys
    if len(named) < len(state_dict):
        raise ValueError(f"two keys of the state dict have one name: {', '.join(map(repr, state_dict))}")
    with CairnReader(path, allow_pickle) as reader, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # it is meant so
        try:
            dcp.load(named, storage_reader=reader, planner=CairnLoadPlanner(strict, cast), no_dist=True)
        except CheckpointException as error:  # around the error of the one rank that there is without collectives
            raise error.failures[0][0] from None
        for key in state_dict:
            state_dict[key] = named[str(key)]
        return reader.step
