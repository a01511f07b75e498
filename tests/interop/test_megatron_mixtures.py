"""Mixtures of experts that megatron-core trained on the CPU: cairn reads its torch_dist, and megatron-core loads every key of what
cairn writes and continues with the same losses, from the same states bit for bit."""

import glob
import importlib.util
import json
import os
import unittest

import torch
from harness import Case, cairn, fingerprint
from safetensors.torch import load_file
from test_written_formats import run_writer

DONE, ITERATIONS = 3, 6
TE = {"keys": "te"}  # names of norms as in every run on GPUs
# {name: (the training, the family that computes it)}
TRAINED = {
    "stacked": (dict(world=2, tp=1, pp=1, ep=2, etp=1) | TE, "MixtralForCausalLM"),
    "by_layer": (dict(world=4, tp=2, pp=1, ep=2, etp=1, qkv_bias=True, mixture=dict(
        moe_layer_freq=[0, 1, 1, 1], moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True,
        moe_router_topk_scaling_factor=1.5, moe_shared_expert_intermediate_size=48)) | TE, "Glm4MoeForCausalLM"),
    "pipeline": (dict(world=2, tp=1, pp=2, ep=1, etp=1, zero=0, qk_norm=True), "Qwen3MoeForCausalLM"),
}
LOST = dict(world=2, tp=2, pp=1, ep=1, etp=2, lost=True) | TE  # half of each expert
# Loaded at another topology, by the names of Transformer Engine.
OTHER = {"pipeline": (["--zero", 1, "--pp", 1, "--dp", 2], dict(world=2, tp=1, pp=1, ep=1, etp=1, qk_norm=True) | TE)}


@unittest.skipIf(importlib.util.find_spec("megatron") is None, "megatron-core is not installed")
class MegatronMixturesTest(Case):
    def test_trainings_continue(self):
        generator = torch.Generator().manual_seed(1)
        with open(self.path("batches"), "w") as file:
            json.dump(torch.randint(61, (ITERATIONS, 8, 17), generator=generator).tolist(), file)
        common = {"done": DONE, "batches": self.path("batches")}
        self.run_jobs({name: spec | common for name, (spec, _) in TRAINED.items()} | {"lost": LOST | common})
        jobs = {}
        for name, (spec, family) in TRAINED.items():
            with self.subTest(name):
                source, native, back = (self.path(name + end) for end in ("", "-native", "-in"))
                told = cairn("convert", source, native, "--to", "native")
                self.assertNotIn("left behind", told.stderr)
                self.check_weights(name, family)
                flags, target = OTHER.get(name, ([], spec))
                cairn("convert", native, back, "--to", "torch-dist", *flags)
                self.assertEqual(fingerprint(back), fingerprint(source))
                jobs[name + "-on"] = target | common | {"load": os.path.join(back, f"iter_{DONE:07}")}
        self.run_jobs(jobs)
        for name in TRAINED:
            theirs, ours = self.losses(name), self.losses(name + "-on")
            self.assertEqual(len(theirs), ITERATIONS - DONE)
            for a, b in zip(theirs, ours):
                self.assertLess(abs(a - b), 1e-3 if name in OTHER else 1e-7, (name, theirs, ours))
            if name not in OTHER:
                self.check_states(name)
        self.check_lost()
        for format in ("megatron", "megatron-deepspeed"):
            refused = cairn("convert", self.path("stacked-native"), self.path("no"), "--to", format, status=2)
            self.assertIn(f"which {format} cannot hold yet", refused.stderr)

    def check_lost(self):
        for verb, status in (("verify", 1), ("convert", 2)):
            more = (self.path("never"), "--to", "native") if verb == "convert" else ()
            refused = cairn(verb, self.path("lost"), *more, status=status)
            self.assertRegex(refused.stdout + refused.stderr, r"linear_fc\d\.weight: its experts together have shape")
        self.assertFalse(os.path.exists(self.path("never")))

    def losses(self, name):
        with open(self.path(name + "-losses.json")) as file:
            return json.load(file)

    def run_jobs(self, jobs):
        run_writer(self, "megatron_mixtures.py", json.dumps(jobs))

    def check_states(self, name):
        for first, second in zip(*(sorted(glob.glob(self.path(run + "-known-*"))) for run in (name, name + "-on"))):
            theirs, ours = (torch.load(path, weights_only=False)["states"] for path in (first, second))
            self.assertEqual(set(theirs), {"weight", "master", "exp_avg", "exp_avg_sq"})
            for role, tensors in theirs.items():
                self.assertEqual(set(tensors), set(ours[role]))
                for tensor, value in tensors.items():
                    self.assertTrue(torch.equal(value, ours[role][tensor]), (name, role, tensor))

    def check_weights(self, name, family):
        """Each expert and each router of Megatron's ranks is in the release, in a plain loop."""
        release = self.path(name + "-hf")
        cairn("convert", self.path(name), release, "--to", "hf")
        with open(os.path.join(release, "config.json")) as file:
            self.assertEqual(json.load(file)["architectures"], [family])
        held, seen = {}, set()
        for file in glob.glob(os.path.join(release, "*.safetensors")):
            held |= load_file(file)
        mixtral = family.startswith("Mixtral")
        gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        ranks = [torch.load(path, weights_only=False) for path in glob.glob(self.path(name + "-known-*"))]
        experts_of_rank = 4 // (1 + max(rank["ep"] for rank in ranks))
        for rank in ranks:
            for tensor, value in rank["states"]["weight"].items():
                _, _, layer, *rest = tensor.split(".") if ".mlp." in tensor else ("", "", "")
                module = f"model.layers.{int(layer or 0) + rank['first_layer']}.{'block_sparse_moe' if mixtral else 'mlp'}"
                if rest[1:3] == ["experts", "local_experts"]:
                    one = f"{module}.experts.{int(rest[3]) + rank['ep'] * experts_of_rank}"
                    names = [f"{one}.{gate}.weight", f"{one}.{up}.weight"] if rest[4] == "linear_fc1" else [f"{one}.{down}.weight"]
                elif rest[1:2] == ["router"]:
                    names = [f"{module}.gate.{'weight' if rest[2] == 'weight' else 'e_score_correction_bias'}"]
                else:
                    continue
                self.assertTrue(torch.equal(value, torch.cat([held[one] for one in names])), tensor)
                seen.update(names)
        self.assertEqual(seen, {key for key in held if ".experts." in key or ".gate.weight" in key or "e_score" in key})


if __name__ == "__main__":
    unittest.main()
