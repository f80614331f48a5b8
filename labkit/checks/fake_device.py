"""A device that exists as numbers only, to judge how an answer times it: its queue, its slow start and its hiccups."""

import math
from dataclasses import dataclass
from numbers import Real
from statistics import mean, median

from labkit.checks import compare

SLOW_CALLS, HICCUP_EVERY, LEAST = 2, 5, 5
LAUNCH_S, STEP_S = 2e-4, 0.02
NOISE = (0.94, 1.03, 0.99, 1.08, 1.01, 0.97, 1.05)
COLD = f"the first {SLOW_CALLS} calls, which are slow, are among the steps timed: do them before, untimed"


@dataclass(frozen=True)
class Interval:
    """What lay between two readings of the clock: the numbers of the steps begun, and the work left at either end."""

    steps: tuple
    seconds: float
    left_before_s: float
    left_after_s: float


class FakeDevice:
    """Steps are begun at once and done later, as on a GPU; all times are multiples of `scale`."""

    def __init__(self, scale=1.0):
        self.scale, self._now_s, self._done_s = scale, 1000.0, 0.0
        self._calls, self._begun, self._readings = 0, [], []

    def step(self):
        """Begins a step and returns before it is done."""
        self._calls += 1
        self._begun.append(self._calls)
        self._now_s += self.scale * LAUNCH_S
        self._done_s = max(self._now_s, self._done_s) + self.duration_s(self._calls)

    def synchronise(self):
        """Returns when all that was begun is done."""
        self._now_s = max(self._now_s, self._done_s)

    def clock(self):
        """The time in seconds."""
        self._readings.append((self._now_s, max(0.0, self._done_s - self._now_s), tuple(self._begun)))
        self._begun = []
        return self._now_s

    def duration_s(self, call):
        slow = 30 if call <= SLOW_CALLS else 12 if call % HICCUP_EVERY == 0 else 1
        return self.scale * STEP_S * slow * NOISE[call % len(NOISE)]

    @property
    def intervals(self):
        """Those between two readings in which a step was begun."""
        pairs = zip(self._readings, self._readings[1:])
        return [Interval(b[2], b[0] - a[0], a[1], b[1]) for a, b in pairs if b[2]]

    @property
    def readings(self):
        return len(self._readings)


def timing_cause(answer, device):
    """What is wrong with a time that was measured on a FakeDevice, in one sentence; None for the median of enough steps."""
    intervals = device.intervals
    if device.readings < 2 or not intervals:
        return "no step was begun between two readings of `clock`: read it before a step and after"
    timed = [one for one in intervals if len(one.steps) == 1 and one.steps[0] > SLOW_CALLS]
    most = max(len(one.steps) for one in intervals)
    if most > 1 and len(timed) < LEAST:
        return f"{most} steps lie between two readings of the clock: that gives their mean; time each one by itself"
    if any(one.left_after_s for one in timed or intervals):
        return "the clock was read while the device was still at work: a step returns before it is done, so `synchronise` first"
    if any(one.left_before_s for one in timed):
        return "the clock started while the device was still busy with earlier steps: `synchronise` after the warm-up too"
    if len(timed) < LEAST:
        return few(intervals, timed)
    return statistic_cause(answer, intervals, timed)


def few(intervals, timed):
    if len(intervals) >= LEAST:
        return COLD
    return f"{len(timed)} steps were timed after the warm-up; a median needs at least {LEAST}"


def statistic_cause(answer, intervals, timed):
    """Whether the answer is the median of what was timed, or what else it is."""
    seconds = [one.seconds for one in timed]
    if not isinstance(answer, Real):
        return compare(answer, median(seconds))
    enough = (seconds[dropped:] for dropped in range(len(seconds) - LEAST + 1))
    if any(math.isclose(answer, median(some), rel_tol=1e-9) for some in enough):
        return None
    others = {
        COLD: [median(one.seconds for one in intervals), mean(one.seconds for one in intervals)],
        "it is the mean, which every hiccup pulls up: take the median": [mean(seconds)],
        "it is the fastest step, which is luck: take the median": [min(seconds)],
        "it is the slowest step: take the median": [max(seconds)],
        "it is the time of all steps together": [sum(seconds)],
        "it is the last step alone: take the median of all": [seconds[-1]],
    }
    if len(intervals) == len(timed):
        del others[COLD]
    for text, values in others.items():
        if any(math.isclose(answer, value, rel_tol=1e-9) for value in values):
            return text
    return compare(answer, median(seconds), tolerance=1e-9)
