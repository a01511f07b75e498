"""`cairn-bench`: its reports are complete and everything in them was verified. Speed is not tested."""

import json
import os
import subprocess
import unittest

from cairn_cli import CAIRN, CliTest

SERVER = os.path.join(os.path.dirname(CAIRN), "bench_server")
SMALL = ["--bytes", "16MB", "--rounds", "2", "--settle", "0"]


class BenchTest(CliTest):
    command = os.path.join(os.path.dirname(CAIRN), "cairn-bench")

    def bench(self, what):
        place = self.dir / "it's a place"
        place.mkdir()
        report = self.json(what, *SMALL, "--dir", place)
        self.assertEqual(report["bench"], what)
        self.assertEqual(report["rounds"], 2)
        self.assertGreater(report["machine"]["memory_bytes"], 1 << 28)
        for name, series in report["series"].items():
            with self.subTest(name):
                self.assertEqual(len(series["seconds"]), 2)
                self.assertGreater(min(series["seconds"]), 0)
                self.assertAlmostEqual(series["gb_per_s"]["max"], series["bytes"] / min(series["seconds"]) / 1e9)
                self.assertLessEqual(series["gb_per_s"]["min"], series["gb_per_s"]["median"])
                self.assertIs(series["void"], max(series["seconds"]) - min(series["seconds"]) > 0.15 * sum(series["seconds"]) / 2)
        self.assertEqual(list(place.iterdir()), [], "files were left behind")
        return report

    def check_goal(self, report, name, ours, limits):
        """The ratio is computed from the series and the faster limit, and compared with its goal."""
        series = report["series"]
        limit = max((series[n] for n in limits if n in series), key=lambda s: s["gb_per_s"]["median"])
        ratios = [(o / series[ours]["bytes"]) / (l / limit["bytes"]) for o, l in zip(series[ours]["seconds"], limit["seconds"])]
        goal = report["goals"][name]
        if goal["bound"] == "at least":
            ratios = [1 / r for r in ratios]
        self.assertAlmostEqual(report[name], sum(ratios) / 2)
        self.assertEqual(goal["ratio"], report[name])
        self.assertIs(goal["met"], goal["ratio"] >= goal["goal"] if goal["bound"] == "at least" else goal["ratio"] <= goal["goal"])
        self.assertIs(goal["void"], limit["void"])

    def test_limits(self):
        report = self.bench("limits")
        wanted = {"memcpy_1", "memcpy_2", "touch_pages_as_found", "touch_pages_recycled", "page_cache_write_as_found",
                  "page_cache_write_recycled_and_fsync", "page_cache_read_1", "xxh3_128_cached", "xxh3_128_memory", "fingerprint_fp32"}
        if report["machine"]["o_direct"]:
            wanted |= {f"direct_write_threads_{depth}" for depth in (1, 2, 4, 8)}
            if report["machine"]["io_uring"]:
                wanted |= {"direct_write_uring_4"}
        self.assertLessEqual(wanted, set(report["series"]))
        self.assertEqual(report["goals"], {})
        reads = [name for name in report["series"] if "_read_" in name]
        self.assertEqual(report["verified_bytes"], 2 * len(reads) * report["bytes"])

    def test_save(self):
        report = self.bench("save")
        self.check_goal(report, "flush_ratio", "flush", ["raw_threads", "raw_uring"])
        self.check_goal(report, "stall_ratio", "stall", ["memcpy"])
        self.check_goal(report, "lazy_stall_ratio", "lazy_stall", ["memcpy"])
        self.assertGreaterEqual(report["verified_bytes"], 2 * 2 * report["series"]["flush"]["bytes"])

    def test_load(self):
        report = self.bench("load")
        self.check_goal(report, "load_warm_ratio", "load_warm", ["page_cache_read_1", "page_cache_read_2"])
        if "load_cold" in report["series"]:
            self.check_goal(report, "load_cold_ratio", "load_cold", ["direct_read_threads", "direct_read_uring"])
        loads = sum(name in report["series"] for name in ("load_warm", "load_cold"))
        self.assertEqual(report["verified_bytes"], 2 * loads * report["series"]["load_warm"]["bytes"])

    def test_codec(self):
        step = self.make_step("--hidden", "64", "--ffn", "256")
        report = self.json("codec", step, "--rounds", "2")
        self.assertEqual(set(report["classes"]), {"weight_bf16", "master_fp32", "exp_avg_fp32", "exp_avg_sq_fp32"})
        for name, each in report["classes"].items():
            self.assertAlmostEqual(each["fraction"], each["stored_bytes"] / each["bytes"])
            self.assertLessEqual(each["stored_bytes"], each["bytes"])
            for way in ("in", "out"):
                series = report["series"][f"{name}_{way}"]
                self.assertEqual((series["bytes"], len(series["seconds"])), (each["bytes"], 2))
        self.assertEqual(report["classes"]["master_fp32"]["bytes"], 2 * report["classes"]["weight_bf16"]["bytes"])
        self.assertEqual(report["verified_bytes"], 2 * sum(each["bytes"] for each in report["classes"].values()))

    def test_prints_a_table(self):
        self.cairn("save", *SMALL, "--dir", self.dir, says=["flush_ratio", ">= 0.98", "memcpy"])

    def test_too_little_space_is_reported_first(self):
        self.cairn("save", "--bytes", "100000TB", "--dir", self.dir, code=2, says=["of disk", "are free"])
        self.cairn("limits", "--dir", self.dir / "missing", code=2)

    def test_the_server_of_scripts_bench_answers_line_by_line(self):
        step = self.make_step()
        shared = self.dir / "memory"
        shared.touch()
        asked = [f"save {self.dir}/out", f"save_lazy {self.dir}/lazy", f"warm {self.dir}/out/step-00000001/shard-00000.h5",
                 f"load {self.dir}/out/step-00000001", f"page_cache_read {self.dir}/lazy/step-00000001/shard-00000.h5"]
        done = subprocess.run([SERVER, step, shared], input="\n".join(asked) + "\n", text=True,
                              capture_output=True, check=True)
        about, *answers = map(json.loads, done.stdout.splitlines())
        self.assertEqual(len(answers), len(asked))
        self.assertEqual(os.path.getsize(shared), about["bytes"])
        self.assertLessEqual({"stall", "flush", "commit", "durable"}, set(answers[0]))
        sums = [subprocess.check_output([CAIRN, "fingerprint", path, "--json"]) for path in (step, self.dir / "out", self.dir / "lazy")]
        values = [json.loads(text)["tensors"] for text in sums]
        self.assertEqual(values[0], values[1])
        self.assertEqual(values[0], values[2])
        bad = subprocess.run([SERVER, step, shared], input="sing\n", text=True, capture_output=True)
        self.assertEqual(bad.returncode, 2)
        self.assertIn("unknown measurement sing", bad.stderr)


if __name__ == "__main__":
    unittest.main()
