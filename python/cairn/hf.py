"""accelerate and the Hugging Face Trainer save and load FSDP's shards with Cairn: ``cairn.hf.patch()``, once, before the training.

`CairnCallback` does the rest of a checkpoint: seals it, and archives and converts it while training continues. docs/guide/save-from-hf-trainer.md is
for users. accelerate has no setting for this: its four functions for FSDP name torch.distributed.checkpoint's writer themselves.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import pathlib
import re
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Optional, Union

import accelerate.utils.fsdp_utils as _fsdp
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from transformers import TrainerCallback

import cairn
import cairn.torch

_FUNCTIONS = ("save_fsdp_model", "save_fsdp_optimizer", "load_fsdp_model", "load_fsdp_optimizer")
_lock = threading.RLock()  # while torch.distributed.checkpoint's names are Cairn's
_originals: dict[str, Callable] = {}
logger = logging.getLogger("cairn.hf")


def patch() -> None:
    """accelerate saves FSDP's model and optimizer as steps of Cairn from here on, and loads them. Again: nothing.

    Only within accelerate's four functions: other uses of torch.distributed.checkpoint stay unchanged.
    Raises ImportError if this accelerate works differently from 1.15.
    """
    if _originals:
        return
    for name in _FUNCTIONS:
        _check(name)
    _originals.update({name: getattr(_fsdp, name) for name in _FUNCTIONS})
    for original in list(_originals.values()):
        _replace(original, _with_cairn(original))


def unpatch() -> None:
    """Undoes patch()."""
    for name in list(_originals):
        _replace(getattr(_fsdp, name), _originals.pop(name))


def _check(name: str) -> None:
    import accelerate

    source = inspect.getsource(getattr(_fsdp, name)) if hasattr(_fsdp, name) else ""
    kind = "Writer" if name.startswith("save") else "Reader"
    if (
        "import torch.distributed.checkpoint as dist_cp" not in source
        or f"dist_cp.FileSystem{kind}(ckpt_dir)" not in source
    ):
        raise ImportError(
            f"accelerate {accelerate.__version__}: {name} does not save as accelerate 1.15 does, so that cairn.hf cannot patch it"
        )


def _replace(old: Callable, new: Callable) -> None:
    """In every module that has imported the function."""
    for module in list(sys.modules.values()):
        if (getattr(module, "__name__", "") or "").split(".")[0] in ("accelerate", "transformers", "trl"):
            if vars(module).get(old.__name__) is old:
                setattr(module, old.__name__, new)


def _with_cairn(original: Callable) -> Callable:
    parameters = inspect.signature(original)

    @functools.wraps(original)
    def function(*positional: Any, **named: Any) -> Any:
        arguments = parameters.bind(*positional, **named).arguments
        if (other := _other_format(arguments)) is not None:
            logger.warning("%s: not with Cairn, because %s", original.__name__, other)
            return original(*positional, **named)
        if original.__name__ == "load_fsdp_optimizer":
            get_optimizer_state_dict(
                arguments["model"], arguments["optimizer"]
            )  # makes the states: accelerate's call under FSDP1 loads none
        torchs = {
            name: getattr(dcp, name) for name in ("FileSystemWriter", "FileSystemReader", "save", "load")
        }

        def as_torchs(do: Callable) -> Callable:
            return lambda **arguments: _called(torchs, do, **arguments)

        with _lock:
            ours = {
                "FileSystemWriter": _Place,
                "FileSystemReader": _Place,
                "save": as_torchs(_save),
                "load": as_torchs(_load),
            }
            return _called(ours, original, *positional, **named)

    return function


def _called(names: dict, do: Callable, *positional: Any, **named: Any) -> Any:
    """What `do` returns while torch.distributed.checkpoint has these names."""
    before = {name: getattr(dcp, name) for name in names}
    try:
        for name, value in names.items():
            setattr(dcp, name, value)
        return do(*positional, **named)
    finally:
        for name, value in before.items():
            setattr(dcp, name, value)


def _other_format(arguments: dict) -> Optional[str]:
    """Why accelerate does not use torch.distributed.checkpoint here, or Cairn cannot; None if both do."""
    plugin = arguments["fsdp_plugin"]
    kind = getattr(plugin.state_dict_type, "name", plugin.state_dict_type)
    strategy = str(getattr(plugin.reshard_after_forward, "name", ""))
    if strategy.lstrip("_").startswith("HYBRID"):
        return f"FSDP1's {strategy} does not say which ranks hold the same; set FSDP's version to 2"
    if kind != "SHARDED_STATE_DICT":
        return f"FSDP's state_dict_type is {kind}; set SHARDED_STATE_DICT"
    return None if arguments.get("use_dcp", True) else "use_dcp is False"


class _Place(str):
    """What stands for a FileSystemWriter or -Reader: the directory that it was made for."""

    def __new__(cls, path: Any) -> "_Place":
        return super().__new__(cls, os.fspath(path))


def _save(state_dict: dict, storage_writer: _Place, planner: Any) -> None:
    """As accelerate calls dcp.save. FSDP's tensors say who writes them: DCP's planner and its collectives are not needed."""
    cairn.torch.save(state_dict, storage_writer, step_of(storage_writer))


def _load(state_dict: dict, storage_reader: _Place, planner: Any) -> None:
    """As accelerate calls dcp.load. What DCP wrote before is read by DCP."""
    if pathlib.Path(storage_reader, ".metadata").is_file():
        dcp.load(state_dict, storage_reader=dcp.FileSystemReader(storage_reader), planner=planner)
    else:
        cairn.torch.load(state_dict, storage_reader)


def step_of(directory: str) -> int:
    """The number behind the name of the checkpoint that `directory` is a part of (checkpoint-500/optimizer_0); 0 if it has none."""
    found: Optional[re.Match] = re.search(
        r"[-_]([0-9]+)$", pathlib.Path(os.path.abspath(directory)).parent.name
    )
    return int(found.group(1)) if found else 0


class CairnCallback(TrainerCallback):
    """``Trainer(..., callbacks=[CairnCallback(archive="/tape/store")])``: the work on each checkpoint, in parallel with the training.

    seal: `cairn seal`, which also commits the Trainer's other files: scheduler, random states, trainer_state.json.
    archive: the store that `cairn archive run` puts each checkpoint into. weights: a directory that gets one Hugging Face directory for each
    checkpoint, by `cairn strip` as `dtype`, whether the Trainer saved alone, under DDP, FSDP (with cairn.hf.patch()) or DeepSpeed.
    Programs run one after the other, on the first rank. What fails is logged as an error at once; wait() raises it.
    """

    def __init__(
        self,
        *,
        seal: bool = True,
        archive: Union[str, os.PathLike, None] = None,
        weights: Union[str, os.PathLike, None] = None,
        dtype: str = "bf16",
    ):
        self._seal = seal
        self._archive = archive
        self._weights = weights
        self._dtype = dtype
        self._worker = ThreadPoolExecutor(1, "cairn-callback")
        self._under_way: list[Future] = []
        self.failures: list[str] = []

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if dist.is_available() and dist.is_initialized():
            dist.barrier()  # every rank has written its random state
        if state.is_world_process_zero:
            checkpoint = pathlib.Path(args.output_dir, f"checkpoint-{state.global_step}").absolute()
            self._under_way.append(
                self._worker.submit(self._finish, checkpoint, getattr(others.get("model"), "config", None))
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Waits; a failure was logged, and does not stop the other ranks after the training."""
        if self._ended():
            logger.error(
                "%d of the checkpoints' programs failed: %s", len(self.failures), "; ".join(self.failures)
            )

    def wait(self) -> None:
        """Waits until all is done. Raises CairnError naming the failure."""
        if self._ended():
            raise cairn.CairnError("; ".join(self.failures), 1)

    def _ended(self) -> list:
        """The failures, once all is done."""
        for work in self._under_way:
            work.result()
        return self.failures

    def _finish(self, checkpoint: pathlib.Path, config: Any) -> None:
        if self._seal:
            self._run(checkpoint, ["seal", "--settle", "0", checkpoint])
        if self._archive is not None:
            self._run(checkpoint, ["archive", "run", checkpoint, "--store", self._archive])
        if self._weights is not None:
            target = pathlib.Path(self._weights, checkpoint.name)
            release = [
                "--format",
                "safetensors",
                "--dtype",
                self._dtype,
            ]  # under the names that it was trained with
            if (
                self._run(checkpoint, ["strip", *_weights_in(checkpoint), target, *release])
                and config is not None
            ):
                config.save_pretrained(target)

    def _run(self, checkpoint: pathlib.Path, arguments: list) -> bool:
        try:
            cairn.run(arguments, capture=True)
        except (cairn.CairnError, OSError) as error:
            self.failures.append(f"{checkpoint}: cairn {arguments[0]}: {error}")
            logger.error("%s", self.failures[-1])
            return False
        return True


def _weights_in(checkpoint: pathlib.Path) -> list:
    """What `cairn strip` takes of a Trainer's checkpoint: FSDP and DeepSpeed have a directory of their own, else it is the model's safetensors."""
    fsdp = checkpoint / f"{_fsdp.FSDP_MODEL_NAME}_0"
    latest = checkpoint / "latest"  # DeepSpeed's, with the name of its directory
    deepspeed = checkpoint / latest.read_text().strip() if latest.is_file() else fsdp
    return next(
        ([place] for place in (fsdp, deepspeed) if place.is_dir()), [checkpoint, "--from", "safetensors"]
    )
