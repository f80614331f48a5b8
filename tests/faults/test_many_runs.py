"""Runs one after the other and at the same time do not disturb each other, and use nothing up."""

import os
import shutil
import subprocess
import sys
import threading
import time

import pytest
import survivors
import torch
import torch.distributed as dist

import labkit
from labkit import process_table, server_link, session
from labkit.launcher import run_ranks


def test_twenty_runs_in_a_row():
    def held():
        return len(os.listdir("/proc/self/fd")), process_table.children(os.getpid()), threading.active_count()

    def count(rank):
        return rank.mean(rank.rank)

    kept = [labkit.launch(count, world_size=2, live=False)]
    before = held()
    kept += [labkit.launch(count, world_size=2, live=False) for _ in range(20)]
    assert held() == before
    assert [run.results for run in kept] == [(0.5, 0.5)] * 21
    server = f"/proc/{server_link._link.process.pid}"
    assert len(os.listdir(f"{server}/fd")) < 20
    assert len(os.listdir(f"{server}/task")) == 1  # a fork of several threads would not be safe


def test_a_private_directory_that_was_cleaned_up_is_made_anew():
    labkit.launch(lambda rank: rank.rank, world_size=2)
    gone = server_link._link.directory
    shutil.rmtree(gone)
    assert labkit.launch(lambda rank: rank.rank, world_size=2).results == (0, 1)
    assert server_link._link.directory != gone


def test_a_working_directory_that_was_removed_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(FileNotFoundError, match="this process's working directory no longer exists; os.chdir to one that does"):
        labkit.launch(lambda rank: rank.rank, world_size=2)


def test_failed_runs_in_a_row():
    def wrong(rank):
        raise ValueError("always")

    kept = []
    for _ in range(5):
        with pytest.raises(labkit.RankError) as caught:
            labkit.launch(wrong, world_size=2, live=False)
        kept.append((caught.value, len(os.listdir("/proc/self/fd"))))
    assert len({descriptors for _, descriptors in kept}) == 1
    assert {str(error) for error, _ in kept} == {"rank 0 raised ValueError: always"}


def test_what_a_rank_leaves_behind_goes_with_the_run():
    """A process in its group, one in a session of its own, and one that belongs to nobody any more."""

    def leave(rank):
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        subprocess.Popen(sleep)
        subprocess.Popen(sleep, start_new_session=True)
        subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.Popen({sleep}, start_new_session=True)"])
        return rank.rank

    assert labkit.launch(leave, world_size=2, live=False).results == (0, 1)
    assert survivors.survivors() == set()


def test_two_threads_of_one_kernel():
    def meet(rank, start):
        return rank.mean(start + rank.rank)

    def many(start):
        results[start] = [labkit.launch(meet, start, world_size=2, live=False).results for _ in range(5)]

    results = {}
    threads = [threading.Thread(target=many, args=(start,)) for start in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {start: [(start + 0.5,) * 2] * 5 for start in (0, 100, 200)}


def test_a_failure_in_one_thread_leaves_the_run_of_another_alone(moment):
    def wrong(rank):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        raise ValueError("this one")

    def fine(rank):
        for _ in range(40):
            rank.mean(1.0)
            moment.note()
            threading.Event().wait(0.05)
        return "fine"

    results = []
    thread = threading.Thread(target=lambda: results.append(labkit.launch(fine, world_size=2, live=False).results))
    thread.start()
    moment.wait()
    its_ranks = survivors.survivors()
    for _ in range(3):
        with pytest.raises(labkit.RankError, match="this one"):
            labkit.launch(wrong, world_size=2, live=False)
        assert survivors.survivors() == its_ranks
    assert thread.is_alive()
    thread.join()
    assert results == [("fine", "fine")]


class Gate:
    """A view like a race's: it draws, for `cost_s`, while the ranks wait for it."""

    def __init__(self, cost_s):
        self.cost_s, self.drawn = cost_s, False

    def tick(self, session):
        if self.drawn or len(session.records) < 2:
            return False
        time.sleep(self.cost_s)
        if self.cost_s == 0:
            raise LookupError("no such colour")
        self.drawn = True
        session.status.open_gate(1)
        return True

    def close(self, session, failure):
        self.failure = failure


def wait_at_the_gate(rank):
    rank.log(ready=1)
    while rank._status.gate < 1:
        time.sleep(0.1)
    return "through"


def test_ranks_that_wait_for_a_slow_picture_do_not_hang():
    run = run_ranks(wait_at_the_gate, (), {}, world_size=2, timeout=1, view=Gate(cost_s=1.5), live=False)
    assert run.results == ("through", "through")


def test_a_picture_that_fails_ends_the_ranks():
    with pytest.raises(LookupError, match="no such colour"):
        run_ranks(wait_at_the_gate, (), {}, world_size=2, view=Gate(cost_s=0), live=False)
    assert survivors.survivors() == set()


def test_one_rank():
    def alone(rank):
        numbers = torch.ones(2)
        dist.all_reduce(numbers)
        dist.barrier()
        return rank.mean(3.0), numbers.tolist(), rank.world_size

    assert labkit.launch(alone, world_size=1, live=False).results == ((3.0, [1.0, 1.0], 1),)


def test_more_ranks_than_cores_works_with_a_warning():
    cores = len(labkit.machine().cores)
    with pytest.warns(UserWarning, match=f"{cores + 1} ranks share {cores} CPU core"):
        run = labkit.launch(lambda rank: rank.mean(1.0), world_size=cores + 1, live=False)
    assert run.results == (1.0,) * (cores + 1)


def test_fresh_processes_instead_of_forks(monkeypatch, fail):
    """The way of systems where a fork is not safe, such as macOS."""

    def strategy(rank, moment):
        numbers = torch.ones(1)
        dist.all_reduce(numbers)
        print("hello")
        if rank.rank == 1:
            moment.note()
            raise ValueError(f"the sum is {numbers.item():g}")
        dist.barrier()

    monkeypatch.setattr(session, "FORK", False)
    error = fail(strategy)
    assert str(error) == "rank 1 raised ValueError: the sum is 2"
    assert "rank 0: hello\n" in error.run.log
