"""Trains a small GPT on the King James Bible and leaves its state as raw arrays: weight.bf16, master.fp32, exp_avg.fp32,
exp_avg_sq.fp32 in DIR, each the tensors one after another. For codec_speed.py; 12 million parameters, about 2 minutes.
"""

import argparse
import os
import subprocess
import tempfile

import sentencepiece
import torch
from torch import nn
from torch.nn import functional as F

VOCAB, HIDDEN, HEADS, LAYERS, SEQUENCE, BATCH = 4096, 384, 6, 6, 64, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.norm2, self.up, self.down = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        q, k, v = (t.transpose(1, 2) for t in self.qkv(self.norm(x)).view(*x.shape[:2], 3, HEADS, -1).unbind(2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.position = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(SEQUENCE, HIDDEN)
        self.blocks, self.norm = nn.Sequential(*[Block() for _ in range(LAYERS)]), nn.LayerNorm(HIDDEN)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, tokens):
        return self.norm(self.blocks(self.word(tokens) + self.position.weight)) @ self.word.weight.t()


def tokens():
    with tempfile.TemporaryDirectory() as temp:
        text = os.path.join(temp, "bible.txt")
        with open(text, "w") as f:
            subprocess.run(["bible", "-f", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, stdout=f, check=True)
        sentencepiece.SentencePieceTrainer.train(input=text, model_prefix=temp + "/sp", vocab_size=VOCAB, minloglevel=2)
        with open(text) as f:
            return torch.tensor(sentencepiece.SentencePieceProcessor(model_file=temp + "/sp.model").encode(f.read()))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("dir")
    p.add_argument("--steps", type=int, default=400)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    data, model = tokens(), Gpt()
    masters = [p.detach().clone() for p in model.parameters()]
    model.bfloat16()
    optimizer = torch.optim.AdamW(masters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(a.steps):
        starts = torch.randint(0, data.numel() - SEQUENCE - 1, (BATCH,))
        batch = torch.stack([data[i:i + SEQUENCE + 1] for i in starts])
        loss = F.cross_entropy(model(batch[:, :-1]).float().reshape(-1, VOCAB), batch[:, 1:].reshape(-1))
        loss.backward()
        for weight, master in zip(model.parameters(), masters):
            master.grad, weight.grad = weight.grad.float(), None
        nn.utils.clip_grad_norm_(masters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, (step + 1) / 50)
        optimizer.step()
        with torch.no_grad():
            for weight, master in zip(model.parameters(), masters):
                weight.copy_(master)
    print(f"loss {loss.item():.2f} after {a.steps} steps")
    os.makedirs(a.dir, exist_ok=True)
    arrays = {"weight.bf16": [w.detach() for w in model.parameters()], "master.fp32": masters}
    for name in ("exp_avg", "exp_avg_sq"):
        arrays[name + ".fp32"] = [optimizer.state[m][name] for m in masters]
    for name, tensors in arrays.items():
        with open(os.path.join(a.dir, name), "wb") as f:
            for t in tensors:
                f.write(t.contiguous().view(torch.uint8).numpy().tobytes())


if __name__ == "__main__":
    main()
