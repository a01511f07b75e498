"""The same GPT in eager PyTorch, as a user would write it: the peer of `cairn train` in train_speed.py.

Prints the seconds of each step after the first `--skip` ones, as JSON.
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, h, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, h))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, h, heads, vocab, positions):
        super().__init__()
        self.word, self.position = nn.Embedding(vocab, h), nn.Embedding(positions, h)
        self.blocks = nn.ModuleList(Block(h, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(h)

    def forward(self, tokens, labels):
        x = self.word(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.word.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def main():
    p = argparse.ArgumentParser()
    for name, default in [("layers", 4), ("hidden", 256), ("heads", 8), ("vocab", 4096), ("seq", 256), ("mbs", 4),
                          ("gas", 1), ("steps", 12), ("skip", 2), ("threads", 2)]:
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--bf16", action="store_true")
    p.add_argument("--device", default="cpu")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = Gpt(a.layers, a.hidden, a.heads, a.vocab, a.seq).to(a.device)
    if a.bf16:
        model = model.bfloat16()
    # 16-bit training keeps fp32 masters, as cairn train does; PyTorch leaves that to the user.
    params = list(model.parameters())
    masters = [q.detach().float().requires_grad_() for q in params] if a.bf16 else params
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=True)
    seconds = []
    for step in range(a.steps):
        start = time.perf_counter()
        for _ in range(a.gas):
            data = torch.randint(a.vocab, (a.mbs, a.seq + 1)).to(a.device)
            (model(data[:, :-1], data[:, 1:]) / a.gas).backward()
        if a.bf16:
            for master, q in zip(masters, params):
                master.grad = q.grad.float()
                q.grad = None
        nn.utils.clip_grad_norm_(masters, 1.0)
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
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
