"""What went wrong when gradients of micro-batches were accumulated: which sum it is, and what was alive at once."""

import contextlib

import torch
from torch import nn

from labkit import jobs
from labkit.checks import compare
from labkit.model import GPT

PRECISION = 1e-6


def accumulation_cause(accumulate, rows):
    """Runs an answer on micro-batches of so many rows each; returns the cause of a wrong result, or None."""
    job = jobs.small_job(batch_size=sum(rows), blocks=1, d_model=32, seq_len=8)
    tokens, targets = next(job.batches(1))
    pieces = list(zip(tokens.split(rows), targets.split(rows)))
    model, forwards = job.model(), Forwards()
    before = joined(parameter.detach().clone() for parameter in model.parameters())
    with forwards.watched():
        accumulate(model, job, pieces)
    if not torch.equal(before, joined(parameter.detach() for parameter in model.parameters())):
        return "the weights have changed: only gradients are wanted, the optimizer updates later"
    if all(parameter.grad is None for parameter in model.parameters()):
        return "no parameter has a gradient: was `backward` called?"
    ours = joined(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())
    return gradient_cause(ours, job, pieces) or forwards.cause(max(rows))


def gradient_cause(ours, job, pieces):
    """Which wrong sum of the micro-batches' gradients it is; None where no value is off by more than 1e-6."""
    alone = [gradients(job, *piece) for piece in pieces]
    share = [len(tokens) / sum(len(other) for other, _ in pieces) for tokens, _ in pieces]
    whole = sum(part * one for part, one in zip(share, alone))
    error = (ours - whole).abs().max().item()
    if error <= PRECISION:
        return None
    for text, weights in usual_sums(share).items():
        if torch.allclose(ours, sum(weight * one for weight, one in zip(weights, alone)), atol=1e-9):
            return f"off by {error:.1e}: {text}"
    return compare(ours, whole, tolerance=PRECISION) or f"off by {error:.1e}"


def usual_sums(share):
    """{what it is called: weights of the micro-batches} of sums that are not the whole batch's."""
    count, rows = len(share), 1 / min(share)
    inverse = [1 / one for one in share]
    return {
        "the plain mean of means, in which a micro-batch of few rows counts as much as one of many": [1 / count] * count,
        "the sum of the micro-batches' means, where a mean over all rows belongs": [1.0] * count,
        "weighted by its share of the rows, and then divided by the number of micro-batches too": [s / count for s in share],
        "weighted by its rows, but relative to the smallest micro-batch, not to the whole batch": [s * rows for s in share],
        "a micro-batch of few rows counts more than one of many": [one / sum(inverse) for one in inverse],
        "only the last micro-batch is in it: were gradients set to zero in between?": [0.0] * (count - 1) + share[-1:],
        "only the last micro-batch is in it, unweighted: were gradients set to zero in between?": [0.0] * (count - 1) + [1.0],
        "only the first micro-batch is in it": share[:1] + [0.0] * (count - 1),
    }


class Forwards:
    """The rows of every forward of a whole model, and how many backwards had begun before it."""

    def __init__(self):
        self.rows, self.backwards, self.begun = [], [], 0

    @contextlib.contextmanager
    def watched(self):
        """Watches all models while it is entered."""
        hook = nn.modules.module.register_module_forward_hook(self._see)
        try:
            yield
        finally:
            hook.remove()

    def cause(self, most):
        """What was alive at once that need not be, or None."""
        if max(self.rows) > most:
            return (
                f"the gradients are right, but {max(self.rows)} rows were computed at once: with their activations "
                f"nothing is saved; the largest micro-batch has {most}"
            )
        if any(begun < number for number, begun in enumerate(self.backwards)):
            return (
                "the gradients are right, but the activations of several micro-batches were alive at once: call "
                "`backward` on each loss before the next forward"
            )
        return None

    def _see(self, module, inputs, output):
        if isinstance(module, GPT):
            self.rows.append(len(inputs[0]))
            self.backwards.append(self.begun)
            if output.requires_grad:
                output.register_hook(self._begin)

    def _begin(self, gradient):
        self.begun += 1


def gradients(job, tokens, targets):
    """All gradients of the mean loss of some rows, in one row."""
    model = job.model()
    job.loss(model(tokens), targets).backward()
    return joined(parameter.grad for parameter in model.parameters())


def joined(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])
