"""cairn.torch under torchrun on several nodes: the long form."""

import os
import pathlib
import unittest

import world
from cluster import MOUNTED
from cluster_case import CAIRN, MountedCase

VENV = os.environ.get("CAIRN_VENV")


@unittest.skipUnless(VENV, "there is no Python environment with torch here")
class TorchrunTest(MountedCase):
    nodes = 2
    slurm = False

    def job(self, steps):
        """Starts a rank on each node."""
        words = ["env", f"PYTHONPATH={world.ROOT}/python", f"CAIRN={CAIRN}", "GLOO_SOCKET_IFNAME=eth0", f"{VENV}/bin/torchrun"]
        words += ["--nnodes", 2, "--nproc-per-node", 1, "--master-addr", "n1", "--master-port", 29500]
        job = [pathlib.Path(__file__).with_name("torch_job.py"), MOUNTED / "run", steps]
        return [self.start(node.command(*words, "--node-rank", node.number - 1, *job), f"torchrun.{node.name}")
                for node in self.cluster.nodes]

    def finish_job(self, steps):
        for rank in self.job(steps):
            rank.finish()

    def test_a_job_saves_and_resumes(self):
        self.finish_job(2)
        self.finish_job(2)
        self.assertEqual(self.steps(self.there), [1, 2, 3, 4])
        self.cairn("verify", self.there)


class StaleTorchrunTest(TorchrunTest):
    stale = 600  # longer than any deadline here

    @unittest.expectedFailure  # issue 40, item 3: each save waits until the node forgets that a name was not there
    def test_a_job_saves_and_resumes(self):
        super().test_a_job_saves_and_resumes()


if __name__ == "__main__":
    world.main()
