"""cairn doctor over mounts that lack or refuse something, by itself and under srun, mpirun and torchrun: the long form."""

import json
import os
import re

import world
from cluster import MOUNTED, SHARED
from cluster_case import CAIRN, ClusterCase, MountedCase, needs_torch


class OneNodeTest(ClusterCase):
    nodes = 1
    slurm = False

    def rows(self, *faults, status=0, **options):
        node = self.cluster["n1"]
        self.cluster.mount(node, **options)
        self.cluster.fault(node, *faults)
        done = node.run(CAIRN, "doctor", MOUNTED, "--json")
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return {row["name"]: row for row in json.loads(done.stdout)["findings"]}

    def assert_row(self, row, severity, found):
        self.assertEqual(row["severity"], severity, row)
        self.assertIn(found, row["found"])

    def test_names_missing_features_of_a_mount(self):
        rows = self.rows(direct=False)
        self.assert_row(rows["exchange"], "ok", "no RENAME_EXCHANGE")
        self.assert_row(rows["O_DIRECT"], "slower", "Invalid argument")
        self.assert_row(rows["io_uring"], "ok", "threads (FUSE)")
        self.assert_row(rows["name caches"], "unknown", "do not show it")
        self.assertEqual(os.listdir(SHARED), [])

    def test_fsync_that_always_fails(self):
        row = self.rows("fsync EIO", status=1)["write"]
        self.assert_row(row, "loses data", "Input/output error")
        self.assertIn("fsync", row["found"])

    def test_fsync_that_fails_later(self):
        rows = self.rows("fsync EIO 1 6", status=1)  # after those of the mark
        self.assertIn("loses data", [row["severity"] for name, row in rows.items() if name != "write"])
        self.assertEqual(os.listdir(SHARED), [])

    def test_locks_that_are_refused(self):
        self.assert_row(self.rows("lock ENOLCK", status=1)["locks"], "loses data", "No locks available")


class NodesCase(MountedCase):
    nodes = 3

    def doctor(self, status=0):
        return self.finish(self.srun(3, CAIRN, "doctor", MOUNTED), status=status, name="doctor")

    def doctor_by_mpirun(self, status=0):
        output = self.finish(self.mpirun(3, CAIRN, "doctor", MOUNTED), status=status, name="mpirun")
        return re.sub("\x1b[^m]*m", "", output)  # it gives its ranks a terminal


    def doctor_by_torchrun(self, status=0):
        """torchrun does not pass on the status of its ranks, only that one failed."""
        launchers = self.torchrun("--no-python", CAIRN, "doctor", MOUNTED)
        return "".join(launcher.finish(status=None if launcher is launchers[0] and status else 0) for launcher in launchers)


class ManyNodesTest(NodesCase):
    stale = 10

    def assert_one_page(self, output):
        self.assertIn("all 3 ranks found the same", output)
        self.assertRegex(output, "locks +ok +exclude the hosts of this launch")
        self.assertEqual(output.count("for saves here"), 1, output)
        self.assertEqual(os.listdir(SHARED), [])

    def test_one_page_by_srun_and_by_mpirun(self):
        self.assert_one_page(self.doctor())
        self.assert_one_page(self.doctor_by_mpirun())

    @needs_torch
    def test_one_page_by_torchrun(self):
        self.assert_one_page(self.doctor_by_torchrun())

    def test_a_node_that_differs_has_a_line(self):
        script = SHARED / "doctor.sh"
        script.write_text(f'[ "$(hostname)" != n2 ] || ulimit -n 64\nexec {CAIRN} doctor {MOUNTED}\n')
        output = self.finish(self.srun(3, "sh", script, ranks=6), name="doctor")
        self.assertRegex(output, r"\nn2 \(rank \d and 1 more\): descriptors: warning, 64 ")
        self.assertNotIn("\nn3 (", output)

    def test_a_node_that_cannot_write_is_reported(self):
        for fault, says in (("change EROFS", "Read-only file system"), ("fsync EIO", "Input/output error")):
            self.cluster.fault(self.cluster["n2"], fault)
            self.assertRegex(self.doctor(status=None), f"rank 1 on n2: .*{says}.*no save can succeed here")


class LocalLocksTest(NodesCase):
    local_locks = True

    def assert_other_nodes_not_excluded(self, output):
        for rank, node in ((1, "n2"), (2, "n3")):
            self.assertRegex(output, rf"\n{node} \(rank {rank}\): locks: loses data, do not exclude the host of rank 0")
        self.assertEqual(os.listdir(SHARED), [])

    def test_locks_that_do_not_exclude_other_nodes(self):
        self.assert_other_nodes_not_excluded(self.doctor(1))
        self.assert_other_nodes_not_excluded(self.doctor_by_mpirun(1))

    @needs_torch
    def test_locks_that_do_not_exclude_other_nodes_by_torchrun(self):
        self.assert_other_nodes_not_excluded(self.doctor_by_torchrun(1))


if __name__ == "__main__":
    world.main()
