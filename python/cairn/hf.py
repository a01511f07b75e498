"""Lets accelerate and the Hugging Face Trainer save and load FSDP's shards with Cairn.

Call ``cairn.enable("hf")`` before the training. It replaces functions of accelerate, which has no setting for
this: its four functions for FSDP name torch.distributed.checkpoint's writer themselves. `CairnCallback`
seals each checkpoint, and archives and converts it while training continues. The user guide is
docs/guide/save-from-hf-trainer.md.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import pathlib
import re
import sys
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Optional, Union

import accelerate.utils.fsdp_utils as _fsdp
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from accelerate.utils import RNG_STATE_NAME, DistributedType
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from transformers import Trainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import get_last_checkpoint

import cairn
import cairn.torch
from cairn._enable import renamed
from cairn.torch._api import begin, fill
from cairn.torch._layout import listed
from cairn.torch._nodes import RUN, NodeSteps

_FUNCTIONS = ("save_fsdp_model", "save_fsdp_optimizer", "load_fsdp_model", "load_fsdp_optimizer")
_lock = threading.RLock()  # held while torch.distributed.checkpoint's names are Cairn's
_originals: dict[str, Callable] = {}
_local: dict[str, Any] = {}  # the options of steps on the nodes
_nodes: dict[str, NodeSteps] = {}  # by directory
logger = logging.getLogger("cairn.hf")


def enable(*, local: Union[str, os.PathLike, None] = None, **options: Any) -> None:
    """Makes accelerate save FSDP's model and optimizer as steps of Cairn, and load them. Call it once.

    It only affects accelerate's four functions, not other uses of torch.distributed.checkpoint.
    local, every, redundancy, keep_local: with local=DIR, one of `every` checkpoints is made in its directory,
    and the others stay on the nodes; save_state, load_state and the Trainer find them there.
    Raises ImportError if this version of accelerate works differently from 1.15, and ValueError or TypeError
    for options that do not fit.
    """
    if _originals:
        return
    if level := {"local": local, **options} if local is not None or options else {}:
        NodeSteps("", "", **level)
    for name in _FUNCTIONS:
        _check(name)
    _originals.update({name: getattr(_fsdp, name) for name in _FUNCTIONS})
    for original in list(_originals.values()):
        _replace(original, _with_cairn(original))
    if level:
        _local.update(level)
        for owner, name, around in _METHODS:
            _originals[name] = getattr(owner, name)
            setattr(owner, name, _method(around, _originals[name]))


patch = renamed("patch", enable)


def unpatch() -> None:
    """Undoes enable()."""
    for name in _FUNCTIONS if _originals else ():
        _replace(getattr(_fsdp, name), _originals.pop(name))
    for owner, name, _ in _METHODS if _originals else ():
        setattr(owner, name, _originals.pop(name))
    _local.clear()
    _nodes.clear()


def _check(name: str) -> None:
    import accelerate

    source = inspect.getsource(getattr(_fsdp, name)) if hasattr(_fsdp, name) else ""
    kind = "Writer" if name.startswith("save") else "Reader"
    needed = ("import torch.distributed.checkpoint as dist_cp", f"dist_cp.FileSystem{kind}(ckpt_dir)")
    if not all(text in source for text in needed):
        raise ImportError(
            f"cairn.hf cannot patch accelerate {accelerate.__version__}: "
            f"its {name} works differently from accelerate 1.15's"
        )


def _replace(old: Callable, new: Callable) -> None:
    """Replaces the function in every module that has imported it."""
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
            logger.warning("%s does not use Cairn: %s", original.__name__, other)
            return original(*positional, **named)
        if original.__name__ == "load_fsdp_optimizer":
            # Makes the states: accelerate's own call under FSDP1 loads none.
            get_optimizer_state_dict(arguments["model"], arguments["optimizer"])
        names = ("FileSystemWriter", "FileSystemReader", "save", "load")
        torchs = {name: getattr(dcp, name) for name in names}

        def as_torchs(do: Callable) -> Callable:
            return lambda **arguments: _called(torchs, do, **arguments)

        with _lock:
            ours = dict(zip(names, (_Place, _Place, as_torchs(_save), as_torchs(_load))))
            return _called(ours, original, *positional, **named)

    return function


def _called(names: dict, do: Callable, *positional: Any, **named: Any) -> Any:
    """Calls `do` while torch.distributed.checkpoint has these names, and returns its result."""
    before = {name: getattr(dcp, name) for name in names}
    try:
        for name, value in names.items():
            setattr(dcp, name, value)
        return do(*positional, **named)
    finally:
        for name, value in before.items():
            setattr(dcp, name, value)


def _method(around: Callable, original: Callable) -> Callable:
    return functools.wraps(original)(lambda *positional, **named: around(original, *positional, **named))


def _other_format(arguments: dict) -> Optional[str]:
    """Why accelerate does not use torch.distributed.checkpoint here, or Cairn cannot save; otherwise None."""
    plugin = arguments["fsdp_plugin"]
    kind = getattr(plugin.state_dict_type, "name", plugin.state_dict_type)
    strategy = str(getattr(plugin.reshard_after_forward, "name", ""))
    if strategy.lstrip("_").startswith("HYBRID"):
        return f"FSDP1's {strategy} does not record which ranks hold the same values; set FSDP's version to 2"
    if kind != "SHARDED_STATE_DICT":
        return f"FSDP's state_dict_type is {kind}; set SHARDED_STATE_DICT"
    return None if arguments.get("use_dcp", True) else "use_dcp is False"


class _Place(str):
    """Replaces FileSystemWriter and FileSystemReader: the directory that they were given."""

    def __new__(cls, path: Any) -> "_Place":
        return super().__new__(cls, os.fspath(path))


def _save(state_dict: dict, storage_writer: _Place, planner: Any) -> None:
    """Replaces dcp.save in accelerate. FSDP's tensors decide who writes, without DCP's planner."""
    if (nodes := _holder(storage_writer)) is not None:
        return nodes.take(os.path.basename(storage_writer), state_dict)
    options, planner = cairn.torch.Options(), cairn.torch.CairnPlanner()
    step = step_of(storage_writer)
    begin(state_dict, storage_writer, step, options, planner, (), log=False, events=False).result()


def _load(state_dict: dict, storage_reader: _Place, planner: Any) -> None:
    """Replaces dcp.load in accelerate. DCP itself loads its own checkpoints."""
    if (nodes := _holder(storage_reader)) is not None:
        nodes.fill(os.path.basename(storage_reader), state_dict)
    elif pathlib.Path(storage_reader, ".metadata").is_file():
        dcp.load(state_dict, storage_reader=dcp.FileSystemReader(storage_reader), planner=planner)
    else:
        planner = cairn.torch.CairnLoadPlanner()
        fill(state_dict, storage_reader, False, planner)
        if names := planner.unexpected_keys:
            logger.warning("%s: not loaded, because the model lacks them: %s", storage_reader, listed(names))


def _holder(place: str) -> Optional[NodeSteps]:
    return next((nodes for nodes in _nodes.values() if nodes.holds(place)), None)


def _steps(accelerator: Accelerator, directory: Union[str, os.PathLike], proof: str) -> NodeSteps:
    """The steps of this directory of checkpoints. proof: see NodeSteps. Raises NotSupported."""
    kind = accelerator.distributed_type
    why = f"it saves by {kind.name}'s own functions" if kind not in _KINDS else None
    if kind == DistributedType.FSDP:
        other = _other_format({"fsdp_plugin": accelerator.state.fsdp_plugin}) or ""
        why = other if other.startswith("FSDP1's") else None
    engine = getattr(getattr(accelerator, "deepspeed_engine_wrapped", None), "engine", None)
    if engine is not None and (engine.has_moe_layers or engine.mp_world_size > 1):
        why = "with DeepSpeed's mixtures or tensor parallel ranks, ranks read files of others"
    if why:
        raise cairn.NotSupported(f"cairn.enable('hf', local=): {why}", 2)
    place = os.path.abspath(directory)
    if place not in _nodes:
        run = ""
        if place == _automatic(accelerator):  # accelerate counts everything in it
            run = os.path.join(os.path.dirname(place), RUN)
        _nodes[place] = NodeSteps(place, proof, run=run, **_local)
    return _nodes[place]


def _automatic(accelerator: Accelerator) -> Optional[str]:
    """The directory in which accelerate names the checkpoints."""
    if not accelerator.project_configuration.automatic_checkpoint_naming:
        return None
    return os.path.abspath(os.path.join(accelerator.project_dir, "checkpoints"))


def _save_state(
    original: Callable, accelerator: Accelerator, output_dir: Any = None, *more: Any, **named: Any
) -> Any:
    project, automatic = accelerator.project_configuration, _automatic(accelerator)
    iteration = project.iteration
    path = f"{automatic}/checkpoint_{iteration}" if automatic else os.path.abspath(output_dir)
    steps = _steps(accelerator, os.path.dirname(path), _PROOF)

    def write(place: Optional[str]) -> Any:
        if place is None:
            return original(accelerator, output_dir, *more, **named)
        project.automatic_checkpoint_naming = False
        try:
            original(accelerator, place, *more, **named)
            return pathlib.Path(path)  # which load_state takes
        finally:
            project.automatic_checkpoint_naming, project.iteration = automatic is not None, iteration

    saved = steps.save(os.path.basename(path), write)
    project.iteration = iteration + 1
    return saved


def _load_state(
    original: Callable, accelerator: Accelerator, input_dir: Any = None, *more: Any, **named: Any
) -> Any:
    automatic = _automatic(accelerator)
    if input_dir is not None:
        path = os.path.abspath(os.path.expanduser(input_dir))
        steps = _steps(accelerator, os.path.dirname(path), _PROOF)
        place = steps.start(os.path.basename(path), explicit=True)
    elif automatic is not None:
        steps = _steps(accelerator, automatic, _PROOF)
        names = os.listdir(automatic) if os.path.isdir(automatic) else []
        place = steps.start(max(names, key=step_in, default=None))
    else:
        return original(accelerator, input_dir, *more, **named)
    try:
        result = original(accelerator, place or input_dir, *more, **named)
    finally:
        steps.close()
    if place is not None:
        accelerator.project_configuration.iteration = step_in(place) + 1
    return result


def _train(
    original: Callable, trainer: Trainer, resume_from_checkpoint: Any = None, *more: Any, **named: Any
) -> Any:
    """Replaces Trainer.train."""
    steps = None
    if resume_from_checkpoint:
        output, explicit = os.path.abspath(str(trainer.args.output_dir)), resume_from_checkpoint is not True
        last = get_last_checkpoint(output) if os.path.isdir(output) and not explicit else None
        path = os.path.abspath(resume_from_checkpoint) if explicit else last or f"{output}/"
        steps = _steps(trainer.accelerator, os.path.dirname(path), TRAINER_STATE_NAME)
        place = steps.start(os.path.basename(path) or None, explicit)
        resume_from_checkpoint = place or resume_from_checkpoint
    try:
        return original(trainer, resume_from_checkpoint, *more, **named)
    finally:
        if steps is not None:
            steps.close()


def _save_checkpoint(original: Callable, trainer: Trainer, model: Any, trial: Any) -> None:
    """Replaces Trainer._save_checkpoint."""
    state, args = trainer.state, trainer.args
    steps = _steps(trainer.accelerator, trainer._get_output_dir(trial=trial), TRAINER_STATE_NAME)

    def write(place: Optional[str]) -> None:
        if place is not None:
            vars(trainer)["_get_output_dir"] = lambda trial: os.path.dirname(place)
        try:
            original(trainer, model, trial)
        finally:
            vars(trainer).pop("_get_output_dir", None)

    ends = state.global_step >= state.max_steps or trainer.control.should_training_stop
    needed = ends or state.best_global_step == state.global_step or args.push_to_hub
    steps.save(f"checkpoint-{state.global_step}", write, last=needed)


_PROOF = f"{RNG_STATE_NAME}_0.pkl"
_KINDS = (
    DistributedType.NO,
    DistributedType.MULTI_CPU,
    DistributedType.MULTI_GPU,
    DistributedType.FSDP,
    DistributedType.DEEPSPEED,
)
_METHODS = (
    (Accelerator, "save_state", _save_state),
    (Accelerator, "load_state", _load_state),
    (Trainer, "train", _train),
    (Trainer, "_save_checkpoint", _save_checkpoint),
)


def step_of(directory: str) -> int:
    """The number at the end of the parent directory's name (checkpoint-500/optimizer_0); 0 if it has none."""
    return step_in(pathlib.Path(os.path.abspath(directory)).parent.name)


def step_in(name: str) -> int:
    found = re.search(r"[-_]([0-9]+)$", name)
    return int(found.group(1)) if found else 0


class CairnCallback(TrainerCallback):
    """``Trainer(..., callbacks=[CairnCallback(archive="/tape/store")])``

    It processes each checkpoint while training continues.
    seal: run `cairn seal`, which also seals the Trainer's other files: scheduler, random states,
    trainer_state.json.
    archive: the store into which `cairn archive run` archives each checkpoint.
    weights: a directory in which `cairn strip` makes one Hugging Face directory per checkpoint, with weights
    of type `dtype`. It works for a Trainer on one process, DDP, FSDP (with cairn.enable("hf")) and DeepSpeed.
    The programs run one after another, on the first rank. A failure is logged at once; wait() raises it. What
    a kill left undone is made up for when the training starts again, and a warning says so.
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

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Makes up for what a kill interrupted: up to the checkpoint that the training continues from."""
        if state.is_world_process_zero:
            output = pathlib.Path(args.output_dir).absolute()
            config = getattr(others.get("model"), "config", None)
            self._under_way.append(self._worker.submit(self._make_up, output, state.global_step, config))

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if dist.is_available() and dist.is_initialized():
            dist.barrier()  # until every rank has written its random state
        if state.is_world_process_zero:
            checkpoint = pathlib.Path(args.output_dir, f"checkpoint-{state.global_step}").absolute()
            if not checkpoint.is_dir():  # it is only on the nodes
                return
            config = getattr(others.get("model"), "config", None)
            self._under_way.append(self._worker.submit(self._finish, checkpoint, config))

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Waits. Failures were logged; an exception here would stop the other ranks after the training."""
        if self._ended():
            logger.error("%d programs failed: %s", len(self.failures), "; ".join(self.failures))

    def wait(self) -> None:
        """Waits until all is done. Raises CairnError naming the failure."""
        if self._ended():
            raise cairn.CairnError("; ".join(self.failures), 1)

    def _ended(self) -> list:
        """Waits, and returns the failures."""
        for work in self._under_way:
            work.result()
        return self.failures

    def _make_up(self, output: pathlib.Path, newest: int, config: Any) -> None:
        for checkpoint in sorted(output.glob("checkpoint-*"), key=lambda place: step_in(place.name)):
            whole = step_in(checkpoint.name) <= newest and _is_whole(checkpoint)
            if whole and (missing := ", ".join(self._missing(checkpoint))):
                logger.warning("%s: made up for now, as the training had ended: %s", checkpoint, missing)
                self._finish(checkpoint, config)

    def _missing(self, checkpoint: pathlib.Path) -> list:
        missing = []
        if self._seal and not (checkpoint / ".cairn-seal.json").exists():
            missing.append("seal")
        if self._archive is not None:
            listed = cairn.run(["archive", "ls", self._archive, "--json"], check=False, capture=True).stdout
            sources = {member.get("source") for member in json.loads(listed or "[]")}
            if str(checkpoint.resolve()) not in sources:
                missing.append("archive run")
        if self._weights is not None and not self._release(checkpoint).exists():
            missing.append("strip")
        return missing

    def _release(self, checkpoint: pathlib.Path) -> pathlib.Path:
        return pathlib.Path(self._weights or "", checkpoint.name)

    def _finish(self, checkpoint: pathlib.Path, config: Any) -> None:
        if self._seal:
            self._run(checkpoint, "seal", "--settle", "0", checkpoint)
        if self._archive is not None:
            self._run(checkpoint, "archive", "run", checkpoint, "--store", self._archive)
        if self._weights is not None and not self._release(checkpoint).exists():
            self._run(checkpoint, "strip", *_weights_in(checkpoint), self._release(checkpoint), config=config)

    def _run(self, checkpoint: pathlib.Path, *arguments: Any, config: Any = None) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="cairn-") as scratch:
                beside = []
                if arguments[0] == "strip":  # keeps the training's names
                    beside = ["--format", "safetensors", "--dtype", self._dtype]
                if config is not None:  # handed over: nothing is written into a release that has its name
                    config.save_pretrained(scratch)
                    beside += [f"--with={file}" for file in sorted(pathlib.Path(scratch).iterdir())]
                cairn.run([*arguments, *beside], capture=True)
        except Exception as error:
            self.failures.append(f"{checkpoint}: cairn {arguments[0]}: {error}")
            logger.error("%s", self.failures[-1])


def _is_whole(checkpoint: pathlib.Path) -> bool:
    """The Trainer writes trainer_state.json last."""
    try:
        return isinstance(json.loads((checkpoint / "trainer_state.json").read_text()), dict)
    except (OSError, ValueError):
        return False


def _weights_in(checkpoint: pathlib.Path) -> list:
    """The arguments that make `cairn strip` read a Trainer's checkpoint.

    FSDP and DeepSpeed have their own directories; otherwise it is the model's safetensors.
    """
    fsdp = checkpoint / f"{_fsdp.FSDP_MODEL_NAME}_0"
    latest = checkpoint / "latest"  # of DeepSpeed; it names the directory
    deepspeed = checkpoint / latest.read_text().strip() if latest.is_file() else fsdp
    found = [place for place in (fsdp, deepspeed) if place.is_dir()]
    return found[:1] or [checkpoint, "--from", "safetensors"]
