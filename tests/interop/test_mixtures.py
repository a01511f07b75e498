"""Mixtures of experts of the real transformers: releases, which have a tensor for each expert, and trainings, which have all experts of a
layer in one, through native steps of other EP and ETP, and back: the same bits."""

import json
import pathlib
import re
import sys
import unittest

import torch
import torch.distributed.checkpoint as dcp
from harness import written_for
from mixtures_writer import EXPERTS, HIDDEN, MODELS, TRAINED, WIDTH, make_mixture
from safetensors.torch import load_file, save_file
from test_huggingface import TransformersTest, bits, logits, tensors
from transformers import AutoConfig, AutoModelForCausalLM, GraniteMoeHybridConfig, NemotronHConfig
from transformers.core_model_loading import revert_weight_conversion

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "python"))
import cairn  # noqa: E402

# Experts are cut by all axes, by one of them, and by none.
MESHES = [{"tp": tp, "pp": pp, "dp": dp, "ep": ep, "etp": etp}
          for tp, pp, dp, ep, etp in ((2, 2, 2, 2, 2), (1, 3, 4, 4, 1), (2, 1, 3, 6, 1), (1, 1, 2, 1, 2), (2, 1, 1, 1, 1))]
FUSED = ("gate_up_proj", "down_proj")  # experts in the memory of transformers 5
PARTS = {"w1": "gate", "gate_proj": "gate", "w3": "up", "up_proj": "up", "w2": "down", "down_proj": "down"}
OTHERS = {"gate.weight": "router.weight", "gate.e_score_correction_bias": "router_correction.weight",
          "shared_expert_gate.weight": "shared_gate.weight", "router.weight": "router.weight", "router.bias": "router.bias"} | {
    f"{module}.{part}_proj.weight": f"shared.{part}.weight" for module in ("shared_expert", "shared_experts") for part in ("gate", "up", "down")}


def flags(mesh):
    return [part for axis, size in mesh.items() for part in (f"--{axis}", size)]


def canonical(stored):
    """What belongs to the mixtures of a release, under canonical names: the experts of a layer are one tensor."""
    found, experts = {}, {}
    for name, tensor in stored.items():
        if match := re.fullmatch(r"model\.layers\.(\d+)\.\w+\.experts\.(\d+)\.(\w+)\.weight", name):
            layer, expert, part = match.groups()
            experts.setdefault(f"layers.{layer}.mlp.experts.{PARTS[part]}.weight", {})[int(expert)] = tensor
        elif match := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj(_bias)?", name):  # GPT-OSS
            rows = tensor if match[3] else tensor.transpose(1, 2)
            parts = {"down": rows} if match[2] == "down" else {"gate": rows[:, ::2], "up": rows[:, 1::2]}
            found |= {f"layers.{match[1]}.mlp.experts.{part}.{'bias' if match[3] else 'weight'}": one for part, one in parts.items()}
        elif match := re.fullmatch(r"model\.layers\.(\d+)\.(?:mlp|block_sparse_moe)\.(.*)", name):
            if match[2] in OTHERS:
                found[f"layers.{match[1]}.mlp.{OTHERS[match[2]]}"] = tensor
    return found | {name: torch.stack([them[expert] for expert in range(EXPERTS)]) for name, them in experts.items()}


HYBRID = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2,
          "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
HYBRIDS = [  # attention, states and experts
    GraniteMoeHybridConfig(**HYBRID, intermediate_size=48, shared_intermediate_size=24, num_local_experts=4, num_hidden_layers=2,
                           layer_types=["mamba", "attention"], mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, mamba_chunk_size=8),
    NemotronHConfig(**HYBRID, head_dim=8, intermediate_size=48, moe_intermediate_size=24, moe_shared_expert_intermediate_size=24,
                    n_routed_experts=4, layers_block_type=["mamba", "moe", "attention", "moe"], mamba_num_heads=8, mamba_head_dim=8,
                    ssm_state_size=8, n_groups=2, chunk_size=8),
]


class HybridsTest(TransformersTest):
    """Families without a table."""

    def test_names_are_kept_and_the_rest_is_refused_by_name(self):
        for config in HYBRIDS:
            name = config.model_type
            with self.subTest(name):
                source = self.save(name, make_mixture(config))
                self.cairn("convert", source, f"{name}-native", "--to", "native", "--dp", 2)
                for start in (source, self.dir / f"{name}-native"):
                    for target in (("torch-dist",), ("megatron-deepspeed",), ("universal",), ("native", "--ep", 2, "--dp", 2), ("native", "--pp", 2)):
                        done = self.cairn("convert", start, "out", "--to", *target, code=2, says=f'the family model_type "{name}"')
                        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                        self.assertFalse((self.dir / "out").exists())
                self.cairn("convert", f"{name}-native", f"{name}-back", "--to", "hf")
                self.check_equal(source, self.dir / f"{name}-back")
                self.check_config(source, self.dir / f"{name}-back")
                self.assertGreater(logits(source).std().item(), 1e-3)
                self.assertTrue(torch.equal(logits(source), logits(self.dir / f"{name}-back")))


class ReleasesTest(TransformersTest):
    def check_same(self, source, back):
        self.check_equal(source, back)
        self.check_config(source, back)
        self.check_sums(back)
        self.assertGreater(logits(source).std().item(), 1e-3)
        self.assertTrue(torch.equal(logits(source), logits(back)))

    def check_release_of_each_mesh(self, name):
        model = make_mixture(MODELS[name], torch.bfloat16 if name in ("mixtral", "glm4_moe", "deepseek_v3") else torch.float32)
        source = self.save("source", model, max_shard_size="20KB")
        self.assertGreater(len(list(source.glob("*.safetensors"))), 3)
        self.cairn("convert", source, "native", "--to", "native", *flags(MESHES[0]))
        self.cairn("verify", "native")
        run = "native"
        for number, mesh in enumerate(MESHES[1:]):
            self.cairn("reshape", run, f"run{number}", *flags(mesh))
            run = f"run{number}"
            (step,) = (self.dir / run).glob("step-*")
            stored = json.loads((step / "manifest.json").read_text())["topology"]
            self.assertEqual({axis: stored.get(axis, 1 if axis == "ep" else mesh["tp"]) for axis in mesh}, mesh)
        self.assertEqual(self.json("fingerprint", source), self.json("fingerprint", run))
        self.cairn("diff", source, run)
        self.cairn("convert", run, "back", "--to", "hf", "--max-shard-size", "20KB")
        self.check_same(source, self.dir / "back")

    def test_virtual_steps_and_releases_in_16_bits(self):
        source = self.save("source", make_mixture(MODELS["glm4_moe"]))
        self.cairn("convert", source, "native", "--to", "native", *flags(MESHES[0]))
        self.cairn("reshape", "native", "virtual", *flags(MESHES[1]), "--virtual")
        self.cairn("verify", "virtual")
        self.cairn("convert", "virtual", "back", "--to", "hf")
        self.check_same(source, self.dir / "back")
        self.cairn("strip", "virtual", "half", "--dtype", "bf16")
        was, half = tensors(source), tensors(self.dir / "half")
        self.assertEqual(set(was), set(half))
        for name, tensor in was.items():
            kept = name.endswith("e_score_correction_bias")  # by which transformers keeps it in fp32
            self.assertTrue(torch.equal(bits(tensor if kept else tensor.bfloat16()), bits(half[name])), name)

    def test_all_names_of_a_family(self):
        """transformers 5 saves its memory's names if it is asked to; 4 trained under the names of releases."""
        for name in TRAINED:
            with self.subTest(name):
                model = make_mixture(MODELS[name])
                source = self.save(name, model)
                fused = self.save(name + "-fused", model, save_original_format=False)
                self.assertTrue(any(key.endswith(FUSED[0]) for key in tensors(fused)))
                dcp.save({"model": tensors(source)}, checkpoint_id=self.dir / f"{name}-dcp", no_dist=True)
                for directory, more in ((fused, ()), (self.dir / f"{name}-dcp", ("--config", source))):
                    self.cairn("strip", directory, f"{directory}-back", "--dtype", "fp32", *more)
                    self.check_equal(source, pathlib.Path(f"{directory}-back"))

    def test_delta_nets_are_unpacked_as_transformers_does(self):
        model = make_mixture(MODELS["qwen3_next"])
        self.cairn("convert", self.save("source", model), "plain", "--to", "safetensors")
        found = tensors(self.dir / "plain")
        net, attention = model.model.layers[0].linear_attn, model.model.layers[1].self_attn
        parts = net.fix_query_key_value_ordering(net.in_proj_qkvz.weight.T[None], net.in_proj_ba.weight.T[None])
        for name, part in zip(("query", "key", "value", "gate", "beta", "decay"), parts, strict=True):
            self.assertTrue(torch.equal(found[f"layers.0.delta_net.{name}.weight"], part.reshape(part.shape[1], -1).T), name)
        query, gate = attention.q_proj.weight.view(6, 2, 8, 24).transpose(0, 1).reshape(2, 48, 24)
        self.assertTrue(torch.equal(found["layers.1.attention.query.weight"], query))
        self.assertTrue(torch.equal(found["layers.1.attention.gate.weight"], gate))
        self.assertNotIn("layers.0.attention.query.weight", found)

    def test_programs_without_delta_nets_refuse_them_by_name(self):
        source = self.save("source", make_mixture(MODELS["qwen3_next"]))
        self.cairn("convert", source, "out", "--to", "torch-dist", code=2, says=["layer_types", "linear_attention"])
        self.cairn("convert", source, "out", "--to", "native", "--tp", 3, code=2, says=["TP=3", "2 key"])
        self.cairn("plan", "--model", source / "config.json", code=2, says="gated delta nets")
        self.assertFalse((self.dir / "out").exists())

    def test_layers_that_transformers_leaves_out_are_not_lost(self):
        source = self.save("source", make_mixture(MODELS["qwen3_next"]))
        known = tensors(source)
        save_file(known | {"mtp.fc.weight": torch.ones(24, 48)}, source / "model.safetensors", {"format": "pt"})
        self.cairn("convert", source, "all", "--to", "native")
        self.cairn("convert", "all", "back", "--to", "hf")
        self.check_equal(source, self.dir / "back")
        self.cairn("convert", source, "cut", "--to", "native", "--tp", 2, "--dp", 2, "--ep", 2, "--allow", "mtp.*")
        lost = "model.layers.1.input_layernorm.weight"
        save_file({name: tensor for name, tensor in known.items() if name != lost} | {"mtp.fc.weight": torch.ones(24, 48)},
                  source / "model.safetensors", {"format": "pt"})
        self.cairn("convert", source, "out", "--to", "native", code=2, says=["1 tensors", "are missing", lost])
        save_file(known | {"other.weight": torch.ones(24, 48)}, source / "model.safetensors", {"format": "pt"})
        self.cairn("convert", source, "out", "--to", "native", code=2, says=["1 tensors have no place", "other.weight", "--allow GLOB"])

    def test_a_pickle_of_transposed_views(self):
        """As training code writes GPT-OSS that keeps its experts [experts, out, in]."""
        source = self.save("source", make_mixture(MODELS["gpt_oss"]))
        state = {name: tensor if tensor.dim() < 3 else tensor.transpose(1, 2).contiguous().transpose(1, 2)
                 for name, tensor in tensors(source).items()}
        pickled = self.dir / "pickled"
        pickled.mkdir()
        torch.save(state, pickled / "pytorch_model.bin")
        (pickled / "config.json").write_text((source / "config.json").read_text())
        self.cairn("strip", pickled, "back", "--dtype", "fp32")
        self.check_equal(source, self.dir / "back")

    def test_configurations_of_transformers_4(self):
        """Qwen3-MoE has its experts' number under another key there."""
        source = self.save("source", make_mixture(MODELS["qwen3_moe"]))
        path = source / "config.json"
        config = json.loads(path.read_text())
        config["num_experts"] = config.pop("num_local_experts")
        path.write_text(json.dumps(config))
        self.cairn("convert", source, "native", "--to", "native", *flags(MESHES[0]))
        self.cairn("convert", "native", "back", "--to", "hf")
        self.check_same(source, self.dir / "back")


class TrainingsTest(TransformersTest):
    """Weights and AdamW's states, whose experts FSDP2 cut where Cairn does not."""

    @classmethod
    def setUpClass(cls):
        cls.trained = written_for(cls, "mixtures_writer.py")

    def check_values(self, run, role, stored, **options):
        """`stored`: all parameters by their names in a release."""
        with cairn.open(self.dir / run, **options) as checkpoint:
            for name, tensor in canonical(stored).items():
                self.assertTrue(torch.equal(torch.from_numpy(checkpoint[name, role].numpy()), tensor), (name, role))
            self.assertEqual(sum(one.nbytes for one in checkpoint.values() if one.role == role), sum(t.nbytes for t in stored.values()))

    def save_unfused(self, stored, optimizer):
        """As modules of transformers 4 have it: under the names of a release, with states of each expert."""
        states = {name: {role: stored[role][name] for role in ("exp_avg", "exp_avg_sq")} | {"step": torch.tensor(3.0)} for name in stored["exp_avg"]}
        groups = [group | {"params": [name for name in states if (states[name]["exp_avg"].dim() < 2) == vectors]}
                  for vectors, group in enumerate(optimizer["param_groups"])]
        dcp.save({"model": stored["weight"], "optim": {"state": states, "param_groups": groups}}, checkpoint_id=self.dir / "unfused", no_dist=True)
        return self.dir / "unfused"

    def check_training(self, name):
        state = torch.load(self.trained / f"{name}.pt")
        model = make_mixture(MODELS[name])
        model.load_state_dict(state["model"])
        directory, source, config = self.trained / name, self.save("source", model), self.dir / "source" / "config.json"
        stored = {"weight": tensors(source)}
        for role in ("exp_avg", "exp_avg_sq"):  # split as transformers splits the weights
            stored[role] = revert_weight_conversion(model, {key: states[role] for key, states in state["optim"]["state"].items()})
        self.cairn("convert", directory, "native", "--config", config, "--to", "native", *flags(MESHES[0]))
        self.cairn("reshape", "native", "other", *flags(MESHES[1]))
        self.cairn("verify", "other", "--values")
        self.cairn("diff", directory, "other", "--config", config)
        unfused = self.save_unfused(stored, state["optim"])
        self.cairn("convert", "other", "dcp", "--to", "dcp")
        for role, parameters in stored.items():
            for trained in (directory, unfused):
                self.check_values(trained, role, parameters, config=config)
            for run in ("native", "other", "dcp"):
                self.check_values(run, role, parameters)
        for run, more in (("other", ()), (directory, ("--config", config)), (unfused, ("--config", config))):
            release = self.dir / f"{pathlib.Path(run).name}-release"
            self.cairn("strip", run, release, "--dtype", "fp32", *more)
            self.check_equal(source, release)
            self.assertTrue(torch.equal(logits(source), logits(release)))


class RefusedTest(TransformersTest):
    """One line that names the tensor; nothing is written."""

    def setUp(self):
        super().setUp()
        self.source = self.save("source", make_mixture(MODELS["qwen3_moe"]))
        self.config = json.loads((self.source / "config.json").read_text())
        self.weights = tensors(self.source)

    def refused(self, says, weights=None, more=(), source=None, **changed):
        save_file(weights or self.weights, self.source / "model.safetensors", {"format": "pt"})
        (self.source / "config.json").write_text(json.dumps(self.config | changed))
        for target in (("native", *flags({"ep": 2, "dp": 2})), ("hf",)):
            done = self.cairn("convert", source or self.source, "out", "--to", *target, *more, code=2, says=says)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertFalse((self.dir / "out").exists())

    def test_an_expert_is_missing(self):
        for part in ("gate_proj", "up_proj", "down_proj"):
            gone = f"model.layers.2.mlp.experts.7.{part}.weight"
            self.refused(["missing", gone], {name: tensor for name, tensor in self.weights.items() if name != gone})
        self.refused("missing", {name: tensor for name, tensor in self.weights.items() if ".experts.11." not in name})
        self.refused("missing", {name: tensor for name, tensor in self.weights.items() if "layers.2.mlp.experts." not in name})

    def test_an_expert_has_no_place(self):
        name = "model.layers.2.mlp.experts.12.up_proj.weight"
        self.refused(["no place", name], self.weights | {name: torch.zeros(WIDTH, HIDDEN)})
        self.refused(["no place", "model.layers.1.mlp.experts.0.up_proj.weight"],
                     self.weights | {"model.layers.1.mlp.experts.0.up_proj.weight": torch.zeros(WIDTH, HIDDEN)})

    def test_an_expert_is_stored_twice(self):
        layer = "model.layers.2.mlp.experts."
        for part in FUSED:  # each of them, and all of them in one
            self.refused(["no place", ".mlp.experts."], self.weights | {layer + part: make_mixture(MODELS["qwen3_moe"]).state_dict()[layer + part]})
        name = f"{layer}7.up_proj.weight"
        source = self.save("sharded", make_mixture(MODELS["qwen3_moe"]), max_shard_size="20KB")
        path = source / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        other = next(file for file in index["weight_map"].values() if file != index["weight_map"][name])
        save_file(load_file(source / other) | {name: torch.zeros(WIDTH, HIDDEN)}, source / other, {"format": "pt"})
        self.refused([f"{name}, of an expert, is in {index['weight_map'][name]} and in {other}"], source=source)
        del index["weight_map"][name]
        path.write_text(json.dumps(index))
        self.refused(["the index does not list it", name], source=source)

    def test_a_shape_differs(self):
        for name, shape in (("model.layers.2.mlp.experts.7.up_proj.weight", (WIDTH - 1, HIDDEN)),
                            ("model.layers.2.mlp.experts.7.down_proj.weight", (WIDTH, HIDDEN)),
                            ("model.layers.0.mlp.gate.weight", (EXPERTS - 1, HIDDEN))):
            self.refused([name, str(list(shape))], self.weights | {name: torch.zeros(shape)})

    def test_the_configuration_has_another_number_of_experts(self):
        self.refused(f"this file holds {EXPERTS} of {2 * EXPERTS} experts", num_local_experts=2 * EXPERTS)
        self.refused("no place", num_local_experts=EXPERTS // 2)
        for hostile in (-1, 0, 2 ** 62):
            self.refused(f"num_experts is {hostile}", num_local_experts=hostile)
        self.refused("asks for 1000000 experts", num_local_experts=10 ** 6)
        self.refused("is its description damaged", num_local_experts=2 ** 30, moe_intermediate_size=2 ** 30)  # times 24: too many elements
        self.refused("moe_ffn_hidden_size is", moe_intermediate_size=2 ** 40)
        self.refused('num_experts is "twelve"', num_local_experts="twelve")
        self.refused(["no place", "layers.1.mlp.up_proj.weight"], mlp_only_layers=[])
        self.refused(["no place", "layers.2.mlp.experts."], mlp_only_layers=[1, 2])
        self.refused(["shape", "mlp.experts"], moe_intermediate_size=WIDTH // 2)

    def test_some_experts_under_the_name_of_all(self):
        """What trainers write whose state dict has only the experts of its rank."""
        model = make_mixture(MODELS["qwen3_moe"])
        state = model.state_dict()
        half = {name: tensor[:EXPERTS // 2].clone() if name.endswith(FUSED) and ".experts." in name else tensor for name, tensor in state.items()}
        dcp.save({"model": half}, checkpoint_id=self.dir / "dcp", no_dist=True)
        self.refused([f"this file holds {EXPERTS // 2} of {EXPERTS} experts", "mlp.experts.gate_up_proj"],
                     source=self.dir / "dcp", more=("--config", self.dir / "source"))

    def test_the_type_of_an_expert_differs(self):
        name = "model.layers.2.mlp.experts.7.up_proj.weight"
        self.refused([name, "type"], self.weights | {name: self.weights[name].bfloat16()})

    def test_layers_of_multi_token_prediction(self):
        """Releases of GLM-4.5 and DeepSeek-V3 have them; transformers neither loads nor saves them."""
        whole = self.save("glm", make_mixture(MODELS["glm4_moe"]))
        weights = tensors(whole)
        more = {name.replace(".2.", ".3.", 1): tensor + 1 for name, tensor in weights.items() if ".layers.2." in name}
        source = self.save("with", make_mixture(MODELS["glm4_moe"]))
        save_file(weights | more | {"model.layers.3.enorm.weight": torch.ones(HIDDEN)}, source / "model.safetensors", {"format": "pt"})
        self.refused(["missing", "model.layers.3.hnorm.weight"], source=source)
        self.cairn("convert", source, "native", "--to", "native", "--allow", "model.layers.3.*", *flags({"ep": 2, "dp": 2}))
        self.cairn("convert", "native", "without", "--to", "hf")
        self.check_equal(whole, self.dir / "without")
        dtype = weights["model.norm.weight"].dtype
        more |= {f"model.layers.3.{norm}.weight": torch.rand(HIDDEN).to(dtype) for norm in ("enorm", "hnorm", "shared_head.norm")}
        more["model.layers.3.eh_proj.weight"] = torch.rand(HIDDEN, 2 * HIDDEN).to(dtype)
        copy = {"model.layers.3.embed_tokens.weight": weights["model.embed_tokens.weight"].clone()}
        save_file(weights | more | copy, source / "model.safetensors", {"format": "pt"})
        self.cairn("convert", source, "complete", "--to", "native", *flags({"ep": 2, "dp": 2, "pp": 3}))
        self.cairn("convert", "complete", "back", "--to", "hf")
        back = tensors(self.dir / "back")
        self.assertEqual(set(back), set(weights | more | copy))  # the copy is written again, as it came
        self.assertTrue(all(torch.equal(back[name], value) for name, value in (weights | more | copy).items()))

    def test_windows_in_some_layers_of_qwen2(self):
        source = self.save("windows", make_mixture(MODELS["qwen2_moe"]))
        path = source / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"use_sliding_window": True, "sliding_window": 5}))
        self.refused("use_sliding_window", source=source)

    def test_meshes_that_do_not_divide(self):
        for mesh, says in ((("--ep", 5, "--dp", 5), f"EP=5 does not divide the model's {EXPERTS} experts"),
                           (("--etp", 8, "--dp", 8), "ETP=8 does not divide"),
                           (("--ep", 4, "--dp", 2), "not a multiple of EP * ETP = 4")):
            done = self.cairn("convert", self.source, "out", "--to", "native", *mesh, code=2, says=says)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertFalse((self.dir / "out").exists())


for name in MODELS:
    setattr(ReleasesTest, f"test_release_of_{name.replace('-', '_')}", lambda self, name=name: self.check_release_of_each_mesh(name))
for name in TRAINED:
    setattr(TrainingsTest, f"test_training_of_{name}", lambda self, name=name: self.check_training(name))

class PlansTest(TransformersTest):
    def test_releases_have_as_many_parameters_as_transformers_says(self):
        sizes = {"mixtral": {}, "qwen3_moe": {"num_hidden_layers": 48, "head_dim": 128}, "deepseek_v3": {}}
        for family, more in sizes.items():  # of Mixtral 8x7B, Qwen3 30B and DeepSeek-V3; defaults of transformers otherwise
            config = AutoConfig.for_model(family, **more)
            with torch.device("meta"):
                parameters = dict(AutoModelForCausalLM.from_config(config).named_parameters())
            counts = {name: tensor.numel() for name, tensor in parameters.items()}
            experts = sum(count for name, count in counts.items() if ".experts." in name)
            config.save_pretrained(self.dir / family)
            plan = self.json("plan", "--model", self.dir / family, "--cluster", "h200", "--nodes", 64, "--global-batch-size", 512,
                             "--tp", 1, "--mbs", 1, "--recompute", "full", "--virtual-stages", 1, "--use-flash-attn", "--top", 1)
            idle = 1 - config.num_experts_per_tok / (getattr(config, "n_routed_experts", None) or config.num_local_experts)
            self.assertEqual(plan["model"]["parameters"], sum(counts.values()))
            self.assertEqual(plan["model"]["active_parameters"], sum(counts.values()) - experts * idle)


if __name__ == "__main__":
    unittest.main()
