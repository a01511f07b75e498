"""Save and load of a trained state: ours and other tools, against a raw transfer taken in the same round.

Contenders take turns, each round starts with the next one, and figures are medians of the rounds. A save counts once
every file was fsynced and was read back equal; a load ends in tensors that were there before, and counts once they are
equal. Saves are timed in both states of free memory: as found, when pages that went back to the host of a virtual machine are
needed again (each costs about ten times as much), and recycled, right after a file of the same size was removed. A limit that
moved by more than 15 % over the rounds makes a table void: it is printed with that word.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore", message="torch.distributed is disabled")

import small_tensors  # noqa: E402
from peers import PEERS, Ours, OursLazy, files_of  # noqa: E402
from trained_state import Shared, trained_step  # noqa: E402
from usage import Used  # noqa: E402

UNITS = {"kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "b": 1}
VOID = 0.15
RAW = "raw O_DIRECT"
PAGE_CACHE = "plain read"


def size_of(text):
    digits = text.lower().rstrip("kmgib")
    return int(float(digits) * UNITS[text.lower()[len(digits):].strip() or "b"])


def available_memory():
    with open("/proc/meminfo") as info:
        return next(int(line.split()[1]) * 1024 for line in info if line.startswith("MemAvailable"))


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


def recycle(directory, size):
    """Leaves as much free memory as a file of this size in the page cache took."""
    block = b"\1" * (1 << 20)
    with tempfile.NamedTemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(0, size, len(block)):
            file.write(block)


class Times:
    """{(contender, state): [(stall, durable) of each round]}"""

    def __init__(self):
        self.of = {}

    def add(self, name, state, values):
        self.of.setdefault((name, state), []).append(values)

    def median(self, name, state, index):
        return statistics.median(v[index] for v in self.of[name, state])

    def ratio(self, name, state, limit, index=1):
        return statistics.median(v[index] / l[index] for v, l in zip(self.of[name, state], self.of[limit, state]))

    def void(self, limit, state):
        values = [v[1] for v in self.of[limit, state]]
        return max(values) - min(values) > VOID * statistics.median(values)


def rotated(contenders, round_):
    at = round_ % len(contenders)
    return contenders[at:] + contenders[:at]


def bench_save(a, shared, peers):
    times = Times()
    contenders = [RAW, Ours(shared), OursLazy(shared), *peers]
    for round_ in range(a.rounds):
        for state in ("as found", "recycled"):
            for contender in rotated(contenders, round_):
                path = os.path.join(a.dir, "state")
                if state == "as found":
                    time.sleep(a.settle)
                else:
                    recycle(a.dir, shared.bytes)
                if contender is RAW:
                    seconds = shared.ask("raw_write", path)["seconds"]
                    times.add(RAW, state, (seconds, seconds))
                    continue
                result = contender.save(shared.tensors, path)
                shared.check(contender.read_back(shared.tensors, path))
                remove(path)
                times.add(contender.name, state, result)
                print(f"round {round_ + 1} {state}: {contender.name} stall {result[0]:.2f} s, durable {result[1]:.2f} s",
                      file=sys.stderr, flush=True)
    names = [c if c is RAW else c.name for c in contenders]
    rows = ["| saved by | as found: stall s | durable s | × limit | recycled: stall s | durable s | × limit |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for name in names:
        cells = []
        for state in ("as found", "recycled"):
            cells += [f"{times.median(name, state, 0):.2f}", f"{times.median(name, state, 1):.2f}", f"{times.ratio(name, state, RAW):.2f}"]
        rows.append("| " + " | ".join([name, *cells]) + " |")
    return times, rows, RAW, ("as found", "recycled")


def bench_load(a, shared, peers):
    """Memory is what a load took at most, in all of its processes, beside the tensors and the page cache."""
    times, states = Times(), ("warm", "cold")
    ours = Ours(shared)
    # What DCP writes, DCP async writes, too; torch.load with mmap reads what torch.save wrote.
    contenders = [ours, *(p for p in peers if "async" not in p.name and "lazy" not in p.name)]
    path = {c.name: os.path.join(a.dir, "state-" + "".join(filter(str.isalnum, c.name))) for c in contenders}
    for c in contenders:
        c.save(shared.tensors, path[c.name])
    shard = os.path.join(ours.step(path[ours.name]), "shard-00000.h5")
    for round_ in range(a.rounds):
        for state in states:
            for contender in rotated([RAW, PAGE_CACHE, *contenders], round_):
                if (contender is RAW) != (state == "cold") and contender in (RAW, PAGE_CACHE):
                    continue  # each is the limit of one state
                files = [shard] if contender in (RAW, PAGE_CACHE) else files_of(path[contender.name])
                for file in files:
                    shared.ask(state, file)
                if contender in (RAW, PAGE_CACHE):
                    seconds = shared.ask("raw_read" if contender is RAW else "page_cache_read", shard)["seconds"]
                    times.add("limit", state, (seconds, seconds))
                else:
                    for tensor in shared.tensors.values():
                        tensor.zero_()
                    with Used(os.getpid()) as used:
                        before, start = used.memory, time.perf_counter()
                        contender.load(shared.tensors, path[contender.name])
                        seconds = time.perf_counter() - start
                    shared.check(shared.tensors.items())
                    times.add(contender.name, state, (used.memory - before, seconds))
                    print(f"round {round_ + 1} {state}: {contender.name} {seconds:.2f} s", file=sys.stderr, flush=True)
                for file in files:
                    shared.ask("cold", file)  # the next one finds the page cache as empty as this one did
    rows = ["| loaded by | warm s | × plain read | cold s | × O_DIRECT read | memory, MiB |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for name in ["limit", *(c.name for c in contenders)]:
        cells = []
        for state in states:
            cells += [f"{times.median(name, state, 1):.2f}", f"{times.ratio(name, state, 'limit'):.2f}"]
        most = max(used for state in states for used, _ in times.of[name, state])
        cells.append("" if name == "limit" else f"{most / 2**20:.0f}")
        rows.append("| " + " | ".join([name, *cells]) + " |")
    return times, rows, "limit", states


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("what", choices=["save", "load"])
    p.add_argument("--bytes", type=size_of, default=4 * 1000**3, help="size of the state, like 4GB")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--dir", default=".", help="where files are written; its disk is what is measured")
    p.add_argument("--settle", type=float, help="seconds until memory counts as found (default 10, for small states 0)")
    p.add_argument("--peers", default=",".join(PEERS), help="comma-separated: " + ", ".join(PEERS))
    p.add_argument("--small", type=int, default=100_000, help="small tensors that are loaded, too (small_tensors.py)")
    p.add_argument("--only-small", action="store_true")
    p.add_argument("--json", metavar="FILE", help="all times")
    p.add_argument("--cairn", default=os.environ.get("CAIRN", "build/cairn"))
    a = p.parse_args()
    if a.settle is None:
        a.settle = 10 if a.bytes >= 256 << 20 else 0
    os.environ["CAIRN"] = os.path.abspath(a.cairn)  # whose helper cairn.torch starts
    if a.only_small:
        with tempfile.TemporaryDirectory(prefix="cairn-bench-", dir=a.dir) as directory:
            return print("\n".join(small_tensors.table(a.small, directory, a.rounds)))
    names = [n for n in PEERS if n in a.peers.split(",") and not (a.what == "save" and "load" in n)]
    need = 4 * a.bytes  # the state, our snapshot or what a loader makes, a peer's copy, the page cache
    if available_memory() < need:
        raise SystemExit(f"this takes {need / 1e9:.1f} GB of memory, {available_memory() / 1e9:.1f} GB are available; give smaller --bytes")
    step = trained_step(a.cairn, a.bytes)
    a.dir = tempfile.mkdtemp(prefix="cairn-bench-", dir=a.dir)
    try:
        need = (1 + (len(names) if a.what == "load" else 1)) * 1.1 * a.bytes
        if shutil.disk_usage(a.dir).free < need:
            raise SystemExit(f"this takes {need / 1e9:.1f} GB of disk; give another --dir")
        shared = Shared(a.cairn, step)
        bench = bench_save if a.what == "save" else bench_load
        times, rows, limit, states = bench(a, shared, [PEERS[n]() for n in names])
        shared.close()
        small = small_tensors.table(a.small, a.dir, a.rounds) if a.what == "load" and a.small else []
    finally:
        shutil.rmtree(a.dir, ignore_errors=True)
    print(f"{shared.bytes / 1e9:.2f} GB, {len(shared.tensors)} tensors, median of {a.rounds} rounds; all read back and equal\n")
    print("\n".join([*rows, "", *small]))
    for state in states:
        if times.void(limit, state):
            print(f"\nvoid, {state}: the limit moved by more than {VOID:.0%} over the rounds")
    if a.json:
        with open(a.json, "w") as file:
            json.dump({"bytes": shared.bytes, "rounds": a.rounds, "verified_bytes": shared.checked_bytes,
                       "seconds": {f"{name}, {state}": values for (name, state), values in times.of.items()}}, file, indent=1)


if __name__ == "__main__":
    main()
