"""cairn seal as a user and a job script call it: runs that the program exported, as another system's trainer would leave them."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import unittest

from cairn_cli import CAIRN, CliTest, flip

SEAL = ".cairn-seal.json"


class SealTest(CliTest):
    def make_run(self, name="run", steps=(100, 200)):
        """A run of Megatron-DeepSpeed with these steps."""
        self.make_step("--tp", 2)
        self.cairn("convert", self.run_dir, name, "--to", "megatron-deepspeed", "--tp", 2, "--dp", 2, "--zero", 1)
        run = self.dir / name
        for step in steps[1:]:
            shutil.copytree(run / f"global_step{steps[0]}", run / f"global_step{step}")
        (run / "latest").write_text(f"global_step{steps[-1]}")
        return run

    def seal(self, *args, **kwargs):
        return self.cairn("seal", *args, "--settle", 0, **kwargs)

    def newest(self, run, *flags, code=0, says=()):
        return self.cairn("seal", "--newest", run, *flags, code=code, says=says).stdout.strip()

    def test_a_run_is_sealed_checked_and_archived(self):
        run = self.make_run()
        first, second = run / "global_step100", run / "global_step200"
        self.assertEqual(self.newest(run, code=1, says=["it has no seal", "no sealed step that is whole"]), "")
        self.assertEqual([step["state"] for step in self.json("ls", run)[0]["steps"]], ["not sealed"] * 2)
        self.seal(run, "--dry-run", says="would be sealed")
        self.assertFalse((second / SEAL).exists())
        facts = self.json("seal", run, "--settle", 0)
        self.assertEqual([(fact["checkpoint"], fact["state"], fact["system"], fact["step"]) for fact in facts],
                         [(str(second), "sealed", "deepspeed", 200), (str(first), "sealed", "deepspeed", 100)])
        self.assertEqual(facts[0]["untold"], [])
        self.seal(run, says="sealed already")
        self.assertEqual([step["state"] for step in self.json("ls", run)[0]["steps"]], ["sealed"] * 2)
        self.cairn("ls", self.dir, says="sealed")
        self.assertEqual(self.newest(run), str(second))
        self.cairn("verify", run, says=["global_step200: good", "every byte against the seal"])
        (first / SEAL).rename(first / "aside")
        said = self.cairn("verify", run, "--all", says=["global_step100 has no seal", "global_step200: good"]).stdout
        self.assertRegex(said, "global_step100: good, .*structure")
        (first / "aside").rename(first / SEAL)
        self.cairn("fingerprint", second)  # the seal disturbs no reader
        self.check_damage(run, first, second)

    def test_a_time_in_the_future_means_a_wrong_clock(self):
        step = self.make_run(steps=(100,)) / "global_step100"
        file = min(step.iterdir())
        for each in step.iterdir():
            os.utime(each, (time.time() - 60,) * 2)
        for seconds in (86400, 10**9):
            os.utime(file, (time.time() + seconds,) * 2)
            done = self.cairn("seal", step, "--settle", 2, says=": sealed")
            self.assertIn(f"{file} has a time in the future, so a clock is wrong; waiting for 2 s", done.stderr)
            (step / SEAL).unlink()

    def check_damage(self, run, first, second):
        victim = max(second.iterdir(), key=lambda path: path.stat().st_size)
        times = (victim.stat().st_atime_ns, victim.stat().st_mtime_ns)
        flip(victim, victim.stat().st_size // 2)
        os.utime(victim, ns=times)
        self.assertEqual(self.newest(run), str(second))  # listing does not see it
        self.assertEqual(self.newest(run, "--hash", says=[victim.name, "not those that were sealed"]), str(first))
        report = self.json("verify", run, code=1)[0]
        self.assertEqual([problem["file"] for problem in report["problems"]], [str(victim)])
        self.archive("run", second, "--store", self.store, code=1, says=["not those that were sealed", victim.name])
        later = (times[0] // 10**9 + 60, times[1] // 10**9 + 60)
        os.utime(victim, later)
        self.assertEqual(self.newest(run, says="passed over"), str(first))  # of another time, so that it is read
        self.assertEqual([step["state"] for step in self.json("ls", run)[0]["steps"]], ["sealed", "changed since sealed"])
        self.seal(second, code=1, says="changed since it was sealed")
        flip(victim, victim.stat().st_size // 2)
        os.utime(victim, later)
        self.cairn("verify", second, says=["another time", "good"])
        (second / "readme.txt").write_text("by hand")
        (second / "notes").mkdir()
        (second / "notes/notes.txt").write_text("by hand")
        self.assertEqual(self.newest(run, says="note: "), str(second))
        self.cairn("verify", second, code=1, says=["readme.txt", "notes/notes.txt"])
        self.seal(second, "--again", says="sealed")
        self.cairn("verify", second, "--structure", says="names and sizes against the seal")
        self.archive("run", run, "--store", self.store)
        self.cairn("verify", f"{self.store}:run@200", says=["good", "against the seal"])
        self.archive("restore", f"{self.store}:run@200", self.dir / "back")
        self.cairn("verify", self.dir / "back", says="good")
        (second / SEAL).write_text((second / SEAL).read_text().replace("deepspeed", "deepspeeD"))
        self.cairn("verify", second, code=1, says=[SEAL, "digest"])
        self.assertEqual(self.newest(run, says="passed over"), str(first))

    def test_watch_seals_each_finished_step(self):
        run = self.make_run(steps=(100,))
        step, late = run / "global_step100", run / "global_step110"
        (run / "latest").unlink()
        watcher = subprocess.Popen([CAIRN, "seal", "--watch", run, "--interval", "1", "--settle", "1"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(watcher.kill)
        time.sleep(2.5)
        self.assertFalse((step / SEAL).exists())  # nothing marks it as finished
        (run / "latest").write_text("global_step100")
        self.wait_for(step / SEAL)
        shutil.copytree(step, late, ignore=shutil.ignore_patterns(SEAL, "*optim_states.pt"))
        (run / "latest").write_text("global_step110")  # as rank 0 does before the others have ended
        time.sleep(2.5)
        self.assertFalse((late / SEAL).exists())
        for path in step.glob("*optim_states.pt"):
            shutil.copy(path, late)
        self.wait_for(late / SEAL)
        watcher.send_signal(signal.SIGTERM)
        out, err = watcher.communicate(timeout=30)
        self.assertEqual(watcher.returncode, 0, err)
        self.assertEqual(out.count(": sealed, "), 2)
        self.assertEqual(self.newest(run), str(late))

    def wait_for(self, path):
        for _ in range(600):
            if path.exists():
                return
            time.sleep(0.1)
        self.fail(f"{path} did not come")

    def test_a_step_sealed_despite_damage_is_not_resumed_from(self):
        run = self.make_run(steps=(100, 200))
        second = run / "global_step200"
        victim = next(second.glob("*optim_states.pt"))
        os.truncate(victim, victim.stat().st_size // 2)
        self.seal(second, "--anyway")
        self.seal(run)
        self.assertEqual(self.newest(run, says=["sealed with --anyway", victim.name]), str(run / "global_step100"))
        self.assertEqual([step["state"] for step in self.json("ls", run)[0]["steps"]], ["sealed", "sealed with problems"])

    def test_runs_inside_an_unsealed_checkpoint_are_named(self):
        """Like accelerate's checkpoint, which contains two, if cairn.hf saves it."""
        self.make_step()
        checkpoint = self.dir / "run" / "checkpoint-100"
        for part in ("optimizer_0", "pytorch_model_fsdp_0"):
            shutil.copytree(self.run_dir, checkpoint / part)
        (checkpoint / "trainer_state.json").write_text("{}")
        parts = [checkpoint / "optimizer_0", checkpoint / "pytorch_model_fsdp_0"]
        self.cairn("verify", checkpoint, code=2, says=f"(cairn seal {checkpoint}), or verify the runs in it: {parts[0]} {parts[1]}\n")
        for part in parts:
            self.cairn("verify", part, says="good")
        self.seal(checkpoint)
        self.cairn("verify", checkpoint, says="every byte against the seal")
        (self.dir / "nothing").mkdir()
        self.cairn("verify", self.dir / "nothing", code=2, says="neither a step or run of Cairn nor ")

    def test_a_step_is_published_under_its_final_name(self):
        run = self.make_run(steps=(100,))
        (run / "new").mkdir()
        step, new = run / "global_step200", run / "new" / "written"
        shutil.copytree(run / "global_step100", new)
        self.seal(new, "--publish", step, "--dry-run", says="would be sealed")
        self.assertFalse(step.exists())
        self.seal(f"{new}/", "--publish", f"{step}/", says=["sealed", f"{step}: published\n"])
        self.assertEqual((self.newest(run), new.exists()), (str(step), False))
        shutil.copytree(run / "global_step100", new)
        (new / "more").write_text("this one")
        (fact,) = self.json("seal", new, "--settle", 0, "--publish", step)
        self.assertEqual((fact["step"], fact["published"]), (200, str(step)))
        self.assertEqual((step / "more").read_text(), "this one")
        self.assertEqual(((new / "more").exists(), (new / SEAL).exists()), (False, True))
        victim = max(new.iterdir(), key=lambda path: path.stat().st_size)
        victim.unlink()
        self.seal(new, "--publish", step, code=1, says=[victim.name, "changed since it was sealed"])
        self.seal(run, "--publish", self.dir / "other", code=2, says="a run; --publish takes one step")
        self.seal(new, "--publish", self.run_dir, code=2)
        self.seal(new, new, "--publish", step, code=2, says="--publish takes one step")
        self.assertEqual((step / "more").read_text(), "this one")

    def test_an_existing_target_is_refused_and_leaves_nothing(self):
        run = self.make_run(steps=(100,))
        step = run / "global_step100"
        self.seal(run / "nothing", code=2)
        self.seal(self.run_dir, code=2, says="need no seals")
        self.cairn("seal", "--newest", "--watch", run, code=2)
        self.cairn("seal", step, "--hash", code=2)
        big = step / "big.bin"
        with open(big, "wb") as file:
            file.truncate(1 << 42)  # without blocks it is read at more than 30 GB/s
        working = subprocess.Popen([CAIRN, "seal", step, "--settle", "0"], stderr=subprocess.PIPE, text=True)
        time.sleep(1)
        working.send_signal(signal.SIGINT)
        _, err = working.communicate(timeout=60)
        self.assertEqual(working.returncode, 2, err)
        self.assertIn("stopped", err)
        big.unlink()
        self.assertEqual([path.name for path in step.iterdir() if "seal" in path.name], [])
        full = self.mount("-o", "size=4m")
        shutil.copytree(step, full / "global_step100")
        with self.assertRaises(OSError), open(full / "fill", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        self.seal(full / "global_step100", code=2, says="no space left")
        self.assertEqual([path.name for path in (full / "global_step100").iterdir() if "seal" in path.name], [])
        subprocess.run(["mount", "-o", "remount,ro", full], check=True)
        self.seal(full / "global_step100", code=2, says="no permission to write")

    def test_a_step_inside_another_is_archived_with_it(self):
        """Like the Trainer's checkpoint-100, which contains DeepSpeed's global_step100."""
        step = self.dir / "out" / "checkpoint-100"
        self.make_run("out/checkpoint-100", steps=(100,))
        (step / "trainer_state.json").write_text("{}")
        self.archive("run", step, "--store", self.store)
        self.archive("restore", f"{self.store}:out@100", self.dir / "back")
        self.assertTrue((self.dir / "back" / "trainer_state.json").exists())


class PlaceTest(CliTest):
    """Directories one level too high or too low: a verb finds the files that are meant, or lists them."""

    def export(self, target, name, *flags):
        if not self.run_dir.exists():
            self.make_step("--tp", 2)
        self.cairn("convert", self.run_dir, name, "--to", target, *flags)
        self.values = self.json("fingerprint", name)["fingerprint"]
        return self.dir / name

    def reads(self, path, note=""):
        """Every verb that reads `path` reads the exported checkpoint."""
        for args in (["inspect", path], ["convert", path, "native", "--to", "native"]):
            self.cairn(*args, says=note)
        shutil.rmtree(self.dir / "native")
        self.cairn("verify", path, says="good")
        self.assertEqual(self.json("fingerprint", path)["fingerprint"], self.values)

    def typed(self, done):
        """The command at the end of a message works."""
        command = re.search(r"cairn ((inspect|seal) [^;]*)$", done.stderr.strip())
        self.assertTrue(command, done.stderr)
        return self.cairn(*shlex.split(command[1]))

    def steps(self, run):
        return [(step["step"], step["system"], step["state"]) for step in self.json("ls", run)[0]["steps"]]

    def test_a_step_around_its_checkpoint(self):
        """OLMo-core's form; NeMo's has weights, verl's actor."""
        step = self.dir / "run" / "step100"
        step.mkdir(parents=True)
        self.export("dcp", "dcp").rename(step / "model_and_optim")
        (step / "config.yaml").write_text("model: {}")
        self.reads(step, note=f"note: {step}/model_and_optim is read, the only checkpoint in {step}")
        self.reads(step.parent, note=f"note: {step} is read, the only step in {step.parent}")
        self.cairn("inspect", step, "--from", "dcp")
        self.assertEqual(self.steps(step), [(100, "dcp", "not sealed")])
        self.assertEqual(self.steps(step.parent), [(100, "dcp", "not sealed")])
        self.cairn("seal", step.parent, "--settle", 0,
                   says=["step100: sealed", "dcp: ", "every element covered once"])
        next(step.glob("model_and_optim/*.distcp")).unlink()
        self.cairn("seal", step, "--settle", 0, "--again", code=1, says=".distcp")

    def test_a_directory_around_a_checkpoint_is_listed_unless_it_holds_runs(self):
        around = self.dir / "final"
        around.mkdir()
        self.export("dcp", "dcp").rename(around / "weights")
        self.assertEqual(self.steps(around), [(0, "dcp", "not sealed")])
        shutil.copytree(self.run_dir, around / "gpt")
        self.assertEqual([run["run"] for run in self.json("ls", around)], [str(around / "gpt")])

    def test_several_checkpoints_in_a_directory_are_named(self):
        step = self.dir / "step"
        step.mkdir()
        shutil.copytree(self.export("dcp", "dcp"), step / "critic")
        shutil.copytree(self.dir / "dcp", step / "teacher")
        done = self.cairn("convert", step, "out", "--to", "native", code=2,
                          says="holds several checkpoints: critic, teacher")
        self.typed(done)
        self.cairn("verify", step, code=2, says="critic, teacher")
        facts = self.json("seal", step, "--settle", 0)
        covered = [line.split(":")[0] for line in facts[0]["whole"] if "covered" in line]
        self.assertEqual(covered, ["dcp", "dcp"])

    def test_a_critic_is_checked_with_its_actor(self):
        """verl keeps the model in `actor`, so that is read; verify and seal see both."""
        step = self.dir / "step"
        step.mkdir()
        shutil.copytree(self.export("dcp", "dcp"), step / "actor")
        shutil.copytree(self.dir / "dcp", step / "critic")
        self.cairn("inspect", step, says="step/actor is read, where verl keeps the model")
        self.cairn("verify", step, says=["step: good", "step/critic: good"])
        facts = self.json("seal", step, "--settle", 0)
        self.assertEqual(len([line for line in facts[0]["whole"] if "covered" in line]), 2)

    def test_a_run_whose_newest_step_is_not_finished(self):
        """torch.distributed.checkpoint has no tracker: .metadata is written last."""
        run = self.dir / "run"
        run.mkdir()
        for step in (100, 200):
            shutil.copytree(self.export("dcp", f"dcp{step}"), run / f"step_{step}")
        (run / "step_200" / ".metadata").unlink()
        (run / "latest").symlink_to("step_200")
        note = f"note: {run}/step_100 is read, the newest finished step in {run}"
        done = self.cairn("inspect", run, says=note)
        self.assertIn(f"passed over: {run}/step_200/.metadata does not exist yet", done.stderr)
        self.assertEqual(self.json("fingerprint", run)["fingerprint"], self.values)
        self.cairn("verify", run, says=["step_100: good", "passed over", "step_200/.metadata does not exist yet"])
        self.cairn("inspect", run / "latest", code=2, says="no .metadata")

    def test_a_tracker_that_was_lost_or_is_empty(self):
        run = self.export("megatron", "run")
        tracker = run / "latest_checkpointed_iteration.txt"

        def empty():
            """Not later than the step, as after a power loss in the save: by whole seconds a slow machine would make it later."""
            tracker.write_text("")
            os.utime(tracker, (1, 1))

        for lose in (empty, tracker.unlink):
            lose()
            self.reads(run, note=f"note: {run}/iter_0000100 is read, the only step in {run}; {tracker} ")
        shutil.copytree(run / "iter_0000100", run / "iter_0000200")
        done = self.cairn("convert", run, "out", "--to", "native", code=2,
                          says="it is not known which of its 2 steps is finished")
        self.typed(done)
        done = self.cairn("seal", run, "--settle", 0, code=1)
        self.typed(done)

    def test_a_tag_of_deepspeed_may_have_any_name(self):
        run = self.export("megatron-deepspeed", "run", "--tp", 2, "--dp", 2, "--zero", 1)
        (run / "global_step100").rename(run / "mytag")
        (run / "latest").write_text("mytag")
        self.reads(run)
        self.reads(run / "mytag")
        shutil.copytree(run / "mytag", run / "best-7")
        (run / "last").symlink_to("mytag")
        self.assertEqual(self.steps(run), [(100, "deepspeed", "not sealed")] * 2)
        self.cairn("seal", run, "--settle", 0, says=["best-7: sealed", "mytag: sealed"])
        self.cairn("archive", "run", run, "--store", self.store)
        self.assertEqual({member["step"] for member in self.json("archive", "ls", self.store)}, {100})

    def test_steps_of_lightning_have_a_tag_each(self):
        logs = self.dir / "logs"
        logs.mkdir()
        for name in ("epoch=0-step=20000.ckpt", "epoch=1-step=187.ckpt", "last.ckpt"):
            step = logs / name
            self.export("megatron-deepspeed", name, "--tp", 2, "--dp", 2, "--zero", 1).rename(step)
            (step / "global_step100").rename(step / "checkpoint")
            (step / "latest").write_text("checkpoint")
        self.reads(logs / "epoch=1-step=187.ckpt")
        newest = logs / "epoch=0-step=20000.ckpt"
        self.reads(logs, note=f"note: {newest} is read, the newest finished step in {logs}")
        self.assertEqual(self.steps(logs), [(step, "deepspeed", "not sealed") for step in (100, 187, 20000)])
        self.json("inspect", f"{logs}@187")
        facts = self.json("seal", logs, "--settle", 0)
        self.assertEqual([(fact["step"], fact["state"]) for fact in facts],
                         [(step, "sealed") for step in (20000, 187, 100)])
        (logs / "last.ckpt" / "latest").write_text("")
        self.cairn("seal", logs / "last.ckpt", "--again", "--settle", 0, code=1,
                   says="latest still names nothing")

    def test_a_file_of_weights_under_another_name(self):
        model = self.export("hf", "model")
        (model / "model.safetensors").rename(model / "model.fp16.safetensors")
        (model / "SHA256SUMS").unlink()
        (model / "training_args.bin").write_bytes(b"x")
        file = model / "model.fp16.safetensors"
        self.reads(model, note=f"note: {file} is read, the only checkpoint in {model}")
        shutil.copy(file, model / "model.fp32.safetensors")
        self.typed(self.cairn("strip", model, "out", code=2, says=f"{file.name}, model.fp32.safetensors"))

    def test_a_distributed_checkpoint_without_args(self):
        """NeMo keeps the description of the model next to it."""
        self.export("torch-dist", "run")
        (self.dir / "gpt--step=9-last").mkdir()
        weights = self.dir / "gpt--step=9-last" / "weights"
        (self.dir / "run" / "iter_0000100").rename(weights)
        (weights / "common.pt").unlink()
        done = self.cairn("convert", weights.parent, "out", "--to", "native", code=2,
                          says="common.pt is missing")
        self.typed(done)
        self.cairn("inspect", weights.parent, "--from", "dcp")

    def test_layouts_of_a_directory_are_read_or_refused_by_name(self):
        """Of a trainer that no built-in row knows: its steps, its tracker, and where in a step the model is."""
        model = self.export("hf", "model")
        for number in (2, 4, 6):
            shutil.copytree(model, self.dir / f"kiln/firing_{number}/parts/ware")
        self.cairn("ls", self.dir / "kiln", code=2, says="no run and no step")
        layouts = self.dir / "layouts"
        layouts.mkdir()
        row = {"program": "Kiln", "format": "hf", "steps": ["firing_#"], "trackers": ["newest"], "models": ["parts/ware"]}
        for wrong, says in (({"format": "clay"}, "format is clay"), ({"steps": ["firing"]}, "must end with '#'"),
                            ({"glaze": 1}, "unknown key 'glaze'")):
            (layouts / "kiln.json").write_text(json.dumps([row | wrong]))
            self.assertEqual(len(self.cairn("ls", self.dir, "--layouts", layouts, code=2, says=says).stderr.splitlines()), 1)
        (layouts / "kiln.json").write_text(json.dumps([row]))
        (self.dir / "kiln/newest").write_text("firing_4")
        listed = self.cairn("ls", self.dir / "kiln", f"--layouts={layouts}").stdout
        self.assertIn("firing_4", listed)
        self.cairn("inspect", self.dir / "kiln", "--layouts", layouts, says="firing_4")
        self.cairn("verify", self.dir / "kiln/firing_2", "--layouts", layouts, says="good")

    def test_steps_of_other_programs(self):
        """Where a program keeps a checkpoint in its step, and which of its directories are steps, is data (systems.cc, recognise.cc).

        Members: NeMo-RL's policy/weights, its older form, Automodel's epoch_0_step_9, ms-swift's checkpoint-9 with Megatron in it,
        verl with Megatron, the hub's cache. Each is one answer of ls, seal, inspect, convert and verify.
        """
        model, dcp = self.export("hf", "model"), self.export("dcp", "weights")
        megatron = self.export("torch-dist", "run") / "iter_0000100"
        places = {
            "nemo_rl/step_9": [(dcp, "policy/weights/model")],
            "older/step_9": [(dcp, "policy/weights")],
            "swift/checkpoint-9": [(megatron, "iter_0000009")],
            "verl/global_step_9": [(megatron, "actor/dist_ckpt"), (model, "actor/huggingface")],
            "automodel/epoch_0_step_9": [(model, "model/consolidated"), (dcp, "optim")],
        }
        for step, parts in places.items():
            with self.subTest(step=step):
                step = self.dir / step
                for source, place in parts:
                    shutil.copytree(source, step / place, ignore=shutil.ignore_patterns("SHA256SUMS"))
                shutil.copy(next(megatron.glob("common.pt")), step / "train_dataloader.pt")
                if step.parent.name in ("swift", "verl"):
                    tracker = step if step.parent.name == "swift" else step.parent
                    (tracker / "latest_checkpointed_iteration.txt").write_text("9")
                self.assertEqual([(number, state) for number, _, state in self.steps(step.parent)], [(9, "not sealed")])
                want = self.json("fingerprint", parts[0][0])["fingerprint"]
                self.assertEqual(self.json("fingerprint", step)["fingerprint"], want)
                self.cairn("verify", step, says="good")
                self.cairn("seal", step.parent, "--settle", 0, says="sealed")
                self.assertEqual(self.cairn("seal", "--newest", step.parent).stdout.strip(), str(step))

    def test_the_cache_of_the_hub(self):
        model = self.export("hf", "model")
        cache = self.dir / "models--acme--tiny"
        for place in ("blobs", "refs"):
            (cache / place).mkdir(parents=True)
        model.rename(cache / "blobs" / "0")
        (cache / "snapshots/0123").mkdir(parents=True)
        for file in (cache / "blobs/0").iterdir():
            (cache / "snapshots/0123" / file.name).symlink_to(f"../../blobs/0/{file.name}")
        self.reads(cache, note=f"note: {cache}/snapshots/0123 is read")
        shutil.copytree(cache / "snapshots/0123", cache / "snapshots/4567", symlinks=True)
        self.typed(self.cairn("convert", cache, "out", "--to", "native", code=2, says="0123, 4567"))

    def test_a_run_of_unknown_steps_is_not_a_step(self):
        model = self.export("hf", "model")
        run = self.dir / "unknown"
        for number in (9, 80):
            shutil.copytree(model, run / f"after_{number}_steps")
        self.cairn("seal", run, "--settle", 0, code=2, says=["after_80_steps and", "hold a checkpoint each"])
        self.cairn("seal", "--newest", run, code=2)
        self.cairn("ls", run, code=2, says="hold a checkpoint each")
        self.cairn("seal", run / "after_9_steps", "--settle", 0, says="sealed")
        self.cairn("seal", "--newest", run, code=2)
        shutil.rmtree(run / "after_80_steps")
        self.cairn("seal", "--newest", run, code=1, says="no sealed step")

    def test_a_lone_file_without_tensors_is_not_a_checkpoint(self):
        self.export("torch-dist", "run")
        shutil.copytree(self.dir / "run", self.dir / "aside")
        (self.dir / "state").mkdir()
        shutil.copy(self.dir / "run/iter_0000100/common.pt", self.dir / "state/my_loader.pt")
        self.cairn("inspect", self.dir / "state", code=2, says="it is neither a step or run")

    def test_a_directory_without_a_checkpoint_is_refused(self):
        nothing = self.dir / "nothing"
        nothing.mkdir()
        (nothing / "notes.txt").write_text("x")
        for verb, *rest in (["inspect"], ["verify"], ["fingerprint"], ["strip", "out"],
                            ["convert", "out", "--to", "hf"]):
            self.cairn(verb, nothing, *rest, code=2,
                       says="neither a step or run of Cairn nor a checkpoint of megatron, ")


if __name__ == "__main__":
    unittest.main()
