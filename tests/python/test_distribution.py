"""The distribution, without the minutes that a wheel takes: the metadata, the licences, and what `cmake --install` installs."""

import email
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest

from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["CAIRN"]).parent
INSIDE = {"cli11", "eigen3", "fmtlib", "hdf5", "libarchive", "libcsv", "libisal", "liburing", "libzstd", "muparser", "nlohmann-json3",
          "openssl", "sqlite3", "tomlplusplus", "xxhash"}


def run(*command, **environment):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment})


def files_below(directory):
    return {str(path.relative_to(directory)) for path in pathlib.Path(directory).rglob("*") if path.is_file()}


class DistributionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="cairn-distribution-"))
        cls.addClassCleanup(shutil.rmtree, cls.dir)

    def run_well(self, *command, **environment):
        done = run(*command, **environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_metadata(self):
        tools = pathlib.Path(self.run_well("scripts/setup", "--wheel").strip(), "bin")
        self.run_well(tools / "python", "-m", "build", "--no-isolation", "--sdist", "--outdir", self.dir / "sdist", ".")
        sdist = next(self.dir.glob("sdist/*.tar.gz"))
        self.run_well(tools / "twine", "check", "--strict", sdist)
        with tarfile.open(sdist) as tar:
            names = {name.partition("/")[2] for name in tar.getnames()}
            metadata = email.message_from_bytes(tar.extractfile(sdist.name.removesuffix(".tar.gz") + "/PKG-INFO").read())
        with self.subTest("files"):
            self.assertLessEqual({"LICENSE", "CMakeLists.txt", "python/licenses", "python/cairn/py.typed", "tools/main.cc"}, names)
            self.assertFalse({name for name in names if re.match(r"build|dist|tests/|quickstart/", name)})
        with self.subTest("classifiers"):
            unknown = "import sys, trove_classifiers; print(*{*sys.argv[1:]} - trove_classifiers.classifiers)"
            self.assertEqual(self.run_well(tools / "python", "-c", unknown, *metadata.get_all("Classifier")), "\n")
        urls = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
        pages = urls["Source"] + "/blob/main/"
        with self.subTest("links"):
            links = re.findall(r"\]\(([^)#]+)", metadata.get_payload())
            self.assertGreater(len(links), 10)
            for link in [*links, urls["Documentation"], urls["Changelog"]]:
                self.assertTrue(link.startswith(pages) and (ROOT / link.removeprefix(pages)).is_file(), link)
        with self.subTest("extras"):
            pins = "".join((ROOT / f"scripts/requirements{kind}.txt").read_text() for kind in ("-titan", "", "-tests"))
            tried = {"tokenizers": importlib.metadata.version("tokenizers"), **dict(re.findall(r"^([\w-]+)==(\S+)$", pins, re.M))}
            requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist")]
            for requirement in requirements:
                self.assertIn(tried[requirement.name], requirement.specifier, requirement)

    def test_licences(self):
        self.run_well("python/licenses", BUILD, self.dir / "licenses")
        files = {path.name.partition(".")[0]: path.read_text() for path in self.dir.glob("licenses/*")}
        self.assertLessEqual(INSIDE, files.keys())
        for name in INSIDE:
            self.assertRegex(files[name], "(?i)copyright", name)

    def test_a_library_without_a_licence_is_an_error(self):
        (self.dir / "bin").mkdir()
        (self.dir / "bin/dpkg-query").write_text('#!/bin/sh\nexec /usr/bin/dpkg-query "$@" | grep -v hdf5\n')
        (self.dir / "bin/dpkg-query").chmod(0o755)
        done = run("python/licenses", BUILD, self.dir / "none", PATH=f"{self.dir}/bin:{os.environ['PATH']}")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/libhdf5.so.copyright", done.stderr)
        self.assertFalse((self.dir / "none").exists())

    def test_installed_files(self):
        self.run_well("cmake", "--install", BUILD, "--prefix", self.dir / "prefix")
        prefix = self.dir / "prefix"
        installed = files_below(prefix)
        programs = {"cairn", "cairn-data", *(["cairn-train"] if os.environ["CAIRN_TRAIN"] else [])}
        self.assertEqual(files_below(prefix / "bin"), programs)
        self.assertEqual({name for name in installed if name.endswith(".so")},
                         {f"lib/cairn/{module.name}" for module in BUILD.glob("libcairn_*.so")})
        pages = {page.stem for page in (ROOT / "docs/manual").glob("*.md")} - {"index"}
        self.assertEqual(files_below(prefix / "share/man/man1"), {"cairn.1", *(f"cairn-{page}.1" for page in pages)})
        self.assertEqual(files_below(prefix / "share/doc/cairn"), {"LICENSE", "README.md"})
        self.assertRegex(self.run_well(prefix / "bin/cairn", "--version"), r"^cairn \d")


if __name__ == "__main__":
    unittest.main()
