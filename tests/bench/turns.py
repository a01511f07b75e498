"""Processes that do one job, in turns with the limit: one O_DIRECT read of the bytes that are needed and one such write
of the result, by bench_server; and, for those that prove their result, with one such read of it more.

The start of the turns moves on with each round, and every source's files are dropped from the page cache before its turn.
A time is that of the whole process, imports included, and of fsync of what it wrote; it counts once the result was
checked. Ratios are taken within a round. A limit that moved by more than 15 % is marked.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from peers import files_of, sync
from save_speed import VOID, remove, rotated, size_of
from sources import CAIRN
from usage import read, tree

BLOCK, PAGE = 4 << 20, 4096
LIMIT = "one O_DIRECT read and write"


class Contender:
    """A command that makes OUT from source; right(OUT) checks the result."""

    def __init__(self, name, source, command, right=lambda out: True, synced=True):
        self.name, self.source, self.command, self.right, self.synced = name, source, command, right, synced

    def time(self, out):
        """Seconds, peak memory and seconds of the processor."""
        evict(self.source)
        start = time.perf_counter()
        peak, cpu = run(*(part.replace("OUT", out) for part in self.command))
        if self.synced:
            sync(out)
        seconds = time.perf_counter() - start
        if not self.right(out):
            raise SystemExit(f"{self.name}: the result is not what the source holds")
        for rest in (out, out + ".pt"):
            remove(rest)
        return seconds, peak, cpu


class Limit:
    """A read of `bytes` bytes of the source's largest files, and a write. `backs`: seconds of reading that back."""

    name = LIMIT

    def __init__(self, source, read, write):
        self.source, self.read, self.write, self.backs = source, read, write, []

    def time(self, out):
        evict(self.source)
        files, seconds, left = sorted(files_of(self.source), key=os.path.getsize, reverse=True), 0, self.read
        while left >= PAGE and os.path.getsize(files[0]) >= PAGE:
            for name in files:
                part = min(left, os.path.getsize(name)) // PAGE * PAGE
                if part:
                    seconds += raw("raw_read", name, part)
                    left -= part
        size = max(1, self.write // PAGE) * PAGE
        seconds += raw("raw_write", out, size)
        with open(out, "wb") as file:  # as large as the result
            for _ in range(0, size, BLOCK):
                file.write(bytes(BLOCK))
        evict(out)
        self.backs.append(raw("raw_read", out, size))
        os.remove(out)
        return seconds, 0, 0


class Job:
    """The first contender is ours, which the others are compared with."""

    def __init__(self, name, limit, contenders):
        self.name, self.limit, self.contenders = name, limit, contenders


def raw(what, path, size):
    done = subprocess.run([os.path.join(os.path.dirname(CAIRN), "bench_server"), what, path, str(size)], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)["seconds"]


def run(*command):
    """Runs a process; returns the peak memory of the largest of it and its children, and their processor seconds."""
    peak, before = 0, resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=log,
                                   env=os.environ | {"DS_ACCELERATOR": "cpu"})
        while process.poll() is None:  # getrusage() would tell this process's own maximum
            peak = max(peak, high_water(process.pid))
            time.sleep(0.01)
        log.seek(0)
        if process.returncode != 0:
            raise RuntimeError(f"{command}: {log.read().decode()[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return peak, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def high_water(pid):
    status = [read(process, "status") for process in tree(pid)]
    return max((int(line.split()[1]) * 1024 for text in status for line in text.splitlines() if line.startswith("VmHWM")), default=0)


def evict(path):
    for name in files_of(path):
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def measure(job, out, rounds):
    """Rows of the table."""
    contenders = [job.limit, *job.contenders]
    times, cpu, memory = {c.name: [] for c in contenders}, {c.name: [] for c in contenders}, {c.name: 0 for c in contenders}
    for round_ in range(rounds):
        for contender in rotated(contenders, round_):
            seconds, peak, cpu_seconds = contender.time(out)
            times[contender.name].append(seconds)
            cpu[contender.name].append(cpu_seconds)
            memory[contender.name] = max(memory[contender.name], peak)
        print(f"{job.name}, round {round_ + 1}: " + ", ".join(f"{name} {values[-1]:.2f} s" for name, values in times.items()),
              file=sys.stderr, flush=True)
    limits, ours = times[LIMIT], times[job.contenders[0].name]
    moved = max(limits) - min(limits) > VOID * statistics.median(limits)
    rows = []
    for name, values in times.items():
        ratios = [value / bound for value, bound in zip(values, limits)]
        proven = [value / (bound + back) for value, bound, back in zip(values, limits, job.limit.backs)]
        rows.append({"job": job.name, "by": name, "seconds": statistics.median(values), "seconds_from": min(values),
                     "seconds_to": max(values), "ratio": statistics.median(ratios), "ratio_from": min(ratios),
                     "ratio_to": max(ratios), "ratio_with_read_back": statistics.median(proven),
                     "to_ours": statistics.median(v / o for v, o in zip(values, ours)),
                     "cpu_seconds": statistics.median(cpu[name]), "peak_memory_bytes": memory[name],
                     "limit_moved": moved, "read_bytes": job.limit.read, "write_bytes": job.limit.write, "rounds": rounds})
    return rows


def table(rows):
    lines = ["| job | by | s (from – to) | × limit (from – to) | × limit and a read back | CPU s | peak memory | ours × faster |",
             "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in rows:
        cells = [row["job"], row["by"], f"{row['seconds']:.2f} ({row['seconds_from']:.2f} – {row['seconds_to']:.2f})"]
        if row["by"] == LIMIT:
            cells += ["limit moved" if row["limit_moved"] else "1", "", "", "", ""]
        else:
            cells += [f"{row['ratio']:.2f} ({row['ratio_from']:.2f} – {row['ratio_to']:.2f})",
                      f"{row['ratio_with_read_back']:.2f}", f"{row['cpu_seconds']:.2f}",
                      f"{row['peak_memory_bytes'] / 2**20:.0f} MiB", f"{row['to_ours']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main(description, jobs, size="2GB"):
    """jobs(directory, bytes of the state, whether with peers) makes the sources of each job when it is asked for it."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=size_of, default=size_of(size), help="of the whole state, 14 a parameter")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", help="on the disk to measure; default: a temporary directory")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=a.dir) as d:
        for job in jobs(d, a.bytes, not a.no_peers):
            rows += measure(job, os.path.join(d, "out"), a.rounds)
    print(json.dumps(rows, indent=1) if a.json else "\n".join(table(rows)))
