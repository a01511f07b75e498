"""What this process has read, for the helper that saves: a save records the step that it came from."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from cairn._helper import Helper
    from cairn._opened import Opened

_MOST = 64  # steps; the helper keeps no more
_read: dict[int, Union[Opened, bytes]] = {}  # by handle, the last one read last; what is closed as JSON
_lock = threading.RLock()  # guards it; a checkpoint may be collected, and closed, while it is held


def note(opened: Opened) -> None:
    """Tensors of the checkpoint were read."""
    if opened.foreign:
        return
    with _lock:
        _read.pop(opened.handle, None)
        _read[opened.handle] = opened
        if len(_read) > _MOST:
            del _read[next(iter(_read))]


def close(opened: Opened) -> None:
    """Call this before the checkpoint is closed."""
    with _lock:
        if opened.handle in _read:
            _read[opened.handle] = opened.origin()


def tell(helper: Helper) -> None:
    """Tells the helper about all that was read. Call this before a save is handed over."""
    with _lock:
        told = [one if isinstance(one, bytes) else one.origin() for one in _read.values()]
        _read.clear()
    for origin in told:
        helper.ask("loaded", origin=json.loads(origin))  # a program of another version refuses it


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    _read.clear()


os.register_at_fork(after_in_child=_after_fork)
