"""The scripts and the configuration change a machine only as requested."""

import io
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
INSTALLERS = ("apt-get", "apt", "sudo", "pip", "pip3")


class ScriptsTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cairn-scripts-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        tripwires = self.dir / "bin"
        tripwires.mkdir()
        for name in INSTALLERS:
            (tripwires / name).write_text(f"#!/bin/sh\ntouch {self.dir}/installed\nexit 1\n")
            (tripwires / name).chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{tripwires}:{os.environ['PATH']}", "CAIRN_CACHE": str(self.dir / "cache")}

    def run_here(self, *command):
        return subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True)

    def test_check_names_missing_packages_and_installs_nothing(self):
        done = self.run_here("scripts/setup", "--check")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("cache/venv-", done.stderr)
        self.assertEqual(os.listdir(self.dir), ["bin"])
        self.assertEqual(self.run_here("scripts/setup", "--chekc").returncode, 2)

    def test_configuring_installs_nothing(self):
        done = self.run_here("cmake", "-S", str(ROOT), "-B", str(self.dir / "build"), "-G", "Ninja")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("scripts/setup", done.stderr)
        self.assertFalse((self.dir / "installed").exists())
        self.assertFalse((self.dir / "cache").exists())

    def test_an_environment_without_torch_is_reported(self):
        (self.dir / "venv/lib/python3.11/site-packages").mkdir(parents=True)
        done = self.run_here("cmake", "-S", str(ROOT), "-B", str(self.dir / "build"), "-G", "Ninja", f"-DCAIRN_VENV={self.dir}/venv")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("has no torch", done.stderr)

    def test_pack_takes_the_libraries_that_another_machine_lacks_and_no_glibc(self):
        build, program = os.path.split(os.environ["CAIRN_MAKE_STEP"])
        done = subprocess.run(["scripts/pack", build, program], cwd=ROOT, capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as pack:
            names = {name.split(".so")[0] for name in pack.getnames()}
        self.assertLessEqual({"./bin/make_step", "./environment", "./lib/libhdf5_serial", "./lib/libzstd"}, names)
        self.assertFalse(names & {"./lib/libc", "./lib/libm", "./lib/libstdc++", "./lib/libgomp"})

    def test_the_heartbeat_shows_the_progress_of_ctest(self):
        (self.dir / "CTestTestfile.cmake").write_text(
            f'add_test(quick true)\nadd_test(waits sh -c "until [ -e {self.dir}/go ]; do sleep 0.1; done")\n')
        log = self.dir / "log"
        log.touch()
        command = ["scripts/heartbeat", log, "0.2"]
        beat = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.addCleanup(beat.communicate)
        self.addCleanup(beat.kill)
        self.assertRegex(beat.stdout.readline(), r"^\d\d:\d\d:\d\d setting up and building\n$")
        with open(log, "w") as file:
            tests = subprocess.Popen(["ctest", "-j", "2"], cwd=self.dir, stdout=file)
        while "1 of 2 tests are done; running: waits" not in beat.stdout.readline():
            self.assertIsNone(tests.poll())
        (self.dir / "go").touch()
        self.assertEqual(tests.wait(), 0)
        while "2 of 2 tests are done; running: \n" not in beat.stdout.readline():
            self.assertIsNone(beat.poll())
        self.assertRegex(log.read_text(), "100% tests passed, 0 tests failed out of 2")


if __name__ == "__main__":
    unittest.main()
