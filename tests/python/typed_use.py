"""The errors that mypy reports to a user of `cairn`. scripts/lint checks this file: an error that mypy misses also fails."""

from typing import Any, assert_type

import cairn
import cairn.torch
import numpy


def use() -> None:
    assert_type(cairn.torch.save({}, "run", 1, keep_last=3), cairn.torch.Saved)
    handle = cairn.torch.async_save({}, "run", step=1, compress=True, deadline=60)
    assert_type(handle.result(), cairn.torch.Saved)
    assert_type(handle.written.result(), None)
    assert_type(cairn.torch.read("run"), dict[str, Any])
    assert_type(cairn.torch.load({}, "run"), int)
    assert_type(cairn.torch.load({}, "run", strict=False), cairn.torch.Loaded)
    cairn.torch.give_up_local("run", "the loss is not finite", deadline=60)
    assert_type(cairn.open("run")["a"][0].mean(), Any)
    row: numpy.ndarray = cairn.open("run")["a", "exp_avg"][0]
    text: str = cairn.open("run")["a"][0]  # type: ignore[assignment]
    print(row, text)
    cairn.torch.save({}, "run", 1, keep_lst=3)  # type: ignore[call-arg]
    cairn.torch.async_save({}, "run", 1, keep_lst=3)  # type: ignore[call-arg]
    cairn.torch.CairnWriter("run", 1, keep_lst=3)  # type: ignore[call-arg]
