"""Trainings of transformers' mixtures under FSDP2 on two ranks, saved with torch.distributed.checkpoint; and what is in them, as one file.

    mixtures_writer.py DIR

Writes DIR/NAME, which has the names of transformers 5 in memory, and DIR/NAME.pt of the same state, for each of TRAINED.
"""

import copy
import sys

import torch
import torch._dynamo  # noqa: F401 - which each forked rank would import for itself
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from test_huggingface import make
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import (
    DeepseekV2Config,
    DeepseekV3Config,
    Glm4MoeConfig,
    GptOssConfig,
    Llama4TextConfig,
    MixtralConfig,
    OlmoeConfig,
    Qwen2MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

EXPERTS, HIDDEN, WIDTH = 12, 24, 28  # torch.nn.functional.grouped_mm takes rows of whole 16 bytes
SIZES = {"vocab_size": 61, "hidden_size": HIDDEN, "num_attention_heads": 6, "num_key_value_heads": 2, "num_hidden_layers": 3,
         "max_position_embeddings": 64, "num_experts_per_tok": 3, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
EVEN = SIZES | {"intermediate_size": WIDTH}
DENSE = SIZES | {"intermediate_size": 54, "moe_intermediate_size": WIDTH}
UNEVEN = DENSE | {"num_experts": EXPERTS}
GROUPS = DENSE | {"n_routed_experts": EXPERTS, "n_shared_experts": 2, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
          "routed_scaling_factor": 1.5}
LATENT = GROUPS | {"num_key_value_heads": 6, "kv_lora_rank": 14, "q_lora_rank": 18, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
                            "v_head_dim": 10}

# Two key heads of gated delta nets, with three value heads each.
DELTA = UNEVEN | {"head_dim": 8, "shared_expert_intermediate_size": 18, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
                  "linear_key_head_dim": 4, "linear_value_head_dim": 5, "linear_conv_kernel_dim": 3}

# Every field that changes the function has a value that is not the default in one of them.
MODELS = {
    "mixtral": MixtralConfig(**EVEN, num_local_experts=EXPERTS, head_dim=10, sliding_window=5),
    "mixtral-tied": MixtralConfig(**EVEN, num_local_experts=EXPERTS, tie_word_embeddings=True),
    "qwen2_moe": Qwen2MoeConfig(**UNEVEN, shared_expert_intermediate_size=18, decoder_sparse_step=2),
    "qwen2_moe-unbiased": Qwen2MoeConfig(**UNEVEN, shared_expert_intermediate_size=18, mlp_only_layers=[1], norm_topk_prob=True, qkv_bias=False),
    "qwen3_moe": Qwen3MoeConfig(**UNEVEN, head_dim=10, mlp_only_layers=[1], norm_topk_prob=True),
    "qwen3_moe-biased": Qwen3MoeConfig(**UNEVEN, decoder_sparse_step=2, attention_bias=True, use_sliding_window=True, sliding_window=5),
    "qwen3_next": Qwen3NextConfig(**DELTA, full_attention_interval=2),
    "qwen3_next-biased": Qwen3NextConfig(**DELTA, layer_types=["full_attention", "linear_attention", "linear_attention"], attention_bias=True,
                                         mlp_only_layers=[1], norm_topk_prob=False),
    "qwen3_5_moe_text": Qwen3_5MoeTextConfig(**DELTA, full_attention_interval=3, tie_word_embeddings=True),
    "olmoe": OlmoeConfig(**EVEN, num_experts=EXPERTS),
    "olmoe-clipped": OlmoeConfig(**EVEN, num_experts=EXPERTS, clip_qkv=0.25, norm_topk_prob=True),
    "glm4_moe": Glm4MoeConfig(**GROUPS, head_dim=8, use_qk_norm=True),
    "glm4_moe-biased": Glm4MoeConfig(**GROUPS | {"n_group": 1, "topk_group": 1}, head_dim=8, attention_bias=True, norm_topk_prob=False),
    "deepseek_v2": DeepseekV2Config(**LATENT, topk_method="group_limited_greedy"),
    "deepseek_v2-lite": DeepseekV2Config(**LATENT | {"q_lora_rank": None}, attention_bias=True),
    "deepseek_v3": DeepseekV3Config(**LATENT),
    "deepseek_v3-biased": DeepseekV3Config(**LATENT | {"q_lora_rank": None}, attention_bias=True, rope_interleave=False, norm_topk_prob=False),
    # In blocks of 32, as MXFP4 has them.
    "gpt_oss": GptOssConfig(**SIZES | {"hidden_size": 64}, intermediate_size=96, num_local_experts=EXPERTS, head_dim=10, sliding_window=5,
                            swiglu_limit=5.0),
    "gpt_oss-unbiased": GptOssConfig(**EVEN, num_local_experts=EXPERTS, head_dim=6, attention_bias=False, tie_word_embeddings=True,
                                     layer_types=["full_attention"] * 3),
    "llama4_text": Llama4TextConfig(**EVEN, num_local_experts=EXPERTS, intermediate_size_mlp=54, head_dim=10, interleave_moe_layer_step=2,
                                    no_rope_layer_interval=2, attention_chunk_size=6),
    "llama4_text-listed": Llama4TextConfig(**EVEN, num_local_experts=EXPERTS, intermediate_size_mlp=54, head_dim=4, moe_layers=[0, 2],
                                           use_qk_norm=False, attention_bias=True, floor_scale=4),
}
TRAINED = ("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "olmoe", "glm4_moe", "deepseek_v2", "deepseek_v3", "gpt_oss")


def make_mixture(config, dtype=torch.float32):
    """With random corrections of the router's choice, too, which are buffers."""
    model = make(copy.deepcopy(config), dtype)  # which gets the dtype
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.randn(buffer.shape) / 4)
    return model


def trained(config, mesh, rank):
    """(model, optimizer) after three steps; vectors do not decay."""
    model = make_mixture(config).train()
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW([{"params": [p for p in model.parameters() if p.dim() > 1]},
                                   {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}], lr=1e-2)
    for step in range(3):
        tokens = torch.randint(61, (2, 17), generator=torch.Generator().manual_seed(2 * step + rank))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def run(rank, world, directory):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{directory}/store", rank=rank, world_size=world)
    for name in TRAINED:
        model, optimizer = trained(MODELS[name], init_device_mesh("cpu", (world,)), rank)
        weights, states = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optim": states}, checkpoint_id=f"{directory}/{name}")
        weights, states = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
        if rank == 0:
            torch.save({"model": weights, "optim": states}, f"{directory}/{name}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(run, (2, sys.argv[1]), nprocs=2, start_method="fork")
