"""What counts as progress, with a clock, CPU times and a shared page that the test sets."""

import types

import pytest

from labkit import process_table
from labkit.progress import Progress

POLLING = 0.004  # the share of a core that an idle rank of gloo was measured to use


class Ranks:
    """Stand-ins for a run's listener, its shared page and the process table, on a clock of their own."""

    def __init__(self, world_size, monkeypatch):
        self.states = [self.state(rank) for rank in range(world_size)]
        self.heard_at, self.now = 0.0, 0.0
        self.rows, self.waits, self.outstanding = [0] * world_size, [None] * world_size, [None] * world_size
        self.cpu_s, self.worker_cpu_s = [0.0] * world_size, [0.0] * world_size
        monkeypatch.setattr(process_table, "process", lambda pid: self.found(pid, pid, self.cpu_s[pid]))
        monkeypatch.setattr(process_table, "processes", self.table)
        monkeypatch.setattr("labkit.progress.time", types.SimpleNamespace(monotonic=lambda: self.now))

    def state(self, rank):
        return types.SimpleNamespace(rank=rank, pid=rank, result=None, ended=False, memory_bytes=0)

    def found(self, pid, session, cpu_s):
        return process_table.Process(pid, -1, session, cpu_s, 1000 + pid, 0, False)

    def table(self):
        workers = [self.found(100 + rank, rank, seconds) for rank, seconds in enumerate(self.worker_cpu_s)]
        return [self.found(rank, rank, seconds) for rank, seconds in enumerate(self.cpu_s)] + workers

    def row(self, rank):
        return self.rows[rank]

    def waiting_in(self, rank):
        return self.waits[rank] or self.outstanding[rank]

    def blocked(self, rank):
        return self.waits[rank] is not None

    def pass_time(self, progress, seconds, each=lambda: None, ask="idle_s"):
        """Lets time pass in turns of 0.1 s, each rank polling; returns the last answer of progress."""
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.cpu_s = [used + 0.1 * POLLING for used in self.cpu_s]
            each()
            answer = getattr(progress, ask)(self.now)
        return answer


@pytest.fixture
def ranks(monkeypatch):
    return Ranks(3, monkeypatch)


def watch(ranks, on_cuda=False, timeout_s=60):
    return Progress(ranks, ranks, timeout_s, on_cuda=on_cuda)


def test_polling_is_no_progress(ranks):
    assert ranks.pass_time(watch(ranks), 100) > 98


def test_a_computation_is_progress(ranks):
    def compute():
        ranks.cpu_s[1] += 0.02  # a rank that gets a fifth of a core

    assert ranks.pass_time(watch(ranks), 100, compute) < 2


def test_a_computation_inside_a_collective_is_none(ranks):
    """NCCL's host thread spins while it waits."""

    def spin():
        ranks.cpu_s[1] += 0.1

    ranks.waits = ["all_reduce"] * 3
    assert ranks.pass_time(watch(ranks), 100, spin) > 98


def test_work_of_a_process_that_the_rank_started_is_progress(ranks):
    def work():
        ranks.worker_cpu_s[2] += 0.05

    assert ranks.pass_time(watch(ranks), 100, work) < 3


def test_collectives_and_messages_are_progress(ranks):
    def communicate():
        ranks.rows[0] += 1

    def speak():
        ranks.heard_at = ranks.now

    ranks.waits = ["all_reduce"] * 3
    assert ranks.pass_time(watch(ranks), 10, communicate) < 1
    assert ranks.pass_time(watch(ranks), 10, speak) < 1


def test_a_picture_that_took_long_is_progress(ranks):
    progress = watch(ranks)
    assert ranks.pass_time(progress, 50) > 48
    progress.note(ranks.now)
    assert ranks.pass_time(progress, 1) < 1.2


def test_the_memory_of_ranks_is_seen(ranks):
    ranks.pass_time(watch(ranks), 1)
    assert [state.memory_bytes for state in ranks.states] == [1000, 1001, 1002]


def test_lonely_are_ranks_that_wait_for_one_that_has_returned(ranks):
    progress = watch(ranks)
    ranks.waits = ["all_reduce", None, "all_reduce"]
    assert not ranks.pass_time(progress, 10, ask="lonely")
    ranks.states[1].result = b""
    assert not ranks.pass_time(progress, 0.8, ask="lonely")
    assert ranks.pass_time(progress, 0.5, ask="lonely")


def test_a_rank_that_computes_while_a_collective_is_outstanding(ranks):
    """DDP's buckets on CPU; on a GPU the host may be through while the GPU waits in NCCL, at full load."""

    def compute():
        ranks.cpu_s = [used + 0.1 for used in ranks.cpu_s]

    ranks.outstanding = ["all_reduce"] * 3
    assert ranks.pass_time(watch(ranks), 100, compute) < 1
    assert ranks.pass_time(watch(ranks, on_cuda=True), 100, compute) > 98


def test_a_rank_that_waits_in_compiled_code_may_be_lonely(ranks):
    progress = watch(ranks)
    ranks.outstanding, ranks.states[1].result = ["all_reduce", None, "all_reduce"], b""
    assert ranks.pass_time(progress, 2, ask="lonely")


def test_ranks_of_which_one_computes_are_not_lonely(ranks):
    progress = watch(ranks)
    ranks.waits, ranks.states[1].result = ["all_reduce", None, None], b""
    assert not ranks.pass_time(progress, 10, ask="lonely")


@pytest.mark.parametrize("on_cuda", [False, True])
def test_data_that_still_arrive_show_in_the_cpu_time_of_gloo_but_not_of_nccl(ranks, on_cuda):
    def receive():
        ranks.cpu_s[0] += 0.02

    progress = watch(ranks, on_cuda)
    ranks.waits, ranks.states[1].result = ["recv", None, "recv"], b""
    assert ranks.pass_time(progress, 10, receive, ask="lonely") is on_cuda
