"""Megatron Bridge saves and loads with Cairn: ``config.checkpoint.custom_manager_class = "cairn.bridge.CairnCheckpointManager"``.

docs/guide/save-from-megatron.md is for users. Needs Megatron Bridge 0.4, the first that takes a manager by name. The manager is Bridge's own with
the strategies of cairn.megatron: Bridge decides what is saved, when, and what is removed.
"""

from __future__ import annotations

from typing import Any

from megatron.core.dist_checkpointing import serialization
from megatron.core.dist_checkpointing.strategies import torch as _strategies
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper

from cairn._errors import NotSupported
from cairn.megatron import CairnLoadStrategy, CairnSaveStrategy, split_options

try:
    from megatron.bridge.training import checkpointing as _theirs
    from megatron.bridge.training.checkpointing import DefaultCheckpointManager
    from megatron.bridge.utils.instantiate_utils import register_allowed_target_prefix
except ImportError as error:
    raise ImportError(
        f"cairn.bridge needs Megatron Bridge 0.4 or later, with a DefaultCheckpointManager ({error})"
    ) from error

_LOADERS = (
    "TorchDistLoadShardedStrategy",
    "get_default_load_sharded_strategy",
)  # called for a strategy; by Bridge the second up to 0.5
_saving: dict[str, Any] = {}
_loading: dict[str, Any] = {}


class CairnCheckpointManager(DefaultCheckpointManager):
    """Bridge's checkpoint manager; each iteration is a step of Cairn. Raises NotSupported for another ckpt_format than torch_dist."""

    def __init__(self, checkpoint_config: Any):
        if checkpoint_config.ckpt_format != "torch_dist":
            raise NotSupported(
                f"checkpoint.ckpt_format={checkpoint_config.ckpt_format}: cairn.bridge saves torch_dist alone",
                2,
            )
        super().__init__(checkpoint_config)
        _replace_loaders()

    def save(self, ctx: Any, *callbacks: Any, **named: Any) -> None:
        """Raises the errors of cairn.torch.save; with checkpoint.async_save finalize_async_saves does."""
        if "save_strategy" not in self._context:
            self._context["save_strategy"] = self._save_strategy(ctx)
        super().save(ctx, *callbacks, **named)

    def _save_strategy(self, ctx: Any) -> Any:
        """The manager that Bridge makes if its context has none, with Cairn's strategies in place of Megatron's."""
        strategy = CairnSaveStrategy(**_saving)
        if not self.checkpoint_config.fully_parallel_save:
            return strategy
        groups = getattr(ctx, "pg_collection", None) or _theirs.get_pg_collection(ctx.model)
        return FullyParallelSaveStrategyWrapper(
            strategy, groups.dp_cp, self.checkpoint_config.ckpt_assume_constant_structure
        )


def patch(**options: Any) -> None:
    """Lets Bridge make the manager by its name, and load Cairn's saves everywhere: call it before `pretrain`, and before an export.

    options: compress and deadline of CairnSaveStrategy, allow_pickle of CairnLoadStrategy. Raises TypeError for others.
    """
    global _saving, _loading
    _saving, _loading = split_options(options)
    register_allowed_target_prefix("cairn.")  # from 0.5.1 on a manager's name is refused without
    _replace_loaders()


class _LoadStrategy(CairnLoadStrategy):
    """With the options of `patch`, whatever Bridge gives."""

    def __init__(self, *_: Any, **__: Any):
        super().__init__(**_loading)


def _replace_loaders() -> None:
    """Bridge takes no strategy for loads from its context: it makes one. Its adapters' loads ask Megatron-Core for one, or give none, and
    Megatron-Core then makes it. What Megatron saved is loaded by Cairn's as before."""
    for module in (_theirs, serialization, _strategies):
        for name in _LOADERS:
            if hasattr(module, name):
                setattr(module, name, _LoadStrategy)


__all__ = ["CairnCheckpointManager", "patch"]
