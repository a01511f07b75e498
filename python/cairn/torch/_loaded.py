"""The result of a load that need not find every name; a state dict that holds it is saved with its number."""

from __future__ import annotations


class Loaded(int):
    """The result of ``load(strict=False)``: the step's number, and the names that are on one side only.

    step: the number itself. missing_keys: names that the checkpoint lacks; their values are as before.
    unexpected_keys: names that only the checkpoint has. Both are as those of torch's load_state_dict.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __new__(cls, step: int, missing_keys: list[str], unexpected_keys: list[str]) -> Loaded:
        loaded = super().__new__(cls, step)
        loaded.missing_keys, loaded.unexpected_keys = missing_keys, unexpected_keys
        return loaded

    def __reduce__(self) -> tuple:
        return int, (int(self),)  # a copy is only the number

    @property
    def step(self) -> int:
        return int(self)
