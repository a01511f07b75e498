"""The cost of each verb for checkpoints of very many small tensors: CPU seconds and peak memory, by their number.

Each line is a process of its own. A save and a load of cairn.torch count the trainer and its helper together.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

CAIRN, MAKE_STEP = os.environ.get("CAIRN", "build/cairn"), os.environ.get("CAIRN_MAKE_STEP", "build/make_step")
TENSORS_A_LAYER = 48  # make_step: 12 parameters, each with weight, master and moments


def in_torch(count, shape, run):
    """Saves twice, for what the first save prepares, and loads. Prints a line of JSON for each."""
    import cairn.torch
    import torch
    from cairn._helper import helper

    def taken():
        fields = pathlib.Path(f"/proc/{helper().pid}/stat").read_text().rpartition(")")[2].split()
        status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{helper().pid}/status").read_text().splitlines())
        cpu = time.process_time() + sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        return cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + int(status["VmHWM"].split()[0])

    state = {f"layer{i}.w": torch.full(shape, float(i)) for i in range(count)}
    cairn.torch.save({"w": torch.zeros(2)}, f"{run}-first", 1)  # starts the helper
    loaded = {name: torch.zeros(shape) for name in state}
    steps = [
        ("first save", lambda: cairn.torch.save(state, run, 1)),
        ("next save", lambda: cairn.torch.save(state, run, 2)),
        ("load", lambda: cairn.torch.load(loaded, run)),
    ]
    for what, step in steps:
        before, began = taken()[0], time.monotonic()
        step()
        after, peak = taken()
        print(json.dumps({"what": f"cairn.torch, {what}", "cpu": after - before, "wall": time.monotonic() - began, "peak": peak}), flush=True)
    if not all(torch.equal(value, loaded[name]) for name, value in state.items()):
        sys.exit("the load gave other values")


def files(count, shape, directory):
    import torch
    from safetensors.torch import save_file

    state = {f"layer{i}.w": torch.full(shape, float(i)) for i in range(count)}
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    torch.save(state, directory / "state.pt")


def trained(count, directory):
    """Seconds until the first and the next save of `cairn train` are durable, as it reports them, while it trains."""
    model = "--hidden-size 8 --num-attention-heads 1 --seq-length 8 --vocab-size 64 --bf16 --mock-data --micro-batch-size 1 --global-batch-size 1"
    run = f"--num-layers {max(1, count // TENSORS_A_LAYER)} --train-iters 2 --save-interval 1 --save {directory}/trained"
    done = subprocess.run([CAIRN, "train", *model.split(), *run.split()], capture_output=True, text=True, check=True)
    for what, seconds in zip(("first", "next"), re.findall(r"durable after ([0-9.]+) s", done.stdout)):
        yield {"what": f"cairn train, {what} save", "cpu": None, "wall": float(seconds), "peak": 0}


def measured(what, *command):
    began = time.monotonic()
    with subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{command}: exit status {process.returncode}")
    return {"what": what, "cpu": usage.ru_utime + usage.ru_stime, "wall": time.monotonic() - began, "peak": usage.ru_maxrss}


def rows(count, directory, shape):
    own = [sys.executable, __file__, "--shape", "x".join(map(str, shape)), "--dir", directory]
    done = subprocess.run([*own, "--torch", str(count)], stdout=subprocess.PIPE, text=True, check=True)
    yield from map(json.loads, done.stdout.splitlines())
    subprocess.run([*own, "--files", str(count)], check=True)
    at = directory.joinpath
    yield from trained(count, directory)
    yield measured("format's own writer", MAKE_STEP, at("made"), "--layers", max(1, count // TENSORS_A_LAYER), "--vocab", 61, "--dtype", "bf16")
    yield measured("safetensors → native", CAIRN, "convert", at("model.safetensors"), at("native"), "--to", "native")
    yield measured("state.pt → native", CAIRN, "convert", at("state.pt"), at("other"), "--to", "native")
    yield measured("native → dcp", CAIRN, "convert", at("native"), at("dcp"), "--to", "dcp")
    yield measured("dcp → native", CAIRN, "convert", at("dcp"), at("back"), "--to", "native")
    yield measured("native → safetensors", CAIRN, "convert", at("native"), at("safetensors"), "--to", "safetensors")
    yield measured("GPT → hf", CAIRN, "convert", at("made"), at("hf"), "--to", "hf")
    yield measured("GPT reshaped to TP=2", CAIRN, "reshape", at("made"), at("reshaped"), "--tp", 2)
    for verb in ("ls", "inspect", "verify"):
        yield measured(verb, CAIRN, verb, at("native"))
    yield measured("diff", CAIRN, "diff", at("native"), at("back"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--shape", default="50x50", help="of each tensor, fp32")
    parser.add_argument("--dir", type=pathlib.Path, help="where to work")
    parser.add_argument("--torch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--files", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    shape = tuple(map(int, options.shape.split("x")))
    if options.torch:
        return in_torch(options.torch, shape, str(options.dir / "run"))
    if options.files:
        return files(options.files, shape, options.dir)
    for count in options.counts:
        with tempfile.TemporaryDirectory(dir=options.dir, prefix="many-") as directory:
            for row in rows(count, pathlib.Path(directory), shape):
                cpu = f"{row['cpu']:7.2f} s CPU" if row["cpu"] is not None else " " * 13
                print(f"{count:>7}  {row['what']:<26} {cpu}  {row['wall']:7.2f} s  {row['peak'] >> 10:6} MiB", flush=True)


if __name__ == "__main__":
    main()
