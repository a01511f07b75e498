"""Megatron Bridge's own `pretrain` on a machine without a GPU, for bridge_cases.py. Only the parts that cannot work there are replaced:

- transformer_engine, which Bridge imports unasked: only names, for modules of Bridge; Megatron-Core goes without. Apex's and its Adam:
  FusedAdam of tests/interop.
- CUDA: tensors are on the CPU, streams and events do nothing, the generator of a GPU is that of the CPU and is not set. Groups are gloo's.
- typing.override, before Python 3.12. The warm-up of fused functions is left out.
"""

import builtins
import collections
import contextlib
import os
import pathlib
import types
import typing

import torch

if not hasattr(typing, "override"):
    typing.override = lambda method: method
_import = builtins.__import__


class Names(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (torch.nn.Module,), {}) if name[0].isupper() else Names(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


def imported(name, globals=None, locals=None, fromlist=(), level=0):
    if level or name.partition(".")[0] != "transformer_engine":
        return _import(name, globals, locals, fromlist, level)
    if not (globals or {}).get("__name__", "").startswith("megatron.bridge"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    found = TRANSFORMER_ENGINE
    for part in name.split(".")[1:] if fromlist else ():
        found = getattr(found, part)
    return found


TRANSFORMER_ENGINE = Names("transformer_engine")
builtins.__import__ = imported


class Nothing:
    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        return lambda *_, **__: None


def without_gpu():
    cuda = torch.cuda
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_, **__: self
    cuda.current_device = lambda: "cpu"
    cuda.device_count = lambda: 1  # so that Megatron's own processes divide by it; ranks have none
    cuda.get_device_name, cuda.get_device_capability = lambda *_: "none", lambda *_: (0, 0)  # which some modules ask for when they are imported
    cuda.set_device = cuda.synchronize = cuda.set_rng_state = lambda *_, **__: None
    cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.Stream = cuda.Event = Nothing
    cuda.current_stream = lambda *_, **__: Nothing()
    cuda.stream = lambda *_, **__: contextlib.nullcontext()
    cuda.memory_stats = lambda *_, **__: collections.defaultdict(int)


without_gpu()

import megatron_cases  # noqa: E402, F401 - it sets some of the same
import megatron_trainer  # noqa: E402
import ranks  # noqa: E402
from megatron.bridge.models.gpt_provider import GPTModelProvider  # noqa: E402
from megatron.bridge.training import config, gpt_step, setup  # noqa: E402
from megatron.bridge.training import initialize as bridge_initialize  # noqa: E402
from megatron.bridge.training import pretrain as pretrain_module  # noqa: E402
from megatron.bridge.training import train as loop  # noqa: E402
from megatron.bridge.training.config import CheckpointConfig  # noqa: E402
from megatron.core import optimizer, tensor_parallel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import distrib_optimizer  # noqa: E402

without_gpu()
megatron_trainer.OnCpu().__enter__()  # here, so that it holds in the processes, too, that Megatron starts beside a rank
TRACKER = "latest_checkpointed_iteration.txt"
ITERATIONS, POSITIONS = 6, 16
EXPERTS = int(os.environ.get("BRIDGE_EXPERTS", 0)) or None


def model():
    unfused = "bias_activation_fusion masked_softmax_fusion persist_layer_norm bias_dropout_fusion apply_rope_fusion".split()
    unfused += ["gradient_accumulation_fusion", "cross_entropy_loss_fusion", "add_bias_linear"]
    return GPTModelProvider(
        num_layers=2,
        hidden_size=32,
        ffn_hidden_size=64,
        num_attention_heads=4,
        seq_length=POSITIONS,
        vocab_size=64,
        position_embedding_type="rope",
        attention_dropout=0.0,
        hidden_dropout=0.0,
        transformer_layer_spec=get_gpt_layer_local_spec(num_experts=EXPERTS, normalization="LayerNorm"),
        num_moe_experts=EXPERTS,
        expert_model_parallel_size=2 if EXPERTS else 1,
        moe_token_dispatcher_type="allgather",
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        **dict.fromkeys(unfused, False),
    )


def container(until, first, checkpoint):
    """Bridge's configuration. Bridge checks exit_interval only after an iteration, and saves the last iteration even between two intervals."""
    last = until if first == until else ITERATIONS
    parts = {
        "model": model(),
        "train": config.TrainingConfig(train_iters=last, global_batch_size=4, micro_batch_size=1, exit_interval=until if until < last else None),
        "optimizer": config.OptimizerConfig(
            optimizer="adam", bf16=True, adam_beta2=0.95, use_distributed_optimizer=True, clip_grad=1.0, lr=1e-2, min_lr=1e-4, weight_decay=0.01
        ),
        "scheduler": config.SchedulerConfig(
            lr_warmup_iters=1, lr_decay_iters=20, start_weight_decay=0.01, end_weight_decay=0.01, override_opt_param_scheduler=True
        ),
        "ddp": config.DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False, use_distributed_optimizer=True),
        "dataset": config.MockGPTDatasetConfig(
            random_seed=1,
            reset_attention_mask=False,
            reset_position_ids=False,
            eod_mask_loss=False,
            seq_length=POSITIONS,
            dataloader_type="single",
            num_workers=0,
            mmap_bin_files=False,
        ),
        "validation": config.ValidationConfig(eval_interval=100, eval_iters=0),
        "logger": config.LoggerConfig(log_interval=1),
        "tokenizer": config.TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=60),
        "checkpoint": CheckpointConfig(save_interval=3 if last == ITERATIONS else last, dist_ckpt_optim_fully_reshardable=True, **checkpoint),
        "rng": config.RNGConfig(seed=1234),
        "dist": config.DistributedInitConfig(distributed_backend="gloo", use_gloo_process_groups=True),
    }
    return config.ConfigContainer(**parts)


def replace(kept, first, setup=setup, loop=loop, pretrain_module=pretrain_module):
    """In Bridge's modules, or those given: replaces calls that need a GPU, and keeps the losses, the model and the optimizer."""
    optimizer.Adam, optimizer.USING_PYTORCH_OPTIMIZER = megatron_trainer.FusedAdam, False
    distrib_optimizer.Adam = megatron_trainer.FusedAdam
    distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_APEX_OPTIMIZER = True
    initialize, step, train = setup.initialize_megatron, loop.train_step, pretrain_module.train

    def initialized(*args, **named):
        groups = initialize(*args, **{**named, "allow_no_cuda": True})
        tensor_parallel.get_cuda_rng_tracker().set_states({"model-parallel-rng": torch.get_rng_state()})
        return groups

    def stepped(*args, **named):
        result = step(*args, **named)
        kept["losses"][first + len(kept["losses"]) + 1] = [float(x).hex() for loss in result[0].values() for x in torch.as_tensor(loss).flatten()]
        return result

    def trained(forward_step, model, optimizer, *args, **named):
        kept.update(model=model, optimizer=optimizer)
        return train(forward_step, model, optimizer, *args, **named)

    bridge_initialize.compile_helpers = lambda: None  # the wheel has them built, and no Makefile
    setup.initialize_megatron, setup.set_jit_fusion_options = initialized, lambda *_, **__: None
    loop.train_step, pretrain_module.train = stepped, trained


def tensors(kept):
    found = {f"{n}.{name}": p.detach().clone() for n, part in enumerate(kept["model"]) for name, p in part.named_parameters()}
    for n, one in enumerate(getattr(kept["optimizer"], "chained_optimizers", [kept["optimizer"]])):
        for p, state in one.optimizer.state.items():
            found.update({f"{n}.{len(found)}.{role}": torch.as_tensor(value).clone() for role, value in {"master": p, **state}.items()})
    return found


def train(rank, world, run, until=ITERATIONS, cairn=True, first=None, job="", **checkpoint):
    """Iterations up to `until`, with a save after each third, from the newest one of the directory `run`, which is made. Returns a rank's state.

    first: where it continues, if not from there. job: another one for each.
    """
    torch.set_num_threads(1)
    torch.cuda.device_count = lambda: 0
    tracker = pathlib.Path(run, TRACKER)
    found = int(tracker.read_text()) if tracker.exists() else 0
    port = ranks.free_port(rank, f"{run}-port-{found}-{until}-{checkpoint.get('async_save')}-{job}")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if cairn:
        checkpoint["custom_manager_class"] = "cairn.bridge.CairnCheckpointManager"
    kept = {"losses": {}}
    replace(kept, found if first is None else first)
    try:
        pretrain_module.pretrain(container(until, first, {"save": run, "load": run, **checkpoint}), gpt_step.forward_step)
    except SystemExit as ended:  # Bridge's exit_interval
        assert not ended.code and until < ITERATIONS, ended.code
    return {"losses": kept["losses"], "tensors": tensors(kept)}
