"""Work that nodes share while their clocks and their names disagree: the long form."""

import shutil
import unittest

import world
from cluster import MOUNTED, SHARED
from cluster_case import CAIRN, MountedCase

AHEAD = ["+0", "+60s", "+1h", "-1d"]  # by node


class SharedWorkTest(MountedCase):
    """Names are stale for a while, so that a node also sees the store late."""

    stale = 20

    def setUp(self):
        super().setUp()
        self.finish(self.one_node(2, *self.train("--save-interval", 2, iterations=12)))

    def shared(self, nodes, *command, clocks=AHEAD):
        """srun of the command, a rank on each node, with the clock of that node."""
        words = " ".join(map(str, command))
        cases = " ".join(f'{number}) exec faketime -f "{ahead}" {words};;' for number, ahead in enumerate(clocks))
        return self.finish(self.srun(nodes, "sh", "-c", f"case $SLURM_PROCID in {cases} esac"), name="shared")

    def assert_archived_once(self, nodes, **options):
        """The second run has nothing to do."""
        name = f"store-{nodes}"
        for stored in (6, 0):
            output = self.shared(nodes, CAIRN, "archive", "run", self.run_dir, "--store", MOUNTED / name, **options)
            self.assertEqual(output.count("stored run@"), stored, output)
            self.assertEqual(self.cairn("archive", "verify", SHARED / name).count(": whole"), 6)
            self.assertEqual(len(list((SHARED / name).glob("*.tar"))), 6)
            self.assertFalse(list((SHARED / name).glob("*damaged*")))

    @unittest.skipUnless(shutil.which("faketime"), "faketime is not installed")
    def test_archive_runs_of_nodes_whose_clocks_differ(self):
        for nodes in (2, 4):
            self.assert_archived_once(nodes)

    @unittest.skipUnless(shutil.which("faketime"), "faketime is not installed")
    def test_a_reshape_of_nodes_whose_clocks_differ(self):
        for nodes in (2, 4):
            self.shared(nodes, CAIRN, "reshape", self.run_dir, MOUNTED / f"reshaped-{nodes}", "--tp", 2)
            self.cairn("verify", SHARED / f"reshaped-{nodes}")
            self.assertEqual(self.fingerprint(SHARED / f"reshaped-{nodes}"), self.fingerprint(self.there))

    def test_nodes_of_equal_names(self):
        for node in self.cluster.nodes:
            node.run("hostname", "localhost")
        self.assert_archived_once(4, clocks=["+0"] * 4)
        self.shared(4, CAIRN, "reshape", self.run_dir, MOUNTED / "reshaped", "--tp", 2, clocks=["+0"] * 4)
        self.assertEqual(self.fingerprint(SHARED / "reshaped"), self.fingerprint(self.there))


if __name__ == "__main__":
    world.main()
