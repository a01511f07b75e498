"""Removes old steps of a run: the newest stay, and only what a Cairn step consists of goes. docs/deletion.md has the rules.

The same rules as ckpt/run/deletion.h, for trainings in Python whose framework has a setting like "keep the latest k".
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import Optional

from cairn._steps import number, steps

logger = logging.getLogger("cairn")


def keep_newest(run: pathlib.Path, count: int) -> list[pathlib.Path]:
    """Removes all committed steps of `run` but its `count` newest, and returns what went. What may not go stays and is named in the log.

    The caller has seen that the newest one opens. Raises OSError.
    """
    removed = []
    with _deletion_lock(run) as locked:
        for step in steps(run)[max(count, 1) :] if locked else []:
            if (refusal := _refusal(run, step)) is not None:
                logger.warning("%s stays: %s", step, refusal)
                continue
            _remove(step)
            removed.append(step)
    return removed


@contextlib.contextmanager
def _deletion_lock(run: pathlib.Path) -> Iterator[bool]:
    """False where another process removes steps of this run: the next save tries again."""
    fd = os.open(run / ".deletion.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(fd)


def _refusal(run: pathlib.Path, step: pathlib.Path) -> Optional[str]:
    """Why the step may not go; None where it may."""
    if step.is_symlink():
        return "it is a link; remove the link and what it leads to by hand"
    try:
        manifest = json.loads((step / "manifest.json").read_text())
        identity = json.loads((run / ".run").read_text())["run"]
        ours = manifest["format"] == "cairn" and manifest["run"] == identity and manifest["step"] == number(step)
    except (ValueError, KeyError, TypeError, OSError) as error:
        return f"its manifest or the run's identity cannot be read ({error})"
    if not ours:
        return "its manifest is another run's"
    if "shards" in manifest or any((run / "held").glob(f"{step.name}.*")):
        return "a virtual step uses its shards, or it is one"
    parts = _parts(manifest)
    if foreign := [entry.name for entry in os.scandir(step) if entry.name not in parts or not entry.is_file(follow_symlinks=False)]:
        return f"{', '.join(sorted(foreign))} is not part of it; move that away"
    return None


def _parts(manifest: dict) -> set:
    """The names of all files of a step."""
    return {"manifest.json", *(file["name"] for file in manifest["files"])}


def _remove(step: pathlib.Path) -> None:
    """Renames it first, durably, so that a step that is half gone is never taken for a whole one. A file that arrives meanwhile stays there."""
    parts = _parts(json.loads((step / "manifest.json").read_text()))
    aside = step.with_name(f"{step.name}.deleting-{secrets.token_hex(8)}")
    step.rename(aside)
    _fsync(step.parent)
    for name in parts:
        (aside / name).unlink(missing_ok=True)
    aside.rmdir()


def _fsync(directory: pathlib.Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
