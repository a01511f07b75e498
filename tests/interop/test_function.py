"""A model's function is kept by every format, or refused by the name of the unsupported field: transformers'
models through Megatron's formats and through `cairn train`, megatron-core's into transformers, judged by their logits.
One process for all, for importing the programs is most of the time."""

import argparse
import contextlib
import importlib.util
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import time
import unittest

os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", CUDA_DEVICE_MAX_CONNECTIONS="1")
import numpy
import torch
import transformers
from harness import CAIRN, Case, cairn, topology
from planned_stages import PlannedStagesTest  # noqa: F401, its programs are imported here already
from safetensors import safe_open
from torch.overrides import TorchFunctionMode
from trained_families import TrainedFamiliesTest  # noqa: F401, likewise
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
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
    "yarn": (LlamaConfig(**LLAMA, rope_parameters=YARN), CORE, "rope_scaling is"),
    "llama, gelu": (LlamaConfig(**LLAMA, hidden_act="gelu"), set(), "activation is \"gelu\""),
    "mistral": (MistralConfig(**LLAMA, sliding_window=None), ALL, ""),
    "mistral, window": (MistralConfig(**LLAMA, sliding_window=4), CORE, "sliding_window is 4"),
    "llama, biases": (LlamaConfig(**LLAMA, attention_bias=True, mlp_bias=True), ALL, ""),
    "llama, biases of attention": (LlamaConfig(**LLAMA, attention_bias=True), set(), "layers.0.attention.output.bias"),
    "llama, biases of the MLP": (LlamaConfig(**LLAMA, mlp_bias=True), set(), "would ask for layers.0.attention.key.bias"),
    "qwen2": (Qwen2Config(**LLAMA), CORE, "would ignore layers.0.attention.query.bias"),
    "qwen2, windows": (Qwen2Config(**LLAMA, use_sliding_window=True, sliding_window=5, max_window_layers=1), CORE, "sliding_window is 5"),
    "qwen3": (Qwen3Config(**LLAMA, head_dim=8), CORE, "would ignore layers.0.attention.query_norm.weight"),
    "qwen3, biases": (Qwen3Config(**LLAMA, head_dim=8, attention_bias=True), set(), "would ignore layers.0.attention."),
    "qwen3, all windows": (Qwen3Config(**LLAMA, head_dim=8, use_sliding_window=True, sliding_window=5, max_window_layers=0), CORE,
                           "sliding_window is 5"),
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
# What megatron-core's strict load takes, with transformers' logits: all that TO_MEGATRON says it has a place for, but for rotary
# scaling, which Megatron-LM's model provider passes on.
STRICT = [name for name, (_, held, _) in TO_MEGATRON.items() if "megatron" in held and "llama 3.1" not in name and name != "yarn"]
MODEL = ["--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--vocab-size", 101, "--threads", 1]
# name: TransformerConfig's, GPTModel's, the arguments; the largest difference of logits, or what is named
FROM_CORE = {
    "none": ({}, {}, {}, "llama"),
    "scaling": ({}, dict(rope_scaling=True, rope_scaling_factor=8.0), dict(use_rope_scaling=True, rope_scaling_factor=8.0), "llama"),
    "part of a head": ({}, dict(rotary_percent=0.5), dict(rotary_percent=0.5), "phi3"),
    "interpolation": ({}, dict(seq_len_interpolation_factor=4), dict(rotary_seq_len_interpolation_factor=4), "llama"),
    "window": (dict(window_size=(4, 0)), {}, dict(window_size=(4, 0)), "mistral"),
    "interleaved": (dict(rotary_interleaved=True), {}, dict(rotary_interleaved=True), "ernie4_5"),
    "scale": (dict(softmax_scale=0.5), {}, dict(softmax_scale=0.5), "granite"),
    "layers without": (dict(no_rope_freq=[0, 1]), {}, dict(no_rope_freq=[0, 1]), "smollm3"),
    "Megatron-LM of 2024": ({}, {}, dict(use_mcore_models=True), "llama"),
    "a fork": ({}, {}, dict(cubed_logits=3, z_loss=0.5), "args.cubed_logits is 3"),
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


def core_model(args):
    """The model that Megatron-LM's model provider makes from its arguments."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
    functional = torch.nn.functional
    relu2 = lambda x: functional.relu(x).square()  # noqa: E731
    config = TransformerConfig(
        num_layers=args.num_layers, hidden_size=args.hidden_size, num_attention_heads=args.num_attention_heads,
        num_query_groups=args.num_query_groups, kv_channels=args.kv_channels, ffn_hidden_size=args.ffn_hidden_size,
        use_cpu_initialization=True, gated_linear_unit=args.swiglu, add_bias_linear=args.add_bias_linear,
        add_qkv_bias=args.add_qkv_bias, qk_layernorm=args.qk_layernorm, normalization=args.normalization,
        layernorm_epsilon=args.norm_epsilon, window_size=args.window_size, window_attn_skip_freq=args.window_attn_skip_freq,
        softmax_scale=args.softmax_scale, bias_activation_fusion=args.bias_gelu_fusion,
        activation_func=functional.silu if args.swiglu else relu2 if args.squared_relu else functional.gelu,
        apply_rope_fusion=False, gradient_accumulation_fusion=False, hidden_dropout=0.0, attention_dropout=0.0)
    rope = args.position_embedding_type == "rope"
    return GPTModel(
        config, get_gpt_layer_local_spec(normalization=args.normalization, qk_layernorm=args.qk_layernorm),
        vocab_size=args.padded_vocab_size, max_sequence_length=args.max_position_embeddings,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type, rotary_base=args.rotary_base if rope else 10000,
        rotary_percent=args.rotary_percent if rope else 1.0,
        seq_len_interpolation_factor=args.rotary_seq_len_interpolation_factor if rope else None).eval()


def hybrid_model(positions, vocabulary):
    """Made of Megatron-Core's own layers, which need no Transformer Engine."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.hybrid import hybrid_block
    from megatron.core.models.hybrid.hybrid_model import HybridModel
    from megatron.core.ssm.mlp_layer import MLPLayer
    from megatron.core.transformer import ModuleSpec, TransformerConfig, TransformerLayer, torch_norm
    from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules
    hybrid_block.TENorm = torch_norm.WrappedTorchNorm
    layer = get_gpt_layer_local_spec(normalization="RMSNorm").submodules

    def half(module, *parts):
        chosen = {part: getattr(layer, part) for part in ("sharded_state_dict_keys_map", *parts)}
        return ModuleSpec(module=module, submodules=TransformerLayerSubmodules(**chosen))

    stack = hybrid_block.HybridStackSubmodules(
        attention_layer=half(TransformerLayer, "input_layernorm", "self_attention", "self_attn_bda"),
        mlp_layer=half(MLPLayer, "pre_mlp_layernorm", "mlp", "mlp_bda"))
    config = TransformerConfig(
        num_layers=4, hidden_size=32, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=48,
        use_cpu_initialization=True, gated_linear_unit=True, add_bias_linear=False, normalization="RMSNorm",
        gradient_accumulation_fusion=False, hidden_dropout=0.0, attention_dropout=0.0,
        activation_func=torch.nn.functional.silu, bias_activation_fusion=False, is_hybrid_model=True)
    return HybridModel(config, ModuleSpec(module=hybrid_block.HybridStack, submodules=stack), vocabulary, positions,
                       hybrid_layer_pattern="*-*-", position_embedding_type="rope", rotary_base=500000).eval()


class FunctionTest(Case):
    ids = torch.arange(48).reshape(2, 24) * 7 % 101

    def refused(self, says, *args, **kwargs):
        done = cairn(*args, status=2, **kwargs)
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
                    found = logits(back, self.ids)
                    self.assertEqual(found[0], family)
                    self.assertTrue(torch.equal(found[1], wanted))

    def test_untrainable_models_are_named(self):
        batches = ["--mock-data", "--seq-length", 64, "--threads", 1, "--train-iters", 1]
        for number, (config, flags, says) in enumerate((
                (GPT2Config(**GPT2), ["--num-attention-heads", 8], "num_attention_heads would be 8, but is 4 in the checkpoint"),
                (LlamaConfig(**LLAMA), ["--openai-gelu"], 'activation would be "gelu_new", but is "silu" in the checkpoint'),
                (LlamaConfig(**LLAMA, hidden_act="mish"), [], "activation is 'mish'"),
                (Gemma2Config(**LLAMA, head_dim=8), [], "attn_logit_softcapping is 50"))):
            source, native = self.path(f"train{number}"), self.path(f"native{number}")
            make(config).save_pretrained(source)
            cairn("convert", source, native, "--to", "native")
            self.refused(says, "train", *batches, *flags, "--load", native, "--finetune")

    def test_compares_the_losses_of_two_checkpoints(self):
        """verify --loss: the loss equals transformers', is equal for equal models, and differs if a head is elsewhere."""
        source, native, wide, ids, text = (self.path(name) for name in ("source", "native", "wide", "ids.txt", "text.txt"))
        os.mkdir(self.path("scratch"))
        model = make(GPT2Config(**GPT2))
        model.save_pretrained(source)
        numpy.savetxt(ids, self.ids[:1].numpy(), fmt="%d")
        with torch.no_grad():
            expected = float(model(self.ids[:1], labels=self.ids[:1]).loss)
        cairn("convert", source, native, "--to", "native")
        cairn("reshape", native, wide, "--tp", 2, "--pp", 2, "--dp", 1)
        told = self.compare_losses(ids + ":1", source, wide, "--seq-length", self.ids.shape[1] - 1)
        self.assertEqual((told["equal"], told["largest_difference"], told["seq_length"]), (True, 0, 23))
        self.assertEqual(told["a"]["batches"], told["b"]["batches"])
        self.assertLess(abs(told["a"]["loss"] / expected - 1), 1e-6)
        log = self.path("losses")  # the same of several ranks, by the trainer itself
        cairn("train", *topology(2, 2, 1), *MODEL, "--seq-length", 64, "--mock-data", "--skip-train", "--load", wide, "--eval-iters", 2,
              "--log-json", log)
        cairn("train", *MODEL, "--seq-length", 64, "--mock-data", "--skip-train", "--load", native, "--eval-iters", 2, "--log-json",
              log)
        with open(log) as lines:
            rows = [json.loads(line) for line in lines]
        self.assertEqual([row["batch"] for row in rows], [1, 2, 1, 2])
        for ours, other in zip(rows, rows[2:]):
            self.assertLess(abs(ours["loss"] / other["loss"] - 1), 1e-6)
        cairn("strip", wide, self.path("rounded"), "--dtype", "bf16")
        with torch.no_grad():
            rows = model.transformer.h[1].attn.c_proj.weight  # [in, out]: the heads' outputs one after another
            rows.copy_(rows.roll(8, 0))
        model.save_pretrained(self.path("permuted"))
        for other in ("rounded", "permuted"):
            told = self.compare_losses("mock:3", wide, self.path(other), status=1)
            self.assertFalse(told["equal"])
            self.assertGreater(told["largest_difference"], 1e-5)
            self.assertEqual((len(told["b"]["batches"]), told["seq_length"]), (3, 64))
            self.compare_losses("mock:3", wide, self.path(other), "--loss-tolerance", 0.5)
        with open(text, "w") as file:
            file.write("1 2 3\nfour\n")
        make(GPT2Config(**GPT2 | {"vocab_size": 50})).save_pretrained(self.path("small"))
        two = native, wide
        for says, *args in (("there is no", "--loss", self.path("data"), *two), ("compares two", "--loss", "mock", native),
                            ("text.txt:2: 'four' is not a token id", "--loss", text, *two), ("verify checks one", *two),
                            ("more than the 64", "--loss", "mock", *two, "--seq-length", 65),
                            ("outside --vocab-size 50", "--loss", ids + ":1", source, self.path("small"))):
            self.refused(says, "verify", *args, env=os.environ | {"TMPDIR": self.path("scratch")})
        self.assertEqual(os.listdir(self.path("scratch")), [])

        # Killed in the middle, on a terminal: it reports how far it is, and its copy of the weights goes away.
        for kill in (signal.SIGTERM, signal.SIGKILL):
            ours, terminal = pty.openpty()
            verify = subprocess.Popen([CAIRN, "verify", "--loss", "mock:20000", source, native], stdout=subprocess.DEVNULL,
                                      stderr=terminal, start_new_session=True, env=os.environ | {"TMPDIR": self.path("scratch")})
            os.close(terminal)
            said = b""
            while b"batches/s" not in said:
                said += os.read(ours, 1000)  # an OSError where it ended
            self.assertRegex(said.decode(), r"evaluating \d+ batches of 20000 batches \(\d+ %\), [\d.]+ batches/s, .* left")
            self.assertTrue(os.listdir(self.path("scratch")))
            os.killpg(verify.pid, kill)
            self.assertEqual(verify.wait(), -kill)
            os.close(ours)
            while os.listdir(self.path("scratch")):
                time.sleep(0.05)

    def compare_losses(self, batches, a, b, *flags, status=0):
        told = json.loads(cairn("verify", "--loss", batches, a, b, "--json", *flags, status=status,
                                env=os.environ | {"TMPDIR": self.path("scratch")}).stdout)
        self.assertEqual(os.listdir(self.path("scratch")), [])
        return told

    def test_the_stated_type_is_kept(self):
        source, back = self.path("source"), self.path("back")
        make(GPT2Config(**GPT2)).save_pretrained(source)
        config = json.load(open(source + "/config.json")) | {"dtype": "bfloat16"}
        json.dump(config, open(source + "/config.json", "w"))
        cairn("convert", source, self.path("native"), "--to", "native")
        cairn("convert", self.path("native"), back, "--to", "hf")
        self.assertEqual(AutoModelForCausalLM.from_pretrained(back, dtype="auto").dtype, torch.bfloat16)
        cairn("strip", self.path("native"), self.path("cast"), "--dtype", "fp16")
        self.assertEqual(AutoModelForCausalLM.from_pretrained(self.path("cast"), dtype="auto").dtype, torch.float16)

    def test_through_megatron_core(self):
        if not hasattr(numpy, "product"):  # asked for by megatron-core before 0.15
            numpy.product = numpy.prod
        from megatron.core import parallel_state
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.tensor_parallel import random
        from megatron.core.transformer import TransformerConfig
        torch.cuda.current_device = lambda: "cpu"
        torch.cuda.synchronize = lambda *_: None
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
        if importlib.util.find_spec("megatron.core.models.hybrid"):  # since 0.17
            with self.subTest("hybrid"):
                self.check_hybrid(ids, vars(args))
        fork = self.path(f"core{list(FROM_CORE).index('a fork')}")
        self.check_allowing(fork)
        for name in STRICT:
            with self.subTest(f"{name}, strictly"), OnCpu():
                self.check_strict_load(TO_MEGATRON[name][0], name)

    def check_hybrid(self, ids, args):
        """A hybrid that alternates attention and MLP is a GPT of half as many layers; others are refused."""
        from megatron.core import dist_checkpointing
        positions = ids.shape[1]
        with OnCpu():
            model = hybrid_model(positions, args["padded_vocab_size"])
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.normal_(0, 0.2) if parameter.dim() > 1 else None
                mask = torch.ones(1, 1, positions, positions).triu(1) > 0
                reference = model(ids, torch.arange(positions)[None], mask)
        del args["cubed_logits"], args["z_loss"]
        args |= {"num_layers": 4, "hybrid_layer_pattern": "*-*-",
                 "spec": ["megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"]}
        common = {"args": argparse.Namespace(**args), "checkpoint_version": 3.0, "iteration": 3}
        ranks, dist = self.path("hybrid-ranks/iter_0000003/mp_rank_00"), self.path("hybrid/iter_0000003")
        os.makedirs(ranks), os.makedirs(dist)
        torch.save(common | {"model": model.state_dict_for_save_checkpoint()}, ranks + "/model_optim_rng.pt")
        dist_checkpointing.save(model.sharded_state_dict() | common, dist, ("torch_dist", 1))
        cairn("convert", dist, self.path("hybrid-gpt"), "--to", "torch-dist", "--tp", 2, "--pp", 2)
        for source in (os.path.dirname(ranks), dist, self.path("hybrid-gpt")):
            out = self.path("stripped-" + os.path.relpath(source, self.dir).split("/")[0])
            cairn("strip", source, out, "--dtype", "fp32")
            self.assertLess(float((logits(out, ids)[1] - reference).abs().max()), 1e-4)
        common["args"].hybrid_layer_pattern = "**--"
        torch.save(common, dist + "/common.pt")  # which is read before the item of the same contents
        self.refused("--from dcp reads the tensors", "strip", dist, self.path("refused"))
        cairn("inspect", dist, "--from", "dcp")

    def check_allowing(self, fork):
        """All unknown arguments are named together, with the flag that accepts them; for a step, too."""
        cairn("convert", fork, self.path("fork-native"), "--to", "native")
        for number, source in enumerate((fork, self.path("fork-native"))):
            out = self.path(f"allowed{number}")
            said = cairn("strip", source, out, status=2).stderr
            self.assertRegex(said, "args.cubed_logits is 3, .*; args.z_loss is 0.5, .*; if none of it changes")
            cairn("strip", source, out, *shlex.split(re.search("--allow '[^']*'", said)[0]))
            with safe_open(out + "/model.safetensors", "pt") as file:
                history = file.metadata()["cairn.history"]
            for name in ("args.cubed_logits", "args.z_loss"):
                self.assertRegex(history, f"import: {name} was left out .*--allow")

    def check_strict_load(self, config, name):
        """Models built from the arguments in the files accept every tensor and miss none, in both forms."""
        from megatron.core import dist_checkpointing
        from megatron.core.dist_checkpointing.validation import StrictHandling
        source = self.path(name)
        model = make(config)
        model.save_pretrained(source)
        ids, length = self.ids, self.ids.shape[1]
        expected = model(ids).logits
        for format in ("torch-dist", "megatron"):
            out = self.path(f"{name}-{format}")
            cairn("convert", source, out, "--to", format, "--transformer-impl", "local")
            if format == "torch-dist":
                args = dist_checkpointing.load_common_state_dict(out + "/release")["args"]
                core = core_model(args)
                state = dist_checkpointing.load({"model": core.sharded_state_dict()}, out + "/release", strict=StrictHandling.RAISE_ALL)
            else:
                state = torch.load(out + "/iter_0000000/mp_rank_00/model_optim_rng.pt", weights_only=False)
                core = core_model(state["args"])
            core.load_state_dict(state["model"], strict=True)
            found = core(ids, torch.arange(length).expand(len(ids), -1), torch.ones(1, 1, length, length).triu(1) > 0)
            self.assertLess(float((found[..., :config.vocab_size] - expected).abs().max()), 1e-4, format)


if __name__ == "__main__":
    unittest.main()
