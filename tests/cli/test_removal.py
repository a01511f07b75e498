"""A command may remove only files that it wrote itself, even if others work in the same directories.

A walk runs random commands with signals at random moments, while another user puts files and directories
anywhere. Walks run for 6 s; with CAIRN_LONG=1 there are 200. tests/tools/archive/removal_walk_test.cc runs
many more, with failures of the disk.
"""

import os
import random
import shutil
import signal
import subprocess
import time
import unittest

from cairn_cli import CAIRN, MAKE_STEP, CliTest, tree

LONG = os.environ.get("CAIRN_LONG") == "1"
STEP = "step-00000100"
MARK = ".cairn-mark"
RUNS = {
    "reshape",
    "virtual",
    "native",
    "strip native",
    "restore in run",
    "weights in run",
}  # they make a run directory
RESUMED = {"reshape", "virtual"}  # a signal leaves what `--resume` continues


class RemovalTest(CliTest):
    def setUp(self):
        super().setUp()
        self.step = self.make_step("--tp", 2)
        self.archive("run", self.step, "--store", self.store, "--delete-newest")

    def start(self, *args, until, stop=True):
        """The command, stopped while a path that fits `until` exists. One that was faster is undone and started again."""
        for _ in range(100):
            before = self.outputs()
            command = subprocess.Popen(
                [CAIRN, *map(str, args)], cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            while command.poll() is None and not list(self.dir.glob(until)):
                pass
            if not stop:
                return command
            if command.poll() is None:
                command.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, command.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
                if list(self.dir.glob(until)) and command.poll() is None:
                    return command
            said = self.finish(command)
            for path in sorted(self.outputs() - before, reverse=True):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.fail(f"no moment to stop it: {args} {said}")

    def outputs(self):
        return {*self.dir.glob("*"), *self.dir.glob("run/*")}

    def finish(self, command):
        command.send_signal(signal.SIGCONT)
        out, err = command.communicate()
        return command.returncode, out + err

    def damaged(self):
        bad = self.dir / "bad"
        shutil.copytree(self.run_dir, bad)
        for shard in (bad / STEP).glob("shard-*.h5"):
            with open(shard, "r+b") as file:
                file.seek(shard.stat().st_size // 2)
                file.write(os.urandom(4096))
        return bad

    def test_a_failed_command_keeps_files_of_others_in_its_run(self):
        for flags in (
            ["reshape", self.damaged(), "new", "--tp", 1],
            ["convert", self.dir / "bad", "new", "--to", "native"],
        ):
            with self.subTest(command=flags[0]):
                command = self.start(*flags, until="new")
                shutil.copytree(self.step, self.dir / "new" / "step-00000002")
                (self.dir / "new" / "mine.txt").write_text("mine")
                code, text = self.finish(command)
                self.assertEqual(code, 2, text)
                self.assertEqual(
                    sorted(p.name for p in (self.dir / "new").iterdir() if p.name != ".lock"),
                    ["mine.txt", "step-00000002"],
                )
                self.assertEqual(list(self.dir.glob(f"*{MARK}")), [])
                shutil.rmtree(self.dir / "new")

    def test_a_directory_named_like_a_leftover_stays_and_is_named(self):
        theirs = self.dir / "release.partial-20261127"
        theirs.mkdir()
        (theirs / "notes.txt").write_text("precious")
        done = self.cairn("strip", self.run_dir, "release")
        self.assertEqual((theirs / "notes.txt").read_text(), "precious")
        self.assertRegex(
            done.stderr, r"release\.partial-20261127 looks like what a killed command left.*Remove it by hand"
        )

    def test_the_next_command_removes_leftovers_of_a_killed_one(self):
        shutil.rmtree(self.run_dir)
        self.make_step("--layers", 4, "--hidden", 256, "--vocab", 2000)
        self.archive("run", self.run_dir, "--store", self.dir / "big", "--delete-newest")
        commands = {
            name: command
            for name, command in self.commands("out", source=self.run_dir, store=self.dir / "big").items()
            if "in run" not in name
        }
        names = list(commands)
        for i, name in enumerate(names):
            with self.subTest(killed=name):
                killed = self.start(*commands[name], until="out*", stop=False)
                killed.send_signal(signal.SIGKILL)
                self.finish(killed)
                if not (self.dir / "out" / STEP / "manifest.json").exists():  # else it was done
                    self.cairn(*commands[names[(i + 1) % len(names)]])
                self.assertEqual([p.name for p in self.dir.glob("out*")], ["out"])
                self.assertEqual(list(self.dir.glob("out/*.partial-*")), [])
                out = self.dir / "out"
                out.unlink() if out.is_file() else shutil.rmtree(out)

    def test_a_signal_leaves_nothing_of_a_restore(self):
        for where in ("weights", f"run/{STEP}"):
            for flags in ([], ["--weights-only"]):
                for number in (signal.SIGTERM, signal.SIGINT):
                    with self.subTest(where=where, flags=flags, signal=number):
                        command = self.start(
                            "archive", "restore", self.store, where, *flags, until=f"{where}.partial-*"
                        )
                        command.send_signal(number)
                        self.finish(command)
                        self.assertEqual([*self.dir.glob("weights*"), *self.dir.glob("run*")], [])

    def test_a_restore_holds_the_lock_of_the_run(self):
        shutil.copytree(
            self.step, self.dir / "run" / "step-00000002"
        )  # its name is wrong, which does not matter here
        command = self.start("archive", "restore", self.store, f"run/{STEP}", until=f"run/{STEP}.partial-*")
        self.cairn(
            "reshape",
            self.run_dir,
            "run",
            "--tp",
            1,
            code=2,
            says="another process writes into this run directory",
        )
        code, text = self.finish(command)
        self.assertEqual(code, 0, text)
        shutil.rmtree(self.dir / "run" / STEP)
        command = self.start("reshape", self.run_dir, "run", "--tp", 1, until=f"run/{STEP}.partial-*")
        for flags in ([], ["--weights-only"]):
            self.cairn(
                "archive",
                "restore",
                self.store,
                f"run/{STEP}",
                *flags,
                code=2,
                says=[
                    "another process writes into this run directory",
                    f"for example run/{STEP}.restored, and move it",
                ],
            )
        self.assertEqual(self.finish(command)[0], 0)

    def test_a_file_that_appeared_later_is_not_replaced(self):
        for name, command in self.commands("one").items():
            if "in run" in name or name in RUNS:
                continue
            with self.subTest(command=name):
                process = self.start(*command, until="one.partial-*")
                (self.dir / "one").write_text("mine")
                code, text = self.finish(process)
                self.assertEqual(code, 2, text)
                self.assertIn("never overwritten", text)
                self.assertEqual((self.dir / "one").read_text(), "mine")
                self.assertEqual([p.name for p in self.dir.glob("one*")], ["one"])
                (self.dir / "one").unlink()

    def test_a_run_directory_without_a_lock_is_removed(self):
        for inodes in (2, 3):
            mount = self.mount("-o", f"size=64m,nr_inodes={inodes}", at=f"mount-{inodes}")
            self.cairn("reshape", self.run_dir, mount / "out", "--tp", 1, code=2)
            self.assertEqual(list(mount.iterdir()), [])

    def commands(self, place, source=None, store=None):
        source, store = source or self.run_dir, store or self.store
        restore = ["archive", "restore", store]
        return {
            "reshape": ["reshape", source, place, "--tp", 1],
            "virtual": ["reshape", source, place, "--tp", 1, "--virtual"],
            "dcp": ["convert", source, place, "--to", "dcp"],
            "native": ["convert", source, place, "--to", "native"],
            "strip": ["strip", source, place],
            "strip native": ["strip", source, place, "--format", "native"],
            "restore": [*restore, place],
            "restore in run": [*restore, f"{place}/{STEP}"],
            "weights": [*restore, place, "--weights-only"],
            "weights in run": [*restore, f"{place}/{STEP}", "--weights-only"],
            "tensors": [*restore, place, "--tensors", "*"],
        }

    def test_random_walks(self):
        end = time.monotonic() + 6
        number = 0
        while number < 200 if LONG else time.monotonic() < end:
            with self.subTest(walk=number):
                Walk(self, number).run()
            number += 1


class OtherUser:
    """Puts files and directories anywhere below `place`; knows them by content and by inode."""

    def __init__(self, place, chance):
        self.place, self.chance, self.count = place, chance, 0
        self.files, self.directories = {}, {}

    def act(self):
        self.count += 1
        digits = f"{20260000 + self.count}"
        where = self.chance.choice([self.place, *(p for p in self.everything() if p.is_dir())])
        name = self.chance.choice(
            [
                f"notes-{digits}",
                f"a.partial-{digits}",
                f"{STEP}.partial-{digits}",
                f"a{MARK}",
                f"latest.{digits}",
                f"step-{digits}",
                f"{STEP}.deleting-{digits}",
                "a",
                "b",
            ]
        )
        text = f"{digits} of another user"
        try:
            if self.chance.random() < 0.5:
                with open(where / name, "x") as file:
                    file.write(text)
                self.files[text] = where / name
                return
            (where / name).mkdir()
            self.directories[(where / name).stat().st_ino] = where / name
            with open(where / name / "theirs", "x") as file:
                file.write(text)
            self.files[text] = where / name / "theirs"
        except (FileExistsError, FileNotFoundError, NotADirectoryError):
            pass  # the other user was faster

    def everything(self):
        found = []
        for root, directories, files in os.walk(self.place):
            found += [self.place.__class__(root) / name for name in directories + files]
        return found

    def owns(self, path):
        if path.is_dir():
            return path.stat().st_ino in self.directories
        return path.stat().st_size < 100 and path.read_bytes().decode(errors="replace") in self.files


class Walk:
    def __init__(self, test, number):
        self.test, self.chance = test, random.Random(number)
        self.place = test.dir / f"walk-{number}"
        self.place.mkdir()
        self.other_user = OtherUser(self.place, self.chance)
        self.story = []

    def run(self):
        for _ in range(4):
            self.command()
        shutil.rmtree(self.place)

    def own(self):
        """Paths that are neither another user's nor a parent of one."""
        everything = self.other_user.everything()
        needed = set()
        for path in filter(self.other_user.owns, everything):
            for at in [path, *path.relative_to(self.place).parents]:
                at = self.place / at
                needed |= {at, at.with_name(at.name + MARK), at / ".lock"}
        return {path for path in everything if path not in needed}

    def command(self):
        place = self.place / self.chance.choice(["a", "b"])
        name, command = self.chance.choice(list(self.test.commands(place).items()))
        number = self.chance.choice([None, signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
        before = self.own()
        process = subprocess.Popen(
            [CAIRN, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        at = time.monotonic() + self.chance.uniform(0, 0.1)
        while process.poll() is None:
            if self.chance.random() < 0.1 and self.other_user.count < 12:
                self.other_user.act()
            if number and time.monotonic() > at:
                process.send_signal(number)
                break
            time.sleep(0.002)
        error = process.communicate()[1]
        self.story.append(f"{name} to {place.name}, {number}: {process.returncode} {error.strip()}")
        self.check(name, place, process.returncode, before)

    def check(self, name, place, code, before):
        story = "\n".join(self.story)
        everything = self.other_user.everything()
        texts = {
            path.read_bytes().decode(errors="replace")
            for path in everything
            if path.is_file() and path.stat().st_size < 100
        }
        self.test.assertLessEqual(self.other_user.files.keys(), texts, story)
        self.test.assertLessEqual(
            self.other_user.directories.keys(),
            {path.stat().st_ino for path in everything if path.is_dir()},
            story,
        )
        if code == -signal.SIGKILL or (code < 0 and name in RESUMED):
            return
        left = {path for path in self.own() - before if path.name != ".lock" or path.parent not in before}
        target = place / STEP if name in RUNS else place
        published = any(target in (path, *path.parents) for path in left)  # the signal came after that
        if code == 0 or published:
            left = (
                {
                    path
                    for path in self.own()
                    if path.parent == place.parent
                    and (path.name.startswith(place.name + ".partial-") or path.name == place.name + MARK)
                }
                if "in run" not in name
                else set()
            )
            if name in RUNS:
                left |= {
                    path
                    for path in self.own()
                    if path.parent == place and path.name.startswith(STEP + ".partial-")
                }
        self.test.assertEqual(left, set(), story)



class RunsOfOthersTest(CliTest):
    """What may be removed follows from what the writers of a run left: of whichever system it is, its newest finished step
    stays, a step that is being written or that a tracker names is not touched, and a step goes only if a later one is whole.

    Members that no one reported: a tracker that names an older step, a newest step without the optimizer, one that was cut, one
    that changed after its seal, a step that is given by itself, a run behind a link, a parent of runs. A walk has some of them
    at random.
    """

    STEPS = (9, 80, 700, 10000)  # by name, 9 is the last
    TRACKERS = {"deepspeed": "latest", "megatron": "latest_checkpointed_iteration.txt", "torch_dist": "latest_checkpointed_iteration.txt"}
    LAST = {"trainer": "trainer_state.json", "trainer with deepspeed": "trainer_state.json", "dcp": ".metadata", "nemo": "weights/.metadata"}
    NAMES = {
        "cairn": "step-{:08}",
        "deepspeed": "global_step{}",
        "tags of deepspeed": "tag{}",
        "megatron": "iter_{:07}",
        "torch_dist": "iter_{:07}",
        "dcp": "step-{}",
        "trainer": "checkpoint-{}",
        "trainer with deepspeed": "checkpoint-{}",
        "accelerate": "checkpoint_{}",
        "nemo": "gpt--val_loss=1.{0}-step={0}-last",
        "unknown": "after_{}_steps",
    }

    def setUp(self):
        super().setUp()
        self.make_step("--tp", 2)
        self.models = {"cairn": self.run_dir / STEP}
        for target, step in (("megatron-deepspeed", "global_step100"), ("megatron", "iter_0000100"), ("torch-dist", "iter_0000100"),
                             ("dcp", ""), ("hf", "")):  # fmt: skip
            self.cairn("convert", self.run_dir, self.dir / target, "--to", target)
            self.models[target] = self.dir / target / step

    def write(self, system, step, finish=True):
        """A step as its system writes it, all of it an hour ago."""
        step.parent.mkdir(parents=True, exist_ok=True)
        copy = lambda model, place: shutil.copytree(self.models[model], place, ignore=shutil.ignore_patterns("SHA256SUMS"))  # noqa: E731
        zip_file = next(self.models["megatron-deepspeed"].glob("*model_states.pt"))
        if "deepspeed" in system:
            copy("megatron-deepspeed", step / "global_step1" if "trainer" in system else step)
        elif system in ("trainer", "accelerate", "unknown"):
            copy("hf", step)
        else:
            copy({"nemo": "dcp", "torch_dist": "torch-dist"}.get(system, system), step / "weights" if system == "nemo" else step)
        if "trainer" in system:
            (step / "trainer_state.json").write_text("{}")
            shutil.copy(zip_file, step / "optimizer.pt")
        if system == "accelerate":
            (step / "random_states_0.pkl").write_bytes(b"x")
        if not finish and system in self.LAST:
            (step / self.LAST[system]).unlink()
        self.age(step)

    def age(self, step, seconds=3600):
        when = time.time() - seconds
        for path in step.rglob("*"):
            os.utime(path, (when, when))

    def run_of(self, system, run, random):
        """A run in a random state. Returns the steps that are finished, and those of them that are whole, too."""
        steps = self.STEPS[-random.randint(1, 4) :]
        steps = {number: run / self.NAMES[system].format(number) for number in steps}
        finished, whole = set(), set()
        tracked = random.choice([None, *steps, *2 * [max(steps)]]) if system in self.TRACKERS else 10**9
        for number, step in steps.items():
            done = random.random() < 0.85 or system not in self.LAST
            if system == "cairn":
                subprocess.run([MAKE_STEP, run, "--step", str(number)], check=True)
                finished.add(number), whole.add(number)
                continue
            self.write(system, step, done)
            state = random.choice(["plain", "plain", "plain", "sealed", "sealed", "cut", "changed"])
            files = [p for p in step.rglob("*") if p.suffix in (".pt", ".safetensors", ".distcp") and p.stat().st_size > 2000]
            if done and state in ("sealed", "changed"):
                self.cairn("seal", step, "--settle", 0)
            if state in ("cut", "changed"):
                victim = random.choice(files)
                os.truncate(victim, victim.stat().st_size // 2)
            self.age(step) if state == "cut" else None
            sealed = done and state in ("sealed", "changed")
            if sealed or (done and tracked is not None and number <= tracked):
                finished.add(number)
                if state in ("plain", "sealed"):
                    whole.add(number)
        if system in self.TRACKERS and tracked is not None:
            tracker = run / self.TRACKERS[system]
            tracker.write_text(str(tracked) if "iter" in self.NAMES[system] else self.NAMES[system].format(tracked))
            os.utime(tracker, (1, 1)) if random.random() < 0.8 else None
        return steps, finished, whole, tracked

    def remove(self, run, steps, random):
        """One of the ways to archive a run and remove what may go."""
        number, step = random.choice(sorted(steps.items()))
        link = self.dir / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(run)
        source = random.choice([run, run, step, f"{run}@{number}", link, link / step.name, "policy"])
        command = [CAIRN, "archive", "run", source, "--store", self.store, "--delete-source"]
        if source == "policy":
            policy = self.dir / "policy.toml"
            policy.write_text(f'store = "store"\nruns = ["{run}"]\n[[class]]\nkeep = "full"\nevery = 1\n[delete]\nsource = true\n')
            command = [CAIRN, "archive", "run", "--policy", policy]
        done = subprocess.run(list(map(str, command)), cwd=self.dir, capture_output=True, text=True)
        self.assertIn(done.returncode, (0, 1, 2), done.stderr)
        return done.stdout + done.stderr

    def test_a_step_is_removed_only_if_a_later_whole_step_replaces_it(self):
        rng = random.Random(48)
        went = set()
        for walk in range(200 if LONG else 55):
            system = list(self.NAMES)[walk % len(self.NAMES)]
            run = self.dir / f"run{walk}"
            with self.subTest(walk=walk, system=system):
                steps, finished, whole, tracked = self.run_of(system, run, rng)
                state = f"{sorted(steps)} finished {sorted(finished)} whole {sorted(whole)} tracker {tracked}"
                for _ in range(3):
                    said = self.remove(run, steps, rng)
                    gone = {number for number, step in steps.items() if not step.exists()}
                    went.update(system for _ in gone)
                    for number in gone:
                        self.assertIn(number, finished, f"an unfinished step went: {state}\n{said}")
                        self.assertNotEqual(number, tracked, f"the step that the tracker names went: {state}\n{said}")
                        self.assertTrue([n for n in whole - gone if n > number], f"no whole step is left: {state}\n{said}")
                    if len(gone) == len(steps) - 1:
                        break
            shutil.rmtree(run)
        self.assertLessEqual({"cairn", "deepspeed", "megatron", "torch_dist", "dcp", "trainer", "nemo"}, went)

    def test_a_save_at_the_same_time_is_not_touched(self):
        for system in ("trainer", "deepspeed", "torch_dist", "dcp"):
            with self.subTest(system=system):
                run = self.dir / f"run of {system}"
                for number in (10, 20):
                    self.write(system, run / self.NAMES[system].format(number))
                new = run / self.NAMES[system].format(30)
                if system in self.TRACKERS:
                    (run / self.TRACKERS[system]).write_text("20" if system == "torch_dist" else "global_step20")
                    os.utime(run / self.TRACKERS[system], (1, 1))
                self.write(system, self.dir / "made" / new.name)
                files = sorted(p for p in (self.dir / "made" / new.name).rglob("*") if p.is_file())
                files.sort(key=lambda p: p.name in (".metadata", "trainer_state.json"))
                for file in files:
                    place = new / file.relative_to(self.dir / "made" / new.name)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, place)
                    self.archive("run", run, "--store", self.store, "--delete-source", says=f"{new.name}")
                    if file in (files[0], files[-1]):
                        for flag in ("--delete-newest", "--delete-tree"):
                            said = subprocess.run([CAIRN, "archive", "run", new, "--store", self.store, "--delete-source", flag],
                                                  cwd=self.dir, capture_output=True, text=True)  # fmt: skip
                            self.assertEqual(said.returncode, 2, said.stdout + said.stderr)
                self.assertEqual(tree(new), tree(self.dir / "made" / new.name))
                self.assertEqual([p.name for p in run.iterdir() if p.is_dir()].count(self.NAMES[system].format(20)), 1)
                self.assertFalse((run / self.NAMES[system].format(10)).exists())

    def test_a_newest_step_without_the_optimizer_replaces_none(self):
        run = self.dir / "run"
        for number in (10, 20):
            self.write("trainer", run / f"checkpoint-{number}")
        (run / "checkpoint-20/optimizer.pt").unlink()
        self.archive("run", run, "--store", self.store, "--delete-source", code=1, says="checkpoint-20 has no optimizer.pt")
        self.cairn("strip", self.run_dir, self.dir / "titan/step-20", "--format", "safetensors")
        shutil.rmtree(self.dir / "titan")
        shutil.copytree(self.models["dcp"], self.dir / "titan/step-10")
        self.cairn("strip", self.models["hf"], self.dir / "weights")
        self.cairn("convert", self.dir / "weights", self.dir / "titan/step-20", "--to", "dcp")
        for step in (self.dir / "titan").iterdir():
            self.age(step)
        self.archive("run", self.dir / "titan", "--store", self.store, "--delete-source", code=1, says="no tensors of the kind")
        self.assertTrue((self.dir / "titan/step-10").exists())

    def test_a_directory_of_unknown_kind_goes_only_with_a_flag(self):
        run = self.dir / "runs/run"
        for number in (10, 20):
            self.write("trainer", run / f"checkpoint-{number}")
            self.write("unknown", self.dir / f"other/after_{number}_steps")
        runs = ["run", self.dir / "runs", "--store", self.store, "--delete-source"]
        for flags in ([], ["--delete-newest"], ["--delete-tree"]):
            self.archive(*runs, *flags, code=2, says="checkpoint-20 is a step of a run")
        self.archive("run", run / "checkpoint-20", "--store", self.store, "--delete-source", code=2, says="newest finished step")
        self.archive("run", run / "checkpoint-20", "--store", self.store, "--delete-source", "--delete-tree", code=2)
        self.assertTrue((run / "checkpoint-20").exists())
        self.archive("run", run / "checkpoint-20", "--store", self.store, "--delete-source", "--delete-newest", says="removed its source")
        (self.dir / "plain").mkdir()
        (self.dir / "plain/notes.txt").write_text("x")
        plain = ["run", self.dir / "plain", "--store", self.store, "--delete-source"]
        self.archive(*plain, "--delete-newest", code=2, says="--delete-tree")
        self.assertTrue((self.dir / "plain").exists())
        self.archive(*plain, "--delete-tree", says="removed its source")

    def test_a_policy_takes_runs_of_other_systems(self):
        for number in (10, 20, 30):
            self.write("trainer", self.dir / f"runs/a/checkpoint-{number}", finish=number < 30)
            self.write("unknown", self.dir / f"other/after_{number}_steps")
        policy = self.dir / "policy.toml"
        policy.write_text('store = "store"\nruns = ["runs/*"]\n[[class]]\nkeep = "weights-fp16"\nlast = 1\n[delete]\nsource = true\n')
        self.archive("run", "--policy", policy, says=["stored a@20", "passed over", "checkpoint-30 is being written"])
        self.assertEqual([(m["step"], m["form"]) for m in self.json("archive", "ls", self.store)], [(20, "files")])
        self.assertEqual(len(list((self.dir / "runs/a").glob("checkpoint-*"))), 3)
        policy.write_text(policy.read_text().replace("last = 1", "every = 10").replace("runs/*", "runs/*\", \"other"))
        self.archive("run", "--policy", policy, code=1, says=["checkpoint-10", "other: it matches `runs` but", "`trees`"])
        self.assertEqual(sorted(p.name for p in (self.dir / "runs/a").glob("checkpoint-*")), ["checkpoint-20", "checkpoint-30"])
        (self.dir / "runs/a/checkpoint-20/trainer_state.json").unlink()
        policy.write_text(policy.read_text().replace('", "other', ""))
        self.archive("run", "--policy", policy, code=1, says=["checkpoint-20 is being written", "checkpoint-30 is being written"])


if __name__ == "__main__":
    unittest.main()
