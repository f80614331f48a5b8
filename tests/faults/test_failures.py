"""A rank that fails ends the run at once, and the error names it, what happened and the learner's line."""

import ctypes
import os
import re
import signal
import sys
import time

import pytest
import torch
import torch.distributed as dist
import torch.utils.data

import labkit


def test_raises_in_a_step(fail):
    def strategy(rank, moment):
        for step in rank.steps(5):
            rank.log(loss=1.0)
            if step == 3 and rank.rank == 1:
                moment.note()
                raise ValueError("no such layer")  # the learner's line
            dist.all_reduce(torch.ones(1))

    error = fail(strategy, world_size=3)
    assert (error.rank, error.kind) == (1, "raised")
    assert str(error) == "rank 1 raised ValueError: no such layer"
    assert 'raise ValueError("no such layer")  # the learner\'s line' in error.traceback
    assert "test_failures.py, line" in error.traceback and "in strategy" in error.traceback
    assert "rank_process" not in error.traceback
    assert [record["step"] for record in error.run.records if record["rank"] == 1] == [0, 1, 2]
    assert "Traceback (most recent call last)" in error.run.log


def test_next_run_works():
    def count(rank):
        total = torch.ones(1)
        dist.all_reduce(total)
        return total.item()

    assert labkit.launch(count, world_size=2, live=False).results == (2.0, 2.0)


def test_a_misspelt_name_on_every_rank_is_one_error(fail):
    def strategy(rank, moment):
        moment.note()
        dist.all_reduce(grads)  # noqa: F821

    error = fail(strategy, world_size=4)
    assert str(error) == "rank 0 raised NameError: name 'grads' is not defined"
    assert error.traceback.count("in strategy") == 1


def test_out_of_memory_on_one_rank(fail):
    def strategy(rank, moment):
        if rank.rank == 0:
            moment.note()
            raise torch.OutOfMemoryError("CUDA out of memory.")
        dist.barrier()

    error = fail(strategy)
    assert (error.rank, str(error)) == (0, "rank 0 raised OutOfMemoryError: CUDA out of memory.")


@pytest.mark.parametrize(
    "leave, message",
    [
        (lambda: sys.exit(3), "rank 1 exited with status 3 (sys.exit) before its function returned"),
        (lambda: sys.exit("no data"), "rank 1 exited with status 1 (sys.exit) before its function returned: no data"),
        (lambda: os._exit(3), "rank 1 exited with status 3 before its function returned"),
    ],
    ids=["sys.exit", "sys.exit with a text", "os._exit"],
)
def test_exits(fail, leave, message):
    def strategy(rank, moment):
        dist.barrier()
        if rank.rank == 1:
            moment.note()
            leave()
        dist.all_reduce(torch.ones(1))

    error = fail(strategy)
    assert (error.rank, error.kind, str(error)) == (1, "exited", message)


def test_killed_by_the_system_is_explained_as_memory(fail):
    def strategy(rank, moment):
        dist.barrier()
        if rank.rank == 2:
            held = bytearray(os.urandom(1 << 20) * 200)
            time.sleep(1.5)
            moment.note()
            os.kill(os.getpid(), signal.SIGKILL)
            del held
        dist.barrier()

    error = fail(strategy, world_size=3)
    assert (error.rank, error.kind) == (2, "killed")
    assert str(error) == (
        "rank 2 was ended by signal 9 (SIGKILL): the system ended it; the usual reason is that host memory ran out"
    )
    held_gib = float(re.search(r"rank 2 held (\S+) GiB when last seen; the limit is \S+ GiB in all", error.traceback)[1])
    assert 0.2 < held_gib < 2


def test_a_fault_in_compiled_code_points_at_the_line_that_called_it(fail):
    def strategy(rank, moment):
        if rank.rank == 0:
            moment.note()
            ctypes.string_at(0)  # reads from nowhere
        dist.barrier()

    error = fail(strategy)
    assert (error.rank, error.kind) == (0, "killed")
    assert str(error).startswith("rank 0 was ended by signal 11 (SIGSEGV): ")
    assert "ctypes.string_at(0)  # reads from nowhere" in error.traceback


def test_mismatched_sizes_are_explained(fail):
    def strategy(rank, moment):
        moment.note()
        dist.all_reduce(torch.ones(1000 * (1 + rank.rank)))

    errors = [fail(strategy, world_size=3) for _ in range(2)]
    assert {error.kind for error in errors} == {"killed"}
    (message,) = {str(error) for error in errors}
    assert message.startswith("the ranks called different collectives, or the same one with tensors of different sizes (signal 6")
    assert errors[0].traceback.count("dist.all_reduce(torch.ones(1000 * (1 + rank.rank)))") >= 2


def test_a_cause_is_named_before_what_it_causes(fail):
    """Ranks 0 and 1 see a lost connection first, in whatever order; what rank 2 did is the cause."""

    def strategy(rank, moment):
        dist.barrier()
        if rank.rank == 2:
            moment.note()
            os._exit(0)
        try:
            dist.all_reduce(torch.ones(10))
        except RuntimeError as error:
            raise KeyError("my own error") from error

    error = fail(strategy, world_size=3)
    assert (error.rank, error.kind) == (2, "exited")


def test_a_peer_that_left_the_group_and_returned_is_named(fail):
    def strategy(rank, moment):
        dist.barrier()
        if rank.rank == 1:
            moment.note()
            dist.destroy_process_group()
            return
        dist.all_reduce(torch.ones(10))

    error = fail(strategy)
    assert (error.rank, error.kind) == (None, "hang")
    assert "rank 1 has returned" in str(error) and "test_failures.py, line" in str(error)


def test_a_refused_connection_of_the_learners_own_is_no_lost_peer(fail):
    def strategy(rank, moment):
        moment.note()
        raise ConnectionRefusedError("Connection refused")

    error = fail(strategy)
    assert str(error) == "rank 0 raised ConnectionRefusedError: Connection refused"
