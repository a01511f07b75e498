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
- With ``local=``, most tags are not in ``DIR``, but only on the nodes: `cairn.torch._nodes.NodeSteps`. There
  each file is a pickle without its tensors, and these tensors.
"""

from __future__ import annotations

import io
import logging
import os
import pathlib
import pickle
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
from cairn._errors import NotSupported, SaveFailed, rank_name
from cairn.torch._nodes import NodeSteps

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
        self.nodes: Optional[NodeSteps] = None  # if it saves on the nodes, or loads from them

    def create(self, info: Any) -> None:
        """Starts a save. Removes the files of an earlier unfinished one."""
        self._directory, self._tag, self._fault = os.path.abspath(info.save_dir), info.tag, None
        if info.tag != os.path.basename(info.tag) or info.tag.startswith("."):
            raise ValueError(f"the tag {info.tag!r}: give the name of a directory, without a dot before it")
        if self.nodes is None:
            _on_rank_0(lambda: _clean(self._directory))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Does nothing: `save` makes the directories, which are elsewhere until the tag is published."""

    def save(self, state_dict: Any, path: str) -> None:
        """Writes a file. Keeps an error until `commit`, which reports it on all ranks."""
        try:
            if self.nodes is not None:
                return self.nodes.take_own(os.path.basename(path), _taken_apart(state_dict))
            place = self._place_of(path)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb") as file:
                torch.save(state_dict, file, _use_new_zipfile_serialization=self.zipfile_serialization)
                file.flush()
                os.fsync(file.fileno())
        except Exception as error:
            self._fault = self._fault or f"{path}: {type(error).__name__}: {error}"

    def preserves_storage_sharing(self) -> bool:
        """Whether DeepSpeed is to clone what it saves: torch.save would save the whole memory of a view."""
        return self.nodes is None

    def load(self, path: str, map_location: Any = None) -> Any:
        """Reads a file: of the nodes on the CPU, where DeepSpeed wants it."""
        if self.nodes is not None and self.nodes.holds(path) and os.path.exists(path):
            return _Unpickler(self.nodes.read_own(os.path.basename(path))).load()
        return super().load(path, map_location)

    def commit(self, info: Any) -> bool:
        """Returns True when the tag is published and on disk. Otherwise raises SaveFailed on all ranks."""
        faults: list = [None] * dist.get_world_size()
        dist.all_gather_object(faults, self._fault and f"{rank_name(dist.get_rank())}: {self._fault}")
        if self.nodes is None:
            _on_rank_0(lambda: _publish(self._directory, self._tag, faults))
        elif any(faults):
            raise SaveFailed("; ".join(filter(None, faults)), 2)
        return True

    def _place_of(self, path: str) -> str:
        """The path to write a file to. Files next to the tags (save_16bit_model) are published with them."""
        within = os.path.relpath(os.path.abspath(path), self._directory)
        if within.startswith(os.pardir):
            raise ValueError(f"it is not in {self._directory}")
        return os.path.join(self._directory, PARTIAL, within)


def enable(engine: Any, *, check: str = "bytes", local: Any = None, **options: Any) -> None:
    """Lets a DeepSpeed engine save and load through Cairn. Every rank calls it once, after
    deepspeed.initialize().

    check: how engine.load_checkpoint compares a tag with its seal. "bytes" reads every file again on rank 0;
    "sizes" compares names, sizes and times, and only reads files whose time has changed.
    local, every, redundancy, keep_local: with local=DIR, one of `every` tags is saved in its directory, and
    the others stay on the nodes, where engine.load_checkpoint finds them. A tag goes to the directory, too,
    with engine.save_checkpoint(..., local=False), which the last save of a training should have, and with
    save_latest=False.
    Raises ValueError for a configuration that writes files without this engine and for options that do not
    fit, TypeError for an unknown version of DeepSpeed.
    """
    if check not in _CHECKS:
        raise ValueError(f"check is {check!r}; give one of {', '.join(_CHECKS)}")
    _refuse_unknown(engine)
    level = {"local": local, **options} if local is not None or options else {}
    tags = _Tags(engine, level) if level else None
    engine.checkpoint_engine = CairnCheckpointEngine(engine.checkpoint_engine.zipfile_serialization)
    load = engine.load_checkpoint

    def load_checkpoint(load_dir: str, tag: Optional[str] = None, *args: Any, **kwargs: Any) -> Any:
        if not engine.load_universal_checkpoint():
            if tags is not None and (loaded := tags.load(load_dir, tag, *args, **kwargs)):
                return loaded
            tag = _on_rank_0(lambda: resumable(load_dir, tag, check))
        return load(load_dir, tag, *args, **kwargs)

    engine.load_checkpoint = load_checkpoint
    if tags is not None:
        engine.save_checkpoint = tags.save


use = renamed("use", enable)


class _Tags:
    """The tags of an engine that keeps most of them on the nodes. Raises ValueError for its options."""

    def __init__(self, engine: Any, options: dict):
        NodeSteps("", **options)
        self._engine, self._options = engine, options
        self._save, self._load = engine.save_checkpoint, engine.load_checkpoint
        self._known: dict[str, NodeSteps] = {}

    def save(
        self,
        save_dir: str,
        tag: Optional[str] = None,
        client_state: Optional[dict] = None,
        save_latest: bool = True,
        *args: Any,
        local: bool = True,
        **kwargs: Any,
    ) -> bool:
        """Replaces engine.save_checkpoint. It saves in the directory if `local` or `save_latest` is False."""
        client, step = client_state or {}, self._engine.global_steps
        tag = f"global_step{step}" if tag is None else str(tag)

        def write(place: Optional[str]) -> bool:
            if place is not None:
                return self._on_nodes(nodes, self._save, place, client, False, *args, **kwargs)
            return self._save(save_dir, tag, client, save_latest, *args, **kwargs)

        if not (save_dir and save_latest):
            return write(None)
        nodes = self._nodes(save_dir)
        return nodes.save(tag, write, last=not local, step=step)

    def load(self, load_dir: str, tag: Optional[str], *args: Any, **kwargs: Any) -> Optional[tuple]:
        """Loads a tag of the nodes, if the training is to continue from it, and returns the engine's answer.

        None: continue from the directory. Raises NotSupported.
        """
        nodes = self._nodes(load_dir)
        loaded: list = []

        def read(place: str) -> None:
            states = kwargs.get("load_optimizer_states", args[1] if len(args) > 1 else True)
            if not states and self._engine.zero_optimization_partition_weights():
                why = "ZeRO 3 without the optimizer's states reads files, which a tag on the nodes has not"
                raise NotSupported(f"{load_dir}: {why}; name a tag of the directory", 2)
            loaded.append(self._on_nodes(nodes, self._load, place, *args, **kwargs))

        try:
            name = _latest(os.path.abspath(load_dir)) if tag is None else tag
            return loaded[-1] if nodes.start(name, tag is not None, read) is not None else None
        finally:
            nodes.close()

    def _nodes(self, directory: str) -> NodeSteps:
        place = os.path.abspath(directory)
        if place not in self._known:
            self._known[place] = NodeSteps(place, tracker="latest", **self._options)
        return self._known[place]

    def _on_nodes(self, nodes: NodeSteps, do: Callable, place: str, *args: Any, **kwargs: Any) -> Any:
        files = self._engine.checkpoint_engine
        files.nodes = nodes
        try:
            return do(os.path.dirname(place), os.path.basename(place), *args, **kwargs)
        finally:
            files.nodes = None


class _Pickler(pickle.Pickler):
    """Collects the tensors in place of pickling them."""

    def __init__(self, file: io.BytesIO):
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> Optional[tuple[int, bool]]:
        if type(value) is not torch.Tensor:
            return None
        number = self._numbers.setdefault(id(value), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(value)
        return number, value.requires_grad


def _taken_apart(value: Any) -> list[torch.Tensor]:
    """[the bytes of a pickle, the tensors that it lacks...]"""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    data = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
    return [data, *(tensor.detach() for tensor in pickler.tensors)]


class _Unpickler(pickle.Unpickler):
    """The opposite of _taken_apart. As DeepSpeed's own loader, it trusts the pickle."""

    def __init__(self, parts: list[torch.Tensor]):
        super().__init__(io.BytesIO(parts[0].numpy().tobytes()))
        self._tensors = parts[1:]

    def persistent_load(self, which: tuple[int, bool]) -> torch.Tensor:
        number, requires_grad = which
        return self._tensors[number].requires_grad_(requires_grad)


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
