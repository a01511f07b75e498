"""The shared directory as a network file system shows it: stale names, no rename flags, locks of each node's own."""

import world
from cluster import MOUNTED, SHARED
from cluster_case import CAIRN, MountedCase, long


class StaleNamesTest(MountedCase):
    stale = 10

    def test_a_training_saves_and_resumes_and_is_archived(self):
        for iterations in (10, 15):
            self.finish(self.srun(4, *self.train("--save-interval", 5, iterations=iterations)))
        self.assertEqual(self.steps(self.there), [5, 10, 15])
        self.cairn("verify", self.there)
        self.finish(self.srun(4, CAIRN, "archive", "run", self.run_dir, "--store", MOUNTED / "store"), name="archive")
        self.assertEqual(self.cairn("archive", "verify", SHARED / "store").count(": whole"), 3)

    def test_reshape(self):
        self.finish(self.one_node(2, *self.train(iterations=1)))
        output = self.finish(self.srun(4, CAIRN, "reshape", self.run_dir, MOUNTED / "reshaped", "--tp", 2), name="reshape")
        self.assertNotIn("failed", output)
        self.cairn("verify", SHARED / "reshaped")


class RenameFlagsTest(MountedCase):
    nodes = 2

    def test_a_step_is_saved_again(self):
        command = self.srun(2, *self.train("--save-interval", 5, iterations=10))
        self.finish(command)
        before = self.fingerprint(self.there)
        shard = self.there / "step-00000010/shard-00000.h5"
        shard.write_bytes(shard.read_bytes()[:-100])
        output = self.finish(command, name="again")
        self.assertIn("resumed from " + str(self.run_dir / "step-00000005"), output)
        self.assertEqual(self.fingerprint(self.there), before)
        self.cairn("verify", self.there)


class LocksTest(MountedCase):
    nodes = 2
    slurm = False

    def two_trainings(self):
        """Into one directory, at the same time; returns the output of both."""
        first = self.start(self.one_node(1, *self.train("--save-interval", 2, iterations=1_000_000)), "first")
        first.reach(3)
        second = self.start(self.one_node(1, *self.train("--save-interval", 3, iterations=1_000_000), node="n2"), "second")
        self.wait(lambda: "saved checkpoint" in second.output() or not (first.running() and second.running()), "the second training")
        step = first.iteration()
        self.wait(lambda: first.iteration() > step + 6 or not (first.running() and second.running()), "both trainings")
        return first.output(), second.output()

    def assert_one_is_refused(self, outputs, refusal):
        self.assertEqual(sum(refusal in output for output in outputs), 1, "\n".join(outputs))

    def test_two_trainings_in_one_run_directory(self):
        self.assert_one_is_refused(self.two_trainings(), "writes into this run directory")


class LocalLocksTest(LocksTest):
    local_locks = True

    def test_two_trainings_in_one_run_directory(self):
        self.assert_one_is_refused(self.two_trainings(), "another process took this lock although this one holds it")

    @long
    def test_two_archive_runs_into_one_store(self):
        self.finish(self.one_node(1, *self.train("--save-interval", 1, iterations=12)))
        command = [CAIRN, "archive", "run", self.run_dir, "--store", MOUNTED / "store"]
        runs = [self.start(node.command(*command), f"archive.{node.name}") for node in self.cluster.nodes]
        for run in runs:
            self.wait(lambda run=run: not run.running(), "an archive run", log=run)
        self.assertEqual(sorted(run.process.returncode for run in runs), [0, 2], "\n".join(run.output() for run in runs))
        self.assertEqual(self.cairn("archive", "verify", SHARED / "store").count(": whole"), 12)


if __name__ == "__main__":
    world.main()
