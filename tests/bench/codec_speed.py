"""ckpt's codec against ZipNN on the same tensors, one thread, interleaved, median of the rounds.

STATE is a directory of raw little-endian arrays, NAME.bf16 or NAME.fp32 (codec_state.py makes one). ZipNN is installed
by hand, in an environment of its own: pip install --no-deps zipnn==0.5.4.
"""

import argparse
import glob
import json
import os
import statistics
import subprocess
import time

import zipnn

DTYPES = {".bf16": ("bfloat16", 2), ".fp32": ("float32", 4)}


def ours(program, path, size):
    done = subprocess.run([program, path, str(size)], check=True, capture_output=True, text=True)
    run = json.loads(done.stdout)
    return run["stored"], run["encode"], run["decode"]


def peer(path, dtype):
    with open(path, "rb") as f:
        data = f.read()
    codec = zipnn.ZipNN(input_format="byte", bytearray_dtype=dtype, threads=1)
    copy = bytearray(data)  # it works in place
    start = time.perf_counter()
    packed = codec.compress(copy)
    middle = time.perf_counter()
    back = codec.decompress(packed)
    end = time.perf_counter()
    assert bytes(back) == data
    return len(packed), middle - start, end - middle


def main():
    p = argparse.ArgumentParser()
    p.add_argument("state")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--program", default="build/codec_speed")
    a = p.parse_args()
    print(f"{'':16} {'size':>6} {'zipnn':>6} {'larger':>7} | {'in':>5} {'zipnn':>5} {'ratio':>6} | {'out':>5} {'zipnn':>5} {'ratio':>6}   (GB/s)")
    for path in sorted(glob.glob(os.path.join(a.state, "*.*"))):
        name, suffix = os.path.splitext(os.path.basename(path))
        dtype, size = DTYPES[suffix]
        total = os.path.getsize(path)
        runs = []
        for round_ in range(a.rounds):
            pair = [lambda: ours(a.program, path, size), lambda: peer(path, dtype)]
            if round_ % 2:
                second = pair[1]()
                runs.append((pair[0](), second))
            else:
                runs.append((pair[0](), pair[1]()))
        mine, theirs = runs[0][0][0], runs[0][1][0]
        line = f"{name:16} {mine / total:6.4f} {theirs / total:6.4f} {mine / theirs - 1:7.1%}"
        for i in (1, 2):
            ratio = statistics.median(z[i] / o[i] for o, z in runs)
            line += (f" | {total / 1e9 / statistics.median(o[i] for o, _ in runs):5.2f}"
                     f" {total / 1e9 / statistics.median(z[i] for _, z in runs):5.2f} {ratio:5.2f}x")
        print(line, flush=True)


if __name__ == "__main__":
    main()
