"""How stages get through their operations: each in its own order, waiting for what others hand over.

A stage waits in a receive until the matching send has been issued. Sends never wait (isend, with the tensor kept until
all is done), and tags match sends and receives, whatever their order on the wire.
"""

from typing import NamedTuple

from labkit.operations import Backward, BackwardInput, BackwardWeight, Operation, source


class Result(NamedTuple):
    """What one operation leaves behind: the "activation" or "gradient" of a micro-batch at one part of the model."""

    makes: str
    stage: int
    micro_batch: int
    chunk: int


class Done(NamedTuple):
    """An operation that was executed, and when (seconds)."""

    stage: int
    operation: Operation
    start_s: float
    end_s: float


def execute(orders, chunks, duration_s, link_s=0):
    """(done, position): what each stage gets done as early as it can, and how far it comes in its order.

    `orders` holds a sequence of operations per stage, `duration_s(stage, operation)` their times; `link_s` passes
    between the end of an operation and the moment another stage can use what it made. A position short of the end
    is where that stage waits for ever.
    """
    done, available_s = [], {}
    position, free_s = [0] * len(orders), [0] * len(orders)
    moving = True
    while moving:
        moving = False
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                operation = order[position[stage]]
                needed = needs(operation, stage, len(orders), chunks)
                if any(result not in available_s for result in needed):
                    break
                arrivals_s = (available_s[one] + (link_s if one.stage != stage else 0) for one in needed)
                start_s = max(free_s[stage], *arrivals_s) if needed else free_s[stage]
                free_s[stage] = start_s + duration_s(stage, operation)
                available_s[makes(operation, stage)] = free_s[stage]
                done.append(Done(stage, operation, start_s, free_s[stage]))
                position[stage] += 1
                moving = True
    return done, position


def needs(operation, stage, stages, chunks):
    """The Results that must be there before `operation` can begin on `stage`: its own stage's first."""
    micro_batch, chunk = operation.micro_batch, operation.chunk
    needed = []
    if isinstance(operation, Backward | BackwardInput):
        needed.append(Result("activation", stage, micro_batch, chunk))
    if isinstance(operation, BackwardWeight):
        needed.append(Result("gradient", stage, micro_batch, chunk))
    part = source(operation, stage, stages, chunks)
    if part:
        needed.append(Result(operation.makes, part[0], micro_batch, part[1]))
    return needed


def makes(operation, stage):
    """The Result that `operation` leaves on `stage`."""
    return Result(operation.makes or "weight gradient", stage, operation.micro_batch, operation.chunk)
