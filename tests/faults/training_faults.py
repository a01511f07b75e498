"""Real trainings that are killed, stopped, slowed and asked to save, at random moments.

    python training_faults.py [--long] [--seed N] [--goal NAME]

Prints one JSON line a goal: tried, passed, failing_seed. CAIRN says where `cairn` was built.

  sigkill       all ranks are killed at random moments, again and again: the final state is bit-identical to that of
                the unbroken run
  signals       SIGTERM, SIGUSR1 or SIGHUP at random moments: the job ends with the step it was in, committed and good
  rank_killed, rank_stopped, rank_slow
                one of 8 ranks during a save: no step that does not verify, the culprit is named within 10 s, and
                training continues with fewer ranks on another topology
"""

import argparse
import glob
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

CAIRN = os.environ["CAIRN"]
MODEL = ["--num-layers", "4", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "16", "--vocab-size",
         "61", "--make-vocab-size-divisible-by", "8", "--mock-data", "--micro-batch-size", "1", "--global-batch-size",
         "8", "--lr", "1e-3", "--threads", "1", "--log-interval", "1"]
NAMED_WITHIN = 10  # seconds


class Training:
    """A `cairn train` in its own session; its output is read as it comes."""

    def __init__(self, run, mesh, *flags):
        tp, pp, dp, zero = mesh
        command = [CAIRN, "train", "--nproc-per-node", tp * pp * dp, "--tensor-model-parallel-size", tp,
                   "--pipeline-model-parallel-size", pp, "--zero-stage", zero, *MODEL, "--save", run, *flags]
        self.run = run
        self.lines = []
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, start_new_session=True)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line))

    def output(self):
        return "".join(line for _, line in self.lines)

    def iteration(self):
        for _, line in reversed(self.lines):
            if found := re.match(r" iteration +(\d+)/", line):
                return int(found[1])
        return 0

    def wait_until(self, condition, seconds=120):
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                return condition()
            time.sleep(0.01)
        return True

    def ranks(self):
        """Processes of the ranks, by rank."""
        found = {}
        for path in glob.glob("/proc/[0-9]*/environ"):
            try:
                command = open(path.replace("environ", "cmdline"), "rb").read()
                environment = open(path, "rb").read()
            except OSError:
                continue
            rank = re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)\0", environment)
            if rank and self.run.encode() in command:
                found[int(rank[1])] = int(path.split("/")[2])
        return found

    def kill_all(self):
        while subprocess.run(["pkill", "-9", "-f", self.run]).returncode == 0:
            time.sleep(0.02)
        self.process.wait()
        self.reader.join()

    def finish(self, seconds=300):
        status = self.process.wait(seconds)
        self.reader.join()
        return status


def steps(run):
    return sorted(glob.glob(os.path.join(run, "step-" + "[0-9]" * 8)))


def newest(run):
    return int(steps(run)[-1][-8:]) if steps(run) else 0


def cairn(*args):
    return subprocess.run([CAIRN, *map(str, args)], capture_output=True, text=True)


def all_verify(run):
    return all(cairn("verify", step).returncode == 0 for step in steps(run))


def fingerprints(run):
    """The digest of every array of the newest step, including random states."""
    done = cairn("fingerprint", run, "--json")
    return json.loads(done.stdout)["tensors"] if done.returncode == 0 else done.stderr


def sigkill(dir, rng, kills):
    mesh, iterations = (1, 1, 2, 1), 50 * kills
    flags = ["--train-iters", iterations, "--save-interval", "5", "--keep-last", "2", "--hidden-dropout", "0.1"]
    whole, broken = os.path.join(dir, "whole"), os.path.join(dir, "broken")
    unbroken = Training(whole, mesh, *flags)
    if unbroken.finish(3600) != 0:
        return 0, unbroken.output()[-500:]
    for done in range(kills):
        training = Training(broken, mesh, *flags)
        start = newest(broken)
        training.wait_until(lambda: training.iteration() > start)
        time.sleep(rng.uniform(0, 0.6))
        if training.process.poll() is not None:
            return done, "the training ended before it was killed so often; it needs more iterations"
        training.kill_all()
    if Training(broken, mesh, *flags).finish(3600) != 0:
        return kills, "the last training failed"
    same = fingerprints(whole) == fingerprints(broken) and newest(broken) == iterations
    return kills, None if same else "the final state differs"


def may_be_interrupted(pid):
    """Threads of a rank in which a stop signal could run a handler: over the heap, where a kernel of oneDNN has
    its stack pointer."""
    mask = sum(1 << (stop - 1) for stop in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP))
    threads = {}
    for path in glob.glob(f"/proc/{pid}/task/[0-9]*/status"):
        try:
            status = open(path).read()
        except FileNotFoundError:  # it has ended
            continue
        threads[re.search(r"Name:\s+(.*)", status)[1]] = int(re.search(r"SigBlk:\s+([0-9a-f]+)", status)[1], 16)
    return [name for name, blocked in threads.items() if blocked & mask != mask]


def signals(dir, rng, count):
    run = os.path.join(dir, "run")
    for i in range(count):
        training = Training(run, (1, 1, 2, 1), "--train-iters", "1000000", "--save-interval", rng.choice([3, 50, 0]),
                            "--keep-last", "2")
        start = newest(run)
        if not training.wait_until(lambda: training.iteration() > start):
            return i, training.output()[-500:]
        for rank, pid in training.ranks().items():
            if exposed := may_be_interrupted(pid):
                return i, f"threads of rank {rank} that take signals: {exposed}"
        time.sleep(rng.uniform(0, 0.5))
        os.kill(training.process.pid, [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP][i % 3])
        status = training.finish(120)
        if status != 0 or newest(run) != training.iteration() or cairn("verify", run).returncode != 0:
            return i, f"status {status}, step {newest(run)} of {training.iteration()}: {training.output()[-4000:]}"
    return count, None


def slow_down(pid, seconds):
    """A tenth of the time for this process."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.09)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)


def lose_rank(training, victim, signum):
    """Empty, or what the survivors did wrong."""
    pid = training.ranks()[victim]
    name = re.compile(rf"\brank {victim} .*(is gone|stopped by a signal)|PID {pid} .*signal 9")
    start = time.monotonic()
    os.kill(pid, signum)
    named = training.wait_until(lambda: any(name.search(line) for t, line in training.lines if t >= start), 30)
    took = time.monotonic() - start
    if not named or took > NAMED_WITHIN:
        return f"rank {victim} named: {named}, after {took:.1f} s: {training.output()[-800:]}"
    try:
        return "status 0 though a rank was lost" if training.finish(60) == 0 else None
    except subprocess.TimeoutExpired:
        return "survivors hang"


def rank_fault(dir, rng, count, signum):
    for i in range(count):
        run = os.path.join(dir, f"run-{i}")
        victim = rng.randrange(8)
        training = Training(run, (2, 2, 2, 1), "--train-iters", "1000000", "--save-interval", "1",
                            "--distributed-timeout-seconds", "15")
        if not training.wait_until(lambda: newest(run) >= 3):
            return i, training.output()[-500:]
        training.wait_until(lambda: any(".partial-" in name for name in os.listdir(run)))
        before = newest(run)
        why = None
        if signum is None:
            slow_down(training.ranks()[victim], 8)
            if not training.wait_until(lambda: newest(run) > before + 2):
                why = "no commit after a rank was slow: " + training.output()[-500:]
        else:
            why = lose_rank(training, victim, signum)
        training.kill_all()
        if why or not all_verify(run):
            return i, why or "a step does not verify"
        last = newest(run)
        resumed = Training(run, (2, 2, 1, 1), "--train-iters", last + 2)
        if resumed.finish() != 0 or newest(run) != last + 2 or not all_verify(run):
            return i, "fewer ranks do not continue: " + resumed.output()[-500:]
    return count, None


GOALS = {  # function, how often in the short form, how often in the long one
    "sigkill": (sigkill, 5, 200),
    "signals": (signals, 4, 200),
    "rank_killed": (lambda *a: rank_fault(*a, signal.SIGKILL), 1, 10),
    "rank_stopped": (lambda *a: rank_fault(*a, signal.SIGSTOP), 1, 10),
    "rank_slow": (lambda *a: rank_fault(*a, None), 1, 10),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="as many as the goals ask for")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--goal", choices=GOALS, help="only this one")
    parser.add_argument("-v", action="store_true", help="does nothing: for the test runner")
    args = parser.parse_args()
    failed = False
    for name, (goal, short, long) in GOALS.items():
        if args.goal not in (None, name):
            continue
        tried = long if args.long else short
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="cairn-") as dir:
            passed, why = goal(dir, random.Random(args.seed), tried)
        ok = passed == tried and why is None
        failed |= not ok
        print(json.dumps({"goal": name, "tried": tried, "passed": passed, "failing_seed": None if ok else args.seed,
                          "seconds": round(time.monotonic() - start, 1), **({} if ok else {"why": why})}), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
