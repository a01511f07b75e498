"""The world of a month: two nodes, a scratch file system, a store with its tape, and all users' files.

    scratch/exp1/ckpt …   run directories, several of one last name     scratch/trees/a/model …   trees
    scratch/theirs        other people's                                disk/                     what links lead to
    node0, node1          local steps                                   store/, tape/             the archive
    etc/                  policies                                      logs/                     of the trainings
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

from clock import Clock, real_now_ns
from files import Digests, fingerprint

CAIRN = os.environ.get("CAIRN", "cairn")
MAKE_STEP = os.environ.get("CAIRN_MAKE_STEP", "make_step")
TRAINS = (pathlib.Path(CAIRN).parent / "cairn-train").exists()  # built with the trainer
PATIENCE = 120  # seconds; a program that takes longer hangs


@dataclasses.dataclass
class Done:
    command: list
    code: int | None  # None: it was killed on purpose
    text: str

    @property
    def killed(self):
        return self.code is None


@dataclasses.dataclass
class Lineage:
    """One training as a user sees it, whatever the current name of its directory."""
    name: str
    path: pathlib.Path
    seed: int
    made: bool = False     # steps come from make_step, not from a training
    local: str = ""        # --save-local
    keep_last: int = 0
    lr: float = 1e-4
    iteration: int = 0     # of a made one
    alive: bool = True     # false: its directory was removed
    born: set = dataclasses.field(default_factory=set)  # contents that it saved itself


class Violation(AssertionError):
    """The oracle's finding: a rule, and what breaks it."""

    def __init__(self, rule, text):
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class World:
    def __init__(self, root, seed):
        self.root = pathlib.Path(root)
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = Clock()
        self.digests = Digests()
        self.lineages = []
        self.theirs = {}       # path -> fingerprint of what is not Cairn's
        self.damaged = set()   # paths whose bytes rotted and were not written since
        self.troubles = set()  # reasons for which an archive job may fail today
        self.log = []
        self.starts = 0        # processes of the programs under test
        self.mounted = None
        self.background = []
        self.oracle = None     # set by the oracle itself
        for name in ("scratch", "node0", "node1", "store", "tape", "etc", "logs", "disk", "scratch/theirs", "scratch/trees"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.scratch, self.store, self.tape = self.root / "scratch", self.root / "store", self.root / "tape"

    # --- actions ---------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def act(self, actor, text, **facts):
        """One action: whatever it does to files, the oracle compares before and after. `facts` are for its rules."""
        began = real_now_ns()
        self.log.append(f"{self.clock.stamp()} {actor}: {text}")
        yield facts
        self.clock.settle(self.root, began, self.digests.moved)
        self.oracle.observe(actor, text, facts)

    def note(self, text):
        self.log.append(f"{self.clock.stamp()}   {text}")

    def run(self, *command, cwd=None, kill_after=None, limit_file_bytes=None, patience=PATIENCE):
        """A program under test, in simulated time; killed with all its children after `kill_after` real seconds."""
        self.starts += 1
        command = [str(word) for word in command]
        process = self.spawn(command, cwd, limit_file_bytes)
        killed = False
        try:
            text, _ = process.communicate(timeout=kill_after or patience)
        except subprocess.TimeoutExpired:
            killed = kill_after is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
            if not killed:
                raise Violation("hang", f"{' '.join(command)} did not end in {patience} s") from None
        code = None if killed else process.returncode
        short = " ".join(os.path.basename(word) if word == CAIRN else word.replace(str(self.root) + "/", "") for word in command)
        tail = text.strip().splitlines()[-1:] or [""]
        self.note(f"{'killed' if killed else f'exit {code}'}: {short}  | {tail[0][:160]}")
        return Done(command, code, text)

    def spawn(self, command, cwd=None, limit_file_bytes=None):
        def limit():
            import resource
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_file_bytes, limit_file_bytes))
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI"))}
        plain["OMPI_ALLOW_RUN_AS_ROOT"] = plain["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        return subprocess.Popen([str(word) for word in command], cwd=cwd or self.root, text=True, errors="replace",
                                env=plain | self.clock.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, start_new_session=True,
                                preexec_fn=limit if limit_file_bytes else None)

    def cairn(self, *args, **kwargs):
        return self.run(CAIRN, *args, **kwargs)

    # --- files -----------------------------------------------------------------------------------------------------
    def own(self, *paths):
        """These belong to a user; only their owner changes or removes them."""
        for path in paths:
            self.theirs[str(path)] = fingerprint(self.digests, path)

    def disown(self, root):
        """Files that a user removes or moves by hand do not count as lost."""
        self.theirs = {path: what for path, what in self.theirs.items() if not (path + "/").startswith(str(root) + "/")}

    def write(self, path, data, owned=True):
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        if owned:
            self.own(path)
        return path

    def steps(self, run_dir):
        """Committed steps of a run directory, ascending; links to steps among them."""
        found = [path for path in pathlib.Path(run_dir).glob("step-*") if path.name[5:].isdigit() and path.is_dir()]
        return sorted(found, key=lambda path: int(path.name[5:]))

    def live(self, **wanted):
        return [x for x in self.lineages if x.alive and all(getattr(x, key) == value for key, value in wanted.items())]

    def age(self, path, days):
        """As if it had not been read or written for `days` days."""
        then = self.clock.now - days * 86400
        for directory, _, names in os.walk(path):
            for name in names:
                file = os.path.join(directory, name)
                before = os.lstat(file)
                os.utime(file, (then, then), follow_symlinks=False)
                self.digests.moved(before, os.lstat(file))

    def mount_small(self, path, size):
        """A small file system. False if this user may not mount one."""
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True)
        if done.returncode == 0:
            self.mounted = path
        return done.returncode == 0

    def manifest(self, step):
        """The oracle's own reading of a step; None if it cannot be read."""
        try:
            with open(os.open(os.path.join(step, "manifest.json"), os.O_RDONLY | os.O_NOATIME | os.O_NONBLOCK)) as file:
                read = json.load(file)
            return read if isinstance(read.get("files"), list) else None
        except (OSError, ValueError, AttributeError):
            return None

    def close(self):
        for process in self.background:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        if self.mounted:
            for _ in range(50):
                if subprocess.run(["umount", str(self.mounted)], capture_output=True).returncode == 0:
                    break
                time.sleep(0.1)
        shutil.rmtree(self.root, ignore_errors=True)
