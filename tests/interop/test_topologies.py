"""The same training on different topologies: equal losses in fp32, and learning in bf16 and fp16."""

import json
import os
import tempfile
import unittest

from harness import cairn, topology

# 3 layers do not divide by 2 stages, 1001 tokens not by TP; 8 or 4 micro-batches a step.
MODEL = ["--num-layers", "3", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "32",
         "--vocab-size", "1001", "--make-vocab-size-divisible-by", "8", "--mock-data", "--micro-batch-size", "1",
         "--global-batch-size", "8", "--lr", "3e-3", "--lr-warmup-iters", "2", "--lr-decay-style", "cosine",
         "--hidden-dropout", "0", "--attention-dropout", "0", "--threads", "1"]
STEPS = 20
TOLERANCE = 1e-5  # relative; fp32 sums in another order


def train(mesh, *flags):
    """Rows of --log-json."""
    with tempfile.TemporaryDirectory() as directory:
        log = os.path.join(directory, "log.json")
        cairn("train", *topology(*mesh), *MODEL, "--log-json", log, *flags)
        with open(log) as lines:
            return [json.loads(line) for line in lines]


class Topologies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.reference = train((1, 1, 1), "--train-iters", str(STEPS))

    def assert_equal_training(self, rows):
        self.assertEqual(len(rows), STEPS)
        for row, expected in zip(rows, self.reference):
            self.assertEqual(row["consumed_samples"], expected["consumed_samples"])
            self.assertAlmostEqual(row["loss"] / expected["loss"], 1, delta=TOLERANCE, msg=f"step {row['iteration']}")
            self.assertAlmostEqual(row["grad_norm"] / expected["grad_norm"], 1, delta=1e-4)

    def check(self, *where, flags=()):
        with self.subTest(tp_pp_dp_zero=where, flags=flags):
            self.assert_equal_training(train(where, "--train-iters", str(STEPS), *flags))

    def test_the_reference_learns(self):
        self.assertLess(self.reference[-1]["loss"], self.reference[0]["loss"] - 0.5)

    def test_tensor_parallel(self):
        self.check(2, 1, 1)
        self.check(2, 1, 1, flags=("--checkpoint-activations",))

    def test_pipeline(self):
        self.check(1, 2, 1)
        self.check(1, 3, 1, 1, flags=("--recompute-granularity", "full"))

    def test_data_parallel(self):
        self.check(1, 1, 2)
        self.check(1, 1, 2, 1, flags=("--checkpoint-activations",))
        self.check(1, 1, 2, 1, flags=("--reduce-bucket-size", "1000"))
        self.check(1, 1, 2, 0, flags=("--reduce-bucket-size", "1000"))

    def test_tensor_parallel_in_a_pipeline(self):
        self.check(2, 2, 1, 1)
        self.check(2, 2, 1, flags=("--checkpoint-activations",))

    def test_all_three_at_once(self):
        for zero in (0, 1):
            self.check(2, 2, 2, zero)
            self.check(2, 2, 2, zero, flags=("--checkpoint-activations",))

    def test_recomputation_alone_changes_no_bit(self):
        rows = train((1, 1, 1), "--train-iters", str(STEPS), "--checkpoint-activations")
        self.assertEqual([row["loss"] for row in rows], [row["loss"] for row in self.reference])

    def test_an_untied_output_layer(self):
        flags = ("--untie-embeddings-and-output-weights", "--train-iters", "5")
        one, many = train((1, 1, 1), *flags), train((2, 2, 1), *flags)
        for row, expected in zip(many, one):
            self.assertAlmostEqual(row["loss"] / expected["loss"], 1, delta=TOLERANCE)


class Precision(unittest.TestCase):
    def learns(self, *flags):
        rows = train((1, 2, 2, 1), "--train-iters", str(STEPS), *flags)
        self.assertLess(rows[-1]["loss"], rows[0]["loss"] - 0.5)
        return rows

    def test_bf16_learns(self):
        self.learns("--bf16", "--hidden-dropout", "0.1", "--attention-dropout", "0.1")

    def test_fp16_skips_overflows_and_learns(self):
        rows = self.learns("--fp16", "--initial-loss-scale", "16777216", "--hysteresis", "1")
        self.assertTrue(rows[0]["skipped"])
        self.assertFalse(rows[-1]["skipped"])
        self.assertLess(rows[-1]["loss_scale"], 16777216)


class BadInput(unittest.TestCase):
    def refused(self, mesh, *flags):
        return cairn("train", *topology(*mesh), *MODEL, "--train-iters", "1", *flags, status=2).stderr

    def test_sizes_that_do_not_fit_are_named(self):
        self.assertIn("4 attention heads are not a multiple of TP=3", self.refused((3, 1, 1)))
        self.assertIn("3 layers are fewer than PP=4", self.refused((1, 4, 1)))
        self.assertIn("--global-batch-size 8 is not a multiple of --micro-batch-size 1 * DP=3", self.refused((1, 1, 3)))
        self.assertIn("--seq-length 32 is more than", self.refused((1, 1, 1), "--max-position-embeddings", "16"))
        self.assertIn("3 ranks are not a multiple of TP*PP = 2*1",
                      self.refused((1, 1, 3), "--tensor-model-parallel-size", "2"))

    def test_a_wrong_flag_is_named(self):
        self.assertIn("--hidden-sizes", self.refused((1, 1, 1), "--hidden-sizes", "3"))


if __name__ == "__main__":
    unittest.main()
