"""Archiving a trained step, packed and proven, against `tar | zstd -T0 -3`, which proves nothing, and against the disk: one
O_DIRECT read of the step, one write of what we make of it, and reading that back (turns.py).

    scripts/bench archive [--bytes 600MB] [--rounds 5] [--no-peers]

The rival is timed with the fsync that ours has, and without. A time counts once `archive verify` found the store good, or
tar compared its archive with the step. The sizes of the results are printed on stderr.
"""

import glob
import os
import subprocess
import sys

from sources import CAIRN
from trained_state import trained_step
from turns import Contender, Job, Limit, main


def bytes_of(path):
    names = glob.glob(os.path.join(path, "*")) if os.path.isdir(path) else [path]
    return sum(map(os.path.getsize, names))


def tell_size(name, step, out):
    print(f"{name}: {bytes_of(out) / bytes_of(step):.3f} of {bytes_of(step) / 1e6:.0f} MB", file=sys.stderr)


def jobs(directory, size, peers):
    (step,) = glob.glob(os.path.join(trained_step(CAIRN, size), "step-*"))
    run, name = os.path.split(step)

    def verified(store):
        tell_size("cairn", step, store)
        return subprocess.run([CAIRN, "archive", "verify", store], stdout=subprocess.DEVNULL).returncode == 0

    def compared(archive):
        tell_size("tar | zstd", step, archive)
        return subprocess.run(["sh", "-c", f"zstd -dcq '{archive}' | tar -df - -C '{run}'"]).returncode == 0

    pack = [CAIRN, "archive", "run", step, "--store", "OUT", "--pack"]
    subprocess.run([part.replace("OUT", os.path.join(directory, "first")) for part in pack], check=True,
                   stdout=subprocess.DEVNULL)
    packed = bytes_of(os.path.join(directory, "first"))
    rival = ["sh", "-c", f"tar -cf - -C '{run}' '{name}' | zstd -q -T0 -3 -o 'OUT'"]
    rivals = [Contender("tar | zstd -T0 -3, fsync", step, rival, compared),
              Contender("tar | zstd -T0 -3", step, rival, compared, synced=False)]
    yield Job("archive", Limit(step, bytes_of(step), packed),
              [Contender("cairn archive run --pack", step, pack, verified), *(rivals if peers else [])])


if __name__ == "__main__":
    main(__doc__, jobs, "600MB")
