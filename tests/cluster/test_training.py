"""Trainings over the nodes of a cluster: the same results on any number of nodes, and what is left when a node dies."""

import world
from cluster import SHARED
from cluster_case import ClusterCase


class SameResultsTest(ClusterCase):
    def test_losses_and_fingerprint_are_the_same_on_one_and_four_nodes(self):
        results = {}
        for name, launch in (("one", self.one_node), ("srun", self.srun), ("mpirun", self.mpirun)):
            run, log = SHARED / name, SHARED / f"{name}.json"
            flags = ["--tensor-model-parallel-size", 2, "--zero-stage", 1, "--log-json", log, "--save-interval", 5]
            self.finish(launch(4, *self.train(*flags, iterations=10, save=run)), name=name)
            results[name] = (self.losses(log), self.fingerprint(run))
            self.assertEqual(len(results[name][0]), 10)
            self.assertEqual(self.steps(run), [5, 10])
        self.assertEqual(results["srun"], results["one"])
        self.assertEqual(results["mpirun"], results["one"])


if __name__ == "__main__":
    world.main()
