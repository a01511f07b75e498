"""What a model computes comes through every format, or is refused by the name of what has no place there: transformers'
models through Megatron's formats and through `cairn train`, megatron-core's into transformers, judged by their logits.
One process for all, for importing the programs is most of the time."""

import argparse
import contextlib
import json
import os
import unittest

os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", CUDA_DEVICE_MAX_CONNECTIONS="1")
import numpy
import torch
import transformers
from harness import Case, cairn
from planned_stages import PlannedStagesTest  # noqa: F401, its programs are imported here already
from torch.overrides import TorchFunctionMode
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
LLAMA = dict(vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=48, max_position_embeddings=64, pad_token_id=0)
GPT2 = dict(vocab_size=101, n_embd=32, n_layer=2, n_head=4, n_positions=64)
NEOX = dict(vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
            max_position_embeddings=64)
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=16)
LINEAR = dict(rope_type="linear", rope_theta=500.0, factor=4.0)
LONG = dict(rope_type="longrope", rope_theta=300.0, partial_rotary_factor=1.0, short_factor=[1.0, 1.5, 2.0, 3.0],
            long_factor=[2.0, 3.0, 4.0, 9.0])
CORE, ALL = {"megatron", "torch-dist"}, {"megatron", "torch-dist", "megatron-deepspeed", "universal"}

# name: configuration, the formats that have a place for it, what the others name
TO_MEGATRON = {
    "llama": (LlamaConfig(**LLAMA), ALL, ""),
    "llama 3.1, as Megatron scales": (LlamaConfig(**LLAMA, rope_parameters=LLAMA3 | {"original_max_position_embeddings": 8192}),
                                      CORE, "rope_scaling is"),
    "llama 3.1, otherwise": (LlamaConfig(**LLAMA, rope_parameters=LLAMA3), set(), "rope_scaling is"),
    "linear scaling": (LlamaConfig(**LLAMA, rope_parameters=LINEAR), CORE, "rope_scaling is"),
    "yarn": (LlamaConfig(**LLAMA, rope_parameters=YARN), set(), "rope_scaling is"),
    "llama, gelu": (LlamaConfig(**LLAMA, hidden_act="gelu"), set(), "activation is \"gelu\""),
    "mistral": (MistralConfig(**LLAMA, sliding_window=None), ALL, ""),
    "mistral, window": (MistralConfig(**LLAMA, sliding_window=4), CORE, "sliding_window is 4"),
    "qwen2": (Qwen2Config(**LLAMA), ALL, ""),
    "qwen3": (Qwen3Config(**LLAMA, head_dim=8), ALL, ""),
    "phi3": (Phi3Config(**LLAMA), ALL, ""),
    "phi3, half of a head": (Phi3Config(**LLAMA, rope_parameters=dict(rope_type="default", rope_theta=300.0, partial_rotary_factor=0.5)),
                             ALL, ""),
    "phi3, longrope": (Phi3Config(**LLAMA, original_max_position_embeddings=16, rope_parameters=LONG), set(), "rope_scaling is"),
    "neox, serial": (GPTNeoXConfig(**NEOX, use_parallel_residual=False), ALL, ""),
    "neox": (GPTNeoXConfig(**NEOX), set(), "parallel_residual is true"),
    "gpt2": (GPT2Config(**GPT2), ALL, ""),
    "gpt2, exact gelu": (GPT2Config(**GPT2, activation_function="gelu"), ALL, ""),
    "gpt2, squared relu": (GPT2Config(**GPT2, activation_function="relu2"), ALL, ""),
    "gpt2, relu": (GPT2Config(**GPT2, activation_function="relu"), set(), "activation is \"relu\""),
    "gpt2, unscaled": (GPT2Config(**GPT2, scale_attn_weights=False), CORE, "attention_scale is 1"),
    "gpt2, scaled by layer": (GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True), set(), "attention_scale_by_layer is true"),
    "bloom": (BloomConfig(vocab_size=101, hidden_size=32, n_layer=2, n_head=4), ALL - CORE, "position_embedding is \"alibi\""),
    "bloom, residual behind the norm": (BloomConfig(vocab_size=101, hidden_size=32, n_layer=2, n_head=4,
                                                    apply_residual_connection_post_layernorm=True), ALL - CORE, "position_embedding is"),
}
TO_TRAIN = {
    "gpt2": (GPT2Config(**GPT2), ""),
    "relu": (GPT2Config(**GPT2, activation_function="relu"), "activation is \"relu\""),
    "epsilon": (GPT2Config(**GPT2, layer_norm_epsilon=0.3), "layernorm_epsilon is 0.3"),
    "scaled by layer": (GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True), "attention_scale_by_layer is true"),
    "heads": (GPT2Config(**GPT2 | {"n_head": 8}), "num_attention_heads is 8"),
    "opt": (OPTConfig(vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=128,
                      max_position_embeddings=64, word_embed_proj_dim=32), "family opt"),
}
# name: TransformerConfig's, GPTModel's, the arguments; the largest difference of logits, or what is named
FROM_CORE = {
    "none": ({}, {}, {}, "llama"),
    "scaling": ({}, dict(rope_scaling=True, rope_scaling_factor=8.0), dict(use_rope_scaling=True, rope_scaling_factor=8.0), "llama"),
    "part of a head": ({}, dict(rotary_percent=0.5), dict(rotary_percent=0.5), "phi3"),
    "interpolation": ({}, dict(seq_len_interpolation_factor=4), dict(rotary_seq_len_interpolation_factor=4), "llama"),
    "window": (dict(window_size=(4, 0)), {}, dict(window_size=(4, 0)), "mistral"),
    "interleaved": (dict(rotary_interleaved=True), {}, dict(rotary_interleaved=True), "rotary_interleaved is true"),
    "scale": (dict(softmax_scale=0.5), {}, dict(softmax_scale=0.5), "attention_scale is 0.5"),
    "layers without": (dict(no_rope_freq=[0, 1]), {}, dict(no_rope_freq=[0, 1]), "layers_without_rope is [0,1]"),
    "a fork": ({}, {}, dict(cubed_logits=3), "args.cubed_logits is 3"),
}


def make(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2) if parameter.dim() > 1 else parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def logits(directory, ids):
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        return type(model).__name__, model(ids).logits


class OnCpu(TorchFunctionMode):
    """megatron-core asks for CUDA devices by name."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class FunctionTest(Case):
    ids = torch.arange(48).reshape(2, 24) * 7 % 101

    def refused(self, says, *args):
        done = cairn(*args, status=2)
        self.assertIn(says, done.stderr)
        self.assertEqual(done.stderr.strip().count("\n"), 0, done.stderr)

    def test_through_megatrons_formats(self):
        for number, (name, (config, held, says)) in enumerate(TO_MEGATRON.items()):
            source = self.path(f"source{number}")
            make(config).save_pretrained(source)
            family, wanted = logits(source, self.ids)
            for format in sorted(ALL):
                out, back = (self.path(f"{kind}{number}-{format}") for kind in ("out", "back"))
                with self.subTest(f"{name} to {format}"):
                    if format not in held:
                        self.refused(says, "convert", source, out, "--to", format)
                        self.assertFalse(os.path.exists(out))
                        continue
                    cairn("convert", source, out, "--to", format)
                    cairn("convert", out, back, "--to", "hf")
                    self.assertEqual(logits(back, self.ids)[0], family)
                    self.assertTrue(torch.equal(logits(back, self.ids)[1], wanted))

    def test_trained_on(self):
        model = ["--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 64, "--vocab-size", 101,
                 "--mock-data", "--micro-batch-size", 2, "--lr", 0, "--weight-decay", 0, "--threads", 1, "--train-iters", 1]
        for number, (name, (config, says)) in enumerate(TO_TRAIN.items()):
            with self.subTest(name):
                source, native, run, back = (self.path(f"{kind}{number}") for kind in ("train", "native", "run", "released"))
                make(config).save_pretrained(source)
                cairn("convert", source, native, "--to", "native")
                done = cairn("train", *model, "--load", native, "--finetune", "--save", run, status=2 if says else 0)
                if says:
                    self.assertIn(says, done.stdout + done.stderr)
                    continue
                cairn("strip", run, back, "--dtype", "fp32")
                wanted, got = logits(source, self.ids), logits(back, self.ids)
                self.assertEqual(got[0], wanted[0])
                self.assertTrue(torch.equal(got[1], wanted[1]))

    def test_stated_type_stays(self):
        source, back = self.path("source"), self.path("back")
        make(GPT2Config(**GPT2)).save_pretrained(source)
        config = json.load(open(source + "/config.json")) | {"dtype": "bfloat16"}
        json.dump(config, open(source + "/config.json", "w"))
        cairn("convert", source, self.path("native"), "--to", "native")
        cairn("convert", self.path("native"), back, "--to", "hf")
        self.assertEqual(AutoModelForCausalLM.from_pretrained(back, dtype="auto").dtype, torch.bfloat16)
        cairn("strip", self.path("native"), self.path("cast"), "--dtype", "fp16")
        self.assertEqual(AutoModelForCausalLM.from_pretrained(self.path("cast"), dtype="auto").dtype, torch.float16)

    def test_of_megatron_core(self):
        if not hasattr(numpy, "product"):  # asked for by megatron-core before 0.15
            numpy.product = numpy.prod
        from megatron.core import parallel_state
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.tensor_parallel import random
        from megatron.core.transformer import TransformerConfig
        torch.cuda.current_device = lambda: "cpu"
        torch.Tensor.cuda = lambda tensor, *_, **__: tensor
        random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
        torch.distributed.init_process_group("gloo", init_method=f"file://{self.path('rendezvous')}", rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        parallel_state.initialize_model_parallel(1, 1)
        positions, vocabulary = 512, 64
        ids = (torch.arange(positions) * 7 % vocabulary)[None]
        for number, (name, (config, of_model, more, wanted)) in enumerate(FROM_CORE.items()):
            with OnCpu():
                built = TransformerConfig(
                    num_layers=2, hidden_size=32, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=48,
                    use_cpu_initialization=True, gated_linear_unit=True, add_bias_linear=False, normalization="RMSNorm",
                    gradient_accumulation_fusion=False, hidden_dropout=0.0, attention_dropout=0.0,
                    activation_func=torch.nn.functional.silu, bias_activation_fusion=False, **config)
                torch.manual_seed(3)
                model = GPTModel(built, get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=vocabulary,
                                 max_sequence_length=positions, rotary_base=500000, share_embeddings_and_output_weights=False,
                                 position_embedding_type="rope", **of_model).eval()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.normal_(0, 0.2) if parameter.dim() > 1 else None
                    reference = model(ids, torch.arange(positions)[None], torch.ones(1, 1, positions, positions).triu(1) > 0)
            args = argparse.Namespace(**dict(
                num_layers=2, hidden_size=32, num_attention_heads=4, group_query_attention=True, num_query_groups=2, kv_channels=8,
                ffn_hidden_size=48, padded_vocab_size=vocabulary, vocab_size=vocabulary, max_position_embeddings=positions,
                norm_epsilon=1e-5, swiglu=True, normalization="RMSNorm", add_bias_linear=False, position_embedding_type="rope",
                rotary_base=500000, untie_embeddings_and_output_weights=True, tensor_model_parallel_size=1,
                pipeline_model_parallel_size=1, transformer_impl="local") | more)
            core, out = self.path(f"core{number}"), self.path(f"stripped{number}")
            os.makedirs(core + "/iter_0000003/mp_rank_00")
            open(core + "/latest_checkpointed_iteration.txt", "w").write("3")
            torch.save({"args": args, "checkpoint_version": 3.0, "iteration": 3, "model": model.state_dict_for_save_checkpoint()},
                       core + "/iter_0000003/mp_rank_00/model_optim_rng.pt")
            with self.subTest(name):
                if " is " in wanted:
                    self.refused(wanted, "strip", core, out)
                    self.assertFalse(os.path.exists(out))
                    continue
                cairn("strip", core, out, "--dtype", "fp32")
                self.assertEqual(json.load(open(out + "/config.json"))["model_type"], wanted)
                self.assertLess(float((logits(out, ids)[1] - reference).abs().max()), 1e-4)
        cairn("strip", self.path(f"core{list(FROM_CORE).index('a fork')}"), self.path("allowed"), "--allow", "args.cubed*")


if __name__ == "__main__":
    unittest.main()
