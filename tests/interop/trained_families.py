"""What `cairn convert` imports is trained on without a flag of the model: each family's logits are those of transformers, and
ten steps on four ranks those of torch.optim.AdamW on the same batches, the last five also on one rank from what cairn.torch saved
of torch's training in the middle; what comes out is what torch has."""

import os
import pathlib
import subprocess
import sys

import numpy
import torch
from harness import Case, cairn, losses, topology
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
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

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import cairn.torch as cairn_torch  # noqa: E402 - the harness has the command by the name of cairn

STEPS, MIDDLE, BATCH, LENGTH, VOCABULARY, SEED = 10, 5, 4, 24, 101, 1234
TRAINING = ["--mock-data", "--micro-batch-size", 2, "--global-batch-size", BATCH, "--seq-length", LENGTH, "--lr", 1e-3, "--lr-decay-style",
            "constant", "--weight-decay", 0.1, "--clip-grad", 1, "--hidden-dropout", 0, "--attention-dropout", 0, "--threads", 1]
LLAMA = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=48, max_position_embeddings=64)  # no pad token: torch's embedding would not learn it
PHI3 = LLAMA | dict(pad_token_id=0)
GPT2 = dict(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64)
NEOX = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
            max_position_embeddings=64)
BLOOM = dict(vocab_size=VOCABULARY, hidden_size=48, n_layer=2)
OPT = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, max_position_embeddings=64,
           word_embed_proj_dim=32, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)


def rope(kind, **fields):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=500.0, **fields))


TRAINED = {
    "gpt2": GPT2Config(**GPT2),
    "llama": LlamaConfig(**LLAMA, rope_parameters=LLAMA3, attention_bias=True),
    "mistral": MistralConfig(**LLAMA, sliding_window=9, head_dim=12),
    "qwen2": Qwen2Config(**LLAMA, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**LLAMA, head_dim=12),
    "bloom": BloomConfig(**BLOOM, n_head=6),  # no power of two
    "gpt_neox": GPTNeoXConfig(**NEOX),
    "opt": OPTConfig(**OPT),
}
COMPUTED = {
    "gpt2, exact gelu": GPT2Config(**GPT2, activation_function="gelu", tie_word_embeddings=False),
    "gpt2, scaled by layer": GPT2Config(**GPT2, activation_function="relu", scale_attn_by_inverse_layer_idx=True),
    "gpt2, unscaled": GPT2Config(**GPT2, activation_function="silu", scale_attn_weights=False, layer_norm_epsilon=0.3),
    "llama, linear": LlamaConfig(**LLAMA, **rope("linear", factor=4.0), mlp_bias=True),
    "llama, dynamic": LlamaConfig(**LLAMA | dict(max_position_embeddings=20), **rope("dynamic", factor=2.0), hidden_act="gelu"),
    "llama, yarn": LlamaConfig(**LLAMA, **rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "llama, yarn by hand": LlamaConfig(**LLAMA, **rope("yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=4.0,
                                                       beta_slow=0.5, attention_factor=1.3)),
    "phi3": Phi3Config(**PHI3, **rope("default", partial_rotary_factor=0.5)),
    "phi3, longrope": Phi3Config(**PHI3, original_max_position_embeddings=16, **rope(
        "longrope", short_factor=[1.0, 1.5, 2.0, 3.0], long_factor=[2.0, 3.0, 4.0, 9.0])),
    "qwen2, windows": Qwen2Config(**LLAMA, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "bloom, residual behind": BloomConfig(**BLOOM, n_head=4, apply_residual_connection_post_layernorm=True),
    "gpt_neox, serial": GPTNeoXConfig(**NEOX, use_parallel_residual=False, attention_bias=False, hidden_act="gelu_new"),
    "opt, bare": OPTConfig(**OPT, enable_bias=False, layer_norm_elementwise_affine=False, activation_function="gelu"),
}


def make(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.1) if parameter.dim() > 1 else parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def mixed(x):
    """runtime/data/hash.h"""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def hashed(*numbers):
    result = 0
    for number in numbers:
        result = mixed(result ^ number)
    return result


def mock_sample(i):
    """runtime/train/mock_data.h"""
    seed, token, tokens = hashed(SEED, hashed(*b"train")), 0, []
    for k in range(LENGTH + 1):
        bits = hashed(seed, i, k)
        u = (bits >> 12) * 2.0**-52
        token = (token + 1) % VOCABULARY if k > 0 and bits & 1 else int(u * u * u * u * VOCABULARY)
        tokens.append(token)
    return tokens


BATCHES = torch.tensor([[mock_sample(step * BATCH + i) for i in range(BATCH)] for step in range(STEPS)])


def train_with_torch(model, saved):
    """Returns the losses, each before its update. In the middle the training is saved as a run, under transformers' names."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([dict(params=[p for p in parameters if p.dim() > 1], weight_decay=0.1),
                                   dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0)], lr=1e-3)
    curve = []
    for step, batch in enumerate(BATCHES):
        if step == MIDDLE:
            state = {"model": model.state_dict(), "optim": get_optimizer_state_dict(model, optimizer)}
            cairn_torch.save(state, saved, step=MIDDLE, state={"consumed_samples": MIDDLE * BATCH})
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1)
        optimizer.step()
        curve.append(loss.item())
    return curve


def logits_of(model):
    with torch.no_grad():
        return model(BATCHES[:1, 0, :-1]).logits[0]


class TrainedFamiliesTest(Case):
    def imported(self, model, name):
        model.save_pretrained(self.path(name))
        cairn("convert", self.path(name), self.path(name + "-native"), "--to", "native")
        return self.path(name + "-native")

    def our_logits(self, native):
        line = [os.environ["LOGITS_PROBE"], *map(str, TRAINING), "--train-iters", "1", "--load", native, "--finetune"]
        done = subprocess.run(line, input=BATCHES[0, 0, :-1].numpy().tobytes(), capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr.decode()[-2000:])
        return torch.from_numpy(numpy.frombuffer(done.stdout, numpy.float32).reshape(LENGTH, -1).copy())

    def goes_on(self, name, wanted):
        """From torch's state in the middle, with its optimizer."""
        native, log = self.path(name + "-middle"), self.path(name + "-middle.json")
        cairn("convert", self.path(name + "-torch"), native, "--to", "native", "--config", self.path(name))
        cairn("train", *TRAINING, "--load", native, "--log-json", log, "--train-iters", STEPS)
        for step, (mine, theirs) in enumerate(zip(losses(log).values(), wanted, strict=True), MIDDLE):
            self.assertLess(abs(mine / theirs - 1), 1e-5, f"step {step}, continued")

    def test_logits_equal_transformers(self):
        for number, (name, config) in enumerate((TRAINED | COMPUTED).items()):
            with self.subTest(name):
                model = make(config)
                wanted, got = logits_of(model), self.our_logits(self.imported(model, f"model{number}"))
                self.assertGreater(wanted.std().item(), 0.1)
                self.assertLess((got - wanted).abs().max().item(), 1e-4)

    def test_ten_steps_equal_torch(self):
        for name, config in TRAINED.items():
            with self.subTest(name):
                model = make(config)
                native, run, log = self.imported(model, name), self.path(name + "-run"), self.path(name + ".json")
                wanted = train_with_torch(model, self.path(name + "-torch"))
                self.assertLess(wanted[-1], wanted[0])
                cairn("train", *topology(2, 2, 1), *TRAINING, "--load", native, "--finetune", "--save", run, "--log-json", log,
                      "--train-iters", STEPS)
                for step, (mine, theirs) in enumerate(zip(losses(log).values(), wanted, strict=True)):
                    self.assertLess(abs(mine / theirs - 1), 1e-5, f"step {step}")
                self.goes_on(name, wanted[MIDDLE:])
                cairn("strip", run, self.path(name + "-back"), "--dtype", "fp32")
                back = AutoModelForCausalLM.from_pretrained(self.path(name + "-back"), attn_implementation="eager").eval()
                self.assertEqual(type(back), type(model))
                self.assertLess((logits_of(back) - logits_of(model)).abs().max().item(), 1e-3)
