"""Releases in FP8 and MXFP4: read as the numbers that torch and transformers make of them, and refused if a part is missing.

Each of the two programs is right for one form only: torch for FP8 (transformers takes the block for rows / rows of scales), transformers
for MXFP4 (torch 2.11 leaves most columns zero).
"""

import json
import shutil
import unittest
import warnings

import torch
import torch.distributed.checkpoint as dcp
from mixtures_writer import MODELS, make_mixture
from safetensors.torch import save_file
from test_huggingface import TransformersTest, bits, logits, tensors
from test_mixtures import MESHES, flags
from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader
from transformers import DeepseekV3Config
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
            scales[r, c] = weight[r * block:(r + 1) * block, c * block:(c + 1) * block].abs().max().clamp(min=1e-12) / 448
    return (weight / to_blocks(scales, block, weight.shape)).to(torch.float8_e4m3fn), scales


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

    def by_torch(self, source, weights, block=128):
        state = {name: torch.empty(tensor.shape) for name, tensor in weights.items() if not name.endswith("_scale_inv")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(state, storage_reader=QuantizedHuggingFaceStorageReader(str(source), block_size=block), no_dist=True)
        return state

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
        """As releases of DeepSeek-V3 have them: in FP8, with copies of two tensors, which are compared and not kept."""
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
        self.check_tensors("back", self.by_torch(source, weights | more))
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
            (["quantized by \"gptq\""], {}, {"quantization_config": {"quant_method": "gptq"}}),
        ]
        for says, changed, config in cases:
            with self.subTest(says):
                some = {key: tensor for key, tensor in (weights | changed).items() if tensor is not None}
                source = self.write("source", some, self.config, **odd | config)
                for target in (("native", "--dtype", "bf16"), ("native",), ("hf",), ("safetensors", "--dtype", "fp32")):
                    done = self.cairn("convert", source, "out", "--to", *target, code=2, says=says)
                    self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                    self.assertFalse((self.dir / "out").exists())


class Mxfp4Test(LowPrecisionTest):
    def release(self):
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
