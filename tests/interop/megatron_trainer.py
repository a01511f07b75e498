"""Megatron-Core's optimizers, started on the CPU, that save their state in checkpoints or take it from one.

    megatron_trainer.py DIR JSON

JSON: {NAME: {"world": 2, "tp": 2, "pp": 1, "zero": 1, "load": DIRECTORY, ...}}; zero 1 is the distributed optimizer. Without
"load" a state of random values is saved as Megatron-LM's training does, as torch_dist in DIR/NAME/iter_0000003 and in its older
form in DIR/NAME-legacy. "batches": FILE has token lists of each iteration, "schedule" the facts of the learning rate: the state is
then that of "done" iterations, or after them the one that is loaded, and DIR/NAME-losses.json has the losses of the others.
Otherwise with "load" every key of the checkpoint but those "beside", and no
other, is loaded into model and optimizer ("legacy": of the older form). DIR/NAME.ROLE-known-RANK.pt is what the rank then has,
and DIR/NAME.ROLE+-known-RANK.pt what it has some updates later.
"""

import contextlib
import json
import os

import megatron_writer as writer
import torch
from megatron.core import dist_checkpointing, optimizer, parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import distrib_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.tensor_parallel import random

STATES = {"master": "param", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
STEPS = 3
SCALER = {"scale": torch.tensor([512.0]), "growth_tracker": 5, "hysteresis_tracker": 2}
random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()  # dropout is off


class OnCpu(torch.overrides.TorchFunctionMode):
    """There is no GPU; Megatron's optimizers ask for one by name."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "cpu"
        result = function(*args, **kwargs)
        of_cpu = function is torch.Tensor.type and len(args) == 1 and "cuda" not in result  # it may be entered more than once
        return result.replace("torch.", "torch.cuda.") if of_cpu else result


class FusedAdam(torch.optim.Optimizer):
    """Stands for Apex's and Transformer Engine's, which count their steps in the parameter group."""

    def __init__(self, params, lr, betas, eps, weight_decay, adam_w_mode=True, bias_correction=True, capturable=False):
        assert adam_w_mode
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, bias_correction=bias_correction))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            first, second = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                assert set(state) <= {"exp_avg", "exp_avg_sq"}, set(state)
                for kind in ("exp_avg", "exp_avg_sq"):
                    state.setdefault(kind, torch.zeros_like(p))
                state["exp_avg"].lerp_(p.grad, 1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                scale = (1 - first ** group["step"]) / (1 - second ** group["step"]) ** 0.5
                p.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt().mul_(scale).add_(group["eps"]), value=-group["lr"])


def start(rank, spec, port):
    if not spec.get("torch_adam"):
        optimizer.Adam, optimizer.USING_PYTORCH_OPTIMIZER = FusedAdam, False
        distrib_optimizer.Adam = FusedAdam
        distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_APEX_OPTIMIZER = True
    model = writer.build(rank, spec, port)
    OnCpu().__enter__()
    distributed, dtype = spec["zero"] == 1, model.config.params_dtype
    buffers = DistributedDataParallelConfig(use_distributed_optimizer=distributed, grad_reduce_in_fp32=True)
    ddp = DistributedDataParallel(model.config, buffers, model)
    config = optimizer.OptimizerConfig(
        optimizer="adam", lr=spec.get("lr", 0.5), min_lr=spec.get("lr", 0.5) / 10, params_dtype=dtype,
        bf16=dtype is torch.bfloat16, fp16=dtype is torch.float16, use_distributed_optimizer=distributed,
        weight_decay=0.1, adam_beta2=0.95, clip_grad=spec.get("clip", 0.0))
    chain = optimizer.get_megatron_optimizer(config, [ddp])
    assert len(chain.chained_optimizers) == 1
    return ddp, chain.chained_optimizers[0]


def states_of(model, chosen):
    """{name: {role: the state's tensor}}, for a distributed optimizer assembled from all its ranks."""
    if isinstance(chosen, distrib_optimizer.DistributedOptimizer):
        return gathered(model, chosen)
    found = {}
    for name, p in model.named_parameters():
        main = getattr(p, "main_param", p)
        found[name] = {kind: chosen.optimizer.state[main][kind] for kind in ("exp_avg", "exp_avg_sq")}
        if main is not p:
            found[name]["master"] = main
    return found


def gathered(model, chosen):
    """Megatron's own gathering cuts off the end of a tied embedding on several stages."""
    mine, ranks = {}, [None] * chosen.data_parallel_group.size()
    for name, p in model.named_parameters():
        if p in chosen.model_param_gbuf_map:
            part = chosen._get_model_param_range_map(p)["param"]
            tensors = chosen._get_main_param_and_optimizer_states(p)
            mine[name] = part.start, part.end, {role: tensors[key].detach() for role, key in STATES.items()}
    torch.distributed.all_gather_object(ranks, mine, group=chosen.data_parallel_group)
    found = {}
    for name, p in model.named_parameters():
        parts = sorted((rank[name] for rank in ranks if name in rank), key=lambda part: part[0])
        assert [0] + [end for _, end, _ in parts] == [begin for begin, _, _ in parts] + [p.numel()]
        found[name] = {role: torch.cat([tensors[role] for _, _, tensors in parts]).reshape(p.shape) for role in STATES}
    return found


def fill(model, chosen, spec):
    """Random values, different for every parameter; a 16-bit weight is its rounded master."""
    if scaler := getattr(chosen, "grad_scaler", None):
        scaler.load_state_dict(SCALER)
    for group in chosen.optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.zeros_like(p)
    chosen.optimizer.step()
    distributed = isinstance(chosen, distrib_optimizer.DistributedOptimizer)
    for name, p in model.named_parameters():
        generator = writer.generator_of(name, p, spec)
        master, first, second = (torch.randn(p.shape, generator=generator) for _ in range(3))
        p.data.copy_(master)
        values = {"param": master, "exp_avg": first, "exp_avg_sq": second.square()}
        if distributed:
            if p not in chosen.model_param_gbuf_map:
                continue
            part = chosen._get_model_param_range_map(p)["param"]
            values = {key: value.flatten()[part.start:part.end] for key, value in values.items()}
            chosen._set_main_param_and_optimizer_states(p, values)
            continue
        main = getattr(p, "main_param", p)
        main.data.copy_(master)
        for kind in ("exp_avg", "exp_avg_sq"):
            chosen.optimizer.state[main][kind].copy_(values[kind])
    for group in chosen.optimizer.param_groups:
        group["lr"] = 0.25 if group["wd_mult"] else 0.125
        if "step" in group:
            group["step"] = 7
        for p in group["params"]:
            if "step" in chosen.optimizer.state[p]:
                chosen.optimizer.state[p]["step"].fill_(7)


def metadata_of(spec):
    """Made like Megatron-LM's training makes it."""
    sharding = {"distrib_optim_sharding_type": spec.get("sharding", "fully_reshardable")}
    if "sharding" not in spec:
        sharding["distrib_optim_fully_reshardable_mem_efficient"] = False
    return {"singleton_local_shards": False, "chained_optim_avoid_prefix": True} | (sharding if spec["zero"] else {})


def sharded(model, chosen, metadata, is_loading):
    metadata = metadata | {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    state = model.sharded_state_dict(metadata=metadata)
    return {"model": state, "optimizer": chosen.sharded_state_dict(state, is_loading=is_loading, metadata=metadata)}


def save(rank, model, chosen, spec, out, more=None):
    iteration = spec.get("done", 3)
    directory = os.path.join(out, f"iter_{iteration:07}")
    if rank == 0:
        os.makedirs(directory)
        with open(os.path.join(out, "latest_checkpointed_iteration.txt"), "w") as file:
            file.write(str(iteration))
    torch.distributed.barrier()
    common = {"args": writer.arguments(spec), "checkpoint_version": 3.0, "iteration": iteration} | (more or {})
    dist_checkpointing.save(sharded(model, chosen, metadata_of(spec), False) | common, directory, ("torch_dist", 1),
                            content_metadata=metadata_of(spec))
    legacy = os.path.join(out + "-legacy", f"iter_{iteration:07}", f"mp_rank_{writer.rank_name(spec['pp'])}")
    if parallel_state.get_data_parallel_rank() == 0:
        os.makedirs(legacy)
        torch.save(common | {"model": model.state_dict_for_save_checkpoint(), "optimizer": chosen.state_dict()},
                   os.path.join(legacy, "model_optim_rng.pt"))
    if spec["zero"]:
        chosen.save_parameter_state(os.path.join(legacy, "distrib_optim.pt"))


def load_legacy(model, chosen, spec):
    directory = os.path.join(spec["load"], f"mp_rank_{writer.rank_name(spec['pp'])}")
    state = torch.load(os.path.join(directory, "model_optim_rng.pt"), weights_only=False)
    assert state["args"].use_distributed_optimizer == (spec["zero"] == 1)
    model.load_state_dict(state["model"], strict=True)
    if spec["zero"]:  # which torch_dist does by itself
        chosen._init_optimizer_states_with_dummy_values()
    chosen.load_state_dict(state["optimizer"])
    if spec["zero"]:
        chosen.load_parameter_state(os.path.join(directory, "distrib_optim.pt"))


def load(model, chosen, spec):
    common = dist_checkpointing.load_common_state_dict(spec["load"])
    metadata = dist_checkpointing.load_content_metadata(preloaded_state_dict=common)
    assert metadata == metadata_of(spec), metadata
    args = common["args"]
    assert args.no_save_rng and not args.no_save_optim and args.padded_vocab_size % 8 == 0
    assert args.use_distributed_optimizer == (spec["zero"] == 1)
    state, missing, unexpected = dist_checkpointing.load(sharded(model, chosen, metadata, True), spec["load"],
                                                         strict="return_all")
    assert not unexpected and missing == set(spec.get("beside", [])), (missing, unexpected)
    assert state["iteration"] == spec["iteration"] and state["checkpoint_version"] == 3.0
    model.load_state_dict(state["model"], strict=True)
    chosen.load_state_dict(state["optimizer"])
    return state


def check_steps(chosen, spec):
    if scaler := getattr(chosen, "grad_scaler", None):
        assert scaler.state_dict() == SCALER, scaler.state_dict()
    for group in chosen.optimizer.param_groups:
        assert group["step"] == spec["steps"], group["step"]
        for p in group["params"]:
            assert chosen.optimizer.state[p].get("step", spec["steps"]) == spec["steps"]


def keep(model, chosen, suffix, rank, out):
    placed = {name: getattr(p, "partition_dim", -1) if getattr(p, "tensor_model_parallel", False) else -1
              for name, p in model.named_parameters()}
    values = states_of(model, chosen)
    for name, p in model.named_parameters():
        values[name]["weight"] = p.detach()
    for role in values[name]:
        stage, layers = parallel_state.get_pipeline_model_parallel_rank(), len(model.decoder.layers)
        torch.save({"tp": parallel_state.get_tensor_model_parallel_rank(), "first_layer": stage * layers,
                    "parameters": {name: (values[name][role].clone(), placed[name]) for name in placed}},
                   f"{out}.{role}{suffix}-known-{rank}.pt")


class Training:
    """Iterations on given tokens, as Megatron-LM's train_step() does them, with its schedule."""

    def __init__(self, ddp, chosen, spec):
        with open(spec["batches"]) as file:
            self.batches = torch.tensor(json.load(file))  # [iterations, samples, positions + 1]
        self.ddp, self.chosen, self.done = ddp, chosen, 0
        self.schedule = OptimizerParamScheduler(
            chosen, init_lr=0.0, use_checkpoint_opt_param_scheduler=False, **spec["schedule"])

    def iteration(self):
        """Returns its mean loss."""
        data = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
        samples = self.batches[self.done].chunk(data[0])[data[1]]
        self.ddp.zero_grad_buffer()
        self.chosen.zero_grad()
        positions = torch.arange(samples.shape[1] - 1)
        mask = (positions[:, None] < positions)[None, None]
        loss = self.ddp(samples[:, :-1], positions[None], mask, labels=samples[:, 1:]).mean()
        loss.backward()
        finalize_model_grads([self.ddp])
        updated, _, _ = self.chosen.step()
        assert updated
        self.schedule.step(increment=self.batches.shape[1])
        self.done += 1
        total = loss.detach()
        torch.distributed.all_reduce(total, group=parallel_state.get_data_parallel_group())
        return total.item() / data[0]

    def resume(self, state, done):
        """Megatron's scheduler refuses values other than its own."""
        self.schedule.load_state_dict(state["opt_param_scheduler"])
        self.done = done

    def facts(self):
        return {"opt_param_scheduler": self.schedule.state_dict()}


def train(rank, ddp, chosen, spec, out):
    training = Training(ddp, chosen, spec)
    if "load" in spec:
        training.resume(load(ddp.module, chosen, spec), spec["done"])
        check_steps(chosen, spec)
    else:
        for _ in range(spec["done"]):
            training.iteration()
        spec["consumed"] = spec["done"] * training.batches.shape[1]
        save(rank, ddp.module, chosen, spec, out, training.facts())
    losses = [training.iteration() for _ in range(len(training.batches) - spec["done"])]
    with open(f"{out}-losses.json", "w") as file:
        json.dump(losses, file)


def work(rank, spec, out, port):
    ddp, chosen = start(rank, spec, port)
    model = ddp.module
    if "batches" in spec:
        train(rank, ddp, chosen, spec, out)
        torch.distributed.barrier()
        return
    if "load" in spec:
        (load_legacy if spec.get("legacy") else load)(model, chosen, spec)
        check_steps(chosen, spec)
    else:
        fill(model, chosen, spec)
        save(rank, model, chosen, spec, out)
    keep(model, chosen, "", rank, out)
    for _ in range(STEPS):
        for group in chosen.optimizer.param_groups:
            for p in group["params"]:
                p.grad = p.detach() * 0.0625
        chosen.optimizer.step()
    keep(model, chosen, "+", rank, out)
    torch.distributed.barrier()


if __name__ == "__main__":
    writer.main(work)
