"""Boxes of tensors, and their reads: straight into the memory that wants them, or through a buffer."""

from __future__ import annotations

import array
import ctypes
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, TypeVar

if TYPE_CHECKING:
    from cairn._opened import Opened

BUFFER_BYTES = 16 << 20
_CHUNK = 4 << 20  # bytes verified together: a chunk that lies in two parts is read twice
CALL_BYTES = 1 << 30  # bytes of one call into the library, so that Ctrl-C need not wait long

_Item = TypeVar("_Item")
_nbytes = operator.attrgetter("nbytes")

# (elements in row-major order, their offset in the tensor, their extent)
Deliver = Callable[[memoryview, Sequence[int], Sequence[int]], None]


class Box(NamedTuple):
    """tensor: its number in the opened checkpoint. offset: in the whole tensor.

    place: the address of memory for exactly the box. deliver: if there is no such memory, it receives the
    values, at once or in parts; it may use them only until it returns, or until the buffer's next wait().
    memory: kept alive while the box is.
    """

    tensor: int
    offset: Sequence[int]
    extent: Sequence[int]
    nbytes: int
    place: int = 0
    deliver: Optional[Deliver] = None
    memory: Any = None


class Buffer:
    """Memory for values on their way to memory that the library cannot fill."""

    def __init__(self) -> None:
        self._memory: Optional[ctypes.Array] = None

    def wait(self, size: int) -> tuple[int, memoryview]:
        """(address, memory) of `size` bytes, once nobody uses them."""
        if self._memory is None or len(self._memory) < size:
            self._memory = (ctypes.c_char * max(size, BUFFER_BYTES))()
        return ctypes.addressof(self._memory), memoryview(self._memory).cast("B")

    def delivered(self) -> None:
        """All values in the memory were given to their boxes."""

    def finish(self) -> None:
        """Waits until no box uses the memory."""


def read_boxes(opened: Opened, boxes: Iterable[Box], buffer: Optional[Buffer] = None) -> None:
    """Fills all boxes. Raises CorruptError, OSError, and ValueError if the checkpoint is not open.

    After an error the contents of the boxes are undefined. buffer: for boxes without a place.
    """
    in_order = sorted((box for box in boxes if box.nbytes), key=operator.attrgetter("tensor"))
    straight = [box for box in in_order if box.deliver is None]
    for batch in batches(straight, _nbytes, CALL_BYTES):
        opened.fill(batch, [box.place for box in batch])
    through = [part for box in in_order if box.deliver is not None for part in split(box, BUFFER_BYTES)]
    if through:
        _read_through(opened, through, Buffer() if buffer is None else buffer)


def _read_through(opened: Opened, parts: Sequence[Box], buffer: Buffer) -> None:
    try:
        for batch in batches(parts, _nbytes, BUFFER_BYTES):
            ends = list(itertools.accumulate(box.nbytes for box in batch))
            address, memory = buffer.wait(ends[-1])
            opened.fill(batch, [address + end - box.nbytes for box, end in zip(batch, ends)])
            for box, end in zip(batch, ends):
                assert box.deliver is not None
                box.deliver(memory[end - box.nbytes : end], box.offset, box.extent)
            buffer.delivered()
    finally:
        buffer.finish()


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
        yield from split(box._replace(offset=offset, extent=part, nbytes=row * part[dimension]), limit)


def batches(items: Sequence[_Item], nbytes: Callable[[_Item], int], limit: int) -> Iterator[Sequence[_Item]]:
    """Groups items, in order: `limit` bytes, or one larger item."""
    begin = size = 0
    for at, item in enumerate(items):
        bytes_of_item = nbytes(item)
        if at > begin and size + bytes_of_item > limit:
            yield items[begin:at]
            begin, size = at, 0
        size += bytes_of_item
    if begin < len(items):
        yield items[begin:]


def numbers_of(lists: Iterable[Iterable[int]]) -> array.array:
    """All numbers of the lists, one after another, as 64-bit integers."""
    return array.array("Q", itertools.chain.from_iterable(lists))
