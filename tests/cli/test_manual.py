"""Manual pages and shell completion agree with --help, and the shells accept them."""

import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import time
import unittest

from cairn_cli import CAIRN, TRAINER, CliTest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "manual"


def run(*args, **options):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, **options)


class PagesTest(CliTest):
    def pages(self, kind):
        done = run(ROOT / "scripts/manual", kind, self.dir / "pages", CAIRN)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return {path.name: path.read_text() for path in (self.dir / "pages").iterdir()}

    def test_the_pages_in_the_repository_equal_the_help(self):
        made = self.pages("--markdown")
        self.assertLessEqual({"index.md", "reshape.md", "archive-run.md"}, set(made))
        for file in sorted({*made, *(path.name for path in DOCS.glob("*.md"))}):
            if file == "train.md" and not TRAINER:
                continue  # its --help is cairn-train's
            committed = (DOCS / file).read_text() if (DOCS / file).exists() else "not there"
            self.assertEqual(committed, made.get(file, "no command has this page"),
                             f"docs/manual/{file} is not what --help prints: run scripts/manual --markdown docs/manual")

    def test_man_pages_have_no_warnings_and_a_name(self):
        if not shutil.which("help2man"):
            self.skipTest("no help2man here")
        self.assertIn("cairn-archive-run.1", self.pages("--man"))
        if shutil.which("groff"):
            done = run("groff", "-man", "-ww", "-z", "-Tutf8", *(self.dir / "pages").glob("*.1"))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        if shutil.which("lexgrog"):
            self.assertIn('"cairn-archive-run - ', run("lexgrog", self.dir / "pages/cairn-archive-run.1").stdout)

    def test_install_puts_pages_and_completions_where_man_and_shells_look(self):
        build = pathlib.Path(CAIRN).parent
        if not (build / "cmake_install.cmake").exists():
            self.skipTest("cairn does not lie in its build directory")
        done = run("cmake", "--install", build, "--component", "manual", "--prefix", self.dir)
        self.assertEqual(done.returncode, 0, done.stderr)
        share = self.dir / "share"
        self.assertEqual((share / "man/man1/cairn-reshape.1").exists(), bool(shutil.which("help2man")))
        for shell, path in {"bash": "bash-completion/completions/cairn", "zsh": "zsh/site-functions/_cairn",
                            "fish": "fish/vendor_completions.d/cairn.fish"}.items():
            self.assertEqual((share / path).read_text(), self.cairn("completion", shell).stdout)


class CompletionTest(CliTest):
    """A verb, a verb below it, a flag, a choice in both spellings, a path, and a value that looks like a verb."""

    def setUp(self):
        super().setUp()
        (self.dir / "gpt dir").mkdir()
        (self.dir / "gpt file").write_text("")
        self.path = f"{pathlib.Path(CAIRN).absolute().parent}:{os.environ['PATH']}"  # the scripts ask the program

    def script(self, shell):
        if not shutil.which(shell):
            self.skipTest(f"no {shell} here")
        path = self.dir / f"completion.{shell}"
        path.write_text(self.cairn("completion", shell).stdout)
        return path

    def test_bash(self):
        path = self.script("bash")
        cases = [("cairn resh", "reshape"), ("cairn archive re", "restore recall"), ("cairn reshape --vocab-m", "--vocab-multiple"),
                 ("cairn reshape --direct a", "auto"), ("cairn reshape --direct = a", "auto"), ("cairn reshape --direct =", "auto on off"),
                 ("cairn ls --store gp", "gpt dir"), ("cairn inspect gp", "gpt dir|gpt file"), ("cairn reshape --tp 1", ""),
                 ("cairn plan --cluster predict --lea", ""), ("cairn plan --cluster = predict --lea", ""),
                 ("cairn plan predict --cal", "--calibrate"),
                 ("cairn train --lr-decay-style c", "constant cosine"), ("cairn completion ", "bash zsh fish")]
        program = f"source '{path}'\n" + "".join(
            f"COMP_WORDS=({line}{' ' + chr(39) * 2 if line.endswith(' ') else ''}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _cairn; "
            "(IFS='|'; echo \"${COMPREPLY[*]}\")\n" for line, _ in cases)
        done = run("bash", "--norc", "-c", program, cwd=self.dir, env={**os.environ, "PATH": self.path})
        self.assertEqual(done.stderr, "")
        for (line, expected), found in zip(cases, done.stdout.split("\n")):
            expected = sorted(expected.split("|" if "gpt" in expected else " "))
            self.assertEqual(sorted(found.split("|")), expected, line)

    def test_fish(self):
        path = self.script("fish")
        cases = [("cairn resh", ["reshape"]), ("cairn archive re", ["recall", "restore"]), ("cairn reshape --vocab-m", ["--vocab-multiple"]),
                 ("cairn reshape --direct a", ["auto"]), ("cairn reshape --direct=a", ["--direct=auto"]), ("cairn ls --store gp", ["gpt dir/"]),
                 ("cairn inspect gp", ["gpt dir/", "gpt file"]), ("cairn reshape --tp 1", []), ("cairn plan --cluster predict --lea", []),
                 ("cairn plan predict --cal", ["--calibrate"]), ("cairn completion ", ["bash", "fish", "zsh"])]
        program = f"source '{path}'\n" + "".join(f"complete -C '{line}'\necho ====\n" for line, _ in cases)
        done = run("fish", "--no-config", "-c", program, cwd=self.dir,
                   env={**os.environ, "PATH": self.path, "HOME": str(self.dir)})
        self.assertEqual(done.stderr, "")
        for (line, expected), found in zip(cases, re.split(r"^====\n", done.stdout, flags=re.M)):
            names = [row.split("\t")[0].replace("\\ ", " ") for row in found.splitlines()]
            self.assertEqual(sorted(names), expected, line)

    def test_zsh(self):
        path = self.script("zsh")
        self.assertEqual(run("zsh", "-n", path).stderr, "")
        cases = [("cairn resh", "cairn reshape "), ("cairn archive resto", "cairn archive restore "),
                 ("cairn reshape --vocab-m", "cairn reshape --vocab-multiple="), ("cairn reshape --direct a", "cairn reshape --direct auto "),
                 ("cairn reshape --direct=a", "cairn reshape --direct=auto "), ("cairn ls --store gp", "cairn ls --store gpt\\ dir/"),
                 ("cairn inspect completion.z", "cairn inspect completion.zsh "), ("cairn report rew", "cairn report rewrite "),
                 ("cairn report --form", "cairn report --form"), ("cairn report --formu", "cairn report --formula="),
                 ("cairn completion f", "cairn completion fish ")]
        lines = self.dir / "lines"
        (self.dir / ".zshrc").write_text(
            f"autoload -U compinit; compinit -u -D; source {path}\nunsetopt auto_remove_slash beep\n"
            f"dump() {{ print -r -- $BUFFER >> {lines}; BUFFER= }}; zle -N dump; bindkey '^G' dump\n: > {lines}\n")
        ours, theirs = pty.openpty()
        shell = subprocess.Popen(["zsh", "-d", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=self.dir, start_new_session=True,
                                 env={"PATH": self.path, "ZDOTDIR": str(self.dir), "TERM": "dumb", "LC_ALL": "C"})
        self.addCleanup(shell.wait)
        self.addCleanup(shell.kill)
        screen = b""
        sent = -1
        deadline = time.time() + 120
        while time.time() < deadline:
            if select.select([ours], [], [], 0.05)[0]:
                screen += os.read(ours, 65536)
            done = lines.read_text().splitlines() if lines.exists() else None
            if done is None or len(done) <= sent:
                continue
            if len(done) == len(cases):
                break
            sent = len(done)
            os.write(ours, cases[sent][0].encode() + b"\t\x07")
        self.assertEqual(lines.read_text().splitlines(), [expected for _, expected in cases], screen.decode(errors="replace"))


if __name__ == "__main__":
    unittest.main()
