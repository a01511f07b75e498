"""Nodes n1, n2, ... of a cluster on this machine, in the world that `world.main` made; the test itself is on the head node, n0.

A node has its own network card, host name, processes, /tmp, /dev/shm and /srv/scratch (node-local storage). All see /srv/shared. To a
test a *node* is killed (all its processes at once: peers get a reset), cut off (silence), or wiped (its node-local storage is lost).
"""

import os
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

import world

SHARED = world.HOME / "shared"
SCRATCH = world.HOME / "scratch"
LOGS = world.HOME / "logs"
MOUNTED = world.HOME / "mounted"  # SHARED again, where a node has mounted it as a network file system
NETWORK = "10.77.0"
NFS = os.environ.get("CAIRN_CLUSTER_MOUNT") == "nfs"
PROGRAMS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def environment():
    """The test's environment without variables of an outer launcher. Open MPI may be started by root, and does not spin: the nodes share cores."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMIX_", "PMI_"))}
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
    return {**kept, **allowed, "PATH": PROGRAMS, "SLURM_CONF": str(world.HOME / "slurm.conf")}


def ip(*arguments):
    subprocess.run(["ip", *map(str, arguments)], check=True, env=environment())


class Started:
    """A running command whose output goes to a file."""

    all: list["Started"] = []

    def __init__(self, command, log, **options):
        self.log = log
        Started.all.append(self)
        with open(log, "wb") as out:
            self.process = subprocess.Popen(list(map(str, command)), stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                            **{"env": environment(), **options})

    def output(self):
        return self.log.read_text(errors="replace")

    def running(self):
        return self.process.poll() is None


class Node:
    def __init__(self, number):
        self.number = number
        self.name = f"n{number}"
        self.address = f"{NETWORK}.{10 + number}"
        self.dir = world.HOME / "of" / self.name
        self.scratch = self.dir / "scratch"
        self.wire = f"v-{self.name}"  # the switch's end
        self.pid = None

    def connect(self):
        """Its network outlives it, like a cable."""
        ip("netns", "add", self.name)
        ip("link", "add", self.wire, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("link", "set", self.wire, "master", "br0", "up")
        for words in (["addr", "add", f"{self.address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"], ["link", "set", "lo", "up"]):
            ip("-n", self.name, *words)

    def boot(self):
        self.scratch.mkdir(parents=True, exist_ok=True)
        init = pathlib.Path(__file__).with_name("node_init.sh")
        with open(LOGS / f"boot.{self.name}", "wb") as messages:
            self.process = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.name}", "unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child",
                init, self.name, *world.kept_below(pathlib.Path("/tmp"))],
                env=environment(), stdout=subprocess.PIPE, stderr=messages, stdin=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"{self.name} does not boot: " + (LOGS / f"boot.{self.name}").read_text())
        self.pid = int(line)
        (self.dir / "pid").write_text(line)

    def kill(self):
        """Power off: all its processes and mounts are gone when this returns."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.pid = None

    def cut(self):
        ip("link", "set", self.wire, "down")

    def mend(self):
        ip("link", "set", self.wire, "up")

    def wipe(self):
        for path in self.scratch.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def command(self, *command):
        return ["nsenter", "--target", self.pid, "--net", "--uts", "--ipc", "--mount", "--pid", "--wdns=/", "--", *command]

    def run(self, *command, **options):
        """Runs the command on the node until it ends; returns the CompletedProcess."""
        return subprocess.run(list(map(str, self.command(*command))), capture_output=True, text=True, env=environment(), **options)

    def start(self, name, *command, **options):
        """Starts the command on the node; `name` is the name of its log."""
        return Started(self.command(*command), LOGS / f"{name}.{self.name}", **options)


class Cluster:
    def __init__(self, count):
        self.nodes = [Node(number) for number in range(1, count + 1)]
        self.exported = False

    def __getitem__(self, name):
        return self.nodes[int(name[1:]) - 1]

    def start(self):
        world.cover(world.HOME)
        for path in (SHARED, SCRATCH, LOGS, MOUNTED, world.HOME / "local", world.HOME / "faults"):
            path.mkdir()
        self.name_hosts()
        ip("link", "set", "lo", "up")
        ip("link", "add", "br0", "type", "bridge")
        ip("addr", "add", f"{NETWORK}.10/24", "dev", "br0")
        ip("link", "set", "br0", "up")
        for node in self.nodes:
            node.connect()
            node.boot()

    def stop(self):
        """Leaves the world as it was, for the next cluster."""
        for node in self.nodes:
            if node.pid:
                node.kill()
        for started in Started.all:
            started.process.kill()
            started.process.wait()
        Started.all.clear()
        if self.exported:
            for command in (["rpc.nfsd", "0"], ["exportfs", "-ua"], ["umount", "/proc/fs/nfsd", "/var/lib/nfs"]):
                subprocess.run(command, check=True, env=environment())
        for node in self.nodes:
            ip("link", "delete", node.wire)
            ip("netns", "delete", node.name)
        ip("link", "delete", "br0")
        for path in ("/etc/hosts", "/etc/nsswitch.conf", world.HOME):
            world.unmount(path)

    def name_hosts(self):
        """Replaces a name server, which torch would query for 20 s at each look-up."""
        hosts = world.HOME / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{NETWORK}.10 n0\n" + "".join(f"{node.address} {node.name}\n" for node in self.nodes))
        switch = world.HOME / "nsswitch.conf"
        switch.write_text("passwd: files\ngroup: files\nhosts: files\n")
        for path in (hosts, switch):
            world.mount(path, f"/etc/{path.name}", flags=world.MS_BIND)
        subprocess.run(["hostname", "n0"], check=True)

    def mpirun(self, *command):
        """The command line that starts it on the nodes, from the head node: a node cannot enter its neighbour's processes."""
        agent = world.HOME / "agent"
        agent.write_text("#!/bin/sh\nnode=$1\nshift\nexec nsenter --target \"$(cat /srv/of/$node/pid)\" --net --uts --ipc --mount --pid "
                         '--wdns=/ -- sh -c "$*"\n')
        agent.chmod(0o755)
        hosts = world.HOME / "hostfile"
        hosts.write_text("".join(f"{node.name} slots=8\n" for node in self.nodes if node.pid))
        interface = f"{NETWORK}.0/24"
        keepalive = ["--mca", "oob_tcp_keepalive_time", 2, "--mca", "oob_tcp_keepalive_intvl", 1, "--mca", "oob_tcp_keepalive_probes", 2]
        return ["mpirun", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent, "--mca", "btl_tcp_if_include", interface,
                "--mca", "oob_tcp_if_include", interface, "--map-by", "node", "--hostfile", hosts, *keepalive, *command]

    def mount(self, node, stale=0, local_locks=False, rename_flags=False, direct=True):
        """Mounts SHARED on the node at MOUNTED: its own view of names and attributes, which may be `stale` seconds old."""
        if NFS:
            return self.mount_nfs(node, stale, local_locks)
        program = os.environ.get("FAULTY_MOUNT")
        if not program:
            raise unittest.SkipTest("faulty_mount is not built: no libfuse3 here (Debian: libfuse3-dev)")
        if not os.path.exists("/dev/fuse"):
            raise unittest.SkipTest("this machine has no /dev/fuse")
        flags = ["--stale", stale, "--faults", world.HOME / "faults" / node.name]
        flags += ["--local-locks"] * local_locks + ["--no-rename-flags"] * (not rename_flags) + ["--no-direct"] * (not direct)
        daemon = node.start("mount", program, SHARED, MOUNTED, *flags)
        while f" {MOUNTED} " not in pathlib.Path(f"/proc/{node.pid}/mountinfo").read_text():
            if not daemon.running():
                raise AssertionError(f"{node.name} cannot mount: {daemon.output()}")
            time.sleep(0.02)
        return daemon

    def mount_nfs(self, node, stale, local_locks):
        if local_locks:
            raise unittest.SkipTest("NFS 4 has no locks of a node's own")
        if "nfs4" not in pathlib.Path("/proc/filesystems").read_text().split() or not shutil.which("rpc.nfsd", path=PROGRAMS):
            raise unittest.SkipTest("no NFS 4 here: the kernel or rpc.nfsd (Debian: nfs-kernel-server) lacks it")
        if not self.exported:
            world.cover("/var/lib/nfs")
            export = ["exportfs", "-o", "rw,no_root_squash,insecure,no_subtree_check,fsid=0", f"{NETWORK}.0/24:{SHARED}"]
            for command in (["mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd"], export, ["rpc.nfsd", "--no-nfs-version", "3", "4"]):
                subprocess.run(command, check=True, env=environment())
            Started(["rpc.mountd", "--foreground", "--no-nfs-version", "3"], LOGS / "mountd")
            self.exported = True
        # Without nosharecache the nodes, which have one kernel, would share their cache of names.
        done = node.run("mount", "-t", "nfs", "-o", f"vers=4.2,nosharecache,actimeo={stale}", "n0:/", MOUNTED)
        if done.returncode != 0:
            raise AssertionError(f"{node.name} cannot mount: {done.stderr}")

    def fault(self, node, *lines):
        """The faults of the node's mount from now on; see faulty_mount.cc. Without lines: none."""
        if NFS:
            raise unittest.SkipTest("NFS has no faults on demand")
        path = world.HOME / "faults" / node.name
        path.with_suffix(".new").write_text("".join(line + "\n" for line in lines))
        path.with_suffix(".new").replace(path)
