"""Reads boxes of tensors through windows of shared memory: while one is copied out, the helper fills the
others.

Windows are kept for the next load, because new memory costs page faults.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Callable

from cairn._helper import Helper

WINDOW = 32 << 20
_CHUNK = 4 << 20  # bytes verified together: a chunk that spans two windows is read twice
# Bytes filled at a time if the files are in the page cache: they are still in the CPU's cache when copied
# out.
_FROM_CACHE = 4 << 20
_IN_FLIGHT = 3  # windows that the helper reads into at once
_ALIGNMENT = 4096  # of direct I/O
_MAX_BOXES = 4096  # per request

# (elements in row-major order, their offset in the tensor, their extent)
Deliver = Callable[[memoryview, Sequence[int], Sequence[int]], None]


@dataclasses.dataclass
class Box:
    """tensor: its number in the opened checkpoint. offset: in the whole tensor.

    deliver: receives the values of the box, at once or in parts.
    """

    tensor: int
    offset: Sequence[int]
    extent: Sequence[int]
    itemsize: int
    deliver: Deliver

    @property
    def nbytes(self) -> int:
        return math.prod(self.extent) * self.itemsize


def split(box: Box, limit: int) -> Iterator[Box]:
    """Splits the box into boxes of at most `limit` bytes. An element is never larger than the limit."""
    if box.nbytes <= limit:
        yield box
        return
    dimension = next(at for at, extent in enumerate(box.extent) if extent > 1)
    extent = box.extent[dimension]
    row = box.nbytes // extent
    rows, whole = max(1, limit // row), _CHUNK // math.gcd(row, _CHUNK)  # `whole` rows fill whole chunks
    rows -= rows % whole if whole <= rows else 0
    for begin in range(0, extent, rows):
        offset, part = list(box.offset), list(box.extent)
        offset[dimension] += begin
        part[dimension] = min(rows, extent - begin)
        yield from split(dataclasses.replace(box, offset=offset, extent=part), limit)


def batches(boxes: Iterable[Box], limit: int) -> Iterator[list]:
    """Groups boxes into lists of (box, offset in a window), in order: `limit` bytes, or one larger box."""
    batch: list = []
    end = 0
    for box in boxes:
        if batch and (end + box.nbytes > limit or len(batch) == _MAX_BOXES):
            yield batch
            batch, end = [], 0
        batch.append((box, end))
        end += math.ceil(box.nbytes / _ALIGNMENT) * _ALIGNMENT
    if batch:
        yield batch


class _Window:
    def __init__(self, helper: Helper, size: int):
        self.size = size
        self._helper = helper
        self._number = helper.next_number()
        fd = os.memfd_create("cairn-window", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            self._bytes = memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED))
            self._added = helper.request("window", fds=(fd,), window=self._number)
        finally:
            os.close(fd)

    def read(self, handle: int, batch: list) -> Future:
        wanted = [
            {"tensor": box.tensor, "offset": list(box.offset), "extent": list(box.extent), "at": at}
            for box, at in batch
        ]
        return self._helper.request("read", handle=handle, window=self._number, boxes=wanted)

    def check(self) -> None:
        """Raises the helper's error if it could not map the window. Call it before using the data."""
        self._added.result()

    def copy_out(self, batch: list) -> None:
        for box, at in batch:
            box.deliver(self._bytes[at : at + box.nbytes], box.offset, box.extent)

    def close(self) -> None:
        if self._helper.alive:
            self._helper.request("close", window=self._number)


def read_boxes(
    helper: Helper, handle: int, boxes: Iterable[Box], window: int = WINDOW, *, cached: bool = False
) -> None:
    """Delivers the values of all boxes. Raises the helper's errors.

    handle: the opened checkpoint. cached: see Opened.
    """
    parts = [part for box in boxes if box.nbytes for part in split(box, window)]
    parts.sort(key=lambda part: (part.tensor, *part.offset))  # the order in the files
    if not parts:
        return
    under_way: collections.deque = collections.deque()
    try:
        for batch in batches(parts, min(window, _FROM_CACHE) if cached else window):
            if len(under_way) == _IN_FLIGHT:
                _take_over(helper, under_way)
            current = _free_window(helper, window)
            under_way.append((current, batch, current.read(handle, batch)))
        while under_way:
            _take_over(helper, under_way)
    finally:
        for current, _, _ in under_way:  # the helper may still fill them
            current.close()


def _free_window(helper: Helper, size: int) -> _Window:
    try:
        kept = helper.windows.pop()
    except IndexError:
        return _Window(helper, size)
    if kept.size == size:
        return kept
    kept.close()
    return _Window(helper, size)


def _take_over(helper: Helper, under_way: collections.deque) -> None:
    """Waits for the oldest read, copies from its window, and keeps that window."""
    current, batch, read = under_way[0]
    current.check()
    read.result()
    current.copy_out(batch)
    under_way.popleft()
    if len(helper.windows) < _IN_FLIGHT:
        helper.windows.append(current)
    else:
        current.close()
