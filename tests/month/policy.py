"""A policy, and the steps it asks for by the oracle's own reading of its classes."""

import dataclasses
import fnmatch
import os

from ledger import Kept


@dataclasses.dataclass
class Policy:
    world: object
    name: str
    runs: list = dataclasses.field(default_factory=list)      # globs below the world's root
    trees: list = dataclasses.field(default_factory=list)
    classes: list = dataclasses.field(default_factory=list)   # (form, "every" or "last", n)
    options: dict = dataclasses.field(default_factory=dict)   # further keys, as TOML values
    delete: dict = dataclasses.field(default_factory=dict)
    tables: str = ""                                          # further tables, as TOML
    excuses: set = dataclasses.field(default_factory=set)     # why it may fail

    def __post_init__(self):
        self.path = self.world.root / "etc" / f"{self.name}.toml"
        self.status = self.world.root / "etc" / f"{self.name}-status.json"
        self.options = {"tag": f'"{self.name}"'} | self.options if TAGS else self.options
        self.write()

    def write(self):
        """Paths are relative, as in the README: they mean the policy's own directory, wherever the job runs."""
        quoted = lambda globs: "[" + ", ".join(f'"../{glob}"' for glob in globs) + "]"
        lines = ['store = "../store"', 'status = "%s"' % self.status]
        lines += [f"runs = {quoted(self.runs)}"] if self.runs else []
        lines += [f"trees = {quoted(self.trees)}"] if self.trees else []
        lines += [f"{key} = {value}" for key, value in self.options.items()]
        for form, rule, count in self.classes:
            lines += ["[[class]]", f'keep = "{form}"', f"{rule} = {count}"]
        lines += ["[delete]", *(f"{key} = {value}" for key, value in self.delete.items())] if self.delete else []
        self.path.write_text("\n".join([*lines, self.tables, ""]))

    def matches(self, path):
        relative = os.path.relpath(path, self.world.root)
        return any(fnmatch.fnmatchcase(relative, glob) and relative.count("/") == glob.count("/") for glob in self.runs)

    def lineages(self):
        return [lineage for lineage in self.world.lineages if lineage.alive and self.matches(lineage.path)]

    def owed(self, oracle, groups):
        """The steps it asks for now, and those of them that can be stored."""
        owed = []
        for lineage in self.lineages():
            if not lineage.born:
                continue  # an unchanged copy is not a separate run
            timeline = oracle.timeline(lineage, groups)
            for form, rule, count in self.classes:
                chosen = timeline[-count:] if rule == "last" else [step for step in timeline if step.number % count == 0]
                owed += [Kept(self.name, lineage, step.number, form, oracle.contents[step.cid], step.digest,
                              f"{self.name}: {form} {rule} {count}", f"{lineage.name}@{step.number}") for step in chosen]
        for path, content in oracle.trees.items():
            relative = os.path.relpath(path, self.world.root)
            if content and any(fnmatch.fnmatchcase(relative, glob) for glob in self.trees):
                owed.append(Kept(self.name, None, 0, "files", dict(content), "", f"{self.name}: trees", relative))
        return owed

    def keeps_still(self, kept, owed):
        """Whether something that was stored once must stay: it is asked for, or its training is no longer there to say."""
        if kept.lineage is None or not kept.lineage.alive or not self.matches(kept.lineage.path):
            return True
        return " every " in kept.why or any(kept.same(other) for other in owed)

    def troubles(self, oracle):
        """Reasons for a failure that lie on scratch: a damaged step may be one that is asked for, and a link or another user's file
        in a step keeps that from being removed."""
        runs = [lineage.path for lineage in self.lineages()]
        broken = [step.path for run in runs for step in oracle.in_dir(oracle.steps, run) if not step.whole]
        in_the_way = [path for run in runs for path in self.world.theirs if path.startswith(f"{run}/step-")]
        links = [str(step) for run in runs for step in self.world.steps(run) if step.is_symlink()]
        unmatched = [glob for glob in [*self.runs, *self.trees] if not list(self.world.root.glob(glob))]
        return broken + unmatched + (in_the_way + links if self.delete else []) + sorted(self.excuses)


# Whether the program under test knows `tag`; archive_job.py finds out.
TAGS = False
