"""The base of the tests of `cairn plan --sbatch`: its scripts as it prints them, under a real Slurm."""

import re

from cluster import SHARED
from cluster_case import CAIRN, ClusterCase


class JobScriptCase(ClusterCase):
    nodes = 2

    def script(self, *flags, iterations=10, nodes=None, tp=2, pp=1):
        """As `cairn plan` prints it: a job of two ranks on each node."""
        nodes = nodes or self.nodes
        cluster = SHARED / "nodes.toml"
        cluster.write_text('base = "a100-80"\ncpu = true\ncores = 2\ngpus-per-node = 2\n')
        model = ["--num-layers", 4, "--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 16, "--vocab-size", 61,
                 "--make-vocab-size-divisible-by", 8, "--global-batch-size", 12, "--fp32"]
        plan = ["--tp", tp, "--pp", pp, "--dp", 2 * nodes // tp // pp, "--zero", 1, "--mbs", 1, "--recompute", "none", "--top", 1]
        arguments = " ".join(map(str, ["--mock-data", "--threads", 1, "--lr", "1e-3", "--log-interval", 1, *flags]))
        jobs = SHARED / f"jobs.{nodes}"
        self.cairn("plan", "--cluster", cluster, "--nodes", nodes, *model, *plan, "--train-iters", iterations, "--sbatch", jobs,
                   "--sbatch-args", arguments, "--time-limit", "01:00:00")
        path, = jobs.glob("*.sbatch")
        return path

    def submit(self, script, *options, **variables):
        """Returns the job's number; self.log is its output."""
        self.log = script.with_suffix(".out")
        return self.scheduler.run("sbatch", "--parsable", f"--chdir={script.parent}", *options, script,
                                  **{"CAIRN": CAIRN, "SAVE": self.run_dir, **variables}).strip()

    def printed(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def end(self, job, state="COMPLETED"):
        ends = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
        self.wait(lambda: self.scheduler.state(job) in ends, f"job {job}")
        self.assertEqual(self.scheduler.state(job), state, self.printed()[-4000:])

    def begin(self, *flags, options=(), iterations=60, variables=None, **plan):
        """Returns a job that has saved step 5."""
        flags = ["--save-interval", 5, "--distributed-timeout-seconds", self.patience, *flags]
        job = self.submit(self.script(*flags, iterations=iterations, **plan), *options, **(variables or {}))
        self.wait(lambda: self.run_dir.exists() and 5 in self.steps(self.run_dir), "step 5")
        return job

    def restarts(self, job):
        found = re.search(r"Restarts=(\d+)", self.scheduler.run("scontrol", "show", "job", job))
        return int(found[1]) if found else 0

    def is_queued_again(self, job, times=1):
        self.wait(lambda: self.restarts(job) >= times, f"restart {times} of job {job}")

    def resumes(self, job, step=60):
        """Waits for its end, without intervention."""
        self.end(job)
        self.assertIn("resumed from", self.printed())
        self.assertEqual(self.steps(self.run_dir)[-1], step)
        self.cairn("verify", self.run_dir)
