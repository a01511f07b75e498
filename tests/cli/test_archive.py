"""`cairn archive` as a user runs it: nothing is lost, nothing hostile is extracted."""

import fcntl
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
import unittest

from cairn_cli import CAIRN, CliTest, flip, tree

TAR_NAME = "evil-step-00000001.aaaaaaaa.tar"


class ArchiveTest(CliTest):
    def test_round_trip_is_byte_identical(self):
        step = self.make_step("--tp", 2, "--dp", 2, "--zero", 1)
        before = tree(step)
        self.archive("run", self.run_dir, "--store", self.store, says="read back and verified")
        self.archive("verify", self.store, says="whole")
        self.archive("restore", f"{self.store}:gpt@100", "back/step-00000100", says="restored")
        self.assertEqual(tree(self.dir / "back/step-00000100"), before)
        self.cairn("verify", "back", "--values", "--hash")

    def test_archived_steps_are_checkpoints_too(self):
        self.make_step()
        self.archive("run", self.run_dir, "--store", self.store)
        self.cairn("verify", f"{self.store}:gpt@100", "--hash", "--values", says="good")
        self.cairn("inspect", f"{self.store}:gpt@100", "*", "--stats", says="final_norm.weight")
        self.assertEqual(self.json("fingerprint", f"{self.store}:gpt@100"), self.json("fingerprint", self.run_dir))
        self.cairn("reshape", f"{self.store}:gpt@100", "reshaped", "--tp", 2)
        self.assertEqual(self.json("fingerprint", "reshaped"), self.json("fingerprint", self.run_dir))

    def test_archived_checkpoints_of_other_systems_are_checkpoints_too(self):
        self.make_step("--tp", 2)
        hf = self.dir / "hf"
        self.cairn("convert", self.run_dir, hf, "--to", "hf")
        (hf / "tokenizer.json").write_text("{}")
        for pack in ([], ["--pack"]):
            shutil.rmtree(self.store, ignore_errors=True)
            self.archive("run", hf, "--store", self.store, *pack)
            member = f"{self.store}:hf"
            self.assertEqual(self.json("fingerprint", member), self.json("fingerprint", hf))
            self.assertEqual(self.json("inspect", member, "--stats")["tensors"], self.json("inspect", hf, "--stats")["tensors"])
            self.cairn("diff", member, hf, says="equal")
            self.cairn("verify", member, says="good")
            for name, source in (("from-store", member), ("from-dir", hf)):
                self.cairn("reshape", source, name, "--tp", 2, "--pp", 1, "--dp", 1)
            self.assertEqual(self.json("fingerprint", "from-store"), self.json("fingerprint", "from-dir"))
            self.cairn("strip", member, "again", "--dtype", "bf16")
            self.assertEqual((self.dir / "again/tokenizer.json").read_text(), "{}")
            for made in ("from-store", "from-dir", "again"):
                shutil.rmtree(self.dir / made)
        self.cairn("convert", member, "wrong", "--to", "hf", "--from", "native", code=2, says="--to native")

    def test_plain_tar_and_sha256sum_restore_it(self):
        step = self.make_step()
        before = tree(step)
        self.archive("run", step, "--store", self.store)
        out = self.dir / "out"
        out.mkdir()
        subprocess.run(["tar", "-xf", next(self.store.glob("*.tar")), "-C", out], check=True)
        unpacked = out / "gpt/step-00000100"
        subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=unpacked, check=True)
        os.remove(unpacked / "SHA256SUMS")
        self.assertEqual(tree(unpacked), before)
        self.assertIn("tar -xf", (self.store / "README.txt").read_text())

    def test_a_second_run_does_nothing(self):
        self.make_step()
        self.archive("run", self.run_dir, "--store", self.store)
        times = lambda: {p: p.stat().st_mtime_ns for p in self.store.iterdir() if p.name != ".lock"}  # noqa: E731
        before = times()
        self.archive("run", self.run_dir, "--store", self.store, says="already")
        self.assertEqual(times(), before)

    def test_a_step_saved_twice_means_the_later_save(self):
        for seed, numbers in enumerate(((10, 20), (11, 20))):  # back to 10
            for number in numbers:
                step = self.make_step("--seed", seed, step=number)
            self.archive("run", step, "--store", self.store)
            if seed == 0:
                shutil.rmtree(step)
                self.make_step(step=30)
        listed = self.json("archive", "ls", self.store)
        (earlier,) = (m["tar"] for m in listed if "earlier_save" in m)
        (later,) = (m["tar"] for m in listed if "earlier_save" not in m)
        hint = f"the name of the tar names the earlier one: {self.store}:{earlier}"
        out = self.archive("ls", self.store, says=["gpt@20 (earlier) ", hint]).stdout
        self.assertEqual([line.split()[:2] for line in out.splitlines() if later in line], [["gpt@20", "full"]])
        prints = [self.json("fingerprint", f"{self.store}:{name}")["fingerprint"] for name in ("gpt@20", later, earlier)]
        self.assertEqual((prints[0] == prints[1], prints[0] == prints[2]), (True, False))

    def test_dry_run_writes_nothing(self):
        self.make_step()
        self.archive("run", self.run_dir, "--store", self.store, "--dry-run", says=["would store gpt@100", "memory"])
        self.assertFalse(self.store.exists())

    def test_the_source_is_deleted_only_after_proof(self):
        for number in (10, 20, 30):
            self.make_step(step=number)
        flip(self.run_dir / "step-00000010/shard-00000.h5", 5000)
        self.archive("run", self.run_dir, "--store", self.store, "--delete-source", code=1,
                     says=["shard-00000.h5", "step-00000030 is kept: the newest healthy step"])
        self.assertEqual(sorted(p.name for p in self.run_dir.glob("step-*")), ["step-00000010", "step-00000030"])
        self.assertEqual([m["step"] for m in self.json("archive", "ls", self.store)], [20, 30])

    def test_a_tagged_step_stays(self):
        """Whatever the user insists on, and whether the run or the step is named."""
        tagged = [self.make_step(step=number) for number in (10, 20, 30)][0]
        self.cairn("tag", f"{self.run_dir}@10", "best")
        command = ("--store", self.store, "--delete-source")
        self.archive("run", tagged, *command, "--dry-run", says="would store gpt@10")
        for flags in ((), ("--delete-newest",)):
            self.archive("run", self.run_dir, *command, *flags, says="step-00000010 is kept: it has the tag 'best'")
            self.archive("run", tagged, *command, *flags, code=2, says="cairn tag")
            self.assertTrue(tagged.is_dir())
        self.cairn("tag", f"{self.run_dir}@best", "--remove")
        self.archive("run", tagged, *command, "--delete-newest", says="removed its source")
        self.assertEqual(list(self.run_dir.glob("step-*")), [])

    def test_a_step_is_deleted_only_if_a_good_one_stays(self):
        newest = [self.make_step(step=number) for number in (10, 20, 30)][-1]
        self.archive("run", newest, "--store", self.store)  # as long as it was good
        flip(newest / "shard-00000.h5", 5000)
        for _ in range(2):
            self.archive("run", self.run_dir, "--store", self.store, "--delete-source", code=1,
                         says=["step-00000020 stays", "step-00000030", "shard-00000.h5 at byte"])
            self.assertEqual(sorted(p.name for p in self.run_dir.glob("step-*")), ["step-00000020", "step-00000030"])
        self.cairn("ls", self.run_dir, says=["damaged", "verified"])
        shutil.rmtree(newest)
        self.archive("restore", f"{self.store}:gpt@30", newest)
        self.archive("run", self.run_dir, "--store", self.store, "--delete-source", says="step-00000030 is kept")
        self.assertEqual(list(self.run_dir.glob("step-*")), [newest])

    def test_the_newest_healthy_step_is_deleted_only_on_request(self):
        step = self.make_step()
        self.archive("run", step, "--store", self.store, "--delete-source", code=2, says="newest healthy step")
        self.assertTrue(step.exists())
        self.archive("run", step, "--store", self.store, "--delete-source", "--delete-newest", says="removed its source")
        self.assertFalse(step.exists())

    def test_extra_files_keep_a_source_in_any_form(self):
        for number in (10, 20):
            self.make_step(step=number)
        notes = self.run_dir / "step-00000010/notes.txt"
        notes.write_text("mine")
        for form in ([], ["--weights-only"]):
            self.archive("run", notes.parent, "--store", self.store, *form, "--delete-source", code=2, says="notes.txt")
        self.assertTrue(notes.exists())

    def test_an_old_copy_is_proven_again_before_its_source_is_deleted(self):
        step = self.make_step()
        self.make_step(step=200)
        self.archive("run", step, "--store", self.store)
        flip(next(self.store.glob("*.tar")), 200000)
        self.archive("run", step, "--store", self.store, "--delete-source", code=1)
        self.assertTrue(step.exists())

    def test_names_may_have_any_length_and_bytes(self):
        step = self.make_step()
        long = self.dir / ("r" * 250)
        odd = os.fsencode(self.dir) + b"/odd\xff"
        os.rename(self.run_dir, long)
        self.archive("run", long, "--store", self.store, says="stored " + "r" * 180 + "@100")
        os.mkdir(odd)
        os.rename(long, odd + b"/gpt")
        shutil.rmtree(self.store)
        self.archive("run", os.fsdecode(odd) + "/gpt", "--store", self.store)
        self.assertEqual([m["state"] for m in self.json("archive", "ls", self.store)], ["verified"])
        self.archive("restore", f"{self.store}:gpt@100", step)
        self.cairn("verify", step)

    def test_a_damaged_copy_is_replaced_from_its_source(self):
        self.make_step()
        self.archive("run", self.run_dir, "--store", self.store)
        os.truncate(next(self.store.glob("*.tar")), 100000)
        self.archive("run", self.run_dir, "--store", self.store, says="stored gpt@100")
        self.archive("verify", self.store, says="whole")

    def test_damage_in_the_store_is_named(self):
        self.make_step()
        self.archive("run", self.run_dir, "--store", self.store)
        tar = next(self.store.glob("*.tar"))
        flip(tar, 300000)
        self.archive("verify", self.store, code=1, says=tar.name)
        self.archive("restore", self.store, "back", code=1, says=tar.name)
        self.assertFalse((self.dir / "back").exists())
        flip(tar, 300000)
        os.truncate(tar, 100000)
        self.archive("ls", self.store, says="damaged")
        self.archive("verify", f"{self.store}:gpt@100", code=1, says="100000 bytes")
        os.remove(tar)
        self.archive("verify", self.store, code=1, says="the tar is missing")

    def test_a_source_that_changes_while_it_is_archived_is_refused(self):
        step = self.make_step("--hidden", 512, "--ffn", 2048, "--layers", 4, "--pp", 4)
        last = step / "shard-00003.h5"
        for _ in range(20):
            process = subprocess.Popen([CAIRN, "archive", "run", step, "--store", self.store], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True)
            while process.poll() is None and not list(self.store.glob("*.partial")):
                time.sleep(0.0005)
            process.send_signal(signal.SIGSTOP)
            flip(last, last.stat().st_size - 5000)
            process.send_signal(signal.SIGCONT)
            message = process.communicate()[1]
            flip(last, last.stat().st_size - 5000)
            if process.returncode != 0:
                break
            shutil.rmtree(self.store)  # it was done before it could be stopped
        self.assertEqual(process.returncode, 1, message)
        self.assertIn(str(step), message)
        self.assertEqual(list(self.store.glob("*.tar*")), [])
        self.archive("run", step, "--store", self.store)

    def test_a_killed_run_is_resumed(self):
        step = self.make_step("--hidden", 512, "--ffn", 2048, "--layers", 4)
        for delay in (0.0, 0.05, 0.2, 0.4):
            process = subprocess.Popen([CAIRN, "archive", "run", step, "--store", self.store], stdout=subprocess.DEVNULL)
            while process.poll() is None and not list(self.store.glob("*.tar*")):
                time.sleep(0.0005)
            time.sleep(delay)
            process.kill()
            process.wait()
        self.archive("run", step, "--store", self.store)
        self.assertEqual(list(self.store.glob("*.partial")), [])
        self.archive("verify", self.store, says="whole")

    def test_two_runs_at_once_are_refused(self):
        self.make_step()
        self.archive("run", self.run_dir, "--store", self.store)
        with open(self.store / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            busy = "another cairn archive is writing into this store"
            self.archive("run", self.run_dir, "--store", self.store, code=2, says=busy + "; wait")
            holder = {"host": "n3", "pid": 71, "job": "Slurm job 16", "since": "2026-11-28 00:10:03 UTC", "word": "abc"}
            (self.store / ".lock").write_text(json.dumps(holder))
            named = busy + ": pid 71 on n3 (Slurm job 16) since 2026-11-28 00:10:03 UTC; wait"
            self.archive("run", self.run_dir, "--store", self.store, code=2, says=named)

    def test_restore_overwrites_nothing(self):
        step = self.make_step()
        self.archive("run", self.run_dir, "--store", self.store)
        self.archive("restore", self.store, step, code=2, says="never overwritten")
        self.archive("restore", self.store, "step-00000007", code=2, says="step-00000100")
        self.archive("restore", f"{self.store}:gpt@7", "back", code=2, says="gpt@100")
        self.archive("restore", self.run_dir, "back", code=2, says="is it the store?")

    def test_unwritable_places_are_refused(self):
        self.make_step()
        self.archive("run", self.run_dir, "--store", "/proc/cairn/store", code=2, says="/proc/cairn")
        self.archive("run", self.run_dir, "--store", self.store)
        self.archive("restore", self.store, "/proc/cairn/step", code=2, says="/proc/cairn")

    def test_a_read_only_store_is_refused(self):
        self.make_step()
        self.archive("run", self.run_dir, "--store", self.mount("-o", "ro"), code=2, says="Read-only")

    def test_a_full_disk_is_reported_before_anything_is_written(self):
        self.make_step()
        small = self.mount("-o", "size=1m")
        self.archive("run", self.run_dir, "--store", small / "store", code=2, says="free")
        self.assertEqual(list(small.glob("store/*.tar*")), [])
        self.archive("run", self.run_dir, "--store", self.store)
        self.archive("restore", self.store, small / "back", code=2, says="free")
        self.assertEqual(list(small.glob("back*")), [])


class PackedTest(CliTest):
    """Packed archives, and parts of them."""

    def pack(self):
        step = self.make_step("--hidden", 256, "--ffn", 1024, "--layers", 2, "--tp", 2, "--dp", 2, "--zero", 1)
        self.archive("run", self.run_dir, "--store", self.store, "--pack")
        return step, next(self.store.glob("*.tar"))

    def test_every_file_is_restored_bit_for_bit(self):
        step, tar = self.pack()
        self.assertLess(tar.stat().st_size, sum(p.stat().st_size for p in step.iterdir()))
        self.archive("verify", self.store, says="whole")
        self.archive("restore", self.store, "back/step-00000100")
        self.assertEqual(tree(self.dir / "back/step-00000100"), tree(step))
        self.cairn("reshape", f"{self.store}:gpt@100", "wide", "--tp", 4)
        self.assertEqual(self.json("fingerprint", "wide"), self.json("fingerprint", self.run_dir))
        self.cairn("diff", f"{self.store}:gpt@100", self.run_dir, says="no difference")

    def test_tar_zstd_and_the_stores_unpack_py_restore_it(self):
        try:
            import numpy  # noqa: F401
        except ImportError:
            self.skipTest("no numpy for this Python")
        step, tar = self.pack()
        out = self.dir / "out"
        out.mkdir()
        subprocess.run(["tar", "-xf", tar, "-C", out], check=True)
        unpacked = out / "gpt/step-00000100"
        packed = list(unpacked.glob("*.planes.zst"))
        self.assertTrue(packed)
        subprocess.run(["zstd", "-tq", *packed], check=True)
        subprocess.run([sys.executable, self.store / "unpack.py", unpacked], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=unpacked, check=True)
        os.remove(unpacked / "SHA256SUMS")
        self.assertEqual(tree(unpacked), tree(step))

    def test_every_kind_of_damage_in_a_packed_tar_is_found(self):
        _, tar = self.pack()
        with tarfile.open(tar) as listing:
            members = [m for m in listing if m.name.endswith(".planes.zst")]
        for member in members:
            for at in (0, 3, 1000, member.size // 2, member.size - 300, member.size - 5):
                flip(tar, member.offset_data + at)
                done = subprocess.run([CAIRN, "archive", "verify", self.store], capture_output=True, text=True)
                # The seek table is zstd's own; of its entries only the last is ours.
                if at < member.size - 300:
                    self.assertEqual(done.returncode, 1, (member.name, at, done.stdout))
                self.assertIn(done.returncode, (0, 1))
                flip(tar, member.offset_data + at)

    def test_weights_or_one_tensor_can_be_restored(self):
        step, tar = self.pack()
        weights = tree(self.dir)  # nothing of it changes
        self.archive("restore", f"{self.store}:gpt@100", "weights/step-00000100", "--weights-only", says="a part of")
        self.cairn("verify", "weights", "--hash", "--values")
        self.cairn("diff", "weights", self.run_dir, "--ignore", "optimizer", says="no difference")
        self.archive("restore", f"{self.store}:gpt@100", "some.safetensors", "--tensors", "layers.0.mlp.*", "--tensors",
                     "final_norm.weight/master", says="tensors")
        data = (self.dir / "some.safetensors").read_bytes()
        header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        self.assertIn("final_norm.weight/master", header)
        self.assertIn("layers.0.mlp.up.weight/exp_avg", header)
        self.assertNotIn("layers.1.mlp.up.weight", header)
        self.archive("restore", f"{self.store}:gpt@100", "none", "--tensors", "nothing*", code=2, says="matches no tensor")
        self.assertFalse((self.dir / "none").exists())
        self.assertTrue(weights.keys() <= tree(self.dir).keys())

    def test_one_tensor_reads_little_of_the_tar(self):
        self.pack()
        self.assert_one_tensor_reads_little(f"{self.store}:gpt@100")

    def test_only_the_weights_can_be_stored(self):
        self.make_step()
        self.archive("run", self.run_dir, "--store", self.store, "--weights-only", says=".fp16.")
        self.archive("run", self.run_dir, "--store", self.store, "--weights-only", says="already")
        self.assertEqual([m["form"] for m in self.json("archive", "ls", self.store)], ["weights-fp16"])
        self.cairn("verify", f"{self.store}:gpt@100", "--hash")
        self.archive("run", self.run_dir, "--store", self.store)
        self.assertEqual(len(self.json("archive", "ls", self.store)), 2)
        self.archive("restore", f"{self.store}:gpt@100", "back")  # the fullest form
        self.assertEqual(tree(self.dir / "back"), tree(self.run_dir / "step-00000100"))


class TreeTest(CliTest):
    """Directories other than Cairn's steps."""

    def make_tree(self):
        root = self.dir / "bloom/global_step2"
        (root / "deep/er").mkdir(parents=True)
        (root / "a.pt").write_bytes(os.urandom(300000))
        (root / "deep/er/b.pt").write_bytes(b"abcd" * 100000)
        (root / "deep/empty").write_bytes(b"")
        (root / "SHA256SUMS").write_text("one of its own\n")
        (root.parent / "latest").write_text(root.name)
        self.age(root)
        return root

    def age(self, root):
        """Files that were just written may not go: their writer may not be done."""
        for path in root.rglob("*"):
            os.utime(path, (1767225600, 1767225600), follow_symlinks=False)

    def test_round_trip(self):
        root = self.make_tree()
        for flags in ([], ["--pack"]):
            self.archive("run", self.dir / "bloom", "--store", self.store, *flags, says="stored bloom@2")
            self.archive("run", self.dir / "bloom", "--store", self.store, says="already")
            self.archive("verify", self.store, says="whole")
            self.archive("restore", f"{self.store}:bloom@2", "back")
            self.assertEqual(tree(self.dir / "back"), tree(root))
            shutil.rmtree(self.dir / "back")
            tar = next(self.store.glob("*.tar"))
            flip(tar, tar.stat().st_size // 2)
            self.archive("verify", self.store, code=1)
            self.archive("restore", f"{self.store}:bloom@2", "back", code=1)
            self.assertFalse((self.dir / "back").exists())
            shutil.rmtree(self.store)

    def test_a_changed_tree_is_stored_again_and_not_deleted(self):
        root = self.make_tree()
        self.archive("run", root, "--store", self.store)
        (root / "a.pt").write_bytes(b"new")
        self.archive("run", root, "--store", self.store, says="stored")
        self.assertEqual(len(list(self.store.glob("*.tar"))), 2)
        self.age(root)
        self.archive("run", root, "--store", self.store, "--delete-source", "--delete-newest", says="removed its source")
        self.assertFalse(root.exists())

    def test_a_mount_below_a_tree_keeps_all_of_it(self):
        root = self.make_tree()
        (self.mount("-o", "size=1m", at="bloom/global_step2/deep/mounted") / "theirs").write_text("needed elsewhere")
        self.age(root)
        before = tree(root)
        for _ in range(2):  # stored first, then stored already
            self.archive("run", root, "--store", self.store, "--delete-source", "--delete-newest", code=2,
                         says=["mounted at", "deep/mounted; nothing was removed"])
            self.assertEqual(tree(root), before)
        subprocess.run(["umount", root / "deep/mounted"], check=True)
        self.archive("run", root, "--store", self.store, "--delete-source", "--delete-newest", says="removed its source")
        self.assertFalse(root.exists())

    def facts(self, root):
        """Everything of a tree that a plain tar restores, by name."""
        root = os.fsencode(root)
        facts = {}
        for directory, _, _ in os.walk(root):
            for path in [directory, *(os.path.join(directory, name) for name in os.listdir(directory))]:
                info = os.lstat(path)
                content = os.readlink(path) if stat.S_ISLNK(info.st_mode) else b""
                if stat.S_ISREG(info.st_mode):
                    with open(path, "rb") as file:
                        content = file.read()
                facts[os.path.relpath(path, root)] = (oct(info.st_mode), info.st_mtime_ns, content)
        return facts

    def test_plain_tar_and_sha256sum_restore_unusual_names(self):
        root = os.fsencode(self.dir / "odd")
        for name in (b"plain", b"\xc3\xa4.bin", b"bad\xff\xfe", b"line\nbreak", b"back\\slash", b"n" * 255,
                     b"d" * 250 + b"/" + b"e" * 250, b"locked/f"):
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(name * 100)
        os.makedirs(root + b"/empty/er")
        os.symlink(b"bad\xff\xfe", root + b"/link")
        os.chmod(root + b"/plain", 0o640)
        os.utime(root + b"/plain", ns=(10**18 + 1, 10**18 + 1))
        os.utime(root + b"/empty", ns=(11 * 10**17 + 5, 11 * 10**17 + 5))
        os.chmod(root + b"/locked", 0o500)
        self.addCleanup(os.chmod, root + b"/locked", 0o700)
        before = self.facts(self.dir / "odd")
        for flags in ([], ["--max-tar-size", 1]):
            shutil.rmtree(self.store, ignore_errors=True)
            self.archive("run", self.dir / "odd", "--store", self.store, *flags)
            for sidecar in self.store.glob("*.tar.json"):
                json.loads(sidecar.read_text(encoding="utf-8"))
                sidecar.unlink()
            self.archive("ls", self.store, "--rebuild", says="verified")
            self.archive("verify", self.store, says="whole")
            self.archive("restore", f"{self.store}:odd", "back")
            self.assertEqual(self.facts(self.dir / "back"), before)
            subprocess.run(["sha256sum", "--quiet", "--strict", "-c", "-"], cwd=self.dir / "back", check=True,
                           input=self.sums())
            out = self.dir / "out"
            out.mkdir()
            first = next(self.store.glob("*.tar"))
            further = sorted((p for p in self.store.glob("*.tar.*") if p.suffix[1:].isdigit()), key=lambda p: int(p.suffix[1:]))
            for tar in [first, *further]:
                subprocess.run(["tar", "-xpf", tar, "-C", out], check=True, capture_output=True)
            subprocess.run(["sha256sum", "--quiet", "--strict", "-c", "SHA256SUMS"], cwd=out / "odd/odd", check=True)
            os.remove(out / "odd/odd/SHA256SUMS")
            os.utime(out / "odd/odd", ns=(before[b"."][1],) * 2)
            self.assertEqual(self.facts(out / "odd/odd"), before)
            for made in ("back", "out"):
                subprocess.run(["chmod", "-R", "u+rwx", self.dir / made], check=True)
                shutil.rmtree(self.dir / made)

    def sums(self):
        for path in self.store.glob("*.tar*"):
            if path.suffix == ".json":
                continue
            with tarfile.open(path) as tar:
                for entry in tar:
                    if entry.name.endswith("/SHA256SUMS"):
                        return tar.extractfile(entry).read()
        return self.fail("no list of sums in any tar")

    def test_links_that_lead_outside_are_not_followed_by_default(self):
        (self.dir / "blobs").mkdir()
        (self.dir / "blobs/1").write_bytes(b"weights")
        (self.dir / "snapshot").mkdir()
        os.symlink("../blobs/1", self.dir / "snapshot/model.safetensors")
        self.archive("run", "snapshot", "--store", self.store, code=1, says=["model.safetensors", "--links"])
        self.archive("run", "snapshot", "--store", self.store, "--links", "follow", "--delete-source", "--delete-tree",
                     says="note: ")
        self.assertFalse((self.dir / "snapshot").exists())
        self.archive("restore", f"{self.store}:snapshot", "back")
        self.assertEqual((self.dir / "back/model.safetensors").read_bytes(), b"weights")

    def test_too_much_parity_is_refused_before_anything_is_written(self):
        self.archive("run", self.make_tree(), "--store", self.store, "--parity", "100%", code=2, says="--parity")
        self.assertFalse(self.store.exists())

    def test_hostile_trees_write_nothing(self):
        self.store.mkdir()
        path = self.store / "evil-step-00000001.files.aaaaaaaa.tar"
        for names in (["evil/t/../../x"], ["/evil/t/x"], ["evil/t/a", "evil/t/a/b"], ["evil/t/a", "evil/t/a"], ["evil/t//x"]):
            with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
                for name in names:
                    info = tarfile.TarInfo(name)
                    info.size = 1
                    tar.addfile(info, io.BytesIO(b"x"))
            self.archive("restore", f"{self.store}:evil@1", "back", code=1, says="evil")
            self.archive("ls", self.store, "--rebuild", code=1)
            self.assertEqual([p.name for p in self.dir.iterdir()], ["store"])

    def test_hostile_links_in_trees_write_nothing(self):
        self.store.mkdir()
        path = self.store / "evil-step-00000001.files.aaaaaaaa.tar"
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
                for name, entry_kind in (("evil/t/a", kind), ("evil/t/a/b", tarfile.REGTYPE)):
                    info = tarfile.TarInfo(name)
                    info.type, info.linkname = entry_kind, str(self.dir)
                    tar.addfile(info)
            self.archive("restore", f"{self.store}:evil@1", "back", code=1, says="evil")
            self.archive("ls", self.store, "--rebuild", code=1)
            self.assertEqual([p.name for p in self.dir.iterdir()], ["store"])


class HostileTarTest(CliTest):
    """Tars that `archive run` did not make. Nothing may be created, here or elsewhere."""

    PREFIX = "evil/step-00000001/"

    def setUp(self):
        super().setUp()
        self.store.mkdir()

    def refuse(self, entries, says, after=lambda path: None):
        path = self.store / TAR_NAME
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            for info, data in entries:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        after(path)
        self.cairn("archive", "restore", f"{self.store}:evil@1", "back", code=1, says=says)
        self.cairn("archive", "verify", self.store, code=1)
        self.assertEqual([p.name for p in self.dir.iterdir()], ["store"])

    def entry(self, name, data=b"x", **fields):
        info = tarfile.TarInfo(name)
        for field, value in fields.items():
            setattr(info, field, value)
        return info, data

    def test_paths_that_lead_outside_are_refused(self):
        for name in ("/tmp/cairn-evil", "../evil", self.PREFIX + "../../../evil", "evil/../step-00000001/x",
                     self.PREFIX + "a/b", "evil/step-1/x", "x", "./evil/step-00000001/x", "evil/step-00000001/..",
                     "evil//step-00000001/x"):
            self.refuse([self.entry(name)], "RUN/step-N/FILE")

    def test_links_directories_and_devices_are_refused(self):
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            self.refuse([self.entry(self.PREFIX + "shard-00000.h5", b"", type=kind, linkname="/etc/passwd")],
                        "is a link, directory or device")

    def test_duplicate_and_foreign_entries_are_refused(self):
        self.refuse([self.entry(self.PREFIX + "a"), self.entry(self.PREFIX + "a")], "occurs twice")
        self.refuse([self.entry(self.PREFIX + "a"), self.entry("evil/step-00000002/a")], "belongs to another step")

    def test_wrong_sizes_are_refused(self):
        self.refuse([self.entry(self.PREFIX + "a", pax_headers={"size": str(1 << 62)})], "")
        self.refuse([self.entry(self.PREFIX + "a", b"x" * 5000)], "", lambda path: os.truncate(path, 2048))
        self.refuse([self.entry(self.PREFIX + "a", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0",
                                                                "GNU.sparse.name": self.PREFIX + "a",
                                                                "GNU.sparse.realsize": str(1 << 40)})], "")

    def test_contents_other_than_a_step_are_refused(self):
        self.refuse([self.entry(self.PREFIX + "a")], "not a committed")
        self.refuse([self.entry(self.PREFIX + "manifest.json", b"{}")], "manifest.json")
        self.refuse([self.entry(self.PREFIX + "manifest.json", b"[" * 100000)], "manifest.json")

    def test_other_files_than_tars_are_refused(self):
        self.refuse([], "", lambda path: path.write_bytes(b"PK\3\4" + b"\0" * 5000))
        self.refuse([], "", lambda path: path.write_bytes(b""))
        self.refuse([], "", lambda path: path.write_bytes(os.urandom(20000)))


if __name__ == "__main__":
    unittest.main()
