"""`cairn.enable`, the one call by which a framework saves and loads with Cairn."""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any, Callable, TypeVar

from cairn._errors import NotSupported

_Function = TypeVar("_Function", bound=Callable[..., None])
_MODULES = ("bridge", "deepspeed", "hf", "megatron")
_LOCAL = ("deepspeed", "hf")
_WHY_NOT_LOCAL = (
    "the framework names the checkpoint that is loaded, and keeps files of its own in each, "
    "so a step that is only on the nodes would be neither whole nor found"
)


def enable(framework: str, *args: Any, **options: Any) -> None:
    """Lets a framework save and load with Cairn. Every rank calls it once, before the training.

    "hf": accelerate and the Hugging Face Trainer; options: local, every, redundancy, keep_local. "megatron":
    Megatron-LM, and "bridge": Megatron Bridge; options: compress, deadline, allow_pickle. "deepspeed": give
    the engine, too, after deepspeed.initialize(); options: check, and as "hf". torchtitan is set in its
    configuration: ``config.checkpoint = cairn.titan.CheckpointManager.Config(...)``.
    local=DIR keeps checkpoints on the nodes; a framework that cannot do that raises NotSupported.
    Raises ValueError for another framework, ImportError for a version that works differently from those that
    were tried, and the errors of the framework's module, such as `cairn.megatron`.
    """
    if framework not in _MODULES:
        raise ValueError(f"enable({framework!r}): give one of {', '.join(_MODULES)}")
    if options.get("local") is not None and framework not in _LOCAL:
        raise NotSupported(
            f"enable({framework!r}, local=): {_WHY_NOT_LOCAL}; only cairn.torch, cairn.titan, CairnWriter "
            f"and {', '.join(_LOCAL)} keep steps on the nodes",
            2,
        )
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
