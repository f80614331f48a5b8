"""Pipelines for tests: many schedules, the definition of a legal one, brute force that applies it, and what ranks end with."""

import torch

import labkit
from labkit import schedule as schedules
from labkit.observed import ObservedJob
from labkit.schedule import Backward, BackwardInput, BackwardWeight, Forward, Schedule
from labkit.training import build, one_device

WITHOUT_CHUNKS = [schedules.naive, schedules.gpipe, schedules.one_f_one_b, schedules.zero_bubble]


def every_schedule(stages, micro_batches):
    """All five kinds, with several numbers of chunks."""
    yield from (make(stages, micro_batches) for make in WITHOUT_CHUNKS)
    yield from (schedules.interleaved(stages, micro_batches, chunks) for chunks in (1, 2, 3, 4))


def shuffled(draw, schedule, swaps):
    """`schedule` with that many pairs of operations of one stage exchanged."""
    orders = [list(order) for order in schedule]
    for _ in range(swaps):
        order = draw.choice(orders)
        one, other = draw.randrange(len(order)), draw.randrange(len(order))
        order[one], order[other] = order[other], order[one]
    return Schedule(orders)


def predecessors(schedule):
    """The definition, written out part by part: {(stage, operation): what has to end before it}."""
    p, v = len(schedule), 1 + max(operation.chunk for order in schedule for operation in order)
    holds = [set(order) for order in schedule]
    before = {}
    for stage, order in enumerate(schedule):
        for at, operation in enumerate(order):
            m, c = operation.micro_batch, operation.chunk
            part, need = c * p + stage, []
            if isinstance(operation, Forward) and part > 0:
                need.append(((part - 1) % p, Forward(m, (part - 1) // p)))
            if isinstance(operation, Backward | BackwardInput):
                need.append((stage, Forward(m, c)))
                if part < p * v - 1:
                    after, chunk = (part + 1) % p, (part + 1) // p
                    whole = Backward(m, chunk)
                    need.append((after, whole if whole in holds[after] else BackwardInput(m, chunk)))
            if isinstance(operation, BackwardWeight):
                need.append((stage, BackwardInput(m, c)))
            before[stage, operation] = [(stage, one) for one in order[at - 1 : at]], need
    return before


def executable(schedule):
    """Brute force: whether no operation comes, in the end, before itself (Warshall's closure)."""
    before = predecessors(schedule)
    reach = {one: set(mine + need) for one, (mine, need) in before.items()}
    for middle in before:
        for one in before:
            if middle in reach[one]:
                reach[one] |= reach[middle]
    return not any(one in reach[one] for one in before)


def accepted(schedule, **options):
    try:
        return schedule.check(**options) is None
    except ValueError:
        return False


def end_times(schedule, forward_s, backward_s, link_s):
    """{(stage, operation): when it ends at the earliest}, by recursion; times of a whole stage, one per stage."""
    before, ends = predecessors(schedule), {}

    def end_s(one):
        if one not in ends:
            stage, operation = one
            mine, need = before[one]
            starts = [end_s(other) for other in mine] + [end_s(other) + link_s * (other[0] != stage) for other in need]
            whole_s = (forward_s if isinstance(operation, Forward) else backward_s)[stage]
            half = 2 if isinstance(operation, BackwardInput | BackwardWeight) else 1
            ends[one] = max(starts, default=0) + whole_s / schedule.chunks / half
        return ends[one]

    return {one: end_s(one) for one in before}


def final_weights(rank, strategy, job):
    """What a rank does: three updates; {name: value} of all parameters that it holds."""
    observed = ObservedJob.of(job)
    step = build(strategy, rank, observed)
    for batch in job.batches(3):
        step(*batch)
    return {name: one.detach() for model in observed.notes.made for name, one in model.named_parameters(remove_duplicate=False)}


def assert_weights_of_one_device(strategy, job, world_size):
    """After three updates every stage holds its part of one device's model, and all parts are there once."""
    (whole,) = labkit.launch(final_weights, one_device, job, world_size=1, device="cpu").results
    parts = labkit.launch(final_weights, strategy, job, world_size=world_size, device="cpu").results
    assert sorted(name for part in parts for name in part) == sorted(whole)
    for part in parts:
        for name, value in part.items():
            torch.testing.assert_close(value, whole[name], rtol=0, atol=1e-11)
