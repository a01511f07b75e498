"""save, async_save, load, read."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Optional, Union

import torch
from torch.distributed.checkpoint.stateful import Stateful

from cairn._helper import absolute
from cairn.torch import _collector
from cairn.torch._optimizers import Optimizers
from cairn.torch._ownership import Replicas
from cairn.torch._planner import CairnLoadPlanner, CairnPlanner
from cairn.torch._reader import CairnReader, TorchOpened
from cairn.torch._saving import OnError, Options, Save, Saved, SaveHandle, failures, stage

Path = Union[str, os.PathLike]


def async_save(
    state_dict: dict,
    dir: Path,
    step: int,
    *,
    optimizer: Optimizers = (),
    replicas: Optional[Replicas] = None,
    compress: bool = False,
    model: Optional[dict] = None,
    state: Optional[dict] = None,
    deadline: float = 600.0,
    keep_last: int = 0,
    on_error: OnError = "raise",
) -> SaveHandle:
    """Begins to save step `step` in the run directory `dir`. Every rank of the job calls it, for one step after the other in the same order; none
    waits for another.

    state_dict: as torch.distributed.checkpoint takes it: nested dicts and lists of tensors, DTensors and other values, or objects with
    state_dict(). optimizer: one or more of torch's. Their parameters and states are copied while training continues, and their next
    step() waits for that; nothing else may change these tensors before. All other tensors are copied at once (on a GPU all are copied
    beside the training: without optimizer, call SaveHandle.wait_staged before the next step).
    replicas: see CairnPlanner. compress, model, state, deadline, keep_last, on_error: see Options.
    A later failure is logged, and is the handle's exception. Raises TypeError or ValueError naming a value that cannot be saved; the other
    ranks' saves fail, too.
    """
    return _begin(
        state_dict,
        dir,
        step,
        Options.of(compress, model, state, deadline, keep_last, on_error),
        replicas,
        optimizer,
        log=True,
    )


def _begin(
    state_dict: dict,
    dir: Path,
    step: int,
    options: Options,
    replicas: Optional[Replicas],
    optimizer: Optimizers,
    log: bool,
) -> SaveHandle:
    save: Optional[Save] = None
    try:
        save = Save(dir, step, options, log)
        planner = CairnPlanner(replicas)
        planner.set_up_planner({key: _state_of(value) for key, value in state_dict.items()})
        return save.hand_over(stage(planner.layout(), optimizer))
    except BaseException as error:
        if save is not None:
            save.abort(error)
        if not failures.tolerates(options, absolute(dir), step, error):
            raise
        return SaveHandle.failed(error)


def _state_of(value: Any) -> Any:
    return value.state_dict() if _is_stateful(value) else value


def _is_stateful(value: Any) -> bool:
    plain = type(value) is dict or isinstance(
        value, torch.Tensor
    )  # to ask whether it is a Stateful takes long
    return not plain and isinstance(value, Stateful)


def save(
    state_dict: dict,
    dir: Path,
    step: int,
    *,
    replicas: Optional[Replicas] = None,
    compress: bool = False,
    model: Optional[dict] = None,
    state: Optional[dict] = None,
    deadline: float = 600.0,
    keep_last: int = 0,
    on_error: OnError = "raise",
) -> Saved:
    """Saves step `step` in the run directory `dir`, and returns when all ranks' parts are on disk and the step is committed.

    Arguments as of async_save. A step of the same number is kept next to the new one; `cairn ls` shows it. Raises SaveFailed if a rank died,
    gave up or was late (the message names it; the steps before are whole), OSError if there is no space, HelperDied.
    """
    return _begin(
        state_dict,
        dir,
        step,
        Options.of(compress, model, state, deadline, keep_last, on_error),
        replicas,
        (),
        log=False,
    ).result()


def load(
    state_dict: dict, path: Path, *, allow_pickle: bool = False, strict: bool = True, cast: bool = False
) -> int:
    """Fills `state_dict` in place from a checkpoint, and returns its step. Ranks and their meshes may differ from those that saved.

    path: a step's or a run's directory (its newest whole step), or a checkpoint of another system that Cairn reads. Tensors must have the saved
    shape, and the saved type unless `cast`. Each name must be in the checkpoint, unless strict=False; the checkpoint may have more,
    but not if a dict is empty here: an optimizer that never stepped has no states to fill.
    Raises LoadMismatch that names all that does not fit, PickleRefused, FileNotFoundError, CorruptError.
    """
    states = {key: _state_of(value) for key, value in state_dict.items()}
    with CairnReader(path, allow_pickle) as reader:  # as dcp.load does, without its collectives
        planner = CairnLoadPlanner(strict, cast)
        with _collector.paused():
            planner.set_up_planner(states, reader.read_metadata(), is_coordinator=True)
            reader.read_data(planner.create_local_plan(), planner)
        for key, value in list(state_dict.items()):
            if _is_stateful(value):
                value.load_state_dict(states[key])
            else:
                state_dict[key] = states[key]
        return reader.step


def read(path: Path, *, allow_pickle: bool = False) -> dict[str, Any]:
    """Returns the state dict as it was saved, for ``load_state_dict``: nested, with whole tensors on the CPU, and all other values.

    Every process that calls it reads all of it: ranks of a job that each hold a part load with `load`. path: as of load. Tensors of a
    checkpoint that no `cairn.torch` saved are in one flat dict, under the names that `cairn inspect` shows.
    Raises PickleRefused unless allow_pickle, FileNotFoundError, CorruptError.

    >>> saved = cairn.torch.read("run")                                                        # doctest: +SKIP
    >>> model.load_state_dict(saved["model"]), optimizer.load_state_dict(saved["optim"])       # doctest: +SKIP
    """
    with contextlib.closing(TorchOpened(path)) as opened:
        return opened.nested(allow_pickle)
