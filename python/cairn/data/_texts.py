"""Documents of text files and JSON lines, in chunks, so that a file of any size fits in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Optional

from cairn.data._errors import DataError

CHUNK_BYTES = 1 << 20  # a chunk of a document has about this size
MAX_JSON_LINE_BYTES = 256 << 20  # a line is parsed as a whole
_JSON_NAMES = (".jsonl", ".ndjson", ".json")

Chunk = tuple[bytes, bool]  # a part of a document, and whether it is the last


def _refuse(constant: str) -> None:
    raise ValueError(constant)


@dataclass
class Texts:
    """The documents of `paths`; iterating gives their chunks.

    A file is a document, or its paragraphs are (split). A line of JSON lines is a document: an object with
    the text under `key`. Raises DataError, naming the line; OSError if a file is missing, before any is read.
    """

    paths: list[str]
    format: str = "auto"  # by name; text; jsonl
    key: str = "text"
    split: bool = False  # blank lines separate documents and belong to none
    done: int = field(default=0, init=False)  # bytes read so far
    total: int = field(default=0, init=False)
    path: str = field(default="", init=False)  # of the last chunk

    def __post_init__(self) -> None:
        for path in self.paths:
            if os.path.isdir(path):
                raise DataError(f"{path} is a directory; name the text files in it")
            with open(path, "rb") as file:
                self.total += os.fstat(file.fileno()).st_size

    def __iter__(self) -> Iterator[Chunk]:
        self.done = before = 0
        for path in self.paths:
            self.path = path
            with open(path, "rb") as file:
                for chunk in self._chunks(file, path):
                    self.done = before + file.tell()
                    yield chunk
                self.done = before = before + file.tell()

    def _chunks(self, file: BinaryIO, path: str) -> Iterator[Chunk]:
        by_name = "jsonl" if path.endswith(_JSON_NAMES) else "text"
        if (by_name if self.format == "auto" else self.format) == "jsonl":
            return self._json_lines(file, path)
        return _paragraphs(file) if self.split else _whole(file)

    def _json_lines(self, file: BinaryIO, path: str) -> Iterator[Chunk]:
        decoder = json.JSONDecoder(parse_constant=_refuse)
        number = 0
        while line := file.readline(MAX_JSON_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_JSON_LINE_BYTES:
                raise DataError(
                    f"{path}: line {number} is longer than {MAX_JSON_LINE_BYTES >> 20} MiB; is the file JSON "
                    "lines? (--format text reads any text)"
                )
            if line.isspace():
                continue
            try:
                value = decoder.decode(line.decode("utf-8-sig"))
                text = value.get(self.key) if isinstance(value, dict) else None
                encoded: Optional[bytes] = text.encode() if isinstance(text, str) else None
            except (ValueError, RecursionError):  # half of a surrogate pair is a ValueError, too
                value = None
            if not isinstance(value, dict):
                raise DataError(
                    f"{path}: line {number} is not a JSON object; correct the line, or read the file as "
                    "--format text"
                )
            if encoded is None:
                raise DataError(
                    f'{path}: line {number} has no string under "{self.key}"; name the key by --json-key'
                )
            yield encoded, True


def _block(file: BinaryIO) -> bytes:
    """Some lines, whole if they are not very long; nothing at the end of the file."""
    return file.read(CHUNK_BYTES) + file.readline(CHUNK_BYTES)


def _whole(file: BinaryIO) -> Iterator[Chunk]:
    block = _block(file)
    while block:
        following = _block(file)
        yield block, not following
        block = following


def _paragraphs(file: BinaryIO) -> Iterator[Chunk]:
    lines: list[bytes] = []  # the document's last lines: whether it ends there, the next line says
    size = 0
    at_start = True  # not inside of a line that is longer than a chunk
    while line := file.readline(CHUNK_BYTES):
        ended = line.endswith(b"\n") or len(line) < CHUNK_BYTES
        if at_start and ended and line.isspace():
            if lines:
                yield b"".join(lines).rstrip(b"\r\n"), True
            lines, size = [], 0
        else:
            if lines and size + len(line) > CHUNK_BYTES:
                yield b"".join(lines), False
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        at_start = ended
    if lines:
        yield b"".join(lines).rstrip(b"\r\n"), True
