"""`cairn archive` by policy: what is kept, by when, and what is reported where; repair, recall and the scheduler's texts."""

import fcntl
import json
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import unittest

from cairn_cli import CAIRN, MAKE_STEP, CliTest, flip, tree

DAY = 86400
LONG = os.environ.get("CAIRN_LONG") == "1"


class PolicyTest(CliTest):
    def age(self, step, days):
        """As if the step had not been read or written for `days` days."""
        then = time.time() - days * DAY
        for path in step.iterdir():
            os.utime(path, (then, then))

    def plan(self, policy, code=0):
        plan = self.json("archive", "plan", policy, code=code)
        return plan, {entry["step"]: entry for entry in plan["entries"]}

    def stored(self):
        return sorted((m["step"], m["form"]) for m in self.json("archive", "ls", self.store) if "form" in m)

    def test_if_the_newest_step_is_damaged_a_good_one_stays(self):
        for step in (20, 40, 60):
            newest = self.make_step(step=step)
        flip(newest / "shard-00000.h5", 5000)
        policy = self.policy(tail="[delete]\nsource = true")
        for _ in range(2):
            self.archive("run", "--policy", policy, code=1, says=["step-00000040 stays", "step-00000060 is damaged"])
            self.assertEqual(sorted(p.name for p in self.run_dir.glob("step-*")), ["step-00000040", "step-00000060"])
        self.assertEqual([step for step, form in self.stored() if form == "full"], [20, 40])

    def test_a_plan_lists_steps_reasons_and_deadlines(self):
        for step in (10, 15, 20):
            self.age(self.make_step(step=step), step)
        plan, entries = self.plan(self.policy('bandwidth = "1GB/s"'))
        self.assertEqual([entries[s]["store_full"] for s in (10, 15, 20)], [False, False, True])
        self.assertEqual([entries[s]["store_weights"] for s in (10, 15, 20)], [True, False, True])
        self.assertEqual(entries[15]["why"], "no class asks for it")
        self.assertEqual(entries[20]["why"], "full every 20, weights-fp16 every 10")
        self.assertAlmostEqual(entries[20]["purge_days"], 10, delta=0.1)
        self.assertEqual([e["step"] for e in plan["entries"]], [20, 10, 15])  # the most urgent first
        self.assertEqual(plan["inodes"], 6)
        self.assertFalse(self.store.exists())

    def test_deadlines_that_cannot_be_met_are_failures(self):
        step = self.make_step(step=20)
        self.age(step, 24)
        self.archive("plan", self.policy('bandwidth = "1GB/s"'), says="purge in")
        self.archive("plan", self.policy('bandwidth = "3B/s"'), code=1, says="gpt@20 must be proven in 1.0 days")
        self.age(step, 26)
        self.archive("plan", self.policy(), code=1, says="less than the margin of 5")
        self.age(step, 31)
        self.archive("plan", self.policy(), code=1, says="gpt@20 is overdue")
        self.archive("plan", self.policy("purge_days = 90"))
        for file in step.iterdir():  # read just now, written 31 days ago: as after a restore
            os.utime(file, (time.time(), file.stat().st_mtime))
        self.archive("plan", self.policy('purge_by = "atime"'))
        self.archive("plan", self.policy('purge_by = "mtime"'), code=1, says="gpt@20 is overdue")
        self.archive("plan", self.policy('purge_by = "ctime"'), code=2, says="purge_by")
        self.archive("plan", self.policy("purge_days = 90", "[quota]\ninodes = 2"), code=1, says="the quota is 2")
        self.archive("plan", self.policy("purge_days = 90", '[quota]\nbytes = "1kB"'), code=1, says="the quota is")

    def test_a_damaged_requested_step_fails_the_plan(self):
        os.truncate(self.make_step(step=20) / "shard-00000.h5", 5000)
        self.archive("plan", self.policy(), code=1, says="cannot be read")

    def test_mistakes_in_a_policy_name_file_and_line(self):
        path = self.policy("purge_dayz = 3")
        self.archive("plan", path, code=2, says=f"{path}:4: unknown key 'purge_dayz'")
        self.archive("plan", self.dir / "none.toml", code=2, says="none.toml")

    def test_a_run_follows_the_plan_and_reports_it(self):
        for step in (10, 15, 20):
            self.make_step(step=step)
        metrics = self.dir / "cairn.prom"
        policy = self.policy(f'metrics = "{metrics}"\npack = true\nparity = "3%"')
        self.archive("run", "--policy", policy, says=["stored gpt@20 (full)", "0 waiting"])
        self.assertEqual(self.stored(), [(10, "weights-fp16"), (20, "full"), (20, "weights-fp16")])
        status = json.loads((self.store / "status.json").read_text())
        self.assertTrue(status["ok"])
        self.assertEqual(status["stored_members"], 3)
        text = metrics.read_text()
        self.assertIn("cairn_archive_success{", text)
        self.assertIn("cairn_archive_nearest_purge_days{store=\"%s\"} +Inf" % self.store, text)
        self.archive("run", "--policy", policy, says="stored 0 members")
        self.archive("verify", self.store, says="whole")
        self.assertEqual(len(list(self.store.glob("*.parity"))), 3)
        self.cairn("verify", f"{self.store}:gpt@10", "--hash")
        self.assertEqual({r["role"] for r in self.json("inspect", f"{self.store}:gpt@10")["tensors"]}, {"weight"})

    def launch(self, *args, variables):
        """One process for each set of variables, started together."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI"))}
        return [subprocess.Popen([CAIRN, "archive", *map(str, args)], env={**plain, **ours}, cwd=self.dir, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for ours in variables]

    def finish(self, processes, codes):
        texts = [process.communicate(timeout=120)[0] for process in processes]
        self.assertIn(sorted(process.returncode for process in processes), codes, texts)
        return texts

    @staticmethod
    def array(count, job="7"):
        return [{"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_COUNT": str(count), "SLURM_ARRAY_TASK_MIN": "1",
                 "SLURM_ARRAY_TASK_ID": str(task + 1)} for task in range(count)]

    @staticmethod
    def ranks(count):
        return [{"OMPI_COMM_WORLD_SIZE": str(count), "OMPI_COMM_WORLD_RANK": str(rank), "PMIX_NAMESPACE": "job-1"}
                for rank in range(count)]

    def assert_stored_once_by(self, texts, steps):
        stored = sorted(int(line.split("@")[1].split()[0]) for text in texts for line in text.splitlines()
                        if line.startswith("stored gpt@"))
        self.assertEqual(stored, sorted(steps), texts)
        self.assertEqual(len(list(self.store.glob("*.tar"))), len(steps))
        self.assertEqual([p.name for p in self.store.rglob("*") if "partial" in p.name or "claims" in p.name], [])
        self.archive("verify", self.store, says="whole")

    def test_processes_of_one_launch_share_the_work(self):
        steps = list(range(20, 180, 20))
        for step in steps:
            self.make_step(step=step)
        # Weights of every step that 10 divides, all of one that 20 divides.
        members = sorted(steps * 2)
        for variables in (self.array(3), self.ranks(3)):
            texts = self.finish(self.launch("run", "--policy", self.policy(), variables=variables), [[0, 0, 0]])
            self.assert_stored_once_by(texts, members)
            self.assertTrue(any(f"stored {len(members)} members" in text and "0 waiting" in text for text in texts), texts)
            status = json.loads((self.store / "status.json").read_text())
            self.assertEqual((status["ok"], status["stored_members"], status["waiting"]), (True, len(members), 0))
            self.assertEqual(len(self.stored()), len(members))
            shutil.rmtree(self.store)
        texts = self.finish(self.launch("run", self.run_dir, "--store", self.store, variables=self.array(3)), [[0, 0, 0]])
        self.assert_stored_once_by(texts, steps)

    def test_tasks_of_an_array_may_run_at_different_times(self):
        flip(self.make_step(step=20) / "shard-00000.h5", 5000)
        self.make_step(step=40)
        first, second = self.array(2)
        texts = self.finish(self.launch("run", "--policy", self.policy(), variables=[first]), [[1]])
        texts += self.finish(self.launch("run", "--policy", self.policy(), variables=[second]), [[1]])
        self.assertEqual([text.count("stored gpt@40 (full)") for text in texts], [1, 0], texts)
        status = json.loads((self.store / "status.json").read_text())
        self.assertEqual(status["stored_members"], 3)  # the weights of the damaged step
        self.assertTrue(any("shard-00000.h5" in failure for failure in status["failures"]), status)
        done = self.launch("run", "--policy", self.policy(), variables=[{**first, "SLURM_ARRAY_TASK_ID": "9"}])
        self.assertIn("--array=0-1", self.finish(done, [[2]])[0])

    def test_one_failure_is_the_exit_status_of_one_rank_only(self):
        flip(self.make_step(step=20) / "shard-00000.h5", 5000)
        for step in (40, 60, 80):
            self.make_step(step=step)
        texts = self.finish(self.launch("run", self.run_dir, "--store", self.store, variables=self.ranks(3)), [[0, 0, 1]])
        self.assert_stored_once_by(texts, [40, 60, 80])

    def stopped_while_it_writes(self):
        for _ in range(20):
            ours = self.launch("run", self.run_dir, "--store", self.store, variables=self.array(2)[:1])
            while ours[0].poll() is None and not list(self.store.glob("*.partial")):
                time.sleep(0.0005)
            ours[0].send_signal(signal.SIGSTOP)
            if ours[0].poll() is None and list(self.store.glob("*.partial")):
                return ours
            ours[0].send_signal(signal.SIGCONT)  # it was done before, on a busy machine
            self.finish(ours, [[0]])
            shutil.rmtree(self.store)
        self.fail("it was done before it could be stopped")

    def test_another_launch_is_refused_during_a_run(self):
        self.make_step("--hidden", 512, "--ffn", 2048, "--layers", 4)
        for strangers in (self.array(1), self.array(2, "8")[:1], self.ranks(2)[1:]):
            ours = self.stopped_while_it_writes()
            text = self.finish(self.launch("run", self.run_dir, "--store", self.store, variables=strangers), [[2]])[0]
            self.assertIn("another cairn archive is writing into this store", text)
            ours[0].send_signal(signal.SIGCONT)
            self.finish(ours, [[0]])
            shutil.rmtree(self.store)

    def test_another_process_stores_the_share_of_a_killed_one(self):
        for step in (20, 40, 60, 80):
            self.make_step("--hidden", 256, "--ffn", 1024, step=step)
        killed, *others = self.launch("run", self.run_dir, "--store", self.store, variables=self.array(3))
        while killed.poll() is None and not list(self.store.glob("*.partial")):
            time.sleep(0.0005)
        killed.kill()
        killed.communicate()
        self.finish(others, [[0, 0]])
        self.finish(self.launch("run", self.run_dir, "--store", self.store, variables=self.array(3)[:1]), [[0]])
        self.assertEqual(sorted(m["step"] for m in self.json("archive", "ls", self.store)), [20, 40, 60, 80])
        self.archive("verify", self.store, says="whole")

    def test_failures_reach_status_and_hook(self):
        flip(self.make_step(step=20) / "shard-00000.h5", 5000)
        self.make_step(step=40)
        policy = self.policy(f"on_failure = 'echo \"$CAIRN_FAILURE\" > {self.dir}/mail; cp \"$CAIRN_STATUS\" {self.dir}/copy'")
        self.archive("run", "--policy", policy, code=1, says="shard-00000.h5")
        self.assertIn("shard-00000.h5", (self.dir / "mail").read_text())
        status = json.loads((self.dir / "copy").read_text())
        self.assertFalse(status["ok"])
        self.assertEqual(status["last_success_unix_seconds"], 0)
        self.assertIn((40, "full"), self.stored())
        self.assertEqual([m["state"] for m in self.json("archive", "ls", self.store) if "form" not in m], ["scratch only"])

    def test_a_run_that_cannot_begin_reaches_status_and_hook(self):
        self.make_step(step=20)
        policy = self.policy(f"on_failure = 'echo \"$CAIRN_FAILURE\" >> {self.dir}/mail'")
        self.archive("run", "--policy", policy)
        before = json.loads((self.store / "status.json").read_text())
        (self.store / "status.json").write_text(json.dumps({**before, "last_success_unix_seconds": 12345}))

        def refused(why, says):
            (self.dir / "mail").unlink(missing_ok=True)
            self.archive("run", "--policy", policy, code=2, says=says)
            status = json.loads((self.store / "status.json").read_text())
            self.assertEqual((status["ok"], len(status["failures"])), (False, 1), why)
            self.assertIn(says, status["failures"][0])
            self.assertEqual(status["last_success_unix_seconds"], 12345)
            self.assertIn(says, (self.dir / "mail").read_text())

        with open(self.store / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            refused("locked", "another cairn archive is writing into this store")
        (self.store / "README.txt").write_text("an older one")
        (self.store / "README.txt.partial").mkdir()
        refused("not prepared", "README.txt.partial")
        (self.store / "README.txt.partial").rmdir()
        self.archive("run", "--policy", policy, says="0 waiting")
        self.assertTrue(json.loads((self.store / "status.json").read_text())["ok"])

    def test_sources_are_deleted_only_by_policy_and_never_the_newest(self):
        steps = [self.make_step(step=step) for step in (10, 15, 20, 40)]
        self.archive("run", "--policy", self.policy())
        self.assertTrue(all(step.exists() for step in steps))
        self.archive("run", "--policy", self.policy(tail="[delete]\nsource = true"))
        self.assertEqual([step.exists() for step in steps], [True, True, False, True])  # only the weights of 10 are kept
        self.assertEqual([m["state"] for m in self.json("archive", "ls", self.store) if m["step"] == 20],
                         ["scratch gone", "scratch gone"])
        self.archive("run", "--policy", self.policy(tail="[delete]\nsource = true\nweights_suffice = true"))
        self.assertEqual([step.exists() for step in steps], [False, True, False, True])
        self.archive("verify", self.store, says="whole")

    def test_prune_gives_reasons_and_keeps_the_last_copies(self):
        for step in (10, 15, 20, 40):
            self.make_step(step=step)
        self.archive("run", self.run_dir, "--store", self.store)
        before = tree(self.store)
        policy = self.policy()
        entries = self.json("archive", "prune", policy, "--dry-run")  # stored by hand: they do not belong to the policy
        self.assertEqual({(e["remove"], e["why"]) for e in entries}, {(False, "claimed by hand, not by this policy")})
        entries = {e["step"]: e for e in self.json("archive", "prune", policy, "--dry-run", "--adopt", "by hand")}
        self.assertEqual({s: e["remove"] for s, e in entries.items()}, {10: False, 15: True, 20: False, 40: False})
        self.assertEqual(entries[10]["why"], "a class asks for its weights, which are stored nowhere else")
        self.assertEqual(tree(self.store), before)
        self.archive("prune", policy, "--adopt", "by hand", says=["took over 4 members", "no class asks for it", "freed"])
        self.assertEqual([step for step, _ in self.stored()], [10, 20, 40])
        newest = self.policy().read_text().replace("every = 20", "every = 7").replace("every = 10", "every = 7")
        policy.write_text(newest)
        self.cairn("tag", "gpt@20", "best")
        entries = {e["step"]: e["why"] for e in self.json("archive", "prune", policy, "--dry-run") if not e["remove"]}
        self.assertEqual(entries, {20: "tagged best", 40: "the newest full copy of its run"})
        policy.write_text(newest.replace("every = 7", 'tags = ["b*"]', 1))
        self.assertIn("tagged best", str(self.json("archive", "plan", policy)))
        policy.write_text(newest)
        self.cairn("tag", "gpt@best", "--remove")
        self.archive("prune", policy, says="the newest full copy of its run")
        self.assertEqual(self.stored(), [(40, "full")])

    def test_a_concurrent_purge_loses_nothing(self):
        """Thirty days in a few seconds: an archiver by policy, while a purge deletes by access time."""
        for step in (10, 20, 30, 40, 60):
            self.age(self.make_step(step=step), 29 - step / 10)
        before = {step: tree(self.run_dir / f"step-{step:08}") for step in (20, 40, 60)}
        purge = subprocess.Popen([sys.executable, "-c", PURGE, self.run_dir])
        self.addCleanup(purge.kill)
        done = subprocess.run([CAIRN, "archive", "run", "--policy", self.policy("margin_days = 0")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        for step in (10, 20, 30, 40, 60):
            path = self.run_dir / f"step-{step:08}"
            if path.exists():
                self.age(path, 31)
        purge.wait(60)
        self.assertEqual(list(self.run_dir.glob("step-*/*")), [])
        self.make_step(step=90)  # shows to which run the emptied ones belong
        self.archive("plan", self.policy(), says="no longer whole on scratch")
        for step, files in before.items():
            self.archive("restore", f"{self.store}:gpt@{step}", f"back/step-{step:08}")
            self.assertEqual(tree(self.dir / f"back/step-{step:08}"), files)

    def test_kills_at_random_moments_lose_nothing(self):
        for step in (10, 20, 40):
            self.make_step(step=step)
        before = {step: tree(self.run_dir / f"step-{step:08}") for step in (20, 40)}
        policy = self.policy("pack = true\nparity = \"5%\"", "[delete]\nsource = true\nstored = true")
        chance = random.Random(7)
        for _ in range(200 if LONG else 20):
            verb = chance.choice([["run", "--policy", policy], ["run", "--policy", policy], ["verify", self.store],
                                  ["prune", policy], ["restore", f"{self.store}:gpt@20", self.dir / "back"]])
            process = subprocess.Popen([CAIRN, "archive", *map(str, verb)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.random() * 0.15)
            process.kill()
            process.wait()
            if (self.dir / "back").exists():  # whole, or only the weights, which are stored first
                if self.json("ls", self.dir / "back")[0]["steps"][0]["bytes_by_role"]["exp_avg"] > 0:
                    self.assertTrue(tree(self.dir / "back") == before[20])
                else:
                    self.assertNotIn((20, "full"), self.stored())
                    self.cairn("verify", self.dir / "back")
                shutil.rmtree(self.dir / "back")
            if chance.random() < 0.2 and self.store.exists():
                shutil.rmtree(self.store / "ledger.sqlite", ignore_errors=True)
        self.archive("run", "--policy", policy)
        self.archive("verify", self.store, says="whole")
        self.assertEqual(self.stored(), [(10, "weights-fp16"), (20, "full"), (20, "weights-fp16"), (40, "full"),
                                         (40, "weights-fp16")])
        self.assertEqual([p.name for p in self.store.iterdir() if "partial" in p.name or "staging" in p.name], [])
        for step in (20, 40):
            self.archive("restore", f"{self.store}:gpt@{step}", f"again/step-{step:08}")
            self.assertEqual(tree(self.dir / f"again/step-{step:08}"), before[step])

    def test_schedules_are_printed(self):
        policy = self.policy()
        self.archive("schedule", policy, "--slurm", "--every-hours", 12, says=["--dependency=singleton", "now+12hours"])
        self.archive("schedule", policy, "--slurm", "--array", 4, says=["#SBATCH --array=0-3", "--dependency=afterany:$SLURM_ARRAY_JOB_ID"])
        self.archive("schedule", policy, "--cron", "--array", 4, code=2, says="--array requires --slurm")
        self.archive("schedule", policy, "--systemd", says=["OnCalendar=*-*-* 03:", "archive run --policy"])
        self.archive("schedule", policy, "--cron", says=f"archive run --policy {policy}")
        self.archive("schedule", policy, code=2)
        self.archive("schedule", self.dir / "none.toml", "--cron", code=2, says="none.toml")


PURGE = """
import os, pathlib, sys, time
for _ in range(400):
    files = [p for p in pathlib.Path(sys.argv[1]).glob('step-*/*')]
    for path in files:
        try:
            if time.time() - path.stat().st_atime > 30 * 86400: path.unlink()
        except FileNotFoundError: pass
    if not files: break
    time.sleep(0.05)
"""


class IdentityTest(CliTest):
    """Runs of one name, policies that share a store, other people's files in it, paths."""

    LAST = '[[class]]\nkeep = "full"\nlast = {}\n'

    def step(self, run, number, identity, *flags):
        subprocess.run([MAKE_STEP, self.dir / run, "--step", str(number), "--run", identity * 32, "--seed", str(ord(identity)),
                        *map(str, flags)], check=True)
        return self.dir / run / f"step-{number:08}"

    def write(self, name, *lines):
        path = self.dir / name
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def members(self):
        return sorted((m["run_id"][0], m["step"], *m["claims"]) for m in self.json("archive", "ls", self.store))

    def test_runs_of_one_name_keep_their_own_members(self):
        for number in (2, 4):
            self.step("e1/ckpt", number, "a")
        for number in (2, 4, 6, 8):
            self.step("e2/ckpt", number, "b")
        policy = self.write("p.toml", 'store = "store"', 'runs = ["e*/ckpt"]', 'tag = "weekly"', self.LAST.format(2),
                            "[delete]", "source = true", "stored = true")
        done = self.archive("run", "--policy", policy, says="stored 4 members")
        self.assertIn("removed its source " + str(self.dir / "e1/ckpt/step-00000002"), done.stdout)
        self.assertEqual(self.members(), [(i, n, "weekly") for i, n in (("a", 2), ("a", 4), ("b", 6), ("b", 8))])
        self.archive("run", "--policy", policy, says="stored 0 members")
        self.assertEqual(len(self.members()), 4)
        self.archive("ls", self.store, says=["ckpt~aaaa@4", "ckpt~bbbb@8", str(self.dir / "e2/ckpt")])
        self.archive("plan", policy, says=["ckpt~aaaa@4", str(self.dir / "e1/ckpt")])
        self.archive("restore", f"{self.store}:ckpt", "x", code=2, says=["several runs", "ckpt~aaaa@4", "e1/ckpt"])
        self.archive("restore", f"{self.store}:ckpt~aaaa@4", "one", says="restored")
        self.archive("restore", f"{self.store}:bbbb", "two", says="restored")
        self.assertEqual(tree(self.dir / "one"), tree(self.dir / "e1/ckpt/step-00000004"))
        self.assertEqual(tree(self.dir / "two"), tree(self.dir / "e2/ckpt/step-00000008"))

    def test_a_tree_of_the_policy_waits_for_its_writer(self):
        """The training has made one file of the step so far, and not the one that its program writes last."""
        steps = {"global_step40": "mp_rank_00_model_states.pt", "checkpoint-40": "model.safetensors", "step-40": "__0_0.distcp",
                 "checkpoint_0": "pytorch_model_fsdp_0/__0_0.distcp", "iter_0000040": "__0_0.distcp",
                 "step_40": "policy/weights/model/__0_0.distcp", "epoch_0_step_40": "model/__0_0.distcp",
                 "epoch_0_step_50": ".incomplete"}
        for number, (step, file) in enumerate(steps.items()):
            with self.subTest(step=step):
                path = self.dir / f"run{number}" / step / file
                path.parent.mkdir(parents=True)
                path.write_text("x")
                (self.dir / f"run{number}" / "latest").write_text("global_step20")
                policy = self.write(f"{number}.toml", 'store = "store"', f'tag = "t{number}"', f'trees = ["run{number}/{step}"]')
                self.archive("run", "--policy", policy, says="stored 0 members, - of sources; 1 waiting")
        self.assertFalse(list(self.store.glob("*.tar")) if self.store.is_dir() else [])

    def test_a_checkpoint_next_to_the_steps_of_a_run_is_named(self):
        """As a training of transformers leaves its model when it ends. It is not one of the run's steps."""
        self.step("gpt", 8, "a")
        (self.run_dir / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
        policy = self.write("p.toml", 'store = "store"', 'runs = ["gpt"]', 'tag = "t"', self.LAST.format(1))
        note = "a checkpoint (safetensors) lies beside its steps, and is not stored"
        self.archive("run", "--policy", policy, says=["stored 1 member", note])
        self.archive("run", self.run_dir, "--store", self.store, says=["gpt@8 is stored", note])

    def test_a_run_restarted_under_its_name_is_archived(self):
        self.step("gpt", 8, "a")
        policy = self.write("p.toml", 'store = "store"', 'runs = ["gpt"]', 'tag = "t"', self.LAST.format(1))
        self.archive("run", "--policy", policy)
        shutil.rmtree(self.run_dir)
        for number in (2, 4):
            self.step("gpt", number, "b")
        self.archive("run", "--policy", policy, says="stored gpt~bbbb@4")
        self.assertEqual(self.members(), [("a", 8, "t"), ("b", 4, "t")])

    def test_a_step_of_another_run_does_not_replace_a_damaged_one(self):
        (self.step("e1/ckpt", 4, "a") / "index.h5").unlink()
        self.step("e2/ckpt", 4, "b")
        policy = self.write("p.toml", 'store = "store"', 'runs = ["e*/ckpt"]', self.LAST.format(1))
        self.archive("run", "--policy", policy, code=1, says="ckpt~aaaa@4 is required by a class, but cannot be read")

    def test_policies_that_share_a_store_stay_separate(self):
        for number in (2, 4):
            self.step("gpt", number, "a")
        head = ['store = "store"', 'runs = ["gpt"]']
        daily = self.write("daily.toml", *head, 'tag = "daily"', self.LAST.format(2))
        weekly = self.write("weekly.toml", *head, 'tag = "weekly"', self.LAST.format(1))
        self.archive("run", "--policy", daily)
        self.archive("plan", weekly, says="stored and verified already: full last 1, claimed by daily, too")
        self.archive("run", "--policy", weekly, says="stored 0 members")
        self.assertEqual(self.members(), [("a", 2, "daily"), ("a", 4, "daily", "weekly")])
        self.archive("prune", weekly)
        self.assertEqual(len(self.members()), 2)
        self.step("gpt", 6, "a")
        self.archive("run", "--policy", weekly)
        self.archive("prune", weekly, says="it stays, claimed by daily, too")
        self.assertEqual(self.members(), [("a", 2, "daily"), ("a", 4, "daily"), ("a", 6, "weekly")])
        self.archive("run", self.dir / "gpt/step-00000004", "--store", self.store, says="stored and verified already")
        daily.write_text(daily.read_text().replace("last = 2", "last = 1"))
        self.archive("run", "--policy", daily)
        self.archive("prune", daily)
        self.assertEqual(self.members(), [("a", 4, "by hand"), ("a", 6, "daily", "weekly")])
        self.archive("verify", self.store, says="whole")

    def test_the_replacement_of_a_damaged_member_keeps_its_claims(self):
        self.step("gpt", 4, "a")
        self.archive("run", "--policy", self.write("one.toml", 'tag = "one"', 'store = "store"', 'runs = ["gpt"]', self.LAST.format(1)))
        flip(next(self.store.glob("*.tar")), 9000)
        self.archive("verify", self.store, code=1)
        self.archive("run", self.dir / "gpt", "--store", self.store, says="stored gpt@4")
        self.assertEqual(self.members(), [("a", 4, "by hand", "one")])

    def test_other_peoples_files_in_a_store_stay(self):
        self.step("gpt", 4, "a")
        (self.store / ".staging-mine").mkdir(parents=True)
        names = [".staging-mine/f", "x.tar.gz.partial", "other.tar.7f3a.partial", "notes.deleting", "x.tar.deleting", "x.tar.json"]
        for name in names:
            (self.store / name).write_text("mine")
        os.symlink(self.run_dir, self.store / ".staging-0a0a0a0a")
        done = self.archive("run", self.run_dir, "--store", self.store)
        for name in names:
            self.assertEqual((self.store / name).read_text(), "mine")
        self.assertTrue((self.store / ".staging-0a0a0a0a").is_symlink())
        self.assertEqual(done.stderr.count("x.tar.gz.partial was not removed"), 1)

    def test_paths_are_relative_to_the_policys_file(self):
        self.step("gpt", 4, "a")
        elsewhere = self.dir / "else[w]here"
        elsewhere.mkdir()
        policy = self.write("p.toml", 'store = "store"', 'runs = ["gp*"]', 'metrics = "m.prom"', self.LAST.format(1))
        run = [CAIRN, "archive", "run", "--policy"]
        subprocess.run([*run, "../p.toml"], cwd=elsewhere, check=True, capture_output=True)
        self.assertEqual([m["step"] for m in self.json("archive", "ls", self.store)], [4])
        self.assertEqual([p.name for p in elsewhere.iterdir()], [])
        self.assertTrue((self.dir / "m.prom").exists())
        shutil.move(self.run_dir, elsewhere / "gpt")
        self.archive("run", "--policy", shutil.copy(policy, elsewhere), says="stored 1 member,")  # its own store
        home = self.write("home.toml", 'store = "~/store"', 'runs = ["~/gp*"]', self.LAST.format(1))
        subprocess.run([*run, home], cwd="/", env={**os.environ, "HOME": str(elsewhere)}, check=True, capture_output=True)
        self.archive("plan", self.write("other.toml", 'store = "~root/store"', 'runs = ["x"]', self.LAST.format(1)), code=2,
                     says="another user's home")

    def test_nothing_to_do_is_reported_and_missing_runs_fail(self):
        (self.dir / "notes").mkdir()
        head = ['store = "store"', 'metrics = "m.prom"', self.LAST.format(1)]
        policy = self.write("p.toml", 'runs = ["gp*", "nowhere/*"]', *head)
        self.archive("plan", policy, code=1, says=["gp*: the policy names it", "nowhere/*: the policy names it"])
        self.archive("run", "--policy", policy, code=1)
        self.assertIn("} 0\n", [line + "\n" for line in (self.dir / "m.prom").read_text().splitlines()
                                if line.startswith("cairn_archive_success{")][0])
        self.assertFalse(json.loads((self.store / "status.json").read_text())["ok"])
        self.archive("run", "--policy", self.write("p.toml", 'runs = ["not*"]', *head), code=1, says="notes: it matches `runs` but contains no step")
        self.step("gpt", 4, "a")
        policy = self.write("p.toml", 'runs = ["gp*"]', *head)
        self.archive("run", "--policy", policy)
        shutil.rmtree(self.run_dir)
        self.archive("run", "--policy", policy, says="note: " + str(self.dir / "gp*") + ": no such directory any more")

    def test_a_quota_is_checked_before_anything_is_stored(self):
        for number in (2, 4, 6):
            self.step("gpt", number, "a")
        other = self.store / "somebody"
        other.mkdir(parents=True)
        policy = self.write("p.toml", 'store = "store"', 'runs = ["gpt"]', self.LAST.format(3), "[quota]", "bytes = 1000000000")
        self.archive("plan", policy)
        size = sum(p.stat().st_size for p in (self.dir / "gpt/step-00000002").iterdir())
        (other / "file").touch()
        os.truncate(other / "file", 1000000000 - 2 * size - 200000)
        self.archive("run", "--policy", policy, code=1, says="not stored: the store takes")
        used = sum(p.stat().st_size for p in self.store.rglob("*") if p.is_file())
        self.assertLessEqual(used, 1000000000)
        self.assertIn(len(self.json("archive", "ls", self.store)) - 1, (1, 2))  # what waits is listed too
        (other / "file").unlink()
        self.archive("run", "--policy", policy, says="0 waiting")

    def test_every_key_is_in_the_help(self):
        text = self.archive("plan", "--help").stdout
        for key in ("tag", "status", "metrics", "on_failure", "weights_suffice", "[quota]", "inodes", "[verify]",
                    "per_night", "[recall]", "stat", "[[class]]", "monthly"):
            self.assertIn(f" {key}", text)
        for line, says in (("purge_dais = 3", "did you mean 'purge_days'"), ("[quota]", "[quota] is empty"),
                           ("[qouta]\nbytes = 3", "did you mean 'quota'"), ('tag = "by hand"', "'tag' has the wrong type")):
            policy = self.write("p.toml", 'store = "store"', 'runs = ["gpt"]', self.LAST.format(1) if line[0] == "[" else "", line,
                                "" if line[0] == "[" else self.LAST.format(1))
            self.archive("plan", policy, code=2, says=says)


class RepairTest(CliTest):
    def stored_step(self, *flags):
        self.make_step("--hidden", 256, "--ffn", 512, "--layers", 2)
        self.archive("run", self.run_dir, "--store", self.store, *flags)
        return next(self.store.glob("*.tar"))

    def test_flipped_bits_bursts_and_a_cut_are_repaired_from_parity(self):
        tar = self.stored_step("--parity", "10%")
        shutil.move(self.run_dir, self.dir / "gone")  # without a source to repair from
        good = tar.read_bytes()
        for damage in (lambda: flip(tar, 300001), lambda: self.overwrite(tar, 70000, 150000),
                       lambda: os.truncate(tar, len(good) - 100000)):
            damage()
            self.archive("verify", self.store, code=1)
            self.archive("verify", self.store, "--repair", says=["repaired from its parity", "whole"])
            self.assertEqual(tar.read_bytes(), good)

    def overwrite(self, path, offset, count):
        with open(path, "r+b") as file:
            file.seek(offset)
            file.write(b"\xa5" * count)

    def test_too_much_damage_is_reported_and_changes_nothing(self):
        tar = self.stored_step("--parity", "3%")
        shutil.move(self.run_dir, self.dir / "gone")
        self.overwrite(tar, 0, tar.stat().st_size)
        before = tar.read_bytes()
        self.archive("verify", self.store, "--repair", code=1, says="cannot be repaired")
        self.assertEqual(tar.read_bytes(), before)
        self.archive("ls", self.store, says="damaged")

    def test_without_parity_it_is_repaired_from_the_source(self):
        tar = self.stored_step("--pack")
        flip(tar, 100001)
        self.archive("verify", self.store, "--repair", says=["stored again from", "whole"])

    def test_damaged_parity_is_detected(self):
        tar = self.stored_step("--parity", "3%")
        shutil.move(self.run_dir, self.dir / "gone")
        parity = pathlib.Path(f"{tar}.parity")
        for offset in (2, 20, 100, parity.stat().st_size - 10):
            flip(tar, 300001)
            flip(parity, offset)
            self.archive("verify", self.store, "--repair", code=1 if offset < 1000 else None)
            flip(parity, offset)
            self.archive("verify", self.store, "--repair")

    def cairn(self, *args, code=0, says=()):
        if code is not None:
            return super().cairn(*args, code=code, says=says)
        return subprocess.run([CAIRN, *map(str, args)], capture_output=True, text=True, cwd=self.dir)

    def test_a_budget_checks_the_least_recently_checked_first(self):
        for step in (10, 20, 30):
            self.make_step(step=step)
        self.archive("run", self.run_dir, "--store", self.store)
        seen = []
        for _ in range(3):
            time.sleep(1.1)  # checks are distinguished by the second
            (member,) = self.json("archive", "verify", self.store, "--per-night", "1kB")
            seen.append(member["step"])
        self.assertEqual(sorted(seen), [10, 20, 30])
        self.assertEqual(len(self.json("archive", "verify", self.store, "--sample", "70%")), 2)
        self.archive("verify", self.store, "--sample", "often", code=2, says="write 2%")

    def test_a_lost_ledger_and_lost_sidecars_are_rebuilt(self):
        self.make_step()
        tree_dir = self.dir / "notes"
        (tree_dir / "deep").mkdir(parents=True)
        (tree_dir / "deep/a.txt").write_text("a" * 100000)
        self.archive("run", self.run_dir, tree_dir, "--store", self.store, "--pack")
        self.archive("run", self.run_dir, "--store", self.store, "--weights-only")
        before = self.json("archive", "ls", self.store)
        sidecars = {p: p.read_bytes() for p in self.store.glob("*.json")}
        for name in ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"):
            (self.store / name).unlink(missing_ok=True)
        self.assertEqual(self.json("archive", "ls", self.store), before)
        for sidecar in sidecars:
            sidecar.unlink()
        self.assertEqual({m["state"] for m in self.json("archive", "ls", self.store)}, {"stored"})
        self.archive("ls", self.store, "--rebuild")
        after = self.json("archive", "ls", self.store)
        self.assertEqual([(m["tar"], m["state"]) for m in after], [(m["tar"], "verified") for m in before])
        self.archive("verify", self.store, says="whole")
        with sqlite3.connect(self.store / "ledger.sqlite") as db:
            self.assertEqual(db.execute("PRAGMA journal_mode").fetchone(), ("wal",))
            self.assertEqual(db.execute("SELECT count(*) FROM checks").fetchone(), (3,))


class RecallTest(CliTest):
    def test_a_source_is_deleted_after_its_copy_is_recalled_from_tape(self):
        for step in (10, 20):
            self.make_step("--hidden", 256, "--ffn", 512, step=step)
        policy, tape = self.dir / "policy.toml", self.dir / "tape"
        head = 'store = "store"\nruns = ["gpt"]\n[[class]]\nkeep = "full"\nevery = 10\n[verify]\nper_night = "1kB"\n'
        policy.write_text(head)
        self.cairn("archive", "run", "--policy", policy)
        self.assertEqual(len(self.json("archive", "verify", self.store, "--policy", policy)), 1)  # its [verify]
        self.assertEqual(len(self.json("archive", "verify", self.store)), 2)
        tape.mkdir()
        for tar in self.store.glob("*.tar"):
            shutil.copy(tar, tape / tar.name)
            size = tar.stat().st_size
            os.truncate(tar, 0)
            os.truncate(tar, size)
        source = self.run_dir / "step-00000010"
        policy.write_text(head + "[delete]\nsource = true\n")
        self.cairn("archive", "run", "--policy", policy, says="its copy is on tape; its source is kept")
        self.cairn("archive", "run", source, "--store", self.store, "--delete-source", code=2, says="needs recall")
        self.assertTrue(source.exists())
        recall = self.dir / "recall.sh"
        recall.write_text(f'for f in "$@"; do cp {tape}/$(basename "$f") "$f"; done\n')
        policy.write_text(head + f'[delete]\nsource = true\n[recall]\nrecall = "sh {recall} {{paths}}"\n')
        self.cairn("archive", "run", "--policy", policy, says="removed its source")
        self.assertEqual([p.name for p in self.run_dir.glob("step-*")], ["step-00000020"])

    def test_stubs_are_recalled_in_the_order_of_the_tape(self):
        for step in (10, 20, 30):
            self.make_step("--hidden", 256, "--ffn", 512, step=step)
        self.cairn("archive", "run", self.run_dir, "--store", self.store)
        tape = self.dir / "tape"
        tape.mkdir()
        places = {10: "T1 9", 20: "T2 1", 30: "T1 10"}
        for step, place in places.items():
            (tar,) = self.store.glob(f"*{step:08}.*.tar")
            shutil.copy(tar, tape / tar.name)
            size = tar.stat().st_size
            os.truncate(tar, 0)
            os.truncate(tar, size)  # a hole: all its bytes, none of its blocks
            (tape / f"{tar.name}.place").write_text(place)
        stat, recall = self.dir / "stat.sh", self.dir / "recall.sh"
        stat.write_text(f'cat {tape}/$(basename "$1").place\n')
        recall.write_text(f'for f in "$@"; do echo $(basename "$f") >> {tape}/log; cp {tape}/$(basename "$f") "$f"; done\n')
        flags = ["--recall", f"sh {recall} {{paths}}", "--recall-stat", f"sh {stat} {{path}}"]
        self.cairn("archive", "ls", self.store, says="verified")
        self.assertFalse((tape / "log").exists())  # listing recalls nothing
        self.cairn("archive", "ls", self.store, says="on tape")
        done = self.cairn("archive", "verify", self.store, "--repair",
                          says=["gpt@10: on tape, needs recall", "3 members are on tape and not checked (0 checked)"])
        self.assertNotIn("whole", done.stdout)
        self.assertEqual([m["ok"] for m in self.json("archive", "verify", self.store, "--per-night", "1kB")], [None] * 3)
        self.cairn("archive", "verify", f"{self.store}:gpt@20", code=2, says="needs recall")
        self.cairn("verify", f"{self.store}:gpt@20", code=2, says="needs recall")
        for dry in ([], ["--dry-run"]):
            self.cairn("archive", "restore", f"{self.store}:gpt@20", "back", *dry, code=2, says="on tape, needs recall")
        self.cairn("archive", "recall", self.store, code=2, says="needs recall")
        self.assertEqual([m.get("on_tape") for m in self.json("archive", "ls", self.store)], [True] * 3)
        self.assertTrue(all(p.stat().st_blocks < 8 for p in self.store.glob("*.tar")))  # nothing was written there
        self.cairn("archive", "restore", f"{self.store}:gpt@20", "back", *flags, says="restored")
        done = self.cairn("archive", "recall", self.store, *flags, says="2 of 3 members were on tape")
        order = [line.split("-")[2].split(".")[0] for line in (tape / "log").read_text().split()]
        self.assertEqual(order, ["00000020", "00000010", "00000030"], done)
        self.cairn("archive", "verify", self.store, says="whole")
        self.cairn("archive", "recall", self.store, *flags, says="0 of 3")
        (tar,) = self.store.glob("*00000010.*.tar")
        size = tar.stat().st_size
        os.truncate(tar, 0)
        os.truncate(tar, size)
        self.cairn("archive", "recall", self.store, "gpt@10", "--recall", "true", code=2, says="still on tape")
        self.cairn("archive", "recall", self.store, "gpt@10", "--recall", "false", code=2, says="failed")
        self.cairn("archive", "verify", self.store, "--recall", "true", code=1, says=["gpt@10", "still on tape after", "whole"])
        self.cairn("archive", "verify", self.store, "--recall", "true", "--repair", says=["stored again from", "whole"])


if __name__ == "__main__":
    unittest.main()
