"""Save, crash and resume of real trainings: bit-identical on the same topology, equal losses on others."""

import ctypes
import glob
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import time
import unittest
import unittest.mock

import h5py
import numpy as np
from harness import CAIRN, TINY, Case, cairn, fingerprint, steps, topology


def arrays(step):
    """Every dataset of a step as raw numbers, random states included."""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset) and not name.startswith("cairn"):
            found[name] = item[...]

    with h5py.File(os.path.join(step, "index.h5")) as index:
        index.visititems(visit)
    return found


def flip_byte(path, offset):
    with open(path, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ 0x10]))


def has_gpu():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    devices = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(devices)) == 0 and devices.value > 0


class Resume(Case):
    def expect_bit_identical(self, mesh, *flags):
        flags = ["--bf16", "--hidden-dropout", "0.1", "--attention-dropout", "0.1", "--save-interval", "4",
                 "--train-iters", "8", *flags]
        whole = self.train("whole", mesh, *flags, "--save", self.path("whole"))
        first = self.train("first", mesh, *flags, "--save", self.path("broken"), "--exit-interval", "4")
        second = self.train("second", mesh, *flags, "--save", self.path("broken"))
        self.assertEqual(sorted(first), [1, 2, 3, 4])
        self.assertEqual({**first, **second}, whole)
        unbroken, resumed = arrays(steps(self.path("whole"))[-1]), arrays(steps(self.path("broken"))[-1])
        self.assertEqual(set(unbroken), set(resumed))
        self.assertTrue(any(name.startswith("rng/") for name in unbroken))
        for name in unbroken:
            np.testing.assert_array_equal(unbroken[name], resumed[name], err_msg=name)

    def test_same_topology_is_bit_identical_to_the_unbroken_run(self):
        self.expect_bit_identical((2, 1, 2, 1))

    @unittest.skipUnless(has_gpu(), "no GPU here")
    def test_on_a_gpu_is_bit_identical_and_matches_the_cpu(self):
        self.expect_bit_identical((1, 1, 1), "--device", "cuda", "--seq-length", "512", "--vocab-size", "20000")
        cairn("verify", self.path("broken"), "--values")
        for mode in ("lazy", "copy"):
            self.train(mode, (1, 1, 1), "--device", "cuda", "--bf16", "--train-iters", "4", "--save", self.path(mode),
                       "--save-mode", mode, "--save-codec", "zstd")
        self.assertEqual(fingerprint(self.path("lazy")), fingerprint(self.path("copy")))
        flags = ["--hidden-dropout", "0", "--attention-dropout", "0", "--train-iters", "12"]
        wanted = self.train("cpu", (1, 1, 1), *flags)
        got = self.train("gpu", (1, 1, 1), *flags, "--device", "cuda")
        self.assertEqual(sorted(got), list(range(1, 13)))
        for step, loss in wanted.items():
            self.assertAlmostEqual(got[step] / loss, 1, delta=1e-5)
        with unittest.mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="0"):
            self.train("shared", (1, 1, 2), *flags, "--device", "cuda", status=2)
        self.assertIn("ranks 0 and 1 would share a GPU", self.output)

    def test_on_another_topology_the_next_losses_agree(self):
        flags = ["--hidden-dropout", "0", "--attention-dropout", "0", "--train-iters", "12"]
        self.train("start", (2, 2, 1), *flags, "--save", self.path("start"), "--save-interval", "4", "--exit-interval", "4")
        expected = self.train("same", (2, 2, 1), *flags, "--load", self.path("start"))
        self.assertEqual(sorted(expected), list(range(5, 13)))
        for mesh in [(1, 1, 2, 1), (4, 1, 1, 0), (1, 3, 1, 0)]:
            with self.subTest(mesh):
                got = self.train("other-%d-%d-%d" % mesh[:3], mesh, *flags, "--load", self.path("start"))
                for step in expected:
                    self.assertAlmostEqual(float(got[step]) / float(expected[step]), 1, delta=1e-5)

    def test_a_virtual_step_trains_like_its_source(self):
        flags = ["--hidden-dropout", "0", "--attention-dropout", "0", "--train-iters", "6"]
        self.train("start", (2, 2, 1), *flags, "--save", self.path("start"), "--exit-interval", "2")
        cairn("reshape", self.path("start"), self.path("virtual"), "--tp", 1, "--pp", 1, "--dp", 2, "--virtual")
        direct = self.train("direct", (1, 1, 2, 1), *flags, "--load", self.path("start"))
        virtual = self.train("virtual", (1, 1, 2, 1), *flags, "--save", self.path("virtual"))
        self.assertEqual(sorted(virtual), [3, 4, 5, 6])
        self.assertEqual(virtual, direct)

    def test_finetune_takes_only_the_weights_in_any_float_type(self):
        self.train("start", (2, 1, 1), "--fp16", "--train-iters", "2", "--save", self.path("start"))
        cairn("strip", self.path("start"), self.path("half"), "--dtype", "fp16", "--format", "native")
        still = ["--lr", "0", "--weight-decay", "0", "--train-iters", "1", "--save", self.path("tuned")]
        self.train("tuned", (1, 1, 2, 1), *still, "--load", self.path("half"), "--bf16", status=2)
        self.assertIn("take only its weights with --finetune", self.output)
        first = self.train("tuned", (1, 1, 2, 1), *still, "--load", self.path("half"), "--bf16", "--finetune")
        self.assertEqual(sorted(first), [1])
        half, tuned = arrays(steps(self.path("half"))[-1]), arrays(steps(self.path("tuned"))[-1])
        for name in half:
            np.testing.assert_array_equal(half[name].astype("f4"), tuned[name.replace("weight/", "master/", 1)], err_msg=name)
        cairn("verify", self.path("tuned"), "--values")  # the weights are their masters rounded
        self.train("aside", (1, 1, 2, 1), *still[:-1], self.path("aside"), "--load", self.path("half"), "--finetune",
                   "--offload-optimizer")  # the masters lie elsewhere than the weights
        aside = arrays(steps(self.path("aside"))[-1])
        for name in half:
            np.testing.assert_array_equal(half[name].astype("f4"), aside[name], err_msg=name)

    def test_without_the_optimizer_weights_and_data_continue(self):
        """--no-load-optim: as in Megatron, moments and the learning rate schedule restart; iteration and samples do not."""
        flags = ["--hidden-dropout", "0", "--attention-dropout", "0", "--lr-warmup-iters", "4", "--lr-decay-iters", "8",
                 "--train-iters", "4"]
        self.train("start", (1, 1, 1), *flags, "--exit-interval", "3", "--save", self.path("start"))
        flags += ["--load", self.path("start")]
        whole = self.train("whole", (1, 1, 1), *flags)
        without = self.train("without", (2, 1, 1), *flags, "--no-load-optim", "--save", self.path("without"))
        self.assertEqual(sorted(without), [4])
        self.assertAlmostEqual(float(without[4]) / float(whole[4]), 1, delta=1e-5)  # before the update
        with open(os.path.join(steps(self.path("without"))[-1], "manifest.json")) as manifest:
            state = json.load(manifest)["state"]
        self.assertEqual((state["iteration"], state["optimizer_steps"]), (4, 1))
        self.assertEqual(state["scheduled_samples"] * 4, state["consumed_samples"])
        self.train("again", (1, 1, 1), "--train-iters", "5", "--load", self.path("start"), "--save", self.path("without"),
                   "--no-load-optim")
        self.assertIn("--no-load-optim applies only to --load", self.output)

    def test_optimizer_hyper_parameters_are_carried_everywhere(self):
        self.train("start", (1, 1, 2, 1), "--train-iters", "1", "--save", self.path("start"), "--weight-decay", "0.125",
                   "--adam-beta2", "0.75", "--lr-decay-iters", "4")
        done = cairn("convert", self.path("start"), self.path("ds"), "--to", "megatron-deepspeed", "--dp", 1)
        self.assertNotIn("AdamW's defaults", done.stderr)
        cairn("convert", self.path("ds"), self.path("back"), "--to", "native")
        with open(os.path.join(steps(self.path("back"))[-1], "manifest.json")) as manifest:
            matrices, vectors = json.load(manifest)["state"]["param_groups"]
        self.assertEqual((matrices["lr"], matrices["betas"], matrices["weight_decay"], vectors["weight_decay"]),
                         (0.75e-3, [0.9, 0.75], 0.125, 0))  # the rate of the next update

    def test_resumes_from_every_format_like_from_a_native_step(self):
        flags = ["--bf16", "--attention-dropout", "0", "--hidden-dropout", "0", "--lr-decay-style", "constant"]
        self.train("start", (1, 1, 1), *flags, "--train-iters", "3", "--save", self.path("start"))
        flags += ["--train-iters", "5", "--load"]
        own = self.train("own", (1, 1, 1), *flags, self.path("start"))
        for target, more in (("megatron-deepspeed", ["--zero", "2"]), ("universal", []), ("torch-dist", ["--zero", "1"]),
                             ("megatron", ["--zero", "0"]), ("dcp", [])):
            there, back = self.path(target), self.path(target + "-native")
            cairn("convert", self.path("start"), there, "--to", target, "--dp", 1, *more)
            cairn("convert", there, back, "--to", "native", "--tp", 1, "--pp", 1, "--dp", 1)
            self.assertEqual(self.train(target + "-on", (1, 1, 1), *flags, back), own, target)
            self.assertIn("resumed from " + back, self.output)
            self.assertEqual("as in a new training" in self.output, target != "dcp")
        self.train("dcp-on", (1, 1, 1), *flags, self.path("dcp-native"), "--seed", "9", status=2)
        empty = self.path("torch-dist-native")
        os.truncate(os.path.join(steps(empty)[-1], "shard-00000.h5"), 100)
        self.train("no", (1, 1, 1), *flags, empty, "--save", self.path("new"), status=2)
        self.assertIn(empty + ": none of its 1 steps", self.output)

    def test_skips_damaged_steps_and_refuses_if_none_is_left(self):
        flags = ["--train-iters", "6", "--save-interval", "2", "--save", self.path("run")]
        self.train("first", (1, 1, 2, 1), *flags, "--exit-interval", "4")
        newest, oldest = steps(self.path("run"))[::-1]
        with h5py.File(os.path.join(newest, "shard-00001.h5")) as shard:
            name = next(iter(shard["exp_avg"]))
            offset = shard["exp_avg"][name].id.get_offset()
        flip_byte(os.path.join(newest, "shard-00001.h5"), offset)
        again = self.train("second", (1, 1, 2, 1), *flags)
        self.assertEqual(sorted(again), [3, 4, 5, 6])
        self.assertIn("skipping a damaged step", self.output)
        self.assertIn("shard-00001.h5 at byte %d" % offset, self.output)
        for step in steps(self.path("run")):
            shutil.move(os.path.join(step, "manifest.json"), os.path.join(step, "gone"))
        self.train("third", (1, 1, 2, 1), *flags, status=2)
        self.assertIn("none of its 3 steps can be loaded", self.output)

    def test_a_model_of_another_shape_is_refused_by_name(self):
        self.train("first", (1, 1, 1), "--train-iters", "1", "--save", self.path("run"), "--save-interval", "1")
        wider = [{"32": "64"}.get(flag, flag) for flag in TINY]
        self.train("second", (1, 1, 1), "--train-iters", "2", "--save", self.path("run"), status=2, model=wider)
        self.assertIn("hidden_size would be 64, but is 32 in the checkpoint", self.output)

    def test_a_mistake_of_the_user_is_one_line_once(self):
        with open(self.path("a.txt"), "w") as text:
            text.write("a text of bytes " * 200)
        cairn("data", self.path("a.txt"), "--tokenizer", "bytes", "--output-prefix", self.path("p"))
        model = [flag for flag in TINY if flag != "--mock-data"]
        for flags, says in ((["--mock-data", "--load", self.path("none")], "none: No such file"),
                            (["--data-path", self.path("none")], "none.idx"),
                            (["--data-path", self.path("p")], "is outside --vocab-size 61"),
                            (["--mock-data", "--num-layer", "3", "--no-such"],
                             "does not know --num-layer (did you mean --num-layers?), --no-such;"),
                            (["--mock-data", "--num-attention-heads", "5"], "--num-attention-heads 5")):
            done = cairn("train", *topology(1, 1, 2), *model, "--train-iters", "2", *flags, status=2)
            self.assertIn(says, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_a_new_length_that_reorders_the_data_is_noted(self):
        """Of more than an epoch, where Megatron shuffles all epochs but the last together; within one nothing changes."""
        with open(self.path("a.txt"), "w") as text:
            text.write("a text of bytes " * 200)
        cairn("data", self.path("a.txt"), "--tokenizer", "bytes", "--output-prefix", self.path("p"))
        model = [{"61": "257"}.get(flag, flag) for flag in TINY if flag != "--mock-data"] + ["--data-path", self.path("p")]
        for name, before, after, says in (("long", 40, 60, True), ("same", 40, 40, False), ("short", 4, 8, False)):
            flags = ["--save", self.path(name), "--split", "1", "--hidden-dropout", "0", "--attention-dropout", "0"]
            self.train(name, (1, 1, 1), *flags, "--train-iters", str(before), "--exit-interval", "2", model=model)
            self.train(name, (1, 1, 1), *flags, "--train-iters", str(after), "--exit-interval", "4", model=model)
            self.assertEqual(f"changed from {8 * before} to {8 * after} samples, which changes the order" in self.output, says, name)

    def test_a_complete_training_is_reported(self):
        flags = ["--train-iters", "1_0", "--exit-interval", "2", "--save", self.path("run"), "--load", self.path("run"),
                 "--eval-interval", "1", "--eval-iters", "0"]  # the first start finds nothing to load
        self.assertEqual(sorted(self.train("run", (1, 1, 2), *flags)), [1, 2])
        self.assertNotIn("the training is complete", self.output)
        self.train("again", (1, 1, 2), *flags, "--train-iters", "2")
        self.assertIn("the training is complete: 2 of 2 iterations are done", self.output)


def flip_in_memory(session, values):
    """Flips one bit in each place where one rank of a session has these bytes. Returns the number of places."""
    for directory in glob.glob("/proc/[0-9]*"):
        try:
            with open(f"{directory}/stat") as stat, open(f"{directory}/maps") as maps, open(f"{directory}/mem", "r+b", 0) as memory:
                name, fields = stat.read().rpartition(")")[::2]
                if not name.endswith("(cairn-train") or int(fields.split()[3]) != session:
                    continue
                found = [match for line in maps if (match := re.match(r"(\w+)-(\w+) rw-p \w+ 00:00", line))]
                places = []
                for begin, end in (tuple(int(part, 16) for part in match.groups()) for match in found):
                    memory.seek(begin)
                    at, block = -1, memory.read(end - begin)
                    while (at := block.find(values, at + 1)) >= 0:
                        places.append(begin + at)
                for place in places:
                    memory.seek(place)
                    memory.write(bytes([values[0] ^ 1]))
                return len(places)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            pass
    return 0


class Interruptions(Case):
    def start(self, *flags, mesh=(1, 2, 2, 1)):
        return subprocess.Popen([CAIRN, "train", *topology(*mesh), *TINY, "--train-iters", "100000", "--save",
                                 self.path("run"), *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                start_new_session=True)

    def kill_all(self, process):
        """kill -9 for all ranks at once, without a chance to clean up."""
        while subprocess.run(["pkill", "-9", "-f", self.path("run")]).returncode == 0:
            time.sleep(0.1)
        process.communicate()

    def kill_only(self, process):
        """The same, but only for the ranks of this start."""
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def wait_for(self, process, condition):
        deadline = time.monotonic() + 120
        while not condition():
            self.assertLess(time.monotonic(), deadline, "waited in vain")
            self.assertIsNone(process.poll(), "training ended early")
            time.sleep(0.002)

    def start_and_wait(self, *flags):
        """Returns once it trains."""
        log = self.path("log.json")
        process = self.start("--log-json", log, *flags)
        self.wait_for(process, lambda: os.path.exists(log) and os.path.getsize(log) > 0)
        return process

    def test_a_save_killed_by_sigkill_never_counts_as_a_step(self):
        process = self.start("--save-interval", "3")
        run = self.path("run")
        self.wait_for(process, lambda: os.path.isdir(run) and len(steps(run)) >= 2 and
                      any(".partial-" in name for name in os.listdir(run)))
        self.kill_all(process)
        before = steps(run)
        for step in before:
            cairn("verify", step)
        resumed = self.train("resumed", (1, 2, 2, 1), "--save", run, "--train-iters", "100000", "--exit-duration-in-mins", "0.0001")
        newest = int(before[-1][-8:])
        self.assertEqual(min(resumed), newest + 1)
        self.assertFalse([name for name in os.listdir(run) if ".partial-" in name])

    def test_derived_fp16_weights_are_restored_after_sigkill(self):
        mesh, run = (1, 1, 2, 1), self.path("run")
        flags = ["--fp16", "--initial-loss-scale", "1024", "--train-iters", "60", "--save-interval", "6"]
        expected = self.train("whole", mesh, *flags, "--save", self.path("whole"))
        process = self.start(*flags, "--split-master", mesh=mesh)
        self.wait_for(process, lambda: os.path.isdir(run) and len(steps(run)) >= 2)
        self.kill_all(process)
        resumed = self.train("resumed", mesh, *flags, "--split-master", "--save", run)
        self.assertGreater(min(resumed), 6)
        self.assertEqual(resumed, {step: loss for step, loss in expected.items() if step in resumed})
        newest = steps(run)[-1]
        self.assertEqual(fingerprint(newest), fingerprint(steps(self.path("whole"))[-1]))
        cairn("verify", newest, "--values")
        tensors = json.loads(cairn("inspect", newest, "--slices", "--json").stdout)["tensors"]
        self.assertEqual({(piece["codec"], piece["bytes"]) for tensor in tensors if tensor["role"] == "weight"
                          for piece in tensor["slices"]}, {("derived", 0)})
        more = ["--fp16", "--train-iters", "62"]
        self.assertEqual(*(self.train("more-" + name, (2, 1, 1, 0), *more, "--load", self.path(name)) for name in ("run", "whole")))

    @unittest.skipUnless("CAIRN_LONG" in os.environ, "in the long form; CheckpointerTest flips bits, too")
    def test_a_bit_flipped_in_one_ranks_memory_stops_the_training_and_it_resumes_from_the_step_before(self):
        """With a learning rate of almost 0 the weights stay as they are, so a rank's memory has them as the step does."""
        run, metrics, mesh = self.path("run"), self.path("metrics.prom"), (1, 1, 2)
        flags = ["--lr", "1e-30", "--save-interval", "300"]
        process = self.start(*flags, "--prometheus-textfile", metrics, mesh=mesh)
        self.wait_for(process, lambda: os.path.isdir(run) and steps(run))
        with h5py.File(os.path.join(steps(run)[0], "index.h5")) as file:
            values = file["/weight/layers.1.mlp.up.weight"][:2].tobytes()
        self.assertGreater(flip_in_memory(process.pid, values), 0)
        output, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, output)
        self.assertRegex(output, r"ALARM: copies differ: layers.1.mlp.up.weight \(weight\) of ranks 0 \(host .*\) and 1 \(host .*\) is not the same;")
        self.assertEqual(output.count("training stops at iteration"), 1, output)
        with open(metrics) as text:
            self.assertRegex(text.read(), r"\ncairn_train_copies_differ_total.* 1\n")
        with open(os.path.join(run, "events")) as lines:
            events = [event for event in map(json.loads, lines) if event["event"] == "alarm"]
        newest = int(steps(run)[-1][-8:])
        self.assertEqual([event["step"] for event in events], [newest + 300])
        cairn("verify", steps(run)[-1])
        resumed = self.train("resumed", mesh, "--save", run, *flags, "--train-iters", str(newest + 300))
        self.assertEqual((min(resumed), max(resumed)), (newest + 1, newest + 300))

    def test_sigterm_commits_the_current_step(self):
        process = self.start_and_wait()
        os.killpg(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        self.assertEqual(len(steps(self.path("run"))), 1, output[-2000:])
        cairn("verify", self.path("run"))

    def test_a_kill_switch_ends_a_training_with_all_monitoring(self):
        metrics, switch = self.path("train.prom"), self.path("switch")
        flags = ["--log-interval", "2", "--timing-log-level", "2",
                 "--log-timers-to-tensorboard", "--tensorboard-dir", self.path("tb"), "--log-memory-interval", "4",
                 "--log-throughput", "--peak-tflops", "0.001", "--prometheus-textfile", metrics,
                 "--kill-switch-path", switch, "--log-json", self.path("log.json"), "--log-memory-to-tensorboard"]
        training = self.start(*flags)
        self.wait_for(training, lambda: os.path.exists(metrics))
        open(switch, "w").close()
        output = training.communicate(timeout=120)[0]
        self.assertEqual(training.returncode, 0, output)
        self.assertEqual(output.count(f"Detected kill switch at {switch}. Exiting"), 1)
        last = int(steps(self.path("run"))[-1][-8:])

        blocks = output.split("(min, max) time across ranks (ms):")[1:]
        self.assertEqual(len(blocks), last // 2)
        names = re.findall(r"\n    (\S+) \.+: \((\d+\.\d\d), (\d+\.\d\d)\)", blocks[0])
        self.assertEqual([name for name, _, _ in names],
                         ["forward-backward", "embedding-grads-all-reduce", "all-grads-sync", "params-all-gather",
                          "optimizer", "batch-generator", "forward-compute", "backward-compute", "forward-recv",
                          "backward-recv"])
        times = {name: (float(least), float(most)) for name, least, most in names}
        for name, (least, most) in times.items():
            self.assertLessEqual(least, most, name)
        self.assertLessEqual(times["forward-compute"][0] + times["backward-compute"][0],
                             times["forward-backward"][1] + 0.02)
        for rank in (0, 2):  # of both stages the first data parallel rank
            self.assertEqual(len(re.findall(rf"\[Rank {rank}\] \(after \d+ iterations\) memory \(MB\)", output)),
                             1 + last // 4)
        self.assertRegex(output, r"throughput per GPU \(TFLOP/s/GPU\): \d+\.\d \| MFU \(%\): \d+\.\d\d \|")

        with open(metrics) as f:
            values = dict(re.findall(r'^(cairn_train_\w+)\{run="[^"]+"\} (\S+)$', f.read(), re.MULTILINE))
        self.assertEqual(int(values["cairn_train_iteration"]), last)
        self.assertEqual(int(values["cairn_train_durable_iteration"]), last)
        self.assertEqual(int(values["cairn_train_failed_saves_total"]), 0)
        self.assertGreater(float(values["cairn_train_tokens_per_second"]), 0)
        self.assertLess(abs(time.time() - float(values["cairn_train_durable_timestamp_seconds"])), 3600)

        again = self.start(*flags)
        output = again.communicate(timeout=120)[0]
        self.assertEqual((again.returncode, "iteration" in output), (0, False), output)
        self.assertEqual(int(steps(self.path("run"))[-1][-8:]), last)

    def test_a_second_training_in_a_run_is_refused(self):
        process = self.start("--save-interval", "5")
        self.wait_for(process, lambda: len(steps(self.path("run"))) >= 1)
        self.train("second", (1, 1, 1), "--train-iters", "1", "--save", self.path("run"), status=2)
        self.assertIn("another process writes into this run directory: pid ", self.output)
        self.assertIn(f" on {socket.gethostname()} since ", self.output)
        self.kill_all(process)

    def test_a_requeued_job_waits_for_the_training_that_still_holds_the_run(self):
        run, one = self.path("run"), (1, 1, 1, 0)
        before = self.start("--save-interval", "5", mesh=one)
        self.wait_for(before, lambda: len(steps(run)) >= 1)
        self.train("impatient", one, "--save", run, "--train-iters", "1", "--wait-for-lock", "5", status=2)
        self.assertRegex(self.output, r"waiting, for up to \d s more: .*: pid \d+ on ")
        # Two ranks, which wait for a message no longer than 12 s.
        with unittest.mock.patch.dict(os.environ, SLURM_RESTART_COUNT="1", SLURM_JOB_ID="16"), open(self.path("said"), "w+") as said:
            after = subprocess.Popen([CAIRN, "train", *topology(1, 1, 2), *TINY, "--save", run, "--distributed-timeout-seconds", "12",
                                      "--train-iters", "100000", "--exit-duration-in-mins", "0.001"], stdout=said, stderr=said)
        self.wait_for(after, lambda: pathlib.Path(self.path("said")).read_text().count("waiting, for up to") >= 5)
        self.kill_only(before)
        self.assertEqual(after.wait(timeout=120), 0, pathlib.Path(self.path("said")).read_text())
        self.assertIn("resumed from", pathlib.Path(self.path("said")).read_text())

    def test_a_training_that_lost_its_lock_publishes_nothing(self):
        run = self.path("run")
        process = self.start("--save-interval", "5", mesh=(1, 1, 1, 0))
        self.wait_for(process, lambda: len(steps(run)) >= 1)
        # As if each host had its own lock: Lustre's localflock, NFS's nolock.
        other = {"host": "n3", "pid": 71, "job": "Slurm job 16", "since": "2026-11-28 00:10:03 UTC", "word": "abc"}
        pathlib.Path(run, ".lock").write_text(json.dumps(other))
        there = steps(run)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 2, said)
        self.assertIn("another process took this lock although this one holds it: pid 71 on n3 (Slurm job 16) since 2026-11-28", said)
        self.assertLessEqual(len(steps(run)), len(there) + 1, said)  # one may have been on its way
        self.assertEqual(json.loads(pathlib.Path(run, ".lock").read_text()), other)

    def test_a_save_now_file_saves_and_training_continues(self):
        process = self.start_and_wait("--save-now-file", self.path("now"))
        open(self.path("now"), "w").close()
        self.wait_for(process, lambda: len(steps(self.path("run"))) == 1)
        self.assertFalse(os.path.exists(self.path("now")))
        self.assertIsNone(process.poll())
        self.kill_all(process)


def write_dataset(prefix, sequences=2000, length=40):
    """A Megatron dataset of tokens below 61, one document a sequence."""
    tokens = np.random.default_rng(1).integers(0, 61, sequences * length).astype(np.uint16)
    tokens.tofile(prefix + ".bin")
    with open(prefix + ".idx", "wb") as out:
        out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, sequences, sequences + 1))
        np.full(sequences, length, np.int32).tofile(out)
        (np.arange(sequences, dtype=np.int64) * length * 2).tofile(out)
        np.arange(sequences + 1, dtype=np.int64).tofile(out)


class FaultsAroundATraining(Case):
    """The surroundings of a training fail; it continues, or saves first. One rank, without mpirun."""

    def start(self, *flags, model=TINY, **kwargs):
        kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs}
        return subprocess.Popen([CAIRN, "train", *model, "--log-interval", "1", "--save", self.path("run"), *flags],
                                text=True, **kwargs)

    def steps(self):
        return [int(step[-8:]) for step in steps(self.path("run"))]

    def test_full_disks_of_its_logs(self):
        with open("/dev/full", "w") as full:
            process = self.start("--train-iters", "6", "--log-json", "/dev/full", stdout=full)
            _, said = process.communicate(timeout=120)
        self.assertEqual((process.returncode, self.steps()), (0, [6]), said)
        for output in ["--log-json /dev/full", "standard output"]:
            self.assertEqual(said.count(output + " cannot be written"), 1, said)

    def test_a_file_size_limit_is_a_failed_save(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000))
        process = self.start("--train-iters", "4", "--save-interval", "2", preexec_fn=limit)
        _, said = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 2, said)
        self.assertEqual(said.count("FAILED"), 2, said)
        self.assertIn("File too large", said)

    def test_a_closed_pipe_and_a_closed_terminal(self):
        process = self.start("--train-iters", "1000000")
        for line in process.stdout:
            if line.startswith(" iteration"):
                break
        process.stdout.close()  # each further line is EPIPE
        process.send_signal(signal.SIGPIPE)
        self.assertIn("standard output cannot be written: Broken pipe", process.stderr.readline())
        process.send_signal(signal.SIGHUP)
        said = process.stderr.read()
        self.assertEqual((process.wait(120), len(self.steps())), (0, 1), said)
        cairn("verify", self.path("run"))

    def test_a_save_now_file_that_cannot_be_removed(self):
        os.mkdir(self.path("now"))
        process = self.start("--train-iters", "20", "--save-now-file", self.path("now"))
        _, said = process.communicate(timeout=120)
        self.assertEqual((process.returncode, self.steps()), (0, [1, 20]), said)
        self.assertEqual(said.count("cannot remove it"), 1, said)

    def test_a_dataset_that_is_truncated(self):
        prefix = self.path("data")
        write_dataset(prefix)
        flags = ["--data-path", prefix, "--train-iters", "20000", "--hidden-dropout", "0.1"]
        model = [flag for flag in TINY if flag != "--mock-data"]
        process = self.start(*flags, model=model)
        for line in process.stdout:
            if line.startswith(" iteration        5/"):
                break
        os.rename(prefix + ".bin", prefix + ".whole")
        shutil.copy(prefix + ".whole", prefix + ".bin")
        os.truncate(prefix + ".whole", 10)  # the file that is open
        _, said = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 2, said)
        [saved] = self.steps()
        self.assertIn(f"stopped after iteration {saved}: {prefix}.bin was truncated", said)
        self.assertEqual(len(said.splitlines()), 1, said)
        flags += ["--exit-interval", str(saved + 2)]
        whole = self.train("whole", (1, 1, 1), *flags, model=model)
        resumed = self.train("resumed", (1, 1, 1), *flags, "--save", self.path("run"), model=model)
        self.assertEqual(resumed, {step: whole[step] for step in [saved + 1, saved + 2]})


class SaveModes(Case):
    """A step is the same however it is copied and stored."""

    def test_copy_overlap_and_codec_do_not_change_saved_values(self):
        mesh, flags = (1, 1, 2, 1), ["--bf16", "--train-iters", "6", "--save-interval", "2"]
        expected = self.train("plain", mesh, *flags, "--save", self.path("plain"))
        for name, *more in [("copy", "--save-mode", "copy"), ("double", "--save-overlap", "double"),
                            ("zstd", "--save-codec", "zstd"), ("auto", "--save-codec", "auto"),
                            ("split", "--split-master"), ("both", "--split-master", "--save-codec", "zstd")]:
            with self.subTest(name):
                self.assertEqual(self.train(name, mesh, *flags, "--save", self.path(name), *more), expected)
                self.assertEqual(fingerprint(self.path(name)), fingerprint(self.path("plain")))
                cairn("verify", self.path(name))
        resumed = self.train("resumed", (2, 1, 1, 0), *flags, "--train-iters", "8", "--load", self.path("zstd"))
        plain = self.train("resumed-plain", (2, 1, 1, 0), *flags, "--train-iters", "8", "--load", self.path("plain"))
        self.assertEqual(resumed, plain)
        self.assertEqual(sorted(resumed), [7, 8])

    def test_all_ranks_skip_an_early_save_on_request(self):
        self.train("run", (1, 1, 2, 1), "--train-iters", "40", "--save", self.path("run"), "--save-interval", "1",
                   "--save-overlap", "skip")
        skipped = self.output.count("skipped: the one before is still being written")
        self.assertEqual(len(steps(self.path("run"))), 40 - skipped)
        self.assertEqual(steps(self.path("run"))[-1][-2:], "40")


class Retention(Case):
    def test_keeps_the_last_and_every_nth(self):
        self.train("run", (1, 1, 2, 1), "--train-iters", "12", "--save", self.path("run"), "--save-interval", "2",
                   "--keep-last", "1", "--keep-every", "6")
        self.assertEqual([int(step[-8:]) for step in steps(self.path("run"))], [6, 10, 12])  # 12 is not confirmed

    def test_keeps_the_first_of_each_epoch(self):
        write_dataset(self.path("data"), sequences=40)  # 1600 tokens: 100 samples
        self.train("run", (1, 1, 1), "--train-iters", "26", "--save", self.path("run"), "--save-interval", "2",
                   "--data-path", self.path("data"), "--split", "1,0,0", "--keep-epochs", "1",
                   model=[flag for flag in TINY if flag != "--mock-data"])
        self.assertEqual([int(step[-8:]) for step in steps(self.path("run"))], [14, 24, 26])

    def test_keeps_the_best_by_validation_loss(self):
        # Under so high a rate the loss only rises.
        self.train("run", (1, 1, 2, 1), "--train-iters", "12", "--save", self.path("run"), "--save-interval", "2",
                   "--eval-interval", "2", "--eval-iters", "1", "--lr-decay-style", "constant", "--lr", "5",
                   "--keep-best", "1")
        losses = {int(step): float(loss) for step, loss in
                  re.findall(r"validation loss at iteration (\d+) \| lm loss value: (\S+)", self.output)}
        self.assertEqual(sorted(losses), [2, 4, 6, 8, 10, 12])
        best = min(losses, key=lambda step: (losses[step], -step))
        self.assertLess(best, 10)  # otherwise only the newest two would be left
        self.assertEqual([int(step[-8:]) for step in steps(self.path("run"))], [best, 10, 12])
        for step in steps(self.path("run")):
            with open(os.path.join(step, "manifest.json")) as f:
                state = json.load(f)["state"]
            self.assertEqual(state["validation"]["iteration"], int(step[-8:]))
            self.assertAlmostEqual(state["validation"]["loss"] / losses[int(step[-8:])], 1, 5)


class FullDisk(Case):
    def mount(self, options):
        small = self.path(options)
        os.mkdir(small)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", small], capture_output=True).returncode != 0:
            self.skipTest("mounting a small tmpfs needs root")
        self.addCleanup(subprocess.run, ["umount", small])
        return small

    def test_a_failed_save_is_reported_and_training_continues(self):
        small = self.mount("size=1m")
        self.train("run", (1, 1, 2, 1), "--train-iters", "4", "--save", os.path.join(small, "run"), "--save-interval", "2",
                   status=2)
        self.assertIn("checkpoint of iteration 2 FAILED", self.output)
        self.assertIn("iteration        4/", self.output)
        self.assertIn("No space left on device", self.output)
        self.assertFalse([name for name in os.listdir(os.path.join(small, "run")) if name.startswith("step-")])

    def test_space_for_a_step_and_a_kept_one_is_asked_for_before_the_first_iteration(self):
        """Bytes and files: whatever the second save lacks is known before the first one begins."""
        save = ["--save-interval", "1", "--keep-last", "2", "--save"]
        self.train("roomy", (1, 1, 2, 1), "--train-iters", "1", *save, self.path("roomy"), "--require-space")
        self.assertNotIn("no room", self.output)
        [step] = steps(self.path("roomy"))
        size = sum(file.stat().st_size for file in os.scandir(step))
        for options, unit in ((f"size={3 * size // 2}", "bytes"), ("nr_inodes=13", "files")):
            run = os.path.join(self.mount(options), "run")
            for flags, status in ((["--require-space"], 2), ([], 0)):
                self.train(unit, (1, 1, 2, 1), "--train-iters", "1", *save, run, *flags, status=status)
                self.assertRegex(self.output, rf"no room for a step and one that is kept: \S+: needs about \d+ {unit}, but only \d+ are free; free")
                self.assertEqual("warning: no room" in self.output, status == 0)
                self.assertEqual(len(steps(run)), int(status == 0))


if __name__ == "__main__":
    unittest.main()
