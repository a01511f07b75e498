"""Lets Megatron Bridge save and load with Cairn.

Set ``config.checkpoint.custom_manager_class = "cairn.bridge.CairnCheckpointManager"``. Needs Megatron Bridge
0.4 or later, which take a manager by name. The manager is Bridge's own with cairn.megatron's strategies:
Bridge decides which checkpoints are saved and removed, and when. The user guide is
docs/guide/save-from-megatron.md.
"""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing import serialization
from megatron.core.dist_checkpointing.strategies import torch as _strategies
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper

from cairn._enable import renamed
from cairn._errors import NotSupported
from cairn.megatron import CairnLoadStrategy, CairnSaveStrategy, nodes, split_options

try:
    from megatron.bridge.training import checkpointing as _theirs
    from megatron.bridge.training.checkpointing import DefaultCheckpointManager
    from megatron.bridge.utils.instantiate_utils import register_allowed_target_prefix
except ImportError as error:
    raise ImportError(
        f"cairn.bridge needs Megatron Bridge 0.4 or later, with a DefaultCheckpointManager ({error})"
    ) from error

# Functions that return a strategy. Bridge calls the second up to 0.5.
_LOADERS = ("TorchDistLoadShardedStrategy", "get_default_load_sharded_strategy")
_saving: dict[str, Any] = {}
_loading: dict[str, Any] = {}


class CairnCheckpointManager(DefaultCheckpointManager):
    """Bridge's checkpoint manager, which saves each iteration as a step of Cairn.

    Raises NotSupported if checkpoint.ckpt_format is not torch_dist.
    """

    def __init__(self, checkpoint_config: Any):
        if (given := checkpoint_config.ckpt_format) != "torch_dist":
            raise NotSupported(f"checkpoint.ckpt_format={given}: cairn.bridge only saves torch_dist", 2)
        super().__init__(checkpoint_config)
        _replace_loaders()
        if (level := nodes()) is not None:  # before Bridge looks for a checkpoint
            level.find(checkpoint_config)

    def save(self, ctx: Any, *callbacks: Any, **named: Any) -> None:
        """Raises the errors of cairn.torch.save (with checkpoint.async_save, finalize_async_saves does)."""
        if (level := nodes()) is not None and ctx.non_persistent_ckpt and dist.get_rank() == 0:
            level.beside = _files_beside(ctx)
        if "save_strategy" not in self._context:
            self._context["save_strategy"] = self._save_strategy(ctx)
        super().save(ctx, *callbacks, **named)

    def _save_strategy(self, ctx: Any) -> Any:
        """The strategy that Bridge makes if its context has none, but with Cairn's in place of Megatron's."""
        strategy = CairnSaveStrategy(**_saving)
        if not self.checkpoint_config.fully_parallel_save:
            return strategy
        groups = getattr(ctx, "pg_collection", None) or _theirs.get_pg_collection(ctx.model)
        return FullyParallelSaveStrategyWrapper(
            strategy, groups.dp_cp, self.checkpoint_config.ckpt_assume_constant_structure
        )


def _files_beside(ctx: Any) -> dict[str, bytes]:
    """The files that Bridge writes after the step, and reads before it."""
    counts = ctx.state.train_state.state_dict()
    done = float(ctx.num_floating_point_operations_so_far)
    counts["floating_point_operations_so_far"] = torch.tensor(done)
    with tempfile.TemporaryDirectory() as directory:
        torch.save(counts, _theirs.get_checkpoint_train_state_filename(directory))
        ctx.state.cfg.to_yaml(_theirs.get_checkpoint_run_config_filename(directory))
        return {file.name: file.read_bytes() for file in pathlib.Path(directory).iterdir()}


def enable(**options: Any) -> None:
    """Lets Bridge make the manager by name and load Cairn's steps. Call it before `pretrain` or an export.

    options: as those of cairn.megatron.enable. Others: TypeError.
    """
    global _saving, _loading
    _saving, _loading = split_options(options)
    register_allowed_target_prefix("cairn.")  # since 0.5.1 Bridge refuses other managers' names
    _replace_loaders()


patch = renamed("patch", enable)


class _LoadStrategy(CairnLoadStrategy):
    """Has the options of `enable`, and ignores Bridge's arguments."""

    def __init__(self, *_: Any, **__: Any):
        super().__init__(**_loading)


def _replace_loaders() -> None:
    """Replaces the functions that make load strategies, because Bridge's context cannot provide one.

    Bridge's adapters ask Megatron-Core for a strategy, or pass none, and Megatron-Core makes it. Cairn's
    strategy loads Megatron's own checkpoints as before.
    """
    for module in (_theirs, serialization, _strategies):
        for name in _LOADERS:
            if hasattr(module, name):
                setattr(module, name, _LoadStrategy)


__all__ = ["CairnCheckpointManager", "enable", "patch"]
