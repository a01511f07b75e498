"""`cairn archive schedule --cron` and `--systemd` with a real cron and a real systemd user manager, each in a mount
namespace of its own, so that nobody's crontab, units or running services are touched."""

import datetime
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

CAIRN = os.environ["CAIRN"]
NASTY = "a $HOME 'b' \"c\" 100%h\\ #d `id` ;& é"

POLICY = 'store = "/nowhere/store"\nruns = ["/nowhere/runs/*"]\n[[class]]\nkeep = "full"\nevery = 1\n'

PROGRAM = """#!/bin/sh
cd '{dir}'
echo "working on it"
for word; do printf '%s\\n' "$word"; done > args
echo "$PATH" > path
date +%H:%M >> starts
"""


class ScheduleTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cairn-schedule-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.dir.chmod(0o755)
        self.policy = self.make_policy(NASTY)
        self.program = self.dir / "my $x 100% cairn"
        self.program.write_text(PROGRAM.format(dir=self.dir))
        self.program.chmod(0o755)
        self.env = dict(os.environ, HOME=str(self.dir / "home"), CAIRN=CAIRN, POLICY=str(self.policy),
                        PROGRAM=str(self.program), OTHER=str(self.make_policy("other")),
                        PATH=os.environ["PATH"] + ":/usr/sbin:/sbin", TZ="UTC")
        self.env.pop("XDG_CONFIG_HOME", None)
        (self.dir / "home").mkdir()

    def make_policy(self, folder):
        path = self.dir / folder / "archive.toml"
        path.parent.mkdir()
        path.write_text(POLICY)
        return path

    def schedule(self, *args, code=0):
        done = subprocess.run([CAIRN, "archive", "schedule", *map(str, args)], env=self.env, capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stderr

    def in_namespace(self, script, needs):
        """The output of bash in its own mount and process namespaces."""
        missing = [name for name in ("unshare", *needs) if shutil.which(name, path=self.env["PATH"]) is None]
        if missing:
            self.skipTest(f"{', '.join(missing)} missing (Debian: cron faketime systemd)")
        command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"]
        if subprocess.run([*command, "true"], capture_output=True).returncode != 0:
            self.skipTest("no namespaces for this user here")
        done = subprocess.run([*command, "bash", "-euc", script], env=self.env, cwd="/", capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def facts(self):
        return [(self.dir / name).read_text() for name in ("args", "starts", "path")]

    def test_characters_that_cannot_be_quoted_are_refused(self):
        for scheduler in ("--cron", "--systemd"):
            self.assertRegex(self.schedule(self.policy, scheduler, "--every-hours", 36, code=2),
                             "^cairn: --every-hours 36: (cron|systemd) can express only 1, 2, 3, 4, 6, 8, 12, 24")
        self.assertIn("now+36hours", self.schedule(self.env["OTHER"], "--slurm", "--every-hours", 36))
        self.assertIn("backslash", self.schedule(self.policy, "--slurm", code=2))
        self.assertIn("newline", self.schedule(self.policy, "--slurm", "--partition", "io\n#SBATCH --wrap=x", code=2))
        self.assertIn("--program", self.schedule(self.policy, "--cron", "--program", self.policy, code=2))
        self.assertIn("--dry-run", self.schedule(self.policy, "--cron", "--dry-run", code=2))
        self.schedule(self.policy, "--cron", "--install", "--uninstall", code=2)

    CRON = """
    mount -t tmpfs none /run; mount -t tmpfs none /dev/shm  # faketime names what it shares by the process's number
    mkdir -p /var/spool/cron; mount -t tmpfs none /var/spool/cron; mkdir /var/spool/cron/crontabs
    chgrp crontab /var/spool/cron/crontabs; chmod 1730 /var/spool/cron/crontabs
    mkdir -p /etc/cron.d; mount -t tmpfs none /etc/cron.d; [ ! -e /etc/crontab ] || mount --bind /dev/null /etc/crontab
    schedule() { "$CAIRN" archive schedule "$@"; }
    """

    def test_cron_starts_the_policy_at_its_time(self):
        self.in_namespace(self.CRON + """
        schedule "$POLICY" --cron --program "$PROGRAM" --every-hours 6 --install > /dev/null
        minute=$(crontab -l | cut -d' ' -f1)
        before=$(date -u -d "2026-03-02 12:$minute:00 2 seconds ago" '+%Y-%m-%d %H:%M:%S')
        faketime -f "@$before" cron -f &
        for try in $(seq 600); do [ ! -s "$(dirname "$PROGRAM")/starts" ] || break; sleep 0.1; done
        kill $!
        """, ["cron", "crontab", "faketime"])
        args, starts, path = self.facts()
        self.assertEqual(args.splitlines(), ["archive", "run", "--policy", str(self.policy)])
        self.assertEqual(len(starts.split()), 1)
        self.assertEqual(path.strip(), self.env["PATH"])
        self.assertEqual(pathlib.Path(f"{self.policy}.log").read_text(), "working on it\n")

    def test_the_crontab_keeps_every_other_line(self):
        out = self.in_namespace(self.CRON + """
        schedule "$POLICY" --cron --uninstall
        printf '# mine\\nMAILTO=me\\n5 5 * * * echo 100\\\\%% # archive.toml\\n' | crontab -
        crontab -l > /run/before
        schedule "$POLICY" --cron --install --dry-run; crontab -l | cmp - /run/before
        schedule "$POLICY" --cron --install; schedule "$OTHER" --cron --install
        schedule "$POLICY" --cron --install --every-hours 12
        echo "== $(crontab -l | grep -c cairn-archive-)"
        schedule "$POLICY" --cron --uninstall --dry-run
        schedule "$POLICY" --cron --uninstall --json; schedule "$POLICY" --cron --uninstall
        crontab -l | grep -c cairn-archive-
        schedule "$OTHER" --cron --uninstall
        crontab -l | cmp - /run/before
        crontab -r; schedule "$POLICY" --cron --install; schedule "$POLICY" --cron --uninstall; crontab -l 2>&1 | grep 'no crontab'
        """, ["cron", "crontab"])
        self.assertEqual(out.count("nothing to remove: cron has nothing of cairn-archive-archive-"), 2, out)
        self.assertIn("would put into the crontab: ", out)
        self.assertIn("would remove the line of cairn-archive-archive-", out)
        self.assertIn("\n== 2\n", out)
        self.assertIn('"done": true', out)

    def test_a_crontab_that_cannot_be_read_is_not_written(self):
        tools = self.dir / "tools"
        tools.mkdir()
        (tools / "crontab").write_text(f"#!/bin/sh\n[ \"$1\" = -l ] || touch '{self.dir}/written'\necho 'disk on fire' >&2\nexit 1\n")
        (tools / "crontab").chmod(0o755)
        self.env["PATH"] = f"{tools}:{self.env['PATH']}"
        self.assertIn("disk on fire", self.schedule(self.policy, "--cron", "--install", code=2))
        self.assertFalse((self.dir / "written").exists())

    def units(self, *flags):
        """The printed units by name."""
        parts = re.split(r"^# (cairn-archive-\S+\.(?:service|timer))\n", self.schedule(self.policy, "--systemd", *flags), flags=re.M)
        return dict(zip(parts[1::2], parts[2::2]))

    def test_systemd_takes_the_units_and_the_intervals(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("systemd-analyze missing (Debian: systemd)")
        env = dict(self.env, XDG_RUNTIME_DIR=str(self.dir))
        for name, text in self.units("--program", self.program).items():
            (self.dir / name).write_text(text)
        for unit in self.dir.glob("cairn-archive-*"):
            done = subprocess.run(["systemd-analyze", "--user", "--man=no", "verify", unit], env=env, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        for hours in (1, 2, 3, 4, 6, 8, 12, 24, 168):
            (timer,) = [text for name, text in self.units("--every-hours", hours).items() if name.endswith(".timer")]
            when = re.search("^OnCalendar=(.*)$", timer, re.M)[1]
            said = subprocess.run(["systemd-analyze", "calendar", "--iterations=30", when], env=env, capture_output=True, text=True, check=True)
            times = [datetime.datetime.strptime(t, "%Y-%m-%d %H:%M:%S") for t in re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?= UTC)", said.stdout)]
            self.assertGreaterEqual(len(times), 30)
            self.assertEqual({b - a for a, b in zip(times, times[1:])}, {datetime.timedelta(hours=hours)})

    SYSTEMD = """
    mount -t tmpfs none /run; mkdir -p /run/systemd/system /run/user; chmod 700 /run/user; export XDG_RUNTIME_DIR=/run/user
    unset DBUS_SESSION_BUS_ADDRESS
    schedule() { "$CAIRN" archive schedule "$@" --systemd; }
    start() {
      /lib/systemd/systemd --user --log-target=console > /run/log 2>&1 &
      for try in $(seq 600); do systemctl --user is-system-running > /run/state 2>&1 && return; sleep 0.1; done
      echo "NO MANAGER"; cat /run/log; exit 0
    }
    timers() { systemctl --user list-timers --all --no-legend 'cairn-*' | wc -l; }
    """

    def test_a_systemd_manager_runs_the_policy(self):
        out = self.in_namespace(self.SYSTEMD + """
        ! schedule "$POLICY" --install 2>&1
        start
        schedule "$POLICY" --install --dry-run
        schedule "$POLICY" --install --program "$PROGRAM"
        schedule "$POLICY" --install --program "$PROGRAM" --every-hours 12
        schedule "$OTHER" --install > /dev/null
        echo "== $(timers) timers"
        name=$(schedule "$POLICY" --uninstall --dry-run --json | sed -n 's/.*"name": "\\(.*\\)",/\\1/p')
        systemctl --user is-enabled "$name.timer"
        systemctl --user start "$name.service"
        rm "$(dirname "$PROGRAM")/args"
        # A run that was missed starts as soon as the timer does.
        touch -d '2 days ago' ~/.local/share/systemd/timers/"stamp-$name.timer"
        systemctl --user restart "$name.timer"
        for try in $(seq 600); do [ ! -e "$(dirname "$PROGRAM")/args" ] || break; sleep 0.1; done
        schedule "$POLICY" --uninstall
        echo "== $(timers) timers"
        schedule "$POLICY" --uninstall
        find ~/.config/systemd/user -name "$name*"
        """, ["systemctl"])
        if "NO MANAGER" in out:
            self.skipTest("systemd does not run here: " + out)
        self.assertIn("this user has no systemd on this host", out)
        self.assertIn("would enable cairn-archive-", out)
        self.assertIn("OFF: the timer stops when you log out", out)
        self.assertIn("\n== 2 timers\nenabled\n", out)
        self.assertIn("\n== 1 timers\nnothing to remove: systemd has nothing of cairn-archive-archive-", out)
        self.assertTrue(out.splitlines()[-1].startswith("nothing to remove"), out)
        args, starts, path = self.facts()
        self.assertEqual(args.splitlines(), ["archive", "run", "--policy", str(self.policy)])
        self.assertEqual(len(starts.split()), 2)
        self.assertEqual(path.strip(), self.env["PATH"])
        self.assertEqual(pathlib.Path(f"{self.policy}.log").read_text(), "working on it\n" * 2)


if __name__ == "__main__":
    unittest.main()
