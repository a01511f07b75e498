"""Trainings of other programs that `cairn train` goes on with, on the same tokens: the next losses are theirs.

DATA_PROBE (tests/runtime/data/data_probe.cc) says in which order a dataset's samples come.
"""

import json
import os
import struct
import subprocess

from harness import cairn, topology

SAMPLES, BEFORE, AFTER = 8, 3, 5  # of an iteration; iterations of the other program, and those compared


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
    probe = [os.environ["DATA_PROBE"], "samples", prefix, "1", "0", str(SAMPLES * (BEFORE + AFTER)), str(positions), "1234"]
    printed = subprocess.run(probe, capture_output=True, text=True, check=True).stdout
    samples = [list(map(int, line.split())) for line in printed.splitlines()]
    with open(prefix + ".json", "w") as file:
        json.dump([samples[i:i + SAMPLES] for i in range(0, len(samples), SAMPLES)], file)
    return prefix + ".json"


def check_losses(case, checkpoint, expected, model, *flags, mesh=(1, 1, 1)):
    """Converts the checkpoint to a native step, trains on with it, and compares the losses with the other program's."""
    native, log = (f"{checkpoint}.{kind}{'-'.join(map(str, mesh))}" for kind in ("native", "log"))
    cairn("convert", checkpoint, native, "--to", "native", "--tp", 1, "--pp", 1, "--dp", 1)
    cairn("train", *topology(*mesh), *model, "--micro-batch-size", 1, "--global-batch-size", SAMPLES, "--split", "1",
          "--train-iters", BEFORE + AFTER, "--hidden-dropout", 0, "--attention-dropout", 0, "--threads", 1, "--load", native,
          "--log-json", log, *flags)
    with open(log) as lines:
        rows = [json.loads(line) for line in lines]
    case.assertEqual([row["iteration"] for row in rows], list(range(BEFORE + 1, BEFORE + AFTER + 1)))
    case.assertEqual(len(expected), AFTER)
    for row, loss in zip(rows, expected):
        case.assertAlmostEqual(row["loss"] / loss, 1, delta=2e-6, msg=(checkpoint, row["iteration"]))
