"""The ways of notebook 01 to train on one device: equal results, FLOPs and bytes by formula; and how a step may be timed."""

from functools import partial
from statistics import median

import pytest
import torch

import labkit
from labkit.checks.accumulation import gradients
from labkit.checks.fake_device import FakeDevice, timing_cause
from labkit.memory_run import account
from labkit.notebook import load

lesson = load("01_one_device")
WAYS = {
    "plain": lesson.one_device,
    "checkpoint": partial(lesson.one_device, checkpointing=True),
    "accumulated": lesson.accumulated,
    "recomputed": lesson.recomputed,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("changes", [{}, {"batch_size": 3, "blocks": 1, "tied": True, "frozen": ("blocks",)}], ids=str)
def test_equals_one_device(way, changes):
    same = labkit.parity(WAYS[way], world_size=1, job=labkit.small_job(**changes))
    assert same, same.diagnosis
    assert same.max_error < 1e-11


def test_counted_flops_are_those_of_the_formula():
    """Recompute adds a forward of all blocks; PyTorch's leaves out the product at the end of each."""
    for changes in ({"blocks": 2, "d_model": 48, "vocab_size": 100, "batch_size": 4}, {"blocks": 1, "tied": True, "seq_len": 20}):
        job = labkit.small_job(**changes)
        found = {name: sum(lesson.counted_flops(way, job).values()) for name, way in WAYS.items()}
        plain = job.flops_per_token * job.tokens_per_step
        forward = job.tokens_per_step * job.blocks * (24 * job.d_model**2 + 4 * job.d_model * job.seq_len)
        down = job.tokens_per_step * job.blocks * 8 * job.d_model**2
        assert found == {
            "plain": plain,
            "accumulated": plain,
            "recomputed": plain + forward,
            "checkpoint": plain + forward - down,
        }


def test_bytes_are_those_of_the_formula():
    """Adam also keeps a step counter of 4 bytes for each tensor."""
    job = labkit.small_job(batch_size=16)
    ways = (lesson.one_device, lesson.accumulated, lesson.recomputed)
    (plain,), (accumulated,), (recomputed,) = (account(way, world_size=1, job=job) for way in ways)
    tensors = len(list(job.model().parameters()))
    for held in (plain, accumulated, recomputed):
        wanted = {"weights": 8, "gradients": 8, "optimizer state": 16}
        found = {kind: held.before_update[kind] for kind in wanted}
        assert found == {kind: each * job.parameters + 4 * tensors * (each == 16) for kind, each in wanted.items()}
    activations = plain.by_kind["activations"]
    assert accumulated.by_kind["activations"] == pytest.approx(activations / job.micro_batches, rel=0.05)
    assert recomputed.by_kind["activations"] < activations / 2


@pytest.mark.parametrize(
    "changes, each",
    [
        ({"dtype": torch.float32}, (4, 4, 8)),
        ({"dtype": torch.bfloat16}, (4, 4, 8)),
        ({"dtype": torch.bfloat16, "master_weights": True}, (2, 2, 12)),
    ],
    ids=str,
)
def test_mixed_precision_takes_16_bytes_per_parameter_too(changes, each):
    job = labkit.small_job(blocks=1, **changes)
    (held,) = account(lesson.one_device, world_size=1, job=job)
    found = [held.before_update[kind] // job.parameters for kind in ("weights", "gradients", "optimizer state")]
    assert tuple(found) == each and sum(each) == 16


def test_the_plain_mean_of_means_is_visibly_wrong():
    job = labkit.small_job(batch_size=64, blocks=1, seq_len=16)
    tokens, targets = next(job.batches(1))
    parts = [gradients(job, *piece) for piece in zip(tokens.split((40, 24)), targets.split((40, 24)))]
    whole = gradients(job, tokens, targets)
    assert torch.allclose((40 * parts[0] + 24 * parts[1]) / 64, whole, atol=1e-12)
    assert 1e-2 < ((parts[0] + parts[1]) / 2 - whole).abs().max() < 2e-2


def timed(device, *, warm_up, steps, first=True, dropped=0):
    """The median of steps that are timed one by one; with `first`, work of the warm-up is waited for."""
    for _ in range(warm_up):
        device.step()
    if first:
        device.synchronise()
    times, start = [], device.clock()
    for _ in range(steps):
        device.step()
        device.synchronise()
        start, before = device.clock(), start
        times.append(start - before)
    return median(times[dropped:])


@pytest.mark.parametrize(
    "ways", [{"warm_up": 2, "steps": 5}, {"warm_up": 9, "steps": 30}, {"warm_up": 0, "steps": 9, "dropped": 3}], ids=str
)
def test_every_good_way_to_time_a_step_passes(ways):
    device = FakeDevice(0.3)
    assert timing_cause(timed(device, **ways), device) is None


@pytest.mark.parametrize(
    "ways, cause",
    [
        ({"warm_up": 2, "steps": 4}, "4 steps were timed after the warm-up"),
        ({"warm_up": 1, "steps": 5}, "the first 2 calls"),
        ({"warm_up": 0, "steps": 6, "dropped": 1}, "the first 2 calls"),
        ({"warm_up": 3, "steps": 7, "first": False}, "still busy with earlier steps"),
        ({"warm_up": 0, "steps": 2}, "0 steps were timed after the warm-up"),
    ],
)
def test_a_bad_way_to_time_a_step_is_named(ways, cause):
    device = FakeDevice()
    assert cause in timing_cause(timed(device, **ways), device)
