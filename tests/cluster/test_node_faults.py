"""Trainings and shared work when a node is lost, wiped, or returns: the long form."""

import time

import world
from cluster import SCRATCH, SHARED
from cluster_case import CAIRN, ClusterCase


class MessagesTest(ClusterCase):
    def lose_n4(self, lose):
        """In a pipeline of four nodes the first rank waits for the second, which is alive: every line must name the fourth."""
        flags = ["--pipeline-model-parallel-size", 4, "--save-interval", 5]
        training = self.start(self.srun(4, *self.train(*flags, iterations=1_000_000)))
        training.reach(7)
        lose()
        said = training.finish(status=None)
        self.assertRegex(said, r"host n4 \(first rank 3\) fell silent first, [0-9.]+ s ago; all ranks stop when")
        lines = [line for line in said.splitlines() if "did not complete" in line]
        self.assertTrue(lines, said)
        for line in lines:
            self.assertRegex(line, r"complete within \d+ s; host n4 \(first rank 3\) (fell silent first|is cut off)")
            self.assertNotIn("state unknown", line)

    def test_only_the_node_that_was_cut_off_is_blamed(self):
        self.lose_n4(self.cluster["n4"].cut)

    def test_only_the_node_that_was_killed_is_blamed(self):
        self.lose_n4(self.cluster["n4"].kill)

    def test_only_the_node_whose_processes_are_stopped_is_blamed(self):
        self.lose_n4(lambda: self.cluster["n4"].run("pkill", "-STOP", "-x", "cairn-train"))


class LocksOfDeadNodesTest(ClusterCase):
    def test_a_restart_elsewhere_names_the_holder_of_the_lock(self):
        training = self.start(self.srun(2, *self.train("--save-interval", 5, iterations=1_000_000)))
        training.reach(7)
        self.cluster["n1"].cut()
        again = self.start(self.srun(["n3", "n4"], *self.train("--save-interval", 5, iterations=20)), "again")
        self.wait(lambda: not again.running() or "n1" in again.output(), "the second training", log=again)
        self.assertIn("n1", again.output())


class LaunchNameTest(ClusterCase):
    nodes = 2
    slurm = False

    def reshape(self, rank, step_id):
        """One of two ranks of srun, with srun's environment."""
        variables = {"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": 2, "SLURM_JOB_ID": 16, "SLURM_STEP_ID": step_id}
        words = ["env", *(f"{name}={value}" for name, value in variables.items())]
        command = [*words, CAIRN, "reshape", self.run_dir, SHARED / "reshaped", "--tp", 2]
        return self.start(self.cluster[f"n{rank + 1}"].command(*command), f"reshape.{rank}")

    def test_a_requeued_reshape_does_not_join_the_killed_one(self):
        self.finish(self.one_node(2, *self.train(iterations=1)))
        leader = self.reshape(0, step_id=0)  # only rank 0: it opens the room and waits for rank 1
        self.wait(lambda: list(SHARED.glob("reshaped/*partial*/team-room*")), "the room", log=leader)
        self.cluster["n1"].kill()
        self.cluster["n1"].boot()
        follower = self.reshape(1, step_id=0)
        time.sleep(8 * self.plain)  # it looks for the room before rank 0 starts
        leader = self.reshape(0, step_id=0)
        self.wait(lambda: not leader.running() and not follower.running(), "the two ranks", times=40)
        self.cairn("verify", SHARED / "reshaped")


class ParityTest(ClusterCase):
    nodes = 2

    def train_locally(self, *flags, iterations=5):
        """Two ranks on each of two nodes."""
        command = self.train("--save-local", SCRATCH / "local", "--save-local-interval", 5, *flags, iterations=iterations)
        return self.finish(self.srun(2, *command, ranks=4))

    def test_warns_of_a_group_that_one_node_could_lose(self):
        said = self.train_locally("--redundancy", "xor:4")
        self.assertRegex(said, r"warning: the redundancy xor:4 covers the loss of no node: 2 ranks .*, rank \d \(host n\d\) .* xor:2 would")

    def test_groups_span_nodes_of_equal_names(self):
        for node in self.cluster.nodes:
            node.run("hostname", "localhost")
        self.assertIn("parity covers the loss of any 1 of 2 nodes", self.train_locally("--redundancy", "xor:2", iterations=5))
        self.cluster["n2"].wipe()
        self.assertIn("rebuilding", self.train_locally("--redundancy", "xor:2", iterations=10))


if __name__ == "__main__":
    world.main()
