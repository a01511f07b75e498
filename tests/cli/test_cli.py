"""The command as a user runs it: exit status, message, and what is left behind. Archives have a file of their own."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import unittest

from cairn_cli import CAIRN, MAKE_STEP, SANITIZED, TRAINER, CliTest, flip, tree, verbs


class ProgramTest(CliTest):
    def test_version_needs_no_libtorch(self):
        libraries = subprocess.run(["ldd", CAIRN], capture_output=True, text=True).stdout
        self.assertNotIn("torch", libraries)
        self.cairn("--version", says="cairn ")

    def test_unknown_words_suggest_the_nearest(self):
        self.make_step()
        for args, says in ((["ls", "x", "--jsn"], "unknown flag '--jsn'; did you mean --json?"),
                           (["ls", "--purge-day=3", "x"], "did you mean --purge-days?"),
                           (["verify", "x", "--frobnicate"], "unknown flag '--frobnicate'; see cairn verify --help"),
                           (["archive", "rnu", "x"], "unknown verb 'archive rnu'; did you mean archive run?"),
                           (["archive", "restore"], "STORE is required; see cairn archive restore --help"),
                           (["archive", "frobnicate"], "see cairn archive --help"), (["verfiy"], "did you mean verify?"),
                           (["frob", "--help"], "unknown verb 'frob'"), (["ls", "a", "b", "--store", "c", "d", "-Q"], "unknown flag '-Q'"),
                           (["convert", "x", "y", "--to", "huggingface"], "did you mean hf?"),
                           (["convert", "x", "y", "--to", "hf", "--dtype", "float16"], "did you mean fp16?")):
            with self.subTest(args=args):
                done = self.cairn(*args, code=2, says=says)
                self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_help_and_version_are_verbs_and_flags(self):
        version = self.cairn("--version").stdout
        self.assertEqual([self.cairn(word).stdout for word in ("-V", "version")], [version, version])
        for words in ([], ["ls"], ["archive", "run"]):
            self.assertEqual(self.cairn("help", *words).stdout, self.cairn(*words, "--help").stdout)

    def test_data_without_its_program_says_how_to_install_it(self):
        shutil.copy(CAIRN, self.dir / "cairn")
        done = subprocess.run([self.dir / "cairn", "data", "a", "--json"], capture_output=True, text=True, env={**os.environ, "PATH": ""})
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
        self.assertIn("pip install 'cairn-checkpoints[data]'", done.stderr)
        self.assertEqual(json.loads(done.stdout).keys(), {"error"})

    def test_help_fits_a_terminal(self):
        for verb in [[], *([verb] for verb in verbs() if verb != "train"), ["archive", "run"], ["plan", "predict"]]:
            lines = self.cairn(*verb, "--help").stdout.splitlines()
            self.assertEqual([line for line in lines if len(line) > 100 and " " in line.strip()[:60]], [], verb)

    def test_run_at_step_means_a_step(self):
        for step in (4, 8, 12):
            self.make_step(step=step)
        run = "gpt@8"
        self.cairn("verify", run, says="gpt/step-00000008: good")
        self.assertEqual(self.json("inspect", run)["step"], 8)
        self.assertEqual(self.json("fingerprint", run), self.json("fingerprint", self.run_dir / "step-00000008"))
        self.cairn("diff", run, self.run_dir / "step-00000008", says="no difference")
        self.cairn("strip", run, "weights", "--format", "safetensors")
        (self.dir / "config.json").write_text("{}")
        beside = ["--format", "safetensors", "--with", self.dir / "config.json"]
        self.cairn("strip", run, "with", *beside)
        self.assertIn(" config.json", (self.dir / "with" / "SHA256SUMS").read_text())
        for more, says in ((["--with", "nowhere.json"], "nowhere.json"), (["--with", "weights/model.safetensors"], "is written here by Cairn itself"),
                           (["--with", "with/SHA256SUMS"], "is written here by Cairn itself")):
            self.cairn("strip", run, "no", *beside, *more, code=2, says=says)
        self.cairn("strip", run, "no", *beside[2:], "--format", "native", code=2, says="a step holds no other files")
        self.assertFalse((self.dir / "no").exists())
        self.cairn("reshape", run, "out", "--tp", 2)
        self.archive("run", run, "--store", self.store, says="step-00000008")
        for args in (["verify", "gpt@9"], ["inspect", "gpt@9"], ["archive", "run", "gpt@9", "--store", self.store],
                     ["verify", "gpt/step-9"], ["strip", "gpt/step-00000009", "x"]):
            self.cairn(*args, code=2, says="steps 4, 8, 12")
        self.cairn("verify", "nowhere", code=2, says="cairn: nowhere: No such file")

    def test_run_at_tag_means_the_step_that_has_it(self):
        for step in (4, 8, 12):
            self.make_step(step=step)
        self.cairn("tag", "gpt@8", "best", "--dry-run", says="gpt/step-00000008: would be tagged 'best'")
        self.cairn("tag", "gpt", says="gpt: no tags")
        self.cairn("tag", "gpt@8", "best", says="gpt/step-00000008: tagged 'best'")
        self.cairn("tag", "gpt/step-00000004", "first")
        self.cairn("tag", "gpt@12", "best", code=2, says="gpt: step 8 has the tag 'best'; remove it first: cairn tag")
        for args in (["tag", "gpt@12", "7"], ["tag", "gpt@best"], ["tag", "gpt@9", "x"], ["tag", "gpt", "--remove"]):
            self.cairn(*args, code=2)
        self.assertEqual(self.json("inspect", "gpt@best")["step"], 8)
        self.cairn("verify", "gpt@best", says="gpt/step-00000008: good")
        self.cairn("archive", "run", "gpt@best", "--store", self.store, says="step-00000008")
        self.cairn("inspect", "gpt@worst", code=2, says="gpt: no tag 'worst' in it; it has the tags best, first")
        self.cairn("ls", "gpt", says=["tags", "best", "first"])
        self.assertEqual([step.get("tags") for step in self.json("ls", "gpt")[0]["steps"]], [["first"], ["best"], None])
        shutil.rmtree(self.run_dir / "step-00000008")
        self.cairn("ls", "gpt", says="tag best: step 8, which it names, is gone")
        self.assertEqual(self.json("ls", "gpt")[0]["lost_tags"], [{"tag": "best", "step": 8}])
        self.assertEqual([tag["directory"] for tag in self.json("tag", "gpt")], ["", "gpt/step-00000004"])
        self.cairn("verify", "gpt@best", code=2, says="gpt: step 8, which the tag 'best' names, is gone; cairn tag gpt@best --remove")
        self.cairn("tag", "gpt@best", "--remove", says="gpt: the tag 'best' is removed; its step stays")
        self.assertEqual([tag["tag"] for tag in self.json("tag", "gpt")], ["first"])

    def test_only_terminals_that_want_colour_get_it(self):
        self.make_step()

        def on_terminal(**environment):
            leader, follower = os.openpty()
            with os.fdopen(leader, "rb", buffering=0) as reader:
                child = subprocess.Popen([CAIRN, "verify", self.run_dir], stdout=follower, stderr=follower,
                                         env={**os.environ, "TERM": "xterm", "NO_COLOR": "", **environment})
                os.close(follower)
                text = b""
                with contextlib.suppress(OSError):  # EIO at its end
                    while part := reader.read(4096):
                        text += part
                self.assertEqual(child.wait(), 0, text)
            return text.decode()

        self.assertIn("\x1b[32m", on_terminal())
        self.assertNotIn("\x1b[", on_terminal(NO_COLOR="1"))
        self.assertNotIn("\x1b[", on_terminal(TERM="dumb"))
        self.assertNotIn("\x1b", self.cairn("verify", self.run_dir).stdout)

    def test_quiet_leaves_out_notes(self):
        (self.make_step() / "mine").write_text("mine")
        self.cairn("verify", self.run_dir, says="note: ")
        for args in (["-q", "verify", self.run_dir], ["verify", self.run_dir, "--quiet"]):
            self.assertEqual(self.cairn(*args, says="good").stderr, "")
        self.cairn("verify", self.run_dir, "--no-progress", says="note: ")

    def test_families_of_a_directory_are_read_or_refused_by_name(self):
        self.make_step()
        families = self.dir / "families"
        families.mkdir()
        self.cairn("verify", self.run_dir, "--families", families, code=2, says="families: it has no *.json")
        self.cairn("verify", self.run_dir, "--families", code=2, says="--families: which directory?")
        mine = families / "mine.json"
        for text, says in (("{", "families/mine.json: not JSON"), ('{"like": "llama"}', "families/mine.json: name is missing"),
                           ('{"name": "gpt2"}', "the family gpt2 is already in the built-in gpt2.json"),
                           ('{"name": "x", "like": "llama", "witout": []}', "unknown key 'witout'")):
            mine.write_text(text)
            done = self.cairn("verify", self.run_dir, f"--families={families}", code=2, says=says)
            self.assertEqual(len(done.stderr.splitlines()), 1)
        mine.write_text('{"name": "x", "like": "llama"}')
        self.cairn("--families", families, "verify", self.run_dir, says="good")

    def test_json_of_a_failure_is_an_error(self):
        self.make_step()
        for args in (["ls", "nowhere"], ["inspect", "nowhere"], ["verify", "nowhere"], ["fingerprint", "nowhere"],
                     ["diff", self.run_dir, "nowhere"], ["reshape", "nowhere", "x", "--tp", 2], ["strip", "nowhere", "x"],
                     ["convert", "nowhere", "x", "--to", "hf"], ["convert", self.run_dir], ["report"], ["archive", "ls", "nowhere"],
                     ["inspect", self.run_dir, "--frob"], ["report", "x", "--format", "json", "--columns", "frob"], ["inspct"]):
            with self.subTest(args=args):
                flags = [] if "json" in args else ["--json"]
                done = self.cairn(*args, *flags, code=2)
                facts = json.loads(done.stdout)
                self.assertEqual(list(facts), ["error"])
                self.assertIn(facts["error"].splitlines()[0], done.stderr)
        self.assertEqual(self.cairn("ls", "nowhere", code=2).stdout, "")

    def test_invalid_values_are_refused_first(self):
        self.make_step()
        pair = [self.run_dir, self.run_dir]
        for flags in (["--atol", "nan"], ["--atol", "inf"], ["--rtol", "-1"], ["--atol", "1x"], ["--max-memory", "32MiB"], ["--max-memory", "1KB"],
                      ["--tolerance", "*=nan"], ["--tolerance", "*=1,inf"]):
            self.cairn("diff", *pair, *flags, code=2, says=flags[0])
        self.cairn("diff", *pair, "--max-memory", "64MiB", "--atol", "1e-3", "--rtol", "0")
        self.cairn("fingerprint", self.run_dir, "--max-memory", "1KB", code=2, says="at least 64MiB")
        for args in (["--max-memory", "32MiB"], ["--max-shard-size", "0"]):
            self.cairn("strip", self.run_dir, "x", *args, code=2, says=args[0])
        self.cairn("archive", "run", self.run_dir, "--store", "st", "--parity", "100%", code=2, says="--parity")
        self.assertFalse((self.dir / "st").exists())

    def test_every_help_has_an_example_and_the_exit_statuses(self):
        commands = [[verb] for verb in verbs() if verb != "train"]
        commands += [["archive", verb] for verb in ("run", "ls", "verify", "restore")]
        commands += [["plan", "predict"]]
        self.assertGreater(len(commands), 7)
        for command in commands:
            text = " ".join(self.cairn(*command, "--help").stdout.split())  # its lines are broken anywhere
            for part in ("Example", "Exit status: 0", "2 misuse or trouble", "cairn " + " ".join(command)):
                self.assertIn(part, text)

    def test_unwritable_output_is_an_error(self):
        self.make_step()
        with open("/dev/full", "w") as full:
            done = subprocess.run([CAIRN, "ls", self.run_dir], stdout=full, stderr=subprocess.PIPE, text=True)
            many = subprocess.run([CAIRN, "inspect", self.run_dir, "--slices"], stdout=full, stderr=subprocess.PIPE, text=True)
        for said in (done, many):
            self.assertEqual(said.returncode, 2)
            self.assertEqual(said.stderr, "cairn: cannot write to standard output\n")

    def test_directories_may_have_names_of_verbs(self):
        self.run_dir = self.dir / "archive"
        self.make_step()
        self.cairn("ls", "archive", says="committed")


class TrainTest(CliTest):
    """A stand-in for cairn-train that prints its arguments."""

    def setUp(self):
        super().setUp()
        self.program = self.dir / "cairn"
        try:
            os.link(CAIRN, self.program)
        except OSError:
            shutil.copy(CAIRN, self.program)

    def stand_in(self):
        trainer = self.dir / "cairn-train"
        trainer.write_text('#!/bin/sh\nprintf "%s|" "rank${OMPI_COMM_WORLD_RANK}" "$@"\necho\nexit 3\n')
        trainer.chmod(0o755)

    def train(self, *args):
        return subprocess.run([self.program, "train", *args], capture_output=True, text=True)

    def test_reports_if_the_trainer_was_not_built(self):
        done = self.train("--help")
        self.assertEqual(done.returncode, 2)
        self.assertIn("built without the trainer", done.stderr)

    def test_flags_and_status_pass_through(self):
        self.stand_in()
        done = self.train("--save", "ls", "--lr=3", "-x", "--help")
        self.assertEqual(done.stdout, "rank|--save|ls|--lr=3|-x|--help|\n")
        self.assertEqual(done.returncode, 3)

    def test_ranks_are_started_through_mpirun(self):
        if not shutil.which("mpirun"):
            self.skipTest("no mpirun here")
        self.stand_in()
        flags = ("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 256 --micro-batch-size 1 "
                 "--mock-data --train-iters 1").split()
        self.assertIn("nonsense", self.train(*flags, "--nproc-per-node", "2", "--nonsense").stderr)  # before any rank starts
        done = self.train("--nproc-per-node", "2", *flags)
        self.assertIn("|".join(["rank0", *flags, ""]), done.stdout)
        if "rank1" not in done.stdout:  # mpirun may stop the other once the first one failed
            self.assertNotEqual(done.returncode, 0)

    def test_a_wrong_number_of_ranks_is_misuse(self):
        self.stand_in()
        for ranks in (["0"], ["x"], []):
            done = self.train("--nproc-per-node", *ranks)
            self.assertEqual(done.returncode, 2)
            self.assertIn("--nproc-per-node takes a number of ranks", done.stderr)

    def test_help_comes_from_the_trainer(self):
        if not TRAINER:
            self.skipTest("cairn-train was not built (CAIRN_RUNTIME=OFF)")
        self.cairn("train", "--help", says="--tensor-model-parallel-size")


class LsTest(CliTest):
    def test_shows_states_sizes_and_topology(self):
        self.make_step("--tp", 2, step=10)
        os.remove(self.make_step(step=20) / "shard-00000.h5")
        (self.run_dir / "step-00000030.partial-ab").mkdir()
        steps = self.json("ls", self.dir)[0]["steps"]
        self.assertEqual([s["state"] for s in steps], ["committed", "damaged", "partial"])
        self.assertEqual(steps[0]["topology"], {"tp": 2, "pp": 1, "dp": 1, "zero": 0})
        self.assertEqual(steps[0]["tokens"], 10240)
        self.assertEqual(steps[0]["bytes_by_role"]["master"], 2 * steps[0]["bytes_by_role"]["weight"])
        self.assertIn("shard-00000.h5", steps[1]["trouble"])
        self.assertIsNone(steps[2]["age_seconds"], "it has no file, so no date")
        self.assertIsNone(steps[2]["days_until_purge"])
        self.assertNotIn("overdue", self.cairn("ls", self.run_dir, says=["committed", "damaged", "partial", "TP=2 PP=1"]).stdout)

    def test_days_until_the_purge_follow_the_oldest_access(self):
        step = self.make_step()
        os.utime(step / "shard-00000.h5", (time.time() - 40 * 86400, time.time()))
        self.assertLess(self.json("ls", step)[0]["steps"][0]["days_until_purge"], -9.9)
        self.cairn("ls", step, says="overdue")
        self.assertGreater(self.json("ls", step, "--purge-days", 50)[0]["steps"][0]["days_until_purge"], 9.9)

    def test_steps_that_a_store_holds_are_archived(self):
        self.make_step(step=10)
        self.cairn("archive", "run", self.run_dir, "--store", self.store)
        self.make_step(step=20)
        steps = self.json("ls", self.run_dir, "--store", self.store)[0]["steps"]
        self.assertEqual(["archived" in s for s in steps], [True, False])
        self.cairn("ls", self.run_dir, "--store", self.store, says="archived")

    def test_a_noatime_mount_is_noted(self):
        self.run_dir = self.mount("-o", "noatime") / "gpt"
        self.make_step()
        self.assertEqual(self.json("ls", self.run_dir)[0]["access_times"], "noatime")
        self.cairn("ls", self.run_dir, says="noatime")

    def test_an_empty_directory_is_an_error(self):
        self.cairn("ls", "nope", code=2, says="nope")
        self.cairn("ls", self.dir, code=2, says="no run and no step")


class InspectTest(CliTest):
    def test_globs_choose_tensors_and_roles(self):
        self.make_step("--tp", 2)
        tensors = self.json("inspect", self.run_dir, "layers.0.mlp.up.weight")["tensors"]
        self.assertEqual([t["role"] for t in tensors], ["weight", "master", "exp_avg", "exp_avg_sq"])
        tensors = self.json("inspect", self.run_dir, "*mlp.up.weight/master", "--slices")["tensors"]
        self.assertEqual([t["shape"] for t in tensors], [[64, 16], [64, 16]])
        self.assertEqual([s["extent"] for s in tensors[0]["slices"]], [[32, 16], [32, 16]])
        self.assertEqual([s["ranks"] for s in tensors[0]["slices"]], [[0], [1]])
        self.cairn("inspect", self.run_dir, "final_norm.weight", "--slices", says=["ranks", "0-1"])
        self.cairn("inspect", self.run_dir, "nope*", code=2, says="no tensor matches nope*")

    def test_statistics_agree_with_numpy_through_h5py(self):
        try:
            import h5py
            import numpy
        except ImportError as error:
            self.skipTest(f"{error}; run with the environment that scripts/setup makes")
        step = self.make_step("--tp", 2, "--dp", 2, "--nan", "layers.0.mlp.up.weight/master")
        with h5py.File(step / "index.h5") as index:
            for tensor in self.json("inspect", step, "--stats")["tensors"]:
                values = numpy.asarray(index[f"{tensor['role']}/{tensor['name']}"][()], dtype=numpy.float64)
                self.assertEqual(tensor["stats"]["nan"], numpy.isnan(values).sum(), tensor["name"])
                finite = values[numpy.isfinite(values)]
                self.assertEqual(tensor["stats"]["min"], finite.min())
                self.assertEqual(tensor["stats"]["max"], finite.max())
                self.assertAlmostEqual(tensor["stats"]["norm"] / numpy.linalg.norm(finite), 1, places=12)


class DamageTest(CliTest):
    """Each kind of damage, and the messages of verify (status 1) and of verbs that need the data (status 1 or 2)."""

    def setUp(self):
        super().setUp()
        self.step = self.make_step("--tp", 2, "--pp", 2)

    def check(self, says, reads_all=True):
        self.cairn("verify", self.step, code=1, says=says)
        self.assertEqual([p for r in self.json("verify", self.run_dir, code=1) for p in r["problems"]] != [], True)
        self.cairn("archive", "run", self.step, "--store", self.store, code=1, says=says)
        self.assertEqual(list(self.store.glob("*.tar*")), [])
        self.cairn("inspect", self.step, "--stats", code=2 if reads_all else 0, says=says if reads_all else ())
        others = {"fingerprint": [], "reshape": [self.dir / "out", "--tp", 1], "strip": [self.dir / "out", "--dtype", "fp16"]}
        for verb, args in others.items():
            if verb not in verbs() or not reads_all:
                continue
            self.cairn(verb, self.step, *args, code=2, says=says)
            self.assertFalse((self.dir / "out").exists())

    def test_missing_shard_is_named(self):
        os.remove(self.step / "shard-00001.h5")
        self.check("shard-00001.h5")

    def test_truncated_shard_is_named(self):
        os.truncate(self.step / "shard-00002.h5", 5000)
        self.check(["shard-00002.h5", "has 5000 bytes"])

    def test_flipped_byte_in_a_tensor_is_named(self):
        piece = self.json("inspect", self.step, "*.1.mlp.up.weight/master", "--slices")["tensors"][0]["slices"][0]
        flip(self.step / piece["file"], piece["file_offset"] + 5)
        self.check([piece["file"], "layers.1.mlp.up.weight/master", f"at byte {piece['file_offset']}"])

    def test_flipped_byte_in_each_file_is_found(self):
        for path in sorted(self.step.iterdir()):
            for offset in (0, path.stat().st_size // 2, path.stat().st_size - 1):
                flip(path, offset)
                self.cairn("verify", self.step, code=1, says=path.name)
                flip(path, offset)
        self.cairn("verify", self.step)

    def test_swapped_shards_are_named(self):
        a, b = self.step / "shard-00000.h5", self.step / "shard-00001.h5"
        os.rename(a, self.dir / "x")
        os.rename(b, a)
        os.rename(self.dir / "x", b)
        self.cairn("verify", self.step, code=1, says="shard-0000")

    def test_wrong_version_is_refused(self):
        manifest = self.step / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 99'))
        self.check(["manifest.json", "version 99"])

    def test_malformed_manifest_is_refused(self):
        os.truncate(self.step / "manifest.json", 300)
        self.check(["manifest.json", "not valid JSON"])

    def test_edited_manifest_is_refused(self):
        manifest = self.step / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"iteration": 100', '"iteration": 101'))
        self.check(["manifest.json", "digest"])

    def test_other_directories_are_refused(self):
        empty = self.dir / "empty"
        empty.mkdir()
        for args in (["verify", empty], ["inspect", empty], ["archive", "run", empty, "--store", self.store]):
            self.cairn(*args, code=2, says="empty")
        self.cairn("verify", self.step / "manifest.json", code=2, says="is a file")
        self.cairn("verify", "nope", code=2, says="nope")

    def test_a_step_without_manifest_is_a_finding(self):
        os.remove(self.step / "manifest.json")
        self.cairn("verify", self.step, code=1, says="manifest.json")


class PlaceTest(CliTest):
    def test_nothing_is_written_into_a_committed_step(self):
        step, other = self.make_step("--tp", 2), self.dir / "other"
        subprocess.run([MAKE_STEP, other, "--step", "7"], check=True)
        self.archive("run", other, "--store", self.store)
        (self.dir / "link").symlink_to(step, target_is_directory=True)
        (self.dir / "text.txt").write_text("text\n")
        before = tree(self.run_dir)
        for place in (step, step / "deep/er", self.dir / "link/x"):
            for args in (["strip", other, place / "x", "--format", "safetensors"], ["strip", other, place / "x", "--format", "native"],
                         ["reshape", other, place, "--tp", 1], ["reshape", other, place, "--tp", 1, "--virtual"],
                         ["reshape", other, place, "--tp", 1, "--dry-run"], ["convert", other, place / "x", "--to", "dcp"],
                         ["convert", other, place, "--to", "native"], ["archive", "run", other, "--store", place],
                         ["archive", "restore", f"{self.store}:other@7", place / "x"],
                         ["archive", "restore", f"{self.store}:other@7", place / "x", "--tensors", "*"],
                         ["data", "text.txt", "--output-prefix", place / "x", "--train-sentencepiece", "--vocab-size", 300]):
                with self.subTest(args=args):
                    self.cairn(*args, code=2, says=f"it is inside the committed step {step}; choose another path")
                    self.assertEqual(tree(self.run_dir), before)

    def test_a_file_in_a_step_that_no_manifest_lists_is_a_note(self):
        step = self.make_step()
        self.cairn("verify", step, says=": good")
        (step / "notes").mkdir()
        self.cairn("verify", step, says=["notes; retention keeps the step", ": good"])
        self.assertEqual(self.json("verify", self.run_dir)[0]["unlisted"], ["notes"])


class VerifyTest(CliTest):
    def test_choices(self):
        self.make_step("--tp", 2)
        self.cairn("verify", self.run_dir, says="structure, every byte")
        self.cairn("verify", self.run_dir, "--values", "--structure", says="(structure, values)")
        self.cairn("verify", self.run_dir, "--sample", "50%", says="a sample")
        self.cairn("verify", self.run_dir, "--sample", "many", code=2, says="5% or 200GB")

    def test_a_run_directory_means_its_newest_step_and_all_means_all(self):
        os.truncate(self.make_step(step=10) / "shard-00000.h5", 7)
        self.make_step(step=20)
        self.cairn("verify", self.run_dir, says="step-00000020")
        reports = self.json("verify", self.run_dir, "--all", code=1)
        self.assertEqual([r["ok"] for r in reports], [False, True])

    def state(self, step):
        (listed,) = self.json("ls", step)[0]["steps"]
        return listed["state"]

    def test_a_weaker_check_hides_neither_a_failure_nor_a_change(self):
        step = self.make_step("--tp", 2)
        shard = step / "shard-00001.h5"
        self.cairn("verify", step, "--sample", "1B", says="a sample")
        self.assertEqual(self.state(step), "partly verified")
        self.cairn("ls", step, says="partly verified (")
        self.cairn("verify", step)
        self.assertEqual(self.state(step), "verified")
        before = shard.stat()
        flip(shard, before.st_size // 2)
        os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
        self.assertEqual(self.state(step), "changed since verified")
        self.cairn("ls", step, says=["changed since verified", "shard-00001.h5 has changed"])
        self.cairn("verify", step, code=1)
        note = self.cairn("verify", step, "--structure", says="good").stderr
        self.assertIn("still counts as damaged", note)
        self.assertEqual(self.state(step), "damaged")
        flip(shard, before.st_size // 2)
        self.assertEqual(self.state(step), "damaged")
        self.cairn("verify", step)
        self.assertEqual(self.state(step), "verified")
        checks = self.json("ls", step)[0]["steps"][0]["checks"]
        self.assertEqual(checks[-1]["checked"], "every byte")
        self.assertEqual(checks[-1]["bytes"], checks[-1]["of_bytes"])

    def test_a_record_that_cannot_be_kept_is_a_note(self):
        step = self.make_step()
        (self.run_dir / "verified").write_text("in the way")
        done = self.cairn("verify", self.run_dir, says="good")
        self.assertEqual(len(re.findall("not recorded", done.stderr)), 1)
        self.assertEqual(self.state(step), "committed")

    def limited(self, limits, *args):
        command = f'ulimit {limits}; exec "$@"'
        done = subprocess.run(["bash", "-c", command, "bash", CAIRN, *map(str, args)], capture_output=True, text=True, cwd=self.dir)
        if done.returncode != 0:
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        return done

    @unittest.skipIf(SANITIZED, "a sanitizer opens a pipe to look at memory")
    def test_too_few_open_files_are_an_error_not_damage(self):
        step = self.make_step("--tp", 4)
        for files in range(4, 9):
            done = self.limited(f"-n {files}", "verify", step, "--no-record")
            self.assertIn(done.returncode, (0, 2), done.stdout)
            self.assertNotIn("problem", done.stdout)
        self.assertNotIn("damaged", self.limited("-n 4", "ls", self.run_dir).stdout)

    @unittest.skipIf(SANITIZED, "a sanitizer wants terabytes of addresses")
    def test_too_little_memory_is_one_line(self):
        self.make_step("--hidden", 256, "--ffn", 1024, "--vocab", 4000)
        enough = 0
        for thousands in range(110, 500, 30):
            for args in (["convert", self.run_dir, "out", "--to", "hf"], ["strip", self.run_dir, "out", "--dtype", "bf16"]):
                done = self.limited(f"-v {thousands}000", *args)
                if done.returncode == 127:  # the libraries do not load
                    continue
                self.assertIn(done.returncode, (0, 2), done.stderr)
                self.assertEqual((self.dir / "out").exists(), done.returncode == 0)
                self.assertEqual(list(self.dir.glob("out*partial*")), [])
                shutil.rmtree(self.dir / "out", ignore_errors=True)
                enough += done.returncode == 0
        self.assertGreater(enough, 0)

    def test_a_message_is_one_line_of_limited_length(self):
        header = b'{"a\\ncairn: x: good": {"dtype": "NOPE", "shape": [1], "data_offsets": [0, 4]}}'
        for name in (header, header.replace(b"a\\n", b"a" * 100_000)):
            (self.dir / "bad.safetensors").write_bytes(len(name).to_bytes(8, "little") + name + bytes(4))
            done = self.cairn("inspect", "bad.safetensors", code=2)
            self.assertEqual(len(done.stderr.splitlines()), 1)
            self.assertLess(len(done.stderr), 2200)

    def test_names_are_escaped_for_the_terminal(self):
        step = self.make_step().rename(self.run_dir / "s\x1b[31m\nx: good")
        for args in (["verify", step], ["ls", step], ["inspect", step]):
            text = self.cairn(*args).stdout
            self.assertNotIn("\x1b", text)
            self.assertIn("s?[31m?x", text)

    def test_invalid_values_are_named(self):
        self.make_step("--nan", "layers.0.mlp.up.weight/exp_avg", step=10)
        self.cairn("verify", self.run_dir)
        problem = self.json("verify", self.run_dir, "--values", code=1)[0]["problems"][0]
        self.assertEqual(problem["tensor"], "layers.0.mlp.up.weight/exp_avg")
        self.assertIn("NaN", problem["what"])
        self.make_step("--dtype", "fp16", "--unrounded", "final_norm.bias", step=20)
        self.cairn("verify", self.run_dir, "--values", code=1, says=["final_norm.bias", "not the fp32 master"])


if __name__ == "__main__":
    unittest.main()
