"""trace: what a strategy would do, held against closed formulas and against the counters of real runs."""

import collections
import contextlib
import functools

import pytest
import torch
import torch.distributed as dist
from strategies import average, halves, recomputed
from torch.distributed.fsdp import fully_shard

import labkit
from labkit import hardware
from labkit.prediction import traffic_of
from labkit.replay import Deadlock, replay
from labkit.trace import NotTraceable, trace, trace_several
from labkit.trace_records import Collective, Kernel, Mark, Message, Wait
from labkit.traffic import Traffic
from labkit.training import one_device

JOB = labkit.small_job(blocks=2)
PIPELINE, DATA = labkit.notebook.load("06"), labkit.notebook.load("03")


@pytest.fixture(scope="module")
def traced():
    """Traces of all strategies of this file, made at once."""
    job = JOB
    requests = {
        "one device": (one_device, 1, job),
        "average": (average, 2, job),
        "uneven": (average, 3, job),
        "by hand": (functools.partial(DATA.data_parallel, bucket_bytes=100_000), 2, job),
        "ddp": (functools.partial(DATA.torch_ddp, bucket_bytes=200_000), 2, job),
        "pipeline": (PIPELINE.pipeline_parallel, 2, job),
        "zero bubble": (PIPELINE.zero_bubble_parallel, 2, job),
        "fsdp": (fully_sharded, 2, job),
        "recomputed": (recomputed, 1, job),
    }
    requests |= {name: (functools.partial(adamw, **{name: True}), 1, job) for name in ("foreach", "fused")}
    with_memory = ("average", "fsdp")
    found = trace_several([requests[name] for name in requests if name not in with_memory], with_memory=False)
    found += trace_several([requests.pop(name) for name in with_memory])
    return dict(zip((*requests, *with_memory), found, strict=True))


def fully_sharded(rank, job):
    model = job.model().to(rank.device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = job.optimizer(model.parameters())
    share = job.batch_size // rank.world_size

    def step(tokens, targets):
        mine = slice(rank.rank * share, (rank.rank + 1) * share)
        loss = job.loss(model(tokens[mine]), targets[mine])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach() / rank.world_size
        dist.all_reduce(loss)
        return loss

    return step


def adamw(rank, job, **form):
    model = job.model().to(rank.device)
    optimizer = torch.optim.AdamW(model.parameters(), **form)

    def step(tokens, targets):
        loss = job.loss(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def step_flops(job):
    return job.flops_per_token * job.tokens_per_step


class TestCosts:
    def test_flops_are_those_of_the_closed_formula(self, traced):
        job = JOB
        assert traced["one device"][0].flops == step_flops(job)
        assert [one.flops for one in traced["average"]] == [step_flops(job) // 2] * 2
        assert sum(one.flops for one in traced["pipeline"]) == step_flops(job)
        assert sum(one.flops for one in traced["zero bubble"]) == step_flops(job)
        assert [one.flops * job.batch_size // step_flops(job) for one in traced["uneven"]] == [2, 3, 3]

    def test_recomputing_adds_the_blocks_forward_without_its_last_linear(self, traced):
        job = JOB
        forward = 2 * 12 * job.blocks * job.d_model**2 + 4 * job.blocks * job.d_model * job.seq_len
        last = 2 * 4 * job.blocks * job.d_model**2  # what mlp.down gives is not needed for its gradient
        assert traced["recomputed"][0].flops == step_flops(job) + (forward - last) * job.tokens_per_step

    def test_every_kernel_of_one_device_is_there(self, traced):
        job, kernels = JOB, traced["one device"][0].only(Kernel)
        linears = 6 * job.blocks + 1
        products = collections.Counter(kernel.phase for kernel in kernels if kernel.name == "matmul")
        assert products == {"forward": linears, "backward": 2 * linears}
        attention = [kernel for kernel in kernels if kernel.name.startswith("attention")]
        assert {kernel.shape for kernel in attention} == {(job.batch_size, job.heads, 32, 32, 16)}
        assert all(kernel.causal for kernel in attention) and len(attention) == 2 * job.blocks

    def test_bytes_of_an_addition_are_those_it_reads_and_writes(self, traced):
        job, kernels = JOB, traced["one device"][0].only(Kernel)
        activation = job.tokens_per_step * job.d_model * 8
        sums = [kernel.moved_bytes for kernel in kernels if kernel.name == "add" and kernel.phase == "forward"]
        assert sums == [2 * activation + job.seq_len * job.d_model * 8, *[3 * activation] * 2 * job.blocks]

    def test_fused_forms_of_the_optimizer_are_fewer_kernels(self, traced):
        kernels = [traced[name][0].only(Kernel) for name in ("one device", "foreach", "fused")]
        counts = [sum(kernel.phase == "optimizer" for kernel in one) for one in kernels]
        assert counts[0] > 10 * counts[1] > 10 * counts[2] > 0

    def test_autocast_computes_in_bfloat16_and_updates_in_float32(self):
        job = JOB.replace(dtype=torch.bfloat16)
        kernels = trace(one_device, world_size=1, job=job)[0].only(Kernel)
        assert {kernel.dtype for kernel in kernels if kernel.shape} == {"bfloat16"}
        assert {kernel.dtype for kernel in kernels if kernel.phase == "optimizer"} == {"float32"}


class TestCommunication:
    @pytest.mark.parametrize("name", ["average", "by hand", "ddp", "pipeline", "fsdp"])
    def test_traffic_is_that_of_a_real_run(self, traced, name):
        strategy = {
            "average": average,
            "by hand": functools.partial(DATA.data_parallel, bucket_bytes=100_000),
            "ddp": functools.partial(DATA.torch_ddp, bucket_bytes=200_000),
            "pipeline": PIPELINE.pipeline_parallel,
            "fsdp": fully_sharded,
        }[name]
        steps = (1, 2) if name == "ddp" else (1,)  # DDP makes its buckets anew after its first step
        runs = [labkit.train(strategy, world_size=2, steps=n, job=JOB, live=False).traffic for n in steps]
        for rank, one in enumerate(traced[name]):
            counted = dict(runs[-1][rank])
            if name == "ddp":
                assert counted.pop("broadcast").calls > 0  # of the new buckets
                first = runs[0][rank]["all_reduce"]
                both = counted["all_reduce"]
                counted["all_reduce"] = Traffic(
                    both.calls - first.calls, both.payload_bytes - first.payload_bytes, both.wire_bytes - first.wire_bytes
                )
            assert traffic_of(one) == counted

    def test_what_is_asynchronous_is_waited_for_later(self, traced):
        entries = traced["by hand"][0].entries
        buckets = [entry for entry in entries if isinstance(entry, Collective)]
        waited = [entry.ids[0] for entry in entries if isinstance(entry, Wait)]
        assert all(entry.asynchronous for entry in buckets)
        assert sorted(waited) == sorted(entry.id for entry in buckets)
        last_backward = max(at for at, entry in enumerate(entries) if isinstance(entry, Kernel) and entry.phase == "backward")
        assert entries.index(buckets[1]) < last_backward < min(at for at, one in enumerate(entries) if isinstance(one, Wait))

    def test_ddp_sends_bucket_by_bucket_while_backward_computes(self, traced):
        entries = traced["ddp"][0].entries
        first = next(at for at, entry in enumerate(entries) if isinstance(entry, Collective) and entry.payload_bytes > 8)
        assert any(isinstance(entry, Kernel) and entry.flops for entry in entries[first:])

    def test_calls_of_one_collective_have_the_same_key_on_all_ranks(self, traced):
        keys = [[entry.key for entry in one.only(Collective)] for one in traced["average"]]
        assert keys[0] == keys[1] and len(set(keys[0])) == len(keys[0])
        assert {key[0] for key in keys[0]} == {(0, 1)}

    def test_messages_name_their_peers_and_spans_their_micro_batches(self, traced):
        first, last = traced["pipeline"]
        assert {(one.operation, one.peer) for one in first.only(Message)} == {("send", 1), ("recv", 1)}
        assert [one.tag for one in first.only(Message) if one.operation == "send"] == [
            one.tag for one in last.only(Message) if one.operation == "recv"
        ]
        begun = [one.labels["micro_batch"] for one in first.only(Mark) if one.kind == "forward" and one.begins]
        assert begun == [0, 1, 2, 3]

    def test_ranks_that_do_the_same_share_their_entries(self):
        same = trace(average, world_size=8, job=JOB)
        assert all(one.entries is same[0].entries for one in same) and [one.rank for one in same] == list(range(8))
        with_shares = trace(average, world_size=3, job=JOB)
        assert [one.flops // with_shares[0].flops for one in with_shares] == [1, 1, 1]
        assert with_shares[1].entries == with_shares[2].entries != with_shares[0].entries

    def test_a_deadlock_is_found_before_any_run(self):
        traces = trace(both_send_first, world_size=2, job=JOB)
        with pytest.raises(Deadlock, match="rank 0.*send.*rank 1.*send"):
            replay(traces, hardware.RTX4090_SERVER)


def both_send_first(rank, job):
    step = one_device(rank, job)

    def exchange(tokens, targets):
        mine = torch.zeros(4)
        dist.send(mine, 1 - rank.rank)
        dist.recv(mine, 1 - rank.rank)
        return step(tokens, targets)

    return exchange


class TestMemory:
    def test_model_states_are_sixteen_bytes_a_parameter(self, traced):
        parameters = JOB.parameters
        peak = traced["average"][0].peak_bytes
        assert peak["weights"] == 8 * parameters
        count_of_steps = 4 * len(list(JOB.model().parameters()))  # float32, one for each parameter
        assert peak["optimizer state"] == 2 * 8 * parameters + count_of_steps

    def test_sharded_states_are_halved(self, traced):
        parameters = JOB.parameters
        for one in traced["fsdp"]:
            assert one.peak_bytes["optimizer state"] == pytest.approx(8 * parameters, rel=0.01)

    def test_seven_billion_parameters_need_no_memory(self):
        job = labkit.job(device="cuda", blocks=8, d_model=8192, heads=64, seq_len=2048, batch_size=8)
        one, *others = trace(average, world_size=8, job=job)
        assert len(others) == 7 and job.parameters > 6.8e9
        assert one.peak_bytes["weights"] == 4 * job.parameters
        assert one.flops * 8 == step_flops(job)


def reads(rank, job):
    step = one_device(rank, job)

    def read(tokens, targets):
        loss = step(tokens, targets)
        if loss > 3:
            loss = loss / 2
        return loss

    return read


def routes(rank, job):
    step = one_device(rank, job)

    def route(tokens, targets):
        tokens[tokens > 3].sum()
        return step(tokens, targets)

    return route


def looks_inside(rank, job):
    step = one_device(rank, job)

    def look(tokens, targets):
        return step(tokens, targets).numpy()

    return look


class TestRefusals:
    @pytest.mark.parametrize(
        "strategy, reason, line",
        [
            (reads, "reads the value", "if loss > 3"),
            (routes, "depends on values", "tokens[tokens > 3]"),
            (looks_inside, "reads the value", ".numpy()"),
            (PIPELINE.torch_pipeline, "torch's pipelining reads values", "runner.step("),
        ],
    )
    def test_what_needs_values_is_named_with_its_line(self, strategy, reason, line):
        with pytest.raises(NotTraceable, match=f"{strategy.__name__} is not traceable.*{reason}") as caught:
            trace(strategy, world_size=2, job=JOB)
        assert line in source_of(caught.value.line)

    def test_a_strategys_own_refusal_is_passed_on(self):
        with pytest.raises(ValueError, match="2 blocks do not fill 8 parts; use at most 2") as caught:
            trace(PIPELINE.pipeline_parallel, world_size=8, job=JOB)
        assert not isinstance(caught.value, NotTraceable)

    def test_what_else_a_strategy_raises_names_the_rank(self):
        def divides(rank, job):
            return 1 / (1 - rank.rank)

        with pytest.raises(labkit.RankError, match="rank 1 raised ZeroDivisionError"):
            trace(divides, world_size=2, job=JOB, ranks=[1])

    def test_wrong_requests_are_refused_before_anything_starts(self):
        with pytest.raises(TypeError, match="a strategy is a function"):
            trace(3, world_size=2)
        with pytest.raises(ValueError, match="world_size is 0"):
            trace(average, world_size=0)
        with pytest.raises(ValueError, match="no rank 2 among 2 ranks"):
            trace(average, world_size=2, ranks=[2])

    def test_this_process_keeps_its_own_torch(self):
        trace(halves, world_size=2, job=JOB, ranks=[0])
        assert not dist.is_initialized() and torch.ones(1).item() == 1
        with contextlib.suppress(ValueError):
            assert type(torch.ones(1)) is torch.Tensor


def source_of(line):
    """The source at "file.py, line 3" or "x.ipynb, cell 7, line 3"."""
    import linecache

    place, _, number = line.rpartition(", line ")
    names = [name for name in linecache.cache if name.endswith(place)] or [__file__]
    return linecache.getline(names[0], int(number))
