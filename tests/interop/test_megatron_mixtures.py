"""Mixtures of experts that megatron-core trained on the CPU: cairn reads its torch_dist, and megatron-core loads every key of what
cairn writes and continues with the same losses, from the same states bit for bit."""

import dataclasses
import glob
import importlib.util
import json
import os
import pickle
import re
import sys
import unittest

import torch
from harness import Case, cairn, fingerprint
from safetensors.torch import load_file, save_file
from test_written_formats import run_writer

DONE, ITERATIONS = 3, 6
TE = {"keys": "te"}  # names of norms as in every run on GPUs
BUCKETS = {"sharding": "dp_reshardable"}  # the default of megatron-core's optimizer
LEGACY = {"legacy": True}
# {name: (the training, the family that computes it)}
TRAINED = {
    "stacked": (dict(world=4, tp=2, pp=1, ep=2, etp=2, legacy=True) | TE, "MixtralForCausalLM"),
    "by_layer": (dict(world=4, tp=2, pp=1, ep=2, etp=1, legacy=True, qkv_bias=True, mixture=dict(
        moe_layer_freq=[0, 1, 1, 1], moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True,
        moe_router_topk_scaling_factor=1.5, moe_shared_expert_intermediate_size=48)) | TE, "Glm4MoeForCausalLM"),
    "latent": (dict(world=4, tp=2, pp=2, stages=[1, 3], ep=2, etp=1, qk_norm=True, mtp=1, latent={}, mixture=dict(
        moe_layer_freq=[0, 1, 1, 1], moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True,
        moe_router_topk_scaling_factor=1.5, moe_shared_expert_intermediate_size=48, moe_router_num_groups=2, moe_router_group_topk=1),
        legacy=True) | TE | BUCKETS, "DeepseekV3ForCausalLM"),
    "latent_lite": (BUCKETS | dict(world=2, tp=1, pp=1, ep=2, etp=1, qk_norm=True, lr=1e-5, latent=dict(
        q_lora_rank=None, rope_type="yarn", rotary_scaling_factor=4.0, original_max_position_embeddings=8, mscale=0.7, mscale_all_dim=0.7),
        mixture=dict(moe_router_pre_softmax=True, moe_shared_expert_intermediate_size=48)), "DeepseekV2ForCausalLM"),
    "pipeline": (dict(world=4, tp=1, pp=2, ep=2, etp=1, zero=0, qk_norm=True, legacy=True), "Qwen3MoeForCausalLM"),
}
GATHERED = dict(world=2, tp=1, pp=1, ep=1, etp=1, sharding="dp_zero_gather_scatter")  # the older form, whose tensors are in pickles
LOST = dict(world=2, tp=1, pp=1, ep=1, etp=2, lost=True, legacy=True) | TE  # half of each expert
# Loaded at another topology, by the names of Transformer Engine.
OTHER = {
    "pipeline": (["--zero", 1, "--pp", 1, "--dp", 4], dict(pp=1, zero=1) | TE),
    "latent_lite": (["--tp", 2, "--dp", 1, "--etp", 1], dict(tp=2) | TE)}
LONG = "CAIRN_LONG" in os.environ
PLAIN = {f"self_attention.{core}.weight": f"self_attn.{release}" for core, release in (
    ("linear_q_down_proj", "q_a_proj"), ("linear_q_up_proj", "q_b_proj"), ("linear_kv_down_proj", "kv_a_proj_with_mqa"),
    ("linear_kv_up_proj", "kv_b_proj"), ("q_layernorm", "q_a_layernorm"), ("kv_layernorm", "kv_a_layernorm"))}
PLAIN_MTP = {"enorm.weight": "enorm", "hnorm.weight": "hnorm", "eh_proj.weight": "eh_proj", "final_layernorm.weight": "shared_head.norm"}
# {name: (the model, [(TP, PP, DP, EP, ETP, more)])}: saved at each topology after the first, which is also the last.
STACKED, BY_LAYER = TE | {"mixture": dict(num_experts=8)}, TE | {"qkv_bias": True, "mixture": dict(
    num_experts=8, moe_layer_freq=2, moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True,
    moe_shared_expert_intermediate_size=48)}
# Norms are all 1 in bf16 and differ in fp32: in buckets only their order tells them apart.
ALIKE = dict(lr=1e-5, qk_norm=True, mtp=1, latent=dict(q_lora_rank=8), mixture=dict(
    moe_layer_freq=[0, 1, 1, 1], moe_shared_expert_intermediate_size=48, moe_shared_expert_gate=True))
TOPOLOGIES = {
    "long": {
        "stacked": (STACKED, [
            (1, 1, 2, 2, 1, {}), (2, 1, 2, 2, 2, BUCKETS), (2, 1, 2, 4, 1, LEGACY), (1, 2, 4, 4, 1, LEGACY | BUCKETS | {"stages": [1, 3]}),
            (1, 1, 4, 2, 2, BUCKETS), (2, 2, 2, 2, 1, {"prefixes": True}), (1, 4, 2, 2, 1, BUCKETS), (2, 1, 4, 4, 2, {}),
            (1, 1, 1, 1, 1, BUCKETS | LEGACY), (2, 2, 2, 4, 1, BUCKETS), (2, 1, 4, 8, 1, {})]),
        "by_layer": (BY_LAYER, [
            (2, 1, 2, 2, 1, BUCKETS), (1, 3, 2, 2, 1, BUCKETS | {"stages": [1, 2, 1]}), (2, 1, 1, 1, 2, LEGACY), (1, 1, 8, 8, 1, BUCKETS),
            (2, 2, 1, 2, 1, {}), (1, 1, 8, 4, 2, {"prefixes": True}), (1, 2, 2, 1, 1, BUCKETS), (2, 2, 2, 2, 2, {"stages": [3, 1]}),
            (2, 1, 2, 1, 2, BUCKETS), (1, 1, 4, 4, 1, {})]),
        "alike": (ALIKE, [(2, 2, 1, 2, 1, BUCKETS | LEGACY | {"stages": [1, 3]}), (2, 1, 2, 2, 1, BUCKETS), (1, 1, 1, 1, 1, BUCKETS | LEGACY)])},
    "short": {
        "by_layer": (BY_LAYER, [(2, 1, 2, 2, 2, {"prefixes": True}), (1, 2, 4, 4, 1, BUCKETS), (1, 1, 2, 1, 1, BUCKETS | LEGACY)])},
}


class Trainings(Case):
    iterations = ITERATIONS

    def setUp(self):
        super().setUp()
        generator = torch.Generator().manual_seed(1)
        with open(self.path("batches"), "w") as file:
            json.dump(torch.randint(61, (self.iterations, 8, 17), generator=generator).tolist(), file)
        self.common = {"done": DONE, "batches": self.path("batches")}

    def losses(self, name):
        with open(self.path(name + "-losses.json")) as file:
            return json.load(file)

    def run_jobs(self, jobs):
        run_writer(self, "megatron_mixtures.py", json.dumps(jobs))

    def states(self, name):
        return assembled([torch.load(path, weights_only=False) for path in sorted(glob.glob(self.path(name + "-known-*")))])

    def check_states(self, name, other):
        wanted, states = self.states(name), self.states(other)
        self.assertEqual(set(wanted), {"weight", "master", "exp_avg", "exp_avg_sq"})
        for role, tensors in wanted.items():
            self.assertEqual(set(tensors), set(states[role]))
            for tensor, value in tensors.items():
                self.assertTrue(torch.equal(value, states[role][tensor]), (other, role, tensor))


@unittest.skipIf(importlib.util.find_spec("megatron") is None, "megatron-core is not installed")
class MegatronTopologiesTest(Trainings):
    iterations = DONE + (10 if LONG else 2)

    def test_trainings_move_from_topology_to_topology(self):
        chains, jobs = TOPOLOGIES["long" if LONG else "short"], {}
        for name, (model, topologies) in chains.items():
            for number, (tp, pp, dp, ep, etp, more) in enumerate(topologies + topologies[:1]):
                spec = model | more | self.common | dict(world=tp * pp * dp, tp=tp, pp=pp, ep=ep, etp=etp)
                if number > 0:
                    moved = self.path(f"{name}{number}-in")
                    stages = ["--layers-per-stage", ",".join(map(str, more["stages"]))] if "stages" in more else []
                    flags = ["--zero", 1, "--tp", tp, "--pp", pp, "--dp", dp, "--ep", ep, "--etp", etp, *stages,
                             "--transformer-impl", "transformer_engine" if "keys" in model else "local"]
                    before = [os.environ["CAIRN"], "convert", self.path(f"{name}{number - 1}"), moved, "--to", "torch-dist", *flags]
                    spec |= {"before": list(map(str, before)), "load": os.path.join(moved, f"iter_{DONE:07}"), "save": True}
                jobs[f"{name}{number}"] = spec
        self.run_jobs(jobs)
        for name, (_, topologies) in chains.items():
            first = self.losses(f"{name}0")
            for number in range(1, len(topologies) + 1):
                here = f"{name}{number}"
                self.assertEqual(fingerprint(self.path(here + "-in")), fingerprint(self.path(f"{name}0")))
                self.check_states(f"{name}0", here)
                if os.path.exists(self.path(here + "-legacy")):
                    self.assertEqual(fingerprint(self.path(here + "-legacy")), fingerprint(self.path(f"{name}0")))
                losses = self.losses(here)
                self.assertLess(max(abs(a - b) for a, b in zip(first, losses)), 2e-2, (first, losses))
            self.assertEqual(first, losses)  # where it began

    def test_trainings_of_an_older_version_continue(self):
        """Its optimizer's state is in cells, as fully_sharded_model_space."""
        older = os.path.join(sys.prefix, "older")
        if not os.path.isdir(os.path.join(older, "megatron")):
            self.skipTest("no older megatron-core is installed")
        jobs = {name: model | self.common | dict(world=4, tp=tp, pp=pp, ep=2, etp=tp, sharding="fully_sharded_model_space")
                for name, model, tp, pp in (("stacked", STACKED, 2, 1), ("by_layer", BY_LAYER, 1, 2)) if LONG or name == "stacked"}
        run_writer(self, "megatron_mixtures.py", json.dumps(jobs), path=older)
        loads = {}
        for name, spec in jobs.items():
            cairn("convert", self.path(name), self.path(name + "-in"), "--to", "torch-dist", "--tp", 1, "--pp", 1, "--dp", 4, "--ep", 4,
                  "--etp", 1)
            loads[name + "-on"] = {key: value for key, value in spec.items() if key != "sharding"} | dict(
                tp=1, pp=1, ep=4, etp=1, load=self.path(name + "-in", f"iter_{DONE:07}"))
        self.run_jobs(loads)
        for name in jobs:
            self.check_states(name, name + "-on")


def assembled(ranks):
    """{role: {name: the whole tensor}} of what each rank has, in a plain loop."""
    pieces = {}
    for rank in ranks:
        for role, tensors in rank["states"].items():
            for name, value in tensors.items():
                parts = name.split(".")
                if parts[:2] == ["decoder", "layers"]:
                    parts[2] = str(int(parts[2]) + rank["first_layer"])
                experts = "local_experts" in parts
                if experts:
                    at = parts.index("local_experts") + 1
                    local = 1 + max(int(other.split("local_experts.")[1].split(".")[0]) for other in tensors if "local_experts" in other)
                    parts[at] = str(int(parts[at]) + rank["ep"] * local)
                pieces.setdefault(role, {}).setdefault(".".join(parts), {})[rank["etp" if experts else "tp"]] = value, rank["cut"].get(
                    name, -1)
    return {role: {name: joined(name, [held[at] for at in sorted(held)]) for name, held in tensors.items()}
            for role, tensors in pieces.items()}


def joined(name, held):
    values, dim = [value for value, _ in held], held[0][1]
    if dim < 0:
        return values[0]
    halves = 2 if "linear_fc1.weight" in name else 1  # gate and up are cut each
    return torch.cat([torch.cat([value.chunk(halves, dim)[half] for value in values], dim) for half in range(halves)], dim)


def release_of(directory):
    held = {}
    for file in glob.glob(os.path.join(directory, "*.safetensors")):
        held |= load_file(file)
    return held


def experts_of(model):
    """{the name of the module of experts: {"linear_fc1": [each expert's weight]}}, which are taken out."""
    found = {}
    for key in [key for key in model if ".local_experts." in key]:
        value, (module, rest) = model.pop(key), key.split("local_experts.")
        number, linear, kind = rest.split(".")
        if kind == "weight":
            found.setdefault(module, {}).setdefault(linear, {})[int(number)] = value
    return {module: {linear: [held[i] for i in sorted(held)] for linear, held in of.items()} for module, of in found.items()}


def one_by_one(state):
    """As it is."""


def grouped(state):
    model = state["model"]
    for module, of in experts_of(model).items():
        model |= {f"{module}{linear}.weight{i}": value for linear, held in of.items() for i, value in enumerate(held)}


def input_major(state):
    """GroupedMLP's memory is [experts, in, out] under another shape. So are its optimizer's masters and moments."""
    names = [key for key in state["model"] if ".local_experts." in key and key.endswith("weight")]
    state["model"] |= stacks_of(state["model"])
    if not isinstance(state["optimizer"], list) or "fp32_from_fp16_params" not in state["optimizer"][1]:
        return
    experts = dict(state["optimizer"][1])
    (masters,), inner = experts["fp32_from_fp16_params"], experts["optimizer"]
    roles = {"master": masters} | {role: [inner["state"][i][role] for i in range(len(masters))] for role in ("exp_avg", "exp_avg_sq")}
    roles = {role: list(stacks_of(dict(zip(names, held, strict=True))).values()) for role, held in roles.items()}
    experts["fp32_from_fp16_params"] = [roles.pop("master")]
    experts["optimizer"] = inner | {"state": {i: dict(zip(roles, held)) for i, held in enumerate(zip(*roles.values()))},
                                    "param_groups": [inner["param_groups"][0] | {"params": list(range(len(roles["exp_avg"])))}]}
    state["optimizer"] = [state["optimizer"][0], experts]


def stacks_of(tensors):
    """{name: the input-major tensor of all experts of a module}; theirs are taken out of `tensors`."""
    found = {}
    for module, of in experts_of(tensors).items():
        hidden = of["linear_fc1"][0].shape[1]
        for name, linear, shape in (("weight1", "linear_fc1", (hidden, -1)), ("weight2", "linear_fc2", (-1, hidden))):
            found[module + name] = torch.stack([value.t() for value in of[linear]]).contiguous().view(*shape)
    return found


@unittest.skipIf(importlib.util.find_spec("megatron") is None, "megatron-core is not installed")
class MegatronMixturesTest(Trainings):
    def test_trainings_continue(self):
        common = self.common
        self.run_jobs({name: spec | common for name, (spec, _) in TRAINED.items()} | {"lost": LOST | common, "gathered": GATHERED | common})
        jobs = {}
        for name, (spec, family) in TRAINED.items():
            with self.subTest(name):
                source, native, back = (self.path(name + end) for end in ("", "-native", "-in"))
                told = cairn("convert", source, native, "--to", "native")
                self.assertNotIn("left behind", told.stderr)
                self.check_weights(name, family)
                flags, target = OTHER.get(name, ([], {}))
                cairn("convert", native, back, "--to", "torch-dist", *flags)
                self.assertEqual(fingerprint(back), fingerprint(source))
                jobs[name + "-on"] = spec | target | common | {"load": os.path.join(back, f"iter_{DONE:07}")}
        self.run_jobs(jobs)
        for name in TRAINED:
            theirs, ours = self.losses(name), self.losses(name + "-on")
            self.assertEqual(len(theirs), ITERATIONS - DONE)
            for a, b in zip(theirs, ours):
                self.assertLess(abs(a - b), 1e-3 if name in OTHER else 1e-7, (name, theirs, ours))
            self.check_states(name, name + "-on")
            if TRAINED[name][0].get("legacy"):
                self.check_legacy(name)
            if name.startswith("latent"):
                self.assertAlmostEqual(self.transformers_loss(name), theirs[0], delta=5e-4)
        self.check_copies("latent")
        self.check_lost()
        self.check_lost_states()
        self.check_whole()
        for format in ("megatron", "megatron-deepspeed"):
            refused = cairn("convert", self.path("stacked-native"), self.path("no"), "--to", format, status=2)
            self.assertIn(f"which {format} cannot hold yet", refused.stderr)

    def check_lost(self):
        for verb, status in (("verify", 1), ("convert", 2)):
            more = (self.path("never"), "--to", "native") if verb == "convert" else ()
            refused = cairn(verb, self.path("lost"), *more, status=status)
            self.assertRegex(refused.stdout + refused.stderr, r"linear_fc\d\.weight: its experts together have shape")
        told = cairn("convert", self.path("lost-legacy"), self.path("never"), "--to", "native", status=2).stderr
        self.assertIn("experts are cut in ETP=2, and TP=1; such mp_rank_* directories lack parts", told)
        self.assertFalse(os.path.exists(self.path("never")))

    def check_lost_states(self):
        """One of the files of a rank lacks the state of an optimizer, or one of its buckets is missing."""
        rank = glob.glob(self.path("stacked-legacy", "*", "mp_rank_00_000", "distrib_optim.pt"))[0]
        states = torch.load(rank, weights_only=False)
        for kept, whose in (([None, states[1]], "other weights"), ([states[0], None], "experts")):
            torch.save(kept, rank)
            self.check_refused("stacked-legacy", f"no file has the optimizer's state of the {whose} in mp_rank_00_000/")
        index = glob.glob(self.path("latent", "*", ".metadata"))[0]
        with open(index, "rb") as file:
            metadata = pickle.load(file)
        for key in [key for key in metadata.state_dict_metadata if "chained_1.optimizer.distributed.dp_group_idx_3.gbuf" in key]:
            del metadata.state_dict_metadata[key]
            for item in [item for item in metadata.storage_data if item.fqn == key]:
                del metadata.storage_data[item]
        with open(index, "wb") as file:
            pickle.dump(metadata, file)
        self.check_refused("latent", "it has 1 buffers of experts for ETP=1 and EP=2")

    def check_whole(self):
        """An optimizer in a form that is not read, and a parameter that no file has."""
        self.check_refused("gathered", "the optimizer has a form that is not read: optimizer.distributed.dp_group_idx_0.param_state")
        self.assertIn("--allow optimizer", cairn("verify", self.path("gathered"), status=2).stderr)
        told = cairn("convert", self.path("gathered"), self.path("gathered-n"), "--to", "native", "--allow", "optimizer").stdout
        self.assertNotIn("exp_avg ", told)
        cairn("strip", self.path("gathered"), self.path("gathered-r"), "--dtype", "bf16")
        index = glob.glob(self.path("gathered", "*", ".metadata"))[0]
        with open(index, "rb") as file:
            metadata = pickle.load(file)
        for lost, why in (("decoder.final_layernorm.weight", "final_norm.weight"), ("output_layer.weight", "output.weight"),
                          ("decoder.layers.mlp.router.weight", "layers.0.mlp.router.weight, ")):
            rest = {key: value for key, value in metadata.state_dict_metadata.items() if key != lost}
            self.assertLess(len(rest), len(metadata.state_dict_metadata))
            with open(index, "wb") as file:
                pickle.dump(dataclasses.replace(metadata, state_dict_metadata=rest, storage_data={
                    item: at for item, at in metadata.storage_data.items() if item.fqn != lost}), file)
            self.check_refused("gathered", f"its model has parameters that are missing: {why}")
            self.assertIn(why, cairn("verify", self.path("gathered"), "--allow", "optimizer", status=1).stdout)
        cairn("convert", self.path("gathered"), self.path("without"), "--to", "native", "--allow", "optimizer", "--allow", "*.router.weight")
        cairn("verify", self.path("without"))

    def check_refused(self, name, why):
        refused = cairn("convert", self.path(name, f"iter_{DONE:07}"), self.path("never"), "--to", "native", status=2)
        self.assertEqual(refused.stderr.count("\n"), 1, refused.stderr)
        self.assertIn(why, refused.stderr)
        self.assertFalse(os.path.exists(self.path("never")))

    def check_legacy(self, name):
        """In the names of SequentialMLP, of Transformer Engine's grouped layers, and of the older GroupedMLP."""
        source, wanted = self.path(name + "-legacy"), release_of(self.path(name + "-hf"))
        files = {path: torch.load(path, weights_only=False) for path in glob.glob(os.path.join(source, "*", "mp_rank_*", "*_rng.pt"))}
        for form in (one_by_one, grouped, input_major):
            for path, state in files.items():
                changed = state | {"model": dict(state["model"])}
                form(changed)
                torch.save(changed, path)
            if form is not input_major or name == "pipeline":  # the others have distrib_optim.pt
                self.assertEqual(fingerprint(source), fingerprint(self.path(name)))
            out = self.path(f"{name}-{form.__name__}")
            unlike = ("--allow", "optimizer") if form is input_major and name != "pipeline" else ()
            cairn("convert", source, out, "--to", "hf", *unlike)
            held = release_of(out)
            self.assertEqual(set(held), set(wanted))
            for tensor, value in wanted.items():
                self.assertTrue(torch.equal(value, held[tensor]), (out, tensor))
        for path, state in files.items():
            torch.save(state, path)

    def transformers_loss(self, name):
        from transformers import AutoModelForCausalLM
        model = AutoModelForCausalLM.from_pretrained(self.path(name + "-hf"), dtype=torch.bfloat16)
        with open(self.path("batches")) as file:
            samples = torch.tensor(json.load(file)[DONE])
        with torch.no_grad():
            logits = model(samples[:, :-1]).logits.float()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten()).item()

    def check_copies(self, name):
        """Releases repeat the embedding and the output matrix in layers of multi-token prediction."""
        release, held = self.path(name + "-hf"), release_of(self.path(name + "-hf"))
        copies = {"model.layers.4.embed_tokens.weight": held["model.embed_tokens.weight"],
                  "model.layers.4.shared_head.head.weight": held["lm_head.weight"]}
        for file in glob.glob(os.path.join(release, "*.safetensors*")):
            os.remove(file)
        save_file(held | {key: value.clone() for key, value in copies.items()}, os.path.join(release, "model.safetensors"))
        cairn("convert", release, self.path("again"), "--to", "hf")
        again = release_of(self.path("again"))
        self.assertEqual(set(again), set(held | copies))  # they are written again
        self.assertTrue(all(torch.equal(again[key], value) for key, value in (held | copies).items()))
        save_file(held | {key: value + 1 for key, value in copies.items()}, os.path.join(release, "model.safetensors"))
        told = cairn("convert", release, self.path("no"), "--to", "native", status=2).stderr
        self.assertRegex(told, r"model\.layers\.4\.\S+ differs from")

    def check_weights(self, name, family):
        """Each expert and each router of Megatron's ranks, and what only latent attention and multi-token prediction have, is in
        the release, in a plain loop."""
        release = self.path(name + "-hf")
        cairn("convert", self.path(name), release, "--to", "hf")
        with open(os.path.join(release, "config.json")) as file:
            self.assertEqual(json.load(file)["architectures"], [family])
        held, seen = release_of(release), set()
        mixtral = family.startswith("Mixtral")
        mlp, (gate, up, down) = ("block_sparse_moe", ("w1", "w3", "w2")) if mixtral else ("mlp", ("gate_proj", "up_proj", "down_proj"))
        for tensor, value in self.states(name)["weight"].items():
            found = re.fullmatch(r"(decoder|mtp)\.layers\.(\d+)\.(?:transformer_layer\.)?(.*)", tensor)
            if not found:
                continue
            module = found[3]
            layer = f"model.layers.{int(found[2]) + 4 * (found[1] == 'mtp')}"
            if expert := re.fullmatch(r"mlp\.experts\.local_experts\.(\d+)\.linear_fc(\d)\.weight", module):
                names = [f"{layer}.{mlp}.experts.{expert[1]}.{part}.weight" for part in ((gate, up) if expert[2] == "1" else (down,))]
            elif module.startswith("mlp.router."):
                names = [f"{layer}.{mlp}.gate.{'weight' if module.endswith('weight') else 'e_score_correction_bias'}"]
            elif (family.startswith("Deepseek") and module in PLAIN) or (found[1] == "mtp" and module in PLAIN_MTP):
                names = [f"{layer}.{(PLAIN | PLAIN_MTP)[module]}.weight"]
            else:
                continue
            self.assertTrue(torch.equal(value, torch.cat([held[one] for one in names])), tensor)
            seen.update(names)
        parts = (".experts.", ".gate.weight", "e_score", "q_a_", "q_b_", "kv_a_", "kv_b_", "enorm", "hnorm", "eh_proj", "shared_head")
        self.assertEqual(seen, {key for key in held if any(part in key for part in parts)} - {
            key for key in held if "shared_expert" in key})


if __name__ == "__main__":
    unittest.main()
