"""What ranks send is counted, whoever calls: the learner, DDP, FSDP or a device mesh."""

import pytest
import torch
import torch.distributed as dist
from strategies import average

import labkit
from labkit.traffic import Traffic, wire_bytes


@pytest.mark.parametrize(
    "operation, payload, n, expected",
    [
        ("all_reduce", 1000, 4, 1500),
        ("all_reduce", 1000, 1, 0),
        ("all_gather", 1000, 4, 750),
        ("reduce_scatter", 800, 2, 400),
        ("all_to_all", 800, 8, 700),
        ("broadcast", 100, 2, 50),
        ("send", 64, 2, 64),
        ("recv", 64, 2, 0),
        ("barrier", 0, 2, 0),
    ],
)
def test_wire_bytes_follow_the_ring_convention(operation, payload, n, expected):
    assert wire_bytes(operation, payload, n) == pytest.approx(expected)


def every_call(rank):
    four, eight = torch.ones(4), torch.ones(8)
    dist.all_reduce(four)
    dist.all_reduce(four, async_op=True).wait()
    dist.broadcast(four, src=0)
    dist.all_gather([torch.empty(4) for _ in range(rank.world_size)], four)
    dist.all_gather_single(eight, four)
    dist.reduce_scatter_single(four, eight)
    dist.reduce_scatter_single(four, eight, async_op=True).wait()  # gloo gives it no future
    dist.all_to_all_single(torch.empty(8), eight)
    dist.barrier()
    rank.barrier()
    rank.mean(1.0)
    if rank.rank == 0:
        dist.send(eight, dst=1)
    else:
        dist.recv(eight, src=0)


def test_calls_and_payload_are_counted_exactly():
    first, second = labkit.launch(every_call, world_size=2).traffic
    assert first["all_reduce"] == Traffic(2, 32, 32.0)
    assert first["broadcast"] == Traffic(1, 16, 8.0)
    assert first["all_gather"] == Traffic(2, 64, 32.0)
    assert first["reduce_scatter"] == Traffic(2, 64, 32.0)
    assert first["all_to_all"] == Traffic(1, 32, 16.0)
    assert first["barrier"] == Traffic(1, 0, 0.0)
    assert first["send"] == Traffic(1, 32, 32.0) and "recv" not in first
    assert second["recv"] == Traffic(1, 32, 0.0) and "send" not in second


def libraries(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
    rank._recorder.clear()
    ddp(torch.randn(2, 10)).sum().backward()
    counts = {"ddp": dict(rank._recorder.counter.totals())}
    sharded = torch.nn.Linear(10, 10)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (rank.world_size,)))
    rank._recorder.clear()
    sharded(torch.randn(2, 10)).sum().backward()
    counts["fsdp"] = dict(rank._recorder.counter.totals())
    half = dist.new_group([0, 1])
    rank._recorder.clear()
    if rank.rank < 2:
        dist.all_reduce(torch.ones(6), group=half)
    counts["subgroup"] = dict(rank._recorder.counter.totals())
    counts["backend"] = dist.get_backend()
    return counts


def test_calls_made_inside_libraries_are_counted():
    counts = labkit.launch(libraries, world_size=3).results[0]
    assert counts["ddp"]["all_reduce"].payload_bytes == 440
    # FSDP2 pads each parameter to a multiple of the ranks: 12 rows of 10, and 12 numbers.
    assert counts["fsdp"]["all_gather"].payload_bytes == 4 * (120 + 12)
    assert counts["fsdp"]["reduce_scatter"].payload_bytes == 4 * (120 + 12)
    assert counts["subgroup"]["all_reduce"] == Traffic(1, 24, 24.0)
    assert counts["backend"] == "gloo"


def test_a_training_counts_its_steps_and_not_its_set_up():
    job = labkit.small_job()
    run = labkit.train(average, world_size=2, steps=5, job=job, live=False)
    parameters = sum(1 for _ in job.model().parameters())
    use = run.traffic[0]["all_reduce"]
    assert use.calls == 5 * (parameters + 1)
    assert use.payload_bytes == 5 * 8 * (job.parameters + 1)
    assert use.wire_bytes == use.payload_bytes
    assert "all_reduce" in str(run.traffic) and "computed" in str(run.traffic)


def asynchronous(rank):
    work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    with rank.span("backward", micro_batch=3):
        torch.ones(200, 200) @ torch.ones(200, 200)
    work.wait()
    dist.all_reduce(torch.ones(4))


def test_communication_leaves_spans():
    timeline = labkit.launch(asynchronous, world_size=2).timeline
    for rank in (0, 1):
        spans = [span for span in timeline.spans if span.rank == rank]
        assert [(s.stream, s.kind) for s in sorted(spans, key=lambda s: s.start_s)] == [
            ("communicate", "communicate"),
            ("compute", "backward"),
            ("compute", "wait"),
            ("communicate", "communicate"),
        ]
        assert all(span.end_s >= span.start_s for span in spans)
        first = min((s for s in spans if s.kind == "communicate"), key=lambda s: s.start_s)
        assert first.labels["bytes"] == 4 << 20
        assert next(s for s in spans if s.kind == "backward").labels == {"micro_batch": 3}
