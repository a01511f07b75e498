"""What this process has read, for the helper that saves: a save records the step that it came from."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING

from cairn._library import library

if TYPE_CHECKING:
    from cairn._helper import Helper
    from cairn._opened import Opened

_MOST = 64  # steps; the helper and the library keep no more
_read: dict[int, None] = {}  # handles; the last one read last
read_at = 0.0  # when tensors were read last, in seconds since 1970; 0: never
_lock = threading.RLock()  # guards it; a checkpoint may be collected while it is held


def note(opened: Opened) -> None:
    """Tensors of the checkpoint were read."""
    global read_at
    read_at = time.time()
    if opened.foreign:
        return
    with _lock:
        _read.pop(opened.handle, None)
        _read[opened.handle] = None
        if len(_read) > _MOST:
            del _read[next(iter(_read))]


def tell(helper: Helper) -> None:
    """Tells the helper about all that was read. Call this before a save is handed over."""
    with _lock:
        handles = list(_read)
        _read.clear()
    for handle in handles:
        if origin := library().origin(handle):
            helper.ask("loaded", origin=json.loads(origin))  # a program of another version refuses it


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    _read.clear()


os.register_at_fork(after_in_child=_after_fork)
