"""Warm loads of very many small tensors, which cost time by their number: a part of `scripts/bench load`.

Tensors are 50 x 50 in fp32: flat, and as a model with the two states of an Adam that get_state_dict() nests. Each load fills
tensors that were there before, and counts once they are equal. `open` is cairn.open, without values.
"""

import os
import statistics
import sys
import time

import cairn
import torch

SIDE = 50


def flat(count):
    return {f"layer{i}.w": torch.full((SIDE, SIDE), float(i)) for i in range(count)}


def nested(count):
    names = [f"layers.{i}.mlp.weight" for i in range(count // 3)]
    fresh = lambda i: torch.full((SIDE, SIDE), float(i))
    moments = lambda i: {"exp_avg": fresh(i + 0.25), "exp_avg_sq": fresh(i + 0.5)}
    return {"model": {name: fresh(i) for i, name in enumerate(names)}, "optim": {"state": {name: moments(i) for i, name in enumerate(names)}}}


def leaves(value):
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for item in value.values():
            yield from leaves(item)


def zeros_like(value):
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else {key: zeros_like(item) for key, item in value.items()}


class Cairn:
    name = "cairn.torch"

    def save(self, state, path):
        cairn.torch.save(state, path, 1)

    def load(self, live, path):
        cairn.torch.load(live, path)


class CairnOpen(Cairn):
    name = "cairn.open, names and shapes"

    def load(self, live, path):
        with cairn.open(path) as checkpoint:
            if not all(checkpoint[name].shape == (SIDE, SIDE) for name in checkpoint):
                raise SystemExit("a tensor has another shape")


class TorchMapped:
    name = "torch.load mmap"

    def save(self, state, path):
        torch.save(state, path)

    def load(self, live, path):
        for here, there in zip(leaves(live), leaves(torch.load(path, mmap=True, weights_only=True))):
            here.copy_(there)


def table(count, directory, rounds):
    """Rows of a table in Markdown."""
    rows = [f"| {count:,} tensors of {SIDE} x {SIDE}, warm | flat s | nested s |", "| --- | ---: | ---: |"]
    states = {"flat": flat(count), "nested": nested(count)}
    lives = {kind: zeros_like(state) for kind, state in states.items()}
    for tool in (Cairn(), CairnOpen(), TorchMapped()):
        cells = []
        for kind, state in states.items():
            path, live, seconds = os.path.join(directory, f"small-{kind}-{type(tool).__name__}"), lives[kind], []
            tool.save(state, path)
            for _ in range(rounds):
                for tensor in leaves(live):
                    tensor.zero_()
                start = time.perf_counter()
                tool.load(live, path)
                seconds.append(time.perf_counter() - start)
                if not isinstance(tool, CairnOpen) and not all(map(torch.equal, leaves(live), leaves(state))):
                    raise SystemExit(f"{tool.name}: other values")
            cells.append(f"{statistics.median(seconds):.2f} ({min(seconds):.2f} – {max(seconds):.2f})")
            print(f"{tool.name}, {kind}: {cells[-1]} s", file=sys.stderr, flush=True)
        rows.append("| " + " | ".join([tool.name, *cells]) + " |")
    return rows
