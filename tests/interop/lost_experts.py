"""Trains small mixtures of the real transformers, and writes what savers and converters wrote that lost experts.

Each function writes the files of one bug, as the code that had it did; the issue is in its docstring.
"""

import argparse
import json
import re

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from transformers import AutoModelForCausalLM, DeepseekV3Config, Glm4MoeConfig, MixtralConfig, OlmoeConfig, Qwen2MoeConfig, Qwen3MoeConfig

EXPERTS, RANKS = 8, 2
SIZES = {"vocab_size": 61, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3,
         "max_position_embeddings": 64, "num_experts_per_tok": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
DENSE = SIZES | {"intermediate_size": 64, "moe_intermediate_size": 48}
GROUPS = DENSE | {"n_routed_experts": EXPERTS, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
FAMILIES = {
    "mixtral": MixtralConfig(**SIZES, intermediate_size=48, num_local_experts=EXPERTS),
    "qwen3_moe": Qwen3MoeConfig(**DENSE, num_experts=EXPERTS, head_dim=8, norm_topk_prob=True),
    "deepseek_v3": DeepseekV3Config(**GROUPS | {"num_key_value_heads": 4}, kv_lora_rank=16, q_lora_rank=24, qk_nope_head_dim=8,
                                    qk_rope_head_dim=4, v_head_dim=8),
    "qwen2_moe": Qwen2MoeConfig(**DENSE, num_experts=EXPERTS, shared_expert_intermediate_size=48),
    "olmoe": OlmoeConfig(**SIZES, intermediate_size=48, num_experts=EXPERTS),
    "glm4_moe": Glm4MoeConfig(**GROUPS, head_dim=8),
}


def made(family, seed):
    """As transformers initializes it."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(FAMILIES[family])


def trained(family, seed, steps, lr=1e-2):
    model = made(family, seed).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        tokens = torch.randint(61, (4, 33), generator=generator)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def write_release(directory, weights, config):
    directory.mkdir()
    save_file({name: tensor.clone() for name, tensor in weights.items()}, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))


def expert_of(name):
    match = re.search(r"\.experts\.(\d+)\.", name)
    return int(match[1]) if match else None


def verl_2086(weights):
    """verl#2086: only ranks with data parallel rank 0 save, and of each two expert parallel ranks one has another."""
    return {name: tensor for name, tensor in weights.items() if (expert_of(name) or 0) < EXPERTS // RANKS}


def megablocks_160(weights):
    """databricks/megablocks#160: the experts of both ranks are those of the first one."""
    return {name: weights[re.sub(r"\.experts\.(\d+)\.", lambda match: f".experts.{int(match[1]) % (EXPERTS // RANKS)}.", name)]
            for name in weights}


def bridge_4706(weights, initial):
    """Megatron-Bridge#4706: fused experts have no place in a model of sequential ones, which keeps what its constructor made."""
    return {name: initial[name] if expert_of(name) is not None else tensor for name, tensor in weights.items()}


def bridge_3740(weights, config, initial):
    """Megatron-Bridge#3740: packed experts of multi-token prediction are looked up one by one, not found, and stay random. The model type
    is one without a table."""
    mtp = {name.replace("model.layers.0.", "mtp.layers.0."): tensor for name, tensor in weights.items() if ".layers.0." in name}
    random = {name: initial[name.replace("mtp.layers.0.", "model.layers.0.")] for name in mtp if expert_of(name) is not None}
    return weights | mtp | random, config | {"model_type": "qwen3_5_moe", "mtp_num_hidden_layers": 1}


def megatron_4200(directory):
    """Megatron-LM#4200: a rank saves if it is the first of its expert data parallel group. With TP > EP * ETP no rank of the second half
    of the tensor parallel ranks is."""
    args = argparse.Namespace(
        num_layers=1, hidden_size=16, num_attention_heads=4, ffn_hidden_size=24, padded_vocab_size=64, max_position_embeddings=16,
        swiglu=True, normalization="RMSNorm", add_bias_linear=False, position_embedding_type="rope", num_experts=EXPERTS,
        moe_router_topk=2, moe_ffn_hidden_size=24, untie_embeddings_and_output_weights=True, tensor_model_parallel_size=2,
        pipeline_model_parallel_size=1, expert_model_parallel_size=1, expert_tensor_parallel_size=1, bf16=True)
    model = {"embedding.word_embeddings.weight": torch.randn(32, 16), "decoder.layers.0.mlp.router.weight": torch.randn(EXPERTS, 16)}
    for expert in range(EXPERTS):
        experts = f"decoder.layers.0.mlp.experts.local_experts.{expert}"
        model |= {f"{experts}.linear_fc1.weight": torch.randn(48, 16), f"{experts}.linear_fc2.weight": torch.randn(16, 24)}
    rank = directory / "iter_0000003" / "mp_rank_00"
    rank.mkdir(parents=True)
    (directory / "latest_checkpointed_iteration.txt").write_text("3")
    torch.save({"args": args, "checkpoint_version": 3.0, "iteration": 3, "model": model}, rank / "model_optim_rng.pt")


def kempnerforge_names(weights):
    """The names of KempnerForge's modules."""
    return {name.removeprefix("model.").replace(".mlp.gate.", ".mlp.router.gate."): tensor for name, tensor in weights.items()}


def kempnerforge_202(weights, rank):
    """KempnerForge#202: each rank numbers its experts from 0, so all ranks write the same names."""
    own = range(rank * EXPERTS // RANKS, (rank + 1) * EXPERTS // RANKS)
    local = {name: tensor for name, tensor in weights.items() if expert_of(name) is None or expert_of(name) in own}
    return {re.sub(r"\.experts\.(\d+)\.", lambda match: f".experts.{int(match[1]) - own[0]}.", name): tensor
            for name, tensor in local.items()}


def unirl_158(state, rank):
    """UniRL#158: the experts of a rank are a DTensor of the mesh that shards them, which knows nothing of expert parallelism."""
    mesh = init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("ep", "ep_fsdp"))["ep_fsdp"]
    return {name: DTensor.from_local(tensor.chunk(RANKS)[rank].contiguous(), mesh, [Shard(0)]) if ".experts." in name else tensor
            for name, tensor in state.items()}


def save_of_rank(rank, directory, weights, state):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{directory}/store", rank=rank, world_size=RANKS)
    dcp.save({"model": kempnerforge_202(kempnerforge_names(weights), rank)}, checkpoint_id=f"{directory}/kempnerforge")
    dcp.save({"model": unirl_158(state, rank)}, checkpoint_id=f"{directory}/unirl")
    dist.barrier()
    dist.destroy_process_group()


def save_on_ranks(directory, weights, state):
    mp.start_processes(save_of_rank, (str(directory), weights, state), nprocs=RANKS, start_method="fork")
