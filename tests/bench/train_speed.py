"""Tokens/s of `cairn train` against the same model in eager PyTorch, same threads, interleaved, median of the rounds.

A GPT-2 and a LLaMA shape, each on one rank, and cut across two (there torch's own tensor parallelism, over gloo on CPUs).
On a GPU (--device cuda) also against PyTorch with torch.compile, and with the share of the GPU's peak that each gets (MFU).
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA = ["--group-query-attention", "--swiglu", "--normalization", "RMSNorm", "--use-rotary-position-embeddings",
         "--disable-bias-linear", "--untie-embeddings-and-output-weights"]


def ours(a, model, tp, bf16):
    flags = ["--num-layers", a.layers, "--hidden-size", a.hidden, "--num-attention-heads", a.heads, "--seq-length", a.seq,
             "--vocab-size", a.vocab, "--mock-data", "--micro-batch-size", a.mbs, "--global-batch-size", a.mbs * a.gas,
             "--train-iters", a.steps, "--hidden-dropout", 0, "--attention-dropout", 0, "--tensor-model-parallel-size", tp,
             "--threads", a.threads // tp, "--device", a.device]
    if model == "llama":
        flags += [*LLAMA, "--num-query-groups", a.kv_heads, "--ffn-hidden-size", a.ffn]
    elif tp > 1:
        flags.append("--untie-embeddings-and-output-weights")  # as torch's tensor parallelism has it
    if bf16:
        flags.append("--bf16")
    if a.peak_tflops:
        flags += ["--peak-tflops", a.peak_tflops]
    with tempfile.TemporaryDirectory() as temp:
        log = os.path.join(temp, "log.json")
        done = subprocess.run([a.cairn, "train", *(["--nproc-per-node", str(tp)] if tp > 1 else []), *map(str, flags),
                               "--log-interval", "1", "--log-json", log], check=True, stdout=subprocess.PIPE, text=True)
        a.mfu_of_a_token_per_second = mfu_of_a_token_per_second(done.stdout, a)
        with open(log) as lines:
            return [json.loads(line)["seconds"] for line in lines][a.skip:]


def mfu_of_a_token_per_second(text, a):
    """Per cent of the peak, as `cairn train` counts model FLOPs; 0 if it knows no peak (fp32, a CPU without --peak-tflops)."""
    found = re.findall(r"elapsed time per iteration \(ms\): ([\d.]+) .* MFU \(%\): ([\d.]+)", text)
    mfu = sum(float(ms) / 1e3 * float(mfu) for ms, mfu in found)
    tokens = a.mbs * a.gas * a.seq * len(found)
    return mfu / tokens if found else 0


def peer(a, model, tp, bf16, *more):
    names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "mbs", "gas", "steps", "skip", "device")
    flags = [f"--{name.replace('_', '-')}={getattr(a, name)}" for name in names] + [f"--threads={a.threads // tp}", f"--model={model}"]
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={tp}"] if tp > 1 else []
    done = subprocess.run([sys.executable, *launch, os.path.join(HERE, "eager_train.py"), *flags, *(["--bf16"] if bf16 else []), *more],
                          check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def compare(a, model, tp, bf16):
    tokens = a.mbs * a.gas * a.seq
    programs = [("cairn train", ours), ("eager PyTorch", peer)]
    if a.compile:
        programs.append(("compiled PyTorch", lambda *run: peer(*run, "--compile")))
    runs = {name: [] for name, _ in programs}
    for round_ in range(a.rounds):
        for name, run in programs if round_ % 2 == 0 else programs[::-1]:
            runs[name].append(tokens / statistics.median(run(a, model, tp, bf16)))
    what = f"{model:5}  {tp} rank{'s' if tp > 1 else ' '}  {'bf16' if bf16 else 'fp32'}"
    for name, values in runs.items():
        middle = statistics.median(values)
        mfu = f"  MFU {middle * a.mfu_of_a_token_per_second:.1f} %" if a.mfu_of_a_token_per_second else ""
        print(f"{what}  {name:16} {middle:8.0f} tokens/s  (rounds {min(values):.0f} to {max(values):.0f}){mfu}")
    for name, _ in programs[1:]:
        ratios = [mine / theirs for mine, theirs in zip(runs["cairn train"], runs[name])]
        goal = "; goal 1.2" if name == "eager PyTorch" else ""
        print(f"{what}  / {name:16} {statistics.median(ratios):6.2f}           (rounds {min(ratios):.2f} to {max(ratios):.2f}{goal})",
              flush=True)


def main():
    p = argparse.ArgumentParser()
    for name, default in [("layers", 4), ("hidden", 256), ("heads", 8), ("kv-heads", 2), ("ffn", 704), ("vocab", 4096), ("seq", 256),
                          ("mbs", 4), ("gas", 2), ("steps", 12), ("skip", 2), ("threads", 2), ("rounds", 5)]:
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--models", nargs="+", default=["gpt", "llama"], choices=["gpt", "llama"])
    p.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    p.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    p.add_argument("--device", default="cpu", help="cpu or cuda")
    p.add_argument("--compile", action=argparse.BooleanOptionalAction,
                   help="compare with torch.compile, too, which takes a while; default: only on a GPU")
    p.add_argument("--peak-tflops", type=float, default=0, help="what the device can do, for MFU; `cairn train` knows it of GPUs")
    p.add_argument("--cairn", default=os.environ.get("CAIRN", "build/cairn"))
    a = p.parse_args()
    if a.compile is None:
        a.compile = a.device == "cuda"
    for model in a.models:
        for tp in a.ranks:
            for precision in a.precisions:
                compare(a, model, tp, precision == "bf16")


if __name__ == "__main__":
    main()
