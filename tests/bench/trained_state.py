"""The state that the benchmarks save and load: from a real training, in memory that bench_server shares.

trained_step(cairn, bytes) trains a GPT of that many bytes on the King James Bible, once per machine: it stays in the
user's cache. llama_run() trains a Llama for as long as it takes to have a whole state. Shared maps the tensors of a step
and asks our side for one measurement at a time, so that ours and the peers' take turns in one loop.
"""

import json
import math
import mmap
import os
import shutil
import subprocess
import tempfile

import torch
import xxhash

VERSION = 1  # of the recipe below; another one is another directory of the cache
VOCABULARY, POSITIONS = 1000, 128
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "uint8": torch.uint8}


def cache_dir():
    return os.environ.get("CAIRN_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "cairn")


def model_flags(size):
    """A GPT of about `size` bytes at 14 bytes a parameter, some 24 layers deep."""
    parameters = size / 14
    hidden = max(64, int(math.sqrt(parameters * 0.9 / (24 * 12))) // 64 * 64)
    layers = max(1, round((parameters - (VOCABULARY + POSITIONS) * hidden) / (12 * hidden * hidden)))
    return ["--num-layers", layers, "--hidden-size", hidden, "--num-attention-heads", hidden // 64]


def run(directory, *command, **kwargs):
    with open(os.path.join(directory, "log"), "a") as log:
        subprocess.run([str(word) for word in command], check=True, cwd=directory, stdout=log, stderr=log, **kwargs)


def train(cairn, size, directory):
    with open(os.path.join(directory, "prose.txt"), "w") as prose:
        bible = subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        prose.writelines(line.split(" ", 1)[-1] + "\n" for line in bible.stdout.splitlines())
    run(directory, cairn, "data", "prose.txt", "--output-prefix", "prose", "--train-sentencepiece", "--vocab-size", VOCABULARY, "--append-eod")
    run(directory, cairn, "train", *model_flags(size), "--seq-length", POSITIONS, "--vocab-size", VOCABULARY, "--make-vocab-size-divisible-by", 8,
        "--data-path", "prose", "--bf16", "--micro-batch-size", 2, "--global-batch-size", 2, "--lr", 6e-4, "--lr-warmup-iters", 5,
        "--train-iters", 30, "--log-interval", 5, "--save", "run", "--threads", 1 if size < 500e6 else 0)


def llama_run(cairn, directory, layers, hidden, ffn, heads, kv_heads, vocabulary):
    """The run directory of a Llama of this shape, trained on two samples."""
    run(directory, os.path.abspath(cairn), "train", "--num-layers", layers, "--hidden-size", hidden, "--ffn-hidden-size", ffn,
        "--num-attention-heads", heads, "--group-query-attention", "--num-query-groups", kv_heads, "--vocab-size", vocabulary,
        "--make-vocab-size-divisible-by", 8, "--swiglu", "--normalization", "RMSNorm", "--disable-bias-linear",
        "--position-embedding-type", "rope", "--untie-embeddings-and-output-weights", "--mock-data", "--seq-length", 32, "--bf16",
        "--micro-batch-size", 1, "--global-batch-size", 1, "--train-iters", 2, "--lr", 1e-4, "--save", "run")
    return os.path.join(directory, "run")


def trained_step(cairn, size):
    """The run directory of a state of about `size` bytes; trains it if the cache has none."""
    place = os.path.join(cache_dir(), f"bench-state-{size}-v{VERSION}")
    if not os.path.isdir(place):
        print(f"training a state of {size / 1e9:.3g} GB, kept in {place}", flush=True)
        os.makedirs(cache_dir(), exist_ok=True)
        temp = tempfile.mkdtemp(prefix="bench-state-", dir=cache_dir())
        try:
            train(os.path.abspath(cairn), size, temp)
            os.rename(temp, place)
        finally:
            shutil.rmtree(temp, ignore_errors=True)
    return os.path.join(place, "run")


def digest(tensor):
    return xxhash.xxh3_128_digest(memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy()))


def views(memory_file, about):
    """{"role/name": tensor} over a state in shared memory, all of it touched."""
    memory = mmap.mmap(memory_file, about["bytes"], flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    tensors = {}
    for t in about["tensors"]:
        flat = torch.frombuffer(memory, dtype=DTYPES[t["dtype"]], count=math.prod(t["shape"]), offset=t["offset"])
        tensors[t["role"] + "/" + t["name"]] = flat.view(t["shape"])
    return tensors


class Asked:
    """A program that answers each line of its stdin, `WHAT PATH`, with a line of JSON."""

    def __init__(self, command, memory_file, **kwargs):
        self.process = subprocess.Popen(command, pass_fds=[memory_file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **kwargs)

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[:3]} ended early; its message is above")
        return json.loads(line)

    def ask(self, what, path):
        self.process.stdin.write(f"{what} {path}\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Shared(Asked):
    """tensors: {"role/name": tensor} over shared memory that is touched. ask(): one measurement of ours."""

    def __init__(self, cairn, checkpoint):
        self.memory_file = os.memfd_create("cairn-bench-state")
        server = os.path.join(os.path.dirname(os.path.abspath(cairn)), "bench_server")
        super().__init__([server, checkpoint, f"/proc/self/fd/{self.memory_file}"], self.memory_file)
        self.about = self.answer()
        self.tensors = views(self.memory_file, self.about)
        self.bytes = sum(t.nbytes for t in self.tensors.values())
        self.checked_bytes = 0
        self.digests = {key: digest(t) for key, t in self.tensors.items()}

    def check(self, pairs):
        """Every tensor once, every bit as it was saved."""
        seen = set()
        for key, tensor in pairs:
            if digest(tensor) != self.digests[key]:
                raise SystemExit(f"{key} was not read back as it was saved")
            seen.add(key)
            self.checked_bytes += self.tensors[key].nbytes
        if seen != set(self.digests):
            raise SystemExit(f"{len(self.digests) - len(seen)} tensors were not read back")
