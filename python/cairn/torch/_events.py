"""The start and the end of this process's training, for the events of its runs (RUN/events)."""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing.util
import os
import sys
import time

from cairn import _origins
from cairn._errors import HelperDied, NotSupported
from cairn._helper import running
from cairn._library import library

_imported = time.time()
_local_steps: dict[str, int] = {}  # by run: the local step that it resumed from
_recorded: set[str] = set()  # runs whose helper has heard of the start


def resumed(run: str, local_step: int) -> None:
    """The process has loaded a step of the run; local_step: its number, or -1 if it is in the run."""
    _local_steps[run] = local_step


def local_step(run: str) -> int:
    """The local step of the run that this process has loaded last; -1 if it has loaded none."""
    return _local_steps.get(run, -1)


def start_of(run: str) -> dict:
    """The fields of "begin": when the training began, and what that took, until the run has them."""
    if run in _recorded:
        return {"start": {"again": True}}
    _watch_exit()
    launched = _launched()
    ready = max(_origins.read_at or _imported, launched)
    return {"start": {"time": ready, "seconds": ready - launched, "local_step": local_step(run)}}


def saved(run: str) -> None:
    """A save into the run has ended well: its helper knows of the start, and a later one need not."""
    _recorded.add(run)


def _launched() -> float:
    """When this process was started, in seconds since 1970."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


@functools.cache
def _watch_exit() -> None:
    if multiprocessing.parent_process() is None:
        atexit.register(_at_exit)
    else:  # a process of multiprocessing comes to no atexit
        multiprocessing.util.Finalize(None, _at_exit, exitpriority=0)


def _at_exit() -> None:
    """An error that Python printed last is why the training ends; a killed process comes to no end.

    Without one, its exit status says how it ends: after sys.exit(1), Python shows that to nobody before.
    """
    helper, error = running(), sys.exc_info()[1] or getattr(sys, "last_value", None)
    if helper is None:
        return
    if error is None and multiprocessing.parent_process() is None:
        with contextlib.suppress(OSError, NotSupported):  # no library
            helper.tell_exit = library().tell_exit
            return
    failed = isinstance(error, Exception) and not hasattr(sys, "ps1")
    if isinstance(error, SystemExit):  # of a process of multiprocessing
        failed = error.code not in (None, 0)
    why = f"{type(error).__name__}: {error}"[:1000] if failed else ""
    try:
        helper.request("end", how="failed" if failed else "done", why=why)
    except (HelperDied, ValueError):  # or a message that is not Unicode text
        pass

