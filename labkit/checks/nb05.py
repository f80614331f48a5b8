"""Checks of notebook 05, model parallel: cuts against the best one, a strategy against one device, idleness as simulated."""

import math
import random
import signal
from itertools import accumulate
from numbers import Integral

import numpy
import torch

from labkit import jobs, schedule
from labkit.checks import compare, stages
from labkit.launcher import run_ranks
from labkit.oracle import parity

LAYERS, STAGES, DEADLINE_S = 48, 8, 10
PIPELINES = (((3.0, 3.0), 0.0), ((1.0, 2.0, 6.0), 0.0), ((2.0, 1.0, 4.0, 3.0), 0.5))  # seconds of each stage, of a message


def exercise_5_1(fast_cut):
    """Small cuts first, which show what is wrong, then 48 layers in 8 stages, in a process that a time limit ends."""
    draw = random.Random(5)
    cases = [([1, 1, 1, 5], 2), ([4, 1, 1, 1, 1], 2), ([7], 1), ([9, 9, 9], 3), ([50, 1, 1, 1, 1, 1], 3), ([3] * 7, 4)]
    cases += [([draw.randint(1, 30) for _ in range(draw.randint(4, 9))], draw.randint(2, 4)) for _ in range(40)]
    for costs, count in cases:
        if cause := cut_cause(fast_cut(list(costs), count), costs, count):
            return cause
    large = [[draw.randint(1, 10**6) for _ in range(LAYERS)] for _ in range(3)]
    answers = run_ranks(within_rank, (fast_cut, large), {}, world_size=1, device="cpu", live=False, warn=False).results[0]
    if answers is None:
        return (
            f"not done after {DEADLINE_S} s with {LAYERS} layers in {STAGES} stages: "
            f"of {math.comb(LAYERS - 1, STAGES - 1):,} cuts not all can be tried"
        )
    return next(filter(None, (cut_cause(answer, costs, STAGES) for answer, costs in zip(answers, large))), None)


def within_rank(rank, fast_cut, cases):
    """What the rank does: all cases, or None where they take too long."""

    class TooLong(BaseException):
        pass

    def stop(*_):
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(DEADLINE_S)
    try:
        return [fast_cut(list(costs), STAGES) for costs in cases]
    except TooLong:
        return None
    finally:
        signal.alarm(0)


def cut_cause(cut, costs, count):
    """What is wrong with a cut of `costs` into `count` stages, in one sentence; None for one as good as the best."""
    cut = cut.tolist() if isinstance(cut, (torch.Tensor, numpy.ndarray)) else cut
    if not isinstance(cut, (list, tuple)) or not all(isinstance(one, Integral) for one in cut):
        return f"{cut!r} where a list of {count} whole numbers is expected"
    if len(cut) != count or sum(cut) != len(costs):
        return f"{list(cut)} does not cut {len(costs)} layers into {count} stages: {count} numbers that add up to {len(costs)}"
    if min(cut) < 1:
        return f"{list(cut)} leaves a stage without a layer"
    ours, best = largest(cut, costs), least_largest(costs, count)
    if ours == best:
        return None
    found = f"costs {costs} in {count} stages: the costliest stage of {list(cut)} costs {ours}, of the best cut {best}"
    if max(cut) - min(cut) <= 1:
        return f"{found}. These are stages of equally many layers, whatever a layer costs"
    return f"{found}. Was each stage filled up to the mean, and the last one given what was left?"


def largest(cut, costs):
    ends = list(accumulate(cut))
    return max(sum(costs[end - one : end]) for one, end in zip(cut, ends))


def least_largest(costs, count):
    """What the costliest stage of the best cut costs, by dynamic programming over the layers that are cut off in front."""
    sums = [0, *accumulate(costs)]
    least = [0] + [math.inf] * len(costs)
    for _ in range(count):
        options = [[max(least[first], sums[end] - sums[first]) for first in range(end)] for end in range(len(sums))]
        least = [min(row, default=math.inf) for row in options]
    return least[-1]


def exercise_5_2(both_ends):
    """Parity tied and untied, what each rank holds, and no more messages than the batch's way has links."""
    job = jobs.small_job()
    reports = stages.one_update(both_ends, job, world_size=2)
    held = [stages.parts(report) for report in reports]
    if held != [{"embed", "head"}, {"blocks"}]:
        told = ", ".join(f"rank {rank} holds {' and '.join(sorted(parts)) or 'nothing'}" for rank, parts in enumerate(held))
        return f"{told}; rank 0 is to hold the embedding and the head, rank 1 all blocks"
    missing = [[name for name, gradient in report["gradients"].items() if gradient is None] for report in reports]
    if any(name.startswith("embed") for name in missing[0]):
        return "the embedding has no gradient: rank 0 calls `backward` a second time, with the gradient that rank 1 sends back"
    if cause := stages.gradient_cause(reports, job):
        return cause
    for tied in (False, True):
        if not (found := parity(both_ends, world_size=2, job=jobs.small_job(tied=tied))):
            return f"{'with a tied head, ' if tied else ''}{found.diagnosis}"
    if (messages := sum(report["sent"] for report in reports)) != 4:
        return f"the result is right, but an update sends {messages} messages: the way 0, 1, 0 and back has 4"
    return None


def exercise_5_3(utilisation):
    """As in the simulated timeline of a single micro-batch."""
    results = [(utilisation(list(stage_s), link_s), *case) for case in PIPELINES for stage_s, link_s in [case]]
    causes = [
        f"for stages of {list(stage_s)} s and messages of {link_s:g} s: {cause}"
        for ours, stage_s, link_s in results
        if (cause := compare(ours, simulated(stage_s, link_s)))
    ]
    return (usual_mistake(results) or causes[0]) if causes else None


def simulated(stage_s, link_s):
    forward_s, backward_s = [one / 3 for one in stage_s], [2 * one / 3 for one in stage_s]
    return 1 - schedule.naive(len(stage_s), 1).simulate(forward_s, backward_s, link_s).bubble


def usual_mistake(results):
    """The mistake that explains all results, or None; rows of (ours, seconds of each stage, seconds of a message)."""
    mistakes = {
        "this is the share of time in which *any* device computes; a single one computes for 1/p of it": lambda busy, p, link_s: (
            busy / (busy + 2 * (p - 1) * link_s)
        ),
        "this is the share of time in which a device is idle": lambda busy, p, link_s: (
            1 - busy / p / (busy + 2 * (p - 1) * link_s)
        ),
        "every link is passed twice: by the activation, and by its gradient": lambda busy, p, link_s: (
            busy / p / (busy + (p - 1) * link_s)
        ),
        "messages take time too": lambda busy, p, link_s: 1 / p,
        "there is one link less than there are stages": lambda busy, p, link_s: busy / p / (busy + 2 * p * link_s),
    }
    if any(not isinstance(ours, (int, float)) for ours, _, _ in results):
        return None
    for text, value in mistakes.items():
        rows = [(ours, value(sum(stage_s), len(stage_s), link_s)) for ours, stage_s, link_s in results]
        if all(math.isclose(ours, wrong, rel_tol=1e-6) for ours, wrong in rows):
            return text
    return None
