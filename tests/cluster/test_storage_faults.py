"""Trainings into a directory whose file system fails: errors, short transfers, a full disk, a mount that hangs: the long form."""

import time

import world
from cluster_case import MountedCase


class StorageFaultsTest(MountedCase):
    nodes = 1
    slurm = False

    def fault(self, *lines):
        self.cluster.fault(self.cluster["n1"], *lines)

    def command(self, iterations, *flags):
        return self.one_node(1, *self.train("--save-interval", 2, *flags, iterations=iterations))

    def begin(self, *flags, iterations=30):
        """A training that has saved step 4 without faults."""
        training = self.start(self.command(iterations, *flags))
        self.wait(lambda: self.there.exists() and 4 in self.steps(self.there), "step 4", log=training)
        return training

    def save_under(self, *faults, status=0):
        """The later steps are saved under these faults. Every saved step is whole, and without faults the training resumes."""
        training = self.begin()
        self.fault(*faults)
        output = training.finish(status)
        self.fault()
        for step in self.steps(self.there):
            self.cairn("verify", f"{self.there}@{step}")
        self.finish(self.command(32), name="resumed")
        self.assertEqual(self.steps(self.there)[-1], 32)
        return output

    def fail_under(self, *faults, says):
        output = self.save_under(*faults, status=2)
        self.assertRegex(output, f"checkpoint of iteration [0-9]+ FAILED.*{says}.*training continues")
        self.assertRegex(output, f"the last checkpoint was not saved.*{says}")

    def test_no_space_at_fsync(self):
        self.fail_under("fsync ENOSPC", says="fsync .*No space left on device")

    def test_no_space_at_close(self):
        self.fail_under("close ENOSPC", says="close .*No space left on device")

    def test_a_full_disk(self):
        self.fail_under("full 3000000", says="write .*No space left on device")

    def test_a_directory_that_becomes_read_only(self):
        self.fail_under("change EROFS", says="Read-only file system")

    def test_two_errors_of_fsync_cost_two_steps_at_most(self):
        output = self.save_under("fsync EIO 2")
        self.assertRegex(output, "FAILED .*fsync .*Input/output error")
        self.assertNotIn("FAILED (3 so far)", output)

    def test_interrupted_calls(self):
        self.assertNotIn("FAILED", self.save_under("open,create,read,write EINTR -1 3"))

    def test_interrupted_fsync(self):
        self.assertNotIn("FAILED", self.save_under("fsync EINTR -1 3"))

    def test_short_transfers(self):
        self.save_under("short")

    def test_a_directory_that_disappears_for_a_while(self):
        training = self.begin("--on-save-error", "warn", iterations=200)
        self.fault("any ENOENT")
        self.wait(lambda: "FAILED (3 so far)" in training.output(), "three failures", log=training)
        self.fault()
        output = training.finish()
        self.assertRegex(output, r"FAILED \(3 so far\).*iteration [0-9]+ tries again; ALARM: 3 in a row failed, and only iteration")
        self.assertEqual(self.steps(self.there)[-1], 200)

    def test_a_mount_that_hangs_for_a_while(self):
        training = self.begin()
        self.fault("hang")
        time.sleep(2 * self.plain)
        self.assertTrue(training.running(), training.output())
        self.fault()
        training.finish()
        self.cairn("verify", self.there)


if __name__ == "__main__":
    world.main()
