"""`cairn.titan` in torchtitan's own Trainer: saved, continued bit for bit, loaded at other meshes, and read by the suite."""

import json
import multiprocessing
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/guide/save-from-torchtitan.md"
CAIRN = os.environ["CAIRN"]
os.environ.setdefault("CAIRN_TITAN", f"{os.environ.get('CAIRN_VENV')}/titan")  # scripts/requirements-titan.txt
os.environ["OMP_NUM_THREADS"] = "1"
PLACES = [os.environ["CAIRN_TITAN"], str(ROOT / "tests/python")]
sys.path[:0] = PLACES  # of the ranks
os.environ["PYTHONPATH"] = os.pathsep.join(PLACES)  # of the server that forks them


def _rank(rank, world, port, directory, job):
    log = os.open(f"{directory}/log-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    import titan_cases

    titan_cases.run(rank, world, port, directory, job)


@unittest.skipUnless(os.path.isdir(os.environ["CAIRN_TITAN"]), "torchtitan is not there (scripts/setup --tests)")
class TitanTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.directory, ignore_errors=True)
        cls.context = multiprocessing.get_context("forkserver")  # torchtitan is imported once
        cls.context.set_forkserver_preload(["titan_cases"])

    def run_job(self, name, world=2, **job):
        """The results of all ranks; `name` is the job's directory."""
        directory = f"{self.directory}/{name}"
        os.makedirs(directory, exist_ok=True)
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        ranks = [self.context.Process(target=_rank, args=(rank, world, port, directory, job)) for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(200)
        for rank, process in enumerate(ranks):
            if process.exitcode != 0:
                process.kill()
                self.fail(f"rank {rank}: {process.exitcode}\n{pathlib.Path(directory, f'log-{rank}').read_text()[-3000:]}")
        return [json.loads(pathlib.Path(directory, f"result-{rank}.json").read_text()) for rank in range(world)]

    def run_of(self, name):
        return pathlib.Path(self.directory, name, "checkpoint")

    def cairn(self, *arguments):
        done = subprocess.run([CAIRN, *map(str, arguments)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def steps(self, name):
        return sorted(entry.name for entry in self.run_of(name).iterdir() if entry.name.startswith("step-"))

    def copy_steps(self, name, to, *steps):
        for step in steps:
            shutil.copytree(self.run_of(name) / step, self.run_of(to) / step)

    def test_a_training_goes_on_bit_for_bit(self):
        """Tied embeddings, a frozen layer, FSDP of two ranks; saved beside the training, and killed after step 4."""
        whole = self.run_job("whole", model="tied", manager="cairn", checkpoint={"async_mode": "async_with_pinned_mem", "keep_latest_k": 0})
        self.assertEqual(self.steps("whole"), ["step-00000002", "step-00000004", "step-00000006"])
        self.assertFalse([name for name in whole[0]["trainable"] if name.startswith("layers.0.")])
        self.assertTrue(whole[0]["trainable"])
        self.copy_steps("whole", "again", "step-00000002", "step-00000004")
        again = self.run_job("again", model="tied", manager="cairn", checkpoint={"async_mode": "async", "keep_latest_k": 2})
        for before, after in zip(whole, again):
            self.assertEqual(list(after["losses"]), ["5", "6"])
            self.assertEqual(after["losses"], {step: before["losses"][step] for step in "56"})
            self.assertEqual(after["model"], before["model"])
            self.assertEqual(after["optimizer"], before["optimizer"])
        alone = self.run_job("whole", world=1, train=False, model="tied", manager="cairn", checkpoint={"exclude_from_loading": ["dataloader"]})
        self.assertEqual([alone[0][part] for part in ("model", "optimizer", "step")], [whole[0][part] for part in ("model", "optimizer", "step")])
        self.cairn("verify", self.run_of("whole"))
        self.assertRegex(self.cairn("ls", self.run_of("again")), r"6 +committed")


if __name__ == "__main__":
    unittest.main()
