"""`cairn.torch`: objects, ownership and staging by themselves; saves and loads of real ranks; and what happens when they die."""

import collections
import copy
import errno
import fractions
import gc
import itertools
import json
import math
import mmap
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import warnings
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python")]

import cairn  # noqa: E402
import cairn.torch  # noqa: E402
import numpy  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from cairn import _helper, _steps, _windows  # noqa: E402
from cairn.torch import _device, _job, _layout, _objects, _ownership, _reader, _samples, _saving, _staging  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

FAKE = str(ROOT / "tests/python/fake_cairn.py")


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


class Quantized(Wrapper):
    """Wraps a tensor of another type."""


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


class ObjectsTest(unittest.TestCase):
    def through_json(self, value):
        entry = _objects.encode(value, "name")
        self.assertEqual(list(entry), ["json"], repr(value)[:100])
        self.assertTrue(entry["json"].isascii())
        return _objects.decode(entry, "name", False)

    def check(self, value):
        self.assertTrue(same(self.through_json(value), value), repr(value)[:200])

    def test_training_states_round_trip(self):
        model = torch.nn.Linear(3, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        schedules = [
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
            torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 100),
            torch.optim.lr_scheduler.StepLR(optimizer, 2),
        ]
        states = [schedule.state_dict() for schedule in schedules]
        states[1].pop("_anneal_func_type", None)
        for value in [random.getstate(), numpy.random.get_state(), torch.get_rng_state(), optimizer.state_dict(), *states]:
            self.check(value)
        self.check(numpy.random.default_rng(3).bit_generator.state)  # integers of 128 bits

    def test_edge_values_round_trip(self):
        for value in [
            *(0, -1, 2**63 - 1, -(2**63), 2**63, 2**64, -(2**200), True, False, None),
            *(0.0, -0.0, 1.0, 0.1, 1e22, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan),
            *("", 'é\0\n"\\', "\ud800", "a\udcffb", "\U0001f600", b"", b"\xff\0", bytearray(b"x")),
            *((), (1,), [], {}, set(), frozenset({1, "a"}), {1, 2.5, None, (1, 2)}, [[], [()]]),
            *({1: "a", None: 2, (1, 2): [3], 1.5: {}}, {"b": 1, "a": 2}, {"\ud800": 1}),
            *({"__cairn__": 1}, {"__cairn__": "tuple", "items": [1]}, {"a": {"__cairn__": {"__cairn__": None}}}),
            *(collections.OrderedDict([("b", 1), ("a", 2)]), torch.float8_e4m3fn, torch.Size([2, 3]), torch.device("cuda", 3)),
            *(numpy.str_("a\0b\0"), numpy.bytes_(b"y\0"), numpy.str_("\U0001f600")),
            *(numpy.str_(""), numpy.bytes_(b""), numpy.empty(2, "<U0"), numpy.zeros((0, 3)), numpy.array([""])),
            *(numpy.float32(0.1), numpy.int64(3), numpy.bool_(True), numpy.float64("nan"), numpy.complex128(1 + 2j)),
            *(numpy.arange(6, dtype=">i2").reshape(2, 3), numpy.array(3.5), numpy.zeros((0, 4)), numpy.array(["a", "bc"])),
            *(torch.tensor(3.5), torch.zeros(0, 4), torch.tensor([1 + 2j]), torch.arange(6).view(2, 3).T, torch.ones(2, dtype=torch.bfloat16)),
        ]:
            self.check(value)

    def test_random_values_round_trip(self):
        source = random.Random(7)
        leaves = [None, True, 3, -(2**70), 0.5, math.inf, "x", "\udc80", b"\0", torch.bfloat16, numpy.int8(3), torch.arange(3)]
        keys = ["a", "b", "__cairn__", 1, None, (1, "x"), "\ud900"]

        def value(depth):
            kind = source.randrange(6) if depth else 5
            items = range(source.randrange(4))
            if kind == 0:
                return [value(depth - 1) for _ in items]
            if kind == 1:
                return tuple(value(depth - 1) for _ in items)
            if kind in (2, 3):
                pairs = [(source.choice(keys), value(depth - 1)) for _ in items]
                return dict(pairs) if kind == 2 else collections.OrderedDict(pairs)
            if kind == 4:
                return {source.choice(keys) for _ in items}
            return source.choice(leaves)

        for _ in range(1000):
            self.check(value(5))

    def test_equal_sets_have_equal_bytes(self):
        first, second = {"a", "b", "c", 3}, set()
        for item in (3, "c", "b", "a"):
            second.add(item)
        self.assertEqual(_objects.encode(first, ""), _objects.encode(second, ""))

    def test_non_json_values_are_pickles_that_must_be_allowed(self):
        deep = []
        for _ in range(100):
            deep = [deep]
        named = collections.namedtuple("named", "x")(1)
        globals()["named"] = type(named)
        for value in (deep, named, types.SimpleNamespace(a=1), torch.nn.Parameter(torch.ones(2)), 1j, range(3)):
            entry = _objects.encode(value, "rng.3")
            self.assertEqual(list(entry), ["pickle"])
            with self.assertRaisesRegex(cairn.torch.PickleRefused, r"rng\.3: .*allow_pickle=True"):
                _objects.decode(entry, "rng.3", False)
            self.assertIs(type(_objects.decode(entry, "rng.3", True)), type(value))

    def test_unpicklable_values_are_named(self):
        with self.assertRaisesRegex(TypeError, "loader.worker: a function"):
            _objects.encode(lambda: 0, "loader.worker")

    def test_a_type_of_a_newer_version_is_named(self):
        with self.assertRaisesRegex(ValueError, "'quaternion'"):
            _objects.decode({"json": '[{"__cairn__": "quaternion"}]'}, "x", False)


class OwnershipTest(unittest.TestCase):
    """Meshes without processes: each box has one writer, among the ranks that hold it."""

    def writers(self, mesh, replicated, fqn):
        """{box: the set of ranks that claim to write it}; a box is its coordinates along the sharding dimensions."""
        boxes = {}
        for coordinate in numpy.ndindex(*mesh.shape):
            rank = int(mesh[coordinate])
            box = tuple(at for at, copies in zip(coordinate, replicated) if not copies)
            holders = _ownership.mesh_holders(mesh, coordinate, replicated)
            self.assertIn(rank, holders)
            chosen = _ownership.choose(holders, fqn, box)
            boxes.setdefault(box, set()).add(chosen)
        return boxes

    def test_each_box_is_written_once(self):
        for shape in [(4,), (8,), (2, 2), (4, 2), (2, 4), (2, 2, 2)]:
            mesh = torch.randperm(math.prod(shape)).view(shape)
            for choice in range(2 ** len(shape)):
                replicated = [bool(choice >> dimension & 1) for dimension in range(len(shape))]
                for name in ("a", "layers.3.weight"):
                    boxes = self.writers(mesh, replicated, name)
                    self.assertEqual(len(boxes), math.prod(size for size, copies in zip(shape, replicated) if not copies))
                    self.assertTrue(all(len(chosen) == 1 for chosen in boxes.values()))

    def test_a_mesh_sliced_out_of_another(self):
        """[pp, dp, tp]: a tensor that only FSDP has sharded is on every rank of TP, but not on other stages."""
        root = torch.randperm(8).view(2, 2, 2)
        stage, tp = root[1], root[1, :, 0].tolist()
        self.assertEqual(_ownership.widened([tp[0]], root, tp, [True, False, False]), sorted(stage[0].tolist()))
        self.assertEqual(_ownership.widened(tp, root, tp, [True, False, False]), sorted(stage.flatten().tolist()))
        self.assertEqual(_ownership.widened([tp[0]], root, tp, [False, False, False]), sorted(root[:, 0].flatten().tolist()))
        everyone = root.flatten().tolist()
        self.assertEqual(_ownership.widened([5], root, everyone, [False, False, False]), [5])
        self.assertEqual(_ownership.widened([5], root.flatten(), [5], [False]), [5])  # torchtitan's: unflattened from a world without names

    def test_writes_are_spread_over_ranks(self):
        counts = collections.Counter(_ownership.choose(range(8), f"layers.{layer}.weight", (0, 0)) for layer in range(8000))
        self.assertLess(max(counts.values()), 1.15 * 1000)
        self.assertGreater(min(counts.values()), 0.85 * 1000)

    def test_the_choice_is_the_same_in_every_process(self):
        self.assertEqual([_ownership.choose(range(16), "model.embed", (0, offset)) for offset in range(6)], [12, 8, 10, 13, 13, 9])

    def test_plain_tensors_have_one_writer(self):
        tensor = torch.ones(3)
        alone = _ownership.Ownership(2, 4, [tensor])
        self.assertEqual(alone.holders("w", tensor), [0, 1, 2, 3])
        self.assertEqual(sum(_ownership.Ownership(rank, 4, [tensor]).writes("w", tensor, (0,)) for rank in range(4)), 1)
        self.assertEqual(_ownership.Ownership(2, 4, [], [2, 3]).holders("w", tensor), [2, 3])
        by_name = _ownership.Ownership(2, 4, [], lambda fqn: [2] if fqn == "mine" else None)
        self.assertEqual([by_name.holders(name, tensor) for name in ("mine", "w")], [[2], [0, 1, 2, 3]])
        with self.assertRaisesRegex(ValueError, r"w: replicas says that ranks \[0, 1\] hold it, but rank 2"):
            _ownership.Ownership(2, 4, [], [0, 1]).holders("w", tensor)


class SamplesTest(unittest.TestCase):
    def test_digests_follow_the_values(self):
        """Not their layout in memory; of every type."""
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool):
            for shape in ((1, 1), (3, 2), (40, 64), (4, 8, 16)):
                values = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(3)).to(dtype)
                values.view(-1)[0] = 1
                inverted = (1 - values.float()).to(dtype)
                turned = values.mT.contiguous().mT
                found = _samples.digests({"values": values, "turned": turned, "same": values.clone(), "inverted": inverted})
                self.assertEqual(found["values"], found["turned"], (dtype, shape))
                self.assertEqual(found["values"], found["same"], (dtype, shape))
                self.assertNotEqual(found["values"], found["inverted"], (dtype, shape))
        self.assertEqual(_samples.digests({}), {})

    def test_ranks_that_hold_the_same_have_one_group(self):
        """Vectors are not compared; ranks that the training names are marked."""
        tensor, vector = torch.ones(3, 4), torch.ones(3)
        groups = [_ownership.Ownership(rank, 4, [tensor]).group("w", tensor) for rank in range(4)]
        self.assertEqual(len(set(groups)), 1)
        self.assertIsNone(_ownership.Ownership(0, 4, [vector]).group("b", vector))
        self.assertIsNone(_ownership.Ownership(0, 1, [tensor]).group("w", tensor))
        self.assertEqual(_ownership.Ownership(1, 4, [], range(4)).group("w", tensor), "given-" + groups[0])
        self.assertNotEqual(_ownership.Ownership(1, 4, [], [1, 2]).group("w", tensor), "given-" + groups[0])


class WindowsTest(unittest.TestCase):
    def test_boxes_are_split_to_fit_a_window(self):
        for shape, limit in [((10, 7), 64), ((3, 5, 8), 100), ((1, 1, 40), 12), ((5,), 4), ((2, 3), 1000), ((), 8)]:
            target = torch.full(shape, -1, dtype=torch.int32)
            whole = torch.arange(target.numel(), dtype=torch.int32).view(shape)
            for part in _windows.split(_reader.box_of(0, [0] * len(shape), torch.int32, target), limit):
                self.assertLessEqual(part.nbytes, limit)
                values = whole[tuple(slice(at, at + extent) for at, extent in zip(part.offset, part.extent))]
                part.deliver(memoryview(bytearray(values.numpy().tobytes())), part.offset, part.extent)
            self.assertTrue(torch.equal(target, whole), shape)

    def test_tensors_are_split_at_chunks_of_the_file(self):
        for columns, rows in [(5120, 2048), (4096, 4096), (11008, 1524)]:
            parts = _windows.split(_windows.Box(0, [0, 0], [9000, columns], 2, None), 32 << 20)
            self.assertEqual(next(parts).extent, [rows, columns])

    def test_batches_fill_a_window(self):
        boxes = [_windows.Box(number, [0], [size], 1, None) for number, size in enumerate([10, 4096, 4097, 12000, 16384, 1])]
        filled = [[(box.tensor, at) for box, at in batch] for batch in _windows.batches(boxes, 16384)]
        self.assertEqual(filled, [[(0, 0), (1, 4096), (2, 8192)], [(3, 0)], [(4, 0)], [(5, 0)]])

    def test_a_request_has_a_limited_number_of_boxes(self):
        boxes = [_windows.Box(0, [number], [1], 1, None) for number in range(10_000)]
        self.assertEqual([len(batch) for batch in _windows.batches(boxes, 1 << 30)], [4096, 4096, 1808])


class KeptWindowsTest(unittest.TestCase):
    """The helper of this test answers a read with the number of its tensor in each byte of a box."""

    class Helper:
        def __init__(self):
            self.windows, self.memory, self.log = [], {}, []

        def next_number(self):
            return len(self.memory)

        def request(self, do, **fields):
            future = _helper.Future()
            self.log.append(do)
            if do == "window":
                self.memory[fields["window"]] = mmap.mmap(fields["fds"][0], 0)
            for box in fields.get("boxes", ()):
                self.memory[fields["window"]][box["at"] : box["at"] + box["extent"][0]] = bytes([box["tensor"]]) * box["extent"][0]
            if fields.get("boxes", [{"tensor": 0}])[0]["tensor"] == 99:
                future.set_exception(OSError("the disk"))
            else:
                future.set_result(None)
            return future

        alive = True

    def read(self, helper, tensors, window=1 << 13):
        got = []
        boxes = [_windows.Box(number, [0], [5000], 1, lambda data, *_: got.append(bytes(data))) for number in tensors]
        _windows.read_boxes(helper, 1, boxes, window)
        return got

    def test_windows_are_reused_by_the_next_load(self):
        helper = self.Helper()
        for _ in range(2):
            self.assertEqual(self.read(helper, range(9)), [bytes([number]) * 5000 for number in range(9)])
        self.assertEqual([helper.log.count(do) for do in ("window", "read", "close")], [3, 18, 0])
        self.read(helper, range(2), 1 << 14)
        self.assertEqual([helper.log.count(do) for do in ("window", "read", "close")], [4, 19, 1])

    def test_a_window_the_helper_may_still_fill_is_not_reused(self):
        helper = self.Helper()
        with self.assertRaisesRegex(OSError, "the disk"):
            self.read(helper, [1, 2, 99])
        self.assertEqual((len(helper.windows), helper.log.count("close")), (2, 1))


class FakeCuda:
    """torch.cuda made of threads: a stream is a list of its operations; a copy happens when its event is waited for."""

    def __init__(self):
        self.calls = []
        self.done = threading.Event()
        self.training = types.SimpleNamespace(wait_event=lambda event: self.calls.append("training waits for event"))

    def Stream(self):
        return types.SimpleNamespace(wait_stream=lambda stream: self.calls.append("side waits for training"))

    def current_stream(self):
        return self.training

    def stream(self, stream):
        return mock.MagicMock()

    def Event(self):
        return types.SimpleNamespace(record=lambda stream: self.calls.append("record"), synchronize=self.done.wait)

    def cudart(self):
        def call(name):
            return lambda *arguments: self.calls.append((name, *arguments)) or self.status

        return types.SimpleNamespace(cudaHostRegister=call("register"), cudaHostUnregister=call("unregister"))

    status = 0


def pieces_of(*pairs, later=False):
    return [_device.Piece(str(number), source, target, later) for number, (source, target) in enumerate(pairs)]


class DeviceTest(unittest.TestCase):
    def test_a_gpu_copies_alongside_the_training(self):
        cuda = FakeCuda()
        target, source = torch.zeros(3), torch.ones(3)
        copying = _device.Copying(pieces_of((source, target)), _device.Gpu(cuda))
        copying.start()
        self.assertEqual(cuda.calls, ["side waits for training", "record"])
        self.assertFalse(copying.future.done())
        copying.wait()  # of the stream, not of the CPU
        self.assertEqual(cuda.calls[2:], ["training waits for event"])
        cuda.done.set()
        copying.future.result(10)
        self.assertTrue(torch.equal(target, source))

    def test_a_failed_copy_raises_from_the_future(self):
        cuda = FakeCuda()
        cuda.done.wait = mock.Mock(side_effect=RuntimeError("CUDA error: an illegal memory access"))
        copying = _device.Copying(pieces_of((torch.ones(1), torch.zeros(1))), _device.Gpu(cuda))
        copying.start()
        with self.assertRaisesRegex(RuntimeError, "illegal memory access"):
            copying.future.result(10)

    def test_progress_is_reported_in_the_order_of_the_pieces(self):
        pairs = [(torch.full((3 << 20,), float(number)), torch.zeros(3 << 20)) for number in range(7)]
        for later in (False, True):
            heard = []
            copying = _device.Copying(pieces_of(*pairs, later=later))
            copying.follow(heard.append)
            copying.start()
            copying.join()
            copying.future.result(10)
            self.assertEqual(heard, [3, 6, 7])
            copying.follow(heard.append)  # a late caller gets it, too
            self.assertEqual(heard, [3, 6, 7, 7])
        self.assertTrue(all(torch.equal(source, target) for source, target in pairs))

    def test_new_memory_is_populated_or_the_copy_fails(self):
        def copy(later):
            fd = os.memfd_create("test")
            os.ftruncate(fd, 1 << 20)
            memory, source, populated = _staging.map_bytes(fd, 1 << 20), torch.full((1 << 20,), 7, dtype=torch.uint8), threading.Event()
            os.close(fd)
            copying = _device.Copying(pieces_of((source, memory), later=later), populated=populated)
            copying.start()
            copying.join()
            return copying.future.exception(10), memory.eq(7).all(), populated.is_set()

        for later in (False, True):
            self.assertEqual(copy(later), (None, True, True))
            with mock.patch.object(_device, "populate", side_effect=[True, OSError(errno.ENOSPC, "no shared memory")]):
                failure, _, populated = copy(later)
                self.assertEqual((failure.errno, populated), (errno.ENOSPC, False))
        with mock.patch.object(_device, "populate", return_value=False):  # as with a kernel before 5.14
            self.assertEqual(copy(False), (None, True, True))

    def test_a_copy_finishes_at_exit(self):
        script = "import atexit, torch; from cairn.torch import _device; t = torch.zeros(9); p = _device.Piece('p', torch.ones(9), t)\n"
        script += "a = _device.Copying([p]); atexit.register(lambda: (a.start(), a.join(), print(t.sum().item())))"
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
        self.assertEqual((run.returncode, run.stdout.strip()), (0, "9.0"), run.stderr)

    def test_non_contiguous_tensors_are_also_copied_later(self):
        source, target = torch.arange(12.0).view(3, 4).t(), torch.zeros(4, 3)
        copying = _device.Copying(pieces_of((source, target), later=True))
        copying.start()
        copying.join()
        copying.future.result(10)
        self.assertTrue(torch.equal(source, target))

    def test_memory_is_registered_by_its_address(self):
        cuda, buffer = FakeCuda(), torch.zeros(5, dtype=torch.int64)
        gpu = _device.Gpu(cuda)
        gpu.register(buffer)
        gpu.unregister(buffer)
        self.assertEqual(cuda.calls, [("register", buffer.data_ptr(), 40, 0), ("unregister", buffer.data_ptr())])
        cuda.status = 2
        with self.assertRaisesRegex(RuntimeError, "cudaHostRegister: CUDA error 2"):
            gpu.register(buffer)


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


class FakeHelperTest(ProcessTest):
    program = FAKE

    def hold(self):
        held = pathlib.Path(self.directory) / "hold"
        held.touch()
        os.environ["FAKE_HOLD"] = str(held)
        return held

    def test_a_third_save_waits_for_the_first(self):
        held = self.hold()
        state = {"w": torch.zeros(5000)}
        handles = []
        with self.assertLogs("cairn.torch", "WARNING") as logged:
            for step in range(2):
                state["w"].fill_(step)
                handles.append(cairn.torch.async_save(state, self.directory, step))
            self.assertFalse(any(handle.written.done() for handle in handles))
            threading.Timer(0.3, held.unlink).start()
            for step in (2, 3):
                state["w"].fill_(step)
                begin = time.monotonic()
                handles.append(cairn.torch.async_save(state, self.directory, step))
                if step == 2:
                    self.assertGreater(time.monotonic() - begin, 0.2)
        self.assertEqual(len(logged.output), 1, logged.output)
        for step, handle in enumerate(handles):
            loaded = {"w": torch.empty(5000)}
            self.assertEqual(cairn.torch.load(loaded, handle.result().step_dir), step)
            self.assertTrue(torch.equal(loaded["w"], torch.full((5000,), float(step))))

    def test_segments_are_reused_for_equal_shapes(self):
        from cairn.torch import _saving

        def segments(rows):
            cairn.torch.save({"w": torch.ones(rows, 1000)}, self.directory, 1)
            return {segment.plan for segment in _saving._segments._all}

        first = segments(5)
        self.assertEqual((len(first), segments(5)), (1, first))
        both = segments(6)
        self.assertEqual(len(both), 2)
        self.assertEqual(len(segments(7) & both), 1)

    def test_errors_have_python_types(self):
        for kind, exception in [
            ("no_space", OSError),
            ("already_exists", FileExistsError),
            ("not_found", FileNotFoundError),
            ("io_error", OSError),
            ("invalid_argument", ValueError),
            ("aborted", cairn.torch.SaveFailed),
            ("corrupt", cairn.torch.CorruptError),
            ("not_supported", cairn.torch.NotSupported),
        ]:
            self.end_helper()
            os.environ["FAKE_FAIL"] = f"{kind} rank 3 has no room"
            with self.assertNoLogs("cairn.torch"), self.assertRaisesRegex(exception, "rank 3 has no room"):
                cairn.torch.save({"w": torch.ones(4000)}, self.directory, 1)  # reported once: by the exception
            with self.assertLogs("cairn.torch", "ERROR"), self.assertRaisesRegex(exception, "rank 3 has no room"):
                cairn.torch.async_save({"w": torch.ones(4000)}, self.directory, 2).result()

    def test_a_dead_helper_is_named_and_replaced_for_the_next_save(self):
        os.environ["FAKE_DIE"] = "41"
        with self.assertRaisesRegex(cairn.torch.HelperDied, "exit status 41") as caught:
            cairn.torch.save({"w": torch.ones(4000)}, self.directory, 1)
        self.assertEqual(caught.exception.status, 41)
        del os.environ["FAKE_DIE"]
        self.hold()
        handle = cairn.torch.async_save({"w": torch.ones(4000)}, self.directory, 1)
        with self.assertLogs("cairn.torch", "ERROR"), self.assertRaisesRegex(cairn.torch.HelperDied, "signal 9"):
            os.kill(_helper.helper().pid, signal.SIGKILL)  # in here: the save may fail, and report it, at once
            handle.result()

    def test_other_ranks_learn_of_a_refusal(self):
        with self.assertRaisesRegex(TypeError, r"model\.freqs: torch.complex64 is not a type"):
            cairn.torch.save({"model": {"freqs": torch.ones(3000, dtype=torch.complex64)}}, self.directory, 1)
        _helper.helper().ask("forget", plan=cairn.torch.save({"w": torch.ones(3)}, self.directory, 2) and _any_plan())
        self.assertIn("model.freqs", (pathlib.Path(self.directory) / "aborted").read_text())

    def test_a_fork_has_its_own_helper(self):
        cairn.torch.save({"w": torch.ones(4000)}, self.directory, 1)
        parents = _helper.helper().pid
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            own = _helper.helper()
            os.write(writer, str(own.pid).encode())
            own.close()
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertNotEqual(int(os.read(reader, 20)), parents)
        for end in (reader, writer):
            os.close(end)
        cairn.torch.save({"w": torch.ones(4000)}, self.directory, 2)
        self.assertEqual(_helper.helper().pid, parents)

    def test_exit_waits_for_saves(self):
        held = self.hold()
        code = f"""
import torch, cairn.torch, cairn._helper, threading, os
cairn._helper._PATIENCE = 0.1
cairn.torch.async_save({{"w": torch.ones(4000)}}, {self.directory!r}, 3)
threading.Timer(0.5, lambda: os.unlink({str(held)!r})).start()
"""
        code = code.replace("threading.Timer", "timer = threading.Timer").rstrip() + "\n"
        code = code.replace(".start()", "; timer.daemon = True; timer.start()")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
        self.assertEqual((done.returncode, done.stderr), (0, "cairn: waiting for 1 save(s) to be on disk\n"))
        self.assertTrue((pathlib.Path(self.directory) / "step-3/index.json").exists())

    def test_dropping_a_staged_state_dict_frees_its_segment(self):
        stager = cairn.torch.CairnStager()
        for _ in range(5):
            stager.stage({"w": torch.ones(4000)}).result()

    def test_other_planners_give_pickles(self):
        inner = dcp.DefaultSavePlanner()
        methods = ("set_up_planner", "create_local_plan", "create_global_plan", "finish_plan", "resolve_data")
        planner = type("Planner", (dcp.SavePlanner,), {name: staticmethod(getattr(inner, name)) for name in methods})()
        dcp.save({"a": [1, 2], "w": torch.arange(5000)}, storage_writer=cairn.torch.CairnWriter(self.directory, 1), planner=planner)
        loaded = {"a": None, "w": torch.zeros(5000, dtype=torch.int64)}
        with self.assertRaisesRegex(cairn.torch.PickleRefused, "a: saved as a pickle"):
            cairn.torch.load(loaded, f"{self.directory}/step-1")
        cairn.torch.load(loaded, f"{self.directory}/step-1", allow_pickle=True)
        self.assertEqual(loaded["a"], [1, 2])


def _any_plan():
    from cairn.torch import _saving

    return _saving._segments._all[-1].plan


def zeros_like(value):
    """The same shapes with other values, to load into."""
    if isinstance(value, dict):
        return {key: zeros_like(item) for key, item in value.items()}
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else None


class RoundTripTest(ProcessTest):
    """One process, without torch.distributed, through the real helper."""

    def check(self, state):
        loaded = self.round_trip(state, zeros_like(state))
        self.assertEqual(loaded.keys(), state.keys())
        for key, value in state.items():
            self.assertTrue(same(loaded[key], value), key)

    def test_every_type(self):
        dtypes = cairn.torch._layout.NAME_OF

        def of(dtype, size):
            values = torch.arange(size) % 2
            # torch converts nothing to pairs of four bits.
            return values.byte().view(dtype) if "x2" in str(dtype) else values.to(dtype)

        self.check({f"{size}.{dtype}": of(dtype, size) for dtype in dtypes for size in (3, 9001)})

    def test_shapes_and_strides(self):
        image = torch.randn(2, 8, 32, 32)
        self.check(
            {
                "scalar": torch.tensor(3.5),
                "empty": torch.zeros(0, 7),
                "one": torch.ones(1, 1, 1),
                "transposed": torch.randn(100, 70).T,
                "every second": torch.randn(9000)[::2],
                "expanded": torch.randn(1, 50).expand(90, 50),
                "channels last": image.to(memory_format=torch.channels_last),
                "five": torch.randn(2, 3, 4, 5, 60),
            }
        )

    def test_tied_and_trained_tensors(self):
        weight = torch.nn.Parameter(torch.randn(90, 90))
        loaded = self.round_trip({"in": weight, "out": weight, "row": weight[3]}, {key: torch.zeros(90, 90) for key in ("in", "out")})
        self.assertTrue(torch.equal(loaded["in"], weight) and torch.equal(loaded["out"], weight))

    def test_objects_among_the_tensors(self):
        state = {
            "rng": {"python": random.getstate(), "numpy": numpy.random.get_state(), "torch": torch.get_rng_state()},
            "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1]}, {"lr": math.inf, "name": "ü"}],
            "step": 3,
            "none": None,
            "tuple": (1, torch.ones(2), {"a": {1, 2}}),
            "order": {"z": 1, "a": 2, "m": 3},
        }
        into = {"rng": zeros_like(state["rng"]), "groups": [{"lr": 0, "betas": 0, "params": 0}, {"lr": 0, "name": 0}]}
        loaded = self.round_trip(state, {**into, "step": 0, "none": 1, "tuple": 0, "order": {"z": 0, "a": 0, "m": 0}})
        self.assertTrue(same(loaded, state))

    def test_saved_state_dicts_round_trip(self):
        weight = torch.nn.Parameter(torch.randn(70, 70))
        weight.grad = torch.ones(70, 70)
        stepped, fresh = torch.optim.AdamW([weight]), torch.optim.SGD([weight])
        stepped.step()
        state = {
            "optim": {"a": stepped.state_dict(), "b": fresh.state_dict()},  # keys that are numbers, and a dict without any
            "list": [{}, torch.ones(3), {"x": [torch.randn(90, 90).T, {2: None, None: 3.5, "2.0": 1}]}, (1, {2})],
            "tuple": (torch.arange(3), "a"),
            7: {True: 1, (1, 2): torch.ones(2, 0), 1.5: torch.tensor(2.5)},
            "empty": {},
        }
        saved = cairn.torch.save(state, self.directory, 7)
        read = cairn.torch.read(saved.step_dir)

        def sorted_(value):
            if isinstance(value, dict):
                return {key: sorted_(value[key]) for key in sorted(value, key=str)}
            return [sorted_(item) for item in value] if isinstance(value, list) else value.detach() if torch.is_tensor(value) else value

        self.assertTrue(same(sorted_(read), sorted_(state)), read)
        again, other = torch.optim.AdamW([weight]), torch.optim.SGD([weight])
        again.load_state_dict(read["optim"]["a"])
        other.load_state_dict(read["optim"]["b"])
        self.assertTrue(same(sorted_(again.state_dict()), sorted_(state["optim"]["a"])))
        self.assertEqual(cairn.torch.load({"empty": {}, "optim": {"b": other.state_dict()}}, saved.step_dir), 7)

    def test_one_rank_may_have_an_empty_dict(self):
        root = _reader._Node()
        for path, value in [(["a", "b"], 1), (["a"], {}), (["c"], {}), (["c", "d"], 2), (["e"], {})]:
            root.put([(False, part) for part in path], value)
        self.assertEqual(root.container(), {"a": {"b": 1}, "c": {"d": 2}, "e": {}})

    def test_many_top_level_values_are_few_files(self):
        state = {f"{number}": torch.full((4,), float(number)) for number in range(200)} | {"ü": 3}
        planner = cairn.torch.CairnPlanner()
        planner.set_up_planner(state)
        groups = planner.layout().encode()
        self.assertLessEqual(len(groups), 16)
        self.assertEqual(sum(len(group.values) for group in groups.values()), 201)
        self.round_trip(state, zeros_like(state))

    def test_an_optimizers_own_keys_are_numbers(self):
        model = torch.nn.Linear(60, 60)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(2, 60)).sum().backward()
        optimizer.step()
        state = optimizer.state_dict()
        state["state"][0]["note"] = "kept"
        into = zeros_like(state)
        into["param_groups"] = [{key: None for key in state["param_groups"][0]}]
        self.assertTrue(same(self.round_trip(state, into), state))

    def test_objects_with_a_state_dict_round_trip(self):
        model, other = torch.nn.Linear(70, 70), torch.nn.Linear(70, 70)
        self.round_trip({"model": model}, {"model": other})
        self.assertTrue(torch.equal(model.weight, other.weight) and torch.equal(model.bias, other.bias))

    def test_loads_boxes_larger_than_a_window(self):
        state = {"big": torch.randn(300, 4000), "other": torch.randn(50_000)}
        with mock.patch.object(_windows.read_boxes, "__defaults__", (1 << 16,)):
            self.check(state)

    def test_loads_pieces_in_any_order(self):
        rows = torch.randn(4, 4096)
        pieces = [{"offset": [begin, 0], "extent": [2, 4096]} for begin in (2, 0)]
        tensors = [{"fqn": "w", "dtype": "fp32", "shape": [4, 4096], "pieces": pieces}]
        save = _saving.Save(self.directory, 1, cairn.torch.Options())
        save.hand_over(_saving.stage(_layout.Layout(tensors, sources=[("w", rows[2:]), ("w", rows[:2])]))).result(60)
        loaded = {"w": torch.zeros(4, 4096)}
        cairn.torch.load(loaded, self.directory)
        self.assertTrue(torch.equal(loaded["w"], rows))

    def test_a_load_may_request_a_part(self):
        loaded = self.round_trip({"a": torch.ones(9000), "b": torch.ones(9000), "c": 3}, {"a": torch.zeros(9000)})
        self.assertEqual((loaded["a"].sum(), list(loaded)), (9000, ["a"]))

    def test_a_dict_that_is_now_empty_is_named(self):
        weight = torch.nn.Parameter(torch.ones(30))
        stepped, fresh = torch.optim.AdamW([weight]), torch.optim.AdamW([weight])
        weight.grad = torch.ones(30)
        stepped.step()
        saved = cairn.torch.save({"optim": stepped.state_dict(), "none": {"at": {}}}, self.directory, 7)
        with self.assertRaisesRegex(cairn.torch.LoadMismatch, r"\n  optim\.state: 3 values were saved in it, and here it is empty"):
            cairn.torch.load({"optim": fresh.state_dict(), "none": {"at": {}}}, saved.step_dir)
        cairn.torch.load({"optim": fresh.state_dict()}, saved.step_dir, strict=False)
        cairn.torch.load({}, saved.step_dir)

    def test_mismatches_are_named_with_both_sides(self):
        saved = cairn.torch.save({"m": {"w": torch.ones(30, 100), "b": torch.ones(5)}, "step": 1}, self.directory, 7)
        wrong = {"m": {"w": torch.zeros(30, 101), "b": torch.zeros(5, dtype=torch.bfloat16), "new": 0}, "step": torch.ones(1)}
        with self.assertRaises(cairn.torch.LoadMismatch) as caught:
            cairn.torch.load(wrong, saved.step_dir)
        for line in (
            "m.w: saved as float32 [30, 100]; here float32 [30, 101]",
            "m.b: saved as float32 [5]; here bfloat16 [5]",
            "m.new: not in the checkpoint",
            "step: saved as an object; here float32 [1]",
        ):
            self.assertIn(line, str(caught.exception))
        into = {"m": {"b": torch.zeros(5, dtype=torch.bfloat16), "new": 0}}
        cairn.torch.load(into, saved.step_dir, strict=False, cast=True)
        self.assertTrue(torch.equal(into["m"]["b"], torch.ones(5, dtype=torch.bfloat16)))
        self.assertEqual(into["m"]["new"], 0)

    def test_a_load_that_is_not_strict_names_the_keys_of_one_side_only(self):
        """The kind: values that keep what they had are named, as by torch's own load_state_dict, whatever made the two sides differ."""
        part = lambda *sizes: torch.nn.Sequential(*(torch.nn.Linear(2, size) for size in sizes))
        for old, new in [
            (part(2, 2), part(2, 2, 2)),  # one layer more
            (part(2, 2, 2), part(2, 2)),  # one less
            (torch.nn.ModuleDict({"a": part(2)}), torch.nn.ModuleDict({"b": part(2)})),  # renamed
            (torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2)),
            (part(2), torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(2, 2))),  # buffers
        ]:
            saved = cairn.torch.save({"model": old}, self.directory, 7)
            expected = copy.deepcopy(new).load_state_dict(old.state_dict(), strict=False)
            with self.assertLogs("cairn.torch", "WARNING") as logged:
                loaded = cairn.torch.load({"model": new}, saved.step_dir, strict=False)
            self.assertEqual((loaded, loaded.step, loaded + 1), (7, 7, 8))
            for names, found in zip(expected, (loaded.missing_keys, loaded.unexpected_keys)):
                self.assertCountEqual(found, [f"model.{name}" for name in names])
                for name in found:
                    self.assertIn(name, "".join(logged.output))
        weight = torch.nn.Parameter(torch.ones(30))
        fresh = torch.optim.AdamW([weight])
        saved = cairn.torch.save({"optim": fresh.state_dict(), "none": {}}, self.directory, 8)
        weight.grad = torch.ones(30)
        fresh.step()
        with self.assertLogs("cairn.torch", "WARNING"):
            loaded = cairn.torch.load({"optim": fresh.state_dict()}, saved.step_dir, strict=False)
        self.assertEqual(loaded.missing_keys, [f"optim.state.0.{name}" for name in ("step", "exp_avg", "exp_avg_sq")])
        self.assertEqual(loaded.unexpected_keys, ["none"])
        self.assertIs(type(cairn.torch.load({}, saved.step_dir)), int)
        for value in (loaded, copy.deepcopy(loaded)):
            self.assertTrue(same(self.round_trip({"step": value}, {"step": 0}), {"step": 8}))

    def test_a_state_dict_that_read_could_not_nest_is_refused(self):
        """The kind: levels of dicts, lists and their mixes, with or without tensors, and what contains itself."""
        itself = {}
        itself["a"] = itself
        for wrap, levels, leaf in [
            (lambda value: {"a": value}, 500, torch.ones(3000)),
            (lambda value: {"a": value}, 100, {}),
            (lambda value: [value], 65, torch.ones(1)),
            (lambda value: {"a": [value]}, 100, 1),
            (lambda value: collections.OrderedDict(a=value), 70, 1),
            (lambda value: {"a": value}, 3000, 1),
            (lambda value: value, 1, itself),
        ]:
            for _ in range(levels):
                leaf = wrap(leaf)
            with self.assertRaisesRegex(ValueError, "levels.*make it flatter"):
                cairn.torch.save({"m": leaf}, self.directory, 1)
        with self.assertRaises(FileNotFoundError):
            cairn.torch.load({}, self.directory)  # nothing was left of them
        deep = torch.ones(3)
        for _ in range(62):
            deep = {"a": deep}
        self.check({"m": deep})
        with self.assertRaisesRegex(ValueError, "contains itself, or too many levels"):
            cairn.torch.load(itself, self.directory)

    def test_unsupported_values_are_named(self):
        for value, text in [
            (torch.empty(3000, device="meta"), "model.w: a tensor on the meta device"),
            (torch.ones(3000, dtype=torch.uint16), "model.w: torch.uint16 is not a type"),
            (torch.ones(3, dtype=torch.complex128), "model.w: torch.complex128 is not a type"),
            (torch.eye(50).to_sparse(), "model.w: a torch.sparse_coo tensor"),
            (lambda: 0, "model.w: a function that neither"),
            (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "model.w: a nested tensor"),
            (torch.nn.LazyLinear(3).weight, "model.w: not initialized yet"),
            (torch.zeros([1] * 9), "model.w: 9 dimensions"),
        ]:
            with self.assertRaisesRegex((TypeError, ValueError), re.escape(text)):
                cairn.torch.save({"model": {"w": value}}, self.directory, 1)
        for name, small in [("a\0b", 1), ("", 1), ("a/", 3000), (".", 3000), ("a" * 70_000, 3000), ("a\udc80", 1)]:
            with self.assertRaisesRegex(ValueError, "name"):
                cairn.torch.save({name: torch.ones(small)}, self.directory, 1)
        with self.assertRaisesRegex(ValueError, "not Unicode text"):
            cairn.torch.save({}, f"{self.directory}/\udcff", 1)
        for names in (("a", "a/b"), ("w/exp_avg", "w")):
            for small in (1, 3000):
                with self.assertRaisesRegex(ValueError, "tensors (a and a/b|w and w/exp_avg) cannot be in one step"):
                    cairn.torch.save({name: torch.ones(small) for name in names}, self.directory, 1)
        for name in (".", "a/", "a//b", "a" * 70_000):
            with self.assertRaisesRegex(ValueError, "name"):
                cairn.torch.save({name: fractions.Fraction(1, 3)}, self.directory, 1)
        for key, value in itertools.product(("nul\0", "\ud800", ""), (torch.ones(3), torch.ones(3000))):
            with self.assertRaisesRegex(ValueError, "is not a name that a step can hold"):
                cairn.torch.save({"model": {key: value, "w": torch.ones(3)}}, self.directory, 1)
        with mock.patch.object(_layout, "MAX_VALUE_BYTES", 1000), self.assertRaisesRegex(ValueError, r"replay\.a: non-tensor values take \d+ bytes"):
            cairn.torch.save({"step": 1, "replay": {"a": b"x" * 900}}, self.directory, 1)
        with self.assertRaises(FileNotFoundError):
            cairn.torch.load({}, self.directory)  # nothing was left of them

    def test_a_failed_system_call_raises_the_python_exception(self):
        file = pathlib.Path(self.directory, "file")
        file.touch()
        with self.assertRaises(NotADirectoryError) as refused:
            cairn.torch.save({"w": torch.ones(3)}, file / "run", 1)
        self.assertEqual((refused.exception.errno, refused.exception.strerror), (errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
        self.assertTrue(refused.exception.filename.startswith(str(file)))
        with self.assertRaises(FileNotFoundError) as missing:
            cairn.torch.load({}, f"{self.directory}/nowhere")
        self.assertEqual(missing.exception.filename, f"{self.directory}/nowhere")

    def test_a_failed_save_is_a_warning_on_request(self):
        run, state = pathlib.Path(self.directory, "run"), {"w": torch.ones(3000)}
        run.touch()  # in the place of the directory
        with self.assertLogs("cairn.torch", "WARNING") as logged:
            for step in (1, 2, 3):
                saved = cairn.torch.save(state, run, step, on_error="warn")
                self.assertEqual((saved.step_dir, type(saved.error)), ("", NotADirectoryError))
            handle = cairn.torch.async_save(state, run, 4, on_error="warn")
            self.assertIsInstance(handle.result().error, NotADirectoryError)
            self.assertIsNone(handle.written.result() or handle.staged.result())
        self.assertEqual([record.levelname for record in logged.records], ["WARNING"] * 2 + ["CRITICAL"] * 2)
        self.assertRegex(logged.output[2], "ALARM: the save of step 3 failed, as did 2 before it: .*Not a directory")
        for error, value, options in [
            (NotADirectoryError, state, {}),
            (TypeError, {"w": torch.ones(3, dtype=torch.complex64)}, {"on_error": "warn"}),
            (ValueError, state, {"on_error": "ignore"}),
        ]:
            with self.assertRaises(error):
                cairn.torch.save(value, run, 5, **options)
        run.unlink()
        saved = cairn.torch.save(state, run, 5, on_error="warn")
        self.assertEqual((saved.error, cairn.torch.load(state, run)), (None, 5))
        run.rename(run.with_name("gone"))
        run.touch()
        with self.assertLogs("cairn.torch", "WARNING") as logged:
            cairn.torch.save(state, run, 6, on_error="warn")
        self.assertEqual(logged.records[0].levelname, "WARNING")

    def test_tensors_without_own_memory_are_named(self):
        """Their elements are not at their address: a copy from there reads other data, or crashes the training."""
        freed, small = torch.ones(3000), torch.ones(3)
        for tensor in (freed, small):
            tensor.untyped_storage().resize_(0)
        with FakeTensorMode():
            fake = torch.ones(3000)
        for value, text in [
            (Quantized(torch.ones(3000, dtype=torch.int8), torch.tensor(0.5)), "w: a Quantized, which has no memory of its own"),
            (Quantized(torch.ones(3, dtype=torch.int8), torch.tensor(0.5)), "w: a Quantized, which has no memory of its own"),
            (fake, "w: a FakeTensor"),
            (freed, "w: its storage has 0 bytes"),
            (small, "w: its storage has 0 bytes"),
        ]:
            with self.assertRaisesRegex((TypeError, ValueError), text):
                cairn.torch.save({"w": value}, self.directory, 1)
            saved = cairn.torch.save({"w": torch.ones(value.shape)}, self.directory, 2)
            with self.assertRaisesRegex((TypeError, ValueError), text):
                cairn.torch.load({"w": value}, saved.step_dir)

    def test_a_wrapper_of_one_tensor_is_saved_as_that_tensor(self):
        weight, into = torch.randn(3000), torch.zeros(3000)
        self.round_trip({"w": Wrapper(weight, torch.tensor(0.5)), "b": Wrapper(weight[:3])}, {"w": Wrapper(into), "b": Wrapper(torch.zeros(3))})
        self.assertTrue(torch.equal(into, weight))

    def test_targets_that_cannot_be_loaded_into_are_named(self):
        saved = cairn.torch.save({"w": torch.ones(30, 100)}, self.directory, 7)
        for value, text in [
            (torch.empty(30, 100, device="meta"), "w: a tensor on the meta device"),
            (torch.zeros(30, 1).expand(30, 100), "w: a tensor whose elements share memory"),
            (torch.zeros(130).as_strided((30, 100), (1, 1)), "w: a tensor whose elements share memory"),
            (torch.zeros(9000).as_strided((30, 100), (2, 3)), "w: a tensor whose elements share memory"),
            (torch.zeros(30, 100).to_sparse(), "w: a torch.sparse_coo tensor"),
            (torch.nn.LazyLinear(3).weight, "w: a parameter that is not initialized"),
        ]:
            with self.assertRaisesRegex(cairn.torch.LoadMismatch, text):
                cairn.torch.load({"w": value}, saved.step_dir)

    def test_interleaved_tensors_are_loaded(self):
        for shape, strides in [((3, 2), (2, 3)), ((2, 50), (1, 2)), ((50, 2), (3, 100)), ((7, 1, 3), (3, 0, 1))]:
            into = torch.zeros(9000).as_strided(shape, strides)
            state = {"w": torch.randn(shape)}
            self.assertTrue(torch.equal(self.round_trip(state, {"w": into})["w"], state["w"]), (shape, strides))

    def test_values_that_are_not_loaded_stay(self):
        """DCP's planner makes None of a value whose type it does not know, before it looks whether it loads it."""
        saved = cairn.torch.save({"w": torch.ones(5)}, self.directory, 7)
        own = {"set": {1}, "array": numpy.ones(2), "path": pathlib.Path("p"), "pair": ({2}, 3)}
        state = {"w": torch.zeros(5), "own": dict(own), "list": [{4}, torch.zeros(2)]}
        with self.assertRaises(cairn.torch.LoadMismatch):
            cairn.torch.load(state, saved.step_dir)
        cairn.torch.load(state, saved.step_dir, strict=False)
        self.assertTrue(same(state["own"], own) and state["list"][0] == {4} and torch.equal(state["w"], torch.ones(5)))

    def test_non_string_keys(self):
        self.check({1: torch.randn(5000), "x": torch.randn(3), 2: {3: torch.randn(3)}})
        for twice in ({1: 0, "1": 0}, {"x": [{2: 0, "2": 0}]}):
            with self.assertRaisesRegex(ValueError, "two keys of .* have one name: (1, '1'|2, '2')"):
                cairn.torch.load(twice, self.directory)

    def test_values_a_manifest_cannot_hold_are_refused_first(self):
        state = {"w": torch.ones(3000)}
        for options, text in [
            ({"model": {"at": {"dtype": torch.float32}}}, r"model\['at'\]\['dtype'\]: a dtype"),
            ({"state": {"loss": math.nan}}, r"state\['loss'\]: nan"),
            ({"state": {1: 2}}, "the key 1 is a int"),
            ({"state": "text"}, "state: a str"),
            ({"state": {"name": "a\udc80"}}, "'name'"),
            ({"state": {"k" * 65_535: 1}}, "^state: the key 'k{40}' is empty, has a NUL"),
            ({"model": {"": 1}}, "model: the key '' is empty"),
            ({"compress": "zstd"}, "compress='zstd'"),
            ({"keep_last": 2.5}, "keep_last=2.5"),
            ({"deadline": 0}, "deadline=0"),
            ({"deadline": math.nan}, "deadline=nan"),
            ({"step": 1.7}, "step=1.7"),
            ({"step": -1}, "step=-1"),
            ({"step": 2**63}, "step=9223372036854775808"),
            ({"dir": f"{self.directory}/a\0b"}, "null byte"),
            ({"dir": f"{self.directory}/a\udc80"}, r"^'/[^{}]+/a\\udc80': the path is not Unicode"),
        ]:
            with self.assertRaisesRegex((TypeError, ValueError), text):
                cairn.torch.save(state, **{"dir": self.directory, "step": 1, **options})
        nested = {}
        for _ in range(40):
            nested = {"in": nested}
        with self.assertRaisesRegex(ValueError, "nests more than"):
            cairn.torch.save(state, self.directory, 1, state=nested)
        with self.assertRaisesRegex(ValueError, "not Unicode"):
            cairn.torch.load(state, f"{self.directory}/a\udc80")
        self.assertEqual(os.listdir(self.directory), [])
        self.assertTrue(_helper.helper().alive and not _helper.helper().saves)
        saved = cairn.torch.save(state, os.fsencode(self.directory), numpy.int64(3), deadline=math.inf, keep_last=torch.tensor(2))
        self.assertEqual(cairn.torch.load(state, os.fsencode(saved.step_dir)), 3)

    def test_pickles_are_refused_by_default(self):
        state = {"sampler": types.SimpleNamespace(epoch=3)}
        _layout._warned.clear()
        with self.assertLogs("cairn.torch", "WARNING") as said:
            cairn.torch.save(state, self.directory, 6)
            saved = cairn.torch.save(state, self.directory, 7)
        self.assertEqual(len(said.output), 1, said.output)
        self.assertIn("allow_pickle=True: sampler (a SimpleNamespace)", said.output[0])
        with self.assertRaisesRegex(cairn.torch.PickleRefused, "sampler: .*allow_pickle=True"):
            cairn.torch.read(saved.step_dir)
        self.assertEqual(cairn.torch.read(saved.step_dir, allow_pickle=True), state)
        into = {"sampler": None}
        with self.assertRaisesRegex(cairn.torch.PickleRefused, "sampler: .*allow_pickle=True"):
            cairn.torch.load(into, saved.step_dir)
        cairn.torch.load(into, saved.step_dir, allow_pickle=True)
        self.assertEqual(into, state)

    def test_dcp_rebuilds_a_state_dict_from_scratch(self):
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

        state = {"model": {"w": torch.randn(60, 60)}, "list": [{"a": 1}, {"b": torch.ones(3)}]}
        saved = cairn.torch.save(state, self.directory, 7)
        loaded = _load_state_dict_from_keys(storage_reader=cairn.torch.CairnReader(saved.step_dir))
        self.assertTrue(same({key: loaded[key] for key in state}, state))

    def test_loads_the_newest_step_of_a_run(self):
        for step in (9, 10):
            cairn.torch.save({"step": step}, self.directory, step)
        into = {"step": 0}
        self.assertEqual((cairn.torch.load(into, self.directory), into["step"]), (10, 10))
        cairn.torch.save({"step": "again"}, self.directory, 10)
        cairn.torch.load(into, self.directory)
        self.assertEqual(into["step"], "again")

    def test_steps_of_every_version_are_loaded(self):
        golden = ROOT / "tests/golden/steps-2"
        subprocess.run(["tar", "xJf", golden / "steps.tar.xz", "-C", self.directory], check=True)
        edges = {"scalar": torch.tensor(3.5, dtype=torch.bfloat16), "empty": torch.empty(0, 3), "flags": torch.tensor([True, False])}
        expected = {
            "edges": {**edges, "moment": torch.arange(6, dtype=torch.float64).view(2, 3)},
            "loader": {"1": {"epoch": 1, "seen": [3, 1, 2], "shard": ("file", 7), "left": {"a", "b"}}},
            "config": {"name": "golden", "betas": (0.9, 0.95), "nested": [1, None, {"nan": float("nan")}]},
            "step": 2,
        }
        weights = []
        for run in json.loads((golden / "fingerprints.json").read_text()):
            into = {
                "edges": {name: torch.full_like(tensor, 1) for name, tensor in expected["edges"].items()},
                "loader": {"1": dict.fromkeys(expected["loader"]["1"])},
                "config": {"name": None, "betas": None, "nested": [None, None, {"nan": None}]},
                "step": None,
                "model": {"embed.weight": torch.zeros(101, 8)},
            }
            self.assertEqual(cairn.torch.load(into, f"{self.directory}/{run}"), 10)
            weights.append(into.pop("model")["embed.weight"])
            self.assertTrue(same(into, expected), into)
        for other in weights[1:]:  # the same training, but for the order of its sums
            torch.testing.assert_close(other, weights[0])

    def test_a_superseded_step_without_its_replacement_is_loaded(self):
        """As a kill leaves it on a file system that cannot exchange two names."""
        run = pathlib.Path(self.directory)
        cairn.torch.save({"w": "old"}, run, 5)
        step = run / "step-00000005"
        shutil.copytree(step, run / "step-00000005.partial-00ab")
        step.rename(run / "step-00000005.superseded-00ab")
        self.assertEqual(_steps.steps(run), [run / "step-00000005.superseded-00ab"])
        for checkpoint in (run, step):
            into = {"w": ""}
            self.assertEqual((cairn.torch.load(into, checkpoint), into), (5, {"w": "old"}))
        shutil.copytree(run / "step-00000005.partial-00ab", step)
        self.assertEqual(_steps.steps(run), [step])

    def test_older_steps_are_removed_after_a_commit(self):
        """Only whole steps, and nothing else."""
        run = pathlib.Path(self.directory)
        for step in range(10):
            cairn.torch.save({"w": step}, run, step)
        cairn.torch.save({"w": "again"}, run, 8)  # the first one is superseded, and so is 9
        cairn.torch.save({"w": "another"}, f"{self.directory}/other", 4)
        (run / "step-00000000" / "notes.txt").write_text("mine")
        (run / "step-00000001").rename(run / "moved")
        (run / "step-00000001").symlink_to(run / "moved")
        (run / "held").mkdir()
        (run / "held" / "step-00000002.00").write_text("/another/step")
        (run / "step-00000003" / "manifest.json").write_text("{")
        shutil.rmtree(run / "step-00000004")
        shutil.copytree(f"{self.directory}/other/step-00000004", run / "step-00000004")
        (run / "step-4").mkdir()
        before = set(os.listdir(run))
        with self.assertLogs("cairn.torch", "WARNING") as said:
            cairn.torch.save({"w": 10}, run, 10, keep_last=2)
        gone = before - set(os.listdir(run))
        self.assertEqual({name.partition(".")[0] for name in gone}, {f"step-0000000{number}" for number in (5, 6, 7, 8, 9)})
        self.assertTrue((run / "step-00000008" / "manifest.json").is_file())
        warnings_ = "\n".join(said.output)
        held = "stays: /another/step uses its shards"
        for number, reason in ((0, "notes.txt is not part of the checkpoint"), (1, "a link"), (2, held)):
            self.assertRegex(warnings_, f"keep_last=2: .*step-0000000{number}.*{reason}")
        self.assertEqual(warnings_.count("steps of other runs stay"), 1)
        with self.assertNoLogs("cairn.torch"):  # each is reported once
            cairn.torch.save({"w": 11}, run, 11, keep_last=3)
        cairn.run(["verify", run / "step-00000010"], capture=True)
        with self.assertRaisesRegex(ValueError, "keep_last=-1"):
            cairn.torch.save({"w": 7}, run, 7, keep_last=-1)

    def test_after_a_rollback_the_last_save_is_the_newest(self):
        """Every reader takes the step that was saved last, and no save removes the step that it has just committed."""
        run = pathlib.Path(self.directory, "run")
        for step in (10, 20, 30, 40):
            cairn.torch.save({"w": torch.full((300,), float(step))}, run, step)
        cairn.torch.load({"w": torch.zeros(300)}, run / "step-00000010")
        saved = cairn.torch.save({"w": torch.full((300,), 11.0)}, run, 11, keep_last=2)
        self.assertTrue(os.path.isdir(saved.step_dir))
        self.assertEqual((run / "latest").read_text(), "step-00000011\n")
        into = {"w": torch.zeros(300)}
        self.assertEqual((cairn.torch.load(into, run), into["w"][0].item()), (11, 11.0))
        self.assertEqual(cairn.torch.load(into, run / "step-00000040"), 40)
        with cairn.open(run) as opened:
            self.assertEqual(opened.step, 11)
        self.assertIn("step-00000011", cairn.run(["verify", run], capture=True).stdout)
        listed = json.loads(cairn.run(["ls", run, "--json"], capture=True).stdout)
        states = {step["step"]: step["state"] for step in listed[0]["steps"]}
        self.assertEqual([number for number, state in states.items() if state == "superseded"], [20, 30, 40])
        cairn.run(["strip", run, f"{self.directory}/out", "--dtype", "fp32", "--format", "safetensors"], capture=True)
        with cairn.open(f"{self.directory}/out") as released:
            self.assertEqual(released["w"][0], 11.0)
        store = f"{self.directory}/store"
        cairn.run(["archive", "run", run / "step-00000011", run / "step-00000040", "--store", store], capture=True)
        self.assertIn("step-00000011", cairn.run(["verify", f"{store}:run"], capture=True).stdout)
        cairn.torch.save({"w": torch.full((300,), 12.0)}, run, 12, keep_last=2)
        self.assertEqual(sorted(step.name for step in run.glob("step-*")), ["step-00000011", "step-00000012"])

    def test_a_step_records_the_step_it_was_loaded_from(self):
        """Whatever its number: it may descend from an abandoned step, or be newer than the newest."""
        run = pathlib.Path(self.directory, "run")

        def save(number, **options):
            cairn.torch.save({"w": torch.full((300,), float(number)), "n": number}, run, number, **options)
            listed = json.loads(cairn.run(["ls", run, "--json"], capture=True).stdout)[0]["steps"]
            current = {step["step"]: step for step in listed if step["state"] != "superseded"}
            return current[number].get("from", {}).get("step"), list(current)

        def load(number):
            cairn.torch.load({"w": torch.zeros(300)}, run / f"step-{number:08d}")

        self.assertEqual([save(number)[0] for number in (10, 20, 30, 40)], [None, 10, 20, 30])
        load(30)
        self.assertEqual(save(50, keep_last=1), (30, [10, 20, 30, 50]))  # 40 was a spike
        load(40)
        self.assertEqual(save(41, keep_last=1), (40, [10, 20, 30, 40, 41]))  # it was none
        load(10)
        with cairn.open(run / "step-00000040") as looked_at:
            list(looked_at)
        load(50)  # a look at a higher number than the next one
        self.assertEqual(save(42), (10, [10, 42]))
        self.assertEqual(save(43, keep_last=1), (42, [42, 43]))
        self.assertEqual(sorted(step.name for step in run.glob("step-*")), ["step-00000042", "step-00000043"])

    def test_random_histories_load_the_last_save_and_its_ancestors(self):
        """Like those of tests/ckpt/run/history_walk_test.cc, through the helper."""
        for seed in range(3):
            chance, run, told = random.Random(seed), pathlib.Path(self.directory, f"walk{seed}"), []
            present, tip, state = {}, None, None  # by number
            parents = []  # of each commit its number and parent
            for _ in range(14):
                action = chance.choice(["save", "save", "save", "load", "restart"]) if present else "save"
                if action == "save":
                    loaded, last = (0, 0) if state is None else (parents[state][0], parents[tip][0])
                    number = max(chance.choice([loaded + chance.randint(1, 12), last + 10]), loaded + 1)
                    weights = {"w": torch.full((300,), float(number))}
                    cairn.torch.save(weights, run, number, keep_last=chance.randrange(3))
                    parents.append((number, state))
                    state = tip = present[number] = len(parents) - 1
                elif action == "load":
                    number = chance.choice(sorted(present))
                    cairn.torch.load({"w": torch.zeros(300)}, run / f"step-{number:08d}")
                    state = present[number]
                else:
                    _helper.helper().close()  # the process ends, and another one begins
                    number = cairn.torch.load({"w": torch.zeros(300)}, run)
                    self.assertEqual(number, parents[tip][0])
                    state = tip
                told.append((action, number))
                line, commit = set(), tip
                while commit is not None:
                    line.add(commit)
                    commit = parents[commit][1]
                listed = json.loads(cairn.run(["ls", run, "--json"], capture=True).stdout)[0]["steps"]
                listed = [step for step in listed if "superseded" not in pathlib.Path(step["directory"]).name]
                present = {step["step"]: present[step["step"]] for step in listed}
                current = [step["step"] for step in listed if step["state"] != "superseded"]
                expected = sorted(number for number, commit in present.items() if commit in line)
                self.assertEqual(sorted(current), expected, told)
                self.assertEqual((run / "latest").read_text(), f"step-{parents[tip][0]:08d}\n")

    def test_without_a_load_a_save_descends_from_the_newest_step(self):
        run, other = f"{self.directory}/run", f"{self.directory}/other"
        for number in (10, 20):
            cairn.torch.save({"w": torch.ones(300)}, run, number)
        for number in (30, 25):
            _helper.helper().close()  # of the next process
            cairn.torch.save({"w": torch.ones(300)}, run, number)
        listed = json.loads(cairn.run(["ls", run, "--json"], capture=True).stdout)[0]["steps"]
        self.assertEqual([step["step"] for step in listed if step["state"] != "superseded"], [10, 20, 25])
        self.assertEqual([step.get("from", {}).get("step") for step in listed], [None, 10, None, None])
        cairn.torch.load({"w": torch.ones(300)}, f"{run}/step-00000025")  # another run begins with it
        cairn.torch.save({"w": torch.ones(300)}, other, 1)
        origin = json.loads(cairn.run(["ls", other, "--json"], capture=True).stdout)[0]["steps"][0]["from"]
        self.assertEqual((origin["run_id"], origin["step"]), (listed[0]["run_id"], 25))

    def test_a_torn_newest_manifest_does_not_revive_abandoned_steps(self):
        run = pathlib.Path(self.directory, "run")
        for number in (10, 20, 30, 40):
            cairn.torch.save({"w": torch.full((300,), float(number))}, run, number)
        cairn.torch.load({"w": torch.zeros(300)}, run / "step-00000010")
        cairn.torch.save({"w": torch.full((300,), 11.0)}, run, 11)
        os.truncate(run / "step-00000011" / "manifest.json", 300)
        into = {"w": torch.zeros(300)}
        self.assertEqual((cairn.torch.load(into, run), into["w"][0].item()), (10, 10.0))
        said = cairn.run(["inspect", run], capture=True).stderr
        self.assertRegex(said, "passed over: .*step-00000011/manifest.json")
        with self.assertRaises(cairn.CairnError):  # it is the newest good one now
            archive = ["archive", "run", run / "step-00000010", "--store", f"{self.directory}/store"]
            cairn.run([*archive, "--delete-source"], capture=True)
        self.assertTrue((run / "step-00000010").is_dir())
        cairn.torch.save({"w": torch.full((300,), 12.0)}, run, 12, keep_last=1)
        left = sorted(int(step.name[5:]) for step in run.glob("step-*"))
        self.assertEqual(left, [10, 11, 12, 20, 30, 40])

    def test_the_command_line_reads_it(self):
        saved = cairn.torch.save({"model": torch.nn.Linear(100, 30).state_dict(), "step": 7}, self.directory, 7, compress=True)
        cairn.run(["verify", saved.step_dir], capture=True)
        self.assertRegex(cairn.run(["ls", self.directory], capture=True).stdout, r"(?m)^7 +verified")

    def test_states_of_weights_fused_only_for_the_optimizer(self):
        """As torchtitan's fused projections: the model has wq and wk, the optimizer wqk."""
        state = {"wq.weight": torch.randn(4, 4), "wk.weight": torch.randn(4, 4)}
        moments = {f"optimizer.state.wqk.weight.{name}": torch.rand(8, 4) for name in ("exp_avg", "exp_avg_sq")}
        saved = cairn.torch.save({**state, **moments}, self.directory, 1)
        said = cairn.run(["strip", saved.step_dir, f"{self.directory}/out", "--dtype", "fp32", "--format", "safetensors"], capture=True)
        self.assertRegex(said.stdout, r"left out: the optimizer's states of 1 tensor .* as wqk\.weight")
        with cairn.open(f"{self.directory}/out") as released:
            self.assertEqual(set(released), set(state))
            self.assertTrue(same({name: torch.from_numpy(released[name][:]) for name in state}, state))
        refused = cairn.run(["convert", saved.step_dir, f"{self.directory}/dcp", "--to", "dcp"], check=False, capture=True)
        self.assertRegex(refused.stderr, r"wqk\.weight has states of the optimizer but no weight")

    def test_a_full_disk_fails_the_save_and_keeps_earlier_steps(self):
        small = pathlib.Path(self.directory, "small")
        small.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], capture_output=True).returncode:
            self.skipTest("mounting a small tmpfs needs root")
        self.addCleanup(subprocess.run, ["umount", "-l", small])
        state, run = {"w": torch.randn(1000, 600)}, small / "run"
        cairn.torch.save(state, run, 1)
        with self.assertRaisesRegex(OSError, "No space left on device") as refused:
            cairn.torch.save(state, run, 2)
        self.assertEqual(refused.exception.errno, errno.ENOSPC)
        self.assertEqual([path.name for path in run.glob("step-*")], ["step-00000001"])
        shutil.rmtree(run / "step-00000001")
        cairn.torch.save(state, run, 3)
        self.assertEqual(cairn.torch.load({"w": torch.zeros(1000, 600)}, run), 3)

    def test_space_for_a_step_and_a_kept_one_is_asked_for_before_the_first_save(self):
        """Bytes and files: whatever the second save lacks is known before the first one begins."""
        state = {"w": torch.randn(1000, 600)}
        for options, unit in (("size=4m", "bytes"), ("nr_inodes=15", "files")):
            small = pathlib.Path(self.directory, unit)
            small.mkdir()
            if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", small], capture_output=True).returncode:
                self.skipTest("mounting a small tmpfs needs root")
            self.addCleanup(subprocess.run, ["umount", "-l", small])
            says = rf"no room for a step and one that is kept: \S+: needs about \d+ {unit}, but only \d+ are free"
            with self.assertRaisesRegex(OSError, says) as refused:
                cairn.torch.save(state, small / "run", 1, require_space=True)
            self.assertEqual(refused.exception.errno, errno.ENOSPC)
            self.assertEqual(list(small.glob("run/step-*")), [])
            cairn.torch.save(state, small / "run", 1)  # a warning on the helper's stderr
            self.assertEqual(len(list(small.glob("run/step-*"))), 1)

    def test_a_helper_finishes_saves_despite_signals(self):
        saved = cairn.torch.async_save({"w": torch.randn(1000, 600)}, self.directory, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(_helper.helper().pid, number)
        saved.result()
        cairn.torch.save({"w": torch.zeros(3)}, self.directory, 2)

    def test_a_damaged_step_is_refused(self):
        saved = cairn.torch.save({"w": torch.randn(100_000)}, self.directory, 7)
        largest = max(pathlib.Path(saved.step_dir).rglob("*.h5"), key=lambda file: file.stat().st_size)
        data = bytearray(largest.read_bytes())
        data[len(data) // 2] ^= 1
        largest.write_bytes(data)
        with self.assertRaises(cairn.torch.CorruptError):
            cairn.torch.load({"w": torch.zeros(100_000)}, saved.step_dir)

    def test_a_damaged_checkpoint_of_another_system_is_refused(self):
        state = {"w": torch.randn(100_000), "v": torch.randn(1000)}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.save(state, checkpoint_id=f"{self.directory}/dcp", no_dist=True)
        into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        cairn.torch.load(into, f"{self.directory}/dcp")
        self.assertTrue(same(into, state))
        (file,) = pathlib.Path(self.directory, "dcp").glob("*.distcp")
        data = bytearray(file.read_bytes())
        data[data.index(cairn.torch._objects._bytes_of(state["w"])) + 200_000] ^= 1
        file.write_bytes(data)
        with self.assertRaisesRegex(cairn.torch.CorruptError, file.name):
            cairn.torch.load(into, f"{self.directory}/dcp")


class OptimizerTest(ProcessTest):
    """Saves whose copy runs alongside the training, until the optimizer's step."""

    def setUp(self):
        super().setUp()
        self.model = torch.nn.Linear(64, 64)
        self.model.register_buffer("seen", torch.zeros(64, 64))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.model(torch.ones(64)).sum().backward()
        self.optimizer.step()
        self.gate = threading.Event()
        copy, trainer = _device.copy_on_one_thread, threading.current_thread()
        beside_training = lambda: threading.current_thread() is not trainer  # noqa: E731
        gated = mock.patch.object(_device, "copy_on_one_thread", lambda *pair: (beside_training() and self.gate.wait(60), copy(*pair)))
        gated.start()
        self.addCleanup(gated.stop)
        self.addCleanup(self.gate.set)

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def test_the_next_step_waits_and_other_values_are_copied_at_once(self):
        before = copy.deepcopy(self.state())
        handle = cairn.torch.async_save(self.state(), self.directory, 1, optimizer=self.optimizer)
        self.model.seen += 1  # as a forward changes a buffer
        step = threading.Thread(target=self.optimizer.step)
        step.start()
        step.join(0.2)
        self.assertTrue(step.is_alive())
        self.assertFalse(handle.staged.done())
        self.gate.set()
        step.join(60)
        handle.result(60)
        loaded = copy.deepcopy(self.state())
        cairn.torch.load(loaded, self.directory)
        self.assertNotEqual(self.model.weight.tolist(), before["model"]["weight"].tolist())
        for part in (lambda state: state["model"], lambda state: state["optimizer"]["state"][0]):
            for name, tensor in part(before).items():
                self.assertTrue(torch.equal(part(loaded)[name], tensor), name)

    def test_a_change_before_the_copy_fails_the_save_by_name(self):
        handle = cairn.torch.async_save(self.state(), self.directory, 1, optimizer=[self.optimizer])
        with torch.no_grad():
            self.model.weight.mul_(2)
        self.gate.set()
        with self.assertRaisesRegex(RuntimeError, "model.weight was changed while it was copied"):
            handle.result(60)
        self.optimizer.step()  # does not fail with it
        self.assertEqual(cairn.torch.save(self.state(), self.directory, 2).step_dir, f"{self.directory}/step-00000002")
        self.assertEqual([name for name in os.listdir(self.directory) if name.startswith("step-00000001")], [])

    def test_dropping_a_staged_dict_frees_its_segment_after_the_copy(self):
        stager = cairn.torch.CairnStager(optimizer=self.optimizer)
        stager.stage(self.state())
        (segment,) = _saving._segments._all
        gc.collect()
        self.assertFalse(segment.written.done())
        self.gate.set()
        segment.written.result(60)

    def test_an_interrupt_during_the_copy_fails_the_save(self):
        self.gate.set()
        with mock.patch.object(_device, "copy_on_one_thread", side_effect=KeyboardInterrupt), self.assertLogs("cairn.torch", "ERROR"):
            for step in range(3):  # more than there are segments
                with self.assertRaises(KeyboardInterrupt):
                    cairn.torch.async_save(self.state(), self.directory, step, optimizer=self.optimizer)
        self.optimizer.step()
        cairn.torch.save(self.state(), self.directory, 9)

    def test_a_forked_child_does_not_wait_for_its_parents_copy(self):
        handle = cairn.torch.async_save(self.state(), self.directory, 1, optimizer=self.optimizer)
        if (child := os.fork()) == 0:
            torch.set_num_threads(1)  # OpenMP's threads do not survive a fork, and torch waits for them for ever
            self.optimizer.step()
            handle.wait_staged()
            try:
                handle.result()
            except cairn.torch.HelperDied:
                os._exit(7)
            os._exit(1)
        until = time.monotonic() + 60
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < until:
            time.sleep(0.01)
        if ended[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        self.assertEqual(os.waitstatus_to_exitcode(ended[1]), 7)
        self.gate.set()
        handle.result(60)

    def test_other_objects_than_optimizers_are_refused(self):
        with self.assertRaisesRegex(TypeError, "optimizer: a Linear"):
            cairn.torch.async_save(self.state(), self.directory, 1, optimizer=[self.model])


class RanksTest(ranks.RanksCase):
    """Jobs of several processes: what each rank does is in torch_cases.py."""

    cases = "torch_cases"

    def test_four_ranks_save_and_other_numbers_of_ranks_load(self):
        self.run_ranks("save_all", 4)
        for world in (3, 2, 1):
            with self.subTest(world=world):
                self.run_ranks("load_all", world)
        for name, mesh in {"fsdp": "4 ranks", "hsdp": "replicate=2 shard=2", "tp_fsdp": "dp=2 tp=2", "whole": "4 ranks"}.items():
            cairn.run(["verify", f"{self.directory}/{name}"], capture=True)
            self.assertEqual([row["mesh"] for row in cairn.ls(f"{self.directory}/{name}")], [mesh])

    def test_fsdp1(self):
        self.run_ranks("fsdp1", 2)
        self.run_ranks("fsdp1", 3)
        cairn.run(["verify", f"{self.directory}/fsdp1"], capture=True)
        self.run_ranks("hybrid_fsdp1", 4)

    def test_torch_distributed_checkpoint(self):
        self.run_ranks("with_dcp", 4)

    def test_a_training_resumes_bit_by_bit(self):
        self.run_ranks("resume", 2)

    def test_edge_cases_of_dtensors(self):
        self.run_ranks("dtensors", 2)

    def test_a_rank_that_dies_is_named(self):
        self.run_ranks("rank_dies", 4, killed=(2,))

    def test_a_rank_that_dies_during_its_copy_is_named(self):
        self.run_ranks("rank_dies_while_it_copies", 4, killed=(2,))

    def test_a_rank_that_refuses_is_named(self):
        self.run_ranks("rank_refuses", 3)

    def test_a_rank_that_is_late_is_named_with_its_host(self):
        self.run_ranks("rank_is_late", 3)

    def test_a_rank_whose_helper_dies_is_named(self):
        self.run_ranks("helper_dies", 3)

    def test_unwritten_tensors_are_named(self):
        self.run_ranks("hole", 2)

    def test_helpers_outlive_their_trainers(self):
        self.run_ranks("all_die", 3, killed=(0, 1, 2))
        state = {"model": {f"w{number}": torch.zeros(1000, 1000) for number in range(8)}, "step": 0}
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                self.assertEqual(cairn.torch.load(state, f"{self.directory}/all_die"), 5)
                break
            except FileNotFoundError:
                time.sleep(0.2)
        torch.manual_seed(0)
        for number in range(8):
            self.assertTrue(torch.equal(state["model"][f"w{number}"], torch.randn(1000, 1000)), number)

    def test_the_readme(self):
        self.run_ranks("readme", 2)

    def test_the_guide(self):
        """docs/guide/save-from-pytorch.md: its Python in a process, then in a new one, which resumes; then its commands."""
        for step in (2, 4):
            self.run_ranks("guide", 1)
            newest = cairn.torch.read(f"{self.directory}/run")
            self.assertEqual((newest["step"], newest["optim"]["state"][0]["step"]), (step, step))
        self.assertEqual([row["step"] for row in cairn.ls(f"{self.directory}/job")], [3, 4])
        commands = re.findall(r"^\$ cairn (.*)$", (ROOT / "docs/guide/save-from-pytorch.md").read_text(), re.M)
        self.assertGreater(len(commands), 2)
        for command in commands:
            cairn.run(command.replace("/scratch", self.directory).split(), capture=True)


class SessionTest(unittest.TestCase):
    def test_nonces_are_not_used_twice(self):
        session = _job.Session()
        nonces = [session.nonce(step, 1) for step in (1, 2, 1, 1)] + [_job.Session().nonce(1, 1)]
        self.assertEqual(len(set(nonces)), 5)
        self.assertTrue(all(re.fullmatch("[0-9a-f]{16}", nonce) for nonce in nonces))

    def test_rank_0_that_does_not_save_is_named(self):
        store = torch.distributed.HashStore()
        with mock.patch.object(_job, "rank_and_world", lambda: (1, 2)), mock.patch.object(_job._private, "default_store", lambda: store):
            with self.assertRaisesRegex(TimeoutError, "rank 0 has not begun to save within 0.2 s"):
                _job.Session().nonce(1, 0.2)


if __name__ == "__main__":
    unittest.main()
