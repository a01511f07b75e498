"""Accidents: bit rot, full disks, outages."""

import contextlib
import os

import tape


def _flip(path, offset):
    info = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1 << (offset % 8)]))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))  # bit rot changes no time


def rot_store(world):
    """A bit of a stored file of a member; verify reads it, so it must report it."""
    names = {record["tar"] if "tar" in record else tar: (tar, record) for tar, record in world.oracle.reader.records(world.store)}
    choices = [(tar, record) for tar, record in names.values()
               if not record.get("pieces") and (world.store / tar).exists() and not tape.is_stub(world.store / tar)
               and str(world.store / tar) not in world.oracle.rotten]
    if not choices:
        return None
    tar, record = world.random.choice(choices)
    file = max(record["files"], key=lambda f: f["bytes"])
    size = file.get("stored_bytes", file["bytes"])
    offset = file["offset"] + world.random.randrange(size)
    with world.act("vandal", f"a bit of {tar} at {offset} rots"):
        _flip(world.store / tar, offset)
        world.oracle.rots(world.store / tar)
    return world.store / tar


def rot_step(world, step):
    """A range of a step on scratch: a bit in each page of the second half of its largest shard, so that tensors are hit."""
    shard = max(step.glob("shard-*.h5"), key=lambda path: path.stat().st_size)
    size = shard.stat().st_size
    with world.act("vandal", f"{shard.relative_to(world.root)} rots"):
        for offset in range(size // 2, size * 9 // 10, 4096):
            _flip(shard, offset + world.random.randrange(4096))


@contextlib.contextmanager
def outage(world):
    """The store's file system is not mounted: its mount point exists, and cannot be written to."""
    aside = world.root / "store-away"
    os.rename(world.store, aside)
    world.store.write_text("not mounted\n")
    world.troubles.add("outage")
    real, world.store = world.store, aside
    try:
        yield
    finally:
        world.store = real
        world.store.unlink()
        os.rename(aside, world.store)
        world.troubles.discard("outage")


@contextlib.contextmanager
def full(world, directory):
    """No byte is left on the small file system of `directory`."""
    filler = directory / ".filler"
    with world.act("vandal", f"{directory.name} is full"), open(filler, "wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
    world.troubles.add("full")
    try:
        yield
    finally:
        filler.unlink()
        world.troubles.discard("full")
