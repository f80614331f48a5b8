"""A predicted plan as two pictures: the timeline of its step, and what a card of each stage holds against what it has."""

from labkit.draw_memory import draw_memory
from labkit.draw_timeline import draw_timeline
from labkit.runs import memory
from labkit.runs.estimate import timeline

MOST_DRAWN = 16  # micro-batches of a step; more boxes than that nobody can tell apart


def draw_plan(plan):
    """(timeline, memory) of a `labkit.planner.Plan` that was predicted, whether it fits or not."""
    run = plan.run
    if plan.estimate is None:
        raise ValueError(f"there is no prediction to draw: {plan!r}")
    title, badge = f"{run.model.name}: {plan.layout}", f"predicted for {run.cards} {run.machine.card.name}"
    drawn = min(run.micro_batches, max(MOST_DRAWN, 2 * run.pp) if run.pp > 1 else 2)
    steps = timeline(run, micro_batches=drawn).timeline
    equal = run.dp * run.tp
    note = f"rank: a card of a stage, which stands for {equal} equal ones" if equal > 1 else "a rank per stage"
    if drawn < run.micro_batches:
        note += f"; {drawn} of {run.micro_batches} micro-batches"
    return draw_timeline([steps], title=title, badge=badge, note=note), _memory(plan, run, badge)


def _memory(plan, run, badge):
    card = run.machine.card
    title = "memory of a card of each stage"
    if plan.refusal is not None:
        title, note = f"does not fit: {title}", plan.refusal.text
    else:
        low, high = plan.interval
        title = f"{plan.tokens_per_s:,.0f} tokens/s ({low:,.0f} … {high:,.0f}), and {title}"
        note = f"step {plan.estimate.step_time_s:,.2f} s, MFU {plan.estimate.mfu:.1%} of {plan.estimate.mfu_peak}"
    stages = [_kinds(one) for one in memory.stages_bytes(run)]
    groups = {f"{card.memory_bytes / memory.GIB:.1f} GiB, of which driver and context take 0.9": stages}
    return draw_memory(groups, limit_bytes=card.usable_bytes, title=title, badge=badge, note=note)


def _kinds(held):
    """The kinds that pictures of memory have: logits are activations."""
    kinds = dict(held)
    kinds["activations"] += kinds.pop("logits", 0.0)
    return kinds
