"""Trainings over the nodes of a cluster: the same results on any number of nodes, and recovery when a node dies."""

import world
from cluster import SCRATCH, SHARED, Node
from cluster_case import ClusterCase, long


class SameResultsTest(ClusterCase):
    def test_losses_and_fingerprint_are_the_same_on_one_and_four_nodes(self):
        results = {}
        for name, launch in (("one", self.one_node), ("srun", self.srun), ("mpirun", self.mpirun)):
            run, log = SHARED / name, SHARED / f"{name}.json"
            flags = ["--tensor-model-parallel-size", 2, "--zero-stage", 1, "--log-json", log, "--save-interval", 3]
            self.finish(launch(4, *self.train(*flags, iterations=6, save=run)), name=name)
            results[name] = (self.losses(log), self.fingerprint(run))
            self.assertEqual(len(results[name][0]), 6)
            self.assertEqual(self.steps(run), [3, 6])
        self.assertEqual(results["srun"], results["one"])
        self.assertEqual(results["mpirun"], results["one"])


class NodeLossTest(ClusterCase):
    def lose_n3(self, launch, lose):
        """During a long training. It ends; then three nodes resume it from the newest step, on another topology."""
        flags = ["--tensor-model-parallel-size", 2, "--save-interval", 2]
        training = self.start(launch(4, *self.train(*flags, iterations=1_000_000)))
        training.reach(5)
        lose(self.cluster["n3"])
        training.finish(status=None)
        self.cairn("verify", self.run_dir)
        step = self.steps(self.run_dir)[-1]
        resumed = self.finish(self.srun(["n1", "n2", "n4"], *self.train("--zero-stage", 1, iterations=step + 2)), name="resumed")
        self.assertIn(f"resumed from {self.run_dir}/step-{step:08} (iteration {step})", resumed)
        self.assertEqual(self.steps(self.run_dir)[-1], step + 2)

    def test_a_node_is_killed_under_srun_and_three_resume(self):
        self.lose_n3(self.srun, Node.kill)

    @long
    def test_a_node_is_killed_under_mpirun_and_three_resume(self):
        self.lose_n3(self.mpirun, Node.kill)

    @long
    def test_a_node_is_cut_off_under_srun_and_three_resume(self):
        self.lose_n3(self.srun, Node.cut)

    @long
    def test_a_node_is_cut_off_under_mpirun_and_three_resume(self):
        self.lose_n3(self.mpirun, Node.cut)


LOCAL = ["--save-local", SCRATCH / "local", "--save-local-interval", 5, "--save-interval", 10]


class LocalStepsTest(ClusterCase):
    def wipe_n2(self, launch, *flags):
        """Between two starts of a training with local steps of 5, 10 and 15; returns the output of both."""
        first = self.finish(launch(*self.train(*LOCAL, *flags, iterations=15)))
        self.cluster["n2"].wipe()
        return first, self.finish(launch(*self.train(*LOCAL, *flags, iterations=20)), name="resumed")

    def test_local_steps_of_a_wiped_node_are_rebuilt_from_parity(self):
        _, resumed = self.wipe_n2(lambda *command: self.srun(4, *command), "--redundancy", "xor:4")
        self.assertIn("local step 15: rebuilding shard-00001.h5", resumed)
        self.assertIn("resumed from local step 15", resumed)


if __name__ == "__main__":
    world.main()
