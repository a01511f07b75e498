#!/usr/bin/env python3
"""Restores packed files of this archive: FILE.planes.zst -> FILE, bit for bit.

    tar -xf RUN-step-NNNNNNNN.XXXXXXXX.tar
    python3 unpack.py RUN/step-NNNNNNNN
    cd RUN/step-NNNNNNNN && sha256sum -c SHA256SUMS

Needs Python 3 with numpy (which h5py brings), and the `zstd` program. A packed file is a row of zstd frames, one for
each chunk of the file, followed by a table in a skippable frame:

    u8[8] "CAIRNPK1", u64 bytes of the file, u32 names, of each: u16 length, text; u32 frames, of each: u32 bytes of the
    file, u32 stored bytes, u8 element bytes, u8 kind; of kind 1 also: u32 name, u64 offset, u32 exceptions, of each:
    u32 index, u16 high half                                                          (little-endian)

What a frame decodes to has the bytes of its elements sorted into planes: first byte 0 of all elements, then byte 1
and so on, then what is left of a last broken element. Kind 1 is a float32 master of which only the low halves are
stored; the high half of an element is its bfloat16 weight, at `offset` of file `name`, less one if the low half is
above 0x8000; exceptions list all other high halves.
"""

import os
import shutil
import struct
import subprocess
import sys

import numpy as np

SUFFIX = ".planes.zst"


class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def get(self, code):
        values = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return values if len(values) > 1 else values[0]

    def raw(self, count):
        self.at += count
        return self.data[self.at - count:self.at]


def read_table(path):
    """The names and frames of a packed file."""
    with open(path, "rb") as file:
        end = file.seek(0, 2)
        file.seek(end - 17)
        table_bytes, _, entries, _, magic = struct.unpack("<IIIBI", file.read(17))
        assert magic == 0x8F92EAB1, f"{path}: no seek table at its end"
        file.seek(end - (8 + 8 * entries + 9) - table_bytes + 8)
        table = Cursor(file.read(table_bytes - 8))
    assert table.raw(8) == b"CAIRNPK1", f"{path}: no table of frames"
    table.get("Q")
    names = [table.raw(table.get("H")).decode() for _ in range(table.get("I"))]
    frames = []
    for _ in range(table.get("I")):
        size, stored, width, kind = table.get("IIBB")
        low = None
        if kind == 1:
            name, offset, count = table.get("I"), table.get("Q"), table.get("I")
            low = names[name], offset, [table.get("IH") for _ in range(count)]
        frames.append((size, stored, width, low))
    return frames


def join_planes(planes, width):
    count = len(planes) // width
    body = np.frombuffer(planes, np.uint8, count * width).reshape(width, count).T
    return body.tobytes() + planes[count * width:]


def join_master(low, weights, exceptions):
    low = np.frombuffer(low, np.uint16)
    high = np.frombuffer(weights, np.uint16) - (low > 0x8000).astype(np.uint16)
    for index, half in exceptions:
        high[index] = half
    return (high.astype(np.uint32) << 16 | low).tobytes()


def unpack(directory, name, masters):
    """Writes all chunks of a file except masters (masters=False), or only masters, whose weights are then unpacked."""
    packed, target = os.path.join(directory, name + SUFFIX), os.path.join(directory, name)
    frames = read_table(packed)
    decoder = subprocess.Popen(["zstd", "-dcq", packed], stdout=subprocess.PIPE)
    with open(target, "r+b" if masters else "xb") as out:
        for size, _, width, low in frames:
            planes = decoder.stdout.read(size // 2 if low else size)
            if bool(low) != masters:
                out.seek(size, 1)
                continue
            data = join_planes(planes, width)
            if low:
                with open(os.path.join(directory, low[0]), "rb") as weights:
                    weights.seek(low[1])
                    data = join_master(data, weights.read(size // 2), low[2])
            assert len(data) == size, f"{packed}: a frame of {len(data)} bytes, not {size}"
            out.write(data)
        out.truncate()
    assert decoder.wait() == 0, f"zstd -d {packed} failed"
    return any(low for *_, low in frames)


def main(root):
    found = [(directory, name[:-len(SUFFIX)]) for directory, _, names in os.walk(root) for name in sorted(names)
             if name.endswith(SUFFIX) and not os.path.islink(os.path.join(directory, name))]
    again = [(directory, name) for directory, name in found if unpack(directory, name, masters=False)]
    for directory, name in again:
        unpack(directory, name, masters=True)
    for directory, name in found:
        shutil.copystat(os.path.join(directory, name + SUFFIX), os.path.join(directory, name))
        os.remove(os.path.join(directory, name + SUFFIX))
    print(f"{len(found)} files unpacked; check them with sha256sum -c SHA256SUMS")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python3 unpack.py DIRECTORY")
    main(sys.argv[1])
