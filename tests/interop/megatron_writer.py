"""Megatron-Core trainings that leave a torch_dist checkpoint, and next to it the values that their ranks have.

    megatron_writer.py DIR JSON

JSON: {NAME: {"world": 4, "tp": 2, "pp": 2, "model": {...}}}. Writes DIR/NAME/iter_0000003, DIR/NAME-bare and DIR/NAME-known-RANK.pt; with
"load": DIRECTORY of a mp_rank_* checkpoint its models take every weight from there, and only the latter is written.
Ranks are forked, so that the imports are paid for once.
"""

import argparse
import io
import multiprocessing
import os
import pickle

os.environ.update(OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", CUDA_DEVICE_MAX_CONNECTIONS="1")

import numpy  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401 - which each forked rank would import for itself
from forked_ranks import run_jobs  # noqa: E402

if not hasattr(numpy, "product"):  # Megatron-Core before 0.15 asks for it, numpy 2 dropped it
    numpy.product = numpy.prod

from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor  # noqa: E402
from megatron.core.dist_checkpointing.strategies import filesystem_async  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

# Megatron asks CUDA these things whether there is a GPU or not.
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda *_: None
torch.cuda.current_stream = lambda *_: None
torch.Tensor.cuda = lambda tensor, *_, **__: tensor


def build(rank, spec, port):
    """This rank's part of the model, in an initialised world."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(spec["world"]), MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=spec["world"])
    tp, pp = spec["tp"], spec["pp"]
    parallel_state.initialize_model_parallel(tp, pp)
    torch.manual_seed(0 if "batches" in spec else rank)
    swiglu = spec.get("swiglu", False)
    groups = spec.get("groups", 4)
    dtype = getattr(torch, spec.get("dtype", "bfloat16"))
    config = TransformerConfig(
        num_layers=4, hidden_size=16, num_attention_heads=4, num_query_groups=groups, ffn_hidden_size=spec.get("ffn", 24),
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, use_cpu_initialization=True,
        gated_linear_unit=swiglu, add_bias_linear=not swiglu, normalization="RMSNorm" if spec.get("rms") else "LayerNorm",
        bf16=dtype is torch.bfloat16, fp16=dtype is torch.float16, params_dtype=dtype, pipeline_dtype=dtype,
        gradient_accumulation_fusion=False,
        activation_func=torch.nn.functional.silu if swiglu else torch.nn.functional.gelu, hidden_dropout=0.0,
        attention_dropout=0.0, bias_activation_fusion=not swiglu)
    return GPTModel(config, get_gpt_layer_local_spec(normalization=config.normalization), vocab_size=64,
                    max_sequence_length=spec.get("positions", 8), pre_process=parallel_state.is_pipeline_first_stage(),
                    post_process=parallel_state.is_pipeline_last_stage(),
                    share_embeddings_and_output_weights=not spec.get("untied", False),
                    position_embedding_type="rope" if spec.get("rope") else "learned_absolute").to(dtype)


def arguments(spec):
    """The training's arguments, as in the checkpoint."""
    swiglu, groups = spec.get("swiglu", False), spec.get("groups", 4)
    return argparse.Namespace(
        num_layers=4, hidden_size=16, num_attention_heads=4, group_query_attention=groups != 4, num_query_groups=groups,
        ffn_hidden_size=spec.get("ffn", 24), padded_vocab_size=64, vocab_size=spec.get("vocab", 61), make_vocab_size_divisible_by=8,
        max_position_embeddings=spec.get("positions", 8), norm_epsilon=1e-5, swiglu=swiglu,
        normalization="RMSNorm" if spec.get("rms") else "LayerNorm", add_bias_linear=not swiglu,
        position_embedding_type="rope" if spec.get("rope") else "learned_absolute", rotary_base=10000,
        untie_embeddings_and_output_weights=spec.get("untied", False), tensor_model_parallel_size=spec["tp"],
        pipeline_model_parallel_size=spec["pp"], consumed_train_samples=spec.get("consumed", 24), kv_channels=4,
        transformer_impl="local")


def train(rank, spec, out, port):
    model = build(rank, spec, port)
    pp = spec["pp"]
    if "load" in spec:
        file = torch.load(os.path.join(spec["load"], f"mp_rank_{rank_name(pp)}", "model_optim_rng.pt"), weights_only=False)
        assert file["checkpoint_version"] == 3.0 and file["args"].padded_vocab_size == 64
        model.load_state_dict(file["model"], strict=True)
        if "optimizer" in file:
            check_order(model, file["optimizer"])
        save_known(model, out, rank, pp)
        torch.distributed.barrier()
        return
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape, generator=generator_of(name, p, spec)))
    state = model.sharded_state_dict(prefix="")
    common = {"args": arguments(spec), "checkpoint_version": 3.0, "iteration": 3,
              "num_floating_point_operations_so_far": 5.0}
    directory = os.path.join(out, "iter_0000003")
    if rank == 0:
        os.makedirs(directory)
    torch.distributed.barrier()
    legacy = os.path.join(out + "-legacy", "iter_0000003", f"mp_rank_{rank_name(pp)}")
    os.makedirs(legacy)
    of_rank = model.state_dict_for_save_checkpoint()
    if spec.get("fp8"):
        fill_extra_states(state, of_rank)
    dist_checkpointing.save(state | common, directory, ("torch_dist", 1))
    save_bare(model, common, out + "-bare", rank)
    torch.save(common | {"model": of_rank}, os.path.join(legacy, "model_optim_rng.pt"))
    if rank == 0:
        for name in (out, out + "-legacy"):
            with open(os.path.join(name, "latest_checkpointed_iteration.txt"), "w") as file:
                file.write("3")
    save_known(model, out, rank, pp)
    torch.distributed.barrier()


def save_bare(model, common, out, rank):
    """Without args, as trainers of reinforcement learning do; each half of SwiGLU a tensor of its own, and an adapter."""
    directory = os.path.join(out, "iter_0000003")
    if rank == 0:
        os.makedirs(directory)
        with open(os.path.join(out, "latest_checkpointed_iteration.txt"), "w") as file:
            file.write("3")
    torch.distributed.barrier()
    metadata = {"singleton_local_shards": True}
    adapter = ShardedTensor.from_rank_offsets("decoder.layers.0.mlp.linear_fc1.adapter.linear_in.weight", torch.ones(8, 16),
                                              replica_id=(0, 0, rank))
    dist_checkpointing.save(
        model.sharded_state_dict(prefix="", metadata=metadata) | {"adapter": adapter} |
        {key: value for key, value in common.items() if key != "args"}, directory, ("torch_dist", 1), content_metadata=metadata)


def fill_extra_states(state, of_rank):
    """As Transformer Engine fills them with FP8: bytes of a pickle in a tensor, or in a BytesIO."""
    scales = pickle.dumps({"scale_fwd": [1.5, 2.0], "amax_history_fwd": [0.25]})
    for value in state.values():
        if isinstance(value, ShardedObject) and value.key.endswith("_extra_state"):
            value.data = torch.tensor(bytearray(scales)) if "mlp" in value.key else io.BytesIO(scales)
    of_rank["decoder.layers.0.mlp.linear_fc1._extra_state"] = torch.tensor(bytearray(scales))
    of_rank["decoder.layers.0.self_attention.linear_qkv._extra_state"] = io.BytesIO(scales)


def generator_of(name, p, spec):
    """An optimizer with different values for every parameter, the same on replicas."""
    shared = not getattr(p, "tensor_model_parallel", False)
    tensor = 0 if shared else 1000 * parallel_state.get_tensor_model_parallel_rank()
    seed = hash_of(name) + (7 * parallel_state.get_pipeline_model_parallel_rank() if "layers" in name else 0)
    if "embeddings" in name or "output_layer" in name and not spec.get("untied"):
        seed = 5
    return torch.Generator().manual_seed(seed + tensor)


def check_order(model, optimizer):
    """Masters and moments belong to the model's own parameters, those with weight decay first, as its optimizer counts."""
    groups = [[p for p in model.parameters() if (p.dim() > 1) == decay] for decay in (True, False)]
    state, running = optimizer["optimizer"]["state"], 0
    assert len(optimizer["fp32_from_fp16_params"]) == len(optimizer["optimizer"]["param_groups"]) == 2
    for group, masters, facts in zip(groups, optimizer["fp32_from_fp16_params"], optimizer["optimizer"]["param_groups"]):
        assert facts["params"] == list(range(running, running + len(group))) and len(masters) == len(group)
        for p, master in zip(group, masters):
            assert torch.equal(master.bfloat16(), p.data), "a master is of another parameter"
            assert all(state[running][kind].shape == p.shape for kind in ("exp_avg", "exp_avg_sq"))
            running += 1
    torch.optim.AdamW([{"params": [p.data.float() for p in group]} for group in groups]).load_state_dict(optimizer["optimizer"])


def save_known(model, out, rank, pp):
    stage = parallel_state.get_pipeline_model_parallel_rank()
    torch.save({"tp": parallel_state.get_tensor_model_parallel_rank(), "first_layer": stage * (4 // pp),
                "parameters": {name: (p.detach().clone(), getattr(p, "partition_dim", -1)
                                      if getattr(p, "tensor_model_parallel", False) else -1)
                               for name, p in model.named_parameters()}}, f"{out}-known-{rank}.pt")


def hash_of(name):
    return sum(ord(c) * 31 ** i for i, c in enumerate(name)) % 2 ** 30


def rank_name(pp):
    tensor = f"{parallel_state.get_tensor_model_parallel_rank():02d}"
    return tensor if pp == 1 else f"{tensor}_{parallel_state.get_pipeline_model_parallel_rank():03d}"


def fork_results_queue():
    """Megatron would spawn a process for this queue, which imports all of the above once more for each rank."""
    filesystem_async._results_queue = multiprocessing.get_context("fork").Manager().Queue()


def main(job):
    run_jobs(job, fork_results_queue)


if __name__ == "__main__":
    main(train)
