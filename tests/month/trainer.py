"""Trainings: real ones by `cairn train`, and synthetic steps if only their fate matters."""

import hashlib
import json
import math
import re
import signal
import time

from world import CAIRN, MAKE_STEP, TRAINS, Lineage

MODEL = ("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 256 "
         "--make-vocab-size-divisible-by 16 --micro-batch-size 1 --global-batch-size 2 --mock-data --threads 1 --bf16 "
         "--train-samples 40000").split()

MAX_BAD = 20  # bad iterations in a row that a training may take before it stops


def new(world, name, place, made=False, **more):
    """A training that has not started yet, in scratch/`place`."""
    lineage = Lineage(name, world.scratch / place, seed=len(world.lineages) + 1, made=made or not TRAINS, **more)
    world.lineages.append(lineage)
    return lineage


def train(world, lineage, iterations=2, kill_after=None, extra=(), ranks=1, may_fail=False, limit_file_bytes=None, **flags):
    """Continues for `iterations` iterations, then saves and exits."""
    if lineage.made:
        return make(world, lineage, iterations)
    expected = newest(world, lineage)
    target = (expected or 0) + iterations
    log = world.root / "logs" / f"{lineage.name}.json"
    options = {"seed": lineage.seed, "lr": lineage.lr, "save": lineage.path, "exit-interval": target, "save-interval": 2,
               "log-json": log, "keep-last": lineage.keep_last}
    if lineage.local:
        options |= {"save-local": world.root / lineage.local, "save-local-interval": 2}
    options |= {name.replace("_", "-"): value for name, value in flags.items()}
    command = ["train", *(["--nproc-per-node", ranks] if ranks > 1 else []), *MODEL,
               *(word for name, value in options.items() if value is not None for word in (f"--{name}", value)), *extra]
    behind = len(log.read_text().splitlines()) if log.exists() else 0
    walked_back = any(step.number > (expected or 0) or not step.healthy
                      for step in world.oracle.in_dir(world.oracle.steps, lineage.path))
    if lineage.alive:
        lineage.path.parent.mkdir(parents=True, exist_ok=True)
    with world.act("training", f"{lineage.name} from {expected} to {target}", by_cairn=True, trains=lineage,
                   keep_last=int(options["keep-last"] or 0), walked_back=walked_back) as facts:
        done = world.cairn(*command, kill_after=kill_after, limit_file_bytes=limit_file_bytes)
        bad, last = bad_iterations(log, behind)
        facts["unhealthy"] = unhealthy(lineage, bad, last)
    nothing_left = expected is None and bool(lineage.born)  # it does not restart at 0 without a flag
    judge(world, lineage, done, expected, target, may_fail or bool(bad) or nothing_left)
    if len(bad) > MAX_BAD and not done.killed:
        world.oracle.expect(done.code != 0, "I5 alarm", f"{lineage.name}: {len(bad)} bad iterations, and status 0")
    return done


def judge(world, lineage, done, expected, target, may_fail):
    if done.killed:
        return
    resumed = re.search(r"resumed from (.*) \(iteration (\d+)\)", done.text)
    came_from = int(resumed.group(2)) if resumed else None
    if done.code == 0 or resumed:
        world.oracle.expect(came_from == expected, "I6 lineage",
                            f"{lineage.name} continued from {resumed and resumed.group(0)}, its own newest healthy step is {expected}")
    world.oracle.expect(done.code == 0 or may_fail, "I6 lineage", f"the training {lineage.name} ends with {done.code}:\n{done.text[-1500:]}")
    if done.code == 0 and not may_fail:
        there = {step.number for step in world.oracle.in_dir(world.oracle.steps, lineage.path)}
        world.oracle.expect(target in there, "I2 newest", f"{lineage.name} ends at {target} with status 0, and saved only {sorted(there)}")


def newest(world, lineage):
    """The number of its own newest healthy step, on scratch or local; None if there is none."""
    numbers = [step.number for step in world.oracle.in_dir(world.oracle.steps, lineage.path) if step.healthy]
    numbers += [step.number for path, step in world.oracle.steps.items()
                if world.oracle.local_owner.get(path) is lineage and lineage.local and step.whole]
    return max(numbers, default=None)


def bad_iterations(log, behind):
    """Iterations of this session whose loss was not a number or whose update was skipped, and the last iteration of all."""
    rows = []
    for line in log.read_text().splitlines()[behind:] if log.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            pass  # its training was killed
    bad = {row["iteration"] for row in rows if row["loss"] is None or not math.isfinite(row["loss"]) or row["skipped"] is True}
    return bad, max((row["iteration"] for row in rows), default=0)


def unhealthy(lineage, bad, last):
    """Paths of the steps that those losses condemn: saved at a bad iteration, or right before one with no good one after it."""
    good_later = lambda number: any(n not in bad for n in range(number + 2, last + 1))
    numbers = bad | {n - 1 for n in bad if not good_later(n - 1)}
    return [str(lineage.path / f"step-{number:08}") for number in numbers]


def make(world, lineage, iterations):
    """A made step: its bytes are random, its manifest is of the real library. Nothing retires it."""
    lineage.iteration += iterations
    run = hashlib.md5(f"{world.seed}/{lineage.name}".encode()).hexdigest()
    lineage.path.mkdir(parents=True, exist_ok=True)
    with world.act("training", f"{lineage.name} made {lineage.iteration}", by_cairn=True, trains=lineage):
        world.run(MAKE_STEP, lineage.path, "--step", lineage.iteration, "--seed", lineage.seed * 1000 + lineage.iteration,
                  "--run", run)


def go_back(world, lineage, number):
    """A made training returns to its step `number`, and makes the next one from there."""
    lineage.iteration = number
    make(world, lineage, 1)


def stopped(world, lineage, wait_for=2):
    """Starts a training that never ends by itself, and stops it (SIGSTOP) once it has saved: it holds its lock."""
    command = [CAIRN, "train", *MODEL, "--seed", lineage.seed, "--save", lineage.path, "--save-interval", wait_for]
    with world.act("training", f"{lineage.name} runs in the background", by_cairn=True, trains=lineage):
        world.starts += 1
        process = world.spawn(command)
        world.background.append(process)
        deadline = time.monotonic() + 60
        while not (lineage.path / "latest").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
    return process
