"""The same training on different topologies: equal losses in fp32, and learning in bf16 and fp16.

tests/runtime/mpi_training.cc compares more of them with another implementation, on up to 4 ranks. Here are 8 ranks, layers
that do not divide by the stages, and the flags.
"""

import json
import os
import tempfile
import unittest

from harness import Case, cairn, fingerprint, steps, topology

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

    def test_the_reference_learns(self):
        self.assertLess(self.reference[-1]["loss"], self.reference[0]["loss"] - 0.5)

    def test_every_mesh_gives_the_same_losses(self):
        recompute, small = "--checkpoint-activations", ("--reduce-bucket-size", "1000")
        tiles = ("--memory-centric-tiled-linear", "--tile-factor", "3")
        for mesh, *flags in (
                ((2, 1, 1), recompute), ((1, 2, 1),), ((1, 3, 1, 1), "--recompute-granularity", "full"), ((1, 1, 2, 0), *small),
                ((1, 1, 2, 1), *small, recompute), ((1, 1, 2, 2),), ((1, 1, 2, 3), recompute), ((2, 1, 2, 3), recompute, *tiles),
                ((1, 1, 1, 0), *tiles), ((2, 2, 1, 1), recompute), ((2, 2, 2, 0), recompute), ((2, 2, 2, 1),)):
            with self.subTest(tp_pp_dp_zero=mesh, flags=flags):
                self.assert_equal_training(train(mesh, "--train-iters", str(STEPS), *flags))

    def test_the_zero_stage_may_change_at_each_resume(self):
        small = ("--stage3-param-persistence-threshold", "100", "--stage3-max-reuse-distance", "0",
                 "--stage3-prefetch-bucket-size", "60000", "--reduce-bucket-size", "30000")
        tiles = ("--memory-centric-tiled-linear", "--tile-factor", "4")
        legs = [((1, 1, 2, 3), 5, (*small, *tiles)), ((1, 1, 1, 0), 8, ("--offload-optimizer",)), ((2, 1, 2, 2), 12, (*small, *tiles)),
                ((1, 2, 2, 1), 15, ()), ((2, 1, 2, 3), STEPS, ("--checkpoint-activations", "--offload-optimizer",
                                                               "--offload-param", *small))]
        rows = []
        with tempfile.TemporaryDirectory() as directory:
            for mesh, until, flags in legs:
                rows += train(mesh, "--train-iters", str(STEPS), "--exit-interval", str(until), "--save", directory,
                              *flags)
            cairn("verify", directory)
        self.assert_equal_training(rows)

    def test_recomputation_changes_no_bit(self):
        rows = train((1, 1, 1), "--train-iters", str(STEPS), "--checkpoint-activations")
        self.assertEqual([row["loss"] for row in rows], [row["loss"] for row in self.reference])

    def test_an_untied_output_layer(self):
        flags = ("--untie-embeddings-and-output-weights", "--train-iters", "5")
        one, many = train((1, 1, 1), *flags), train((2, 2, 1), *flags)
        for row, expected in zip(many, one):
            self.assertAlmostEqual(row["loss"] / expected["loss"], 1, delta=TOLERANCE)


class Schedules(Case):
    """Two stages with two layers each; 8 micro-batches per step."""

    model = [*MODEL, "--num-layers", "4", "--train-iters", "6"]
    dropout = ["--hidden-dropout", "0.1", "--attention-dropout", "0.1"]
    interleaved = ["--num-layers-per-virtual-pipeline-stage", "1"]

    def losses(self, name, *flags, mesh=(1, 2, 1)):
        return self.train(name, mesh, *flags, model=self.model)

    def assert_close(self, found, wanted):
        self.assertEqual(found.keys(), wanted.keys())
        for step in wanted:
            self.assertAlmostEqual(found[step] / wanted[step], 1, delta=1e-6, msg=f"step {step}")

    def test_gpipe_changes_no_bit(self):
        self.assertEqual(self.losses("gpipe", "--pipeline-schedule", "gpipe", *self.dropout),
                         self.losses("1f1b", *self.dropout))

    def test_uneven_runs_of_layers_change_no_loss(self):
        self.assert_close(self.losses("uneven", "--num-layers", "5", "--num-virtual-stages-per-pipeline-rank", "2",
                                      "--layers-per-stage", "1", "1", "1", "2"),
                          self.losses("even", "--num-layers", "5"))

    def test_messages_in_shares_change_no_bit(self):
        flags = (*self.interleaved, *self.dropout)
        self.assertEqual(self.losses("shares", "--scatter-gather-tensors-in-pipeline", *flags, mesh=(2, 2, 1)),
                         self.losses("whole", *flags, mesh=(2, 2, 1)))

    def test_an_interleaved_training_resumes_interleaved_and_plain(self):
        wanted = self.losses("plain")
        whole = self.losses("whole", *self.interleaved, "--save", self.path("run"), "--save-interval", "3")
        self.assert_close(whole, wanted)
        third = steps(self.path("run"))[0]
        last = {step: loss for step, loss in whole.items() if step > 3}
        self.assertEqual(self.losses("again", *self.interleaved, "--load", third), last)
        self.assert_close(self.losses("resumed-plain", "--load", third), last)
        cairn("reshape", third, self.path("plain-step"), "--virtual-stages", "1")
        self.assertEqual(fingerprint(self.path("plain-step")), fingerprint(third))
        cairn("reshape", self.path("plain-step"), self.path("back"), "--virtual-stages", "2")
        self.assertEqual(self.losses("reshaped", *self.interleaved, "--load", self.path("back")), last)

    def test_with_dropout_it_resumes_to_the_bit(self):
        flags = (*self.interleaved, *self.dropout, "--checkpoint-activations", "--bf16")
        whole = self.losses("whole", *flags, "--save", self.path("run"), "--save-interval", "3", mesh=(1, 2, 2, 1))
        again = self.losses("again", *flags, "--load", steps(self.path("run"))[0], mesh=(1, 2, 2, 1))
        self.assertEqual(again, {step: loss for step, loss in whole.items() if step > 3})


class Precision(unittest.TestCase):
    def learns(self, *flags):
        rows = train((1, 1, 2, 1), "--train-iters", str(STEPS), *flags)
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

    def test_inconsistent_sizes_are_named(self):
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
