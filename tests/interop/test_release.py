"""Trained, stripped, and loaded by the real transformers: the same logits as cairn-train's own."""

import glob
import os
import subprocess
import unittest

import numpy as np
import torch
from harness import TINY, Case, cairn, fingerprint, steps
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel


class Release(Case):
    def trained(self, *flags):
        self.train("run", (2, 1, 1), *flags, "--train-iters", "8", "--save", self.path("run"))
        return self.path("run")

    def our_logits(self, tokens, *flags):
        done = subprocess.run([os.environ["LOGITS_PROBE"], *TINY, "--train-iters", "1", "--load", self.path("run"), *flags],
                              input=tokens.numpy().tobytes(), capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr.decode()[-2000:])
        return torch.from_numpy(np.frombuffer(done.stdout, np.float32).reshape(len(tokens), -1).copy())

    def check_logits(self, *flags):
        run = self.trained(*flags)
        cairn("strip", run, self.path("hf"), "--dtype", "fp32")
        model = GPT2LMHeadModel.from_pretrained(self.path("hf"), dtype=torch.float32).eval()
        self.assertEqual(model.config.vocab_size, 61)
        tokens = torch.randint(61, (16,), generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            theirs = model(tokens[None]).logits[0]
        ours = self.our_logits(tokens, *flags)
        self.assertGreater(theirs.std().item(), 1e-2)
        self.assertLess((ours - theirs).abs().max().item(), 1e-4)

    def test_logits_of_a_tied_model_equal_transformers(self):
        self.check_logits()

    def test_logits_of_an_untied_model_equal_transformers(self):
        self.check_logits("--untie-embeddings-and-output-weights")

    def test_fp16_release_is_the_fp32_master_rounded(self):
        run = self.trained("--bf16")
        cairn("strip", run, self.path("fp32"), "--dtype", "fp32")
        cairn("strip", run, self.path("fp16"), "--dtype", "fp16")
        (full,) = glob.glob(self.path("fp32", "*.safetensors"))
        (half,) = glob.glob(self.path("fp16", "*.safetensors"))
        full, half = load_file(full), load_file(half)
        self.assertEqual(set(full), set(half))
        for name in full:
            self.assertTrue(torch.equal(full[name].half(), half[name]), name)

    def test_any_topology_gives_the_same_release_byte_for_byte(self):
        run = self.trained()
        cairn("reshape", run, self.path("other"), "--tp", "1", "--pp", "3", "--dp", "2")
        self.assertEqual(fingerprint(run), fingerprint(self.path("other")))
        cairn("reshape", self.path("other"), self.path("back"), "--tp", "2", "--pp", "1", "--dp", "1")
        for name in sorted(os.listdir(steps(run)[-1])):
            with open(os.path.join(steps(run)[-1], name), "rb") as a, open(os.path.join(steps(self.path("back"))[-1], name), "rb") as b:
                self.assertTrue(a.read() == b.read(), name)
        for source in ("run", "other"):
            cairn("strip", self.path(source), self.path(source + "-hf"), "--dtype", "fp16")
        with open(self.path("run-hf", "model.safetensors"), "rb") as a, open(self.path("other-hf", "model.safetensors"), "rb") as b:
            self.assertTrue(a.read() == b.read())


if __name__ == "__main__":
    unittest.main()
