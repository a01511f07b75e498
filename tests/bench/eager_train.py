"""The same training in PyTorch, eager or compiled, as a user would write it: the peer of `cairn train` in train_speed.py.

One process, or as many as torchrun starts: then torch's own tensor parallelism, over gloo on CPUs. Rank 0
prints the seconds of each step after the first `--skip` ones, as JSON.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class GptBlock(nn.Module):
    """A layer of GPT-2."""

    PLAN = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "out": RowwiseParallel(),
            "up": ColwiseParallel(), "down": RowwiseParallel()}

    def __init__(self, a):
        super().__init__()
        h = a.hidden
        self.head = h // a.heads
        self.norm1, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)
        if a.tp > 1:  # its cuts are of whole matrices
            self.q, self.k, self.v = (nn.Linear(h, h) for _ in range(3))
        else:
            self.qkv = nn.Linear(h, 3 * h)
        self.out = nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def parts(self, x):
        return self.qkv(x).chunk(3, -1) if hasattr(self, "qkv") else (self.q(x), self.k(x), self.v(x))

    def forward(self, x, angles):
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, -1, self.head).transpose(1, 2) for t in self.parts(self.norm1(x)))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, s, -1))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def rotate(x, angles):
    cos, sin = angles
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class LlamaBlock(nn.Module):
    """A layer of LLaMA 3: RMSNorm, rotary positions, grouped queries, SwiGLU."""

    PLAN = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "out": RowwiseParallel(),
            "gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}

    def __init__(self, a):
        super().__init__()
        h, f = a.hidden, a.ffn
        self.head, self.group = h // a.heads, a.heads // a.kv_heads
        kv = a.kv_heads * self.head
        self.norm1, self.norm2 = nn.RMSNorm(h, 1e-5), nn.RMSNorm(h, 1e-5)
        self.q, self.k, self.v = nn.Linear(h, h, False), nn.Linear(h, kv, False), nn.Linear(h, kv, False)
        self.out = nn.Linear(h, h, False)
        self.gate, self.up, self.down = nn.Linear(h, f, False), nn.Linear(h, f, False), nn.Linear(f, h, False)

    def forward(self, x, angles):
        b, s, _ = x.shape
        y = self.norm1(x)
        q, k, v = (part(y).view(b, s, -1, self.head).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = rotate(q, angles), rotate(k, angles)
        k, v = (t.repeat_interleave(self.group, 1) for t in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, s, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        llama = a.model == "llama"
        self.word = nn.Embedding(a.vocab, a.hidden)
        self.position = None if llama else nn.Embedding(a.seq, a.hidden)
        self.blocks = nn.ModuleList((LlamaBlock if llama else GptBlock)(a) for _ in range(a.layers))
        self.norm = nn.RMSNorm(a.hidden, 1e-5) if llama else nn.LayerNorm(a.hidden)
        self.output = nn.Linear(a.hidden, a.vocab, False)
        if not llama and a.tp == 1:
            self.output.weight = self.word.weight
        self.head = a.hidden // a.heads

    def angles(self, x):
        turns = 10000.0 ** (-torch.arange(0, self.head, 2, device=x.device) / self.head)
        angles = torch.outer(torch.arange(x.shape[1], device=x.device), turns).repeat(1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def forward(self, tokens):
        x = self.word(tokens)
        if self.position is None:
            angles = self.angles(x)
        else:
            x, angles = x + self.position(torch.arange(tokens.shape[1], device=tokens.device)), None
        for block in self.blocks:
            x = block(x, angles)
        return self.output(self.norm(x))


def cut(model, a):
    """torch's tensor parallelism, with all logits on each rank: its parallel loss is slower on CPUs."""
    mesh = dist.init_device_mesh(a.device, (a.tp,))
    plan = {"word": RowwiseParallel(input_layouts=Replicate()), "output": ColwiseParallel(output_layouts=Replicate())}
    parallelize_module(model, mesh, plan)
    for block in model.blocks:
        parallelize_module(block, mesh, block.PLAN)


def groups_of(params):
    """Sharded and whole parameters separately: torch's operations on lists do not accept a mixture."""
    groups = [[q for q in params if isinstance(q, DTensor) == cut] for cut in (False, True)]
    return [group for group in groups if group]


def clip(params):
    groups = groups_of(params)
    norms = [nn.utils.get_total_norm([q.grad for q in group]) for group in groups]
    total = torch.linalg.vector_norm(torch.stack([n.full_tensor() if isinstance(n, DTensor) else n for n in norms]))
    for group in groups:
        nn.utils.clip_grads_with_norm_(group, 1.0, total)


def main():
    p = argparse.ArgumentParser()
    for name in ("layers", "hidden", "heads", "kv-heads", "ffn", "vocab", "seq", "mbs", "gas", "steps", "skip", "threads"):
        p.add_argument("--" + name, type=int, required=True)
    p.add_argument("--model", choices=("gpt", "llama"), required=True)
    p.add_argument("--bf16", action="store_true")
    p.add_argument("--compile", action="store_true", help="by torch.compile, in the steps that are skipped")
    p.add_argument("--device", default="cpu")
    a = p.parse_args()
    a.tp = int(os.environ.get("WORLD_SIZE", 1))
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    if a.tp > 1:
        dist.init_process_group("gloo" if a.device == "cpu" else "nccl")
    model = Model(a).to(a.device)
    if a.bf16:
        model = model.bfloat16()
    if a.tp > 1:
        cut(model, a)
    if a.compile:
        model.compile()
    # 16-bit training keeps fp32 masters, as cairn train does; PyTorch leaves that to the user.
    params = list(model.parameters())
    masters = [q.detach().float().requires_grad_() for q in params] if a.bf16 else params
    optimizer = torch.optim.AdamW([{"params": group} for group in groups_of(masters)], lr=1e-4, fused=True)
    seconds = []
    for step in range(a.steps):
        start = time.perf_counter()
        for _ in range(a.gas):
            data = torch.randint(a.vocab, (a.mbs, a.seq + 1)).to(a.device)
            logits = model(data[:, :-1]).flatten(0, 1).float()
            (F.cross_entropy(logits, data[:, 1:].flatten()) / a.gas).backward()
        if a.bf16:
            for master, q in zip(masters, params):
                master.grad = q.grad.float()
                q.grad = None
        clip(masters)
        optimizer.step()
        optimizer.zero_grad()
        if a.bf16:
            with torch.no_grad():
                for master, q in zip(masters, params):
                    q.copy_(master)
        if a.device == "cuda":
            torch.cuda.synchronize()
        if step >= a.skip:
            seconds.append(time.perf_counter() - start)
    if a.tp == 1 or dist.get_rank() == 0:
        print(json.dumps(seconds))
    if a.tp > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
