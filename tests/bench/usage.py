"""The resources of a process and its children: processor seconds and memory.

Memory is anonymous memory, and shared memory once: that of the process that holds most of it. The page cache does not count.
"""

import os
import threading
import time

INTERVAL = 0.02  # seconds between two looks at the memory
TICKS = os.sysconf("SC_CLK_TCK")


def tree(pid):
    """This process and its children, without those that have ended."""
    found = [pid]
    for process in found:
        try:
            for task in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{task}/children") as children:
                    found += map(int, children.read().split())
        except OSError:
            continue
    return found


def read(pid, name):
    try:
        with open(f"/proc/{pid}/{name}") as file:
            return file.read()
    except OSError:
        return ""


def cpu(pid):
    """Seconds of the processor, also of processes that have ended and were waited for."""
    fields = [read(process, "stat").rpartition(")")[2].split() for process in tree(pid)]
    return sum(sum(map(int, own[11:15])) for own in fields) / TICKS


def memory(pid):
    status = [dict(line.split(":", 1) for line in read(process, "status").splitlines()) for process in tree(pid)]
    anonymous, shared = ([int(own.get(key, "0 kB").split()[0]) * 1024 for own in status] for key in ("RssAnon", "RssShmem"))
    return sum(anonymous) + max(shared)


class Used:
    """A context that measures a process: `cpu` seconds, and `memory`, its peak in bytes."""

    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        self.memory, self.cpu, self._stop = memory(self.pid), -cpu(self.pid), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._stop.is_set():
            self.memory = max(self.memory, memory(self.pid))
            time.sleep(INTERVAL)

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self.cpu += cpu(self.pid)
