"""`cairn.enable`, the one call by which a framework saves and loads with Cairn."""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any, Callable, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., None])
_MODULES = ("bridge", "deepspeed", "hf", "megatron")


def enable(framework: str, *args: Any, **options: Any) -> None:
    """Lets a framework save and load with Cairn. Every rank calls it once, before the training.

    "hf": accelerate and the Hugging Face Trainer. "megatron": Megatron-LM, and "bridge": Megatron Bridge;
    options: compress, deadline, allow_pickle. "deepspeed": give the engine, too, after
    deepspeed.initialize(); option: check. torchtitan is set in its configuration:
    ``config.checkpoint = cairn.titan.CheckpointManager.Config(...)``.
    local=DIR keeps checkpoints on the nodes, between those in the framework's directory; redundancy,
    keep_local: see cairn.torch.Options. every: one of this many is in the framework's directory; Megatron has
    intervals in place of it.
    Raises ValueError for another framework, ImportError for a version that works differently from those that
    were tried, and the errors of the framework's module, such as `cairn.megatron`.
    """
    if framework not in _MODULES:
        raise ValueError(f"enable({framework!r}): give one of {', '.join(_MODULES)}")
    importlib.import_module(f"cairn.{framework}").enable(*args, **options)


def renamed(old_name: str, new: _Function) -> _Function:
    """`new` under its old name, which warns."""

    @functools.wraps(new)
    def old(*args: Any, **options: Any) -> None:
        module = new.__module__
        now = f"cairn.enable({module.removeprefix('cairn.')!r})"
        warnings.warn(f"{module}.{old_name} is now {now}", FutureWarning, stacklevel=2)
        new(*args, **options)

    return old  # type: ignore[return-value]
