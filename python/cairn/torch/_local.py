"""The local level of a run: steps on the nodes, in memory or on disk, with parity between them."""

from __future__ import annotations

import atexit
import collections
import logging
import os
import secrets
import sys
import weakref
from typing import Callable, Literal, NamedTuple, TypeVar, Union

from cairn._errors import CorruptError
from cairn._helper import Helper, absolute, helper
from cairn.torch import _events, _job

logger = logging.getLogger("cairn.torch")
T = TypeVar("T")
Every = Union[int, Literal["auto"]]


class Local(NamedTuple):
    """Where the steps of a run are kept on each node.

    directory: on every node, such as /dev/shm/cairn; "{rank}" in it is replaced by the rank. redundancy: ""
    (none), "xor:K" (of each K ranks, one may lose its files) or "rs:K,M" (M of K). keep: steps that stay.
    """

    directory: str
    redundancy: str = ""
    keep: int = 2


class _Levels:
    """The levels that one helper has opened."""

    def __init__(self) -> None:
        self.joined = False  # the ranks know each other
        self.leads = _job.rank_and_world()[0] == 0
        self.opened: dict[tuple[str, Local], bool] = {}
        self.saves: collections.Counter[str] = collections.Counter()  # since the last to the run
        self.overdue: set[str] = set()  # runs without the step that was resumed from
        self.copied: set[str] = set()  # runs to which a save goes, or went
        self.every: dict[str, int] = {}  # with every="auto", on rank 0


_levels: weakref.WeakKeyDictionary[Helper, _Levels] = weakref.WeakKeyDictionary()


def _of(current: Helper) -> _Levels:
    return _levels.setdefault(current, _Levels())


def forget(current: Helper) -> None:
    """After a failed save, which fails on all ranks: they make themselves known again at the next one.

    A helper may have died, and its successor has another place.
    """
    levels = _of(current)
    levels.joined, levels.opened = False, {}
    levels.copied.clear()


def _join(current: Helper, occasion: str, seconds: int) -> None:
    """Makes the helpers of all ranks known to each other."""
    rank, world = _job.rank_and_world()
    place = current.ask("listen").fields["place"]
    one = {"places": [place], "names": ["rank 0"], "secret": secrets.token_hex(16)}
    job = _job.places(place, occasion, seconds) if world > 1 else one
    current.ask("join", rank=rank, deadline=10 * seconds, **job)


def opened(current: Helper, run: str, local: Local, occasion: str, seconds: int) -> bool:
    """Whether the level can be used: the same on all ranks, each of which calls this.

    occasion: a name of this call, the same on all ranks, and never used before.
    If not, that was logged once: all saves go to the run. Raises ValueError for a redundancy that the job
    cannot have, TimeoutError if a rank does not come.
    """
    levels = _of(current)
    key = run, local
    # Rank 0 decides: ranks learn of a failed save at different times, perhaps after the next one has begun.
    word = {None: "open", True: "local", False: "run"}[levels.opened.get(key)] if levels.joined else "join"
    word = _job.agree(f"cairn.torch/level/{occasion}", word, seconds)
    if word in ("local", "run"):
        return word == "local"
    if word == "join":
        forget(current)
        _join(current, occasion, seconds)
        levels.joined = True
    if key not in levels.opened:
        levels.opened = {other: state for other, state in levels.opened.items() if other[0] != run}
        try:
            covers = current.ask(
                "local",
                run=run,
                local=local.directory,
                redundancy=local.redundancy,
                keep_local=local.keep,
                nonce=occasion[:8],
                deadline=seconds,
            ).fields["covers"]
            levels.opened[key] = True
            logger.info("local steps in %s; %s", local.directory, covers or "without parity")
        except FileExistsError:  # another process writes into the run
            raise
        except (OSError, CorruptError) as error:
            levels.opened[key] = False
            if _job.rank_and_world()[0] == 0:
                logger.warning("no local steps: %s; all saves go to %s", error, run)
    return levels.opened[key]


def is_due(current: Helper, run: str, every: Every, occasion: str, seconds: int) -> bool:
    """Whether this save goes to the run, as each `every`th does; the same on all ranks.

    Call it once for each save. The first one after a resume does, if the run does not have the step that was
    resumed from.
    occasion, seconds: as for `opened`. Raises TimeoutError if rank 0 does not come to decide.
    """
    levels = _of(current)
    levels.saves[run] += 1
    due = run in levels.overdue
    if every == "auto":
        try:
            due = levels.leads and (due or _is_due_by_plan(current, run))
        finally:  # the other ranks wait for it
            due = _job.agree(f"cairn.torch/every/{occasion}", str(int(due)), seconds) == "1"
    else:
        due = due or levels.saves[run] >= every
    if due:
        levels.saves[run] = 0
        levels.overdue.discard(run)
        levels.copied.add(run)
    return due


def saved_elsewhere(current: Helper, run: str) -> None:
    """The training has saved, but not a step of the run: none is overdue."""
    levels = _of(current)
    levels.saves[run] = 0
    levels.overdue.discard(run)


def _is_due_by_plan(current: Helper, run: str) -> bool:
    """On rank 0: by the interval that its helper has measured; before that, only the first save."""
    levels = _of(current)
    if run not in levels.copied:
        return True
    every = current.ask("every", run=run).fields["every"]
    if every != levels.every.get(run, 0):
        levels.every[run] = every
        logger.info("one save of %d goes to %s from here on", every, run)
    return bool(every) and levels.saves[run] >= every


def resume(
    path: Union[str, os.PathLike],
    local: Local,
    seconds: int,
    load: Callable[[str, dict], T],
    verify: bool = False,
) -> T:
    """Calls `load(step, peers)` with one step after the other until one is loaded on all ranks.

    peers: for Opened. verify: every byte of a step on the nodes, before `load` gets it. Raises
    FileNotFoundError if no step exists yet, CorruptError if none can be loaded, and errors of `load` other
    than damage.
    """
    current, run = helper(), absolute(path)
    if not opened(current, run, local, _job.session.nonce(0, seconds), seconds):
        return load(run, {})
    reply = current.ask("resume", run=run, verify=verify).fields
    while "load" in reply:
        step = reply.pop("load")
        failure: dict = {}
        error = None
        try:
            loaded = load(step, reply if reply["elsewhere"] else {})
        except BaseException as caught:
            error = caught
            failure = {"kind": _kind(caught), "error": f"{step}: {caught}"}
        try:
            reply = current.ask("resume", run=run, outcome=failure).fields
        except Exception as ended:
            raise error or ended from None
    if not reply["resumed"]:
        raise FileNotFoundError(f"{run}: no committed step")
    _events.resumed(run, reply["local_step"])
    if not reply["in_run"]:
        _of(current).overdue.add(run)
    return loaded


def _warn_at_exit() -> None:
    """A job's end may clear the memory of its nodes."""
    advice = "is only on the nodes; the last save of a training should not be (every=1)"
    for levels in list(_levels.values()):
        for run, count in levels.saves.items():
            if levels.leads and count:
                print(f"cairn: the newest step of {run} {advice}", file=sys.stderr)


atexit.register(_warn_at_exit)


def _kind(error: BaseException) -> str:
    """The helper's name of the error: damage leads to the next step."""
    if isinstance(error, FileNotFoundError):
        return "not_found"
    if isinstance(error, CorruptError):
        return "corrupt"
    return "io_error" if isinstance(error, OSError) else "invalid_argument"
