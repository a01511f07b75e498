"""cairn doctor on real file systems: its findings and exit status, and that it leaves nothing."""

import json
import os
import shutil
import signal
import subprocess
import time
import unittest

from cairn_cli import CAIRN, SANITIZED, CliTest

SEVERITIES = {"ok", "slower", "warning", "unknown", "loses data"}
# Every directory has these. "Lustre" comes only if lfs answers.
NAMES = ["fsync", "read back", "rename", "locks", "clock", "file system", "name caches", "exchange", "O_DIRECT", "io_uring", "space",
         "inodes", "quota", "access times", "descriptors", "locked memory", "processes", "memory", "huge pages", "/dev/shm", "Slurm", "MPI"]


class DoctorCase(CliTest):
    def setUp(self):
        super().setUp()
        self.place = self.dir / "place"
        self.place.mkdir()

    def facts(self, *command, code=0, env=None):
        done = subprocess.run([*map(str, command), "--json"], capture_output=True, text=True, env={**os.environ, **(env or {})})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def rows(self, *command, code=0, env=None):
        facts = self.facts(*command, code=code, env=env)
        self.assertEqual(facts["loses_data"], code == 1)
        return {row["name"]: row for row in facts["findings"]}

    def assert_row(self, row, severity, found="", meaning=""):
        self.assertEqual(row["severity"], severity, row)
        self.assertIn(found, row["found"])
        self.assertIn(meaning, row["meaning"])

    def at_another_time(self, offset, *command):
        """The command line that runs it with a wrong clock; file times come from the kernel."""
        if SANITIZED or not shutil.which("faketime"):
            self.skipTest("no faketime here (Debian: faketime), or it would come before a sanitizer")
        # faketime leaves names behind in /dev/shm, by the numbers of processes.
        line = 'mount -t tmpfs none /dev/shm && NO_FAKE_STAT=1 exec faketime -f "$@"'
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
            self.skipTest("this user may not mount")
        return ["unshare", "--mount", "sh", "-c", line, "sh", offset, *command]

    def program(self, name, text):
        """A stand-in for a site's program, in a directory that comes first in PATH."""
        path = self.dir / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return {"PATH": f"{path.parent}:{os.environ['PATH']}"}


class DoctorTest(DoctorCase):
    def test_text_and_json_have_the_same_rows_and_nothing_stays(self):
        rows = self.rows(CAIRN, "doctor", self.place)
        self.assertEqual([name for name in rows if name != "Lustre"], NAMES)
        self.assertLessEqual({row["severity"] for row in rows.values()}, SEVERITIES)
        for row in rows.values():
            self.assertTrue(row["found"] and row["meaning"], row)
            if row["severity"] in ("slower", "warning"):
                self.assertTrue(row["change"] or row["name"] == "O_DIRECT", row)
        page = self.cairn("doctor", self.place).stdout
        for name, row in rows.items():
            self.assertIn(f"\n{name}  ", page)
            if not row["measured"]:
                self.assertIn(row["found"], page)
        self.assertEqual(os.listdir(self.place), [])

    def test_a_place_that_is_not_a_directory_is_misuse(self):
        self.cairn("doctor", self.dir / "missing", code=2, says="missing: No such file or directory")
        (self.dir / "file").write_text("mine")
        self.cairn("doctor", self.dir / "file", code=2, says="file is not a directory")
        self.assertEqual((self.dir / "file").read_text(), "mine")

    def test_a_step_is_not_written_into(self):
        step = self.make_step()
        before = sorted(os.listdir(step))
        self.assert_row(self.rows(CAIRN, "doctor", step, code=1)["write"], "loses data", "committed step")
        self.assertEqual(sorted(os.listdir(step)), before)

    def test_a_read_only_directory_cannot_be_saved_to(self):
        rows = self.rows(CAIRN, "doctor", self.mount("-o", "ro"), code=1)
        self.assert_row(rows["write"], "loses data", "Read-only file system", "no save can succeed")
        self.assert_row(rows["access times"], "warning", "noatime")
        self.assertNotIn("fsync", rows)
        self.assertIn("descriptors", rows)

    def test_a_full_disk_is_reported(self):
        full = self.mount("-o", "nr_inodes=2")
        (full / "file").write_text("")
        self.assert_row(self.rows(CAIRN, "doctor", full, code=1)["write"], "loses data", "No space left on device")
        self.assertEqual(os.listdir(full), ["file"])
        for options in ("nr_inodes=3", "nr_inodes=7", "size=12k", "size=32k"):  # there is room for the probes' directory
            place = self.mount("-o", options, at=options)
            self.assert_row(self.rows(CAIRN, "doctor", place, code=1)["write"], "loses data", "No space left on device", "no save can succeed")
            self.assertEqual(os.listdir(place), [])

    def test_a_nearly_full_disk_is_reported(self):
        small = self.mount("-o", "size=8m")
        (small / "file").write_bytes(bytes((8 << 20) - (100 << 10)))
        rows = self.rows(CAIRN, "doctor", small)
        self.assert_row(rows["space"], "warning", "of 8", "nearly full")
        self.assert_row(rows["read back"], "unknown", "No space left on device")
        self.assert_row(rows["fsync"], "ok")
        self.assert_row(rows["file system"], "warning", f"tmpfs at {small}", "memory of this host")
        self.assertEqual(os.listdir(small), ["file"])

    def test_a_mount_without_access_times_is_reported(self):
        rows = self.rows(CAIRN, "doctor", self.mount("-o", "noatime"))
        self.assert_row(rows["access times"], "warning", "noatime", "does not postpone")

    def test_few_descriptors_are_reported(self):
        for limit, says in (("64:64", "64"), ("64:8192", "64, can be raised to 8192")):
            row = self.rows("prlimit", f"--nofile={limit}", CAIRN, "doctor", self.place)["descriptors"]
            self.assert_row(row, "warning", says)
            self.assertIn("open files" if limit == "64:64" else "ulimit -n 8192", row["change"])

    def test_a_wrong_clock_is_reported(self):
        row = self.rows(*self.at_another_time("-30s", CAIRN, "doctor", self.place))["clock"]
        self.assert_row(row, "warning", "30 s behind the file server's")
        row = self.rows(*self.at_another_time("+1d", CAIRN, "doctor", self.place), code=1)["clock"]
        self.assert_row(row, "loses data", "24 h", "a hold")

    def test_site_programs_are_checked(self):
        env = self.program("srun", 'case $1 in --version) echo slurm 23.11.4;;\n'
                           '*) printf "MPI plugin types are...\\n\\tnone\\n\\tpmi2\\n";; esac')
        row = self.rows(CAIRN, "doctor", self.place, env=env)["Slurm"]
        self.assert_row(row, "warning", "slurm 23.11.4; MPI types none pmi2", "cannot meet")
        self.program("srun", "echo 'srun: fatal: no configuration' >&2\nexit 1")
        self.assert_row(self.rows(CAIRN, "doctor", self.place, env=env)["Slurm"], "unknown", "srun: fatal: no configuration")
        # As lfs(1) prints it; no Lustre runs here.
        self.program("lfs", "cat <<'END'\nUUID 1K-blocks Used Available Use% Mounted on\n"
                     "a-MDT0000_UUID 1000000 999999 1 99% /a[MDT:0]\n"
                     "a-OST0000_UUID 1000000 400000 600000 40% /a[OST:0]\n"
                     "a-OST0001_UUID 1000000 960000 40000 96% /a[OST:1]\n"
                     "filesystem_summary: 2000000 1360000 640000 68% /a\nEND\n")
        self.assert_row(self.rows(CAIRN, "doctor", self.place, env=env)["Lustre"], "warning", "of 2 targets a-OST0001_UUID is 96 % full")

    def test_a_signal_and_a_kill_leave_nothing(self):
        env = {**os.environ, **self.program("srun", "exec sleep 5")}
        for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGKILL):
            doctor = subprocess.Popen([CAIRN, "doctor", self.place], env=env, stdout=subprocess.DEVNULL)
            deadline = time.monotonic() + 60
            while not any(self.place.glob("cairn-doctor-*/transfers")) and time.monotonic() < deadline:
                time.sleep(0.01)
            doctor.send_signal(number)
            self.assertEqual(doctor.wait(), -number)
            self.assertEqual(bool(os.listdir(self.place)), number == signal.SIGKILL)
        self.rows(CAIRN, "doctor", self.place)  # the next one removes what the kill left
        self.assertEqual(os.listdir(self.place), [])


class RanksTest(DoctorCase):
    def ranks(self, *commands, codes):
        """One process for each command line, as ranks of one launch; returns their outputs."""
        launch = {"OMPI_COMM_WORLD_SIZE": str(len(commands)), "PMIX_NAMESPACE": "doctor"}
        ranks = [subprocess.Popen(list(map(str, command)), env={**os.environ, **launch, "OMPI_COMM_WORLD_RANK": str(rank)}, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank, command in enumerate(commands)]
        outputs = [rank.communicate() for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], codes, outputs)
        self.assertEqual(os.listdir(self.place), [])
        return outputs

    def test_equal_findings_of_ranks_are_printed_once(self):
        outputs = self.ranks(*[[CAIRN, "doctor", self.place]] * 3, codes=[0, 0, 0])
        self.assertIn("all 3 ranks found the same", outputs[0][0])
        self.assertEqual(outputs[1:], [("", ""), ("", "")])

    def test_a_host_that_differs_has_a_line(self):
        few = ["prlimit", "--nofile=64:64", CAIRN, "doctor", self.place]
        lines = self.ranks([CAIRN, "doctor", self.place], few, few, codes=[0, 0, 0])[0][0].splitlines()
        host = os.uname().nodename
        self.assertEqual([line for line in lines if line.startswith(f"{host} (rank 1 and 1 more): descriptors: warning, 64 (")], lines[-1:])

    def test_rank_0_returns_the_worst_status_of_all_ranks(self):
        fast = self.at_another_time("+1d", CAIRN, "doctor", self.place)
        json_of_0 = self.ranks([CAIRN, "doctor", self.place, "--json"], fast, codes=[1, 0])[0][0]
        (other,) = json.loads(json_of_0)["other_hosts"]
        self.assertEqual((other["ranks"], [row["name"] for row in other["findings"]]), ([1], ["clock"]))

    def test_a_lost_rank_has_its_own_status(self):
        said, complained = self.ranks([CAIRN, "doctor", self.place], ["true"], codes=[75, 0])[0]
        self.assertIn("fsync", said)
        self.assertIn("rank 1 did not begin within 60 s", complained)


if __name__ == "__main__":
    unittest.main()
