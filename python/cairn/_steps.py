"""Steps of a run by their names (ckpt/FORMAT.md)."""

from __future__ import annotations

import pathlib
import re

_STEP = re.compile(r"step-[0-9]{8,}")


def steps(run: pathlib.Path) -> list[pathlib.Path]:
    """The committed steps of a run directory, the newest first. A partial, retired or superseded one has another name."""
    if not run.is_dir():
        return []
    found = [entry for entry in run.iterdir() if _STEP.fullmatch(entry.name) and (entry / "manifest.json").is_file()]
    return sorted(found, key=number, reverse=True)


def number(step: pathlib.Path) -> int:
    """The step's, from its directory's name. Raises ValueError for another name."""
    return int(step.name.removeprefix("step-"))
