"""Checks of notebook 07, tensor parallel: parts of layers on real ranks, in value, gradients and calls; and what is sent."""

import torch
from torch.nn import functional as F

from labkit.checks import compare, factor
from labkit.checks.linears import FORWARD, on_ranks, random_numbers, sums_cause, weighted
from labkit.checks.tensor_traffic import handed_cause, winner_cause

RANKS = 3
PRECISION = 1e-9


def exercise_7_1(gated_mlp):
    """Three ranks, four hidden features each: the output, all gradients, and one all_reduce forward and one backward."""
    whole = random_numbers(x=(2, 5, 6), gate=(12, 6), up=(12, 6), down=(6, 12))
    right = whole_gated_mlp(whole)
    ranks = on_ranks(gated_rank, gated_mlp, whole, world_size=RANKS)
    for number, ours in enumerate(ranks):
        if cause := output_cause(ours, right, number) or sums_cause(ours, forward=1, backward=1):
            return cause
    for number, ours in enumerate(ranks):
        if cause := compare(ours["gradients"]["x"], right["gradients"]["x"], world_size=RANKS, tolerance=PRECISION):
            hint = "Do gate and up both read what one copy_to_ranks(x) returned?"
            return f"on rank {number}, the gradient of `x`: {cause}. {hint}"
    return weights_cause(ranks, right) or share_cause(ranks)


def whole_gated_mlp(tensors):
    """The output and the gradients of a gated MLP on one device."""
    x, gate, up, down = leaves = [tensor.clone().requires_grad_() for tensor in tensors.values()]
    y = F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
    weighted(y).backward()
    return {"output": y.detach(), "gradients": {name: leaf.grad for name, leaf in zip(tensors, leaves)}}


def gated_rank(rank, gated_mlp, tensors, measure):
    return measure(lambda *whole: gated_mlp(rank, *whole), tensors)


def output_cause(ours, right, number):
    """Why an output is not that of one device, in one sentence; None where it is."""
    cause = compare(ours["output"], right["output"], world_size=RANKS, tolerance=PRECISION)
    if cause and isinstance(ours["output"], torch.Tensor) and not ours[FORWARD]:
        return f"on rank {number}, the output: {cause}. No all_reduce forward: is it this rank's partial sums?"
    return f"on rank {number}, the output: {cause}" if cause else untracked_cause(ours, number)


def untracked_cause(ours, number):
    """Right numbers through which no gradient can pass, in one sentence; None where one can."""
    if not isinstance(ours["output"], torch.Tensor):
        return f"on rank {number}, the output is a {type(ours['output']).__name__}, where a tensor is expected"
    if all(gradient is None for gradient in ours["gradients"].values()):
        return f"on rank {number}, no gradient passes through the output: `detach`, `no_grad` or a new tensor of its numbers?"
    return None


def weights_cause(ranks, right):
    """The gradients of the weights, which ranks have of their own features only, added up."""
    for name in ("gate", "up", "down"):
        found = [ours["gradients"][name] for ours in ranks]
        if missing := [number for number, gradient in enumerate(found) if gradient is None]:
            return f"on rank {missing[0]}, `{name}` has no gradient: cut it by a slice or `tensor_split`, without `detach`"
        if cause := compare(sum(found), right["gradients"][name], world_size=RANKS, tolerance=PRECISION):
            return f"the gradients of `{name}`, added up over the ranks: {cause}"
    return None


def share_cause(ranks):
    """Whether a rank computed with more or fewer hidden features than its N-th: those of `gate` that have a gradient."""
    for number, ours in enumerate(ranks):
        gate = ours["gradients"]["gate"]
        used, wanted = int(gate.any(1).sum()), len(gate) // RANKS
        if used != wanted:
            return f"rank {number} computes with {used} of {len(gate)} hidden features, where {wanted} are its N-th, N = {RANKS}"
    return None


def exercise_7_2(row_linear):
    """Three ranks with shards of their own: how often the bias is in the output, and in its gradient."""
    shards = [random_numbers(seed=number, x=(2, 5, 4), weight=(6, 4)) for number in range(RANKS)]
    (bias,) = random_numbers(seed=RANKS, bias=(6,)).values()
    ranks = on_ranks(row_rank, row_linear, [one | {"bias": bias} for one in shards], world_size=RANKS)
    summed = sum(F.linear(one["x"], one["weight"]) for one in shards)
    for number, ours in enumerate(ranks):
        if cause := bias_cause(ours["output"], summed, bias) or sums_cause(ours, forward=1, backward=0):
            return f"on rank {number}, {cause}"
    leaf, (x, weight) = bias.clone().requires_grad_(), ([one[name] for one in shards] for name in ("x", "weight"))
    leaves = [(one.clone().requires_grad_(), two.clone().requires_grad_()) for one, two in zip(x, weight)]
    weighted(sum(F.linear(*pair) for pair in leaves) + leaf).backward()
    for number, ours in enumerate(ranks):
        rights = {"bias": leaf.grad, "x": leaves[number][0].grad, "weight": leaves[number][1].grad}
        if cause := gradients_cause(ours["gradients"], rights):
            return f"on rank {number}, {cause}"
    return None


def row_rank(rank, row_linear, tensors, measure):
    return measure(row_linear, tensors[rank.rank])


def bias_cause(output, summed, bias):
    """How often the bias is in an output, if that is what is wrong with it."""
    cause = compare(output, summed + bias, world_size=RANKS, tolerance=PRECISION)
    alike = isinstance(output, torch.Tensor) and output.shape == summed.shape
    times = bias_times(output, summed, bias) if cause and alike else None
    if times is None:
        return cause and f"the output: {cause}"
    many, why = (f"N = {RANKS}", ": every rank adds it before the sum") if times == RANKS else (f"{times:g}", "")
    return f"the output holds the bias {many} times{why}"


def bias_times(output, summed, bias):
    """The k of output = summed + k · bias, or None where there is none."""
    left = output.double() - summed
    if left.abs().max() < PRECISION:
        return 0
    times = factor(left, bias.expand_as(left))
    return None if times is None else round(times, 4)


def gradients_cause(ours, right):
    """The first gradient that is not one device's."""
    for name, gradient in right.items():
        if ours[name] is None:
            return f"`{name}` has no gradient, so its copies on the ranks would drift apart"
        if cause := compare(ours[name], gradient, world_size=RANKS, tolerance=PRECISION):
            return f"the gradient of `{name}`: {cause}"
    return None


def exercise_7_3(answer):
    """The two numbers, the activation of partial sums on three ranks, and the cuts."""
    if not isinstance(answer, (list, tuple)) or len(answer) != 3:
        return "three things are expected: parts, activated and cuts"
    parts, activated, cuts = answer
    return parts_cause(parts) or cuts_cause(cuts) or activated_cause(activated)


def parts_cause(parts):
    """Two numbers that add up to 0, whose GELUs add up to more than 1."""
    if not isinstance(parts, (list, tuple)) or len(parts) != 2:
        return "`parts`: one number for each of two ranks is expected"
    first, second = (float(part) for part in parts)
    if not abs(first + second) <= PRECISION:  # nor is NaN
        return f"`parts` add up to {first + second:g}, not to 0"
    total = F.gelu(torch.tensor([first, second], dtype=torch.float64)).sum().item()
    return None if total > 1 else f"the GELUs of `parts` add up to {total:.3g}, which is not more than 1; try larger ones"


def activated_cause(activated):
    """The GELU of the sum on every rank, its gradient for each partial sum, and one all_reduce forward."""
    shards = [random_numbers(seed=number, partial_sums=(2, 5, 6)) for number in range(RANKS)]
    ranks = on_ranks(activated_rank, activated, shards, world_size=RANKS)
    partial_sums = [one["partial_sums"] for one in shards]
    total = sum(partial_sums).requires_grad_()
    right = F.gelu(total)
    weighted(right).backward()
    added_late = sum(map(F.gelu, partial_sums))
    for number, ours in enumerate(ranks):
        if cause := compare(ours["output"], right.detach(), world_size=RANKS, tolerance=PRECISION):
            if not compare(ours["output"], added_late, tolerance=PRECISION):
                cause = "this is the sum of the GELUs of partial sums, not the GELU of the sum"
            elif not compare(ours["output"], F.gelu(partial_sums[number]), tolerance=PRECISION):
                cause = "this is the GELU of the rank's own partial sums"
            return f"`activated` on rank {number}: {cause}"
        if cause := untracked_cause(ours, number):
            return f"`activated`: {cause}"
        gradient = compare(ours["gradients"]["partial_sums"], total.grad, world_size=RANKS, tolerance=PRECISION)
        if cause := (gradient and f"its gradient: {gradient}") or sums_cause(ours, forward=1, backward=0):
            return f"`activated` on rank {number}: {cause}"
    return None


def activated_rank(rank, activated, tensors, measure):
    return measure(activated, tensors[rank.rank])


def cuts_cause(cuts):
    """Columns, then rows; each other pair of cuts has its own fault."""
    if not isinstance(cuts, dict) or set(cuts) != {"up", "down"}:
        return '`cuts` has entries "up" and "down"'
    faults = {
        ("column", "row"): None,
        ("row", "column"): "the cuts that somebody made: `up` cut by rows leaves partial sums before the GELU",
        ("row", "row"): "`up` cut by rows leaves partial sums before the GELU",
        ("column", "column"): "`down` cut by columns needs all hidden features on every rank, an all_gather",
    }
    chosen = cuts["up"], cuts["down"]
    return faults.get(chosen, f'`cuts`: {chosen}, where each is "column" or "row"')


def exercise_7_4(answer):
    """The calls and bytes of three jobs, then the winner for several wires."""
    if not isinstance(answer, (list, tuple)) or len(answer) != 2:
        return "two functions are expected: handed_over and winner"
    handed_over, winner = answer
    return handed_cause(handed_over) or winner_cause(winner)
