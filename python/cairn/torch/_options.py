"""The options of a save, and the checks of them."""

from __future__ import annotations

import dataclasses
import json
import math
import operator
import os
from collections.abc import Callable
from typing import Any, Literal, Optional, Union, get_args

from cairn._errors import CopiesDiffer
from cairn._helper import absolute
from cairn.torch._local import Every, Local

_MAX_SECONDS = 10**8  # three years; more overflows clocks
_MAX_INT = 2**63 - 1
_MAX_KEY = 65534  # bytes of an HDF5 attribute's name
_MAX_DEPTH = 24  # of the manifest's values
OnError = Literal["raise", "warn"]
OnCopies = Literal["fail", "warn", "off"]


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a save.

    compress: store tensors compressed.
    model, state: facts about the model and the training for the manifest, as JSON.
    deadline: a save fails after this many seconds without progress of any rank.
    keep_last: keep this many of the newest steps and remove older ones after each commit, once the new step
    was read back; at least two are kept (docs/deletion.md). 0 keeps all.
    require_space: the first save into a run fails, before its tensors are written, if the directory has no
    room (bytes, files, quota) for a step and one that is kept beside it; otherwise this is a warning.
    local: keep the newest steps on the nodes, too: a directory there, such as /dev/shm/cairn (memory) or one
    of a local disk; "{rank}" in it is replaced by the rank. Every save goes there first.
    every: with local, every one of this many saves goes to the run as well; so does the first one after a
    resume from a step that the run does not have. "auto": the first one, and then as often as loses the least
    time, by the formula of `cairn plan`: from the time that the copies to the run took, the time between
    saves, and the failures in the run's events that local steps do not survive. Rank 0 decides at each save;
    the other ranks wait for its word.
    redundancy: with local, the loss of nodes that parity covers: "xor:K" (of each K ranks, one may lose its
    files) or "rs:K,M" (M of K).
    keep_local: with local, how many steps stay on the nodes.
    copies: what a save does if ranks that hold copies of one tensor have different bits, because memory or a
    processor is faulty: "fail" (the step is not saved, and the newest one is the last on which all agreed:
    CopiesDiffer), "warn" (it is saved, and its history says so), "off" (they are not compared).
    on_alarm: called with the CopiesDiffer, on a thread of its own; on all ranks, and with "warn" on rank 0.
    on_error: "raise", or "warn": a save that fails (disk full, directory missing, a rank died) is logged and
    reported in Saved.error. Values that cannot be saved still raise.
    """

    compress: bool = False
    model: Optional[dict] = None
    state: Optional[dict] = None
    deadline: float = 600.0
    keep_last: int = 0
    on_error: OnError = "raise"
    require_space: bool = False
    local: Union[str, os.PathLike, None] = None
    every: Every = 1
    redundancy: str = ""
    keep_local: int = 2
    copies: OnCopies = "fail"
    on_alarm: Optional[Callable[[CopiesDiffer], Any]] = None

    def __post_init__(self) -> None:
        """Validates, because the helper would notice late or not at all."""
        whole("keep_last", self.keep_last, "a number of steps, or 0 to keep all")
        for name in ("compress", "require_space"):
            if type(getattr(self, name)) is not bool:
                raise TypeError(f"{name}={getattr(self, name)!r}: True or False")
        for name, kinds in (("on_error", OnError), ("copies", OnCopies)):
            if getattr(self, name) not in get_args(kinds):
                raise ValueError(f"{name}={getattr(self, name)!r}: one of {', '.join(get_args(kinds))}")
        if not self.deadline > 0:
            raise ValueError(f"deadline={self.deadline}: seconds, more than 0")
        for name in ("every", "keep_local"):
            value = getattr(self, name)
            if (name, value) != ("every", "auto") and not whole(name, value, "a number, at least 1"):
                raise ValueError(f"{name}=0: a number, at least 1")
        if self.local is None and (self.every != 1 or self.redundancy):
            raise ValueError("every and redundancy are of local steps; give local=DIR, too")
        if self.local is not None and self.compress:
            raise ValueError("compress=True: local steps are not compressed; leave one of them out")
        for name in ("model", "state"):
            if (facts := getattr(self, name)) is not None:
                _check_json(name, facts)

    @property
    def seconds(self) -> int:
        """The deadline in whole seconds that clocks can hold."""
        return math.ceil(min(self.deadline, _MAX_SECONDS))

    @property
    def level(self) -> Optional[Local]:
        """Where steps are kept on the nodes."""
        if self.local is None:
            return None
        return Local(absolute(self.local), self.redundancy, operator.index(self.keep_local))

    def for_helper(self, mesh: str) -> dict:
        return {
            "compress": self.compress,
            "require_space": self.require_space,
            "copies_may_differ": self.copies == "warn",
            "model": self.model or {},
            "state": {**({"mesh": mesh} if mesh else {}), **(self.state or {})},
            "keep_last": operator.index(self.keep_last),
        }


def local_options(config: Any) -> dict:
    """The options of the local level, which are fields of a framework's configuration."""
    return {name: getattr(config, name) for name in ("local", "every", "redundancy", "keep_local")}


def whole(name: str, value: Any, what: str) -> int:
    """The value, an integer of Python, numpy or torch, as an int. Raises TypeError or ValueError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: {what}") from None
    if not 0 <= number <= _MAX_INT:
        raise ValueError(f"{name}={number}: {what}")
    return number


def _check_json(name: str, value: Any, depth: int = 0) -> None:
    """Checks a value for the manifest."""
    if depth == 0 and not isinstance(value, dict):
        raise TypeError(f"{name}: a {type(value).__name__}; give a dict of JSON values")
    if depth > _MAX_DEPTH:
        raise ValueError(f"{name}: nests more than {_MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_json(f"{name}[{key!r}]", item, depth + 1)
            if not isinstance(key, str):
                raise TypeError(f"{name}: the key {key!r} is a {type(key).__name__}; JSON keys are strings")
            if depth == 0 and (not key or "\0" in key or len(key.encode(errors="replace")) > _MAX_KEY):
                fault = f"is empty, has a NUL, or has more than {_MAX_KEY} bytes"
                raise ValueError(f"{name}: the key {key[:40]!r} {fault}; rename it")
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            _check_json(f"{name}[{at}]", item, depth + 1)
    else:
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except TypeError:
            kind = type(value).__name__
            raise TypeError(f"{name}: a {kind}, which JSON cannot hold; give a string or a number") from None
        except ValueError:
            raise ValueError(f"{name}: {value!r}, which JSON cannot hold") from None
