"""The programs, started with the flags that `cairn plan` prints, build the stages that it predicts."""

import json

import torch
from harness import Case, cairn
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig

FLAGS = {"--decoder-first-pipeline-num-layers": "num_layers_in_first_pipeline_stage",
         "--decoder-last-pipeline-num-layers": "num_layers_in_last_pipeline_stage",
         "--account-for-embedding-in-pipeline-split": "account_for_embedding_in_pipeline_split",
         "--account-for-loss-in-pipeline-split": "account_for_loss_in_pipeline_split",
         "--pipeline-model-parallel-size": "pipeline_model_parallel_size",
         "--num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size"}


def said(plan):
    """Layers of every stage."""
    return [plan["first_layers"], *[plan["middle_layers"]] * (plan["pp"] - 2), plan["last_layers"]]


class PlannedStagesTest(Case):
    def plans(self, framework, layers, *args):
        model = ["--num-layers", layers, "--hidden-size", 2048, "--num-attention-heads", 16, "--vocab-size", 250000]
        done = cairn("plan", "--cluster", "h100", *model, "--nodes", 8, "--global-batch-size", 512, "--framework", framework,
                     "--top", 3000, "--json", *args)
        found = [plan for plan in json.loads(done.stdout)["plans"] if plan["pp"] > 1]
        return {tuple(said(plan) + [plan["virtual_stages"]]): plan for plan in found}.values()  # one of each cut

    def test_megatron_lm_builds_them(self):
        uneven = 0
        for layers in (24, 46):
            for plan in self.plans("megatron-lm", layers):
                given = {}
                for flag in plan["flags"]:
                    name, _, value = flag.partition(" ")
                    if name in FLAGS:
                        given[FLAGS[name]] = int(value) if value else True
                config = TransformerConfig(num_layers=layers, hidden_size=64, num_attention_heads=16, pipeline_dtype=torch.bfloat16,
                                           **given)
                chunks = range(plan["virtual_stages"]) if plan["virtual_stages"] > 1 else [None]
                built = [sum(get_num_layers_to_build(config, vp_stage=chunk, pp_rank=rank) for chunk in chunks)
                         for rank in range(plan["pp"])]
                self.assertEqual(built, said(plan), plan["flags"])
                uneven += len(set(built)) > 1
        self.assertGreater(uneven, 20)

    def test_deepspeed_builds_them(self):
        from deepspeed.runtime.utils import partition_balanced
        uneven = 0
        for layers in (22, 46):
            for plan in self.plans("megatron-deepspeed", layers, "--virtual-stages", 1):
                method = [flag for flag in plan["flags"] if flag.startswith("--pp-partition-method")]
                # Cast, embedding, transpose, layers, transpose, norm, embedding: what matches the method counts.
                ends = 1 if method else 0
                weights = [0, ends, 0] + [1] * layers + [0, 0, ends]
                parts = partition_balanced(weights, plan["pp"])
                built = [sum(1 for i in range(a, b) if 3 <= i < 3 + layers) for a, b in zip(parts, parts[1:])]
                self.assertEqual(built, said(plan), plan["flags"])
                uneven += bool(method)
        self.assertGreater(uneven, 1)
