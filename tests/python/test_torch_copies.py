"""`cairn.torch`: which rank writes what, copies between devices and memory, and windows of a load; by themselves."""

import collections
import errno
import math
import mmap
import os
import subprocess
import sys
import threading
import types
import unittest
from unittest import mock

import numpy
import torch
from torch_process import ROOT, _device, _helper, _ownership, _reader, _samples, _staging, _windows


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
        self.assertRaisesRegex(OSError, "the disk", self.read, helper, [1, 2, 99])
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
