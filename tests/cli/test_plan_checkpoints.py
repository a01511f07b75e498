"""cairn plan --checkpoints as a user runs it, and against simulated months (failing_training.py).

CAIRN_LONG=1 plays 100 months where 6, or 3 on the grid of intervals, are played otherwise.
"""

import json
import os
import random
import signal
import subprocess
import time
import unittest

from cairn_cli import TRAINER, CliTest
from failing_training import Failures, Tier, lost_share

LONG = os.environ.get("CAIRN_LONG") == "1"
MONTH = 720 * 3600.0


class FlagsTest(CliTest):
    GIVEN = ("plan", "--checkpoints", "--step-seconds", 2, "--tier", "memory:stall=0.5,save=2,load=5", "--tier",
             "run:stall=0.5,save=30,load=60", "--restart-seconds", 120)

    def given(self, *args, **kwargs):
        return self.json(*self.GIVEN, *args, **kwargs)

    def test_more_failures_mean_shorter_intervals_and_more_loss(self):
        seen = [self.given("--nodes", 64, "--failures", n, "--hours", 700) for n in (1, 10, 100)]
        lost = [each["plan"]["lost"]["total"] for each in seen]
        self.assertEqual(lost, sorted(lost))
        intervals = [each["plan"]["tiers"][0]["interval"] for each in seen]
        self.assertEqual(intervals, sorted(intervals, reverse=True))
        for each in seen:
            loss = each["plan"]["lost"]
            self.assertLess(loss["low"], loss["total"])
            self.assertLess(loss["total"], loss["high"])
            self.assertAlmostEqual(loss["saves"] + loss["rework"] + loss["restarts"], loss["total"], places=12)

    def test_parity_serves_the_loss_of_a_node(self):
        found = self.given("--nodes", 64, "--failures", "process=2,node=20,several=2", "--hours", 700)
        self.assertEqual(found["plan"]["redundancy"], "xor:8")
        by = {plan["redundancy"]: plan for plan in [found["plan"], *found["others"]] if len(plan["tiers"]) > 1}
        self.assertAlmostEqual(by["none"]["beyond_parity"], 22.85 / 25)
        self.assertAlmostEqual(by["xor:8"]["beyond_parity"], 2.15 / 25, delta=0.01)
        self.assertLess(by["rs:8+2"]["beyond_parity"], by["xor:8"]["beyond_parity"])
        only = self.given("--nodes", 64, "--failures", "node=20", "--hours", 700, "--redundancy", "none")
        self.assertEqual({plan["redundancy"] for plan in [only["plan"], *only["others"]]}, {"none"})

    def test_each_framework_gets_its_own_flags(self):
        found = self.given("--nodes", 64, "--failures", "process=2,node=20,several=2", "--hours", 700)
        memory, run = (tier["interval"] for tier in found["plan"]["tiers"])
        self.assertEqual(run % memory, 0)
        flags = found["flags"]
        self.assertIn(f"--save-interval {run} ", flags["cairn train"])
        self.assertIn(f"--save-local-interval {memory} ", flags["cairn train"])
        self.assertIn("--redundancy xor:8", flags["cairn train"])
        self.assertIn(f'every={run // memory}, redundancy="xor:8"', flags["cairn.torch"])
        self.assertRegex(flags["Megatron-LM"], f'redundancy="xor:8"\\);.* --non-persistent-save-interval {memory}$')
        for framework in ("DeepSpeed", "torchtitan", "Hugging Face"):
            self.assertIn(f'local="/dev/shm/cairn", every={run // memory}, redundancy="xor:8"', flags[framework])
            self.assertRegex(flags[framework], rf"\b{memory}\b")
        alone = next(plan["tiers"][0]["interval"] for plan in found["others"] if len(plan["tiers"]) == 1)
        for framework in ("NeMo", "Lightning"):
            self.assertRegex(flags[framework], rf"\b{alone}\b")

    def test_no_failure_seen_states_the_prior_and_the_bound(self):
        said = self.cairn(*self.GIVEN, "--nodes", 8, "--failures", 0, "--hours", 100).stdout
        self.assertIn("none in 100 h 0 min of training on 8 nodes", said)
        self.assertIn("as if there had been one in 5000 hours of a node before", said)
        self.assertIn("with 95 % confidence they are not more frequent than one in 33 h 2", said)

    def test_a_quota_bounds_the_steps_that_are_kept(self):
        sized = ("--mtbf", 5000, "--checkpoint-bytes", "10GB")
        self.assertEqual(self.given(*sized)["keep"]["last"], 3)
        self.assertEqual(self.given(*sized, "--quota", "35GB")["keep"]["last"], 2)
        self.assertEqual(self.given(*sized, "--keep-last", 9, "--quota", "65GB")["keep"]["last"], 5)
        self.assertTrue(self.given(*sized, "--quota", "25GB")["keep"]["quota_is_short"])
        self.cairn(*self.GIVEN, *sized, "--quota", "25GB", says="too small for two steps and one that is being written")

    def test_an_archive_is_saved_to_for_the_loss_of_the_run_directory(self):
        found = self.given("--mtbf", 5000, "--tier", "archive:save=600,load=3600")
        names = [tier["tier"] for tier in found["plan"]["tiers"]]
        self.assertEqual(names[-2:], ["run", "archive"])
        self.assertEqual(found["keep"]["every"], found["plan"]["tiers"][-1]["interval"])

    def test_bad_input_is_one_line(self):
        (self.dir / "empty").mkdir()
        (self.dir / "notes.txt").write_text("nothing\n")
        rates = ("--failures", 3, "--hours", 100)
        step, run = ("--step-seconds", 2), ("--tier", "run:stall=1,save=30")
        for args, says in (
                ((*step, *run), "nothing shows how often this training fails; give --log, --failures with --hours, or --mtbf"),
                ((*run, *rates), "how long a step takes is not known"),
                ((*step, *rates), "how long a save to the run directory takes is not known"),
                (("--step-seconds", 0, *run, *rates), "--step-seconds 0: a step takes some time"),
                (("--step-seconds", -1, *run, *rates), "--step-seconds"),
                (("--step-seconds", "nan", *run, *rates), "--step-seconds"),
                (("--step-seconds", 1e300, *run, *rates), "--step-seconds"),
                ((*step, "--tier", "run:save=1e300", *rates), "'save=1e300' is not"),
                ((*step, "--tier", "run:stall=1,save=0", *rates), "save= is needed, and more than 0 seconds"),
                ((*step, "--tier", "run:stall=5,save=1", *rates), "the training waits for 5 s of a save that takes 1 s"),
                ((*step, "--tier", "tape:save=1", *rates), "the tier is memory, disk, run or archive"),
                ((*step, "--tier", "run:speed=1", *rates), "'speed=1' is not stall=, save= or load= with seconds"),
                ((*step, "--tier", "run:save=inf", *rates), "'save=inf' is not"),
                ((*step, *run, "--failures", "ghost=1", "--hours", 3), "--failures ghost=1: not N, process=N"),
                ((*step, *run, "--failures", "-1", "--hours", 3), "-1"),
                ((*step, *run, "--failures", 3), "--failures needs --hours"),
                ((*step, *run, *rates, "--hours", 0), "--hours"),
                ((*step, *run, "--mtbf", 0), "--mtbf"),
                ((*step, *run, "--mtbf", "nan"), "--mtbf nan: not a finite number"),
                ((*step, *run, "--failures", 3, "--hours", "nan"), "--hours nan: not a finite number"),
                ((*step, *run, *rates, "--redundancy", "xor:1"), "--redundancy 'xor:1' is not none, xor:K or rs:K+M"),
                ((*step, *run, *rates, "--redundancy", "rs:8+2"), "a group of 8 nodes, of 1; give --nodes"),
                (("empty", *step, *run), "empty: no run; it has neither steps nor events"),
                (("absent", *step, *run), "absent"),
                ((*step, *run, "--log", "notes.txt"), "notes.txt: not the log of a training"),
                ((*step, *run, "--log", "absent.log"), "absent.log")):
            with self.subTest(args=args):
                done = self.cairn("plan", "--checkpoints", *args, code=2, says=says)
                self.assertEqual((done.stdout, len(done.stderr.splitlines())), ("", 1), done.stderr)
        self.cairn("plan", "--step-seconds", 2, code=2, says="--checkpoints")

    def test_a_training_that_fails_faster_than_it_restarts_is_status_1(self):
        self.cairn(*self.GIVEN, "--failures", 1000, "--hours", 1, code=1, says="this training hardly moves: it fails once in 3.6 s")


class EventsTest(CliTest):
    """The events of a run as cairn train writes it (tests/interop has a real one)."""

    def events(self, *events):
        self.make_step(step=100)
        self.make_step(step=200)
        (self.run_dir / "events").write_text("".join(json.dumps(event) + "\n" for event in events))

    @staticmethod
    def start(time, hosts="ab", **more):
        return {"event": "start", "time": time, "hosts": list(hosts), "ranks": 8, "seconds": 20, **more}

    def test_a_start_without_an_end_is_a_failure_by_the_hosts_that_the_next_one_lacks(self):
        self.events(self.start(1000), {"event": "save", "time": 4600, "step": 10, "stall": 0.25, "seconds": 3},
                     self.start(5000, step=10, tier="run", step_time=4600),  # a process
                     self.start(9000, "ac", step=20, tier="run", step_time=8600),  # node b
                     {"event": "end", "time": 12600, "how": "done"},
                     self.start(20000, "ac"), {"event": "end", "time": 23600, "how": "failed", "why": "rank 3 (host c): gone"},
                     self.start(23700, "de", step=30, tier="run"),  # both
                     {"event": "later versions", "time": 23800}, {"event": "end", "time": 27300, "how": "diverged"})
        found = self.json("plan", "--checkpoints", "gpt", "--step-seconds", 2)
        self.assertEqual((found["starts"], found["nodes"]), (5, 2))
        self.assertEqual(found["failures"]["count"], 3)
        self.assertEqual(found["failures"]["hours"], 5)
        self.assertAlmostEqual(found["failures"]["all"]["per_hour"], 3 / 5)
        for kind, usual in (("process", 0.15), ("node", 0.7), ("several nodes", 0.15)):
            self.assertAlmostEqual(found["failures"][kind]["per_hour"], 3 / 5 * (1 + usual) / 4)
        tier, = found["plan"]["tiers"]
        self.assertEqual((tier["stall_seconds"], tier["save_seconds"]), (0.25, 3))
        said = self.cairn("plan", "--checkpoints", "gpt", "--step-seconds", 2).stdout
        self.assertIn("gpt: 5 starts", said)
        self.assertIn("3 in 5 h 0 min of training on 2 nodes (1 of a process, 1 of a node, 1 of several nodes)", said)
        self.assertIn("1 save in its events", said)

    def test_a_flag_wins_over_a_measurement(self):
        self.events(self.start(1000), self.start(5000, step_time=4600))
        found = self.json("plan", "--checkpoints", "gpt", "--step-seconds", 2, "--failures", 7, "--hours", 10, "--nodes", 4,
                          "--tier", "run:stall=1,save=9")
        self.assertEqual((found["failures"]["count"], found["nodes"]), (7, 4))
        self.assertEqual(found["plan"]["tiers"][0]["save_seconds"], 9)

    def test_a_run_without_events_names_the_flags(self):
        self.make_step()
        self.cairn("plan", "--checkpoints", "gpt", "--step-seconds", 2, "--tier", "run:save=9", code=2,
                   says="gpt has no record of its starts: nothing shows how often this training fails")

    def test_damaged_events_name_the_line(self):
        self.events(self.start(1000))
        path = self.run_dir / "events"
        for damage, line in (('{"event": "st', 2), ("[]", 2), ('{"event": "end", "time": -4}', 2)):
            path.write_text(json.dumps(self.start(1000)) + "\n" + damage + "\n")
            done = self.cairn("plan", "--checkpoints", "gpt", code=2, says=f"gpt/events line {line}: ")
            self.assertEqual(len(done.stderr.splitlines()), 1)


@unittest.skipUnless(TRAINER, "cairn-train was not built (CAIRN_RUNTIME=OFF)")
class TrainedTest(CliTest):
    FLAGS = ["--mock-data", "--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "2", "--seq-length", "32",
             "--max-position-embeddings", "32", "--vocab-size", "61", "--make-vocab-size-divisible-by", "8", "--micro-batch-size", "1",
             "--save", "gpt", "--save-interval", "5", "--keep-last", "2"]

    def train(self, *flags, log, killed_at=None):
        """cairn train on one rank, killed by SIGKILL once this step exists."""
        with open(self.dir / log, "w") as out:
            training = subprocess.Popen([self.command, "train", *self.FLAGS, *map(str, flags)], stdout=out, stderr=subprocess.STDOUT,
                                        cwd=self.dir, start_new_session=True)
            if killed_at is not None:
                while not (self.run_dir / f"step-{killed_at:08}").exists() and training.poll() is None:
                    time.sleep(0.01)
                os.killpg(training.pid, signal.SIGKILL)
        return training.wait()

    def test_a_training_that_is_killed_twice_shows_two_failures(self):
        forever = ("--train-iters", 1000000, "--lr-decay-iters", 100)
        local = ("--save-local", self.dir / "local", "--save-local-interval", 1)
        self.assertEqual(self.train(*forever, log="1.log", killed_at=10), -signal.SIGKILL)
        at = max(int(path.name[5:]) for path in self.run_dir.glob("step-????????"))
        self.assertEqual(self.train(*forever, *local, log="2.log", killed_at=at + 20), -signal.SIGKILL)
        at = max(int(path.name[5:]) for path in self.run_dir.glob("step-????????"))
        self.assertEqual(self.train("--train-iters", at + 20, "--lr-decay-iters", 100, *local, log="3.log"), 0)
        events = [json.loads(line) for line in (self.run_dir / "events").read_text().splitlines()]
        starts = [event for event in events if event["event"] == "start"]
        self.assertEqual([start.get("tier") for start in starts], [None, "run", "local"])
        self.assertGreaterEqual(starts[2]["step"], at)
        self.assertEqual([event["how"] for event in events if event["event"] == "end"], ["done"])
        saves = [event for event in events if event["event"] == "save"]
        self.assertGreaterEqual(len(saves), 4)
        self.assertTrue(all(0 < save["seconds"] and 0 <= save["stall"] for save in saves), saves)

        found = self.json("plan", "--checkpoints", "gpt")
        self.assertEqual((found["starts"], found["nodes"], found["failures"]["count"]), (3, 1, 2))
        self.assertTrue(found["failures"]["kinds_known"])
        self.assertEqual([tier["tier"] for tier in found["plan"]["tiers"]], ["run"])
        with_logs = self.json("plan", "--checkpoints", "gpt", "--log", "1.log", "2.log", "3.log")
        self.assertEqual(with_logs["failures"], found["failures"])
        self.assertTrue({"memory", "disk"} & {tier["tier"] for plan in [with_logs["plan"], *with_logs["others"]] for tier in plan["tiers"]})
        only_logs = self.json("plan", "--checkpoints", "--log", "1.log", "2.log", "3.log")
        self.assertEqual(only_logs["failures"]["count"], 2)
        self.assertFalse(only_logs["failures"]["kinds_known"])


class MonthsTest(CliTest):
    """Months of trainings with random rates, simulated by an oracle that shares nothing with the planner."""

    def training(self, seed):
        """What a random training is, as flags, and its true failures per second by kind."""
        rng = random.Random(seed)
        nodes = rng.choice([8, 64, 512])
        step = 10 ** rng.uniform(-0.5, 1.2)
        stall = 10 ** rng.uniform(-1, 1)
        memory = stall * rng.uniform(1, 5)
        run = memory * rng.uniform(2, 20)
        flags = ["plan", "--checkpoints", "--nodes", nodes, "--step-seconds", step, "--restart-seconds", rng.uniform(10, 300),
                 "--tier", f"memory:stall={stall},save={memory},load={rng.uniform(1, 60)}",
                 "--tier", f"run:stall={stall},save={run},load={rng.uniform(10, 300)}", "--redundancy", rng.choice(["none", "xor:8"])]
        of_all = 1 / (10 ** rng.uniform(0.3, 2) * 3600)
        shares = [rng.uniform(0.1, 1) for _ in range(3)]
        return flags, step, [of_all * share / sum(shares) for share in shares]

    @staticmethod
    def tiers_of(plan, by_kind):
        """The plan's tiers, each with the true rate of the failures that it serves."""
        process, node, several = by_kind
        if len(plan["tiers"]) == 1:
            rates = [process + node + several]
        else:
            rates = [process, node + several] if plan["redundancy"] == "none" else [process + node, several]
        return [Tier(tier["interval"], tier["lost_seconds"], tier["save_seconds"], tier["resume_seconds"], rate)
                for tier, rate in zip(plan["tiers"], rates)]

    @staticmethod
    def simulated(tiers, step, failures, seed):
        rates = [tier.failures for tier in tiers]
        seconds = failures / sum(rates)
        return lost_share(tiers, step, Failures(rates, seconds, seed), seconds)

    def test_the_expected_loss_is_the_simulated_one(self):
        for seed in range(100 if LONG else 6):
            flags, step, by_kind = self.training(seed)
            hours = 1e6  # with this many failures their rates are known
            seen = [round(rate * hours * 3600) for rate in by_kind]
            found = self.json(*flags, "--hours", hours, "--failures", ",".join(
                f"{kind}={count}" for kind, count in zip(("process", "node", "several"), seen)))
            for plan in [found["plan"], *found["others"]]:
                lost = self.simulated(self.tiers_of(plan, by_kind), step, 4000, seed)
                self.assertAlmostEqual(plan["lost"]["total"] / lost, 1, delta=0.07, msg=f"seed {seed}: {plan}")

    def test_the_bounds_of_an_observed_month_contain_the_loss_of_9_of_10_trainings(self):
        within = 0
        for seed in range(100):
            flags, step, by_kind = self.training(seed)
            month = Failures(by_kind, MONTH, seed)
            found = self.json(*flags, "--hours", 720, "--failures", ",".join(
                f"{kind}={month.count(i)}" for i, kind in enumerate(("process", "node", "several"))))
            lost = self.simulated(self.tiers_of(found["plan"], by_kind), step, 1500, seed)
            within += found["plan"]["lost"]["low"] <= lost <= found["plan"]["lost"]["high"]
        self.assertGreaterEqual(within, 88)

    def test_9_of_10_months_of_a_given_rate_lose_as_much_as_the_bounds_say(self):
        within = 0
        for seed in range(100):
            flags, step, by_kind = self.training(seed)
            nodes = flags[flags.index("--nodes") + 1]
            found = self.json(*flags, "--mtbf", nodes / sum(by_kind) / 3600)
            tiers = self.tiers_of(found["plan"], [sum(by_kind) * share for share in (0.15, 0.7, 0.15)])
            lost = lost_share(tiers, step, Failures([tier.failures for tier in tiers], MONTH, seed), MONTH)
            within += found["plan"]["lost"]["low"] <= lost <= found["plan"]["lost"]["high"]
        self.assertGreaterEqual(within, 88)

    def test_no_intervals_of_a_grid_are_better(self):
        for seed in range(100 if LONG else 3):
            flags, step, by_kind = self.training(seed)
            hours = 1e6
            found = self.json(*flags, "--hours", hours, "--failures", ",".join(
                f"{kind}={round(rate * hours * 3600)}" for kind, rate in zip(("process", "node", "several"), by_kind)))
            planned = self.tiers_of(found["plan"], by_kind)
            best = self.simulated(planned, step, 3000, seed)
            for factor in (0.2, 0.4, 0.7, 1.4, 2.5, 5):
                for times in ((factor, 1), (1, factor), (factor, factor), (factor, 1 / factor)):
                    tiers, unit = [], 1
                    for tier, by in zip(planned, times):
                        unit = unit * max(1, round(tier.interval * by / unit))
                        tiers.append(Tier(unit, tier.stall, tier.save, tier.resume, tier.failures))
                    if any(tier.interval * step < tier.save - tier.stall for tier in tiers):
                        continue  # a save would not end before the next one
                    self.assertLess(best, self.simulated(tiers, step, 3000, seed) * 1.03, f"seed {seed}, {times}: {found['plan']}")


if __name__ == "__main__":
    unittest.main()
