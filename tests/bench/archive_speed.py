"""Archiving a trained step against `tar | zstd -T0 -3`: time and size, rounds interleaved, medians.

    scripts/bench archive STEP [--rounds 5] [--scratch DIR]

Both read the step past the page cache's help (its pages are dropped before each round). cairn's time includes reading the
store back and comparing every digest; the rival's is given without and with `sync`, and it proves nothing.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import tempfile
import time

CAIRN = os.environ["CAIRN"]


def drop(step):
    for path in step.iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def timed(*command, shell=False):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command[0] if shell else command, shell=shell, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("step", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", default=None)
    options = parser.parse_args()
    size = sum(p.stat().st_size for p in options.step.iterdir())
    results = {name: [] for name in ("cairn", "rival", "rival_synced")}
    cpu = {"cairn": [], "rival": []}
    with tempfile.TemporaryDirectory(prefix="cairn-bench-", dir=options.scratch) as scratch:
        scratch = pathlib.Path(scratch)
        for _ in range(options.rounds):
            drop(options.step)
            store = scratch / "store"
            seconds, used = timed(CAIRN, "archive", "run", options.step, "--store", store, "--pack")
            results["cairn"].append(seconds)
            cpu["cairn"].append(used)
            ours = sum(p.stat().st_size for p in store.iterdir() if ".tar" in p.name)
            shutil.rmtree(store)
            drop(options.step)
            tar = scratch / "rival.tar.zst"
            seconds, used = timed(f"tar -cf - -C '{options.step.parent}' '{options.step.name}' | zstd -q -T0 -3 -o '{tar}'", shell=True)
            results["rival"].append(seconds)
            cpu["rival"].append(used)
            results["rival_synced"].append(seconds + timed("sync", tar)[0])
            theirs = tar.stat().st_size
            tar.unlink()
    middle = {name: statistics.median(values) for name, values in results.items()}
    print(json.dumps({"bytes": size, "rounds": options.rounds, "seconds": results,
                      "cpu_seconds": {name: statistics.median(v) for name, v in cpu.items()},
                      "time_ratio": middle["cairn"] / middle["rival"], "time_ratio_synced": middle["cairn"] / middle["rival_synced"],
                      "size_ratio": ours / size, "rival_size_ratio": theirs / size, "size_against_rival": ours / theirs,
                      "bytes_per_second": size / middle["cairn"]}, indent=1))


if __name__ == "__main__":
    main()
