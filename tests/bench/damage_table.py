"""How many flipped bits each checkpoint format notices: a table in Markdown.

The same small state is saved by Cairn (make_step), torch.save, safetensors and torch.distributed.checkpoint. Bits
spread evenly over all files of each are flipped, one at a time; then the format's own loader reads everything (of
Cairn, `cairn verify`) in a process of its own, since a damaged pickle may do anything to it. A flip counts as

  noticed   the loader fails, whatever it says
  harmless  it does not, and every value is as it was (padding, unused fields)
  silent    it does not, and values differ or are missing

usage: CAIRN=build/cairn CAIRN_MAKE_STEP=build/make_step PYTHON damage_table.py [--flips N]
where PYTHON is that of the environment of scripts/setup.
"""

import argparse
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import warnings

import h5py
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

CAIRN = os.environ["CAIRN"]
MAKE_STEP = os.environ["CAIRN_MAKE_STEP"]
SECONDS = 20  # a loader that takes longer hangs; that is noticed too
MEMORY = 16 << 30
EQUAL, DIFFERS, FAILS = 0, 1, 2


def state_of(step):
    """Every tensor of a Cairn step, by way of its index."""
    tensors = {}

    def add(name, item):
        if isinstance(item, h5py.Dataset) and not name.startswith("cairn/"):
            tensors[name.replace("/", ".")] = torch.from_numpy(item[()]).clone()

    with h5py.File(step / "index.h5") as file:
        file.visititems(add)
    return tensors


def same(a, b):
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape
        and a[k].contiguous().view(torch.uint8).equal(b[k].contiguous().view(torch.uint8)) for k in a)


class Torch:
    name = f"torch.save {torch.__version__.split('+')[0]}"

    def save(self, state, directory):
        torch.save(state, directory / "state.pt")

    def load(self, directory, state):
        return same(torch.load(directory / "state.pt", weights_only=True), state)


class Safetensors:
    name = "safetensors"

    def save(self, state, directory):
        save_file(state, directory / "state.safetensors")

    def load(self, directory, state):
        return same(load_file(directory / "state.safetensors"), state)


class Dcp:
    name = "torch DCP"

    def save(self, state, directory):
        dcp.save(state, checkpoint_id=str(directory), no_dist=True)

    def load(self, directory, state):
        loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        dcp.load(loaded, checkpoint_id=str(directory), no_dist=True)
        return same(loaded, state)


class Cairn:
    name = "Cairn"

    def save(self, state, directory):
        shutil.copytree(self.step, directory, dirs_exist_ok=True)

    def load(self, directory, state):
        subprocess.run([CAIRN, "verify", directory], check=True, capture_output=True)
        return same(state_of(directory), state)


def judge(form, directory, state):
    """Loads in a child process."""
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            os._exit(EQUAL if form.load(directory, state) else DIFFERS)
        except BaseException:  # pylint: disable=broad-except
            os._exit(FAILS)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else FAILS


def flips_of(directory, count):
    """(file, bit), evenly over all files; a step that is odd meets every bit of a byte."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    total = 8 * sum(path.stat().st_size for path in files)
    every = max(1, total // count) | 1
    base = 0
    for path in files:
        bits = 8 * path.stat().st_size
        yield from ((path, bit) for bit in range(-base % every, bits, every))
        base += bits


def flip(path, bit):
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=1000, help="about so many for each format")
    flips = parser.parse_args().flips
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)  # a fork has one thread only
    root = pathlib.Path(tempfile.mkdtemp(prefix="cairn-damage-"))
    try:
        subprocess.run([MAKE_STEP, root / "run", "--layers", "1", "--hidden", "32", "--ffn", "64"], check=True)
        Cairn.step = root / "run" / "step-00000100"
        state = state_of(Cairn.step)
        print("| format | bytes | flips | noticed | harmless | silent |\n| --- | ---: | ---: | ---: | ---: | ---: |")
        for form in (Cairn(), Torch(), Safetensors(), Dcp()):
            directory = root / type(form).__name__
            directory.mkdir()
            form.save(state, directory)
            if judge(form, directory, state) != EQUAL:
                raise SystemExit(f"{form.name}: what was saved is not what is loaded")
            verdicts = []
            for path, bit in flips_of(directory, flips):
                flip(path, bit)
                verdicts.append(judge(form, directory, state))
                flip(path, bit)
            size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
            share = [f"{100 * verdicts.count(v) / len(verdicts):.1f} %" for v in (FAILS, EQUAL, DIFFERS)]
            print(f"| {form.name} | {size} | {len(verdicts)} | " + " | ".join(share) + " |", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
