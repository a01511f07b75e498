"""Mixtures of experts of DeepSpeed-MoE, trained on four ranks with EP 2.

    deepspeed_mixtures.py DIR JSON

JSON: {NAME: {...deepspeed's config...}}. Writes DIR/NAME (save_checkpoint) and DIR/NAME-known.pt, {role: {name: tensor}} of all
ranks: names have the experts' numbers over all ranks. A dense layer lies between the mixtures, which have 4 and 2 experts.
"""

import json
import os
import re
import socket
import sys

os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1")

import deepspeed  # noqa: E402
import deepspeed.module_inject.auto_ep_layer  # noqa: E402, F401 - here what each forked rank would import for itself
import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401
import torch.utils.cpp_extension  # noqa: E402, F401
from deepspeed.moe.layer import MoE  # noqa: E402
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer  # noqa: E402

WORLD, EP, HIDDEN, WIDTH, TOKENS = 4, 2, 8, 12, 17
EXPERTS = (4, 0, 2)  # of each layer


class Expert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(HIDDEN, WIDTH), torch.nn.Linear(WIDTH, HIDDEN)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Layer(torch.nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.norm = torch.nn.LayerNorm(HIDDEN)
        options = {"k": 1, "min_capacity": 0, "capacity_factor": 4.0, "use_rts": False, "use_residual": experts == 2}
        self.mlp = MoE(HIDDEN, Expert(), num_experts=experts, ep_size=EP, **options) if experts else Expert()

    def forward(self, x):
        y = self.mlp(self.norm(x))
        return x + (y[0] if isinstance(y, tuple) else y)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(TOKENS, HIDDEN), torch.nn.Linear(HIDDEN, TOKENS)
        self.layers = torch.nn.ModuleList(map(Layer, EXPERTS))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), tokens.roll(1, 1).flatten())


def states_of(optimizer):
    """[(parameter, {role: tensor})], with masters of 16-bit weights."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return [(p, {role: optimizer.state[p][role] for role in ("exp_avg", "exp_avg_sq")})
                for group in optimizer.param_groups for p in group["params"]]
    pairs = zip(sum(optimizer.fp16_groups, []), sum(optimizer.fp32_groups, []))
    return [(p, {"master": master} | {role: optimizer.optimizer.state[master][role] for role in ("exp_avg", "exp_avg_sq")})
            for p, master in pairs]


def known_of(model, optimizer, rank):
    names = {id(p): re.sub(r"(deepspeed_experts)\.(\d+)", lambda m: f"{m[1]}.{int(m[2]) + rank % EP * experts_at(m.string) // EP}", name)
             for name, p in model.named_parameters()}
    known = {"weight": {names[id(p)]: p.detach().clone() for p in model.parameters()}}
    for p, states in states_of(optimizer) if hasattr(optimizer, "fp32_groups") or isinstance(optimizer, torch.optim.Optimizer) else ():
        for role, value in states.items():
            known.setdefault(role, {})[names[id(p)]] = value.detach().clone()
    return known


def experts_at(name):
    return EXPERTS[int(name.split(".")[1])]


def run(rank, config, out, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_PORT=str(port))
    log = os.open(f"{out}-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", rank=rank, world_size=WORLD)
    torch.manual_seed(rank % EP)  # experts differ between the expert parallel ranks
    model = Model()
    torch.manual_seed(7)
    for name, p in model.named_parameters():
        if "deepspeed_experts" not in name:
            p.data.copy_(torch.randn(p.shape) * 0.3)
    groups = split_params_into_different_moe_groups_for_optimizer([{"params": list(model.parameters()), "name": "all"}])
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=1e-2), config=config)
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + rank)
        engine.backward(engine(torch.randint(TOKENS, (4, 9), generator=generator)))
        engine.step()
    engine.save_checkpoint(out, tag="global_step3")
    found = [None] * WORLD
    torch.distributed.all_gather_object(found, known_of(model, engine.optimizer, rank))
    if rank == 0:
        torch.save({role: {name: tensor for known in found for name, tensor in known[role].items()} for role in found[0]},
                   f"{out}-known.pt")
    torch.distributed.barrier()


def fork(*args):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            run(*args)
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(status)
    return pid


failed = []
for name, config in json.loads(sys.argv[2]).items():
    out = os.path.join(sys.argv[1], name)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = [fork(rank, config, out, port) for rank in range(WORLD)]
    if any([os.waitpid(pid, 0)[1] != 0 for pid in ranks]):
        failed.append(name)
        sys.stderr.write(open(f"{out}-0.log").read()[-3000:])
sys.exit(f"failed: {failed}" if failed else 0)
