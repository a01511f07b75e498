"""Steps of a run directory by their names (ckpt/FORMAT.md). To find the one that a run means, open the run."""

from __future__ import annotations

import os
import pathlib
import re

_STEP = re.compile(r"step-([0-9]{8,})(\.superseded-[0-9a-f]+)?")


def steps(run: pathlib.Path) -> list[pathlib.Path]:
    """The committed steps, the highest number first. A partial or retired one has another name; so has one that another step is replacing."""
    while run.is_dir():
        names = set(os.listdir(run))
        found = [run / name for name in names if _is_step(name, names) and (run / name / "manifest.json").is_file()]
        if set(os.listdir(run)) == names:
            return sorted(found, key=_number, reverse=True)
    return []


def _is_step(name: str, names: set[str]) -> bool:
    match = _STEP.fullmatch(name)
    waits = match and match[2] and name.replace("superseded", "partial") in names and name.removesuffix(match[2]) not in names
    return bool(match and (not match[2] or waits))


def _number(step: pathlib.Path) -> int:
    return int(_STEP.fullmatch(step.name)[1])
