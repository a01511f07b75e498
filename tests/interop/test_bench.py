"""scripts/bench save and load in their smallest form: every tool saves and loads a trained state, and all is read back equal."""

import json
import os
import subprocess
import sys
import unittest

from harness import CAIRN, Case

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "save_speed.py")


class Bench(Case):
    def test_all_tools_save_and_load_the_state(self):
        environment = {**os.environ, "CAIRN_CACHE": self.path("cache")}
        for what, contenders in (("save", ["raw O_DIRECT", "cairn", "cairn, lazy", "torch.save", "safetensors", "h5py", "DCP", "DCP async"]),
                                 ("load", ["limit", "cairn", "torch.save", "torch.load mmap", "safetensors", "h5py", "DCP"])):
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


if __name__ == "__main__":
    unittest.main()
