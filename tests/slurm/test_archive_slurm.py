"""The archive against a real Slurm: a training job that is signalled and requeued, and a scheduled archive job that
submits its successor, with a purge by access time in between."""

import json
import os
import pathlib
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
from cairn_cli import CAIRN, TRAINER, CliTest, tree  # noqa: E402
from loopback_slurm import LoopbackSlurm  # noqa: E402

DAY = 86400

TRAIN = """#!/bin/bash
#SBATCH --job-name=train --ntasks=1 --requeue --open-mode=append --output={dir}/train.log --signal=B:USR1@60 --time=20
# The trainer saves on the signal and ends; the job asks for its requeue, and continues from that step.
iters=1000000
if [ "${{SLURM_RESTART_COUNT:-0}}" != 0 ]; then
  iters=$((10#$(ls {run} | sed -n 's/^step-\\([0-9]*\\)$/\\1/p' | tail -1) + 20))
fi
conf=$SLURM_CONF
unset ${{!SLURM_*}}  # one rank here; the trainer would join the job's
export SLURM_CONF=$conf
{cairn} train --nproc-per-node 1 --num-layers 1 --hidden-size 64 --num-attention-heads 2 --seq-length 32 --bf16 \\
  --vocab-size 300 --data-path {dir}/text --micro-batch-size 1 --global-batch-size 1 --train-iters $iters \\
  --save {run} --save-interval 1000000 --log-interval 10 &
child=$!
trap 'touch {dir}/signalled; kill -USR1 $child' USR1
wait $child
while kill -0 $child 2>/dev/null; do wait $child; done
if [ -e {dir}/signalled ] && [ ! -e {dir}/requeued ]; then touch {dir}/requeued; scontrol requeue "$JOB"; fi
"""


class SlurmTest(CliTest):
    def setUp(self):
        super().setUp()
        self.dir.chmod(0o755)
        self.slurm = LoopbackSlurm(self.dir / "slurm")
        self.addCleanup(self.slurm.stop)
        self.slurm.start()

    def test_a_signalled_training_requeues_and_is_archived(self):
        if not TRAINER:
            self.skipTest("cairn-train is not built")
        (self.dir / "text.txt").write_text("it must still stand after a crash and a purge\n" * 500)
        self.cairn("data", "text.txt", "--output-prefix", "text", "--tokenizer", "bytes", "--append-eod")
        script = self.dir / "train.sh"
        text = TRAIN.format(dir=self.dir, run=self.run_dir, cairn=CAIRN)
        script.write_text(text.replace("iters=1000000\n", 'iters=1000000; JOB=$SLURM_JOB_ID\n', 1))
        job = self.slurm.submit(script)
        log = self.dir / "train.log"
        self.slurm.wait(lambda: log.exists() and "iteration       10/" in log.read_text(), "the training job", 90)
        self.slurm.run("scancel", "--batch", "--signal=USR1", job)
        self.slurm.wait((self.dir / "requeued").exists, "the checkpoint on the signal")
        first = [p.name for p in self.run_dir.glob("step-*")]
        self.assertEqual(len(first), 1, log.read_text())

        # Slurm holds a requeued job back for two minutes. Not "now": slurmd keeps the second in which it revoked the job's
        # credential, and refuses a new one of the same second ("Job already killed, do not launch batch job").
        self.slurm.wait(lambda: self.slurm.state(job) == "PENDING", "the requeue")
        self.slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+5")
        self.slurm.wait(lambda: self.slurm.state(job) == "COMPLETED", "the requeued job", 90)
        steps = sorted(int(p.name[5:]) for p in self.run_dir.glob("step-*"))
        self.assertEqual(steps, [int(first[0][5:]), int(first[0][5:]) + 20], log.read_text())
        self.archive_by_schedule({step: tree(self.run_dir / f"step-{step:08}") for step in steps})

    def archive_by_schedule(self, before):
        for path in self.run_dir.glob("step-*/*"):  # not read for 20 days
            os.utime(path, (time.time() - 20 * DAY,) * 2)
        policy = self.policy("pack = true", runs=self.run_dir, full=1, weights=0)
        done = subprocess.run([CAIRN, "archive", "schedule", policy, "--slurm", "--install", "--json"], env=self.slurm.env,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        facts = json.loads(done.stdout)
        first = facts["steps"][-1]["result"].removeprefix("job ")
        self.slurm.wait(lambda: self.slurm.state(first) == "COMPLETED", "the archive job", 120)
        status = json.loads((self.store / "status.json").read_text())
        self.assertTrue(status["ok"], status)
        self.assertEqual(status["stored_members"], len(before))
        waiting = self.slurm.run("squeue", "-h", "-n", facts["name"], "-t", "PD", "-o", "%i").split()
        self.assertEqual(len(waiting), 1, "the archive job did not submit its successor, or more than one")
        for path in self.run_dir.glob("step-*/*"):  # the purge, ten days later; it leaves empty directories
            path.unlink()
        # The successor runs as well, and submits the next.
        self.slurm.run("scontrol", "update", f"JobId={waiting[0]}", "StartTime=now")
        self.slurm.wait(lambda: self.slurm.state(waiting[0]) == "COMPLETED", "the next archive job", 120)
        self.assertEqual(len(self.slurm.run("squeue", "-h", "-n", facts["name"], "-t", "PD", "-o", "%i").split()), 1)
        self.cairn("archive", "ls", self.store)
        for step, files in before.items():
            self.cairn("archive", "restore", f"{self.store}:{self.run_dir.name}@{step}", f"back/step-{step:08}")
            self.assertEqual(tree(self.dir / f"back/step-{step:08}"), files)


if __name__ == "__main__":
    unittest.main()
