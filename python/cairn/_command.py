"""Finds and runs the ``cairn`` program."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence

DISTRIBUTION = "cairn-checkpoints"


class CairnError(RuntimeError):
    """The ``cairn`` program failed. ``str(error)`` is the program's message.

    ``status`` is its exit status: 1 if a check failed or two checkpoints differ, 2 for misuse or trouble.
    """

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple:  # ranks send errors to each other
        return type(self), (str(self), self.status)


def _places() -> Iterator[pathlib.Path]:
    """Where the program may be, most reliable first."""
    if given := os.environ.get("CAIRN"):
        yield pathlib.Path(given)
        return
    try:  # the installer's record is right for environments, --user and --prefix
        for file in importlib.metadata.files(DISTRIBUTION) or ():
            if file.parts[-2:] == ("bin", "cairn"):
                yield pathlib.Path(file.locate())
    except importlib.metadata.PackageNotFoundError:
        pass
    yield pathlib.Path(__file__).resolve().parents[1] / "bin" / "cairn"  # pip install --target
    yield pathlib.Path(sysconfig.get_path("scripts")) / "cairn"


def program() -> str:
    """The path of the ``cairn`` program: this package's, or the one that the variable CAIRN names.

    Raises FileNotFoundError if it does not exist.
    """
    places = list(dict.fromkeys(_places()))
    for place in places:
        if os.access(place, os.X_OK) and place.is_file():
            return str(place.resolve())
    looked = ", ".join(map(str, places))
    raise FileNotFoundError(
        f"cannot find the cairn program (tried {looked}); install {DISTRIBUTION}, or set CAIRN to its path"
    )


def run(
    arguments: Sequence[str | os.PathLike], *, check: bool = True, capture: bool = False
) -> subprocess.CompletedProcess:
    """Runs ``cairn ARGUMENTS...`` and waits for it.

    arguments: the words after ``cairn``: ``["verify", "/scratch/run/step-100"]``. No shell reads them.
    check: raise CairnError if the exit status is not 0. Its message is the program's stderr, if captured.
    capture: return the output as text in ``stdout`` and ``stderr`` of the result; otherwise the program
    writes to this process's own.
    """
    command = [program(), *(os.fspath(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=capture, text=True)
    if check and done.returncode != 0:
        status = f"cairn {' '.join(command[1:])}: exit status {done.returncode}"
        raise CairnError((done.stderr or "").strip() or status, done.returncode)
    return done
