"""Node-local checkpoints: each rank has its own directory, as if on its own node, and loses it."""

import glob
import os
import shutil
import signal
import subprocess
import time
import unittest

from harness import CAIRN, TINY, Case, cairn, fingerprint, losses, steps, topology

RANKS = 4
MESH = (2, 1, 2, 1)


class Levels(Case):
    """A training that never ends by itself saves locally every 2 steps, durably every 6; then all ranks are killed."""

    def flags(self, *more):
        return ["--save", self.path("run"), "--save-local", self.path("node{rank}"), "--save-interval", "6",
                "--save-local-interval", "2", *more]

    def local(self, rank):
        """The rank's local steps, oldest first."""
        return sorted(glob.glob(self.path("node%d" % rank, "*", "step-" + "[0-9]" * 8)))

    def local_numbers(self, rank):
        return [int(step[-8:]) for step in self.local(rank)]

    def numbers(self):
        return [int(step[-8:]) for step in steps(self.path("run"))]

    def crash(self, *flags, after):
        """Trains until all ranks have local step `after`, and kills them all. Returns the losses."""
        log = self.path("crashed.json")
        process = subprocess.Popen([CAIRN, "train", *topology(*MESH), *TINY, "--bf16", "--train-iters", "100000",
                                    "--log-json", log, *self.flags(*flags)],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        deadline = time.monotonic() + 120
        while not all(self.local(rank) and self.local_numbers(rank)[-1] >= after for rank in range(RANKS)):
            self.assertLess(time.monotonic(), deadline, "waited in vain")
            self.assertIsNone(process.poll(), "training ended early")
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        while subprocess.run(["pkill", "-9", "-f", self.path("run")]).returncode == 0:
            time.sleep(0.1)
        process.communicate()
        return losses(log)

    def newest_everywhere(self):
        """The newest local step that was published on all ranks. A newer one, which parity may rebuild, is removed."""
        newest = max(set.intersection(*(set(self.local_numbers(rank)) for rank in range(RANKS))))
        for directory in (step for rank in range(RANKS) for step in self.local(rank)):
            if int(directory[-8:]) > newest:
                shutil.rmtree(directory)
        return newest

    def resume(self, first, *flags, more=4):
        """Continues to `first` + more iterations; returns the losses."""
        return self.train("resumed", MESH, "--bf16", *self.flags(*flags), "--train-iters", "100000",
                          "--exit-interval", str(first + more - 1))

    def expect_continuation(self, before, after, step):
        """`after` continues from `step`, with the losses of the unbroken training."""
        self.assertEqual(min(after), step + 1)
        common = sorted(set(before) & set(after))
        unbroken = self.train("unbroken", MESH, "--bf16", "--train-iters", "100000", "--exit-interval", str(max(after)))
        self.assertEqual({i: unbroken[i] for i in common}, {i: before[i] for i in common})
        self.assertEqual({i: unbroken[i] for i in after}, after)

    def files(self, step):
        contents = {}
        for name in sorted(os.listdir(step)):
            with open(os.path.join(step, name), "rb") as file:
                contents[name] = file.read()
        return contents

    def lose_and_rebuild(self, redundancy, lost):
        before = self.crash("--redundancy", redundancy, after=4)
        step = self.newest_everywhere()
        kept = {}
        for rank in lost:
            [directory] = [d for d in self.local(rank) if d.endswith("%08d" % step)]
            kept[directory] = self.files(directory)
            shutil.rmtree(self.path("node%d" % rank))
        after = self.resume(step, "--redundancy", redundancy, "--keep-last-local", "100")
        self.assertIn("local step %d: rebuilding %s" % (step, ", ".join("shard-%05d.h5" % r for r in lost)), self.output)
        self.assertIn("resumed from local step %d" % step, self.output)
        for directory, files in kept.items():
            self.assertEqual(sorted(files), sorted(os.listdir(directory)))
            for name, content in files.items():
                self.assertTrue(self.files(directory)[name] == content, name)
        self.expect_continuation(before, after, step)

    def test_xor_rebuilds_a_lost_node(self):
        self.lose_and_rebuild("xor:4", [2])

    def test_xor_rebuilds_rank_0(self):
        self.lose_and_rebuild("xor:4", [0])

    def test_reed_solomon_rebuilds_two(self):
        self.lose_and_rebuild("rs:4,2", [1, 3])

    def test_each_group_may_lose_one(self):
        self.lose_and_rebuild("xor:2", [1, 2])

    def test_too_many_losses_fall_back_to_the_durable_step(self):
        before = self.crash("--redundancy", "xor:4", after=8)
        durable = self.numbers()[-1]
        for rank in (0, 3):
            shutil.rmtree(self.path("node%d" % rank))
        after = self.resume(durable, "--redundancy", "xor:4")
        self.assertIn("lost, and more of its group than parity can rebuild", self.output)
        self.assertIn("resumed from %s" % steps(self.path("run"))[0][:-8], self.output)
        self.expect_continuation(before, after, durable)
        cairn("verify", self.path("run"))

    def test_a_damaged_shard_is_rebuilt_in_place(self):
        before = self.crash("--redundancy", "xor:4", after=4)
        step = self.newest_everywhere()
        [directory] = [d for d in self.local(1) if d.endswith("%08d" % step)]
        shard = os.path.join(directory, "shard-00001.h5")
        whole = self.files(directory)
        with open(shard, "r+b") as f:
            f.seek(len(whole["shard-00001.h5"]) // 2 // 4096 * 4096)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte ^ 4]))
        after = self.resume(step, "--redundancy", "xor:4", "--keep-last-local", "100")
        self.assertIn("local step %d: rebuilding shard-00001.h5" % step, self.output)
        for name, content in self.files(directory).items():
            self.assertTrue(whole[name] == content, name)
        self.expect_continuation(before, after, step)

    def test_without_redundancy_the_newest_local_step_is_resumed(self):
        before = self.crash(after=4)
        step = self.newest_everywhere()
        after = self.resume(step)
        self.assertIn("resumed from local step %d" % step, self.output)
        self.expect_continuation(before, after, step)

    def test_another_topology_resumes_from_local_steps(self):
        flags = ["--hidden-dropout", "0", "--attention-dropout", "0"]
        self.train("first", MESH, *self.flags("--redundancy", "xor:2", *flags), "--train-iters", "100000",
                   "--exit-interval", "8")
        shutil.rmtree(steps(self.path("run"))[-1])  # 8 was forced, so that it is in --save too
        shutil.rmtree(self.path("node3"))
        after = self.train("second", (1, 2, 2, 1), *self.flags(*flags), "--train-iters", "100000", "--exit-interval", "10")
        self.assertIn("local step 8: rebuilding shard-00003.h5", self.output)
        self.assertIn("resumed from local step 8", self.output)
        unbroken = self.train("unbroken", MESH, *flags, "--train-iters", "100000", "--exit-interval", "10")
        self.assertEqual(sorted(after), [9, 10])
        for i in after:
            self.assertAlmostEqual(float(after[i]) / float(unbroken[i]), 1, delta=1e-5)

    def test_the_drain_completes_steps_and_both_levels_retain(self):
        self.train("run", MESH, "--bf16", *self.flags("--redundancy", "xor:4"), "--train-iters", "15")
        self.train("plain", MESH, "--bf16", "--train-iters", "15", "--save-interval", "6", "--save", self.path("plain"))
        self.assertEqual(self.numbers(), [6, 12, 15])
        for ours, plain in zip(steps(self.path("run")), steps(self.path("plain"))):
            cairn("verify", ours)
            self.assertEqual(fingerprint(ours), fingerprint(plain))
        for rank in range(RANKS):
            self.assertEqual(self.local_numbers(rank), [14, 15])

    def test_a_shared_directory_holds_all_shards(self):
        shared = ["--save", self.path("run"), "--save-local", self.path("shared"), "--save-interval", "100"]
        self.train("first", MESH, *shared, "--save-local-interval", "2", "--redundancy", "rs:4,2", "--train-iters", "100000",
                   "--exit-interval", "5")
        [step, last] = sorted(glob.glob(self.path("shared", "*", "step-*")))
        cairn("verify", step)
        os.remove(os.path.join(last, "shard-00000.h5"))
        os.remove(os.path.join(last, "shard-00003.h5"))
        shutil.rmtree(steps(self.path("run"))[-1])
        self.train("second", MESH, *shared, "--redundancy", "rs:4,2", "--train-iters", "100000", "--exit-interval", "6")
        self.assertIn("local step 5: rebuilding shard-00000.h5, shard-00003.h5", self.output)
        cairn("verify", last)

    def test_a_full_local_directory_costs_no_checkpoint(self):
        small = self.path("node1")
        os.mkdir(small)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", small], capture_output=True).returncode:
            self.skipTest("mounting a small tmpfs needs root")
        self.addCleanup(subprocess.run, ["umount", small])
        self.train("run", MESH, *self.flags("--redundancy", "xor:4"), "--train-iters", "13")
        self.assertEqual(self.output.count("local checkpoint of iteration"), 1, self.output)
        self.assertIn("No space left on device", self.output)
        self.assertEqual(self.numbers(), [6, 12, 13])
        for step in steps(self.path("run")):
            cairn("verify", step)

    def test_a_local_directory_that_cannot_be_made_costs_no_checkpoint(self):
        open(self.path("node2"), "w").close()
        self.train("run", MESH, *self.flags(), "--train-iters", "7")
        self.assertIn("no local checkpoints", self.output)
        self.assertEqual(self.numbers(), [6, 7])

    def test_a_copied_run_does_not_touch_the_originals_local_steps(self):
        def train(run, until, *more):
            flags = ["--save", self.path(run), "--save-local", self.path("local"), "--save-local-interval", "2"]
            self.train(run, (1, 1, 1), *flags, "--train-iters", "100000", "--exit-interval", str(until), *more)
            return self.output

        train("a", 4)
        shutil.copytree(self.path("a"), self.path("b"))
        self.assertNotIn("no local checkpoints", train("a", 10, "--save-interval", "100"))
        local = sorted(glob.glob(self.path("local", "*", "step-*")))
        output = train("b", 12, "--save-interval", "100", "--lr", "2e-3")
        self.assertNotIn("resumed from local step 10", output)
        self.assertIn("step-00000004", output)
        for step in local:
            cairn("verify", step)
        self.assertIn("resumed from local step 10", train("a", 11))

    def test_sigterm_leaves_the_current_step_in_save(self):
        process = subprocess.Popen([CAIRN, "train", *topology(*MESH), *TINY, "--train-iters", "100000",
                                    *self.flags("--redundancy", "xor:4")],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        deadline = time.monotonic() + 120
        while not self.local(0):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, output[-2000:])
        self.assertEqual(self.numbers()[-1], self.local_numbers(0)[-1])
        cairn("verify", steps(self.path("run"))[-1])

    def test_contradicting_flags_are_refused(self):
        for flags, message in [(["--save-local", "x"], "--save-local needs --save"),
                               (["--save", "x", "--redundancy", "xor:4"], "need --save-local"),
                               (["--save", "x", "--save-local", "y", "--redundancy", "raid:5"], "must be xor:K or rs:K,M")]:
            self.train("refused", (1, 1, 1), *flags, "--train-iters", "1", status=2)
            self.assertIn(message, self.output)


if __name__ == "__main__":
    unittest.main()
