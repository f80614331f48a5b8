"""What tensor parallelism hands to all_reduce, by formula, what learners usually forget of it, and what the wire takes."""

import itertools

import torch

from labkit import jobs
from labkit.checks import compare

JOBS = (
    {"blocks": 4},
    {"blocks": 4, "batch_size": 4},
    {"blocks": 2, "seq_len": 16, "batch_size": 2, "d_model": 32, "dtype": torch.float32},
    {"blocks": 1, "tied": True, "vocab_size": 512, "batch_size": 1, "d_model": 128},
)
WIRES = ((0.0, 1e9), (100e-6, 1e9), (2e-3, 1e10))  # alpha_s, bytes_per_s


def tensor_traffic(job, *, per_block=4, ends=2, small=3, element_bytes=None, rows=None):
    """(calls, bytes) that a rank of tensor_parallel hands to all_reduce in one step.

    Shoeybi et al., "Megatron-LM", 2019, sections 3 and 5: per block two sums forward and two backward of B T D numbers, one
    for the embedding forward, one for the gradient of the head's input, three of B T numbers in the loss.
    """
    large, tokens = per_block * job.blocks + ends, job.seq_len * (rows or job.batch_size)
    return large + small, (large * job.d_model + small) * tokens * (element_bytes or job.dtype.itemsize)


MISTAKES = {
    "a block has two sums forward and two backward; these are the forward ones only": {"per_block": 2},
    "the embedding's sum forward and the one for the gradient of the head's input are missing": {"ends": 0},
    "one of two is missing: the embedding's sum forward, or the one for the gradient of the head's input": {"ends": 1},
    "the three sums of the loss, of B·T numbers, are missing": {"small": 0},
    "only the blocks: embedding, head and loss add sums": {"ends": 0, "small": 0},
    "bytes are expected: a number has `job.dtype.itemsize` of them": {"element_bytes": 1},
    "that is the traffic of one sequence; a step has `job.batch_size`": {"rows": 1},
    "a number has `job.dtype.itemsize` bytes, not always 4": {"element_bytes": 4},
    "a number has `job.dtype.itemsize` bytes, not always 8": {"element_bytes": 8},
    "that counts query, key and value apart, as DTensor does: six sums for a block": {"per_block": 6},
}


def wire_seconds(job, alpha_s, bytes_per_s):
    """{technique: seconds of a step's all_reduces on two ranks, where a rank sends as much as it hands over}."""
    traffic = {"tensor parallel": tensor_traffic(job), "data parallel": (2, (job.parameters + 1) * job.dtype.itemsize)}
    return {name: calls * alpha_s + nbytes / bytes_per_s for name, (calls, nbytes) in traffic.items()}


def handed_cause(handed_over):
    """Exact for every job, or the usual mistake that explains all results."""
    made = [jobs.small_job(**changes) for changes in JOBS]
    ours = [handed_over(job) for job in made]
    if all(not compare(pair, tensor_traffic(job)) for pair, job in zip(ours, made)):
        return None
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in ours):
        return "a pair is expected: calls, bytes"
    if all(not compare(pair[::-1], tensor_traffic(job)) for pair, job in zip(ours, made)):
        return "calls come first, then bytes"
    for text, mistake in MISTAKES.items():
        if all(not compare(pair, tensor_traffic(job, **mistake)) for pair, job in zip(ours, made)):
            return text
    pair, job = next((pair, job) for pair, job in zip(ours, made) if compare(pair, tensor_traffic(job)))
    right = tensor_traffic(job)
    case = f"{job.blocks} blocks, D {job.d_model}, T {job.seq_len}, B {job.batch_size}, {job.dtype.itemsize} bytes a number"
    return next(f"{case}: {what}, {cause}" for what, cause in zip(("calls", "bytes"), map(compare, pair, right)) if cause)


def winner_cause(winner):
    """As the formula says for every job and wire, where the two are not close."""
    for changes, (alpha_s, bytes_per_s) in itertools.product(JOBS, WIRES):
        job = jobs.small_job(**changes)
        seconds = wire_seconds(job, alpha_s, bytes_per_s)
        right, ours = min(seconds, key=seconds.get), winner(job, alpha_s, bytes_per_s)
        if ours == right:
            continue
        if ours not in seconds:
            return f'`winner` returned {ours!r}, where "tensor parallel" or "data parallel" is expected'
        times = ", ".join(f"{name} waits {1e3 * one:.2f} ms" for name, one in seconds.items())
        case = f"{job.blocks} blocks, D {job.d_model}, {job.tokens_per_step} tokens, α = {1e6 * alpha_s:g} µs"
        by_bytes = wire_seconds(job, 0.0, bytes_per_s)
        hint = "; fewer bytes, but what about the calls?" if ours == min(by_bytes, key=by_bytes.get) and alpha_s else ""
        return f"{case}, β = {bytes_per_s / 1e9:g} GB/s: {times}{hint}"
    return None
