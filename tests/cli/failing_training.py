"""A training that fails, event by event: the oracle of `cairn plan --checkpoints`.

Written from the description, without the planner's formulas:

- A training takes one step after another, each of the same time.
- After every step that a tier's interval divides, it saves to that tier: it stops for the tier's stall, and the
  save can be used once the tier's save time has passed since the save began. A step of several tiers stops the
  training for each of them.
- Failures come by chance, at a constant rate for each tier: one of tier i destroys what the tiers before i hold.
- After a failure, the training begins again with the newest save that can be used and was not destroyed, from its
  tier, after that tier's resume time. Without any it begins again at step 0, in the last tier's resume time. It
  may fail again while it does so.
"""

import bisect
import dataclasses
import random


@dataclasses.dataclass
class Tier:
    interval: int  # steps
    stall: float
    save: float
    resume: float
    failures: float  # per second


class Failures:
    """When each tier's failures come: the same for each training that is compared."""

    def __init__(self, rates, seconds, seed):
        rng = random.Random(seed)
        self.events = []
        for tier, rate in enumerate(rates):
            time = rng.expovariate(rate) if rate > 0 else seconds
            while time < seconds:
                self.events.append((time, tier))
                time += rng.expovariate(rate)
        self.events.sort()

    def count(self, tier):
        return sum(kind == tier for _, kind in self.events)


class Life:
    """From a restart at `step` until a failure."""

    def __init__(self, tiers, step_seconds, step):
        self.tiers, self.step_seconds, self.step = tiers, step_seconds, step

    def time_of(self, step):
        """Seconds until this step is done, and its saves begin."""
        stalls = sum(tier.stall * ((step - 1) // tier.interval - self.step // tier.interval) for tier in self.tiers
                     if step > self.step)
        return (step - self.step) * self.step_seconds + stalls

    def last_step(self, seconds):
        """The last step that is done by then."""
        low, high = self.step, self.step + int(seconds / self.step_seconds) + 1
        return low + bisect.bisect_right(range(low + 1, high + 1), seconds, key=self.time_of)

    def newest_save(self, tier, seconds):
        """The newest step that this tier has saved by then; None: none in this life."""
        low, high = self.step // tier.interval + 1, self.last_step(seconds) // tier.interval
        usable = bisect.bisect_right(range(low, high + 1), seconds,
                                     key=lambda i: self.time_of(i * tier.interval) + tier.save)
        return (low + usable - 1) * tier.interval if usable else None


def lost_share(tiers, step_seconds, failures, seconds):
    """The share of `seconds` that is not progress."""
    saved = [None] * len(tiers)
    life, began = Life(tiers, step_seconds, 0), 0.0  # `began`: when the training runs, after the restart
    for time, kind in failures.events:
        if time >= began:
            for i, tier in enumerate(tiers):
                saved[i] = life.newest_save(tier, time - began) or saved[i]
        for i in range(kind):
            saved[i] = None
        held = [(step, -i) for i, step in enumerate(saved) if step is not None]
        step, tier = max(held) if held else (0, 1 - len(tiers))
        # A tier never holds a later step than the one that the training continues from.
        saved = [step if have is not None and have > step else have for have in saved]
        life, began = Life(tiers, step_seconds, step), time + tiers[-tier].resume
    step = life.last_step(seconds - began) if seconds > began else life.step
    return 1 - step * step_seconds / seconds
