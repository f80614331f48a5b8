"""The cost of a message, t = α + bytes/β, fitted to measured times.

α is the time that a call takes however little it carries; β is the rate at which further bytes go. Source of the model:
R. W. Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", Parallel Computing 20 (1994).
"""

import statistics
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Cost:
    """t = alpha_s + bytes / bytes_per_s: what one call takes, in seconds."""

    alpha_s: float
    bytes_per_s: float

    def seconds(self, nbytes):
        """The time that the model gives to one call with a tensor of `nbytes` bytes."""
        return self.alpha_s + nbytes / self.bytes_per_s

    def residuals(self, samples):
        """{bytes: median measured time ÷ fitted time − 1}: 0.1 where the call took 10 % longer than the model says."""
        return {nbytes: one / self.seconds(nbytes) - 1 for nbytes, one in medians(samples).items()}

    def __str__(self):
        return f"α = {1e6 * self.alpha_s:,.0f} µs, β = {self.bytes_per_s / 1e9:.2f} GB/s"


def fit_cost(samples):
    """The Cost that fits {bytes: [seconds, …]} best: least squares of the *relative* errors of the medians.

    Plain least squares would listen to the largest messages only. α is at least 0. ValueError for fewer than two sizes
    or a time of 0.
    """
    middle = medians(samples)
    least_s = min(middle.values(), default=0.0)
    if len(middle) < 2 or least_s <= 0:
        raise ValueError(f"{len(middle)} sizes with times down to {least_s:g} s; give at least 2 sizes and times above 0")
    sizes, times = np.array(list(middle), dtype=float), np.array(list(middle.values()))
    ones = np.ones(len(times))
    alpha_s, s_per_byte = np.linalg.lstsq(np.stack([1 / times, sizes / times], axis=1), ones, rcond=None)[0]
    if alpha_s < 0:
        alpha_s, s_per_byte = 0.0, np.linalg.lstsq((sizes / times)[:, None], ones, rcond=None)[0][0]
    if s_per_byte <= 0:
        raise ValueError("larger messages took no longer than small ones; measure larger ones, or more often")
    return Cost(float(alpha_s), float(1 / s_per_byte))


def medians(samples):
    """{bytes: median of its times}, by ascending size."""
    return {nbytes: statistics.median(samples[nbytes]) for nbytes in sorted(samples)}


def slowest(results):
    """What all ranks measured as one: of each list of seconds, alike on every rank, the slowest rank's entry at each place.

    results  one list, or dict (of dicts) of lists, per rank. A collective is over when its last rank is.
    """
    if isinstance(results[0], dict):
        return {key: slowest([one[key] for one in results]) for key in results[0]}
    return [max(seconds) for seconds in zip(*results, strict=True)]


def joined(rounds):
    """The samples of several rounds as one: lists at the same place of the dicts, one after the other."""
    if isinstance(rounds[0], dict):
        return {key: joined([one[key] for one in rounds]) for key in rounds[0]}
    return [seconds for one in rounds for seconds in one]
