"""The tools of storage.py: each has its own process over the state that bench_server shares.

    storage_tools.py NAME MEMORY_FILE      is the process of one of PEERS; its stdin describes the state, then asks
"""

import json
import sys
import time
import warnings

warnings.filterwarnings("ignore", message="torch.distributed is disabled")

from peers import PEERS, Ours  # noqa: E402
from storage_report import RAW  # noqa: E402
from trained_state import Asked, views  # noqa: E402
from usage import memory  # noqa: E402

NAMES = {"cairn.torch lazy": "cairn.torch, lazy", "torch.load mmap": "torch.save, mmap"}


class Tool(Asked):
    """One of PEERS in its own process."""

    def __init__(self, name, shared):
        file = shared.memory_file
        super().__init__([sys.executable, __file__, name, str(file)], file)
        self.name, self.pid = NAMES.get(name, name), self.process.pid
        self.ask(json.dumps(shared.about), "")
        self.before = memory(self.pid)

    def save(self, path):
        return self.ask("save", path)["seconds"]

    def load(self, path):
        return self.ask("load", path)["seconds"]


def be_tool(name, memory_file):
    peer, tensors = PEERS[name](), views(memory_file, json.loads(sys.stdin.readline()))
    print("{}", flush=True)
    for line in sys.stdin:
        what, _, path = line.rstrip("\n").partition(" ")
        start = time.perf_counter()
        done = peer.save(tensors, path) if what == "save" else peer.load(tensors, path)
        print(json.dumps({"seconds": done if what == "save" else time.perf_counter() - start}), flush=True)


class Trainer:
    """The saver and the loader of `cairn train`, in bench_server."""

    name = "cairn train"

    def __init__(self, shared):
        self.ours, self.pid, self.before = Ours(shared), shared.process.pid, shared.about["bytes"]

    def save(self, path):
        return self.ours.save(None, path)

    def load(self, path):
        start = time.perf_counter()
        self.ours.load(None, path)
        return time.perf_counter() - start


class Raw:
    name = RAW

    def __init__(self, shared, file):
        self.shared, self.file, self.pid, self.before = shared, file, shared.process.pid, 0

    def save(self, path):
        return [self.shared.ask("raw_write", path)["seconds"]] * 2

    def load(self, path):
        self.shared.ask("cold", self.file)
        return self.shared.ask("raw_read", self.file)["seconds"]


if __name__ == "__main__":
    be_tool(sys.argv[1], int(sys.argv[2]))
