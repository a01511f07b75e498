"""Tokens/s of `cairn train` against the same model in eager PyTorch, same threads, interleaved, median of the rounds."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def ours(cairn, a, bf16):
    with tempfile.TemporaryDirectory() as temp:
        log = os.path.join(temp, "log.json")
        subprocess.run([cairn, "train", "--num-layers", str(a.layers), "--hidden-size", str(a.hidden), "--num-attention-heads",
                        str(a.heads), "--seq-length", str(a.seq), "--vocab-size", str(a.vocab), "--mock-data",
                        "--micro-batch-size", str(a.mbs), "--global-batch-size", str(a.mbs * a.gas), "--train-iters",
                        str(a.steps), "--hidden-dropout", "0", "--attention-dropout", "0", "--threads", str(a.threads), "--device", a.device,
                        "--log-json", log, *(["--bf16"] if bf16 else [])], check=True, stdout=subprocess.DEVNULL)
        with open(log) as lines:
            return [json.loads(line)["seconds"] for line in lines][a.skip:]


def peer(a, bf16):
    names = ("layers", "hidden", "heads", "vocab", "seq", "mbs", "gas", "steps", "skip", "threads", "device")
    flags = [f"--{name}={getattr(a, name)}" for name in names]
    done = subprocess.run([sys.executable, os.path.join(HERE, "eager_gpt.py"), *flags, *(["--bf16"] if bf16 else [])],
                          check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main():
    p = argparse.ArgumentParser()
    for name, default in [("layers", 4), ("hidden", 256), ("heads", 8), ("vocab", 4096), ("seq", 256), ("mbs", 4), ("gas", 2),
                          ("steps", 12), ("skip", 2), ("threads", 2), ("rounds", 5)]:
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--device", default="cpu", help="cpu or cuda")
    p.add_argument("--cairn", default=os.environ.get("CAIRN", "build/cairn"))
    a = p.parse_args()
    tokens = a.mbs * a.gas * a.seq
    for bf16 in (False, True):
        runs = {"cairn train": [], "eager PyTorch": []}
        ratios = []
        for round_ in range(a.rounds):
            pair = [("cairn train", lambda: ours(a.cairn, a, bf16)), ("eager PyTorch", lambda: peer(a, bf16))]
            for name, run in pair if round_ % 2 == 0 else pair[::-1]:
                runs[name].append(tokens / statistics.median(run()))
            ratios.append(runs["cairn train"][-1] / runs["eager PyTorch"][-1])
        precision = "bf16" if bf16 else "fp32"
        for name, values in runs.items():
            print(f"{precision}  {name:14} {statistics.median(values):10.0f} tokens/s  (rounds {min(values):.0f} to {max(values):.0f})")
        print(f"{precision}  ratio          {statistics.median(ratios):10.2f}  (rounds {min(ratios):.2f} to {max(ratios):.2f}; goal 1.0)")


if __name__ == "__main__":
    main()
