"""reshape, strip and fingerprint as a user runs them."""

import json
import os
import shutil
import signal
import struct
import subprocess
import time
import unittest
import zipfile

from cairn_cli import CAIRN, SANITIZED, CliTest, tree


def manifest_of(run):
    """The manifest of the only step, as text."""
    path, = run.glob("step-*/manifest.json")
    return path.read_text()


def data_offset(zipped, record):
    """Where a stored record's bytes begin: after its local header with its name and extra field."""
    lengths = zipped[record.header_offset + 26:record.header_offset + 30]
    return record.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")


class ReshapeTest(CliTest):
    def setUp(self):
        super().setUp()
        self.step = self.make_step("--tp", 2, "--pp", 2, "--dp", 2, "--zero", 1, "--layers", 3, "--vocab", 37)

    def test_round_trip_gives_the_same_bytes(self):
        self.cairn("reshape", self.run_dir, "there", "--tp", 4, "--pp", 1, "--dp", 1, "--zero", 0, says="read back and equal")
        self.cairn("reshape", "there", "back", "--tp", 2, "--pp", 2, "--dp", 2, "--zero", 1)
        self.assertEqual(tree(self.dir / "back" / self.step.name), tree(self.step))
        self.assertEqual(self.json("fingerprint", "there"), self.json("fingerprint", self.step))
        self.cairn("verify", "there")

    def test_unselected_steps_stay(self):
        facts = self.json("reshape", self.step, "out", "--tp", 1)
        self.assertEqual(facts["topology"], {"tp": 1, "pp": 2, "dp": 2, "zero": 1})
        self.assertEqual(facts["files"], 4 + 2)

    def test_dry_run_writes_nothing(self):
        self.cairn("reshape", self.step, "out", "--tp", 1, "--dry-run", says=["would read", "in 6 files", "peak memory"])
        facts = self.json("reshape", self.step, "out", "--tp", 1, "--dry-run")
        self.assertFalse((self.dir / "out").exists())
        written = self.json("reshape", self.step, "out", "--tp", 1)
        self.assertEqual(facts["files"], written["files"])
        self.assertGreaterEqual(facts["write_bytes"], written["bytes_written"])
        self.assertLess(facts["write_bytes"], 1.1 * written["bytes_written"])
        if not SANITIZED:
            self.assertLess(facts["peak_memory_bytes"], 1.4 * written["peak_memory_bytes"])
            self.assertGreater(facts["peak_memory_bytes"], 0.7 * written["peak_memory_bytes"])

    def test_impossible_topologies_are_refused(self):
        for flags, says in ((["--tp", 3], "TP=3 does not divide the model's 4 attention heads"),
                            (["--pp", 4], "PP=4 is more than the model's 3 layers"),
                            (["--dp", 0], "cairn: "), (["--zero", 9], "cairn: "), (["--tp", "x"], "cairn: ")):
            self.cairn("reshape", self.step, "out", *flags, code=2, says=says)
            self.assertFalse((self.dir / "out").exists())

    def test_an_existing_step_is_refused(self):
        self.cairn("reshape", self.step, self.run_dir, "--tp", 1, code=2, says="never overwritten")

    def test_a_full_disk_is_reported_before_anything_is_written(self):
        disk = self.mount("-o", "size=100k")
        for flags in ([], ["--dry-run"]):
            self.cairn("reshape", self.step, disk / "out", "--tp", 1, *flags, code=2, says=["needs about", "are free"])
        self.assertEqual(list(disk.iterdir()), [])


class OtherModelsTest(CliTest):
    """Models of unknown families or classes, and the files next to them."""

    TYPES = {"F32": "f", "I64": "q", "BOOL": "?", "BF16": "H"}

    def write_model(self, name, tensors, config):
        """Writes {name: (dtype, values)} as model.safetensors next to config.json."""
        header, data = {}, b""
        for key, (dtype, values) in tensors.items():
            packed = struct.pack(f"<{len(values)}{self.TYPES[dtype]}", *values)
            header[key] = {"dtype": dtype, "shape": [len(values)], "data_offsets": [len(data), len(data) + len(packed)]}
            data += packed
        text = json.dumps(header).encode()
        path = self.dir / name
        path.mkdir()
        (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        (path / "config.json").write_text(json.dumps(config))
        return path

    def read_model(self, name):
        bytes_ = (self.dir / name / "model.safetensors").read_bytes()
        length, = struct.unpack("<Q", bytes_[:8])
        header, tensors = json.loads(bytes_[8:8 + length]), {}
        for key, row in header.items():
            if key != "__metadata__":
                begin, end = row["data_offsets"]
                kind = self.TYPES[row["dtype"]]
                data = bytes_[8 + length + begin:8 + length + end]
                tensors[key] = (row["dtype"], list(struct.unpack(f"<{len(data) // struct.calcsize('<' + kind)}{kind}", data)))
        return tensors

    def unknown(self, **more):
        tensors = {"a.weight": ("F32", [1.0, -2.0, 0.5]), "a.position_ids": ("I64", [0, 1 << 40]), "mask": ("BOOL", [True, False])}
        path = self.write_model("src", tensors, {"architectures": ["XForCausalLM"], "model_type": "x9", "torch_dtype": "float32",
                                                 "text_config": {"dtype": "float32", "n": 3}, **more})
        (path / "generation_config.json").write_text('{"eos_token_id": 7}')
        return path

    def test_a_release_of_an_unknown_family_keeps_its_names_and_config(self):
        source = self.unknown(auto_map={"AutoModel": "modeling_x9.X"})
        for name in ("modeling_x9.py", "tekken.json", "NOTICE", "README.md", "scheduler.pt"):
            (source / name).write_text(name)
        (source / "original").mkdir()
        (source / "original" / "params.json").write_text("{}")
        done = self.json("strip", source, "out", "--dtype", "bf16")
        self.assertEqual(done["left_behind"], ["README.md", "scheduler.pt", "original/"])
        self.assertEqual(self.read_model("out"), {"a.weight": ("BF16", [0x3f80, 0xc000, 0x3f00]), "mask": ("BOOL", [True, False]),
                                                  "a.position_ids": ("I64", [0, 1 << 40])})
        config = json.loads((self.dir / "out/config.json").read_text())
        self.assertEqual(config, {"architectures": ["XForCausalLM"], "model_type": "x9", "torch_dtype": "bfloat16",
                                  "text_config": {"dtype": "bfloat16", "n": 3}, "auto_map": {"AutoModel": "modeling_x9.X"}})
        self.assertEqual(json.loads((self.dir / "out/generation_config.json").read_text()), {"eos_token_id": 7})
        self.assertEqual(sorted(os.listdir(self.dir / "out")),
                         ["NOTICE", "SHA256SUMS", "config.json", "generation_config.json", "model.safetensors", "modeling_x9.py", "tekken.json"])
        self.cairn("convert", source, "native", "--to", "native", says="left behind: README.md, scheduler.pt, original/")
        self.cairn("strip", "native", "back", "--dtype", "bf16")
        self.assertEqual(tree(self.dir / "back").keys(), tree(self.dir / "out").keys())
        self.cairn("convert", source, "same", "--to", "hf")
        self.assertEqual((json.loads((self.dir / "same/config.json").read_text()), self.read_model("same")),
                         (json.loads((source / "config.json").read_text()), self.read_model("src")))
        self.cairn("convert", source, "mg", "--to", "megatron", code=2, says=['model_type "x9" ("XForCausalLM")', "hf, safetensors"])

    def test_missing_code_is_not_referenced(self):
        source = self.unknown(auto_map={"AutoModel": "modeling_x9.X"})
        self.cairn("strip", source, "out", "--dtype", "bf16", says="note: config.json has no auto_map")
        self.assertNotIn("auto_map", json.loads((self.dir / "out/config.json").read_text()))
        shutil.rmtree(source)
        self.unknown(auto_map={"AutoModel": "org/repository--modeling_x9.X"})  # code of another repository stays named
        self.cairn("strip", source, "other", "--dtype", "bf16")
        self.assertIn("auto_map", json.loads((self.dir / "other/config.json").read_text()))

    def test_a_class_without_the_output_matrix_keeps_its_names(self):
        """LlamaModel has none, and a reward model another head. Any other missing tensor is an error."""
        self.make_step("--layers", 1)
        self.cairn("convert", self.run_dir, "whole", "--to", "hf")
        config = json.loads((self.dir / "whole/config.json").read_text())
        self.assertEqual(config["architectures"], ["GPT2LMHeadModel"])
        tensors = self.read_model("whole")
        tensors["score.weight"] = ("F32", [1.0])
        for name, classes, code in (("score", ["GPT2ForSequenceClassification"], 0), ("lm", ["GPT2LMHeadModel"], 2)):
            shutil.copytree(self.dir / "whole", self.dir / name)
            (self.dir / name / "SHA256SUMS").unlink()
            self.add_tensor(self.dir / name / "model.safetensors", "score.weight")
            (self.dir / name / "config.json").write_text(json.dumps({**config, "architectures": classes}))
            self.cairn("strip", name, name + "-out", "--dtype", "fp32", code=code, says="score.weight" if code else "read back")
        self.assertIn("score.weight", self.read_model("score-out"))
        self.assertEqual(json.loads((self.dir / "score-out/config.json").read_text())["architectures"], ["GPT2ForSequenceClassification"])
        self.cairn("fingerprint", "score")
        self.drop_tensor(self.dir / "score/model.safetensors", "transformer.ln_f.weight")
        self.cairn("fingerprint", "score", code=2, says="transformer.ln_f.weight")

    @staticmethod
    def edit_header(path, edit):
        bytes_ = path.read_bytes()
        length, = struct.unpack("<Q", bytes_[:8])
        header, data = json.loads(bytes_[8:8 + length]), bytes_[8 + length:]
        data += edit(header, len(data))
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)

    def add_tensor(self, path, name):
        def add(header, end):
            header[name] = {"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]}
            return struct.pack("<f", 1)
        self.edit_header(path, add)

    def drop_tensor(self, path, name):
        def drop(header, _):
            header[name + "_of_another_name"] = header.pop(name)
            return b""
        self.edit_header(path, drop)

    def test_names_like_optimizer_states_round_trip_through_dcp(self):
        tensors = {"optimizer.state.0.exp_avg": ("F32", [1.0]), "w": ("F32", [2.0])}
        self.write_model("src", tensors, {"model_type": "x9"})
        self.cairn("convert", "src", "dcp", "--to", "dcp")
        self.assertEqual(self.json("fingerprint", "dcp")["fingerprint"], self.json("fingerprint", "src")["fingerprint"])

    def test_every_verb_names_unread_files(self):
        path = self.dir / "llama.gguf"
        path.write_bytes(b"GGUF")
        for verb in (["inspect"], ["verify"], ["fingerprint"], ["strip"], ["convert", "--to", "hf"]):
            for source in (path, self.dir):
                self.cairn(verb[0], source, *(["out"] if verb[0] in ("strip", "convert") else []), *verb[1:], code=2, says="GGUF")


class ExportTest(CliTest):
    FORMATS = ("dcp", "megatron", "megatron-deepspeed", "torch-dist", "universal")

    def setUp(self):
        super().setUp()
        self.step = self.make_step("--tp", 2, "--pp", 2, "--layers", 3, "--vocab", 37)

    def test_every_format_round_trips(self):
        for name in self.FORMATS:
            done = self.cairn("convert", self.run_dir, name, "--to", name, "--tp", 2, "--pp", 3, "--dp", 2,
                              says="read back and equal")
            told = [line.removeprefix("cairn: note: ") for line in done.stderr.splitlines()]
            self.assertEqual(json.loads((self.dir / name / "cairn.json").read_text())["not_carried"], told)
            self.assertTrue(told)
            self.check_account(name)
            self.check_slices(name)
            if name != "universal":  # it has no 16-bit weights
                self.assertEqual(self.json("fingerprint", name)["fingerprint"], self.json("fingerprint", self.step)["fingerprint"])
                self.cairn("convert", name, name + "-back", "--to", "native", "--tp", 2, "--pp", 2, "--dp", 1)
                self.cairn("diff", name + "-back", self.step)

    def test_every_verb_checks_the_crcs_of_every_format(self):
        for name in self.FORMATS:
            self.cairn("convert", self.step, name, "--to", name, "--tp", 2)
            found = self.json("inspect", name, "layers.0.mlp.up.weight", "--slices")["tensors"]
            # The lowest bit of a master, if there is one: it still rounds to its weight.
            weight = next(t for role in ("master", "weight") for t in found if t["role"] == role)
            place = weight["slices"][0]
            path = next(p for p in (self.dir / name).rglob("*") if str(p).endswith(place["file"]))
            bytes_ = bytearray(path.read_bytes())
            bytes_[place["file_offset"]] ^= 1
            path.write_bytes(bytes_)
            for code, verb in ((2, ["fingerprint", name]), (2, ["diff", name, self.step]), (2, ["diff", self.step, name]),
                               (2, ["inspect", name, "--stats"]), (2, ["inspect", name, weight["name"], "--stats"]),
                               (2, ["strip", name, "x"]), (2, ["convert", name, "x", "--to", "native"]),
                               (2, ["convert", name, "x", "--to", "dcp"]), (2, ["reshape", name, "x"]),
                               (2, ["reshape", name, "x", "--resume"]),
                               (1, ["verify", name]), (1, ["verify", name, "--values"]), (1, ["verify", name, "--hash"])):
                with self.subTest(name, verb=verb):
                    self.cairn(*verb, code=code, says=[path.name, "CRC-32"])
                    self.assertFalse((self.dir / "x").exists())

    def check_account(self, name):
        """Every release of a foreign source accounts for its bytes, as a complete step does."""
        whole = self.json("convert", name, name + "-n", "--to", "native")["account"]
        self.assertEqual(sum(part["bytes"] for part in whole["parts"].values()), whole["bytes"])
        for target, *flags in (("convert", "--to", "hf"), ("convert", "--to", "safetensors", "--dtype", "bf16"),
                               ("convert", "--to", "native", "--dtype", "fp16"), ("strip",)):
            self.assertEqual(self.json(target, name, name + "-r", *flags)["account"], whole)
            shutil.rmtree(self.dir / (name + "-r"))
        self.cairn("strip", name, name + "-r", says=f"in {whole['storages']} storages, all accounted for")

    def check_slices(self, name):
        """The parts of each tensor in the files: all of its bytes, and none twice."""
        ranks = set()
        for tensor in self.json("inspect", name, "--slices")["tensors"]:
            self.assertEqual(sum(s["bytes"] for s in tensor["slices"]), tensor["bytes"], tensor["name"])
            ranks |= {(s.get("tp"), s.get("pp")) for s in tensor["slices"] if "pp" in s}
        if name == "megatron":
            self.assertEqual(ranks, {(tp, pp) for tp in range(2) for pp in range(3)})
            self.cairn("inspect", name, "--slices", "layers.2.*", says=["tp 1, pp 2", "mp_rank_01_002/model_optim_rng.pt"])

    def test_exports_only_weights_and_other_types(self):
        self.cairn("convert", self.run_dir, "fp32", "--to", "dcp", "--dtype", "fp32")
        roles = {t["role"] for t in self.json("inspect", "fp32")["tensors"]}
        self.assertEqual(roles, {"weight", "exp_avg", "exp_avg_sq"})  # fp32 weights need no masters
        self.cairn("convert", self.run_dir, "weights", "--to", "native", "--dtype", "bf16")
        done = self.cairn("convert", "weights", "out", "--to", "megatron")
        self.assertIn("--no-load-optim", done.stderr)
        self.cairn("convert", self.run_dir, "wide", "--to", "native", "--dtype", "fp32")
        for name in self.FORMATS:  # rounded weights have no masters: they are not trained further
            self.cairn("convert", "wide", name, "--to", name, "--dtype", "bf16", says="read back and equal")

    def test_a_lost_or_cut_file_of_the_optimizer_is_an_error_of_every_verb(self):
        """Also of those that need none of its bytes, unless a flag says so."""
        formats = {"zero": ("megatron-deepspeed", "zero/**/bf16_zero_pp_rank_1_mp_rank_01*", ["--tp", 2, "--dp", 2, "--zero", 1]),
                   "universal": ("universal", "universal/**/exp_avg_sq.pt", []),
                   "megatron": ("megatron", "megatron/**/distrib_optim.pt", ["--tp", 2, "--dp", 2, "--zero", 1])}
        for name, (system, glob, flags) in formats.items():
            self.cairn("convert", self.run_dir, name, "--to", system, *flags)
            file = sorted(self.dir.glob(glob))[0]
            content = file.read_bytes()
            for bad in (None, content[:len(content) // 2]):
                file.unlink() if bad is None else file.write_bytes(bad)
                for verb in (("strip",), ("strip", "--dtype", "bf16"), ("convert", "--to", "safetensors"), ("convert", "--to", "native")):
                    with self.subTest(name, verb=verb, lost=bad is None):
                        done = self.cairn(*verb, name, "out", code=2)
                        self.assertIn(file.name if bad else "missing", done.stderr)
                        self.assertFalse((self.dir / "out").exists())
                for verb in ("inspect", "fingerprint"):
                    self.cairn(verb, name, code=2)
                self.cairn("verify", name, code=1)
            if name == "universal":
                continue  # the moments of each parameter are files of its own, which are read first
            file.unlink()
            for number, verb in enumerate((("strip", "--dtype", "fp32"), ("convert", "--to", "native"))):
                self.cairn(*verb, name, f"{name}{number}", "--allow", "optimizer")

    def test_a_stage_of_zero_that_a_format_lacks_becomes_the_nearest(self):
        for number, (flags, says) in enumerate(((["torch-dist", "--zero", 2], "torch-dist has no ZeRO 2;"),
                                                (["megatron", "--zero", 3], "megatron has no ZeRO 3;"),
                                                (["megatron-deepspeed", "--zero", 3, "--pp", 2], "has no ZeRO 3 in a pipeline;"))):
            self.cairn("convert", self.run_dir, f"nearest{number}", "--to", *flags, says=[says, "--zero 1", "ZeRO=1)"])

    def test_a_damaged_step_is_passed_over_once(self):
        with open(self.step / "manifest.json", "a") as file:
            file.write("x")
        self.assertEqual(self.cairn("convert", self.run_dir, "out", "--to", "hf", code=2).stderr.count("passed over"), 1)

    def test_impossible_requests_are_refused(self):
        for flags, says in ((["--to", "megatron", "--tp", 3], "TP=3 does not divide"),
                            (["--to", "dcp", "--saturate"], "--saturate"), (["--to", "nemo"], "is not one of native"),
                            (["--to", "hf", "--param-groups", 2], "--param-groups")):
            self.cairn("convert", self.run_dir, "out", *flags, code=2, says=says)
            self.assertFalse((self.dir / "out").exists())
        self.assertEqual([p.name for p in self.dir.iterdir() if "partial" in p.name], [])

    def test_a_full_disk_is_reported_before_anything_is_written(self):
        disk = self.mount("-o", "size=100k")
        for flags in ([], ["--dry-run"]):
            self.cairn("convert", self.step, disk / "out", "--to", "dcp", *flags, code=2, says=["needs about", "are free"])
        self.assertEqual(list(disk.iterdir()), [])


class SignalTest(CliTest):
    def test_a_signal_leaves_nothing_after_the_next_command(self):
        self.make_step("--layers", 8, "--hidden", 512, "--ffn", 2048, "--vocab", 4000)
        command = [CAIRN, "convert", str(self.run_dir), "out/dcp", "--to", "dcp"]
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
            with self.subTest(signal=number):
                child = subprocess.Popen(command, cwd=self.dir, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                while child.poll() is None and not list(self.dir.glob("out/dcp.partial-*/*")):
                    time.sleep(0.001)
                child.send_signal(number)
                self.assertEqual(child.communicate()[1], b"")
                self.assertEqual(child.returncode, -number)
                self.assertEqual(len(list(self.dir.glob("out/*"))), 2 if number == signal.SIGKILL else 0)  # and its mark
        self.cairn("convert", self.run_dir, "out/dcp", "--to", "dcp")
        self.assertEqual([path.name for path in (self.dir / "out").iterdir()], ["dcp"])


class StripTest(CliTest):
    def setUp(self):
        super().setUp()
        self.step = self.make_step("--tp", 2)

    def test_hugging_face_directory(self):
        self.cairn("strip", self.run_dir, "out", "--dtype", "fp16", says="0 overflowed")
        self.assertEqual(sorted(p.name for p in (self.dir / "out").iterdir()),
                         ["SHA256SUMS", "config.json", "generation_config.json", "model.safetensors"])
        subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=self.dir / "out", check=True, capture_output=True)
        config = json.loads((self.dir / "out" / "config.json").read_text())
        self.assertEqual((config["model_type"], config["vocab_size"]), ("gpt2", 50))

    def test_the_trainer_explains_how_to_start_from_it(self):
        self.cairn("convert", self.run_dir, "hf", "--to", "hf")
        for flags in (["--load", "hf"], ["--load=hf"]):
            self.cairn("train", *flags, code=2, says="cairn convert hf DIR --to native")

    def test_splits_into_files(self):
        facts = self.json("strip", self.step, "out", "--max-shard-size", "5kB")
        index = json.loads((self.dir / "out" / "model.safetensors.index.json").read_text())
        self.assertEqual(len(set(index["weight_map"].values())) + 4, facts["files"])

    def test_native_weights_can_be_reshaped_and_stripped_again(self):
        self.cairn("strip", self.step, "weights", "--format", "native", "--dtype", "fp32")
        self.cairn("reshape", "weights", "one", "--tp", 1)
        for source, target in ((self.step, "direct"), ("one", "detour")):
            self.cairn("strip", source, target, "--format", "safetensors", "--dtype", "bf16")
        header = lambda name: (self.dir / name / "model.safetensors").read_bytes()[:8]
        data = lambda name: (self.dir / name / "model.safetensors").read_bytes()[int.from_bytes(header(name), "little") + 8:]
        self.assertEqual(data("direct"), data("detour"))

    def test_a_tokenizer_is_kept_through_native_steps(self):
        self.assertIn("has no tokenizer", self.cairn("convert", self.step, "hf", "--to", "hf").stderr)
        files = {"tokenizer.json": b"{}", "tokenizer_config.json": b'{"a": 1}', "merges.txt": b"#version\n"}
        for name, data in files.items():
            (self.dir / "hf" / name).write_bytes(data)
        self.cairn("convert", "hf", "one", "--to", "native")
        step = tree(self.dir / "one/step-00000000")
        self.assertEqual({name: step.get(name) for name in files}, files)
        self.cairn("reshape", "one", "two", "--tp", 2)
        self.cairn("strip", "two", "three", "--format", "native", "--dtype", "fp32")
        for source in ("one", "two", "three/step-00000000"):
            target = "out-" + source.split("/")[0]
            self.assertNotIn("note", self.cairn("strip", source, target).stderr)
            self.assertEqual({name: (self.dir / target / name).read_bytes() for name in files}, files)
        (self.dir / "key").write_text("secret")
        os.symlink(self.dir / "key", self.dir / "hf/vocab.json")
        self.assertIn("leads out of", self.cairn("convert", "hf", "four", "--to", "native").stderr)
        self.assertNotIn("vocab.json", tree(self.dir / "four/step-00000000"))
        self.cairn("ls", "one", says="committed")

    def test_messages_name_the_given_file(self):
        self.cairn("strip", self.step, "hf", "--format", "hf")
        for verb in ("fingerprint", "inspect"):
            self.cairn(verb, "hf/model.safetensors", says="hf/model.safetensors")

    def test_the_recorded_command_includes_defaults(self):
        self.cairn("strip", self.step, "default")
        self.cairn("strip", self.step, "named", "--dtype", "fp16", "--format", "hf")
        self.assertEqual(tree(self.dir / "default"), tree(self.dir / "named"))

    def test_the_fingerprint_is_labelled_as_the_sources(self):
        self.cairn("strip", self.step, "weights", "--dtype", "fp32", says="fingerprint of the weights read")
        own = self.json("fingerprint", "weights")["fingerprint"]
        self.cairn("strip", "weights", "again", "--dtype", "fp32", says=f"source fingerprint {own}")

    def test_weights_that_differ_from_their_masters_are_noted(self):
        rounded = ["--dtype", "bf16", "--packed", "--split-master"]
        self.cairn("convert", self.make_step(*rounded, step=200), "good", "--to", "dcp")
        self.assertNotIn("note", self.cairn("convert", "good", "good-native", "--to", "native").stderr)
        self.cairn("convert", self.make_step(*rounded, "--unrounded", "final_norm.weight", step=300), "dcp", "--to", "dcp")
        noted = self.cairn("convert", "dcp", "native", "--to", "native").stderr
        self.assertIn("note: ", noted)
        self.assertIn("is not its fp32 master, rounded", noted)
        self.assertNotIn("note", self.cairn("convert", "dcp", "again", "--to", "native", "--no-rounding-check").stderr)
        self.assertIn("--no-rounding-check", manifest_of(self.dir / "again"))
        self.assertNotIn("--no-rounding-check", manifest_of(self.dir / "native"))

    def test_dry_run_writes_nothing(self):
        facts = self.json("strip", self.step, "out", "--dry-run")
        self.assertFalse((self.dir / "out").exists())
        self.assertEqual(facts["files"], 4)
        written = self.json("strip", self.step, "out")["bytes_written"]
        self.assertLess(abs(facts["write_bytes"] - written), 0.1 * written)

    def test_misuse(self):
        for flags, says in ((["--dtype", "fp8"], "--dtype"), (["--keep-fp32", "nothing*"], "nothing*"),
                            (["--format", "gguf"], "--format")):
            self.cairn("strip", self.step, "out", *flags, code=2, says=says)
            self.assertFalse((self.dir / "out").exists())

    def test_an_existing_directory_is_refused(self):
        (self.dir / "out").mkdir()
        self.cairn("strip", self.step, "out", code=2, says="never overwritten")


class ConvertTest(CliTest):
    def test_weights_are_the_same_in_every_format(self):
        step = self.make_step("--tp", 2, "--pp", 2, "--layers", 3, "--vocab", 37)
        weights = {name: sum for name, sum in self.json("fingerprint", step)["tensors"].items() if "/" not in name}
        for source, target, flags in ((step, "hf", ["--to", "hf", "--max-shard-size", "5kB"]),
                                      ("hf", "canonical", ["--to", "safetensors"]),
                                      ("canonical", "native", ["--to", "native", "--tp", 4, "--pp", 3, "--dp", 2])):
            self.cairn("convert", source, target, *flags, says="read back and equal")
            self.assertEqual(self.json("fingerprint", target)["tensors"], weights)
        self.cairn("verify", "native")

    def test_a_native_step_keeps_its_optimizer(self):
        step = self.make_step("--tp", 2)
        self.cairn("convert", step, "out", "--to", "native", "--tp", 1)
        self.assertEqual(self.json("fingerprint", "out"), self.json("fingerprint", step))


class FingerprintTest(CliTest):
    def test_depends_on_values_not_on_topologies(self):
        first = self.json("fingerprint", self.make_step("--tp", 2))
        self.run_dir = self.dir / "other"
        second = self.json("fingerprint", self.make_step("--pp", 2, "--dp", 3))
        self.run_dir = self.dir / "third"
        third = self.json("fingerprint", self.make_step("--seed", 2))
        self.assertEqual(first, second)
        self.assertNotEqual(first["fingerprint"], third["fingerprint"])
        self.assertIn("layers.0.mlp.up.weight/exp_avg", first["tensors"])
        self.cairn("fingerprint", self.run_dir, "--tensors", says=third["fingerprint"])


class DiffTest(CliTest):
    def setUp(self):
        super().setUp()
        self.step = self.make_step("--tp", 2, "--pp", 2)
        self.cairn("strip", self.step, "half", "--dtype", "fp16", "--format", "native")

    def test_topologies_do_not_matter(self):
        self.cairn("reshape", self.step, "there", "--tp", 1, "--pp", 1)
        self.cairn("diff", self.step, "there", says="no difference")

    def test_different_values_are_reported(self):
        self.make_step("--seed", 2, step=200)
        facts = self.json("diff", self.step, self.run_dir, code=1)
        self.assertEqual(len(facts["differences"]), facts["tensors_compared"])
        self.cairn("diff", self.step, self.run_dir, "--top", 3, code=1, says=["they differ", "more; --top 0"])

    def test_ignore_and_tolerance_flags(self):
        self.cairn("diff", self.step, "half", "--top", 0, code=1, says=["only in A", "dtype"])
        near = ["--ignore", "optimizer", "--ignore", "dtype"]
        self.cairn("diff", self.step, "half", *near, code=1)
        self.cairn("diff", self.step, "half", *near, "--atol", 1e-6, "--rtol", 0.01, says="within the tolerance")
        self.cairn("diff", self.step, "half", *near, "--tolerance", "*=1e-6,0.01", "--tolerance", "*.bias=0", code=1)

    def test_a_foreign_checkpoint_is_verified_by_its_values(self):
        self.cairn("convert", self.step, "hf", "--to", "hf")
        self.cairn("verify", "hf", says=["good", "by its checksum"])
        shutil.copytree(self.dir / "hf", self.dir / "plain")
        os.remove(self.dir / "plain/SHA256SUMS")
        self.cairn("verify", "plain", says="good")
        self.cairn("verify", "plain", "--hash", code=2, says="keeps no digests")
        self.make_step("--nan", "final_norm.bias", step=300)
        self.cairn("convert", self.run_dir, "nan", "--to", "hf")
        self.cairn("verify", "nan", code=1, says=["final_norm.bias", "NaN or infinite"])

    def test_checksums_of_foreign_files_are_checked(self):
        self.cairn("convert", self.step, "hf", "--to", "hf")
        for name in ("model.safetensors", "config.json"):
            shutil.copytree(self.dir / "hf", self.dir / name)
            path = self.dir / name / name
            # It gives no NaN, and the JSON stays one.
            path.write_bytes(path.read_bytes() + b"\n" if name == "config.json" else path.read_bytes()[:-1] + b"\n")
            self.cairn("verify", name, "--hash", code=1, says=[name, "SHA-256"])
        (self.dir / "hf/SHA256SUMS").write_text("nonsense\n")
        self.cairn("verify", "hf", code=1, says="not what sha256sum writes")

    def test_crcs_of_torch_files_are_checked(self):
        self.cairn("convert", self.step, "mg", "--to", "megatron")
        path, = [p for p in (self.dir / "mg").rglob("*.pt") if "mp_rank_00" in str(p) and "000" in str(p.parent)][:1]
        self.cairn("verify", "mg", says=["good", "by its checksum"])
        bytes_ = bytearray(path.read_bytes())
        with zipfile.ZipFile(path) as archive:
            records = [r for r in archive.infolist() if "/data/" in r.filename]
        record = max(records, key=lambda r: r.file_size)
        whole = bytes(bytes_)
        bytes_[record.header_offset + record.file_size // 2 + 200] ^= 1
        path.write_bytes(bytes_)
        name = record.filename.split("/", 1)[1]
        self.cairn("verify", "mg", "--hash", code=1, says=[path.name, name, "CRC-32"])
        for verb in (["convert", "mg", "x", "--to", "native"], ["reshape", "mg", "x"]):
            self.cairn(*verb, code=2, says=[name, "CRC-32", "--no-checksums"])
            self.assertFalse((self.dir / "x").exists())
        # What an earlier run has read is not read again, so that a reshape that continues checks first.
        for _ in range(2):
            self.cairn("reshape", "mg", "x", "--resume", code=2, says=[name, "CRC-32", "--no-checksums"])
            self.assertFalse((self.dir / "x").exists())
        # Strip reads only the masters: damage of one counts, wherever it lies in its record. (The largest records are
        # of the tied embedding, whose copies would differ first.)
        size = sorted({r.file_size for r in records})[-2]
        for at in (0, size // 8 * 4, size - 4):  # low bytes: the values still round to the weights
            damaged = bytearray(whole)
            for other in records:
                if other.file_size == size:
                    damaged[data_offset(whole, other) + at] ^= 1
            path.write_bytes(damaged)
            self.cairn("strip", "mg", "x", code=2, says=["CRC-32", "--no-checksums"])
            self.assertFalse((self.dir / "x").exists())
        path.write_bytes(bytes_)
        self.cairn("convert", "mg", "x", "--to", "native", "--no-checksums")
        self.assertIn("--no-checksums", manifest_of(self.dir / "x"))
        missing = [p for p in (self.dir / "mg").rglob("*.pt") if p != path]
        missing[0].unlink()
        self.assertFalse(self.json("verify", "mg", code=1)[0]["ok"])
        self.cairn("verify", "nowhere", code=2)

    def test_misuse(self):
        for flags, says in ((["--tolerance", "x"], "write GLOB=ABSOLUTE"), (["--tolerance", "*=-1"], "write GLOB"),
                            (["--ignore", "no.such"], "matches no tensor"), (["--tolerance", "no.such=1"], "matches no tensor")):
            self.cairn("diff", self.step, "half", *flags, code=2, says=says)
        self.cairn("diff", self.step, "nowhere", code=2, says="nowhere")


if __name__ == "__main__":
    unittest.main()
