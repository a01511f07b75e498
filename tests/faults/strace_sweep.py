"""Kills real programs at real system calls, by strace: the independent check of the goal kill_points.

make_step saves a step over one of the same number, `cairn reshape` writes another topology, `cairn archive run
--delete-source` moves a step away. Each is killed (strace --inject) at every one of its system calls that change the
disk, or with --points N at N of them chosen evenly. Afterwards `cairn fingerprint` must find the old checkpoint or the
new one, whole, and the work must succeed when it is done again. Prints one line of JSON, as the program faults does.

CAIRN and CAIRN_MAKE_STEP name the programs. A process that is killed loses nothing that it gave to the kernel, so
what this cannot show are power losses.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

CAIRN = os.environ["CAIRN"]
MAKE_STEP = os.environ["CAIRN_MAKE_STEP"]
MODEL = ["--layers", "1", "--hidden", "8", "--ffn", "8", "--vocab", "10"]
CALLS = "openat,write,pwrite64,io_uring_enter,fsync,close,fallocate,ftruncate,mkdir,rename,renameat2,unlink,rmdir"


class Failed(Exception):
    pass


def done(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def fingerprint(path):
    """The fingerprint of the newest whole step; None if there is none."""
    verified = done(CAIRN, "verify", path)
    if any(text in verified.stderr for text in ("no committed step", "neither a step or run of Cairn")):
        return None
    if verified.returncode != 0:
        raise Failed(verified.stdout + verified.stderr)
    return json.loads(done(CAIRN, "fingerprint", path, "--json").stdout)["fingerprint"]


def make_step(run, step, seed):
    return [MAKE_STEP, run, *MODEL, "--tp", "2", "--step", str(step), "--seed", str(seed)]


class Save:
    """A step after another one."""

    def __init__(self, root):
        self.run = root / "run"
        done(*make_step(self.run, 100, 1))
        self.old = fingerprint(self.run)
        self.command = make_step(self.run, 110, 2)
        self.again = make_step(self.run, 120, 2)

    def learn(self):
        self.new = fingerprint(self.run)

    def check(self):
        if fingerprint(self.run) not in (self.old, self.new):
            raise Failed("neither the old step nor the new one")
        redone = done(*self.again)
        if redone.returncode != 0 or fingerprint(self.run) != self.new:
            raise Failed("saving again failed: " + redone.stderr)


class Reshape:
    def __init__(self, root):
        self.run, self.wide = root / "run", root / "wide"
        done(*make_step(self.run, 100, 1))
        self.old = fingerprint(self.run)
        self.command = [CAIRN, "reshape", self.run, self.wide, "--tp", "1", "--pp", "1", "--dp", "2"]

    def learn(self):
        if fingerprint(self.wide) != self.old:
            raise Failed("reshape changes values")

    def check(self):
        if fingerprint(self.run) != self.old:
            raise Failed("the source is gone")
        there = self.wide.exists() and fingerprint(self.wide)
        if there and there != self.old:
            raise Failed("half a target")
        if not there:
            done(*self.command)
            if fingerprint(self.wide) != self.old:
                raise Failed("reshaping again failed")


class Archive:
    def __init__(self, root):
        self.run, self.store, self.back = root / "run", root / "store", root / "back" / "step-00000100"
        done(*make_step(self.run, 100, 1))
        self.old = fingerprint(self.run)
        self.command = [CAIRN, "archive", "run", self.run, "--store", self.store, "--delete-source", "--delete-newest"]

    def learn(self):
        if fingerprint(self.run) is not None:
            raise Failed("the source is still there")

    def check(self):
        if fingerprint(self.run) == self.old:
            done(*self.command)
        restored = done(CAIRN, "archive", "restore", self.store, self.back)
        if restored.returncode != 0 or fingerprint(self.back) != self.old:
            raise Failed("neither the source nor a whole copy: " + restored.stderr)


def in_new_directory(work, body):
    root = pathlib.Path(tempfile.mkdtemp(prefix="cairn-strace-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        return body(work(root))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def count_calls(work):
    """Calls of each kind that the undisturbed work makes, once the work itself has begun."""
    log = work.run.parent / "log"
    traced = done("strace", "-f", "-qq", "-o", log, "-e", "trace=" + CALLS, *work.command)
    if traced.returncode != 0:
        raise Failed(traced.stderr)
    work.learn()
    return collections.Counter(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.M)), getattr(work, "new", None)


def kill_at(work, call, nth, new):
    work.new = new
    """True if the program was killed: strace counts calls by thread, so some moments never occur."""
    inject = f"inject={call}:signal=KILL:when={nth}"
    traced = done("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=" + call, "-e", inject, *work.command)
    work.check()
    return traced.returncode not in (0, 1, 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, help="the number of moments to try; default: all")
    options = parser.parse_args()
    if not shutil.which("strace") or done("strace", "-qq", "-o", "/dev/null", "true").returncode != 0:
        print("strace is missing or not allowed to trace here; skipped")
        sys.exit(77)
    start = time.monotonic()
    moments = []
    for work in (Save, Reshape, Archive):
        counts, new = in_new_directory(work, count_calls)
        moments += [(work, call, nth, new) for call, count in sorted(counts.items()) for nth in range(1, count + 1)]
    every = max(1, len(moments) // options.points) if options.points else 1
    tried = passed = 0
    failing = None
    for seed in range(0, len(moments), every):
        work, call, nth, new = moments[seed]
        try:
            killed = in_new_directory(work, lambda ready: kill_at(ready, call, nth, new))
            tried += killed
            passed += killed
        except Failed as failure:
            tried += 1
            failing = seed if failing is None else failing
            print(f"{work.__name__}, killed at {call} number {nth}: {failure}", file=sys.stderr)
    print(json.dumps({"goal": "strace_kills", "tried": tried, "passed": passed, "failing_seed": failing,
                      "seconds": round(time.monotonic() - start, 1)}))
    sys.exit(0 if passed == tried > 0 else 1)


if __name__ == "__main__":
    main()
