"""Steps of a run directory by their names (ckpt/FORMAT.md). To find the one that a run means, open the run."""

from __future__ import annotations

import pathlib
import re

_STEP = re.compile(r"step-[0-9]{8,}")


def steps(run: pathlib.Path) -> list[pathlib.Path]:
    """The committed steps, the highest number first. A partial or retired one has another name."""
    if not run.is_dir():
        return []
    found = [entry for entry in run.iterdir() if _STEP.fullmatch(entry.name) and (entry / "manifest.json").is_file()]
    return sorted(found, key=lambda step: int(step.name.removeprefix("step-")), reverse=True)
