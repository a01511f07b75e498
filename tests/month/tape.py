"""The tape behind the store: a file that was not touched for some hours becomes a stub, of its size and without its bytes."""

import os
import shutil

from clock import DAY

MIN_BYTES = 1 << 20  # smaller files stay on disk


def is_stub(path):
    info = os.stat(path)
    return info.st_size >= MIN_BYTES and info.st_blocks * 512 < info.st_size // 8


def migrate(world, older_than_hours=24):
    """Tars and their pieces; sidecars stay on disk."""
    for path in sorted(world.store.iterdir()):
        if ".tar" not in path.name or path.name.endswith(".json") or not path.is_file() or str(path) in world.theirs:
            continue
        info = path.stat()
        if info.st_size < MIN_BYTES or is_stub(path) or world.clock.now - info.st_mtime < older_than_hours * DAY / 24:
            continue
        with world.act("tape", f"{path.name} goes to tape"):
            rotten = str(path) in world.oracle.rotten
            shutil.copy2(path, world.tape / path.name)
            os.truncate(path, 0)
            os.truncate(path, info.st_size)
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
            if rotten:
                world.oracle.rots(path)


def recall_command(world):
    """For `[recall]`: a shell command that brings files back, or fails, and leaves them as they are, if the tape library is out of
    order or the disk is full."""
    script = world.root / "etc/recall.sh"
    script.write_text(f'test ! -e {world.root}/etc/tape-is-down || exit 1\n'
                      f'for f in "$@"; do\n  on_tape={world.tape}/"$(basename "$f")"\n'
                      '  cp --sparse=never "$on_tape" "$f" && continue\n'
                      '  truncate -s 0 "$f"; truncate -r "$on_tape" "$f"; exit 1  # a full disk: a stub again\ndone\n')
    return f"sh {script} {{paths}}"


def stubs(world):
    return [path for path in sorted(world.store.glob("*.tar*")) if is_stub(path)]
