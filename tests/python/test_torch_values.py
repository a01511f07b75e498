"""`cairn.torch`: values of every kind are saved and loaded as they were."""

import collections
import json
import math
import pathlib
import random
import subprocess
import types
import unittest
from unittest import mock

import numpy
import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch_process import ROOT, ProcessTest, Wrapper, _boxes, _layout, _nested, _objects, _reader, _saving, cairn, same, zeros_like


class ObjectsTest(unittest.TestCase):
    def through_json(self, value):
        entry = _objects.encode(value, "name")
        self.assertEqual(list(entry), ["json"], repr(value)[:100])
        self.assertTrue(entry["json"].isascii())
        return _objects.decode(entry, "name", False)

    def check(self, value):
        self.assertTrue(same(self.through_json(value), value), repr(value)[:200])

    def test_training_states_round_trip(self):
        model = torch.nn.Linear(3, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        rates = torch.optim.lr_scheduler
        schedules = rates.CosineAnnealingLR(optimizer, 10), rates.OneCycleLR(optimizer, 0.1, 100), rates.StepLR(optimizer, 2)
        states = [schedule.state_dict() for schedule in schedules]
        states[1].pop("_anneal_func_type", None)
        for value in [random.getstate(), numpy.random.get_state(), torch.get_rng_state(), optimizer.state_dict(), *states]:
            self.check(value)
        self.check(numpy.random.default_rng(3).bit_generator.state)  # integers of 128 bits

    def test_edge_values_round_trip(self):
        for value in [
            *(0, -1, 2**63 - 1, -(2**63), 2**63, 2**64, -(2**200), True, False, None),
            *(0.0, -0.0, 1.0, 0.1, 1e22, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan),
            *("", 'é\0\n"\\', "\ud800", "a\udcffb", "\U0001f600", b"", b"\xff\0", bytearray(b"x")),
            *((), (1,), [], {}, set(), frozenset({1, "a"}), {1, 2.5, None, (1, 2)}, [[], [()]]),
            *({1: "a", None: 2, (1, 2): [3], 1.5: {}}, {"b": 1, "a": 2}, {"\ud800": 1}),
            *({"__cairn__": 1}, {"__cairn__": "tuple", "items": [1]}, {"a": {"__cairn__": {"__cairn__": None}}}),
            *(collections.OrderedDict([("b", 1), ("a", 2)]), torch.float8_e4m3fn, torch.Size([2, 3]), torch.device("cuda", 3)),
            *(numpy.str_("a\0b\0"), numpy.bytes_(b"y\0"), numpy.str_("\U0001f600")),
            *(numpy.str_(""), numpy.bytes_(b""), numpy.empty(2, "<U0"), numpy.zeros((0, 3)), numpy.array([""])),
            *(numpy.float32(0.1), numpy.int64(3), numpy.bool_(True), numpy.float64("nan"), numpy.complex128(1 + 2j)),
            *(numpy.arange(6, dtype=">i2").reshape(2, 3), numpy.array(3.5), numpy.zeros((0, 4)), numpy.array(["a", "bc"])),
            *(torch.tensor(3.5), torch.zeros(0, 4), torch.tensor([1 + 2j]), torch.arange(6).view(2, 3).T, torch.ones(2, dtype=torch.bfloat16)),
        ]:
            self.check(value)

    def test_random_values_round_trip(self):
        source = random.Random(7)
        leaves = [None, True, 3, -(2**70), 0.5, math.inf, "x", "\udc80", b"\0", torch.bfloat16, numpy.int8(3), torch.arange(3)]
        keys = ["a", "b", "__cairn__", 1, None, (1, "x"), "\ud900"]

        def value(depth):
            kind = source.randrange(6) if depth else 5
            items = range(source.randrange(4))
            if kind == 0:
                return [value(depth - 1) for _ in items]
            if kind == 1:
                return tuple(value(depth - 1) for _ in items)
            if kind in (2, 3):
                pairs = [(source.choice(keys), value(depth - 1)) for _ in items]
                return dict(pairs) if kind == 2 else collections.OrderedDict(pairs)
            if kind == 4:
                return {source.choice(keys) for _ in items}
            return source.choice(leaves)

        for _ in range(1000):
            self.check(value(5))

    def test_equal_sets_have_equal_bytes(self):
        first, second = {"a", "b", "c", 3}, set()
        for item in (3, "c", "b", "a"):
            second.add(item)
        self.assertEqual(_objects.encode(first, ""), _objects.encode(second, ""))

    def test_non_json_values_are_pickles_that_must_be_allowed(self):
        deep = []
        for _ in range(100):
            deep = [deep]
        named = collections.namedtuple("named", "x")(1)
        globals()["named"] = type(named)
        for value in (deep, named, types.SimpleNamespace(a=1), torch.nn.Parameter(torch.ones(2)), 1j, range(3)):
            entry = _objects.encode(value, "rng.3")
            self.assertEqual(list(entry), ["pickle"])
            self.assertRaisesRegex(cairn.torch.PickleRefused, r"rng\.3: .*allow_pickle=True", _objects.decode, entry, "rng.3", False)
            self.assertIs(type(_objects.decode(entry, "rng.3", True)), type(value))

    def test_unpicklable_values_are_named(self):
        self.assertRaisesRegex(TypeError, "loader.worker: a function", _objects.encode, lambda: 0, "loader.worker")

    def test_a_type_of_a_newer_version_is_named(self):
        self.assertRaisesRegex(ValueError, "'quaternion'", _objects.decode, {"json": '[{"__cairn__": "quaternion"}]'}, "x", False)


class ValuesTest(ProcessTest):
    """One process, without torch.distributed, through the real helper."""

    def test_every_type(self):
        dtypes = cairn.torch._layout.NAME_OF

        def of(dtype, size):
            values = torch.arange(size) % 2
            return values.byte().view(dtype) if "x2" in str(dtype) else values.to(dtype)  # torch converts nothing to pairs of four bits

        self.check({f"{size}.{dtype}": of(dtype, size) for dtype in dtypes for size in (3, 9001)})

    def test_shapes_and_strides(self):
        image = torch.randn(2, 8, 32, 32)
        special = {"scalar": torch.tensor(3.5), "empty": torch.zeros(0, 7), "one": torch.ones(1, 1, 1)}
        strided = {"transposed": torch.randn(100, 70).T, "every second": torch.randn(9000)[::2], "expanded": torch.randn(1, 50).expand(90, 50)}
        self.check({**special, **strided, "channels last": image.to(memory_format=torch.channels_last), "five": torch.randn(2, 3, 4, 5, 60)})

    def test_tied_and_trained_tensors(self):
        weight = torch.nn.Parameter(torch.randn(90, 90))
        loaded = self.round_trip({"in": weight, "out": weight, "row": weight[3]}, {key: torch.zeros(90, 90) for key in ("in", "out")})
        self.assertTrue(torch.equal(loaded["in"], weight) and torch.equal(loaded["out"], weight))

    def test_objects_among_the_tensors(self):
        state = {
            "rng": {"python": random.getstate(), "numpy": numpy.random.get_state(), "torch": torch.get_rng_state()},
            "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1]}, {"lr": math.inf, "name": "ü"}],
            "step": 3,
            "none": None,
            "tuple": (1, torch.ones(2), {"a": {1, 2}}),
            "order": {"z": 1, "a": 2, "m": 3},
        }
        into = {"rng": zeros_like(state["rng"]), "groups": [{"lr": 0, "betas": 0, "params": 0}, {"lr": 0, "name": 0}]}
        loaded = self.round_trip(state, {**into, "step": 0, "none": 1, "tuple": 0, "order": {"z": 0, "a": 0, "m": 0}})
        self.assertTrue(same(loaded, state))

    def test_saved_state_dicts_round_trip(self):
        weight = torch.nn.Parameter(torch.randn(70, 70))
        weight.grad = torch.ones(70, 70)
        stepped, fresh = torch.optim.AdamW([weight]), torch.optim.SGD([weight])
        stepped.step()
        state = {
            "optim": {"a": stepped.state_dict(), "b": fresh.state_dict()},  # keys that are numbers, and a dict without any
            "list": [{}, torch.ones(3), {"x": [torch.randn(90, 90).T, {2: None, None: 3.5, "2.0": 1}]}, (1, {2})],
            "tuple": (torch.arange(3), "a"),
            7: {True: 1, (1, 2): torch.ones(2, 0), 1.5: torch.tensor(2.5)},
            "empty": {},
        }
        saved = cairn.torch.save(state, self.directory, 7)
        read = cairn.torch.read(saved.step_dir)

        def sorted_(value):
            if isinstance(value, dict):
                return {key: sorted_(value[key]) for key in sorted(value, key=str)}
            return [sorted_(item) for item in value] if isinstance(value, list) else value.detach() if torch.is_tensor(value) else value

        self.assertTrue(same(sorted_(read), sorted_(state)), read)
        again, other = torch.optim.AdamW([weight]), torch.optim.SGD([weight])
        again.load_state_dict(read["optim"]["a"])
        other.load_state_dict(read["optim"]["b"])
        self.assertTrue(same(sorted_(again.state_dict()), sorted_(state["optim"]["a"])))
        self.assertEqual(cairn.torch.load({"empty": {}, "optim": {"b": other.state_dict()}}, saved.step_dir), 7)

    def test_a_state_dict_is_flat_as_dcp_makes_it(self):
        tensor = torch.zeros(2)
        state = {"a": tensor, 1: {"b": [1, [2, {}], tensor], "c": [1, [2]], "": {"d": (tensor,)}}, "e": {}, "f": [[{}], []], "g": [[tensor]]}
        nested = _nested.Nested(state)
        flat, paths = flatten_state_dict(state)
        self.assertEqual((list(nested.flat), nested.paths), (list(flat), paths))
        self.assertTrue(all(nested.flat[fqn] is flat[fqn] for fqn in flat))
        self.assertEqual([path for path, _ in nested.dicts], [(), ("1",), ("1", "b", 1, 1), ("1", ""), ("e",), ("f", 0, 0)])
        for twice in ({"a": {"b": 1}, "a.b": 2}, {"a.0": tensor, "a": [tensor]}, {"a": [tensor], "a.0": tensor}):
            self.assertRaisesRegex(ValueError, "a.[b0]", _nested.Nested, twice)

    def test_each_thread_that_reads_another_systems_file_checks_it(self):
        state = {name: torch.full((9 << 20,), float(at)) for at, name in enumerate(("a", "b", "tied"))}  # more than one thread's share
        file = pathlib.Path(self.directory, "state.pt")
        torch.save(state, file)
        into = zeros_like(state)
        into["tied"] = into["b"]
        cairn.torch.load(into, file)
        self.assertTrue(same(into, {**state, "b": state["tied"]}))
        for at in (file.stat().st_size // 6, file.stat().st_size // 2):
            damaged = bytearray(file.read_bytes())
            damaged[at] ^= 1
            other = pathlib.Path(self.directory, f"damaged-{at}.pt")
            other.write_bytes(damaged)
            self.assertRaisesRegex(cairn.CorruptError, "CRC-32", cairn.torch.load, zeros_like(state), other)

    def test_one_rank_may_have_an_empty_dict(self):
        root = _reader._Node()
        for path, value in [(["a", "b"], 1), (["a"], {}), (["c"], {}), (["c", "d"], 2), (["e"], {})]:
            root.put([(False, part) for part in path], value)
        self.assertEqual(root.container(), {"a": {"b": 1}, "c": {"d": 2}, "e": {}})

    def test_many_top_level_values_are_few_files(self):
        state = {f"{number}": torch.full((4,), float(number)) for number in range(200)} | {"ü": 3}
        planner = cairn.torch.CairnPlanner()
        planner.set_up_planner(state)
        groups = planner.layout().encode()
        self.assertLessEqual(len(groups), 16)
        self.assertEqual(sum(len(group.values) for group in groups.values()), 201)
        self.round_trip(state, zeros_like(state))

    def test_an_optimizers_own_keys_are_numbers(self):
        model = torch.nn.Linear(60, 60)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(2, 60)).sum().backward()
        optimizer.step()
        state = optimizer.state_dict()
        state["state"][0]["note"] = "kept"
        into = zeros_like(state)
        into["param_groups"] = [{key: None for key in state["param_groups"][0]}]
        self.assertTrue(same(self.round_trip(state, into), state))

    def test_objects_with_a_state_dict_round_trip(self):
        model, other = torch.nn.Linear(70, 70), torch.nn.Linear(70, 70)
        self.round_trip({"model": model}, {"model": other})
        self.assertTrue(torch.equal(model.weight, other.weight) and torch.equal(model.bias, other.bias))

    def test_loads_tensors_larger_than_the_buffer(self):
        state = {"big": torch.randn(300, 4000), "other": torch.randn(50_000)}
        into = {"big": torch.zeros(4000, 300).t(), "other": torch.zeros(50_000, 2)[:, 0]}
        with mock.patch.object(_boxes, "BUFFER_BYTES", 1 << 16):
            self.assertTrue(same(self.round_trip(state, into), state))

    def test_names_that_share_memory_get_the_later_value(self):
        state = {"a": torch.ones(3000, 1000), "b": torch.full((3000, 1000), 2.0)}
        tied = torch.zeros(3000, 1000)
        for _ in range(3):
            self.round_trip(state, {"a": tied, "b": tied})
            self.assertTrue(torch.equal(tied, state["b"]))

    def test_loads_pieces_in_any_order(self):
        rows = torch.randn(4, 4096)
        pieces = [{"offset": [begin, 0], "extent": [2, 4096]} for begin in (2, 0)]
        tensors = [{"fqn": "w", "dtype": "fp32", "shape": [4, 4096], "pieces": pieces}]
        save = _saving.Save(self.directory, 1, cairn.torch.Options())
        save.hand_over(_saving.stage(_layout.Layout(tensors, sources=[("w", rows[2:]), ("w", rows[:2])]))).result(60)
        loaded = {"w": torch.zeros(4, 4096)}
        cairn.torch.load(loaded, self.directory)
        self.assertTrue(torch.equal(loaded["w"], rows))

    def test_a_load_may_request_a_part(self):
        loaded = self.round_trip({"a": torch.ones(9000), "b": torch.ones(9000), "c": 3}, {"a": torch.zeros(9000)})
        self.assertEqual((loaded["a"].sum(), list(loaded)), (9000, ["a"]))

    def test_a_wrapper_of_one_tensor_is_saved_as_that_tensor(self):
        weight, into = torch.randn(3000), torch.zeros(3000)
        self.round_trip({"w": Wrapper(weight, torch.tensor(0.5)), "b": Wrapper(weight[:3])}, {"w": Wrapper(into), "b": Wrapper(torch.zeros(3))})
        self.assertTrue(torch.equal(into, weight))

    def test_interleaved_tensors_are_loaded(self):
        for shape, strides in [((3, 2), (2, 3)), ((2, 50), (1, 2)), ((50, 2), (3, 100)), ((7, 1, 3), (3, 0, 1))]:
            into = torch.zeros(9000).as_strided(shape, strides)
            state = {"w": torch.randn(shape)}
            self.assertTrue(torch.equal(self.round_trip(state, {"w": into})["w"], state["w"]), (shape, strides))

    def test_dcp_rebuilds_a_state_dict_from_scratch(self):
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

        state = {"model": {"w": torch.randn(60, 60)}, "list": [{"a": 1}, {"b": torch.ones(3)}]}
        saved = cairn.torch.save(state, self.directory, 7)
        loaded = _load_state_dict_from_keys(storage_reader=cairn.torch.CairnReader(saved.step_dir))
        self.assertTrue(same({key: loaded[key] for key in state}, state))

    def test_steps_of_every_version_are_loaded(self):
        golden = ROOT / "tests/golden/steps-2"
        subprocess.run(["tar", "xJf", golden / "steps.tar.xz", "-C", self.directory], check=True)
        edges = {"scalar": torch.tensor(3.5, dtype=torch.bfloat16), "empty": torch.empty(0, 3), "flags": torch.tensor([True, False])}
        expected = {
            "edges": {**edges, "moment": torch.arange(6, dtype=torch.float64).view(2, 3)},
            "loader": {"1": {"epoch": 1, "seen": [3, 1, 2], "shard": ("file", 7), "left": {"a", "b"}}},
            "config": {"name": "golden", "betas": (0.9, 0.95), "nested": [1, None, {"nan": float("nan")}]},
            "step": 2,
        }
        weights = []
        for run in json.loads((golden / "fingerprints.json").read_text()):
            into = {
                "edges": {name: torch.full_like(tensor, 1) for name, tensor in expected["edges"].items()},
                "loader": {"1": dict.fromkeys(expected["loader"]["1"])},
                "config": {"name": None, "betas": None, "nested": [None, None, {"nan": None}]},
                "step": None,
                "model": {"embed.weight": torch.zeros(101, 8)},
            }
            self.assertEqual(cairn.torch.load(into, f"{self.directory}/{run}"), 10)
            weights.append(into.pop("model")["embed.weight"])
            self.assertTrue(same(into, expected), into)
        for other in weights[1:]:  # the same training, but for the order of its sums
            torch.testing.assert_close(other, weights[0])

    def test_the_command_line_reads_it(self):
        saved = cairn.torch.save({"model": torch.nn.Linear(100, 30).state_dict(), "step": 7}, self.directory, 7, compress=True)
        cairn.run(["verify", saved.step_dir], capture=True)
        self.assertRegex(cairn.run(["ls", self.directory], capture=True).stdout, r"(?m)^7 +verified")

    def test_states_of_weights_fused_only_for_the_optimizer(self):
        """As torchtitan's fused projections: the model has wq and wk, the optimizer wqk."""
        state = {"wq.weight": torch.randn(4, 4), "wk.weight": torch.randn(4, 4)}
        moments = {f"optimizer.state.wqk.weight.{name}": torch.rand(8, 4) for name in ("exp_avg", "exp_avg_sq")}
        saved = cairn.torch.save({**state, **moments}, self.directory, 1)
        said = cairn.run(["strip", saved.step_dir, f"{self.directory}/out", "--dtype", "fp32", "--format", "safetensors"], capture=True)
        self.assertRegex(said.stdout, r"left out: the optimizer's states of 1 tensor .* as wqk\.weight")
        with cairn.open(f"{self.directory}/out") as released:
            self.assertEqual(set(released), set(state))
            self.assertTrue(same({name: torch.from_numpy(released[name][:]) for name in state}, state))
        refused = cairn.run(["convert", saved.step_dir, f"{self.directory}/dcp", "--to", "dcp"], check=False, capture=True)
        self.assertRegex(refused.stderr, r"wqk\.weight has states of the optimizer but no weight")


if __name__ == "__main__":
    unittest.main()
