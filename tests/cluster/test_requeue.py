"""Job scripts of `cairn plan --sbatch` that Slurm starts again: after a lost node, a time limit, a preemption: the long form."""

import re

import world
from job_script_case import JobScriptCase


class DefaultMpiTest(JobScriptCase):
    mpi_default = "pmix_v4"

    def test_a_cluster_with_the_right_default(self):
        self.end(self.submit(self.script("--save-interval", 5)))


class RequeueTest(JobScriptCase):
    def come_back(self, job):
        """Node n2, once Slurm has noticed that it is lost."""
        self.wait(lambda: self.scheduler.state(job) != "RUNNING", "Slurm to notice")
        self.cluster["n2"].boot()
        self.scheduler.join(self.cluster["n2"])

    def test_slurm_notices_a_dead_node_first(self):
        job = self.begin("--distributed-timeout-seconds", 600)
        self.cluster["n2"].kill()
        self.come_back(job)
        self.resumes(job)

    def test_the_ranks_notice_a_dead_node_first(self):
        job = self.begin()
        self.cluster["n2"].kill()
        self.wait(lambda: "exit status 75" in self.printed(), "the ranks to notice")
        self.come_back(job)
        self.resumes(job)

    def test_a_time_limit_loses_no_iteration(self):
        job = self.begin()
        self.scheduler.run("scontrol", "update", f"JobId={job}", "TimeLimit=10")  # the signal comes ten minutes before the limit
        self.is_queued_again(job)
        reached = max(map(int, re.findall(r"^ iteration +(\d+)/", self.printed(), re.M)))
        self.assertEqual(self.steps(self.run_dir)[-1], reached)
        self.scheduler.run("scontrol", "update", f"JobId={job}", "TimeLimit=60")
        self.resumes(job)
        self.assertIn(f"(iteration {reached})", self.printed())

    def test_scontrol_requeue(self):
        job = self.begin()
        self.scheduler.run("scontrol", "requeue", job)
        self.is_queued_again(job)
        self.resumes(job)

    def test_preemption(self):
        job = self.begin()
        urgent = self.scheduler.run("sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null",
                                    "--wrap=sleep 1").strip()
        self.is_queued_again(job)
        self.end(urgent)
        self.resumes(job)

    def kill_a_rank(self):
        self.cluster["n2"].run("sh", "-c", "kill -KILL $(pgrep -x cairn-train | head -n 1)")

    def test_a_job_ends_after_max_restarts(self):
        job = self.begin(iterations=1_000_000, variables={"MAX_RESTARTS": 1})
        self.kill_a_rank()
        self.is_queued_again(job)
        self.wait(lambda: "resumed from" in self.printed(), "the second start")
        self.kill_a_rank()
        self.end(job, "FAILED")
        self.assertIn("after 1 restarts: the job ends", self.printed())

    def test_misuse_is_not_tried_again(self):
        job = self.submit(self.script("--no-such-flag"))
        self.end(job, "FAILED")
        self.assertEqual(self.restarts(job), 0)


class FewerNodesTest(JobScriptCase):
    """A node of four dies and stays dead."""

    nodes = 4

    def test_three_nodes_resume_without_a_reshape(self):
        job = self.begin(options=["--nodes=3-4"])
        self.cluster["n4"].kill()
        self.resumes(job)
        self.assertIn("DP=3", self.printed())

    def test_three_nodes_resume_with_another_topology(self):
        first = self.begin(options=["--no-requeue"], variables={"MAX_RESTARTS": 0})
        job = self.submit(self.script("--save-interval", 5, iterations=60, nodes=3, tp=1, pp=2), f"--dependency=afternotok:{first}")
        self.cluster["n4"].kill()
        self.resumes(job)
        self.assertIn("TP=1 PP=2 DP=3", self.printed())


if __name__ == "__main__":
    world.main()
