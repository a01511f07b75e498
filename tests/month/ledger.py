"""The oracle's ledger: every step, tree and member that ever was, by SHA-256. It reads files and JSON, never the programs under
test, and leaves no access time behind."""

import dataclasses
import os

import tape
import xxhash
from store_reader import StoreReader, holds


@dataclasses.dataclass
class Step:
    path: str
    number: int
    cid: str        # SHA-256 of its manifest: names its content
    run: str
    digest: str     # XXH3-128 of its manifest: what a sidecar calls it
    whole: bool
    healthy: bool
    branches: list   # from its manifest

    @property
    def order(self):
        """Later commits are greater: a training that went back commits lower numbers."""
        return len(self.branches), self.number

    def given_up(self, newest):
        if len(self.branches) >= len(newest.branches):
            return False
        own = newest.branches[len(self.branches)]
        return own["run"] == self.run and self.number > own["last"]


@dataclasses.dataclass
class Kept:
    """A member that a successful job had to keep."""
    policy: str
    lineage: object  # None: a tree
    number: int
    form: str        # full, weights-fp16 or files
    content: dict
    digest: str      # of the step, as its manifest says
    why: str
    title: str
    lost: bool = False  # by rot or by a person, not by Cairn

    def same(self, other):
        return (self.policy, self.lineage, self.form, self.digest, self.content) == \
               (other.policy, other.lineage, other.form, other.digest, other.content)


class Ledger:
    def __init__(self, world):
        self.world = world
        self.reader = StoreReader(world.digests)
        self.contents = {}      # cid -> {name: SHA-256}, as first seen whole
        self.unhealthy = set()  # cids whose last losses were not finite
        self.steps, self.trees = {}, {}
        self.first_seen = {}    # cid -> Step
        self.local_owner = {}   # path of a local step -> the lineage that saved it
        self._digests = {}      # cid -> XXH3-128
        self._rotted = {}       # name in the store -> its SHA-256s while it is damaged

    def _step(self, path):
        manifest = self.world.manifest(path)
        cid = self.world.digests.of(os.path.join(path, "manifest.json"))
        if manifest is None or cid is None:
            return None
        names = ["manifest.json", *(file.get("name", "") for file in manifest["files"])]
        content = {name: self.world.digests.of(os.path.join(path, name)) for name in names}
        local = "/node" in path
        if None not in content.values() and not local:
            self.contents.setdefault(cid, content)
        known = self.contents.get(cid)
        whole = None not in content.values() and (local or content == known)
        return Step(path, int(os.path.basename(path)[5:]), cid, manifest.get("run", ""), self._manifest_digest(path, cid), whole,
                    whole and cid not in self.unhealthy, manifest.get("branches", []))

    def _manifest_digest(self, path, cid):
        if cid not in self._digests:
            with open(os.open(os.path.join(path, "manifest.json"), os.O_RDONLY | os.O_NOATIME), "rb") as file:
                self._digests[cid] = xxhash.xxh3_128_hexdigest(file.read())
        return self._digests[cid]

    def look(self):
        steps, trees = {}, {}
        for root in ("scratch", "disk", "node0", "node1"):
            for directory, names, _ in os.walk(self.world.root / root):
                for name in list(names):
                    path = os.path.join(directory, name)
                    if name.startswith("step-") and name[5:].isdigit() and not os.path.islink(path):
                        names.remove(name)
                        step = self._step(path)
                        if step:
                            steps[path] = step
        for tree in sorted((self.world.scratch / "trees").glob("*/*")):
            if tree.is_dir() and not tree.is_symlink():
                trees[str(tree)] = self.world.digests.tree(tree)
        return steps, trees

    def store_groups(self):
        """[(tar, {entry: SHA-256})]; for members on tape, the contents on the tape."""
        def bytes_of(path):
            aside = self.world.tape / os.path.basename(path)
            return str(aside) if tape.is_stub(path) and aside.exists() else path
        return self.reader.groups(str(self.world.store), bytes_of)

    def stored(self, content, groups):
        return [tar for tar, entries in groups if holds(entries, content)]

    def weights_stored(self, digest, groups):
        whole = {tar for tar, _ in groups} - {os.path.basename(path) for path in self.rotten}
        return [tar for tar, record in self.reader.records(self.world.store)
                if record.get("derived_from") == digest and record.get("form", "").startswith("weights") and tar in whole]

    def in_dir(self, steps, run_dir):
        prefix = str(run_dir) + "/"
        return sorted((s for p, s in steps.items() if p.startswith(prefix) and "/" not in p[len(prefix):]),
                      key=lambda s: s.order)

    def take_in(self, trains):
        """Scans again; new steps in a run directory were saved there, unless they are copies. `trains`: the running training."""
        before = self.steps
        self.steps, self.trees = self.look()
        for path, step in self.steps.items():
            self.first_seen.setdefault(step.cid, step)
            if "/node" in path and trains and (path not in before or before[path].cid != step.cid):
                self.local_owner[path] = trains
        for lineage in (lineage for lineage in self.world.lineages if lineage.alive):
            for step in self.in_dir(self.steps, lineage.path):
                known = before.get(step.path)
                if (not known or known.cid != step.cid) and not any(step.cid in other.born for other in self.world.lineages):
                    lineage.born.add(step.cid)

    def timeline(self, lineage, groups):
        """Healthy steps that a class may choose from: on scratch in its directory, and its own in the store. Of these not those
        that a training left behind when it went back: older than the newest on scratch, with a higher number."""
        steps = self.in_dir(self.steps, lineage.path) if lineage.alive else []
        here = {step.number: step for step in steps if step.healthy and not step.given_up(steps[-1])}
        top = max(here, default=None)
        found = {}
        for cid in lineage.born - self.unhealthy:
            step = self.first_seen[cid]
            left_behind = top is not None and self.age_of(step) < self.age_of(here[top]) and (
                step.number > top or step.given_up(steps[-1]))
            if not left_behind and cid in self.contents and self.stored(self.contents[cid], groups):
                found[step.number] = step
        found |= here
        return [found[number] for number in sorted(found)]

    def age_of(self, step):
        """The order in which contents were first seen."""
        return list(self.first_seen).index(step.cid)

    @property
    def rotten(self):
        """Files of the store that are damaged now; one that was repaired, or went, is not."""
        here = {name: str(self.world.store / name) for name in self._rotted}  # the store may be away
        return {path for name, path in here.items() if self.world.digests.of(path) in self._rotted[name]}

    def rots(self, path):
        """As it is now it is damaged: by a bit, or as the stub of such a file."""
        self._rotted.setdefault(os.path.basename(path), set()).add(self.world.digests.of(path))

    def short(self, path):
        return str(path).replace(str(self.world.root) + "/", "")
