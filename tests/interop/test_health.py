"""Trainings that diverge: good steps stay, the training stops, and the next start resumes from a good step."""

import json
import os
import shutil
import unittest

from harness import Case, cairn, steps

ONE = (1, 1, 1)
FLAGS = ["--bf16", "--save-interval", "2"]


def numbers(run):
    return [int(step[-8:]) for step in steps(run)]


def health(run, number):
    with open(os.path.join(run, f"step-{number:08}", "manifest.json")) as manifest:
        return json.load(manifest)["state"]["health"]


class Diverged(Case):
    def setUp(self):
        super().setUp()
        self.run_dir = self.path("run")
        self.train("good", ONE, *FLAGS, "--train-iters", "6", "--save", self.run_dir)
        self.assertEqual(numbers(self.run_dir), [2, 4, 6])

    def diverge(self, *flags, **kwargs):
        return self.train("diverged", ONE, *FLAGS, "--train-iters", "60", "--save", self.run_dir, "--lr", "1e30",
                          *flags, **kwargs)

    def resume(self, *flags, **kwargs):
        return self.train("resumed", ONE, *FLAGS, "--train-iters", "10", "--save", self.run_dir, *flags, **kwargs)

    def test_a_diverged_resume_stops_and_costs_no_good_step(self):
        losses = self.diverge("--keep-last", "2", "--max-bad-iterations", "5", status=1)
        self.assertIsNone(losses[12])
        self.assertEqual(max(losses), 12)  # iteration 7 makes the weights bad, 8 to 12 show it
        self.assertEqual(self.output.count("training stops at iteration 12"), 1)
        self.assertIn(f"the next start resumes from step 6 of {self.run_dir}", self.output)
        self.assertTrue({4, 6} <= set(numbers(self.run_dir)), numbers(self.run_dir))
        worst = health(self.run_dir, numbers(self.run_dir)[-1])
        self.assertEqual(worst["first_bad_iteration"], 8)
        self.assertEqual(worst["loss"], "nan")
        resumed = self.resume()
        self.assertEqual(sorted(resumed), [7, 8, 9, 10])
        self.assertIn("unhealthy (loss nan", self.output)
        self.assertIn("resumed from %s" % steps(self.run_dir)[numbers(self.run_dir).index(6)], self.output)
        self.assertEqual(health(self.run_dir, 10)["bad_iterations"], 0)

    def test_does_not_resume_from_the_same_step_for_ever(self):
        # Saved at iteration 7, whose loss was still good; nothing is saved after it.
        self.diverge("--save-interval", "7", "--max-bad-iterations", "3", status=1)
        self.assertEqual(numbers(self.run_dir), [2, 4, 6, 7])
        self.assertEqual(health(self.run_dir, 7)["bad_iterations"], 0)
        self.assertIn("resumes from step 6", self.output)
        self.assertEqual(min(self.resume()), 7)
        self.assertIn("step-00000007: unhealthy (3 iterations after it were bad)", self.output)

    def test_resume_newest_takes_an_unhealthy_step(self):
        self.diverge("--max-bad-iterations", "5", status=1)
        newest = numbers(self.run_dir)[-1]
        self.assertGreater(newest, 6)
        told = cairn("verify", self.run_dir, "--values", status=1).stdout
        self.assertIn("unhealthy: ", told)
        self.assertNotIn("good", told)
        losses = self.train("insisted", ONE, *FLAGS, "--train-iters", "60", "--save", self.run_dir, "--load-unhealthy",
                            "--max-bad-iterations", "2", status=1)
        self.assertEqual(sorted(losses), [newest + 1, newest + 2])

    def test_without_a_healthy_step_there_is_an_error(self):
        self.diverge("--max-bad-iterations", "5", status=1)
        for number in (2, 4, 6):
            shutil.rmtree(os.path.join(self.run_dir, f"step-{number:08}"))
        self.resume(status=2)
        self.assertIn("none of its steps is healthy; to resume from the newest anyway, give --load-unhealthy", self.output)


    def test_local_steps_that_turn_out_bad_are_given_up(self):
        run = self.path("tried")
        flags = ["--bf16", "--save", run, "--save-interval", "4", "--save-local", self.path("node"), "--save-local-interval", "1"]
        self.train("begun", ONE, *flags, "--train-iters", "6")
        shutil.rmtree(os.path.join(run, "step-00000006"))  # as if it was killed
        losses = self.train("bad", ONE, *flags, "--train-iters", "60", "--lr", "1e30", status=75)
        self.assertEqual((min(losses), max(losses)), (7, 8))
        self.assertIn("resumed from local step 6", self.output)
        self.assertIn("within 10 iterations of a resume from local steps", self.output)
        self.assertIn(f"given up; the next start resumes from step 4 of {run}", self.output)
        with open(os.path.join(run, "events"), encoding="utf-8") as events:
            gave_up = [event for event in map(json.loads, events) if event["event"] == "gave_up_local"]
        self.assertEqual([event["step"] for event in gave_up], [6])
        self.assertEqual(sorted(self.train("again", ONE, *flags, "--train-iters", "8")), [5, 6, 7, 8])
        self.assertEqual(sorted(self.train("on", ONE, *flags, "--train-iters", "9")), [9])


class LossScale(Case):
    def test_its_search_is_not_unhealthy(self):
        run = self.path("run")
        losses = self.train("fp16", ONE, "--fp16", "--initial-loss-scale", "1.7e38", "--hysteresis", "1", "--train-iters",
                            "12", "--save", run, "--save-interval", "6", "--max-bad-iterations", "2")
        self.assertEqual(max(losses), 12)
        self.assertGreaterEqual(health(run, 6)["skipped_iterations"], 6)
        self.assertEqual(health(run, 6)["bad_iterations"], 0)


class Start(Case):
    def test_the_same_directory_for_save_and_load_starts_and_resumes(self):
        run, flags = self.path("run"), ["--bf16", "--train-iters", "2"]
        first = self.train("first", ONE, *flags, "--save", run, "--load", run)
        self.assertEqual(sorted(first), [1, 2])
        again = self.train("again", ONE, "--bf16", "--train-iters", "3", "--save", run, "--load", os.path.join(run, ""))
        self.assertEqual(sorted(again), [3])

    def test_another_directory_without_steps_is_an_error(self):
        os.mkdir(self.path("empty"))
        for other in ("empty", "missing"):
            self.train(other, ONE, "--train-iters", "2", "--save", self.path("run"), "--load", self.path(other), status=2)

    def test_missing_steps_are_an_error(self):
        run = self.path("run")
        flags = ["--bf16", "--save", run, "--save-interval", "2", "--train-iters"]
        self.train("first", ONE, *flags, "4")
        shutil.rmtree(os.path.join(run, "step-00000004"))
        self.assertEqual(sorted(self.train("second", ONE, *flags, "4")), [3, 4])
        self.assertIn("'latest' names step 4, which no longer exists", self.output)
        for step in steps(run):
            shutil.rmtree(step)
        self.train("third", ONE, *flags, "4", status=2)
        self.assertIn("there are no steps", self.output)
        self.assertEqual(sorted(self.train("fourth", ONE, *flags, "2", "--start-anew")), [1, 2])


if __name__ == "__main__":
    unittest.main()
