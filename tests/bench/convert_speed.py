"""Conversions between formats of torch and DeepSpeed: ours and their own tools, against one read of the bytes that are
needed and one write of the result, taken in the same round.

    convert_speed.py [--bytes 2GB] [--rounds 5] [--no-peers]

Contenders take turns; the source's files are dropped from the page cache before each. Their times are those of a process
of its own, imports included, and of fsync of what it wrote. The limit is dd with O_DIRECT and fsync. Figures are medians
of the rounds' ratios; a limit that moved by more than 15 % is marked.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from peers import files_of, sync
from save_speed import VOID, remove, size_of

CAIRN = os.environ["CAIRN"]
BYTES_PER_PARAMETER = 14  # bf16 weights, fp32 masters and moments
DCP_TO_SAFETENSORS = """
import sys, torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save(sys.argv[1], sys.argv[2] + ".pt")
state = torch.load(sys.argv[2] + ".pt", weights_only=False)
save_file(state["model"], sys.argv[2])
"""
ZERO_TO_SAFETENSORS = """
import sys, torch
from safetensors.torch import save_file
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
state = get_fp32_state_dict_from_zero_checkpoint(sys.argv[1])
save_file({name: value.half().contiguous() for name, value in state.items()}, sys.argv[2])
"""


def run(*command):
    """Seconds and peak memory of a process."""
    start, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=log,
                                   env=os.environ | {"DS_ACCELERATOR": "cpu"})
        while process.poll() is None:  # getrusage() would tell this process's own maximum
            peak = max(peak, high_water(process.pid))
            time.sleep(0.01)
        seconds = time.perf_counter() - start
        log.seek(0)
        if process.returncode != 0:
            raise RuntimeError(f"{command}: {log.read().decode()[-2000:]}")
    return seconds, peak


def high_water(pid):
    try:
        with open(f"/proc/{pid}/status") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")), 0)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def evict(path):
    for name in files_of(path):
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def limit(source, read_bytes, write_bytes, scratch):
    """One read of so many bytes of the source's largest files, and one write."""
    start, left = time.perf_counter(), read_bytes
    files = sorted(files_of(source), key=os.path.getsize, reverse=True)
    while left > 0:
        for name in files:
            blocks = min(left, os.path.getsize(name)) >> 22
            if blocks and left > 0:
                subprocess.run(["dd", f"if={name}", "of=/dev/null", "bs=4M", f"count={blocks}", "iflag=direct"], check=True,
                               stderr=subprocess.DEVNULL)
                left -= blocks << 22
        if left < 1 << 22:
            break
    subprocess.run(["dd", "if=/dev/zero", f"of={scratch}", "bs=4M", f"count={max(1, write_bytes >> 22)}", "oflag=direct",
                    "conv=fsync"], check=True, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    os.remove(scratch)
    return seconds


class Job:
    def __init__(self, name, source, read, write, ours, theirs):
        self.name, self.source, self.read, self.write, self.ours, self.theirs = name, source, read, write, ours, theirs


def jobs(d, make_step, parameters):
    """Sources of a GPT of about so many parameters. Masters of trained weights round to them, so that every format is
    read as it would be."""
    hidden = 1024
    layers = max(1, (parameters - 32000 * hidden) // (12 * hidden * hidden))
    subprocess.run([make_step, f"{d}/run", "--layers", str(layers // 4 * 4 or 4), "--hidden", str(hidden), "--ffn", str(4 * hidden),
                    "--vocab", "32000", "--tp", "2", "--pp", "2"], check=True, stdout=subprocess.DEVNULL)

    def convert(source, target, *flags):
        subprocess.run([CAIRN, "convert", f"{d}/{source}", f"{d}/{target}", *flags], check=True, capture_output=True)

    convert("run", "weights", "--to", "native", "--dtype", "fp32", "--tp", "1", "--pp", "1", "--dp", "1")
    convert("weights", "dcp", "--to", "dcp", "--dp", "4")
    convert("run", "zero2", "--to", "megatron-deepspeed", "--zero", "2", "--tp", "1", "--pp", "1", "--dp", "4")
    convert("run", "zero1", "--to", "megatron-deepspeed", "--zero", "1", "--tp", "2", "--pp", "2", "--dp", "2")
    size = {name: sum(map(os.path.getsize, files_of(f"{d}/{name}"))) for name in ("dcp", "zero2", "zero1")}
    count = size["dcp"] // 4
    universal = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder"]
    step = next(name for name in os.listdir(f"{d}/zero1") if name.startswith("global_step"))
    return [
        Job("DCP fp32 -> safetensors", f"{d}/dcp", size["dcp"], size["dcp"],
            ["convert", f"{d}/dcp", "OUT", "--to", "safetensors"],
            ("dcp_to_torch_save + save_file", [sys.executable, "-c", DCP_TO_SAFETENSORS, f"{d}/dcp", "OUT"])),
        Job("ZeRO-2 -> fp16 safetensors", f"{d}/zero2", 4 * count, 2 * count,
            ["strip", f"{d}/zero2", "OUT", "--dtype", "fp16", "--format", "safetensors"],
            ("zero_to_fp32 + save_file", [sys.executable, "-c", ZERO_TO_SAFETENSORS, f"{d}/zero2", "OUT"])),
        Job("ZeRO-1 TP2 PP2 -> TP1 PP4", f"{d}/zero1", size["zero1"], size["zero1"],
            ["convert", f"{d}/zero1", "OUT", "--to", "megatron-deepspeed", "--zero", "1", "--tp", "1", "--pp", "4", "--dp", "2"],
            ("ds_to_universal", [*universal, f"{d}/zero1/{step}", "--output_folder", "OUT"])),
    ]


def measure(job, d, rounds, peers):
    out = os.path.join(d, "out")
    contenders = {"cairn": [CAIRN, *job.ours]}
    if peers:
        contenders[job.theirs[0]] = job.theirs[1]
    limits, times, memory = [], {name: [] for name in contenders}, {name: 0 for name in contenders}
    for round_ in range(rounds):
        names = list(contenders)
        for name in names[round_ % len(names):] + names[:round_ % len(names)]:
            evict(job.source)
            seconds, peak = run(*(out if part == "OUT" else part for part in contenders[name]))
            if name != "cairn":
                start = time.perf_counter()
                sync(out)
                seconds += time.perf_counter() - start
            memory[name] = max(memory[name], peak)
            times[name].append(seconds)
            for rest in (out, out + ".pt"):
                remove(rest)
        evict(job.source)
        limits.append(limit(job.source, job.read, job.write, out))
        print(f"{job.name}, round {round_ + 1}: limit {limits[-1]:.2f} s, " +
              ", ".join(f"{name} {values[-1]:.2f} s" for name, values in times.items()), file=sys.stderr, flush=True)
    moved = max(limits) - min(limits) > VOID * statistics.median(limits)
    rows = []
    for name, values in times.items():
        ratios = [value / bound for value, bound in zip(values, limits)]
        rows.append({"job": job.name, "by": name, "seconds": statistics.median(values), "ratio": statistics.median(ratios),
                     "ratio_from": min(ratios), "ratio_to": max(ratios), "peak_memory_bytes": memory[name],
                     "limit_seconds": statistics.median(limits), "limit_moved": moved,
                     "read_bytes": job.read, "write_bytes": job.write})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=size_of, default=size_of("2GB"), help="of the whole state, 14 a parameter")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", help="on the disk to measure; default: a temporary directory")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=a.dir) as d:
        make_step = os.path.join(os.path.dirname(CAIRN), "make_step")
        rows = []
        for job in jobs(d, make_step, a.bytes // BYTES_PER_PARAMETER):
            rows += measure(job, d, a.rounds, not a.no_peers)
    if a.json:
        print(json.dumps(rows, indent=1))
        return
    print("| conversion | by | s | × one read and one write (from – to) | peak memory |\n| --- | --- | ---: | ---: | ---: |")
    for row in rows:
        print(f"| {row['job']} | {row['by']} | {row['seconds']:.2f} | {row['ratio']:.2f} ({row['ratio_from']:.2f} – "
              f"{row['ratio_to']:.2f}){' limit moved' if row['limit_moved'] else ''} | {row['peak_memory_bytes'] / 2**20:.0f} MiB |")


if __name__ == "__main__":
    main()
