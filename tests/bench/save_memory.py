"""Host memory of a save: what the trainer and all processes that it started take at most, beyond what the trainer took before.

Their anonymous memory, and shared memory once: that of the process that holds most of it. The page cache does not count. Each contender is a process
of its own and saves three times, for what it keeps between saves.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings

warnings.filterwarnings("ignore", message="torch.distributed is disabled")

import torch  # noqa: E402
from peers import PEERS  # noqa: E402
from save_speed import remove, size_of  # noqa: E402

SAVES = 3


def tree(pid):
    """(anonymous, shared bytes) of each process: of this one and those that it started."""
    try:
        with open(f"/proc/{pid}/status") as status:
            fields = {key: value for key, _, value in (line.partition(":") for line in status)}
        tasks = os.listdir(f"/proc/{pid}/task")
        children = [child for task in tasks for child in open(f"/proc/{pid}/task/{task}/children").read().split()]
    except OSError:  # it has ended
        return []
    own = tuple(int(fields.get(key, "0 kB").split()[0]) * 1024 for key in ("RssAnon", "RssShmem"))
    return [own, *(process for child in children for process in tree(child))]


def taken():
    anonymous, shared = zip(*tree(os.getpid()))
    return sum(anonymous) + max(shared)


class Peak:
    """Of this process and its children, while it is entered."""

    def __enter__(self):
        self.bytes, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._stop.is_set():
            self.bytes = max(self.bytes, taken())
            time.sleep(0.01)

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def saved_by(name, size, directory):
    """{bytes of the state, bytes at most beyond what there was before}"""
    tensors = {f"layers.{i}.weight": torch.randn(2048, 2048) for i in range(max(1, size // (4 << 22)))}
    tensors |= {f"layers.{i}.scale": torch.randn(()) for i in range(800)}
    before = taken()
    with Peak() as peak:
        for step in range(SAVES):
            PEERS[name]().save(tensors, path := os.path.join(directory, f"state-{step}"))
            remove(path)
    return {"state": sum(t.nbytes for t in tensors.values()), "grown": peak.bytes - before}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--bytes", type=size_of, default=size_of("2GB"), help="size of the state, like 2GB")
    p.add_argument("--dir", default=".", help="where files are written")
    p.add_argument("--peers", default=",".join(name for name in PEERS if "load" not in name), help="comma-separated")
    p.add_argument("--json", action="store_true")
    p.add_argument("--one", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.one:
        print(json.dumps(saved_by(a.one, a.bytes, a.dir)))
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="cairn-bench-", dir=a.dir) as d:
        for name in a.peers.split(","):
            command = [sys.executable, __file__, "--one", name, "--bytes", f"{a.bytes}b", "--dir", d]
            rows.append({"by": name, **json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)})
    if a.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{rows[0]['state'] / 1e9:.2f} GB, the most of {SAVES} saves\n\n| saved by | memory | × state |\n| --- | ---: | ---: |")
    for row in rows:
        print(f"| {row['by']} | {row['grown'] / 1e9:.2f} GB | {row['grown'] / row['state']:.2f} |")


if __name__ == "__main__":
    main()
