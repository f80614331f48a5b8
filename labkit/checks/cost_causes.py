"""Why α, β or the times made of them are not the expected ones: the usual mistakes, by the numbers that they give."""

import math

import numpy as np

from labkit.checks import compare

TENSORS, TENSOR_BYTES, MOST_START = 200, 4096, 0.1


def usual_fit(ours, right, table):
    """The usual mistake that gives these numbers, or None."""

    def near(one, other):
        return math.isclose(one, other, rel_tol=0.01)

    sizes, times = np.array(list(table), dtype=float), np.array(list(table.values()))
    slope, intercept = np.polyfit(sizes, times, 1)
    if near(ours.alpha_s, right.bytes_per_s) and near(ours.bytes_per_s, right.alpha_s):
        return "the right numbers in the wrong order: first α, then β"
    if near(ours.bytes_per_s, 1 / right.bytes_per_s):
        return "β is upside down: that is seconds per byte"
    if near(ours.alpha_s, intercept) and near(ours.bytes_per_s, 1 / slope):
        return "plain least squares: the largest sizes decide alone, and α suffers; divide each equation by its own time"
    if math.isclose(ours.alpha_s, times[0], rel_tol=1e-6):
        return "α is the time of the smallest size alone; all rows have a say in a fit"
    for name, mine, its in (("α", ours.alpha_s, right.alpha_s), ("β", ours.bytes_per_s, right.bytes_per_s)):
        for power in (3, 6, 9):
            if near(mine, its * 10.0**power) or near(mine, its / 10.0**power):
                return f"{name} is off by a power of ten: seconds and bytes per second are asked for"
    return None


def seconds_cause(ours, right, name, alpha_s, transfer_s):
    """Why a time is not right, or None."""
    mistakes = {
        "α is paid once here; every call pays it": alpha_s + transfer_s,
        "the bytes are missing": TENSORS * alpha_s,
        "α is paid 200 times here; one call pays it once": TENSORS * alpha_s + transfer_s,
        "α is missing: every call pays it": transfer_s,
    }
    if compare(ours, right, tolerance=1e-3) is None:
        return None
    found = [text for text, seconds in mistakes.items() if math.isclose(ours, seconds, rel_tol=1e-6)]
    return f"{name}: {found[0] if found else compare(ours, right, tolerance=1e-3)}"


def bucket_cause(ours, alpha_bytes):
    """Why the tensors per call are not right, or None; `alpha_bytes` is α β, the bytes that go in α seconds."""
    exact = (1 / MOST_START - 1) * alpha_bytes / TENSOR_BYTES
    if ours == math.ceil(exact):
        return None
    if ours == math.ceil(alpha_bytes / MOST_START / TENSOR_BYTES):
        return "tensors per call: 10 % of the whole call, α + bytes/β, not of bytes/β alone"
    if math.isclose(ours, exact, rel_tol=1e-9) or ours == math.floor(exact):
        return "tensors per call: round up, a whole tensor more or the start takes over 10 %"
    if math.isclose(ours, exact * TENSOR_BYTES, rel_tol=1e-3):
        return "tensors per call: these are bytes; divide by 4,096"
    return f"tensors per call: {compare(float(ours), float(math.ceil(exact)))}"
