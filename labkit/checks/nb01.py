"""Checks of notebook 01, one device: parameters and bytes counted, gradients accumulated, a step timed."""

import itertools
import math
from numbers import Real

from labkit import jobs
from labkit.checks import compare
from labkit.checks.accumulation import accumulation_cause
from labkit.checks.fake_device import FakeDevice, timing_cause

SIZES = (  # changes of small_job, whose models are counted
    {},
    {"tied": True},
    {"blocks": 3, "d_model": 48, "vocab_size": 100, "seq_len": 20},
    {"blocks": 1, "d_model": 80, "vocab_size": 33, "seq_len": 50, "tied": True},
)
MISCOUNTED = {  # what a mistake adds to the count of a Job
    "the head's weight, [V, D], is missing where it is not tied": lambda job: -(not job.tied) * job.vocab_size * job.d_model,
    "a tied head shares the embedding's weight, which counts once": lambda job: job.tied * job.vocab_size * job.d_model,
    "the positions, [T, D], are missing": lambda job: -job.seq_len * job.d_model,
    "the norm before the head is missing": lambda job: -2 * job.d_model,
    "a block has two norms": lambda job: -2 * job.blocks * job.d_model,
    "the norms of the blocks are missing": lambda job: -4 * job.blocks * job.d_model,
    "a norm has a weight and a bias": lambda job: -(2 * job.blocks + 1) * job.d_model,
    "query, key and value have no bias here": lambda job: 3 * job.blocks * job.d_model,
    "the biases of the linears are missing": lambda job: -6 * job.blocks * job.d_model,
    "the biases of the MLP, 4 D and D, are missing": lambda job: -5 * job.blocks * job.d_model,
    "attention's output has a bias": lambda job: -job.blocks * job.d_model,
    "the head has no bias here": lambda job: job.vocab_size,
    "attention has four matrices: query, key, value and output": lambda job: -job.blocks * job.d_model**2,
    "the MLP has two matrices, up and down": lambda job: -4 * job.blocks * job.d_model**2,
}
PARTS = ("weights", "gradients", "optimizer state")
BYTES = (2, 2, 12)  # Rajbhandari et al., "ZeRO", 2020, section 3.1: 4 for each of the float32 master, m and v
MISTAKEN_BYTES = {
    2: "those of the bfloat16 weights alone",
    4: "those of weights and gradients: the optimizer's 12 are missing",
    8: "four of 2 bytes, or m and v alone: weights and gradients take 2 + 2, master weight, m and v 4 each",
    12: "those of the optimizer alone, or without the float32 master weight: all three terms count",
    18: "those of float32 gradients: here they are bfloat16, as the weights are",
    20: "those of float32 weights or gradients beside the master copy: here both are bfloat16",
    32: "those of float64",
}
ROWS = ((40, 24), (5, 2, 1), (4, 4))


def exercise_1_1(count_parameters):
    """The exact count for four models, tied and untied."""
    sized = [jobs.small_job(**changes) for changes in SIZES]
    pairs = [(count_parameters(**sizes_of(job)), counted(job)) for job in sized]
    for job, (ours, right) in zip(sized, pairs):
        if cause := compare(ours, right):
            more = f"{abs(ours - right):,} too {'many' if ours > right else 'few'}" if isinstance(ours, Real) else cause
            told = ", ".join(f"{name}={value}" for name, value in sizes_of(job).items())
            return miscount(sized, pairs) or f"{more} for {told}"
    return None


def sizes_of(job):
    return {name: getattr(job, name) for name in ("blocks", "d_model", "vocab_size", "seq_len", "tied")}


def counted(job):
    """The numbers that the job's model holds, a shared weight once."""
    return sum(parameter.numel() for parameter in job.model().parameters())


def miscount(sized, pairs):
    """The one or two mistakes that explain all counts, or None."""
    if not all(isinstance(ours, Real) for ours, _ in pairs):
        return None
    found = [ours - right for ours, right in pairs]
    off = {text: [by(job) for job in sized] for text, by in MISCOUNTED.items()}
    if one := next((text for text, by in off.items() if by == found), None):
        return one
    both = itertools.combinations(off.items(), 2)
    return next((f"{a}; and {b}" for (a, x), (b, y) in both if [p + q for p, q in zip(x, y)] == found), None)


def exercise_1_2(answer):
    """Bytes by kind, exact, and the largest model's parameters, within 1 %."""
    model_states, largest_model = answer
    for parameters in (1, 124_000_003):
        if cause := states_cause(model_states(parameters), parameters):
            return cause
    for gib in (24, 80):
        right = gib * 2**30 / sum(BYTES)
        ours = largest_model(gib)
        if cause := compare(ours, right, tolerance=0.01):
            return f"the largest model in {gib} GiB: {size_cause(ours, right) or cause}"
    return None


def states_cause(ours, parameters):
    """What is wrong with the bytes of weights, gradients and optimizer state, in one sentence, or None."""
    right = [each * parameters for each in BYTES]
    if not isinstance(ours, (tuple, list)) or len(ours) != len(right) or not all(isinstance(one, Real) for one in ours):
        return f"`model_states` returns {ours!r} where three numbers are expected: bytes of {', '.join(PARTS)}"
    if list(ours) == right:
        return None
    each = [one / parameters for one in ours]
    if each[2] in (4, 8):
        kept = "m and v" if each[2] == 8 else "one of master weight, m and v"
        return f"{each[2]:g} bytes of optimizer state per parameter are those of {kept}; it keeps master weight, m and v"
    for part, mine, known in zip(PARTS, each, BYTES):
        if part != PARTS[2] and mine == 4:
            return f"4 bytes per parameter are float32: the {part} are bfloat16, only what the optimizer keeps is float32"
        if mine != known:
            return f"{mine:g} bytes of {part} per parameter are not right: count the numbers kept, and the bytes of each"
    return None


def size_cause(ours, right):
    """Which wrong bytes per parameter a size comes from, or None."""
    if not isinstance(ours, Real) or not ours > 0:
        return None
    each = sum(BYTES) * right / ours
    for known, text in MISTAKEN_BYTES.items():
        if math.isclose(each, known, rel_tol=0.01):
            return f"it follows from {known} bytes per parameter, {text}"
    return None


def exercise_1_3(accumulate):
    """The whole batch's gradients from micro-batches of unequal size, one at a time, to 1e-6."""
    for rows in ROWS:
        if cause := accumulation_cause(accumulate, rows):
            return f"micro-batches of {' + '.join(map(str, rows))} rows: {cause}"
    return None


def exercise_1_4(step_seconds):
    """The median of at least five steps on a simulated device, whose queue, slow start and hiccups are known."""
    for scale in (1.0, 3.7):
        device = FakeDevice(scale)
        answer = step_seconds(device.step, device.synchronise, device.clock)
        if cause := timing_cause(answer, device):
            return cause
    return None
