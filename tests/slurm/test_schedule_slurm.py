"""`cairn archive schedule --slurm` against a real Slurm: one chain per policy, whatever happens to a job."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from loopback_slurm import LoopbackSlurm  # noqa: E402

CAIRN = os.environ["CAIRN"]

POLICY = 'store = "/nowhere/store"\nruns = ["/nowhere/runs/*"]\n[[class]]\nkeep = "full"\nevery = 1\n'

# Records its arguments, runs while `hold` exists, and exits with the status in `exit`.
PROGRAM = """#!/bin/sh
cd '{dir}'
echo "working on it"
for word; do printf '%s\\n' "$word"; done > args.$SLURM_JOB_ID
echo "$SLURM_JOB_ID" >> starts
while [ -e hold ]; do sleep 0.1; done
exit $(cat exit 2>/dev/null || echo 0)
"""


class Chain:
    """One policy with its program and its jobs."""

    def __init__(self, slurm, root, policy_name="archive.toml", program_name="program"):
        self.slurm = slurm
        self.dir = root
        self.dir.mkdir()
        self.policy = self.dir / policy_name
        self.policy.parent.mkdir(exist_ok=True)
        self.policy.write_text(POLICY)
        self.program = self.policy.parent / program_name
        self.program.write_text(PROGRAM.format(dir=self.dir))
        self.program.chmod(0o755)
        self.script = pathlib.Path(f"{self.policy}.sbatch")

    def schedule(self, *flags, code=0):
        done = subprocess.run([CAIRN, "archive", "schedule", self.policy, "--slurm", "--program", self.program, *flags],
                              env=self.slurm.env, capture_output=True, text=True, cwd=self.dir)
        if done.returncode != code:
            raise AssertionError(f"{flags}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout if code == 0 else done.stderr

    def install(self, *flags):
        facts = json.loads(self.schedule("--install", "--json", *flags))
        self.name = facts["name"]
        return next(s["result"].removeprefix("job ") for s in facts["steps"] if s["step"].startswith("submit"))

    def jobs(self, *states):
        return self.slurm.run("squeue", "-h", "-n", self.name, "-t", ",".join(states), "-o", "%i").split()

    def waiting(self):
        return self.jobs("PENDING")

    def starts(self):
        path = self.dir / "starts"
        return path.read_text().split() if path.exists() else []

    def wait_for_start(self, job, times=1):
        self.slurm.wait(lambda: self.starts().count(job) >= times, f"start {times} of {job}")

    def wait_for_end(self, job, state="COMPLETED"):
        self.slurm.wait(lambda: self.slurm.state(job) == state, f"job {job} to be {state}")

    def hold(self):
        (self.dir / "hold").touch()

    def release(self):
        (self.dir / "hold").unlink()


class ScheduleSlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="cairn-schedule-"))
        cls.addClassCleanup(shutil.rmtree, cls.root, ignore_errors=True)
        cls.root.chmod(0o755)
        cls.slurm = LoopbackSlurm(cls.root / "slurm")
        cls.addClassCleanup(cls.slurm.stop)
        cls.slurm.start()

    def chain(self, **names):
        chain = Chain(self.slurm, self.root / self.id().rsplit(".", 1)[-1][:30], **names)
        self.addCleanup(lambda: hasattr(chain, "name") and self.slurm.run("scancel", "-n", chain.name))
        return chain

    def held_run(self):
        """A chain whose first run has begun and is still running."""
        chain = self.chain()
        chain.hold()
        job = chain.install()
        chain.wait_for_start(job)
        self.assertEqual(len(chain.waiting()), 1)
        return chain, job

    def test_paths_may_have_any_character(self):
        nasty = "a $HOME 'b' \"c\" 100%j #d `id` ;&"
        chain = self.chain(policy_name=f"{nasty}/arch ive.toml", program_name="my $x 'cairn'%")
        job = chain.install()
        chain.wait_for_end(job)
        self.assertEqual((chain.dir / f"args.{job}").read_text().splitlines(), ["archive", "run", "--policy", str(chain.policy)])
        self.assertIn("working on it", pathlib.Path(f"{chain.policy}.log").read_text())
        self.assertEqual(len(chain.waiting()), 1)
        # The successor runs in the same way, and has a successor too.
        (successor,) = chain.waiting()
        self.slurm.run("scontrol", "update", f"JobId={successor}", "StartTime=now")
        chain.wait_for_end(successor)
        self.assertEqual((chain.dir / f"args.{successor}").read_text(), (chain.dir / f"args.{job}").read_text())
        self.assertEqual(len(chain.waiting()), 1)

    def test_two_policies_have_two_chains(self):
        first = self.chain()
        first.wait_for_end(first.install())
        second = Chain(self.slurm, first.dir / "other")  # the same file name elsewhere
        job = second.install()
        self.addCleanup(lambda: self.slurm.run("scancel", "-n", second.name))
        second.wait_for_end(job)  # not behind the other's run of tomorrow
        self.assertNotEqual(first.name, second.name)
        before = second.waiting()
        self.assertEqual((len(first.waiting()), len(before)), (1, 1))
        first.schedule("--uninstall")
        self.assertEqual((first.waiting(), second.waiting()), ([], before))

    def test_an_install_replaces_the_chain_and_a_manual_run_starts_now(self):
        chain, job = self.held_run()
        self.assertIn("would cancel waiting job", chain.schedule("--install", "--dry-run"))
        second = chain.install("--every-hours", "36")
        third = chain.install("--every-hours", "36")
        self.assertEqual(chain.waiting(), [third])
        self.assertEqual(self.slurm.state(job), "RUNNING")
        self.assertNotIn(self.slurm.state(second), ("PENDING", "RUNNING"))
        chain.release()
        for each in (job, third):
            chain.wait_for_end(each)
        tomorrow = chain.waiting()
        self.assertEqual(len(tomorrow), 1)
        by_hand = self.slurm.submit(chain.script)
        chain.wait_for_end(by_hand)
        self.assertEqual(chain.waiting(), tomorrow)

    def test_an_install_that_slurm_refuses_leaves_the_chain_as_it_was(self):
        chain = self.chain()
        self.assertIn("invalid partition", chain.schedule("--install", "--partition", "nowhere", code=2))
        self.assertFalse(chain.script.exists())
        chain.wait_for_end(chain.install())
        waiting, script = chain.waiting(), chain.script.read_text()
        self.assertEqual(len(waiting), 1)
        self.assertIn("invalid partition", chain.schedule("--install", "--partition", "nowhere", code=2))
        self.assertEqual((chain.waiting(), chain.script.read_text()), (waiting, script))

    def test_a_failure_does_not_end_the_chain(self):
        chain = self.chain()
        (chain.dir / "exit").write_text("3")
        chain.wait_for_end(chain.install(), "FAILED")
        self.assertEqual(len(chain.waiting()), 1)

    def test_a_cancelled_run_does_not_end_the_chain(self):
        chain, job = self.held_run()
        waiting = chain.waiting()
        self.slurm.run("scancel", job)
        chain.wait_for_end(job, "CANCELLED")
        self.assertEqual(chain.waiting(), waiting)

    def test_a_cancelled_successor_is_replaced(self):
        chain, job = self.held_run()
        self.slurm.run("scancel", *chain.waiting())
        self.slurm.wait(lambda: not chain.waiting(), "the successor to go")
        chain.release()
        chain.wait_for_end(job)
        self.assertEqual(len(chain.waiting()), 1)

    def restart(self, chain, job):
        """The job, which was requeued, starts again; Slurm would hold it back for two minutes, and slurmd refuses it within
        the second in which it was killed."""
        time.sleep(2.5)

        def started():
            if self.slurm.state(job) == "PENDING":
                self.slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
            return chain.starts().count(job) == 2
        self.slurm.wait(started, "the requeued job")

    def test_a_requeue_keeps_exactly_one_successor(self):
        chain, job = self.held_run()
        waiting = chain.waiting()
        self.slurm.run("scontrol", "requeue", job)
        self.restart(chain, job)
        self.assertEqual(chain.waiting(), waiting)
        self.slurm.run("scancel", *waiting)
        self.slurm.run("scontrol", "requeue", job)  # as if the node had failed before the successor was submitted
        self.slurm.wait(lambda: self.slurm.state(job) == "PENDING", "the requeue")
        self.assertEqual(chain.waiting(), [job])
        (chain.dir / "starts").write_text(f"{job}\n")
        self.restart(chain, job)
        self.assertEqual(len(chain.waiting()), 1)
        chain.release()
        chain.wait_for_end(job)
        self.assertEqual(len(chain.waiting()), 1)

    def test_a_failed_node_does_not_end_the_chain(self):
        chain, job = self.held_run()
        waiting = chain.waiting()
        node = self.slurm.run("squeue", "-h", "-j", job, "-o", "%N").strip()
        self.slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        self.slurm.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self.restart(chain, job)
        self.assertEqual(chain.waiting(), waiting)
        chain.release()
        chain.wait_for_end(job)
        self.assertEqual(chain.waiting(), waiting)

    def test_an_uninstall_ends_the_chain_and_lets_a_run_end(self):
        chain, job = self.held_run()
        said = chain.schedule("--uninstall", "--dry-run")
        self.assertIn(f"would remove {chain.script}", said)
        self.assertTrue(chain.script.exists())
        said = chain.schedule("--uninstall")
        self.assertIn(f"job {job} has started and will finish", said)
        self.assertEqual((chain.waiting(), chain.script.exists()), ([], False))
        chain.release()
        chain.wait_for_end(job)
        self.assertEqual(chain.waiting(), [])  # the last run submits none
        self.assertIn("nothing to remove", chain.schedule("--uninstall"))
        chain.policy.unlink()
        self.assertIn("nothing to remove", chain.schedule("--uninstall"))

    def test_the_tasks_of_an_array_run_side_by_side_and_the_next_waits_for_all(self):
        chain = self.chain()
        chain.hold()
        job = chain.install("--array", "3")
        self.slurm.wait(lambda: len(chain.starts()) == 3, "three tasks at once")
        [successor] = {waiting.split("_")[0] for waiting in chain.waiting()}
        self.slurm.run("scontrol", "update", f"JobId={successor}", "StartTime=now")
        self.slurm.run("scancel", f"{job}_1")
        self.slurm.wait(lambda: len(chain.jobs("RUNNING")) == 2, "the end of a task")
        self.slurm.wait(lambda: "Dependency" in self.slurm.run("squeue", "-h", "-j", successor, "-o", "%r"), "the reason")
        chain.release()
        self.slurm.wait(lambda: len(chain.starts()) == 6, "the tasks of the next run")
        self.slurm.wait(lambda: not chain.jobs("RUNNING", "COMPLETING"), "their end")
        [third] = {waiting.split("_")[0] for waiting in chain.waiting()}
        self.assertNotIn(third, (job, successor))
        again = chain.install()  # of one task
        self.assertEqual(chain.waiting() + chain.jobs("RUNNING"), [again])
        chain.wait_for_end(again)
        self.assertEqual(len(chain.waiting()), 1)

    def test_a_file_of_someone_else_is_never_replaced(self):
        chain = self.chain()
        chain.script.write_text("#!/bin/sh\necho mine\n")
        for verb in ("--install", "--uninstall"):
            self.assertIn("is not a file of 'cairn archive schedule'", chain.schedule(verb, code=2))
        self.assertEqual(chain.script.read_text(), "#!/bin/sh\necho mine\n")
        self.assertIn("there is no directory", chain.schedule("--install", "--log", "/nowhere/x.log", code=2))


if __name__ == "__main__":
    unittest.main()
