"""Everything that README.md and docs/ mention exists: links and their anchors, verbs and their flags, paths of the tree."""

import functools
import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), ROOT / "ckpt/FORMAT.md"]
CAIRN = os.environ["CAIRN"]
FOLDERS = ("ckpt", "convert", "runtime", "tools", "tests", "scripts", "docs", "python")
README_LINES = 115


def fences_apart(text):
    """(prose, [fenced block])"""
    parts = re.split(r"^```.*\n", text, flags=re.M)
    return "\n".join(parts[0::2]), parts[1::2]


def anchor(heading):
    """The anchor of a heading, as GitHub and mkdocs make it."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


@functools.cache
def anchors(page):
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", fences_apart(page.read_text())[0], re.M)}


@functools.cache
def help_of(words):
    """(subcommands, flags) of `cairn WORDS... --help`."""
    done = subprocess.run([CAIRN, *words, "--help"], capture_output=True, text=True)
    if done.returncode != 0:
        raise LookupError(done.stderr)
    flags = set()
    for line in done.stdout.splitlines():
        if definition := re.match(r"\s+(-[^\s]*)", line):
            flags.update(re.sub(r"\{.*?\}", "", flag) for flag in definition[1].split(","))
    subcommands = done.stdout.partition("Subcommands:")[2].partition("\n\n")[0]
    return set(re.findall(r"^  ([a-z]+)", subcommands, re.M)), flags


def all_flags(words=()):
    subcommands, flags = help_of(words)
    return set(flags).union(*(all_flags((*words, name)) for name in subcommands))


def commands(text):
    """The words of each `cairn ...` in fenced blocks and code spans, without what a shell or a reader adds."""
    prose, blocks = fences_apart(text)
    lines = [line[2:] for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.startswith("$ ")]
    for line in [*lines, *re.findall(r"`([^`]+)`", prose)]:
        for part in re.split(r"[|;#]|&&", re.sub(r"'[^']*'|\"[^\"]*\"", "QUOTED", line)):
            words = part.split()
            if words and re.fullmatch(r"(build/)?cairn", words[0]) and len(words) > 1:
                yield words[1:]


class DocsTest(unittest.TestCase):
    def check(self, page, fault):
        self.fail(f"{page.relative_to(ROOT)}: {fault}")

    def test_the_readme_is_short(self):
        self.assertLessEqual(len((ROOT / "README.md").read_text().splitlines()), README_LINES)

    def test_links_and_anchors_lead_somewhere(self):
        for page in PAGES:
            for link in re.findall(r"\]\(([^)\s]+)\)", fences_apart(page.read_text())[0]):
                if re.match(r"[a-z]+:", link):
                    continue
                path, _, fragment = link.partition("#")
                target = (page.parent / path).resolve() if path else page
                with self.subTest(page=page.name, link=link):
                    if not target.exists() or ROOT not in target.parents:
                        self.check(page, f"{link} leads nowhere")
                    if fragment and fragment not in anchors(target):
                        self.check(page, f"{link}: {target.name} has {sorted(anchors(target))}")

    def test_lists_begin_after_an_empty_line(self):
        """mkdocs joins a list that directly follows a line of text to that line."""
        for page in PAGES:
            prose = fences_apart(page.read_text())[0].splitlines()
            for before, line in zip(prose, prose[1:]):
                if re.match(r"[-*] |\d+\. ", line) and not re.match(r"$|#|[-*] |\d+\. |  ", before):
                    self.check(page, f"no empty line before: {line}")

    def test_code_and_comments_fit_the_site(self):
        """A block shows 98 columns on a screen of 1280 pixels; only output may be longer and scroll."""
        for page in PAGES:
            for language, block in re.findall(r"^```([^\n]*)\n(.*?)^```", page.read_text(), re.M | re.S):
                for line in block.splitlines():
                    if len(line) > 98 and (language == "python" or re.search(r" (#|//) ", line)):
                        with self.subTest(page=page.name, line=line):
                            self.check(page, f"{len(line)} columns, at most 98: {line}")

    def test_verbs_and_their_flags_exist(self):
        verbs = help_of(())[0]
        trains = bool(os.environ.get("CAIRN_TRAIN"))
        seen = 0
        for page in PAGES:
            if page.name in ("FORMAT.md", "archive-format.md"):
                continue  # they quote bytes, not commands
            for words in commands(page.read_text()):
                if words[0] == "train" and not trains or words[0] == "help" or not re.fullmatch("[a-z]+", words[0]):
                    continue
                with self.subTest(page=page.name, command=" ".join(words)):
                    self.assertIn(words[0], verbs)
                    verb = words[:1]
                    if len(words) > 1 and words[1] in help_of(tuple(verb))[0]:
                        verb = words[:2]
                    known = help_of(())[1] | help_of(tuple(verb))[1] | ({"--nproc-per-node"} if verb == ["train"] else set())
                    for word in words:
                        if re.match("--[a-z]", word):
                            seen += 1
                            self.assertTrue(word.partition("=")[0] in known, f"cairn {' '.join(verb)} has no {word}")
        self.assertGreater(seen, 50)

    @unittest.skipUnless(os.environ.get("CAIRN_TRAIN"), "cairn train's flags are cairn-train's, which was not built")
    def test_flags_outside_of_commands_exist(self):
        known = all_flags() | {"--nproc-per-node"}
        for path in (*ROOT.glob("scripts/*"), *ROOT.glob("tests/faults/main.cc"), *ROOT.glob("tests/**/CMakeLists.txt")):
            known.update(re.findall(r"--[a-z][\w-]*", path.read_text()))
        # Other systems' names, which the help leaves out.
        for path in (*ROOT.glob("runtime/config/*flag*.cc"), *ROOT.glob("runtime/config/*.txt")):
            known.update("--" + name for name in re.findall(r'^(?:    \{")?([a-z][\w-]+)\b', path.read_text(), re.M))
        for page in PAGES:
            for flag in re.findall(r"`(--[a-z][\w-]*)", fences_apart(page.read_text())[0]):
                with self.subTest(page=page.name, flag=flag):
                    self.assertTrue(flag in known, f"no program has {flag}")

    def test_explained_messages_exist(self):
        sources = [path for folder in ("ckpt", "convert", "runtime", "tools", "python") for path in (ROOT / folder).rglob("*")]
        text = "\n".join(path.read_text() for path in sources if path.suffix in (".cc", ".h", ".py"))
        said = re.sub(r'"\s*(?:rf?|f)?"', "", text)  # adjacent literals
        page = ROOT / "docs/guide/errors.md"
        messages = re.findall(r"^\| ([^|]+) \|[^|]+\|[^|]+\|$", page.read_text(), re.M)
        messages = [message for message in messages if message not in ("message", "---")]
        self.assertGreater(len(messages), 15)
        for message in messages:
            with self.subTest(message=message):
                self.assertIn(message, said)

    def test_the_table_of_formats_matches_convert(self):
        text = subprocess.run([CAIRN, "convert", "--help"], capture_output=True, text=True, check=True).stdout
        rows = [row.split("|") for row in (ROOT / "docs/formats.md").read_text().splitlines() if row.startswith("| ")]
        rows = [row for row in rows if len(row) == 6 and "---" not in row[1]]
        for flag, column in (("--from", 2), ("--to", 3)):
            self.assertIn(flag, rows[0][column])
            documented = {row[column].strip().split("`")[1] for row in rows[1:] if "`" in row[column]}
            self.assertEqual(documented, set(re.search(rf"{flag} ([\w-]+[|][\w|-]+)", text)[1].split("|")))

    def test_names_the_tested_versions(self):
        page = (ROOT / "docs/formats.md").read_text()
        pins = "\n".join(file.read_text() for file in ROOT.glob("scripts/requirements*.txt"))
        for name in "torch megatron-core deepspeed torchtitan transformers accelerate safetensors".split():
            (row,) = re.findall(rf"^\| (?:[^|]*, )?{name}(?:, [^|]*)? \| (\d.*)$", page, re.M)
            for version in re.findall(rf"^{name}==(.+)$", pins, re.M):
                self.assertIn(version, row, name)

    def test_every_guide_with_python_is_run_by_a_test(self):
        tests = "".join(path.read_text() for path in sorted(ROOT.glob("tests/python/*.py")))
        for page in PAGES:
            if re.search(r"^```python", page.read_text(), re.M):
                with self.subTest(page=page.name):
                    self.assertRegex(tests, rf'run_guide\("{page.name}"|python_of\("{page.name}"\)')

    def test_paths_of_the_tree_exist(self):
        for page in PAGES:
            for span in re.findall(r"`([^`]+)`", fences_apart(page.read_text())[0]):
                path = span.split()[0]
                if not re.match(rf"({'|'.join(FOLDERS)})/", path) or re.search(r"[A-Z]{3}|[*{<…]", path.replace("CMakeLists", "")):
                    continue
                with self.subTest(page=page.name, path=path):
                    if not (ROOT / path).exists():
                        self.check(page, f"{path} is not in the tree")


if __name__ == "__main__":
    unittest.main()
