"""holdings: what ranks really hold, from their own tensors."""

import functools

import torch
import torch.distributed as dist
from strategies import average, halves

import labkit
from labkit.training import one_device


def test_replicas_hold_everything_and_agree():
    job = labkit.small_job()
    held = labkit.holdings(average, world_size=2, job=job)
    for rank in (0, 1):
        assert held.total(rank, "weights") == held.total(rank, "gradients") == 8 * job.parameters
        # Adam's two moments, and one step counter (float32) per tensor
        tensors = sum(1 for _ in job.model().parameters())
        assert held.total(rank, "optimizer state") == 16 * job.parameters + 4 * tensors
        assert held.total(rank, "activations") > 0
    assert held.replicated("weights") == held.replicated("gradients") == held.replicated("optimizer state") == 1
    assert held.replicated("activations") == 0
    assert "100%" in repr(held)


def test_replicas_that_do_not_communicate_are_seen_to_differ():
    held = labkit.holdings(functools.partial(average, reduce=False))
    assert held.replicated("gradients") == held.replicated("weights") == 0


def test_stages_hold_their_own_part():
    job = labkit.small_job()
    held = labkit.holdings(halves, job=job)
    assert {row.name for row in held if row.rank == 0 and row.kind == "weights"} == {"embed", "blocks.0", "blocks.1"}
    assert {row.name for row in held if row.rank == 1 and row.kind == "weights"} == {"blocks.2", "blocks.3", "head"}
    assert held.total(0, "weights") + held.total(1, "weights") == 8 * job.parameters
    assert held.total(0, "gradients") + held.total(1, "gradients") == 8 * job.parameters


def sharded(rank, job):
    """Half of every block's weights on each of two ranks; whole ones are gathered for the step, then emptied."""
    model = job.model(embed=False, blocks=[0], head=False)
    parameters = list(model.parameters())
    numbers = sum(p.numel() for p in parameters)
    with rank.memory("weights"):
        flat = torch.cat([p.detach().flatten() for p in parameters])
    with rank.memory("weights", "blocks.0"):
        shard = torch.nn.Parameter(flat.chunk(rank.world_size)[rank.rank].clone())
    for p, values in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.data = values.view_as(p)
    optimizer = job.optimizer([shard])
    flat.untyped_storage().resize_(0)

    def step(tokens, targets):
        flat.untyped_storage().resize_(numbers * flat.element_size())
        dist.all_gather_single(flat, shard.detach())
        loss = model(torch.ones(*tokens.shape, job.d_model, dtype=flat.dtype)).square().mean()
        loss.backward()
        with rank.memory("gradients", "blocks.0"):
            shard.grad = torch.empty_like(shard)
        dist.reduce_scatter_single(shard.grad, torch.cat([p.grad.flatten() for p in parameters]))
        model.zero_grad()
        flat.untyped_storage().resize_(0)
        optimizer.step()
        shard.grad = None
        return loss.detach()

    return step


def test_shards_made_by_hand_and_emptied_storages():
    job = labkit.small_job()
    held = labkit.holdings(sharded, job=job)
    half = 8 * sum(p.numel() for p in job.model(embed=False, blocks=[0], head=False).parameters()) // 2
    assert {(row.kind, row.name) for row in held if row.kind != "activations"} == {
        (kind, "blocks.0") for kind in ("weights", "gradients", "optimizer state")
    }
    for rank in (0, 1):
        sizes = [held.total(rank, kind) for kind in ("weights", "gradients", "optimizer state")]
        assert sizes == [half, half, 2 * half + 4]
    assert (held.replicated("weights"), held.replicated("activations")) == (0, 1)


def test_libraries_shards():
    def fsdp(rank, job):
        from torch.distributed.fsdp import fully_shard

        model = job.model()
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        optimizer = job.optimizer(model.parameters())

        def step(tokens, targets):
            loss = job.loss(model(tokens), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    job = labkit.small_job(blocks=1, dtype=torch.bfloat16, master_weights=True)
    whole = labkit.holdings(one_device, world_size=1, job=job)
    assert [whole.total(0, kind) for kind in ("weights", "gradients")] == [2 * job.parameters] * 2
    counters = 4 * len(list(job.model().parameters()))
    assert whole.total(0, "optimizer state") == 12 * job.parameters + counters
    names = {row.name for row in whole if row.kind == "weights"}
    assert names == {row.name for row in whole if row.kind == "optimizer state"} == {"embed", "blocks.0", "head"}
    held = labkit.holdings(fsdp, job=job)
    for rank in (0, 1):
        assert {row.name for row in held if row.rank == rank and row.kind == "weights"} == names
        assert held.total(rank, "weights") == held.total(rank, "gradients") == job.parameters
    assert held.replicated("weights") == held.replicated("gradients") == 0
