"""The cost of saving for the training: step time while a checkpoint is copied and written, against steps without.

One rank with one thread, so that the flush has a core of its own as it would have on a node. A save after every
second step: the step behind it shares the machine with the copy and the flush, the next one does not, so the two
kinds are interleaved in one run. Median of the rounds; each round is one pair of steps.

    scripts/bench save-cost [--rounds 12] [--mode lazy|copy]

With --codecs also what a codec makes of the time until a save is durable: trainings without one, with `auto` and with
`zstd` take turns, five of each, and each counts with the median of its saves but the first (before which `auto` has not
seen the disk). `auto` is to be no slower than 1 / 0.97 of no codec.

    scripts/bench save-cost --codecs [--rounds 5]
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile

from save_speed import rotated

CAIRN = os.environ["CAIRN"]
MODEL = ["--num-layers", "6", "--hidden-size", "768", "--num-attention-heads", "12", "--seq-length", "128",
         "--vocab-size", "8000", "--micro-batch-size", "1", "--global-batch-size", "4", "--bf16", "--mock-data"]


CODECS = ["none", "auto", "zstd"]


def train(dir, iterations, *flags):
    """The output of a training that saves at every second step, and its {iteration: seconds}."""
    run, log = os.path.join(dir, "run"), os.path.join(dir, "log.json")
    done = subprocess.run(
        [CAIRN, "train", "--nproc-per-node", "1", "--threads", "1", *MODEL, "--train-iters", str(iterations),
         "--save", run, "--save-interval", "2", "--keep-last", "0", "--log-json", log, *flags],
        capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    subprocess.run([CAIRN, "verify", run], check=True, stdout=subprocess.DEVNULL)
    with open(log) as rows:
        return done.stdout, {row["iteration"]: row["seconds"] for row in map(json.loads, rows)}


def saves_of(stdout):
    """(stall, durable) of each save, in seconds."""
    return [(float(stall), float(durable)) for stall, durable in
            re.findall(r"\(stall ([\d.]+) s, durable after ([\d.]+) s\)", stdout)]


def compare_codecs(args):
    durable = {codec: [] for codec in CODECS}
    size = {}
    for turn in range(args.rounds):
        for codec in rotated(CODECS, turn):
            with tempfile.TemporaryDirectory(prefix="cairn-", dir=args.dir) as dir:
                stdout, _ = train(dir, 12, "--save-mode", args.mode, "--save-codec", codec)
                durable[codec].append(statistics.median(d for _, d in saves_of(stdout)[1:]))
                newest = os.path.join(dir, "run", "step-00000012")
                size[codec] = sum(os.path.getsize(os.path.join(newest, name)) for name in os.listdir(newest))
    for codec in CODECS:
        ratios = [none / own for none, own in zip(durable["none"], durable[codec])]
        print(f"{codec:5} {size[codec] / 1e9:.3f} GB, durable after {statistics.median(durable[codec]):.3f} s; "
              f"speed / that of none: median {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="default 12, with --codecs 5")
    parser.add_argument("--mode", choices=["lazy", "copy"], default="lazy")
    parser.add_argument("--dir", help="where to save; default: a temporary directory")
    parser.add_argument("--codecs", action="store_true", help="compare codecs instead")
    args = parser.parse_args()
    args.rounds = args.rounds or (5 if args.codecs else 12)
    if args.codecs:
        return compare_codecs(args)
    iterations = 2 * args.rounds + 3
    with tempfile.TemporaryDirectory(prefix="cairn-", dir=args.dir) as dir:
        stdout, seconds = train(dir, iterations, "--save-mode", args.mode)
    saves = saves_of(stdout)
    size = float(re.search(r"([\d.]+) GB each", stdout)[1])
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
