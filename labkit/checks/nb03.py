"""Checks of notebook 03, data parallel: gradients against those of the whole batch on one device."""

import itertools
import math

import torch
from torch import nn

from labkit import jobs
from labkit.checks import compare, factor
from labkit.launcher import run_ranks
from labkit.model import GPT
from labkit.oracle import parity
from labkit.training import build

RANKS, ROWS = 3, 6
UNEVEN_ROWS = (1, 2, 5)
PRECISION = 1e-6
BACKWARD_FLOPS = 4  # per parameter and token: two matmuls for each one of forward, which takes 2
HOSTS = (  # FLOP/s, bytes/s, ranks, bytes of a gradient
    (82.6e12, 10e9, 8, 4),
    (82.6e12, 1e9, 4, 2),
    (150e9, 1.2e9, 2, 4),
)


def exercise_3_1(average_gradients):
    """Three ranks, two rows each: every gradient must become the mean over the ranks."""
    job = jobs.small_job(batch_size=ROWS)
    whole = gradients(job, slice(None))
    ranks = on_ranks(averaged_rank, average_gradients, job, world_size=RANKS)
    if not all(rank["weights kept"] for rank in ranks):
        return "the weights have changed: average the gradients, the optimizer updates the weights later"
    for number, rank in enumerate(ranks):
        if missing := [name for name in whole if rank["gradients"].get(name) is None]:
            return f"`{missing[0]}.grad` is None on rank {number}"
        if cause := compare(joined(rank["gradients"]), joined(whole), world_size=RANKS, tolerance=PRECISION):
            if left := untouched(rank["gradients"], gradients(job, slice(number, None, RANKS))):
                return left
            if math.isclose(factor(joined(rank["gradients"]), joined(whole)) or 0, RANKS / 2, rel_tol=PRECISION):
                return f"off by the factor {RANKS}/2: divided by 2, but these are {RANKS} ranks?"
            return f"the gradients are right on rank 0, but not on rank {number}: {cause}" if number else cause
    return None


def averaged_rank(rank, average_gradients, job):
    """What each rank does: the gradients of its own rows, then the answer."""
    model = job.model()
    before = joined(dict(model.named_parameters()))
    backward(model, job, slice(rank.rank, None, rank.world_size))
    average_gradients(model)
    kept = torch.equal(before, joined(dict(model.named_parameters())))
    return {"gradients": {name: one.grad for name, one in model.named_parameters()}, "weights kept": kept}


def untouched(ours, own):
    """The cause where some gradients are still a rank's own, else None."""
    left = [name for name in own if torch.allclose(ours[name], own[name], atol=1e-12)]
    if len(left) == len(own):
        return "every gradient is still the rank's own: was the mean written into `parameter.grad`?"
    if left:
        return f"{len(left)} of {len(own)} gradients are still the rank's own, such as that of `{left[0]}`"
    return None


def exercise_3_2(mended):
    """Parity with one device, each row of the batch computed by one rank only."""
    job = jobs.small_job()
    if not (found := parity(mended, world_size=2, job=job)):
        return found.diagnosis
    rows = sum(on_ranks(rows_rank, mended, job, world_size=2))
    if rows != job.batch_size:
        return f"the result is right, but the ranks computed {rows} rows of a batch of {job.batch_size}: each takes only its own"
    return None


def rows_rank(rank, strategy, job):
    """What each rank does: one step; returns how many rows went through its model."""
    rows = []

    def count(module, inputs):
        if isinstance(module, GPT):
            rows.append(len(inputs[0]))

    nn.modules.module.register_module_forward_pre_hook(count)
    (batch,) = job.batches(1)
    build(strategy, rank, job)(*batch)
    return sum(rows)


def exercise_3_3(scaled):
    """Ranks with 1, 2 and 5 of 8 rows, whose gradients are averaged as DDP does."""
    world_size, batch_size = len(UNEVEN_ROWS), sum(UNEVEN_ROWS)
    probe = scaled(torch.tensor(2.0, requires_grad=True), 1, batch_size, world_size)
    if not (isinstance(probe, torch.Tensor) and probe.requires_grad):
        return "`backward` needs the loss as a tensor with its history; what was returned has none"
    ours = mean_over_ranks(lambda loss, rows: scaled(loss, rows, batch_size, world_size))
    whole = joined(gradients(jobs.small_job(batch_size=batch_size), slice(None)))
    if (ours - mean_over_ranks(lambda loss, rows: loss)).abs().max() < PRECISION * whole.abs().max():
        return "this is the plain mean over the ranks: 1 row on one rank counts as much as 5 on another"
    off_by = factor(ours, whole)
    if off_by and round(off_by * world_size, 3) in (batch_size, batch_size * world_size):
        return f"off by the factor {off_by:.4g}: weighted by the rows, but not divided by the {batch_size} rows of the batch?"
    few, many = UNEVEN_ROWS[0], UNEVEN_ROWS[-1]
    least = weight(scaled, few, batch_size, world_size)
    if not least:
        return f"a rank with {few} of {batch_size} rows does not count at all: whole numbers divided by `//`?"
    times = weight(scaled, many, batch_size, world_size) / least
    if not math.isclose(times, many / few, rel_tol=PRECISION):
        return f"a rank with {many} rows weighs {times:.3g} times as much as one with {few}, where {many / few:g} times belongs"
    if cause := compare(ours, whole, world_size=world_size, tolerance=PRECISION):
        return cause
    if not math.isclose(weight(scaled, 3, 12, 4), 1, rel_tol=PRECISION):
        return "right for 8 rows on 3 ranks, but not for 12 rows on 4: are `batch_size` and `world_size` used?"
    return None


def weight(scaled, rows, batch_size, world_size):
    """By how much an answer multiplies the gradient of a rank's loss."""
    loss = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(scaled(loss, rows, batch_size, world_size), loss)
    return gradient.item()


def mean_over_ranks(scale):
    """The mean of the gradients of uneven shards, of the loss that scale(loss, rows) makes of each one's own."""
    job, ends = jobs.small_job(batch_size=sum(UNEVEN_ROWS)), list(itertools.accumulate(UNEVEN_ROWS))
    shards = [slice(end - rows, end) for end, rows in zip(ends, UNEVEN_ROWS)]
    return torch.stack([joined(gradients(job, shard, scale)) for shard in shards]).mean(0)


def exercise_3_4(tokens_to_hide):
    """Within 2 % of the formula, for three machines."""
    results, causes = [], []
    for flops_per_s, bytes_per_s, world_size, element_bytes in HOSTS:
        options = {"world_size": world_size, "element_bytes": element_bytes}
        ours, right = tokens_to_hide(flops_per_s, bytes_per_s, **options), least_tokens(flops_per_s, bytes_per_s, **options)
        results.append((ours, right, world_size))
        if cause := compare(ours, right, tolerance=0.02):
            machine = f"{flops_per_s:.3g} FLOP/s, {bytes_per_s:.3g} bytes/s, {world_size} ranks, {element_bytes} bytes a gradient"
            causes.append(f"for {machine}: {cause}")
    return usual_mistake(results) or causes[0] if causes else None


def least_tokens(flops_per_s, bytes_per_s, *, world_size, element_bytes=4):
    """Tokens per device from which an all_reduce of all gradients takes no longer than backward.

    backward: 4 P t / F seconds. all_reduce: 2 (N−1)/N · P · e / β, the ring convention of nccl-tests, PERFORMANCE.md.
    """
    return 2 * (world_size - 1) / world_size * element_bytes * flops_per_s / (BACKWARD_FLOPS * bytes_per_s)


def usual_mistake(results):
    """The mistake whose factor explains all results, or None; rows of (ours, right, world size)."""
    mistakes = {
        "off by 2/3: that is the time of forward too (6 FLOP), but only backward (4) runs beside the all_reduce": lambda n: 2 / 3,
        "off by 2: backward takes 4 FLOP per parameter and token, 2 are those of forward": lambda n: 2,
        "the ring's factor 2(N−1)/N is missing: a rank sends more than the gradients' bytes once": lambda n: n / (2 * (n - 1)),
        "off by 1/2: an all_reduce is a reduce_scatter and an all_gather, each (N−1)/N": lambda n: 1 / 2,
        "off by the factor N: these are the tokens of all devices, not per device": lambda n: n,
    }
    if any(not isinstance(ours, (int, float)) for ours, _, _ in results):
        return None
    for text, off_by in mistakes.items():
        if all(math.isclose(ours, right * off_by(n), rel_tol=0.02) for ours, right, n in results):
            return text
    return None


def on_ranks(function, answer, job, *, world_size):
    """What `function(rank, answer, job)` returned on each rank; an answer fails the same way everywhere, so CPU cores do."""
    return run_ranks(function, (answer, job), {}, world_size=world_size, device="cpu", live=False, warn=False).results


def gradients(job, rows, scale=None):
    """{name: gradient} of the mean loss of some rows of the first batch, on one device."""
    model = job.model()
    backward(model, job, rows, scale)
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def backward(model, job, rows, scale=None):
    tokens, targets = next(job.batches(1))
    loss = job.loss(model(tokens[rows]), targets[rows])
    (scale(loss, len(tokens[rows])) if scale else loss).backward()


def joined(tensors):
    """All numbers of {name: tensor} in one row."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors.values()])
