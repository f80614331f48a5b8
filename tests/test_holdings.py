"""holdings: what ranks really hold, from their own tensors."""

import functools

from strategies import average, halves

import labkit


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
