"""save, async_save, load, read, give_up_local."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, Optional, Union, overload

import torch
from torch.distributed.checkpoint.stateful import Stateful

from cairn._errors import CopiesDiffer
from cairn._helper import absolute, helper
from cairn.torch import _collector, _events, _job
from cairn.torch._loaded import Loaded
from cairn.torch._local import resume
from cairn.torch._optimizers import Optimizers
from cairn.torch._options import Every, OnCopies, OnError, Options
from cairn.torch._ownership import Experts, Replicas
from cairn.torch._planner import CairnLoadPlanner, CairnPlanner
from cairn.torch._reader import CairnReader, TorchOpened, Whole
from cairn.torch._saving import Save, Saved, SaveHandle, failures

Path = Union[str, os.PathLike]
logger = logging.getLogger("cairn.torch")


def async_save(
    state_dict: dict,
    dir: Path,
    step: int,
    *,
    optimizer: Optimizers = (),
    replicas: Optional[Replicas] = None,
    experts: Optional[Experts] = None,
    compress: bool = False,
    model: Optional[dict] = None,
    state: Optional[dict] = None,
    deadline: float = 600.0,
    keep_last: int = 0,
    on_error: OnError = "raise",
    require_space: bool = False,
    local: Optional[Path] = None,
    every: Every = 1,
    redundancy: str = "",
    keep_local: int = 2,
    copies: OnCopies = "fail",
    on_alarm: Optional[Callable[[CopiesDiffer], Any]] = None,
) -> SaveHandle:
    """Begins to save step `step` in the run directory `dir`.

    Every rank of the job calls it, with the same steps in the same order. No rank waits for another.

    state_dict: as for torch.distributed.checkpoint: nested dicts and lists of tensors, DTensors and other
    values, or objects with state_dict().
    optimizer: one or more of torch's. Their parameters and states are copied while training continues. Their
    next step() waits for the copy; nothing else may change these tensors earlier. Other tensors are copied
    before async_save returns. On a GPU all tensors are copied while training continues: without optimizer,
    call SaveHandle.wait_staged before the next step.
    replicas, experts: see CairnPlanner. Other arguments: see Options.

    Raises TypeError or ValueError naming a value that cannot be saved; the save then fails on all ranks. A
    later failure is logged, and is the handle's exception.
    """
    more = local, every, redundancy, keep_local, copies, on_alarm
    options = Options(compress, model, state, deadline, keep_last, on_error, require_space, *more)
    planner = CairnPlanner(replicas, experts)
    return begin(state_dict, dir, step, options, planner, optimizer, log=True)


def begin(
    state_dict: dict,
    dir: Path,
    step: int,
    options: Options,
    planner: CairnPlanner,
    optimizer: Optimizers,
    log: bool,
    events: bool = True,
) -> SaveHandle:
    """See Save."""
    save: Optional[Save] = None
    try:
        save = Save(dir, step, options, log, events)
        planner.set_up_planner({key: _state_of(value) for key, value in state_dict.items()})
        return save.hand_over(save.stage(planner.layout(), optimizer))
    except BaseException as error:
        if save is not None:
            save.abort(error)
        if not failures.tolerates(options, absolute(dir), step, error):
            raise
        return SaveHandle.failed(error)


def _state_of(value: Any) -> Any:
    return value.state_dict() if _is_stateful(value) else value


def _is_stateful(value: Any) -> bool:
    plain = isinstance(value, torch.Tensor) or type(value) is dict
    return not plain and isinstance(value, Stateful)  # the check of the protocol Stateful is slow


def save(
    state_dict: dict,
    dir: Path,
    step: int,
    *,
    replicas: Optional[Replicas] = None,
    experts: Optional[Experts] = None,
    compress: bool = False,
    model: Optional[dict] = None,
    state: Optional[dict] = None,
    deadline: float = 600.0,
    keep_last: int = 0,
    on_error: OnError = "raise",
    require_space: bool = False,
    local: Optional[Path] = None,
    every: Every = 1,
    redundancy: str = "",
    keep_local: int = 2,
    copies: OnCopies = "fail",
    on_alarm: Optional[Callable[[CopiesDiffer], Any]] = None,
) -> Saved:
    """Saves step `step` in the run directory `dir`. Returns when the step is committed.

    Arguments: see async_save. An existing step of that number is kept next to the new one; see `cairn ls`.
    Raises SaveFailed if a rank died, failed or was late (the message names it; earlier steps are kept),
    OSError if the disk is full, HelperDied.
    """
    more = local, every, redundancy, keep_local, copies, on_alarm
    options = Options(compress, model, state, deadline, keep_last, on_error, require_space, *more)
    planner = CairnPlanner(replicas, experts)
    return begin(state_dict, dir, step, options, planner, (), log=False).result()


@overload
def load(
    state_dict: dict,
    path: Path,
    *,
    allow_pickle: bool = ...,
    strict: Literal[False],
    cast: bool = ...,
    experts: Optional[Experts] = ...,
    local: Optional[Path] = ...,
    redundancy: str = ...,
    keep_local: int = ...,
    deadline: float = ...,
) -> Loaded: ...
@overload
def load(
    state_dict: dict,
    path: Path,
    *,
    allow_pickle: bool = ...,
    strict: bool = ...,
    cast: bool = ...,
    experts: Optional[Experts] = ...,
    local: Optional[Path] = ...,
    redundancy: str = ...,
    keep_local: int = ...,
    deadline: float = ...,
) -> int: ...
def load(
    state_dict: dict,
    path: Path,
    *,
    allow_pickle: bool = False,
    strict: bool = True,
    cast: bool = False,
    experts: Optional[Experts] = None,
    local: Optional[Path] = None,
    redundancy: str = "",
    keep_local: int = 2,
    deadline: float = 600.0,
) -> int:
    """Fills `state_dict` in place from a checkpoint, saved on any ranks and meshes, and returns its step.

    path: a step, a run (its newest whole step), or another system's checkpoint that Cairn reads.
    allow_pickle: load values that were saved as pickles; only from a source that you trust.
    strict: each name of the state dict must be in the checkpoint. The checkpoint may have more names, but a
    dict that is empty here must be empty in it: an optimizer that has not made a step has no states to fill.
    If strict is False, values of other names stay as they are. They are logged, and the result is a Loaded.
    cast: convert tensors of another type than the saved one. Shapes must always match.
    experts: as for CairnPlanner; the mesh may have another size than that of the save.
    local: load the newest step that is whole for all ranks, on the nodes or in the run `path`, and rebuild
    what a lost node had. Every rank of the job calls it, with the same local, redundancy and keep_local as of
    `save`. deadline: as of `save`.
    Raises LoadMismatch that names every mismatch, PickleRefused, FileNotFoundError, CorruptError. Tensors are
    as before after the first two and undefined after an error of reading.
    """
    fill_from = lambda place, peers: fill(
        state_dict, place, allow_pickle, CairnLoadPlanner(strict, cast, experts), peers
    )
    options = Options(deadline=deadline, local=local, redundancy=redundancy, keep_local=keep_local)
    level = options.level
    loaded = fill_from(path, {}) if level is None else resume(path, level, options.seconds, fill_from)
    return int(loaded) if strict else loaded


def give_up_local(path: Path, why: str, *, deadline: float = 600.0) -> None:
    """Gives up the steps of the run `path` on the nodes: no load takes one of them, nor in a later job.

    For a training that has resumed from one and is no good: its loss is not finite, for example. Then load
    again, with the same local: that takes the newest step of the run. What was saved to the run since the
    resume stays there.
    Every rank calls it before it loads again; rank 0 acts, once its saves have ended.
    why: for the log and the run's events. deadline: as of `save`. Raises FileNotFoundError for a run that
    does not exist, FileExistsError if another process writes into it.
    """
    if _job.rank_and_world()[0] == 0:
        run, seconds = absolute(path), Options(deadline=deadline).seconds
        helper().ask("give_up", run=run, why=why, local_step=_events.local_step(run), deadline=seconds)
        logger.warning("the steps of %s on the nodes are given up: %s", run, why)


def fill(
    state_dict: dict, path: Path, allow_pickle: bool, planner: CairnLoadPlanner, peers: Optional[dict] = None
) -> Loaded:
    """Does the work of load. peers: see Opened, of a local step."""
    stateful = {key: value for key, value in state_dict.items() if _is_stateful(value)}
    states = {**state_dict, **{key: value.state_dict() for key, value in stateful.items()}}
    # As dcp.load does, without its collectives.
    with _collector.paused(), _opened_meanwhile(path, allow_pickle, peers) as opening:
        planner.set_up_planner(states, is_coordinator=True)
        whole = Whole(planner.state_dict)
        reader = opening.result()
        reader.load(planner, whole)
        for key, value in stateful.items():
            value.load_state_dict(states.pop(key))
        state_dict.update(states)
        return Loaded(reader.step, planner.missing_keys, planner.unexpected_keys)


@contextlib.contextmanager
def _opened_meanwhile(path: Path, allow_pickle: bool, peers: Optional[dict]) -> Iterator[Future[CairnReader]]:
    """A reader that a thread opens, while the caller looks at a state dict of perhaps 100,000 tensors."""
    with ThreadPoolExecutor(1, "cairn-open") as pool:
        opening = pool.submit(CairnReader, path, allow_pickle, peers)
        try:
            yield opening
        finally:
            if opening.exception() is None:
                opening.result().close()


def read(path: Path, *, allow_pickle: bool = False) -> dict[str, Any]:
    """Returns the saved state dict, for ``load_state_dict``: nested, with whole tensors on the CPU.

    Every process that calls it reads the whole checkpoint. If ranks hold only a part each, call `load`.
    path, allow_pickle: see load. Tensors that `cairn.torch` did not save are in one flat dict, under the
    names that `cairn inspect` shows. Raises PickleRefused, FileNotFoundError, CorruptError.

    >>> saved = cairn.torch.read("run")                    # doctest: +SKIP
    >>> model.load_state_dict(saved["model"])              # doctest: +SKIP
    >>> optimizer.load_state_dict(saved["optim"])          # doctest: +SKIP
    """
    with contextlib.closing(TorchOpened(path)) as opened:
        return opened.nested(allow_pickle)
