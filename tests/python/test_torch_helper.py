"""`cairn.torch`: saves alongside the training, and a helper that is late, fails or dies."""

import copy
import gc
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import torch
from torch_process import ROOT, ProcessTest, _device, _helper, _job, _saving, cairn


class FakeHelperTest(ProcessTest):
    program = str(ROOT / "tests/python/fake_cairn.py")

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
            written = (pathlib.Path(handle.result().step_dir) / "data").read_bytes()
            self.assertEqual(written[:20_000], struct.pack("<f", step) * 5000)

    def test_segments_are_reused_for_equal_shapes(self):
        def segments(rows):
            cairn.torch.save({"w": torch.ones(rows, 1000)}, self.directory, 1)
            return {segment.plan for segment in _saving._segments._all}

        first = segments(5)
        self.assertEqual((len(first), segments(5)), (1, first))
        both = segments(6)
        self.assertEqual(len(both), 2)
        self.assertEqual(len(segments(7) & both), 1)

    def test_errors_have_python_types(self):
        for kind, exception in {
            **{"no_space": OSError, "already_exists": FileExistsError, "not_found": FileNotFoundError, "io_error": OSError},
            **{"invalid_argument": ValueError, "aborted": cairn.torch.SaveFailed, "corrupt": cairn.torch.CorruptError},
            "not_supported": cairn.torch.NotSupported,
        }.items():
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
        cairn.torch.save({"w": torch.ones(3)}, self.directory, 2)
        _helper.helper().ask("forget", plan=_saving._segments._all[-1].plan)
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
timer = threading.Timer(0.5, lambda: os.unlink({str(held)!r}))
timer.daemon = True; timer.start()
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
        self.assertEqual((done.returncode, done.stderr), (0, "cairn: waiting for 1 save(s) to be on disk\n"))
        self.assertTrue((pathlib.Path(self.directory) / "step-3/index.json").exists())


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
        self.assertRaisesRegex(RuntimeError, "model.weight was changed while it was copied", handle.result, 60)
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


class SessionTest(unittest.TestCase):
    def test_nonces_are_not_used_twice(self):
        session = _job.Session()
        nonces = [session.nonce(step, 1) for step in (1, 2, 1, 1)] + [_job.Session().nonce(1, 1)]
        self.assertEqual(len(set(nonces)), 5)
        self.assertTrue(all(re.fullmatch("[0-9a-f]{16}", nonce) for nonce in nonces))

    def test_rank_0_that_does_not_save_is_named(self):
        store = torch.distributed.HashStore()
        with mock.patch.object(_job, "rank_and_world", lambda: (1, 2)), mock.patch.object(_job._private, "default_store", lambda: store):
            self.assertRaisesRegex(TimeoutError, "rank 0 has not begun to save within 0.2 s", _job.Session().nonce, 1, 0.2)


if __name__ == "__main__":
    unittest.main()
