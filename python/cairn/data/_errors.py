"""The error that ends the program with one line."""

from __future__ import annotations

from cairn._command import CairnError


class DataError(CairnError):
    """The message names the file and says what to do."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()), 2)


def exists(path: str) -> DataError:
    return DataError(f"{path} exists and is never overwritten; choose another --output-prefix or remove it")


def failed(error: OSError, path: str) -> DataError:
    """path: named if the error has no name of a file, as that of a write."""
    return DataError(f"{error.filename or path}: {error.strerror or error}")
