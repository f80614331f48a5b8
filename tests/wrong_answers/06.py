"""Wrong answers to the exercises of notebook 06, each with the cause that its check must name."""

import math

from labkit.schedule import Backward, BackwardInput, BackwardWeight, Forward, gpipe, interleaved, naive, one_f_one_b


def orders(make, **options):
    """A learner's function that returns what `make` makes, as lists."""
    return lambda stages, micro_batches: [list(order) for order in make(stages, micro_batches, **options)]


right = orders(gpipe), orders(one_f_one_b)


def backwards_first(stages, micro_batches):
    return [[kind(n) for kind in (Backward, Forward) for n in range(micro_batches)]] * stages


def last_backward_missing(stages, micro_batches):
    return [order[:-1] for order in orders(gpipe)(stages, micro_batches)]


def by_turns(ahead_of):
    """1F1B whose stages do `ahead_of(stage, stages)` forwards ahead."""

    def make(stages, micro_batches):
        made = []
        for stage in range(stages):
            ahead = min(micro_batches, ahead_of(stage, stages))
            order = [Forward(n) for n in range(ahead)]
            for n in range(micro_batches):
                order += [Forward(ahead + n)] * (ahead + n < micro_batches) + [Backward(n)]
            made.append(order)
        return made

    return make


def halved(stages, micro_batches):
    """Legal, but not for `pipeline_parallel`."""
    turns = [one for n in range(micro_batches) for one in (Forward(n), BackwardInput(n), BackwardWeight(n))]
    return [turns] * stages


def crossed(stages, micro_batches, most):
    """Two neighbours that each wait for what the other does later."""
    made = orders(naive)(stages, micro_batches)
    if micro_batches > 1 and stages > 1:
        made[-1] = made[-1][2:4] + made[-1][:2] + made[-1][4:]
    return made


def capped(most_of):
    """`frugal` with another cap than the one asked for."""
    return lambda stages, micro_batches, most: by_turns(lambda stage, count: min(count - stage - 1, most_of(most) - 1))(
        stages, micro_batches
    )


WRONG_ANSWERS = {
    "6.1": [
        ((backwards_first, right[1]), r"GPipe with 4 stages and 8 micro-batches: stage \d does Backward\(0\) too early"),
        ((last_backward_missing, right[1]), r"stage 0 lacks Backward\(7\)"),
        ((orders(naive), right[1]), "it takes 96 forward times where 33 are enough"),
        ((right[1], right[1]), r"GPipe .* its stages hold \[4, 3, 2, 1\] micro-batches where \[8, 8, 8, 8\]"),
        ((right[0], right[0]), r"1F1B .* hold \[8, 8, 8, 8\] micro-batches where \[4, 3, 2, 1\] are expected: that is GPipe"),
        ((right[0], by_turns(lambda stage, stages: 0)), "without forwards ahead a stage waits for each gradient"),
        ((right[0], by_turns(lambda stage, stages: stage)), "1F1B with 4 stages"),
        ((right[0], by_turns(lambda stage, stages: stages - stage)), r"hold \[5, 4, 3, 2\] micro-batches"),
        ((right[0], by_turns(lambda stage, stages: stages - 1)), "every stage has as many forwards ahead"),
        ((right[0], lambda stages, micro_batches: right[1](4, 8)), r"has micro-batch 7; the 1 are counted from 0 to 0"),
        ((right[0], orders(interleaved, chunks=2)), "1 micro-batches and 2 chunks|8 micro-batches and 2 chunks"),
        ((right[0], lambda stages, micro_batches: [1, 2]), "a schedule needs one list per stage"),
        ((right[0], halved), "use Forward and Backward only"),
        (right[0], "two functions are expected"),
    ],
    "6.2": [
        (lambda stage, stages, m: (m, stages - stage), "there are no more micro-batches than m"),
        (lambda stage, stages, m: (m, min(m, stages - stage - 1)), "these are the forwards ahead"),
        (lambda stage, stages, m: (m, min(m, stage + 1)), r"the \*last\* stage begins its backward at once"),
        (lambda stage, stages, m: (m, min(m, stages)), "not every stage holds as many as the first"),
        (lambda stage, stages, m: (min(m, stages - stage), m), "a GPipe stage holds all micro-batches"),
        (lambda stage, stages, m: min(m, stages - stage), "a pair is expected"),
        (lambda stage, stages, m: (m, None), "the second is 1F1B's: how many forwards"),
        (lambda stages, stage, m: (m, min(m, stages - stage)), r"\(8, -4\); the second is 1F1B's: how many forwards"),
    ],
    "6.3": [
        (lambda stages, bubble: math.ceil((stages - 1) / bubble), "idle ÷ work; the bubble is idle ÷ total"),
        (lambda stages, bubble: max(1, round((stages - 1) * (1 / bubble - 1) - 1)), "too large"),
        (lambda stages, bubble: math.ceil(stages * (1 / bubble - 1)), "but 27 are enough"),
        (lambda stages, bubble: max(1, math.ceil((stages - 1) * (1 / bubble - 1))), "485 are enough: floats, rounded up once"),
        (lambda stages, bubble: (stages - 1) * (1 / bubble - 1), "where a whole number of at least 1"),
        (lambda stages, bubble: 27, "with 27 micro-batches it is 3.57%, but 9 are enough"),
    ],
    "6.4": [
        (lambda stages, m, most: right[1](stages, m), r"the stages hold \[4, 3, 2, 1\]"),
        (lambda stages, m, most: right[0](stages, m), r"the stages hold \[8, 8, 8, 8\]"),
        (lambda stages, m, most: orders(naive)(stages, m), "1F1B with fewer forwards ahead"),
        (capped(lambda most: most + 1), r"at most 2 alive: the stages hold \[3, 3, 2, 1\]"),
        (crossed, "deadlock|too early"),
        (lambda stages, m, most: last_backward_missing(stages, m), "lacks Backward"),
        (lambda stages, m, most: halved(stages, m), "use Forward and Backward only"),
    ],
}
