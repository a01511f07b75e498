"""Checkpoints of large language models: the ``cairn`` command, for Python.

`open` reads a checkpoint of any format. `diff`, `report`, `ls` and `verify` run the commands of those names
and return tables. `run` runs any command. ``cairn.torch`` saves and loads PyTorch trainings;
`enable` lets a framework do so.

The command is a program in the environment's ``bin``; ``python -m cairn`` runs it too. Nothing in this
package needs torch, and only arrays of values need numpy.

>>> import cairn
>>> cairn.run(["--version"], capture=True).stdout.split()[0]
'cairn'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cairn._command import CairnError, program, run
from cairn._enable import enable
from cairn._version import __version__

if TYPE_CHECKING:
    from cairn._checkpoint import Checkpoint, Objects, Pickle
    from cairn._checkpoint import open as open
    from cairn._errors import CorruptError, HelperDied, NotSupported
    from cairn._rows import Differences, Problems, Rows, diff, ls, report, verify
    from cairn._tensor import Tensor

_MODULES = {  # imported on first use
    "_checkpoint": ("Checkpoint", "Objects", "Pickle", "open"),
    "_errors": ("CorruptError", "HelperDied", "NotSupported"),
    "_rows": ("Differences", "Problems", "Rows", "diff", "ls", "report", "verify"),
    "_tensor": ("Tensor",),
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}

# `open` is left out: `from cairn import *` must not hide Python's own.
__all__ = [
    "CairnError",
    "Checkpoint",
    "CorruptError",
    "Differences",
    "HelperDied",
    "NotSupported",
    "Objects",
    "Pickle",
    "Problems",
    "Rows",
    "Tensor",
    "__version__",
    "diff",
    "enable",
    "ls",
    "program",
    "report",
    "run",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'cairn' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"cairn.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
