"""The library libcairn_load.so, which reads checkpoints into this process's memory (tools/load/cairn_load.h).

Its calls release the GIL. A handle is of the process that opened it: a forked child opens its own.
"""

from __future__ import annotations

import array
import ctypes
import functools
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any, Optional

from cairn._command import program
from cairn._errors import NotSupported, exception_of

_NAME = "libcairn_load.so"
_VERSION = 4  # CAIRN_LOAD_VERSION


class _Text(ctypes.Structure):
    """Bytes of the library: JSON, and a tail."""

    _fields_ = [("data", ctypes.c_void_p), ("head", ctypes.c_uint64), ("tail", ctypes.c_uint64)]


class Library:
    """path: the library's. Raises OSError if it cannot be loaded, NotSupported if it has another version."""

    def __init__(self, path: str):
        self._functions = ctypes.CDLL(path)
        if (version := self._functions.cairn_load_version()) != _VERSION:
            raise NotSupported(
                f"{path} has version {version}, and this package needs {_VERSION}; "
                "the package and the cairn program are of different versions",
                2,
            )
        self._functions.cairn_load_close.argtypes = [ctypes.c_int64]
        self._functions.cairn_load_close.restype = None
        self._functions.cairn_load_free.restype = None
        self._functions.cairn_load_sums.restype = None
        self._functions.cairn_load_tell_exit.restype = None

    def open(self, path: str, options: dict) -> tuple[int, dict, bytes]:
        """Returns (handle, description, pickles)."""
        handle = ctypes.c_int64()
        head, tail = self._call("open", path.encode(), json.dumps(options).encode(), ctypes.byref(handle))
        return handle.value, json.loads(head), tail

    def tensors(self, handle: int) -> dict[str, list]:
        """The tensors, in columns."""
        return json.loads(self._call("tensors", ctypes.c_int64(handle))[0])

    def match(
        self, handle: int, names: bytes, dtypes: array.array, ranks: array.array, shapes: array.array
    ) -> array.array:
        """See Opened.match. names: joined by NUL."""
        numbers = array.array("q", [0]) * len(dtypes)
        pointers = map(_pointer, (dtypes, ranks, shapes, numbers))
        self._call("match", ctypes.c_int64(handle), ctypes.c_uint64(len(dtypes)), names, *pointers)
        return numbers

    def read(
        self,
        handle: int,
        tensors: array.array,
        places: array.array,
        offsets: Optional[array.array] = None,
        extents: Optional[array.array] = None,
    ) -> None:
        """Fills boxes, or whole tensors. places: addresses of memory. All have integers of 64 bits."""
        pointers = map(_pointer, (tensors, offsets, extents, places))
        self._call("read", ctypes.c_int64(handle), ctypes.c_uint64(len(tensors)), *pointers)

    def sums(
        self, values: array.array, rows: array.array, columns: array.array, element_bytes: array.array
    ) -> array.array:
        """Sums of the bits of arrays in memory. values: addresses. element_bytes: of one byte each."""
        found = array.array("Q", [0]) * len(values)
        pointers = map(_pointer, (values, rows, columns, element_bytes, found))
        self._functions.cairn_load_sums(ctypes.c_uint64(len(values)), *pointers)
        return found

    def tell_exit(self, socket: int) -> None:
        """At the exit of the process: tells the helper its status, and waits until the helper has ended."""
        self._functions.cairn_load_tell_exit(ctypes.c_int32(socket))

    def check(self, handle: int) -> None:
        self._call("check", ctypes.c_int64(handle))

    def origin(self, handle: int) -> bytes:
        """JSON of the step and the tensors that were read, for the helper. A closed one gives it once."""
        return self._call("origin", ctypes.c_int64(handle))[0]

    def close(self, handle: int) -> None:
        self._functions.cairn_load_close(handle)

    def _call(self, name: str, *arguments: Any) -> tuple[bytes, bytes]:
        said = _Text()
        function = getattr(self._functions, f"cairn_load_{name}")
        try:
            failed = function(*arguments, ctypes.byref(said))
            whole = ctypes.string_at(said.data, said.head + said.tail) if said.data else b""
            head, tail = whole[: said.head], whole[said.head :]
        finally:
            self._functions.cairn_load_free(ctypes.byref(said))
        if failed:
            raise _exception(json.loads(head) if head else {"kind": "no_space", "error": "out of memory"})
        return head, tail


def _pointer(numbers: Optional[array.array]) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if numbers is None else numbers.buffer_info()[0])


def _exception(failure: dict) -> Exception:
    call = (failure["errno"], failure["reason"], failure["path"]) if "errno" in failure else None
    return exception_of(failure["kind"], failure["error"], call)


def _places() -> Iterator[pathlib.Path]:
    """Where the library may be: in the wheel's package, else as `cmake` builds and installs it."""
    if "CAIRN" not in os.environ:
        yield pathlib.Path(__file__).parent / _NAME
    directory = pathlib.Path(program()).parent
    yield directory / _NAME
    yield directory.parent / "lib" / "cairn" / _NAME


@functools.lru_cache(maxsize=None)
def library() -> Library:
    """Loaded at the first use. Raises FileNotFoundError if it does not exist, NotSupported."""
    places = list(_places())
    for place in places:
        if place.is_file():
            return Library(str(place))
    looked = ", ".join(map(str, places))
    raise FileNotFoundError(f"cannot find {_NAME}, which belongs to the cairn program (tried {looked})")
