"""The helper's errors as Python exceptions."""

from __future__ import annotations

import errno
import socket
from typing import Optional

from cairn._command import CairnError


class CorruptError(CairnError):
    """A checkpoint's bytes differ from those that were written, or are not a checkpoint."""


class SaveFailed(CairnError):
    """A save ended without a checkpoint: a rank died, gave up or was late. The message names it. The steps before are whole."""


class NotSupported(CairnError):
    """Cairn does not support the request."""


class HelperDied(CairnError):
    """The helper process ``cairn serve`` ended. ``status``: its exit status; negative: the signal that ended it."""


def rank_name(rank: int, host: str = "") -> str:
    """As messages name it. host: this one, if it is not given."""
    return f"rank {rank} (host {host or socket.gethostname()})"


def exception_of(kind: str, message: str, failure: Optional[tuple[int, str, str]] = None) -> Exception:
    """kind: as `cairn serve` names it. failure: errno, its text, and the path, if a system call failed. Built-in exceptions where they
    say the same: OSError (FileNotFoundError, PermissionError, ...), ValueError."""
    numbers = {
        "not_found": errno.ENOENT,
        "already_exists": errno.EEXIST,
        "no_space": errno.ENOSPC,
        "io_error": errno.EIO,
    }
    if kind in numbers:
        return OSError(*(failure or (numbers[kind], message)))  # Python makes it a subclass, by its number
    if kind == "invalid_argument":
        return ValueError(message)
    own = {"corrupt": CorruptError, "aborted": SaveFailed, "not_supported": NotSupported}
    return own.get(kind, CairnError)(message, 2)
