"""scripts/bench save, load, storage, reshape and convert in their smallest form: every tool does its work, and its result is
compared."""

import json
import os
import subprocess
import sys
import unittest

from harness import CAIRN, Case

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench")
SCRIPT = os.path.join(SCRIPTS, "save_speed.py")


class SaveAndLoad(Case):
    def test_all_tools_save_and_load_the_state(self):
        environment = {**os.environ, "CAIRN_CACHE": self.path("cache")}
        for what, contenders in (("save", ["raw O_DIRECT", "cairn", "cairn, lazy", "cairn.torch", "cairn.torch lazy", "torch.save", "safetensors",
                                           "h5py", "DCP", "DCP async"]),
                                 ("load", ["limit", "cairn", "cairn.torch", "torch.save", "torch.load mmap", "safetensors", "h5py", "DCP"])):
            report = self.path(what + ".json")
            done = subprocess.run([sys.executable, SCRIPT, what, "--bytes", "8MB", "--rounds", "2", "--dir", self.dir, "--cairn", CAIRN,
                                   "--json", report], env=environment, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr[-4000:])
            with open(report) as file:
                times = json.load(file)
            timed = [c for c in contenders if c not in ("raw O_DIRECT", "limit")]
            self.assertEqual(times["verified_bytes"], len(timed) * 2 * 2 * times["bytes"])
            states = ("as found", "recycled") if what == "save" else ("warm", "cold")
            self.assertEqual(set(times["seconds"]), {f"{c}, {s}" for c in contenders for s in states})
            for values in times["seconds"].values():
                self.assertEqual(len(values), 2)
                self.assertTrue(all(0 < stall <= durable for stall, durable in values), values)
            for contender in contenders:
                self.assertIn(f"| {contender} |", done.stdout)
        self.assertEqual(sorted(os.listdir(self.dir)), ["cache", "load.json", "save.json"])


class Storage(Case):
    def test_the_table_of_storage_is_whole_and_plotted(self):
        report, plots = self.path("storage.json"), self.path("plots")
        done = subprocess.run([sys.executable, os.path.join(SCRIPTS, "storage.py"), "--bytes", "8MB", "--rounds", "1", "--dir", self.dir,
                               "--json", report, "--plot", plots], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        with open(report) as file:
            figures = json.load(file)
        tools = ["cairn train", "cairn.torch, lazy", "DCP", "DCP async", "torch.save, mmap", "safetensors"]
        self.assertEqual([row["by"] for row in figures["real"]], ["raw O_DIRECT", *tools])
        self.assertEqual(figures["verified_bytes"], len(tools) * figures["bytes"])
        self.assertEqual(figures["share"], "1 of 32 layers and 1/32 of the vocabulary, 1/64 as wide")
        for row in figures["real"]:
            self.assertTrue(0 < row["stall"] <= row["save"]["seconds"] and row["load"]["seconds"] > 0, row)
        self.assertEqual([row["by"] for row in figures["reshape"]],
                         ["one O_DIRECT read and write", "cairn reshape", "cairn reshape --no-read-back", "dcp.load, dcp.save"])
        self.assertEqual([(row["model"], row["ranks"], round(row["bytes"] / 1e9)) for row in figures["metadata"]],
                         [("8B", 8, 112), ("70B", 64, 978), ("405B", 512, 5682), ("1T", 1024, 16549)])
        for name in ("rates", "costs", "metadata"):
            with open(os.path.join(plots, name + ".svg")) as file:
                self.assertIn("1T, 1024" if name == "metadata" else "safetensors", file.read())
        self.assertEqual(sorted(os.listdir(self.dir)), ["plots", "storage.json"])


class ReshapeAndStrip(Case):
    def turns(self, script, jobs):
        done = subprocess.run([sys.executable, os.path.join(SCRIPTS, script), "--bytes", "20MB", "--rounds", "1", "--dir", self.dir,
                               "--json"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        rows = json.loads(done.stdout)
        limit = "one O_DIRECT read and write"
        wanted = [(job, by) for job, contenders in jobs.items() for by in [limit, *contenders]]
        self.assertEqual([(row["job"], row["by"]) for row in rows], wanted)
        for row in rows:
            self.assertTrue(0 < row["seconds_from"] <= row["seconds"] <= row["seconds_to"], row)
            self.assertEqual(row["peak_memory_bytes"] > 0, row["by"] != limit, row)
        self.assertEqual(os.listdir(self.dir), [])

    def test_all_tools_reshape_and_strip(self):
        self.turns("reshape_speed.py", {
            "reshape TP2 PP2 -> TP1 PP4": ["cairn reshape", "cairn reshape --no-read-back", "ds_to_universal",
                                           "dcp.load + dcp.save", "torch.load, cat, torch.save"],
            "strip to fp16": ["cairn strip", "zero_to_fp32, half, save_file", "torch.load, cat, half, torch.save"]})

    def test_a_mixture_is_converted(self):
        self.turns("mixture_speed.py", dict.fromkeys(["native -> torch_dist", "torch_dist -> native", "torch_dist -> Hugging Face",
                                                      "Hugging Face -> native"], ["cairn"]))

    @unittest.skipUnless(os.environ.get("CAIRN_LONG"), "the same tools reshape and strip; scripts/test --long converts, too")
    def test_all_tools_convert(self):
        self.turns("convert_speed.py", {
            "DCP fp32 -> safetensors": ["cairn", "dcp_to_torch_save + save_file"],
            "ZeRO-2 -> fp16 safetensors": ["cairn", "zero_to_fp32 + save_file"],
            "ZeRO-1 TP2 PP2 -> TP1 PP4": ["cairn", "ds_to_universal"]})


if __name__ == "__main__":
    unittest.main()
