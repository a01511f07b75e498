"""Applies an index to a shape as numpy does: integers, slices with any step, an ellipsis and None."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, Optional

_WORTH_A_GAP = 64 << 10  # a gap of this many bytes between wanted elements is worth two boxes


@dataclasses.dataclass(frozen=True)
class Selection:
    """The elements of a tensor that an index selects.

    shape: the tensor's. ranges: the selection along each of its dimensions. result: the shape of the result.
    scalar: numpy would return a number instead of an array.
    """

    shape: tuple
    ranges: tuple
    result: tuple
    scalar: bool

    @property
    def counts(self) -> tuple:
        return tuple(map(len, self.ranges))

    @property
    def is_box(self) -> bool:
        """Whether the selected elements are one box, in its order."""
        return all(wanted.step == 1 or len(wanted) == 1 for wanted in self.ranges)

    def boxes(self, itemsize: int) -> Iterator[tuple[list, list]]:
        """The (offset, extent) of boxes that hold all selected elements and few others."""
        if 0 in self.counts:
            return
        sizes = [math.prod(self.shape[at + 1 :]) * itemsize for at in range(len(self.ranges))]
        along = [_runs(wanted, size) for wanted, size in zip(self.ranges, sizes)]
        for box in itertools.product(*along):
            yield [begin for begin, _ in box], [count for _, count in box]

    def places(self, offset: Sequence[int], extent: Sequence[int]) -> Optional[tuple[tuple, tuple]]:
        """(slices of the selection, slices of the box) for the elements of both; None if they share none."""
        pairs = [pair for one in zip(self.ranges, offset, extent) if (pair := _place(*one)) is not None]
        if len(pairs) < len(self.ranges):
            return None
        return tuple(to for to, _ in pairs), tuple(of for _, of in pairs)


def select(shape: Sequence[int], index: Any) -> Selection:
    """Raises IndexError as numpy does, and TypeError for arrays and lists as indices."""
    parts = index if isinstance(index, tuple) else (index,)
    given = sum(part is not None and part is not Ellipsis for part in parts)
    if sum(part is Ellipsis for part in parts) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if given > len(shape):
        raise IndexError(f"too many indices: the tensor has {len(shape)} dimensions; the index has {given}")
    if not any(part is Ellipsis for part in parts):
        parts = (*parts, *[slice(None)] * (len(shape) - given))
    ranges: list = []
    result: list = []
    for part in parts:
        if part is None:
            result.append(1)
            continue
        for one in [slice(None)] * (len(shape) - given) if part is Ellipsis else [part]:
            wanted, keeps = _along(shape[len(ranges)], one, len(ranges))
            ranges.append(wanted)
            result += [len(wanted)] if keeps else []
    scalar = not result and not any(part is Ellipsis for part in parts)
    return Selection(tuple(shape), tuple(ranges), tuple(result), scalar)


def _along(size: int, part: Any, dimension: int) -> tuple[range, bool]:
    """Returns (the selection, whether the result keeps the dimension)."""
    if isinstance(part, slice):
        return range(size)[part], True
    try:
        if isinstance(part, bool):
            raise TypeError
        at = operator.index(part)
    except TypeError:
        raise TypeError(
            f"cannot index with a {type(part).__name__}, only with integers, slices, ... and None; "
            "read the tensor first: t.numpy()[...]"
        ) from None
    if not -size <= at < size:
        raise IndexError(f"index {at} is out of bounds for dimension {dimension} with size {size}")
    at %= size
    return range(at, at + 1), False


def _upwards(wanted: range) -> range:
    return wanted if wanted.step > 0 else wanted[::-1]


def _runs(wanted: range, bytes_of_one: int) -> list:
    """Pairs (begin, count): one for all wanted, or one for each if the gaps are large."""
    up = _upwards(wanted)
    if up.step > 1 and (up.step - 1) * bytes_of_one >= _WORTH_A_GAP:
        return [(at, 1) for at in up]
    return [(up[0], up[-1] + 1 - up[0])]


def _place(wanted: range, begin: int, count: int) -> Optional[tuple[slice, slice]]:
    up = _upwards(wanted)
    first = max(0, -((up.start - begin) // up.step))  # rounded up
    last = min(len(up), -((up.start - begin - count) // up.step))
    if first >= last:
        return None
    of = slice(up[first] - begin, up[last - 1] - begin + 1, up.step)
    if wanted.step > 0:
        return slice(first, last), of
    stop = len(up) - 1 - last
    return slice(len(up) - 1 - first, stop if stop >= 0 else None, -1), of
