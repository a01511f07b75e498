"""Shared by the tests of clusters: a cluster for each class, small trainings on it, and deadlines that follow the machine."""

import json
import os
import pathlib
import re
import subprocess
import time
import unittest

import world
from cluster import LOGS, MOUNTED, SHARED, Cluster, Started, environment
from slurm import Slurm

CAIRN = os.environ["CAIRN"]
VENV = os.environ.get("CAIRN_VENV")
needs_torch = unittest.skipUnless(VENV, "there is no Python environment with torch here")
long = unittest.skipUnless(os.environ.get("CAIRN_LONG"), "it belongs to the long form (CAIRN_LONG=1)")
MODEL = ["--num-layers", "4", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "16", "--vocab-size", "61",
         "--make-vocab-size-divisible-by", "8", "--mock-data", "--micro-batch-size", "1", "--global-batch-size", "12", "--lr", "1e-3",
         "--threads", "1", "--log-interval", "1"]


class Training(Started):
    """A `cairn train` on the nodes that its command line names."""

    def __init__(self, case, name, command):
        super().__init__(command, LOGS / name)
        self.case = case

    def iteration(self):
        return max(map(int, re.findall(r"^ iteration +(\d+)/", self.output(), re.M)), default=0)

    def reach(self, iteration):
        self.case.wait(lambda: self.iteration() >= iteration or not self.running(), f"iteration {iteration}", log=self)
        self.case.assertTrue(self.running(), f"the training ended\n{self.output()}")

    def finish(self, status=0):
        """Waits for its end; returns its output. status: the exit status, or None for any but 0."""
        self.case.wait(lambda: not self.running(), "the end of the training", log=self)
        code = self.process.returncode
        self.case.assertTrue(code == status if status is not None else code != 0, f"status {code}\n{self.output()}")
        return self.output()


class ClusterCase(unittest.TestCase):
    """Each test has its own `nodes` nodes, with Slurm if `slurm`."""

    nodes = 4
    slurm = True
    mpi_default = "none"
    plain = None  # the seconds of a training of one iteration on one node: all deadlines are multiples of it

    @classmethod
    def setUpClass(cls):
        if world.INSIDE not in os.environ:
            raise unittest.SkipTest(world.refusal() or f"start {pathlib.Path(__file__).name} itself")
        if not os.environ.get("CAIRN_TRAIN"):
            raise unittest.SkipTest("cairn-train is not built")

    def setUp(self):
        self.cluster = Cluster(self.nodes)
        self.addCleanup(self.cluster.stop)
        self.cluster.start()
        self.run_dir = SHARED / "run"
        if ClusterCase.plain is None:
            self.measure()
        if self.slurm:
            self.scheduler = Slurm(self.cluster, self.mpi_default)
            self.scheduler.start(self.wait)

    def measure(self):
        start = time.monotonic()
        done = self.cluster["n1"].run(CAIRN, "train", *MODEL, "--train-iters", 1)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        ClusterCase.plain = max(time.monotonic() - start, 0.5)

    @classmethod
    def wait(cls, condition, what, log=None, times=150):
        deadline = time.monotonic() + times * cls.plain
        while not condition():
            if time.monotonic() > deadline:
                texts = [f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in LOGS.iterdir()]
                raise AssertionError(f"waited {times * cls.plain:.0f} s for {what}\n" + (log.output() if log else "\n".join(texts)))
            time.sleep(0.05)

    @property
    def patience(self):
        """Seconds after which a training may believe that a rank is lost."""
        return max(5, round(8 * self.plain))

    # What starts ranks.

    @staticmethod
    def srun(nodes, *command, ranks=None):
        """On the first `nodes` nodes that are up, or on those with these names."""
        where = ["-N", nodes] if isinstance(nodes, int) else ["-N", len(nodes), "-w", ",".join(nodes)]
        count = nodes if isinstance(nodes, int) else len(nodes)
        ranks = ranks or count
        return ["srun", "--mpi=pmix", "--kill-on-bad-exit", *where, "-n", ranks, f"--ntasks-per-node={ranks // count}", *command]

    def mpirun(self, ranks, *command):
        return self.cluster.mpirun("-n", ranks, *command)

    def one_node(self, ranks, *command, node="n1"):
        """`cairn train` starts the ranks of one node itself."""
        return self.cluster[node].command(*command, "--nproc-per-node", ranks)

    def torchrun(self, *command, log="torchrun"):
        """Starts a launcher on each node, with one rank."""
        words = ["env", f"PYTHONPATH={world.ROOT}/python", f"CAIRN={CAIRN}", "GLOO_SOCKET_IFNAME=eth0", f"{VENV}/bin/torchrun"]
        words += ["--nnodes", self.nodes, "--nproc-per-node", 1, "--master-addr", "n1", "--master-port", 29500]
        return [self.start(node.command(*words, "--node-rank", node.number - 1, *command), f"{log}.{node.name}")
                for node in self.cluster.nodes]

    def torch_job(self, *arguments, log="torchrun"):
        return self.torchrun(pathlib.Path(__file__).with_name("torch_job.py"), self.run_dir, *arguments, log=log)

    def train(self, *flags, iterations=20, save=None):
        """The command of a training into self.run_dir."""
        return [CAIRN, "train", *MODEL, "--train-iters", iterations, "--save", save or self.run_dir, "--distributed-timeout-seconds",
                self.patience, *flags]

    def start(self, command, name="train"):
        return Training(self, name, command)

    def finish(self, command, status=0, name="train"):
        return self.start(command, name).finish(status)

    # Their results.

    def cairn(self, *arguments, status=0):
        done = subprocess.run([CAIRN, *map(str, arguments)], capture_output=True, text=True, env=environment())
        self.assertEqual(done.returncode, status, f"cairn {arguments}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def fingerprint(self, path):
        return json.loads(self.cairn("fingerprint", path, "--json"))["fingerprint"]

    @staticmethod
    def steps(run):
        return sorted(int(path.name[5:]) for path in run.glob("step-" + "[0-9]" * 8))

    @staticmethod
    def losses(path):
        """{iteration: loss as it was printed}, of a --log-json file; the last of each."""
        return {row["iteration"]: row["loss"] for row in map(json.loads, path.read_text().splitlines())}


class MountedCase(ClusterCase):
    """Each node has its own mount of the shared directory, with `stale` seconds, and its own locks if `local_locks`."""

    stale = 0
    local_locks = False

    def setUp(self):
        super().setUp()
        for node in self.cluster.nodes:
            self.cluster.mount(node, stale=self.stale, local_locks=self.local_locks)
        self.run_dir = MOUNTED / "run"
        self.there = SHARED / "run"  # the same, as the file server sees it
