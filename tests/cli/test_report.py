"""cairn report as a user runs it: real logs of cairn train, options, pictures, and files other than logs."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest
import xml.dom.minidom

from cairn_cli import CAIRN, TRAINER, CliTest

LINE = (" iteration {i:8d}/{n:8d} | consumed samples: {s:12d} | elapsed time per iteration (ms): {ms:.1f} | learning rate: 6.000E-05"
        " | global batch size: {b:5d} | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 0.250 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |\n")


def lines(first, last, of, seconds=2.0, batch=1024):
    return "".join(LINE.format(i=i, n=of, s=i * batch, ms=1000 * seconds, b=batch, loss=8 / i) for i in range(first, last + 1))


class ReportTest(CliTest):
    def log(self, name, text):
        path = self.dir / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def test_rows_in_every_format(self):
        self.log("18B-mbs-4-pp8-dp-1-gas-64.out", lines(1, 3, 10, 90.5, 256))
        options = ["--gpus", 16, "--seq-length", 1024]
        run, = self.json("report", "18B-mbs-4-pp8-dp-1-gas-64.out", *options)
        self.assertEqual((run["tp"], run["status"], run["iterations"], run["sec_per_it"]), (2, "incomplete", 3, 90.5))
        self.assertAlmostEqual(run["tflops"], 26.07, 2)
        self.cairn("report", "18B-mbs-4-pp8-dp-1-gas-64.out", *options, "--format", "md",
                   says="|   16 |  18B |   1 |   2 |   8 |   4 | 256 |   - |  90.50 |  26.07 |")
        table = self.cairn("report", "18B-mbs-4-pp8-dp-1-gas-64.out", *options, "--format", "csv", "--columns", "gpus,TFLOPs").stdout
        self.assertRegex(table, r"^gpus,tflops\n16,26\.0695")
        self.cairn("report", "18B-mbs-4-pp8-dp-1-gas-64.out", "--iterations", 362000, says="379.1")

    def test_failures_are_rows_and_name_their_line(self):
        self.log("a.out", lines(1, 2, 10) + "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n")
        self.log("b.out", "srun: error: Node failure on n3\n")
        a, b = self.json("report", "a.out", "b.out")
        self.assertEqual((a["status"], a["cause"], a["cause_line"], a["iterations"]), ("fail", "out of memory", 3, 2))
        self.assertEqual((b["status"], b["cause"], b["sec_per_it"]), ("fail", "node failure", None))
        self.cairn("report", "a.out", says="a.out:3: RuntimeError: CUDA out of memory")

    @unittest.skipUnless(shutil.which("gnuplot"), "gnuplot is not installed")
    def test_names_and_lines_are_escaped(self):
        names = [b"a\x1b[31m\xff.out", b"b\nc|d.out"]
        for name in names:
            (self.dir / os.fsdecode(name)).write_text(lines(1, 3, 3) + "OSError: \x1b]0;title\x07 No space left on device\n")
        paths = [os.fsdecode(name) for name in names]
        for form in ("table", "md", "csv"):
            done = subprocess.run([CAIRN, "report", *paths, "--format", form], cwd=self.dir, capture_output=True, check=True)
            text = done.stdout.decode()  # UTF-8, too
            self.assertNotRegex(text, r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
        self.assertIn("b?c", text)
        self.assertEqual(len([line for line in text.splitlines()]), 3)
        self.cairn("report", *paths, "--plot", "a.svg")
        xml.dom.minidom.parse(str(self.dir / "a.svg"))

    def test_restarts_are_one_run_unless_separated(self):
        self.log("a.out", lines(1, 10, 20))
        self.log("b.out", lines(8, 20, 20))
        run, = self.json("report", "b.out", "a.out")
        self.assertEqual((run["files"], run["iterations"], run["redone_iterations"]), (["a.out", "b.out"], 20, 3))
        self.assertEqual(len(self.json("report", "b.out", "a.out", "--no-join")), 2)

    def test_files_other_than_logs_get_one_clear_line_each(self):
        self.log("good.out", lines(1, 2, 2))
        self.log("empty.out", "")
        self.log("binary.out", bytes(range(256)) * 4096)
        self.log("huge.out", "x" * (3 << 20))
        self.log("gz.out", b"\x1f\x8b" + b"x" * 100)
        self.log("wide.out", lines(1, 2, 2).encode("utf-16"))
        for name, code, says in (("empty.out", 0, "empty file"), ("binary.out", 2, "binary data"), ("huge.out", 0, "a line of 3 MB"),
                                 ("gz.out", 2, "zcat"),
                                 ("wide.out", 2, "wide.out: UTF-16; use iconv"), ("missing.out", 2, "no such file"), (".", 2, "a directory")):
            done = self.cairn("report", name, "good.out", "--format", "csv", "--columns", "file,status", code=code)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(says, done.stderr)
            self.assertIn("good.out,ok", done.stdout)
        self.cairn("report", "--columns", "frob", "good.out", code=2, says="there is no column 'frob'")

    def test_standard_input(self):
        done = subprocess.run([CAIRN, "report", "-", "--json"], input=lines(1, 3, 3), capture_output=True, text=True, check=True)
        self.assertIn('"iterations": 3', done.stdout)

    @unittest.skipUnless(shutil.which("gnuplot"), "gnuplot is not installed")
    def test_plots(self):
        for pp in (2, 4):
            self.log(f"pp{pp}.out", lines(1, 30, 30, pp))
        files = ["pp2.out", "pp4.out"]
        self.cairn("report", *files, "--plot", "a.png", "--dry-run", says="would write a.png")
        self.assertFalse((self.dir / "a.png").exists())
        self.cairn("report", *files, "--plot", "a.png")
        self.assertTrue((self.dir / "a.png").read_bytes().startswith(b"\x89PNG"))
        self.cairn("report", *files, "--plot", "b.svg", "--x", "pp")
        self.assertIn("<svg", (self.dir / "b.svg").read_text())
        self.cairn("report", *files, "--plot", "a.png", code=2, says="already exists")
        self.cairn("report", *files, "--plot", "a.pdf", code=2, says=".png or .svg")

    def test_without_gnuplot_the_error_names_it(self):
        self.log("a.out", lines(1, 3, 3))
        done = subprocess.run([CAIRN, "report", "a.out", "--plot", "a.png"], capture_output=True, text=True, cwd=self.dir,
                              env={"PATH": "/nonexistent"})
        self.assertEqual(done.returncode, 2)
        self.assertIn("apt install gnuplot-nox", done.stderr)

    def test_tables_are_rewritten_in_place(self):
        table = "| GPUs | Size | GBS | Sec/it | TFLOPs |\n|--:|--:|--:|--:|--:|\n| 64 | 52B | 1024 | 129 | 0.0 |\n"
        self.log("t.md", table)
        self.cairn("report", "rewrite", "t.md", "--seq-length", 1024, says="| 52.8 |")
        self.cairn("report", "rewrite", "t.md", "--seq-length", 1024, "--in-place", "--dry-run", says="1 cells would change")
        self.assertEqual((self.dir / "t.md").read_text(), table)
        for left in ("t.md.new", "t.md.partial"):  # by a run that was killed, of older versions and of this one
            self.log(left, "| GPUs |")
        self.cairn("report", "rewrite", "t.md", "--seq-length", 1024, "--in-place", says="1 cells changed")
        self.assertFalse((self.dir / "t.md.partial").exists())
        self.assertEqual((self.dir / "t.md").read_text(), table.replace("0.0 ", "52.8 "))
        self.log("t.csv", "gpus,size_b,gbs,sec_per_it,tflops\n64,52,1024,129,0.0\n")
        self.cairn("report", "rewrite", "t.csv", "--seq-length", 1024, says="64,52,1024,129,52.8")
        self.log("seq.md", table + "| 64 | 52B | 1024 | fail | 0.0 |\n| | 52B | 1024 | 129 | oom |\n")
        left = "3 rows not changed: 1 without --gpus, 1 without seconds, 3 without --seq-length\n"
        self.cairn("report", "rewrite", "seq.md", "--dry-run", says=left)
        self.cairn("report", "rewrite", "seq.md", "--seq-length", 1024, "--gpus", 64,
                   says=": 1 without seconds, 1 without a number in the column TFLOPs\n")
        facts = self.json("report", "rewrite", "seq.md", "--dry-run")
        self.assertEqual(facts["left_without"], {"gpus": 1, "seconds": 1, "seq_length": 3})
        self.log("memory.md", "| GPUs | Mem | TFLOPs |\n|--:|--:|--:|\n| 8 | 67GB | 108.47 |\n")
        self.cairn("report", "rewrite", "memory.md", "--dry-run",
                   says=["1 row not changed: 1 without --global-batch-size, 1 without seconds, 1 without --seq-length;",
                         "; 1 of 1 tables without a column of seconds (Sec/it, Speed)"])
        self.log("no.md", "no table\n")
        self.cairn("report", "rewrite", "no.md", code=2, says="no.md: no table")

    def test_scripts_find_their_logs(self):
        self.log("pp8.slurm", "#!/bin/bash\n#SBATCH --job-name=big\n#SBATCH --output=%x-%j.out\nsrun x --hidden-size 64\n")
        self.log("big-1234.out", lines(1, 3, 3))
        self.log("other.out", lines(1, 3, 3))
        self.cairn("report", "match", "pp8.slurm", "big-1234.out", says="mv -n -- big-1234.out pp8.1234.out")
        self.cairn("report", "match", "pp8.slurm", "big-1234.out", "other.out", code=1, says="other.out: no script")
        self.cairn("report", "match", "big-1234.out", code=2, says="needs logs and job scripts")

    def test_output_of_match_is_safe_in_a_shell(self):
        script, log = self.dir / "n\ntouch PWN\n#.slurm", self.dir / "j-1234.out"
        script.write_text("#!/bin/bash\n#SBATCH --job-name=j\n#SBATCH --output=%x-%j.out\n")
        for name in (log, self.dir / "j-9\ntouch PWN\n.out"):
            name.write_text(" iteration 10/ 20 | elapsed time per iteration (ms): 1.0 | lm loss: 1.0 |\n")
            text = subprocess.run([CAIRN, "report", "match", script.name, name.name], cwd=self.dir, capture_output=True,
                                  text=True).stdout
            subprocess.run(["bash"], cwd=self.dir, input=text, capture_output=True, text=True)
            self.assertFalse((self.dir / "PWN").exists(), text)

    def test_subcommands_have_help(self):
        for verb in ("rewrite", "match"):
            self.cairn("report", verb, "--help", says=["Example", f"cairn report {verb}", "2 misuse or trouble"])

    @unittest.skipUnless(TRAINER, "cairn-train was not built (CAIRN_RUNTIME=OFF)")
    def test_cairn_train_logs_with_a_restart(self):
        flags = ["--mock-data", "--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "2", "--seq-length", "32",
                 "--vocab-size", "100", "--global-batch-size", "2", "--save", "run", "--save-interval", "3", "--train-iters", "8"]
        with open(self.dir / "train.log", "w") as log:
            for extra in (["--exit-interval", "4"], []):
                print("+ train", *flags, file=log, flush=True)
                subprocess.run([CAIRN, "train", *flags, *extra], cwd=self.dir, stdout=log, stderr=subprocess.STDOUT, check=True)
        run, = self.json("report", "train.log")
        self.assertEqual((run["status"], run["iterations"], run["starts"], run["gbs"], run["seq"]), ("ok", 8, 2, 2, 32))
        self.assertGreaterEqual(run["checkpoints"], 3)
        text = pathlib.Path(self.dir / "train.log").read_text()
        told = [float(x) / 1e3 for x in re.findall(r"elapsed time per iteration \(ms\): ([\d.]+)", text)]
        self.assertAlmostEqual(run["sec_per_it"], sum(told) / len(told), 9)
        self.assertEqual((run["mbs"], run["hidden"], run["layers"], run["heads"], run["vocab"]), (1, 32, 2, 2, 100))
        peak = max(float(x) for x in re.findall(r"\| max allocated: ([\d.]+)", text))
        self.assertAlmostEqual(run["mem_gb"], peak / 1024, 6)
        self.assertGreater(run["tflops_megatron"], 0)
        told = [float(x) for x in re.findall(r"model TFLOPs: ([\d.]+)", text)]
        self.assertAlmostEqual(run["tflops_logged"], sum(told) / len(told), 9)
        layers, hidden, seq, vocab = 2, 32, 32, 128  # Megatron-LM's formula, which the trainer's log follows
        flops = 72 * 2 * seq * layers * hidden**2 * (1 + seq / (12 * hidden) + vocab / (12 * layers * hidden))
        self.assertAlmostEqual(run["tflops_model"] * 1e12 * run["sec_per_it"] / flops, 1, 9)
        loss = float(re.findall(r"lm loss: (\S+)", text)[-1])
        self.assertAlmostEqual(run["loss"], loss, 9)


if __name__ == "__main__":
    unittest.main()
