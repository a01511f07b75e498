"""The oracle: its own ledger of every step, tree and member, and the rules that no action of Cairn may break.

It reads SHA-256s and JSON, never the programs under test. The rules:

    I1 kept      what a policy asked for and a job called stored exists, whole, on scratch or in the store
    I2 newest    no action of Cairn takes a run directory's newest healthy step, nor changes a step in place
    I3 theirs    what is not Cairn's is never changed or removed
    I4 proof     a step or tree that Cairn removed had a copy in the store, or newer healthy steps as its flags say
    I5 alarm     a job that left out what it was asked for fails, one with no trouble succeeds; status.json says the same
    I6 lineage   a training continues from the newest healthy step of its own
"""

import json
import os

from files import fingerprint
from ledger import Ledger
from world import Violation

# Failures of a job that are known to be raised though nothing is lost, until they are mended:
#   unchanged copies share a run: members in the store do not count for their classes.
OPEN = ["copies of one run"]


class Oracle(Ledger):
    def __init__(self, world):
        super().__init__(world)
        world.oracle = self
        self.kept = []
        self.deletions = []  # (stamp, what, proof), for the report
        self.alarms = []     # (stamp, due, raised, text)

    # --- rules -----------------------------------------------------------------------------------------------------
    def start(self):
        self.take_in(None)

    def observe(self, actor, text, facts):
        before_steps, before_trees = self.steps, self.trees
        self.take_in(facts.get("trains"))
        for path in facts.get("unhealthy", []):  # the trainer's log says which
            if path in self.steps:
                self.unhealthy.add(self.steps[path].cid)
                self.steps[path].healthy = False
        if facts.get("by_cairn"):
            self._theirs(text)
            groups = self.store_groups()
            self._removed(before_steps, groups, facts, text)
            self._trees_removed(before_trees, groups, text)
            self._settle(facts.get("policy"), groups)
            self._kept(groups, text)
        else:
            for path in before_steps.keys() - self.steps.keys():
                self.deletions.append((self.world.clock.stamp(), self.short(path), f"not by Cairn: {actor}"))
            groups = self.store_groups()
            for kept in self.kept:
                kept.lost = kept.lost or not self._exists(kept, groups)

    def _theirs(self, text):
        for path, was in self.world.theirs.items():
            now = fingerprint(self.world.digests, path.replace(f"{self.world.root}/store/", f"{self.world.store}/", 1))
            if now != was:
                raise Violation("I3 theirs", f"{self.short(path)} was {was}, is {now} after {text}")

    def _removed(self, before, groups, facts, text):
        for path, step in before.items():
            now = self.steps.get(path)
            if now and (now.cid != step.cid or (step.whole and not now.whole)) and not facts.get("trains"):
                raise Violation("I2 newest", f"{self.short(path)} was changed in place by {text}")
            if now and now.cid == step.cid:
                continue
            proof = self._proof(step, now, groups, facts)
            if not proof:
                raise Violation("I4 proof", f"{self.short(path)} was removed without proof by {text}")
            self.deletions.append((self.world.clock.stamp(), self.short(path), proof))
        self._newest(before, groups, facts, text)

    def _proof(self, step, now, groups, facts):
        run_dir = os.path.dirname(step.path)
        siblings = self.in_dir(self.steps, run_dir)
        newer = [s for s in siblings if s.healthy and s.order > step.order]
        local = "/node" in step.path
        if facts.get("trains"):
            if local:
                owner = self.local_owner.get(step.path)
                if owner is not facts["trains"] and owner and owner.alive:
                    return ""
                return "local: a newer step of its training, or durable"
            if not step.whole and now:
                return "was damaged; saved again"
            keep = facts.get("keep_last", 0)
            if run_dir == str(facts["trains"].path):
                if now and now.number == step.number and facts.get("walked_back"):
                    return "saved again after a walk back"
                if keep and (len(newer) >= keep or not step.healthy):
                    return f"--keep-last {keep}: {len(newer)} newer healthy steps"
            return ""
        if facts.get("deletes_source"):
            content = self.contents.get(step.cid, {})
            tars = self.stored(content, groups)
            if tars:
                return "in the store: " + ", ".join(tars)
            if facts.get("weights_suffice") and self.weights_stored(step.digest, groups):
                return "its weights are in the store"
        return ""

    def _newest(self, before, groups, facts, text):
        for run_dir in {os.path.dirname(path) for path in before if "/node" not in path}:
            was = [s for s in self.in_dir(before, run_dir) if s.healthy]
            now = [s for s in self.in_dir(self.steps, run_dir) if s.healthy]
            if not was or (now and now[-1].order >= was[-1].order):
                continue
            # A rotten bit in a newer step shows only if all of it is read, as the archive does.
            rotten_newer = any(s.order > was[-1].order and not s.whole for s in self.in_dir(self.steps, run_dir))
            if facts.get("deletes_source") or not (rotten_newer and self.stored(self.contents[was[-1].cid], groups)):
                raise Violation("I2 newest", f"{self.short(was[-1].path)}, the newest healthy step of its run, is gone after {text}")

    def _trees_removed(self, before, groups, text):
        for path, content in before.items():
            if self.trees.get(path) == content or not content:
                continue
            if path in self.trees:
                raise Violation("I4 proof", f"the tree {self.short(path)} was changed by {text}")
            tars = self.stored(content, groups)
            if not tars:
                raise Violation("I4 proof", f"the tree {self.short(path)} was removed, and its content is not in the store: {text}")
            self.deletions.append((self.world.clock.stamp(), self.short(path), "in the store: " + ", ".join(tars)))

    def _settle(self, policy, groups):
        """A member that a policy no longer asks for may be removed."""
        if not policy:
            return
        owed = policy.owed(self, groups)
        behind = {(id(kept.lineage), kept.form) for kept in owed
                  if not self._in_store(kept, groups) and not self._rotted_since(kept)}
        self.kept = [kept for kept in self.kept
                     if kept.policy != policy.name or policy.keeps_still(kept, owed) or
                     ((id(kept.lineage), kept.form) in behind and kept.number == max(
                         other.number for other in self.kept
                         if (other.policy, other.lineage, other.form) == (kept.policy, kept.lineage, kept.form)))]

    def _kept(self, groups, text):
        for kept in self.kept:
            if self._exists(kept, groups):
                kept.lost = False
            if kept.lost or self._exists(kept, groups):
                continue
            raise Violation("I1 kept", f"{kept.title} ({kept.form}, asked for by {kept.why}) exists nowhere "
                                       f"any more after {text}")

    def _exists(self, kept, groups):
        if kept.form == "weights-fp16":
            if self.weights_stored(kept.digest, groups):
                return True
        elif self.stored(kept.content, groups):
            return True
        if kept.form == "files":
            return kept.content in self.trees.values()
        return any(step.whole and step.digest == kept.digest for step in self.steps.values())

    # --- duties of a job -------------------------------------------------------------------------------------------
    def judge_job(self, policy, done):
        """After `cairn archive run --policy`: what was asked for is stored, or the job says that it failed."""
        groups = self.store_groups()
        owed = policy.owed(self, groups)
        missing = [kept for kept in owed if not self._in_store(kept, groups) and not self._rotted_since(kept)]
        status = self._status(policy)
        if done.killed:
            return
        if done.code == 0 and missing:
            kept = missing[0]
            self._alarm(True, False, f"{policy.name}: {kept.title} is not stored, and the job succeeds")
            raise Violation("I5 alarm", f"{policy.name} succeeds, but {kept.title} ({kept.form}, {kept.why}) "
                                        f"is not in the store")
        excused = self.world.troubles or policy.troubles(self) or self.rotten or any(line in done.text for line in OPEN)
        if done.code != 0 and not excused:
            self._alarm(False, True, f"{policy.name}: exit {done.code} without a reason")
            raise Violation("I5 alarm", f"{policy.name} fails with {done.code}, and nothing was wrong:\n{done.text[-1500:]}")
        if status is not None and done.code in (0, 1) and status.get("ok") != (done.code == 0):
            raise Violation("I5 alarm", f"{policy.name}: exit {done.code}, but its status says ok = {status.get('ok')}")
        if done.code != 0:
            self._alarm(True, True, f"{policy.name}: exit {done.code}")
            return
        self.kept += [kept for kept in owed if not any(kept.same(other) for other in self.kept)]

    def _in_store(self, kept, groups):
        return bool(self.weights_stored(kept.digest, groups) if kept.form == "weights-fp16" else self.stored(kept.content, groups))

    def _rotted_since(self, kept):
        """It was stored, and the vandal's bit is in its tar: verify must find it."""
        names = {os.path.basename(path) for path in self.rotten}
        return any(tar in names and (kept.form == "files" or kept.digest in (record.get("manifest_digest"), record.get("derived_from")))
                   for tar, record in self.reader.records(self.world.store))

    def _status(self, policy):
        try:
            with open(policy.status) as file:
                return json.load(file)
        except (OSError, ValueError):
            return None

    def judge_verify(self, done):
        """After a full `cairn archive verify STORE`: it fails exactly where something in the store is rotten."""
        due = any(os.path.exists(path) for path in self.rotten)
        raised = done.code != 0
        if due != raised:
            self._alarm(due, raised, "archive verify")
            raise Violation("I5 alarm", f"archive verify ends with {done.code}; rotten: {sorted(map(self.short, self.rotten))}:\n"
                                        f"{done.text[-1500:]}")
        if due:
            self._alarm(True, True, "archive verify: " + ", ".join(map(self.short, self.rotten)))

    def _alarm(self, due, raised, text):
        self.alarms.append((self.world.clock.stamp(), due, raised, text))

    def expect(self, good, rule, text):
        if not good:
            raise Violation(rule, text)
