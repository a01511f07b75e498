"""An opened checkpoint, with the library's description of it."""

from __future__ import annotations

import array
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Union

from cairn import _origins
from cairn._boxes import Box, numbers_of
from cairn._helper import absolute
from cairn._library import library
from cairn._tensors import Tensors


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
        self.objects: dict = fields["objects"]
        self.count = len(self.objects) + fields["tensors"]  # of all names; perhaps some more

    @functools.cached_property
    def tensors(self) -> Tensors:
        """Made when they are first asked for: a load of whole tensors (`match`) needs none of them."""
        return Tensors(self._library.tensors(self.handle))

    def has(self, fqn: str) -> bool:
        return fqn in self.objects or fqn in self.tensors

    def names(self) -> Iterator[str]:
        """Of all tensors and objects."""
        return itertools.chain(self.objects, self.tensors)

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
        if fqn in self.objects:
            return self.objects[fqn].get("path") or [fqn]
        return self.tensors.path(fqn)

    def gave_up(self, step: int) -> bool:
        """Whether the training resumed from before `step`, which another program had saved in the run."""
        return bool(self._branches) and self._branches[0]["last"] < step

    def match(self, names: Sequence[str], dtypes: Iterable[int], shapes: Sequence[tuple]) -> array.array:
        """For each name, the number of the tensor with that type and shape; -1 if there is none.

        dtypes: numbers of FORMAT.md.
        """
        joined = "\0".join(names).encode(errors="surrogatepass")
        if joined.count(b"\0") >= max(len(names), 1):  # no tensor has such a name
            return array.array("q", [-1]) * len(names)
        ranks = array.array("B", map(len, shapes))
        return self._library.match(self.handle, joined, array.array("B", dtypes), ranks, numbers_of(shapes))

    def fill(self, boxes: Sequence[Box], places: Sequence[int]) -> None:
        """Reads each box to its address. Use `read_boxes` of _boxes.py."""
        self._read(
            array.array("Q", [box.tensor for box in boxes]),
            array.array("Q", places),
            numbers_of(box.offset for box in boxes),
            numbers_of(box.extent for box in boxes),
        )

    def fill_whole(self, numbers: Sequence[int], places: Sequence[int]) -> None:
        """Reads whole tensors, each to its address."""
        self._read(array.array("Q", numbers), array.array("Q", places))

    def _read(self, *columns: array.array) -> None:
        self._library.read(self.handle, *columns)
        _origins.note(self)

    def check(self) -> None:
        """Call this before using the data. Raises CorruptError if a record does not match its CRC-32."""
        self._library.check(self.handle)

    def close(self) -> None:
        if self.process == os.getpid():
            self._library.close(self.handle)
