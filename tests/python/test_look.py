"""`cairn.open`, `diff`, `report`, `ls` and `verify` on real files: of cairn train, torch, safetensors, cairn.torch and the converter."""

import collections
import doctest
import gc
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python")]

import cairn  # noqa: E402
import cairn.torch  # noqa: E402
import h5py  # noqa: E402
import hdf5plugin  # noqa: E402, F401 - registers the zstd filter
import look_files  # noqa: E402
import numpy as np  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
from cairn import _arrays, _boxes, _library, _selection  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

FOREIGN = ("dcp", "torch-dist", "megatron-deepspeed", "megatron", "universal", "safetensors", "hf")


def setUpModule():
    """One directory for all: no test changes a file that another reads."""
    global HERE, TYPES, SHARDED
    HERE = pathlib.Path(tempfile.mkdtemp(prefix="cairn-look-"))
    unittest.addModuleCleanup(shutil.rmtree, HERE)
    look_files.make_step(HERE / "run", "--tp", 2, "--pp", 2, "--dp", 2, "--zero", 1)
    look_files.make_step(HERE / "other", "--seed", 2)
    look_files.make_step(HERE / "packed", "--packed", "--split-master", "--hidden", 64)
    for name in FOREIGN:
        look_files.cairn("convert", HERE / "run", HERE / name, "--to", name)
    TYPES = look_files.write_safetensors(HERE / "types.safetensors")
    SHARDED = look_files.write_dcp(str(HERE / "sharded"))
    torch.save({"model": TYPES, "step": 3}, HERE / "types.pt")


def bytes_of(tensor):
    return cairn.torch._objects._bytes_of(tensor)


def widened(tensor):
    """The numpy array of a tensor."""
    wide = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2) else tensor
    return wide.numpy()


def python(code):
    """The output of a new process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=environment)
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout


class ValuesTest(unittest.TestCase):
    def same(self, read, expected):
        """Type, shape and bits; only NaN for NaN if other code widened the value."""
        self.assertEqual((type(read), read.dtype, read.shape), (type(expected), expected.dtype, expected.shape))
        np.testing.assert_array_equal(read, expected)

    def holds(self, checkpoint, tensors, prefix=""):
        for name, tensor in tensors.items():
            with self.subTest(tensor=name):
                one = checkpoint[prefix + name]
                self.assertEqual((one.shape, one.nbytes), (tuple(tensor.shape), tensor.nbytes))
                self.assertEqual(one.tobytes(), bytes_of(tensor))
                self.assertEqual(one.bits[...].tobytes(), bytes_of(tensor))
                self.same(one.numpy(), widened(tensor))
                self.same(np.asarray(one), widened(tensor))

    def test_every_type_of_safetensors(self):
        with cairn.open(HERE / "types.safetensors") as checkpoint:
            self.assertEqual(set(checkpoint), set(TYPES))
            self.holds(checkpoint, TYPES)
            for name in ("fp16", "bf16", "fp8_e4m3", "int8", "bool"):
                self.assertEqual(checkpoint[name].dtype, name)
            self.assertEqual(checkpoint["bf16"].bits.dtype, "uint16")
            payload = 0x7FA5  # of a NaN: widening keeps it
            self.assertEqual(checkpoint["bf16"].numpy().view(np.uint32).ravel()[payload], payload << 16)
            self.assertEqual((checkpoint["scalar"].item(), checkpoint["one"].item(), checkpoint["scalar"].ndim), (3.5, 7, 0))
            with self.assertRaisesRegex(ValueError, "bf16: item.. needs one element, and the tensor has 65536"):
                checkpoint["bf16"].item()

    def test_every_type_of_torch_save(self):
        with cairn.open(HERE / "types.pt") as checkpoint:
            self.holds(checkpoint, TYPES, "model.")
            self.assertEqual(checkpoint.state["step"], 3)

    def test_an_unsupported_type_hides_no_other_tensor(self):
        tensors = {"a": torch.ones(2), "z": torch.ones(2, dtype=torch.complex64), "u": torch.ones(3, dtype=torch.uint16)}
        torch.save(tensors, HERE / "odd.pt")
        look_files.save_file({name: tensors[name] for name in "au"}, HERE / "odd.safetensors")
        for file, absent in (("odd.pt", {"z": "complex64", "u": "uint16"}), ("odd.safetensors", {"u": "U16"})):
            with cairn.open(HERE / file) as checkpoint:
                self.assertEqual(checkpoint["a"].numpy().tolist(), [1, 1])
                self.assertEqual(checkpoint.state["types_not_held"], absent)
                with self.assertRaisesRegex(KeyError, f"u has type {absent['u']}, which Cairn does not support"):
                    checkpoint["u"]

    def test_sharded_torch_save_files(self):
        with cairn.open(HERE / "sharded") as checkpoint:
            self.holds(checkpoint, SHARDED)
            self.assertEqual(checkpoint.step, 12)
            self.same(checkpoint["rows"][18:20, 1:3], SHARDED["rows"].numpy()[18:20, 1:3])  # of both ranks

    def check_native(self, run):
        """A step against h5py, which reads index.h5 and its shards."""
        step = look_files.step_of(run)
        with cairn.open(run) as checkpoint, h5py.File(f"{step}/index.h5") as index:
            self.assertEqual(checkpoint.path, step)
            stored = {}
            for role in set(checkpoint.roles()):
                index[role].visititems(lambda name, item: stored.update({(name, role): item}) if isinstance(item, h5py.Dataset) else None)
            self.assertEqual({(one.name, one.role) for one in checkpoint.values()}, set(stored))
            for key, dataset in stored.items():
                self.assertEqual(checkpoint[key].numpy().tobytes(), dataset[()].tobytes(), key)
        return stored

    def test_steps_against_h5py(self):
        self.assertGreater(len(self.check_native(HERE / "run")), 140)

    def test_a_packed_step_against_its_source(self):
        """Split masters, zstd: h5py cannot join them, `cairn convert` does."""
        look_files.cairn("convert", HERE / "packed", HERE / "unpacked", "--to", "safetensors", "--dtype", "bf16")
        from safetensors import safe_open

        with cairn.open(HERE / "packed") as checkpoint, safe_open(HERE / "unpacked/model.safetensors", "pt") as file:
            self.assertGreater(len(file.keys()), 20)
            for name in file.keys():
                self.assertEqual(checkpoint[name].tobytes(), bytes_of(file.get_tensor(name)), name)
                master = checkpoint[name, "master"].numpy()
                self.assertEqual(bytes_of(torch.from_numpy(master).bfloat16()), checkpoint[name].tobytes(), name)

    def test_other_systems_have_the_values_of_the_step(self):
        with cairn.open(HERE / "run") as run:
            for system in FOREIGN:
                with self.subTest(system=system), cairn.open(HERE / system) as checkpoint:
                    self.assertEqual("exp_avg" in checkpoint.roles(), system not in ("hf", "safetensors"))
                    for name, tensor in checkpoint.items():
                        role = "master" if (system, tensor.role) == ("universal", "weight") else tensor.role  # it has only the fp32
                        self.assertEqual(tensor.tobytes(), run[tensor.name, role].tobytes(), name)

    @unittest.skipUnless(os.environ.get("CAIRN_TRAIN"), "the trainer is not built")
    def test_a_step_of_cairn_train(self):
        look_files.train(HERE / "trained", HERE / "trained.log")
        self.check_native(HERE / "trained")
        with cairn.open(HERE / "trained") as checkpoint:
            self.assertEqual((checkpoint.step, checkpoint.state["iteration"], checkpoint.model["hidden_size"]), (2, 2, 32))
            self.assertEqual(checkpoint["embedding.word.weight"].dtype, "bf16")
        (row,) = cairn.report(HERE / "trained.log")
        self.assertEqual((row["iterations"], row["tp"], row["status"]), (2, 2, "ok"))


class SlicesTest(unittest.TestCase):
    def index(self, source, shape):
        """Any index that numpy accepts, except arrays."""

        def along(size):
            if size and source.random() < 0.3:
                return source.choice([int, np.int64])(source.randrange(-size, size))
            at = lambda: source.choice([None, *range(-size - 2, size + 3)])
            return slice(at(), at(), source.choice([None, 1, 2, 3, 7, -1, -2, -5]))

        parts = [along(size) for size in shape[: source.randrange(len(shape) + 1)]]
        if source.random() < 0.4:
            trailing = [along(size) for size in shape[len(parts) :]]
            parts = [*parts, ..., *trailing[source.randrange(len(trailing) + 1) :]]
        if source.random() < 0.2:
            parts.insert(source.randrange(len(parts) + 1), None)
        return parts[0] if len(parts) == 1 and source.random() < 0.5 else tuple(parts)

    def check(self, checkpoint, names, cases, seed):
        source = random.Random(seed)
        arrays = {name: checkpoint[name].numpy() for name in names}
        for _ in range(cases):
            name = source.choice(names)
            index = self.index(source, arrays[name].shape)
            read, expected = checkpoint[name][index], arrays[name][index]
            said = f"{name}[{index}]"
            self.assertEqual((type(read), read.shape, read.dtype), (type(expected), expected.shape, expected.dtype), said)
            self.assertEqual(read.tobytes(), expected.tobytes(), said)

    def test_match_numpy(self):
        names = ["fp64", "fp16", "bf16", "int32", "scalar", "one", "empty", "hollow", "bool"]
        with cairn.open(HERE / "types.safetensors") as checkpoint:
            self.check(checkpoint, names, 400, 1)
            with mock.patch.object(_selection, "_WORTH_A_GAP", 1), mock.patch.object(_boxes, "BUFFER_BYTES", 256):
                self.check(checkpoint, names, 200, 2)  # a box for each index, a buffer that holds little
            with mock.patch.object(_boxes, "BUFFER_BYTES", 256):
                self.check(checkpoint, names, 200, 3)

    def test_slices_of_shards(self):
        with cairn.open(HERE / "run") as checkpoint:
            self.check(checkpoint, ["embedding.word.weight", "layers.1.mlp.up.weight/master", "layers.0.mlp.up.bias/exp_avg"], 200, 4)

    def test_invalid_indices_are_refused(self):
        with cairn.open(HERE / "types.safetensors") as checkpoint:
            tensor = checkpoint["int32"]
            for index in ((0, 0, 0, 0, 0), 2, (0, -4), (..., ...)):
                with self.assertRaises(IndexError):
                    np.zeros(tensor.shape)[index]
                with self.assertRaises(IndexError):
                    tensor[index]
            for index in ([0, 1], np.array([1]), 1.0, "a", True, np.True_, slice(0, 1.5)):
                with self.assertRaises(TypeError, msg=repr(index)):
                    tensor[index]
            with self.assertRaisesRegex(ValueError, "always a copy"):
                tensor.__array__(copy=False)
            self.assertEqual((len(tensor), len(list(tensor)), np.asarray(tensor, dtype="float64").dtype), (2, 2, np.float64))


class BytesTest(unittest.TestCase):
    """How many bytes this process has read."""

    def read_by(self, work):
        def characters():
            text = pathlib.Path("/proc/self/io").read_text()
            return int(re.search(r"rchar: (\d+)", text)[1])

        before = characters()
        work()
        return characters() - before

    def test_a_few_rows_of_a_large_file_read_little(self):
        """16 GB that have no blocks on the disk."""
        rows, columns = 1 << 20, 4096
        header = json.dumps({"w": {"dtype": "F32", "shape": [rows, columns], "data_offsets": [0, rows * columns * 4]}}).encode()
        path = HERE / "large.safetensors"
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + rows * columns * 4)
            file.seek(8 + len(header) + (700_000 * columns + 5) * 4)
            file.write(struct.pack("<f", 2.5))
        with cairn.open(path) as checkpoint:
            tensor = checkpoint["w"]
            for index, most in [(np.s_[700_000, 5], 1 << 16), (np.s_[700_000:700_004], 1 << 18), (np.s_[::50_000, 5:6], 21 << 16)]:
                self.assertLess(self.read_by(lambda: self.assertEqual(tensor[index].max(), 2.5)), most, index)

    def test_a_slice_reads_one_chunk_of_a_step(self):
        values = torch.arange(1 << 22).view(4096, 1024)
        saved = cairn.torch.save({"w": values}, HERE / "chunks", 1)
        with cairn.open(saved.step_dir) as checkpoint:
            count = self.read_by(lambda: self.assertEqual(checkpoint["w"][1000, 3], values[1000, 3]))
        self.assertLess(count, 2 * (4 << 20))

    def test_a_record_with_a_crc_is_read_once(self):
        data = torch.arange(1 << 20).view(1024, 1024)
        torch.save({"model": {"w": data}}, HERE / "record.pt")

        def slices(checkpoint):
            for row in range(0, 1024, 100):
                self.assertEqual(checkpoint["model.w"][row, 7], data[row, 7])

        with cairn.open(HERE / "record.pt") as checkpoint:
            self.assertEqual(self.read_by(lambda: slices(checkpoint)) // data.nbytes, 1)
        with cairn.open(HERE / "record.pt", verify=False) as checkpoint:
            self.assertLess(self.read_by(lambda: slices(checkpoint)), data.nbytes // 4)


class CheckpointTest(unittest.TestCase):
    def test_names_and_roles(self):
        with cairn.open(HERE / "run") as checkpoint:
            name = "layers.0.mlp.up.weight"
            self.assertIsInstance(checkpoint, collections.abc.Mapping)
            self.assertEqual(len(checkpoint), len(list(checkpoint)))
            self.assertIs(checkpoint[name, "exp_avg"], checkpoint[f"{name}/exp_avg"])
            self.assertEqual([checkpoint[name].role, checkpoint[name].dtype, checkpoint[name, "master"].dtype], ["weight", "bf16", "fp32"])
            self.assertEqual(checkpoint.roles()[:4], ["weight", "master", "exp_avg", "exp_avg_sq"])
            read = cairn.torch.read(HERE / "run")
            self.assertEqual({key: bytes_of(value) for key, value in read.items()}, {key: one.tobytes() for key, one in checkpoint.items()})
            ups = {f"layers.{at}.mlp.up.{one}/master" for at in (0, 1) for one in ("weight", "bias")}
            self.assertEqual(set(checkpoint.match("layers.*.mlp.up.*", role="master")), ups)
            self.assertTrue(name in checkpoint and (name, "master") in checkpoint and "layers.9" not in checkpoint and (name, "x") not in checkpoint)
            with self.assertRaisesRegex(KeyError, "no tensor layers.0.mlp.op.weight; is it layers.0.mlp.up.weight"):
                checkpoint["layers.0.mlp.op.weight"]
            listed = json.loads(look_files.cairn("inspect", HERE / "run", "--json"))["tensors"]
            rows = [(one.name, one.role, one.dtype, list(one.shape), one.nbytes) for one in checkpoint.values()]
            self.assertEqual(rows, [tuple(row.values()) for row in listed])

    def test_repr_and_html(self):
        with cairn.open(HERE / "run") as checkpoint:
            self.assertRegex(repr(checkpoint), r"^<cairn checkpoint .*/run/step-00000100: step 100, \d+ tensors, \d+ kB>$")
            master = checkpoint["embedding.word.weight", "master"]
            self.assertEqual(repr(master), "<cairn tensor embedding.word.weight/master: fp32 [50, 16], 3.20 kB>")
            cells = ("embedding.word.weight/master", "master", "fp32", "[50, 16]", "3.20 kB")
            self.assertIn("".join(f"<td>{cell}</td>" for cell in cells), checkpoint._repr_html_())

    def test_a_state_dict_of_cairn_torch(self):
        class Own:
            def __reduce__(self):
                return (os.mkdir, (str(HERE / "executed"),))

        model = torch.nn.Linear(100, 100)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 100)).sum().backward()
        optimizer.step()
        values = {"tuple": (1, 2.5, None), "big": 2**70, "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "array": np.arange(6).reshape(2, 3)}
        inner = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
        state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "step": 7, "values": values, "pair": (inner, 3), "own": Own()}
        saved = cairn.torch.save(state, HERE / "state", 7)
        with cairn.open(saved.step_dir) as checkpoint:
            self.assertEqual(checkpoint["model.weight"].tobytes(), bytes_of(model.weight))
            moment = next(one for name, one in checkpoint.items() if one.role == "exp_avg" and one.shape == (100, 100))
            self.assertEqual(moment.tobytes(), bytes_of(optimizer.state_dict()["state"][0]["exp_avg"]))
            objects = checkpoint.objects
            read = {name: objects[f"values.{name}"] for name in ("tuple", "big", "size", "dtype")}
            self.assertEqual(read, {"tuple": (1, 2.5, None), "big": 2**70, "size": (2, 3), "dtype": "bfloat16"})
            self.assertEqual((objects["step"], type(objects["values.size"])), (7, tuple))
            np.testing.assert_array_equal(objects["values.array"], values["array"])
            self.assertEqual((objects["pair"][0].tolist(), objects["pair"][0].dtype, objects["pair"][1]), ([1.5, -2.0], np.float32, 3))
            self.assertRegex(repr(objects["own"]), r"^<pickle of \d+ bytes, not loaded>$")
            self.assertFalse((HERE / "executed").exists())
            with self.assertRaisesRegex(KeyError, r"step is not a tensor: .objects\['step'\] is its value"):
                checkpoint["step"]

    def test_open_inspect_and_diff_use_the_names_of_the_state_dict(self):
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model = torch.nn.Sequential(torch.nn.Linear(100, 100))
        optimizer = torch.optim.AdamW(model.parameters())
        steps = []
        for step in (1, 2):
            model(torch.ones(1, 100)).sum().backward()
            optimizer.step()
            states = dict(zip(("model", "optim"), get_state_dict(model, optimizer)))
            steps.append(cairn.torch.save({**states, "epoch": step, "lrs": [1, 2]}, HERE / "named", step).step_dir)
        with cairn.open(steps[1]) as checkpoint:
            moment = checkpoint["optim.state.0.weight.exp_avg"]
            self.assertEqual((moment.name, moment.role), ("optim.state.0.weight.exp_avg", "exp_avg"))
            self.assertIn("<cairn tensor optim.state.0.weight.exp_avg: ", repr(moment))
            for alias in (("model.0.weight", "exp_avg"), ("0.weight", "exp_avg"), (moment.name, "exp_avg"), "0.weight/exp_avg"):
                self.assertIs(checkpoint[alias], moment)
            self.assertIs(checkpoint["0.weight"], checkpoint["model.0.weight"])
            self.assertEqual(checkpoint["model.0.weight"].parameter, moment.parameter)
            self.assertNotIn("weight", checkpoint)
            listed = json.loads(look_files.cairn("inspect", steps[1], "--json"))["tensors"]
            names = {row["name"] for row in listed if row["role"] != "json"}
            self.assertEqual(names, set(checkpoint))
            (row,) = json.loads(look_files.cairn("inspect", steps[1], "optim.*.0.weight.exp_avg", "--json"))["tensors"]
            self.assertEqual(row["role"], "exp_avg")
            rows = cairn.diff(*steps)
            self.assertLess({"model.0.weight", moment.name}, set(rows.column("tensor")))
            self.assertEqual(set(rows.column("tensor")), names | {"epoch"})
            (epoch,) = [row for row in rows if row["tensor"] == "epoch"]
            self.assertEqual([epoch[key] for key in ("difference", "a", "b")], ["value", "1", "2"])
            self.assertEqual({row["tensor"] for row in cairn.diff(*steps, ignore=["optim.*", "epoch"])}, {"model.0.weight", "model.0.bias"})
        weights = f"{HERE}/named-weights"
        look_files.cairn("strip", steps[1], weights, "--format", "safetensors", "--dtype", "fp32")
        said = subprocess.run([look_files.CAIRN, "diff", steps[1], weights, "--ignore", "optimizer"], capture_output=True, text=True)
        self.assertEqual((said.returncode, said.stderr), (0, ""), said.stdout)
        said = subprocess.run([look_files.CAIRN, "diff", steps[1], weights], capture_output=True, text=True)
        self.assertIn("2 tensors compared, 2 of them equal bit for bit, 7 only in A; they differ\n", said.stdout)

    def test_closed(self):
        with cairn.open(HERE / "run") as checkpoint:
            pass
        checkpoint.close()
        self.assertEqual(checkpoint["embedding.word.weight"].shape, (50, 16))
        with self.assertRaisesRegex(ValueError, "step-00000100 is closed"):
            checkpoint["embedding.word.weight"][0]

    def test_an_unreferenced_checkpoint_is_closed(self):
        def files():
            return len(os.listdir("/proc/self/fd"))

        before = files()
        for _ in range(20):
            checkpoint = cairn.open(HERE / "dcp")
            checkpoint["embedding.word.weight"].numpy()
            del checkpoint
        gc.collect()
        with cairn.open(HERE / "run"):
            self.assertLess(files(), before + 20)

    def test_an_archived_step(self):
        policy = f'tag = "t"\nstore = "{HERE}/store"\nruns = ["{HERE}/run"]\npurge_days = 30\n[[class]]\nkeep = "full"\nlast = 1\n'
        (HERE / "policy.toml").write_text(policy)
        look_files.cairn("archive", "run", "--policy", HERE / "policy.toml")
        with cairn.open(HERE / "run") as run, cairn.open(f"{HERE}/store:run@100") as member:
            self.assertEqual(member["embedding.word.weight"].tobytes(), run["embedding.word.weight"].tobytes())


class ErrorsTest(unittest.TestCase):
    def copy(self, name):
        target = pathlib.Path(tempfile.mkdtemp(dir=HERE)) / name
        (shutil.copytree if (HERE / name).is_dir() else shutil.copy)(HERE / name, target)
        return target

    def place(self, path, data):
        """(the file below path that holds the bytes, where)"""
        for file in [path, *sorted(path.rglob("*"))]:
            if file.is_file() and (at := file.read_bytes().find(data)) >= 0:
                return file, at
        raise AssertionError(f"{path} does not hold the bytes")

    def test_missing_files_and_tensors_are_named(self):
        for path in (HERE / "nowhere", HERE / "nowhere/step-00000001"):
            with self.assertRaisesRegex(FileNotFoundError, "nowhere"):
                cairn.open(path)

    def test_other_files_are_refused(self):
        path = HERE / "notes.txt"
        path.write_text("hello")
        with self.assertRaisesRegex(cairn.NotSupported, "notes.txt"):
            cairn.open(path)

    def test_unmapped_tensors_are_left_out_on_request(self):
        path = self.copy("hf")
        file = path / "model.safetensors"
        save_file({**load_file(file), "model.extra": torch.ones(3)}, file, {"format": "pt"})
        with self.assertRaisesRegex(ValueError, "model.extra.*--allow"):
            cairn.open(path)
        with cairn.open(path, allow="*.extra") as checkpoint, cairn.open(HERE / "run") as run:
            self.assertEqual({tensor.name for tensor in checkpoint.values()}, {name for name, tensor in run.items() if tensor.role == "weight"})
            self.assertEqual(checkpoint["layers.0.mlp.up.weight"].tobytes(), run["layers.0.mlp.up.weight"].tobytes())
        with cairn.open(file, from_="safetensors") as checkpoint:
            self.assertEqual(checkpoint["model.extra"].numpy().tolist(), [1, 1, 1])
        self.assertTrue(cairn.diff(path, HERE / "run", allow=["*.extra"], ignore=["optimizer"]).equal)
        for options, says in (({"from_": "zip"}, "zip is unknown"), ({"replicas": "most"}, "replicas=most"), ({"true_vocab_size": -1}, "rows")):
            with self.subTest(**options), self.assertRaisesRegex(ValueError, says):
                cairn.open(path, **options)

    def test_a_flipped_bit_is_named_by_its_file(self):
        """In any file with a checksum over its values."""
        for name in ("run", "dcp", "torch-dist", "megatron", "megatron-deepspeed", "types.pt"):
            with self.subTest(system=name):
                path = self.copy(name)
                key = "model.fp16" if name == "types.pt" else "layers.1.mlp.up.weight/exp_avg"
                with cairn.open(path) as checkpoint:
                    data = checkpoint[key][0].tobytes()
                file, at = self.place(path, data)
                ranks.flip(file, at)
                with cairn.open(path) as checkpoint:
                    with self.assertRaisesRegex(cairn.CorruptError, re.escape(file.name)):
                        checkpoint[key][0]
                if name != "run":
                    with cairn.open(path, verify=False) as checkpoint:
                        self.assertNotEqual(checkpoint[key][0].tobytes(), data)

    def test_a_truncated_file_is_named(self):
        for name in ("run", "types.safetensors", "dcp"):
            path = self.copy(name)
            file = max([path, *path.rglob("*")], key=lambda one: one.is_file() and one.stat().st_size)
            os.truncate(file, file.stat().st_size - 100)
            with self.subTest(system=name), self.assertRaisesRegex((cairn.CorruptError, FileNotFoundError), re.escape(path.name)):
                cairn.open(path / "step-00000100" if name == "run" else path)

    def test_a_library_of_another_version_is_refused(self):
        with mock.patch.object(_library, "_VERSION", 0):
            _library.library.cache_clear()
            self.addCleanup(_library.library.cache_clear)
            with self.assertRaisesRegex(cairn.NotSupported, "of different versions"):
                cairn.open(HERE / "run")

    def test_a_missing_library_is_named(self):
        program = HERE / "by-itself" / "cairn"
        program.parent.mkdir()
        os.symlink("/bin/true", program)
        _library.library.cache_clear()
        self.addCleanup(_library.library.cache_clear)
        with mock.patch.dict(os.environ, {"CAIRN": str(program)}), self.assertRaisesRegex(FileNotFoundError, "libcairn_load.so"):
            cairn.open(HERE / "run")

    def test_a_fork_reads_independently_of_its_parent(self):
        with cairn.open(HERE / "run") as checkpoint:
            tensor = checkpoint["embedding.word.weight"]
            values = tensor.tobytes()
            reading = threading.Event()
            other = threading.Thread(target=lambda: [reading.set(), *(tensor.tobytes() for _ in range(200))])
            other.start()
            reading.wait()
            if (child := os.fork()) == 0:  # while another thread is in the library
                signal.alarm(60)
                os._exit(0 if all(tensor.tobytes() == values for _ in range(5)) else 1)
            other.join()
            for _ in range(5):
                self.assertEqual(tensor.tobytes(), values)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(tensor.tobytes(), values)

    def test_threads_read_concurrently(self):
        with cairn.open(HERE / "run") as checkpoint, cairn.open(HERE / "dcp") as other:
            expected = {name: tensor.tobytes() for name, tensor in other.items()}
            wrong = []

            def work(source, seed):
                names = list(expected)
                random.Random(seed).shuffle(names)
                wrong.extend(name for name in names if source[name].tobytes() != expected[name])

            threads = [threading.Thread(target=work, args=(source, seed)) for seed in range(2) for source in (checkpoint, other)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(wrong, [])

    def test_a_replaced_checkpoint_is_an_error_in_a_child(self):
        """Its parent still has the file open."""
        path = self.copy("types.safetensors")
        with cairn.open(path) as checkpoint:
            values = checkpoint["fp32"].tobytes()
            os.unlink(path)
            shutil.copy(HERE / "safetensors/model.safetensors", path)
            if (child := os.fork()) == 0:
                try:
                    checkpoint["fp32"].tobytes()
                except ValueError as error:
                    os._exit(0 if "has changed since it was opened" in str(error) else 1)
                os._exit(2)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            self.assertEqual(checkpoint["fp32"].tobytes(), values)


class MissingPackagesTest(unittest.TestCase):
    """Processes that have no torch, or no numpy either."""

    def test_without_torch(self):
        saved = cairn.torch.save({"step": 7, "t": (torch.Size([2]), torch.float16), "w": torch.arange(5000).bfloat16()}, HERE / "plain", 1)
        said = python(f"""
import sys; sys.modules["torch"] = None
import cairn
checkpoint = cairn.open({saved.step_dir!r})
print(checkpoint.objects["step"], [value for name, value in checkpoint.objects.items() if name.startswith("t")])
print(checkpoint["w"][3:9:2].tolist())""")
        self.assertIn("[3.0, 5.0, 7.0]", said)
        self.assertRegex(said, r"^7 .*2.*float16")

    def test_without_numpy(self):
        said = python(f"""
import sys; sys.modules["numpy"] = None
import cairn
checkpoint = cairn.open({str(HERE / "run")!r})
tensor = checkpoint["embedding.word.weight"]
print(len(checkpoint), tensor, len(tensor.tobytes()), cairn.diff({str(HERE / "run")!r}, {str(HERE / "dcp")!r}).equal)
try:
    tensor[0]
except ImportError as error:
    print(error)""")
        self.assertRegex(said, "<cairn tensor embedding.word.weight: bf16 .50, 16., 1.60 kB> 1600 (True|False)\n.*pip install numpy")

    def test_imports_only_needed_modules(self):
        said = python("""
import cairn, sys
print(sorted({"numpy", "torch", "cairn._library", "cairn._rows"} & set(sys.modules)), "open" in dir(cairn))
from cairn import *
print(open.__module__, Checkpoint.__name__)""")
        self.assertEqual(said, "[] True\nio Checkpoint\n")
        with self.assertRaisesRegex(AttributeError, "no attribute 'opne'"):
            getattr(cairn, "opne")  # noqa: B009


class RowsTest(unittest.TestCase):
    def test_diff(self):
        rows = cairn.diff(HERE / "run", HERE / "other", ignore=["optimizer"])
        self.assertEqual((rows.equal, rows.within_tolerance, rows.tensors_equal, rows.tensors_compared), (False, False, 0, 36))
        self.assertEqual(len(rows), 36)
        with cairn.open(HERE / "run") as a, cairn.open(HERE / "other") as b:
            for row in rows:
                largest = np.abs(a[row["tensor"]].numpy().astype("float64") - b[row["tensor"]].numpy()).max()
                self.assertEqual((row["difference"], row["max_abs"]), ("values", largest))
        near = cairn.diff(HERE / "run", HERE / "other", ignore=["optimizer"], tolerance={"layers.*": (100.0, 0.0), "*norm*": 1e9}, atol=100)
        self.assertEqual((near.within_tolerance, near.equal), (True, False))
        same = cairn.diff(HERE / "run", HERE / "dcp", max_memory="64MiB")
        self.assertEqual((same.equal, list(same)), (True, []))
        self.assertIn("only in A", cairn.diff(HERE / "run", HERE / "hf").column("difference"))

    def test_report(self):
        line = " iteration {:8d}/     100 | elapsed time per iteration (ms): 812.5 | lm loss: 6.25E+00 | global batch size: 16 |\n"
        log = HERE / "some.log"
        log.write_text("".join(line.format(at) for at in range(1, 11)))
        rows = cairn.report([log, str(log)], gpus=8, seq_length=1024, layers=4, hidden=128, heads=4, vocab=1000)
        self.assertEqual((len(rows), rows[0]["sec_per_it"], rows[0]["gpus"]), (2, 0.8125, 8))
        self.assertGreater(rows[0]["tflops"], 0)
        self.assertEqual(rows.column("loss"), [6.25, 6.25])

    def test_ls_and_verify(self):
        (row,) = cairn.ls(HERE / "run")
        self.assertEqual((row["step"], row["topology.tp"], row["directory"]), (100, 2, look_files.step_of(HERE / "run")))
        self.assertEqual(sorted(one["run"] for one in cairn.ls([HERE / "run", HERE / "other"])), [str(HERE / "other"), str(HERE / "run")])
        good = cairn.verify(HERE / "run", values=True, record=False)
        self.assertEqual((good.ok, list(good)), (True, []))
        self.assertGreater(good.bytes_checked, 0)
        self.assertFalse((HERE / "run/verified").exists())
        shutil.copytree(HERE / "run", HERE / "damaged")
        file = next((HERE / "damaged").rglob("shard*"))
        ranks.flip(file, file.stat().st_size // 2)
        bad = cairn.verify(HERE / "damaged")
        self.assertFalse(bad.ok)
        self.assertIn(file.name, bad[0]["file"] + bad[0]["what"])

    def test_pandas_takes_them(self):
        import pandas

        frame = pandas.DataFrame(cairn.diff(HERE / "run", HERE / "other"))
        self.assertEqual(frame["tensor"].nunique(), len(frame))
        self.assertGreater(frame["max_abs"].max(), 0)
        self.assertEqual(list(pandas.DataFrame(cairn.ls(HERE / "run"))["topology.tp"]), [2])

    def test_errors(self):
        cut = HERE / "cut"
        shutil.copytree(look_files.step_of(HERE / "run"), cut / "step-00000100")
        (cut / "step-00000100/manifest.json").write_text("{")
        for error, says, work in [
            (FileNotFoundError, "nowhere", lambda: cairn.diff(HERE / "run", HERE / "nowhere")),
            (FileNotFoundError, "nowhere", lambda: cairn.report(HERE / "nowhere")),
            (FileNotFoundError, "nowhere", lambda: cairn.ls([HERE / "nowhere"])),
            (FileNotFoundError, "nowhere", lambda: cairn.verify(HERE / "nowhere")),
            (cairn.CorruptError, "manifest.json", lambda: cairn.diff(HERE / "run", cut / "step-00000100")),
            (ValueError, "--colour", lambda: cairn.report(HERE / "policy.log", colour=3)),
            (ValueError, "--atol", lambda: cairn.diff(HERE / "run", HERE / "other", atol="x")),
            (cairn.CairnError, "nothing", lambda: cairn.report(HERE / "policy.log", sort="nothing")),
        ]:
            (HERE / "policy.log").touch()
            with self.subTest(says=says), self.assertRaisesRegex(error, says):
                work()


class DocumentsTest(unittest.TestCase):
    """The examples of the docs, executed."""

    def setUp(self):
        place = pathlib.Path(tempfile.mkdtemp(dir=HERE))
        for name in ("run", "other"):
            shutil.copytree(HERE / name, place / name)
        look_files.cairn("convert", place / "run", place / "release", "--to", "safetensors")
        (place / "train.log").write_text(
            " iteration       10/     100 | elapsed time per iteration (ms): 812.5 | global batch size: 16 | lm loss: 6.25E+00 |\n"
        )
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(place)

    def test_docstrings(self):
        from cairn import _checkpoint, _rows, _show, _tensor

        tried = 0
        for module in (_checkpoint, _rows, _show, _tensor, _arrays):
            result = doctest.testmod(module, verbose=False)
            self.assertEqual(result.failed, 0)
            tried += result.attempted
        self.assertGreater(tried, 8)

    def test_the_guide_in_a_notebook(self):
        """Its code as the cells of a real notebook, in a kernel of this Python."""
        import nbclient
        import nbformat

        cells = [nbformat.v4.new_code_cell(block) for block in ranks.python_of("look-from-python.md")]
        self.assertGreater(len(cells), 4)
        cells.append(nbformat.v4.new_code_cell("checkpoint"))
        notebook = nbformat.v4.new_notebook(cells=cells)
        with mock.patch.dict(os.environ, {"PYTHONPATH": str(ROOT / "python")}):
            nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
        (shown,) = notebook.cells[-1].outputs
        self.assertIn("<td>embedding.word.weight</td>", shown["data"]["text/html"])
        self.assertIn("<cairn checkpoint", shown["data"]["text/plain"])

    def test_the_guide_of_the_command(self):
        (block,) = ranks.python_of("install.md")
        shutil.copytree(HERE / "run", HERE / "scratch/run")  # verify leaves its record there
        said = python(block.replace("/scratch/", f"{HERE}/scratch/"))
        self.assertRegex(said, r"run/step-00000100: good, .* checked \(structure, every byte\)")

    def test_html_is_escaped(self):
        rows = cairn.Rows([{"file": "<script>", "loss": 1 / 3}])
        self.assertIn("<td>&lt;script&gt;</td><td>0.333333</td>", rows._repr_html_())
        self.assertIn("... and 50 more", cairn.Rows([{"a": at} for at in range(250)])._repr_html_())
        self.assertTrue(math.isnan(_arrays._e4m3_values()[0x7F]))


if __name__ == "__main__":
    unittest.main()
