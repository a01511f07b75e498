"""Files of ranks that hold parts of DTensors: joined, they are the tensors that torch gathers."""

import json
import pathlib
import pickle
import shutil
import unittest
import zipfile

import torch
import torch.distributed.checkpoint as dcp
from harness import Case, cairn, seal, written_for
from safetensors.torch import load_file, save_file

JOBS = {
    "fsdp": {"world": 2, "mesh": {"dp": 2}},
    "more ranks than rows": {"world": 4, "mesh": {"dp": 4}},
    "hsdp": {"world": 4, "mesh": {"replica": 2, "dp": 2}},
    "tensor parallel": {"world": 4, "mesh": {"dp": 2, "tp": 2}},
    "fsdp1": {"world": 2, "fsdp1": True},
    "one": {"world": 1, "mesh": {"dp": 1}},
    "qwen3": {"world": 2, "mesh": {"dp": 2}, "qwen3": True},
    "step-2": {"world": 2, "mesh": {"dp": 2}, "torch_checkpointing": True},
    "slices": {"world": 4, "mesh": {"dp": 4}, "slices": True},
    "slices of qwen3": {"world": 2, "mesh": {"dp": 2}, "slices": True, "qwen3": True},
    "fsdp at 3": {"world": 3, "mesh": {"dp": 3}, "from": "fsdp"},
    "tensor parallel at 2": {"world": 2, "mesh": {"dp": 1, "tp": 2}, "from": "tensor parallel"},
    "step-4": {"world": 2, "mesh": {"dp": 2}, "torch_checkpointing": True, "qwen3": True},
}

BY_CHECKPOINTING = [name for name, job in JOBS.items() if job.get("torch_checkpointing")]
RANK_2 = "model_world_size_4_rank_2.pt"


class RankFilesTest(Case):
    @classmethod
    def setUpClass(cls):
        cls.made = written_for(cls, "rank_files_writer.py", json.dumps(JOBS))

    def whole(self, name):
        return torch.load(self.made / f"{name}.pt")

    def copy(self, name):
        return pathlib.Path(shutil.copytree(self.made / name, self.path(name)))

    def check(self, found, expected):
        self.assertEqual(found.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertTrue(found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name)

    def test_weights_equal_full_tensors(self):
        for name in JOBS:
            with self.subTest(name):
                more = ("--allow", "ranks") if "slices" in JOBS[name] else ()
                cairn("convert", self.made / name, self.path(name), "--to", "safetensors", *more)
                expected = self.whole(name)["weights"]
                if JOBS[name].get("qwen3"):  # tied: one of the two is stored
                    expected = {key: value for key, value in expected.items() if key != "lm_head.weight"}
                (file,) = pathlib.Path(self.path(name)).glob("*.safetensors")
                found = load_file(file)
                self.check({key: found[key] for key in found if key != "lm_head.weight" or key in expected}, expected)

    def test_a_release_is_that_of_transformers(self):
        for name in ("qwen3", "step-4", "slices of qwen3"):
            config = self.made / name / "huggingface"
            cairn("convert", self.made / name, self.path(name), "--to", "hf", "--config", config)
            self.check(load_file(self.path(name, "model.safetensors")), load_file(config / "model.safetensors"))

    def test_a_release_has_the_tokenizer_of_the_step(self):
        config = self.copy("qwen3") / "huggingface"
        (config / "tokenizer.json").write_text('{"version": "1.0"}')
        cairn("strip", self.path("qwen3"), self.path("out"), "--config", config, "--format", "hf", "--dtype", "bf16")
        self.assertEqual(pathlib.Path(self.path("out", "tokenizer.json")).read_text(), '{"version": "1.0"}')

    def test_a_release_has_the_tokenizer_that_a_program_keeps_elsewhere(self):
        """As NeMo-RL does: nemo_rl/algorithms, tokenizer_path."""
        policy = pathlib.Path(self.path("run", "step_2", "policy"))
        cairn("convert", self.made / "qwen3", policy / "weights", "--to", "dcp")
        (policy / "tokenizer").mkdir()
        (policy / "tokenizer" / "tokenizer.json").write_text('{"version": "1.0"}')
        config = self.made / "qwen3" / "huggingface"
        cairn("strip", policy.parent, self.path("out"), "--config", config, "--format", "hf", "--dtype", "bf16")
        self.assertEqual(pathlib.Path(self.path("out", "tokenizer.json")).read_text(), '{"version": "1.0"}')

    def test_an_export_in_the_step_need_not_have_checksums(self):
        step = pathlib.Path(self.path("run", "global_step_4"))
        shutil.copytree(self.made / "fsdp", step / "policy")
        (step / "export").mkdir()
        save_file({"weight": torch.ones(4, 4)}, step / "export" / "model.safetensors")
        done = cairn("verify", step, "--hash")
        self.assertIn("export: good, 0 B checked (structure)", done.stdout)
        self.assertIn("export: its format keeps no digests", done.stderr)

    def test_an_adapter_is_named_and_not_the_optimizer(self):
        """Without the optimizer, whose states have numbers, strip would read the weights; then the adapter is in its way."""
        for file in self.copy("qwen3").glob("model_*"):
            held = torch.load(file, weights_only=False)
            torch.save({**held, "model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(2, 32)}, file)
        config = self.path("qwen3", "huggingface")
        done = cairn("strip", self.path("qwen3"), self.path("out"), "--config", config, "--format", "hf", "--dtype", "bf16", status=2)
        self.assertIn("are of an adapter (LoRA)", done.stderr)
        self.assertNotIn("optimizer", done.stderr)

    def test_moments_reach_torch(self):
        """Those of torch_checkpointing have the names of parameters."""
        for name in BY_CHECKPOINTING:
            cairn("convert", self.made / name, self.path(name), "--to", "dcp")
            moments = self.whole(name)["moments"]
            keys = {key: f"optim.state.{key}" for key in moments if not key.endswith(".step")}
            state = {name: torch.empty_like(moments[key]) for key, name in keys.items()}
            dcp.load(state, checkpoint_id=self.path(name), no_dist=True)
            self.check({key: state[name] for key, name in keys.items()}, {key: moments[key] for key in keys})

    def test_another_number_of_ranks_resumes(self):
        """cairn.torch.load fills the state dicts, and they are saved as before: numbered states, too."""
        for name, job in JOBS.items():
            if "from" in job:
                cairn("diff", self.made / job["from"], self.made / name)

    def test_steps_are_sealed_whole(self):
        for name in ("tensor parallel", "step-2"):
            self.assertEqual(seal(self.copy(name))["system"], "rank-files")

    def refused(self, name, *says):
        text = cairn("convert", self.path(name), self.path("out"), "--to", "native", status=2).stderr
        for words in says:
            self.assertIn(words, text)

    def test_every_file_of_a_step_is_checked(self):
        """Also those that no weights are in: optimizers that are not read, random states, a critic beside the policy."""
        step, trainer = pathlib.Path(self.path("run", "global_step_4")), pathlib.Path(self.path("out", "checkpoint-4"))
        for model in ("policy", "critic"):
            shutil.copytree(self.made / "fsdp", step / model)
        torch.save({"seen": torch.arange(64)}, step / "data.pt")
        trainer.mkdir(parents=True)
        save_file({"weight": torch.ones(4, 4)}, trainer / "model.safetensors")
        torch.save({"state": {0: {"exp_avg": torch.rand(64)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}, trainer / "optimizer.pt")
        (trainer / "trainer_state.json").write_text("{}")
        files = ["policy/extra_state_world_size_2_rank_1.pt", "critic/optim_world_size_2_rank_0.pt", "critic/model_world_size_2_rank_1.pt", "data.pt"]
        for place, file in [*((step, file) for file in files), (trainer, "optimizer.pt")]:
            with self.subTest(file):
                cairn("verify", place)
                whole = (place / file).read_bytes()
                with zipfile.ZipFile(place / file) as held:
                    largest = held.read(max(held.infolist(), key=lambda record: record.file_size))
                (place / file).write_bytes(whole.replace(largest, bytes([largest[0] ^ 1]) + largest[1:]))
                self.assertIn(file, cairn("verify", place, status=1).stdout)
                (place / file).write_bytes(whole)

    def test_a_lost_file_is_named(self):
        (self.copy("more ranks than rows") / RANK_2).unlink()
        self.refused("more ranks than rows", f"{RANK_2}: is missing")
        step = self.copy("step-2")
        (step / "model_1.pt").unlink()
        self.refused("step-2", "model_1.pt: is missing")
        (step / "metadata.pkl").unlink()  # then the mesh tells
        self.refused("step-2", "model_1.pt: is missing")

    def test_copies_that_differ_are_named(self):
        name = "hsdp"
        place = self.copy(name) / "model_world_size_4_rank_3.pt"
        held = torch.load(place, weights_only=False)
        held["up.bias"]._local_tensor[0] += 1
        torch.save(held, place)
        self.refused(name, "up.bias", "rank_3.pt")

    def test_slices_do_not_name_the_last_rank(self):
        name = "slices of qwen3"
        files = sorted(self.copy(name).glob("shard-*"))
        self.refused(name, "how many ranks wrote them", "--allow ranks")
        files[1].unlink()
        config = self.made / name / "huggingface"
        text = cairn("convert", self.path(name), self.path("out"), "--to", "hf", "--config", config, status=2).stderr
        self.assertIn("config.json", text)
        self.copy("slices")
        pathlib.Path(self.path("slices"), "shard-00002-model-00001-of-00001.safetensors").unlink()
        self.refused("slices", "the files of rank 2 are missing")

    def test_a_tensor_that_only_the_list_has(self):
        place = self.copy("step-2") / "metadata.pkl"
        listed = pickle.loads(place.read_bytes())
        listed["metadata"]["model"]["nested_path_to_metadata"]['["gone"]'] = []
        place.write_bytes(pickle.dumps(listed))
        self.refused("step-2", "metadata.pkl: it names model.gone")


if __name__ == "__main__":
    unittest.main()
