"""Steps of a run by their names and the order of their commits (ckpt/FORMAT.md, ckpt/run/branch.h)."""

from __future__ import annotations

import json
import pathlib
import re

_STEP = re.compile(r"step-[0-9]{8,}")


def steps(run: pathlib.Path) -> list[pathlib.Path]:
    """The current steps of a run directory, the newest first: without those that are superseded since the training went back.

    A partial or retired step, or one that was saved again, has another name. A step whose manifest cannot be read is current.
    """
    if not run.is_dir():
        return []
    found = [entry for entry in run.iterdir() if _STEP.fullmatch(entry.name) and (entry / "manifest.json").is_file()]
    known = {step: branches for step in found if (branches := branches_of(step)) is not None}
    newest = max(known.items(), key=lambda one: (len(one[1]), number(one[0])), default=None)
    current = [step for step in found if newest is None or step not in known or not is_superseded(number(step), known[step], newest[1])]
    return sorted(current, key=number, reverse=True)


def branches_of(step: pathlib.Path) -> list[int] | None:
    """The first step of each branch up to this step, oldest first; None if its manifest cannot be read."""
    try:
        return list(json.loads((step / "manifest.json").read_bytes()).get("branches", []))
    except (OSError, ValueError, AttributeError, TypeError):
        return None


def is_superseded(step: int, branches: list[int], newest: list[int]) -> bool:
    """Whether a branch of the newest step began after `step` was committed, at its number or before. The lists are branches_of()."""
    return any(first <= step for first in newest[len(branches) :])


def number(step: pathlib.Path) -> int:
    """The step's, from its directory's name. Raises ValueError for another name."""
    return int(step.name.removeprefix("step-"))
