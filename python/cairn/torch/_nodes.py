"""Checkpoints that a framework's training keeps on its nodes, between those in the framework's directory.

The framework makes a directory of each checkpoint, such as DIRECTORY/checkpoint-500. Of every N, one is made
there as ever. The others are steps of the run DIRECTORY/.cairn-nodes, which has none itself: they are only on
the nodes. Each holds the framework's files, as bytes, and its state dicts, and names its base, which is the
newest checkpoint of the directory at that time. A start takes it only if that is still the newest: otherwise
another job has saved, or a checkpoint was removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import glob
import json
import logging
import os
import pathlib
import re
import shutil
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Optional, TypeVar, Union

import torch
import torch.distributed as dist

from cairn._errors import CorruptError, rank_name
from cairn._helper import absolute, helper
from cairn.torch import _job, _local
from cairn.torch._api import begin, fill, give_up_local
from cairn.torch._dtypes import TORCH_OF
from cairn.torch._options import Options, whole
from cairn.torch._planner import CairnLoadPlanner, CairnPlanner
from cairn.torch._reader import TorchOpened, read_whole

logger = logging.getLogger("cairn.torch")
RUN = ".cairn-nodes"
_NEVER = 2**62  # no save goes to the run
_FILES = "files"
_SCRATCH = ".cairn-files-"
_ELSEWHERE = ["nodes"]  # the training continues from no checkpoint of the directory
T = TypeVar("T")


class OtherTimeline(Exception):
    """The newest step on the nodes is not to be loaded. Without a message, no warning is needed."""


class NodeRun:
    """A run whose steps are only on the nodes, and a directory for files on each.

    Every rank makes the same calls. options: see Options. Raises ValueError for those that do not fit.
    """

    def __init__(self, run: str, **options: Any):
        self._options = Options(every=_NEVER, **options)
        self.run = run
        self._step = -1  # that `newest` has loaded
        self._scratch: Optional[_Scratch] = None

    def close(self) -> None:
        """Removes the files."""
        if self._scratch is not None:
            self._scratch.close()
        self._scratch = None

    def holds(self, path: Union[str, os.PathLike]) -> bool:
        """Whether it is in the directory for files."""
        return self._scratch is not None and os.fspath(path).startswith(self._scratch.make(""))

    def newest(self, load: Callable[[str, dict], T], otherwise: Optional[str]) -> Optional[T]:
        """What `load` returns for the newest step that the nodes can supply, once its bytes are verified.

        load: see _local.resume; raises OtherTimeline. None, with a warning that says why: the training
        continues from `otherwise`.
        """

        def first(step: str, peers: dict) -> T:
            self._step = step_of(step)
            return load(step, peers)

        self._step = -1
        try:
            return self._resume(first, verify=True)
        except (OtherTimeline, CorruptError, FileNotFoundError) as why:
            none_yet = isinstance(why, FileNotFoundError) and self._step < 0
            if str(why) and not none_yet and _rank() == 0:
                logger.warning("%s; continuing from %s", why, otherwise or "the start")
            return None

    def again(self, load: Callable[[str, dict], T]) -> T:
        """Loads more of that step. Raises CorruptError if it is lost, and then gives it up."""

        def same(step: str, peers: dict) -> T:
            if step_of(step) != self._step:
                raise OtherTimeline(f"step {self._step} is damaged")
            return load(step, peers)

        try:
            return self._resume(same)
        except (OtherTimeline, CorruptError) as why:
            give_up_local(self.run, str(why))
            raise CorruptError(f"{self.run}: {why}; it is given up, so start again", 1) from None

    def _nonce(self) -> str:
        return _job.session.nonce(0, self._options.seconds)

    def _make_scratch(self, word: str) -> _Scratch:
        """word: the directory's name. Ranks of one node that give the same word share it."""
        assert self._options.level is not None
        parent = self._options.level.directory.replace("{rank}", str(_rank()))
        self._scratch = _Scratch(parent, word)
        return self._scratch

    def _resume(self, load: Callable[[str, dict], T], verify: bool = False) -> T:
        level = self._options.level
        assert level is not None
        loaded = _local.resume(self.run, level, self._options.seconds, load, verify)
        _local.saved_elsewhere(helper(), self.run)
        return loaded


class NodeSteps(NodeRun):
    """The checkpoints of one directory. Every rank makes the same calls.

    proof: a file of each checkpoint, which rank 0 writes last. tracker: in place of it, a file of DIRECTORY
    that names its newest checkpoint. run: in place of DIRECTORY/.cairn-nodes. options: as those of NodeRun.
    """

    def __init__(
        self,
        directory: str,
        proof: str = "",
        *,
        tracker: str = "",
        local: Any,
        every: Any = 0,
        run: str = "",
        **options: Any,
    ):
        if whole("every", every, "a number, at least 2") < 2:
            raise ValueError(f"every={every}: at least 2; the nodes get all but each Nth checkpoint")
        super().__init__(run or os.path.join(absolute(directory), RUN), local=local, **options)
        self._directory, self._proof, self._tracker = absolute(directory), proof, tracker
        self._every = every
        self._made = 0  # on the nodes, since the last one in the directory
        self._at: Optional[list] = None  # what the training continues from; on rank 0
        self._parts: dict[str, dict] = {}
        self._own: dict[str, Any] = {}  # by file: tensors to be saved, or the entries of those in `_opened`
        self._opened: Optional[TorchOpened] = None

    def save(
        self,
        name: str,
        write: Callable[[Optional[str]], T],
        last: bool = False,
        step: Optional[int] = None,
    ) -> T:
        """Makes the checkpoint DIRECTORY/NAME, there or on the nodes, and returns what `write` does.

        write: makes the framework's files in the directory that it is given, and calls `take` for the state
        dicts; or, given None, makes DIRECTORY/NAME. It may be called twice. last: make it in the directory.
        step: of the training; by default the number at the end of NAME.
        """
        step = step_of(name) if step is None else step
        if (base := self._base(name, last or step < 0)) is not None:
            if made := self._on_nodes(name, step, base[0], write):
                self._made += 1
                return made[0]
        result = write(None)
        self._made, self._at = 0, self._identity(name)
        _local.saved_elsewhere(helper(), self.run)
        return result

    def take(self, part: str, state_dict: dict) -> None:
        """Adds a state dict to the step that is being saved. It must not change before `save` ends."""
        self._parts[part] = state_dict

    def take_own(self, file: str, tensors: list[torch.Tensor]) -> None:
        """Adds tensors that only this rank has, in place of a file of the checkpoint. See `take`."""
        self._own[file] = {str(number): tensor for number, tensor in enumerate(tensors)}

    def read_own(self, file: str) -> list[torch.Tensor]:
        """What `take_own` had been given on any rank, while `start` calls `read`. Raises CorruptError."""
        assert self._opened is not None
        saved = [entry for _, entry in sorted(self._own[file].items())]
        made = [torch.empty(entry.shape, dtype=TORCH_OF[entry.dtype]) for entry in saved]
        read_whole(self._opened, [(entry.number, tensor) for entry, tensor in zip(saved, made)])
        self._opened.check()
        return made

    def start(
        self,
        name: Optional[str],
        explicit: bool = False,
        read: Callable[[str], Any] = lambda directory: None,
    ) -> Optional[str]:
        """A directory with the files of the newest step on the nodes, if the training is to continue from it.

        `fill` loads its state dicts; call `close` when the files were read. None: continue from `name`, which
        is what the framework would load. explicit: the user has named it, so it is loaded if it exists.
        read: called with the directory on all ranks, where files of `take_own` are empty, for `read_own`.
        """
        self.close()
        nonce = self._nonce()
        self._at = self._identity(name) if name else None
        goes_back = explicit and os.path.lexists(os.path.join(self._directory, name or ""))
        word = json.dumps([self._newest(), goes_back, os.path.isdir(self.run)])
        word = _job.agree(f"cairn.torch/start/{nonce}", word, self._options.seconds)
        newest, goes_back, any_steps = json.loads(word)
        if goes_back or not any_steps:
            return None
        self._make_scratch(nonce)
        place = None
        try:
            place = self.newest(
                lambda step, peers: self._open(step, peers, newest, explicit and name, read), otherwise=name
            )
        finally:
            if place is None:
                self.close()
        if place is not None:
            self._at = _ELSEWHERE
        return place

    def fill(self, part: str, state_dict: dict) -> None:
        """Loads what `take` had been given. Raises as `again`."""
        self.again(lambda step, peers: fill({part: state_dict}, step, False, CairnLoadPlanner(), peers))

    def close(self) -> None:
        """Removes the files that `save` was making, or `start` has put there."""
        super().close()
        self._parts, self._own = {}, {}

    def _identity(self, name: str) -> Optional[list]:
        """Another one if the checkpoint is made again. None if it is not whole."""
        if self._tracker:
            newest = self._newest()
            return newest if newest and newest[0] == name else None
        with contextlib.suppress(OSError):
            proof = os.stat(os.path.join(self._directory, name, self._proof))
            return [name, proof.st_mtime_ns, proof.st_size]
        return None

    def _newest(self) -> Optional[list]:
        """The identity of the checkpoint that was made last."""
        if self._tracker:
            tracker = pathlib.Path(self._directory, self._tracker)
            with contextlib.suppress(FileNotFoundError):
                return [tracker.read_text().strip(), tracker.stat().st_mtime_ns, tracker.stat().st_size]
            return None
        names = os.listdir(self._directory) if os.path.isdir(self._directory) else []
        return max(filter(None, map(self._identity, names)), key=lambda found: found[1], default=None)

    def _base(self, name: str, last: bool) -> Optional[list]:
        """[the step's base] if the checkpoint is for the nodes, as rank 0 decides."""
        self.close()
        level, seconds, nonce = self._options.level, self._options.seconds, self._nonce()
        if level is None or not _local.opened(helper(), self.run, level, nonce, seconds):
            return None
        word = ""
        if _rank() == 0:
            newest, exists = self._newest(), os.path.lexists(os.path.join(self._directory, name))
            due = self._made + 1 >= self._every or newest != self._at
            word = "" if due or last or exists else json.dumps([newest])
        word = _job.agree(f"cairn.torch/nodes/{nonce}", word, seconds)
        return json.loads(word) if word else None

    def _on_nodes(
        self, name: str, step: int, base: Optional[list], write: Callable[[Optional[str]], T]
    ) -> list[T]:
        """The result of `write`; empty if the step was not saved."""
        scratch = self._make_scratch(f"{self._nonce()}-{_rank()}")
        made: list[T] = []

        def commit() -> None:
            told = {"name": name, "base": base, "parts": sorted(self._parts)}
            options = dataclasses.replace(self._options, state={"checkpoint": told})
            state = {**self._parts, _FILES: {f"rank-{_rank()}": {**scratch.tensors(name), **self._own}}}
            begin(state, self.run, step, options, CairnPlanner(_holders), (), log=False).result()

        try:
            wrote = _all_do(lambda: made.append(write(scratch.make(name))))
            return made if wrote and _all_do(commit) else []
        finally:
            self.close()

    def _open(
        self, step: str, peers: dict, newest: Optional[list], name: Any, read: Callable[[str], Any]
    ) -> str:
        """Puts the files of this rank, and those of rank 0, into the scratch directory of the node."""
        assert self._scratch is not None
        with contextlib.closing(TorchOpened(step, local=peers or None)) as opened:
            told = opened.state["checkpoint"]
            if told["base"] != newest:
                after, now = (found[0] if found else "no checkpoint" for found in (told["base"], newest))
                raise OtherTimeline(f"{told['name']} on the nodes follows {after}, but the newest is {now}")
            if name and told["name"] != name:
                raise OtherTimeline(f"{name} is not on the nodes, which have {told['name']}")
            place = self._scratch.make(told["name"])
            for part in told["parts"]:
                self._scratch.make(f"{told['name']}/{part}")
            with self._scratch.locked():
                self._own = _put(opened, [f"rank-{rank}" for rank in (0, _rank())], place)
            self._opened = opened
            try:
                read(place)
            finally:
                self._opened = None
            return place


class _Scratch:
    """A directory for files. The last process that has it open removes it, or else a later one."""

    def __init__(self, parent: str, word: str):
        os.makedirs(parent, exist_ok=True)
        for left in glob.glob(f"{glob.escape(parent)}/{_SCRATCH}*"):
            self._remove(left)
        self._root, self._held = os.path.join(parent, _SCRATCH + word), -1
        while self._held < 0:
            os.makedirs(self._root, exist_ok=True)
            self._held = _locked(self._root, fcntl.LOCK_SH)
        self.close = weakref.finalize(self, self._release, self._root, self._held)  # at the latest at exit

    @staticmethod
    def _release(root: str, held: int) -> None:
        os.close(held)
        _Scratch._remove(root)

    @staticmethod
    def _remove(root: str) -> None:
        if (held := _locked(root, fcntl.LOCK_EX | fcntl.LOCK_NB)) >= 0:
            shutil.rmtree(root, ignore_errors=True)
            os.close(held)

    def make(self, name: str) -> str:
        os.makedirs(place := os.path.join(self._root, name), exist_ok=True)
        return place

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time."""
        with open(os.path.join(self._root, "lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        place = pathlib.Path(self._root, name)
        files = (file for file in sorted(place.rglob("*")) if file.is_file())
        return {str(file.relative_to(place)): _mapped(file) for file in files}


def _locked(directory: str, how: int) -> int:
    """A descriptor that holds the directory's lock; -1 if the lock is held, or the directory was removed."""
    with contextlib.suppress(OSError):
        held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(held, how)
            if os.path.samestat(os.fstat(held), os.stat(directory)):
                return held
        except OSError:
            pass
        os.close(held)
    return -1


def _mapped(file: Union[str, os.PathLike], shared: bool = False) -> torch.Tensor:
    if size := os.stat(file).st_size:
        return torch.from_file(str(file), shared, size, dtype=torch.uint8)
    return torch.empty(0, dtype=torch.uint8)


def _put(opened: TorchOpened, owners: list[str], place: str) -> dict[str, dict]:
    """Writes the files of these ranks that the node lacks, and empty ones for `take_own` of all ranks.

    Returns the entries of the latter, by file and number. Raises CorruptError.
    """
    own: dict[str, dict] = {}
    for fqn, saved in opened.tensors.items():
        path = opened.texts(fqn)
        if path[0] == _FILES and len(path) == 4:
            own.setdefault(path[2], {})[int(path[3])] = saved
            continue
        if path[0] != _FILES or path[1] not in owners or os.path.exists(file := os.path.join(place, path[2])):
            continue
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(part := f"{file}.part", "wb") as out:
            if saved.nbytes:  # a full disk is an error here, and no SIGBUS below
                os.posix_fallocate(out.fileno(), 0, saved.nbytes)
        read_whole(opened, [(saved.number, _mapped(part, shared=True))])
        opened.check()
        os.rename(part, file)
    for name in own:
        pathlib.Path(place, name).touch()
    return own


def _holders(fqn: str) -> Optional[list[int]]:
    return [_rank()] if fqn.startswith(f"{_FILES}.") else None


def _rank() -> int:
    return _job.rank_and_world()[0]


def step_of(name: str) -> int:
    """The number at the end of a name; -1 for a name without one."""
    found = re.search(r"[0-9]+$", name)
    return int(found.group()) if found else -1


def _all_do(do: Callable[[], Any]) -> bool:
    """Calls it, and returns whether it has succeeded on all ranks."""
    fault = None
    try:
        do()
    except Exception as error:
        fault = str(error) if "rank " in str(error) else f"{rank_name(_rank())}: {error}"
    faults: list = [fault]
    if _job.in_a_job():
        faults = [None] * dist.get_world_size()
        dist.all_gather_object(faults, fault)
    if any(faults) and _rank() == 0:
        logger.warning("not saved on the nodes, so it goes to the directory: %s", next(filter(None, faults)))
    return not any(faults)
