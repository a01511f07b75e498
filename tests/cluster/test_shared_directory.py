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


class RememberedNamesTest(MountedCase):
    """The kind: a node looks for a name that another node makes later. Its kernel would remember for longer than any deadline here that
    the name is missing, also after a listing."""

    stale = 600
    slurm = False

    def test_every_verb_finds_a_name_that_another_node_has_made(self):
        first, second, third, last = self.cluster.nodes

        def ask(node, *command, status=0):
            done = node.run(CAIRN, *command)
            self.assertEqual(done.returncode, status, f"{node.name}: {command}: {done.stdout}{done.stderr}")
            return done.stdout

        reshaped, store, restored = (MOUNTED / name for name in ("deep/reshaped", "store", "restored"))
        stop = MOUNTED / "stop"
        for node in self.cluster.nodes:  # whoever asks too early
            for path in (self.run_dir, self.run_dir / "step-00000002/manifest.json", reshaped, restored):
                ask(node, "ls", path, status=2)
            ask(node, "archive", "ls", store, status=2)
        self.finish(self.one_node(2, *self.train("--save-interval", 1, iterations=2)))
        self.assertIn("committed", ask(second, "ls", self.run_dir))  # which looks for tags, too
        ask(first, "tag", f"{self.run_dir}@1", "good")
        self.assertIn("step-00000001: good", ask(second, "verify", f"{self.run_dir}@good"))
        self.finish(self.mpirun(4, CAIRN, "reshape", self.run_dir, reshaped, "--tp", 2), name="reshape")
        self.assertIn("good", ask(third, "verify", reshaped))
        self.finish(self.mpirun(4, CAIRN, "archive", "run", self.run_dir, "--store", store), name="archive")
        self.assertEqual(ask(last, "archive", "verify", store).count(": whole"), 2)
        ask(third, "archive", "restore", f"{store}:run@2", restored)
        self.assertIn("committed", ask(last, "ls", restored))
        training = self.start(self.one_node(2, *self.train("--kill-switch-path", stop, iterations=1_000_000)))
        training.reach(5)
        ask(second, "ls", stop, status=2)
        second.run("touch", stop)
        self.assertIn("Detected kill switch", training.finish())


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
