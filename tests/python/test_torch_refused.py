"""`cairn.torch`: what cannot be saved or loaded is named, and nothing is changed."""

import collections
import copy
import errno
import fractions
import itertools
import math
import os
import pathlib
import re
import types
import unittest
import warnings
from unittest import mock

import numpy
import torch
import torch.distributed.checkpoint as dcp
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_process import ProcessTest, Wrapper, _helper, _layout, cairn, same


class Quantized(Wrapper):
    """Wraps a tensor of another type."""


class RefusedTest(ProcessTest):
    """One process, through the real helper."""

    def test_a_dict_that_is_now_empty_is_named(self):
        weight = torch.nn.Parameter(torch.ones(30))
        stepped, fresh = torch.optim.AdamW([weight]), torch.optim.AdamW([weight])
        weight.grad = torch.ones(30)
        stepped.step()
        saved = cairn.torch.save({"optim": stepped.state_dict(), "none": {"at": {}}}, self.directory, 7)
        with self.assertRaisesRegex(cairn.torch.LoadMismatch, r"\n  optim\.state: 3 values were saved in it, and here it is empty"):
            cairn.torch.load({"optim": fresh.state_dict(), "none": {"at": {}}}, saved.step_dir)
        cairn.torch.load({"optim": fresh.state_dict()}, saved.step_dir, strict=False)
        cairn.torch.load({}, saved.step_dir)

    def test_mismatches_are_named_with_both_sides(self):
        saved = cairn.torch.save({"m": {"w": torch.ones(30, 100), "b": torch.ones(5)}, "step": 1}, self.directory, 7)
        wrong = {"m": {"w": torch.zeros(30, 101), "b": torch.zeros(5, dtype=torch.bfloat16), "new": 0}, "step": torch.ones(1)}
        with self.assertRaises(cairn.torch.LoadMismatch) as caught:
            cairn.torch.load(wrong, saved.step_dir)
        for line in (
            "m.w: saved as float32 [30, 100]; here float32 [30, 101]",
            "m.b: saved as float32 [5]; here bfloat16 [5]",
            "m.new: not in the checkpoint",
            "step: saved as an object; here float32 [1]",
        ):
            self.assertIn(line, str(caught.exception))
        into = {"m": {"b": torch.zeros(5, dtype=torch.bfloat16), "new": 0}}
        cairn.torch.load(into, saved.step_dir, strict=False, cast=True)
        self.assertTrue(torch.equal(into["m"]["b"], torch.ones(5, dtype=torch.bfloat16)))
        self.assertEqual(into["m"]["new"], 0)

    def test_a_load_that_is_not_strict_names_the_keys_of_one_side_only(self):
        """The kind: values that keep what they had are named, as by torch's own load_state_dict, whatever made the two sides differ."""
        part = lambda *sizes: torch.nn.Sequential(*(torch.nn.Linear(2, size) for size in sizes))
        for old, new in [
            (part(2, 2), part(2, 2, 2)),  # one layer more
            (part(2, 2, 2), part(2, 2)),  # one less
            (torch.nn.ModuleDict({"a": part(2)}), torch.nn.ModuleDict({"b": part(2)})),  # renamed
            (torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2)),
            (part(2), torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(2, 2))),  # buffers
        ]:
            saved = cairn.torch.save({"model": old}, self.directory, 7)
            expected = copy.deepcopy(new).load_state_dict(old.state_dict(), strict=False)
            with self.assertLogs("cairn.torch", "WARNING") as logged:
                loaded = cairn.torch.load({"model": new}, saved.step_dir, strict=False)
            self.assertEqual((loaded, loaded.step, loaded + 1), (7, 7, 8))
            for names, found in zip(expected, (loaded.missing_keys, loaded.unexpected_keys)):
                self.assertCountEqual(found, [f"model.{name}" for name in names])
                for name in found:
                    self.assertIn(name, "".join(logged.output))
        weight = torch.nn.Parameter(torch.ones(30))
        fresh = torch.optim.AdamW([weight])
        saved = cairn.torch.save({"optim": fresh.state_dict(), "none": {}}, self.directory, 8)
        weight.grad = torch.ones(30)
        fresh.step()
        with self.assertLogs("cairn.torch", "WARNING"):
            loaded = cairn.torch.load({"optim": fresh.state_dict()}, saved.step_dir, strict=False)
        self.assertEqual(loaded.missing_keys, [f"optim.state.0.{name}" for name in ("step", "exp_avg", "exp_avg_sq")])
        self.assertEqual(loaded.unexpected_keys, ["none"])
        self.assertIs(type(cairn.torch.load({}, saved.step_dir)), int)
        for value in (loaded, copy.deepcopy(loaded)):
            self.assertTrue(same(self.round_trip({"step": value}, {"step": 0}), {"step": 8}))

    def test_a_state_dict_that_read_could_not_nest_is_refused(self):
        """The kind: levels of dicts, lists and their mixes, with or without tensors, and what contains itself."""
        itself = {}
        itself["a"] = itself
        for wrap, levels, leaf in [
            (lambda value: {"a": value}, 500, torch.ones(3000)),
            (lambda value: {"a": value}, 100, {}),
            (lambda value: [value], 65, torch.ones(1)),
            (lambda value: {"a": [value]}, 100, 1),
            (lambda value: collections.OrderedDict(a=value), 70, 1),
            (lambda value: {"a": value}, 3000, 1),
            (lambda value: value, 1, itself),
        ]:
            for _ in range(levels):
                leaf = wrap(leaf)
            self.assertRaisesRegex(ValueError, "levels.*make it flatter", cairn.torch.save, {"m": leaf}, self.directory, 1)
        with self.assertRaises(FileNotFoundError):
            cairn.torch.load({}, self.directory)  # nothing was left of them
        deep = torch.ones(3)
        for _ in range(62):
            deep = {"a": deep}
        self.check({"m": deep})
        self.assertRaisesRegex(ValueError, "contains itself, or too many levels", cairn.torch.load, itself, self.directory)

    def test_unsupported_values_are_named(self):
        for value, text in [
            (torch.empty(3000, device="meta"), "model.w: a tensor on the meta device"),
            (torch.ones(3000, dtype=torch.uint16), "model.w: torch.uint16 is not a type"),
            (torch.ones(3, dtype=torch.complex128), "model.w: torch.complex128 is not a type"),
            (torch.eye(50).to_sparse(), "model.w: a torch.sparse_coo tensor"),
            (lambda: 0, "model.w: a function that neither"),
            (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "model.w: a nested tensor"),
            (torch.nn.LazyLinear(3).weight, "model.w: not initialized yet"),
            (torch.zeros([1] * 9), "model.w: 9 dimensions"),
        ]:
            self.assertRaisesRegex((TypeError, ValueError), re.escape(text), cairn.torch.save, {"model": {"w": value}}, self.directory, 1)
        for name, small in [("a\0b", 1), ("", 1), ("a/", 3000), (".", 3000), ("a" * 70_000, 3000), ("a\udc80", 1)]:
            self.assertRaisesRegex(ValueError, "name", cairn.torch.save, {name: torch.ones(small)}, self.directory, 1)
        self.assertRaisesRegex(ValueError, "not Unicode text", cairn.torch.save, {}, f"{self.directory}/\udcff", 1)
        for names in (("a", "a/b"), ("w/exp_avg", "w")):
            for small in (1, 3000):
                with self.assertRaisesRegex(ValueError, "tensors (a and a/b|w and w/exp_avg) cannot be in one step"):
                    cairn.torch.save({name: torch.ones(small) for name in names}, self.directory, 1)
        for name in (".", "a/", "a//b", "a" * 70_000):
            self.assertRaisesRegex(ValueError, "name", cairn.torch.save, {name: fractions.Fraction(1, 3)}, self.directory, 1)
        for key, value in itertools.product(("nul\0", "\ud800", ""), (torch.ones(3), torch.ones(3000))):
            with self.assertRaisesRegex(ValueError, "is not a name that a step can hold"):
                cairn.torch.save({"model": {key: value, "w": torch.ones(3)}}, self.directory, 1)
        with mock.patch.object(_layout, "MAX_VALUE_BYTES", 1000), self.assertRaisesRegex(ValueError, r"replay\.a: non-tensor values take \d+ bytes"):
            cairn.torch.save({"step": 1, "replay": {"a": b"x" * 900}}, self.directory, 1)
        with self.assertRaises(FileNotFoundError):
            cairn.torch.load({}, self.directory)  # nothing was left of them

    def test_a_failed_system_call_raises_the_python_exception(self):
        file = pathlib.Path(self.directory, "file")
        file.touch()
        with self.assertRaises(NotADirectoryError) as refused:
            cairn.torch.save({"w": torch.ones(3)}, file / "run", 1)
        self.assertEqual((refused.exception.errno, refused.exception.strerror), (errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
        self.assertTrue(refused.exception.filename.startswith(str(file)))
        with self.assertRaises(FileNotFoundError) as missing:
            cairn.torch.load({}, f"{self.directory}/nowhere")
        self.assertEqual(missing.exception.filename, f"{self.directory}/nowhere")

    def test_tensors_without_own_memory_are_named(self):
        """Their elements are not at their address: a copy from there reads other data, or crashes the training."""
        freed, small = torch.ones(3000), torch.ones(3)
        for tensor in (freed, small):
            tensor.untyped_storage().resize_(0)
        with FakeTensorMode():
            fake = torch.ones(3000)
        for value, text in [
            (Quantized(torch.ones(3000, dtype=torch.int8), torch.tensor(0.5)), "w: a Quantized, which has no memory of its own"),
            (Quantized(torch.ones(3, dtype=torch.int8), torch.tensor(0.5)), "w: a Quantized, which has no memory of its own"),
            (fake, "w: a FakeTensor"),
            (freed, "w: its storage has 0 bytes"),
            (small, "w: its storage has 0 bytes"),
        ]:
            self.assertRaisesRegex((TypeError, ValueError), text, cairn.torch.save, {"w": value}, self.directory, 1)
            saved = cairn.torch.save({"w": torch.ones(value.shape)}, self.directory, 2)
            self.assertRaisesRegex((TypeError, ValueError), text, cairn.torch.load, {"w": value}, saved.step_dir)

    def test_targets_that_cannot_be_loaded_into_are_named(self):
        saved = cairn.torch.save({"w": torch.ones(30, 100)}, self.directory, 7)
        for value, text in [
            (torch.empty(30, 100, device="meta"), "w: a tensor on the meta device"),
            (torch.zeros(30, 1).expand(30, 100), "w: a tensor whose elements share memory"),
            (torch.zeros(130).as_strided((30, 100), (1, 1)), "w: a tensor whose elements share memory"),
            (torch.zeros(9000).as_strided((30, 100), (2, 3)), "w: a tensor whose elements share memory"),
            (torch.zeros(30, 100).to_sparse(), "w: a torch.sparse_coo tensor"),
            (torch.nn.LazyLinear(3).weight, "w: a parameter that is not initialized"),
        ]:
            self.assertRaisesRegex(cairn.torch.LoadMismatch, text, cairn.torch.load, {"w": value}, saved.step_dir)

    def test_values_that_are_not_loaded_stay(self):
        """DCP's planner makes None of a value whose type it does not know, before it looks whether it loads it."""
        saved = cairn.torch.save({"w": torch.ones(5)}, self.directory, 7)
        own = {"set": {1}, "array": numpy.ones(2), "path": pathlib.Path("p"), "pair": ({2}, 3)}
        state = {"w": torch.zeros(5), "own": dict(own), "list": [{4}, torch.zeros(2)]}
        with self.assertRaises(cairn.torch.LoadMismatch):
            cairn.torch.load(state, saved.step_dir)
        cairn.torch.load(state, saved.step_dir, strict=False)
        self.assertTrue(same(state["own"], own) and state["list"][0] == {4} and torch.equal(state["w"], torch.ones(5)))

    def test_non_string_keys(self):
        self.check({1: torch.randn(5000), "x": torch.randn(3), 2: {3: torch.randn(3)}})
        for twice in ({1: 0, "1": 0}, {"x": [{2: 0, "2": 0}]}):
            self.assertRaisesRegex(ValueError, "two keys of .* have one name: (1, '1'|2, '2')", cairn.torch.load, twice, self.directory)

    def test_values_a_manifest_cannot_hold_are_refused_first(self):
        state = {"w": torch.ones(3000)}
        for options, text in [
            ({"model": {"at": {"dtype": torch.float32}}}, r"model\['at'\]\['dtype'\]: a dtype"),
            ({"state": {"loss": math.nan}}, r"state\['loss'\]: nan"),
            ({"state": {1: 2}}, "the key 1 is a int"),
            ({"state": "text"}, "state: a str"),
            ({"state": {"name": "a\udc80"}}, "'name'"),
            ({"state": {"k" * 65_535: 1}}, "^state: the key 'k{40}' is empty, has a NUL"),
            ({"model": {"": 1}}, "model: the key '' is empty"),
            ({"compress": "zstd"}, "compress='zstd'"),
            ({"keep_last": 2.5}, "keep_last=2.5"),
            ({"deadline": 0}, "deadline=0"),
            ({"deadline": math.nan}, "deadline=nan"),
            ({"step": 1.7}, "step=1.7"),
            ({"step": -1}, "step=-1"),
            ({"step": 2**63}, "step=9223372036854775808"),
            ({"dir": f"{self.directory}/a\0b"}, "null byte"),
            ({"dir": f"{self.directory}/a\udc80"}, r"^'/[^{}]+/a\\udc80': the path is not Unicode"),
        ]:
            self.assertRaisesRegex((TypeError, ValueError), text, cairn.torch.save, state, **{"dir": self.directory, "step": 1, **options})
        nested = {}
        for _ in range(40):
            nested = {"in": nested}
        self.assertRaisesRegex(ValueError, "nests more than", cairn.torch.save, state, self.directory, 1, state=nested)
        self.assertRaisesRegex(ValueError, "not Unicode", cairn.torch.load, state, f"{self.directory}/a\udc80")
        self.assertEqual(os.listdir(self.directory), [])
        self.assertTrue(_helper.helper().alive and not _helper.helper().saves)
        saved = cairn.torch.save(state, os.fsencode(self.directory), numpy.int64(3), deadline=math.inf, keep_last=torch.tensor(2))
        self.assertEqual(cairn.torch.load(state, os.fsencode(saved.step_dir)), 3)

    def test_pickles_are_refused_by_default(self):
        state = {"sampler": types.SimpleNamespace(epoch=3)}
        _layout._warned.clear()
        with self.assertLogs("cairn.torch", "WARNING") as said:
            cairn.torch.save(state, self.directory, 6)
            saved = cairn.torch.save(state, self.directory, 7)
        self.assertEqual(len(said.output), 1, said.output)
        self.assertIn("allow_pickle=True: sampler (a SimpleNamespace)", said.output[0])
        self.assertRaisesRegex(cairn.torch.PickleRefused, "sampler: .*allow_pickle=True", cairn.torch.read, saved.step_dir)
        self.assertEqual(cairn.torch.read(saved.step_dir, allow_pickle=True), state)
        into = {"sampler": None}
        self.assertRaisesRegex(cairn.torch.PickleRefused, "sampler: .*allow_pickle=True", cairn.torch.load, into, saved.step_dir)
        cairn.torch.load(into, saved.step_dir, allow_pickle=True)
        self.assertEqual(into, state)

    def test_other_planners_give_pickles(self):
        inner = dcp.DefaultSavePlanner()
        methods = ("set_up_planner", "create_local_plan", "create_global_plan", "finish_plan", "resolve_data")
        planner = type("Planner", (dcp.SavePlanner,), {name: staticmethod(getattr(inner, name)) for name in methods})()
        dcp.save({"a": [1, 2], "w": torch.arange(5000)}, storage_writer=cairn.torch.CairnWriter(self.directory, 1), planner=planner)
        loaded = {"a": None, "w": torch.zeros(5000, dtype=torch.int64)}
        with self.assertRaisesRegex(cairn.torch.PickleRefused, "a: saved as a pickle"):
            cairn.torch.load(loaded, self.directory)
        cairn.torch.load(loaded, self.directory, allow_pickle=True)
        self.assertEqual(loaded["a"], [1, 2])

    def test_a_damaged_step_is_refused(self):
        saved = cairn.torch.save({"w": torch.randn(100_000)}, self.directory, 7)
        largest = max(pathlib.Path(saved.step_dir).rglob("*.h5"), key=lambda file: file.stat().st_size)
        data = bytearray(largest.read_bytes())
        data[len(data) // 2] ^= 1
        largest.write_bytes(data)
        with self.assertRaises(cairn.torch.CorruptError):
            cairn.torch.load({"w": torch.zeros(100_000)}, saved.step_dir)

    def test_a_damaged_checkpoint_of_another_system_is_refused(self):
        state = {"w": torch.randn(100_000), "v": torch.randn(1000)}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.save(state, checkpoint_id=f"{self.directory}/dcp", no_dist=True)
        into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        cairn.torch.load(into, f"{self.directory}/dcp")
        self.assertTrue(same(into, state))
        (file,) = pathlib.Path(self.directory, "dcp").glob("*.distcp")
        data = bytearray(file.read_bytes())
        data[data.index(cairn.torch._objects._bytes_of(state["w"])) + 200_000] ^= 1
        file.write_bytes(data)
        self.assertRaisesRegex(cairn.torch.CorruptError, file.name, cairn.torch.load, into, f"{self.directory}/dcp")


if __name__ == "__main__":
    unittest.main()
