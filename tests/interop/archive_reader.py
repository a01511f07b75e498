"""A second reader of an archive store, written only from docs/archive-format.md and ckpt/FORMAT.md.

It knows tars, pieces, bundles, packed files and parity, and shares no code with Cairn.
"""

import ctypes
import ctypes.util
import hashlib
import json
import re
import struct

import numpy as np
import xxhash

TAR = re.compile(r".+-step-[0-9]{8,}(\.fp16|\.files)?\.[0-9a-f]{8}\.tar")
BUNDLE = re.compile(r".+-bundle-[0-9]+-[0-9]+\.[0-9a-f]{8}\.tar")
FORMS = {None: "full", ".fp16": "weights-fp16", ".files": "files"}
PARITY_MAGICS = (b"CAIRNTPR", b"CAIRNPAR")
BLOCK = 65536

ZSTD = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
ZSTD.ZSTD_decompress.restype = ctypes.c_size_t
ZSTD.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]


def digest(data, seed=0):
    return xxhash.xxh3_128_digest(data, seed=seed)


def text_of(value):
    return json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, separators=(",", ": ")) + "\n"


def read_json(path):
    """A sidecar, with its digest and form checked."""
    text = path.read_text()
    value = json.loads(text)
    assert text_of(value) == text, f"{path}: other bytes than its content"
    check_digest(value)
    return value


def check_digest(value):
    rest = {key: item for key, item in value.items() if key != "digest"}
    assert digest(text_of(rest).encode()).hex() == value["digest"], "its digest is another"


def unescape(text):
    """A name in a sidecar of version 4 or later, as bytes."""
    name = re.sub(rb"\\(\\|x([0-9a-f]{2}))", lambda m: b"\\" if m[1] == b"\\" else bytes([int(m[2], 16)]), text.encode())
    return name


class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def get(self, code):
        values = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return values[0] if len(values) == 1 else values

    def raw(self, count):
        self.at += count
        return self.data[self.at - count:self.at]


def decompress(frame, size):
    out = ctypes.create_string_buffer(size)
    assert ZSTD.ZSTD_decompress(out, size, frame, len(frame)) == size
    return out.raw


def join_planes(planes, width):
    count = len(planes) // width
    return np.frombuffer(planes, np.uint8, count * width).reshape(width, count).T.tobytes() + planes[count * width:]


def join_master(low, weights, exceptions):
    low = np.frombuffer(low, "<u2")
    high = np.frombuffer(weights, "<u2") - (low > 0x8000).astype("<u2")
    for index, half in exceptions:
        high[index] = half
    return (high.astype("<u4") << 16 | low).tobytes()


def read_table(data):
    """The frames of a packed file: (begin, stored bytes, bytes, element bytes, low halves of), and its size."""
    entries, descriptor, magic = struct.unpack("<IBI", data[-9:])
    assert (descriptor, magic) == (0, 0x8F92EAB1)
    seek_bytes = 8 + 8 * entries + 9
    assert struct.unpack_from("<II", data, len(data) - seek_bytes) == (0x184D2A5E, seek_bytes - 8)
    stored, decoded = struct.unpack_from("<II", data, len(data) - 9 - 8)
    begin = len(data) - seek_bytes - stored
    assert decoded == 0 and struct.unpack_from("<II", data, begin) == (0x184D2A5C, stored - 8)
    table = Cursor(data[begin + 8:begin + stored])
    assert table.raw(8) == b"CAIRNPK1"
    size = table.get("Q")
    names = [table.raw(table.get("H")).decode() for _ in range(table.get("I"))]
    frames, at = [], 0
    for _ in range(table.get("I")):
        chunk, stored, width, kind = table.get("IIBB")
        low = None
        if kind == 1:
            name, offset, count = table.get("IQI")
            low = names[name], offset, [table.get("IH") for _ in range(count)]
        frames.append((at, stored, chunk, width, low))
        at += stored
    assert at == begin
    return frames, size


class Member:
    """One record, and the bytes of the file or files that its entries lie in."""

    def __init__(self, store, tar, record):
        self.store, self.tar, self.record = store, tar, record
        parts = TAR.fullmatch(tar)
        assert FORMS[parts[1]] == record["form"] and tar.split(".")[-2] == record["manifest_digest"][:8]
        self.files = {self.name_of(file): file for file in record["files"]}
        where = record["bundle"]["name"] if "bundle" in record else tar
        self.places = [store / piece["name"] for piece in record.get("pieces", [{"name": where}])]
        if "pieces" in record:
            assert [path.stat().st_size for path in self.places] == [piece["bytes"] for piece in record["pieces"]]

    def name_of(self, entry):
        return unescape(entry["name"]) if "tree" in self.record else entry["name"].encode()

    def stored(self, offset, count):
        """Bytes of the tar, over its pieces."""
        for path in self.places:
            size = path.stat().st_size
            if offset < size or path == self.places[-1]:
                with open(path, "rb") as file:
                    file.seek(offset)
                    return file.read(count)
            offset -= size

    def read(self, name):
        """The original bytes of a file."""
        entry = self.files[name]
        data = self.stored(entry["offset"], entry["stored_bytes"])
        if entry.get("packed"):
            frames, size = read_table(data)
            out = b"".join(self.chunk(data, *frame) for frame in frames)
            assert len(out) == size
            data = out
        assert len(data) == entry["bytes"], name
        assert hashlib.sha256(data).hexdigest() == entry["sha256"], name
        return data

    def chunk(self, data, begin, stored, size, width, low):
        if low is None:
            return join_planes(decompress(data[begin:begin + stored], size), width)
        name, offset, exceptions = low
        weights = self.read(name.encode())[offset:offset + size // 2]
        return join_master(join_planes(decompress(data[begin:begin + stored], size // 2), width), weights, exceptions)

    def others(self):
        """Directories and links of a tree: {name: (mode, target or None)}."""
        entries = self.record.get("tree", {"entries": []})["entries"]
        return {self.name_of(e): (int(e["mode"], 8), unescape(e["link"]) if "link" in e else None) for e in entries}

    def tree_digest(self):
        lines = ["cairn tree 2", self.record["source"]]
        contents = {self.name_of(f): (f["name"], f"file {f['mode']} {f['bytes']} {f['sha256']}") for f in self.record["files"]}
        for entry in self.record["tree"]["entries"]:
            content = f"link {entry['link']}" if "link" in entry else f"directory {entry['mode']}"
            contents[self.name_of(entry)] = (entry["name"], content)
        lines += ["\t".join(contents[name]) for name in sorted(contents)]
        return hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()[:32]


def tar_name(record):
    mark = {form: mark or "" for mark, form in FORMS.items()}[record["form"]]
    return f"{record['name']}-step-{record['step']:08}{mark}.{record['manifest_digest'][:8]}.tar"


def members(store):
    """All members by the name of their tar; one with its own tar takes precedence over the same in a bundle."""
    found = {}
    sidecars = [path for path in store.iterdir() if path.name.endswith(".tar.json")]
    for path in sorted(sidecars, key=lambda p: bool(TAR.fullmatch(p.name[:-5]))):
        name = path.name[:-5]
        if TAR.fullmatch(name):
            record = read_json(path)
            assert record["format"] == "cairn-archive" and 2 <= record["version"] <= 7
            assert tar_name(record) == name
            found[name] = Member(store, name, record)
        elif BUNDLE.fullmatch(name):
            bundle = read_json(path)
            assert (bundle["format"], bundle["version"], bundle["name"]) == ("cairn-bundle", 1, name)
            for record in bundle["members"]:
                check_digest(record)
                found[tar_name(record)] = Member(store, tar_name(record), record)
    return found


def gf_tables():
    powers, logs, x = [0] * 510, [0] * 256, 1
    for i in range(255):
        powers[i] = powers[i + 255] = x
        logs[x] = i
        x = x << 1 ^ (0x11D if x & 0x80 else 0)
    return powers, logs


POWERS, LOGS = gf_tables()


def gf_mul(a, b):
    return POWERS[LOGS[a] + LOGS[b]] if a and b else 0


def gf_inverse(a):
    return POWERS[255 - LOGS[a]]


def scaled(block, factor):
    return np.array([gf_mul(factor, value) for value in range(256)], np.uint8)[block]


def parity_row(j, data):
    """g(j, d) for each d."""
    return [gf_mul(gf_inverse((data + j) ^ d), data ^ d) for d in range(data)]


def solve(rows, values):
    """Gauss's elimination over GF(2^8); rows is square, values are blocks."""
    rows, values = [list(row) for row in rows], list(values)
    for i in range(len(rows)):
        pivot = next(k for k in range(i, len(rows)) if rows[k][i])
        rows[i], rows[pivot], values[i], values[pivot] = rows[pivot], rows[i], values[pivot], values[i]
        inverse = gf_inverse(rows[i][i])
        rows[i] = [gf_mul(inverse, value) for value in rows[i]]
        values[i] = scaled(values[i], inverse)
        for k in range(len(rows)):
            factor = rows[k][i]
            if k != i and factor:
                rows[k] = [a ^ gf_mul(factor, b) for a, b in zip(rows[k], rows[i])]
                values[k] = values[k] ^ scaled(values[i], factor)
    return values


def repair(tar, parity):
    """The original bytes of the tar, from its damaged bytes and its parity file."""
    head = Cursor(parity)
    assert head.raw(8) in PARITY_MAGICS and head.get("I") == 1
    data_of, parity_of, size, data_count, parity_count = head.get("IIQQQ")
    digests = [head.raw(16) for _ in range(data_count + parity_count)]
    assert digest(parity[:head.at]) == head.raw(16)
    assert data_count == -(-size // BLOCK) and len(parity) == head.at + parity_count * BLOCK
    tar = tar[:size].ljust(data_count * BLOCK, b"\0")
    blocks = [np.frombuffer(tar, np.uint8, BLOCK, i * BLOCK) for i in range(data_count)]
    good = [digest(block.tobytes(), i) == digests[i] for i, block in enumerate(blocks)]
    zeros = np.zeros(BLOCK, np.uint8)
    parity_at = 0
    for group in range(0, data_count, 32 * data_of):
        count = min(32 * data_of, data_count - group)
        stripes = min(32, count)
        for stripe in range(stripes):
            places = [stripe + d * stripes for d in range(data_of)]
            lost = [d for d, place in enumerate(places) if place < count and not good[group + place]]
            rows, values = [], []
            for j in range(parity_of):
                block = np.frombuffer(parity, np.uint8, BLOCK, head.at + (parity_at + j) * BLOCK)
                if digest(block.tobytes(), parity_at + j) != digests[data_count + parity_at + j] or len(rows) == len(lost):
                    continue
                row = parity_row(j, data_of)
                for d, place in enumerate(places):
                    if d not in lost:
                        block = block ^ scaled(blocks[group + place] if place < count else zeros, row[d])
                rows.append([row[d] for d in lost])
                values.append(block)
            assert len(rows) == len(lost), "more is damaged than its parity repairs"
            for d, block in zip(lost, solve(rows, values)):
                blocks[group + places[d]] = block
                assert digest(block.tobytes(), group + places[d]) == digests[group + places[d]]
            parity_at += parity_of
    return b"".join(block.tobytes() for block in blocks)[:size]
