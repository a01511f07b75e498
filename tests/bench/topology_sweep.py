"""Trains a small GPT over a dozen topologies on this machine, and has `cairn report` make table and plots of the logs.

Ranks are processes that share the machine's cores, so the fastest topology here is not the fastest of a cluster; what
is shown is the way from a sweep to its table. With --predict, `cairn plan predict` is calibrated on every second row
and predicts the others; of the rows whose ranks had a core each, as its model has a device a rank.

    scripts/bench sweep [--dir DIR] [--iterations 6] [--hidden-size 256] [--max-ranks 8] [--predict]
"""

import argparse
import csv
import json
import os
import pathlib
import subprocess
import tempfile

CAIRN = os.environ["CAIRN"]
TOPOLOGIES = [  # tp, pp, dp, mbs, zero
    (1, 1, 1, 1, 0), (1, 1, 1, 2, 0), (1, 1, 1, 4, 0), (1, 1, 1, 8, 0), (2, 1, 1, 1, 0), (2, 1, 1, 4, 0), (2, 1, 1, 8, 0),
    (1, 2, 1, 1, 0), (1, 2, 1, 4, 0), (1, 2, 1, 8, 0), (1, 1, 2, 2, 0), (1, 1, 2, 4, 1), (1, 1, 2, 8, 0),
    (2, 2, 1, 2, 0), (2, 1, 2, 2, 0), (1, 2, 2, 2, 1), (4, 1, 1, 2, 0), (1, 4, 1, 2, 0), (1, 1, 4, 2, 1), (2, 2, 2, 1, 1)]
GLOBAL_BATCH = 16
COLUMNS = ["gpus", "size_b", "hidden", "layers", "heads", "seq", "vocab", "dp", "tp", "pp", "mbs", "gbs", "zero", "mem_gb",
           "sec_per_it", "tflops"]


def model(args):
    return {"num-layers": 8, "hidden-size": args.hidden_size, "num-attention-heads": 8, "seq-length": 128, "vocab-size": 1024}


def train(directory, args, tp, pp, dp, mbs, zero):
    flags = {**model(args), "tensor-model-parallel-size": tp, "pipeline-model-parallel-size": pp, "micro-batch-size": mbs,
             "global-batch-size": GLOBAL_BATCH, "zero-stage": zero, "train-iters": args.iterations}
    words = [CAIRN, "train", "--mock-data", "--nproc-per-node", str(tp * pp * dp), "--threads", "1"]
    for name, value in flags.items():
        words += [f"--{name}", str(value)]
    log = directory / f"tp{tp}-pp{pp}-dp{dp}-mbs{mbs}-zero{zero}.out"
    with open(log, "w") as out:
        print("+", *words[1:], file=out, flush=True)  # as a job script under set -x does
        subprocess.run(words, stdout=out, stderr=subprocess.STDOUT, check=False)
    return log


def report(logs, *flags):
    command = [CAIRN, "report", *map(str, logs), "--skip", "1", "--no-recompute", "--no-join", *map(str, flags)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def rows_of(logs):
    """The runs as rows of measurements, by their median time, which a busy machine moves least."""
    rows = [run for run in json.loads(report(logs, "--json")) if run["status"] == "ok"]
    for row in rows:
        row["tflops"] *= row["sec_per_it"] / row["sec_per_it_median"]
        row["sec_per_it"] = row["sec_per_it_median"]
    return rows


def write_rows(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, "note", "table"])
        for row in rows:
            cells = {**row, "mem_gb": row["mem_gb"] or ""}
            writer.writerow([cells[c] for c in COLUMNS] + ["", "sweep"])


def predict(directory, rows):
    """Every second row, in the order of their speed, calibrates; the others are what is predicted."""
    rows = sorted((row for row in rows if row["gpus"] <= os.cpu_count()), key=lambda row: row["sec_per_it"])
    write_rows(directory / "calibrate.csv", rows[::2])
    write_rows(directory / "unseen.csv", rows[1::2])
    done = subprocess.run([CAIRN, "plan", "predict", directory / "unseen.csv", "--calibrate", directory / "calibrate.csv",
                           "--format", "csv"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr.strip())
        return
    errors = []
    print("\nhalf of the rows with a core a rank calibrates, the other half is predicted:\n\ntopology            sec/it  predicted   error")
    for row in csv.DictReader(done.stdout.splitlines()):
        measured, predicted = float(row["sec_per_it"]), float(row["sec_per_it_pred"])
        errors.append(abs(predicted / measured - 1))
        name = f"TP={row['tp']} PP={row['pp']} DP={row['dp']} MBS={row['mbs']}"
        print(f"{name:18}  {measured:6.3f}  {predicted:9.3f}  {predicted / measured - 1:+6.1%}")
    print(f"median of the absolute errors: {sorted(errors)[len(errors) // 2]:.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", help="keep logs and pictures there; default: a temporary directory")
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--max-ranks", type=int, default=8)
    parser.add_argument("--predict", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cairn-") as scratch:
        directory = pathlib.Path(args.dir or scratch)
        directory.mkdir(parents=True, exist_ok=True)
        logs = [train(directory, args, *topology) for topology in TOPOLOGIES
                if topology[0] * topology[1] * topology[2] <= args.max_ranks]
        print(report(logs, "--format", "md", "--sort", "sec_per_it"), end="")
        for name, flags in {"curves.png": [], "gpus.png": ["--x", "gpus"], "report.html": []}.items():
            (directory / name).unlink(missing_ok=True)
            report(logs, "--html" if name.endswith("html") else "--plot", directory / name, *flags)
        if args.predict:
            predict(directory, rows_of(logs))
        if args.dir:
            print(f"\nlogs, curves.png, gpus.png and report.html are in {directory}")


if __name__ == "__main__":
    main()
