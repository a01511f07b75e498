"""Saves and loads the checkpoints of PyTorch trainings.

`save`, `async_save` and `load` take the state dicts of torch.distributed.checkpoint, with and without
torch.distributed; `read` returns one. `CairnWriter`, `CairnReader`, `CairnPlanner` and `CairnStager` are for
torch.distributed.checkpoint itself. Needs torch 2.4 or later. The user guide is
docs/guide/save-from-pytorch.md.
"""

from cairn._errors import CopiesDiffer, CorruptError, HelperDied, NotSupported, SaveFailed
from cairn.torch._api import async_save, give_up_local, load, read, save
from cairn.torch._loaded import Loaded
from cairn.torch._objects import PickleRefused
from cairn.torch._options import Options
from cairn.torch._planner import CairnLoadPlanner, CairnPlanner, LoadMismatch
from cairn.torch._reader import CairnReader
from cairn.torch._saving import Saved, SaveHandle
from cairn.torch._writer import CairnStager, CairnWriter

__all__ = [
    "CairnLoadPlanner",
    "CairnPlanner",
    "CairnReader",
    "CairnStager",
    "CairnWriter",
    "CopiesDiffer",
    "CorruptError",
    "HelperDied",
    "LoadMismatch",
    "Loaded",
    "NotSupported",
    "Options",
    "PickleRefused",
    "SaveFailed",
    "SaveHandle",
    "Saved",
    "async_save",
    "give_up_local",
    "load",
    "read",
    "save",
]
