"""Megatron's non-persistent checkpoints, kept on the nodes: `cairn.megatron` and `cairn.bridge` call this.

Megatron-LM and Megatron Bridge save these into a directory of their own, with a tracker and a directory of
each iteration, and a load takes the newer of that and the persistent checkpoint. Here that directory is on
each node and has only Megatron's small files. The tensors, and a copy of these files, are a step of the run
SAVE/.cairn-nodes, which has none itself: they are only on the nodes. Before Megatron looks for a checkpoint,
every rank gets the files of the newest step that the nodes can supply, once all its bytes are verified. If
the nodes cannot supply any, Megatron finds no file there and loads its persistent checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import secrets
from collections.abc import Callable
from typing import Any, Optional, TypeVar

from megatron.core.dist_checkpointing.core import CheckpointingConfig
from megatron.core.dist_checkpointing.mapping import ShardedObject

from cairn._errors import CorruptError, NotSupported
from cairn._helper import absolute, helper
from cairn._steps import steps
from cairn.torch import _job, _local
from cairn.torch._nodes import RUN, NodeRun, OtherTimeline
from cairn.torch._reader import TorchOpened
from cairn.torch._saving import Save

T = TypeVar("T")
_TRACKER = "latest_checkpointed_iteration.txt"
_STATE = "train_state.pt"  # Bridge's: the tracker is a copy of it
_TOKEN = "nodes"  # in the state of a persistent step: steps on the nodes name it as their base
_FILES = ShardedObject("cairn/files", None, (1,), (0,))
FILES = _FILES.unique_key  # in a step on the nodes: Megatron's files by name, as bytes


class Nodes(NodeRun):
    """The non-persistent checkpoints of one training.

    options: see NodeRun. Raises ValueError for those that do not fit.
    """

    def __init__(self, **options: Any):
        if "every" in options:
            raise ValueError("every: Megatron's non-persistent-save-interval decides this; leave it out")
        super().__init__("", **options)
        self._save = ""
        self._place: Optional[str] = None  # of Megatron's directory on this node
        self._token = ""  # of the persistent step whose save this process has begun last
        self._found: Optional[TorchOpened] = None
        self.beside: dict[str, bytes] = {}  # files of the next step that Bridge writes after it; on rank 0

    def take(self, config: Any) -> None:
        """Makes Megatron's arguments, or Bridge's configuration, name a directory on this node.

        Raises NotSupported if they name another level, ValueError if there is no interval.
        """
        kind, place = config.non_persistent_ckpt_type, config.non_persistent_global_ckpt_dir
        if kind not in (None, "global") or place not in (None, self._place):
            given = f"non-persistent checkpoints of type {kind}" + (f" in {place}" if place else "")
            raise NotSupported(f"{given} together with local=: leave the type and the directory out", 2)
        if config.save is not None and not config.non_persistent_save_interval:
            raise ValueError("local= keeps the checkpoints of non-persistent-save-interval, which is not set")
        if config.save is None or not _job.in_a_job():
            return
        self._save, self.run = config.save, os.path.join(absolute(config.save), RUN)
        if self._scratch is None:
            self._place = self._make_scratch(self._nonce()).make("")
        config.non_persistent_ckpt_type, config.non_persistent_global_ckpt_dir = "global", self._place

    def token(self, directory: Any) -> dict:
        """What a persistent step in `directory` adds to its state; on rank 0."""
        if not self._save or pathlib.Path(directory).parent != pathlib.Path(self._save):
            return {}
        self._token = secrets.token_hex(8)
        _local.saved_elsewhere(helper(), self.run)
        return {_TOKEN: self._token}

    def begin(self, sharded_state_dict: dict, directory: Any, step: int, state: dict, log: bool) -> Save:
        """Begins the save of a step on the nodes, and adds all files of `directory` to the state dict."""
        self._leave()
        if _job.rank_and_world()[0] == 0:
            there = filter(pathlib.Path.is_file, pathlib.Path(directory).iterdir())
            files = {**{file.name: file.read_bytes() for file in there}, **self.beside}
            # The last persistent save may still be under way: if it fails, this step follows the one before.
            state = {**state, "bases": [*filter(None, [self._token]), self._newest()[1]]}
            sharded_state_dict[FILES] = dataclasses.replace(_FILES, data=files)
        return Save(self.run, step, dataclasses.replace(self._options, state=state), log)

    def find(self, config: Any) -> None:
        """Puts the files of the newest step into the directory, if it is newer than the checkpoint to load.

        Nothing is looked for if the user has named another iteration or directory.
        """
        self._leave()
        self.close()
        self.take(config)
        if self._scratch is None or config.ckpt_step or not config.load:
            return
        if absolute(config.load) != absolute(config.save):
            return
        told = json.dumps(self._newest()) if _job.rank_and_world()[0] == 0 else ""
        told = _job.agree(f"cairn.megatron/newest/{self._nonce()}", told, self._options.seconds)
        iteration, base = json.loads(told)

        def look(step: str, peers: dict) -> dict:
            self._leave()
            self._found = TorchOpened(step, local=peers or None)
            if self._found.step <= iteration:
                raise OtherTimeline
            if base not in self._found.state["bases"]:
                step = f"iteration {self._found.step} on the nodes"
                raise OtherTimeline(f"{step} does not follow the newest checkpoint")
            return self._found.value(FILES, False)

        files = self.newest(look, f"iteration {iteration}" if base else None)
        if files is None:
            self._leave()
        else:
            self._put(files)

    def _put(self, files: dict) -> None:
        """Writes what Megatron reads. Other ranks of the node do the same."""
        assert self._found is not None and self._place is not None
        place = pathlib.Path(self._place, f"iter_{self._found.step:07}")
        place.mkdir(exist_ok=True)
        whole = {f"{place.name}/{name}": data for name, data in files.items()}
        metadata = dataclasses.asdict(CheckpointingConfig("cairn", 1))
        whole[f"{place.name}/metadata.json"] = json.dumps(metadata).encode()
        whole[_TRACKER] = str(self._found.step).encode()
        if _STATE in files:
            whole[f"latest_{_STATE}"] = files[_STATE]
        for name, data in whole.items():
            partial = pathlib.Path(self._place, f"{name}.{os.getpid()}")
            partial.write_bytes(data)
            partial.replace(place.parent / name)

    def opened(self, directory: Any) -> Optional[TorchOpened]:
        """The step that was found, for its names and shapes. Only `load` reads its tensors."""
        return self._found if self.holds(directory) else None

    def load(self, read: Callable[[TorchOpened], T]) -> T:
        """Reads the step that was found, on all ranks or on none. Raises as `again`."""

        def again(step: str, peers: dict) -> T:
            with contextlib.closing(TorchOpened(step, local=peers or None)) as opened:
                return read(opened)

        return self.again(again)

    def _leave(self) -> None:
        """Closes the step that was found."""
        if self._found is not None:
            self._found.close()
        self._found = None

    def _newest(self) -> tuple[int, str]:
        """Returns the iteration and the mark of the newest persistent checkpoint, or (-1, "") without one.

        No two checkpoints have the same mark. A checkpoint that is saved again gets another one.
        """
        with contextlib.suppress(FileNotFoundError):
            iteration = pathlib.Path(self._save, _TRACKER).read_text().strip()
            name = f"iter_{int(iteration):07}" if iteration.isdigit() else iteration
            directory = pathlib.Path(self._save, name)
            for step in steps(directory)[:1]:
                with contextlib.suppress(CorruptError), contextlib.closing(TorchOpened(step)) as opened:
                    if token := opened.state.get(_TOKEN):
                        return opened.step, token
            proof = (directory / "metadata.json").stat()
            return int(iteration) if iteration.isdigit() else 0, f"{proof.st_ino} {proof.st_mtime_ns}"
        return -1, ""
