"""Why a strategy departs from one device: from what was seen, the usual cause in one line."""

import math


def diagnose(reports, reference, tolerance):
    """Returns the cause in one sentence, or None when all that was seen agrees with one device.

    `reports` has one dict per rank: losses, initial {name: tensor}, gradients [{name: tensor}] per update, final.
    """
    for look in (_initial_weights, _loss_itself, _gradients, _losses, _final_weights):
        if cause := look(reports, reference, tolerance):
            return cause
    return None


def _initial_weights(reports, reference, tolerance):
    for rank, report in enumerate(reports):
        if report["initial"] is not None and _differing(report["initial"], reference["initial"], tolerance):
            return (
                f"rank {rank} starts from other weights than one device: another seed per rank, or weights changed before "
                "the first update?"
            )
    return None


def _loss_itself(reports, reference, tolerance):
    """The loss of the first batch does not depend on any update yet."""
    first = {rank: report["losses"][0] for rank, report in enumerate(reports) if report["losses"][0] is not None}
    wrong = {rank: loss for rank, loss in first.items() if not abs(loss - reference["losses"][0]) <= tolerance}
    if not wrong:
        return None
    rank, loss = next(iter(wrong.items()))
    if math.isnan(loss):
        return f"the loss on rank {rank} is not a number (NaN)"
    if factor := _factor(loss / reference["losses"][0], len(reports)):
        return f"the loss is off by the factor {factor}"
    if len(set(first.values())) > 1:
        return "the ranks return different losses: the loss of a rank's own slice, where the mean over the global batch belongs?"
    right = reference["losses"][0]
    return f"already the first loss departs ({loss:.6g} instead of {right:.6g}): the forward pass or the batch differs"


def _gradients(reports, reference, tolerance):
    with_gradients = [report for report in reports if report["gradients"]]
    if not with_gradients:
        return None
    updates = min(len(report["gradients"]) for report in [*with_gradients, reference])
    for update in range(updates):
        right = reference["gradients"][update]
        ours = [report["gradients"][update] for report in with_gradients]
        if cause := _gradient_cause(ours, right, tolerance, len(reports)):
            when = "at the first update" if update == 0 else f"from update {update + 1} on, the first {update} were right"
            return f"{when}, {cause}"
    return None


def _gradient_cause(ours, right, tolerance, world_size):
    wrong = sorted({name for gradients in ours for name in _differing(gradients, right, tolerance)})
    if not wrong:
        return None
    factors = {_factor(_ratio(gradients, right, wrong), world_size) for gradients in ours}
    if len(factors) == 1 and (factor := factors.pop()) and all(_is_multiple(g, right, wrong, tolerance) for g in ours):
        hint = "a sum where a mean belongs?" if factor.startswith("N") else "a mean taken twice?"
        return f"gradients are off by the factor {factor}: {hint}"
    apart = [name for name in wrong if any(_apart(g.get(name), ours[0].get(name), tolerance) for g in ours[1:])]
    if len(apart) == len(right):
        return "the replicas differ: every gradient is that of a rank's own data; were they averaged over the ranks?"
    if apart:
        return (
            f"the replicas differ in {len(apart)} of {len(right)} gradients, such as {apart[0]}: a bucket that was not "
            "reduced, or was used before its all_reduce had ended?"
        )
    return (
        f"{len(wrong)} of {len(right)} gradients are the same on all ranks but not one device's, such as {wrong[0]}: uneven "
        "shards that want a weighted mean, a stale bucket, or data left out?"
    )


def _losses(reports, reference, tolerance):
    for step, right in enumerate(reference["losses"]):
        ours = [report["losses"][step] for report in reports if report["losses"][step] is not None]
        wrong = [loss for loss in ours if not abs(loss - right) <= tolerance]
        if wrong:
            when = "after the first update" if step == 1 else f"after update {step}"
            return f"the loss drifts {when} ({wrong[0]:.6g} instead of {right:.6g}): the update differs from one device's"
    return None


def _final_weights(reports, reference, tolerance):
    holders = [report["final"] for report in reports if report["final"] is not None]
    wrong = sorted({name for final in holders for name in _differing(final, reference["final"], tolerance)})
    if not wrong:
        return None
    if any(_differing(final, holders[0], tolerance) for final in holders[1:]):
        return f"the replicas differ after the last update, such as in {wrong[0]}: do all ranks apply the same update?"
    return f"{len(wrong)} parameters differ from one device's after the last update, such as {wrong[0]}"


def _differing(ours, right, tolerance):
    """Returns the names whose values are missing or differ, relative to the larger of 1 and the largest value's size."""
    return [name for name in right if _apart(ours.get(name), right[name], tolerance)]


def _apart(a, b, tolerance):
    if a is None or b is None:
        return a is not b
    if a.shape != b.shape:
        return True
    return not float((a - b).abs().max()) <= tolerance * max(1e-3, min(1.0, float(b.abs().max())))


def _ratio(ours, right, names):
    """Returns the factor that fits best: <ours, right> / <right, right> over the named tensors."""
    pairs = [(ours[name].double(), right[name].double()) for name in names if name in ours]
    below = sum(float((b * b).sum()) for _, b in pairs)
    return sum(float((a * b).sum()) for a, b in pairs) / below if below else math.nan


def _is_multiple(ours, right, names, tolerance):
    ratio = _ratio(ours, right, names)
    return not any(name not in ours or _apart(ours[name] / ratio, right[name], 10 * tolerance) for name in names)


def _factor(ratio, world_size):
    """Returns "N = 2" or "1/N = 1/2" if the ratio is the number of ranks or its inverse, else None."""
    if world_size > 1 and math.isclose(ratio, world_size, rel_tol=1e-3):
        return f"N = {world_size}"
    if world_size > 1 and math.isclose(ratio * world_size, 1, rel_tol=1e-3):
        return f"1/N = 1/{world_size}"
    return None
