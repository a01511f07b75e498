"""The helper's errors as Python exceptions."""

from __future__ import annotations

import errno
import socket
from typing import Optional

from cairn._command import CairnError


class CorruptError(CairnError):
    """A checkpoint's bytes are not those that were written, or are not a checkpoint."""


class SaveFailed(CairnError):
    """A save failed: a rank died, failed or was late. The message names it. Earlier steps are kept."""


class CopiesDiffer(SaveFailed):
    """Ranks that hold copies of one tensor have different bits. The message names tensor, ranks and hosts."""

    BEGIN = "ALARM: copies differ: "  # of each such message of the helper


class NotSupported(CairnError):
    """Cairn does not support the request."""


class HelperDied(CairnError):
    """The helper process ``cairn serve`` ended. ``status``: its exit status, or minus a signal's number."""


def rank_name(rank: int, host: str = "") -> str:
    """The name of a rank in messages. host: defaults to this host."""
    return f"rank {rank} (host {host or socket.gethostname()})"


def exception_of(kind: str, message: str, failure: Optional[tuple[int, str, str]] = None) -> Exception:
    """The exception for an error of `cairn serve`: OSError (or a subclass) or ValueError if one of them fits.

    kind: the helper's name of the error. failure: errno, its text, and the path, if a system call failed.
    """
    numbers = {
        "not_found": errno.ENOENT,
        "already_exists": errno.EEXIST,
        "no_space": errno.ENOSPC,
        "io_error": errno.EIO,
    }
    if kind in numbers:
        return OSError(*(failure or (numbers[kind], message)))  # Python chooses the subclass by the number
    if kind == "invalid_argument":
        return ValueError(message)
    own = {"corrupt": CorruptError, "aborted": SaveFailed, "not_supported": NotSupported}
    return own.get(kind, CairnError)(message, 2)
