"""A real Slurm on the nodes of a cluster: munged everywhere, slurmctld on the head node, a slurmd on each node."""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "slurm"))

from cluster import LOGS, NETWORK, Started, environment  # noqa: E402
from loopback_slurm import COMMON, new_munge_key, require  # noqa: E402
from world import HOME  # noqa: E402

CONF = COMMON + """
ClusterName=nodes
SlurmctldHost=n0({network}.10)
AuthInfo=socket={home}/local/munge.socket,cred_expire=20
MpiDefault={mpi_default}
StateSaveLocation={home}/local/state
SlurmdSpoolDir={home}/local/spool
SlurmctldPidFile={home}/local/slurmctld.pid
SlurmdPidFile={home}/local/slurmd.pid
SlurmctldLogFile={home}/logs/slurmctld
SlurmdLogFile={home}/logs/slurmd.%n
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SlurmdTimeout=15
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PropagateResourceLimits=NONE
NodeName=n[1-{count}] NodeAddr={network}.[11-{last}] CPUs=8 State=UNKNOWN
PartitionName=main Nodes=n[1-{count}] Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=n[1-{count}] PriorityTier=10 MaxTime=INFINITE State=UP
"""


class Slurm:
    def __init__(self, cluster, mpi_default="none"):
        self.cluster = cluster
        self.mpi_default = mpi_default

    def start(self, wait):
        """`wait`: ClusterCase.wait, for the nodes to be idle."""
        require("munged", "slurmctld", "slurmd", "srun")
        count = len(self.cluster.nodes)
        (HOME / "slurm.conf").write_text(CONF.format(home=HOME, network=NETWORK, count=count, last=10 + count,
                                                     mpi_default=self.mpi_default))
        new_munge_key(HOME / "munge.key")
        (HOME / "local/state").mkdir()
        self.daemons = [Started(command, LOGS / command[0]) for command in (self.munged(), ["slurmctld", "-D"])]
        for node in self.cluster.nodes:
            self.join(node)
        wait(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(count), "idle nodes of Slurm")

    @staticmethod
    def munged():
        local = HOME / "local"
        return ["munged", "-F", "--force", f"--key-file={HOME}/munge.key", f"--socket={local}/munge.socket",
                *(f"--{name}-file={local}/munged.{name}" for name in ("pid", "seed", "log"))]

    def join(self, node):
        """After each boot of a node."""
        node.start("munged", *self.munged())
        node.start("slurmd.out", "sh", "-c", f"mkdir {HOME}/local/spool; while [ ! -S {HOME}/local/munge.socket ]; do sleep 0.1; done; "
                   "exec slurmd -D")

    @staticmethod
    def run(*command, **variables):
        """Its output; variables are added to its environment."""
        env = {**environment(), **{name: str(value) for name, value in variables.items()}}
        return subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True).stdout

    def state(self, job):
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()
