"""Checks of notebook 02, collectives: sums and bytes from real ranks on CPU cores, fits from seeded tables."""

import math
import random

import numpy
import torch

from labkit.checks import compare
from labkit.checks.cost_causes import TENSOR_BYTES, TENSORS, bucket_cause, seconds_cause, usual_fit
from labkit.cost_fit import Cost, fit_cost
from labkit.launcher import run_ranks

HELD = [[3, 1, 4], [1, 5, 9], [2, 6, 8]]
BROADCAST_ROOT, SCATTER_ROOT = 2, 0
MEANINGS = {
    "broadcast": "everybody holds all cells of rank 2",
    "scatter": "rank r gets cell r of rank 0",
    "all_gather": "everybody holds cell r of each rank r, in the order of the ranks",
    "reduce_scatter": "rank r gets one number, the sum of all cells r",
    "all_reduce": "everybody holds the sums, cell by cell",
    "all_to_all": "rank r gets cell r of every rank, in the order of the ranks",
}
PATIENCE_S, ELEMENT_BYTES = 4, 8
SIZES = [4**k for k in range(5, 13)]
TABLES = ((7, Cost(180e-6, 1.6e9), 0.14), (11, Cost(35e-6, 9e9), 0.14), (3, Cost(900e-6, 0.4e9), 0.1))  # seed, truth, spread


def exercise_2_1(rank_1_holds):
    """What rank 1 of 3 holds after six collectives on HELD."""
    if not isinstance(rank_1_holds, dict):
        return "keep the dict as it is, and replace each `...` in it by a list"
    if cause := compare(dict.fromkeys(rank_1_holds, 0), dict.fromkeys(MEANINGS, 0)):
        return cause
    for name, meaning in MEANINGS.items():
        ours, right = in_lists(rank_1_holds[name]), outcome(HELD, 1)[name]
        if [ours] == right:
            return f"{name}: the right number, but a rank holds a list of numbers, also where it is a single one: {right}"
        if ours != right:
            return f"{name}: {taken_for(ours, name) or f'{ours!r} is not right: {meaning}'}"
    return None


def in_lists(value):
    """Tensors, arrays and tuples as lists, everything else as it is."""
    value = value.tolist() if isinstance(value, (torch.Tensor, numpy.ndarray, numpy.generic)) else value
    return list(value) if isinstance(value, tuple) else value


def taken_for(ours, name):
    """What a wrong list is instead, or None."""
    for rank in (0, 2):
        if ours == outcome(HELD, rank)[name]:
            return f"that is what rank {rank} holds afterwards"
    for rank, row in enumerate(HELD):
        if ours == row:
            return f"that is what rank {rank} held before; {MEANINGS[name]}"
    others = [other for other, cells in outcome(HELD, 1).items() if ours == cells]
    return f"that is what {others[0]} gives; {MEANINGS[name]}" if others else None


def outcome(held, rank):
    """{collective: what `rank` holds afterwards} where rank r holds the list held[r], one cell per rank."""
    column = [row[rank] for row in held]
    return {
        "broadcast": list(held[BROADCAST_ROOT]),
        "scatter": [held[SCATTER_ROOT][rank]],
        "all_gather": [row[other] for other, row in enumerate(held)],
        "reduce_scatter": [sum(column)],
        "all_reduce": [sum(cells) for cells in zip(*held)],
        "all_to_all": column,
    }


def exercise_2_2(my_ring):
    """A ring whose rank r completes chunk r: sums, bytes and their spread, for several sizes."""
    for world_size, elements in ((3, 12), (3, 11), (2, 5), (4, 1003), (4, 3), (1, 4)):
        options = {"device": "cpu", "timeout": PATIENCE_S, "live": False, "warn": False}
        run = run_ranks(ring_rank, (my_ring, elements), {}, world_size=world_size, **options)
        case = f"{world_size} ranks, {elements} numbers"
        if others := sorted({name for use in run.traffic for name in use} - {"send", "recv"}):
            return f"{case}: {', '.join(others)} was called; only sends and receives may be used"
        for rank, result in enumerate(run.results):
            if cause := ring_cause(result, rank, world_size, elements):
                return f"{case}: rank {rank}, {cause}"
        if cause := bytes_cause(run.traffic, world_size, elements):
            return f"{case}: {cause}"
    return None


def ring_rank(rank, my_ring, elements):
    """What each rank does; returns the answer's result as it is."""
    return my_ring(rank, numbers(rank.rank, elements))


def numbers(rank, elements):
    """What a rank starts with: float64 [elements], other values on each rank."""
    return torch.randn(elements, generator=torch.Generator().manual_seed(100 + rank), dtype=torch.float64)


def ring_cause(result, rank, world_size, elements):
    """Why one rank's (chunk, total) is not right, or None."""
    if not (isinstance(result, (tuple, list)) and len(result) == 2 and all(isinstance(one, torch.Tensor) for one in result)):
        return "return two tensors: (chunk, total)"
    chunk, whole = result
    inputs = torch.stack([numbers(other, elements) for other in range(world_size)])
    chunks = inputs.sum(0).tensor_split(world_size)
    if cause := compare(whole, torch.cat(chunks), world_size=world_size, tolerance=1e-12):
        return f"the total: {half_done(whole, inputs, chunks) or cause}"
    if compare(chunk, chunks[rank], tolerance=1e-12) is None:
        return None
    for other in range(world_size):
        if compare(chunk, chunks[other], tolerance=1e-12) is None:
            return f"the total is right, but the chunk is the sum of chunk {other}, not {rank}"
    return f"the chunk: {compare(chunk, chunks[rank], world_size=world_size, tolerance=1e-12)}"


def half_done(whole, inputs, chunks):
    """Which half of the ring is missing in a total of the right shape, or None."""
    if whole.shape != inputs[0].shape:
        return None
    if (whole == inputs).any(0).all():
        return "every number is still that of a single rank; add what arrives to what is there"
    right = [at for at, pair in enumerate(zip(whole.tensor_split(len(chunks)), chunks)) if torch.allclose(*pair, atol=1e-12)]
    return f"only chunk {right[0]} is complete; is the second half, the all_gather, missing?" if len(right) == 1 else None


def bytes_cause(traffic, world_size, elements):
    """Why what the ranks sent is not a ring's, or None."""
    sent = [use["send"].payload_bytes if "send" in use else 0 for use in traffic]
    right = 2 * (world_size - 1) * elements * ELEMENT_BYTES
    if sum(sent) != right:
        times = f", {sum(sent) / right:.3g} times as many" if right else ""
        return f"the sums are right, but {sum(sent):,} bytes were sent where 2 (N − 1) · S = {right:,} are expected{times}"
    # Chunks are uneven by one number at most, and a rank sends 2 (N − 1) of them.
    most = 2 * (world_size - 1) * math.ceil(elements / world_size) * ELEMENT_BYTES
    if max(sent) > most:
        busiest = sent.index(max(sent))
        return f"{right:,} bytes in all are right, but rank {busiest} sends {max(sent):,} of them; a ring spreads them evenly"
    # With fewer ranks this is also what ranks send that hand each chunk straight to its owner.
    if world_size > 3 and sent == as_shown(world_size, elements):
        return "the sums are right, but the ranks send what our ring sends: after the first half chunk r is not yet on rank r"
    return None


def as_shown(world_size, elements):
    """What each rank sends, in bytes, in a ring whose first half completes chunk r + 1 on rank r: all but two chunks, twice."""
    chunks = [ELEMENT_BYTES * (elements // world_size + (at < elements % world_size)) for at in range(world_size)]
    left_out = [chunks[(rank + 1) % world_size] + chunks[(rank + 2) % world_size] for rank in range(world_size)]
    return [2 * sum(chunks) - nbytes for nbytes in left_out]


def exercise_2_3(fit):
    """α and β of three tables, within 5 % of least squares of the relative errors."""
    for at in range(len(TABLES)):
        table = measured_table(at)
        answer = in_lists(fit(dict(table)))
        if not (isinstance(answer, list) and len(answer) == 2 and all(number(one) is not None for one in answer)):
            return "return two numbers: (alpha_s, bytes_per_s)"
        ours = Cost(*map(number, answer))
        right = fit_cost({nbytes: [seconds] for nbytes, seconds in table.items()})
        pairs = {"α": (ours.alpha_s, right.alpha_s), "β": (ours.bytes_per_s, right.bytes_per_s)}
        causes = [f"{name}: {cause}" for name, pair in pairs.items() if (cause := compare(*pair, tolerance=0.05))]
        if causes:
            return f"{f'for table {at + 1} of 3' if at else 'for `table`'}: {usual_fit(ours, right, table) or causes[0]}"
    return None


def measured_table(at):
    """{bytes: seconds} as if measured: the truth of TABLES[at] with seeded noise, to three digits."""
    seed, truth, spread = TABLES[at]
    draw = random.Random(seed)
    return {nbytes: float(f"{truth.seconds(nbytes) * draw.uniform(1 - spread, 1 + spread):.3g}") for nbytes in SIZES}


def exercise_2_4(plan):
    """Seconds of many calls and of one, and the smallest bucket, for several machines."""
    for alpha_s, bytes_per_s in ((50e-6, 1e9), (20e-6, 2.5e9), (130e-6, 0.5e9)):
        answer = in_lists(plan(alpha_s, bytes_per_s))
        if not (isinstance(answer, list) and len(answer) == 3 and all(number(one) is not None for one in answer)):
            return "return three numbers: seconds of 200 calls, seconds of one flat call, tensors per call"
        each_s, flat_s, bucket = map(number, answer)
        right = Cost(alpha_s, bytes_per_s)
        machine = f"for α = {1e6 * alpha_s:.0f} µs, β = {bytes_per_s / 1e9:g} GB/s"
        transfer_s = TENSORS * TENSOR_BYTES / bytes_per_s
        if cause := seconds_cause(each_s, TENSORS * right.seconds(TENSOR_BYTES), "200 calls", alpha_s, transfer_s):
            return f"{machine}: {cause}"
        if cause := seconds_cause(flat_s, right.seconds(TENSORS * TENSOR_BYTES), "one flat call", alpha_s, transfer_s):
            return f"{machine}: {cause}"
        if cause := bucket_cause(bucket, alpha_s * bytes_per_s):
            return f"{machine}: {cause}"
    return None


def number(value):
    """One number as a float, also out of an array or tensor of one element; None for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
