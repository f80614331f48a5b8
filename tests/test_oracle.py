"""parity: the right strategies pass, the wrong ones are refused, each with its cause."""

import functools

import pytest
import torch
from strategies import average, halves, own_loss, own_seed, stale

import labkit
from labkit.training import one_device


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_right_strategy_is_the_same_as_one_device(world_size):
    result = labkit.parity(average, world_size=world_size, job=labkit.small_job(batch_size=7))
    assert result, result.diagnosis
    assert result.max_error < 1e-12
    assert len(result.losses) == len(result.reference) == 3
    assert result.losses == pytest.approx(result.reference, abs=1e-12)
    assert len(set(result.losses)) == 3
    assert "same as one device" in repr(result)


def test_one_device_is_what_plain_pytorch_does():
    job = labkit.small_job()
    torch.manual_seed(0)
    model = job.model()
    optimizer = torch.optim.AdamW(model.parameters(), **job.optimizer_args)
    losses = []
    for tokens, targets in job.batches(4):
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    result = labkit.parity(one_device, world_size=1, steps=4)
    assert result.losses == pytest.approx(losses, abs=1e-12)


def test_ranks_that_hold_stages_are_judged_by_their_losses():
    assert labkit.parity(halves, world_size=2)


@pytest.mark.parametrize(
    "strategy, cause",
    [
        (functools.partial(average, reduce=False), "the replicas differ: every gradient is that of a rank's own data"),
        (functools.partial(average, factor=2.0), "gradients are off by the factor N = 2: a sum where a mean belongs?"),
        (functools.partial(average, factor=0.5), "gradients are off by the factor 1/N = 1/2: a mean taken twice?"),
        (functools.partial(average, skip="blocks.1"), "such as blocks.1"),
        (functools.partial(average, skip="blocks.1"), "a bucket that was not reduced"),
        (own_seed, "rank 1 starts from other weights"),
        (own_loss, "the ranks return different losses"),
        (stale, "from update 2 on, the first 1 were right"),
    ],
)
def test_a_wrong_strategy_is_refused_with_its_cause(strategy, cause):
    result = labkit.parity(strategy, world_size=2)
    assert not result
    assert cause in result.diagnosis
    assert "NOT the same" in repr(result)


def test_a_mean_of_means_over_uneven_shards_is_refused():
    result = labkit.parity(functools.partial(average, weight=False), job=labkit.small_job(batch_size=7))
    assert not result
    assert "loss" in result.diagnosis


def test_no_loss_at_all_is_an_error():
    with pytest.raises(ValueError, match="returned no loss on any rank"):
        labkit.parity(functools.partial(average, lossless=True))


def test_fewer_than_three_updates_are_refused():
    with pytest.raises(ValueError, match="at least 3"):
        labkit.parity(average, steps=2)


def test_a_loss_that_is_no_single_number_is_an_error():
    def per_row(rank, job):
        return lambda tokens, targets: torch.zeros(3)

    with pytest.raises(labkit.RankError, match=r"step returned a tensor of shape \[3\]"):
        labkit.parity(per_row)


def test_a_strategy_that_returns_no_step_is_an_error():
    with pytest.raises(labkit.RankError, match="forgetful returned NoneType; a strategy returns its function step"):
        labkit.parity(forgetful)


def forgetful(rank, job):
    job.model()


@pytest.mark.parametrize(
    "changes", [{"dtype": torch.float32}, {"dtype": torch.bfloat16}, {"dtype": torch.bfloat16, "master_weights": True}]
)
def test_lower_precision_has_its_own_tolerance(changes):
    result = labkit.parity(average, job=labkit.small_job(**changes))
    assert result, result.diagnosis
    assert 0 < result.max_error <= result.tolerance
    assert not labkit.parity(own_loss, job=labkit.small_job(**changes))


def test_a_strategy_that_hangs_ends_after_the_time_that_was_asked_for():
    def one_sided(rank, job):
        def step(tokens, targets):
            torch.distributed.recv(torch.empty(1), src=1 - rank.rank)

        return step

    with pytest.raises(labkit.RankError, match="no rank made progress for 2 s") as caught:
        labkit.parity(one_sided, timeout=2)
    assert caught.value.kind == "hang"
