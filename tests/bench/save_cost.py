"""What saving costs the training: step time while a checkpoint is copied and written, against steps without.

One rank with one thread, so that the flush has a core of its own as it would have on a node. A save after every
second step: the step behind it shares the machine with the copy and the flush, the next one does not, so the two
kinds are interleaved in one run. Median of the rounds; each round is one pair of steps.

    scripts/bench save-cost [--rounds 12] [--mode lazy|copy]
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile

CAIRN = os.environ["CAIRN"]
MODEL = ["--num-layers", "6", "--hidden-size", "768", "--num-attention-heads", "12", "--seq-length", "128",
         "--vocab-size", "8000", "--micro-batch-size", "1", "--global-batch-size", "4", "--bf16", "--mock-data"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--mode", choices=["lazy", "copy"], default="lazy")
    parser.add_argument("--dir", help="where to save; default: a temporary directory")
    args = parser.parse_args()
    iterations = 2 * args.rounds + 3
    with tempfile.TemporaryDirectory(prefix="cairn-", dir=args.dir) as dir:
        log = os.path.join(dir, "log.json")
        done = subprocess.run(
            [CAIRN, "train", "--nproc-per-node", "1", "--threads", "1", *MODEL, "--train-iters", str(iterations),
             "--save", os.path.join(dir, "run"), "--save-interval", "2", "--keep-last", "0", "--save-mode", args.mode,
             "--log-json", log], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        subprocess.run([CAIRN, "verify", os.path.join(dir, "run")], check=True, stdout=subprocess.DEVNULL)
        seconds = {row["iteration"]: row["seconds"] for row in map(json.loads, open(log))}
    saves = [(float(stall), float(durable)) for stall, durable in
             re.findall(r"\(stall ([\d.]+) s, durable after ([\d.]+) s\)", done.stdout)]
    size = float(re.search(r"([\d.]+) GB each", done.stdout)[1])
    ratios = [seconds[i] / seconds[i + 1] for i in range(3, iterations - 1, 2)]
    print(f"{size:.2f} GB a save, {len(saves)} saves, every second step; {args.mode} snapshots")
    print(f"stall:    median {statistics.median(s for s, _ in saves[:-1]) * 1e3:.1f} ms, "
          f"durable after {statistics.median(d for _, d in saves) * 1e3:.0f} ms")
    print(f"step:     {statistics.median(seconds[i] for i in range(3, iterations - 1, 2)):.3f} s with a flush, "
          f"{statistics.median(seconds[i] for i in range(4, iterations, 2)):.3f} s without")
    print(f"ratio:    median {statistics.median(ratios):.3f} of {len(ratios)} pairs "
          f"(from {min(ratios):.3f} to {max(ratios):.3f}; goal 1.03)")


if __name__ == "__main__":
    main()
