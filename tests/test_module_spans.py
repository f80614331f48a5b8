"""Spans of strategies that make none: what is timed, which micro-batch it was, and that nothing is timed twice."""

import copy
from itertools import pairwise

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import Schedule1F1B, ScheduleInterleaved1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import labkit
from labkit.module_spans import timed
from labkit.notebook import load
from labkit.recorder import Recorder
from labkit.schedule import interleaved, one_f_one_b

lesson = load("06_pipeline_parallel")
JOB = labkit.small_job(blocks=2, d_model=16, heads=2, seq_len=8)


@pytest.fixture
def recorder():
    return Recorder(0, torch.device("cpu"))


def spans_of(recorder, name=""):
    """(kind, name, micro-batch) of each span, in the order of their starts."""
    rows = sorted(recorder.rows(), key=lambda row: row[4])
    assert all(one[5] <= other[4] for one, other in pairwise(rows)), "spans overlap"
    return [(kind, name, labels.get("micro_batch")) for _, _, kind, name, _, _, labels in rows]


def test_a_step_without_spans_of_its_own_is_timed(recorder):
    (batch,) = JOB.batches(1)
    with timed(JOB, recorder) as job:
        assert job.replace(batch_size=4).batch_size == 4 and str(job) == str(JOB)
        model = copy.deepcopy(job.model())
        optimizer = job.optimizer(model.parameters())
        for tokens, targets in zip(*(tensor.chunk(4) for tensor in batch)):
            job.loss(model(tokens), targets).backward()
        optimizer.step()
        with torch.no_grad():
            model(batch[0])
    each = [("forward", "forward"), ("forward", "loss"), ("backward", "backward")]
    expected = [(*one, number) for number in range(4) for one in each]
    assert spans_of(recorder) == [*expected, ("optimizer", "optimizer", None), ("forward", "forward", None)]
    optimizer.step()
    assert len(recorder.rows()) == len(expected) + 2, "what is outside of `timed` leaves nothing"


def test_one_call_for_the_whole_batch_has_no_number(recorder):
    (batch,) = JOB.batches(1)
    with timed(JOB, recorder) as job:
        model = job.model()
        job.loss(model(batch[0]), batch[1]).backward()
    assert spans_of(recorder) == [("forward", "forward", None), ("forward", "loss", None), ("backward", "backward", None)]


def test_what_a_strategy_times_itself_is_left_alone(recorder):
    (batch,) = JOB.batches(1)
    rank = labkit.Rank(0, 1, torch.device("cpu"), recorder=recorder, status=None, send=None, make_control_group=None)
    with timed(JOB, recorder) as job:
        model = job.model()
        optimizer = job.optimizer(model.parameters())
        loss = job.loss(model(batch[0]), batch[1])
        with rank.span("backward", "my own"):
            loss.backward()
        optimizer.step()
    assert spans_of(recorder) == [("backward", "my own", None), ("optimizer", "optimizer", None)]


def test_parts_that_are_called_alone_and_recomputed(recorder):
    """A checkpoint's second forward is part of the backward, even though it breaks off before its end."""
    (batch,) = JOB.batches(1)
    with timed(JOB, recorder) as job:
        model = job.model()
        for _ in range(2):
            x = model.embed(batch[0])
            for block in model.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            job.loss(model.head(x), batch[1]).backward()
    forwards = [("forward", name, None) for name in ("forward",) * 4 + ("loss",)]
    assert spans_of(recorder) == [*forwards, ("backward", "backward", None)] * 2


@pytest.mark.parametrize("chunks", [1, 2])
def test_torch_pipelines_do_what_their_schedule_lists(chunks):
    """Not in the first step, in which torch finds out the shapes with one more forward and backward."""
    kinds = {1: Schedule1F1B, 2: ScheduleInterleaved1F1B}
    plan = one_f_one_b(2, 4) if chunks == 1 else interleaved(2, 4, 2)

    def strategy(rank, job):
        return lesson.torch_pipeline(rank, job, schedule=kinds[chunks], chunks=chunks)

    run = labkit.train(strategy, world_size=2, steps=2, job=labkit.small_job(), device="cpu", live=False)
    for rank in (0, 1):
        spans = [one for one in run.timeline.only(rank=rank, step=1, stream="compute").spans if one.kind != "wait"]
        assert spans[-1].kind == "optimizer"
        done = [(one.kind, one.labels["micro_batch"], one.labels.get("chunk", 0)) for one in spans[:-1] if one.name != "loss"]
        planned = [(one.kind, one.micro_batch, one.chunk) for one in plan[rank]]
        assert sorted(done) == sorted(planned)
        assert done == planned or chunks == 2  # torch's interleaved order warms up differently
        assert all("micro_batch" not in one.labels for one in run.timeline.only(rank=rank, step=0).spans)
    if chunks == 1:
        timeline = run.timeline.only(step=1)
        assert [timeline.live_micro_batches(stage) for stage in (0, 1)] == [2, 1]
    assert 0 < run.timeline.bubble < 1


def ddp_then_fsdp(rank, job):
    """Both in one run: a step of the one, then a step of the other."""
    ddp, sharded = DistributedDataParallel(job.model()), job.model()
    for module in (*sharded.blocks, sharded):
        fully_shard(module)
    steps = iter([ddp, sharded])

    def step(tokens, targets):
        model = next(steps)
        optimizer = job.optimizer(model.parameters())
        rows = slice(4 * rank.rank, 4 * rank.rank + 4)
        loss = job.loss(model(tokens[rows]), targets[rows])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def test_data_parallel_of_libraries_is_timed_with_its_communication():
    run = labkit.train(ddp_then_fsdp, world_size=2, steps=2, job=JOB, device="cpu", live=False)
    for rank in (0, 1):
        for step, sent in ((0, {"all_reduce"}), (1, {"all_gather", "reduce_scatter"})):
            timeline = run.timeline.only(rank=rank, step=step)
            computing = [one for one in timeline.spans if one.stream == "compute" and one.kind != "wait"]
            assert [one.name for one in computing] == ["forward", "loss", "backward", "optimizer"]
            assert {one.name for one in timeline.only(kind="communicate").spans} >= sent
