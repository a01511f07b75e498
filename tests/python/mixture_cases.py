"""What the ranks of test_mixtures.py run: trainings of a mixture of experts, CASE(rank, world, directory), gloo on the CPU.

Each rank has its own tokens and its own experts: tokens are gathered along the experts' mesh, and each rank adds what its experts say.
"""

import os
import pathlib
import signal

import cairn.torch
import ranks
import torch
import torch.distributed as dist
import torch_cases as cases
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

EXPERTS, HIDDEN, WIDTH = 8, 12, 20


class Gather(torch.autograd.Function):
    """The tokens of all ranks of a group; their gradients are summed."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, ctx.rows = group, len(x)
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient.split(ctx.rows)[dist.get_rank(ctx.group)], None


class Sum(torch.autograd.Function):
    """The rows of this rank, summed over the ranks of a group."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x.chunk(dist.get_world_size(group))[dist.get_rank(group)].clone()

    @staticmethod
    def backward(ctx, gradient):
        parts = [torch.empty_like(gradient) for _ in range(dist.get_world_size(ctx.group))]
        dist.all_gather(parts, gradient.contiguous(), group=ctx.group)
        return torch.cat(parts), None


class Experts(torch.nn.Module):
    """All experts in three tensors; `mesh`, if given, has those of each rank."""

    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) * 0.3) for _ in range(2))
        self.w2 = torch.nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) * 0.3)
        self.mesh = None

    def forward(self, x, scores):
        w1, w2, w3 = (w.to_local() if isinstance(w, DTensor) else w for w in (self.w1, self.w2, self.w3))
        if self.mesh is not None:
            group, at = self.mesh.get_group(), self.mesh.get_local_rank()
            x, scores = Gather.apply(x, group), Gather.apply(scores, group)
            scores = scores[:, at * len(w1) : (at + 1) * len(w1)]
        inner = torch.einsum("efh,th->etf", w1, x).relu() * torch.einsum("efh,th->etf", w3, x)
        y = torch.einsum("ehf,etf,te->th", w2, inner, scores)
        return y if self.mesh is None else Sum.apply(y, self.mesh.get_group())


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(HIDDEN)
        self.router = torch.nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = Experts()
        self.register_buffer("expert_bias", torch.zeros(EXPERTS))

    def forward(self, x):
        y = self.norm(x)
        scores = self.router(y)
        self.expert_bias += 0.01  # as balancing without a loss does, the same on all ranks
        kept = (scores + self.expert_bias).topk(3).indices
        return x + self.experts(y, torch.zeros_like(scores).scatter(1, kept, scores.softmax(1).gather(1, kept)))


class Mixture(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(41, HIDDEN)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def as_dtensors(model, ep):
    """As torchtitan does it: experts along one mesh, and FSDP along its other dimension; the rest on a mesh of all ranks."""
    world = dist.get_world_size()
    everyone, mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",)), experts_mesh(ep)
    for layer in model.layers:
        experts = layer.experts
        for name, weight in list(experts.named_parameters()):
            setattr(experts, name, torch.nn.Parameter(distribute_tensor(weight.detach(), mesh["ep"], [Shard(0)])))
        experts.mesh = mesh["ep"]
        few = world // ep > EXPERTS // ep  # then the experts of a rank cannot be cut further
        fully_shard(experts, mesh=mesh["efsdp"], shard_placement_fn=lambda _, few=few: Shard(1 if few else 0))
        fully_shard(layer, mesh=everyone)
    fully_shard(model, mesh=everyone)


def experts_mesh(ep):
    return init_device_mesh("cpu", (dist.get_world_size() // ep, ep), mesh_dim_names=("efsdp", "ep"))


def as_plain(model, ep):
    """Each rank has plain tensors of its own experts, all under one name; the rest is the same on all ranks."""
    mesh = experts_mesh(ep)["ep"]
    for layer in model.layers:
        for name, weight in list(layer.experts.named_parameters()):
            own = weight.detach().chunk(ep)[mesh.get_local_rank()].clone()
            setattr(layer.experts, name, torch.nn.Parameter(own))
        layer.experts.mesh = mesh


class Training:
    def __init__(self, parallelism, ep, seed=0):
        torch.manual_seed(seed)
        self.model, self.step, self.plain = Mixture(), 0, parallelism is as_plain
        parallelism(self.model, ep)
        experts = [p for name, p in self.model.named_parameters() if ".experts." in name]
        rest = [p for name, p in self.model.named_parameters() if ".experts." not in name]
        self.optimizers = [torch.optim.AdamW(rest, lr=1e-2), torch.optim.SGD(experts, lr=0.1, momentum=0.9)]
        self.experts = {"*.experts.*": self.model.layers[0].experts.mesh} if self.plain else None

    def train(self, steps):
        for _ in range(steps):
            generator = torch.Generator().manual_seed(100 * self.step + dist.get_rank())
            self.model(torch.randint(41, (6,), generator=generator)).backward()
            if self.plain:
                self.reduce()
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()
            self.step += 1

    def reduce(self):
        """Gradients over the ranks that hold the same."""
        mesh = experts_mesh(self.model.layers[0].experts.mesh.size())
        for name, p in self.model.named_parameters():
            dist.all_reduce(p.grad, group=mesh["efsdp"].get_group() if ".experts." in name else None)

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizers)
        return {"model": model, "optim": optimizer, "step": self.step}

    def load(self, path):
        state = self.state_dict()
        cairn.torch.load(state, path, experts=self.experts)
        set_state_dict(self.model, self.optimizers, model_state_dict=state["model"], optim_state_dict=state["optim"])
        self.step = state["step"]

    def whole(self):
        """{name: tensor of all experts}; all ranks must call it."""
        state = self.state_dict()
        found = cases.full({"model": state["model"], "optim": state["optim"]})
        for name, tensor in found.items() if self.plain else ():
            if ".experts." in name and tensor.dim():
                mesh = self.model.layers[0].experts.mesh
                parts = [torch.empty_like(tensor) for _ in range(mesh.size())]
                dist.all_gather(parts, tensor, group=mesh.get_group())
                found[name] = torch.cat(parts)
        return found


def train(rank, world, directory, how, ep):
    """Two steps, a save, two more steps during it; all is killed after the commit."""
    cases.join(rank, world, directory, f"train-{how}")
    job, place = Training(globals()[how], ep), f"{directory}/{how}"
    job.train(2)
    saved = job.whole()
    handle = cairn.torch.async_save(job.state_dict(), place, 2, optimizer=job.optimizers, experts=job.experts)
    job.train(2)
    last = job.whole()
    if rank == 0:
        torch.save(saved, f"{place}-2.pt")
        torch.save(last, f"{place}-4.pt")
    handle.result()
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def resume(rank, world, directory, how, ep):
    """The same ranks: the same bits after the same steps."""
    cases.join(rank, world, directory, f"resume-{how}")
    job, place = Training(globals()[how], ep, seed=5), f"{directory}/{how}"
    job.train(1)
    job.load(place)
    job.train(2)
    ranks.check_equal(job.whole(), torch.load(f"{place}-4.pt"))


def load(rank, world, directory, how, ep, source):
    """Other ranks, and another way to hold the experts."""
    cases.join(rank, world, directory, f"load-{how}-{world}-{ep}-{source}")
    job = Training(globals()[how], ep, seed=5)
    job.train(1)
    job.load(f"{directory}/{source}")
    ranks.check_equal(job.whole(), torch.load(f"{directory}/{source}-2.pt"))
    job.train(1)


def alone(rank, world, directory, source):
    """All experts on one rank."""
    torch.manual_seed(5)
    expected = torch.load(f"{directory}/{source}-2.pt")
    state = {"model": Mixture().state_dict()}
    assert cairn.torch.load(state, f"{directory}/{source}") == 2
    assert all(torch.equal(tensor, expected[f"model.{name}"]) for name, tensor in state["model"].items())


def refused(says, state, directory):
    """The save fails on all ranks, naming what is in `says`, and commits nothing."""
    ranks.refused((ValueError, cairn.torch.SaveFailed), says, cairn.torch.save, state, directory, 2, deadline=60)
    assert not pathlib.Path(directory, "step-00000002").exists()


def lost(rank, world, directory):
    """The ways in which trainings have lost experts."""
    cases.join(rank, world, directory, "lost")
    mesh = experts_mesh(2)
    job = Training(as_plain, 2)
    job.train(2)
    state, says = job.state_dict(), ("ranks 0 and 1 differ in", ".experts.w", "experts=")
    refused(says, state, f"{directory}/stacked")  # [E/EP, ...] under one name, as of plain modules

    small = torch.full((2, 3), float(mesh["ep"].get_local_rank()))
    own = {f"experts.{e}.w1": torch.randn(90, 30, generator=torch.Generator().manual_seed(2 * mesh["ep"].get_local_rank() + e)) for e in (0, 1)}
    refused(("differ in experts.0.w1 and 1 more",), own, f"{directory}/renumbered")  # KempnerForge#202
    refused(("differ in small",), {"small": small}, f"{directory}/small")

    # UniRL#158: the mesh of FSDP alone, and [E/EP, ...] as the shape of the whole.
    baked = DTensor.from_local(own["experts.0.w1"], mesh["efsdp"], [Shard(0)])
    refused(("differ in experts.w1",), {"experts.w1": baked}, f"{directory}/baked")

    # The training says that these ranks are equal.
    step = cairn.torch.save(own, f"{directory}/given", 2, replicas=list(range(world))).step_dir
    assert "ranks 0 and 1 differ in experts.0.w1" in pathlib.Path(step, "manifest.json").read_text()
