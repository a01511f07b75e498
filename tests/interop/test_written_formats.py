"""Checkpoints that `cairn convert` writes for other systems are loaded and continued by those systems: torch.distributed.checkpoint,
DeepSpeed (ZeRO 1 to 3, pipelines, universal) and Megatron-Core (mp_rank_* and torch_dist), each run here."""

import importlib.util
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile

import torch
import torch.distributed.checkpoint
from harness import Case, cairn, fingerprint
from safetensors.torch import load_file
from test_torch_formats import FP32_GRADS, MEGATRON_MODELS, ZERO, Dump, canonical_of_megatron, known_to_ranks, same_bits
from trained_on import (
    AFTER,
    BEFORE,
    SAMPLES,
    check_losses,
    compare,
    schedule,
    schedule_flags,
    train_here,
    write_batches,
)
from transformers import GPT2Config, GPT2LMHeadModel

HERE = os.path.dirname(os.path.abspath(__file__))
CANONICAL = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "master_param": "master"}


def run_writer(case, name, *args, timeout=1500, path=None):
    """`path`: with other versions than this process has."""
    more = {"PYTHONPATH": path} if path else {}
    done = subprocess.run([sys.executable, os.path.join(HERE, name), case.dir, *args], capture_output=True, text=True,
                          timeout=timeout, env=os.environ | {"TORCHDYNAMO_DISABLE": "1"} | more)
    case.assertEqual(done.returncode, 0, done.stderr[-3000:])


class DcpTest(Case):
    def test_torch_loads_it_into_any_number_of_ranks(self):
        run_writer(self, "dcp_writer.py")
        source = self.path("nested4")
        for name, flags in (("one", []), ("rows", ["--dp", "3"])):
            cairn("convert", source, self.path(name), "--to", "dcp", *flags)
            self.assertEqual(fingerprint(self.path(name)), fingerprint(source))
        run_writer(self, "dcp_loader.py", self.path("rows"))
        for world in (2, 3):
            self.assertTrue(os.path.exists(self.path(f"loaded{world}")), world)

    def test_keeps_masters_and_numbers_of_a_native_step(self):
        step = self.path("run")
        subprocess.run([os.environ["CAIRN_MAKE_STEP"], step, "--tp", "2", "--pp", "2", "--dp", "2"], check=True)
        out = self.path("out")
        cairn("convert", step, out, "--to", "dcp", "--tp", "2", "--pp", "2", "--dp", "2")
        self.check_items(out)
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
        dcp_to_torch_save(out, self.path("whole.pt"))
        whole = torch.load(self.path("whole.pt"), weights_only=False)
        dump = Dump(out)
        self.assertEqual(whole["train"]["iteration"], 100)
        seen = {(name, "weight"): value for name, value in whole["model"].items()}
        for name, state in whole["optimizer"]["state"].items():
            seen |= {(name, CANONICAL[kind]): value for kind, value in state.items() if kind != "step"}
            self.assertEqual(state["step"], 100)
        self.assertEqual(set(seen), set(dump.tensors))
        for key, value in seen.items():
            self.assertTrue(same_bits(dump.tensors[key], value), key)
        self.assertEqual(set(whole["optimizer"]["param_groups"][0]["params"]), set(whole["model"]))
        cairn("convert", out, self.path("back"), "--to", "native", "--tp", "2", "--pp", "2", "--dp", "1")
        self.assertEqual(fingerprint(self.path("back")), fingerprint(step))

    def check_items(self, out):
        """Every item is a zip whose CRCs are right, and weights_only takes it."""
        metadata = torch.distributed.checkpoint.FileSystemReader(out).read_metadata()
        for place in metadata.storage_data.values():
            with open(os.path.join(out, place.relative_path), "rb") as file:
                file.seek(place.offset)
                item = file.read(place.length)
            self.assertIsNone(zipfile.ZipFile(io.BytesIO(item)).testzip())
            torch.load(io.BytesIO(item), weights_only=True)

    def test_is_reproducible_and_overwrites_nothing(self):
        step = self.path("run")
        subprocess.run([os.environ["CAIRN_MAKE_STEP"], step], check=True)
        for target in ("dcp", "megatron-deepspeed", "torch-dist", "universal"):
            outs = [self.path(f"{target}{i}") for i in range(2)]
            for out in outs:
                cairn("convert", step, out, "--to", target)
            self.assertEqual(subprocess.run(["diff", "-r", *outs], capture_output=True).returncode, 0, target)
            self.assertIn("already exists", cairn("convert", step, outs[0], "--to", target, status=2).stderr)
            told = json.loads(cairn("convert", step, self.path("dry"), "--to", target, "--dry-run", "--json").stdout)
            names = [os.path.join(d, f) for d, _, files in os.walk(outs[0]) for f in files]
            self.assertEqual(told["files"], len(names))
            self.assertEqual(told["write_bytes"], sum(map(os.path.getsize, names)))
            self.assertFalse(os.path.exists(self.path("dry")))


MORE = 10 if os.environ.get("CAIRN_LONG") else 4
PIPE = {"engine": "pipe", "config": FP32_GRADS | {"gradient_accumulation_steps": 2}}
ROBIN = ZERO | {"zero_optimization": {"stage": 2, "round_robin_gradients": True}}
TRAINED = {
    "zero2": {"world": 2, "engine": "plain", "config": ZERO | {"zero_optimization": {"stage": 2}}, "more": MORE},
    "one": {"world": 2, "engine": "plain", "one_group": True, "config": ZERO | {"zero_optimization": {"stage": 2}},
            "more": MORE},
    "pipeline": PIPE | {"world": 8, "pp": 2, "tp": 2, "more": MORE},
    "tied2": {"world": 2, "engine": "tied", "config": ZERO | {"zero_optimization": {"stage": 2}}, "more": MORE},
    "tied3": {"world": 2, "engine": "tied", "config": ZERO | {"zero_optimization": {"stage": 3}}, "more": MORE},
    "robin": {"world": 2, "engine": "plain", "vectors_first": True, "config": ROBIN, "more": MORE},
    "frozen": {"world": 2, "engine": "plain", "frozen": "layers.1", "config": ZERO | {"zero_optimization": {"stage": 2}}, "more": MORE},
}

# One that computes what GPT-2 does, in fp32 and with clipping, so that cairn train can continue with it.
GPT_TRAINING = {"world": 2, "pp": 1, "engine": "gpt", "lr": 0.03, "steps": BEFORE, "more": AFTER, "consumed": BEFORE * SAMPLES,
                "schedule": schedule(0.03),
                "config": {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": SAMPLES // 4,
                           "gradient_clipping": 1.0, "zero_optimization": {"stage": 1}}}
GPT_FLAGS = ["--num-layers", 3, "--hidden-size", 12, "--num-attention-heads", 4, "--ffn-hidden-size", 20, "--seq-length", 7,
             "--vocab-size", 29, "--make-vocab-size-divisible-by", 8, "--clip-grad", 1, *schedule_flags(0.03)]
GPT_BF16 = GPT_TRAINING | {"config": GPT_TRAINING["config"] | {"bf16": {"enabled": True},
                                                              "data_types": {"grad_accum_dtype": "fp32"}}}


def stage(number, universal=False):
    config = ZERO | {"zero_optimization": {"stage": number}} if number > 1 else FP32_GRADS
    if number == 3:
        config = config | {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 20}}
    return config | {"checkpoint": {"load_universal": universal}}


class DeepSpeedTest(Case):
    """(how it is written, which training loads it). Losses and states of the next steps are those of the training that
    was never converted, bit for bit."""
    PLAIN = {
        "zero2_wider": (["--to", "megatron-deepspeed", "--zero", "2", "--dp", "4"], {"world": 4, "config": stage(2)}),
        "zero3": (["--to", "megatron-deepspeed", "--zero", "3", "--dp", "2"], {"world": 2, "config": stage(3)}),
        "zero1": (["--to", "megatron-deepspeed", "--zero", "1", "--dp", "2"], {"world": 2, "config": stage(1)}),
        "universal1": (["--to", "universal"], {"world": 2, "config": stage(1, True)}),
    }
    # From a universal checkpoint ZeRO 3 takes the hyper-parameters of the first group for all of them.
    ONE = {
        "universal3": (["--to", "universal"], {"world": 4, "one_group": True, "config": stage(3, True)}),
        "one_zero3": (["--to", "megatron-deepspeed", "--zero", "3", "--dp", "4"],
                      {"world": 4, "one_group": True, "config": stage(3)}),
    }
    PIPELINE = {
        "same_tp": (["--to", "megatron-deepspeed", "--tp", "2", "--pp", "1", "--dp", "2"],
                    {"world": 4, "pp": 1, "tp": 2, "config": PIPE["config"]}),
        "other_tp": (["--to", "megatron-deepspeed", "--tp", "1", "--pp", "2", "--dp", "1"],
                     {"world": 2, "pp": 2, "tp": 1, "config": PIPE["config"]}),
        "universal": (["--to", "universal"],
                      {"world": 4, "pp": 2, "tp": 2, "config": PIPE["config"] | {"checkpoint": {"load_universal": True}}}),
    }

    # Tied under two names, and gradients that are clipped: what ZeRO 1 and 2 clip them to is in their files.
    TIED = {
        "tied_zero1": (["--to", "megatron-deepspeed", "--zero", "1", "--dp", "2"],
                       {"world": 2, "config": ZERO | {"zero_optimization": {"stage": 1}}}),
        "tied_zero3": (["--to", "megatron-deepspeed", "--zero", "3", "--dp", "2"],
                       {"world": 2, "config": ZERO | {"zero_optimization": {"stage": 3}}}),
    }
    # ZeRO 3 keeps only fp32 masters.
    TIED3 = {
        "tied_zero2": (["--to", "megatron-deepspeed", "--zero", "2", "--dp", "2"],
                       {"world": 2, "config": ZERO | {"zero_optimization": {"stage": 2}}}),
        "tied_again": (["--to", "megatron-deepspeed", "--zero", "3", "--dp", "2"],
                       {"world": 2, "config": ZERO | {"zero_optimization": {"stage": 3}}}),
    }

    # Groups the other way round, and parameters in the order that DeepSpeed's option gives them.
    ROBIN = {
        "robin_again": (["--to", "megatron-deepspeed", "--zero", "2", "--dp", "2"],
                        {"world": 2, "vectors_first": True, "config": ROBIN}),
    }

    # Under ZeRO 3 each rank has a piece of each frozen parameter.
    FROZEN = {
        "frozen_zero3": (["--to", "megatron-deepspeed", "--zero", "3", "--dp", "4"],
                         {"world": 4, "frozen": "layers.1", "config": stage(3)}),
    }

    def test_its_training_continues_bit_by_bit(self):
        if importlib.util.find_spec("deepspeed") is None:
            self.skipTest("deepspeed is not installed")
        batches = {"batches": write_batches(self.path("data"), 29, 7)}
        run_writer(self, "deepspeed_writer.py", json.dumps(TRAINED | {"gpt": GPT_TRAINING | batches,
                                                                      "gpt_bf16": GPT_BF16 | batches}))
        data = ["--data-path", self.path("data")]
        for mesh in ((1, 1, 1), (2, 1, 2, 1)):
            check_losses(self, self.path("gpt"), self.losses("gpt", 0), GPT_FLAGS, *data, mesh=mesh)
        check_losses(self, self.path("gpt_bf16"), self.losses("gpt_bf16", 0), GPT_FLAGS, "--bf16", *data, precision="bf16")
        # And the other way round: its state, its schedule and what gradients are clipped to come from our step.
        middle, expected = train_here(self.path("ours"), GPT_FLAGS, *data, mesh=(2, 1, 1))
        cairn("convert", middle, self.path("ours-in"), "--to", "megatron-deepspeed", "--tp", 1, "--pp", 1, "--dp", 2, "--zero", 1)
        jobs = {"ours": GPT_TRAINING | batches | {"load": self.path("ours-in"), "done": BEFORE}}
        cases = (("zero2", self.PLAIN), ("one", self.ONE), ("pipeline", self.PIPELINE), ("tied2", self.TIED),
                 ("tied3", self.TIED3), ("robin", self.ROBIN), ("frozen", self.FROZEN))
        for source, targets in cases:
            # Through a native step, which must carry everything that a target needs.
            cairn("convert", self.path(source), self.path(source + "-native"), "--to", "native", "--tp", "1", "--pp", "1",
                  "--dp", "1")
            for name, (flags, spec) in targets.items():
                jobs[name] = spec | {"engine": TRAINED[source]["engine"], "load": self.path(name + "-in"), "more": MORE}
                cairn("convert", self.path(source + "-native"), self.path(name + "-in"), *flags)
        run_writer(self, "deepspeed_writer.py", json.dumps(jobs))
        compare(self, dict(enumerate(self.losses("ours", 0), BEFORE + 1)), expected, "fp32", "DeepSpeed continues with ours")
        for source, targets in cases:
            for name in targets:
                with self.subTest(name=name):
                    self.check(source, name, jobs[name])
        self.check_their_own_conversion()
        for source in ("tied2", "tied3"):
            self.check_all_names(source)
        self.check_names_that_cannot_be()

    def check_all_names(self, source):
        """Released weights have all names and values of DeepSpeed's own script."""
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
        theirs = get_fp32_state_dict_from_zero_checkpoint(self.path(source))
        self.assertIn("model.lm_head.weight", theirs)
        cairn("strip", self.path(source), self.path(source + "-fp16"), "--format", "safetensors", "--dtype", "fp16")
        ours = load_file(self.path(source + "-fp16", "model.safetensors"))
        self.assertEqual(set(ours), set(theirs))
        for name, value in theirs.items():
            self.assertTrue(same_bits(ours[name], value.half()), name)
        cairn("verify", self.path(source + "-fp16"))
        self.check_by_config(source, theirs)

    def check_by_config(self, source, theirs):
        """With its config.json the model loads in transformers, and becomes Megatron's with its optimizer."""
        release, config = self.path(source + "-hf"), self.path(source + "-config")
        GPT2Config(n_embd=16, n_layer=3, n_head=4, vocab_size=29, n_positions=7).save_pretrained(config)  # deepspeed_writer.py: Wrapped
        cairn("strip", self.path(source), release, "--config", config, "--dtype", "fp32")
        loaded = GPT2LMHeadModel.from_pretrained(release).state_dict()
        self.assertEqual({f"model.{name}" for name in loaded}, set(theirs))
        for name, value in loaded.items():
            self.assertTrue(same_bits(value, theirs[f"model.{name}"]), name)
        if source == "tied2":  # ZeRO-3 keeps only the masters
            cairn("convert", self.path(source), self.path("tied2-megatron"), "--config", config, "--to", "megatron", "--zero", 1)
            cairn("diff", self.path(source), self.path("tied2-megatron"), "--config", config)

    def check(self, source, name, job):
        self.compare(source, name, job, "known")
        for rank in range(job["world"]):
            losses, expected = self.losses(name, rank), self.losses(source, 0)
            if job.get("tp", 1) == TRAINED[source].get("tp", 1):
                self.assertEqual(losses, expected)
            else:  # a sum over ranks is rounded otherwise
                torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=2 ** -6, atol=0)
        # ZeRO 3 sums the norm that gradients are clipped to in another order.
        stages = {spec["config"]["zero_optimization"]["stage"] == 3 for spec in (TRAINED[source], job)}
        if job["engine"] != "tied" or len(stages) == 1:
            self.compare(source, name, job, "after")

    def losses(self, name, rank):
        with open(self.path(f"{name}-losses-{rank}.json")) as file:
            return json.load(file)

    def compare(self, source, name, job, when):
        for role in ("weight", "fp32", "exp_avg", "exp_avg_sq"):
            expected = known_to_ranks(self.path(source), TRAINED[source]["world"], role, when)
            found = known_to_ranks(self.path(name), job["world"], role, when)
            self.assertEqual(set(expected), set(found))
            for key, value in expected.items():
                self.assertTrue(same_bits(found[key], value), (when, role, key))

    def check_their_own_conversion(self):
        """DeepSpeed's tools read what was written: its universal form of our shards is ours. It merges the parameters of
        all stages by what the files of one say."""
        stages = self.path("stages-in")
        cairn("convert", self.path("pipeline-native"), stages, "--to", "megatron-deepspeed", "--tp", "2", "--pp", "2")
        for shards in (self.path("same_tp-in"), stages):
            step = os.path.join(shards, "global_step2")
            subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", step,
                            "--output_folder", os.path.join(shards, "theirs"), "--num_extract_workers", "1",
                            "--num_merge_workers", "1"], check=True, capture_output=True, timeout=300,
                           env=os.environ | {"DS_ACCELERATOR": "cpu"})
            self.assertEqual(fingerprint(os.path.join(shards, "theirs")), fingerprint(self.path("universal-in")))


    def check_names_that_cannot_be(self):
        """Two names each mapped to the other, and two tensors that should be equal but differ."""
        path = self.path("tied2", "global_step2", "mp_rank_00_model_states.pt")
        state = torch.load(path, weights_only=False)
        first, second = "model.transformer.wte.weight", "model.lm_head.weight"
        state["module"][second] = state["module"][first] + 1
        for shared, told in (({first: second, second: first}, "which is missing"), ({second: first}, "differ")):
            torch.save(state | {"shared_params": shared}, path)
            self.assertIn(told, cairn("fingerprint", self.path("tied2"), status=2).stderr)


class MegatronTest(Case):
    """Megatron-Core's own models take every weight, and nothing is left over; masters stand in the order of their
    parameters. Its optimizers refuse CPU tensors, so torch's AdamW takes the moments."""

    def test_its_models_load_it(self):
        if importlib.util.find_spec("megatron") is None:
            self.skipTest("megatron-core is not installed")
        subprocess.run([os.environ["CAIRN_MAKE_STEP"], self.path("gpt"), "--layers", "4", "--vocab", "61", "--tp", "2"],
                       check=True)
        run_writer(self, "megatron_writer.py", json.dumps({"llama": MEGATRON_MODELS["llama"]}))
        jobs = {"gpt22": {"world": 4, "tp": 2, "pp": 2, "ffn": 64, "positions": 12},
                "gpt14": {"world": 4, "tp": 1, "pp": 4, "ffn": 64, "positions": 12},
                "llama12": MEGATRON_MODELS["llama"] | {"world": 2, "tp": 1, "pp": 2}}
        for name, spec in jobs.items():
            out = self.path(name + "-in")
            cairn("convert", self.path(name.rstrip("0123456789")), out, "--to", "megatron", "--transformer-impl", "local",
                  "--tp", spec["tp"], "--pp", spec["pp"], "--dp", "1")
            spec["load"] = os.path.join(out, "iter_0000100" if name.startswith("gpt") else "iter_0000003")
        run_writer(self, "megatron_writer.py", json.dumps(jobs))
        cairn("convert", self.path("gpt"), self.path("gpt-dcp"), "--to", "dcp")
        for name, spec in jobs.items():
            with self.subTest(name=name):
                expected = Dump(self.path("gpt-dcp" if name.startswith("gpt") else "llama"))
                found = dict(canonical_of_megatron(self, name, spec))
                self.assertEqual({(key, "weight") for key in found}, {k for k in expected.tensors if k[1] == "weight"})
                for key, value in found.items():
                    self.assertTrue(same_bits(expected.tensors[key, "weight"], value), key)


GPT = {"ffn": 64, "positions": 12}
LLAMA = MEGATRON_MODELS["llama"]
# Keys that Transformer Engine's layers need in addition to Megatron-Core's own.
ENGINE = ["decoder.final_layernorm._extra_state", "decoder.layers.self_attention.core_attention._extra_state"]
# Megatron-Core's trainings; of pipelines whose embedding is tied its distributed optimizer loses 64 elements as it saves.
SAVED = {"plain": GPT | {"world": 2, "tp": 2, "pp": 1, "zero": 0},
         "torch": GPT | {"world": 1, "tp": 1, "pp": 1, "zero": 0, "torch_adam": True, "dtype": "float16"},
         "distributed": LLAMA | {"world": 2, "tp": 1, "pp": 1, "zero": 1},
         "stages": LLAMA | {"world": 4, "tp": 1, "pp": 2, "zero": 1},
         "buckets": LLAMA | {"world": 4, "tp": 2, "pp": 1, "zero": 1, "sharding": "dp_reshardable"},
         "tied_buckets": GPT | {"world": 4, "tp": 1, "pp": 2, "zero": 1, "sharding": "dp_reshardable"},
         "fp32": LLAMA | {"world": 1, "tp": 1, "pp": 1, "zero": 0, "dtype": "float32", "torch_adam": True}}
# (what was saved, how it is written, which training loads it)
LOADED = {"pipeline": ("plain", ["--tp", "2", "--pp", "2", "--dp", "2", "--zero", "0"], {"world": 2, "tp": 1, "pp": 2, "zero": 0}),
          "shared_out": ("plain", ["--tp", "1", "--pp", "2", "--dp", "1", "--zero", "1"], {"world": 2, "tp": 1, "pp": 1, "zero": 1}),
          "tied": ("plain", ["--tp", "2", "--pp", "1", "--dp", "1", "--zero", "1"], {"world": 2, "tp": 1, "pp": 2, "zero": 1}),
          "torch_wide": ("torch", ["--tp", "2", "--pp", "2", "--dp", "1", "--zero", "0"], {"world": 2, "tp": 2, "pp": 1, "zero": 0}),
          "alone": ("distributed", ["--tp", "2", "--pp", "2", "--dp", "1", "--zero", "0"], {"world": 1, "tp": 1, "pp": 1, "zero": 0}),
          "tensor": ("distributed", ["--tp", "1", "--pp", "1", "--dp", "3", "--zero", "1"], {"world": 2, "tp": 2, "pp": 1, "zero": 1}),
          "one_stage": ("stages", ["--tp", "2", "--pp", "4", "--dp", "1", "--zero", "1"], {"world": 2, "tp": 1, "pp": 1, "zero": 1}),
          "from_buckets": ("buckets", ["--tp", "1", "--pp", "2", "--dp", "1", "--zero", "1"], {"world": 2, "tp": 1, "pp": 2, "zero": 1}),
          "legacy_plain": ("torch", ["--to", "megatron", "--tp", "2", "--pp", "1", "--zero", "0"], {"world": 2, "tp": 2, "pp": 1, "zero": 0}),
          "legacy_tied": ("plain", ["--to", "megatron", "--tp", "1", "--pp", "2", "--zero", "1"], {"world": 4, "tp": 1, "pp": 2, "zero": 1}),
          "legacy_shared_out": ("stages", ["--to", "megatron", "--tp", "1", "--pp", "1", "--zero", "1"], {"world": 2, "tp": 1, "pp": 1, "zero": 1}),
          "fp32_wide": ("fp32", ["--tp", "1", "--pp", "3", "--dp", "1", "--zero", "0"], {"world": 2, "tp": 2, "pp": 1, "zero": 0})}

# Other versions of Megatron-Core run these; scripts/test --long has all.
if os.environ.get("CAIRN_SAMPLE"):
    LOADED = {name: LOADED[name] for name in ("pipeline", "tensor", "from_buckets", "legacy_tied", "fp32_wide")}
    SAVED = {source: SAVED[source] for source, _, _ in LOADED.values()}

# In fp32, with clipping and a schedule: on real losses, so that cairn train can continue with them.
FP32_TRAINING = {"ffn": 24, "vocab": 64, "dtype": "float32", "lr": 0.02, "clip": 1.0, "world": 2, "pp": 1,
                 "schedule": schedule(0.02), "done": BEFORE}
TRAINED_CORE = {"gpt_tensor": FP32_TRAINING | {"tp": 2, "zero": 0}, "gpt_data": FP32_TRAINING | {"tp": 1, "zero": 1}}
# And one that continues with what cairn train began. Of fp32 weights no distributed optimizer's state is written.
GOES_ON = TRAINED_CORE["gpt_tensor"] | {"torch_adam": True}
CORE_FLAGS = ["--num-layers", 4, "--hidden-size", 16, "--num-attention-heads", 4, "--ffn-hidden-size", 24, "--seq-length", 8,
              "--vocab-size", 64, "--make-vocab-size-divisible-by", 8, "--adam-beta2", 0.95, "--clip-grad", 1,
              *schedule_flags(0.02)]

# Megatron-Core's before 0.15, and the trainings of today's that load what cairn made of them.
OLDER = {"model_space": LLAMA | {"world": 6, "tp": 2, "pp": 1, "zero": 1, "sharding": "fully_sharded_model_space"},
         "tied_space": GPT | {"world": 6, "tp": 1, "pp": 2, "zero": 1, "sharding": "fully_sharded_model_space"}}


class MegatronOptimizerTest(Case):
    """Megatron-Core's models and its optimizers, started on the CPU, save their state and take it back from what cairn made of
    it in torch_dist and in Megatron-LM's older form, every key and no other, at another TP and PP; further updates give the
    same bits."""

    def test_its_trainings_continue(self):
        if importlib.util.find_spec("megatron") is None:
            self.skipTest("megatron-core is not installed")
        batches = {"batches": write_batches(self.path("data"), 64, 8)}
        run_writer(self, "megatron_trainer.py", json.dumps(SAVED | {name: spec | batches for name, spec in TRAINED_CORE.items()}))
        self.check_going_on_here()
        jobs = {}
        for source in SAVED:
            self.check_reading(source, source)
            if source != "fp32":
                self.check_reading(source, source + "-legacy")
            # Through a native step, which must carry everything that a target needs.
            cairn("convert", self.path(source), self.path(source + "-native"), "--to", "native", "--tp", "1", "--pp", "1",
                  "--dp", "1")
        for name, (source, flags, spec) in LOADED.items():
            model = {key: value for key, value in SAVED[source].items() if key != "sharding"}
            jobs[name] = model | spec | {"load": self.path(name + "-in", "iter_0000003"), "iteration": 3, "steps": 7}
            # torch's AdamW and Transformer Engine's look for their step in different places.
            local = "torch_adam" in jobs[name] or name == "tensor" or name.startswith("legacy")
            jobs[name]["beside"] = [] if local else ENGINE
            jobs[name]["legacy"] = "megatron" in flags
            target = [] if jobs[name]["legacy"] else ["--to", "torch-dist"]
            cairn("convert", self.path(source + "-native"), self.path(name + "-in"), *target, *flags, "--transformer-impl",
                  "local" if local else "transformer_engine")
            self.assertEqual(fingerprint(self.path(name + "-in")), fingerprint(self.path(source)))
        self.check_against_its_own_files()
        self.check_buckets_that_cannot_be()
        middle, expected = train_here(self.path("ours"), CORE_FLAGS, "--data-path", self.path("data"), mesh=(1, 2, 1))
        cairn("convert", middle, self.path("ours-in"), "--to", "torch-dist", "--transformer-impl", "local", "--tp", 2, "--pp", 1,
              "--dp", 1, "--zero", 0)
        jobs["ours"] = GOES_ON | batches | {"load": self.path("ours-in", f"iter_{BEFORE:07}"), "iteration": BEFORE, "steps": BEFORE}
        run_writer(self, "megatron_trainer.py", json.dumps(jobs))
        with open(self.path("ours-losses.json")) as file:
            compare(self, dict(enumerate(json.load(file), BEFORE + 1)), expected, "fp32", "Megatron-Core continues with ours")
        for name, (source, _, _) in LOADED.items():
            with self.subTest(name=name):
                for role in self.roles(SAVED[source]):
                    for when in (role, role + "+"):
                        self.compare(self.known(source, when, SAVED[source]), self.known(name, when, jobs[name]), when)

    def check_going_on_here(self):
        """cairn train's next losses are megatron-core's. fp32 without the distributed optimizer has no legacy form that says
        which moment is whose."""
        for source, step in (("gpt_tensor", "gpt_tensor"), ("gpt_data", "gpt_data"),
                             ("gpt_data", f"gpt_data-legacy/iter_{BEFORE:07}")):
            with self.subTest(step):
                with open(self.path(source + "-losses.json")) as file:
                    expected = json.load(file)
                check_losses(self, self.path(step), expected, CORE_FLAGS, "--data-path", self.path("data"),
                             mesh=(2, 1, 1) if "legacy" in step else (1, 1, 1))

    def test_trainings_of_older_versions_continue(self):
        older = os.path.join(sys.prefix, "older")
        if not os.path.isdir(os.path.join(older, "megatron")):
            self.skipTest("no older megatron-core is installed")
        run_writer(self, "megatron_trainer.py", json.dumps(OLDER), path=older)
        jobs = {}
        for source, spec in OLDER.items():
            self.check_reading(source, source, spec)
            cairn("verify", "--values", self.path(source))
            jobs[source + "-in"] = {key: value for key, value in spec.items() if key != "sharding"} | {
                "world": 2, "tp": spec["pp"], "pp": spec["tp"], "load": self.path(source + "-out", "iter_0000003"),
                "iteration": 3, "steps": 7}
            cairn("convert", self.path(source), self.path(source + "-out"), "--to", "torch-dist", "--tp", "1", "--pp", "2",
                  "--dp", "1", "--zero", "1", "--transformer-impl", "local")
        run_writer(self, "megatron_trainer.py", json.dumps(jobs))
        for source, spec in OLDER.items():
            for role in ("weight", "exp_avg", "exp_avg_sq", "master"):
                for when in (role, role + "+"):
                    self.compare(self.known(source, when, spec), self.known(source + "-in", when, jobs[source + "-in"]), when)
        self.check_a_hole_in_a_cell()

    def check_a_hole_in_a_cell(self):
        """One data parallel rank's range is missing."""
        step = self.path("model_space", "iter_0000003")
        metadata = torch.distributed.checkpoint.FileSystemReader(step).read_metadata()
        chunks = [entry.chunks for name, entry in metadata.state_dict_metadata.items() if name.startswith("optimizer.state.")]
        cut = next(chunk for part in chunks for chunk in part if chunk.offsets[-1] > 0)
        owner = next(name for name, entry in metadata.state_dict_metadata.items() if cut in getattr(entry, "chunks", ()))
        metadata.state_dict_metadata[owner].chunks.remove(cut)

        def save():
            with open(os.path.join(step, ".metadata"), "wb") as file:
                pickle.dump(metadata, file)

        save()
        self.assertRegex(cairn("fingerprint", step, status=2).stderr, owner + ".* is not in state_dict_metadata")
        metadata.storage_data.pop(next(i for i in metadata.storage_data if i.fqn == owner and i.offset == cut.offsets))
        save()
        self.assertRegex(cairn("fingerprint", step, status=2).stderr, "optimizer.state.* (ends at|has a hole or an overlap at) element")
        cairn("fingerprint", step, "--allow", "optimizer")

    def check_against_its_own_files(self):
        """At the topology of Megatron's own save: the same keys, of the same shapes, types and chunks."""
        for source in ("plain", "distributed", "fp32"):
            spec = SAVED[source]
            cairn("convert", self.path(source), self.path(source + "-same"), "--to", "torch-dist", "--tp", spec["tp"], "--pp",
                  spec["pp"], "--dp", "1", "--zero", spec["zero"], "--transformer-impl", "local")
            theirs, ours = (torch.distributed.checkpoint.FileSystemReader(self.path(name, "iter_0000003")).read_metadata()
                            for name in (source, source + "-same"))
            # The common state is in common.pt of ours, and since 0.19 an item of theirs.
            known = {item for item in theirs.storage_data if item.fqn != "common_state/shard_0_1"}
            self.assertEqual(known, set(ours.storage_data))
            for name, entry in theirs.state_dict_metadata.items():
                if name == "common_state/shard_0_1":
                    continue
                other = ours.state_dict_metadata[name]
                self.assertIs(type(entry), type(other))
                if hasattr(entry, "size"):
                    self.assertEqual((entry.size, entry.properties), (other.size, other.properties), name)
                    chunks = [{(chunk.offsets, chunk.sizes) for chunk in e.chunks} for e in (entry, other)]
                    self.assertEqual(*chunks, name)

    def check_buckets_that_cannot_be(self):
        """A pipeline that would lack half of the buckets, and masters that belong to no weight."""
        damaged = self.path("damaged")
        shutil.copytree(self.path("buckets"), damaged)
        step = os.path.join(damaged, "iter_0000003")
        common = os.path.join(step, "common.pt")
        state = self.common_of(step)
        for stages in (2, 1):
            state["args"].pipeline_model_parallel_size = stages
            torch.save(state, common)
            if stages == 2:
                self.assertIn("2 buffers for TP=2 and 2 chunks", cairn("fingerprint", damaged, status=2).stderr)
                cairn("fingerprint", damaged, "--allow", "optimizer")
        metadata = torch.distributed.checkpoint.FileSystemReader(step).read_metadata()
        places = [place for index, place in metadata.storage_data.items() if index.fqn.endswith("bucket_idx_0.param")]
        place = max(places, key=lambda place: place.length)
        with open(os.path.join(step, place.relative_path), "r+b") as file:
            file.seek(place.offset)
            item = bytearray(file.read(place.length))
            with zipfile.ZipFile(io.BytesIO(bytes(item))) as archive:
                (name,) = [name for name in archive.namelist() if "/data/" in name]
                values = archive.read(name)
            at = item.index(values)
            item[at:at + len(values)] = bytes(len(values))
            file.seek(place.offset)
            file.write(item)
        self.assertIn("no weight is the master", cairn("fingerprint", damaged, status=2).stderr)

    def common_of(self, step):
        """Of a checkpoint that Megatron saved; since 0.19 it writes no common.pt, but reads it first."""
        if os.path.exists(os.path.join(step, "common.pt")):
            return torch.load(os.path.join(step, "common.pt"), weights_only=False)
        state = {"common_state/shard_0_1": io.BytesIO()}
        torch.distributed.checkpoint.load(state, checkpoint_id=step, no_dist=True)
        return state["common_state/shard_0_1"][0]

    def roles(self, spec):
        return ["weight", "exp_avg", "exp_avg_sq"] + ([] if spec.get("dtype") == "float32" else ["master"])

    def known(self, name, role, spec):
        return dict(canonical_of_megatron(self, f"{name}.{role}", spec))

    def compare(self, expected, found, role):
        self.assertEqual(set(expected), set(found))
        for key, value in expected.items():
            self.assertTrue(same_bits(found[key], value), (role, key))

    def check_reading(self, source, written, spec=None):
        spec = spec or SAVED[source]
        dump = Dump(self.path(written, "iter_0000003"))
        self.assertEqual({role for _, role in dump.tensors}, set(self.roles(spec)))
        state = dump.facts["state"]
        self.assertEqual(state["optimizer_step"], 7)
        scale = [state.get("loss_scale" + kind) for kind in ("", "_good_steps", "_hysteresis")]
        self.assertEqual(scale, [512, 5, 2] if spec.get("dtype") == "float16" else [None] * 3)
        for role in self.roles(spec):
            self.compare(self.known(source, role, spec),
                         {key: value for (key, kind), value in dump.tensors.items() if kind == role}, role)

    def test_files_and_numbers(self):
        step = self.path("run")
        subprocess.run([os.environ["CAIRN_MAKE_STEP"], step, "--layers", "2"], check=True)
        out = self.path("out")
        cairn("convert", step, out, "--to", "torch-dist", "--tp", "2", "--pp", "2", "--dp", "2", "--zero", "1")
        self.assertEqual(sorted(os.listdir(out)), ["cairn.json", "iter_0000100", "latest_checkpointed_iteration.txt"])
        files = [f"__{rank}_0.distcp" for rank in range(8)]
        self.assertEqual(sorted(os.listdir(self.path("out", "iter_0000100"))),
                         sorted([".metadata", "common.pt", "metadata.json", *files]))
        with open(self.path("out", "latest_checkpointed_iteration.txt")) as file:
            self.assertEqual(file.read(), "100")
        DcpTest.check_items(self, self.path("out", "iter_0000100"))
        metadata = torch.distributed.checkpoint.FileSystemReader(self.path("out", "iter_0000100")).read_metadata()
        self.assertIsNone(metadata.planner_data)
        for name, entry in metadata.state_dict_metadata.items():  # nothing twice, nothing missing
            if hasattr(entry, "size"):
                whole = torch.zeros(entry.size, dtype=torch.int32)
                for chunk in entry.chunks:
                    whole[tuple(slice(o, o + s) for o, s in zip(chunk.offsets, chunk.sizes))] += 1
                self.assertTrue(bool((whole == 1).all()), name)
        weights = self.path("weights")
        cairn("strip", step, weights, "--format", "safetensors", "--dtype", "bf16")
        cairn("convert", weights, self.path("release-in"), "--to", "torch-dist")
        self.assertIn("release", os.listdir(self.path("release-in")))
        self.assertEqual(fingerprint(self.path("release-in")), fingerprint(weights))


if __name__ == "__main__":
    import unittest
    unittest.main()
