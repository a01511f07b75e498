"""The planner's memory of `cairn train` against the real memory of the trainer's tensors, on the CPU.

The peak is counted by tests/support/tensor_peak.cc, preloaded into each rank: every block of libtorch's allocator.
Run as a program with CAIRN_LONG=1 it tries more shapes. Prints what it compared.
"""

import glob
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

CAIRN = os.environ["CAIRN"]
TENSOR_PEAK = os.environ["TENSOR_PEAK_LIBRARY"]
WITHIN = 0.10

BASE = dict(tp=1, pp=1, dp=1, zero=0, layers=4, hidden=256, heads=4, seq=256, vocab=8192, mbs=4, gbs=4,
            precision="fp32", recompute="none")
CASES = [
    dict(),
    dict(layers=6, mbs=2, gbs=2, heads=8, precision="bf16"),
    dict(recompute="full", layers=8),
    dict(tp=2, gbs=8, vocab=5000),
    dict(pp=2, gbs=16),
    dict(dp=2, zero=1, gbs=8, hidden=384, heads=6, layers=3),
    dict(tp=2, pp=2, gbs=16, precision="bf16"),
    dict(dp=2, zero=2, gbs=8),
    dict(dp=2, zero=3, gbs=8, precision="bf16"),
    dict(llama=4, ffn=640, layers=6),
    dict(llama=2, ffn=640, heads=8, tp=2, precision="bf16"),
]
LONG_CASES = [
    dict(mbs=8, gbs=8, layers=8),
    dict(precision="fp16"),
    dict(layers=2, hidden=512, heads=8, vocab=1000, seq=128, mbs=2, gbs=2),
    dict(pp=2, dp=2, zero=1, precision="bf16", layers=6, hidden=320, heads=5, seq=192, vocab=5000, gbs=32, recompute="full"),
    dict(recompute="full", vocab=500, heads=8, precision="bf16"),
    dict(tp=2, dp=2, zero=1, gbs=8, precision="bf16", layers=8),
    dict(dp=4, zero=3, gbs=4, mbs=1, hidden=512, heads=8),
    dict(dp=4, zero=2, gbs=4, mbs=1, hidden=512, heads=8, recompute="full"),
    dict(llama=4, ffn=640, recompute="full", layers=8, precision="bf16"),
    dict(llama=2, ffn=1024, pp=2, gbs=16, layers=6),
    dict(llama=4, ffn=640, dp=2, zero=3, gbs=8),
    dict(llama=1, ffn=700, heads=8, vocab=2000, layers=8, mbs=2, gbs=2, hidden=512, precision="bf16"),
]
LLAMA = ["--normalization", "RMSNorm", "--disable-bias-linear", "--use-rotary-position-embeddings", "--hidden-dropout", "0",
         "--attention-dropout", "0", "--group-query-attention"]  # as plan's job scripts have them


def flags(case, separate):
    model = {"num-layers": "layers", "hidden-size": "hidden", "num-attention-heads": "heads", "seq-length": "seq",
             "vocab-size": "vocab", "micro-batch-size": "mbs", "global-batch-size": "gbs",
             "tensor-model-parallel-size": "tp", "pipeline-model-parallel-size": "pp", "zero-stage": "zero"}
    line = [x for name, key in model.items() for x in (f"--{name}", str(case[key]))]
    if "llama" in case:  # the number of groups of heads
        line += ["--swiglu", "--ffn-hidden-size", str(case["ffn"]), "--num-query-groups", str(case["llama"])]
        line += LLAMA if separate else []
    if separate and case["recompute"] == "full":
        line += ["--recompute-granularity", "full"]
    if not separate:
        line += ["--recompute", case["recompute"], "--dp", str(case["dp"])]
    if case["precision"] != "fp32" or not separate:
        line += ["--" + case["precision"]]
    return line


class PlanMemoryTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cairn-plan-memory-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.cluster = self.dir / "cpu.toml"
        self.cluster.write_text('base = "a100-80"\ncpu = true\n')

    def predicted(self, case):
        line = [CAIRN, "plan", "--cluster", self.cluster, "--for-cairn", "--no-fused-softmax", "--json", *flags(case, False)]
        plans = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)["plans"]
        self.assertEqual(len(plans), 1)
        return plans[0]["mem_gb"]["value"] * 1e9

    def measured(self, case):
        ranks = case["tp"] * case["pp"] * case["dp"]
        line = [CAIRN, "train", "--nproc-per-node", str(ranks), "--mock-data", "--train-iters", "2", "--threads", "1",
                *flags(case, True)]
        peak = self.dir / "peak"
        environment = dict(os.environ, LD_PRELOAD=TENSOR_PEAK, TENSOR_PEAK=str(peak))
        subprocess.run(line, check=True, capture_output=True, env=environment)
        return max(int(pathlib.Path(f).read_text()) for f in glob.glob(f"{peak}.*"))

    def test_peak_of_the_tensors(self):
        for change in CASES + (LONG_CASES if os.environ.get("CAIRN_LONG") else []):
            with self.subTest(**change):
                case = BASE | change
                for file in glob.glob(str(self.dir / "peak.*")):
                    os.remove(file)
                predicted, measured = self.predicted(case), self.measured(case)
                print(f"{predicted / 1e6:8.1f} MB predicted, {measured / 1e6:8.1f} MB measured, "
                      f"{100 * (predicted / measured - 1):+5.1f} %  {change}")
                self.assertLess(abs(predicted / measured - 1), WITHIN)


if __name__ == "__main__":
    unittest.main()
