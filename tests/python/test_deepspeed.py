"""`cairn.deepspeed` with the real DeepSpeed: trainings that resume bit by bit, ranks that die, damage, and who else reads the files."""

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

    def test_7_the_guide(self):
        for steps in (2, 4):
            self.run_ranks("guide", 1, arguments=(steps,))


if __name__ == "__main__":
    unittest.main()
