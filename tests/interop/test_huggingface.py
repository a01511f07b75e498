"""Models saved by the real transformers, through native steps of other topologies, and back: the same bits.

Sizes are awkward on purpose: an odd vocabulary, six heads in groups of two or three, a head size of its own, layers
that stages do not divide.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import unittest

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "cli"))
from cairn_cli import CliTest  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)  # how many threads share a sum, and so its last bit, may depend on the machine's load

SMALL = {"vocab_size": 61, "hidden_size": 24, "num_attention_heads": 6, "num_hidden_layers": 3, "bos_token_id": 1, "eos_token_id": 2,
         "pad_token_id": 0}
GROUPED = SMALL | {"intermediate_size": 54, "max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}


def gpt2(**more):
    return transformers.GPT2Config(vocab_size=61, n_embd=24, n_head=6, n_layer=3, n_positions=37, bos_token_id=1, eos_token_id=2, **more)


# name: config, tensor parallel sizes that divide its heads
MODELS = {
    "gpt2": (gpt2(), (2, 3)),
    "gpt2-untied": (gpt2(tie_word_embeddings=False, n_inner=42, scale_attn_by_inverse_layer_idx=True, activation_function="gelu"), (2, 3)),
    "gpt_neox": (transformers.GPTNeoXConfig(**GROUPED, use_parallel_residual=True), (2, 3)),
    "gpt_neox-serial": (transformers.GPTNeoXConfig(
        **GROUPED | {"hidden_size": 48}, use_parallel_residual=False, attention_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}), (2, 3)),
    "bloom": (transformers.BloomConfig(vocab_size=61, hidden_size=24, n_head=6, n_layer=3, apply_residual_connection_post_layernorm=True), (2, 3)),
    "opt": (transformers.OPTConfig(**SMALL, ffn_dim=54, max_position_embeddings=37, word_embed_proj_dim=24), (2, 3)),
    "llama": (transformers.LlamaConfig(**GROUPED, num_key_value_heads=2, head_dim=6, rope_parameters=LLAMA3), (2, 1)),
    "llama-biased": (transformers.LlamaConfig(**GROUPED, num_key_value_heads=3, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                                              rms_norm_eps=1e-3), (3, 1)),
    "mistral": (transformers.MistralConfig(**GROUPED, num_key_value_heads=2, sliding_window=5), (2, 1)),
    "qwen2": (transformers.Qwen2Config(**GROUPED, num_key_value_heads=3, tie_word_embeddings=True), (3, 1)),
    "qwen3": (transformers.Qwen3Config(**GROUPED, num_key_value_heads=2, head_dim=10), (2, 1)),
    "qwen3_5_text": (transformers.Qwen3_5TextConfig(
        **GROUPED, num_key_value_heads=2, head_dim=8, full_attention_interval=2, linear_num_key_heads=2, linear_num_value_heads=6,
        linear_key_head_dim=4, linear_value_head_dim=5, linear_conv_kernel_dim=3), (2, 1)),
    "gemma2": (transformers.Gemma2Config(**GROUPED, num_key_value_heads=2, head_dim=10, query_pre_attn_scalar=7, sliding_window=5), (2, 1)),
    "phi3": (transformers.Phi3Config(**GROUPED, num_key_value_heads=3), (3, 1)),
}
DERIVED = {"transformers_version", "_name_or_path"}


def make(config, dtype=torch.float32):
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():  # biases and norms start as zeros and ones, which any mistake would preserve
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) / 4)
    return model


def logits(directory):
    return logits_of(AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32))


def logits_of(model):
    model.eval()
    for parameter in model.parameters():  # in a mapped file they begin anywhere, and sums over rows depend on that in the last bit
        parameter.data = parameter.data.clone()
    tokens = torch.randint(61, (2, 17), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return model(tokens).logits


def tensors(directory):
    found = {}
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        found |= load_file(path)
    return found


def bits(tensor):
    return tensor.reshape(-1).view(torch.uint8)


class TransformersTest(CliTest):
    """A test with models of transformers: what it saves, and whether two directories hold the same model."""

    def save(self, name, model, **options):
        model.save_pretrained(self.dir / name, **options)
        return self.dir / name

    def check_equal(self, a, b):
        a, b = tensors(a), tensors(b)
        self.assertEqual(set(a), set(b))
        for name in a:
            self.assertEqual(a[name].dtype, b[name].dtype, name)
            self.assertTrue(torch.equal(bits(a[name]), bits(b[name])), name)

    def check_config(self, a, b):
        """Every field of the original is restored, and transformers reads the same configuration."""
        a_json, b_json = (json.loads((d / "config.json").read_text()) for d in (a, b))
        self.assertEqual(a_json, {key: b_json.get(key, "missing") for key in a_json})
        a_config, b_config = (transformers.AutoConfig.from_pretrained(d).to_dict() for d in (a, b))
        for key in set(a_config) - DERIVED:
            self.assertEqual(a_config[key], b_config[key], key)

    def check_sums(self, directory):
        listed = {line.split("  ")[1] for line in (directory / "SHA256SUMS").read_text().splitlines()}
        self.assertEqual(listed | {"SHA256SUMS"}, {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()})
        subprocess.run(["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"], cwd=directory, check=True)


class HuggingFaceTest(TransformersTest):
    def through(self, source, sizes):
        """To native, reshaped, and back: the directory."""
        first, second = sizes
        self.cairn("convert", source, "native", "--to", "native", "--tp", first, "--pp", 2)
        self.cairn("reshape", "native", "other", "--tp", second, "--pp", 3, "--dp", 2)
        self.assertEqual(self.json("fingerprint", source), self.json("fingerprint", "other"))
        self.cairn("convert", "other", "back", "--to", "hf")
        return self.dir / "back"

    def test_phi3_names_its_attention_fused(self):
        self.assertIn("model.layers.0.self_attn.qkv_proj.weight", make(MODELS["phi3"][0]).state_dict())

    def test_the_family_added_in_the_documentation(self):
        page = (pathlib.Path(__file__).parents[2] / "docs" / "adding-a-family.md").read_text()
        families = self.dir / "families"
        families.mkdir()
        (families / "stablelm.json").write_text(page.split("```json")[1].split("```")[0])
        more = ("--families", families)
        for serial in (True, False):
            source = self.save(f"source-{serial}", make(transformers.StableLmConfig(
                **GROUPED | {"hidden_size": 48}, num_key_value_heads=2, use_qkv_bias=serial, use_parallel_residual=not serial)))
            native, other, back = (f"{name}-{serial}" for name in ("native", "other", "back"))
            self.cairn("convert", source, native, "--to", "native", "--tp", 2, code=2, says="its tensors do not record how they are cut")
            self.cairn(*more, "convert", source, native, "--to", "native", "--tp", 2, "--pp", 3)
            self.cairn("reshape", native, other, "--tp", 1, "--dp", 2)
            self.cairn("convert", other, back, "--to", "hf", code=2, says='architecture "stablelm" has no Hugging Face form in Cairn')
            self.cairn("convert", other, back, "--to", "hf", *more)
            self.check_equal(source, self.dir / back)
            self.check_config(source, self.dir / back)
            self.assertTrue(torch.equal(logits(source), logits(self.dir / back)))

    def test_reads_and_writes_shards(self):
        source = self.save("source", make(MODELS["llama"][0]), max_shard_size="9KB")
        self.assertGreater(len(list(source.glob("*.safetensors"))), 2)
        self.check_seal(source)
        self.cairn("convert", source, "one", "--to", "hf")
        self.cairn("convert", self.dir / "one" / "model.safetensors", "many", "--to", "hf", "--max-shard-size", "5KB")
        for name in ("one", "many"):
            self.check_equal(source, self.dir / name)
            self.check_sums(self.dir / name)
            self.assertTrue(torch.equal(logits(source), logits(self.dir / name)))
        index = json.loads((self.dir / "many" / "model.safetensors.index.json").read_text())
        self.assertEqual(index["metadata"]["total_size"], sum(t.nbytes for t in tensors(source).values()))
        self.cairn("convert", "many", "again", "--to", "hf", "--max-shard-size", "5KB")
        for path in (self.dir / "many").iterdir():
            self.assertEqual(path.read_bytes(), (self.dir / "again" / path.name).read_bytes(), path.name)

    def check_seal(self, source):
        """transformers loads a sealed model as before; a truncated shard is not sealed."""
        self.cairn("seal", source, "--settle", 0, says=["each as long as its header says", "every element covered once"])
        self.cairn("verify", source, says="every byte against the seal")
        shard = sorted(source.glob("model-*.safetensors"))[0]
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-1])
        self.cairn("verify", source, code=1, says=shard.name)
        self.cairn("seal", source, "--again", "--settle", 0, code=1, says=[shard.name, "not sealed"])
        shard.write_bytes(whole)
        self.assertEqual(logits(source).dtype, torch.float32)

    def test_sixteen_bits_stay_and_casts_match_torch(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            with self.subTest(dtype):
                for name in ("native", "other", "back", "cast", "kept", "mixed", "mixed-back"):
                    subprocess.run(["rm", "-rf", self.dir / name], check=True)
                source = self.save(str(dtype), make(MODELS["gpt2-untied"][0], dtype))
                back = self.through(source, (2, 3))
                self.check_equal(source, back)
                self.assertEqual(json.loads((back / "config.json").read_text())["dtype"], str(dtype).split(".")[1])
                self.cairn("strip", source, "cast", "--dtype", "bf16")
                self.cairn("convert", "other", "kept", "--to", "hf", "--dtype", "bf16", "--keep-fp32", "*norm*")
                was, cast, kept = (tensors(d) for d in (source, self.dir / "cast", self.dir / "kept"))
                for tensor in was:
                    self.assertTrue(torch.equal(bits(was[tensor].bfloat16()), bits(cast[tensor])), tensor)
                    expected = was[tensor].float() if "ln_" in tensor else was[tensor].bfloat16()
                    self.assertTrue(torch.equal(bits(expected), bits(kept[tensor])), tensor)
                self.cairn("convert", "kept", "mixed", "--to", "native", "--tp", 3)
                self.cairn("convert", "mixed", "mixed-back", "--to", "hf")
                self.check_equal(self.dir / "kept", self.dir / "mixed-back")
                config = json.loads((self.dir / "cast" / "config.json").read_text())
                self.assertEqual((config["dtype"], config["torch_dtype"]), ("bfloat16", "bfloat16"))

    def test_names_and_buffers_of_old_hub_files(self):
        model = make(MODELS["gpt2"][0])
        source = self.save("source", model)
        old = {name.removeprefix("transformer."): tensor for name, tensor in tensors(source).items()}
        old |= {f"h.{i}.attn.bias": torch.ones(1, 1, 37, 37, dtype=torch.uint8) for i in range(3)}
        old |= {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(3)}
        old["lm_head.weight"] = old["wte.weight"].clone()
        save_file(old, source / "model.safetensors", {"format": "pt"})
        config = json.loads((source / "config.json").read_text())
        for key in ("n_inner", "tie_word_embeddings", "dtype", "activation_function"):
            del config[key]
        (source / "config.json").write_text(json.dumps(config))
        self.save("new", model)
        self.cairn("convert", source, "back", "--to", "hf")
        self.check_equal(self.dir / "new", self.dir / "back")
        self.assertTrue(torch.equal(logits(self.dir / "new"), logits(self.dir / "back")))

    def test_rope_of_old_configurations(self):
        source = self.save("source", make(MODELS["llama"][0]))
        path = source / "config.json"
        config = json.loads(path.read_text())
        rope = config.pop("rope_parameters")
        config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope, "torch_dtype": config.pop("dtype")}
        path.write_text(json.dumps(config))
        back = self.through(source, (2, 1))
        written = json.loads((back / "config.json").read_text())
        self.assertEqual(written["rope_parameters"], LLAMA3)
        self.assertEqual({key: written[key] for key in config}, config)
        self.assertTrue(torch.equal(logits(source), logits(back)))

    def test_differing_tied_copies_are_refused(self):
        source = self.save("source", make(MODELS["qwen2"][0]))
        weights = tensors(source) | {"lm_head.weight": torch.zeros(61, 24)}
        save_file(weights, source / "model.safetensors", {"format": "pt"})
        self.cairn("convert", source, "out", "--to", "hf", code=2, says=["lm_head.weight differs from", "--allow"])
        self.cairn("convert", source, "native", "--to", "native", "--allow", "lm_head.*")
        self.assertIn("lm_head.weight", self.history("native"))
        self.cairn("convert", "native", "out", "--to", "hf")
        with safe_open(self.dir / "out" / "model.safetensors", "pt") as file:
            self.assertIn("lm_head.weight", file.metadata()["cairn.history"])
            self.assertNotIn("lm_head.weight", file.keys())
        weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")
        save_file(weights, source / "model.safetensors", {"format": "pt"})
        self.cairn("convert", source, "single", "--to", "hf")
        self.assertTrue(torch.equal(tensors(self.dir / "single")["model.embed_tokens.weight"], weights["lm_head.weight"]))

    def history(self, run):
        (step,) = (self.dir / run).glob("step-*")
        return " ".join(json.loads((step / "manifest.json").read_text())["history"])

    def test_mismatches_are_named(self):
        source = self.save("source", make(MODELS["llama"][0]))
        whole = tensors(source)
        config = json.loads((source / "config.json").read_text())

        def refused(says, weights=whole, **changed):
            save_file(weights, source / "model.safetensors", {"format": "pt"})
            (source / "config.json").write_text(json.dumps(config | changed))
            for target in ("native", "hf"):
                self.cairn("convert", source, "out", "--to", target, code=2, says=says)
                self.assertFalse((self.dir / "out").exists())

        without = {name: t for name, t in whole.items() if "layers.1.mlp.up" not in name}
        refused(["are missing", "model.layers.1.mlp.up_proj.weight"], without)
        refused(["have no place", "score.weight", "--allow"], whole | {"score.weight": torch.zeros(2)})
        refused(["[61, 24]", "[60, 24]"], vocab_size=60)
        refused(["missing"], num_hidden_layers=4)
        refused(["no place"], num_hidden_layers=2)
        refused(["num_layers"], num_hidden_layers=10**12)
        refused(["num_layers"], num_hidden_layers="three")
        refused(["hidden_size"], hidden_size=-24)
        refused(["attention_bias"], attention_bias="yes")
        save_file(whole, source / "model.safetensors", {"format": "pt"})
        (source / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))  # its tensors keep their names
        self.cairn("convert", source, "out", "--to", "megatron", code=2, says='the family model_type "mamba"')
        self.cairn("convert", source, "out", "--to", "native", "--tp", 2, code=2, says="its tensors do not record how they are cut")
        self.cairn("convert", source, "under-its-names", "--to", "native")
        refused(["twice"], whole | {"embed_tokens.weight": torch.zeros(61, 24)})
        (source / "model.safetensors").unlink()
        (source / "pytorch_model.bin").write_bytes(b"PK")
        self.cairn("convert", source, "out", "--to", "hf", code=2, says="pytorch_model.bin")

    def test_classes_without_the_output_matrix_or_with_another_head(self):
        config = MODELS["llama"][0]
        for name in ("LlamaModel", "LlamaForSequenceClassification"):
            kind = getattr(transformers, name)
            model = kind(config)
            source = self.save(name, model)
            self.cairn("fingerprint", source)
            self.cairn("strip", source, name + "-half", "--dtype", "bf16")
            half, loading = kind.from_pretrained(self.dir / (name + "-half"), output_loading_info=True)
            self.assertFalse(loading["missing_keys"] or loading["unexpected_keys"], loading)
            self.assertEqual(half.dtype, torch.bfloat16)
            for key, value in model.state_dict().items():
                self.assertTrue(torch.equal(half.state_dict()[key], value.bfloat16()), key)

    def test_all_chat_templates_are_copied(self):
        source = self.save("source", make(MODELS["llama"][0]))
        from tokenizers import Tokenizer, models
        templates = {"default": "D", "rag": "R", "tool_use": "T"}
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
        fast.chat_template = templates
        fast.save_pretrained(source)
        self.cairn("convert", source, "native", "--to", "native")
        self.cairn("convert", "native", "back", "--to", "hf")
        self.assertEqual(transformers.AutoTokenizer.from_pretrained(self.dir / "back").chat_template, templates)

    def test_inconsistent_indices_are_refused(self):
        source = self.save("source", make(MODELS["llama"][0]), max_shard_size="9KB")
        path = source / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        files = list(index["weight_map"].values())
        name, file = next((n, f) for n, f in index["weight_map"].items() if files.count(f) > 1)
        other = next(f for f in files if f != file)
        for wrong, says in ((other, f"{file} has it: correct the weight_map"), ("../" + file, "not a file of this directory"), (7, "not a file")):
            path.write_text(json.dumps(index | {"weight_map": index["weight_map"] | {name: wrong}}))
            self.cairn("convert", source, "out", "--to", "hf", code=2, says=says)
        path.write_text(json.dumps(index | {"weight_map": index["weight_map"] | {"ghost": file}}))
        self.cairn("convert", source, "out", "--to", "hf", code=2, says=["ghost", "should be in"])
        path.write_text("[" * 100000)
        self.cairn("convert", source, "out", "--to", "hf", code=2, says="deep")
        path.write_text(json.dumps(index))
        (source / file).unlink()
        self.cairn("convert", source, "out", "--to", "hf", code=2, says=[file, "No such file"])
        path.write_text('{"weight_map": {}, "weight_map": {}}')
        self.cairn("convert", source, "out", "--to", "hf", code=2, says="twice")

    def test_pickled_weights(self):
        for name in ("gpt2", "llama"):
            model = make(MODELS[name][0])
            whole = self.save(f"{name}-whole", model)
            state = model.state_dict()
            for shards in (1, 2):
                source = self.dir / f"{name}-{shards}"
                source.mkdir()
                shutil.copy(whole / "config.json", source)
                if shards == 1:
                    torch.save(state, source / "pytorch_model.bin")
                else:
                    files = {key: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, key in enumerate(state)}
                    for file in set(files.values()):
                        torch.save({k: v.clone() for k, v in state.items() if files[k] == file}, source / file)
                    index = source / "pytorch_model.bin.index.json"
                    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
                self.cairn("diff", source, whole, says="no difference")
                if shards == 2:
                    index.write_text(json.dumps({"weight_map": dict(list(files.items())[1:])}))
                    self.cairn("fingerprint", source, code=2, says="the index does not list it")
        norm = state["model.norm.weight"]
        scattered = torch.stack((norm, norm + 1), 1)[:, 0]  # every other element of its storage
        torch.save(dict(state, **{"model.norm.weight": scattered}), self.dir / "llama-1" / "pytorch_model.bin")
        self.cairn("diff", "llama-1", whole, says="no difference")

    def test_pickled_views_and_shared_storages(self):
        """pytorch_model.bin as transformers 4 wrote it: tied tensors share a storage; and a view."""
        model = make(MODELS["gpt2"][0])
        source = self.save("source", model)
        (source / "model.safetensors").rename(self.dir / "model.safetensors")
        weights = model.state_dict()
        self.assertEqual(weights["lm_head.weight"].data_ptr(), weights["transformer.wte.weight"].data_ptr())
        turned = "transformer.h.1.attn.c_attn.weight"
        weights[turned] = weights[turned].t().contiguous().t()
        torch.save(weights, source / "pytorch_model.bin")
        for target in (source, source / "pytorch_model.bin"):
            self.cairn("convert", target, "native", "--to", "native", "--tp", 3)
            self.cairn("convert", "native", "back", "--to", "hf")
            for name, tensor in tensors(self.dir / "back").items():
                self.assertTrue(torch.equal(bits(tensor), bits(weights[name])), name)
            subprocess.run(["rm", "-rf", self.dir / "native", self.dir / "back"], check=True)

    def test_canonical_names_round_trip(self):
        source = self.save("source", make(MODELS["phi3"][0]))
        self.cairn("strip", source, "canonical", "--format", "safetensors", "--dtype", "fp32", "--max-shard-size", "6KB")
        self.assertEqual(self.json("fingerprint", source), self.json("fingerprint", "canonical"))
        self.cairn("convert", "canonical", "native", "--to", "native", "--tp", 3, "--pp", 3)
        self.cairn("convert", "native", "back", "--to", "hf")
        self.check_equal(source, self.dir / "back")
        self.check_config(source, self.dir / "back")

    def test_tokenizer_files_are_copied(self):
        source = self.save("source", make(MODELS["gpt2"][0]))
        names = {"tokenizer.json", "tokenizer_config.json", "merges.txt", "vocab.json", "chat_template.jinja",
                 "additional_chat_templates/rag.jinja", "LICENSE"}
        (source / "additional_chat_templates").mkdir()
        for name in names:
            (source / name).write_text(name)
        (source / "README.md").write_text("not this one")
        self.cairn("convert", source / "model.safetensors", "copy", "--to", "hf")
        self.cairn("strip", source, "strip", "--dtype", "bf16", says="left behind: README.md\n")
        self.cairn("convert", source, "native", "--to", "native")
        self.cairn("convert", "native", "carried", "--to", "hf")
        self.cairn("reshape", "native", "wide", "--tp", 2)
        self.cairn("reshape", "wide", "virtual", "--tp", 1, "--virtual")
        self.cairn("strip", "virtual", "half", "--format", "native", "--dtype", "bf16")
        self.cairn("verify", "virtual")
        self.cairn("convert", "virtual", "of-virtual", "--to", "hf")
        for run in ("wide", "half"):  # only the step, without its run
            self.cairn("archive", "run", f"{run}/step-00000000", "--store", "store")
            self.cairn("archive", "restore", f"store:{run}@0", f"back-{run}/step-00000000")
            self.cairn("verify", f"back-{run}/step-00000000")
            self.cairn("convert", f"back-{run}/step-00000000", "of-" + run, "--to", "hf")
        self.cairn("archive", "restore", "store:wide@0", "part/step-00000000", "--weights-only")
        self.cairn("archive", "run", "wide/step-00000000", "--store", "weights", "--weights-only")
        self.cairn("archive", "restore", "weights:wide@0", "fp16/step-00000000")
        for run in ("part", "fp16"):
            self.cairn("convert", run, "of-" + run, "--to", "hf")
        (self.dir / "half" / "step-00000000" / "merges.txt").write_text("other")
        self.cairn("verify", "half", code=1)
        self.cairn("strip", source, "canonical", "--format", "safetensors", "--dtype", "bf16")
        for name in {*names, "SHA256SUMS"}:
            (self.dir / "canonical" / name).unlink()
        self.cairn("convert", "canonical", "bare", "--to", "native")
        self.cairn("convert", "bare", "without", "--to", "hf", says="has no tokenizer")
        self.cairn("convert", "native", "with", "--to", "hf", "--tokenizer", source)
        for directory, expected in (("copy", names), ("strip", names), ("with", names), ("carried", names), ("of-virtual", names),
                                    ("of-wide", names), ("of-part", names), ("of-fp16", names), ("of-half", names), ("without", set())):
            self.assertEqual({name for name in names if (self.dir / directory / name).exists()}, expected, directory)
            self.assertFalse((self.dir / directory / "README.md").exists())
            self.check_sums(self.dir / directory)
        self.cairn("convert", "native", "no", "--to", "hf", "--tokenizer", self.dir / "native", code=2, says="no tokenizer files")

    def test_the_run_id_does_not_depend_on_the_storage(self):
        model = make(MODELS["llama"][0])
        runs = set()
        for name, options in (("a", {}), ("b", {"max_shard_size": "9KB"})):
            self.cairn("convert", self.save(name, model, **options), name + "-native", "--to", "native")
            (step,) = (self.dir / (name + "-native")).glob("step-*")
            manifest = json.loads((step / "manifest.json").read_text())
            self.assertEqual((manifest["step"], len(manifest["run"])), (0, 32))
            runs.add(manifest["run"])
        self.assertEqual(len(runs), 1)

    def test_metadata_names_the_source_and_no_path(self):
        source = self.save("source", make(MODELS["gpt2"][0]))
        self.cairn("convert", source, "out", "--to", "hf", "--dtype", "bf16", "--tokenizer", self.dir / "nowhere", code=2)
        self.cairn("convert", source, "out", "--to", "hf", "--dtype", "bf16", "--jobs", 3)
        with safe_open(self.dir / "out" / "model.safetensors", "pt") as file:
            metadata = file.metadata()
        self.assertEqual(metadata["format"], "pt")
        self.assertEqual(metadata["cairn.command"], "cairn convert --to hf --dtype bf16")
        self.assertEqual(metadata["cairn.source_fingerprint"], self.json("fingerprint", source)["fingerprint"])

    def test_misuse(self):
        source = self.save("source", make(MODELS["gpt2"][0]))
        for flags, says in ((["--to", "hf", "--tp", 2], "--to native"), (["--to", "gguf"], "not one of native, megatron, torch-dist, hf,"),
                            (["--to", "native", "--tp", 4], "TP=4 does not divide the model's 6 attention heads"),
                            (["--to", "hf", "--saturate"], "--dtype"), ([], "--to"), (["--to", "hf", "--from", "zip"], "format zip is unknown")):
            self.cairn("convert", source, "out", *flags, code=2, says=says)
            self.assertFalse((self.dir / "out").exists())
        facts = self.json("convert", source, "out", "--to", "hf", "--dry-run")
        self.assertFalse((self.dir / "out").exists())
        self.assertEqual(facts["files"], self.json("convert", source, "out", "--to", "hf")["files"])
        self.cairn("convert", source, "out", "--to", "hf", code=2, says="never overwritten")


def round_trip(name):
    def test(self):
        config, sizes = MODELS[name]
        source = self.save("source", make(config))
        back = self.through(source, sizes)
        self.check_equal(source, back)
        self.check_config(source, back)
        self.check_sums(back)
        self.assertGreater(logits(source).std().item(), 1e-3)
        self.assertTrue(torch.equal(logits(source), logits(back)))
    return test


for name in MODELS:
    setattr(HuggingFaceTest, "test_round_trip_of_" + name.replace("-", "_"), round_trip(name))

if __name__ == "__main__":
    unittest.main()
