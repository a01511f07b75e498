"""Checkpoints of large language models: the ``cairn`` command, for Python.

The command itself is a program beside this package, in the environment's ``bin``; ``python -m cairn`` starts it, too. Nothing
here needs torch or numpy.

>>> import cairn
>>> cairn.run(["--version"], capture=True).stdout.split()[0]
'cairn'
"""

from cairn._command import CairnError, program, run
from cairn._version import __version__

__all__ = ["CairnError", "__version__", "program", "run"]
