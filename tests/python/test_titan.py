"""`cairn.titan` in torchtitan's own Trainer: saved, continued bit for bit, loaded at other meshes, and read by the suite."""

import json
import os
import pathlib
import re
import shutil
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("CAIRN_TITAN", f"{os.environ.get('CAIRN_VENV')}/titan")  # scripts/requirements-titan.txt
os.environ.setdefault("OMP_NUM_THREADS", "1")
PLACES = [os.environ["CAIRN_TITAN"], str(ROOT / "tests/python"), str(ROOT / "python")]
sys.path[:0] = PLACES  # torchtitan's torch comes first, in the ranks, too

import cairn  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner  # noqa: E402

# What titan_cases.mixture() is in transformers.
CONFIG = {
    "model_type": "deepseek_v3",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 16,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 16384,
}

QWEN = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 4096,
}
# titan_cases.qwen(), by whether query, key and value are one parameter.
QWENS = {
    True: QWEN | {"model_type": "qwen3_moe", "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True},
    False: QWEN | {"model_type": "qwen3", "intermediate_size": 3072, "tie_word_embeddings": True},
}

CANONICAL = {
    "model.embed_tokens": "embedding.word",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
    "mlp.gate": "mlp.router",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
    "mlp.experts.gate_proj": "mlp.experts.gate",
    "mlp.experts.up_proj": "mlp.experts.up",
    "mlp.experts.down_proj": "mlp.experts.down",
    "input_layernorm": "input_norm",
    "post_attention_layernorm": "post_attention_norm",
    "model.norm": "final_norm",
    "lm_head": "output",
}


def canonical(release):
    """Under canonical names; the experts of a layer are one tensor."""
    found = {}
    for name, tensor in release.items():
        layer, module = re.fullmatch(r"(?:model\.(layers\.\d+\.))?(.*)\.weight", name).groups()
        expert = re.search(r"experts\.(\d+)\.", module)
        own = f"{layer or ''}{CANONICAL[module.replace(expert[0], 'experts.') if expert else module]}.weight"
        found.setdefault(own, {})[int(expert[1]) if expert else None] = tensor
    return {name: parts[None] if None in parts else torch.stack([parts[e] for e in range(len(parts))]) for name, parts in found.items()}


@unittest.skipUnless(os.path.isdir(os.environ["CAIRN_TITAN"]), "torchtitan is not there (scripts/setup --tests)")
class TitanTest(ranks.RanksCase):
    cases = "titan_cases"

    @classmethod
    def setUpClass(cls):
        os.environ["PYTHONPATH"] = os.pathsep.join(PLACES)
        super().setUpClass()

    def steps(self, name):
        return sorted(entry for entry in os.listdir(f"{self.directory}/{name}/checkpoint") if entry.startswith("step-"))

    def test_1_a_training_resumes_bit_by_bit(self):
        self.run_ranks("whole", 2)
        self.assertEqual(self.steps("whole"), ["step-00000002", "step-00000004", "step-00000006"])
        self.run_ranks("again", 2)
        self.run_ranks("alone", 1)
        run = f"{self.directory}/whole/checkpoint"
        cairn.run(["verify", run], capture=True)
        self.assertRegex(cairn.run(["ls", run], capture=True).stdout, r"6 +verified")

    def test_1_local_steps(self):
        """After test_1_a: from the nodes with the bits of the unbroken training, although a node is lost."""
        self.run_ranks("local_killed", 2, killed=(0, 1))
        self.assertEqual(self.steps("local"), ["step-00000003"])
        shutil.rmtree(f"{self.directory}/node-1")
        self.run_ranks("local_again", 2)
        self.assertEqual(self.steps("local"), ["step-00000003", "step-00000006"])

    def test_2_a_running_training_changes_one_line(self):
        """From torchtitan's own steps, and then at other meshes."""
        self.run_ranks("dcp_before", 2)
        self.run_ranks("dcp_after", 2)
        self.assertEqual(self.steps("llama"), ["step-00000005", "step-00000006", "step-4"])
        self.run_ranks("tensor_parallel", 2)
        self.run_ranks("pipeline", 2)
        self.run_ranks("after_pipeline", 1)

    def test_3_a_model_without_its_optimizer_is_refused(self):
        self.run_ranks("model_alone", 1)
        run = f"{self.directory}/exported/checkpoint"
        cairn.run(["strip", run, f"{self.directory}/release", "--dtype", "bf16", "--format", "safetensors"], capture=True)
        self.assertIn("model.safetensors", os.listdir(f"{self.directory}/release"))

    def test_4_experts(self):
        """torchtitan's own expert parallelism."""
        self.run_ranks("experts", 4)
        self.assertEqual(self.steps("experts"), ["step-00000002", "step-00000004"])
        self.run_ranks("experts_again", 4)
        for world, degree in ((2, 2), (8, 4)):
            self.run_ranks("experts_elsewhere", world, arguments=(degree,))
        self.check_release()

    def check_release(self):
        """Under torchtitan's names, with the config.json of its model in transformers."""
        self.run_ranks("experts_release", 1)
        (config := pathlib.Path(self.directory, "config.json")).write_text(json.dumps(CONFIG))
        expected, run = torch.load(f"{self.directory}/release.pt"), f"{self.directory}/experts/checkpoint"
        cairn.run(["strip", run, f"{self.directory}/hf", "--dtype", "fp32", "--config", str(config)], capture=True)
        self.same(load_file(f"{self.directory}/hf/model.safetensors"), expected["release"])
        cairn.run(["convert", run, f"{self.directory}/native", "--config", str(config), "--to", "native", "--ep", "2", "--dp", "2"], capture=True)
        cairn.run(["convert", f"{self.directory}/native", f"{self.directory}/back", "--to", "hf"], capture=True)
        self.same(load_file(f"{self.directory}/back/model.safetensors"), expected["release"])
        with cairn.open(f"{self.directory}/native") as checkpoint:
            moment = checkpoint["layers.1.mlp.experts.gate.weight", "exp_avg"].numpy()
        self.assertTrue(torch.equal(torch.from_numpy(moment), expected["moment"]))

    def same(self, found, expected):
        self.assertEqual(set(found), set(expected))
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(found[name], tensor), name)

    def test_5_the_guide(self):
        self.run_ranks("guide", 2)

    def test_6_qwen(self):
        """With its optimizer. A fused model saves three weights, and the moments of one."""
        for fused, config in QWENS.items():
            with self.subTest(fused=fused):
                self.run_ranks("qwen_saved", 2, arguments=(fused,))
                self.check_roles(f"{self.directory}/qwen-{fused}", fused, config)

    def check_roles(self, run, fused, config):
        (path := pathlib.Path(f"{run}.json")).write_text(json.dumps(config))
        more = ["--ep", "2", "--allow", "*.expert_bias_E"] if fused else ["--tp", "2"]
        convert = ["convert", f"{run}/checkpoint", f"{run}-native", "--config", str(path), "--to", "native"]
        if fused:
            with self.assertRaisesRegex(cairn.CairnError, r"2 tensors have no place .*moe\.expert_bias_E"):
                cairn.run(convert, capture=True)
        cairn.run([*convert, "--dp", "2", *more], capture=True)
        cairn.run(["convert", f"{run}-native", f"{run}-hf", "--to", "hf"], capture=True)
        expected = torch.load(f"{run}.pt")
        self.same(load_file(f"{run}-hf/model.safetensors"), expected["weight"])
        with cairn.open(f"{run}-native") as checkpoint:
            for role, release in expected.items():
                found = {one.name: torch.from_numpy(one.numpy()) for one in checkpoint.values() if one.role == role}
                self.same(found, canonical(release))
        if fused:
            self.check_one_place(f"{run}/checkpoint/step-2", [*convert, *more])

    def check_one_place(self, step, convert):
        """A moment in two tensors, or a weight where only moments are, is refused."""
        name = "layers.1.attention.qkv_linear.wqkv.weight"
        state = {}
        dcp.state_dict_loader._load_state_dict(state, dcp.FileSystemReader(step), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
        moment = {"optimizer": state["optimizer"] | {f"state.{name.replace('wqkv', 'wk')}.exp_avg": torch.zeros(1024, 256)}}
        for more, says in (({name: torch.zeros(4096, 256)}, "1 tensors have no place.*wqkv.weight; "), (moment, "wqkv.*/exp_avg occurs twice")):
            dcp.save(state | more, checkpoint_id=(changed := f"{self.directory}/changed-{len(says)}"), no_dist=True)
            with self.assertRaisesRegex(cairn.CairnError, says):
                cairn.run([convert[0], changed, *convert[2:]], capture=True)


if __name__ == "__main__":
    unittest.main()
