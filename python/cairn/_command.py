"""Where the ``cairn`` program is, and how it is started."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence

DISTRIBUTION = "cairn-checkpoints"


class CairnError(RuntimeError):
    """The ``cairn`` program failed. ``str(error)`` is its own message.

    ``status`` is its exit status: 1 if a check failed or two checkpoints differ, 2 for misuse or trouble.
    """

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple:  # ranks send it to each other
        return type(self), (str(self), self.status)


def _places() -> Iterator[pathlib.Path]:
    """Where the program may be, the surest first."""
    if given := os.environ.get("CAIRN"):
        yield pathlib.Path(given)
        return
    try:  # what the installer wrote down: it holds for environments, --user and --prefix alike
        for file in importlib.metadata.files(DISTRIBUTION) or ():
            if file.parts[-2:] == ("bin", "cairn"):
                yield pathlib.Path(file.locate())
    except importlib.metadata.PackageNotFoundError:
        pass
    yield pathlib.Path(__file__).resolve().parents[1] / "bin" / "cairn"  # pip install --target
    yield pathlib.Path(sysconfig.get_path("scripts")) / "cairn"


def program() -> str:
    """The path of the ``cairn`` program: the one of this package, or the one that the variable CAIRN names.

    Raises FileNotFoundError if there is none.
    """
    places = list(dict.fromkeys(_places()))
    for place in places:
        if os.access(place, os.X_OK) and place.is_file():
            return str(place.resolve())
    looked = ", ".join(map(str, places))
    raise FileNotFoundError(
        f"the cairn program is not there (looked at {looked}); install {DISTRIBUTION}, or set CAIRN to its path"
    )


def run(
    arguments: Sequence[str | os.PathLike], *, check: bool = True, capture: bool = False
) -> subprocess.CompletedProcess:
    """Runs ``cairn ARGUMENTS...`` and waits for it.

    arguments: the words after ``cairn``, such as ``["verify", "/scratch/run/step-100"]``. No shell reads them.
    check: raise CairnError if the exit status is not 0. Its message is the program's stderr, if that is captured.
    capture: keep its output, as text, in ``stdout`` and ``stderr`` of the result; otherwise it shares yours.
    """
    command = [program(), *(os.fspath(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=capture, text=True)
    if check and done.returncode != 0:
        said = (done.stderr or "").strip() or f"cairn {' '.join(command[1:])}: exit status {done.returncode}"
        raise CairnError(said, done.returncode)
    return done
