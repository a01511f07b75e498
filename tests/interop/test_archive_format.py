"""Stores read by a second reader (archive_reader.py) give the bytes that went in: new stores, and those of tests/golden."""

import os
import pathlib
import struct
import sys
import tarfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "cli")]

import archive_reader  # noqa: E402
from cairn_cli import CliTest  # noqa: E402

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
NOTES = {b"a.txt": b"first\n", b"deep/er/b.bin": b"b" * 70000, b"deep/empty": b""}
POLICY = """
store = "{store}"
runs = ["{run}"]
bundle = "100GB"
[[class]]
keep = "full"
every = 10
"""


def files_of(directory):
    return {os.fsencode(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*")
            if p.is_file() and not p.is_symlink()}


class ArchiveFormatTest(CliTest):
    def check(self, member, originals):
        self.assertEqual({name: member.read(name) for name in member.files}, originals)
        directory = member.record["directory"].encode()
        for place in member.places:  # tar would extract the same files from the same places
            with tarfile.open(place, encoding="utf-8", errors="surrogateescape") as tar:
                names = {os.fsencode(entry.name) for entry in tar}
            self.assertTrue(names)
            if len(member.places) == 1 and "bundle" not in member.record:
                stored = {name + (b".planes.zst" if file.get("packed") else b"") for name, file in member.files.items()}
                self.assertLessEqual({directory + b"/" + name for name in stored} | {directory + b"/SHA256SUMS"}, names)

    def only(self, store, form=None):
        found = [m for m in archive_reader.members(store).values() if form in (None, m.record["form"])]
        self.assertEqual(len(found), 1)
        return found[0]

    def test_a_packed_step_and_its_repair(self):
        step = self.make_step()
        self.cairn("archive", "run", step, "--store", self.store, "--pack", "--parity", "10%")
        member = self.only(self.store)
        self.assertTrue(any(file.get("packed") for file in member.files.values()))
        self.check(member, files_of(step))
        tar = self.store / member.tar
        whole, parity = tar.read_bytes(), pathlib.Path(f"{tar}.parity").read_bytes()
        self.assertEqual(parity[:8], b"CAIRNTPR")
        self.assertEqual(archive_reader.repair(whole, parity), whole)
        damaged = bytearray(whole)
        damaged[1000:70000] = bytes(69000)  # two blocks, of two stripes
        self.assertEqual(archive_reader.repair(bytes(damaged), parity), whole)
        self.assertEqual(archive_reader.repair(whole[:-70000], parity), whole)
        (blocks,) = struct.unpack_from("<Q", parity, 36)
        lost = parity[:-blocks * archive_reader.BLOCK] + bytes(blocks * archive_reader.BLOCK)
        with self.assertRaisesRegex(AssertionError, "more is damaged"):
            archive_reader.repair(bytes(damaged), lost)

    def test_a_tree_in_one_file_and_in_pieces(self):
        notes = self.dir / "notes"
        (notes / "deep" / "none").mkdir(parents=True)
        (notes / "a\\b\n.txt").write_text("odd")
        (notes / os.fsdecode(b"caf\xe9")).write_bytes(b"x" * 5000)
        (notes / "SHA256SUMS").write_text("its own")
        (notes / "link").symlink_to("deep/none")
        for store, flags in ((self.store, []), (self.dir / "pieces", ["--max-tar-size", "8KB"])):
            self.cairn("archive", "run", notes, "--store", store, *flags)
            member = self.only(store)
            self.assertEqual(len(member.places) > 1, bool(flags))
            self.check(member, files_of(notes))
            others = member.others()
            self.assertEqual(others[b"link"][1], b"deep/none")
            self.assertEqual(set(others), {b"", b"deep", b"deep/none", b"link"})
            self.assertEqual(member.tree_digest(), member.record["manifest_digest"])

    def test_a_bundle(self):
        steps = {n: self.make_step(step=n) for n in (10, 20)}
        policy = self.dir / "policy.toml"
        policy.write_text(POLICY.format(store=self.store, run=self.run_dir))
        self.cairn("archive", "run", "--policy", policy)
        self.cairn("archive", "bundle", policy)
        found = archive_reader.members(self.store)
        self.assertEqual(len(found), 2)
        for member in found.values():
            self.assertIn("bundle", member.record)
            self.check(member, files_of(steps[member.record["step"]]))

    def test_stores_of_older_programs(self):
        for stores, magic in (("archive-v1/stores.tar.gz", b"CAIRNPAR"), ("archive-v5/stores.tar.xz", b"CAIRNTPR")):
            top = self.dir / stores.split("/")[0]
            with tarfile.open(GOLDEN / stores) as tar:
                tar.extractall(top)
            for store in ("store", "bundled", "pieces"):
                members = archive_reader.members(top / store).values()
                self.assertTrue(members)
                for member in members:
                    if member.record["name"] == "notes":
                        self.check(member, NOTES)
                    for name in member.files:
                        member.read(name)  # against its SHA-256
            tar = top / "store" / self.only(top / "store", "files").tar
            whole, parity = tar.read_bytes(), pathlib.Path(f"{tar}.parity").read_bytes()
            self.assertEqual(parity[:8], magic)
            self.assertEqual(archive_reader.repair(b"?" * 100 + whole[100:], parity), whole)


if __name__ == "__main__":
    unittest.main()
