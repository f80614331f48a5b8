"""Checks of notebook 06, pipeline parallel: a learner's schedules as orders of operations, simulated, counted, and run."""

import math
from fractions import Fraction
from functools import partial

from labkit import jobs, notebook
from labkit.checks import compare, stages
from labkit.oracle import parity
from labkit.schedule import Backward, Forward, Schedule, gpipe, one_f_one_b

SHAPES = ((4, 8), (1, 1), (2, 2), (3, 7), (4, 2), (5, 16))  # stages, micro-batches
GOALS = ((4, 0.1), (2, 0.1), (8, 0.2), (3, 0.5), (1, 0.1), (16, 0.03), (5, 0.07))  # stages, bubble
CAPS = ((4, 8, 2), (4, 8, 3), (3, 5, 1), (2, 4, 2), (5, 3, 4))  # stages, micro-batches, most alive


def exercise_6_1(functions):
    """Complete and free of deadlocks, as fast as GPipe and 1F1B, and with as many micro-batches alive."""
    if not isinstance(functions, (list, tuple)) or len(functions) != 2:
        return "two functions are expected: my_gpipe and my_1f1b"
    for function, right, name in zip(functions, (gpipe, one_f_one_b), ("GPipe", "1F1B")):
        for shape in SHAPES:
            case = f"{name} with {shape[0]} stages and {shape[1]} micro-batches"
            if cause := order_cause(function(*shape), *shape) or unlike(Schedule(function(*shape)), right(*shape)):
                return f"{case}: {cause}"
    return None


def order_cause(orders, stage_count, micro_batches):
    """What keeps a list of operations per stage from being a schedule, in one sentence; None for one that can be run."""
    if orders is None:
        return "it is None: does the function end with `return`?"
    try:
        plan = Schedule(orders)
        if plan.micro_batches > micro_batches:
            return f"it has micro-batch {plan.micro_batches - 1}; the {micro_batches} are counted from 0 to {micro_batches - 1}"
        plan.check()
    except ValueError as error:
        return str(error)
    if not all(isinstance(operation, (Forward, Backward)) for order in plan for operation in order):
        return "use Forward and Backward only"
    if (len(plan), plan.micro_batches, plan.chunks) != (stage_count, micro_batches, 1):
        return f"it has {len(plan)} stages, {plan.micro_batches} micro-batches and {plan.chunks} chunks"
    return None


def unlike(plan, right):
    """How a schedule departs from the right one: in its length, or in what is alive; None where it does not."""
    ours_s, right_s = plan.simulate().total_s, right.simulate().total_s
    ours, wanted = alive(plan), alive(right)
    if ours_s != right_s:
        alike = len(set(ours)) == 1 < ours[0] and len(set(wanted)) > 1
        hint = hint_of(plan) or ": every stage has as many forwards ahead, and the last needs none" * alike
        return f"it takes {ours_s:g} forward times where {right_s:g} are enough{hint}"
    return None if ours == wanted else f"its stages hold {ours} micro-batches where {wanted} are expected{hint_of(plan)}"


def hint_of(plan):
    """Which well-known schedule it really is, as an addition to a sentence."""
    if all(order == tuple(gpipe(1, plan.micro_batches)[0]) for order in plan):
        return ": that is GPipe"
    turns = all(isinstance(one, Backward) for order in plan for one in order[1::2])
    return ": without forwards ahead a stage waits for each gradient" if turns and len(plan) > 1 else ""


def alive(plan):
    return [plan.live_micro_batches(stage) for stage in range(len(plan))]


def exercise_6_2(answer):
    """As counted in the two schedules, for every stage of several."""
    for count, micro_batches in SHAPES:
        for stage in range(count):
            plans = (gpipe(count, micro_batches), one_f_one_b(count, micro_batches))
            right = tuple(plan.live_micro_batches(stage) for plan in plans)
            ours = answer(stage, count, micro_batches)
            if compare(ours, right):
                case = f"stage {stage} of {count}, {micro_batches} micro-batches: {ours}"
                return f"{case}; {counting_mistake(ours, right, stage, count, micro_batches)}"
    return None


def counting_mistake(ours, right, stage, count, micro_batches):
    """The usual mistake in a pair of numbers, or where to look."""
    if not isinstance(ours, (list, tuple)) or len(ours) != 2:
        return "a pair is expected: for GPipe, for 1F1B"
    first, second = ours
    if first != right[0]:
        return "a GPipe stage holds all micro-batches, since its backwards begin after all forwards"
    mistakes = {
        "there are no more micro-batches than m": count - stage if count - stage > micro_batches else None,
        "these are the forwards ahead; one more is alive when backward begins": min(micro_batches, count - stage - 1),
        "the *last* stage begins its backward at once, the first has most to wait for": min(micro_batches, stage + 1),
        "not every stage holds as many as the first": min(micro_batches, count),
    }
    elsewhere = "the second is 1F1B's: how many forwards does this stage do before its first backward?"
    return next((text for text, value in mistakes.items() if value is not None and second == value), elsewhere)


def exercise_6_3(smallest):
    """The first number of micro-batches whose bubble is small enough, by counting up."""
    for count, goal in GOALS:
        ours, right = smallest(count, goal), least_micro_batches(count, goal)
        if ours == right:
            continue
        if not isinstance(ours, int) or ours < 1:
            stages_named = f"{count} stage{'s' * (count > 1)}"
            return f"{ours!r} for {stages_named} and a bubble of {goal:.0%}, where a whole number of at least 1 is expected"
        bubble = (count - 1) / (ours + count - 1)
        case = f"{count} stages, bubble of at most {goal:.0%}: with {ours} micro-batches it is {bubble:.2%}"
        if ours == least_micro_batches(count, goal, of_work=True):
            return f"{case}. That is idle ÷ work; the bubble is idle ÷ total"
        rounded = ours == right + 1 and ours == math.ceil((count - 1) * (1 / goal - 1))
        hint = ": floats, rounded up once too often" * rounded
        return f"{case}, too large" if ours < right else f"{case}, but {right} are enough{hint}"
    return None


def least_micro_batches(count, goal, *, of_work=False):
    """The smallest m with (p − 1)/(m + p − 1) ≤ goal, in exact arithmetic; `of_work`: with (p − 1)/m instead."""
    goal, m = Fraction(str(goal)), 1
    while Fraction(count - 1, m if of_work else m + count - 1) > goal:
        m += 1
    return m


def exercise_6_4(frugal):
    """Never more alive than allowed, as fast as 1F1B with fewer forwards ahead, and one device's gradients when run."""
    for count, micro_batches, most in CAPS:
        case = f"{count} stages, {micro_batches} micro-batches, at most {most} alive"
        if cause := order_cause(frugal(count, micro_batches, most), count, micro_batches):
            return f"{case}: {cause}"
        plan = Schedule(frugal(count, micro_batches, most))
        if max(alive(plan)) > most:
            return f"{case}: the stages hold {alive(plan)}"
        ours_s, right_s = plan.simulate().total_s, capped(count, micro_batches, most).simulate().total_s
        if ours_s > right_s:
            return f"{case}: it takes {ours_s:g} forward times, 1F1B with fewer forwards ahead {right_s:g}"
    job = jobs.small_job()
    lesson = notebook.load("06_pipeline_parallel")
    strategy = partial(lesson.pipeline_parallel, schedule=Schedule(frugal(2, job.micro_batches, 2)))
    if cause := stages.gradient_cause(stages.one_update(strategy, job, world_size=2), job):
        return cause
    found = parity(strategy, world_size=2, job=job)
    return None if found else found.diagnosis


def capped(count, micro_batches, most):
    """1F1B whose stages do at most `most` − 1 forwards ahead."""
    orders = []
    for stage in range(count):
        ahead = min(micro_batches, count - stage - 1, most - 1)
        order = [Forward(n) for n in range(ahead)]
        for n in range(micro_batches):
            order += [Forward(ahead + n)] if ahead + n < micro_batches else []
            order.append(Backward(n))
        orders.append(order)
    return Schedule(orders)
