"""`cairn.torch`: the steps of a run; which one is loaded, which ones stay, and full disks."""

import errno
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import unittest

import torch
from torch_process import ROOT, ProcessTest, _helper, _steps, cairn


class RunsTest(ProcessTest):
    """One process, through the real helper. Each step's values are its number."""

    def setUp(self):
        super().setUp()
        self.run_dir = pathlib.Path(self.directory, "run")

    def save(self, *numbers, run=None, **options):
        for number in numbers:
            saved = cairn.torch.save({"w": torch.full((300,), float(number))}, run or self.run_dir, number, **options)
        return saved

    def load(self, number=None, run=None):
        """The step that is loaded, which has its own values."""
        into, run = {"w": torch.zeros(300)}, run or self.run_dir
        loaded = cairn.torch.load(into, run if number is None else run / f"step-{number:08d}")
        self.assertEqual(into["w"].tolist(), [loaded] * 300)
        return loaded

    def listed(self, run=None):
        return json.loads(cairn.run(["ls", run or self.run_dir, "--json"], capture=True).stdout)[0]["steps"]

    def current(self, run=None):
        return {step["step"]: step for step in self.listed(run) if step["state"] != "superseded"}

    def numbers(self):
        return sorted(int(step.name[5:]) for step in self.run_dir.glob("step-*"))

    def test_a_failed_save_is_a_warning_on_request(self):
        run, state = self.run_dir, {"w": torch.ones(3000)}
        run.touch()  # in the place of the directory
        with self.assertLogs("cairn.torch", "WARNING") as logged:
            for step in (1, 2, 3):
                saved = cairn.torch.save(state, run, step, on_error="warn")
                self.assertEqual((saved.step_dir, type(saved.error)), ("", NotADirectoryError))
            handle = cairn.torch.async_save(state, run, 4, on_error="warn")
            self.assertIsInstance(handle.result().error, NotADirectoryError)
            self.assertIsNone(handle.written.result() or handle.staged.result())
        self.assertEqual([record.levelname for record in logged.records], ["WARNING"] * 2 + ["CRITICAL"] * 2)
        self.assertRegex(logged.output[2], "ALARM: the save of step 3 failed, as did 2 before it: .*Not a directory")
        self.assertRaises(NotADirectoryError, cairn.torch.save, state, run, 5)
        self.assertRaises(TypeError, cairn.torch.save, {"w": torch.ones(3, dtype=torch.complex64)}, run, 5, on_error="warn")
        self.assertRaises(ValueError, cairn.torch.save, state, run, 5, on_error="ignore")
        run.unlink()
        saved = cairn.torch.save(state, run, 5, on_error="warn")
        self.assertEqual((saved.error, cairn.torch.load(state, run)), (None, 5))
        run.rename(run.with_name("gone"))
        run.touch()
        with self.assertLogs("cairn.torch", "WARNING") as logged:
            cairn.torch.save(state, run, 6, on_error="warn")
        self.assertEqual(logged.records[0].levelname, "WARNING")

    def test_the_run_records_starts_failures_and_ends(self):
        """Three starts of a program on a small disk: one fails and one is killed, and `cairn plan` counts both failures."""
        self.run_dir = self.small_disk("small", "size=3m") / "run"
        program = """
import os, signal, sys, torch, cairn.torch
run, state = sys.argv[1], {"w": torch.zeros(300)}
step = cairn.torch.load(state, run) if os.path.exists(run) else 0
cairn.torch.save(state, run, step + 1)
cairn.torch.async_save(state, run, step + 2).result()
cairn.torch.save({"w": torch.zeros(2**20)}, run, step + 3, on_error="warn")
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "failed":
    raise RuntimeError("no gradient")
"""
        for how, status in (("failed", 1), ("killed", -signal.SIGKILL), ("done", 0)):
            given = [sys.executable, "-c", program, self.run_dir, how]
            done = subprocess.run(given, env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True)
            self.assertEqual(done.returncode, status, done.stderr)
        events = [json.loads(line) for line in (self.run_dir / "events").read_text().splitlines()]
        saves = ["start", "save", "save", "save_failed"]
        self.assertEqual([event["event"] for event in events], [*saves, "end", *saves, *saves, "end"])
        starts = [event for event in events if event["event"] == "start"]
        expected = [(None, None, 1), (2, "run", 1), (4, "run", 1)]
        self.assertEqual([(start.get("step"), start.get("tier"), start["ranks"]) for start in starts], expected)
        self.assertTrue(all(0 < start["seconds"] < 300 and start["time"] < events[-1]["time"] for start in starts), starts)
        self.assertGreater(starts[1]["step_time"], starts[0]["time"])
        self.assertEqual([(event["how"], event.get("why")) for event in events if event["event"] == "end"],
                         [("failed", "RuntimeError: no gradient"), ("done", None)])
        self.assertIn("No space left", events[3]["why"])
        self.assertEqual(events[1]["stall"], events[1]["seconds"])  # of save
        self.assertLess(events[2]["stall"], events[2]["seconds"])
        plan = ["plan", "--checkpoints", self.run_dir, "--step-seconds", "1"]
        found = json.loads(cairn.run([*plan, "--json"], check=False, capture=True).stdout)
        self.assertEqual((found["starts"], found["failures"]["count"], found["failed_saves"]), (3, 2, 3))
        said = cairn.run(plan, check=False, capture=True).stdout  # it hardly moves
        self.assertIn("(2 of a process)", said)
        self.assertIn("Saves that failed: 3", said)

    def test_the_exit_status_says_how_a_training_ends(self):
        """However it comes about, also in a process of multiprocessing."""
        program = """
import multiprocessing, sys, torch, cairn.torch
def train(run, end):
    cairn.torch.save({"w": torch.zeros(3)}, run, 1)
    exec(end)
if __name__ == "__main__":
    run, end, child = sys.argv[1:]
    if child == "child":
        process = multiprocessing.get_context("spawn").Process(target=train, args=(run, end))
        process.start()
        process.join()
    else:
        train(run, end)
"""
        script = pathlib.Path(self.directory, "train.py")
        script.write_text(program)
        for end, status, child, how, why in (
                ("pass", 0, "", "done", None), ("sys.exit(0)", 0, "", "done", None), ("sys.exit(3)", 3, "", "failed", "exit status 3"),
                ("raise SystemExit(1)", 1, "", "failed", "exit status 1"), ("sys.exit('no data')", 1, "", "failed", "exit status 1"),
                ("sys.exit(2)", 0, "child", "failed", "SystemExit: 2"), ("sys.exit(0)", 0, "child", "done", None),
                ("1 / 0", 1, "", "failed", "ZeroDivisionError: division by zero")):
            with self.subTest(end, child=child):
                shutil.rmtree(self.run_dir, ignore_errors=True)
                given = [sys.executable, script, self.run_dir, end, child]
                done = subprocess.run(given, env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True)
                self.assertEqual(done.returncode, status, done.stderr)
                last = json.loads((self.run_dir / "events").read_text().splitlines()[-1])
                self.assertEqual((last["event"], last["how"], last.get("why")), ("end", how, why))

    def test_loads_the_newest_step_of_a_run(self):
        for step in (9, 10):
            cairn.torch.save({"step": step}, self.directory, step)
        into = {"step": 0}
        self.assertEqual((cairn.torch.load(into, self.directory), into["step"]), (10, 10))
        cairn.torch.save({"step": "again"}, self.directory, 10)
        cairn.torch.load(into, self.directory)
        self.assertEqual(into["step"], "again")

    def test_a_superseded_step_without_its_replacement_is_loaded(self):
        """As a kill leaves it on a file system that cannot exchange two names."""
        run = pathlib.Path(self.directory)
        cairn.torch.save({"w": "old"}, run, 5)
        step = run / "step-00000005"
        shutil.copytree(step, run / "step-00000005.partial-00ab")
        step.rename(run / "step-00000005.superseded-00ab")
        self.assertEqual(_steps.steps(run), [run / "step-00000005.superseded-00ab"])
        for checkpoint in (run, step):
            into = {"w": ""}
            self.assertEqual((cairn.torch.load(into, checkpoint), into), (5, {"w": "old"}))
        shutil.copytree(run / "step-00000005.partial-00ab", step)
        self.assertEqual(_steps.steps(run), [step])

    def test_older_steps_are_removed_after_a_commit(self):
        """Only whole steps, and nothing else."""
        run = pathlib.Path(self.directory)
        for step in range(10):
            cairn.torch.save({"w": step}, run, step)
        cairn.torch.save({"w": "again"}, run, 8)  # the first one is superseded, and so is 9
        cairn.torch.save({"w": "another"}, f"{self.directory}/other", 4)
        (run / "step-00000000" / "notes.txt").write_text("mine")
        (run / "step-00000001").rename(run / "moved")
        (run / "step-00000001").symlink_to(run / "moved")
        (run / "held").mkdir()
        (run / "held" / "step-00000002.00").write_text("/another/step")
        (run / "step-00000003" / "manifest.json").write_text("{")
        shutil.rmtree(run / "step-00000004")
        shutil.copytree(f"{self.directory}/other/step-00000004", run / "step-00000004")
        (run / "step-4").mkdir()
        before = set(os.listdir(run))
        with self.assertLogs("cairn.torch", "WARNING") as said:
            cairn.torch.save({"w": 10}, run, 10, keep_last=2)
        gone = before - set(os.listdir(run))
        self.assertEqual({name.partition(".")[0] for name in gone}, {f"step-0000000{number}" for number in (5, 6, 7, 8, 9)})
        self.assertTrue((run / "step-00000008" / "manifest.json").is_file())
        warnings_ = "\n".join(said.output)
        held = "stays: /another/step uses its shards"
        for number, reason in ((0, "notes.txt is not part of the checkpoint"), (1, "a link"), (2, held)):
            self.assertRegex(warnings_, f"keep_last=2: .*step-0000000{number}.*{reason}")
        self.assertEqual(warnings_.count("steps of other runs stay"), 1)
        with self.assertNoLogs("cairn.torch"):  # each is reported once
            cairn.torch.save({"w": 11}, run, 11, keep_last=3)
        cairn.run(["verify", run / "step-00000010"], capture=True)
        self.assertRaisesRegex(ValueError, "keep_last=-1", cairn.torch.save, {"w": 7}, run, 7, keep_last=-1)

    def test_after_a_rollback_the_last_save_is_the_newest(self):
        """Every reader takes the step that was saved last, and no save removes the step that it has just committed."""
        run = self.run_dir
        self.save(10, 20, 30, 40)
        self.load(10)
        self.assertTrue(os.path.isdir(self.save(11, keep_last=2).step_dir))
        self.assertEqual((run / "latest").read_text(), "step-00000011\n")
        self.assertEqual((self.load(), self.load(40)), (11, 40))
        with cairn.open(run) as opened:
            self.assertEqual(opened.step, 11)
        self.assertIn("step-00000011", cairn.run(["verify", run], capture=True).stdout)
        self.assertEqual([step["step"] for step in self.listed() if step["state"] == "superseded"], [20, 30, 40])
        cairn.run(["strip", run, f"{self.directory}/out", "--dtype", "fp32", "--format", "safetensors"], capture=True)
        with cairn.open(f"{self.directory}/out") as released:
            self.assertEqual(released["w"][0], 11.0)
        store = f"{self.directory}/store"
        cairn.run(["archive", "run", run / "step-00000011", run / "step-00000040", "--store", store], capture=True)
        self.assertIn("step-00000011", cairn.run(["verify", f"{store}:run"], capture=True).stdout)
        self.save(12, keep_last=2)
        self.assertEqual(self.numbers(), [11, 12])

    def test_a_step_records_the_step_it_was_loaded_from(self):
        """Whatever its number: it may descend from an abandoned step, or be newer than the newest."""

        def save(number, **options):
            self.save(number, **options)
            current = self.current()
            return current[number].get("from", {}).get("step"), list(current)

        self.assertEqual([save(number)[0] for number in (10, 20, 30, 40)], [None, 10, 20, 30])
        self.load(30)
        self.assertEqual(save(50, keep_last=1), (30, [10, 20, 30, 50]))  # 40 was a spike
        self.load(40)
        self.assertEqual(save(41, keep_last=1), (40, [10, 20, 30, 40, 41]))  # it was none
        self.load(10)
        with cairn.open(self.run_dir / "step-00000040") as looked_at:
            list(looked_at)
        self.load(50)  # a look at a higher number than the next one
        self.assertEqual(save(42), (10, [10, 42]))
        self.assertEqual(save(43, keep_last=1), (42, [42, 43]))
        self.assertEqual(self.numbers(), [42, 43])

    def test_random_histories_load_the_last_save_and_its_ancestors(self):
        """Like those of tests/ckpt/run/history_walk_test.cc, through the helper."""
        for seed in range(3):
            chance, run, told = random.Random(seed), pathlib.Path(self.directory, f"walk{seed}"), []
            present, tip, state = {}, None, None  # by number
            parents = []  # of each commit its number and parent
            for _ in range(14):
                action = chance.choice(["save", "save", "save", "load", "restart"]) if present else "save"
                if action == "save":
                    loaded, last = (0, 0) if state is None else (parents[state][0], parents[tip][0])
                    number = max(chance.choice([loaded + chance.randint(1, 12), last + 10]), loaded + 1)
                    self.save(number, run=run, keep_last=chance.randrange(3))
                    parents.append((number, state))
                    state = tip = present[number] = len(parents) - 1
                elif action == "load":
                    number = chance.choice(sorted(present))
                    self.load(number, run)
                    state = present[number]
                else:
                    _helper.helper().close()  # the process ends, and another one begins
                    number = self.load(run=run)
                    self.assertEqual(number, parents[tip][0])
                    state = tip
                told.append((action, number))
                line, commit = set(), tip
                while commit is not None:
                    line.add(commit)
                    commit = parents[commit][1]
                listed = [step for step in self.listed(run) if "superseded" not in pathlib.Path(step["directory"]).name]
                present = {step["step"]: present[step["step"]] for step in listed}
                current = [step["step"] for step in listed if step["state"] != "superseded"]
                expected = sorted(number for number, commit in present.items() if commit in line)
                self.assertEqual(sorted(current), expected, told)
                self.assertEqual((run / "latest").read_text(), f"step-{parents[tip][0]:08d}\n")

    def test_without_a_load_a_save_descends_from_the_newest_step(self):
        other = pathlib.Path(self.directory, "other")
        self.save(10, 20)
        for number in (30, 25):
            _helper.helper().close()  # of the next process
            self.save(number)
        listed = self.listed()
        self.assertEqual(list(self.current()), [10, 20, 25])
        self.assertEqual([step.get("from", {}).get("step") for step in listed], [None, 10, None, None])
        self.load(25)  # another run begins with it
        self.save(1, run=other)
        origin = self.listed(other)[0]["from"]
        self.assertEqual((origin["run_id"], origin["step"]), (listed[0]["run_id"], 25))

    def test_a_torn_newest_manifest_does_not_revive_abandoned_steps(self):
        run = self.run_dir
        self.save(10, 20, 30, 40)
        self.load(10)
        self.save(11)
        os.truncate(run / "step-00000011" / "manifest.json", 300)
        self.assertEqual(self.load(), 10)
        said = cairn.run(["inspect", run], capture=True).stderr
        self.assertRegex(said, "passed over: .*step-00000011/manifest.json")
        with self.assertRaises(cairn.CairnError):  # it is the newest good one now
            archive = ["archive", "run", run / "step-00000010", "--store", f"{self.directory}/store"]
            cairn.run([*archive, "--delete-source"], capture=True)
        self.assertTrue((run / "step-00000010").is_dir())
        self.save(12, keep_last=1)
        self.assertEqual(self.numbers(), [10, 11, 12, 20, 30, 40])

    def test_a_full_disk_fails_the_save_and_keeps_earlier_steps(self):
        small = self.small_disk("small", "size=4m")
        state, run = {"w": torch.randn(1000, 600)}, small / "run"
        cairn.torch.save(state, run, 1)
        with self.assertRaisesRegex(OSError, "No space left on device") as refused:
            cairn.torch.save(state, run, 2)
        self.assertEqual(refused.exception.errno, errno.ENOSPC)
        self.assertEqual([path.name for path in run.glob("step-*")], ["step-00000001"])
        shutil.rmtree(run / "step-00000001")
        cairn.torch.save(state, run, 3)
        self.assertEqual(cairn.torch.load({"w": torch.zeros(1000, 600)}, run), 3)

    def test_space_for_a_step_and_a_kept_one_is_asked_for_before_the_first_save(self):
        """Bytes and files: whatever the second save lacks is known before the first one begins."""
        state = {"w": torch.randn(1000, 600)}
        for options, unit in (("size=4m", "bytes"), ("nr_inodes=15", "files")):
            small = self.small_disk(unit, options)
            says = rf"no room for a step and one that is kept: \S+: needs about \d+ {unit}, but only \d+ are free"
            with self.assertRaisesRegex(OSError, says) as refused:
                cairn.torch.save(state, small / "run", 1, require_space=True)
            self.assertEqual(refused.exception.errno, errno.ENOSPC)
            self.assertEqual(list(small.glob("run/step-*")), [])
            cairn.torch.save(state, small / "run", 1)  # a warning on the helper's stderr
            self.assertEqual(len(list(small.glob("run/step-*"))), 1)

    def test_a_helper_finishes_saves_despite_signals(self):
        saved = cairn.torch.async_save({"w": torch.randn(1000, 600)}, self.directory, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(_helper.helper().pid, number)
        saved.result()
        cairn.torch.save({"w": torch.zeros(3)}, self.directory, 2)


if __name__ == "__main__":
    unittest.main()
