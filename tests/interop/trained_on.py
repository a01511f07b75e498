"""Trainings that change the program in the middle, on the same tokens: the losses are those of the training that stayed.
Another program's training continues in `cairn train`, or the other way round.

DATA_PROBE (tests/runtime/data/data_probe.cc) says in which order a dataset's samples come.
"""

import json
import os
import struct
import subprocess

from harness import cairn, losses, topology

SAMPLES, BEFORE, AFTER = 8, 12, 12  # of an iteration; iterations before and after the change
CLOSE = {"fp32": 1e-5, "bf16": 1e-2}  # allowed differences of the losses, relative; of bf16's digits there are 8 bits
# The schedule of the learning rate, as Megatron's OptimizerParamScheduler has it in its checkpoints, without num_steps.
WARMUP, DECAY, TO = 3, 20, 0.1  # iterations, iterations, share of the highest rate


def schedule(lr):
    return {"max_lr": lr, "min_lr": lr * TO, "lr_warmup_steps": WARMUP * SAMPLES, "lr_decay_steps": DECAY * SAMPLES,
            "lr_decay_style": "cosine", "start_wd": 0.1, "end_wd": 0.1, "wd_incr_style": "constant",
            "wd_incr_steps": (BEFORE + AFTER) * SAMPLES}


def schedule_flags(lr):
    return ["--lr", lr, "--min-lr", lr * TO, "--lr-decay-style", "cosine", "--lr-warmup-iters", WARMUP, "--lr-decay-iters", DECAY,
            "--weight-decay", 0.1]


def write_dataset(prefix, vocabulary):
    """Documents of different lengths that a model can learn a little of."""
    documents = [[(start + 7 * i) % vocabulary for i in range(5 + start * 13 % 50)] for start in range(60)]
    ends = [0]
    for document in documents:
        ends.append(ends[-1] + 2 * len(document))
    with open(prefix + ".bin", "wb") as file:
        for document in documents:
            file.write(struct.pack(f"<{len(document)}H", *document))
    count = len(documents)
    with open(prefix + ".idx", "wb") as file:
        file.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, count, count + 1))
        file.write(struct.pack(f"<{count}i", *map(len, documents)))
        file.write(struct.pack(f"<{count}q", *ends[:-1]))
        file.write(struct.pack(f"<{count + 1}q", *range(count + 1)))


def write_batches(prefix, vocabulary, positions):
    """A dataset, and in PREFIX.json the tokens of each iteration on it, [iterations, samples, positions + 1]."""
    write_dataset(prefix, vocabulary)
    probe = [os.environ["DATA_PROBE"], "samples", "0", str(SAMPLES * (BEFORE + AFTER)), str(positions), "1234", "1", prefix]
    printed = subprocess.run(probe, capture_output=True, text=True, check=True).stdout
    samples = [list(map(int, line.split())) for line in printed.splitlines()]
    with open(prefix + ".json", "w") as file:
        json.dump([samples[i:i + SAMPLES] for i in range(0, len(samples), SAMPLES)], file)
    return prefix + ".json"


def train(log, model, *flags, mesh=(1, 1, 1)):
    """Trains all iterations, or those that --load leaves; returns {iteration: loss}."""
    cairn("train", *topology(*mesh), *model, "--micro-batch-size", 1, "--global-batch-size", SAMPLES, "--split", "1",
          "--train-iters", BEFORE + AFTER, "--hidden-dropout", 0, "--attention-dropout", 0, "--threads", 1, "--log-json", log,
          *flags)
    return losses(log)


def check_losses(case, checkpoint, expected, model, *flags, mesh=(1, 1, 1), precision="fp32"):
    """Converts the checkpoint to a native step, trains on with it, and compares the losses with the other program's."""
    native, log = (f"{checkpoint}.{kind}{'-'.join(map(str, mesh))}" for kind in ("native", "log"))
    cairn("convert", checkpoint, native, "--to", "native", "--tp", 1, "--pp", 1, "--dp", 1)
    found = train(log, model, "--load", native, *flags, mesh=mesh)
    compare(case, found, expected, precision, checkpoint)


def train_here(prefix, model, *flags, mesh=(1, 1, 1)):
    """Trains all iterations; returns the step in the middle, and the losses after it."""
    run = prefix + ".run"
    found = train(prefix + ".log", model, "--save", run, "--save-interval", BEFORE, *flags, mesh=mesh)
    return os.path.join(run, f"step-{BEFORE:08}"), [found[BEFORE + 1 + i] for i in range(AFTER)]


def compare(case, found, expected, precision, name):
    """{iteration: loss} of the iterations after the change, with a list of them."""
    case.assertEqual(sorted(found), list(range(BEFORE + 1, BEFORE + AFTER + 1)))
    case.assertEqual(len(expected), AFTER)
    for iteration, loss in sorted(found.items()):
        case.assertAlmostEqual(loss / expected[iteration - BEFORE - 1], 1, delta=CLOSE[precision], msg=(name, iteration))
