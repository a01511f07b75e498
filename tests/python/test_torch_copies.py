"""`cairn.torch`: which rank writes what, copies between devices and memory, and the boxes of a load; by themselves."""

import collections
import ctypes
import errno
import math
import os
import subprocess
import sys
import threading
import types
import unittest
from unittest import mock

import numpy
import torch
from torch_process import ROOT, _boxes, _device, _layout, _ownership, _reader, _staging, _sums


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


class SumsTest(unittest.TestCase):
    def test_a_flipped_bit_changes_the_sum_and_the_layout_in_memory_does_not(self):
        """Of every type; a GPU's sum, here computed by torch on the CPU, is the same."""
        random = torch.Generator().manual_seed(3)
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool):
            for shape in ((), (0, 3), (1,), (5,), (1, 1), (3, 2), (40, 64), (4, 8, 16)):
                size = math.prod(shape) * dtype.itemsize
                memory = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8, generator=random)
                values = memory.view(dtype).view(shape)
                turned = values.mT.contiguous().mT if values.dim() > 1 else values
                spread = torch.stack([values, values], -1)[..., 1]
                (found,) = set(_sums.sums([values, turned, spread, values.clone()]))
                self.assertEqual(_sums.text(_sums.on_device(spread).item()), _sums.text(found), (dtype, shape))
                for _ in range(20 if size else 0):
                    at, bit = int(torch.randint(size, ())), 1 << int(torch.randint(1 if dtype == torch.bool else 8, ()))
                    memory[at] ^= bit
                    self.assertNotEqual(_sums.sums([values]), [found], (dtype, shape))
                    memory[at] ^= bit
        self.assertEqual(_sums.sums([]), [])

    def test_sums_of_nan_are_of_their_bits(self):
        nan, other = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
        self.assertEqual((bool(nan.isnan()), bool(other.isnan())), (True, True))
        self.assertNotEqual(*_sums.sums([nan, other]))

    def test_ranks_that_hold_the_same_have_one_group(self):
        """Plain vectors only if the training learns them; ranks that the training names are marked."""
        tensor, vector = torch.ones(3, 4), torch.ones(3)
        groups = [_ownership.Ownership(rank, 4, [tensor]).group("w", tensor, False) for rank in range(4)]
        self.assertEqual(len(set(groups)), 1)
        self.assertIsNone(_ownership.Ownership(0, 4, [vector]).group("b", vector, False))
        self.assertEqual(_ownership.Ownership(0, 4, [vector]).group("b", vector, True), groups[0])
        self.assertIsNone(_ownership.Ownership(0, 1, [tensor]).group("w", tensor, True))
        self.assertEqual(_ownership.Ownership(1, 4, [], range(4)).group("w", tensor, False), "given-" + groups[0])
        self.assertNotEqual(_ownership.Ownership(1, 4, [], [1, 2]).group("w", tensor, False), "given-" + groups[0])

    def test_a_training_learns_parameters_and_states(self):
        """Parameters and states, by the names that optimizers give them; not the statistics of a batch norm, or of random generators."""
        states = [("optim", "state", name, kind) for name in ("norm.scale", 3) for kind in ("step", "exp_avg")]
        model = [("model", name) for name in ("norm.scale", "norm.running_mean", "up.bias", "table")]
        paths = [*states, *model, ("optim", "param_groups", 0, "lr"), ("rng", "state", "cpu", "words")]
        learned = _layout.Learned(paths)
        self.assertEqual([path for path in paths if learned.has(path)], [*states, model[0], model[2]])


class BoxesTest(unittest.TestCase):
    """The checkpoint of this test has 32-bit integers that count from 0 in each tensor."""

    class Opened:
        def __init__(self):
            self.calls = []

        def fill(self, boxes, places):
            self.calls.append([(box.tensor, list(box.offset), list(box.extent)) for box in boxes])
            for box, place in zip(boxes, places):
                whole = torch.arange(100_000, dtype=torch.int32).view(100, 1000)
                part = whole[tuple(slice(at, at + extent) for at, extent in zip(box.offset, box.extent))].contiguous()
                ctypes.memmove(place, part.data_ptr(), part.nbytes)

    whole = torch.arange(100_000, dtype=torch.int32).view(100, 1000)

    def read(self, targets, buffer=None):
        opened = self.Opened()
        boxes = [_reader.box_of(at, [0, 0], torch.int32, target) for at, target in enumerate(targets)]
        _boxes.read_boxes(opened, boxes, buffer)
        for target in targets:
            self.assertTrue(torch.equal(target.to(torch.int32), self.whole[: target.shape[0], : target.shape[1]]))
        return opened.calls

    def test_boxes_are_split_to_fit_the_buffer(self):
        for shape, limit in [((10, 7), 64), ((3, 5, 8), 100), ((1, 1, 40), 12), ((5,), 4), ((2, 3), 1000), ((), 8)]:
            target = torch.full(shape, -1, dtype=torch.int64)  # of another type: through a buffer
            whole = torch.arange(target.numel(), dtype=torch.int32).view(shape)
            for part in _boxes.split(_reader.box_of(0, [0] * len(shape), torch.int32, target), limit):
                self.assertLessEqual(part.nbytes, limit)
                values = whole[tuple(slice(at, at + extent) for at, extent in zip(part.offset, part.extent))]
                self.assertEqual(part.nbytes, values.nbytes)
                part.deliver(memoryview(bytearray(values.numpy().tobytes())), part.offset, part.extent)
            self.assertTrue(torch.equal(target, whole.long()), shape)

    def test_tensors_are_split_at_chunks_of_the_file(self):
        for columns, rows in [(5120, 2048), (4096, 4096), (11008, 1524)]:
            box = _boxes.Box(0, [0, 0], [9000, columns], 9000 * columns * 2)
            self.assertEqual(next(_boxes.split(box, 32 << 20)).extent, [rows, columns])

    def test_memory_in_the_order_of_the_file_is_filled_at_once(self):
        targets = [torch.zeros(100, 1000, dtype=torch.int32) for _ in range(3)]
        self.assertEqual(len(self.read(targets)), 1)
        with mock.patch.object(_boxes, "CALL_BYTES", 500_000):  # one tensor has 400,000 bytes
            self.assertEqual([len(call) for call in self.read(targets)], [1, 1, 1])

    def test_other_memory_is_filled_through_a_buffer(self):
        targets = [torch.zeros(1000, 100, dtype=torch.int32).t(), torch.zeros(100, 1000), torch.zeros(9, 3000, dtype=torch.int32)[:, ::3]]
        self.assertEqual(len(self.read(targets)), 1)
        with mock.patch.object(_boxes, "BUFFER_BYTES", 1 << 14):
            self.assertGreater(len(self.read(targets)), 10)
        self.assertEqual(self.read([torch.zeros(0, 5, dtype=torch.int32)]), [])

    def test_pinned_memory_is_filled_again_only_after_its_copy(self):
        """A GPU whose copies end when they are waited for; each of the two pieces waits for its own."""
        waited = []

        class Event:
            def record(self, stream):
                self.number = len(events)
                events.append(self)

            def synchronize(self):
                waited.append(self.number)

        events = []
        cuda = types.SimpleNamespace(Event=Event, current_stream=lambda: None)
        with mock.patch.object(_boxes, "BUFFER_BYTES", 1 << 16):
            calls = self.read([torch.zeros(100, 1000)], _device.PinnedBuffer(cuda, pin=False))
        self.assertEqual((len(calls), len(events)), (7, 7))
        self.assertEqual(waited, [0, 1, 2, 3, 4, 5, 6])


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

    def test_copies_of_other_ranks_are_summed_and_not_copied(self):
        """On the CPU, now and later, and beside a GPU; the sums are there when the copy is done."""
        values = torch.arange(6.0).view(2, 3)
        cuda = FakeCuda()
        cuda.done.set()
        for gpu in (None, _device.Gpu(cuda)):
            for later in (False, True):
                target = torch.zeros(2, 3)
                both = _device.Piece("a", values, target, later, ("all", "a")), _device.Piece("b", values, None, later, ("all", "b"))
                copying = _device.Copying(both, gpu)
                copying.start()
                copying.join()
                copying.future.result(10)
                (expected,) = _sums.sums([values])
                self.assertEqual(copying.sums, {("all", "a"): expected, ("all", "b"): expected})
                self.assertTrue(torch.equal(target, values))

    def test_a_failed_copy_raises_from_the_future(self):
        cuda = FakeCuda()
        cuda.done.wait = mock.Mock(side_effect=RuntimeError("CUDA error: an illegal memory access"))
        copying = _device.Copying(pieces_of((torch.ones(1), torch.zeros(1))), _device.Gpu(cuda))
        copying.start()
        self.assertRaisesRegex(RuntimeError, "illegal memory access", copying.future.result, 10)

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
        self.assertRaisesRegex(RuntimeError, "cudaHostRegister: CUDA error 2", gpu.register, buffer)


if __name__ == "__main__":
    unittest.main()
