"""A random month: who does what on which day. Everything random comes from the seed."""

import archive_job
import people
import purge
import tape
import trainer
import vandal
from oracle import Oracle
from policy import Policy
from world import World


class Month:
    def __init__(self, root, seed, days=30):
        self.world = world = World(root, seed)
        self.oracle = Oracle(world)
        self.days = days
        self.chance = world.random
        self.history = []  # (day, bytes on scratch, bytes in the store), for the report
        self.names = 0
        self.small_store = seed % 3 == 0 and world.mount_small(world.store, "400m")

    def begin(self):
        world = self.world
        archive_job.learn(world)
        for place in ("exp1/ckpt", "exp2/ckpt"):
            trainer.new(world, self.name(), place, keep_last=self.chance.choice([0, 2, 3]))
        trainer.new(world, self.name(), "gpt-local", local="node0", keep_last=2)
        old = trainer.new(world, self.name(), "exp3/ckpt", made=True)
        trainer.new(world, self.name(), "gpt-made", made=True)
        self.oracle.start()
        people.settle_in_store(world)
        for days in (28, 21, 12):  # from before the month
            trainer.make(world, old, 2)
            world.age(old.path / f"step-{old.iteration:08}", days)
        for letter in "ab":
            people.make_tree(world, f"{letter}/model", {"weights.bin": 40000, "deep/vocab.json": 900}, world.clock.now - 86400 * 9)
        recall = f'\n[recall]\nrecall = \'{tape.recall_command(world)}\'\n'
        self.policies = [
            Policy(world, "A", ["scratch/exp*/ckpt"], [], [("full", "every", 4), ("full", "last", 2)],
                   {"parity": '"10%"'}, {"source": "true", "stored": "true"}, recall),
            Policy(world, "B", ["scratch/gpt*"], [], [("full", "last", 1), ("weights-fp16", "every", 4)],
                   {"pack": "true"}, {"stored": "true"}, recall),
            Policy(world, "T", [], ["scratch/trees/*/model"], [], {"bundle": '"3MB"'}),
        ]

    def name(self):
        self.names += 1
        return f"training{self.names}"

    def run(self, each_day=lambda month: None):
        self.begin()
        for day in range(self.days):
            self.one_day(day)
            each_day(self)

    def one_day(self, day):
        world, chance = self.world, self.chance
        world.clock.go_to(day, 0.5)
        purge.sweep(world)
        self.train(day)
        world.clock.go_to(day, 9)
        if chance.random() < 0.45:
            self.operate()
        world.clock.go_to(day, 12)
        self.disturb()
        world.clock.go_to(day, 18)
        self.archive()
        world.clock.go_to(day, 20)
        tape.migrate(world, chance.choice([12, 24, 72]))
        world.clock.go_to(day, 22)
        self.check(day)
        self.measure(day)

    def train(self, day):
        world, chance = self.world, self.chance
        real = world.live(made=False)
        for hour, lineage in enumerate([chance.choice(real)] if real and chance.random() < 0.5 else []):
            world.clock.go_to(day, 2 + hour)
            kill = chance.uniform(0.3, 2.5) if chance.random() < 0.15 else None
            trainer.train(world, lineage, chance.choice([2, 2, 4]), kill_after=kill)
        for lineage in world.live(made=True):
            if chance.random() < 0.4:
                world.clock.go_to(day, 5 + chance.random())
                trainer.make(world, lineage, 2)

    def operate(self):
        world, chance = self.world, self.chance
        written = [x for x in world.live() if world.steps(x.path)]
        if not written:
            return
        one = chance.choice(written)
        steps = world.steps(one.path)
        deed = chance.choice(["branch", "rename", "restart", "remove", "link", "note", "tree"])
        exp = one.path.parent.parent == world.scratch
        self.names += 1
        place = f"exp{self.names}/ckpt" if exp else f"gpt{self.names}"
        if deed == "branch" and len(world.live()) < 8:
            people.branch(world, one, self.name(), place)
        elif deed == "rename":
            people.rename(world, one, place)
        elif deed == "restart":
            people.restart(world, one, self.name())
        elif deed == "remove" and len(steps) > 1:
            victim = chance.choice(steps[:-1])
            if not victim.is_symlink():
                people.remove(world, victim)
        elif deed == "link" and len(steps) > 1 and not steps[0].is_symlink():
            people.link_away(world, steps[0])
        elif deed == "note":
            people.leave_note(world, chance.choice([one.path, steps[-1]]), f"notes{self.names}.txt")
        elif deed == "tree":
            when = world.clock.now - 9 * 86400 if chance.random() < 0.5 else None
            people.make_tree(world, f"t{self.names}/model", {"weights.bin": 40000, "deep/vocab.json": 900}, when)

    def disturb(self):
        world, chance = self.world, self.chance
        if chance.random() < 0.12 and not self.oracle.rotten:
            vandal.rot_store(world)
        elif chance.random() < 0.08:
            steps = [step for x in world.live() for step in world.steps(x.path)[-1:] if not step.is_symlink()]
            if steps and all(step.whole for step in self.oracle.steps.values()):
                vandal.rot_step(world, chance.choice(steps))

    def archive(self):
        world, chance = self.world, self.chance
        for policy in chance.sample(self.policies, len(self.policies)):
            trouble, cwd = chance.random(), chance.choice([world.root, world.scratch, "/"])
            if trouble < 0.06 and not self.small_store:
                with vandal.outage(world):
                    archive_job.run(world, policy, cwd=cwd)
            elif trouble < 0.12 and self.small_store:
                with vandal.full(world, world.store):
                    archive_job.run(world, policy, cwd=cwd)
            else:
                archive_job.run(world, policy, cwd=cwd, kill_after=chance.uniform(0.01, 0.4) if trouble > 0.9 else None)

    def check(self, day):
        chance = self.chance
        recall = ("--recall", tape.recall_command(self.world))
        if self.oracle.rotten or chance.random() < 0.15:
            archive_job.verify(self.world, *recall)
            if self.oracle.rotten:
                archive_job.verify(self.world, "--repair", *recall)
            for tar in sorted(self.oracle.rotten):
                people.give_up(self.world, tar)
        if chance.random() < 0.25:
            archive_job.drill(self.world, recall)

    def measure(self, day):
        def size(root):
            return sum(f.lstat().st_blocks * 512 for f in root.rglob("*") if f.is_file() and not f.is_symlink())
        self.history.append((day, size(self.world.scratch), size(self.world.store)))

    def close(self):
        self.world.close()
