"""The memory account: bytes by kind against arithmetic, on real and on fake tensors, and for torch's sharded strategies."""

import contextlib
import functools
import types

import pytest
import torch
from strategies import recomputed
from torch._subclasses.fake_tensor import FakeTensorMode

import labkit
from labkit.memory_account import MemoryAccount
from labkit.training import build, one_device

STATES = ("weights", "gradients", "optimizer state")


def small(**changes):
    return labkit.small_job(blocks=2, seq_len=16, **changes)


@functools.cache
def accounted(strategy, job, steps=2):
    """The account of a strategy on one rank, in this process."""
    account = MemoryAccount("cpu")
    rank = types.SimpleNamespace(device=torch.device("cpu"), span=account.span, memory=account.memory)
    with account:
        step = build(strategy, rank, account.observe(job))
        for number, batch in enumerate(job.batches(steps)):
            account.begin_step(number)
            step(*batch)
            account.end_step()
    return account


def in_parts(job, model, tokens, targets, parts):
    """Forward and backward of micro-batches, one after another."""
    for rows in torch.arange(job.batch_size).chunk(parts):
        loss = job.loss(model(tokens[rows]), targets[rows]) / parts
        loss.backward()
    return loss.detach()


def micro_batches(rank, job, parts=4):
    model = job.model()
    optimizer = job.optimizer(model.parameters())

    def step(tokens, targets):
        loss = in_parts(job, model, tokens, targets, parts)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def keeps_a_copy(rank, job):
    """One device that also keeps a whole copy of the weights."""
    step, model = one_device(rank, job), job.model()
    step.kept = model
    return step


@pytest.mark.parametrize(
    ("changes", "weights", "gradients", "state"),
    [
        ({"dtype": torch.float32}, 4, 4, 8),
        ({"dtype": torch.float64}, 8, 8, 16),
        ({"dtype": torch.bfloat16, "master_weights": True}, 2, 2, 12),
    ],
)
def test_bytes_per_parameter(changes, weights, gradients, state):
    """Adam's step counters, 4 bytes a tensor, are optimizer state too."""
    job = small(**changes)
    account = accounted(one_device, job)
    p, counters = job.parameters, 4 * len(list(job.model().parameters()))
    before, after = account.before_update, account.after_step
    assert [before[kind] for kind in STATES] == [weights * p, gradients * p, state * p + counters]
    assert [after[kind] for kind in STATES] == [weights * p, 0, state * p + counters]
    assert account.peak_bytes == sum(account.peak.values()) > sum(before.values())
    assert account.when == "backward, step 1"


def layers_account():
    """The account of two steps of a small net, on whatever tensors the surrounding mode makes."""
    with MemoryAccount("cpu") as account:
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        for number in (0, 1):
            account.begin_step(number)
            model(torch.ones(32, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            account.end_step()
    return account


def test_fake_tensors_give_the_same_account():
    real = layers_account()
    with FakeTensorMode():
        fake = layers_account()
    numbers = 64 * 256 + 256 + 256 * 8 + 8
    assert real.after_step["weights"] == real.after_step["optimizer state"] == 4 * numbers
    assert (fake.peak, fake.when, fake.peak_bytes) == (real.peak, real.when, real.peak_bytes)
    assert (fake.before_update, fake.after_step) == (real.before_update, real.after_step)


def test_recompute_and_micro_batches_hold_fewer_activations():
    job = small()
    whole, parts, again = (accounted(one, job).peak for one in (one_device, micro_batches, recomputed))
    assert parts["activations"] < 0.3 * whole["activations"]
    assert again["activations"] < 0.6 * whole["activations"]
    assert parts["weights"] == again["weights"] == whole["weights"]


def test_accumulated_gradients_are_held_while_the_next_micro_batch_runs():
    job = small()
    assert accounted(micro_batches, job).peak["gradients"] == 8 * job.parameters
    assert accounted(one_device, job).peak["gradients"] < job.parameters


def test_a_whole_copy_that_is_kept_is_seen():
    job = small()
    assert accounted(keeps_a_copy, job).after_step["weights"] == 16 * job.parameters


def test_frozen_parameters_have_neither_gradients_nor_state():
    job = small(frozen="embed", tied=False)
    trained = sum(p.numel() for p in job.model().parameters() if p.requires_grad)
    before = accounted(one_device, job).before_update
    assert (before["weights"], before["gradients"]) == (8 * job.parameters, 8 * trained)


@contextlib.contextmanager
def watching():
    with MemoryAccount("cpu") as account:
        account.begin_step(0)
        yield account


def test_storages_count_once_until_they_die():
    with watching() as account:
        whole = torch.zeros(1000)
        part = whole[500:].view(50, 10)
        assert account.now["other"] == 4000
        del whole
        assert account.now["other"] == 4000
        del part
        assert (account.now["other"], account.peak_bytes, account.when) == (0, 4000, "forward, step 0")


def test_storages_that_are_emptied_and_filled_again():
    with watching() as account:
        with account.memory("weights"):
            flat = torch.zeros(1000)
        parameter = torch.nn.Parameter(flat[:10])
        flat.untyped_storage().resize_(0)
        assert account.now["weights"] == 0
        flat.untyped_storage().resize_(4000)
        parameter.sum()
        assert account.now["weights"] == account.peak["weights"] == 4000


def test_what_is_made_by_hand_has_the_kind_that_is_said():
    with watching() as account:
        with account.memory("optimizer state"), account.memory("gradients"):
            flat = torch.zeros(10)
        torch.nn.Parameter(flat).mul(1)
        assert account.now == {"weights": 0, "gradients": 40, "optimizer state": 0, "activations": 0, "other": 0}


def test_what_dies_within_an_update_is_no_state():
    with watching() as account:
        parameter = torch.nn.Parameter(torch.zeros(1000))
        optimizer = torch.optim.AdamW([parameter], foreach=False)
        parameter.sum().backward()
        optimizer.step()
        assert account.now["optimizer state"] == 8004
        assert account.peak["optimizer state"] == 8004 and account.peak["other"] > 0
        assert account.when == "optimizer, step 0"


class Linear(torch.autograd.Function):
    """Gives the weight its gradient itself, as schedules that delay the weight's backward do."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        weight.grad = x.T @ gradient
        return gradient @ weight.T, None


@pytest.mark.parametrize("mode", [contextlib.nullcontext, FakeTensorMode])
def test_parameters_that_were_saved_are_themselves_in_backward(mode):
    with mode(), watching():
        weight = torch.nn.Parameter(torch.ones(3, 4))
        Linear.apply(torch.ones(2, 3, requires_grad=True), weight).sum().backward()
        assert weight.grad.shape == (3, 4)


def test_nothing_is_left_behind():
    resize = torch.UntypedStorage.resize_
    with watching():
        assert torch.UntypedStorage.resize_ is not resize
    assert torch.UntypedStorage.resize_ is resize
    assert "saved_tensors" not in vars(torch.autograd.function.BackwardCFunction)


def with_torch(rank, job):
    """Accounts of DDP without and with views of its buckets, of ZeroRedundancyOptimizer and of fully_shard."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    def ddp(job, view=True):
        model = DistributedDataParallel(job.model(), gradient_as_bucket_view=view)
        return model, job.optimizer(model.parameters())

    def zero1(job):
        model, _ = ddp(job)
        arguments = {"optimizer_class": job.optimizer_class, **job.optimizer_args}
        return model, ZeroRedundancyOptimizer(model.parameters(), **arguments)

    def fsdp(job):
        model = job.model()
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        return model, job.optimizer(model.parameters())

    def account_of(make):
        account = MemoryAccount("cpu")
        with account:
            model, optimizer = make(account.observe(job))
            for number, (tokens, targets) in enumerate(job.batches(2)):
                account.begin_step(number)
                job.loss(model(tokens), targets).backward()
                optimizer.step()
                optimizer.zero_grad()
                account.end_step()
        return account.before_update, account.peak

    return {
        make: account_of(one)
        for make, one in (("ddp", lambda job: ddp(job, False)), ("view", ddp), ("zero1", zero1), ("fsdp", fsdp))
    }


def test_what_torch_shards_on_two_ranks():
    job = small()
    p, counters = job.parameters, 4 * len(list(job.model().parameters()))
    accounts = labkit.launch(with_torch, job, world_size=2, device="cpu", live=False).results
    for one in accounts:
        held = {name: {kind: before[kind] for kind in before} for name, (before, _) in one.items()}
        for name in ("ddp", "view"):
            assert [held[name][kind] for kind in STATES] == [8 * p, 8 * p, 16 * p + counters]
        assert held["ddp"]["other"] - held["view"]["other"] == 8 * p  # the buckets, beside the gradients
        assert [held["fsdp"][kind] for kind in STATES] == [4 * p, 4 * p, 8 * p + counters]
        assert 4 * p < one["fsdp"][1]["weights"] < 12 * p  # its shard, and some layers in full
    assert sum(one["zero1"][0]["optimizer state"] for one in accounts) == 16 * p + counters
