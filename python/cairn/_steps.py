"""Steps of a run directory by their names (ckpt/FORMAT.md). To find the one that a run means, open the run."""

from __future__ import annotations

import os
import pathlib
import re

_STEP = re.compile(r"step-([0-9]{8,})(\.superseded-[0-9a-f]+)?")


def steps(run: pathlib.Path) -> list[pathlib.Path]:
    """The committed steps, the highest number first.

    A partial or retired one has another name; so has one that waits for the step that replaces it.
    """
    while run.is_dir():
        names = set(os.listdir(run))
        numbers = {
            run / name: _number(name, names) for name in names if (run / name / "manifest.json").is_file()
        }
        if set(os.listdir(run)) == names:
            return sorted(
                (step for step in numbers if numbers[step] >= 0), key=numbers.__getitem__, reverse=True
            )
    return []


def _number(name: str, names: set[str]) -> int:
    """Of a committed step; -1 for other names."""
    match = _STEP.fullmatch(name)
    if match is None:
        return -1
    aside = match[2] or ""
    waits = name.replace("superseded", "partial") in names and name.removesuffix(aside) not in names
    return int(match[1]) if not aside or waits else -1
