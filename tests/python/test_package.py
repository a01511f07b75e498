"""The Python package `cairn`, beside a built program (ctest) or installed from the wheel (scripts/wheel, with CAIRN_WHEEL=1)."""

import doctest
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
INSTALLED = "CAIRN_WHEEL" in os.environ
if not INSTALLED:
    sys.path.insert(0, str(ROOT / "python"))

import cairn  # noqa: E402
import cairn._command  # noqa: E402


def run_python(*arguments, **environment):
    where = {} if INSTALLED else {"PYTHONPATH": str(ROOT / "python")}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env={**os.environ, **where, **environment})


class PackageTest(unittest.TestCase):
    def test_all_parts_have_one_version(self):
        of_build = re.search(r"project\(cairn VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
        self.assertEqual(cairn.__version__, of_build)
        self.assertEqual(cairn.run(["--version"], capture=True).stdout, f"cairn {of_build}\n")
        if INSTALLED:
            self.assertEqual(importlib.metadata.version(cairn._command.DISTRIBUTION), of_build)

    def test_python_m_cairn_runs_the_program(self):
        done = run_python("-m", "cairn", "lss")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (2, "", "cairn: unknown verb 'lss'; did you mean ls?\n"))

    def test_a_failure_is_an_exception_with_the_message(self):
        with self.assertRaises(cairn.CairnError) as caught:
            cairn.run(["ls", "/not/there"], capture=True)
        self.assertEqual(caught.exception.status, 2)
        self.assertIn("/not/there", str(caught.exception))
        self.assertEqual(cairn.run(["ls", pathlib.Path("/not/there")], capture=True, check=False).returncode, 2)

    def test_a_missing_program_is_named(self):
        done = run_python("-m", "cairn", "--version", CAIRN="/not/there/cairn")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/not/there/cairn", done.stderr)

    def test_nothing_heavy_is_imported(self):
        done = run_python("-c", "import cairn, sys; print({'torch', 'numpy'} & set(sys.modules))")
        self.assertEqual(done.stdout, "set()\n")

    def test_examples(self):
        for module in (cairn, cairn._command):
            self.assertEqual(doctest.testmod(module, verbose=False).failed, 0)


@unittest.skipUnless(INSTALLED, "of an installed wheel")
class WheelTest(unittest.TestCase):
    def test_the_command_is_in_bin_and_has_its_libraries_inside(self):
        command = pathlib.Path(sysconfig.get_path("scripts")) / "cairn"
        self.assertEqual(cairn.program(), str(command.resolve()))
        for file in (command, pathlib.Path(cairn.__file__).parent / "libcairn_load.so"):
            needed = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
            libraries = {re.sub(r"[-.].*", "", pathlib.Path(line.split()[0]).name) for line in needed.splitlines()}
            self.assertLessEqual(libraries, {"linux", "libc", "libm", "libgcc_s", "ld"}, file)

    def test_it_verifies_and_loads_steps(self):
        golden = ROOT / "tests/golden/steps-1"
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run(["tar", "xJf", golden / "steps.tar.xz", "-C", directory], check=True)
            for run, fingerprint in json.loads((golden / "fingerprints.json").read_text()).items():
                step = pathlib.Path(directory) / run
                cairn.run(["verify", step, "--structure", "--hash", "--no-record"], capture=True)
                printed = json.loads(cairn.run(["fingerprint", "--json", step], capture=True).stdout)
                self.assertEqual(printed["fingerprint"], fingerprint, run)
                with cairn.open(step) as checkpoint:  # by the library; it compares every chunk with its digest
                    self.assertEqual(sum(len(tensor.tobytes()) for tensor in checkpoint.values()), checkpoint.nbytes)
                    self.assertGreater(checkpoint.nbytes, 0)

    def test_it_opens_steps(self):
        golden = ROOT / "tests/golden/steps-1"
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run(["tar", "xJf", golden / "steps.tar.xz", "-C", directory], check=True)
            for run in json.loads((golden / "fingerprints.json").read_text()):
                with cairn.open(pathlib.Path(directory) / run) as checkpoint:
                    self.assertGreater(len(checkpoint), 10)
                    for tensor in checkpoint.values():
                        self.assertEqual(len(tensor.tobytes()), tensor.nbytes)
                    if importlib.util.find_spec("numpy"):
                        self.assertEqual(tensor.bits[...].tobytes(), tensor.tobytes())
                    else:
                        self.assertRaisesRegex(ImportError, "pip install numpy", tensor.numpy)

    def test_its_modules_are_in_it(self):
        package = ROOT / "python/cairn"
        installed = pathlib.Path(cairn.__file__).parent
        for module in [*package.rglob("*.py"), package / "py.typed"]:
            self.assertEqual((installed / module.relative_to(package)).read_bytes(), module.read_bytes(), module)

    def test_the_licences_of_its_libraries_are_in_it(self):
        names = {file.name for file in importlib.metadata.files(cairn._command.DISTRIBUTION) if "licenses" in file.parts}
        inside = "fmtlib gcc-12 hdf5 libaec libarchive libzstd nlohmann-json3 openssl sqlite3 zlib".split()
        self.assertLessEqual({"LICENSE", *(name + ".txt" for name in inside)}, names)

    def test_it_reads_a_log(self):
        with tempfile.TemporaryDirectory() as directory:
            log = pathlib.Path(directory) / "log"
            log.write_text(" iteration       10/     100 | elapsed time per iteration (ms): 812.5 | lm loss: 6.25E+00 |\n")
            rows = cairn.run(["report", "--json", log], capture=True).stdout
            self.assertIn("6.25", rows)

    def test_the_trainer_is_not_in_it(self):
        with self.assertRaisesRegex(cairn.CairnError, "libtorch and MPI .as in a wheel.; build Cairn from its sources"):
            cairn.run(["train", "--help"], capture=True)

    def test_data_without_its_extra_names_it(self):
        self.assertIn("--output-prefix", cairn.run(["data", "--help"], capture=True).stdout)
        with tempfile.TemporaryDirectory() as directory:
            text = pathlib.Path(directory) / "a.txt"
            text.write_text("text")
            with self.assertRaisesRegex(cairn.CairnError, r"pip install 'cairn-checkpoints\[data\]'"):
                cairn.run(["data", text, "--tokenizer", "bytes", "--output-prefix", text], capture=True)

    def test_manual_page_and_completion(self):
        share = pathlib.Path(sysconfig.get_path("data")) / "share"
        self.assertTrue((share / "man/man1/cairn.1").is_file())
        self.assertTrue((share / "bash-completion/completions/cairn").is_file())


if __name__ == "__main__":
    unittest.main()
