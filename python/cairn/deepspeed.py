"""Makes DeepSpeed's saves atomic: after ``deepspeed.initialize()``, ``cairn.enable("deepspeed", engine)``.

The files keep DeepSpeed's names and format. DeepSpeed's engine hands over the state of one rank, already
partitioned by its optimizer, without a description of the whole. In another format only Cairn could read it,
and it would still be tied to the number of ranks. DeepSpeed's own loader, zero_to_fp32.py, ds_to_universal.py
and `cairn convert` read these files; a change of the number of ranks is an offline conversion. Cairn adds:

- Each rank writes into ``DIR/.cairn-partial/TAG`` and flushes its files to disk. Then rank 0 checks that the
  files of all ranks exist, seals them (``cairn seal``: a digest of every file) and publishes the directory as
  ``DIR/TAG`` (``cairn seal --publish``). Then DeepSpeed moves ``latest``. A crash before that leaves ``DIR``
  unchanged. An existing TAG is exchanged with the new one in one operation. If the file system cannot do that
  (NFS), the old one is kept in ``.cairn-partial`` during a rename; after a crash the next start restores it.
- If a rank cannot write, the save fails on all ranks with its error; the others do not hang in a barrier.
- ``engine.load_checkpoint`` compares the tag with its seal before it loads a byte, and skips broken tags.
"""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any, Optional

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.checkpoint_engine import checkpoint_engine as interface
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from cairn._command import CairnError, run
from cairn._enable import renamed
from cairn._errors import SaveFailed, rank_name

logger = logging.getLogger("cairn.deepspeed")

PARTIAL = ".cairn-partial"  # next to the tags; without a number in its name, no tool takes it for a step
SEAL = ".cairn-seal.json"
_METHODS = {"create", "save", "load", "commit"}


class NotWhole(CairnError):
    """A tag's files are not those that were sealed. The message names them."""


class CairnCheckpointEngine(TorchCheckpointEngine):
    """DeepSpeed calls this to write and read files. `use` installs it."""

    def __init__(self, zipfile_serialization: bool = True):
        interface.CheckpointEngine.__init__(self)
        self.name = "CairnCheckpointEngine"
        self.zipfile_serialization = zipfile_serialization
        self._directory = self._tag = ""
        self._fault: Optional[str] = None

    def create(self, info: Any) -> None:
        """Starts a save. Removes the files of an earlier unfinished one."""
        self._directory, self._tag, self._fault = os.path.abspath(info.save_dir), info.tag, None
        if info.tag != os.path.basename(info.tag) or info.tag.startswith("."):
            raise ValueError(f"the tag {info.tag!r}: give the name of a directory, without a dot before it")
        _on_rank_0(lambda: _clean(self._directory))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Does nothing: `save` makes the directories, which are elsewhere until the tag is published."""

    def save(self, state_dict: Any, path: str) -> None:
        """Writes a file. Keeps an error until `commit`, which reports it on all ranks."""
        try:
            place = self._place_of(path)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb") as file:
                torch.save(state_dict, file, _use_new_zipfile_serialization=self.zipfile_serialization)
                file.flush()
                os.fsync(file.fileno())
        except Exception as error:
            self._fault = self._fault or f"{path}: {type(error).__name__}: {error}"

    def commit(self, info: Any) -> bool:
        """Returns True when the tag is published and on disk. Otherwise raises SaveFailed on all ranks."""
        faults: list = [None] * dist.get_world_size()
        dist.all_gather_object(faults, self._fault and f"{rank_name(dist.get_rank())}: {self._fault}")
        _on_rank_0(lambda: _publish(self._directory, self._tag, faults))
        return True

    def _place_of(self, path: str) -> str:
        """The path to write a file to. Files next to the tags (save_16bit_model) are published with them."""
        within = os.path.relpath(os.path.abspath(path), self._directory)
        if within.startswith(os.pardir):
            raise ValueError(f"it is not in {self._directory}")
        return os.path.join(self._directory, PARTIAL, within)


def enable(engine: Any, *, check: str = "bytes") -> None:
    """Lets a DeepSpeed engine save and load through Cairn. Every rank calls it once, after
    deepspeed.initialize().

    check: how engine.load_checkpoint compares a tag with its seal. "bytes" reads every file again on rank 0;
    "sizes" compares names, sizes and times, and only reads files whose time has changed.
    Raises ValueError for a configuration that writes files without this engine, TypeError for an unknown
    version of DeepSpeed.
    """
    if check not in _CHECKS:
        raise ValueError(f"check is {check!r}; give one of {', '.join(_CHECKS)}")
    _refuse_unknown(engine)
    engine.checkpoint_engine = CairnCheckpointEngine(engine.checkpoint_engine.zipfile_serialization)
    load = engine.load_checkpoint

    def load_checkpoint(load_dir: str, tag: Optional[str] = None, *args: Any, **kwargs: Any) -> Any:
        if not engine.load_universal_checkpoint():
            tag = _on_rank_0(lambda: resumable(load_dir, tag, check))
        return load(load_dir, tag, *args, **kwargs)

    engine.load_checkpoint = load_checkpoint


use = renamed("use", enable)


def _refuse_unknown(engine: Any) -> None:
    version = f"DeepSpeed {deepspeed.__version__}"
    methods = set(interface.CheckpointEngine.__abstractmethods__)
    if methods != _METHODS or not hasattr(interface, "CheckpointCommitInfo"):
        raise TypeError(f"{version} saves in a way unknown to this version of Cairn, which supports 0.19")
    if isinstance(engine.checkpoint_engine, CairnCheckpointEngine):
        raise ValueError("cairn.enable has already been called for this engine")
    if type(engine.checkpoint_engine) is not TorchCheckpointEngine:
        chosen = type(engine.checkpoint_engine).__name__
        raise ValueError(
            f"the configuration chose {chosen}; remove 'checkpoint.writer' and 'datastates_ckpt' from it"
        )
    if engine.zero_nvme_offload_optimizer():
        raise ValueError(
            "DeepSpeed saves an optimizer on NVMe without its checkpoint engine; "
            "offload it to the CPU, or run cairn seal --watch instead"
        )
    if engine.use_node_local_storage():
        raise ValueError("with use_node_local_storage no rank can seal a tag, as none sees all its files")


def resumable(load_dir: str, tag: Optional[str] = None, check: str = "bytes") -> Optional[str]:
    """The tag to resume from: `tag`, or the tag that `latest` names, or else the newest whole tag.

    None if no tag exists. A tag without a seal (saved without Cairn) is used, with a warning.
    Raises NotWhole if the given tag, or every tag, differs from its seal.
    """
    directory = os.path.abspath(load_dir)
    _recover(directory)
    if tag is not None:
        return _checked(directory, tag, check)
    latest = _latest(directory)
    if latest is not None:
        try:
            return _checked(directory, latest, check)
        except (NotWhole, FileNotFoundError) as error:
            logger.warning("latest names %r, which is not whole (%s); using the newest whole", latest, error)
    newest = _newest(directory, check)
    if newest is None and latest is not None:
        raise NotWhole(f"{directory}: latest names {latest!r}, but no tag is whole; see cairn verify", 1)
    return newest


_CHECKS = {"bytes": ("--hash",), "sizes": ()}


def _latest(directory: str) -> Optional[str]:
    """The text of `latest`; None if it is missing. DeepSpeed writes in place: a crash may leave it empty."""
    try:
        return pathlib.Path(directory, "latest").read_text().strip()
    except FileNotFoundError:
        return None


def _checked(directory: str, tag: str, check: str) -> str:
    path = os.path.join(directory, tag)
    if not tag or not os.path.isdir(path):
        raise FileNotFoundError(f"{path}: no such tag")
    if not os.path.exists(os.path.join(path, SEAL)):
        logger.warning("%s has no seal, so it is loaded unchecked", path)
        return tag
    done = run(["seal", "--newest", *_CHECKS[check], path], check=False, capture=True)
    if done.returncode != 0:
        raise NotWhole(done.stderr.strip(), done.returncode)
    return tag


def _newest(directory: str, check: str) -> Optional[str]:
    if not os.path.isdir(directory):
        return None
    done = run(["seal", "--newest", *_CHECKS[check], directory], check=False, capture=True)
    return os.path.basename(done.stdout.strip()) if done.returncode == 0 else None


def _clean(directory: str) -> None:
    """Removes a save's remains below PARTIAL, after the tags that replaced them are on disk."""
    _recover(directory)
    partial, removed = os.path.join(directory, PARTIAL), os.path.join(directory, PARTIAL + "-removed")
    if os.path.isdir(removed):
        shutil.rmtree(removed)
    if os.path.isdir(partial):
        _sync(directory)
        os.rename(partial, removed)  # _recover must not restore a tag that is half removed
        shutil.rmtree(removed)


def _publish(directory: str, tag: str, faults: Sequence[Optional[str]]) -> None:
    """Seals and publishes the files in PARTIAL: a tag by an exchange, files next to the tags by a rename."""
    partial = os.path.join(directory, PARTIAL)
    if any(faults):
        _clean(directory)
        raise SaveFailed(f"{directory}: {tag} was not saved: " + "; ".join(filter(None, faults)), 2)
    for name in sorted(os.listdir(partial)) if os.path.isdir(partial) else ():
        new, place = os.path.join(partial, name), os.path.join(directory, name)
        if name != tag:
            os.replace(new, place)
            continue
        try:
            run(["seal", "--settle", "0", "--publish", place, new], capture=True)
        except CairnError as error:
            raise SaveFailed(str(error), error.status) from None
    _clean(directory)


def _recover(directory: str) -> None:
    """Restores each tag that `cairn seal --publish` had moved aside when it was killed."""
    aside = os.path.join(directory, PARTIAL, ".replaced")
    for tag in os.listdir(aside) if os.path.isdir(aside) else ():
        if not os.path.lexists(place := os.path.join(directory, tag)):
            os.rename(os.path.join(aside, tag), place)


def _sync(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _on_rank_0(do: Callable[[], Any]) -> Any:
    """Calls `do` on rank 0, and returns or raises its result on every rank."""
    answer: list = [None, None]
    if dist.get_rank() == 0:
        try:
            answer[0] = do()
        except Exception as error:
            answer[1] = error
    dist.broadcast_object_list(answer, src=0)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]
