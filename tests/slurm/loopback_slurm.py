"""A real Slurm on this host: munged, slurmctld and two slurmd, in their own directory, removed at the end.

Needs root, and Debian's slurm-wlm and munge. `start()` raises unittest.SkipTest, saying why, if Slurm is not available.
"""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
import unittest

# What every Slurm of the tests has; tests/cluster/slurm.py has one too.
COMMON = """
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
MinJobAge=300
SchedulerParameters=bf_interval=2,sched_interval=2
JobRequeue=1
"""
CONF = COMMON + """
ClusterName=cairntest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthInfo=socket={dir}/munge.socket
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd-%n.log
SelectTypeParameters=CR_Core
KillWait=10
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs={cpus} State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


PROGRAMS = os.environ["PATH"] + ":/usr/sbin:/sbin"


def require(*programs):
    """Skips the test if a program of Slurm is missing."""
    missing = [name for name in programs if shutil.which(name, path=PROGRAMS) is None]
    if missing:
        raise unittest.SkipTest(f"no Slurm here: {', '.join(missing)} missing (Debian: slurm-wlm munge)")


def new_munge_key(path):
    path.write_bytes(os.urandom(128))
    path.chmod(0o600)


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class LoopbackSlurm:
    def __init__(self, directory):
        self.dir = pathlib.Path(directory)
        self.processes = []

    def start(self):
        require("munged", "slurmctld", "slurmd", "sbatch", "squeue")
        if os.geteuid() != 0:
            raise unittest.SkipTest("Slurm's daemons are started as root only")
        self.dir.mkdir(parents=True, exist_ok=True)
        (self.dir / "state").mkdir()
        key = self.dir / "munge.key"
        new_munge_key(key)
        self.dir.chmod(0o755)
        ports = free_ports(3)
        conf = self.dir / "slurm.conf"
        conf.write_text(CONF.format(dir=self.dir, host=socket.gethostname().split(".")[0], port=ports[0], port1=ports[1], port2=ports[2],
                                    cpus=os.cpu_count()))
        self.env = dict(os.environ, SLURM_CONF=str(conf), PATH=PROGRAMS)
        self.spawn("munged", "-F", "--force", f"--socket={self.dir}/munge.socket", f"--key-file={key}",
                   f"--pid-file={self.dir}/munged.pid", f"--seed-file={self.dir}/munged.seed", f"--log-file={self.dir}/munged.log")
        self.wait(lambda: (self.dir / "munge.socket").exists(), "munged")
        self.spawn("slurmctld", "-D", "-f", str(conf))
        for node in ("n1", "n2"):
            self.spawn("slurmd", "-D", "-N", node, "-f", str(conf))
        self.wait(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2", "two idle nodes")

    def spawn(self, *command):
        with open(self.dir / f"{command[0]}.out", "a") as log:
            self.processes.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=log, start_new_session=True))

    def run(self, *command, cwd=None):
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, cwd=cwd)
        return done.stdout

    def wait(self, condition, what, seconds=60):
        end = time.time() + seconds
        while time.time() < end:
            if condition():
                return
            time.sleep(0.2)
        logs = "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-1500:]}" for p in sorted(self.dir.glob("*.log")))
        raise AssertionError(f"Slurm: waited {seconds} s for {what}\n{logs}")

    def submit(self, *arguments, cwd=None):
        done = subprocess.run(["sbatch", "--parsable", *map(str, arguments)], env=self.env, capture_output=True, text=True, cwd=cwd)
        if done.returncode != 0:
            raise AssertionError(f"sbatch {arguments}: {done.stderr}")
        return done.stdout.strip()

    def state(self, job):
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()

    def stop(self):
        if hasattr(self, "env"):
            self.run("scancel", "--user", "root")
            time.sleep(0.5)
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
