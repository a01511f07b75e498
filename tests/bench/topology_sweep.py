"""Trains a small GPT over a dozen topologies on this machine, and has `cairn report` make table and plots of the logs.

Ranks are processes that share the machine's cores, so the fastest topology here is not the fastest of a cluster; what
is shown is the way from a sweep to its table. With --predict, the speed of a core is measured, and `cairn plan predict`
is calibrated on every second row and predicts the others.

    scripts/bench sweep [--dir DIR] [--iterations 6] [--hidden-size 256] [--max-ranks 8] [--predict]
"""

import argparse
import csv
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

import machine

CAIRN = os.environ["CAIRN"]
TOPOLOGIES = [  # tp, pp, dp, mbs, zero
    (1, 1, 1, 1, 0), (1, 1, 1, 2, 0), (1, 1, 1, 4, 0), (1, 1, 1, 8, 0), (2, 1, 1, 1, 0), (2, 1, 1, 4, 0), (2, 1, 1, 8, 0),
    (1, 2, 1, 1, 0), (1, 2, 1, 4, 0), (1, 2, 1, 8, 0), (1, 1, 2, 2, 0), (1, 1, 2, 4, 1), (1, 1, 2, 8, 0),
    (2, 2, 1, 2, 0), (2, 1, 2, 2, 0), (1, 2, 2, 2, 1), (4, 1, 1, 2, 0), (1, 4, 1, 2, 0), (1, 1, 4, 2, 1), (2, 2, 2, 1, 1)]
GLOBAL_BATCH = 16
COLUMNS = ["gpus", "size_b", "hidden", "layers", "heads", "seq", "vocab", "dp", "tp", "pp", "mbs", "gbs", "zero", "precision",
           "recompute", "mem_gb", "sec_per_it", "tflops"]


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
        row["recompute"] = "none"
    return rows


def write_rows(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, "note", "table"])
        for row in rows:
            cells = {**row, "mem_gb": row["mem_gb"] or ""}
            writer.writerow([cells[c] for c in COLUMNS] + ["", "sweep"])


def predicted(directory, cluster, known, asked):
    """The rows `asked` with their predictions, by a model that was calibrated on the rows `known`."""
    write_rows(directory / "calibrate.csv", known)
    write_rows(directory / "unseen.csv", asked)
    done = subprocess.run([CAIRN, "plan", "predict", directory / "unseen.csv", "--calibrate", directory / "calibrate.csv",
                           "--cluster", cluster, "--format", "csv"], stdout=subprocess.PIPE, text=True, check=True)
    return list(csv.DictReader(done.stdout.splitlines()))


def predict(directory, rows):
    """Sorted by speed, every second row is in one half; each half is predicted from the other."""
    rows = sorted(rows, key=lambda row: row["sec_per_it"])
    cluster = directory / "cluster.toml"
    machine.write_cluster(cluster, max(row["gpus"] for row in rows))
    print("\nhalf of the runs calibrates, the other half is predicted, and the other way round:\n")
    print(f"{'topology':26}  sec/it  predicted   9 of 10 within     error")
    errors, within = [], 0
    for first in (1, 0):
        for row in predicted(directory, cluster, rows[1 - first::2], rows[first::2]):
            measured, value, low, high = (float(row[c]) for c in ("sec_per_it", "sec_per_it_pred", "sec_per_it_pred_lo", "sec_per_it_pred_hi"))
            errors.append(abs(value / measured - 1))
            within += low <= measured <= high
            name = f"TP={row['tp']} PP={row['pp']} DP={row['dp']} MBS={row['mbs']} ZeRO={row['zero']}"
            print(f"{name:26}  {measured:6.3f}  {value:9.3f}  {low:7.3f} - {high:6.3f}  {value / measured - 1:+8.1%}")
    print(f"absolute error: median {statistics.median(errors):.1%}, worst {max(errors):.1%}; within the bounds: {within} of {len(errors)}")


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
        for name, flags in {"curves.png": [], "gpus.png": ["--x", "gpus"]}.items():
            (directory / name).unlink(missing_ok=True)
            report(logs, "--plot", directory / name, *flags)
        if args.predict:
            predict(directory, rows_of(logs))
        if args.dir:
            print(f"\nlogs, curves.png and gpus.png are in {directory}")


if __name__ == "__main__":
    main()
