"""An opened checkpoint, with the library's description of it."""

from __future__ import annotations

import array
import os
from collections.abc import Sequence
from typing import Any, Union

from cairn import _origins
from cairn._boxes import Box, numbers_of
from cairn._helper import absolute
from cairn._library import library


class Opened:
    """path: a step, a run (its newest step that opens), or another system's checkpoint.

    options: those that READING names; None means the default. local: the step is one of the local level, and
    the dict tells how files of other ranks are read (tools/load/reads.h).
    The constructor raises FileNotFoundError, CorruptError, NotSupported or ValueError.
    """

    # The flags of every verb that reads another system's checkpoint.
    READING = ("from_", "config", "allow", "replicas", "true_vocab_size")

    def __init__(self, path: Union[str, os.PathLike], **options: Any):
        self._library = library()
        given = {name.rstrip("_"): value for name, value in options.items() if value is not None}
        if isinstance(given.get("allow"), str):
            given["allow"] = [given["allow"]]
        self.handle, fields, self._tail = self._library.open(absolute(path), given)
        self.process = os.getpid()  # only this process can read it
        self.directory: str = fields["dir"]
        self.step: int = fields["step"]
        self.foreign: bool = fields["format"] == "foreign"
        self.state: dict = fields.get("state", {})
        self.model: dict = fields.get("model", {})
        self._branches: list = fields.get("branches", [])
        numbered = enumerate(fields["tensors"])  # a tensor without a name holds objects
        self.tensors: dict = {
            tensor["fqn"]: (number, tensor) for number, tensor in numbered if tensor["fqn"] is not None
        }
        self.objects: dict = fields["objects"]
        self._paths: dict = fields["paths"]

    def entry(self, fqn: str) -> dict:
        """The entry of an object: ``{"json": TEXT}`` or ``{"pickle": bytes}``."""
        entry = self.objects[fqn]
        if "pickle" not in entry:
            return entry
        begin, count = entry["pickle"]
        return {"pickle": self._tail[begin : begin + count]}

    def path(self, fqn: str) -> list:
        """The keys and list positions that lead to the value in the saved state dict.

        A key that is not a string is {"key", "text"}.
        """
        return self.objects.get(fqn, {}).get("path") or self._paths.get(fqn) or [fqn]

    def gave_up(self, step: int) -> bool:
        """Whether the training resumed from before `step`, which another program had saved in the run."""
        return bool(self._branches) and self._branches[0]["last"] < step

    def fill(self, boxes: Sequence[Box], places: Sequence[int]) -> None:
        """Reads each box to its address. Use `read_boxes` of _boxes.py."""
        self._library.read(
            self.handle,
            array.array("Q", [box.tensor for box in boxes]),
            numbers_of(box.offset for box in boxes),
            numbers_of(box.extent for box in boxes),
            array.array("Q", places),
        )
        _origins.note(self)

    def check(self) -> None:
        """Call this before using the data. Raises CorruptError if a record does not match its CRC-32."""
        self._library.check(self.handle)

    def origin(self) -> bytes:
        """What a save must tell of what was read, as JSON."""
        return self._library.origin(self.handle)

    def close(self) -> None:
        if self.process == os.getpid():
            _origins.close(self)
            self._library.close(self.handle)
