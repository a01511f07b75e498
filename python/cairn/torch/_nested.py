"""A nested state dict made flat, in one pass: a state may have 100,000 tensors."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Union

import torch

from cairn.torch import _private

Path = tuple[Union[str, int], ...]


class Nested:
    """Equal to DCP's flatten_state_dict, which test_torch_values.py compares it with.

    flat: {FQN: value}. paths: {FQN: path}, with strings for keys and numbers for list positions. dicts:
    (path, dict) of all dicts. sharded: whether a value is a ShardedTensor. meta: (container, key, FQN) of
    tensors on the meta device, in containers that can be changed.

    The constructor raises ValueError naming two values that would have one name.
    """

    def __init__(self, state_dict: Mapping):
        self.flat: dict[str, Any] = {}
        self.paths: dict[str, Path] = {}
        self.dicts: list[tuple[Path, Mapping]] = []
        self.sharded = False
        self.meta: list[tuple[Any, Any, str]] = []
        self._enter_dict((), "", state_dict)

    def _enter_dict(self, path: Path, prefix: str, found: Mapping) -> None:
        self.dicts.append((path, found))
        names = list(map(str, found))
        if len(set(names)) < len(names):
            name = ".".join(map(str, path)) or "the state dict"
            raise ValueError(f"two keys of {name} have one name: {', '.join(map(repr, found))}")
        for name, (key, value) in zip(names, found.items()):
            fqn, kind = prefix + name, type(value)
            plain = kind is torch.Tensor or kind is torch.nn.Parameter
            if plain and not value.is_meta and fqn not in self.flat:
                self.flat[fqn] = value  # most are like this
                self.paths[fqn] = (*path, name)
            else:
                self._put((*path, name), fqn, found, key, value)

    def _put(self, path: Path, fqn: str, container: Any, key: Any, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if _private.is_sharded_tensor(value):
                self.sharded = True
            elif value.is_meta and isinstance(container, (MutableMapping, list)):
                self.meta.append((container, key, fqn))
        elif isinstance(value, Mapping):
            return self._enter_dict(path, f"{fqn}.", value)
        elif isinstance(value, list) and _has_parts(value):
            for at, item in enumerate(value):
                self._put((*path, at), f"{fqn}.{at}", value, at, item)
            return None
        if fqn in self.flat:
            raise ValueError(f"two values of the state dict have the name {fqn}")
        self.flat[fqn] = value
        self.paths[fqn] = path
        return None


def _has_parts(values: list) -> bool:
    """Whether a list is taken apart: it has a tensor or a dict, itself or in a list in it."""
    return any(
        isinstance(value, (torch.Tensor, Mapping)) or (isinstance(value, list) and _has_parts(value))
        for value in values
    )
