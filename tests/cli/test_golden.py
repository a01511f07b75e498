"""The commands write the bytes that they wrote when tests/golden/bytes.json was made, and read the steps and stores kept there."""

import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
sys.path.insert(0, str(GOLDEN))

import golden_bytes as golden  # noqa: E402


class GoldenBytesTest(unittest.TestCase):
    def test_every_file_has_its_golden_bytes(self):
        expected = json.loads((GOLDEN / "bytes.json").read_text())
        with tempfile.TemporaryDirectory() as directory:
            golden.write_all(os.environ["CAIRN"], os.environ["CAIRN_MAKE_STEP"], directory)
            found = golden.sums(directory)
        self.assertEqual(sorted(found), sorted(expected), "other files; tests/golden/golden_bytes.py says what to do")
        changed = [name for name in expected if found[name] != expected[name]]
        self.assertEqual(changed, [], "changed files; tests/golden/golden_bytes.py says what to do")

    def test_steps_of_every_version_are_read(self):
        for steps in sorted(GOLDEN.glob("steps-*")):
            expected = json.loads((steps / "fingerprints.json").read_text())
            with self.subTest(steps=steps.name), tempfile.TemporaryDirectory() as directory:
                with tarfile.open(steps / "steps.tar.xz") as tar:
                    tar.extractall(directory)
                self.assertEqual(sorted(os.listdir(directory)), sorted(expected))
                for run, fingerprint in expected.items():
                    for flags in (["verify", "--structure", "--hash", "--no-record"], ["fingerprint", "--json"]):
                        done = subprocess.run([os.environ["CAIRN"], flags[0], run, *flags[1:]], cwd=directory, capture_output=True, text=True)
                        self.assertEqual(done.returncode, 0, f"{run}: {done.stdout}{done.stderr}")
                    self.assertEqual(json.loads(done.stdout)["fingerprint"], fingerprint, run)

    def test_stores_of_every_version_are_whole(self):
        for stores in sorted(GOLDEN.glob("archive-v*/stores.tar.*")):
            with self.subTest(stores=str(stores)), tempfile.TemporaryDirectory() as directory:
                with tarfile.open(stores) as tar:
                    tar.extractall(directory)
                for store in ("store", "bundled", "pieces"):
                    done = subprocess.run([os.environ["CAIRN"], "archive", "verify", store], cwd=directory, capture_output=True, text=True)
                    self.assertEqual((done.returncode, done.stderr), (0, ""), store)
                    self.assertEqual(done.stdout.count("whole"), len(done.stdout.splitlines()), done.stdout)
                    self.assertIn("notes@0" if store != "bundled" else "gpt@10", done.stdout)


if __name__ == "__main__":
    unittest.main()
