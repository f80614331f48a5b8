"""The first thing that is wrong with a schedule, in one sentence."""

from collections import defaultdict

from labkit.execution import execute, makes, needs
from labkit.operations import Backward, BackwardInput, BackwardWeight, Forward, target


def find_gap(orders, micro_batches, chunks):
    """The first operation that a stage lacks or does twice, as a sentence; None when all are complete."""
    if not micro_batches:
        return "no stage has an operation; a schedule has at least Forward(0) and Backward(0)"
    for stage, order in enumerate(orders):
        gap = _find_repeat(stage, order) or _find_lack(stage, order, micro_batches, chunks)
        if gap:
            return gap
    return None


def find_wait(orders, chunks):
    """The first operation that waits for ever, as a sentence; None when every stage gets to its end.

    `orders` must be complete. Waits are as in labkit.execution. A stage that waits for its own later operation
    breaks happens-before; stages that wait for one another deadlock.
    """
    _, position = execute(orders, chunks, lambda stage, operation: 1)
    stage = next((n for n, order in enumerate(orders) if position[n] < len(order)), None)
    if stage is None:
        return None
    waits = {}
    while stage not in waits:
        waits[stage] = _wait(orders, stage, position, chunks)
        stage = waits[stage][1].stage
    circle = list(waits)[list(waits).index(stage) :]
    if len(circle) == 1:
        return _happens_before(orders[stage], stage, *waits[stage])
    told = [f"stage {n} waits at its {_at(orders[n], waits[n][0])} for {_told(waits[n][1])}" for n in circle]
    return f"deadlock: {', and '.join(told)}"


def find_overtaking(orders, chunks):
    """The first message that overtakes another on its link, as a sentence; None when each link keeps its order.

    A link goes from one stage to another; activations and gradients have links of their own.
    """
    sent, taken = defaultdict(list), defaultdict(list)
    for stage, order in enumerate(orders):
        for operation in order:
            part = target(operation, stage, len(orders), chunks)
            if part and part[0] != stage:
                sent[operation.makes, stage, part[0]].append(makes(operation, stage))
            for result in needs(operation, stage, len(orders), chunks):
                if result.stage != stage:
                    taken[result.makes, result.stage, stage].append(result)
    for (what, sender, receiver), messages in sent.items():
        for first, wanted in zip(messages, taken[what, sender, receiver], strict=True):
            if first != wanted:
                return (
                    f"stage {sender} sends stage {receiver} {_named(first)} first, and stage {receiver} takes "
                    f"{_named(wanted)} first; a link without tags needs one order: let both stages use the same"
                )
    return None


def _find_repeat(stage, order):
    seen = {}
    for at, operation in enumerate(order):
        result = makes(operation, stage)
        if result in seen:
            before = seen[result]
            what = f"{operation} twice" if order[before] == operation else f"both {order[before]} and {operation}"
            return f"stage {stage} does {what}, as its operations {before} and {at} (counted from 0); one of them is enough"
        seen[result] = at
    return None


def _find_lack(stage, order, micro_batches, chunks):
    have = set(order)
    scope = f"the schedule has micro-batches 0 to {micro_batches - 1}" + (f" and chunks 0 to {chunks - 1}" if chunks > 1 else "")
    for chunk in range(chunks):
        for micro_batch in range(micro_batches):
            names = Forward, Backward, BackwardInput, BackwardWeight
            forward, backward, of_input, of_weight = (name(micro_batch, chunk) for name in names)
            if forward not in have:
                return f"stage {stage} lacks {forward}; {scope}"
            if backward in have and of_weight in have:
                return f"stage {stage} does both {backward} and {of_weight}; the first makes the weight's gradient already"
            if backward not in have and of_input not in have:
                return f"stage {stage} lacks {of_input if of_weight in have else backward}; {scope}"
            if of_input in have and of_weight not in have:
                return f"stage {stage} lacks {of_weight}; {of_input} leaves the weight's gradient to it"
    return None


def _wait(orders, stage, position, chunks):
    operation = orders[stage][position[stage]]
    to_come = {makes(one, n) for n, order in enumerate(orders) for one in order[position[n] :]}
    return operation, next(one for one in needs(operation, stage, len(orders), chunks) if one in to_come)


def _happens_before(order, stage, operation, result):
    late = next(one for one in order if makes(one, stage) == result)
    at, late_at = order.index(operation), order.index(late)
    return (
        f"stage {stage} does {operation} too early, as its operation {at}: it needs the {result.makes} "
        f"of {late}, operation {late_at} (counted from 0)"
    )


def _at(order, operation):
    return f"operation {order.index(operation)}, {operation},"


def _told(result):
    return f"{_named(result)} from stage {result.stage}"


def _named(result):
    chunk = f" of chunk {result.chunk}" if result.chunk else ""
    return f"the {result.makes} of micro-batch {result.micro_batch}{chunk}"
