"""cairn.torch under torchrun on several nodes: the long form."""

import world
from cluster_case import MountedCase, needs_torch


@needs_torch
class TorchrunCase(MountedCase):
    nodes = 2
    slurm = False

    def finish_job(self, steps):
        """Returns the output of each rank."""
        return [rank.finish() for rank in self.torch_job(steps)]


class StaleNamesTest(TorchrunCase):
    stale = 600  # longer than any deadline here

    def test_a_job_saves_and_resumes(self):
        self.finish_job(2)
        self.finish_job(2)
        self.assertEqual(self.steps(self.there), [1, 2, 3, 4])
        self.cairn("verify", self.there)


class LostDirectoryTest(TorchrunCase):
    def test_a_directory_that_is_read_only_on_one_node(self):
        """Every rank learns the reason, the rank and the host, long before the deadline of 600 s; later saves are good."""
        for number, node in enumerate(self.cluster.nodes):
            self.cluster.fault(node, "change EROFS")
            outputs = self.finish_job(1)
            self.cluster.fault(node)
            self.assertIn("OSError: [Errno 30] Read-only file system", outputs[number])
            self.assertRegex(outputs[1 - number], rf"SaveFailed: rank {number} \(host {node.name}\) failed: .*Read-only file system")
        self.finish_job(1)
        self.assertEqual(self.steps(self.there), [1])

    def test_a_directory_that_is_gone_on_one_node(self):
        self.cluster.fault(self.cluster["n2"], "any ENOENT")
        outputs = self.finish_job(1)
        for output in outputs:
            self.assertRegex(output, r"SaveFailed: .*run/step.*is the same file system mounted")
        self.assertIn("rank 1 (host n2) failed: ", outputs[0])


if __name__ == "__main__":
    world.main()
