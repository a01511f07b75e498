"""cairn reshape as a user runs it: killed and resumed, under mpirun, refused.

CAIRN_LONG=1 kills 200 times instead of 12.
"""

import os
import random
import shutil
import signal
import subprocess
import time
import unittest

try:
    import h5py
except ImportError:
    h5py = None

from cairn_cli import CAIRN, SANITIZED, CliTest, flip, tree

KILLS = 200 if os.environ.get("CAIRN_LONG") else 12
MODEL = ("--layers", 8, "--hidden", 512, "--ffn", 2048, "--vocab", 4000)  # 0.4 GB: several units
MIXTURE = ("--layers", 4, "--hidden", 512, "--ffn", 512, "--vocab", 4000, "--experts", 8, "--expert-ffn", 512)


class ReshapeTest(CliTest):
    def reshape(self, target, *flags, code=0, says=()):
        return self.cairn("reshape", self.run_dir, target, "--tp", 4, "--pp", 2, "--dp", 1, *flags, code=code, says=says)

    def step(self, run):
        return tree(self.dir / run / "step-00000100")

    def test_killed_reshape_resumes_to_identical_bytes(self):
        random.seed(5)
        dense, mixture = self.kill(MODEL, ()), self.kill(MIXTURE, ("--ep", "2", "--etp", "2"))
        self.assertLess(dense[0] + mixture[0], KILLS)
        self.assertGreater(dense[1] + mixture[1], 0)

    def kill(self, model, mesh):
        """Half of the kills: how many came after the end, and the bytes that were not written again."""
        for run in (self.run_dir, self.dir / "whole"):
            shutil.rmtree(run, ignore_errors=True)
        self.make_step(*model, "--tp", 2, "--dp", 2)
        start = time.monotonic()
        self.reshape("whole", *mesh)
        longest = time.monotonic() - start
        expected = self.step("whole")
        command = [CAIRN, "reshape", self.run_dir, "killed", "--tp", "4", "--pp", "2", "--dp", "1", *mesh]
        resumed = whole = 0
        for _ in range(KILLS // 2):
            shutil.rmtree(self.dir / "killed", ignore_errors=True)
            for flags in ([], ["--resume"]):  # the one that resumes may be killed as well
                child = subprocess.Popen([*map(str, command), *flags], cwd=self.dir, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL)
                try:
                    child.wait(random.uniform(0, longest))
                except subprocess.TimeoutExpired:
                    child.send_signal(signal.SIGKILL)
                    child.wait()
                if (self.dir / "killed" / "step-00000100").exists():
                    break
            if (self.dir / "killed" / "step-00000100").exists():
                whole += 1
                longest *= 0.8
            else:
                # Without a directory of the step, it was killed before it made one.
                if any(path.is_dir() for path in (self.dir / "killed").glob("step-*.partial-*")):
                    self.assertEqual(self.cairn("ls", "killed").returncode, 0)
                longest *= 1.05
                done = self.json(*command[1:], "--resume")
                resumed += done["bytes_resumed"]
            self.assertEqual(self.step("killed"), expected)
            # The hint and the end of the mark come after the commit. A kill before them leaves an unfinished hint,
            # and a mark without its directory, for the next cleaner.
            left = {p.name for p in (self.dir / "killed").iterdir() if not p.name.startswith("latest")}
            self.assertEqual({name for name in left if not name.endswith(".cairn-mark")}, {".lock", "step-00000100"})
        return whole, resumed

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun here")
    def test_ranks_of_mpirun_share_the_work_and_write_the_same_bytes(self):
        self.make_step(*MODEL, "--tp", 2, "--dp", 2)
        self.reshape("alone")
        self.mpirun(3, "reshape", self.run_dir, "shared", "--tp", 4, "--pp", 2, "--dp", 1)
        self.assertEqual(self.step("shared"), self.step("alone"))
        self.assertEqual({p.name for p in (self.dir / "shared").iterdir()}, {".lock", "latest", "step-00000100"})

    def test_a_launch_does_not_join_a_killed_launch_of_its_name(self):
        self.make_step(*MODEL, "--tp", 2, "--dp", 2)
        self.reshape("alone")

        def start(rank):  # as mpirun does in a new container: PMIX_NAMESPACE is the same each time
            env = {**os.environ, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "1265303553"}
            command = [CAIRN, "reshape", self.run_dir, "shared", "--tp", "4", "--pp", "2", "--dp", "1", "--resume"]
            return subprocess.Popen([*map(str, command)], cwd=self.dir, env=env, stderr=subprocess.PIPE, text=True)

        def seen(pattern):
            return list((self.dir / "shared").glob(f"step-*.partial-*/{pattern}"))

        deadline = time.monotonic() + 100
        killed = [start(0), start(1)]
        while not seen("unit-*"):
            self.assertLess(time.monotonic(), deadline)
        for process in killed:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        self.assertTrue(seen("team-room*"))
        first = start(1)
        time.sleep(1)  # time for it to look at the room
        second = start(0)
        for process in (first, second):
            said = process.communicate(timeout=100)[1]
            self.assertEqual(process.returncode, 0, said)
        self.assertEqual(self.step("shared"), self.step("alone"))

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun here")
    def test_a_damaged_shard_fails_all_ranks_and_leaves_no_step(self):
        step = self.make_step(*MODEL, "--tp", 2, "--dp", 2)
        shard = step / "shard-00003.h5"
        flip(shard, shard.stat().st_size // 2)
        text = self.mpirun(3, "reshape", self.run_dir, "shared", "--tp", 4, "--pp", 2, "--dp", 1, code=None)
        self.assertIn("shard-00003.h5", text)
        self.assertFalse((self.dir / "shared" / "step-00000100").exists())

    def mpirun(self, ranks, *args, code=0):
        done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), CAIRN,
                               *map(str, args)], capture_output=True, text=True, cwd=self.dir, timeout=200)
        if code is None:
            self.assertNotEqual(done.returncode, 0)
        else:
            self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout + done.stderr

    @unittest.skipIf(SANITIZED, "memory of a sanitizer")
    def test_the_window_is_kept(self):
        self.make_step(*MODEL, "--tp", 2, "--dp", 2)
        for mebibytes in (64, 256):
            done = self.json("reshape", self.run_dir, f"to{mebibytes}", "--tp", 4, "--pp", 2, "--dp", 1,
                             "--max-memory", f"{mebibytes}MiB")
            self.assertLess(done["peak_memory_bytes"], (mebibytes + 64) << 20)

    def test_layers_can_be_laid_out_in_every_way(self):
        self.make_step("--layers", 6)
        fingerprint = self.json("fingerprint", self.run_dir)["fingerprint"]
        for number, flags in enumerate((
            ("--pp", 3, "--layers-per-stage", "1,3,2"),
            ("--pp", 2, "--virtual-stages", 3),
            ("--pp", 4, "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"),
            ("--vocab-multiple", 3, "--tp", 2),
            ("--zero", 3, "--dp", 3),
        )):
            target = f"to{number}"
            self.assertEqual(self.json("reshape", self.run_dir, target, *flags)["fingerprint"], fingerprint)
            self.cairn("verify", target, "--structure", "--hash")
        self.cairn("inspect", "to0", says="layers=1,3,2")

    def test_virtual_steps_are_metadata_and_can_be_made_real(self):
        self.make_step("--tp", 2, "--dp", 2)
        fingerprint = self.json("fingerprint", self.run_dir)["fingerprint"]
        self.reshape("direct")
        self.reshape("virtual", "--virtual", "--dry-run", says="would read no tensor")
        self.assertFalse((self.dir / "virtual").exists())
        self.reshape("virtual", "--virtual", says="the shards stay in")
        self.assertEqual(set(self.step("virtual")), {"index.h5", "manifest.json"})
        self.cairn("verify", "virtual", "--structure", "--hash", "--values")
        self.cairn("diff", self.run_dir, "virtual")
        self.cairn("ls", "virtual", says=["TP=4 PP=2", "virtual, its shards are in"])
        self.assertEqual(self.json("fingerprint", "virtual")["fingerprint"], fingerprint)
        self.reshape("real")
        self.cairn("reshape", "virtual", "again")  # keeps the topology
        self.assertEqual(self.step("again"), self.step("direct"))
        if h5py:
            with h5py.File(self.dir / "virtual/step-00000100/index.h5") as new, h5py.File(
                    self.run_dir / "step-00000100/index.h5") as old:
                name = "master/layers.0.mlp.up.weight"
                self.assertTrue(new[name].is_virtual and (new[name][:] == old[name][:]).all() and new[name][:].any())

    def test_virtual_steps_name_the_step_they_need(self):
        self.make_step("--tp", 2)
        self.reshape("to", "--virtual", "--resume", code=2, says="--resume excludes --virtual")
        self.reshape("virtual", "--virtual")
        self.reshape("virtual", "--virtual", code=2, says="already exists")
        self.cairn("archive", "run", "virtual", "--store", self.store, code=1, says="archive that step")
        flip(self.run_dir / "step-00000100/shard-00001.h5", 9000)
        self.cairn("verify", "virtual", "--hash", code=1, says="gpt/step-00000100/shard-00001.h5")
        shutil.rmtree(self.run_dir)
        self.cairn("inspect", "virtual/step-00000100", code=2, says=["shard-00000.h5: missing", "is a virtual step"])

    def test_wrong_topologies_are_refused_with_a_reason(self):
        self.make_step("--layers", 6)
        for flags, says in (
            (("--pp", 2, "--layers-per-stage", "1,2"), "they add up to 3, the model has 6 layers"),
            (("--pp", 2, "--layers-per-stage", "1,2,3"), "3 layer counts for 2 stages"),
            (("--pp", 3, "--virtual-stages", 3), "PP=3 with 3 virtual stages is more than the model's 6 layers"),
            (("--pp", 4, "--account-for-loss-in-pipeline-split"), "cannot be divided by 4 stages"),
        ):
            self.cairn("reshape", self.run_dir, "to", *flags, code=2, says=says)
            self.assertFalse((self.dir / "to").exists())

    def test_experts_are_spread_over_the_ranks_of_a_stage(self):
        first = ("--tp", 2, "--pp", 1, "--dp", 2, "--ep", 4, "--etp", 1)
        self.make_step("--experts", 8, *first)
        fingerprint = self.json("fingerprint", self.run_dir)["fingerprint"]
        for number, (flags, ranks, experts) in enumerate((
            (("--ep", 2), (2, 1, 2), {"ep": 2, "etp": 1}),
            (("--ep", 1, "--etp", 2), (2, 1, 2), {}),  # as TP: the default
            (("--dp", 4), (2, 1, 4), {"ep": 4, "etp": 1}),
            (("--tp", 1, "--dp", 1), (1, 1, 1), {"etp": 1}),  # EP=4 does not fit
            (("--tp", 4, "--pp", 2, "--dp", 4, "--ep", 8, "--etp", 2), (4, 2, 4), {"ep": 8, "etp": 2}),
        )):
            target, back, virtual = f"to{number}", f"back{number}", f"virtual{number}"
            topology = dict(zip(("tp", "pp", "dp"), ranks), zero=0, **experts)
            done = self.json("reshape", self.run_dir, target, *flags)
            self.assertEqual((done["topology"], done["fingerprint"]), (topology, fingerprint))
            self.cairn("verify", target, "--structure", "--hash")
            self.cairn("reshape", target, back, *first)
            self.assertEqual(self.step(back), self.step(self.run_dir))
            self.assertEqual(self.json("reshape", self.run_dir, virtual, *flags, "--virtual")["topology"], topology)
            self.cairn("verify", virtual, "--structure", "--hash")
            self.assertEqual(len(list((self.dir / target).glob("step-*/shard-*"))), ranks[0] * ranks[1] * ranks[2])
        self.cairn("ls", "to4", says="TP=4 PP=2 DP=4 ZeRO=0 EP=8 ETP=2")
        self.cairn("diff", self.run_dir, "to4")
        # Expert 3 of 8 over EP=8 is on the ranks 6, 7 (its two halves) of a stage of 16.
        gate = self.json("inspect", "to4", "layers.1.mlp.experts.gate.weight", "--slices")["tensors"][0]
        self.assertEqual([(s["offset"], s["extent"], s["file"]) for s in gate["slices"] if s["offset"][0] == 3],
                         [([3, 0, 0], [1, 12, 16], "shard-00022.h5"), ([3, 12, 0], [1, 12, 16], "shard-00023.h5")])

    def test_topologies_that_do_not_fit_the_experts_are_refused(self):
        self.make_step("--tp", 2, "--dp", 2)
        none = "the model has no experts that EP or ETP could cut; leave both out"
        for verb in (("reshape",), ("convert", "--to", "native"), ("convert", "--to", "native", "--dtype", "fp16"),
                     ("convert", "--to", "dcp")):
            self.cairn(verb[0], self.run_dir, "to", *verb[1:], "--ep", 2, code=2, says=none)
            self.cairn(verb[0], self.run_dir, "to", *verb[1:], "--etp", 1, code=2, says=none)
        self.cairn("reshape", self.run_dir, "to", "--ep", 2, "--virtual", code=2, says=none)
        shutil.rmtree(self.run_dir)
        self.make_step("--experts", 6, "--dp", 4)
        for flags, says in (
            (("--ep", 4), "EP=4 does not divide the model's 6 experts; choose another EP"),
            (("--ep", 3), "4 ranks of a stage are not a multiple of EP * ETP = 3"),
            (("--ep", 2, "--etp", 5, "--dp", 5, "--tp", 2), "ETP=5 does not divide the model's 24 FFN units of an expert"),
            (("--ep", 0), "sizes must be at least 1"),
        ):
            self.cairn("reshape", self.run_dir, "to", *flags, code=2, says=says)
        self.cairn("convert", self.run_dir, "to", "--to", "hf", code=2)
        for system in ("megatron", "megatron-deepspeed", "universal"):
            self.cairn("convert", self.run_dir, "to", "--to", system, code=2, says=f"of experts, which {system} cannot hold yet")
        self.assertFalse((self.dir / "to").exists())

    def test_missing_and_truncated_shards_are_named(self):
        step = self.make_step("--tp", 2)
        shard = step / "shard-00001.h5"
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-4096])
        self.reshape("to", code=2, says=["shard-00001.h5", "truncated or replaced"])
        shard.unlink()
        self.reshape("to", code=2, says="shard-00001.h5")
        self.assertFalse((self.dir / "to").exists())


if __name__ == "__main__":
    unittest.main()
