"""The commands write the bytes that they wrote when tests/golden/bytes.json was made."""

import json
import os
import pathlib
import sys
import tempfile
import unittest

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
sys.path.insert(0, str(GOLDEN))

import golden_bytes as golden  # noqa: E402


class GoldenBytesTest(unittest.TestCase):
    def test_every_file_is_what_it_was(self):
        expected = json.loads((GOLDEN / "bytes.json").read_text())
        with tempfile.TemporaryDirectory() as directory:
            golden.write_all(os.environ["CAIRN"], os.environ["CAIRN_MAKE_STEP"], directory)
            found = golden.sums(directory)
        self.assertEqual(sorted(found), sorted(expected), "other files; tests/golden/golden_bytes.py says what to do")
        changed = [name for name in expected if found[name] != expected[name]]
        self.assertEqual(changed, [], "changed files; tests/golden/golden_bytes.py says what to do")


if __name__ == "__main__":
    unittest.main()
