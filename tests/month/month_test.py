#!/usr/bin/env python3
"""A month in a minute, over the real programs with a simulated clock, and an oracle after every action.

    month_test.py --seed 7 [--days 30] [--report FILE.html]   one month
    month_test.py --scenario NAME | --scenarios               a rule each, in one to three days
    month_test.py --long [--seeds 100]                        many months, two at a time; continues where it stopped
    month_test.py --mutants [NAME...]                         builds each mutant and demands that it is caught
    month_test.py --check-mutants                             each mutant's text is still in the sources

CAIRN and CAIRN_MAKE_STEP name the programs; CAIRN_LONG=1 is what --long wants of ctest.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

import clock
import desk  # noqa: F401 - further scenarios
import report
from month import Month
from scenarios import SCENARIOS, TRAININGS, play
from world import CAIRN, MAKE_STEP, TRAINS, Violation

SKIPPED = 77  # "skipped" for ctest


def reproduction(*words):
    return f"CAIRN={CAIRN} CAIRN_MAKE_STEP={MAKE_STEP} {sys.executable} {pathlib.Path(__file__).resolve()} {' '.join(words)}"


def place(name):
    return tempfile.mkdtemp(prefix=f"cairn-{name}-")


def seed_once(seed, days, out):
    """One month. 0 if the oracle found nothing."""
    began = time.monotonic()
    month = Month(place(f"month-{seed}"), seed, days)
    failure = None
    try:
        month.run()
    except Violation as found:
        failure = str(found)
    finally:
        facts = report.Facts.of(month, failure)
        month.close()
    if out:
        report.write(out, [facts])
    if failure:
        today = month.world.clock.stamp()[:6]
        print("\n".join(line for line in month.world.log[-400:] if line.startswith(today)))
        print(f"seed {seed}: {failure}\nagain: {reproduction('--seed', str(seed), '--days', str(days))}")
        return 1
    print(f"seed {seed}: {days} days, {month.world.starts} programs started, {len(month.oracle.deletions)} deletions, each with its "
          f"proof, {len(month.oracle.alarms)} alarms, {time.monotonic() - began:.0f} s" + (f"; {out}" if out else ""))
    return 0


def scenario_once(name):
    """None if nothing was found, or the oracle's words."""
    root = place(name[:20])
    try:
        play(name, root)
    except Violation as found:
        return str(found)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return None


def scenarios(names):
    found = 0
    for name in names or SCENARIOS:
        if name in TRAININGS and not TRAINS:
            print(f"skipped {name}: there is no cairn-train beside cairn")
            continue
        began = time.monotonic()
        failure = scenario_once(name)
        found += failure is not None
        print(f"{'CAUGHT' if failure else 'ok    '} {name} ({time.monotonic() - began:.1f} s)" + (f"\n       {failure}" if failure else ""),
              flush=True)
    if found:
        print("again: " + reproduction("--scenario", "NAME"))
    return 1 if found else 0


def long_run(seeds, days, directory):
    """Every seed in its own process, two at a time; a seed that passed is not run again by the next call."""
    directory.mkdir(parents=True, exist_ok=True)
    waiting, running, failed = [n for n in range(1, seeds + 1) if not (directory / f"{n}.ok").exists()], {}, []
    while waiting or running:
        while waiting and len(running) < 2:
            seed = waiting.pop(0)
            log = open(directory / f"{seed}.log", "w")
            running[seed] = subprocess.Popen([sys.executable, __file__, "--seed", str(seed), "--days", str(days), "--report",
                                              str(directory / f"{seed}.html")], stdout=log, stderr=subprocess.STDOUT)
        for seed, process in list(running.items()):
            if process.poll() is not None:
                del running[seed]
                (directory / f"{seed}.ok").touch() if process.returncode == 0 else failed.append(seed)
                print((directory / f"{seed}.log").read_text().strip().splitlines()[-1], flush=True)
        time.sleep(0.2)
    print(f"{seeds - len(failed)} of {seeds} months passed; logs and reports in {directory}" + (f"; failed: {failed}" if failed else ""))
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--report", type=pathlib.Path)
    parser.add_argument("--scenario", action="append", default=[])
    parser.add_argument("--scenarios", action="store_true")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--directory", type=pathlib.Path, default=pathlib.Path("month"))
    parser.add_argument("--mutants", nargs="*")
    parser.add_argument("--check-mutants", action="store_true")
    args = parser.parse_args()
    if args.check_mutants or args.mutants is not None:
        import mutants
        return mutants.check() if args.check_mutants else mutants.run(args.mutants, args.directory)
    if clock.library() is None:
        print("skipped: libfaketime is not installed (Debian package faketime)")
        return SKIPPED
    if args.long:
        return long_run(args.seeds, args.days, args.directory)
    if args.scenarios or args.scenario:
        return scenarios(args.scenario)
    if args.seed is None:
        parser.error("say what to run")
    return seed_once(args.seed, args.days, args.report)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception:  # a mistake of the harness is not a finding, and never passes
        traceback.print_exc()
        sys.exit(2)
