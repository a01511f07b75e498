"""Shared by the tests of the command: running it as a user does, and steps without a training.

CAIRN, CAIRN_MAKE_STEP (tests/support/make_step_main.cc) and CAIRN_TRAIN name the programs; CAIRN_TRAIN is empty where
it was not built, and CAIRN_SANITIZE where they are as users have them.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

CAIRN = os.environ["CAIRN"]
MAKE_STEP = os.environ["CAIRN_MAKE_STEP"]
TRAINER = os.environ.get("CAIRN_TRAIN", "")
SANITIZED = bool(os.environ.get("CAIRN_SANITIZE"))  # its memory is the sanitizer's


def verbs():
    text = subprocess.run([CAIRN, "--help"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^  ([a-z]+) ", text.split("Subcommands:")[1].split("Example")[0], re.M)


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def tree(path):
    return {str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in sorted(path.rglob("*"))}


class Table:
    """For a TestCase whose table() is the text of the file `answers`; `--write` writes that again."""

    answers: pathlib.Path

    def test_every_answer_is_as_the_table_says(self):
        self.maxDiff = None
        self.assertEqual(self.table(), self.answers.read_text())

    @classmethod
    def main(cls):
        if sys.argv[1:] != ["--write"]:
            return unittest.main()
        case = cls("test_every_answer_is_as_the_table_says")
        cls.setUpClass()
        case.setUp()
        cls.answers.write_text(case.table())
        case.doCleanups()
        cls.doClassCleanups()


class CliTest(unittest.TestCase):
    command = CAIRN

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cairn-cli-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.run_dir = self.dir / "gpt"
        self.store = self.dir / "store"

    def make_step(self, *flags, step=100):
        subprocess.run([MAKE_STEP, self.run_dir, "--step", str(step), *map(str, flags)], check=True)
        return self.run_dir / f"step-{step:08}"

    def cairn(self, *args, code=0, says=()):
        done = subprocess.run([self.command, *map(str, args)], capture_output=True, text=True, cwd=self.dir)
        text = done.stdout + done.stderr
        self.assertEqual(done.returncode, code, f"cairn {args}: {text}")
        for part in [says] if isinstance(says, str) else says:
            self.assertIn(part, text)
        if code == 2:
            self.assertRegex(done.stderr.splitlines()[-1], "^cairn: ")
        return done

    def assert_one_tensor_reads_little(self, member):
        """Of the store's tars, when it is restored."""
        trace, one = self.dir / "trace", self.dir / "one.safetensors"
        done = subprocess.run(["strace", "-f", "-y", "-e", "trace=pread64,read", "-o", trace, CAIRN, "archive", "restore", member, one,
                               "--tensors", "layers.0.mlp.up.weight"], capture_output=True, text=True) if shutil.which("strace") else None
        if done is None or done.returncode != 0 and "ptrace" in done.stderr:
            self.skipTest("no strace here")
        self.assertEqual(done.returncode, 0, done.stderr)
        read, pending = 0, {}
        for line in trace.read_text().splitlines():
            process, call = line.split(None, 1)
            if "<unfinished" in call:
                pending[process] = ".tar>" in call
            elif "= " in call and (pending.pop(process, False) if " resumed>" in call else ".tar>" in call):
                read += max(0, int(call.rsplit("= ", 1)[1].split()[0]))
        self.assertGreater(read, 0)
        self.assertLessEqual(read, 1.1 * one.stat().st_size + (1 << 20), f"{read} bytes were read for {one.stat().st_size}")

    def archive(self, *args, **kwargs):
        return self.cairn("archive", *args, **kwargs)

    def json(self, *args, code=0):
        return json.loads(self.cairn(*args, "--json", code=code).stdout)

    def policy(self, head="", tail="", runs=None, full=20, weights=10):
        """An archive's policy that keeps every `full`-th step, and the weights of every `weights`-th."""
        classes = [f'[[class]]\nkeep = "{keep}"\nevery = {every}' for keep, every in (("full", full), ("weights-fp16", weights)) if every]
        path = self.dir / "policy.toml"
        path.write_text("\n".join(["", f'store = "{self.store}"', f'runs = ["{runs or self.dir / "gpt*"}"]', head, *classes, tail, ""]))
        return path

    def mount(self, *options, at="mount"):
        """A small tmpfs; skips the test if this user may not mount one."""
        path = self.dir / at
        path.mkdir(parents=True)
        done = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", path], capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest("cannot mount a tmpfs here: " + done.stderr.strip())
        self.addCleanup(subprocess.run, ["umount", "-l", path], capture_output=True)
        return path
