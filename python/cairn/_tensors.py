"""The tensors of an opened checkpoint, in columns: there may be 100,000 of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cairn._dtypes import ITEMSIZE


class Described(NamedTuple):
    """number: in the checkpoint. fqn: the name in the state dict, else that of `cairn inspect`. name: the
    parameter's."""

    number: int
    fqn: str
    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize


class Tensors(Mapping[str, Described]):
    """By FQN. columns: the library's description (tools/load/cairn_load.h)."""

    def __init__(self, columns: dict):
        self._columns = columns
        numbered = enumerate(columns["fqn"])  # a tensor without a name holds objects
        self._numbers = {fqn: number for number, fqn in numbered if fqn is not None}

    def __getitem__(self, fqn: str) -> Described:
        number, columns = self._numbers[fqn], self._columns
        name, role, dtype = (columns[key][number] for key in ("name", "role", "dtype"))
        return Described(number, fqn, name, role, dtype, tuple(columns["shape"][number]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, fqn: object) -> bool:
        return fqn in self._numbers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tensors) and self._columns == other._columns

    __hash__ = None  # type: ignore[assignment]

    @functools.cached_property
    def by_role(self) -> dict[tuple[str, str], str]:
        """FQNs by the parameter's name and the role."""
        columns = self._columns
        rows = zip(columns["name"], columns["role"], columns["fqn"])
        return {(name, role): fqn for name, role, fqn in rows if fqn is not None}

    def path(self, fqn: str) -> list:
        """The keys and list positions that lead to it in the saved state dict; see Opened.path."""
        return self._columns["paths"].get(fqn) or [fqn]
