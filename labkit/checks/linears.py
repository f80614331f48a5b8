"""What checks see of a layer that ranks share: its output, its gradients, and the calls made forward and backward."""

import math

import torch

from labkit.launcher import run_ranks

FORWARD, BACKWARD = "forward calls", "backward calls"
PATIENCE_S = 10  # for ranks that wait for each other; a rank that computes is not waiting


def on_ranks(function, answer, tensors, *, world_size):
    """What `function(rank, answer, tensors, measure)` returned on each rank."""
    options = {"device": "cpu", "timeout": PATIENCE_S, "live": False, "warn": False}
    return run_ranks(measured_rank, (function, answer, tensors), {}, world_size=world_size, **options).results


def measured_rank(rank, function, answer, tensors):
    """What each rank does; `measure(layer, {name: tensor})` runs a layer on tensors of its own, forward and backward."""

    def measure(layer, named):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in named.items()}
        rank._recorder.clear()
        output = layer(*(leaf * 1 for leaf in leaves.values()))  # no leaves: a layer may sum in place
        forward = calls_of(rank)
        rank._recorder.clear()
        if isinstance(output, torch.Tensor) and output.requires_grad:
            weighted(output).backward()
        gradients = {name: leaf.grad for name, leaf in leaves.items()}
        output = output.detach() if isinstance(output, torch.Tensor) else output
        return {"output": output, "gradients": gradients, FORWARD: forward, BACKWARD: calls_of(rank)}

    return function(rank, answer, tensors, measure)


def calls_of(rank):
    """{operation: calls} since the recorder was cleared."""
    return {operation: use.calls for operation, use in rank._recorder.counter.totals().items()}


def sums_cause(ours, *, forward, backward):
    """Other collectives than all_reduce, or another number of calls than wanted, in one sentence; None where all is right."""
    for when, key, wanted in (("forward", FORWARD, forward), ("backward", BACKWARD, backward)):
        if others := sorted(set(ours[key]) - {"all_reduce"}):
            return f"{others[0]} was called {when}; all_reduce is all it needs"
        made = ours[key].get("all_reduce", 0)
        if made > wanted:
            return f"{made} all_reduce{'s' * (made > 1)} {when}, where {wanted or 'none'} {'is' if wanted < 2 else 'are'} enough"
        if made < wanted:
            missing = "did every rank compute the whole?" if when == "forward" else "each rank has its own part of the gradient"
            return f"{made or 'no'} all_reduce {when}, where {wanted} is needed: {missing}"
    return None


def weighted(output):
    """A number whose gradient differs at each place of the output, the same on every rank."""
    return (output * torch.linspace(-1, 2, math.prod(output.shape), dtype=output.dtype).view_as(output)).sum()


def random_numbers(*, seed=0, **shapes):
    """{name: tensor} in float64, the same on every rank for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
