"""What the tests of `cairn.torch` share: a directory and a helper for each test, and comparisons to the bit."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import numpy
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import cairn  # noqa: E402
import cairn.torch  # noqa: E402
from cairn import _boxes, _helper, _steps  # noqa: E402, F401 - for the tests
from cairn.torch import _device, _job, _layout, _nested, _objects, _ownership, _reader, _saving, _staging, _sums  # noqa: E402, F401


class Wrapper(torch.Tensor):
    """Wraps a tensor of the same shape and type, as in float8 trainings; every operation applies to that tensor."""

    @staticmethod
    def __new__(cls, inner, scale=None):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)

    def __init__(self, inner, scale=None):
        self.inner, self.scale = inner, scale

    def __tensor_flatten__(self):
        return ["inner", *["scale"] * (self.scale is not None)], None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        result = function(*(arg.inner if isinstance(arg, Wrapper) else arg for arg in args), **(kwargs or {}))
        return cls(result) if function is torch.ops.aten.detach.default else result


def same(a, b):
    """Equal, and of the same types, order and bits throughout."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and _objects._bytes_of(a) == _objects._bytes_of(b)
    if isinstance(a, numpy.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(*keys) and same(a[keys[0]], b[keys[1]]) for keys in zip(a, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return repr(a) == repr(b)
    return a == b


def zeros_like(value):
    """The same shapes with other values, to load into."""
    if isinstance(value, dict):
        return {key: zeros_like(item) for key, item in value.items()}
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else None


class ProcessTest(unittest.TestCase):
    """A directory, and a helper that ends with the test."""

    program = None  # the environment's

    def setUp(self):
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)
        self.environment = mock.patch.dict(os.environ, {"CAIRN": self.program} if self.program else {})
        self.environment.start()
        self.addCleanup(self.environment.stop)
        self.end_helper()
        self.addCleanup(self.end_helper)

    @staticmethod
    def end_helper():
        if _helper._current is not None:
            _helper._at_exit()
            _helper._current = None

    def round_trip(self, state, into, **options):
        saved = cairn.torch.save(state, self.directory, 7)
        self.assertEqual(cairn.torch.load(into, saved.step_dir, **options), 7)
        return into

    def check(self, state):
        loaded = self.round_trip(state, zeros_like(state))
        self.assertEqual(loaded.keys(), state.keys())
        for key, value in state.items():
            self.assertTrue(same(loaded[key], value), key)

    def small_disk(self, name, options):
        """A directory on a tmpfs with these limits; without root the test is skipped."""
        small = pathlib.Path(self.directory, name)
        small.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", small], capture_output=True).returncode:
            self.skipTest("mounting a small tmpfs needs root")
        self.addCleanup(subprocess.run, ["umount", "-l", small])
        return small
