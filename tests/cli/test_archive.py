"""`cairn archive` as a user runs it: nothing is lost, nothing hostile is extracted."""

import fcntl
import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
import unittest

from cairn_cli import CAIRN, CliTest, flip, tree

TAR_NAME = "evil-step-00000001.aaaaaaaa.tar"


class ArchiveTest(CliTest):
    def archive(self, *args, **kwargs):
        return self.cairn("archive", *args, **kwargs)

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

    def test_plain_tar_and_sha256sum_get_it_back(self):
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
        before = {p: p.stat().st_mtime_ns for p in self.store.iterdir()}
        self.archive("run", self.run_dir, "--store", self.store, says="already")
        self.assertEqual({p: p.stat().st_mtime_ns for p in self.store.iterdir()}, before)

    def test_dry_run_writes_nothing(self):
        self.make_step()
        self.archive("run", self.run_dir, "--store", self.store, "--dry-run", says=["would store gpt@100", "memory"])
        self.assertFalse(self.store.exists())

    def test_the_source_goes_only_after_proof(self):
        for number in (10, 20):
            self.make_step(step=number)
        flip(self.run_dir / "step-00000010/shard-00000.h5", 5000)
        self.archive("run", self.run_dir, "--store", self.store, "--delete-source", code=1, says="shard-00000.h5")
        self.assertEqual([p.name for p in self.run_dir.glob("step-*")], ["step-00000010"])
        self.assertEqual([m["step"] for m in self.json("archive", "ls", self.store)], [20])

    def test_what_was_stored_long_ago_is_proven_again_before_its_source_goes(self):
        step = self.make_step()
        self.archive("run", step, "--store", self.store)
        flip(next(self.store.glob("*.tar")), 200000)
        self.archive("run", step, "--store", self.store, "--delete-source", code=1)
        self.assertTrue(step.exists())

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

    def test_a_killed_run_is_taken_up(self):
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
            self.archive("run", self.run_dir, "--store", self.store, code=2, says="another cairn archive")

    def test_restore_overwrites_nothing(self):
        step = self.make_step()
        self.archive("run", self.run_dir, "--store", self.store)
        self.archive("restore", self.store, step, code=2, says="never overwritten")
        self.archive("restore", self.store, "step-00000007", code=2, says="step-00000100")
        self.archive("restore", f"{self.store}:gpt@7", "back", code=2, says="gpt@100")
        self.archive("restore", self.run_dir, "back", code=2, says="is it the store?")

    def test_places_that_cannot_be_written(self):
        self.make_step()
        self.archive("run", self.run_dir, "--store", "/proc/cairn/store", code=2, says="/proc/cairn")
        self.archive("run", self.run_dir, "--store", self.store)
        self.archive("restore", self.store, "/proc/cairn/step", code=2, says="/proc/cairn")

    def test_a_read_only_store(self):
        self.make_step()
        self.archive("run", self.run_dir, "--store", self.mount("-o", "ro"), code=2, says="Read-only")

    def test_a_full_disk_is_told_before_anything_is_written(self):
        self.make_step()
        small = self.mount("-o", "size=1m")
        self.archive("run", self.run_dir, "--store", small / "store", code=2, says="free")
        self.assertEqual(list(small.glob("store/*.tar*")), [])
        self.archive("run", self.run_dir, "--store", self.store)
        self.archive("restore", self.store, small / "back", code=2, says="free")
        self.assertEqual(list(small.glob("back*")), [])


class HostileTarTest(CliTest):
    """Tars that no archive run made. Nothing may be created, here or elsewhere."""

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

    def test_paths_that_leave(self):
        for name in ("/tmp/cairn-evil", "../evil", self.PREFIX + "../../../evil", "evil/../step-00000001/x",
                     self.PREFIX + "a/b", "evil/step-1/x", "x", "./evil/step-00000001/x", "evil/step-00000001/..",
                     "evil//step-00000001/x"):
            self.refuse([self.entry(name)], "RUN/step-N/FILE")

    def test_links_directories_and_devices(self):
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            self.refuse([self.entry(self.PREFIX + "shard-00000.h5", b"", type=kind, linkname="/etc/passwd")],
                        "is a link, directory or device")

    def test_duplicates_and_strangers(self):
        self.refuse([self.entry(self.PREFIX + "a"), self.entry(self.PREFIX + "a")], "is there twice")
        self.refuse([self.entry(self.PREFIX + "a"), self.entry("evil/step-00000002/a")], "belongs to another step")

    def test_sizes_that_lie(self):
        self.refuse([self.entry(self.PREFIX + "a", pax_headers={"size": str(1 << 62)})], "")
        self.refuse([self.entry(self.PREFIX + "a", b"x" * 5000)], "", lambda path: os.truncate(path, 2048))
        self.refuse([self.entry(self.PREFIX + "a", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0",
                                                                "GNU.sparse.name": self.PREFIX + "a",
                                                                "GNU.sparse.realsize": str(1 << 40)})], "")

    def test_contents_that_are_no_step(self):
        self.refuse([self.entry(self.PREFIX + "a")], "not a committed")
        self.refuse([self.entry(self.PREFIX + "manifest.json", b"{}")], "manifest.json")
        self.refuse([self.entry(self.PREFIX + "manifest.json", b"[" * 100000)], "manifest.json")

    def test_no_tar_at_all(self):
        self.refuse([], "", lambda path: path.write_bytes(b"PK\3\4" + b"\0" * 5000))
        self.refuse([], "", lambda path: path.write_bytes(b""))
        self.refuse([], "", lambda path: path.write_bytes(os.urandom(20000)))


if __name__ == "__main__":
    unittest.main()
