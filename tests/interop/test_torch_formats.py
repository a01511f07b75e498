"""Checkpoints of torch, torch.distributed.checkpoint and DeepSpeed, written here by those programs themselves, are read
bit for bit. SOURCE_DUMP (tests/convert/source_dump.cc) writes down what is read."""

import argparse
import collections
import glob
import importlib.util
import io
import json
import os
import pathlib
import pickle
import random
import re
import shutil
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import torch
from harness import Case, cairn, fingerprint, seal
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
          "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2, "int64": torch.int64, "int32": torch.int32,
          "int16": torch.int16, "int8": torch.int8, "uint8": torch.uint8, "bool": torch.bool}


class Dump:
    """Cairn's reading of a checkpoint: {(name, role): tensor}, and its facts."""

    def __init__(self, path, *flags):
        done = subprocess.run([os.environ["SOURCE_DUMP"], path, path + ".dump", *flags], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        with open(path + ".dump.json") as file:
            self.facts = json.load(file)
        with open(path + ".dump.bin", "rb") as file:
            data = bytearray(file.read())
        self.tensors = {}
        for t in self.facts["tensors"]:
            dtype = DTYPES[t["dtype"]]
            count = int(np.prod(t["shape"]))
            flat = torch.frombuffer(data, dtype=dtype, count=count, offset=t["offset"]) if count else torch.empty(0, dtype=dtype)
            self.tensors[t["name"], t["role"]] = flat.reshape(t["shape"])


def leaves(value, path=()):
    """(path, value) of the leaves of dicts and lists."""
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.detach().contiguous().reshape(-1).view(torch.uint8), b.detach().contiguous().reshape(-1).view(torch.uint8))


def random_tensor(rng):
    shape = [rng.randrange(0, 6) for _ in range(rng.randrange(0, 4))]
    dtype = rng.choice(list(DTYPES.values()))
    value = torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(rng.randrange(1 << 30))).to(dtype)
    what = rng.randrange(6)
    if what == 0 and value.dim() == 2:
        value = value.t()
    elif what == 1 and value.dim() >= 2:
        value = value.transpose(0, -1)
    elif what == 2 and value.dim() >= 1 and value.shape[0] > 2:
        value = value[1:-1]
    elif what == 3 and value.dim() >= 2:
        value = value[:, :1].expand(value.shape)
    elif what == 4 and value.dtype.is_floating_point and value.dtype.itemsize > 1:
        value = torch.nn.Parameter(value)
    return value


def random_value(rng, depth):
    kind = rng.randrange(14 if depth else 10)
    if kind < 3:
        return random_tensor(rng)
    if kind < 10:
        return rng.choice([None, True, rng.randrange(-2 ** 62, 2 ** 62), rng.randrange(300), rng.random(), "text ä \U0001f600",
                           torch.bfloat16, np.float64(0.5), np.int64(-7)])
    size = rng.randrange(5)
    if kind == 10:
        return [random_value(rng, depth - 1) for _ in range(size)]
    if kind == 11:
        return tuple(random_value(rng, depth - 1) for _ in range(size))
    if kind == 12:
        return collections.OrderedDict((f"k{i}", random_value(rng, depth - 1)) for i in range(size))
    return {rng.choice([f"key{i}", i]): random_value(rng, depth - 1) for i in range(size)}


class TorchFilesTest(Case):
    def check(self, value, read, data):
        """`read`, of inspect --json, is `value`; tensors are compared in the bytes of the file."""
        if isinstance(value, torch.Tensor):
            self.assertEqual(read["tensor"], str(value.dtype).removeprefix("torch."))
            self.assertEqual(read["shape"], list(value.shape))
            if value.numel():
                flat = torch.frombuffer(data, dtype=value.dtype, offset=read["file_offset"],
                                        count=1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride())))
                self.assertTrue(same_bits(flat.as_strided(value.shape, value.stride()), value))
                self.assertEqual(read.get("stride", list(value.stride())), list(value.stride()))
        elif isinstance(value, torch.dtype):
            self.assertEqual(read, {"global": str(value)})
        elif isinstance(value, (list, tuple)):
            self.assertEqual(len(read), len(value))
            for a, b in zip(value, read):
                self.check(a, b, data)
        elif isinstance(value, dict):
            self.assertEqual(list(read), [str(k) for k in value])
            for key in value:
                self.check(value[key], read[str(key)], data)
        else:
            self.assertEqual(read, value)

    def test_random_objects_round_trip(self):
        for seed in range(60):
            rng = random.Random(seed)
            value = {f"entry{i}": random_value(rng, 4) for i in range(8)}
            path = self.path(f"{seed}.pt")
            torch.save(value, path, pickle_protocol=rng.choice([2, 2, 3, 4, 5]), _use_new_zipfile_serialization=seed % 3 != 0)
            read = json.loads(cairn("inspect", path, "--json").stdout)
            self.assertEqual(read["container"], "zip" if seed % 3 else "stream")
            with self.subTest(seed=seed), open(path, "rb") as file:
                self.check(value, read["tree"], bytearray(file.read()))

    def test_an_optimizer_next_to_the_weights_is_stripped(self):
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        torch.save({"model": model.state_dict(), "train": {"optim": optimizer.state_dict()}}, self.path("both.pt"))
        cairn("strip", self.path("both.pt"), self.path("out"), "--format", "safetensors", "--dtype", "fp16")
        self.assertEqual({key for key, _ in Dump(self.path("out")).tensors}, {"model.weight", "model.bias"})
        torch.save(optimizer.state_dict(), self.path("optim.pt"))
        told = cairn("strip", self.path("optim.pt"), self.path("none"), "--format", "safetensors", "--dtype", "fp16", status=2)
        self.assertIn("it does not contain weights", told.stderr)
        torch.save({"state_dict": model.state_dict(), "optimizer_states": [optimizer.state_dict()]}, self.path("lightning.ckpt"))
        self.check_optimizer("both.pt", "train.optim")
        self.check_optimizer("lightning.ckpt", "optimizer_states.0")

    def check_optimizer(self, name, path):
        """Its tensors are distinguished from the weights, and each target keeps them or names them."""
        states = sorted(f"{path}.state.{i}.{state}" for i in range(2) for state in ("exp_avg", "exp_avg_sq", "step"))
        told = json.loads(cairn("convert", self.path(name), self.path(name + "-w"), "--to", "safetensors", "--json").stdout)
        self.assertEqual({part: row["count"] for part, row in told["account"]["parts"].items()}, {"weight": 2, "optimizer": 6})
        self.assertEqual(told["left_behind"], [path])
        for target in ("native", "dcp"):
            cairn("convert", self.path(name), self.path(name + target), "--to", target)
            held = json.loads(cairn("inspect", self.path(name + target), "--json").stdout)["tensors"]
            self.assertLessEqual(set(states), {tensor["name"] for tensor in held})
        told = json.loads(cairn("convert", self.path(name), self.path(name + "-a"), "--to", "dcp", "--allow", "optimizer", "--json").stdout)
        self.assertEqual({part: row["count"] for part, row in told["account"]["parts"].items()}, {"weight": 2, "allowed": 6})

    def test_values_of_any_layout(self):
        rng = random.Random(7)
        state = {f"t{i}": random_tensor(rng) for i in range(80)}
        for zip_file in (True, False):
            path = self.path(f"{zip_file}.bin")
            torch.save(state, path, _use_new_zipfile_serialization=zip_file)
            dump = Dump(path)
            self.assertEqual(len(dump.tensors), len(state))
            for name, value in state.items():
                self.assertTrue(same_bits(dump.tensors[name, "weight"], value), name)

    def test_unknown_element_types_are_an_error(self):
        """Next to a plain tensor; each would be missing from the result, or mean something else there."""
        plain = torch.ones(2)
        complex_values = torch.randn(4, dtype=torch.cfloat)
        for name, value in {
                "sparse": torch.eye(3).to_sparse(),
                "csr": torch.eye(3).to_sparse_csr(),
                "quantized": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
                "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
                "parameter": torch.nn.Parameter(torch.eye(3).to_sparse()),
                "negative": complex_values.conj().imag,
                "conjugate": complex_values.conj(),
                "array": np.ones(3),
                "storage": torch.ones(3).untyped_storage(),
        }.items():
            for where in ({"w": plain, "q": value}, {"w": plain, "deep": [{"q": (value,)}]}):
                path = self.path(f"{name}.pt")
                torch.save(where, path)
                with self.subTest(name):
                    told = cairn("fingerprint", path, status=2)
                    self.assertIn("does not understand", told.stderr)
                    self.assertIn("q", told.stderr)
        torch.save({"w": plain, "n": complex_values.conj().imag.resolve_neg().clone()}, self.path("plain.pt"))
        cairn("fingerprint", self.path("plain.pt"))

    def test_a_shared_container_has_every_name(self):
        shared = {"w": torch.ones(2, 3)}
        shared["self"] = shared
        wide = [torch.ones(1)]
        for _ in range(55):  # 2**55 ways to one tensor
            wide = [wide, wide]
        path = self.path("shared.pt")
        torch.save({"a": shared, "b": {"c": shared}, "wide": wide}, path)
        self.assertIn("b.c.w  ", cairn("inspect", path, "b.*").stdout)
        self.assertIn("a.w  ", cairn("inspect", path, "b.*", "a.w").stdout)

    def test_code_is_shown_and_never_run(self):
        mark = self.path("mark")

        class Payload:
            def __reduce__(self):
                return os.system, (f"touch {mark}",)

        for protocol in (2, 4):
            for zip_file in (True, False):
                path = self.path("evil.pt")
                torch.save({"w": torch.ones(3), "x": Payload()}, path, pickle_protocol=protocol,
                           _use_new_zipfile_serialization=zip_file)
                shown = cairn("inspect", path).stdout
                self.assertIn("warning: posix.system", shown)
                cairn("fingerprint", path)
                self.assertFalse(os.path.exists(mark))

    def test_every_cut_of_a_file_is_refused(self):
        path = self.path("whole.pt")
        torch.save({"w": torch.arange(6.0), "args": argparse.Namespace(a=1)}, path)
        whole = pathlib.Path(path).read_bytes()
        legacy = self.path("legacy.pt")
        torch.save({"w": torch.arange(6.0)}, legacy, _use_new_zipfile_serialization=False)
        stream = pathlib.Path(legacy).read_bytes()
        for bytes_, steps in ((whole, 97), (stream, 61)):
            for size in range(0, len(bytes_), max(1, len(bytes_) // steps)):
                with open(self.path("cut.pt"), "wb") as file:
                    file.write(bytes_[:size])
                done = cairn("fingerprint", self.path("cut.pt"), status=2)
                self.assertTrue(done.stderr.startswith("cairn: "), done.stderr)

    def test_damage_never_crashes(self):
        rng = random.Random(3)
        path = self.path("whole.pt")
        torch.save({"w": torch.arange(6.0), "v": torch.ones(2, 3).t(), "n": np.float64(1), "s": {1}, "b": b"\xff"}, path)
        whole = pathlib.Path(path).read_bytes()
        for _ in range(150):
            damaged = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            with open(self.path("damaged.pt"), "wb") as file:
                file.write(damaged)
            done = cairn("fingerprint", self.path("damaged.pt"), status=None)
            self.assertIn(done.returncode, (0, 2), done.stderr)


class UnknownModelsTest(Case):
    def test_safetensors_of_an_unknown_model(self):
        tensors = {"base_model.model.q.lora_A.weight": torch.randn(4, 8), "mask": torch.tensor([True, False]),
                   "count": torch.tensor(3), "empty": torch.zeros(0, 2), "half": torch.randn(3, 5).bfloat16()}
        for directory, name in (("adapter", "adapter_model.safetensors"), ("mamba9", "model.safetensors")):
            os.mkdir(self.path(directory))
            save_file(tensors, self.path(directory, name))
            dump = Dump(self.path(directory))
            self.assertEqual(set(dump.tensors), {(key, "weight") for key in tensors})
            for key, value in tensors.items():
                self.assertTrue(same_bits(dump.tensors[key, "weight"], value), key)
            with open(self.path(directory, "config.json" if directory == "mamba9" else "adapter_config.json"), "w") as file:
                json.dump({"model_type": "mamba9"}, file)
            cairn("strip", self.path(directory), self.path(directory + "-s"), "--format", "safetensors")
            # peft looks for these two
            adapter = {"adapter_model.safetensors", "adapter_config.json"} if directory == "adapter" else {"model.safetensors"}
            self.assertEqual(set(os.listdir(self.path(directory + "-s"))), adapter | {"SHA256SUMS"})
            told = json.loads(cairn("convert", self.path(directory), self.path(directory + "-n"), "--to", "native", "--json").stdout)
            self.assertEqual(told["account"]["bytes"], sum(value.nbytes for value in tensors.values()))
            self.assertIn("no difference", cairn("diff", self.path(directory), self.path(directory + "-n")).stdout)
            refused = cairn("convert", self.path(directory), self.path("cut"), "--to", "native", "--tp", "2", status=2)
            self.assertIn("its tensors do not record how they are cut", refused.stderr)
            cairn("inspect", self.path(directory))
            cairn("verify", self.path(directory))

    def test_stack_of_transposed_matrices(self):
        value = torch.randn(6, 600, 500).transpose(1, 2)
        torch.save({"experts": value}, self.path("stack.pt"))
        self.assertTrue(same_bits(Dump(self.path("stack.pt")).tensors["experts", "weight"], value))

    @staticmethod
    def write_gpt_neox(directory, tp, layers=2, hidden=8, vocab=16):
        """Layer files as GPT-NeoX writes them; the tensors under the names that its pipeline has."""
        os.makedirs(directory)
        layer = {name: torch.randn(shape).half() for name, shape in (
            ("input_layernorm.weight", hidden),
            ("attention.query_key_value.weight", (3 * hidden // tp, hidden)),
            ("attention.query_key_value.bias", 3 * hidden // tp), ("attention.rotary_emb.inv_freq", 2),
            ("attention.dense.weight", (hidden, hidden // tp)), ("attention.dense.bias", hidden))}
        files = {0: {"word_embeddings.weight": torch.randn(vocab // tp, hidden).half()},
                 **{2 + i: layer for i in range(layers)},
                 layers + 3: {"norm.weight": torch.randn(hidden).half()},
                 layers + 4: {"final_linear.weight": torch.randn(vocab // tp, hidden).half()}}
        for rank in range(tp):
            for number, tensors in files.items():
                name = f"layer_{number:02}-model_{rank:02}-model_states.pt"
                torch.save(collections.OrderedDict(tensors), os.path.join(directory, name))
            states = {"dp_world_size": 1, "mp_world_size": tp, "module": None, "optimizer": None,
                      "global_steps": 100, "args": {"num_layers": layers, "hidden_size": hidden}}
            torch.save(states, os.path.join(directory, f"mp_rank_{rank:02}_model_states.pt"))
        return {f"{number}.{name}": tensor for number, tensors in files.items()
                for name, tensor in tensors.items()}

    def test_layers_of_gpt_neox(self):
        tensors = self.write_gpt_neox(self.path("one", "global_step100"), tp=1)
        dump = Dump(self.path("one", "global_step100"))
        self.assertEqual(set(dump.tensors), {(key, "weight") for key in tensors})
        for key, value in tensors.items():
            self.assertTrue(same_bits(dump.tensors[key, "weight"], value), key)
        for path in (self.path("one"), self.path("one", "global_step100")):
            self.assertIn("it was written by GPT-NeoX", cairn("inspect", path).stderr)
        with open(self.path("one", "latest"), "w") as file:
            file.write("global_step100")
        self.assertEqual(seal(self.path("one"))["system"], "gpt-neox")
        self.write_gpt_neox(self.path("two", "global_step100"), tp=2)
        for flags in ((), ("--from", "deepspeed")):
            refused = cairn("inspect", self.path("two", "global_step100"), *flags, status=2).stderr
            self.assertIn("GPT-NeoX's layers of 2 tensor parallel ranks cannot be joined", refused)
            self.assertIn("convert_neox_to_hf.py", refused)

    def test_the_only_file_of_a_directory(self):
        """A checkpoint of verl from one rank, and a model.pth."""
        tensors = {"model.w": torch.randn(3, 5), "lm_head.weight": torch.randn(4).bfloat16()}
        os.makedirs(self.path("global_step_5", "actor", "huggingface"))
        os.mkdir(self.path("lit"))
        names = {"model": collections.OrderedDict(tensors), "optim": {"state": {}}, "extra_state": {"rng": 1}}
        for kind, value in names.items():
            torch.save(value, self.path("global_step_5", "actor", kind + "_world_size_1_rank_0.pt"))
        torch.save(tensors, self.path("lit", "model.pth"))
        for config in (self.path("lit"), self.path("global_step_5", "actor", "huggingface")):
            with open(os.path.join(config, "config.json"), "w") as file:
                json.dump({"model_type": "mamba9"}, file)
        for path, config in ((self.path("global_step_5"), "actor/huggingface"),
                             (self.path("global_step_5", "actor"), "huggingface"), (self.path("lit"), "")):
            dump = Dump(path)
            for key, value in tensors.items():
                self.assertTrue(same_bits(dump.tensors[key, "weight"], value), key)
            self.assertIn("--config " + os.path.join(path, config).rstrip("/"), cairn("inspect", path).stderr)
        self.assertEqual(seal(self.path("global_step_5"))["system"], "rank-files")


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 13, "hidden_size": 8, "intermediate_size": 12,
         "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 16,
         "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32", "rope_theta": 10000.0}


def llama():
    """The weights of LLAMA, by transformers' names."""
    shapes = {"model.embed_tokens": (13, 8), "model.norm": (8,), "lm_head": (13, 8)}
    layer = {"self_attn.q_proj": (8, 8), "self_attn.k_proj": (4, 8), "self_attn.v_proj": (4, 8), "self_attn.o_proj": (8, 8),
             "mlp.gate_proj": (12, 8), "mlp.up_proj": (12, 8), "mlp.down_proj": (8, 12), "input_layernorm": (8,),
             "post_attention_layernorm": (8,)}
    shapes |= {"model.layers.0." + name: shape for name, shape in layer.items()}
    generator = torch.Generator().manual_seed(1)
    return {name + ".weight": torch.randn(shape, generator=generator) for name, shape in shapes.items()}


class OtherValuesTest(Case):
    """Values besides the weights stop no conversion, and none is lost without being named."""

    def setUp(self):
        super().setUp()
        self.weights = llama()
        with open(self.path("config.json"), "w") as file:
            json.dump(LLAMA, file)

    def strip_file(self, name, *flags):
        """The published weights of a file, and the names of the values left behind."""
        done = cairn("strip", self.path(name), self.path(name + "-out"), "--dtype", "fp32", "--config", self.path("config.json"), "--json", *flags)
        from safetensors.torch import load_file
        found = load_file(self.path(name + "-out", "model.safetensors"))
        shutil.rmtree(self.path(name + "-out"))
        left = json.loads(done.stdout)["left_behind"]
        notes = [line for line in done.stderr.splitlines() if "note: left behind: " in line]
        self.assertEqual(len(notes), 1 if left else 0, done.stderr)
        if left:
            self.assertIn(left[0], notes[0])
        self.assertEqual(set(found), set(self.weights))
        for key, value in self.weights.items():
            self.assertTrue(same_bits(found[key], value), key)
        return left

    def adam(self):
        return {"state": {i: {"step": torch.tensor(7.0), "exp_avg": torch.randn(v.shape), "exp_avg_sq": torch.rand(v.shape)}
                          for i, v in enumerate(self.weights.values())},
                "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.95), "params": list(range(len(self.weights)))}]}

    def test_scalars_and_the_optimizer_of_a_compiled_model(self):
        for prefix in ("_orig_mod.", "module._orig_mod.", "_orig_mod.module."):
            torch.save({"model": {prefix + k: v for k, v in self.weights.items()}, "optimizer": self.adam(), "iter_num": 2000,
                        "best_val_loss": torch.tensor(3.2), "history": {"losses": torch.tensor([torch.inf, 3.2])}, "config": {"out_dir": "out"},
                        "model_args": {"n_layer": 1}}, self.path("c.pt"))
            left = self.strip_file("c.pt")
            self.assertLessEqual({"best_val_loss/training", "history.losses/training", "config", "model_args"}, set(left))
            cairn("verify", self.path("c.pt"))
        # A tensor that has no place is named first, before those of the optimizer.
        torch.save({"model": self.weights | {"odd": torch.ones(3)}, "optimizer": self.adam()}, self.path("odd.pt"))
        told = cairn("strip", self.path("odd.pt"), self.path("x"), "--config", self.path("config.json"), status=2).stderr
        self.assertIn("1 tensors have no place in the model", told)
        self.assertIn("model.odd", told)
        self.strip_file("odd.pt", "--allow", "model.odd")

    def test_arrays_and_objects_next_to_the_model(self):
        rng = np.random.RandomState(3).get_state()
        torch.save({"model": self.weights, "epoch": np.int64(3), "hist": np.arange(5, dtype=np.int32), "rng": rng,
                    "names": np.array(["a", "bb"]), "obj": np.array([1, None], dtype=object), "best": np.float32(0.25)}, self.path("n.pt"))
        self.assertEqual(self.strip_file("n.pt"), ["best", "hist", "names", "obj", "rng"])
        composer = {"state": {"model": {"model." + k: v for k, v in self.weights.items()}, "optimizers": {"AdamW": self.adam()},
                              "schedulers": {"LambdaLR": {"last_epoch": 160}}, "rank_zero_seed": 17, "algorithms": []},
                    "rng": [{"python": (3, tuple(range(625)), None), "numpy": rng, "torch": torch.get_rng_state()}]}
        torch.save(composer, self.path("composer.pt"))
        left = self.strip_file("composer.pt")
        self.assertLessEqual({"rng.0.numpy.1", "rng.0.torch/training", "state.schedulers", "state.rank_zero_seed"}, set(left))
        cairn("convert", self.path("composer.pt"), self.path("native"), "--to", "native", "--allow", "optimizer")
        self.assertTrue(same_bits(Dump(self.path("composer.pt")).tensors["rng.0.torch", "training"], composer["rng"][0]["torch"]))
        self.assertIn("no difference", cairn("diff", self.path("composer.pt"), self.path("native"), "--ignore", "state.optimizers.*").stdout)
        # Among the weights, an array may be one of them.
        for wrong in ({**self.weights, "extra": np.ones(3)}, {"model": {**self.weights, "extra": np.ones(3)}, "epoch": 1}):
            torch.save(wrong, self.path("among.pt"), pickle_protocol=5 if "model" in wrong else 2)
            name = "extra" if "extra" in wrong else "model.extra"
            told = cairn("strip", self.path("among.pt"), self.path("x"), "--config", self.path("config.json"), status=2).stderr
            self.assertIn(f"--allow '{name}' leaves it out", told)
            self.strip_file("among.pt", "--allow", name)

    # A file of a training that is not a model is good if its bytes are as they were written; only damage has status 1.
    def test_files_without_weights_are_checked_by_their_own_form(self):
        model = torch.nn.Linear(8, 8)
        adam, adafactor = torch.optim.AdamW(model.parameters()), torch.optim.Adafactor(model.parameters())
        fresh = adam.state_dict()
        model(torch.ones(2, 8)).sum().backward()
        adam.step(), adafactor.step()
        schedule = torch.optim.lr_scheduler.SequentialLR(
            adam, [torch.optim.lr_scheduler.ConstantLR(adam), torch.optim.lr_scheduler.CosineAnnealingLR(adam, 10)], [3])
        numpy = np.random.RandomState(3).get_state()
        without = {
            "scheduler.pt": schedule.state_dict(), "scaler.pt": torch.amp.GradScaler("cpu").state_dict(), "optimizer.pt": fresh,
            "rng_state_0.pth": {"python": random.getstate(), "numpy": numpy, "cpu": torch.get_rng_state(), "cuda": [torch.get_rng_state()]},
            "random_states_0.pkl": {"step": 3, "numpy_random_seed": numpy, "torch_manual_seed": torch.get_rng_state()},
            "training_args.bin": argparse.Namespace(path=pathlib.PurePosixPath("x"), lr=1e-3),
            "train_dataloader.pt": {"_snapshot": {"_snapshot_step": 3}, "_steps_since_snapshot": 0, "_iterator_finished": False},
            "sampler.pt": {"indices": np.arange(40), "epoch": 2}, "number.pt": 3}
        holds = {"adam.pt": adam.state_dict(), "adafactor.bin": adafactor.state_dict(), "order.pt": {"order": torch.arange(9), "position": 3}}
        for _ in range(2):  # next to a config.json, then without one
            for name, value in (without | holds).items():
                for zip_file in (True, False):
                    torch.save(value, self.path(name), _use_new_zipfile_serialization=zip_file)
                    done = cairn("verify", self.path(name))
                    says = "(the pickle of a file without weights" + ", every byte by its checksum" * zip_file + ")"
                    if name in without:
                        self.assertIn(says, done.stdout, name)
                    self.assertNotIn("--config", done.stderr, name)
            pathlib.Path(self.path("config.json")).unlink(missing_ok=True)
        torch.save(without["rng_state_0.pth"], self.path("rng_state_0.pth"))
        whole = pathlib.Path(self.path("rng_state_0.pth")).read_bytes()
        at = whole.index(torch.get_rng_state().numpy().tobytes())
        for damaged in (whole[:-40], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:]):
            pathlib.Path(self.path("rng_state_0.pth")).write_bytes(damaged)
            cairn("verify", self.path("rng_state_0.pth"), status=1)
        # A file that may hold weights in a form that is not read is refused; so is a program.
        torch.save({"w": torch.eye(3).to_sparse()}, self.path("sparse.pt"))
        self.assertIn("leaves it out", cairn("verify", self.path("sparse.pt"), status=2).stderr)
        torch.jit.save(torch.jit.script(model), self.path("program.pt"))
        self.assertIn("TorchScript", cairn("verify", self.path("program.pt"), status=2).stderr)
        self.assertIn("cairn inspect", cairn("fingerprint", self.path("scheduler.pt"), status=2).stderr)
        # One of several files, beside their config.json.
        pathlib.Path(self.path("config.json")).write_text(json.dumps(LLAMA))
        names = sorted(self.weights)
        for number, part in enumerate((names[:5], names[5:]), 1):
            save_file({name: self.weights[name] for name in part}, self.path(f"model-0000{number}-of-00002.safetensors"))
        told = cairn("verify", self.path("model-00001-of-00002.safetensors"), status=2).stderr
        self.assertIn("give the directory, or --from safetensors", told)
        cairn("verify", self.path("model-00001-of-00002.safetensors"), "--from", "safetensors")

    def test_callbacks_by_their_class(self):
        import pathlib as classes
        scores = {"best_model_score": torch.tensor(0.3), "kth_value": torch.tensor(float("inf"))}
        torch.save({"state_dict": self.weights, "epoch": 1, "callbacks": {classes.PosixPath: scores},
                    "optimizer_states": [self.adam()], "hyper_parameters": {"path": pathlib.PosixPath("/data")}}, self.path("l.ckpt"))
        left = self.strip_file("l.ckpt")
        self.assertIn("hyper_parameters", left)
        self.assertTrue(any("best_model_score" in name for name in left))
        cairn("verify", self.path("l.ckpt"))  # no score has been worse yet

    def test_a_file_of_one_rank_is_noted(self):
        from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards
        torch.distributed.init_process_group("gloo", init_method="file://" + self.path("store"), rank=0, world_size=1)
        try:
            part = init_from_local_shards([Shard.from_tensor_and_offsets(torch.ones(6, 4), [0, 0], 0)], [6, 4])
            torch.save({"state": {"model": {"lm_head.weight": part}}}, self.path("part.pt"))
            torch.save({"model": {**self.weights, "more": part}}, self.path("mixed.pt"))
        finally:
            torch.distributed.destroy_process_group()
        for name in ("part.pt", "mixed.pt"):
            for verb in (("verify",), ("fingerprint",), ("strip", self.path("x"))):
                told = cairn(verb[0], self.path(name), *verb[1:], status=2).stderr
                self.assertIn("is a ShardedTensor, of which this file has only rank 0's part; save the whole", told)
        self.strip_file("mixed.pt", "--allow", "model.more")

    def test_one_of_several_files_is_not_the_model(self):
        """Its header, its arguments or its name say of how many ranks it has a part."""
        import torch.distributed.checkpoint as dcp
        weights = {key: value.contiguous() for key, value in self.weights.items()}
        dcp.save(weights, storage_writer=dcp.HuggingFaceStorageWriter(self.path("dcp"), save_distributed=True), no_dist=True)
        part = str(next(pathlib.Path(self.path("dcp")).glob("*.safetensors")))
        os.mkdir(self.path("renamed"))
        shutil.copy(part, self.path("renamed", "model.safetensors"))
        save_file(weights, self.path("model-rank-0-part-0.safetensors"))  # vLLM's sharded_state
        torch.save({"model": weights, "args": argparse.Namespace(tensor_model_parallel_size=2)}, self.path("model_optim_rng.pt"))
        torch.save({"module": weights, "mp_world_size": 2}, self.path("mp_rank_00_model_states.pt"))
        for path in (part, self.path("renamed"), *map(self.path, (
                "model-rank-0-part-0.safetensors", "model_optim_rng.pt", "mp_rank_00_model_states.pt"))):
            for verb in (("verify",), ("fingerprint",), ("convert", self.path("x"), "--to", "safetensors")):
                told = cairn(verb[0], path, *verb[1:], status=2).stderr
                self.assertRegex(told, "only one rank's part of each tensor|the file of one rank")
                self.assertFalse(os.path.exists(self.path("x")))
            cairn("verify", path, "--allow", "slice")
        self.assertIn("how many ranks", cairn("verify", self.path("dcp"), status=2).stderr)
        cairn("verify", self.path("dcp"), "--allow", "ranks")

    def test_a_head_that_is_not_the_embedding_can_be_kept_or_left_out(self):
        import torch.distributed.checkpoint as dcp
        dcp.save({"model": self.weights}, checkpoint_id=self.path("d"), no_dist=True)
        for tied in (True, False):
            with open(self.path("config.json"), "w") as file:
                json.dump(LLAMA | {"tie_word_embeddings": tied}, file)
            if not tied:
                self.strip_file("d")
                continue
            told = cairn("strip", self.path("d"), self.path("x"), "--config", self.path("config.json"), status=2).stderr
            self.assertIn("leave the copy out with --allow 'lm_head.weight', or, if it is the output matrix, set tie_word_embeddings to false", told)
            cairn("strip", self.path("d"), self.path("x"), "--config", self.path("config.json"), "--allow", "lm_head.weight")

    def test_a_long_name_fits_every_format(self):
        name = "w" * 65535
        torch.save({name: torch.ones(3)}, self.path("long.pt"))
        for target in ("native", "dcp", "safetensors"):
            cairn("convert", self.path("long.pt"), self.path(target), "--to", target)
            self.assertEqual([tensor["name"] for tensor in json.loads(cairn("inspect", self.path(target), "--json").stdout)["tensors"]], [name])
        torch.save({name + "w": torch.ones(3)}, self.path("longer.pt"))
        cairn("convert", self.path("longer.pt"), self.path("longer"), "--to", "dcp")
        told = cairn("convert", self.path("longer"), self.path("x"), "--to", "native", status=2).stderr
        self.assertIn("its name has 65536 bytes, but a step holds at most 65535; rename it", told)
        self.assertFalse(os.path.exists(self.path("x")))


class TypesWithoutArithmeticTest(Case):
    """Scales and numbers of quantized blocks keep their bits and are never cast."""

    def test_round_trip_through_every_format(self):
        from safetensors.torch import load_file
        bits = torch.arange(64, dtype=torch.uint8).reshape(8, 8)
        saved = {"experts.0.w": bits.view(torch.float4_e2m1fn_x2), "norm.weight": torch.randn(8).bfloat16(),
                 "experts.0.scale": torch.tensor([[0.5, 1.0, 2.0, 4.0]] * 2, dtype=torch.float8_e8m0fnu)}
        os.mkdir(self.path("src"))
        save_file(saved, self.path("src", "model.safetensors"))
        cairn("verify", self.path("src"))
        cairn("inspect", self.path("src"), "--stats")
        before = self.path("src")
        for target in ("native", "dcp", "safetensors"):
            cairn("convert", before, self.path(target), "--to", target)
            self.assertIn("no difference", cairn("diff", self.path("src"), self.path(target)).stdout)
            before = self.path(target)
        found = load_file(self.path("safetensors", "model.safetensors"))
        self.assertEqual(set(found), set(saved))
        for name, value in saved.items():
            self.assertTrue(same_bits(found[name], value), name)
        import torch.distributed.checkpoint as dcp
        into = {name: torch.zeros_like(value.view(torch.uint8)).view(value.dtype) for name, value in saved.items()}
        dcp.load({"model": into}, checkpoint_id=self.path("dcp"), no_dist=True)
        self.assertTrue(all(same_bits(into[name], value) for name, value in saved.items()))
        torch.save(saved, self.path("x.pt"))
        self.assertIn("no difference", cairn("diff", self.path("src"), self.path("x.pt")).stdout)
        told = cairn("strip", self.path("src"), self.path("cast"), "--format", "safetensors", "--dtype", "bf16", status=2).stderr
        self.assertIn("experts.0.scale is fp8_e8m0", told)
        self.assertIn("cairn convert without --dtype keeps it", told)
        bits[3, 3] += 1
        save_file(saved, self.path("changed.safetensors"))
        told = cairn("diff", self.path("src"), self.path("changed.safetensors"), "--atol", "1000", status=1).stdout
        self.assertIn("they differ", told)


class DcpTest(Case):
    def test_chunks_of_any_number_of_ranks(self):
        subprocess.run([sys.executable, os.path.join(HERE, "dcp_writer.py"), self.dir], check=True, timeout=500,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        fingerprints = {"nested": set(), "flat": set()}
        for world in (2, 4):
            full = torch.load(self.path(f"full{world}.pt"), weights_only=False)
            for kind in ("nested", "flat"):
                dump = Dump(self.path(f"{kind}{world}"))
                expected = {(name, "weight"): value for name, value in full["model"].items()}
                for name, state in full["optimizer"]["state"].items():
                    expected |= {(name, role): state[role] for role in ("exp_avg", "exp_avg_sq", "step")}
                for key, value in expected.items():
                    self.assertTrue(same_bits(dump.tensors[key], value), key)
                objects = {key for key in dump.tensors if key[1] == "pickle"}
                self.assertEqual(set(dump.tensors) - objects, set(expected))
                self.assertEqual({name for name, _ in objects}, {"train.iteration", "train.name"} if kind == "nested" else set())
                self.assertNotIn("optimizer_step", dump.facts["state"])  # parameters differ in it
                decays = {group["weight_decay"]: (group["lr"], set(group["params"]))
                          for group in dump.facts["state"]["param_groups"]}
                self.assertEqual(decays, {group["weight_decay"]: (group["lr"], set(group["params"]))
                                          for group in full["optimizer"]["param_groups"]})
                fingerprints[kind].add(json.loads(cairn("fingerprint", self.path(f"{kind}{world}"), "--json").stdout)["fingerprint"])
        self.assertEqual(Dump(self.path("nested4")).facts["state"]["iteration"], 7)
        self.assertEqual([len(of_kind) for of_kind in fingerprints.values()], [1, 1])  # the same training in any world
        told = cairn("diff", self.path("nested2"), self.path("flat4"), "--ignore", "train.*").stdout
        self.assertIn("no difference", told)  # saved either way
        self.check_seals()
        self.check_others()
        self.check_entries(self.path("SGD"))
        self.check_sums(self.path("nested2"))
        os.remove(self.path("nested4", ".metadata"))
        self.assertIn("interrupted", cairn("fingerprint", self.path("nested4"), status=2).stderr)
        data = self.path("nested2", "__1_0.distcp")
        os.truncate(data, os.path.getsize(data) - 10)
        self.assertIn("__1_0.distcp", cairn("fingerprint", self.path("nested2"), status=2).stderr)


    def trained(self, **options):
        """The state dicts of a model and its optimizer, as torch.distributed.checkpoint takes them."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 2))
        optimizer = torch.optim.AdamW([{"params": model[0].parameters(), "lr": 0.5}, {"params": model[1].parameters()}])
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
        return get_state_dict(model, optimizer, options=StateDictOptions(**options))

    def test_a_state_dict_keeps_its_structure(self):
        """Flattened or not, under whatever keys: the program that saved it loads what cairn wrote, also through a step."""
        import torch.distributed.checkpoint as dcp
        for i, (flat, wrap) in enumerate((flat, wrap) for flat in (True, False) for wrap in (
                lambda w, s: {"model": w, "optimizer": s}, lambda w, s: {"app": {"net": w, "optim": s}}, lambda w, s: {**w, **s})):
            state = wrap(*self.trained(flatten_optimizer_state_dict=flat))
            dcp.save(state, checkpoint_id=self.path(f"src{i}"), no_dist=True)
            cairn("convert", self.path(f"src{i}"), self.path(f"out{i}"), "--to", "dcp")
            cairn("convert", self.path(f"src{i}"), self.path(f"native{i}"), "--to", "native")
            cairn("convert", self.path(f"native{i}"), self.path(f"back{i}"), "--to", "dcp")
            wanted = list(leaves(state))
            for out in ("out", "back"):
                found = wrap(*self.trained(flatten_optimizer_state_dict=flat))
                dcp.load(found, checkpoint_id=self.path(f"{out}{i}"), no_dist=True)
                found = list(leaves(found))
                self.assertEqual([path for path, _ in found], [path for path, _ in wanted])
                for (path, a), (_, b) in zip(found, wanted):
                    self.assertTrue(torch.equal(a, b) if torch.is_tensor(b) else a == b, (flat, path, a, b))

    def test_values_of_neither_model_nor_optimizer_are_carried(self):
        """Unchanged: torch loads from the result what it saved, also through a step, and again."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
        rates = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=torch.tensor(0.25), capturable=True).state_dict()["param_groups"]
        weights, states = self.trained()
        for group, of in zip(states["param_groups"], rates * 2):
            group["lr"] = of["lr"]
        state = {"model": weights, "optimizer": states, "train_state": {"step": torch.tensor(2), "ntokens_seen": torch.tensor(32),
                                                                                  "losses": torch.rand(5)},
                 "lr_scheduler": {"last_epoch": 2, "base_lrs": [0.5]}, "dataloader": {"dp_rank_0": b"\x80\x04N.", "empty": {}},
                 "rng": [{"python": (3, (1, 2), None), "numpy": np.random.RandomState(1).get_state()}], "train": {"iteration": 11},
                 "timestamp": {"Timestamp": {"batch": 2}}, "cairn_is": None}
        dcp.save(state, checkpoint_id=self.path("src"), no_dist=True)
        told = json.loads(cairn("convert", self.path("src"), self.path("out"), "--to", "dcp", "--json").stdout)
        self.assertEqual(told["left_behind"], [])
        cairn("convert", self.path("src"), self.path("native"), "--to", "native")
        cairn("convert", self.path("native"), self.path("back"), "--to", "dcp", "--dp", 2)
        cairn("convert", self.path("back"), self.path("again"), "--to", "dcp")
        for out in ("src", "out", "back", "again"):
            dcp_to_torch_save(self.path(out), self.path("all.pt"))
            found = dict(leaves(torch.load(self.path("all.pt"), weights_only=False)))
            for path, value in leaves(state):
                if "optimizer" in path:
                    continue
                if torch.is_tensor(value):
                    self.assertTrue(same_bits(found[path], value), (out, path))
                else:
                    self.assertEqual(str(found[path]), str(value), (out, path))
            cairn("verify", self.path(out))
            self.assertIn("no difference", cairn("diff", self.path("src"), self.path(out)).stdout)
        # Other formats have no place for them, and report it.
        done = cairn("strip", self.path("native"), self.path("release"), "--format", "safetensors", "--json")
        left = set(json.loads(done.stdout)["left_behind"])
        self.assertLessEqual({"train_state.step/training", "lr_scheduler.last_epoch/pickle", "dataloader.dp_rank_0/pickle"}, left)
        self.assertIn("note: left behind: ", done.stderr)
        cairn("convert", self.path("src"), self.path("without"), "--to", "dcp", "--allow", "dataloader.*")
        self.assertNotIn("dataloader.dp_rank_0", [name for name, _ in Dump(self.path("without")).tensors])

    def test_a_part_of_a_moment_is_an_error(self):
        """As a rank saves it that takes its own part for the whole."""
        import torch.distributed.checkpoint as dcp
        weights, states = self.trained()
        name = max(weights, key=lambda name: weights[name].dim())
        whole = states["state"][name]["exp_avg_sq"]
        for number, part in enumerate((whole[:len(whole) // 2], whole[:, 1:], whole.flatten(), whole[:1], torch.cat((whole, whole)))):
            states["state"][name]["exp_avg_sq"] = part.contiguous()
            source, out = self.path(f"part{number}"), self.path(f"out{number}")
            dcp.save({"model": weights, "optimizer": states}, checkpoint_id=source, no_dist=True)
            for verb in (("convert", out, "--to", "native"), ("convert", out, "--to", "dcp"), ("strip", out)):
                self.assertIn(f"{name}/exp_avg_sq is of another shape than its parameter", cairn(verb[0], source, *verb[1:], status=2).stderr)
                self.assertFalse(os.path.exists(out))
            self.assertIn("is of another shape", cairn("verify", source, status=1).stdout)
            told = cairn("convert", source, out, "--to", "native", "--allow", "optimizer").stdout
            self.assertNotIn("exp_avg_sq 1", told)
        for moment in ("exp_avg", "exp_avg_sq"):  # as GaLore has them, which projects a matrix
            states["state"][name][moment] = whole[:1].contiguous()
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=self.path("low"), no_dist=True)
        self.assertIn("may be of low rank", cairn("verify", self.path("low"), status=2).stderr)
        cairn("verify", self.path("low"), "--allow", "optimizer")

    def test_a_lost_file_of_the_optimizer_needs_a_flag(self):
        """Accelerate's two directories. A lost file of the model is an error with the flag, too."""
        import torch.distributed.checkpoint as dcp
        weights, states = self.trained()
        for name, part in (("pytorch_model_fsdp_0", {"model": weights}), ("optimizer_0", {"optimizer": states})):
            dcp.save(part, checkpoint_id=self.path(f"src/{name}"), no_dist=True)
        model, optimizer = (glob.glob(self.path(f"src/{name}/*.distcp"))[0] for name in ("pytorch_model_fsdp_0", "optimizer_0"))
        for number, lose in enumerate((lambda: os.truncate(optimizer, os.path.getsize(optimizer) // 2), lambda: os.remove(optimizer))):
            lose()
            out = self.path(f"out{number}")
            for verb in (("inspect",), ("convert", out, "--to", "native"), ("strip", out)):
                self.assertIn(optimizer, cairn(verb[0], self.path("src"), *verb[1:], status=2).stderr)
            cairn("verify", self.path("src"), status=1)
            cairn("verify", self.path("src"), "--allow", "optimizer")
            cairn("convert", self.path("src"), out, "--to", "safetensors", "--allow", "optimizer")
            self.assertEqual(set(load_file(os.path.join(out, "model.safetensors"))), set(weights))
        writer = dcp.FileSystemWriter(self.path("apart"), single_file_per_rank=False)  # a file for each tensor
        dcp.save({"model": weights, "optimizer": states}, storage_writer=writer, no_dist=True)
        places = dcp.FileSystemReader(self.path("apart")).read_metadata().storage_data
        os.remove(self.path("apart", next(place.relative_path for key, place in places.items() if key.fqn.endswith("exp_avg"))))
        cairn("verify", self.path("apart"), status=1)
        cairn("verify", self.path("apart"), "--allow", "optimizer")
        os.remove(model)
        self.assertIn(model, cairn("inspect", self.path("src"), "--allow", "optimizer", status=2).stderr)
        dcp.save({"optimizer": states}, checkpoint_id=self.path("rest/optimizer_0"), no_dist=True)  # the model's directory is lost
        self.assertIn("no weights are in it", cairn("seal", self.path("rest"), "--settle", 0).stdout)
        cairn("verify", self.path("rest"), status=2)
        dcp.save({"model": weights}, checkpoint_id=self.path("both/model"), no_dist=True)
        dcp.save({"optimizer": states}, checkpoint_id=self.path("both/optimizer"), no_dist=True)
        self.assertNotIn("not checked", cairn("seal", self.path("both"), "--settle", 0).stdout)
        cairn("verify", self.path("both"))

    def test_an_optimizer_that_is_not_understood_is_not_dropped(self):
        """A DCP holds an object as bytes, which only DCP and a step can carry on."""
        import torch.distributed.checkpoint as dcp
        weights, states = self.trained()
        dcp.save({"model": weights, "optimizer": argparse.Namespace(moments=states)}, checkpoint_id=self.path("src"), no_dist=True)
        for target in ("dcp", "native"):
            cairn("convert", self.path("src"), self.path(target), "--to", target)
        for source in ("src", "native"):
            self.assertIn("the optimizer's state optimizer has no place in universal; --allow optimizer",
                          cairn("convert", self.path(source), self.path("x"), "--to", "universal", status=2).stderr)
        cairn("convert", self.path("src"), self.path("universal"), "--to", "universal", "--allow", "optimizer")

    def test_a_buffer_of_an_unsupported_type_can_be_left_out(self):
        import torch.distributed.checkpoint as dcp
        dcp.save({"w": torch.ones(3, 2), "freqs_cis": torch.ones(3, dtype=torch.complex64)}, checkpoint_id=self.path("src"), no_dist=True)
        self.assertIn("--allow 'freqs_cis' leaves it out", cairn("verify", self.path("src"), status=2).stderr)
        cairn("verify", self.path("src"), "--allow", "freqs_cis")
        cairn("convert", self.path("src"), self.path("out"), "--to", "dcp", "--allow", "freqs_cis")

    def test_two_directories_are_one_training(self):
        """Of accelerate, and of NeMo Automodel."""
        import torch.distributed.checkpoint as dcp
        weights, states = self.trained()
        expected = {(name, "weight"): value for name, value in weights.items()}
        expected |= {(name, role): states["state"][name][role] for name in weights for role in ("exp_avg", "exp_avg_sq")}
        for number, parts in enumerate(({"pytorch_model_fsdp_0": {"model": weights}, "optimizer_0": {"optimizer": states}},
                                        {"model": weights, "optim": {"optim": states}})):
            state = self.path(f"state_{number}")
            for name, part in parts.items():
                dcp.save(part, checkpoint_id=os.path.join(state, name), no_dist=True)
            dump = Dump(state)
            self.assertEqual(set(dump.tensors), set(expected))
            for key, value in expected.items():
                self.assertTrue(same_bits(dump.tensors[key], value), key)
            self.assertEqual(dump.facts["state"]["optimizer_step"], 1)
            cairn("verify", state)

    def test_an_optimizer_that_is_not_understood_goes_from_dcp_to_dcp(self):
        """The kind: states of another name, type or key than torch's own optimizers give. They are listed, checked, and carried as
        they are, with their groups; weights are read without them."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
        weights, named = self.trained()

        def states(change):
            return {"state": {name: change({key: value.clone() for key, value in state.items()}) for name, state in named["state"].items()},
                    "param_groups": named["param_groups"]}

        def int8(state):
            x = state.pop("exp_avg")
            return state | {"exp_avg::quantized": (x * 100).to(torch.int8), "exp_avg::scales": torch.rand(-(-x.numel() // 32)).half()}

        def blocks(state):  # as torchao's and bitsandbytes' 8-bit Adam have them
            x = state.pop("exp_avg_sq")
            return state | {"state1.codes": (x * 100).to(torch.uint8), "state1.absmax": torch.rand(3), "qmap": torch.rand(256)}
        order = dict(enumerate(named["state"].values()))
        numbers = {"state": order, "param_groups": [{"lr": 0.5, "params": [0, 1]}, {"lr": 0.25, "params": [2, 3]}]}
        momentum = {"state": {i: {"momentum_buffer": state["exp_avg"]} for i, state in order.items()}, "param_groups": numbers["param_groups"]}
        fused = {"state": {"flat_param": {"shampoo.0.factor": torch.rand(4, 4), "step": torch.tensor(2.0)}},
                 "param_groups": [{"lr": 0.5, "params": []}]}
        for kind, optimizer in {"int8": states(int8), "blocks": states(blocks), "numbers": numbers, "momentum": momentum, "fused": fused,
                                "sparse": states(lambda state: state | {"master.delta": torch.rand(7).bfloat16()})}.items():
            with self.subTest(kind=kind):
                state = {"model": weights, "optimizer": optimizer, "train": {"iteration": 7}}
                dcp.save(state, checkpoint_id=self.path(kind), no_dist=True)
                told = cairn("inspect", self.path(kind)).stdout
                self.assertIn(next(iter(next(iter(optimizer["state"].values())))), told)
                cairn("verify", self.path(kind))
                cairn("convert", self.path(kind), self.path(kind + "-1"), "--to", "dcp")
                cairn("convert", self.path(kind + "-1"), self.path(kind + "-2"), "--to", "dcp", "--dp", 2)
                dcp_to_torch_save(self.path(kind), self.path("wanted.pt"))
                wanted = dict(leaves(torch.load(self.path("wanted.pt"), weights_only=False)))
                for out in ("-1", "-2"):
                    dcp_to_torch_save(self.path(kind + out), self.path("all.pt"))
                    found = dict(leaves(torch.load(self.path("all.pt"), weights_only=False)))
                    for path, value in wanted.items():
                        same = same_bits(found[path], value) if torch.is_tensor(value) else found[path] == value
                        self.assertTrue(same, (out, path))
                    cairn("verify", self.path(kind + out))
                told = cairn("convert", self.path(kind), self.path(kind + "-u"), "--to", "universal", status=2).stderr
                reason = {"int8": "the optimizer's exp_avg::quantized is int8, and the format holds it in fp32; --allow optimizer",
                          "blocks": r"the optimizer's qmap has shape \[256\], and the format holds states of the parameter's",
                          "sparse": r"the optimizer's master.delta has shape \[7\], and the format holds states of the parameter's"}
                unread = r"has numbers or unknown names \(optimizer\.state\.(0|flat_param)\.[\w.]+\), which only DCP keeps; --allow optimizer takes"
                self.assertRegex(told, reason.get(kind) or unread)
                cairn("strip", self.path(kind), self.path(kind + "-s"), "--format", "safetensors", "--allow", "optimizer", "--dtype", "fp32")
                self.assertEqual(set(load_file(self.path(kind + "-s", "model.safetensors"))), set(weights))

    def check_seals(self):
        """torch loads a sealed directory as before, and a rank's file that is missing is named before it is sealed."""
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
        for name in ("flat4", "SGD"):
            self.assertEqual(seal(self.path(name))["system"], "dcp")
            dcp_to_torch_save(self.path(name), self.path("sealed.pt"))
        os.rename(self.path("flat2", "__1_0.distcp"), self.path("away"))
        self.assertIn("__1_0.distcp: the file is missing", cairn("seal", self.path("flat2"), "--settle", 0, status=1).stderr)
        os.rename(self.path("away"), self.path("flat2", "__1_0.distcp"))

    def check_others(self):
        """States of other optimizers are states, not weights; other values are kept by name or reported."""
        for name, roles in {"SGD": ["momentum_buffer"], "NAdam": ["exp_avg", "exp_avg_sq", "mu_product"],
                            "RMSprop": ["square_avg"], "amsgrad": ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]}.items():
            full = torch.load(self.path(f"{name}.pt"), weights_only=False)
            expected = {(key, "weight"): value for key, value in full["model"].items()}
            for key, state in full["optimizer"]["state"].items():
                expected |= {(key, role): state[role] for role in roles}
            dump = Dump(self.path(name))
            others = {name for name, role in dump.tensors if role in ("training", "pickle")}
            self.assertLessEqual({"train_state.loss", "train_state.losses"}, others)
            self.assertEqual({key for key in dump.tensors if key[0] not in others}, set(expected))
            for key, value in expected.items():
                self.assertTrue(same_bits(dump.tensors[key], value), key)
            self.assertEqual(dump.facts["state"]["other"]["train_state.loss"], 1.5)
            self.assertEqual(dump.facts["state"]["param_groups"][0]["lr"], 0.25)
            account = dump.facts["state"]["source_account"]
            self.assertEqual(sum(part["bytes"] for part in account["parts"].values()), account["bytes"])
            cairn("strip", self.path(name), self.path(name + "-s"), "--format", "safetensors", "--dtype", "fp32")
            self.assertEqual({key for key, _ in Dump(self.path(name + "-s")).tensors}, set(full["model"]))

    def check_sums(self, directory):
        """A damaged element in a .distcp is detected by the CRC-32 of its item, as in a .pt."""
        metadata = pickle.loads(pathlib.Path(directory, ".metadata").read_bytes())
        item = max(metadata.storage_data.values(), key=lambda item: item.length)
        path = pathlib.Path(directory, item.relative_path)
        whole = path.read_bytes()
        part = zipfile.ZipFile(io.BytesIO(whole[item.offset:item.offset + item.length]))
        record = next(record for record in part.infolist() if record.filename.endswith("data/0"))
        data = bytearray(whole)
        data[data.index(part.read(record), item.offset) + 1] ^= 1
        path.write_bytes(data)
        self.assertIn("record data/0 of", cairn("convert", directory, directory + "-n", "--to", "native", status=2).stderr)
        self.assertIn("record data/0 of", cairn("verify", directory, status=1).stdout)
        cairn("convert", directory, directory + "-n", "--to", "native", "--no-checksums")
        path.write_bytes(whole)
        cairn("verify", directory)

    def check_entries(self, directory):
        """Each entry that .metadata has and its files lack, or the other way round, is an error."""
        path = os.path.join(directory, ".metadata")
        whole = pathlib.Path(path).read_bytes()
        for kind in ("state_dict_metadata", "storage_data"):
            for i in range(len(getattr(pickle.loads(whole), kind))):
                metadata = pickle.loads(whole)
                entries = getattr(metadata, kind)
                entry = list(entries)[i]
                entries.pop(entry)
                pathlib.Path(path).write_bytes(pickle.dumps(metadata))
                told = cairn("fingerprint", directory, status=2).stderr
                self.assertIn(entry if isinstance(entry, str) else entry.fqn, told)
        pathlib.Path(path).write_bytes(whole)


ZERO = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "bf16": {"enabled": True}}
FP32_GRADS = ZERO | {"data_types": {"grad_accum_dtype": "fp32"}, "zero_optimization": {"stage": 1}}
UNTESTED = ZERO | {"zero_allow_untested_optimizer": True}
DEEPSPEED = {
    "zero1": {"world": 2, "engine": "plain", "config": FP32_GRADS},
    "zero2": {"world": 2, "engine": "plain", "config": ZERO | {"zero_optimization": {"stage": 2}}},
    "robin": {"world": 2, "engine": "plain",
              "config": ZERO | {"zero_optimization": {"stage": 2, "round_robin_gradients": True}}},
    "zero3": {"world": 3, "engine": "plain", "buffers": True,
              "config": ZERO | {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 20}}},
    "stage0": {"world": 2, "engine": "plain", "config": ZERO},
    "amsgrad2": {"world": 2, "engine": "plain", "optimizer_args": {"amsgrad": True}, "frozen": "layers.1",
                 "states": ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"], "config": UNTESTED | {"zero_optimization": {"stage": 2}}},
    "sgd3": {"world": 2, "engine": "plain", "optimizer": "SGD", "optimizer_args": {"momentum": 0.9}, "frozen": "layers.1",
             "states": ["momentum_buffer"], "config": UNTESTED | {"zero_optimization": {"stage": 3}}},
    "nadam": {"world": 1, "engine": "pipe", "pp": 1, "optimizer": "NAdam", "config": UNTESTED | {"zero_optimization": {"stage": 1}}},
    "bf16states": {"world": 2, "engine": "plain",
                   "config": ZERO | {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True},
                                     "zero_optimization": {"stage": 2}}},
    "mixture2": {"world": 2, "engine": "mixture", "config": ZERO | {"zero_optimization": {"stage": 2}}},
    "mixture3": {"world": 2, "engine": "mixture", "config": ZERO | {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}},
    "own": {"world": 4, "engine": "own", "pp": 2, "tp": 2, "config": FP32_GRADS},
    "pipeline": {"world": 8, "engine": "pipe", "pp": 2, "tp": 2, "config": FP32_GRADS | {"gradient_accumulation_steps": 2}},
}
HEADS, VOCAB = 4, 29
MEGATRON = {"word_embeddings": "embedding.word", "position_embeddings": "embedding.position",
            "input_layernorm": "input_norm", "self_attention.dense": "attention.output",
            "post_attention_layernorm": "post_attention_norm", "mlp.dense_h_to_4h": "mlp.up",
            "mlp.dense_4h_to_h": "mlp.down", "final_layernorm": "final_norm"}


def canonical(name, value):
    """A Megatron parameter of all ranks, as canonical ones: the plain version, on whole tensors."""
    if "query_key_value" in name:
        prefix, kind = name.split("self_attention.query_key_value.")
        parts = value.reshape(HEADS, 3, -1, *value.shape[1:])
        for i, part in enumerate(("query", "key", "value")):
            yield f"{prefix}attention.{part}.{kind}", parts[:, i].reshape(-1, *value.shape[1:])
        return
    if name == "word_embeddings.weight":
        value = value[:VOCAB]
    module, kind = name.rsplit(".", 1)
    prefix = ""
    if module.startswith("layers."):
        _, layer, module = module.split(".", 2)
        prefix = f"layers.{layer}."
    yield f"{prefix}{MEGATRON[module]}.{kind}", value


@torch.no_grad()
def known_to_ranks(out, world, role, when="known"):
    """{name: whole tensor} from the slices that the ranks recorded."""
    whole = {}
    for rank in range(world):
        for name, known in torch.load(f"{out}-{when}-{rank}.pt", weights_only=False).items():
            if known[role] is None:
                continue
            part = known[role]
            if name not in whole:
                whole[name] = torch.full(known["shape"], float("nan"), dtype=part.dtype)
            whole[name][tuple(slice(o, o + n) for o, n in zip(known["offset"], part.shape))] = part
    return whole


class DeepSpeedTest(Case):
    def test_masters_and_moments_of_every_stage(self):
        if importlib.util.find_spec("deepspeed") is None:
            self.skipTest("deepspeed is not installed")
        done = subprocess.run([sys.executable, os.path.join(HERE, "deepspeed_writer.py"), self.dir, json.dumps(DEEPSPEED)],
                              capture_output=True, text=True, timeout=1500)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        for name, spec in DEEPSPEED.items():
            with self.subTest(name=name):
                if name == "robin":
                    self.check_round_robin()
                elif name == "nadam":
                    told = cairn("fingerprint", self.path(name), status=2).stderr
                    self.assertIn("has a mu_product that is one number", told)
                    told = json.loads(cairn("convert", self.path(name), self.path("nadam-n"), "--to", "native", "--allow", "optimizer",
                                            "--json").stdout)
                    self.assertEqual({"weight", "master", "exp_avg"} & set(told["account"]["parts"]), {"weight", "master"})
                elif name == "own":
                    self.check_own(self.path(name), spec)
                elif spec["engine"] == "mixture":
                    self.check_mixture(self.path(name), spec)
                else:
                    self.check(name, spec)
        self.check_beside_weights(self.path(next(iter(DEEPSPEED))))

    def check_affine_map(self, out, shapes):
        """AutoTP records where each element of a slice lies. The same cuts, as DeepSpeed's own functions describe them."""
        where = os.path.join(os.path.dirname(importlib.util.find_spec("deepspeed").origin), "checkpoint", "affine.py")
        affine = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("affine", where))
        spec.loader.exec_module(affine)

        def describe(name, shape):
            if name.endswith("pair.weight"):
                return affine.sub_param_map(shape, [6, 6], [[3, 3], [3, 3]], 0)
            if name.endswith("columns.bias") or name[0] in "34":
                return affine.replicated_map(shape, 2)
            dim = int(name.endswith("columns.weight"))
            return affine.contiguous_split_map(shape, [shape[dim] // 2] * 2, dim)
        wanted = fingerprint(out)
        path = os.path.join(out, "global_step2", "mp_rank_00_model_states.pt")
        root = torch.load(path, weights_only=False)
        kept = root["universal_checkpoint_info"]
        maps = {f"^{re.escape(name)}$": describe(name, list(shape)).to_dict() for name, shape in shapes.items()}
        root["universal_checkpoint_info"] = {"universal_checkpoint_version": 0.4, "affine_map": {"version": 1, "params": maps}}
        torch.save(root, path)
        self.assertEqual(fingerprint(out), wanted)
        cairn("verify", out)
        scaled = next(piece for name, entry in maps.items() if "columns" in name and "bias" in name for piece in entry["ranks"][0]["pieces"])
        scaled["scale"] = 0.5
        torch.save(root, path)
        self.assertIn("its affine map scales the slice by 0.5", cairn("fingerprint", out, status=2).stderr)
        torch.save(root | {"universal_checkpoint_info": kept}, path)

    def check_mixture(self, out, spec):
        """The experts of a layer, which ZeRO cuts at any element, in all roles; a third of them is fused with another third."""
        cairn("convert", out, out + "-n", "--to", "native", "--config", out + "-config", "--ep", 2, "--dp", 2)
        cairn("convert", out + "-n", out + "-dcp", "--to", "dcp")
        dump = Dump(out + "-dcp")
        for role, theirs in (("master", "fp32"), ("exp_avg", "exp_avg"), ("exp_avg_sq", "exp_avg_sq")):
            known = known_to_ranks(out, spec["world"], theirs)
            role = "weight" if (role, spec["config"]["zero_optimization"]["stage"]) == ("master", 3) else role
            seen = {name: tensor for (name, r), tensor in dump.tensors.items() if r == role}
            for layer in (1, 2):
                gate, up = known[f"model.model.layers.{layer}.mlp.experts.gate_up_proj"].chunk(2, 1)
                for part, expected in (("experts.gate", gate), ("experts.up", up),
                                       ("experts.down", known[f"model.model.layers.{layer}.mlp.experts.down_proj"]),
                                       ("router", known[f"model.model.layers.{layer}.mlp.gate.weight"])):
                    self.assertTrue(same_bits(seen[f"layers.{layer}.mlp.{part}.weight"], expected), (part, role))
            self.assertEqual(sum(t.numel() for t in seen.values()), sum(t.numel() for t in known.values()))

    def check_beside_weights(self, out):
        """As the Trainer of transformers leaves it, which saves the model beside DeepSpeed's files."""
        both = out + "-trainer"
        shutil.copytree(out, both)
        save_file({"w": torch.ones(2)}, os.path.join(both, "model.safetensors"))
        with open(os.path.join(both, "config.json"), "w") as file:
            json.dump({"model_type": "x9"}, file)
        told = cairn("inspect", both, "--json")
        self.assertIn("--from hf reads only the weights", told.stderr)
        single, both_facts = json.loads(cairn("inspect", out, "--json").stdout), json.loads(told.stdout)
        self.assertEqual((both_facts["run"], both_facts["step"], both_facts["tensors"]), (single["run"], single["step"], single["tensors"]))
        self.assertEqual(len(json.loads(cairn("inspect", both, "--from", "hf", "--json").stdout)["tensors"]), 1)
        done = json.loads(cairn("convert", both, both + "-n", "--to", "native", "--json").stdout)
        self.assertLessEqual({"model.safetensors", "config.json"}, set(done["left_behind"]))

    def check(self, name, spec):
        out = self.path(name)
        dump = Dump(out, "--prove")
        self.assertEqual(dump.facts["state"]["iteration"], 2)
        self.assertEqual(dump.facts["state"]["consumed_samples"], 48)
        self.assertEqual(dump.facts["tp"], spec.get("tp", 1))
        seen = set()
        states = [(role, role) for role in spec.get("states", ["exp_avg", "exp_avg_sq"])]
        zero3 = spec["config"].get("zero_optimization", {}).get("stage") == 3
        for role, theirs in (("weight", "weight"), ("master", "fp32"), *states):
            for full, value in known_to_ranks(out, spec["world"], theirs).items():
                pairs = canonical(full, value) if spec["engine"] == "pipe" else [(self.plain_name(full), value)]
                for ours, expected in pairs:
                    if zero3 and role == "weight" and not ours.startswith(spec.get("frozen", "none")):
                        continue  # masters are all that ZeRO-3 stores of trained parameters
                    key = ours, "weight" if zero3 and role == "master" else role
                    if name == "bf16states":
                        expected = expected.bfloat16()  # DeepSpeed's functions give fp32 of them
                    self.assertTrue(same_bits(dump.tensors[key], expected), key)
                    seen.add(key)
        if spec.get("buffers"):
            module = torch.load(os.path.join(out, "global_step2", "zero_pp_rank_0_mp_rank_00_model_states.pt"), weights_only=False)["module"]
            for key in ("norm.mask", "norm.mean", "norm.count"):
                self.assertTrue(same_bits(dump.tensors[key, "weight"], module[key]), key)
                seen.add((key, "weight"))
        self.assertEqual(seen, set(dump.tensors))
        self.assertEqual(dump.facts["history"], [])
        self.check_account(dump)
        if spec.get("frozen") and zero3:
            self.check_dropped(out)
        if name in ("zero3", "pipeline"):
            self.check_universal(out, dump)
        if spec.get("buffers"):
            self.check_copies(out)
        if name == "bf16states":
            self.assertEqual({value.dtype for value in dump.tensors.values()}, {torch.bfloat16})
            told = cairn("convert", out, out + "-u", "--to", "universal", status=2).stderr
            self.assertIn("the optimizer's exp_avg is bf16, and the format holds it in fp32", told)
        if spec["engine"] == "pipe":
            self.check_thin(out, dump)
            self.check_losses(out)

    def check_account(self, dump):
        account = dump.facts["state"]["source_account"]
        self.assertEqual(sum(part["bytes"] for part in account["parts"].values()), account["bytes"])
        for role in {role for _, role in dump.tensors}:
            read = sum(value.nbytes for (_, r), value in dump.tensors.items() if r == role)
            self.assertEqual(account["parts"][role]["bytes"], read, role)

    def check_copies(self, out):
        """Buffers of ZeRO-3's other ranks are compared with the first one's."""
        path = os.path.join(out, "global_step2", "zero_pp_rank_2_mp_rank_00_model_states.pt")
        whole = pathlib.Path(path).read_bytes()
        root = torch.load(path, weights_only=False)
        root["module"]["norm.mean"] += 1
        root["module"]["norm.count"] += 1
        torch.save(root, path)
        told = cairn("fingerprint", out, status=2).stderr
        for key in ("norm.mean", "norm.count"):
            self.assertRegex(told, rf"[:;] {key}: zero_pp_rank_0_mp_rank_00_model_states.pt and zero_pp_rank_2_\S* by")
        mean = Dump(out, "--replicas", "mean")
        self.assertIn("averaged", mean.facts["history"][0])
        self.assertEqual(mean.tensors["norm.count", "weight"], 7)  # of integers the first
        root["module"]["norm.late"] = torch.ones(2)
        torch.save(root, path)
        self.assertIn("norm.late is in it, but not in", cairn("fingerprint", out, status=2).stderr)
        pathlib.Path(path).write_bytes(whole)

    def check_dropped(self, out):
        """An entry removed from a file, or added under an unknown name, is an error that names it."""
        step = os.path.join(out, "global_step2")
        path = os.path.join(step, "zero_pp_rank_1_mp_rank_00_model_states.pt")
        whole = pathlib.Path(path).read_bytes()

        def fails(change, words, file=path, weights=False):
            root = torch.load(file, weights_only=False)
            change(root)
            torch.save(root, file)
            self.assertIn(words, cairn("fingerprint", out, status=2).stderr)
            if weights:  # the masters, which ZeRO-3 has no other weights than
                self.assertIn(words, cairn("strip", out, out + "-weights", *release, status=2).stderr)
                cairn("strip", out, out + "-weights", *release, "--allow", "optimizer")
                cairn("diff", out + "-weights", out + "-whole")
            pathlib.Path(path).write_bytes(whole)

        release = ("--format", "safetensors", "--dtype", "fp32")
        cairn("strip", out, out + "-whole", *release)

        name = next(iter(torch.load(path, weights_only=False)["frozen_param_fragments"]))
        fails(lambda root: root["frozen_param_fragments"].pop(name), name)
        fails(lambda root: root.update(ema={"w": torch.ones(3)}), "ema.w")
        path = os.path.join(step, "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt")
        whole = pathlib.Path(path).read_bytes()
        inner = "optimizer_state_dict"
        fails(lambda root: root[inner][inner]["state"][0].update(secret=torch.ones(4)), "secret", path, True)
        fails(lambda root: root[inner][inner]["state"][0].pop("momentum_buffer"), "momentum_buffer", path)
        fails(lambda root: root.update(extra=torch.ones(5)), "extra", path)
        cairn("fingerprint", out)

    def check_round_robin(self):
        """DeepSpeed itself does not find its masters again, so they are those of the same training without it."""
        robin, plain = Dump(self.path("robin"), "--prove"), Dump(self.path("zero2"))
        self.assertIn("round_robin_gradients", robin.facts["history"][0])
        self.assertEqual(set(robin.tensors), set(plain.tensors))
        for key, value in plain.tensors.items():
            self.assertTrue(same_bits(robin.tensors[key], value), key)

    def check_own(self, out, spec):
        """A pipeline of an unknown family: assembled under its own names, by its patterns."""
        dump = Dump(out, "--prove")
        expected = {}
        for role, theirs in (("weight", "weight"), ("master", "fp32"), ("exp_avg", "exp_avg"), ("exp_avg_sq", "exp_avg_sq")):
            for name, value in known_to_ranks(out, spec["world"], theirs).items():
                if name.endswith("pair.weight"):  # each half is cut
                    value = value.reshape(2, 2, 3, 4).transpose(0, 1).reshape(12, 4)
                expected[name, role] = value
        step = os.path.join(out, "global_step2")
        for layer in (2, 4, 5):
            for key, value in torch.load(os.path.join(step, f"layer_0{layer}-model_00-model_states.pt"), weights_only=False).items():
                expected.setdefault((f"{layer}.{key}", "weight"), value)  # buffers
        self.assertEqual(set(dump.tensors), set(expected))
        for key, value in expected.items():
            self.assertTrue(same_bits(dump.tensors[key], value), key)
        self.assertEqual({dump.tensors[key, "weight"].dtype for key in ("2.mask", "4.num_batches_tracked")}, {torch.bool, torch.int64})
        self.check_account(dump)
        cairn("convert", out, out + "-native", "--to", "native")
        self.assertIn("no difference", cairn("diff", out, out + "-native").stdout)
        refused = cairn("convert", out, out + "-cut", "--to", "native", "--tp", "2", status=2).stderr
        self.assertIn("its tensors do not record how they are cut", refused)
        self.check_affine_map(out, {name: value.shape for (name, role), value in dump.tensors.items() if role == "master"})

        def fails(file, change, words):
            path = os.path.join(step, file)
            whole = pathlib.Path(path).read_bytes()
            root = torch.load(path, weights_only=False)
            change(root)
            torch.save(root, path)
            self.assertIn(words, cairn("fingerprint", out, status=2).stderr)
            pathlib.Path(path).write_bytes(whole)

        info = "universal_checkpoint_info"
        model = "mp_rank_00_model_states.pt"
        fails(model, lambda root: root.pop(info), "does not record how")
        fails(model, lambda root: root[info]["tp_replicated_parameter_patterns"].append(r"(?<=2)x"), "(?<=2)x")
        fails(model, lambda root: root[info].update(parameter_with_sub_params=[{"patterns": [r"2\.rows"], "shape": [2, -1], "partition_dim": 0}]),
              "2.rows.weight is one of universal_checkpoint_info's parameter_with_sub_params")
        fails("layer_04-model_01-model_states.pt", lambda root: root["running_mean"].add_(1),
              "4.running_mean: layer_04-model_00-model_states.pt and layer_04-model_01-model_states.pt by 1")

    def check_thin(self, out, dump):
        """Missing arguments are taken from tensors; if those do not show them either, the error names them."""
        path = os.path.join(out, "global_step2", "mp_rank_00_model_states.pt")
        whole = pathlib.Path(path).read_bytes()

        def without(*names):
            root = torch.load(path, weights_only=False)
            for name in names:
                delattr(root["args"], name)
            torch.save(root, path)

        without("padded_vocab_size", "num_layers", "hidden_size", "ffn_hidden_size", "max_position_embeddings")
        thin = Dump(out)
        self.assertEqual(thin.facts["model"], dump.facts["model"])
        for key, value in dump.tensors.items():
            self.assertTrue(same_bits(thin.tensors[key], value), key)
        without("num_attention_heads")
        self.assertIn("args have no num_attention_heads", cairn("fingerprint", out, status=2).stderr)
        pathlib.Path(path).write_bytes(whole)

    def plain_name(self, full):
        if full.startswith("final_layernorm."):
            return full.replace("final_layernorm.", "norm.")
        return full if full.startswith("layers.") else "embed." + full

    def check_universal(self, out, source):
        """DeepSpeed's own conversion holds the same masters and moments; masters are its weights."""
        universal = os.path.join(out, "universal")
        subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder",
                        os.path.join(out, "global_step2"), "--output_folder", universal, "--num_extract_workers", "1",
                        "--num_merge_workers", "1"], check=True, capture_output=True, timeout=300,
                       env=os.environ | {"DS_ACCELERATOR": "cpu"})
        dump = Dump(universal)
        masters = ("name", "master") in {("name", role) for _, role in source.tensors}
        expected = {}
        for (name, role), value in source.tensors.items():
            if role == "master" or role.startswith("exp_avg") or not masters:
                expected[name, "weight" if role == "master" else role] = value
        self.assertEqual(set(dump.tensors), set(expected))
        for key, value in expected.items():
            if key[0] == "embedding.position.weight" and source.facts["pp"] > 1:
                continue  # theirs is the last stage's copy, which is not tied and never updated
            self.assertTrue(same_bits(dump.tensors[key], value), key)
        self.assertEqual(dump.facts["model"], source.facts["model"])

    def check_losses(self, out):
        step = os.path.join(out, "global_step2")

        def refusal():
            return cairn("fingerprint", out, status=2).stderr

        lost = os.path.join(step, "bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt")
        os.rename(lost, lost + ".away")
        self.assertIn("data parallel rank 1 and model parallel rank 2 is missing", refusal())
        os.rename(lost + ".away", lost)
        layer = os.path.join(step, "layer_03-model_01-model_states.pt")
        state = torch.load(layer, weights_only=False)
        state["input_layernorm.weight"][0] += 1
        torch.save(state, layer)
        self.assertIn("layers.1.input_norm.weight by", refusal())
        state["post_attention_layernorm.weight"][0] += 2
        torch.save(state, layer)
        for name in ("input_norm", "post_attention_norm"):  # all that differ, by layer and rank
            self.assertRegex(refusal(), rf"[:;] layers\.1\.{name}\.weight: \S*layer_03-model_00-model_states.pt and \S*layer_03-model_01-\S* by")
        self.assertIn("layer_03-model_01", cairn("verify", out, status=1).stdout)
        mean = Dump(out, "--replicas", "mean")
        first = Dump(out, "--replicas", "first")
        key = "layers.1.input_norm.weight", "weight"
        self.assertFalse(same_bits(mean.tensors[key], first.tensors[key]))
        self.assertIn("averaged", mean.facts["history"][0])
        os.remove(layer)
        self.assertIn("layer 3 does not have a file of each of the 2", refusal())
        self.assertIn("layer 3 does not have a file", cairn("verify", out, status=1).stdout)


MEGATRON_MODELS = {
    "gpt": {"world": 4, "tp": 2, "pp": 2},
    "llama": {"world": 2, "tp": 2, "pp": 1, "swiglu": True, "rms": True, "rope": True, "groups": 2,
              "untied": True, "fp8": True},
}
CORE = {"embedding.word_embeddings": "embedding.word", "embedding.position_embeddings": "embedding.position",
        "input_layernorm": "input_norm", "self_attention.linear_proj": "attention.output",
        "pre_mlp_layernorm": "post_attention_norm", "mlp.linear_fc1": "mlp.up", "mlp.linear_fc2": "mlp.down",
        "decoder.final_layernorm": "final_norm", "output_layer": "output"}


def canonical_of_megatron(self, name, spec, known_of=None):
    """The parameters of all ranks, assembled into whole tensors."""
    slices = collections.defaultdict(dict)
    for rank in range(spec["world"]):
        known = known_of[rank] if known_of else torch.load(self.path(f"{name}-known-{rank}.pt"), weights_only=False)
        for full, (value, dim) in known["parameters"].items():
            if full.startswith("decoder.layers."):
                _, _, local, rest = full.split(".", 3)
                full = f"layers.{int(local) + known['first_layer']}.{rest}"
            slices[full][known["tp"]] = value, dim
    for full, parts in slices.items():
        values, dim = [parts[tp][0] for tp in range(spec["tp"])], parts[0][1]
        prefix, module = "", full.rsplit(".", 1)[0]
        if full.startswith("layers."):
            _, layer, module = module.split(".", 2)
            prefix = f"layers.{layer}."
        kind = full.rsplit(".", 1)[1]
        if module == "output_layer" and not spec.get("untied"):
            continue  # the last stage's copy of the embedding
        if module == "mlp.linear_fc1" and spec.get("swiglu"):
            halves = [value.chunk(2) for value in values]
            for i, part in enumerate(("gate", "up")):
                yield f"{prefix}mlp.{part}.{kind}", torch.cat([half[i] for half in halves])
            continue
        value = values[0] if dim == -1 else torch.cat(values, dim)
        if module == "self_attention.linear_qkv":
            heads, groups, head = 4, spec.get("groups", 4), 4
            rows = value.reshape(groups, heads // groups + 2, head, *value.shape[1:])
            for part, at in (("query", slice(0, -2)), ("key", slice(-2, -1)), ("value", slice(-1, None))):
                yield f"{prefix}attention.{part}.{kind}", rows[:, at].reshape(-1, *value.shape[1:])
            continue
        if module in ("embedding.word_embeddings", "output_layer"):
            value = value[:61]
        yield f"{prefix}{CORE[module]}.{kind}", value


class MegatronTest(Case):
    def test_core_and_legacy_checkpoints(self):
        if importlib.util.find_spec("megatron") is None:
            self.skipTest("megatron-core is not installed")
        done = subprocess.run([sys.executable, os.path.join(HERE, "megatron_writer.py"), self.dir, json.dumps(MEGATRON_MODELS)],
                              capture_output=True, text=True, timeout=900)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        for name, spec in MEGATRON_MODELS.items():
            expected = dict(self.canonical(name, spec))
            for layout in (self.plain_optimizer, self.distributed_optimizer):
                self.check_optimizer(name, spec, layout)
            for path in (name, name + "-legacy"):
                with self.subTest(path=path):
                    self.assertEqual(seal(self.path(path))["system"], "megatron")
                    dump = Dump(self.path(path))
                    self.assertEqual({key for key, _ in dump.tensors}, set(expected))
                    for key, value in expected.items():
                        self.assertTrue(same_bits(dump.tensors[key, "weight"], value), key)
                    self.assertEqual((dump.facts["step"], dump.facts["tp"], dump.facts["pp"]), (3, spec["tp"], spec["pp"]))
                    self.assertEqual(dump.facts["state"]["consumed_samples"], 24)
                    self.assertEqual(dump.facts["history"], [])
                    self.check_what_is_named(path, spec)
            with self.subTest(name=name):
                self.check_without_args(name)
                os.remove(self.path(name, "iter_0000003", "metadata.json"))
                said = cairn("seal", self.path(name), "--settle", 0, status=1).stderr
                self.assertIn("metadata.json: is missing", said)
        self.check_losses()

    def check_what_is_named(self, path, spec):
        """Non-empty entries that the result does not have."""
        done = cairn("convert", self.path(path), self.path(path + "-named"), "--to", "native", "--json")
        named = json.loads(done.stdout)["account"]["left_behind"]
        self.assertIn("num_floating_point_operations_so_far", {name.rsplit(".", 1)[-1] for name in named})
        states = {name for name in named if "_extra_state" in name}
        layer = "decoder.layers." + ("0." if path.endswith("-legacy") else "")
        modules = ["mlp.linear_fc1", "self_attention.linear_qkv"] if path.endswith("-legacy") else [
            "mlp.linear_fc1", "mlp.linear_fc2", "self_attention.linear_proj", "self_attention.linear_qkv"]
        wanted = {f"{layer}{module}._extra_state" for module in modules}
        self.assertEqual(states, wanted if spec.get("fp8") else set())

    def check_without_args(self, name):
        """The kind: what --config and --allow answer is asked in every form of Megatron's files, before anything is refused. Trainers
        of reinforcement learning save no args; NAME-bare has singleton_local_shards and an adapter, too."""
        config = dict(vocab_size=61, bos_token_id=0, eos_token_id=0) | (
            dict(model_type="gpt2", n_embd=16, n_layer=4, n_head=4, n_inner=24, n_positions=8) if name == "gpt" else
            dict(model_type="llama", hidden_size=16, intermediate_size=24, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                 rms_norm_eps=1e-5, hidden_act="silu", tie_word_embeddings=False, max_position_embeddings=8))
        with open(self.path("config.json"), "w") as file:
            json.dump(config, file)
        wanted = fingerprint(self.path(name))
        shutil.copytree(self.path(name + "-legacy"), self.path(name + "-ranks"), ignore=shutil.ignore_patterns(".cairn-seal*"))
        for path in (name + "-bare", name + "-ranks"):
            run, bare = self.path(path), path.endswith("-bare")
            allow = ["--allow", "*adapter*"] if bare else []
            for file in glob.glob(run + "/*/mp_rank_*/*.pt"):
                root = torch.load(file, weights_only=False)
                del root["args"]
                root["model"]["decoder.layers.0.mlp.linear_fc1.lora_a.weight"] = torch.ones(2, 16)
                torch.save(root, file)
                allow = ["--allow", "*lora*"]
            self.assertIn("--config FILE takes the config.json", cairn("inspect", run, *allow, status=2).stderr)
            told = cairn("inspect", run, "--config", self.path("config.json"), status=2).stderr
            self.assertIn(f"is of an adapter, which has no place in Megatron's GPT; --allow '{allow[1]}'", told)
            self.assertEqual("iter_0000003 --from dcp" in told, bare, told)
            how = ["--config", self.path("config.json"), *allow]
            self.assertEqual(json.loads(cairn("fingerprint", run, *how, "--json").stdout)["fingerprint"], wanted)
            self.assertNotIn("is not used", cairn("verify", run, *how).stderr)
            cairn("strip", run, run + "-hf", "--format", "hf", "--dtype", "bf16", *how)
            cairn("convert", run, run + "-native", "--to", "native", *how)
            with open(glob.glob(run + "-native/step-*/manifest.json")[0]) as file:
                history = json.load(file)["history"]
            self.assertTrue(any("adapter" in line or "lora" in line for line in history), history)

    def check_optimizer(self, name, spec, layout):
        """Megatron's optimizers refuse CPU tensors, so their part of the files is laid out here as they do it."""
        root = self.path(f"{name}-{layout.__name__}")
        shutil.copytree(self.path(name + "-legacy"), root)
        states = {role: {} for role in ("master", "exp_avg", "exp_avg_sq")}
        for rank in range(spec["world"]):
            known = torch.load(self.path(f"{name}-known-{rank}.pt"), weights_only=False)
            tensor, stage = known["tp"], known["first_layer"]
            directory = os.path.join(root, "iter_0000003", f"mp_rank_{tensor:02d}" + (f"_{rank // spec['tp']:03d}" if spec["pp"] > 1 else ""))
            path = os.path.join(directory, "model_optim_rng.pt")
            file = torch.load(path, weights_only=False)
            # In the order in which the model registers them, which is not that of its state dict.
            parameters = {key: known["parameters"][key] for key in known["parameters"] if key in file["model"]}
            values = {role: {} for role in states}
            for key, (weight, dim) in parameters.items():
                tied = "word_embeddings" in key or "output_layer" in key
                generator = torch.Generator().manual_seed(
                    zlib.crc32(("tied" if tied else f"{stage}{key}").encode()) + (tensor if dim != -1 else 0))
                low = torch.randint(0, 0x8000, weight.shape, generator=generator, dtype=torch.int32)
                values["master"][key] = ((weight.view(torch.int16).int() << 16) | low).view(torch.float32)
                for role in ("exp_avg", "exp_avg_sq"):
                    values[role][key] = torch.randn(weight.shape, generator=generator)
            for role in states:
                states[role][rank] = {"tp": tensor, "first_layer": stage,
                                      "parameters": {k: (v, parameters[k][1]) for k, v in values[role].items()}}
            layout(file, directory, values)
            torch.save(file, path)
        dump = Dump(root, "--prove")
        self.assertEqual(dump.facts["history"], [])
        self.assertGreater(dump.facts["proven"], 20)
        if layout == self.plain_optimizer:
            self.check_numbers(dump)
        for role, known in states.items():
            for key, value in self.canonical(name, spec, known):
                self.assertTrue(same_bits(dump.tensors[key, role], value), (layout.__name__, key, role))

    def check_numbers(self, dump):
        state = dump.facts["state"]
        self.assertEqual([state[key] for key in ("optimizer_step", "loss_scale", "dynamic_loss_scale", "loss_scale_good_steps",
                                                 "loss_scale_hysteresis")], [5, 512, True, 7, 1])
        matrices, vectors = [{name for name, role in dump.tensors if role == "master" and
                              (dump.tensors[name, role].dim() > 1) == decay} for decay in (True, False)]
        self.assertEqual([set(group["params"]) for group in state["param_groups"]], [matrices, vectors])

    @staticmethod
    def plain_optimizer(file, directory, values):
        """Float16OptimizerWithFloat16Params: masters by group, moments by running number."""
        groups = [[k for k, v in values["master"].items() if (v.dim() > 1) == decay] for decay in (True, False)]
        ids = {key: i for i, key in enumerate(groups[0] + groups[1])}
        file["optimizer"] = {
            "grad_scaler": {"scale": torch.tensor([512.0]), "growth_tracker": 7, "hysteresis_tracker": 1},
            "optimizer": {"state": {i: {r: values[r][k] for r in ("exp_avg", "exp_avg_sq")} | {"step": torch.tensor(5.0)}
                                    for k, i in ids.items()},
                          "param_groups": [{"params": [ids[k] for k in group], "lr": 1e-3} for group in groups]},
            "fp32_from_fp16_params": [[values["master"][k] for k in group] for group in groups]}

    @staticmethod
    def distributed_optimizer(file, directory, values):
        """DistributedOptimizer: parameters in reverse from multiples of 64, a bucket cut in the middle."""
        keys = list(reversed(values["master"]))
        flat = {role: [] for role in values}
        for role, parts in flat.items():
            at = bucket = 0
            for i, key in enumerate(keys):
                start = at if i == len(keys) // 2 else bucket + (at - bucket + 63) // 64 * 64
                if i == len(keys) // 2:
                    bucket = at
                parts += [torch.zeros(start - at), values[role][key].reshape(-1)]
                at = start + values[role][key].numel()
        vectors = {"param" if role == "master" else role: torch.cat(parts) for role, parts in flat.items()}
        torch.save({"buckets_coalesced": True,
                    0: {(torch.bfloat16, torch.float32): vectors | {"numel_unpadded": vectors["param"].numel()}}},
                   os.path.join(directory, "distrib_optim.pt"))
        file["optimizer"] = {"optimizer": {"param_groups": [{"lr": 1e-3, "step": 3}]}}

    def canonical(self, name, spec, known_of=None):
        return canonical_of_megatron(self, name, spec, known_of)

    def check_losses(self):
        legacy = self.path("gpt-legacy", "iter_0000003")
        os.rename(os.path.join(legacy, "mp_rank_01_001"), os.path.join(legacy, "mp_rank_01_005"))
        self.assertIn("TP rank 1 of pipeline stage 1 is missing",
                      cairn("fingerprint", self.path("gpt-legacy"), status=2).stderr)
        with open(self.path("gpt", "latest_checkpointed_iteration.txt"), "w") as file:
            file.write("4")
        self.assertIn("names iteration 4", cairn("fingerprint", self.path("gpt"), status=2).stderr)


if __name__ == "__main__":
    import unittest
    unittest.main()
