"""`cairn.hf` in accelerate and the Trainer of transformers: saved, continued bit for bit, loaded by other ranks, sealed, archived and published."""

import os
import pathlib
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[2] / "python")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import cairn  # noqa: E402
import ranks  # noqa: E402


class HfTest(ranks.RanksCase):
    cases = "hf_cases"

    def test_1_a_training_resumes_bit_by_bit(self):
        self.run_ranks("whole", 2)
        self.run_ranks("again", 2)
        self.run_ranks("wider", 4)
        model, optimizer = (f"{self.directory}/whole/checkpoint-6/{part}" for part in ("pytorch_model_fsdp_0", "optimizer_0"))
        for run in (model, optimizer):
            cairn.run(["verify", run], capture=True)
            self.assertRegex(cairn.run(["ls", run], capture=True).stdout, r"6 +verified")
        cairn.run(["strip", model, f"{self.directory}/release", "--dtype", "bf16", "--format", "safetensors"], capture=True)

    def test_2_tied_weights_and_the_callback(self):
        self.run_ranks("tied", 2)
        self.assertRegex(cairn.run(["ls", f"{self.directory}/tied"], capture=True).stdout, r"4 +sealed")
        cairn.run(["verify", f"{self.directory}/tied/checkpoint-4"], capture=True)
        cairn.run(["archive", "verify", f"{self.directory}/store"], capture=True)
        with open(f"{self.directory}/tied/checkpoint-4/scheduler.pt", "ab") as file:
            file.write(b"x")
        with self.assertRaises(cairn.CairnError):
            cairn.run(["verify", f"{self.directory}/tied/checkpoint-4"], capture=True)

    def test_2_the_callback_without_fsdp(self):
        for name, world in (("alone", 1), ("ddp", 2), ("zero3", 2)):
            self.run_ranks("without_fsdp", world, arguments=(name,))
            cairn.run(["verify", f"{self.directory}/{name}/checkpoint-4"], capture=True)

    def test_3_accelerate_by_itself(self):
        self.run_ranks("loop", 2)

    def test_3_fsdp1(self):
        self.run_ranks("fsdp1", 2)
        self.run_ranks("fsdp1", 2)
        cairn.run(["verify", f"{self.directory}/fsdp1_3/optimizer_0"], capture=True)

    def test_4_unsupported_options_are_refused(self):
        self.run_ranks("other_format", 2)
        self.run_ranks("refuses", 1)

    def test_5_the_guide(self):
        for steps in (2, 4):
            self.run_ranks("guide", 2, arguments=(steps,))


if __name__ == "__main__":
    unittest.main()
