"""Lists the steps of a run directory by name (ckpt/FORMAT.md). To find the newest whole one, open the run."""

from __future__ import annotations

import os
import pathlib
import re

_STEP = re.compile(r"step-([0-9]{8,})(\.superseded-[0-9a-f]+)?")


def steps(run: pathlib.Path) -> list[pathlib.Path]:
    """The committed steps, highest number first.

    Partial and retired steps have other names. So does a step that waits for the step that replaces it.
    """
    while run.is_dir():
        names = set(os.listdir(run))
        whole = [name for name in names if (run / name / "manifest.json").is_file()]
        numbers = {run / name: _number(name, names) for name in whole}
        if set(os.listdir(run)) == names:
            committed = (step for step in numbers if numbers[step] >= 0)
            return sorted(committed, key=numbers.__getitem__, reverse=True)
    return []


def _number(name: str, names: set[str]) -> int:
    """The number of a committed step; -1 for other names."""
    match = _STEP.fullmatch(name)
    if match is None:
        return -1
    aside = match[2] or ""
    waits = name.replace("superseded", "partial") in names and name.removesuffix(aside) not in names
    return int(match[1]) if not aside or waits else -1
