"""reshape, strip and fingerprint as a user runs them."""

import json
import subprocess
import unittest

from cairn_cli import CliTest, tree


class ReshapeTest(CliTest):
    def setUp(self):
        super().setUp()
        self.step = self.make_step("--tp", 2, "--pp", 2, "--dp", 2, "--zero", 1, "--layers", 3, "--vocab", 37)

    def test_there_and_back_gives_the_same_bytes(self):
        self.cairn("reshape", self.run_dir, "there", "--tp", 4, "--pp", 1, "--dp", 1, "--zero", 0, says="read back and equal")
        self.cairn("reshape", "there", "back", "--tp", 2, "--pp", 2, "--dp", 2, "--zero", 1)
        self.assertEqual(tree(self.dir / "back" / self.step.name), tree(self.step))
        self.assertEqual(self.json("fingerprint", "there"), self.json("fingerprint", self.step))
        self.cairn("verify", "there")

    def test_what_is_left_out_stays(self):
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

    def test_topologies_that_do_not_fit(self):
        for flags, says in ((["--tp", 3], "TP=3 does not divide the model's 4 attention heads"),
                            (["--pp", 4], "PP=4 is more than the model's 3 layers"),
                            (["--dp", 0], "cairn: "), (["--zero", 9], "cairn: "), (["--tp", "x"], "cairn: ")):
            self.cairn("reshape", self.step, "out", *flags, code=2, says=says)
            self.assertFalse((self.dir / "out").exists())

    def test_an_existing_step_is_refused(self):
        self.cairn("reshape", self.step, self.run_dir, "--tp", 1, code=2, says="never overwritten")

    def test_a_full_disk_is_told_before_anything_is_written(self):
        disk = self.mount("-o", "size=100k")
        self.cairn("reshape", self.step, disk / "out", "--tp", 1, code=2, says=["needs about", "are free"])
        self.assertEqual(list(disk.iterdir()), [])


class ExportTest(CliTest):
    FORMATS = ("dcp", "megatron", "megatron-deepspeed", "torch-dist", "universal")

    def setUp(self):
        super().setUp()
        self.step = self.make_step("--tp", 2, "--pp", 2, "--layers", 3, "--vocab", 37)

    def test_every_format_there_and_back(self):
        for name in self.FORMATS:
            done = self.cairn("convert", self.run_dir, name, "--to", name, "--tp", 2, "--pp", 3, "--dp", 2,
                              says="read back and equal")
            told = [line.removeprefix("cairn: note: ") for line in done.stderr.splitlines()]
            self.assertEqual(json.loads((self.dir / name / "cairn.json").read_text())["not_carried"], told)
            self.assertTrue(told)
            if name != "universal":  # it has no 16-bit weights
                self.assertEqual(self.json("fingerprint", name)["fingerprint"], self.json("fingerprint", self.step)["fingerprint"])
                self.cairn("convert", name, name + "-back", "--to", "native", "--tp", 2, "--pp", 2, "--dp", 1)
                self.cairn("diff", name + "-back", self.step)

    def test_weights_alone_and_of_another_type(self):
        self.cairn("convert", self.run_dir, "fp32", "--to", "dcp", "--dtype", "fp32")
        roles = {t["role"] for t in self.json("inspect", "fp32")["tensors"]}
        self.assertEqual(roles, {"weight", "exp_avg", "exp_avg_sq"})  # fp32 weights need no masters
        self.cairn("convert", self.run_dir, "weights", "--to", "native", "--dtype", "bf16")
        done = self.cairn("convert", "weights", "out", "--to", "megatron")
        self.assertIn("--no-load-optim", done.stderr)
        self.cairn("convert", self.run_dir, "wide", "--to", "native", "--dtype", "fp32")
        for name in self.FORMATS:  # what is rounded has no masters: nothing trains on it
            self.cairn("convert", "wide", name, "--to", name, "--dtype", "bf16", says="read back and equal")

    def test_what_cannot_be(self):
        for flags, says in ((["--to", "megatron", "--tp", 3], "TP=3 does not divide"),
                            (["--to", "megatron-deepspeed", "--zero", 3, "--pp", 2], "no pipeline with ZeRO 3"),
                            (["--to", "torch-dist", "--zero", 2], "Megatron-LM has no ZeRO 2"),
                            (["--to", "dcp", "--saturate"], "--saturate"), (["--to", "nemo"], "is none of hf"),
                            (["--to", "hf", "--param-groups", 2], "--param-groups")):
            self.cairn("convert", self.run_dir, "out", *flags, code=2, says=says)
            self.assertFalse((self.dir / "out").exists())
        self.assertEqual([p.name for p in self.dir.iterdir() if "partial" in p.name], [])

    def test_a_full_disk_is_told_before_anything_is_written(self):
        disk = self.mount("-o", "size=100k")
        self.cairn("convert", self.step, disk / "out", "--to", "dcp", code=2, says=["needs about", "are free"])
        self.assertEqual(list(disk.iterdir()), [])


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

    def test_the_trainer_says_how_to_start_from_it(self):
        self.cairn("convert", self.run_dir, "hf", "--to", "hf")
        for flags in (["--load", "hf"], ["--load=hf"]):
            self.cairn("train", *flags, code=2, says="cairn convert hf DIR --to native")

    def test_cut_into_files(self):
        facts = self.json("strip", self.step, "out", "--max-shard-size", "5kB")
        index = json.loads((self.dir / "out" / "model.safetensors.index.json").read_text())
        self.assertEqual(len(set(index["weight_map"].values())) + 4, facts["files"])

    def test_native_weights_reshape_and_strip_on(self):
        self.cairn("strip", self.step, "weights", "--format", "native", "--dtype", "fp32")
        self.cairn("reshape", "weights", "one", "--tp", 1)
        for source, target in ((self.step, "direct"), ("one", "detour")):
            self.cairn("strip", source, target, "--format", "safetensors", "--dtype", "bf16")
        header = lambda name: (self.dir / name / "model.safetensors").read_bytes()[:8]
        data = lambda name: (self.dir / name / "model.safetensors").read_bytes()[int.from_bytes(header(name), "little") + 8:]
        self.assertEqual(data("direct"), data("detour"))

    def test_dry_run_writes_nothing(self):
        facts = self.json("strip", self.step, "out", "--dry-run")
        self.assertFalse((self.dir / "out").exists())
        self.assertEqual(facts["files"], 4)

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
    def test_tells_values_apart_and_topologies_not(self):
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

    def test_topologies_play_no_part(self):
        self.cairn("reshape", self.step, "there", "--tp", 1, "--pp", 1)
        self.cairn("diff", self.step, "there", says="no difference")

    def test_other_values(self):
        self.make_step("--seed", 2, step=200)
        facts = self.json("diff", self.step, self.run_dir, code=1)
        self.assertEqual(len(facts["differences"]), facts["tensors_compared"])
        self.cairn("diff", self.step, self.run_dir, "--top", 3, code=1, says=["they differ", "more; --top 0"])

    def test_what_is_ignored_and_tolerated(self):
        self.cairn("diff", self.step, "half", "--top", 0, code=1, says=["only in A", "dtype"])
        near = ["--ignore", "optimizer", "--ignore", "dtype"]
        self.cairn("diff", self.step, "half", *near, code=1)
        self.cairn("diff", self.step, "half", *near, "--atol", 1e-6, "--rtol", 0.01, says="within the tolerance")
        self.cairn("diff", self.step, "half", *near, "--tolerance", "*=1e-6,0.01", "--tolerance", "*.bias=0", code=1)

    def test_a_foreign_checkpoint_is_verified_by_its_values(self):
        self.cairn("convert", self.step, "hf", "--to", "hf")
        self.cairn("verify", "hf", says="good")
        self.cairn("verify", "hf", "--hash", code=2, says="keeps no digests")
        self.make_step("--nan", "final_norm.bias", step=300)
        self.cairn("convert", self.run_dir, "nan", "--to", "hf")
        self.cairn("verify", "nan", code=1, says=["final_norm.bias", "NaN or infinite"])

    def test_misuse(self):
        for flags, says in ((["--tolerance", "x"], "want GLOB=ABSOLUTE"), (["--tolerance", "*=-1"], "want GLOB"),
                            (["--ignore", "no.such"], "fits no tensor"), (["--tolerance", "no.such=1"], "fits no tensor")):
            self.cairn("diff", self.step, "half", *flags, code=2, says=says)
        self.cairn("diff", self.step, "nowhere", code=2, says="nowhere")


if __name__ == "__main__":
    unittest.main()
