"""Curves out of a run's records; a record is {"rank", "step", "time_s", **numbers}, and any of them may be missing."""

import numpy as np

PLACE = ("rank", "step", "time_s")


def number_names(records):
    """The names of the logged numbers, in order of appearance."""
    names = (name for record in records for name, value in record.items() if value is not None)
    return tuple(dict.fromkeys(name for name in names if name not in PLACE))


def loss_curve(records):
    """(steps, losses): of each step, the loss of the lowest rank that reported one (it is the same on every rank)."""
    found = {}
    for record in records:
        if record.get("loss") is not None and record.get("step") is not None:
            step, rank = record["step"], record.get("rank", 0)
            if step not in found or rank < found[step][0]:
                found[step] = (rank, float(record["loss"]))
    steps = sorted(found)
    return steps, [found[step][1] for step in steps]


def rate_curve(records):
    """(steps, tokens per second): the step's global tokens ÷ the step time of the slowest rank that reported it.

    A rank's first step runs from time 0; where steps are not recorded, a record stands for all since the last one.
    """
    slowest_s, tokens = {}, {}
    last = {}  # rank: (step, time_s) of its previous record
    for record in sorted((r for r in records if _is_timed(r)), key=lambda r: (r["rank"], r["step"])):
        rank, step, time_s = record["rank"], record["step"], record["time_s"]
        before, since_s = last.get(rank, (step - 1, 0.0))
        last[rank] = (step, time_s)
        if step > before and time_s > since_s:
            slowest_s[step] = max(slowest_s.get(step, 0.0), (time_s - since_s) / (step - before))
            tokens.setdefault(step, record["tokens"])
    steps = sorted(slowest_s)
    return steps, [tokens[step] / slowest_s[step] for step in steps]


def number_curves(records, name):
    """{rank: (steps, values)} of one logged number; a record without a step counts by its place among its rank's."""
    curves = {}
    for record in records:
        if record.get(name) is not None:
            steps, values = curves.setdefault(record.get("rank", 0), ([], []))
            steps.append(len(steps) if record.get("step") is None else record["step"])
            values.append(float(record[name]))
    return dict(sorted(curves.items()))


def running_median(values, width=9):
    """The median over `width` neighbours of each value (fewer at the ends), as an array."""
    if not len(values):
        return np.array([])
    padded = np.pad(np.asarray(values, dtype=float), width // 2, constant_values=np.nan)
    return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)


def _is_timed(record):
    return all(record.get(key) is not None for key in ("rank", "step", "time_s", "tokens"))
