"""How much of a message between pipeline stages is hidden by the computation of its sender, with MPI's progress thread and
without: the median of rounds in which both take turns.

    overlap.py [--rounds N]

MPI_RUN and MPI_OVERLAP name the programs (tests/support/mpi_run.cc, tests/runtime/mpi_overlap.cc).
"""

import argparse
import json
import os
import statistics
import subprocess


def measure(progress):
    done = subprocess.run([os.environ["MPI_RUN"], "2", os.environ["MPI_OVERLAP"], "--measure"], capture_output=True, text=True,
                          check=True, env=os.environ | {"CAIRN_MPI_PROGRESS": progress})
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = {"on": [], "off": []}
    for i in range(parser.parse_args().rounds):
        for progress in ("on", "off") if i % 2 == 0 else ("off", "on"):
            rounds[progress].append(measure(progress))
    print(f"{'bytes':>10}  {'thread':6}  {'alone ms':>9}  {'behind 100 ms':>13}  hidden")
    for size in range(len(rounds["on"][0])):
        for progress, taken in rounds.items():
            row = {key: statistics.median(one[size][key] for one in taken) for key in taken[0][size]}
            print(f"{row['bytes']:10}  {progress:6}  {row['alone_ms']:9.3f}  {row['behind_ms']:13.3f}  {row['hidden']:.0%}")


if __name__ == "__main__":
    main()
