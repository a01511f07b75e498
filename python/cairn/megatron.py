"""Lets Megatron-Core save and load its sharded state dicts with Cairn.

It has strategies for ``megatron.core.dist_checkpointing``, and `enable` for Megatron-LM.

A directory ``iter_0000100`` holds ``metadata.json`` and ``common.pt``, as Megatron writes them, and
``step-00000100``, a step of Cairn with everything else. Each element is written once, by the rank that
Megatron's own rule (`replica_id`) selects. `dist_checkpointing.load` recognises the directory, a load may use
any TP, PP and number of ranks that Megatron-Core's sharded state dicts allow, and every verb of the suite
reads it. Objects are JSON if that is exact. Others are pickles, which torch's restricted unpickler loads with
the classes that Megatron allows.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import functools
import hashlib
import io
import os
import pathlib
import pickle
import re
import tempfile
from collections.abc import Iterator
from typing import Any, Optional, Union

import megatron.core
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_outplace, nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.strategies import torch as theirs
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper

from cairn._boxes import Box, read_boxes
from cairn._enable import renamed
from cairn._errors import CorruptError, NotSupported
from cairn._megatron_layout import layout_of, take_common, with_prepended_axes
from cairn._megatron_nodes import FILES, Nodes
from cairn._steps import steps
from cairn.torch._device import buffer_of
from cairn.torch._dtypes import TORCH_OF
from cairn.torch._objects import PickleRefused
from cairn.torch._options import Options
from cairn.torch._planner import LoadMismatch
from cairn.torch._reader import TorchOpened, box_of
from cairn.torch._saving import Save, SaveHandle

BACKEND = "cairn"  # in metadata.json: a Megatron without Cairn reports it as unknown
COMMON = "common.pt"
_LEVEL = ("local", "every", "redundancy", "keep_local")
_KNOWN = ((0, 16), (0, 20))  # the first and the last tested version of Megatron-Core

Path = Union[str, os.PathLike]


def _version() -> tuple[int, int]:
    """Megatron-Core's version. Raises NotSupported for an untested one."""
    text = megatron.core.__version__
    major, minor = (int(part) for part in text.split(".")[:2])
    if not _KNOWN[0] <= (major, minor) <= _KNOWN[1]:
        raise NotSupported(f"cairn.megatron supports Megatron-Core 0.16 to 0.20; this is {text}", 2)
    return major, minor


_VERSION = _version()
_nodes: Optional[Nodes] = None


class CairnSaveStrategy(theirs.TorchDistSaveShardedStrategy):
    """``dist_checkpointing.save(state, directory, sharded_strategy=CairnSaveStrategy())``

    It works with async_sharded_save too. The number at the end of the directory's name is the step's.
    compress, deadline: see cairn.torch.Options. Other arguments of Megatron's are accepted and ignored.
    """

    def __init__(self, *_: Any, compress: bool = False, deadline: float = 600.0, **__: Any):
        super().__init__(BACKEND, 1)
        self._compress = compress
        self._deadline = deadline

    def save(self, sharded_state_dict: dict, checkpoint_dir: Path) -> None:
        """Returns when the step is committed. Raises the errors of cairn.torch.save."""
        self._begin(sharded_state_dict, checkpoint_dir, log=False).result()

    def async_save(
        self, sharded_state_dict: dict, checkpoint_dir: Path, async_strategy: str = "mcore"
    ) -> Any:
        """Returns a request for Megatron's queue when the tensors are copied. Cairn's helper writes them."""
        handle = self._begin(sharded_state_dict, checkpoint_dir)
        handle.wait_staged()
        running = _Running(handle)
        return _async_request_class(async_strategy)(_wait_for, (running.path,), [running.finish])

    def _begin(self, sharded_state_dict: dict, directory: Path, log: bool = True) -> SaveHandle:
        state, step = self._state(sharded_state_dict, directory), _step_of(directory)
        if _nodes is not None and _nodes.holds(directory):
            save = _nodes.begin(sharded_state_dict, directory, step, state, log)
        else:
            options = Options(compress=self._compress, deadline=self._deadline, state=state)
            save = Save(directory, step, options, log, events=False)
        try:
            return save.hand_over(save.stage(layout_of(sharded_state_dict)))
        except BaseException as error:
            save.abort(error)
            raise

    @staticmethod
    def _state(sharded_state_dict: dict, directory: Path) -> dict:
        """The step's record of common.pt. Since 0.19 Megatron puts its content into the state dict."""
        if dist.get_rank() != 0:
            return {}
        common = pathlib.Path(directory, COMMON)
        if (given := take_common(sharded_state_dict)) is not None:
            partial = common.with_name(f".{COMMON}.partial")
            with open(partial, "wb") as file:
                torch.save(given.data, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, common)  # an iteration that is saved again has a whole one at any moment
        with open(common, "rb") as file:
            os.fsync(file.fileno())
        token = {} if _nodes is None else _nodes.token(directory)
        return {COMMON: _digest(common), "mesh": _mesh(), **token}


def _mesh() -> str:
    """Megatron's layout of the ranks, for people; "4 ranks" if model parallelism is not initialized."""
    if not parallel_state.model_parallel_is_initialized():
        return f"{dist.get_world_size()} ranks"
    sizes = {
        "tp": parallel_state.get_tensor_model_parallel_world_size(),
        "pp": parallel_state.get_pipeline_model_parallel_world_size(),
        "cp": parallel_state.get_context_parallel_world_size(),
        "dp": parallel_state.get_data_parallel_world_size(),
    }
    return " ".join(f"{name}={size}" for name, size in sizes.items() if size > 1 or name != "cp")


class CairnLoadStrategy(theirs.TorchDistLoadShardedStrategy):
    """``dist_checkpointing.load(state, directory, sharded_strategy=CairnLoadStrategy())``

    It loads Megatron's own checkpoints as before.
    allow_pickle: load objects of any class; only from a source that you trust.
    """

    def __init__(self, *args: Any, allow_pickle: bool = False, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._allow_pickle = allow_pickle

    def load(self, sharded_state_dict: dict, checkpoint_dir: Path, *args: Any, **kwargs: Any) -> dict:
        """Fills the tensors in place. Raises LoadMismatch (naming all), PickleRefused, CorruptError."""
        if _nodes is not None and _nodes.opened(checkpoint_dir) is not None:
            return _nodes.load(lambda opened: self._read(opened, sharded_state_dict))
        if not _is_ours(checkpoint_dir):
            return super().load(sharded_state_dict, checkpoint_dir, *args, **kwargs)
        with contextlib.closing(_open(checkpoint_dir)) as opened:
            return self._read(opened, sharded_state_dict)

    def _read(self, opened: TorchOpened, sharded_state_dict: dict) -> dict:
        wanted = list(nested_values(sharded_state_dict))
        _refuse_mismatch(opened, wanted)
        others = [item for item in wanted if isinstance(item, ShardedObject)]
        objects = {id(item): self._object(opened, item) for item in others}
        tensors = [item for item in wanted if isinstance(item, ShardedTensor)]
        boxes = [_box(opened, item) for item in tensors]  # gives them memory
        read_boxes(opened, boxes, buffer_of([item.data for item in tensors]))
        opened.check()
        return dict_list_map_outplace(
            lambda item: objects[id(item)] if id(item) in objects else item.data, sharded_state_dict
        )

    def load_tensors_metadata(self, checkpoint_dir: Path, *args: Any, **kwargs: Any) -> dict:
        if not _is_ours(checkpoint_dir):
            return super().load_tensors_metadata(checkpoint_dir, *args, **kwargs)
        with _described(checkpoint_dir) as opened:
            return _tensors_of(opened)

    def load_sharded_metadata(self, checkpoint_dir: Path) -> dict:
        if not _is_ours(checkpoint_dir):
            return super().load_sharded_metadata(checkpoint_dir)
        with _described(checkpoint_dir) as opened:
            keys = [key for key in opened.objects if key != FILES]
            objects = {key: ShardedObject.empty_from_unique_key(key) for key in keys}
            return {**objects, **_tensors_of(opened)}

    def remove_sharded_tensors(self, checkpoint_dir: str, key_prefix: str) -> None:
        if not _is_ours(checkpoint_dir):
            return super().remove_sharded_tensors(checkpoint_dir, key_prefix)
        raise NotSupported(f"{checkpoint_dir}: a committed step is not changed; load it and save another", 2)

    def _object(self, opened: TorchOpened, item: ShardedObject) -> Any:
        key = item.unique_key
        pickled = opened.pickle(key)
        if pickled is None or self._allow_pickle:
            return opened.value(key, self._allow_pickle)
        try:
            return torch.load(io.BytesIO(pickled), weights_only=True)
        except pickle.UnpicklingError as error:
            why = f"a pickle of classes that Megatron does not allow ({str(error).splitlines()[0]})"
            raise PickleRefused(
                f"{opened.directory}: {key}: {why}; give allow_pickle=True if you trust the checkpoint"
            ) from None


class _Running:
    """A running save, for Megatron's queue, which checks whether a process of its own has ended.

    That process waits for a lock that this process holds until the save ends. It is a POSIX lock: a forked
    child does not inherit it, and it is released if its holder dies.
    """

    def __init__(self, handle: SaveHandle):
        self._handle = handle
        fd, self.path = tempfile.mkstemp(prefix="cairn-save-")
        fcntl.lockf(fd, fcntl.LOCK_EX)
        handle.add_done_callback(lambda _: os.close(fd))

    def finish(self) -> None:
        """Raises the failure, before Megatron reports that the iteration is saved."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self._handle.result()


def _wait_for(path: str) -> None:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        fcntl.lockf(file, fcntl.LOCK_SH)


def _async_request_class(async_strategy: str) -> type:
    if _VERSION < (0, 17):
        return theirs.AsyncRequest
    return theirs.get_async_strategy(async_strategy, "AsyncRequest")[1]


def _digest(file: pathlib.Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _step_of(directory: Path) -> int:
    number = re.search(r"\d+$", os.path.basename(os.path.abspath(directory)))
    return int(number[0]) if number else 0


def _is_ours(directory: Path) -> bool:
    on_nodes = _nodes is not None and _nodes.opened(directory) is not None
    return on_nodes or bool(steps(pathlib.Path(directory)))


@contextlib.contextmanager
def _described(directory: Path) -> Iterator[TorchOpened]:
    """The directory's step, for its names and shapes."""
    if _nodes is not None and (found := _nodes.opened(directory)) is not None:
        yield found
        return
    with contextlib.closing(_open(directory)) as opened:
        yield opened


def _open(directory: Path) -> TorchOpened:
    """Opens the directory's step. Raises CorruptError if common.pt is not the file that was saved with it."""
    opened = TorchOpened(steps(pathlib.Path(directory))[0])
    common, digest = pathlib.Path(directory, COMMON), opened.state.get(COMMON)
    if digest is not None and digest != _digest(common):
        opened.close()
        raise CorruptError(f"{common}: not the file that was saved with {opened.directory}", 1)
    return opened


def _tensors_of(opened: TorchOpened) -> dict:
    """{key: ShardedTensor without data}"""
    tensors = {}
    for key, saved in opened.tensors.items():
        empty = torch.empty(saved.shape, dtype=TORCH_OF[saved.dtype], device="meta")
        tensors[key] = ShardedTensor.from_rank_offsets(key, empty).without_data()
    return tensors


def _refuse_mismatch(opened: TorchOpened, wanted: list) -> None:
    faults = sorted({fault for item in wanted if (fault := _fault(opened, item))})
    if faults:
        raise LoadMismatch.of(f"{opened.directory} does not fit the model", faults)


def _fault(opened: TorchOpened, item: Any) -> Optional[str]:
    if isinstance(item, ShardedObject):
        return None if item.unique_key in opened.objects else f"{item.unique_key}: not in the checkpoint"
    if item.key not in opened.tensors:
        return f"{item.key}: not in the checkpoint"
    saved, here = list(opened.tensors[item.key].shape), list(item.global_shape)
    fits = len(saved) == len(here) if item.allow_shape_mismatch else saved == here
    return None if fits else f"{item.key}: saved as {saved}; here {here}"


def _box(opened: TorchOpened, item: ShardedTensor) -> Box:
    """A box that reads this rank's part of the saved tensor.

    If the shape may differ (a padded vocabulary), it reads the elements of both shapes; others are set to 0.
    """
    item.init_data("cpu")
    saved = opened.tensors[item.key]
    target = with_prepended_axes(item)
    if item.allow_shape_mismatch:
        target.zero_()
        for dimension, (offset, size) in enumerate(zip(item.global_offset, saved.shape)):
            target = target.narrow(dimension, 0, max(0, min(target.shape[dimension], size - offset)))
    return box_of(saved.number, item.global_offset, TORCH_OF[saved.dtype], target)


def _register() -> None:
    """Up to 0.16 Megatron has a table of strategies by backend, so loads only need this module's import."""
    from megatron.core.dist_checkpointing.strategies import base

    base.register_default_strategy(base.StrategyAction.SAVE_SHARDED, BACKEND, 1, CairnSaveStrategy())
    base.register_default_strategy(base.StrategyAction.LOAD_SHARDED, BACKEND, 1, CairnLoadStrategy())


def _let_wrappers_have_the_backend() -> None:
    """Makes FullyParallelSaveStrategyWrapper write Cairn's backend into `metadata.json`.

    Since 0.17 it writes torch_dist for every strategy, and no verb would recognise the directory.
    """
    make = FullyParallelSaveStrategyWrapper.__init__

    @functools.wraps(make)
    def made(self: Any, strategy: Any, *args: Any, **kwargs: Any) -> None:
        make(self, strategy, *args, **kwargs)
        if isinstance(strategy, CairnSaveStrategy):
            self.backend, self.version = strategy.backend, strategy.version

    FullyParallelSaveStrategyWrapper.__init__ = made


if _VERSION < (0, 17):
    _register()
else:
    _let_wrappers_have_the_backend()


def split_options(options: dict) -> tuple[dict, dict]:
    """Returns (options of CairnSaveStrategy, options of CairnLoadStrategy), and keeps those of `Nodes`.

    Raises TypeError for others, ValueError for steps on the nodes without local=.
    """
    global _nodes
    level = {name: value for name in _LEVEL if (value := options.pop(name, None)) is not None}
    unknown = sorted(options.keys() - {"compress", "deadline", "allow_pickle"})
    if unknown:
        raise TypeError(f"unknown options of cairn.megatron: {', '.join(unknown)}")
    _nodes = Nodes(deadline=options.get("deadline", 600.0), **level) if level else None
    reading = {name: options.pop(name) for name in ("allow_pickle",) if name in options}
    return options, reading


def nodes() -> Optional[Nodes]:
    """The checkpoints on the nodes that the last `enable` has asked for."""
    return _nodes


def enable(**options: Any) -> None:
    """Lets Megatron-LM save and load with Cairn. Call it before `pretrain`.

    It needs ``--ckpt-format torch_dist``, which is the default.
    options: compress and deadline of CairnSaveStrategy, allow_pickle of CairnLoadStrategy; local, redundancy
    and keep_local of cairn.torch.Options: checkpoints of ``--non-persistent-save-interval`` are then only on
    the nodes. Others: TypeError.
    """
    from megatron.training import checkpointing

    writing, reading = split_options(options)

    def saving(*args: Any, **kwargs: Any) -> CairnSaveStrategy:
        return CairnSaveStrategy(**writing)

    def loading(*args: Any, **kwargs: Any) -> CairnLoadStrategy:
        return CairnLoadStrategy(**reading)

    if _VERSION < (0, 17):
        checkpointing.get_default_save_sharded_strategy = saving
        checkpointing.get_default_load_sharded_strategy = loading
    else:
        checkpointing.TorchDistSaveShardedStrategy = saving
        checkpointing.TorchDistLoadShardedStrategy = loading
    if not hasattr(checkpointing.get_args, "__wrapped__"):
        _look_on_nodes(checkpointing)


def _look_on_nodes(checkpointing: Any) -> None:
    """A save or a load begins with get_args(), and a load then looks for the newest checkpoint."""
    get_args, load = checkpointing.get_args, checkpointing._load_base_checkpoint

    @functools.wraps(get_args)
    def given() -> Any:
        args = get_args()
        if _nodes is not None:
            _nodes.take(args)
        return args

    def loading(load_dir: Any, args: Any, rank0: bool = False, **more: Any) -> Any:
        if _nodes is not None and load_dir != args.load:  # another model, which has no steps on the nodes
            args = copy.copy(args)
            args.non_persistent_ckpt_type = None
        elif _nodes is not None and rank0 and dist.is_initialized():
            _nodes.find(args)
        return load(load_dir, args, rank0=rank0, **more)

    checkpointing.get_args, checkpointing._load_base_checkpoint = given, loading


patch = renamed("patch", enable)
