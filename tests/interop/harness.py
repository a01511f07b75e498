"""Runs the programs as a user does. CAIRN and CAIRN_TRAIN are their paths."""

import glob
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

CAIRN = os.environ["CAIRN"]

# A model small enough that starting the ranks is most of the time.
TINY = ["--num-layers", "3", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "16",
        "--vocab-size", "61", "--make-vocab-size-divisible-by", "8", "--mock-data", "--micro-batch-size", "2",
        "--global-batch-size", "8", "--lr", "1e-3", "--threads", "1"]


def cairn(*args, status=0, **kwargs):
    done = subprocess.run([CAIRN, *map(str, args)], capture_output=True, text=True, timeout=300, **kwargs)
    if status is not None and done.returncode != status:
        raise AssertionError(f"cairn {' '.join(map(str, args))}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def written_for(cls, script, *args):
    """The directory, which goes with the class, in which a script of this folder wrote."""
    place = tempfile.TemporaryDirectory(prefix=f"cairn-{cls.__name__}-")
    cls.addClassCleanup(place.cleanup)
    writer = pathlib.Path(__file__).with_name(script)
    done = subprocess.run([sys.executable, writer, place.name, *args], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise AssertionError(done.stderr[-3000:])
    return pathlib.Path(place.name)


def topology(tp, pp, dp, zero=0):
    return ["--nproc-per-node", str(tp * pp * dp), "--tensor-model-parallel-size", str(tp),
            "--pipeline-model-parallel-size", str(pp), "--zero-stage", str(zero)]


def losses(path):
    """{iteration: loss as it was printed}, of a --log-json file."""
    with open(path) as lines:
        return {row["iteration"]: row["loss"] for row in map(json.loads, lines)}


def steps(run):
    return sorted(glob.glob(os.path.join(run, "step-" + "[0-9]" * 8)))


def fingerprint(path):
    return json.loads(cairn("fingerprint", path, "--json").stdout)["fingerprint"]


def seal(path):
    """Seals a step, or all of a run, verifies it, and returns the facts of the first. Nothing may be left unread."""
    facts = json.loads(cairn("seal", path, "--settle", 0, "--json").stdout)
    for fact in facts:
        if fact["state"] != "sealed" or fact["untold"]:
            raise AssertionError(f"{path}: {fact}")
    cairn("verify", path)
    return facts[0]


class Case(unittest.TestCase):
    """A test with its own directory: self.dir."""

    def setUp(self):
        temp = tempfile.TemporaryDirectory()
        self.addCleanup(temp.cleanup)
        self.dir = temp.name

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def train(self, name, mesh, *flags, status=0, model=TINY):
        """Trains; returns the losses. Both log and run directory are called `name` unless flags say otherwise."""
        log = self.path(name + ".json")
        done = cairn("train", *topology(*mesh), *model, "--log-json", log, *flags, status=status)
        self.output = done.stdout + done.stderr
        return losses(log) if os.path.exists(log) else {}
