"""Writes P.bin and P.idx, Megatron's indexed dataset, and the files beside it.

P.bin is raw tokens. P.idx, little-endian and packed: magic, version (u64), type of a token (u8), number of
documents D (u64), D + 1 (u64); the lengths in tokens (i32), where each begins in P.bin (i64), and the numbers
0 to D (i64). Source: megatron.core.datasets.indexed_dataset.

All files grow under temporary names. The index, which makes them a dataset, is renamed last, when the tokens
are durable.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import struct
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Optional

from cairn.data._errors import DataError, exists, failed

if TYPE_CHECKING:
    import numpy

_HEADER = struct.Struct("<9sQBQQ")
TYPES = {"uint16": (8, 2), "int32": (4, 4)}  # the number in the index, and bytes
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BLOCK = 1 << 18  # lengths, whose pointers are derived at once
MAX_DOCUMENT_TOKENS = 2**31 - 1


def type_for(vocab_size: int) -> str:
    """The type that Megatron's preprocessing chooses."""
    return "uint16" if vocab_size < 65500 else "int32"


def index_bytes(documents: int) -> int:
    return _HEADER.size + 12 * documents + 8 * (documents + 1)


class Dataset:
    """Removes everything that it made unless publish() returned. Raises DataError."""

    def __init__(self, prefix: str, dtype: str):
        self._prefix, self._dtype = prefix, dtype
        self._documents = 0
        self._suffix = f".partial-{secrets.token_hex(8)}"
        self._made: list[str] = []
        self._bin: Optional[IO[bytes]] = None
        self._idx: Optional[IO[bytes]] = None

    def __enter__(self) -> Dataset:
        try:
            self._bin, self._idx = self._create(".bin"), self._create(".idx")
            self._idx.write(bytes(_HEADER.size))  # filled in by publish()
        except BaseException:  # a signal, too
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._bin, self._idx):
            if file is not None:
                try:
                    file.close()
                except OSError:  # a disk that is full says so again
                    pass
        for path in reversed(self._made):
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            elif os.path.lexists(path):
                os.unlink(path)

    def add(self, tokens: numpy.ndarray, lengths: Sequence[int]) -> None:
        """Appends tokens, and ends documents of these lengths, the first of which may have begun before."""
        import numpy as np

        assert self._bin is not None and self._idx is not None
        if lengths and max(lengths) > MAX_DOCUMENT_TOKENS:
            number = self._documents + lengths.index(max(lengths))
            raise DataError(
                f"document {number} has more than 2^31 - 1 tokens, which the format cannot hold; split it"
            )
        self._write(self._bin, tokens.astype(self._dtype).data)
        self._write(self._idx, np.array(lengths, "<i4").data)
        self._documents += len(lengths)

    def publish(self, model: bytes, tokenizer: dict[str, bytes]) -> None:
        """Gives all files their names: P.tokenizer, P.model (if not empty), P.bin and P.idx."""
        assert self._bin is not None and self._idx is not None
        try:
            self._finish_index(self._idx)
            for file in (self._bin, self._idx):
                _sync(file)
            if tokenizer:
                self._rename(self._write_directory(tokenizer), ".tokenizer")
            if model:
                with self._create(".model") as file:
                    file.write(model)
                    _sync(file)
                self._rename(file.name, ".model")
            self._rename(self._bin.name, ".bin")
            self._sync_directory()
            self._rename(self._idx.name, ".idx")
            self._sync_directory()
        except OSError as error:
            raise failed(error, self._prefix) from None
        self._made = []

    def _create(self, ending: str) -> IO[bytes]:
        path = self._prefix + ending + self._suffix
        try:
            self._made.append(path)
            return open(path, "x+b")
        except OSError as error:
            raise failed(error, path) from None

    def _write(self, file: IO[bytes], data: memoryview) -> None:
        try:
            file.write(data)
        except OSError as error:
            raise failed(error, file.name) from None

    def _finish_index(self, file: IO[bytes]) -> None:
        import numpy as np

        file.flush()
        width = TYPES[self._dtype][1]
        pointer = 0
        for begin in range(0, self._documents, _BLOCK):
            count = min(_BLOCK, self._documents - begin)
            file.seek(_HEADER.size + 4 * begin)
            ends = np.cumsum(np.frombuffer(file.read(4 * count), "<i4"), dtype="<i8") * width + pointer
            file.seek(0, os.SEEK_END)
            file.write(np.concatenate(([pointer], ends[:-1])).astype("<i8").data)
            pointer = int(ends[-1])
        for begin in range(0, self._documents + 1, _BLOCK):
            file.write(np.arange(begin, min(begin + _BLOCK, self._documents + 1), dtype="<i8").data)
        file.seek(0)
        counts = (self._documents, self._documents + 1)
        file.write(_HEADER.pack(b"MMIDIDX\0\0", 1, TYPES[self._dtype][0], *counts))

    def _write_directory(self, files: dict[str, bytes]) -> str:
        path = self._prefix + ".tokenizer" + self._suffix
        self._made.append(path)
        os.mkdir(path)
        for name, content in files.items():
            with open(os.path.join(path, name), "xb") as file:
                file.write(content)
                _sync(file)
        _sync_directory(path)
        return path

    def _rename(self, path: str, ending: str) -> None:
        """To a name that does not exist; from then on the file is removed by its new name."""
        target = self._prefix + ending
        if os.path.lexists(target):
            raise exists(target)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            os.rename(path, target)
            self._made[self._made.index(path)] = target
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _sync_directory(self) -> None:
        _sync_directory(os.path.dirname(self._prefix) or ".")


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
