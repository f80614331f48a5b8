"""Small strategies that tests run on ranks: a right one, and ways of getting it wrong."""

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint


def average(rank, job, *, weight=True, reduce=True, factor=1.0, skip="", lossless=False):
    """Data parallelism with one all_reduce per parameter; each option but `weight` plants a fault."""
    model = job.model().to(rank.device)
    optimizer = job.optimizer(model.parameters())
    first, last = (job.batch_size * r // rank.world_size for r in (rank.rank, rank.rank + 1))
    share = (last - first) / job.batch_size if weight else 1 / rank.world_size

    def step(tokens, targets):
        with rank.span("forward"):
            loss = share * job.loss(model(tokens[first:last]), targets[first:last])
        with rank.span("backward"):
            loss.backward()
        for name, parameter in model.named_parameters():
            if reduce and not (skip and name.startswith(skip)):
                dist.all_reduce(parameter.grad)
            parameter.grad *= factor
        with rank.span("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        loss = loss.detach().clone()
        dist.all_reduce(loss)
        return None if lossless else loss

    return step


def own_seed(rank, job):
    """Every rank starts from weights of its own."""
    return average(rank, job.replace(seed=rank.rank))


def own_loss(rank, job):
    """The right update, but each rank reports the loss of its own rows."""
    step = average(rank, job)
    model = job.model().to(rank.device)
    first, last = (job.batch_size * r // rank.world_size for r in (rank.rank, rank.rank + 1))

    def report(tokens, targets):
        step(tokens, targets)
        return job.loss(model(tokens[first:last]), targets[first:last]).detach()

    return report


def stale(rank, job):
    """From the second update on the gradients of the first are used again."""
    model = job.model().to(rank.device)
    optimizer = job.optimizer(model.parameters())
    kept = {}

    def step(tokens, targets):
        loss = job.loss(model(tokens), targets)
        loss.backward()
        for name, parameter in model.named_parameters():
            parameter.grad.copy_(kept.setdefault(name, parameter.grad.clone()))
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def halves(rank, job):
    """Not a copy of the model per rank but a stage each, by send and recv of activations and their gradients."""
    half = job.blocks // 2
    blocks = range(half) if rank.rank == 0 else range(half, job.blocks)
    stage = job.model(blocks=blocks, embed=rank.rank == 0, head=rank.rank == 1)
    optimizer = job.optimizer(stage.parameters())
    shape = (job.batch_size, job.seq_len, job.d_model)

    def step(tokens, targets):
        if rank.rank == 0:
            activations = stage(tokens)
            dist.send(activations.detach(), dst=1)
            gradient = torch.empty(shape, dtype=job.parameter_dtype)
            dist.recv(gradient, src=1)
            activations.backward(gradient)
            loss = None
        else:
            activations = torch.empty(shape, dtype=job.parameter_dtype)
            dist.recv(activations, src=0)
            activations.requires_grad_()
            loss = job.loss(stage(activations), targets)
            loss.backward()
            dist.send(activations.grad, dst=0)
        optimizer.step()
        optimizer.zero_grad()
        return None if loss is None else loss.detach()

    return step


def recomputed(rank, job):
    """One device that keeps only the inputs of blocks and computes each block again in backward."""
    model = job.model().to(rank.device)
    optimizer = job.optimizer(model.parameters())

    def step(tokens, targets):
        x = model.embed(tokens)
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        loss = job.loss(model.head(x), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
