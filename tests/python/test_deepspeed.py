"""`cairn.deepspeed` with the real DeepSpeed: trainings that resume bit by bit, ranks that die, damage, and who else reads the files."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[2] / "python")]

import cairn  # noqa: E402
import ranks  # noqa: E402


class DeepSpeedTest(ranks.RanksCase):
    cases = "deepspeed_cases"
    jobs = 0

    def test_1_a_training_resumes_bit_by_bit(self):
        """And DeepSpeed's own loader, its zero_to_fp32.py and Cairn read the sealed tags."""
        self.run_ranks("unbroken", 2)
        for run in sorted(pathlib.Path(self.directory).glob("zero*/")):
            self.assertEqual([name for name in sorted(os.listdir(run)) if not name.endswith(".py")], ["global_step3", "latest"])
            self.assertIn(".cairn-seal.json", os.listdir(run / "global_step3"))
            cairn.run(["verify", run / "global_step3"], capture=True)
            self.assertEqual(cairn.run(["seal", "--newest", run], capture=True).stdout.strip(), str(run / "global_step3"))
        self.run_ranks("resumed", 2)
        self.run_ranks("by_deepspeed", 2)
        cairn.run(["convert", f"{self.directory}/zero1-bf16/global_step3", f"{self.directory}/dcp", "--to", "dcp"], capture=True)

    def test_2_a_dead_rank_leaves_the_previous_tag(self):
        for tag in ("global_step2", "best2"):
            pathlib.Path(f"{self.directory}/dies-tag").write_text(tag)
            self.run_ranks("dies", 2, killed=(1,))
        self.run_ranks("after_deaths", 2)

    def test_3_a_rank_that_cannot_write_is_named(self):
        self.run_ranks("cannot_write", 2)

    def test_4_incomplete_tags_are_skipped(self):
        self.run_ranks("not_whole", 2)

    def test_5_unsealable_checkpoints_are_refused(self):
        self.run_ranks("refused", 1)

    def test_6_a_tag_saved_again_is_complete_at_any_time(self):
        self.run_ranks("killed_starts", 1)
        traces = ["strace", "-qq", "-o", "/dev/null", "true"]
        if not shutil.which("strace") or subprocess.run(traces).returncode != 0:
            self.skipTest("strace is missing, or is not allowed to trace here")
        self.run_ranks("killed_seals", 1)

    def on_nodes(self, until, killed=(), **more):
        DeepSpeedTest.jobs += 1
        self.run_ranks("on_nodes", 2, killed=killed, arguments=(DeepSpeedTest.jobs, until, bool(killed), more))

    def check_runs(self, steps, latest, on_nodes=None):
        """Each training has tags of these steps in its directory, and each node has that of `on_nodes`."""
        runs = list(pathlib.Path(self.directory, "nodes").glob("zero*/"))
        for run in runs:
            names = [name for name in sorted(os.listdir(run)) if not name.endswith(".py")]
            self.assertEqual(names, [".cairn-nodes", *(f"global_step{step}" for step in steps), "latest"])
            self.assertEqual((run / "latest").read_text(), f"global_step{latest}")
            newest = cairn.run(["seal", "--newest", "--hash", run], capture=True).stdout.strip()
            self.assertEqual(newest, str(run / f"global_step{latest}"))
        if on_nodes:
            for node in (0, 1):
                listed = json.loads(cairn.run(["ls", f"{self.directory}/nodes/node-{node}", "--json"], capture=True).stdout)
                self.assertEqual([run["steps"][-1]["step"] for run in listed], len(runs) * [on_nodes], listed)

    def test_7_tags_on_the_nodes(self):
        os.makedirs(nodes := f"{self.directory}/nodes")
        with self.subTest("killed between two tags of the directory"):
            self.on_nodes(8, local=False, run=False)
            self.on_nodes(5, killed=(0, 1))
            self.check_runs([3], 3, 5)
        with self.subTest("a lost node"):
            shutil.rmtree(f"{nodes}/node-1")
            self.on_nodes(7, seen=5)
            self.assertIn("rebuilding shard-00001.h5", self.logs("on_nodes", [0]))
            self.check_runs([3, 6], 6, 7)
        with self.subTest("a damaged node, and a tag that is only on the nodes"):
            for shard in pathlib.Path(nodes).glob("node-0/*/step-00000007/shard-00000.h5"):
                ranks.flip(shard, os.path.getsize(shard) // 2)
            self.on_nodes(7, tag="global_step7", seen=7)
            self.assertIn("rebuilding shard-00000.h5", self.logs("on_nodes", [0]))
        with self.subTest("a tag of the directory is named"):
            self.on_nodes(5, tag="global_step3", seen=3)
            self.check_runs([3, 4, 6], 4, 5)
            self.on_nodes(5, seen=5)
        with self.subTest("all nodes are lost"):
            for node in (0, 1):
                shutil.rmtree(f"{nodes}/node-{node}")
            self.on_nodes(5, seen=4)
        with self.subTest("latest is set back"):
            for latest in pathlib.Path(nodes).glob("zero*/latest"):
                latest.write_text("global_step3")
            self.on_nodes(3, seen=3)
            self.assertIn("global_step5 on the nodes follows global_step4, but the newest is global_step3", self.logs("on_nodes", [0]))

    def test_7_tags_that_are_not_for_the_nodes(self):
        self.run_ranks("not_for_nodes", 2)
        self.assertRegex(self.logs("not_for_nodes", [0]), "No such file or directory.*continuing from the start")

    def test_8_the_guide(self):
        for steps in (2, 4):
            self.run_ranks("guide", 1, arguments=(steps,))


if __name__ == "__main__":
    unittest.main()
