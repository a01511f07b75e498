"""`--config`: models that transformers trains under its own names, saved with cairn.torch and DCP, are read by their config.json."""

import json
import os
import pathlib
import sys
import tempfile
import unittest
import warnings
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python")]

import cairn  # noqa: E402
import cairn.torch  # noqa: E402
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import transformers  # noqa: E402
from cairn.torch import _layout  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict  # noqa: E402

BASE = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
SIZES = {**BASE, "intermediate_size": 48}
GROUPED = {**SIZES, "num_key_value_heads": 2}
MODELS = {
    "llama": transformers.LlamaConfig(**GROUPED, tie_word_embeddings=False),
    "qwen2": transformers.Qwen2Config(**GROUPED, tie_word_embeddings=True),
    "gpt2": transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "gpt_neox": transformers.GPTNeoXConfig(**SIZES),
    "phi3": transformers.Phi3Config(**GROUPED, tie_word_embeddings=False, pad_token_id=0),
    "mistral": transformers.MistralConfig(**GROUPED),
    "qwen3": transformers.Qwen3Config(**GROUPED, head_dim=8),
    "gemma2": transformers.Gemma2Config(**GROUPED, head_dim=8),
    "bloom": transformers.BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=4),
    "opt": transformers.OPTConfig(**BASE, ffn_dim=48, word_embed_proj_dim=32),
}
ROLES = ("weight", "exp_avg", "exp_avg_sq")


def step_of(model, optimizer):
    tokens = torch.randint(96, (2, 16))
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def trained(config, frozen=()):
    """(model, optimizer) after two steps; norms and biases do not decay."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(part in name for part in frozen))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [{"params": [p for p in parameters if p.dim() > 1]}, {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1)
    for _ in range(2):
        step_of(model, optimizer)
    return model.eval(), optimizer


def state_of(model, optimizer):
    return {"model": model.state_dict(), "optim": get_optimizer_state_dict(model, optimizer), "step": 2}


def parts_of(name, stored):
    """Some parameters of the second layer under canonical names, cut out of transformers' tensors."""
    layer = "model.layers.1."
    if name == "gpt2":
        fused = stored["transformer.h.1.attn.c_attn.weight"]
        return {"attention.query": fused[:, :32].T, "attention.value": fused[:, 64:].T}
    if name == "phi3":
        return {"attention.key": stored[f"{layer}self_attn.qkv_proj.weight"][32:48], "mlp.gate": stored[f"{layer}mlp.gate_up_proj.weight"][:48]}
    if name in ("gpt_neox", "bloom"):
        attention = {"gpt_neox": "gpt_neox.layers.1.attention.", "bloom": "transformer.h.1.self_attention."}[name]
        heads = stored[f"{attention}query_key_value.weight"].view(4, 3, 8, 32)
        return {"attention.query": heads[:, 0].reshape(32, 32), "attention.value": heads[:, 2].reshape(32, 32)}
    if name == "opt":
        return {"mlp.down": stored["model.decoder.layers.1.fc2.weight"]}
    return {"attention.key": stored[f"{layer}self_attn.k_proj.weight"], "mlp.down": stored[f"{layer}mlp.down_proj.weight"]}


class ConfigTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        place = tempfile.TemporaryDirectory(prefix="cairn-config-")
        cls.addClassCleanup(place.cleanup)
        cls.directory = pathlib.Path(place.name)
        warnings.simplefilter("ignore")
        cls.trained = {}
        for name, config in MODELS.items():
            cls.trained[name] = trained(config)
            cairn.torch.save(state_of(*cls.trained[name]), cls.directory / name, step=2)
            cls.trained[name][0].save_pretrained(cls.directory / f"{name}-pretrained")

    def cairn(self, *arguments):
        return cairn.run([*map(str, arguments)], capture=True).stdout

    def config(self, name):
        return self.directory / f"{name}-pretrained/config.json"

    def strip(self, name, source, release, *flags):
        said = self.cairn("strip", source, self.directory / release, "--config", self.config(name), "--dtype", "fp32", *flags)
        self.same_as_trained(release, name)
        return said

    def same_as_trained(self, release, name):
        self.same(self.directory / release, self.trained[name][0])

    def same(self, release, model):
        """Every tensor that transformers loads, bit for bit, and the same logits."""
        loaded = transformers.AutoModelForCausalLM.from_pretrained(release)
        expected, found = model.state_dict(), loaded.state_dict()
        self.assertEqual(found.keys(), expected.keys())
        for key, tensor in expected.items():
            self.assertTrue(torch.equal(found[key], tensor), key)
        tokens = torch.arange(16)[None]
        with torch.no_grad():
            self.assertTrue(torch.equal(loaded.eval()(tokens).logits, model(tokens).logits))

    def test_a_release_of_each_family(self):
        for name in MODELS:
            with self.subTest(model=name):
                release = f"{name}-release"
                self.assertIn("all accounted for", self.strip(name, self.directory / name, release))
                self.cairn("diff", self.directory / release, self.directory / f"{name}-pretrained")
                said = self.cairn("diff", self.directory / name, self.directory / release, "--config", self.config(name), "--ignore", "optimizer")
                self.assertRegex(said, r"(\d+) tensors compared, \1 of them equal")

    def test_the_optimizer_is_read(self):
        """Split like the weights: AdamW's states of a fused matrix belong to its parts."""
        for name, (model, optimizer) in self.trained.items():
            state = get_optimizer_state_dict(model, optimizer)["state"]
            with self.subTest(model=name), cairn.open(self.directory / name, config=self.config(name)) as checkpoint:
                self.assertLessEqual(set(ROLES), set(checkpoint.roles()))
                sizes = [sum(one.nbytes for one in checkpoint.values() if one.role == role) for role in ROLES]
                self.assertEqual(sizes, [sum(p.nbytes for p in model.parameters())] * 3)
                for role in ROLES[1:]:
                    for part, expected in parts_of(name, {key: value[role] for key, value in state.items()}).items():
                        found = checkpoint[f"layers.1.{part}.weight", role].numpy()
                        self.assertTrue(torch.equal(torch.from_numpy(found), expected), (part, role))

    def test_through_megatron_and_back(self):
        for name in ("llama", "gpt2"):
            with self.subTest(model=name):
                megatron, flags = self.directory / f"{name}-megatron", ["--config", self.config(name)]
                self.cairn("convert", self.directory / name, megatron, *flags, "--to", "megatron", "--tp", 2, "--dtype", "bf16")
                self.cairn("strip", megatron, self.directory / f"{name}-back", "--dtype", "fp32")  # the masters
                self.same_as_trained(f"{name}-back", name)
                moments = {}
                for source, options in ((self.directory / name, {"config": self.config(name)}), (megatron, {})):
                    with cairn.open(source, **options) as checkpoint:
                        moments[source] = {key: one.tobytes() for key, one in checkpoint.items() if one.role in ROLES[1:]}
                self.assertEqual(*moments.values())

    def test_a_native_step_of_it_needs_no_config(self):
        native = self.directory / "native"
        self.cairn("convert", self.directory / "gpt2", native, "--config", self.config("gpt2").parent, "--to", "native")
        self.cairn("verify", native, "--values", "--hash")
        self.cairn("strip", native, self.directory / "native-release", "--dtype", "fp32")
        self.same_as_trained("native-release", "gpt2")

    def test_reads_dcp(self):
        dcp.save(state_of(*self.trained["phi3"]), checkpoint_id=self.directory / "dcp", no_dist=True)
        self.strip("phi3", self.directory / "dcp", "dcp-release")
        self.cairn("verify", self.directory / "dcp", "--config", self.config("phi3"))
        with self.assertRaisesRegex(cairn.CairnError, "leave out --config"):
            self.cairn("inspect", self.directory / "dcp", "--config", self.config("phi3"), "--slices")
        for name, says in (("llama", "not checked: .* no place"), ("phi3", r"dcp: \d+ tensors of .*, every element covered once")):
            said = self.cairn("seal", self.directory / "dcp", "--again", "--settle", 0, "--config", self.config(name))
            self.assertRegex(said, says)

    def refused(self, run, says, config, verb=("strip",)):
        target = self.directory / "refused"
        with self.assertRaisesRegex(cairn.CairnError, says):
            self.cairn(*verb, run, target, "--config", config)
        self.assertFalse(target.exists())

    def weights_alone(self, name, run, says):
        """A release does not need an optimizer that cannot be read."""
        self.refused(run, f"{says}.*--allow optimizer", self.config(name), ("convert", "--to", "dcp"))
        for flags in ((), ("--allow", "optimizer")):
            release = self.directory / f"{run.name}-release{len(flags)}"
            done = cairn.run([*map(str, ("strip", run, release, "--config", self.config(name), "--dtype", "fp32", *flags))], capture=True)
            self.same_as_trained(release.name, name)
            (self.assertNotIn if flags else self.assertIn)("note: the optimizer's state is left behind: ", done.stderr)

    def changed_config(self, **fields):
        path = self.directory / "changed.json"
        path.write_text(json.dumps({**json.loads(self.config("llama").read_text()), **fields}))
        return path

    def test_mismatches_are_named(self):
        run = self.directory / "llama"
        self.refused(run, "missing: model.layers.2", self.changed_config(num_hidden_layers=3))
        self.refused(run, "no place .*layers.1.*--allow", self.changed_config(num_hidden_layers=1))
        self.refused(run, "shape", self.changed_config(intermediate_size=64))
        self.refused(run, "model_type", self.changed_config(model_type="mamba"))
        self.refused(run, "no place .*model.embed_tokens.weight", self.config("gpt2"))
        self.refused(run, "nowhere", self.directory / "nowhere")

    def test_frozen_parameters(self):
        """The optimizer does not name them, so they keep the prefix that the state dict put before their names."""
        model, optimizer = trained(MODELS["llama"], frozen=("embed_tokens", "layers.0."))
        cairn.torch.save(state_of(model, optimizer), self.directory / "frozen", step=2)
        self.cairn("strip", self.directory / "frozen", self.directory / "frozen-release", "--config", self.config("llama"), "--dtype", "fp32")
        self.same(self.directory / "frozen-release", model)
        flags = ("--config", self.config("llama"), "--dtype", "bf16", "--to")
        for zero in (1, 2, 3):  # under ZeRO 3 each rank has a piece of each frozen parameter
            with self.subTest(zero=zero):
                target = self.directory / f"frozen-deepspeed{zero}"
                self.cairn("convert", self.directory / "frozen", target, *flags, "megatron-deepspeed", "--zero", zero, "--dp", 3)
                with cairn.open(target) as checkpoint:
                    self.assertNotIn("embedding.word.weight/master", checkpoint)
                    self.assertNotIn("embedding.word.weight/exp_avg", checkpoint)
                    self.assertIn("layers.1.mlp.up.weight/exp_avg", checkpoint)
                    rounded = model.model.embed_tokens.weight.bfloat16().float()
                    self.assertTrue(torch.equal(torch.from_numpy(checkpoint["embedding.word.weight"].numpy().astype("float32")), rounded))
        with self.assertRaisesRegex(cairn.CairnError, "embedding.word.weight has no states"):
            self.cairn("convert", self.directory / "frozen", self.directory / "frozen-megatron", *flags, "megatron")

    def test_several_models(self):
        model, _ = self.trained["llama"]
        run = self.directory / "several"
        cairn.torch.save({"ema": {key: tensor * 0.5 for key, tensor in model.state_dict().items()}, "model": model.state_dict()}, run, step=1)
        self.refused(run, "several models, behind 'ema.', 'model.'.*--allow", self.config("llama"))
        self.strip("llama", run, "one-of-several", "--allow", "ema.*")

    def test_a_tensor_of_another_module_is_not_used(self):
        """"reward.norm.weight" ends like the model's norm, which is missing."""
        state = dict(self.trained["llama"][0].state_dict())
        other = torch.full_like(state.pop("model.norm.weight"), 9)
        for number, value in enumerate(({"model": {**state, "reward.norm.weight": other}}, {"model": state, "reward": {"norm.weight": other}})):
            run = self.directory / f"filled-{number}"
            cairn.torch.save(value, run, step=1)
            self.refused(run, "several models, behind '.*--allow", self.config("llama"))

    def test_a_head_outside_of_its_model(self):
        """Custom modules around transformers' base model; a head elsewhere does not belong to it."""
        model, _ = self.trained["llama"]
        state = {f"net.backbone.{key}": tensor for key, tensor in model.base_model.state_dict().items()}
        for number, name in enumerate(("lm_head.weight", "net.lm_head.weight")):
            cairn.torch.save({**state, name: model.lm_head.weight}, self.directory / f"head-{number}", step=1)
            self.strip("llama", self.directory / f"head-{number}", f"head-{number}-release")
        cairn.torch.save({**state, "draft.lm_head.weight": model.lm_head.weight}, self.directory / "head-elsewhere", step=1)
        self.refused(self.directory / "head-elsewhere", "several models, behind 'draft.', 'net.backbone.'", self.config("llama"))

    def save_both(self, state, name):
        """With cairn.torch, tensors inside and outside of the objects, and with DCP."""
        with mock.patch.object(_layout, "SMALL", 2048):
            cairn.torch.save(state, self.directory / f"{name}-cairn", step=1)
        dcp.save(state, checkpoint_id=self.directory / f"{name}-dcp", no_dist=True)
        return self.directory / f"{name}-cairn", self.directory / f"{name}-dcp"

    def test_two_optimizers_of_one_model(self):
        """Each has a group 0."""
        model, _ = self.trained["llama"]
        parameters = dict(model.named_parameters())
        optimizers = {}
        for name, lr in (("muon", 0.5), ("adam", 0.25)):
            mine = [p for n, p in parameters.items() if ("proj" in n) == (name == "muon")]
            optimizers[name] = get_optimizer_state_dict(model, torch.optim.SGD(mine, lr=lr))
        for run in self.save_both({"model": model.state_dict(), "optim": optimizers}, "two"):
            with cairn.open(run, config=self.config("llama")) as checkpoint:
                groups = {group["lr"]: group["params"] for group in checkpoint.state["param_groups"]}
                self.assertEqual(sorted(groups), [0.25, 0.5])
                self.assertEqual(sorted(groups[0.25] + groups[0.5]), sorted(checkpoint.keys()))
                self.assertTrue(all(".attention." in name or ".mlp." in name for name in groups[0.5]), groups[0.5])

    def test_two_models_with_an_optimizer_each(self):
        """Their states have the same names too."""
        one, other = self.trained["llama"], trained(MODELS["llama"], frozen=("embed_tokens",))
        step_of(*other)
        state = {}
        for name, (model, optimizer) in (("critic", other), ("actor", one)):
            state |= {name: model.state_dict(), f"{name}_optim": get_optimizer_state_dict(model, optimizer)}
        wanted = {key: value["exp_avg"] for key, value in state["actor_optim"]["state"].items()}
        for run in self.save_both(state, "actor-critic"):
            self.refused(run, "several models, behind 'actor.', 'critic.'", self.config("llama"))
            with cairn.open(run, config=self.config("llama"), allow=["critic*"]) as checkpoint:
                found = checkpoint["layers.1.mlp.down.weight", "exp_avg"].numpy()
                self.assertTrue(torch.equal(torch.from_numpy(found), wanted["model.layers.1.mlp.down_proj.weight"]))
                self.assertEqual([len(group["params"]) for group in checkpoint.state["param_groups"]], [16, 5])
            with self.assertRaisesRegex(ValueError, "several models, behind 'actor_optim.', 'critic_optim.'"):
                cairn.open(run, config=self.config("llama"), allow=["critic.*"])

    def test_a_head_of_another_module_does_not_rename_the_model(self):
        """Small tensors and large ones have their names of one state dict."""
        model, _ = self.trained["llama"]
        value = {"lm_head.weight": torch.zeros(1, 32)}
        for run in self.save_both({"model": model.state_dict(), "value": value}, "value-head"):
            self.refused(run, "several models, behind 'model.', 'value.'", self.config("llama"))
            self.strip("llama", run, f"{run.name}-release", "--allow", "value.*")

    def test_states_keyed_by_numbers(self):
        model, optimizer = self.trained["llama"]
        run = self.directory / "numbers"
        cairn.torch.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, run, step=1)
        self.weights_alone("llama", run, "identified by numbers .*get_optimizer_state_dict")

    def test_values_that_a_release_leaves_out_are_named(self):
        run = self.directory / "scale"
        cairn.torch.save({"model": {"a": torch.ones(3)}, "logit_scale": torch.tensor(2.5)}, run, step=1)
        for verb, format in (("strip", "--format"), ("convert", "--to")):
            facts = self.cairn(verb, run, self.directory / f"scale-{verb}", format, "safetensors", "--json")
            self.assertIn("logit_scale/training", json.loads(facts)["left_behind"])

    def test_a_head_that_is_not_tied_is_refused(self):
        state = {key: tensor.clone() for key, tensor in self.trained["qwen2"][0].state_dict().items()}
        state["lm_head.weight"][0, 0] += 1
        cairn.torch.save(state, self.directory / "untied", step=1)
        self.refused(self.directory / "untied", "lm_head.weight.*differs", self.config("qwen2"))

    def test_states_that_cannot_be_cut(self):
        """Adafactor has a number for each row of the fused matrix."""
        model, _ = trained(MODELS["gpt2"])
        optimizer = transformers.Adafactor(model.parameters(), lr=1e-3, relative_step=False)
        step_of(model, optimizer)
        run = self.directory / "adafactor"
        with mock.patch.object(_layout, "SMALL", 64):
            cairn.torch.save({**state_of(model, optimizer), "model": self.trained["gpt2"][0].state_dict()}, run, step=1)
        self.weights_alone("gpt2", run, "cannot be cut")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    unittest.main()
