"""A second reader of the native format, written only from ckpt/FORMAT.md; and h5py on index.h5.

Both read a step made by make_step and must agree with each other, digest by digest; plain, and compressed, where h5py
decodes through the filters of hdf5plugin and the second reader through zstd's own library.
"""

import ctypes
import ctypes.util
import glob
import json
import os
import struct
import subprocess
import tempfile
import unittest

import h5py
import hdf5plugin  # noqa: F401  registers the zstd filter
import numpy as np
import xxhash

CHUNK = 4 << 20
DTYPES = {1: ("fp64", 8), 2: ("fp32", 4), 3: ("fp16", 2), 4: ("bf16", 2), 5: ("fp8_e4m3", 1), 6: ("fp8_e5m2", 1),
          7: ("int64", 8), 8: ("int32", 4), 9: ("int16", 2), 10: ("int8", 1), 11: ("uint8", 1), 12: ("bool", 1),
          13: ("fp8_e8m0", 1), 14: ("fp4_e2m1_x2", 1)}
ROLES = {1: "weight", 2: "master", 3: "exp_avg", 4: "exp_avg_sq", 5: "rng", 6: "step", 25: "json", 26: "pickle", 27: "training"}


def digest(data, seed=0):
    return xxhash.xxh3_128_digest(data, seed=seed % 2**64)


ZSTD = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
ZSTD.ZSTD_decompress.restype = ctypes.c_size_t
ZSTD.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]


def unpack(stored, decoded_bytes, size):
    """zstd, then HDF5's shuffle backwards."""
    planes = ctypes.create_string_buffer(decoded_bytes)
    assert ZSTD.ZSTD_decompress(planes, decoded_bytes, stored, len(stored)) == decoded_bytes
    return np.frombuffer(planes, np.uint8).reshape(size, -1).T.tobytes()


def encode(manifest):
    return (json.dumps(manifest, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def get(self, code):
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def raw(self, count):
        self.at += count
        assert self.at <= len(self.data)
        return self.data[self.at - count:self.at]

    def text(self):
        return self.raw(self.get("H")).decode()

    def dims(self, rank):
        return [self.get("Q") for _ in range(rank)]


def decode_catalog(data):
    c = Cursor(data)
    assert c.raw(8) == b"CAIRNCAT"
    version = c.get("I")
    assert version in (1, 2, 3, 4)
    counts = c.get("I"), c.get("I"), c.get("Q")
    tensors, files, pieces = [], [], []
    for _ in range(counts[0]):
        name, number = c.text(), c.get("B")
        role = c.text() if number == 255 and version >= 3 else ROLES[number]
        dtype = c.get("B")
        shape = c.dims(c.get("B"))
        cuts = {}
        if version < 4:
            c.get("b"), c.get("B"), c.get("Q"), c.get("Q"), c.get("i")
        else:
            for _ in range(c.get("B")):
                axis, dimension = c.get("B"), c.get("B")
                assert axis in (0, 1, 2) and dimension < len(shape) and c.get("Q") > 0 and c.get("Q") <= 2**32
                cuts[axis] = dimension
            tied, experts, layer = c.get("B"), c.get("B"), c.get("i")
            assert tied <= 1 and experts <= 1 and layer >= -1 and set(cuts) <= ({1, 2} if experts else {0})
        tensors.append({"name": name, "role": role, "dtype": DTYPES[dtype], "shape": shape, "cuts": cuts})
    for _ in range(counts[1]):
        files.append(c.text())
    for _ in range(counts[2]):
        tensor, file, offset, stored, codec = c.get("I"), c.get("I"), c.get("Q"), c.get("Q"), c.get("B")
        rank = len(tensors[tensor]["shape"])
        box = c.dims(rank), c.dims(rank)
        span = c.get("Q"), c.get("Q")
        chunks = [c.raw(16) for _ in range(c.get("I"))]
        assert codec == 0 or (codec in (1, 2, 3) and version >= 2)
        table = None
        if codec:
            assert codec != 3 or offset == stored == 0
            table = [((c.get("Q"), c.get("I"), c.raw(16)) if codec != 3 else (0, 0, None)) +
                     ([(c.get("I"), c.get("H")) for _ in range(c.get("I"))] if codec > 1 else None,)
                     for _ in chunks]
        pieces.append((tensor, file, offset, stored, box, span, chunks, table))
    assert c.at == len(data)
    return tensors, files, pieces


def piece_seed(manifest, tensor, box, span):
    text = "{}|{}|{}|{}|{}|[{}]|{}:{}".format(
        manifest["run"], manifest["step"], tensor["role"], tensor["name"], tensor["dtype"][0],
        ", ".join(f"{o}:{o + e}" for o, e in zip(*box)), *span)
    return xxhash.xxh3_64_intdigest(text.encode())


def join(low, weight, exceptions):
    """A master, joined from its low halves and its weight."""
    low = np.frombuffer(low, np.uint16)
    high = weight - (low > 0x8000).astype(np.uint16)
    for index, half in exceptions:
        high[index] = half
    return (high.astype(np.uint32) << 16 | low).tobytes()


def derive(master, exceptions):
    """Weights, derived from their masters."""
    with np.errstate(over="ignore"):
        weight = master.view(np.float32).astype(np.float16).view(np.uint16)
    nan = np.isnan(master.view(np.float32))
    weight[nan] = (master[nan] >> 16 & 0x8000) | 0x7e00 | (master[nan] >> 13 & 0x1ff)
    for index, element in exceptions:
        weight[index] = element
    return weight.tobytes()


def is_derived(piece):
    return piece[7] is not None and piece[7][0][2] is None


def read_piece(file, piece, size, seed, other):
    """Its elements and the extents of the file that hold them; every digest checked. `other`: bits of the weight or master."""
    _, _, offset, stored, _, span, chunks, table = piece
    total = (span[1] - span[0]) * size
    if table is None:
        assert stored == total
        table = [(offset + at, min(CHUNK, total - at), chunks[at // CHUNK], None) for at in range(0, total, CHUNK)]
    else:
        assert offset == table[0][0] and stored == sum(bits & 0x7fffffff for _, bits, _, _ in table)
    elements, extents = b"", []
    for i, (begin, bits, stored_digest, exceptions) in enumerate(table):
        bytes_, encoded = bits & 0x7fffffff, bits >> 31
        data = file[begin:begin + bytes_]
        assert stored_digest is None or digest(data, seed + i) == stored_digest
        decoded = min(CHUNK, total - i * CHUNK)
        if exceptions is not None:
            part = other[i * CHUNK // size:][:decoded // size]
            data = derive(part, exceptions) if stored_digest is None else join(data, part, exceptions)
        elif encoded:
            data = unpack(data, decoded, size)
        assert len(data) == decoded and digest(data, seed + i) == chunks[i]
        elements += data
        extents.append((begin, begin + bytes_))
    return elements, extents


def cairn(*args):
    return subprocess.run([os.environ["CAIRN"], *args], check=True, capture_output=True, text=True).stdout


class NativeFormat:
    flags = ["--tp", "2", "--pp", "2", "--dp", "3"]
    architecture = "gpt2"

    @classmethod
    def setUpClass(cls):
        cls.temp = tempfile.TemporaryDirectory()
        subprocess.run([os.environ["CAIRN_MAKE_STEP"], cls.temp.name + "/run", *cls.flags], check=True)
        (cls.step,) = glob.glob(cls.temp.name + "/run/step-*")

    @classmethod
    def tearDownClass(cls):
        cls.temp.cleanup()

    def read(self, name):
        with open(os.path.join(self.step, name), "rb") as f:
            return f.read()

    def manifest(self):
        text = self.read("manifest.json")
        manifest = json.loads(text)
        self.assertEqual(encode(manifest), text, "canonical")
        stated = manifest.pop("digest")
        self.assertEqual(digest(encode(manifest)).hex(), stated)
        return manifest

    def tensors_from_pieces(self):
        """{path: raw elements}, every digest checked on the way."""
        manifest = self.manifest()
        where = manifest["catalog"]
        blob = self.read("index.h5")[where["offset"]:where["offset"] + where["bytes"]]
        self.assertEqual(digest(blob).hex(), where["digest"])
        tensors, files, pieces = decode_catalog(blob)
        out = {f"/{t['role']}/{t['name']}": np.full(t["shape"] + [t["dtype"][1]], 255, np.uint8) for t in tensors}
        covered = {file: [] for file in files}
        self.encoded = self.joined = self.exceptions = 0
        pieces.sort(key=is_derived)  # weights come before masters, but for derived ones
        for piece in pieces:
            index, file, box, span = piece[0], piece[1], piece[4], piece[5]
            tensor = tensors[index]
            size = tensor["dtype"][1]
            part = tuple(slice(o, o + e) for o, e in zip(*box))
            other = np.zeros(0, np.uint8)
            if tensor["role"] in ("weight", "master"):
                other = out[f"/{'weight' if tensor['role'] == 'master' else 'master'}/{tensor['name']}"][part]
            data, extents = read_piece(self.read(files[file]), piece, size, piece_seed(manifest, tensor, box, span),
                                       other.reshape(-1).view(np.uint16 if tensor["role"] == "master" else np.uint32)[span[0]:span[1]])
            covered[files[file]] += extents
            for _, bits, _, exceptions in piece[7] or []:
                self.encoded += bits >> 31 if exceptions is None else 0
                self.joined += exceptions is not None
                self.exceptions += len(exceptions or [])
            view = out[f"/{tensor['role']}/{tensor['name']}"][part]
            whole = view.reshape(-1, size).copy()
            whole[span[0]:span[1]] = np.frombuffer(data, np.uint8).reshape(-1, size)
            view[...] = whole.reshape(view.shape)
        for entry in manifest["files"]:
            data, at, envelope = self.read(entry["name"]), 0, b""
            self.assertEqual(len(data), entry["bytes"])
            for begin, end in sorted(covered.get(entry["name"], [])):
                envelope += data[at:begin]
                at = end
            self.assertEqual(digest(envelope + data[at:]).hex(), entry["digest"], entry["name"])
        return tensors, out

    def test_a_reader_made_from_the_specification_agrees_with_h5py(self):
        tensors, out = self.tensors_from_pieces()
        self.assertGreater(len(tensors), 50)
        with h5py.File(os.path.join(self.step, "index.h5")) as index:
            for tensor in tensors:
                path = f"/{tensor['role']}/{tensor['name']}"
                raw = out[path]
                with self.subTest(path):
                    if self.joined and tensor["role"] == self.joined_role:
                        self.joins_with_h5py(index, tensor["name"], raw)
                        self.assertNotIn(path, index)
                        continue
                    dataset = index[path]
                    self.assertEqual(list(dataset.shape), tensor["shape"])
                    if tensor["dtype"][0] == "bf16":
                        ours = (raw.reshape(-1).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
                    else:
                        ours = raw.reshape(-1).view({"fp32": np.float32, "fp16": np.float16, "uint8": np.uint8}[tensor["dtype"][0]])
                    theirs = dataset[...].astype(ours.dtype).reshape(-1)
                    np.testing.assert_array_equal(theirs, ours)

    def test_h5py_reads_model_and_state(self):
        manifest = self.manifest()
        with h5py.File(os.path.join(self.step, "index.h5")) as index:
            self.assertEqual(index["model"].attrs["num_layers"], manifest["model"]["num_layers"])
            self.assertEqual(index["state"].attrs["iteration"], manifest["state"]["iteration"])
            architecture = index["model"].attrs["architecture"]
            self.assertEqual(architecture if isinstance(architecture, str) else architecture.decode(), self.architecture)


class PlainShards(NativeFormat, unittest.TestCase):
    def test_h5py_reads_the_datasets_of_a_shard(self):
        with h5py.File(os.path.join(self.step, "shard-00000.h5")) as shard:
            tensors, files, pieces = decode_catalog(shard["/cairn/catalog"][...].tobytes())
            self.assertEqual(files, ["shard-00000.h5"])
            for index, _, offset, stored, box, span, _, table in pieces:
                self.assertIsNone(table)
                path = f"/{tensors[index]['role']}/{tensors[index]['name']}@{','.join(map(str, box[0]))}"
                if span[1] - span[0] != int(np.prod(box[1])):
                    path += f"+{span[0]}"
                self.assertEqual(shard[path].id.get_offset(), offset)
                self.assertEqual(shard[path].id.get_storage_size(), stored)
                self.assertEqual(offset % 4096, 0)


class Experts(NativeFormat, unittest.TestCase):
    flags = ["--experts", "8", "--tp", "2", "--pp", "2", "--dp", "4", "--ep", "2", "--etp", "2"]
    architecture = "mixture"

    def test_each_expert_lies_with_the_ranks_that_hold_it(self):
        topology = self.manifest()["topology"]
        self.assertEqual(topology, {"tp": 2, "pp": 2, "dp": 4, "zero": 0, "ep": 2, "etp": 2})
        where = self.manifest()["catalog"]
        tensors, files, pieces = decode_catalog(self.read("index.h5")[where["offset"]:where["offset"] + where["bytes"]])
        ranks = {1: lambda rank: rank % 2, 2: lambda rank: rank // 2 % 2}
        found = set()
        for index, file, _, _, box, *_ in pieces:
            for axis, dimension in tensors[index]["cuts"].items():
                if axis == 0:
                    continue
                rank = int(files[file][len("shard-"):-len(".h5")])
                half = tensors[index]["shape"][dimension] // 2
                self.assertEqual((box[0][dimension], box[1][dimension]), (ranks[axis](rank) * half, half), tensors[index])
                found.add((axis, dimension))
        self.assertEqual(found, {(2, 0), (1, 1), (1, 2)})


class PackedShards(NativeFormat, unittest.TestCase):
    """Pieces of no chunk, of one and of several with a rest, boxes and flat ranges."""

    flags = ["--tp", "2", "--pp", "1", "--dp", "2", "--zero", "1", "--vocab", "70000", "--hidden", "64", "--packed"]

    def test_chunks_are_encoded_where_it_pays(self):
        self.tensors_from_pieces()
        self.assertGreater(self.encoded, 10)
        with h5py.File(os.path.join(self.step, "shard-00000.h5")) as shard:
            paths = [path for path in shard["exp_avg"] if path.startswith("embedding.word.weight@")]
            self.assertEqual(len(paths), 2, "whole chunks and the rest")
            for path in paths:
                dataset = shard["exp_avg"][path]
                filters = dataset.id.get_create_plist()
                self.assertEqual([filters.get_filter(i)[0] for i in range(filters.get_nfilters())], [2, 32015])
                self.assertEqual(dataset.size % dataset.chunks[0], 0)

    def test_the_verbs_read_it(self):
        cairn("verify", self.step)
        cairn("reshape", self.step, self.temp.name + "/wide", "--tp", "1", "--dp", "4")
        (wide,) = glob.glob(self.temp.name + "/wide/step-*")
        self.assertEqual(*[json.loads(cairn("fingerprint", step, "--json"))["fingerprint"] for step in (self.step, wide)])
        cairn("strip", self.step, self.temp.name + "/release", "--dtype", "fp16")
        self.assertIn('"shuffle+zstd"', cairn("inspect", self.step, "--slices", "--json"))

    def test_h5dump_lists_the_shard(self):
        done = subprocess.run(["h5dump", "-H", "-p", os.path.join(self.step, "shard-00000.h5")], check=True,
                              capture_output=True, text=True)
        self.assertIn("FILTER_ID 32015", done.stdout)


class SplitMasters(PackedShards):
    """The same with masters as low halves."""

    whole = PackedShards.flags[:-1] + ["--unrounded", "final_norm.weight"]
    flags = whole + ["--packed", "--split-master"]
    joined_role = "master"

    def joins_with_h5py(self, index, name, raw):
        low = index["/master_low/" + name][...].reshape(-1).view(np.uint16)
        np.testing.assert_array_equal(low, raw.reshape(-1).view(np.uint32) & 0xffff)

    def test_masters_are_joined(self):
        self.tensors_from_pieces()
        self.assertGreater(self.joined, 50)
        self.assertGreater(self.exceptions, 0)

    def same_files(self, one, other):
        self.assertEqual(sorted(os.listdir(one)), sorted(os.listdir(other)))
        for name in os.listdir(one):
            with open(os.path.join(one, name), "rb") as a, open(os.path.join(other, name), "rb") as b:
                self.assertTrue(a.read() == b.read(), name)

    def test_conversions_match_the_plain_step(self):
        run, whole = self.temp.name + "/run", self.temp.name + "/whole"
        subprocess.run([os.environ["CAIRN_MAKE_STEP"], whole, *self.whole], check=True)
        cairn("diff", run, whole)
        cairn("reshape", run, run + "-virtual", "--tp", "1", "--virtual")
        for source in (run, run + "-virtual", whole):
            cairn("reshape", source, source + "-tp1", "--tp", "1")
            cairn("convert", source, source + "-hf", "--to", "hf")
        for source in (run, run + "-virtual"):
            self.same_files(source + "-tp1/step-00000100", whole + "-tp1/step-00000100")
            self.same_files(source + "-hf", whole + "-hf")

    def test_the_archive_restores_it(self):
        store, back = self.temp.name + "/store", self.temp.name + "/back"
        cairn("archive", "run", self.step, "--store", store, "--pack")
        cairn("archive", "restore", store + ":run@100", back)
        self.same_files(back, self.step)


class DerivedWeights(SplitMasters):
    """The same with fp16 weights that are not stored, one of which differs from its rounded master."""

    whole = SplitMasters.whole + ["--dtype", "fp16"]
    flags = whole + ["--packed", "--split-master"]
    joined_role = "weight"

    def joins_with_h5py(self, index, name, raw):
        weight = index["/master/" + name][...].astype(np.float16).reshape(-1)
        wrong = np.flatnonzero(weight.view(np.uint16) != raw.reshape(-1).view(np.uint16))
        self.assertEqual(list(wrong), [weight.size - 1] if name == "final_norm.weight" else [])


if __name__ == "__main__":
    unittest.main()
