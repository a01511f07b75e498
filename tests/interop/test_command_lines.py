"""Command lines that people ran in Megatron-LM and Megatron-DeepSpeed, their sizes shrunk: they start, save and resume.

From bigscience-workshop/bigscience, with the launcher's flags left out.
"""

import json
import os
import shutil
import unittest

from harness import Case, cairn, losses, steps

SHRUNK = ("--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 "
          "--vocab-size 257 --threads 1")

# experiments/gpt2-meg/meg_gpt2_base_n16.slurm
MEGATRON = ("--micro-batch-size 1 --global-batch-size 4 --lr 0.00015 --lr-decay-style cosine --min-lr 1.0e-5 --train-iters 4 "
            "--lr-decay-iters 3 --lr-warmup-fraction .01 --weight-decay 1e-2 --clip-grad 1.0 --fp16 "
            "--checkpoint-activations --log-interval 1 --save-interval 2 --eval-interval 2 --eval-iters 1 "
            "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --save {save} --load {save} "
            "--data-path {data} --data-impl mmap --split 949,50,1 --distributed-backend nccl")

# experiments/gpt2-meg-ds-3d/meg_ds_3d_gpt2_perf_n16.slurm
DEEPSPEED_3D = (MEGATRON + " --loss-scale 12 --deepspeed --deepspeed_config {json} --zero-stage 0 "
                "--deepspeed-activation-checkpointing")
DEEPSPEED_3D_JSON = {
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0,
    "prescale_gradients": True, "zero_optimization": {"stage": 0},
    "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1,
             "initial_scale_power": 12},
    "steps_per_print": 2000, "wall_clock_breakdown": False}

# experiments/gpt2-meg-ds-zero/meg_ds_zero_gpt2_perf_n16_offload.slurm: names of Megatron-LM 1.1.5; its buckets are the file's.
ZERO_3 = ("--model-parallel-size 2 --batch-size 2 --train-iters 4 --lr-decay-iters 3 --lr 1.5e-4 --lr-decay-style cosine "
          "--min-lr 1.0e-5 --weight-decay 1e-2 --clip-grad 1.0 --warmup 0.01 --fp16 --log-interval 1 --save-interval 2 "
          "--eval-interval 2 --eval-iters 1 --save {save} --load {save} --data-path {data} --data-impl mmap "
          "--split 949,50,1 --distributed-backend nccl --deepspeed --deepspeed_config {json} --zero-stage 3 "
          "--zero-reduce-bucket-size 50000000 --zero-allgather-bucket-size 5000000000 --zero-contigious-gradients "
          "--zero-reduce-scatter --checkpoint-activations --deepspeed-activation-checkpointing --checkpoint-num-layers=2 "
          "--partition-activations --checkpoint-in-cpu --synchronize-each-layer --contigious-checkpointing "
          "--profile-backward --memory-centric-tiled-linear --tile-factor=1 --split-transformers")
ZERO_3_JSON = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "steps_per_print": 10,
    "zero_optimization": {
        "stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True}, "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9, "stage3_prefetch_bucket_size": 921, "stage3_param_persitence_threshold": 320,
        "reduce_bucket_size": 1024, "contiguous_gradients": True},
    "gradient_clipping": 1.0,
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 10, "loss_scale_window": 1000, "hysteresis": 2,
             "min_loss_scale": 1},
    "wall_clock_breakdown": False, "zero_allow_untested_optimizer": False}

# train/tr11-176B-ml/tr11-176B-ml.slurm, BLOOM. 2 layers, the embedding and the output layer over 2 stages.
BLOOM = ("--optimizer adam --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 --lr 6e-5 --min-lr 6e-6 --lr-decay-style cosine "
         "--lr-decay-samples 200_000_000 --lr-warmup-samples 183_105 --clip-grad 1.0 --weight-decay 1e-1 "
         "--exit-duration-in-mins 5990 --pp-partition-method type:transformer|embedding --micro-batch-size 1 "
         "--rampup-batch-size 4 4 1_0 --global-batch-size 8 --train-samples 2_0 --init-method-std 0.0048 "
         "--embed-layernorm --sync-tp-duplicated-parameters --bf16 --seed 42 --position-embedding-type alibi "
         "--checkpoint-activations --abort-on-unmet-fused-kernel-constraints --kill-switch-path {save}.kill "
         "--pad-vocab-size-to 320 --log-interval 1 --save-interval 2 --eval-interval 2 --eval-iters 1 "
         "--tensorboard-dir {save}.events --tensorboard-queue-size 5 --log-timers-to-tensorboard "
         "--log-batch-size-to-tensorboard --log-validation-ppl-to-tensorboard --deepspeed --deepspeed_config {json} "
         "--zero-stage 0 --deepspeed-activation-checkpointing --tensor-model-parallel-size 2 "
         "--pipeline-model-parallel-size 2 --save {save} --load {save} --data-path {data} --split 949,50,1 --num-workers 2 "
         "--valid-num-workers 0 --data-impl mmap --distributed-backend nccl")
BLOOM_JSON = {
    "train_micro_batch_size_per_gpu": 1, "train_batch_size": 8, "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 0}, "bf16": {"enabled": True}, "steps_per_print": 2000, "wall_clock_breakdown": False}


class CommandLines(Case):
    def setUp(self):
        super().setUp()
        with open(self.path("a.jsonl"), "w") as texts:
            texts.writelines(json.dumps({"text": f"text {i} of two hundred, for three splits. "}) + "\n" for i in range(200))
        cairn("data", self.path("a.jsonl"), "--tokenizer", "bytes", "--output-prefix", self.path("p"))

    def start(self, name, line, ranks, *flags):
        """Runs a command line; returns the losses and what it printed."""
        words = (SHRUNK + " " + line.format(save=self.path(name), data=self.path("p"), json=self.path("ds.json"))).split()
        log = self.path(name + ".json")
        done = cairn("train", "--nproc-per-node", ranks, *words, "--log-json", log, *flags)
        return losses(log), done.stdout

    def expect_to_resume(self, name, line, ranks):
        """Starts, saves and leaves after 2 iterations; the same line, started again, trains the other 2."""
        first, said = self.start(name, line, ranks, "--exit-interval", "2")
        self.assertEqual(sorted(first), [1, 2], said)
        both, again = self.start(name, line, ranks)
        self.assertEqual(sorted(both), [1, 2, 3, 4], again)
        self.assertEqual([step[-1] for step in steps(self.path(name))], ["2", "4"])
        for flag in ("--data-impl", "--distributed-backend"):
            self.assertEqual(said.count(f" {flag} has no effect here: "), 1, said)
        return both, said

    def test_megatron_with_and_without_deepspeed(self):
        plain, _ = self.expect_to_resume("plain", MEGATRON, 4)
        with open(self.path("ds.json"), "w") as config:
            json.dump(DEEPSPEED_3D_JSON, config)
        together, said = self.expect_to_resume("together", DEEPSPEED_3D, 4)
        self.assertIn("loss scale: 4096.0", said)  # of the file, as in DeepSpeed
        self.assertIn("--loss-scale 12 has no effect: ", said)
        self.assertEqual(together[1], plain[1])  # later ones differ: a scale of 2^32 skips the first updates

    def test_files_next_to_the_data_are_named(self):
        words = SHRUNK.replace("--vocab-size 257", "").split() + ["--train-iters", "1", "--global-batch-size", "1"]
        done = cairn("train", *words, "--data-path", self.path("p"), status=2)
        self.assertIn("p.tokenizer, next to the data, has 257 tokens: give --vocab-size 257", done.stderr)
        done = cairn("train", *words, "--vocab-size", 257, "--data-path", self.path("p.bin"), status=2)
        self.assertRegex(done.stderr, r"p\.bin\.idx.*give the prefix of both files: .*/p\n$")

    def test_blooms_data(self):
        """tr11-176B-ml.slurm's flags of data: weighted splits in files, several validations, the tokenizer's vocabulary."""
        with open(self.path("b.jsonl"), "w") as texts:
            texts.writelines(json.dumps({"text": f"{i} other words" * (i % 5 + 1)}) + "\n" for i in range(100))
        cairn("data", self.path("b.jsonl"), "--tokenizer", self.path("p.tokenizer"), "--output-prefix", self.path("q"))
        p, q = self.path("p"), self.path("q")
        for name, groups in (("train", f'"train: 0.3 0:0.9 {p}, 0.7 0:0.8 {q}"'),
                             ("valid", f'"valid_p: 1 0.9:0.95 {p}" "valid_both: 1 0.9:0.95 {p}, 2 0.8:1 {q}"'),
                             ("test", f'"test_p: 1 0.95:1 {p}"')):
            with open(self.path(name + ".txt"), "w") as file:
                file.write(groups + "\n")

        def start(name, ranks, *flags, data=(), status=0):
            data = data or [word for part in ("train", "valid", "test")
                            for word in (f"--{part}-weighted-split-paths-path", self.path(part + ".txt"))]
            words = SHRUNK.replace("--vocab-size 257", "").split()
            log = self.path(name + ".json")
            done = cairn("train", "--nproc-per-node", ranks, *words, *data, "--tokenizer-type", "PretrainedFromHF",
                         "--tokenizer-name-or-path", self.path("p.tokenizer"), "--global-batch-size", "4",
                         "--train-samples", "1_6", "--seed", "42", "--hidden-dropout", "0", "--attention-dropout", "0",
                         "--lr", "0.01", "--eval-interval", "2", "--eval-iters", "1", "--save", self.path(name),
                         "--log-json", log, *flags, status=status)
            return losses(log) if os.path.exists(log) else {}, done.stdout + done.stderr

        whole, said = start("whole", 1)
        for line in ("valid_p loss at iteration 2", "valid_both loss at iteration 4", "test_p loss at iteration 4 on test set"):
            self.assertEqual(said.count(line + " |"), 1, said)
        start("cut", 2, "--tensor-model-parallel-size", "2", "--exit-interval", "2")
        shutil.copytree(self.path("cut"), self.path("other"))
        other = ["--data-path", p, "--split", "8,1,1"]
        _, said = start("other", 1, data=other, status=2)
        self.assertRegex(said, r"the training data are not the checkpoint's: it had \[0.3 of p, sequences 0 to 180, .*; 0.7 of q, "
                               r"sequences 0 to 80, .*\], this training has \[p, sequences 0 to 160, .*--allow-other-data")
        _, said = start("other", 1, "--allow-other-data", data=other)
        self.assertIn("continues at sample 8 (--allow-other-data)", said)
        with open(os.path.join(steps(self.path("other"))[-1], "manifest.json")) as manifest:
            self.assertEqual(json.load(manifest)["state"]["data_changes"], [2])
        moved, _ = start("cut", 2, "--zero-stage", "1")
        self.assertEqual(sorted(moved), [1, 2, 3, 4])
        for i in whole:
            self.assertAlmostEqual(moved[i], whole[i], delta=1e-5)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            self.assertTrue(os.path.exists(os.path.join(steps(self.path("cut"))[-1], file)))

        again, said = start("again", 1, "--load", self.path("whole"), "--reset-progress")
        self.assertEqual(sorted(again), [1, 2, 3, 4], said)
        self.assertLess(again[1], whole[1] - 0.1)  # the same samples, with the weights of the end
        blend, _ = start("blend", 1, data=["--data-path", "0.3", p, "0.7", q, "--split", "8,1,1"])
        self.assertEqual(sorted(blend), [1, 2, 3, 4])
        self.assertNotEqual(blend[1], whole[1])
        done = cairn("train", *SHRUNK.split(), "--data-path", "0.3", p, "x", q, "--train-iters", "1", status=2)
        self.assertIn("1 of 2 datasets have a weight", done.stderr)

    def test_reset_positions_and_attention_at_documents(self):
        """The documents of a sample, apart on one rank as on four of a pipeline, or together."""
        cairn("data", self.path("a.jsonl"), "--tokenizer", "bytes", "--append-eod", "--output-prefix", self.path("d"))

        packed = ("--data-path", self.path("d"))

        def start(name, ranks, *flags, data=packed, status=0):
            log = self.path(name + ".json")
            done = cairn("train", "--nproc-per-node", ranks, *SHRUNK.split(), *data, "--split", "1,0,0", "--eval-iters", "0",
                         "--global-batch-size", "4", "--train-iters", "4", "--hidden-dropout", "0", "--attention-dropout", "0",
                         "--seq-length", "64", "--max-position-embeddings", "64", "--init-method-std", "0.2", "--lr", "0.01",
                         "--log-json", log, *flags, status=status)
            return losses(log) if status == 0 else done.stderr

        resets = ("--reset-position-ids", "--reset-attention-mask")
        apart, together = start("apart", 1, *resets), start("together", 1)
        cut = start("cut", 4, *resets, "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2",
                    "--sequence-parallel", "--recompute-activations")
        for i in range(1, 5):
            self.assertAlmostEqual(cut[i], apart[i], delta=1e-5)
            self.assertNotAlmostEqual(together[i], apart[i], delta=1e-4)
        said = start("none", 1, "--reset-attention-mask", data=("--mock-data",), status=2)
        self.assertIn("--reset-attention-mask needs the token that ends a document, but no tokenizer is named", said)

    def test_zero_3_with_offload(self):
        with open(self.path("ds.json"), "w") as config:
            json.dump(ZERO_3_JSON, config)
        _, said = self.expect_to_resume("zero-3", ZERO_3, 4)
        self.assertIn("--reduce-bucket-size 50000000 has no effect: ", said)
        self.assertIn("loss scale: 1024.0", said)

    def test_bloom(self):
        with open(self.path("ds.json"), "w") as config:
            json.dump(BLOOM_JSON, config)
        _, said = self.expect_to_resume("bloom", BLOOM, 4)
        self.assertIn("--zero-stage 0 is 1 here", said)
        self.assertIn("global batch size:     4", said)  # the ramp


if __name__ == "__main__":
    unittest.main()
