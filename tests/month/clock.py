"""The simulated clock.

Programs see it by libfaketime. The kernel does not: the files that an action touched carry the machine's own time, which
`settle` replaces by the simulated one. The month lies well in the machine's past, so that the two are never mistaken for
each other, and relatime moves an access time at every first read.
"""

import datetime
import glob
import os
import time

DAY = 86400
_LIBRARIES = ["/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib64/faketime/libfaketime.so.1"]


def library():
    """Path of libfaketime, or None."""
    found = [path for pattern in _LIBRARIES for path in sorted(glob.glob(pattern))]
    return found[0] if found else None


class Clock:
    def __init__(self, days_back=90):
        midnight = datetime.datetime.now(datetime.timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
        self.start = int(midnight.timestamp()) - days_back * DAY
        self.now = self.start

    @property
    def day(self):
        return int((self.now - self.start) // DAY)

    def stamp(self):
        """"day 03 18:00", for people."""
        of_day = int((self.now - self.start) % DAY)
        return "day %02d %02d:%02d" % (self.day, of_day // 3600, of_day % 3600 // 60)

    def go_to(self, day, hour):
        """Forward to an hour of a day; never back."""
        self.now = max(self.now, self.start + day * DAY + hour * 3600)

    def environment(self):
        """What a program needs to live in simulated time; its clock starts at `now` and runs from there."""
        begin = datetime.datetime.fromtimestamp(self.now, datetime.timezone.utc)
        return {"LD_PRELOAD": library() or "", "FAKETIME": begin.strftime("@%Y-%m-%d %H:%M:%S"), "TZ": "UTC",
                "NO_FAKE_STAT": "1", "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_DONT_RESET": "1"}

    def settle(self, root, began_ns, moved):
        """Gives all files below `root` that were read or written since `began_ns` (the machine's time) the simulated time.
        `moved(before, after)` gets each file's stat, so that caches of digests by stat can follow."""
        now_ns = int(self.now * 1_000_000_000)
        for directory, names, files in os.walk(root):
            for name in [*names, *files, "."]:
                path = os.path.join(directory, name)
                try:
                    before = os.lstat(path)
                    if max(before.st_atime_ns, before.st_mtime_ns) < began_ns:
                        continue
                    accessed = now_ns if before.st_atime_ns >= began_ns else before.st_atime_ns
                    written = now_ns if before.st_mtime_ns >= began_ns else before.st_mtime_ns
                    os.utime(path, ns=(accessed, written), follow_symlinks=False)
                    moved(before, os.lstat(path))
                except FileNotFoundError:
                    pass  # a running program's


def real_now_ns():
    # File times come from a coarse clock that lags by a tick.
    return time.time_ns() - 20_000_000
