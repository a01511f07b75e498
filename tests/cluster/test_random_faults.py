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
from cluster_case import MountedCase


class RandomFaultsTest(MountedCase):
    slurm = False

    def setUp(self):
        super().setUp()
        self.random = random.Random(self.seed())
        self.reported = 0  # the newest step that is said to be saved
        self.starts = 0
        self.training = None

    @staticmethod
    def seed():
        seed = int(os.environ.get("CAIRN_SEED") or random.randrange(10**6))
        print(f"CAIRN_SEED={seed}", file=sys.stderr, flush=True)
        return seed

    # The training.

    def begin(self):
        """Starts it; it resumes and saves a step."""
        flags = ["--save-interval", 4, "--keep-last", 20, "--on-save-error", "warn", "--wait-for-lock", round(20 * self.patience)]
        self.starts += 1
        self.training = self.start(self.mpirun(4, *self.train(*flags, iterations=10**6)), f"training-{self.starts}")
        before = self.reported
        self.wait(lambda: self.saved() > before or not self.training.running(), "a step after the start", log=self.training)
        self.assertTrue(self.training.running(), self.training.output())
        if before:
            resumed = re.search(r"resumed from .*\(iteration (\d+)\)", self.training.output())
            self.assertTrue(resumed and int(resumed[1]) >= before, f"step {before} was reported\n{self.training.output()}")

    def saved(self):
        steps = re.findall(r"successfully saved checkpoint from iteration +(\d+)", self.training.output())
        self.reported = max([self.reported, *map(int, steps)])
        return self.reported

    def survives(self):
        """Waits until it saves a step, or ends. Returns whether it continues."""
        before = self.saved()
        self.wait(lambda: self.saved() > before or not self.training.running(), "a step or the end", log=self.training)
        return self.training.running()

    # The faults. Each lasts until the function that it returns was called.

    def signal(self, signal):
        """Of a rank of this node."""
        node = self.random.choice(self.cluster.nodes)
        node.run("pkill", f"-{signal}", "-n", "-x", "cairn-train")
        return node

    def kill_a_rank(self):
        self.signal("KILL")
        return lambda: None

    def stop_a_rank(self):
        node = self.signal("STOP")
        return lambda: node.run("pkill", "-CONT", "-x", "cairn-train")

    def kill_mpirun(self):
        self.training.process.kill()
        return lambda: None

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

    def test_what_was_reported_stays(self):
        faults = [self.kill_a_rank, self.stop_a_rank, self.kill_mpirun, self.kill_a_node, self.cut_a_node, self.freeze_a_mount,
                  self.fill_the_directory, self.make_it_read_only_on_a_node, self.lose_it_on_a_node]
        self.begin()
        for number in range(int(os.environ.get("CAIRN_FAULTS", 200))):
            fault = self.random.choice(faults)
            time.sleep(self.random.uniform(0, self.plain))
            lift = fault()
            time.sleep(self.random.choice([0.1, 0.5, 3]) * self.patience)
            lift()
            survived = self.survives()
            self.cairn("verify", f"{self.there}@{self.reported}")
            print(f"{number + 1}. {fault.__name__}: {'continues' if survived else 'ended'} at step {self.reported}", file=sys.stderr, flush=True)
            if not survived:
                self.begin()


if __name__ == "__main__":
    world.main()
