"""Each rule in one to three days: the random events of a month, on purpose. Names are those of shared/found if it has one."""

import os

import archive_job
import people
import tape
import trainer
import vandal
from oracle import Oracle
from policy import Policy
from world import World

SCENARIOS = {}
TRAININGS = set()  # those that need the real trainer


def scenario(run):
    SCENARIOS[run.__name__] = run
    return run


def training(run):
    TRAININGS.add(run.__name__)
    return scenario(run)


def play(name, root):
    """Returns the world; raises the oracle's Violation."""
    world = World(root, seed=1)
    try:
        Oracle(world)
        archive_job.learn(world)
        world.oracle.start()
        SCENARIOS[name](world)
    finally:
        world.play_log = list(world.log)
        world.close()
    return world


def made(world, name, place, steps):
    lineage = trainer.new(world, name, place, made=True)
    for _ in range(steps):
        trainer.make(world, lineage, 2)
    return lineage


def expect_safe(world, done, *codes):
    world.oracle.expect(done.code in codes, "I5 alarm", f"exit {done.code}, not {codes}: {done.text[-800:]}")


@scenario
def c1_two_trees_of_one_name(world):
    """Same names, sizes and mtimes, other bytes: the second is neither stored nor may it go."""
    when = world.clock.now - 86400 * 30
    for letter in "ab":
        people.make_tree(world, f"{letter}/m", {"w": 50000}, when)
    for letter in "ab":
        archive_job.by_hand(world, "run", world.scratch / f"trees/{letter}/m", "--store", world.store, "--delete-source",
                            "--delete-tree")


@scenario
def c1_trees_of_a_policy(world):
    when = world.clock.now - 86400 * 30
    for letter in "ab":
        people.make_tree(world, f"{letter}/model", {"w": 50000}, when)
    archive_job.run(world, Policy(world, "T", trees=["scratch/trees/*/model"]))


@scenario
def c1_tree_changes_after_storing(world):
    """Rewritten in place at the same size and time, then --delete-source."""
    when = world.clock.now - 86400 * 30
    people.make_tree(world, "a/m", {"w": 50000}, when)
    archive_job.by_hand(world, "run", world.scratch / "trees/a/m", "--store", world.store)
    people.make_tree(world, "a/m", {"w": 50000}, when)
    archive_job.by_hand(world, "run", world.scratch / "trees/a/m", "--store", world.store, "--delete-source", "--delete-tree")


@scenario
def c1_repair_from_another_content(world):
    when = world.clock.now - 86400 * 30
    tree = people.make_tree(world, "a/m", {"w": 50000}, when)
    policy = Policy(world, "T", trees=["scratch/trees/*/m"])
    archive_job.run(world, policy)
    vandal.rot_store(world)
    original = world.oracle.kept[0]
    people.make_tree(world, "a/m", {"w": 50000}, when)
    with world.act("archive", "verify --repair", by_cairn=True, repairs=True):
        world.oracle.kept.clear()  # rotten already
        done = world.cairn("archive", "verify", world.store, "--repair")
    groups = world.oracle.store_groups()
    world.oracle.expect(done.code != 0 or world.oracle.stored(original.content, groups), "I1 kept",
                        f"repair says that {tree.name} is whole, and its content is another")


@scenario
def c2_runs_of_one_last_name(world):
    for name, steps in (("e1", 2), ("e2", 4)):
        made(world, name, f"{name}/ckpt", steps)
    policy = Policy(world, "A", ["scratch/e*/ckpt"], classes=[("full", "last", 2)],
                    delete={"source": "true", "stored": "true"})
    archive_job.run(world, policy)
    archive_job.run(world, policy)


@scenario
def c2_a_policy_prunes_anothers(world):
    """Two policies in one store, whose runs have one last name."""
    made(world, "e1", "e1/ckpt", 2)
    made(world, "f1", "f1/ckpt", 4)
    delete = {"source": "true", "stored": "true"}
    ours = Policy(world, "A", ["scratch/e*/ckpt"], classes=[("full", "last", 2)], delete=delete)
    theirs = Policy(world, "B", ["scratch/f*/ckpt"], classes=[("full", "last", 1)], delete=delete)
    for policy in (ours, theirs, ours, theirs):
        archive_job.run(world, policy)


@scenario
def c2_a_damaged_step_and_anothers_number(world):
    """The store has another run's step of that number: ours is not stored."""
    made(world, "e2", "e2/ckpt", 2)
    archive_job.run(world, Policy(world, "B", ["scratch/e2/ckpt"], classes=[("full", "every", 2)]))
    lineage = made(world, "e1", "e1/ckpt", 2)
    vandal.rot_step(world, world.steps(lineage.path)[0])
    os.truncate(world.steps(lineage.path)[0] / "shard-00000.h5", 3000)
    done = archive_job.run(world, Policy(world, "A", ["scratch/e1/ckpt"], classes=[("full", "every", 2)]))
    world.oracle.expect(done.code != 0, "I5 alarm", "e1's step 2 is damaged and stored nowhere, and the job succeeds")


@scenario
def s1_restarted_under_its_old_name(world):
    lineage = made(world, "old", "gpt", 4)
    policy = Policy(world, "A", ["scratch/gpt"], classes=[("full", "last", 1)])
    archive_job.run(world, policy)
    again = people.restart(world, lineage, "new")
    for _ in range(2):
        trainer.make(world, again, 2)
    archive_job.run(world, policy)


@scenario
def s2_relative_paths_from_elsewhere(world):
    made(world, "gp", "gp", 2)
    archive_job.run(world, Policy(world, "A", ["scratch/gp*"], classes=[("full", "last", 1)]), cwd="/")


@scenario
def s2_nothing_matched(world):
    made(world, "gp", "gp", 2)
    policy = Policy(world, "A", ["scratch/qq*"], classes=[("full", "last", 1)], excuses={"nothing matched"})
    done = archive_job.run(world, policy)
    world.oracle.expect(done.code != 0, "I5 alarm", "no pattern matched anything, and the job succeeds")


@scenario
def s3_other_peoples_files_in_the_store(world):
    made(world, "gp", "gp", 1)
    people.settle_in_store(world)
    archive_job.by_hand(world, "run", world.scratch / "gp", "--store", world.store)


@scenario
def s4_notes_beside_the_weights(world):
    lineage = made(world, "w", "w", 3)
    people.leave_note(world, world.steps(lineage.path)[0])
    archive_job.by_hand(world, "run", world.steps(lineage.path)[0], "--store", world.store, "--weights-only", "--delete-source",
                        weights_suffice=True)


@scenario
def s4_notes_where_weights_suffice(world):
    lineage = made(world, "w", "w", 3)
    people.leave_note(world, world.steps(lineage.path)[0])
    policy = Policy(world, "A", ["scratch/w"], classes=[("weights-fp16", "every", 2)],
                    delete={"source": "true", "weights_suffice": "true"}, excuses={"a note is in the way"})
    archive_job.run(world, policy)


@training
def s5_parent_of_a_live_training(world):
    lineage = trainer.new(world, "live", "par/runA")
    trainer.stopped(world, lineage)
    done = archive_job.by_hand(world, "run", world.scratch / "par", "--store", world.store, "--delete-source")
    world.oracle.expect(lineage.path.exists(), "I2 newest", f"a live training lost its directory: {done.text[-300:]}")


@training
def s6_retention_through_a_link(world):
    lineage = trainer.new(world, "y", "y")
    trainer.train(world, lineage, 6)
    people.link_away(world, world.steps(lineage.path)[0])
    trainer.train(world, lineage, 2, keep_last=2)
    trainer.train(world, lineage, 2, keep_last=2)


@training
def s6_a_link_to_a_live_runs_newest_step(world):
    lineage = trainer.new(world, "live", "runA/ckpt")
    trainer.stopped(world, lineage)
    step = world.steps(lineage.path)[-1]
    link = world.scratch / "byhand" / step.name
    with world.act("operator", "ln -s the newest step"):
        link.parent.mkdir()
        os.symlink(step, link)
    archive_job.by_hand(world, "run", link, "--store", world.store, "--delete-source")


@training
def s7_a_branch_and_local_steps(world):
    """cp -r as a branch: it continues from its own step, not from a local step of the other."""
    first = trainer.new(world, "la", "la", local="node0")
    trainer.train(world, first, 4, save_interval=4)
    second = people.branch(world, first, "lb", "lb")
    trainer.train(world, first, 6, save_interval=100)
    people.remove(world, world.steps(first.path)[-1])
    trainer.train(world, second, 2, save_interval=100)
    trainer.train(world, first, 2, save_interval=100)


@training
def a_copy_that_nobody_has_written_into(world):
    """It is its origin up to its newest step: the nights do not store and remove its steps one after the other."""
    first = trainer.new(world, "e1", "e1/ckpt")
    policy = Policy(world, "A", ["scratch/e*/ckpt"], classes=[("full", "last", 2)], delete={"source": "true", "stored": "true"})
    trainer.train(world, first, 10)
    second = people.branch(world, first, "e2", "e2/ckpt")
    archive_job.run(world, policy)
    kept = world.steps(second.path)
    world.oracle.expect(len(kept) == 4, "I4 proof", f"of five steps of a copy {len(kept)} are left, and one was stored")
    for _ in range(2):
        done = archive_job.run(world, policy)
        world.oracle.expect("stored 0 members" in done.text, "I5 alarm", f"a night without a new step: {done.text[-300:]}")
    world.oracle.expect(world.steps(second.path) == kept, "I4 proof", "steps of a copy go night by night")


@scenario
def a_training_that_goes_back_twice(world):
    """The last committed step is the newest: the nights store it, and remove none of its ancestors unstored."""
    lineage = made(world, "e1", "e1/ckpt", 4)
    policy = Policy(world, "A", ["scratch/e*/ckpt"], classes=[("full", "last", 2)], delete={"source": "true", "stored": "true"})
    archive_job.run(world, policy)
    for number in (2, 1):
        trainer.go_back(world, lineage, number)
        archive_job.run(world, policy)
        newest = world.oracle.in_dir(world.oracle.steps, lineage.path)[-1]
        world.oracle.expect(newest.number == number + 1, "I2 newest", f"after going back to {number} the newest is {newest.number}")
        done = world.cairn("verify", lineage.path)
        world.oracle.expect(newest.path in done.text, "I6 lineage", f"verify means another step than {newest.path}: {done.text[-300:]}")
        trainer.make(world, lineage, 2)
        archive_job.run(world, policy)


@training
def s10_a_full_disk_under_the_log(world):
    lineage = trainer.new(world, "z", "z")
    logs = world.root / "logs"
    if not world.mount_small(logs, "64k"):
        return
    trainer.train(world, lineage, 800, save_interval=600)


@training
def s13_save_and_load_of_one_name(world):
    lineage = trainer.new(world, "sl", "sl")
    trainer.train(world, lineage, 2, load=lineage.path)
    trainer.train(world, lineage, 2, load=lineage.path)


@training
def m4_a_file_size_limit(world):
    """SIGXFSZ ends no training: a save that fails is reported, and the next command succeeds."""
    lineage = trainer.new(world, "x", "x")
    trainer.train(world, lineage, 2)
    done = trainer.train(world, lineage, 2, limit_file_bytes=1_000_000, may_fail=True)
    world.oracle.expect(done.code in (0, 1, 2), "I6 lineage", f"a file size limit kills the training: {done.code}")


@scenario
def m6_a_fifo_where_a_manifest_should_be(world):
    lineage = made(world, "ff", "ff", 2)
    with world.act("operator", "mkfifo step-00000099/manifest.json"):
        (lineage.path / "step-00000099").mkdir()
        os.mkfifo(lineage.path / "step-00000099/manifest.json")
    with world.act("operator", "cairn ls", by_cairn=True):
        done = world.cairn("ls", lineage.path, patience=10)
    expect_safe(world, done, 0, 1, 2)


@training
def health_of_the_last_steps(world):
    """A resume with a learning rate of 1e30: retention keeps the last good step, whatever follows."""
    lineage = trainer.new(world, "nan", "nan")
    trainer.train(world, lineage, 4)
    trainer.train(world, lineage, 30, lr=1e30, keep_last=2, may_fail=True)
    trainer.train(world, lineage, 2, keep_last=2)


@training
def health_in_the_archive(world):
    """An unhealthy step takes no healthy one's place in a class."""
    lineage = trainer.new(world, "nan", "nan")
    trainer.train(world, lineage, 4)
    trainer.train(world, lineage, 8, lr=1e30, may_fail=True)
    archive_job.run(world, Policy(world, "A", ["scratch/nan"], classes=[("full", "last", 1)],
                                  delete={"source": "true", "stored": "true"}))


@scenario
def a_weaker_check_hides_no_stronger_one(world):
    """verify finds damage; a check of only the structure does not make the step verified again."""
    lineage = made(world, "v", "v", 1)
    step = world.steps(lineage.path)[0]
    vandal.rot_step(world, step)
    with world.act("operator", "verify, verify --structure, ls", by_cairn=True):
        whole = world.cairn("verify", step)
        world.cairn("verify", step, "--structure")
        shown = world.cairn("ls", lineage.path)
    world.oracle.expect(whole.code == 1, "I5 alarm", f"verify of a rotten step ends with {whole.code}")
    state = [line for line in shown.text.splitlines() if "step" in line or line.strip().startswith("2")]
    world.oracle.expect("damaged" in shown.text or "verified" not in shown.text, "I5 alarm",
                        f"ls says verified of a step that verify called damaged: {state}")


@scenario
def quota_before_storing(world):
    """[quota] holds before anything is stored, not after."""
    made(world, "q", "q", 3)
    policy = Policy(world, "A", ["scratch/q"], classes=[("full", "every", 2)], tables='[quota]\nbytes = "1kB"\n',
                    excuses={"quota"})
    done = archive_job.run(world, policy)
    world.oracle.expect(done.code != 0 and not list(world.store.glob("*.tar")), "I5 alarm",
                        f"the quota is 1 kB, exit {done.code}, {len(list(world.store.glob('*.tar')))} tars")


@scenario
def the_newest_step_stays_by_hand(world):
    """archive run RUN --delete-source takes all but the newest healthy step."""
    lineage = made(world, "all", "all", 3)
    archive_job.by_hand(world, "run", lineage.path, "--store", world.store, "--delete-source")
    archive_job.by_hand(world, "run", world.steps(lineage.path)[-1], "--store", world.store, "--delete-source")


@scenario
def the_newest_step_is_damaged(world):
    """A bit in it: then the one before it stays on scratch."""
    lineage = made(world, "d", "d/ckpt", 3)
    vandal.rot_step(world, world.steps(lineage.path)[-1])
    policy = Policy(world, "A", ["scratch/d/ckpt"], classes=[("full", "every", 2)], delete={"source": "true"})
    for _ in range(2):
        archive_job.run(world, policy)
        left = [step.name for step in world.steps(lineage.path)]
        world.oracle.expect(left == ["step-00000004", "step-00000006"], "I2 newest", f"on scratch are {left}")


@scenario
def a_rotten_copy_is_no_proof(world):
    """A deleted file is compared with what the store can restore at that moment, not with an earlier state."""
    lineage = made(world, "r", "r", 2)
    archive_job.by_hand(world, "run", world.steps(lineage.path)[0], "--store", world.store)
    vandal.rot_store(world)
    archive_job.by_hand(world, "run", world.steps(lineage.path)[0], "--store", world.store, "--delete-source")


@scenario
def a_store_that_rots_is_noticed(world):
    lineage = made(world, "r", "r", 2)
    archive_job.by_hand(world, "run", lineage.path, "--store", world.store)
    archive_job.verify(world)
    vandal.rot_store(world)
    archive_job.verify(world)


@scenario
def a_stub_is_not_damage(world):
    """A member on tape without a recall command is on tape, not damaged; the job that wants its source gone waits."""
    lineage = made(world, "t", "t", 3)
    policy = Policy(world, "A", ["scratch/t"], classes=[("full", "every", 2)])
    archive_job.run(world, policy)
    world.clock.go_to(3, 12)
    tape.migrate(world)
    with world.act("operator", "archive ls, verify", by_cairn=True):
        done = world.cairn("archive", "verify", world.store)
        shown = world.cairn("archive", "ls", world.store)
    world.oracle.expect(tape.stubs(world) and "damaged" not in shown.text, "I5 alarm", f"a stub is called damaged: {shown.text[-600:]}")
    world.oracle.expect("tape" in done.text, "I5 alarm", f"a stub is not reported as a stub: {done.text[-600:]}")
    archive_job.verify(world, "--recall", tape.recall_command(world))
    archive_job.by_hand(world, "run", lineage.path, "--store", world.store, "--delete-source")
