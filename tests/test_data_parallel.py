"""The strategies of notebook 03: equal to one device, with the traffic of the formula; and wrong ones, refused with the cause."""

import re
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DistributedSampler

import labkit
from labkit.notebook import find, load, strategy_cells

NAME = "03_data_parallel"
lesson = load(NAME)
SMALL_BUCKETS = 2**18
ALL = {
    "per_parameter": lesson.per_parameter,
    "flat": lesson.flat,
    "data_parallel": lesson.data_parallel,
    "small buckets": partial(lesson.data_parallel, bucket_bytes=SMALL_BUCKETS),
    "bucket per parameter": partial(lesson.data_parallel, bucket_bytes=1),
    "torch_ddp": lesson.torch_ddp,
    "torch_ddp, accumulating": partial(lesson.torch_ddp, micro_batches=2),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*CPU cores")


@pytest.mark.parametrize("name", ["data_parallel", "torch_ddp"])
@pytest.mark.parametrize("world_size, rows", [(1, 7), (2, 8), (2, 7), (3, 7), (4, 7), (4, 3)])
def test_equals_one_device(name, world_size, rows):
    same = labkit.parity(ALL[name], world_size=world_size, job=labkit.small_job(batch_size=rows))
    assert same, same.diagnosis
    assert same.max_error < 1e-11


@pytest.mark.parametrize("name", sorted(set(ALL) - {"data_parallel", "torch_ddp"}))
def test_every_way_equals_one_device(name):
    same = labkit.parity(ALL[name], world_size=2, job=labkit.small_job(batch_size=7))
    assert same, same.diagnosis


@pytest.mark.parametrize("name", ["flat", "data_parallel", "torch_ddp"])
@pytest.mark.parametrize("changes", [{"tied": True}, {"frozen": ("embed", "blocks.1")}], ids=str)
def test_tied_and_frozen_weights(name, changes):
    assert labkit.parity(ALL[name], world_size=2, job=labkit.small_job(batch_size=6, blocks=2, **changes))


def changed(old, new):
    """The notebook's definitions with one piece of source replaced everywhere."""
    source = "\n\n".join(source for _, source in strategy_cells(find(NAME)))
    assert old in source, f"the notebook has changed: there is no {old!r}"
    namespace = {"__name__": "changed_notebook_03"}
    exec(compile(source.replace(old, new), "changed notebook 03", "exec"), namespace)
    return SimpleNamespace(**namespace)


LOSS = "loss = share * job.loss(model(tokens), targets)\n        total = loss.detach().clone()"
CALL = "self.works.append(dist.all_reduce(self.flats[len(self.works)], async_op=True))"
LATE = "__import__('time').sleep(0.2 * dist.get_rank() * (len(self.works) == len(self.flats) - 1))\n            "
WAIT = "        for work in self.works:\n            work.wait()\n"
OLD_CONTENTS = WAIT + (
    "        self.old, old = self.flats[0].clone(), getattr(self, 'old', None)\n"
    "        if old is not None:\n"
    "            self.flats[0].copy_(old)\n"
)
WRONG = {
    "no communication": (
        ("self.flats[len(self.works)], async_op", "self.flats[len(self.works)].clone(), async_op"),
        "at the first update, the replicas differ: every gradient is that of a rank's own data",
    ),
    "sum for mean": (
        (LOSS, "loss = job.loss(model(tokens), targets)\n        total = share * loss.detach()"),
        "at the first update, gradients are off by the factor N = 2: a sum where a mean belongs",
    ),
    "mean taken twice": (
        (CALL, CALL.replace("async_op", "op=dist.ReduceOp.AVG, async_op")),
        "gradients are off by the factor 1/N = 1/2",
    ),
    "loss not added up": (
        ("work = dist.all_reduce(total, async_op=True)\n        with", "work = dist.barrier(async_op=True)\n        with"),
        "the loss is off by the factor 1/N = 1/2",
    ),
    "another seed per rank": (
        ("model = job.model()", "model = job.replace(seed=job.seed + rank.rank).model()"),
        "rank 1 starts from other weights than one device: another seed per rank",
    ),
    "stale bucket: the last step's contents": (
        (WAIT, OLD_CONTENTS),
        r"from update 2 on, the first 1 were right, \d+ of 57 gradients are the same on all ranks but not .* a stale bucket",
    ),
    "stale bucket: not waited for": (
        (CALL, LATE + CALL),
        r"the replicas differ in \d+ of 57 gradients, .* was used before its all_reduce had ended",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_strategy_is_refused_with_its_cause(kind):
    replaced, cause = WRONG[kind]
    namespace = changed(*replaced)
    if kind.endswith("not waited for"):
        namespace.Buckets.wait = lambda self: [work.wait() for work in self.works[:-1]]
    found = labkit.parity(partial(namespace.data_parallel, bucket_bytes=SMALL_BUCKETS))
    assert not found
    assert re.search(cause, found.diagnosis), found.diagnosis


def test_ddp_without_the_factor_n_is_refused():
    namespace = changed("(rank.world_size * loss).backward()", "loss.backward()")
    assert "off by the factor 1/N = 1/2" in labkit.parity(namespace.torch_ddp).diagnosis


def test_alone_is_refused():
    assert "a rank's own slice" in labkit.parity(lesson.alone).diagnosis
    assert labkit.holdings(lesson.alone).replicated("weights") == 0
    assert labkit.holdings(lesson.data_parallel).replicated("weights") == 1


def steps(strategy, *, world_size=2, job=None, count=2):
    return labkit.train(strategy, world_size=world_size, steps=count, job=job or labkit.small_job(), device="cpu", live=False)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("bucket_bytes", [1, SMALL_BUCKETS, 25 * 2**20])
def test_traffic_is_that_of_the_formula(bucket_bytes, world_size):
    """In each step a call per bucket and one for the loss; in all P + 1 numbers of 8 bytes, sent round a ring."""
    job = labkit.small_job(batch_size=7)
    sizes = [parameter.numel() for parameter in job.model().parameters()]
    calls = len(lesson.into_buckets(job.model().parameters(), bucket_bytes)) + 1
    payload = 8 * (sum(sizes) + 1)
    run = steps(partial(lesson.data_parallel, bucket_bytes=bucket_bytes), world_size=world_size, job=job)
    for sent in run.traffic:
        assert set(sent) == {"all_reduce"}
        assert (sent["all_reduce"].calls, sent["all_reduce"].payload_bytes) == (2 * calls, 2 * payload)
        assert sent["all_reduce"].wire_bytes == pytest.approx(2 * payload * 2 * (world_size - 1) / world_size)
    assert bucket_bytes > 1 or calls == len(sizes) + 1


@pytest.mark.parametrize("name, calls", [("per_parameter", 58), ("flat", 2), ("torch_ddp", 2)])
def test_every_way_sends_the_same_bytes(name, calls):
    job = labkit.small_job()
    sent = steps(ALL[name], job=job, count=1).traffic[0]["all_reduce"]
    assert (sent.calls, sent.payload_bytes) == (calls, 8 * (job.parameters + 1))


def test_only_the_last_micro_batch_communicates():
    calls = [
        steps(partial(lesson.torch_ddp, micro_batches=4, sync_each=each), count=1).traffic[0]["all_reduce"].calls
        for each in (False, True)
    ]
    assert calls == [2, 5]


def test_buckets_begin_during_backward_and_the_flat_call_after_it():
    bucketed = steps(ALL["small buckets"]).timeline
    calls = len(lesson.into_buckets(labkit.small_job().model().parameters(), SMALL_BUCKETS)) + 1
    assert calls > 4
    assert [bucketed.overlapped(rank) for rank in (0, 1)] == [(2 * calls, 2 * calls)] * 2
    assert [steps(lesson.flat).timeline.overlapped(rank) for rank in (0, 1)] == [(0, 4)] * 2


@pytest.mark.parametrize("bucket_bytes", [1, 10_000, SMALL_BUCKETS, 25 * 2**20])
def test_buckets_hold_every_trained_parameter_once_from_the_last_to_the_first(bucket_bytes):
    model = labkit.small_job(frozen="embed").model()
    buckets = lesson.into_buckets(model.parameters(), bucket_bytes)
    wanted = [id(parameter) for parameter in model.parameters() if parameter.requires_grad][::-1]
    assert [id(parameter) for bucket in buckets for parameter in bucket] == wanted
    sizes = [sum(parameter.numel() * parameter.element_size() for parameter in bucket) for bucket in buckets]
    assert all(size <= bucket_bytes or len(bucket) == 1 for size, bucket in zip(sizes, buckets, strict=True))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_rows_are_those_of_the_distributed_sampler(world_size):
    rows = torch.arange(8)
    for number in range(world_size):
        rank = SimpleNamespace(rank=number, world_size=world_size)
        mine, targets, share = lesson.my_rows(rank, rows, rows + 1)
        assert mine.tolist() == list(DistributedSampler(rows, num_replicas=world_size, rank=number, shuffle=False))
        assert (targets.tolist(), share) == ((mine + 1).tolist(), 1 / world_size)


def test_uneven_rows_are_all_there_once():
    rows = torch.arange(7)
    for world_size in range(1, 10):
        parts = [lesson.my_rows(SimpleNamespace(rank=r, world_size=world_size), rows, rows) for r in range(world_size)]
        assert sorted(row for mine, _, share in parts if share for row in mine.tolist()) == rows.tolist()
        assert sum(share for *_, share in parts) == pytest.approx(1)
        assert all(len(mine) for mine, *_ in parts)
