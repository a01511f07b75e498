"""Types of transformers through Megatron-Core's torch_dist: tiny models of the real transformers, whose bits come back through native steps and
through torch_dist at TP 2; megatron-core loads every key of what cairn writes, computes the loss that transformers computes, and cairn reads
what it saves. A type that Megatron-Core cannot compute is refused with the reason. The score is printed; docs/formats.md has it, and a table of all
systems, which this test fills.

CAIRN_TYPES="llama gpt_oss" takes only these; without CAIRN_LONG it is a type for each way to be different."""

import contextlib
import dataclasses
import importlib.util
import json
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import warnings

os.environ.update(RANK="0", WORLD_SIZE="1", CUDA_DEVICE_MAX_CONNECTIONS="1")
import torch
import transformers
from latent_attention import LatentAttention
from test_function import OnCpu
from test_huggingface import TransformersTest
from tiny_types import CLASSES, tiny

WINDOW = dict(sliding_window=5, layer_types=["sliding_attention", "full_attention", "sliding_attention"])
LATENT = dict(num_key_value_heads=4)
YARN = dict(rope_parameters=dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=16))
# {type: what its configuration has beside that of tiny_types}
HELD = {
    "arcee": {}, "aria_text": {}, "cwm": WINDOW, "deepseek_v2": LATENT, "deepseek_v3": LATENT | dict(head_dim=8, n_group=2, topk_group=1),
    "dots1": WINDOW | dict(norm_topk_prob=True), "ernie4_5": {}, "exaone_moe": WINDOW, "glm": {}, "glm4_moe": {}, "glm4_moe_lite": LATENT,
    "gpt-sw3": {}, "gpt2": {}, "gpt_bigcode": {}, "gpt_neox": dict(use_parallel_residual=False), "gpt_oss": {},
    "granite": dict(attention_multiplier=0.5), "granitemoe": {}, "helium": {}, "hy_v3": {}, "internlm3": {}, "iquestcoder": {}, "jais2": {},
    "kimi_k2": LATENT | dict(head_dim=8, q_lora_rank=None), "llama": {}, "ministral": WINDOW, "mistral": {}, "mixtral": {}, "nemotron": {},
    "persimmon": {}, "phi3": {}, "qwen2": {}, "qwen2_moe": {}, "qwen3": YARN, "qwen3_moe": {}, "seed_oss": {},
    "smollm3": dict(no_rope_layers=[1, 0, 1]), "solar_open": {}, "stablelm": dict(use_qkv_bias=True), "starcoder2": {},
    "youtu": LATENT | dict(head_dim=8),
}
FEW = "cwm deepseek_v3 ernie4_5 exaone_moe glm gpt_bigcode gpt_oss granite hy_v3 kimi_k2 nemotron persimmon qwen3 smollm3 stablelm starcoder2 youtu"
# {type: (the same, what the refusal names)}
UNKNOWN = "and so are Megatron's names for its tensors"
REFUSED = {kind: ({}, UNKNOWN) for kind in (
    "apertus bailing_hybrid cohere cohere2 ernie4_5_moe exaone4 falcon gemma gemma3_text glm4 glm_moe_dsa hunyuan_v1_dense hunyuan_v1_moe "
    "mimo_v2_flash minimax_m2 nemotron_h olmo olmo2 olmo3 phi phimoe").split()} | {
    kind: ({}, "layer_types is")
    for kind in ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")} | {
    "bloom": ({}, "position_embedding is"), "gemma2": ({}, "embedding_multiplier is"), "llama4_text": ({}, "router_method is"),
    "olmoe": ({}, "would ignore layers.0.attention.all_queries_norm.weight"), "opt": ({}, "activation is \"relu\"")}
# Models of types that Megatron-Core computes, but not with these values.
VALUES = {
    "dots1": ({"norm_topk_prob": False}, "router_normalizes is false"), "gpt_neox": ({}, "parallel_residual is true"),
    "granite": ({"residual_multiplier": 0.22}, "residual_multiplier is 0.22"), "llama": ({"hidden_act": "gelu"}, "activation is"),
    "qwen3": ({"rope_parameters": YARN["rope_parameters"] | {"attention_factor": 1.5}}, "rope_scaling is")}
SYSTEMS = "native dcp torch-dist megatron megatron-deepspeed universal".split()
ALSO = {"kimi_k2": "deepseek_v3"}  # types that transformers does not have, and the one that computes them
DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGE = DOCS / "adding-a-family.md"  # whose table is StableLM's


def made(kind, more):
    config = tiny(kind, **more)
    torch.manual_seed(len(kind))
    model = getattr(transformers, CLASSES[kind])._from_config(config, attn_implementation="eager").eval().float()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "norm" in name and name.endswith("weight"):
                tensor.add_(torch.randn_like(tensor) * 0.3)
            elif torch.is_floating_point(tensor):
                tensor.copy_(torch.randn_like(tensor) * 0.2)
    return model


class ZeroCentered(torch.nn.Module):
    """As Transformer Engine's norms are with zero_centered_gamma."""

    def __init__(self, config, hidden_size, eps=1e-5):
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(torch.zeros(hidden_size)) for _ in range(2))
        self.eps = eps

    def forward(self, x):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], self.weight + 1, self.bias, self.eps)


def squared_relu(x):
    return torch.relu(x).square()


def config_of(args):
    """As core_transformer_config_from_args() of Megatron-LM makes it."""
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig
    kind = MLATransformerConfig if getattr(args, "multi_latent_attention", False) else TransformerConfig
    given = {field.name: getattr(args, field.name) for field in dataclasses.fields(kind) if hasattr(args, field.name)}
    from megatron.core.fusions.fused_bias_geglu import quick_gelu
    gated = getattr(args, "quick_geglu", False)
    given |= dict(
        layernorm_epsilon=args.norm_epsilon, num_moe_experts=args.num_experts, gated_linear_unit=args.swiglu or gated,
        activation_func=torch.nn.functional.silu if args.swiglu else squared_relu if args.squared_relu else quick_gelu if gated else
        torch.nn.functional.gelu, bias_activation_fusion=args.bias_gelu_fusion,
        num_query_groups=args.num_query_groups if args.group_query_attention else None, use_cpu_initialization=True,
        layernorm_zero_centered_gamma=args.apply_layernorm_1p, gradient_accumulation_fusion=False, hidden_dropout=0.0,
        attention_dropout=0.0, moe_grouped_gemm=False, moe_router_load_balancing_type="none", moe_token_dispatcher_type="allgather",
        pipeline_dtype=torch.float32)
    config = kind(**{name: value for name, value in given.items() if value is not None or name == "q_lora_rank"})
    if args.position_embedding_type == "yarn":
        for name in ("rotary_scaling_factor", "mscale", "mscale_all_dim"):
            setattr(config, "yarn_" + name, getattr(args, name))
        for name in ("original_max_position_embeddings", "beta_fast", "beta_slow", "correction_range_round_to_int"):
            setattr(config, "yarn_" + name, getattr(args, "yarn_" + name))
    return config


def core_model(args):
    """The model that Megatron-LM's model provider makes from its arguments, with Megatron-Core's own layers."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    config = config_of(args)
    zero_centered, config.layernorm_zero_centered_gamma = config.layernorm_zero_centered_gamma, False
    block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=args.normalization)
    if zero_centered:
        block.layer_norm = ZeroCentered
        for layer in block.layer_specs:
            layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = ZeroCentered
    for layer in block.layer_specs if config.multi_latent_attention else ():
        layer.submodules.self_attention.submodules.core_attention = LatentAttention
    rope = args.position_embedding_type in ("rope", "yarn")
    return GPTModel(
        config, block, vocab_size=args.padded_vocab_size, max_sequence_length=args.max_position_embeddings,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type, rotary_base=args.rotary_base if rope else 10000,
        rotary_percent=args.rotary_percent if rope else 1.0, rope_scaling=bool(rope and args.use_rope_scaling),
        rope_scaling_factor=getattr(args, "rope_scaling_factor", None) or 8.0).eval()


class FamiliesTest(TransformersTest):
    def setUp(self):
        super().setUp()
        (self.dir / "families").mkdir()
        (self.dir / "families/stablelm.json").write_text(PAGE.read_text().split("```json")[1].split("```")[0])

    def cairn(self, *args, **more):
        return super().cairn(*args, "--families", self.dir / "families", **more)

    def save_made(self, kind, more):
        model = made(ALSO.get(kind, kind), more)
        source = self.save(kind, model)
        if kind in ALSO:
            path = source / "config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": kind}))
        return source, model


@unittest.skipIf(importlib.util.find_spec("megatron") is None, "megatron-core is not installed")
class MegatronFamiliesTest(FamiliesTest):
    ids = torch.arange(24)[None] * 7 % 97

    @classmethod
    def setUpClass(cls):
        warnings.simplefilter("ignore")
        from megatron.core import parallel_state
        from megatron.core.dist_checkpointing.strategies import filesystem_async
        from megatron.core.tensor_parallel import random
        from megatron.core.transformer import multi_latent_attention
        from megatron.core.transformer.moe import moe_utils
        moe_utils.te_general_gemm = None
        multi_latent_attention.HAVE_TE = False
        filesystem_async._results_queue = multiprocessing.get_context("fork").Manager().Queue()  # a spawned one takes 5 s
        place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(place.cleanup)
        torch.distributed.init_process_group("gloo", init_method=f"file://{place.name}/rendezvous", rank=0, world_size=1)
        cls.addClassCleanup(torch.distributed.destroy_process_group)
        parallel_state.initialize_model_parallel()
        cls.addClassCleanup(parallel_state.destroy_model_parallel)
        random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
        torch.cuda.current_device = lambda: "cpu"
        torch.cuda.synchronize = lambda *_: None
        torch.Tensor.cuda = lambda tensor, *_, **__: tensor

    def loss(self, logits):
        return torch.nn.functional.cross_entropy(logits[0, :-1].double(), self.ids[0, 1:]).item()

    def check_core(self, kind, source, model):
        """megatron-core loads it and computes the same, and cairn reads what it saves."""
        from megatron.core import dist_checkpointing
        self.cairn("convert", source, f"{kind}-in", "--to", "torch-dist", "--transformer-impl", "local")
        step = next((self.dir / f"{kind}-in").rglob("metadata.json")).parent
        common = dist_checkpointing.load_common_state_dict(str(step))
        core = core_model(common["args"])
        state, missing, unexpected = dist_checkpointing.load({"model": core.sharded_state_dict()}, str(step), strict="return_all")
        missing = {key for key in missing if not key.split("/")[0].endswith("_extra_state")}
        self.assertFalse(missing or unexpected, (kind, missing, unexpected))
        core.load_state_dict(state["model"], strict=True)
        positions = torch.arange(self.ids.shape[1])
        with torch.no_grad():
            wanted = self.loss(model(self.ids, use_cache=False).logits)
            logits = core(self.ids, positions[None], (positions[:, None] < positions)[None, None])[..., :model.config.vocab_size]
        self.assertGreater(wanted, 0.5)
        self.assertAlmostEqual(self.loss(logits), wanted, delta=1e-5, msg=kind)
        saved = self.dir / f"{kind}-saved" / step.name
        saved.mkdir(parents=True)
        dist_checkpointing.save({"model": core.sharded_state_dict()} | {
            key: common[key] for key in ("args", "checkpoint_version", "iteration")}, str(saved), ("torch_dist", 1))
        self.cairn("convert", saved, f"{kind}-back", "--to", "hf")
        self.check_equal(source, self.dir / f"{kind}-back")
        if kind in ALSO:
            path = self.dir / f"{kind}-back/config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": ALSO[kind]}))
        back = transformers.AutoModelForCausalLM.from_pretrained(self.dir / f"{kind}-back", attn_implementation="eager").eval()
        self.assertAlmostEqual(self.loss(back(self.ids, use_cache=False).logits.detach()), wanted, delta=1e-6, msg=kind)

    def check(self, kind, more):
        source, model = self.save_made(kind, more)
        tp = 1 if kind == "gpt_bigcode" else 2  # it has one key
        for run, flags in ((f"{kind}-native", ("--to", "native")), (f"{kind}-dist", ("--to", "torch-dist", "--tp", tp))):
            self.cairn("convert", source, run, *flags)
            self.cairn("convert", run, f"{run}-hf", "--to", "hf")
            self.check_equal(source, self.dir / f"{run}-hf")
            self.assertEqual(*(json.loads((place / "config.json").read_text())["model_type"] for place in (source, self.dir / f"{run}-hf")))
        with OnCpu():
            self.check_core(kind, source, model)

    def test_types(self):
        asked = (os.environ.get("CAIRN_TYPES") or (" ".join(HELD) if os.environ.get("CAIRN_LONG") else FEW)).split()
        import megatron.core
        if not megatron.core.__version__.startswith("0.16."):  # its own layers lack a query without latents
            asked = [kind for kind in asked if kind != "kimi_k2"]
        good = 0
        for kind in asked:
            with self.subTest(kind):
                self.check(kind, HELD[kind])
                good += 1
        print(f"into torch_dist, megatron-core and back: {good} of {len(asked)} types", file=sys.stderr)

    def test_other_functions_are_refused(self):
        for kind, (more, says) in (REFUSED | VALUES).items():
            with self.subTest(kind):
                source, _ = self.save_made(kind, more)
                self.cairn("convert", source, "out", "--to", "torch-dist", code=2, says=says)
                self.assertFalse((self.dir / "out").exists())
        print(f"refused with the reason: {len(REFUSED)} types", file=sys.stderr)


class SystemsTest(FamiliesTest):
    def holds(self, source, system, *flags):
        """Whether cairn would write it. A refusal says why."""
        done = subprocess.run([self.command, "convert", source, "out", "--to", system, *flags, "--dry-run", "--families", self.dir / "families"],
                              cwd=self.dir, capture_output=True, text=True)
        self.assertRegex(done.stderr, "^$" if done.returncode == 0 else "^cairn: .*(unknown|cannot|would compute|no arguments)", system)
        return done.returncode == 0

    def check_back(self, source, system, *flags):
        place = f"{source.name}-{system}"
        self.cairn("convert", source, place, "--to", system, *flags)
        self.cairn("convert", place, f"{place}-hf", "--to", "hf", *(("--config", source) if system == "dcp" else ()))
        self.check_equal(source, self.dir / f"{place}-hf")

    def test_types_and_systems(self):
        """The table in docs/formats.md, which CAIRN_WRITE=1 writes. One system of each type, with CAIRN_LONG all, is written and comes back."""
        rows = {}
        for number, (kind, more) in enumerate(sorted((HELD | {kind: more for kind, (more, _) in REFUSED.items()}).items())):
            with self.subTest(kind):
                source, _ = self.save_made(kind, more)
                cut = "--tp", "1" if kind == "gpt_bigcode" else "2"  # it has one key
                held = [system for system in SYSTEMS if self.holds(source, system, *cut)]
                for system in held if os.environ.get("CAIRN_LONG") else [held[number % len(held)]]:
                    self.check_back(source, system, *cut)
                rows.setdefault(tuple(held), []).append(f"`{kind}`")
        lines = ["| types | " + " | ".join(f"`{system}`" for system in SYSTEMS) + " |", "| --- " * (len(SYSTEMS) + 1) + "|"]
        for held, kinds in sorted(rows.items(), key=lambda row: (-len(row[0]), row)):
            lines.append(f"| {', '.join(kinds)} | " + " | ".join("yes" if system in held else "no" for system in SYSTEMS) + " |")
        page, table = DOCS / "formats.md", "\n".join(lines)
        before, of_page, after = re.split(r"(?s)(\| types \|.*?)(?=\n\n)", page.read_text())
        if os.environ.get("CAIRN_WRITE"):
            page.write_text(before + table + after)
        self.assertEqual(of_page, table, "CAIRN_WRITE=1 writes the table")
        in_core = sum(len(kinds) for held, kinds in rows.items() if "torch-dist" in held)
        self.assertEqual(in_core, len(HELD))
        self.assertIn(f"{in_core} types of transformers go into `torch_dist`", before + after)


if __name__ == "__main__":
    unittest.main()
