"""Mixtures of experts of DeepSpeed-MoE, trained on the CPU.

    deepspeed_mixtures.py DIR JSON

JSON: {NAME: {"world": 4, "ep": [2, 2], "config": {...deepspeed...}}}; `ep`: of the two mixtures, which have 4 experts each, with a dense
layer between them. Writes DIR/NAME (save_checkpoint) and DIR/NAME-known.pt, {role: {name: tensor}} of all ranks, as the optimizer
holds them: names have the experts' numbers over all ranks.
"""

import os
import re

os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1")

import deepspeed  # noqa: E402
import deepspeed.module_inject.auto_ep_layer  # noqa: E402, F401 - here what each forked rank would import for itself
import deepspeed.runtime.zero.muon.original_muon  # noqa: E402, F401 - and with it torch's compiler
import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401
import torch.utils.cpp_extension  # noqa: E402, F401
from deepspeed.moe.layer import MoE  # noqa: E402
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer  # noqa: E402
from deepspeed.utils import groups, safe_get_full_fp32_param, safe_get_full_optimizer_state  # noqa: E402
from forked_ranks import run_jobs  # noqa: E402

HIDDEN, WIDTH, TOKENS, EXPERTS = 8, 12, 17, 4
MOMENTS = ("exp_avg", "exp_avg_sq")


class Expert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(HIDDEN, WIDTH), torch.nn.Linear(WIDTH, HIDDEN)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Layer(torch.nn.Module):
    def __init__(self, ep, residual):
        super().__init__()
        self.norm = torch.nn.LayerNorm(HIDDEN)
        options = {"k": 1, "min_capacity": 0, "capacity_factor": 4.0, "use_rts": False, "use_residual": residual}
        self.mlp = MoE(HIDDEN, Expert(), num_experts=EXPERTS, ep_size=ep, **options) if ep else Expert()

    def forward(self, x):
        y = self.mlp(self.norm(x))
        return x + (y[0] if isinstance(y, tuple) else y)


class Model(torch.nn.Module):
    def __init__(self, first, last):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(TOKENS, HIDDEN), torch.nn.Linear(HIDDEN, TOKENS)
        self.layers = torch.nn.ModuleList([Layer(first, False), Layer(0, False), Layer(last, True)])

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), tokens.roll(1, 1).flatten())


def states_of(optimizer):
    """[(parameter, {role: tensor})], with masters if the optimizer has some."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return [(p, {role: optimizer.state[p][role] for role in MOMENTS}) for group in optimizer.param_groups for p in group["params"]]
    if hasattr(optimizer, "fp32_groups"):
        pairs = zip(sum(optimizer.fp16_groups, []), sum(optimizer.fp32_groups, []))
        return [(p, {"master": master} | {role: optimizer.optimizer.state[master][role] for role in MOMENTS}) for p, master in pairs]
    if hasattr(optimizer, "bf16_groups"):
        return [(p, {"master": safe_get_full_fp32_param(p)} | {role: safe_get_full_optimizer_state(p, role) for role in MOMENTS})
                for group in optimizer.bf16_groups for p in group]
    return [of for g in range(len(optimizer.bit16_groups)) for of in states_of_group(optimizer, g)]


def states_of_group(optimizer, g):
    """From the shares of all ranks of ZeRO-1 and 2. deepspeed's own functions do so for one group, and not for a round robin."""
    share, process_group = optimizer.single_partition_of_fp32_groups[g], optimizer.real_dp_process_group[g]
    flats = {}
    for role, own in {"master": share, **{role: optimizer.optimizer.state[share][role] for role in MOMENTS}}.items():
        shares = [torch.empty_like(own.data) for _ in range(torch.distributed.get_world_size(process_group))]
        torch.distributed.all_gather(shares, own.data, group=process_group)
        flats[role] = torch.cat(shares)
    found = [(p, {role: flat[begin:begin + p.numel()].view(p.shape) for role, flat in flats.items()})
             for p, begin in zip(optimizer.round_robin_bit16_groups[g], optimizer.round_robin_bit16_offsets[g])]
    for p, states in found:
        assert torch.equal(states["master"].to(p.dtype), p)
    return found


def known_of(model, optimizer):
    names = {id(p): over_all_ranks(name, getattr(p, "group_name", None)) for name, p in model.named_parameters()}
    known = {"weight": {names[id(p)]: p.detach().clone() for p in model.parameters()}}
    for p, states in states_of(optimizer):
        for role, value in states.items():
            known.setdefault(role, {})[names[id(p)]] = value.detach().clone()
    return known


def over_all_ranks(name, group):
    """A parameter's name, with the expert's number over all ranks."""
    if not group:
        return name
    first = groups._get_expert_parallel_rank(group) * EXPERTS // groups._get_expert_parallel_world_size(group)
    return re.sub(r"(deepspeed_experts)\.(\d+)", lambda m: f"{m[1]}.{first + int(m[2])}", name)


def run(rank, spec, out, port):
    config, ranks = spec["config"], spec["world"]
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_PORT=str(port))
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(rank)  # deepspeed copies experts to the ranks that share them
    model = Model(*spec.get("ep", (2, 2)))
    torch.manual_seed(7)
    for name, p in model.named_parameters():
        if "deepspeed_experts" not in name:
            p.data.copy_(torch.randn(p.shape) * 0.3)
    parts = split_params_into_different_moe_groups_for_optimizer([{"params": list(model.parameters()), "name": "all"}])
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(parts, lr=1e-2), config=config)
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + rank)
        engine.backward(engine(torch.randint(TOKENS, (4, 9), generator=generator)))
        engine.step()
    engine.save_checkpoint(out, tag="global_step3")
    found = [None] * ranks
    torch.distributed.all_gather_object(found, known_of(model, engine.optimizer))
    if rank == 0:
        torch.save({role: {name: tensor for known in found for name, tensor in known[role].items()} for role in found[0]},
                   f"{out}-known.pt")
    torch.distributed.barrier()


run_jobs(run)
