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

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "manual"
REGENERATE = "cairn manual --format markdown --output docs/manual"


def run(*args, **options):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, **options)


def help_of(words):
    return run(CAIRN, *words, "--help", check=True).stdout


def subcommands(text):
    part = text.partition("\nSubcommands:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  (\S+) ", part, re.M)


def all_commands():
    """Each command's words: [], ["train"], ..., ["archive", "run"]."""
    commands = [[]]
    for words in commands:
        if words != ["train"]:
            commands += [words + [name] for name in subcommands(help_of(words))]
    return commands


def flags(text):
    """The flags that a text of --help declares; "--record,--no-record{false}" are two."""
    lines = re.findall(r"^ {2,4}(-\S+)", text.partition("\nExample")[0], re.M)
    return {re.sub(r"\{.*", "", name) for line in lines for name in line.split(",")}


class PagesTest(CliTest):
    def test_pages_have_the_flags_of_help_and_no_others(self):
        self.cairn("manual", "--format", "markdown", "--output", self.dir)
        expected = set()
        for words in all_commands():
            file = ("-".join(words) or "index") + ".md"
            expected.add(file)
            if words == ["train"] and not TRAINER:
                continue  # its --help is cairn-train's
            with self.subTest(command=words):
                page = (self.dir / file).read_text()
                declared = re.findall(r"^- (`-.*?`(?:, `-.*?`)*): ", page, re.M)
                names = {name.split(" ")[0] for line in declared for name in re.findall("`(.*?)`", line)}
                help_text = help_of(words)
                more = {"--nproc-per-node"} if words == ["train"] else set()  # cairn's own, before cairn-train's
                self.assertEqual(names, flags(help_text) | more)
                self.assertEqual(re.findall(r"^- \[`cairn (.*?)`\]", page, re.M),
                                 [" ".join(words + [name]) for name in subcommands(help_text)])
        self.assertEqual({p.name for p in self.dir.glob("*.md")}, expected)
        for file in sorted(expected | {p.name for p in DOCS.glob("*.md")}):
            committed = (DOCS / file).read_text() if (DOCS / file).exists() else "not there"
            made = (self.dir / file).read_text() if file in expected else "no command has this page"
            self.assertEqual(committed, made, f"docs/manual/{file} is not what the flags say: run {REGENERATE}")

    def test_man_pages_have_no_warnings_and_a_name(self):
        self.cairn("manual", "--output", self.dir)
        pages = sorted(self.dir.glob("*.1"))
        self.assertEqual(len(pages), len(all_commands()))
        if shutil.which("groff"):
            done = run("groff", "-man", "-ww", "-z", "-Tutf8", *pages)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        if shutil.which("lexgrog"):
            self.assertIn('"cairn-archive-run - ', run("lexgrog", self.dir / "cairn-archive-run.1").stdout)

    def test_a_verb_without_a_page_is_misuse(self):
        self.cairn("manual", "reshap", code=2, says="cairn has no verb 'reshap'")
        self.cairn("manual", "archive", "frob", code=2, says="cairn archive has no verb 'frob'")
        self.cairn("completion", "csh", code=2, says="bash, zsh, fish")
        (self.dir / "file").write_text("")
        self.cairn("manual", "--output", self.dir / "file", code=2, says="file")

    def test_without_a_terminal_the_page_is_plain_text(self):
        self.assertIn("# cairn archive run\n", self.cairn("manual", "archive", "run").stdout)
        self.assertEqual(self.cairn("manual", "archive", "run", "--output", self.dir / "one").stdout, "")
        self.assertEqual(os.listdir(self.dir / "one"), ["cairn-archive-run.1"])

    def test_install_puts_pages_and_completions_where_man_and_shells_look(self):
        build = pathlib.Path(CAIRN).parent
        if not (build / "cmake_install.cmake").exists():
            self.skipTest("cairn does not lie in its build directory")
        done = run("cmake", "--install", build, "--component", "manual", "--prefix", self.dir)
        self.assertEqual(done.returncode, 0, done.stderr)
        share = self.dir / "share"
        self.assertTrue((share / "man/man1/cairn-reshape.1").exists())
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
