"""The purge daemon: deletes every file on scratch that was not accessed for 30 days."""

import os

from clock import DAY

PURGE_DAYS = 30


def sweep(world):
    old = []
    for directory, _, names in os.walk(world.scratch):
        for name in names:
            path = os.path.join(directory, name)
            if world.clock.now - os.lstat(path).st_atime > PURGE_DAYS * DAY:
                old.append(path)
    if not old:
        return 0
    with world.act("purge", f"{len(old)} files, {os.path.relpath(old[0], world.root)} the first"):
        for path in old:
            world.disown(path)
            os.unlink(path)
    return len(old)
