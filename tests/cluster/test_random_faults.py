"""Random faults, one after the other, of trainings on four nodes: the long form.

After each, the newest step that the training reported is whole, and the same command resumes from it, or from a newer one, without a hand.
CAIRN_FAULTS says how many, CAIRN_SEED which.
"""

import os
import random
import re
import sys
import time

import world
from cluster_case import MountedCase, needs_torch


class RandomFaults:
    """A kind of training has `launch`, `process` and `launcher` (for pkill on a node), and the patterns of its output."""

    slurm = False
    saved_line = resumed_line = ""  # with the step

    def setUp(self):
        super().setUp()
        self.random = random.Random(self.seed())
        self.newest = 0  # the newest step that was reported as saved
        self.starts = 0
        self.launchers = []

    @staticmethod
    def seed():
        seed = int(os.environ.get("CAIRN_SEED") or random.randrange(10**6))
        print(f"CAIRN_SEED={seed}", file=sys.stderr, flush=True)
        return seed

    # The training.

    def begin(self):
        """Starts it, again if it loses a peer at once, as a job script would; it resumes and saves a step."""
        before = self.newest
        for _ in range(3):
            self.starts += 1
            self.launchers = self.launch(f"training-{self.starts}")
            self.wait(lambda: self.reported() > before or not self.running(), "a step after the start", log=self)
            if self.running():
                break
            print(f"start {self.starts} ended:\n{self.output()[-4000:]}", file=sys.stderr, flush=True)
        self.assertTrue(self.running(), self.output())
        self.assertNotIn("leftover not removed", self.output())
        if before:
            resumed = list(map(int, re.findall(self.resumed_line, self.output())))
            self.assertTrue(resumed and min(resumed) >= before, f"step {before} was reported\n{self.output()}")

    def running(self):
        return any(launcher.running() for launcher in self.launchers)

    def output(self):
        return "\n".join(launcher.output() for launcher in self.launchers)

    def reported(self):
        self.newest = max([self.newest, *map(int, re.findall(self.saved_line, self.output()))])
        return self.newest

    def check_newest(self):
        """The newest step that was reported."""
        self.cairn("verify", f"{self.there}@{self.newest}")

    def survives(self):
        """Waits until it saves a step, or ends on all nodes. Returns whether it continues."""
        before = self.reported()
        self.wait(lambda: self.reported() > before or not self.running(), "a step or the end", log=self)
        return self.running()

    # The faults. Each lasts until the function that it returns was called.

    def signal(self, signal, *pattern):
        """Sends it to the matching processes on one of the nodes. Returns a function that continues them."""
        node = self.random.choice(self.cluster.nodes)
        node.run("pkill", f"-{signal}", *pattern)
        return lambda: node.run("pkill", "-CONT", *pattern)

    def kill_a_rank(self):
        return self.signal("KILL", *self.process)

    def stop_a_rank(self):
        return self.signal("STOP", *self.process)

    def kill_a_launcher(self):
        return self.signal("KILL", *self.launcher)

    def kill_a_node(self):
        node = self.random.choice(self.cluster.nodes)
        node.kill()

        def boot():
            node.boot()
            self.cluster.mount(node)

        return boot

    def cut_a_node(self):
        node = self.random.choice(self.cluster.nodes)
        node.cut()
        return node.mend

    def mount_fault(self, nodes, *lines):
        for node in nodes:
            self.cluster.fault(node, *lines)
        return lambda: [self.cluster.fault(node) for node in nodes]

    def freeze_a_mount(self):
        return self.mount_fault([self.random.choice(self.cluster.nodes)], "hang")

    def fill_the_directory(self):
        return self.mount_fault(self.cluster.nodes, "write,fsync ENOSPC")

    def make_it_read_only_on_a_node(self):
        return self.mount_fault([self.random.choice(self.cluster.nodes)], "change EROFS")

    def lose_it_on_a_node(self):
        return self.mount_fault([self.random.choice(self.cluster.nodes)], "any ESTALE")

    def faults(self):
        return [self.kill_a_rank, self.stop_a_rank, self.kill_a_launcher, self.kill_a_node, self.cut_a_node, self.freeze_a_mount,
                self.fill_the_directory, self.make_it_read_only_on_a_node, self.lose_it_on_a_node]

    def test_reported_steps_stay(self):
        self.begin()
        for number in range(int(os.environ.get("CAIRN_FAULTS", 100))):
            fault = self.random.choice(self.faults())
            time.sleep(self.random.uniform(0, self.plain))
            lift = fault()
            time.sleep(self.random.choice([0.1, 0.5, 3]) * self.patience)
            lift()
            survived = self.survives()
            self.check_newest()
            end = "continues" if survived else "ended"
            print(f"{number + 1}. {fault.__name__}: {end} at step {self.newest}", file=sys.stderr, flush=True)
            if not survived:
                self.begin()


class TrainTest(RandomFaults, MountedCase):
    """`cairn train` under mpirun."""

    process = ["-x", "cairn-train"]
    saved_line = r"successfully saved checkpoint from iteration +(\d+)"
    resumed_line = r"resumed from .*\(iteration (\d+)\)"

    def launch(self, name):
        flags = ["--save-interval", 4, "--keep-last", 20, "--on-save-error", "warn", "--wait-for-lock", round(20 * self.patience)]
        return [self.start(self.mpirun(4, *self.train(*flags, iterations=10**6)), name)]

    def kill_a_launcher(self):
        """mpirun is not on a node."""
        self.launchers[0].process.kill()
        return lambda: None


@needs_torch
class TorchTest(RandomFaults, MountedCase):
    """`cairn.torch` under torchrun; each rank has a helper."""

    process = ["-f", "[-]u .*torch_job.py"]
    launcher = ["-f", "bin/torchrun"]
    helper = ["-x", "cairn"]
    saved_line = r"(?m)^saved (\d+) in"
    resumed_line = r"(?m)^resumed from (\d+)"

    def launch(self, name):
        return self.torch_job(10**6, 3 * self.patience, log=name)

    def kill_a_helper(self):
        return self.signal("KILL", *self.helper)

    def stop_a_helper(self):
        return self.signal("STOP", *self.helper)

    def faults(self):
        return [*super().faults(), self.kill_a_helper, self.stop_a_helper]


class LocalTorchTest(TorchTest):
    """The same with steps in the nodes' memory. A killed node loses its own; the job checks the bits of the step that it resumes from."""

    def launch(self, name):
        return self.torch_job(10**6, 3 * self.patience, "/dev/shm/cairn", "xor:4", log=name)

    def check_newest(self):
        """The next start resumes from it."""

    def flip_a_bit(self):
        """In the newest local step of a node."""
        script = "import glob,os,random; f = random.choice(glob.glob(max(glob.glob('/dev/shm/cairn/*/step-????????')) + '/*')); " \
                 "b = bytearray(open(f, 'rb').read()); b[random.randrange(len(b))] ^= 1; open(f, 'r+b').write(b)"
        self.random.choice(self.cluster.nodes).run(sys.executable, "-c", script)
        return lambda: None

    def fill_the_memory(self):
        """Of a node: not one page more."""
        node = self.random.choice(self.cluster.nodes)
        node.run("sh", "-c", "mount -o remount,size=$(df -k --output=used /dev/shm | tail -1)k /dev/shm")
        return lambda: node.run("mount", "-o", "remount,size=1G", "/dev/shm")

    def faults(self):
        return [*super().faults(), self.flip_a_bit, self.fill_the_memory]


if __name__ == "__main__":
    world.main()
