"""Mutants of the rules: each breaks one rule of the product in a copy of the tree, and a scenario must catch it.

mutants.toml names the edits (file, old text, new text), the rule that they break and the scenario that must notice. A rule
that two places keep takes two edits.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = HERE.parents[1]


def load():
    with open(HERE / "mutants.toml", "rb") as file:
        return tomllib.load(file)["mutant"]


def misfits(root=SOURCES):
    """Mutants whose text does not occur exactly once, or that name no scenario."""
    import desk  # noqa: F401 - further scenarios
    from scenarios import SCENARIOS
    found = []
    for mutant in load():
        for edit in mutant["edit"]:
            path = root / edit["file"]
            count = path.read_text().count(edit["old"]) if path.exists() else 0
            if count != 1 or edit["old"] == edit["new"]:
                found.append(f"{mutant['name']}: its text occurs {count} times in {edit['file']}, or it changes nothing")
        if mutant["scenario"] not in SCENARIOS:
            found.append(f"{mutant['name']}: '{mutant['scenario']}' is not a scenario")
    return found


def check():
    found = misfits()
    print("\n".join(found) if found else f"{len(load())} mutants apply")
    return 1 if found else 0


def copy_tree(to):
    """The tracked files as they are; what is the same already keeps its time, so that little is built anew."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=SOURCES, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = SOURCES / name, to / name
        if not source.is_file() or (target.exists() and target.read_bytes() == source.read_bytes()):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def build(tree, target):
    done = subprocess.run([tree / "scripts/build", "release", target, "make_step"], cwd=tree, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def play(tree, scenario):
    """The oracle's words on this tree's programs; None if it has none."""
    programs = {"CAIRN": tree / "build/cairn", "CAIRN_MAKE_STEP": tree / "build/make_step"}
    done = subprocess.run([sys.executable, HERE / "month_test.py", "--scenario", scenario], capture_output=True, text=True,
                          env=os.environ | {name: str(path) for name, path in programs.items()})
    caught = [line.strip() for line in done.stdout.splitlines() if line.startswith("       ")]
    if done.returncode not in (0, 1) or (done.returncode == 1 and not caught):
        return f"?? {done.stdout[-500:]}{done.stderr[-1500:]}"
    return caught[0] if caught else None


def one(tree, mutant):
    """("caught" or what went wrong, the oracle's words)."""
    before = {edit["file"]: (tree / edit["file"]).read_text() for edit in mutant["edit"]}
    for edit in mutant["edit"]:
        path = tree / edit["file"]
        path.write_text(path.read_text().replace(edit["old"], edit["new"]))
    try:
        good, output = build(tree, mutant.get("target", "cairn"))
        if not good:
            return "does not build", output[-1500:]
        words = play(tree, mutant["scenario"])
        return ("survived", "") if words is None else ("no answer", words) if words.startswith("??") else ("caught", words)
    finally:
        for name, text in before.items():
            (tree / name).write_text(text)


def run(names, directory):
    chosen = [mutant for mutant in load() if not names or mutant["name"] in names]
    tree = (directory / "mutants").resolve()
    copy_tree(tree)
    escaped = []
    for scenario in dict.fromkeys(mutant["scenario"] for mutant in chosen):
        good, output = build(tree, "cairn")
        good, output = build(tree, "cairn-train") if good else (good, output)
        words = play(tree, scenario) if good else output
        if words:
            print(f"the tree itself fails {scenario}: {words}")
            return 1
    for mutant in chosen:
        verdict, words = one(tree, mutant)
        print(f"{verdict:14} {mutant['name']} ({mutant['breaks']}) by {mutant['scenario']}: {words[:200]}", flush=True)
        if verdict != "caught":
            escaped.append(mutant["name"])
    print(f"{len(chosen) - len(escaped)} of {len(chosen)} mutants caught" + (f"; not: {', '.join(escaped)}" if escaped else ""))
    return 1 if escaped else 0
