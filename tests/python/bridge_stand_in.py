"""A stand-in for Megatron Bridge, for a machine without it: all that cairn.bridge uses, and a job. `train` is as in bridge_real.

Names and signatures are those of Bridge 0.4 to 0.6 and of 067f987d (August 2026), and so is the order of what a save and a load do with the
context, the strategies and the tracker. Nothing else of Bridge is here: test_bridge.py says how its cases run with the real one.
"""

import dataclasses
import importlib
import inspect
import os
import pathlib
import sys
import types
from typing import Any

import megatron_cases
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelLoadStrategyWrapper, FullyParallelSaveStrategyWrapper
from megatron.core.dist_checkpointing.strategies.torch import TorchDistLoadShardedStrategy, TorchDistSaveShardedStrategy

TRACKER = "latest_checkpointed_iteration.txt"
ALLOWED = {"megatron."}


@dataclasses.dataclass
class CheckpointConfig:
    save: str
    load: str
    ckpt_format: str = "torch_dist"
    async_save: bool = False
    fully_parallel_save: bool = True
    fully_parallel_load: bool = False
    ckpt_assume_constant_structure: bool = False
    custom_manager_class: Any = None
    ckpt_step: Any = None
    non_persistent_save_interval: Any = None
    non_persistent_ckpt_type: Any = None
    non_persistent_global_ckpt_dir: Any = None


@dataclasses.dataclass
class CheckpointSaveContext:
    state: Any
    model: list
    optimizer: Any
    opt_param_scheduler: Any
    num_floating_point_operations_so_far: int
    non_persistent_ckpt: bool = False


@dataclasses.dataclass
class CheckpointLoadContext:
    state: Any
    model: list
    optimizer: Any
    opt_param_scheduler: Any


class DefaultCheckpointManager:
    def __init__(self, checkpoint_config):
        self.checkpoint_config = checkpoint_config
        self._context = {}

    @property
    def checkpointing_context(self):
        return self._context

    def save(self, ctx, callback_manager):
        save_checkpoint(ctx.state, self._context, ctx.non_persistent_ckpt)

    def load(self, ctx):
        return load_checkpoint(ctx.state, self._context)

    def finalize_async_saves(self, state, blocking=False, terminate=False):
        if self.checkpoint_config.async_save:
            state.async_calls_queue.maybe_finalize_async_calls(blocking)


def register_allowed_target_prefix(prefix):
    ALLOWED.add(prefix)


def create_checkpoint_manager(checkpoint_config):
    name = checkpoint_config.custom_manager_class
    if name is None:
        return DefaultCheckpointManager(checkpoint_config)
    if not name.startswith(tuple(ALLOWED)):
        raise ValueError(f"checkpoint.custom_manager_class: {name} is not in the allowlist")
    module, _, made = name.rpartition(".")
    manager = getattr(importlib.import_module(module), made)(checkpoint_config)
    inspect.signature(manager.save).bind(None, None)
    return manager


def get_pg_collection(model):
    return types.SimpleNamespace(dp_cp=parallel_state.get_data_parallel_group(with_context_parallel=True))


def get_checkpoint_train_state_filename(directory, prefix=None):
    return os.path.join(directory, "_".join(filter(None, [prefix, "train_state.pt"])))


def get_checkpoint_run_config_filename(directory):
    return os.path.join(directory, "run_config.yaml")


def non_persistent_of(config):
    return config.non_persistent_global_ckpt_dir or f"{config.save}/non_persistent"


def newest_in(directory):
    """By Bridge's own tracker."""
    file = get_checkpoint_train_state_filename(directory, prefix="latest")
    return int(torch.load(file)["step"]) if os.path.exists(file) else -1


def save_checkpoint(state, context, non_persistent):
    config, training = state.cfg.checkpoint, state.training
    assert not non_persistent or config.non_persistent_ckpt_type == "global"
    root = non_persistent_of(config) if non_persistent else config.save
    directory = f"{root}/iter_{training.iteration:07}"
    if "save_strategy" not in context:
        strategy = TorchDistSaveShardedStrategy("torch_dist", 1)
        if config.fully_parallel_save:
            strategy = FullyParallelSaveStrategyWrapper(strategy, get_pg_collection(None).dp_cp, config.ckpt_assume_constant_structure)
        context["save_strategy"] = strategy
    os.makedirs(directory, exist_ok=True)
    request = dist_checkpointing.save(
        training.state(), directory, context["save_strategy"], async_sharded_save=config.async_save, content_metadata=training.metadata
    )

    counts = state.train_state.state_dict()

    def track(step=str(training.iteration)):
        if dist.get_rank() == 0:
            for file in get_checkpoint_train_state_filename(directory), get_checkpoint_train_state_filename(root, prefix="latest"):
                torch.save(counts, file)
            state.cfg.to_yaml(get_checkpoint_run_config_filename(directory))
            pathlib.Path(root, TRACKER).write_text(step)

    if not config.async_save:
        return track()
    request.add_finalize_fn(track)
    state.async_calls_queue.schedule_async_request(request)


def load_checkpoint(state, context):
    """It takes no strategy from its context: it makes one from the class that this module has under the name."""
    config, training = state.cfg.checkpoint, state.training
    root, step = config.load, config.ckpt_step or newest_in(config.load)
    if config.non_persistent_ckpt_type == "global" and newest_in(non_persistent_of(config)) >= step:
        root = non_persistent_of(config)
        step = newest_in(root)
    directory = f"{root}/iter_{step:07}"
    assert os.path.exists(get_checkpoint_run_config_filename(directory))
    counts = torch.load(get_checkpoint_train_state_filename(directory))
    this = sys.modules["megatron.bridge.training.checkpointing"]
    asked = getattr(this, "get_default_load_sharded_strategy", None)
    strategy = asked(directory) if asked else this.TorchDistLoadShardedStrategy()
    if config.fully_parallel_load:
        strategy = FullyParallelLoadStrategyWrapper(strategy, get_pg_collection(None).dp_cp)
    context["load_strategy"] = strategy
    training.load(directory, strategy)
    assert training.iteration == int(counts["step"])
    return training.iteration, 0


def become(version):
    """The modules that cairn.bridge imports. Up to 0.5 a load asks Megatron for its strategy by another name."""
    names = ("CheckpointLoadContext", "CheckpointSaveContext", "DefaultCheckpointManager", "create_checkpoint_manager", "get_pg_collection")
    found = {name: globals()[name] for name in names}
    if version == "0.5":
        found["get_default_load_sharded_strategy"] = lambda checkpoint_dir: TorchDistLoadShardedStrategy()
    else:
        found["TorchDistLoadShardedStrategy"] = TorchDistLoadShardedStrategy
    found.update({made.__name__: made for made in (get_checkpoint_train_state_filename, get_checkpoint_run_config_filename)})
    for name, contents in {
        "megatron.bridge": {},
        "megatron.bridge.training": {},
        "megatron.bridge.training.checkpointing": found,
        "megatron.bridge.utils": {},
        "megatron.bridge.utils.instantiate_utils": {"register_allowed_target_prefix": register_allowed_target_prefix},
    }.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(contents)
    sys.modules["megatron.bridge.training"].checkpointing = sys.modules["megatron.bridge.training.checkpointing"]


become(os.environ.get("BRIDGE_STAND_IN", "0.6"))


def train(rank, world, run, until=6, cairn=True, first=None, job="", **checkpoint):
    """Iterations up to `until`, with a save after each third, from the newest one of the directory `run`. Returns each rank's state."""
    config = CheckpointConfig(run, run, **checkpoint)
    if cairn:
        config.custom_manager_class = "cairn.bridge.CairnCheckpointManager"
    found = newest_in(run)
    name = f"{pathlib.Path(run).name}-{found}-{cairn}-{job}"
    training = megatron_cases.Training(rank, world, "tp2", str(pathlib.Path(run).parent), name, tp=1)
    cfg = types.SimpleNamespace(checkpoint=config, to_yaml=lambda path: pathlib.Path(path).write_text("model: {}"))
    counts = types.SimpleNamespace(state_dict=lambda: {"step": torch.tensor(training.iteration)})
    state = types.SimpleNamespace(cfg=cfg, training=training, train_state=counts, async_calls_queue=AsyncCallsQueue())
    manager = create_checkpoint_manager(config)
    parts = state, [training.model], training.optimizer, training.schedule
    if max(found, newest_in(non_persistent_of(config))) > 0:
        manager.load(CheckpointLoadContext(*parts))
    if not cairn:
        megatron_cases.writer.fork_results_queue()
    losses = {}
    while training.iteration < until:
        (losses[training.iteration],) = training.train(1)
        manager.finalize_async_saves(state=state, blocking=False)
        if training.iteration % 3 == 0:
            manager.save(CheckpointSaveContext(*parts, 0), None)
        elif config.non_persistent_save_interval and training.iteration % config.non_persistent_save_interval == 0:
            manager.save(CheckpointSaveContext(*parts, 0, non_persistent_ckpt=True), None)
    manager.finalize_async_saves(state=state, blocking=True, terminate=True)
    return {"losses": losses, "tensors": training.tensors()}
