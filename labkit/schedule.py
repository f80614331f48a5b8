"""Pipeline schedules as data: `gpipe(4, 8)` says what each of 4 stages does, in which order, with 8 micro-batches.

p = stages, m = micro-batches, v = chunks per stage. Bubbles (idle ÷ total) hold for equal stages, a backward in two
equal halves, and links that take no time.
"""

from itertools import zip_longest

from labkit.operations import Backward, BackwardInput, BackwardWeight, Forward, whole
from labkit.pipeline import Schedule

__all__ = """Backward BackwardInput BackwardWeight Forward Schedule
    gpipe interleaved naive one_f_one_b zero_bubble""".split()


def naive(stages, micro_batches):
    """One micro-batch at a time through all stages and back: the bubble is 1 − 1/p, whatever m is."""
    stages, micro_batches = whole("stages", stages, 1), whole("micro_batches", micro_batches, 1)
    order = [kind(micro_batch) for micro_batch in range(micro_batches) for kind in (Forward, Backward)]
    return Schedule([order] * stages)


def gpipe(stages, micro_batches):
    """All forwards, then all backwards: bubble (p − 1)/(m + p − 1), with m micro-batches alive on every stage.

    Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism" (2018).
    """
    stages, micro_batches = whole("stages", stages, 1), whole("micro_batches", micro_batches, 1)
    return Schedule([_all(Forward, micro_batches) + _all(Backward, micro_batches)] * stages)


def one_f_one_b(stages, micro_batches):
    """One forward, one backward by turns: GPipe's bubble, with only min(m, p − stage) micro-batches alive.

    Sources: PipeDream-Flush in Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training" (2021), and
    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021).
    """
    stages, micro_batches = whole("stages", stages, 1), whole("micro_batches", micro_batches, 1)
    forwards, backwards = _all(Forward, micro_batches), _all(Backward, micro_batches)
    return Schedule([_alternate(forwards, backwards, stages - stage - 1) for stage in range(stages)])


def zero_bubble(stages, micro_batches):
    """1F1B with the backward in two halves: a stage sends the input's gradient on at once, and fills waits with weights.

    From m = p on, a step takes m (t_f + t_b) + (p − 1) t_f if t_b = 2 t_f, with min(m, p) micro-batches alive.
    Source: schedule ZB-H1 in Qi et al., "Zero Bubble Pipeline Parallelism" (2023); stage s is s weights behind.
    """
    stages, micro_batches = whole("stages", stages, 1), whole("micro_batches", micro_batches, 1)
    forwards, inputs = _all(Forward, micro_batches), _all(BackwardInput, micro_batches)
    orders = []
    for stage in range(stages):
        order = []
        for operation in _alternate(forwards, inputs, stages - stage - 1):
            order.append(operation)
            if isinstance(operation, BackwardInput) and operation.micro_batch >= stage:
                order.append(BackwardWeight(operation.micro_batch - stage))
        orders.append(order + _all(BackwardWeight, micro_batches)[max(0, micro_batches - stage) :])
    return Schedule(orders)


def interleaved(stages, micro_batches, chunks):
    """1F1B over v chunks of the model per stage, chunk c of stage s being part c·p + s: the bubble shrinks v-fold.

    From m = p on, a step takes (m + (p − 1)/v)(t_f + t_b). Micro-batches go round in groups: m // p of them, as equal
    as can be, so that m need not be a multiple of p. A single chunk is 1F1B.
    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021).
    """
    stages, micro_batches = whole("stages", stages, 1), whole("micro_batches", micro_batches, 1)
    chunks = whole("chunks", chunks, 1)
    if chunks == 1:
        return one_f_one_b(stages, micro_batches)
    groups = _split(range(micro_batches), max(1, micro_batches // stages))
    forwards = [Forward(one, chunk) for group in groups for chunk in range(chunks) for one in group]
    backwards = [Backward(one, chunk) for group in groups for chunk in reversed(range(chunks)) for one in group]
    round_trip = (chunks - 1) * len(groups[0])
    return Schedule([_alternate(forwards, backwards, round_trip + 2 * (stages - stage - 1)) for stage in range(stages)])


def _all(kind, micro_batches):
    return [kind(micro_batch) for micro_batch in range(micro_batches)]


def _alternate(forwards, backwards, ahead):
    """`ahead` forwards, then a forward and a backward by turns, then the backwards that are left."""
    turns = zip_longest(forwards[ahead:], backwards)
    return forwards[:ahead] + [operation for turn in turns for operation in turn if operation]


def _split(items, count):
    """`count` slices of `items`, the longer ones first; their lengths differ by at most one."""
    least, longer = divmod(len(items), count)
    ends = [least * n + min(n, longer) for n in range(count + 1)]
    return [items[first:end] for first, end in zip(ends, ends[1:])]
