"""cairn plan as a user runs it."""

import csv
import io
import json
import math
import os
import pathlib
import shutil
import subprocess
import unittest

from cairn_cli import CliTest

RUNS = pathlib.Path(__file__).resolve().parents[2] / "tools" / "plan" / "a100-runs.csv"
MODEL = ["--num-layers", 72, "--hidden-size", 14336, "--num-attention-heads", 64, "--vocab-size", 250000,
         "--global-batch-size", 2048]


MIXTRAL = {"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 32000,
           "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8,
           "num_experts_per_tok": 2, "max_position_embeddings": 32768, "tie_word_embeddings": False}


class PredictTest(CliTest):
    def rows(self, text):
        return list(csv.DictReader(io.StringIO(text)))

    def test_appends_columns_to_the_rows(self):
        given = self.rows(RUNS.read_text())
        done = self.cairn("plan", "predict", RUNS, "--calibrate", RUNS, "--format", "csv")
        rows = self.rows(done.stdout)
        self.assertEqual(len(rows), len(given))
        for row, had in zip(rows, given):
            self.assertEqual({k: row[k] for k in had}, had)
            self.assertIn(row["fits"], ("yes", "no"))
            self.assertLess(float(row["sec_per_it_pred_lo"]), float(row["sec_per_it_pred"]))
            self.assertGreater(float(row["mem_gb_pred_hi"]), float(row["mem_gb_pred"]))
        self.assertEqual(list(rows[0])[len(given[0]):][:4], ["mem_gb_pred", "sec_per_it_pred", "tflops_pred", "fits"])

    def test_measured_columns_and_shapes_may_be_missing(self):
        wanted = ["gpus", "size_b", "hidden", "seq", "vocab", "dp", "tp", "pp", "mbs", "gbs", "zero"]
        given = self.rows(RUNS.read_text())[36:46]
        bare = self.dir / "bare.csv"
        with open(bare, "w", newline="") as file:
            writer = csv.DictWriter(file, wanted, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(given)
        full = self.cairn("plan", "predict", bare, "--calibrate", RUNS, "--format", "json")
        for row, had in zip(json.loads(full.stdout), given):
            self.assertLess(abs(row["sec_per_it_pred"] / float(had["sec_per_it"]) - 1), 0.1)

    def test_built_in_runs_equal_the_file(self):
        a = self.cairn("plan", "predict", RUNS, "--cluster", "jean-zay", "--format", "md").stdout
        b = self.cairn("plan", "predict", RUNS, "--cluster", "jean-zay", "--calibrate", RUNS, "--format", "md").stdout
        self.assertEqual(a, b)

    def test_bad_tables_are_one_line(self):
        bad = self.dir / "bad.csv"
        for text, says in (("", "empty"), ("a,b\n1,2\n", "no column 'hidden'"), ("x" * 5_000_000, "no rows"),
                           ("hidden,tp,pp,mbs,gbs\n1,2\n", "bad.csv:2"), ("\0\1\2", "not a text file"),
                           ("hidden,tp,pp,mbs,gbs,gpus,layers\n8,0,1,1,1,8,1\n", "bad.csv:2: tp")):
            bad.write_text(text)
            done = self.cairn("plan", "predict", bad, code=2, says=says)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertLess(len(done.stderr), 500)
        self.cairn("plan", "predict", self.dir / "absent.csv", code=2, says="absent.csv")


class PlanTest(CliTest):
    def plan(self, *args, code=0):
        return self.json("plan", *MODEL, *args, code=code)

    def test_plans_are_ranked_by_seconds(self):
        found = self.plan("--nodes", 48, "--recompute", "full", "--train-tokens", 10**11)
        seconds = [p["sec_per_it"]["value"] for p in found["plans"]]
        self.assertEqual(seconds, sorted(seconds))
        first = found["plans"][0]
        self.assertEqual(first["gpus"], first["tp"] * first["pp"] * first["dp"])
        parts = first["time"]
        total = sum(parts[k] for k in ("micro_batches_s", "bubble_s", "data_parallel_s", "optimizer_s"))
        self.assertAlmostEqual(total, seconds[0], places=6)
        for stage in first["memory"].values():
            self.assertAlmostEqual(sum(v for k, v in stage.items() if k != "total_gb"), stage["total_gb"], places=6)
        self.assertGreater(first["training"]["gpu_hours"], 0)

    def test_the_checkpoints_of_a_training_are_summed_against_a_quota(self):
        args = ("--nodes", 48, "--recompute", "full", "--train-tokens", 10**11)
        first = self.plan(*args)["plans"][0]
        sums, one = first["storage"], first["checkpoint"]
        self.assertEqual(sums["saves"], math.ceil(first["training"]["iterations"] / one["save_interval"]))
        self.assertEqual(sums["kept_bytes"], sums["bytes"])
        self.assertAlmostEqual(sums["bytes"], sums["saves"] * one["bytes"], delta=1)
        self.assertNotIn("quota", first)
        for quota, fits in ((int(4 * one["bytes"]) + 9, True), (int(3 * one["bytes"]), False)):
            kept = self.plan(*args, "--keep-last", 3, "--quota", quota)["plans"][0]
            self.assertAlmostEqual(kept["storage"]["kept_bytes"], 4 * one["bytes"], delta=1)
            self.assertEqual(kept["quota"], {"bytes": quota, "fits": fits})
            self.cairn("plan", *MODEL, *args, "--keep-last", 3, "--quota", quota,
                       says=["written in", "--keep-last 3, and one that is being written", "those kept take 100.0 %" if fits else "too few by"])
        self.assertNotIn("storage", self.plan("--nodes", 48, "--recompute", "full")["plans"][0])
        self.cairn("plan", *MODEL, *args, "--quota", "much", code=2, says="--quota")

    def test_no_plan_is_status_1_with_the_reason(self):
        self.cairn("plan", *MODEL, "--nodes", 1, code=1, says=["no plan is left", "run out of memory"])

    def test_config_files(self):
        toml = self.dir / "gpt.toml"
        toml.write_text('[model]\nnum_layers = 24\nhidden-size = 2048\nnum-attention-heads = 16\nvocab-size = 50257\n'
                        '[run]\nglobal-batch-size = 512\nlr = 1e-4\nmicro-batch-size = 4\n')
        found = self.json("plan", "--config", toml, "--nodes", 2)
        self.assertTrue(all(p["mbs"] == 4 for p in found["plans"]))
        self.assertTrue(all(p["mbs"] == 8 for p in self.json("plan", "--config", toml, "--nodes", 2, "--mbs", 8)["plans"]))
        toml.write_text("colour = 3\n")
        self.cairn("plan", "--config", toml, code=2, says="gpt.toml:1: unknown key 'colour'")
        config = self.dir / "config.json"
        config.write_text('{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,'
                          '"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}')
        found = self.json("plan", "--model", self.dir, "--cluster", "h100", "--nodes", 2, "--global-batch-size", 256)
        self.assertEqual(found["model"]["layers"], 32)
        self.cairn("plan", "--model", self.dir, "--cluster", "h100", "--nodes", 2, "--global-batch-size", 256, "--top", 1,
                   "--train-iters", 100, "--sbatch", self.dir / "jobs")
        script = next((self.dir / "jobs").iterdir()).read_text()
        for line in ("num-query-groups 8", "swiglu", "normalization RMSNorm", "position-embedding-type rope", "hidden-dropout 0",
                     "untie-embeddings-and-output-weights", "ffn-hidden-size 14336"):
            self.assertIn(f"\n  --{line}\n", script)
        fits = ("plan", "--model", config, "--cluster", "h100", "--nodes", 2, "--global-batch-size", 256)
        self.assertNotIn("note:", self.cairn(*fits).stderr)  # 2048, and no longer sequence that the model knows
        config.write_text('{"text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34,'
                          '"num_attention_heads": 8, "head_dim": 256, "num_key_value_heads": 4, "vocab_size": 262208,'
                          '"intermediate_size": 10240, "max_position_embeddings": 131072}, "vision_config": {}}')
        found = self.json(*fits)
        self.assertEqual((found["model"]["seq"], round(found["model"]["parameters"] / 1e9, 2)), (2048, 3.88))
        said = self.cairn(*fits).stderr
        self.assertIn("note: planned for sequences of 2048 tokens; --seq-length sets another length, up to the model's 131072",
                      said)
        self.assertIn("note: vision_config is left out", said)
        self.assertNotIn("planned for", self.cairn(*fits, "--seq-length", 4096).stderr)
        config.write_text(json.dumps(MIXTRAL | {"model_type": "dbrx"}))
        self.cairn(*fits, code=2, says="config.json: num_experts_per_tok is 2: experts and latent attention of families without")
        self.cairn("plan", "--model", self.dir / "none", "--global-batch-size", 2, code=2, says="none")

    def test_mixtures_of_experts(self):
        config = self.dir / "config.json"
        config.write_text(json.dumps(MIXTRAL))
        plan = ("plan", "--model", config, "--cluster", "h100", "--nodes", 8, "--global-batch-size", 256)
        found = self.json(*plan, "--seq-length", 4096, "--use-flash-attn")
        self.assertEqual((found["model"]["parameters"], found["model"]["active_parameters"]), (46702792704, 12879925248))
        for p in found["plans"]:
            self.assertEqual(p["tp"] * p["dp"], p["ep"] * p["etp"] * p["expert_dp"])
            self.assertIn(f"--expert-model-parallel-size {p['ep']}", p["flags"])
            self.assertIs("--sequence-parallel" in p["flags"], p["tp"] > 1)
            self.assertEqual(p["checkpoint"]["bytes"], 14 * 46702792704)
            self.assertGreaterEqual(p["time"]["all_to_all_s"], 0)
        self.assertTrue(all((p["ep"], p["etp"]) == (8, 1) for p in self.json(*plan, "--ep", 8, "--etp", 1)["plans"]))
        self.cairn(*plan, says=["46.70 B parameters, 12.88 B of them active", "8 experts of 14336", "Megatron-LM takes it as",
                                "No run of a mixture was fitted on"])
        for flags in (["--for-cairn"], ["--train-iters", 9, "--sbatch", self.dir / "jobs"], ["--framework", "megatron-deepspeed"]):
            self.cairn(*plan, *flags, code=2, says="planned only as Megatron-LM cuts them")
        self.assertFalse((self.dir / "jobs").exists())
        self.cairn(*plan, "--for-hidden-near", 4096, code=2, says="without experts and latent attention only")
        self.cairn("plan", *MODEL, "--ep", 2, code=2, says="no experts")

    def test_scripts_are_bash_and_are_not_overwritten(self):
        args = ["plan", *MODEL, "--nodes", 48, "--train-iters", 100, "--top", 3, "--sbatch", self.dir / "jobs"]
        self.cairn(*args, "--dry-run", says="would write")
        self.assertFalse((self.dir / "jobs").exists())
        self.cairn(*args)
        scripts = sorted((self.dir / "jobs").iterdir())
        self.assertEqual(len(scripts), 3)
        for script in scripts:
            subprocess.run(["bash", "-n", script], check=True)
            self.assertIn(f"--job-name={script.stem}\n", script.read_text())
            self.assertRegex(script.read_text(), r"\n  --save-interval \d+\n")
            self.assertIn("DATA_PATH", script.read_text())
            if shutil.which("shellcheck"):
                subprocess.run(["shellcheck", script], check=True)
        self.cairn(*args, code=2, says="already exists")
        self.cairn(*args[:-1], self.dir / "own", "--sbatch-args", "--data-path verses")
        for script in (self.dir / "own").iterdir():
            self.assertNotIn("DATA_PATH", script.read_text())

    def test_a_task_of_an_array_leaves_the_rest_to_the_next_one_or_cancels_it(self):
        """With programs in place of Slurm's: the training exits with $ENDS, or with 0 after Slurm's signal."""
        args = ["plan", *MODEL, "--nodes", 48, "--train-iters", 100, "--top", 1]
        self.cairn(*args, "--sbatch", self.dir / "jobs", "--array", 3)
        [script] = (self.dir / "jobs").iterdir()
        self.assertIn("\n#SBATCH --array=1-3%1\n", script.read_text())
        self.assertNotIn("scontrol", script.read_text())
        if shutil.which("shellcheck"):
            subprocess.run(["shellcheck", script], check=True)
        programs = self.dir / "bin"
        programs.mkdir()
        (programs / "srun").write_text('#!/bin/bash\ntrap "exit 0" USR1\n'
                                       'while [ "$ENDS" = asked ]; do kill -USR1 $PPID; sleep 0.1; done\nexit $ENDS\n')
        (programs / "scancel").write_text('#!/bin/sh\necho "$@"\n')
        for program in programs.iterdir():
            program.chmod(0o755)
        rest = "--state=PENDING 7\n"
        for ends, says in (("0", rest), ("asked", ""), ("75", ""), ("137", ""), ("2", rest), ("143", rest)):
            done = subprocess.run(["bash", script], capture_output=True, text=True, cwd=self.dir, env={
                "PATH": f"{programs}:{os.environ['PATH']}", "ENDS": ends, "SLURM_ARRAY_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "48",
                "DATA_PATH": "x"})
            self.assertEqual((done.returncode, done.stdout), (int(ends) if ends.isdigit() else 0, says), done.stderr)
        self.cairn(*args, "--array", 3, code=2, says="--array requires --sbatch")

    def test_misuse(self):
        self.cairn("plan", code=2, says="a model is needed")
        self.cairn("plan", *MODEL, "--require", "dp %% 4", code=2, says="variables are")
        self.cairn("plan", *MODEL, "--cluster", "cray", code=2, says="a100-80")
        self.cairn("plan", *MODEL, "--cluster", "v100-16", code=2, says="no bf16")
        self.cairn("plan", *MODEL, "--pp", 0, code=2, says="--pipeline-model-parallel-size")


if __name__ == "__main__":
    unittest.main()
