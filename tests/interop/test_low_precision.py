"""Releases in FP8 and MXFP4: read as the numbers that torch and transformers make of them, and refused if a part is missing; FP8 is written, too.

Each of the two programs is right for one form only: torch for FP8 (transformers takes the block for rows / rows of scales), transformers
for MXFP4 (torch 2.11 leaves most columns zero).
"""

import copy
import json
import shutil
import unittest
import warnings

import torch
import torch.distributed.checkpoint as dcp
from mixtures_writer import MODELS, make_mixture
from safetensors import safe_open
from safetensors.torch import save_file
from test_huggingface import MODELS as DENSE
from test_huggingface import TransformersTest, bits, logits, logits_of, make, tensors
from test_mixtures import MESHES, flags
from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig, MixtralConfig, Qwen2MoeConfig, Qwen3Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

FP8, MXFP4 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}, {"quant_method": "mxfp4"}
# No size is a multiple of the block's: 150 + 6 rows in kv_a_proj_with_mqa, 140 in experts.
DEEPSEEK = DeepseekV3Config(
    vocab_size=61, hidden_size=200, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=2, max_position_embeddings=64,
    num_experts_per_tok=2, intermediate_size=130, moe_intermediate_size=140, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1,
    first_k_dense_replace=1, kv_lora_rank=150, q_lora_rank=129, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=10)


def to_blocks(scales, block, shape):
    return scales.repeat_interleave(block, 0).repeat_interleave(block, 1)[:shape[0], :shape[1]]


def to_fp8(weight, block):
    """(values, scales) as DeepSeek's releases have them: the largest number of a block becomes 448."""
    rows, columns = (-(-size // block) for size in weight.shape)
    scales = torch.zeros(rows, columns)
    for r in range(rows):
        for c in range(columns):
            largest = weight[r * block:(r + 1) * block, c * block:(c + 1) * block].abs().max()
            scales[r, c] = largest / 448 if largest > 0 else 1
    return (weight / to_blocks(scales, block, weight.shape)).to(torch.float8_e4m3fn), scales


# Matrices that are not in linear layers, or choose experts.
OTHERS = ("embed", "wte", "wpe", "lm_head", "mlp.gate.weight", "block_sparse_moe.gate.weight", "shared_expert_gate",
          "in_proj_ba.", "in_proj_a.", "in_proj_b.")
# Whole blocks only, as transformers needs them.
EVEN = {"vocab_size": 61, "hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 3, "intermediate_size": 384,
        "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
IN_WHOLE_BLOCKS = {
    "deepseek_v3": DeepseekV3Config(
        **EVEN, moe_intermediate_size=128, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1,
        kv_lora_rank=64, q_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=64, v_head_dim=64),
    "qwen2_moe": Qwen2MoeConfig(**EVEN, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=128, shared_expert_intermediate_size=128,
                                mlp_only_layers=[1]),
    "mixtral": MixtralConfig(**EVEN, num_local_experts=4, head_dim=128),
    "qwen3-tied": Qwen3Config(**EVEN, head_dim=128, tie_word_embeddings=True),
}


def is_quantized(name, tensor):
    return tensor.dim() == 2 and name.endswith(".weight") and not any(other in name for other in OTHERS)


class LowPrecisionTest(TransformersTest):
    def write(self, name, weights, config, **more):
        directory = self.dir / name
        directory.mkdir(exist_ok=True)
        save_file(weights, directory / "model-00001-of-00001.safetensors", {"format": "pt"})
        index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model-00001-of-00001.safetensors")}  # without it torch finds no scales
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
        (directory / "config.json").write_text(json.dumps(config | more))
        return directory

    def check_tensors(self, directory, wanted):
        found = tensors(self.dir / directory)
        self.assertEqual(set(found), set(wanted))
        for name, tensor in wanted.items():
            self.assertEqual(found[name].dtype, tensor.dtype, name)
            self.assertTrue(torch.equal(bits(found[name]), bits(tensor)), name)

    def by_torch(self, source, weights, block=128):
        state = {name: torch.empty(tensor.shape) for name, tensor in weights.items() if not name.endswith("_scale_inv")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(state, storage_reader=QuantizedHuggingFaceStorageReader(str(source), block_size=block), no_dist=True)
        return state

    def check_conversions(self, source, wanted, note):
        """`wanted`: the release's tensors in fp32."""
        def cast(dtype):
            return {name: tensor if name.endswith("e_score_correction_bias") else tensor.to(dtype) for name, tensor in wanted.items()}

        for name, dtype, more in (("whole", torch.float32, ("--dtype", "fp32")), ("rounded", torch.bfloat16, ("--dtype", "bf16")),
                                  ("usual", torch.bfloat16, ())):
            self.cairn("convert", source, name, "--to", "native", *more, *flags(MESHES[0]), says=note)
            self.cairn("reshape", name, f"{name}-other", *flags(MESHES[3]))
            self.cairn("convert", f"{name}-other", f"{name}-back", "--to", "hf")
            self.check_tensors(f"{name}-back", cast(dtype))
            self.assertNotIn("quantization_config", json.loads((self.dir / f"{name}-back" / "config.json").read_text()))
        self.cairn("convert", source, "straight", "--to", "hf", "--dtype", "fp16", "--max-memory", "64MiB")
        self.check_tensors("straight", cast(torch.float16))
        self.cairn("diff", source, "usual")
        self.cairn("convert", source, "dcp", "--to", "dcp", "--dtype", "bf16")
        self.cairn("diff", "dcp", "usual")
        for kept in ("hf", "safetensors"):
            self.cairn("convert", source, kept, "--to", kept, says="stay as they are stored")
            self.check_equal(source, self.dir / kept)
        self.assertEqual(json.loads((source / "config.json").read_text()), json.loads((self.dir / "hf" / "config.json").read_text()))


class Fp8Test(LowPrecisionTest):
    def release(self, block=128, scales_of=torch.float32):
        source = self.save("bf16", make_mixture(DEEPSEEK, torch.bfloat16))
        self.config = json.loads((source / "config.json").read_text())
        weights = {}
        for name, tensor in tensors(source).items():
            if "proj" in name:
                weights[name], scales = to_fp8(tensor.float(), block)
                weights[name + "_scale_inv"] = scales.to(scales_of)
            else:  # the correction is fp32 in releases
                weights[name] = tensor.float() if name.endswith("e_score_correction_bias") else tensor
        return weights

    def test_values_are_torch_s(self):
        weights = self.release()
        source = self.write("source", weights, self.config, quantization_config=FP8 | {"weight_block_size": [128, 128]})
        wanted = self.by_torch(source, weights)
        self.assertEqual(weights["model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv"].shape, (2, 2))
        self.check_conversions(source, wanted, "28 fp8 weights are read as")
        self.assertGreater(logits(self.dir / "usual-back").std().item(), 1e-3)

    def test_another_block(self):
        weights = self.release(32)
        source = self.write("source", weights, self.config, quantization_config=FP8 | {"weight_block_size": [32, 32]})
        self.cairn("strip", source, "back", "--dtype", "fp32")
        wanted = self.by_torch(source, weights, 32)
        self.check_tensors("back", wanted)
        weights = {name: tensor.bfloat16() if name.endswith("_scale_inv") else tensor for name, tensor in weights.items()}  # as Qwen3's
        source = self.write("source", weights, self.config, quantization_config=FP8 | {"weight_block_size": [32, 32]})
        self.cairn("strip", source, "other", "--dtype", "fp32")
        for name, tensor in tensors(self.dir / "other").items():
            if name + "_scale_inv" in weights:
                wanted[name] = weights[name].float() * to_blocks(weights[name + "_scale_inv"].float(), 32, tensor.shape)
        self.check_tensors("other", wanted)

    def test_a_layer_that_is_left_out_is_named(self):
        weights = self.release()
        extra = "model.layers.3.eh_proj.weight"
        values, scales = to_fp8(torch.randn(200, 400), 128)
        source = self.write("source", weights | {extra: values, extra + "_scale_inv": scales}, self.config, quantization_config=FP8)
        self.cairn("convert", source, "native", "--to", "native", code=2, says=["no place", extra])
        self.cairn("convert", source, "native", "--to", "native", "--allow", "model.layers.3.*", says=["allowed 80.0 kB", f"in no tensor: {extra}"])
        self.cairn("convert", "native", "back", "--to", "hf")
        self.assertEqual(set(tensors(self.dir / "back")), {name for name in weights if not name.endswith("_scale_inv")})

    def test_layers_of_multi_token_prediction(self):
        """As releases of DeepSeek-V3 have them: in FP8, with copies of two tensors, which are compared, and written again."""
        weights = self.release()
        more = {name.replace("layers.1.", "layers.2."): tensor.clone() for name, tensor in weights.items() if "layers.1." in name}
        projection = to_fp8(torch.randn(DEEPSEEK.hidden_size, 2 * DEEPSEEK.hidden_size), 128)
        more |= {"model.layers.2.eh_proj.weight": projection[0], "model.layers.2.eh_proj.weight_scale_inv": projection[1]}
        more |= {f"model.layers.2.{norm}.weight": torch.rand(DEEPSEEK.hidden_size).bfloat16() for norm in ("enorm", "hnorm", "shared_head.norm")}
        copies = {"model.layers.2.embed_tokens.weight": weights["model.embed_tokens.weight"].clone(),
                  "model.layers.2.shared_head.head.weight": weights["lm_head.weight"].clone()}
        quantization = {"quantization_config": FP8, "num_nextn_predict_layers": 1}
        source = self.write("source", weights | more | copies, self.config, **quantization)
        self.cairn("convert", source, "native", "--to", "native", "--ep", 2, "--dp", 2, "--dtype", "fp32")
        self.cairn("convert", "native", "back", "--to", "hf")
        self.check_tensors("back", self.by_torch(source, weights | more | copies))
        self.cairn("convert", "native", "again", "--to", "hf", "--quantize", "fp8")
        again = tensors(self.dir / "again")
        self.assertFalse(set(copies) & set(again))
        self.assertEqual(again["model.layers.2.mlp.experts.3.up_proj.weight"].dtype, torch.float8_e4m3fn)
        self.assertEqual(again["model.layers.2.eh_proj.weight"].dtype, torch.float32)
        self.assertIn("model.layers.2.eh_proj",
                      json.loads((self.dir / "again" / "config.json").read_text())["quantization_config"]["modules_to_not_convert"])
        other = copies | {"model.layers.2.shared_head.head.weight": weights["lm_head.weight"] * 2}
        source = self.write("other", weights | more | other, self.config, **quantization)
        self.cairn("convert", source, "never", "--to", "native", code=2, says="shared_head.head.weight differs from lm_head.weight")

    def test_a_model_without_a_table(self):
        """Under its own names: as they are stored, or with weights of a type."""
        weights = self.release()
        source = self.write("source", weights, {"model_type": "unheard_of", "quantization_config": FP8 | {"weight_block_size": [128, 128]}})
        self.cairn("convert", source, "same", "--to", "hf")
        self.check_equal(source, self.dir / "same")
        self.cairn("convert", source, "back", "--to", "hf", "--dtype", "fp32")
        self.check_tensors("back", self.by_torch(source, weights))
        self.assertEqual(json.loads((self.dir / "back" / "config.json").read_text())["model_type"], "unheard_of")
        self.assertNotIn("quantization_config", json.loads((self.dir / "back" / "config.json").read_text()))

    # A release of a known family, quantized by a method that Cairn does not read, is looked at, checked and copied as it is; it is not cast.
    def test_other_methods_are_copied_and_not_cast(self):
        shape, f8 = (130, 200), torch.float8_e4m3fn
        packed, scale = torch.randint(-2**31, 2**31 - 1, (130, 25), dtype=torch.int32), torch.ones(130, 2).bfloat16()
        values = torch.randn(shape).to(f8)
        methods = {
            "a method with weights of int32": ({"qweight": packed, "qzeros": packed[:2].clone(), "scales": scale.half()}, None),
            "awq": ({"qweight": packed, "qzeros": packed[:2].clone(), "scales": scale.half()}, {"quant_method": "awq"}),
            "compressed-tensors": ({"weight_packed": packed, "weight_scale": scale, "weight_shape": torch.tensor(shape)},
                                   {"quant_method": "compressed-tensors"}),
            "bitsandbytes": ({"weight": torch.zeros(shape[0] * 100, 1, dtype=torch.uint8), "weight.absmax": torch.ones(40)},
                             {"quant_method": "bitsandbytes"}),
            "quark": ({"weight": torch.zeros(130, 100, dtype=torch.uint8), "weight_scale": torch.zeros(130, 6, dtype=torch.uint8)},
                      {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}),
            "a method with weights of fp4_e2m1_x2": ({"weight": torch.zeros(130, 100, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
                                                      "scale": torch.ones(130, 6).to(torch.float8_e8m0fnu)}, FP8),
            # One scale a weight, or an exponent a block
            "a method with scales like model.layers.0.mlp.gate_proj.weight_scale":
                ({"weight": values, "weight_scale": torch.ones(1), "input_scale": torch.ones(1)}, None),
            "a method with scales like model.layers.0.mlp.gate_proj.weight_scale_inv":
                ({"weight": values, "weight_scale_inv": torch.tensor(1.), "activation_scale": torch.tensor(1.)}, FP8),
            "a method with scales like model.layers.0.mlp.gate_proj.scale":
                ({"weight": values, "scale": torch.ones(2, 2).to(torch.float8_e8m0fnu)}, FP8),
        }
        for method, (parts, config) in methods.items():
            with self.subTest(method):
                weights = {name: torch.randn(tensor.shape).bfloat16() if tensor.dtype == f8 else tensor for name, tensor in self.release().items()
                           if "_scale_inv" not in name and "layers.0.mlp.gate_proj" not in name and "layers.0.mlp.up_proj" not in name}
                weights |= {f"model.layers.0.mlp.{name}_proj.{part}": copy.deepcopy(tensor) if tensor.itemsize > 1 else
                            tensor.view(torch.uint8).clone().view(tensor.dtype) for name in ("gate", "up") for part, tensor in parts.items()}
                source = self.write("source", weights, self.config, **({"quantization_config": config} if config else {}))
                note = f"quantized by {method}, which Cairn does not read: they stay as they are stored"
                self.cairn("verify", source, says=note)
                for target in ("hf", "native"):
                    self.cairn("convert", source, target, "--to", target, says=note)
                    self.cairn("diff", source, target, says=f"{len(weights)} of them equal bit for bit; no difference")
                kept = json.loads((self.dir / "hf" / "config.json").read_text())
                self.assertEqual(kept.get("quantization_config"), config)
                for arguments in (("strip", source), ("strip", "native"), ("convert", source, "--to", "native", "--tp", 2),
                                  ("convert", source, "--to", "torch-dist"),
                                  ("convert", source, "--to", "hf", "--dtype", "bf16", "--quantize", "fp8")):
                    done = self.cairn(*arguments[:2], "out", *arguments[2:], code=2, says=[f"quantized by {method}", "neither cast nor cut"])
                    self.assertFalse((self.dir / "out").exists(), done.stderr)
                shutil.rmtree(self.dir / "hf"), shutil.rmtree(self.dir / "native")

    def test_bad_files_are_refused(self):
        weights = self.release()
        name = "model.layers.1.mlp.experts.2.up_proj.weight"
        scales = name + "_scale_inv"
        odd = {"quantization_config": FP8 | {"weight_block_size": [128, 128]}}
        cases = [
            ([f"{name} is fp8_e4m3 without scales: {scales} is missing"], {scales: None}, {}),
            ([f"{scales} has no weight: {name} is missing"], {name: None}, {}),
            ([f"{scales} has shape [1, 2]; blocks of 128 x 128 of {name}, which has shape [140, 200], make it [2, 2]"],
             {scales: torch.ones(1, 2)}, {}),
            ([name, "is bf16, but", scales], {name: torch.zeros(140, 200, dtype=torch.bfloat16)}, {}),
            ([scales, "is uint8; scales must be"], {scales: torch.ones(2, 2, dtype=torch.uint8)}, {}),
            (["make it [4, 3]"], {}, {"quantization_config": FP8 | {"weight_block_size": [64, 64]}}),
            (["weight_block_size is"], {}, {"quantization_config": FP8 | {"weight_block_size": [128, 0]}}),
        ]
        for says, changed, config in cases:
            with self.subTest(says):
                some = {key: tensor for key, tensor in (weights | changed).items() if tensor is not None}
                source = self.write("source", some, self.config, **odd | config)
                for target in (("native", "--dtype", "bf16"), ("native",), ("hf",), ("safetensors", "--dtype", "fp32")):
                    done = self.cairn("convert", source, "out", "--to", *target, code=2, says=says)
                    self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                    self.assertFalse((self.dir / "out").exists())


class QuantizeTest(LowPrecisionTest):
    def quantized(self, weights, dtype=None):
        """The tensors of a release: by torch, block by block."""
        wanted = {}
        for name, tensor in weights.items():
            if is_quantized(name, tensor):
                wanted[name], wanted[name + "_scale_inv"] = to_fp8(tensor.float(), 128)
            else:
                wanted[name] = tensor if dtype is None or name.endswith("e_score_correction_bias") else tensor.to(dtype)
        return wanted

    def check_error(self, found, weights, wanted):
        errors, of_largest = {}, 0
        for name, values in wanted.items():
            if values.dtype == torch.float8_e4m3fn:
                numbers, scales = weights[name].double(), to_blocks(wanted[name + "_scale_inv"], 128, values.shape)
                off = (numbers - (values.float() * scales).double()).abs()
                errors[name] = (off.square().sum().item(), numbers.square().sum().item())
                of_largest = max(of_largest, (off / (scales.double() * 448)).max().item())
        norms = {name: (off / numbers) ** 0.5 if numbers else 0 for name, (off, numbers) in errors.items()}
        everything = [sum(sums) for sums in zip(*errors.values())]
        self.assertEqual(found["weights"], len(errors))
        self.assertAlmostEqual(found["relative_norm"], (everything[0] / everything[1]) ** 0.5, delta=1e-6)
        self.assertAlmostEqual(found["of_largest_in_block"], of_largest, delta=1e-6)
        self.assertAlmostEqual(found["worst"]["relative_norm"], max(norms.values()), delta=1e-6)
        self.assertAlmostEqual(norms[found["worst"]["name"]], max(norms.values()), delta=1e-6)
        self.assertLess(0.005, found["relative_norm"])
        self.assertLess(found["of_largest_in_block"], 16 / 448 + 1e-6)

    def awkward(self, dtype):
        """A model with blocks of zeros, of numbers that are hardly any, and of very different ones."""
        source = self.save(f"source-{dtype}", make_mixture(DEEPSEEK, dtype))
        (path,) = source.glob("*.safetensors")
        weights = tensors(source)
        attention = weights["model.layers.0.self_attn.kv_b_proj.weight"]
        attention[:, :128] = 0
        attention[0, 0] = -0.0
        weights["model.layers.1.mlp.experts.3.down_proj.weight"][:128, :128] *= 1e-38
        wide = weights["model.layers.1.self_attn.o_proj.weight"]
        wide *= torch.exp(torch.randn(wide.shape, generator=torch.Generator().manual_seed(2)) * 8).to(dtype)
        save_file(weights, path, {"format": "pt"})
        return source, weights

    def test_values_are_torch_s(self):
        for dtype, cast in ((torch.float32, torch.bfloat16), (torch.bfloat16, None)):
            with self.subTest(dtype):
                source, weights = self.awkward(dtype)
                wanted = self.quantized(weights, cast)
                more = ("--dtype", "bf16") if cast else ()
                step = f"native-{dtype}"
                self.cairn("convert", source, step, "--to", "native", *flags(MESHES[0]))
                self.cairn("reshape", step, f"{step}-other", *flags(MESHES[3]))
                for number, (verb, at) in enumerate((("convert", source), ("convert", f"{step}-other"), ("strip", step))):
                    if verb == "strip" and not cast:
                        continue
                    target = f"{step}-{number}"
                    to = ("--to", "hf") if verb == "convert" else ()
                    tried = self.cairn(verb, at, target, *to, "--quantize", "fp8", *more, "--dry-run", says="28 weights to fp8: |W - Q| / |W| is")
                    self.assertFalse((self.dir / target).exists())
                    done = self.json(verb, at, target, *to, "--quantize", "fp8", *more)
                    self.check_tensors(target, wanted)
                    self.check_error(done["quantized"], weights, wanted)
                    self.assertIn(f"is {100 * done['quantized']['relative_norm']:.3f} %, at worst", tried.stdout)
                    self.assertEqual(done["source_fingerprint"], self.json("fingerprint", at)["fingerprint"])
                    self.check_sums(self.dir / target)
                    config = json.loads((self.dir / target / "config.json").read_text())
                    self.assertEqual(config["quantization_config"], FP8 | {"weight_block_size": [128, 128], "modules_to_not_convert": [
                        "lm_head", "model.layers.1.mlp.gate"]})
                    self.check_numbers(target, wanted)

    def check_numbers(self, release, wanted):
        """Cairn and torch read values times scales."""
        self.cairn("convert", release, f"{release}-back", "--to", "hf", "--dtype", "fp32", says="28 fp8 weights are read as fp32")
        numbers = {name: values.float() * to_blocks(wanted[name + "_scale_inv"], 128, values.shape) if name + "_scale_inv" in wanted
                   else values if name.endswith("e_score_correction_bias") else values.float()
                   for name, values in wanted.items() if not name.endswith("_scale_inv")}
        self.check_tensors(f"{release}-back", numbers)
        self.cairn("verify", f"{release}-back")

    def test_the_header_tells_it(self):
        source = self.save("source", make_mixture(DEEPSEEK, torch.bfloat16))
        done = self.json("convert", source, "out", "--to", "hf", "--quantize", "fp8", "--max-shard-size", "100kB")
        with safe_open(next((self.dir / "out").glob("*.safetensors")), "pt") as file:
            self.assertIn("became fp8 with a scale for each 128 x 128 (--quantize fp8)", file.metadata()["cairn.history"])
            self.assertEqual(file.metadata()["cairn.quantization_error"], f"{done['quantized']['relative_norm']:.6e}")
            self.assertEqual(file.metadata()["cairn.command"], "cairn convert --to hf --max-shard-size 100000 --quantize fp8")
        wanted = self.quantized(tensors(source))
        self.check_tensors("out", wanted)
        self.cairn("convert", "out", "back", "--to", "hf", "--dtype", "fp32")
        back = {name: tensor.float() for name, tensor in tensors(self.dir / "back").items()}
        for name, tensor in self.by_torch(self.dir / "out", wanted).items():
            self.assertTrue(torch.equal(tensor, back[name]), name)

    def test_transformers_loads_it(self):
        for name, config in IN_WHOLE_BLOCKS.items():
            with self.subTest(name):
                source = self.save(name, make_mixture(config, torch.bfloat16))
                self.cairn("convert", source, f"{name}-fp8", "--to", "hf", "--quantize", "fp8")
                self.check_tensors(f"{name}-fp8", self.quantized(tensors(source)))
                self.cairn("convert", f"{name}-fp8", f"{name}-back", "--to", "hf", "--dtype", "bf16")
                models = [AutoModelForCausalLM.from_pretrained(self.dir / f"{name}{end}", dtype=torch.bfloat16) for end in ("", "-fp8", "-back")]
                original, read, back = (model.state_dict() for model in models)
                self.assertEqual(set(read), set(back))
                for key, tensor in read.items():
                    self.assertEqual(tensor.dtype, back[key].dtype, key)
                    self.assertTrue(torch.equal(bits(tensor), bits(back[key])), key)
                original, read = (logits_of(model.float()) for model in models[:2])
                off = ((read - original).norm() / original.norm()).item()
                self.assertLess(0, off)
                self.assertLess(off, 0.3)

    def test_blocks_of_the_stream_end_within_rows_of_scales(self):
        config = LlamaConfig(**EVEN | {"hidden_size": 300, "intermediate_size": 9001, "num_hidden_layers": 1})
        source = self.save("source", make(config, torch.bfloat16))
        self.cairn("convert", source, "out", "--to", "hf", "--quantize", "fp8", "--max-memory", "64MiB")
        self.check_tensors("out", self.quantized(tensors(source)))

    def test_families(self):
        refused = {"gpt2", "gpt_oss", "llama4_text"}
        for name, model in (DENSE | MODELS).items():
            with self.subTest(name):
                source = self.save(name, make(model[0]) if name in DENSE else make_mixture(model))
                family = json.loads((source / "config.json").read_text())["model_type"]
                if family in refused:
                    self.cairn("convert", source, "never", "--to", "hf", "--quantize", "fp8", code=2,
                               says=[f"{family}: ", "is not a matrix [out, in]", "--quantize cannot write this family"])
                    self.assertFalse((self.dir / "never").exists())
                    continue
                self.cairn("convert", source, f"{name}-fp8", "--to", "hf", "--quantize", "fp8")
                self.check_tensors(f"{name}-fp8", self.quantized(tensors(source)))
                excepted = json.loads((self.dir / f"{name}-fp8" / "config.json").read_text())["quantization_config"]["modules_to_not_convert"]
                for module in ("mlp.gate", "block_sparse_moe.gate", "shared_expert_gate", "lm_head", "embed_out"):
                    self.assertGreaterEqual(sum(other.endswith(module) for other in excepted),
                                            sum(stored.endswith(f"{module}.weight") for stored in tensors(source)))

    def test_weights_that_are_kept(self):
        source = self.save("source", make_mixture(DEEPSEEK, torch.bfloat16))
        self.cairn("convert", source, "out", "--to", "hf", "--quantize", "fp8", "--keep-fp32", "*layers.0.mlp.down_proj*")
        wanted = self.quantized(tensors(source))
        name = "model.layers.0.mlp.down_proj"
        del wanted[f"{name}.weight_scale_inv"]
        self.check_tensors("out", wanted | {f"{name}.weight": tensors(source)[f"{name}.weight"].float()})
        self.assertIn(name, json.loads((self.dir / "out" / "config.json").read_text())["quantization_config"]["modules_to_not_convert"])

    def test_fp8_again(self):
        source = self.save("source", make_mixture(DEEPSEEK, torch.bfloat16))
        self.cairn("convert", source, "fp8", "--to", "hf", "--quantize", "fp8")
        again = ("convert", "fp8", "again", "--to", "hf", "--quantize", "fp8")
        self.cairn(*again, code=2, says="its weights are quantized already; leave out --quantize")
        fp8 = json.loads((self.dir / "fp8" / "config.json").read_text())
        (self.dir / "fp8" / "config.json").write_text(json.dumps({key: value for key, value in fp8.items() if key != "quantization_config"}))
        self.cairn(*again, code=2, says="its weights are quantized already; leave out --quantize")
        self.cairn(*again, "--dtype", "bf16")
        first, second = tensors(self.dir / "fp8"), tensors(self.dir / "again")
        for name, values in first.items():
            if name.endswith("_scale_inv"):  # the product of a scale and 448 is rounded
                self.assertTrue(torch.allclose(values, second[name], rtol=2 ** -22, atol=0))
            else:
                self.assertTrue(torch.equal(bits(values), bits(second[name])), name)

    def test_bad_requests_are_refused(self):
        source = self.save("source", make_mixture(DEEPSEEK, torch.bfloat16))
        (path,) = source.glob("*.safetensors")
        weights = tensors(source)
        own = self.dir / "own"
        shutil.copytree(source, own)
        (own / "config.json").write_text(json.dumps({"model_type": "unheard_of"}))
        bad = []
        for number, (name, value) in enumerate((("model.layers.1.mlp.experts.2.up_proj.weight", float("nan")),
                                                ("model.layers.0.self_attn.o_proj.weight", float("-inf")))):
            bad.append(self.dir / f"bad-{number}")
            shutil.copytree(source, bad[-1])
            some = weights[name].clone()
            some[139, 7] = value
            save_file(weights | {name: some}, bad[-1] / path.name, {"format": "pt"})
        cases = [
            (source, ("hf", "--quantize", "mxfp4"), "'mxfp4' is not one of fp8"),
            (source, ("safetensors", "--quantize", "fp8"), "--quantize is only for hf"),
            (source, ("native", "--quantize", "fp8"), "--quantize is only for hf"),
            (source, ("dcp", "--quantize", "fp8"), "--quantize is only for hf"),
            (source, ("hf", "--quantize", "fp8", "--keep-fp32", "*proj*"), "leaves nothing to quantize"),
            (own, ("hf", "--quantize", "fp8"), "does not know which tensors of model_type \"unheard_of\""),
            (bad[0], ("hf", "--quantize", "fp8"), "experts.2.up_proj.weight has NaN or infinite values in rows 128 to 139"),
            (bad[1], ("hf", "--quantize", "fp8", "--dtype", "fp32"), "o_proj.weight has NaN or infinite values in rows 128 to 199"),
        ]
        for at, to, says in cases:
            with self.subTest(to):
                done = self.cairn("convert", at, "out", "--to", *to, code=2, says=says)
                self.assertEqual(len([line for line in done.stderr.splitlines() if ": note: " not in line]), 1, done.stderr)
                self.assertEqual(list(self.dir.glob("out*")), [])


class Mxfp4Test(LowPrecisionTest):
    def release(self, largest=False):
        """A model whose experts are random bytes, with scales at both ends, and its tensors in fp32."""
        source = self.save("bf16", make_mixture(MODELS["gpt_oss"], torch.bfloat16))
        self.config = json.loads((source / "config.json").read_text())
        weights, wanted = {}, {}
        generator = torch.Generator().manual_seed(5)
        for name, tensor in tensors(source).items():
            if name.endswith(("gate_up_proj", "down_proj")):
                experts, inner, outer = tensor.shape
                blocks = torch.randint(256, (experts, outer, inner // 32, 16), generator=generator, dtype=torch.uint8)
                scales = torch.randint(110, 130, blocks.shape[:3], generator=generator, dtype=torch.uint8)
                scales[0, 0, 0], scales[-1, -1, -1] = 0, 1
                if largest:
                    scales[0, 1, 0], blocks[0, 1, 0], blocks[0, 1, 0, 0] = 255, 0x91, 0x80  # 0.5 and -0.5, 0 and -0 times 2^128
                weights |= {name + "_blocks": blocks, name + "_scales": scales}
                wanted[name] = convert_moe_packed_tensors(blocks, scales).float()
                self.assertEqual(wanted[name].shape, tensor.shape)
            else:
                weights[name], wanted[name] = tensor, tensor.float()
        return weights, wanted

    def test_values_are_transformers(self):
        weights, wanted = self.release()
        source = self.write("source", weights, self.config, quantization_config=MXFP4 | {"modules_to_not_convert": ["lm_head"]})
        self.check_conversions(source, wanted, "6 mxfp4 weights are read as")

    def test_the_largest_scale_is_transformers(self):
        weights, wanted = self.release(largest=True)
        source = self.write("source", weights, self.config, quantization_config=MXFP4 | {"modules_to_not_convert": ["lm_head"]})
        self.cairn("convert", source, "whole", "--to", "hf", "--dtype", "fp32")
        self.check_tensors("whole", wanted)

    def test_floats_under_the_names_of_blocks(self):
        """As torchtitan saves a model in the form of a release: [experts, out, in]."""
        _, wanted = self.release()
        stored = {}
        for name, tensor in wanted.items():
            experts = name.endswith(("gate_up_proj", "down_proj"))
            stored[name + "_blocks" * experts] = tensor.transpose(1, 2).contiguous() if experts else tensor
        for config in ({}, {"quantization_config": MXFP4}):
            source = self.write("source", stored, self.config, **config)
            self.cairn("convert", source, "back", "--to", "hf")
            self.check_tensors("back", wanted)
            shutil.rmtree(self.dir / "back")

    def test_bad_files_are_refused(self):
        weights, wanted = self.release()
        name = "model.layers.1.mlp.experts.down_proj"
        blocks, scales = name + "_blocks", name + "_scales"
        cases = [
            ([f"{blocks} has no scales: {scales} is missing"], {scales: None}),
            ([f"{scales} has no weight: {blocks} is missing"], {blocks: None}),
            ([f"{blocks} is bf16, but {scales} has scales for it"], {blocks: wanted[name].transpose(1, 2).bfloat16().contiguous()}),
            ([f"{name} is stored twice: as {blocks}, too"], {name: wanted[name]}),
            (["must be bytes"], {scales: weights[scales][:, 1:].contiguous()}),
            (["must be bytes"], {scales: weights[scales].float()}),
            (["must be bytes"], {blocks: weights[blocks][..., :8].contiguous()}),
        ]
        for says, changed in cases:
            with self.subTest(says):
                some = {key: tensor for key, tensor in (weights | changed).items() if tensor is not None}
                source = self.write("source", some, self.config, quantization_config=MXFP4)
                for target in (("native",), ("hf",), ("hf", "--dtype", "fp32")):
                    done = self.cairn("convert", source, "out", "--to", *target, code=2, says=says)
                    self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                    self.assertFalse((self.dir / "out").exists())


if __name__ == "__main__":
    unittest.main()
