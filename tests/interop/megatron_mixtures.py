"""Megatron-Core trains mixtures of experts on the CPU, saves them as torch_dist, and takes them from one.

    megatron_mixtures.py DIR JSON

JSON: {NAME: {"world": 2, "tp": 1, "pp": 1, "ep": 2, "etp": 1, "batches": FILE, "load": DIRECTORY, ...}}. Without "load" a model
is trained for "done" iterations; with it every key of the checkpoint and no other is loaded. The model is then saved in
DIR/NAME/iter_000000N, unless it was loaded and "save" is false. DIR/NAME-losses.json has the losses of the other iterations, and
DIR/NAME-known-RANK.pt each parameter of the rank before these, {role: {name: tensor}}, with where the rank sits. "keys": "te" saves
the names of norms that Transformer Engine's layers have; "stages": [1, 2, 1] are the layers of an uneven pipeline; "prefixes": true
begins the names of two optimizers' states with "chained_0." and "chained_1."; "sharding": "dp_reshardable" saves them in buckets;
"lr": 1e-5 leaves all norms at 1 in bf16, so that only their order tells them apart; "legacy": true saves DIR/NAME-legacy, too;
"lost": true saves weights as Megatron-LM#1836 did.
"""

import argparse
import contextlib
import json
import os

import megatron_trainer as trainer
import megatron_writer as writer
import torch
from latent_attention import LatentAttention
from megatron.core import dist_checkpointing, optimizer, parallel_state
from megatron.core.dist_checkpointing import mapping
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
from megatron.core.optimizer import distrib_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import MLATransformerConfig, TransformerConfig, multi_latent_attention, torch_norm
from megatron.core.transformer.moe import moe_utils

moe_utils.te_general_gemm = None
multi_latent_attention.HAVE_TE = False


def norm_of_sequences(config, hidden_size, eps):
    """Megatron's own asserts that sequences are not parallel, which a mixture asks for if TP > 1."""
    norm = torch.nn.RMSNorm(hidden_size, eps)
    norm.weight.sequence_parallel = config.sequence_parallel
    return norm


torch_norm.WrappedTorchNorm.__new__ = lambda cls, config, hidden_size, eps=1e-5, **_: norm_of_sequences(config, hidden_size, eps)


SIZES = dict(num_layers=4, hidden_size=32, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=56, kv_channels=8)
# What Megatron-LM passes from its arguments to TransformerConfig, under other names or the same.
OF_MIXTURES = ("moe_ffn_hidden_size", "moe_router_topk", "moe_router_pre_softmax", "moe_router_score_function",
               "moe_router_topk_scaling_factor", "moe_router_num_groups", "moe_router_group_topk", "moe_router_enable_expert_bias",
               "moe_shared_expert_intermediate_size", "moe_shared_expert_gate", "moe_layer_freq")
LATENT = dict(q_lora_rank=12, kv_lora_rank=8, qk_head_dim=6, qk_pos_emb_head_dim=4, v_head_dim=10, rope_type="rope",
              rotary_scaling_factor=1.0)


def arguments_of(spec):
    """As Megatron-LM's training has them."""
    mixture = dict(num_experts=4, moe_ffn_hidden_size=24, moe_router_topk=2, moe_layer_freq=1, moe_router_pre_softmax=False,
                   moe_router_score_function="softmax", moe_router_topk_scaling_factor=None, moe_router_num_groups=None,
                   moe_router_group_topk=None, moe_router_enable_expert_bias=False, moe_shared_expert_intermediate_size=None,
                   moe_shared_expert_gate=False, moe_router_load_balancing_type="none", moe_grouped_gemm=spec.get("keys") == "te")
    return argparse.Namespace(
        **SIZES, **mixture | spec.get("mixture", {}), **latent_of(spec), multi_latent_attention="latent" in spec,
        mtp_num_layers=spec.get("mtp"),
        group_query_attention="latent" not in spec, padded_vocab_size=64, vocab_size=64,
        make_vocab_size_divisible_by=8, max_position_embeddings=16, norm_epsilon=1e-5, swiglu=True, normalization="RMSNorm",
        add_bias_linear=False, add_qkv_bias=spec.get("qkv_bias", False), qk_layernorm=spec.get("qk_norm", False),
        position_embedding_type="rope", rotary_base=10000, untie_embeddings_and_output_weights=True,
        tensor_model_parallel_size=spec["tp"], pipeline_model_parallel_size=spec["pp"], expert_model_parallel_size=spec["ep"],
        expert_tensor_parallel_size=spec["etp"], bf16=True, transformer_impl="transformer_engine" if spec.get("keys") == "te" else "local",
        use_distributed_optimizer=spec.get("zero", 1) == 1, consumed_train_samples=8 * spec["done"],
        **uneven(spec, "decoder_{}_pipeline_num_layers"),
        data_parallel_size=spec["world"] // spec["tp"] // spec["pp"], context_parallel_size=1)


def latent_of(spec):
    return LATENT | spec["latent"] if "latent" in spec else {}


def uneven(spec, name):
    stages = spec.get("stages", [None])
    return {name.format("first"): stages[0], name.format("last"): stages[-1]}


def build(rank, spec, args, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(spec["world"]), MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=spec["world"])
    parallel_state.initialize_model_parallel(
        args.tensor_model_parallel_size, args.pipeline_model_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size, expert_tensor_parallel_size=args.expert_tensor_parallel_size)
    torch.manual_seed(7)
    config = (MLATransformerConfig if "latent" in spec else TransformerConfig)(
        **SIZES, **latent_of(spec), **uneven(spec, "num_layers_in_{}_pipeline_stage"), mtp_num_layers=args.mtp_num_layers,
        num_moe_experts=args.num_experts, **{
            name: getattr(args, name) for name in OF_MIXTURES if name in TransformerConfig.__dataclass_fields__},
        add_qkv_bias=args.add_qkv_bias, qk_layernorm=args.qk_layernorm, moe_router_load_balancing_type="none",
        tensor_model_parallel_size=args.tensor_model_parallel_size, pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size, expert_tensor_parallel_size=args.expert_tensor_parallel_size,
        sequence_parallel=args.tensor_model_parallel_size > 1, moe_token_dispatcher_type="allgather",
        use_cpu_initialization=True, gated_linear_unit=True, add_bias_linear=False, normalization="RMSNorm", bf16=True,
        params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, gradient_accumulation_fusion=False,
        activation_func=torch.nn.functional.silu, hidden_dropout=0.0, attention_dropout=0.0, bias_activation_fusion=False)
    block = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    predictions = get_gpt_mtp_block_spec(config, block, use_transformer_engine=False)
    for layer in block.layer_specs:  # the last one is in the layers of multi-token prediction, too
        if "latent" in spec:
            layer.submodules.self_attention.submodules.core_attention = LatentAttention
        if spec.get("keys") == "te":  # this is what every GPU run writes
            mixture = "MoELayer" in str(layer.submodules.mlp.module)
            attention = {f"self_attention.{x}_layernorm.": f"self_attention.linear_{x}_up_proj.layer_norm_" for x in ("q", "kv")}
            layer.submodules.sharded_state_dict_keys_map = (
                attention if "latent" in spec else {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}) | (
                {} if mixture else {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"})
    return GPTModel(config, block, vocab_size=args.padded_vocab_size, max_sequence_length=16,
                    pre_process=parallel_state.is_pipeline_first_stage(),
                    post_process=parallel_state.is_pipeline_last_stage(), share_embeddings_and_output_weights=False,
                    position_embedding_type="rope", mtp_block_spec=predictions).to(torch.bfloat16)


def optimizer_of(model, spec):
    distributed = spec.get("zero", 1) == 1
    optimizer.Adam, optimizer.USING_PYTORCH_OPTIMIZER = trainer.FusedAdam, False
    distrib_optimizer.Adam = trainer.FusedAdam
    distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_APEX_OPTIMIZER = True
    buffers = DistributedDataParallelConfig(use_distributed_optimizer=distributed, grad_reduce_in_fp32=True)
    ddp = DistributedDataParallel(model.config, buffers, model)
    lr = spec.get("lr", 0.02)
    config = optimizer.OptimizerConfig(
        optimizer="adam", lr=lr, min_lr=lr / 10, params_dtype=torch.bfloat16, bf16=True, use_distributed_optimizer=distributed,
        weight_decay=0.1, adam_beta2=0.95, clip_grad=1.0)
    return ddp, optimizer.get_megatron_optimizer(config, [ddp])


class Training:
    def __init__(self, ddp, chain, batches, lr=0.02):
        self.ddp, self.chain, self.batches, self.done = ddp, chain, batches, 0
        ddp.module.config.finalize_model_grads_func = finalize_model_grads
        self.schedule = OptimizerParamScheduler(
            chain, init_lr=0.0, max_lr=lr, min_lr=lr / 10, lr_warmup_steps=8, lr_decay_steps=400, lr_decay_style="linear",
            start_wd=0.1, end_wd=0.1, wd_incr_steps=400, wd_incr_style="constant", use_checkpoint_opt_param_scheduler=False,
            override_opt_param_scheduler=False)

    def forward(self, batches, model):
        samples = next(batches)
        positions = torch.arange(samples.shape[1] - 1)
        mask = (positions[:, None] < positions)[None, None]
        output = model(samples[:, :-1], positions[None], mask, labels=samples[:, 1:])
        return output, lambda losses: (losses.float().mean(), {"loss": losses.float().mean().detach()})

    def iteration(self):
        data = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
        samples = self.batches[self.done].chunk(data[0])[data[1]]
        self.ddp.zero_grad_buffer()
        self.chain.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=self.forward, data_iterator=iter([samples]), model=self.ddp, num_microbatches=1,
            seq_length=samples.shape[1] - 1, micro_batch_size=len(samples), forward_only=False)
        updated, _, _ = self.chain.step()
        assert updated
        self.schedule.step(increment=self.batches.shape[1])
        self.done += 1
        total = losses[0]["loss"] if losses else torch.zeros(())
        torch.distributed.all_reduce(total)
        return total.item() / (torch.distributed.get_world_size() / parallel_state.get_pipeline_model_parallel_world_size())


def states_of(ddp, chain):
    """{role: {name: (tensor, the dimension that the rank's slice is of)}}"""
    found = {"weight": {name: p.detach().clone() for name, p in ddp.module.named_parameters()}}
    found["weight"] |= {name: b.detach().clone() for name, b in ddp.module.named_buffers() if name.endswith("expert_bias")}
    for chosen in chain.chained_optimizers:
        for name, states in gathered(ddp.module, chosen).items():
            for role, value in states.items():
                found.setdefault(role, {})[name] = value
    return found


def gathered(model, chosen):
    if isinstance(chosen, distrib_optimizer.DistributedOptimizer):
        return trainer.gathered(OnlyOf(model, chosen), chosen)
    mains = {id(p.main_param): (name, p.main_param) for name, p in model.named_parameters()}
    found = {}
    for group in chosen.optimizer.param_groups:
        for p in group["params"]:
            name, main = mains[id(p)]
            found[name] = {"master": main.detach()} | {kind: chosen.optimizer.state[p][kind] for kind in ("exp_avg", "exp_avg_sq")}
    return found


class OnlyOf:
    """The parameters of a model that one of two optimizers has."""

    def __init__(self, model, chosen):
        self.named = [(name, p) for name, p in model.named_parameters() if p in chosen.model_param_group_index_map]

    def named_parameters(self):
        return self.named


def known(ddp, chain, spec, rank, out):
    cut = {name: getattr(p, "partition_dim", -1) if getattr(p, "tensor_model_parallel", False) or not getattr(p, "allreduce", True)
           else -1 for name, p in ddp.module.named_parameters()}
    torch.save({"tp": parallel_state.get_tensor_model_parallel_rank(), "ep": parallel_state.get_expert_model_parallel_rank(),
                "etp": parallel_state.get_expert_tensor_parallel_rank(), "cut": cut,
                "first_layer": ddp.module.decoder.layers[0].layer_number - 1,
                "states": states_of(ddp, chain)}, f"{out}-known-{rank}.pt")


def metadata_of(spec):
    metadata = trainer.metadata_of({"zero": 1} | spec)
    return metadata | {"chained_optim_avoid_prefix": not spec.get("prefixes", False)}


def lose_slices(state):
    """Megatron-LM#1836: the tensor parallel ranks of an expert are taken for replicas, so that the slices of the first one are all that is
    saved, in a tensor of their size."""
    ranks, rank = parallel_state.get_expert_tensor_parallel_world_size(), parallel_state.get_expert_tensor_parallel_rank()
    mapping.apply_factories(state)
    for tensor in nested_values(state):
        if not isinstance(tensor, mapping.ShardedTensor) or ".experts." not in tensor.key:
            continue
        shape, offset, parts = list(tensor.global_shape), list(tensor.global_offset), list(tensor.axis_fragmentations)
        for axis in range(tensor.prepend_axis_num, len(shape)):
            if parts[axis] % ranks == 0:
                own = shape[axis] // parts[axis]
                offset[axis] = offset[axis] // own // ranks * own
                shape[axis], parts[axis] = shape[axis] // ranks, parts[axis] // ranks
        tensor.global_shape, tensor.global_offset, tensor.axis_fragmentations = tuple(shape), tuple(offset), tuple(parts)
        tensor.replica_id = (*tensor.replica_id[:2], tensor.replica_id[2] + rank)


def sharded(model, chain, metadata, is_loading):
    metadata = metadata | {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    state = model.sharded_state_dict(metadata=metadata)
    return {"model": state, "optimizer": chain.sharded_state_dict(state, is_loading=is_loading, metadata=metadata)}


def save(rank, model, training, spec, args, out):
    directory = os.path.join(out, f"iter_{spec['done']:07}")
    if rank == 0:
        os.makedirs(directory)
        with open(os.path.join(out, "latest_checkpointed_iteration.txt"), "w") as file:
            file.write(str(spec["done"]))
    torch.distributed.barrier()
    common = {"args": args, "checkpoint_version": 3.0, "iteration": spec["done"],
              "opt_param_scheduler": training.schedule.state_dict()}
    state = sharded(model, training.chain, metadata_of(spec), False) | common
    if spec.get("lost"):
        lose_slices(state["model"])
        del state["optimizer"]
    dist_checkpointing.save(state, directory, ("torch_dist", 1), content_metadata=metadata_of(spec))
    if spec.get("legacy"):
        save_legacy(model, training, spec, common, f"{out}-legacy/iter_{spec['done']:07}")


def save_legacy(model, training, spec, common, directory):
    """As Megatron-LM's get_checkpoint_name() names the directories, and save_checkpoint() fills them."""
    name = f"mp_rank_{parallel_state.get_tensor_model_parallel_rank():02}"
    for size, rank in (("pp", parallel_state.get_pipeline_model_parallel_rank()), ("ep", parallel_state.get_expert_model_parallel_rank())):
        name += f"_{rank:03}" if spec[size] > 1 else ""
    os.makedirs(os.path.join(directory, name), exist_ok=True)
    if parallel_state.get_expert_data_parallel_rank() == 0:
        torch.save(common | {"model": model.state_dict_for_save_checkpoint(), "optimizer": training.chain.state_dict()},
                   os.path.join(directory, name, "model_optim_rng.pt"))
    if spec.get("zero", 1) == 1:
        training.chain.save_parameter_state(os.path.join(directory, name, "distrib_optim.pt"))


def load(model, training, spec):
    common = dist_checkpointing.load_common_state_dict(spec["load"])
    metadata = dist_checkpointing.load_content_metadata(preloaded_state_dict=common)
    assert metadata == metadata_of({key: value for key, value in spec.items() if key not in ("prefixes", "sharding")}), metadata
    state, missing, unexpected = dist_checkpointing.load(sharded(model, training.chain, metadata, True), spec["load"],
                                                         strict="return_all")
    missing = {key for key in missing if not key.split("/")[0].endswith("._extra_state")}  # of Transformer Engine's modules
    assert not unexpected and not missing, (missing, unexpected)
    model.load_state_dict(state["model"], strict=True)
    training.chain.load_state_dict(state["optimizer"])
    training.schedule.load_state_dict(state["opt_param_scheduler"])
    training.done = spec["done"]


def work(rank, spec, out, port):
    args = arguments_of(spec)
    model = build(rank, spec, args, port)
    trainer.OnCpu().__enter__()
    ddp, chain = optimizer_of(model, spec)
    with open(spec["batches"]) as file:
        training = Training(ddp, chain, torch.tensor(json.load(file)), spec.get("lr", 0.02))
    if "load" in spec:
        load(model, training, spec)
    else:
        for _ in range(spec["done"]):
            training.iteration()
    if "load" not in spec or spec.get("save"):
        save(rank, model, training, spec, args, out)
    known(ddp, chain, spec, rank, out)
    losses = [training.iteration() for _ in range(len(training.batches) - spec["done"])]
    if rank == 0:
        with open(f"{out}-losses.json", "w") as file:
            json.dump(losses, file)
    torch.distributed.barrier()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        writer.main(work)
