"""How benchmarks print: what was measured, its spread, and the goal beside it."""

import statistics


def report(what, values, goal, unit=""):
    """Prints the median of the values with their range, and the goal as text."""
    median, low, high = statistics.median(values), min(values), max(values)
    print(f"  {what:<64} {median:8.3f}{unit} [{low:.3f} … {high:.3f}]   goal {goal}", flush=True)


def paired(over, under):
    """Returns the ratios of measurements that were taken in turn."""
    return [a / b for a, b in zip(over, under, strict=True)]
