"""A second reader of the native format, written from ckpt/FORMAT.md alone; and h5py on index.h5.

Both read a step made by make_step and must agree with each other, digest by digest.
"""

import glob
import json
import os
import struct
import subprocess
import tempfile
import unittest

import h5py
import numpy as np
import xxhash

CHUNK = 4 << 20
DTYPES = {1: ("fp64", 8), 2: ("fp32", 4), 3: ("fp16", 2), 4: ("bf16", 2), 5: ("fp8_e4m3", 1), 6: ("fp8_e5m2", 1),
          7: ("int64", 8), 8: ("int32", 4), 9: ("int16", 2), 10: ("int8", 1), 11: ("uint8", 1), 12: ("bool", 1)}
ROLES = {1: "weight", 2: "master", 3: "exp_avg", 4: "exp_avg_sq", 5: "rng"}


def digest(data, seed=0):
    return xxhash.xxh3_128_digest(data, seed=seed % 2**64)


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
    assert c.raw(8) == b"CAIRNCAT" and c.get("I") == 1
    counts = c.get("I"), c.get("I"), c.get("Q")
    tensors, files, pieces = [], [], []
    for _ in range(counts[0]):
        name, role, dtype = c.text(), c.get("B"), c.get("B")
        shape = c.dims(c.get("B"))
        c.get("b"), c.get("B"), c.get("Q"), c.get("Q"), c.get("i")
        tensors.append({"name": name, "role": ROLES[role], "dtype": DTYPES[dtype], "shape": shape})
    for _ in range(counts[1]):
        files.append(c.text())
    for _ in range(counts[2]):
        tensor, file, offset, stored, codec = c.get("I"), c.get("I"), c.get("Q"), c.get("Q"), c.get("B")
        rank = len(tensors[tensor]["shape"])
        box = c.dims(rank), c.dims(rank)
        span = c.get("Q"), c.get("Q")
        chunks = [c.raw(16) for _ in range(c.get("I"))]
        assert codec == 0
        pieces.append((tensor, file, offset, stored, box, span, chunks))
    assert c.at == len(data)
    return tensors, files, pieces


def piece_seed(manifest, tensor, box, span):
    text = "{}|{}|{}|{}|{}|[{}]|{}:{}".format(
        manifest["run"], manifest["step"], tensor["role"], tensor["name"], tensor["dtype"][0],
        ", ".join(f"{o}:{o + e}" for o, e in zip(*box)), *span)
    return xxhash.xxh3_64_intdigest(text.encode())


class NativeFormat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temp = tempfile.TemporaryDirectory()
        subprocess.run([os.environ["CAIRN_MAKE_STEP"], cls.temp.name + "/run", "--tp", "2", "--pp", "2", "--dp", "3"], check=True)
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
        for index, file, offset, stored, box, span, chunks in pieces:
            tensor = tensors[index]
            data = self.read(files[file])[offset:offset + stored]
            covered[files[file]].append((offset, offset + stored))
            seed = piece_seed(manifest, tensor, box, span)
            self.assertEqual([digest(data[i * CHUNK:(i + 1) * CHUNK], seed + i) for i in range(len(chunks))], chunks)
            size = tensor["dtype"][1]
            view = out[f"/{tensor['role']}/{tensor['name']}"][tuple(slice(o, o + e) for o, e in zip(*box))]
            whole = view.reshape(-1, size).copy()
            whole[span[0]:span[1]] = np.frombuffer(data, np.uint8).reshape(-1, size)
            view[...] = whole.reshape(view.shape)
        for entry in manifest["files"]:
            data, at, frame = self.read(entry["name"]), 0, b""
            self.assertEqual(len(data), entry["bytes"])
            for begin, end in sorted(covered.get(entry["name"], [])):
                frame += data[at:begin]
                at = end
            self.assertEqual(digest(frame + data[at:]).hex(), entry["digest"], entry["name"])
        return tensors, out

    def test_a_reader_made_from_the_specification_agrees_with_h5py(self):
        tensors, out = self.tensors_from_pieces()
        self.assertGreater(len(tensors), 50)
        with h5py.File(os.path.join(self.step, "index.h5")) as index:
            for tensor in tensors:
                path = f"/{tensor['role']}/{tensor['name']}"
                raw = out[path]
                with self.subTest(path):
                    dataset = index[path]
                    self.assertEqual(list(dataset.shape), tensor["shape"])
                    if tensor["dtype"][0] == "bf16":
                        ours = (raw.reshape(-1).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
                    else:
                        ours = raw.reshape(-1).view({"fp32": np.float32, "uint8": np.uint8}[tensor["dtype"][0]])
                    theirs = dataset[...].astype(ours.dtype).reshape(-1)
                    np.testing.assert_array_equal(theirs, ours)

    def test_h5py_sees_model_state_and_the_shards_own_datasets(self):
        manifest = self.manifest()
        with h5py.File(os.path.join(self.step, "index.h5")) as index:
            self.assertEqual(index["model"].attrs["num_layers"], manifest["model"]["num_layers"])
            self.assertEqual(index["state"].attrs["iteration"], manifest["state"]["iteration"])
            architecture = index["model"].attrs["architecture"]
            self.assertEqual(architecture if isinstance(architecture, str) else architecture.decode(), "gpt2")
        with h5py.File(os.path.join(self.step, "shard-00000.h5")) as shard:
            tensors, files, pieces = decode_catalog(shard["/cairn/catalog"][...].tobytes())
            self.assertEqual(files, ["shard-00000.h5"])
            for index, _, offset, stored, box, span, _ in pieces:
                path = f"/{tensors[index]['role']}/{tensors[index]['name']}@{','.join(map(str, box[0]))}"
                if span[1] - span[0] != int(np.prod(box[1])):
                    path += f"+{span[0]}"
                self.assertEqual(shard[path].id.get_offset(), offset)
                self.assertEqual(shard[path].id.get_storage_size(), stored)
                self.assertEqual(offset % 4096, 0)


if __name__ == "__main__":
    unittest.main()
