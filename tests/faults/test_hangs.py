"""Ranks that wait for ever are told from ranks that take long, and the error says who waits where."""

import multiprocessing
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.utils.data
from workers import compute

import labkit

TIMEOUT_S = 1.0
LONGER_S = 1.8


def test_a_collective_that_one_rank_never_calls(fail):
    def evaluate(rank, moment):
        dist.barrier()
        moment.note()
        if rank.rank == 0:
            dist.all_reduce(torch.ones(3))  # only here
        threading.Event().wait()  # elsewhere

    error = fail(evaluate, world_size=3, timeout=TIMEOUT_S, late_s=TIMEOUT_S)
    assert (error.rank, error.kind) == (None, "hang")
    assert str(error).startswith("no rank made progress for 1 s: rank 0 waits in all_reduce, test_hangs.py, line ")
    assert "rank 1 waits outside of any collective, test_hangs.py, line " in str(error)
    assert str(error).endswith("Every rank must make the same calls in the same order.")
    table, _, listings = error.traceback.partition("\n\n")
    assert [line.split()[:2] for line in table.splitlines()] == [["rank", "0"], ["rank", "1"], ["rank", "2"]]
    assert "dist.all_reduce(torch.ones(3))  # only here" in listings
    assert "threading.Event().wait()  # elsewhere" in listings


def test_messages_that_all_ranks_send_first(fail):
    def swap(rank, moment):
        moment.note()
        dist.send(torch.ones(3), dst=1 - rank.rank)
        dist.recv(torch.ones(3), src=1 - rank.rank)

    error = fail(swap, world_size=2, timeout=TIMEOUT_S, late_s=TIMEOUT_S)
    assert str(error).endswith("Every rank sends before any receives: let one receive first, or send with isend.")


def test_collectives_in_a_different_order(fail):
    def strategy(rank, moment):
        moment.note()
        if rank.rank == 0:
            dist.recv(torch.ones(3), src=1)
        else:
            dist.barrier()

    error = fail(strategy, timeout=TIMEOUT_S, late_s=TIMEOUT_S)
    assert "rank 0 waits in recv, " in str(error) and "rank 1 waits in barrier, " in str(error)


def test_a_rank_that_leaves_the_loop_one_batch_early_is_a_hang_at_once(fail):
    def strategy(rank, moment):
        batches = 4 if rank.rank == 1 else 5
        for step in range(batches):
            if step == 4:
                moment.note()
            dist.all_reduce(torch.ones(3))

    error = fail(strategy, world_size=3, timeout=60)
    assert (error.rank, error.kind) == (None, "hang")
    assert str(error).startswith("hang: rank 0 waits in all_reduce, test_hangs.py, line ")
    assert "; rank 1 has returned; rank 2 waits in all_reduce, " in str(error)


def test_evaluation_through_ddp_on_one_rank_only(fail):
    """DDP sends the buffers of batch normalisation before each forward, and waits for them in C++."""

    def strategy(rank, moment):
        layers = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
        net(torch.ones(8, 4)).sum().backward()
        if rank.rank == 1:
            moment.note()
            net.eval()(torch.ones(8, 4))  # evaluates
        if rank.rank == 0:
            dist.barrier()

    error = fail(strategy, timeout=TIMEOUT_S, late_s=TIMEOUT_S)
    assert error.kind == "hang" and "net.eval()(torch.ones(8, 4))  # evaluates" in error.traceback
    assert "rank 0 waits in barrier, " in str(error) and "rank 1 waits in broadcast, " in str(error)


def test_a_peer_that_returned_while_ddp_waits_in_compiled_code(fail):
    def strategy(rank, moment):
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        for _ in range(3 - rank.rank):
            moment.note()
            net(torch.ones(8, 4)).sum().backward()

    error = fail(strategy, timeout=60)
    assert str(error).startswith("hang: rank 0 waits in all_reduce, test_hangs.py, line ")


def test_the_mean_of_a_rank_waits_like_a_barrier(fail):
    def strategy(rank, moment):
        moment.note()
        return rank.mean(1.0) if rank.rank == 0 else None

    error = fail(strategy, timeout=60)
    assert str(error).startswith("hang: rank 0 waits in barrier, test_hangs.py, line ")


def test_a_rank_that_waits_for_itself(fail):
    def strategy(rank, moment):
        moment.note()
        with_lock = threading.Lock()
        with_lock.acquire()
        with_lock.acquire()

    error = fail(strategy, timeout=TIMEOUT_S, late_s=TIMEOUT_S)
    assert "rank 1 waits outside of any collective" in str(error)
    assert "with_lock.acquire()" in error.traceback


def test_a_long_computation_is_no_hang():
    def strategy(rank):
        if rank.rank == 1:
            compute(LONGER_S)
        dist.barrier()
        return "done"

    assert labkit.launch(strategy, world_size=2, timeout=TIMEOUT_S, live=False).results == ("done", "done")


def test_a_long_computation_in_a_process_of_the_rank_is_no_hang():
    code = f"import time\nwhile time.process_time() < {LONGER_S}: sum(range(10_000))"

    def strategy(rank):
        if rank.rank == 0:
            return subprocess.run([sys.executable, "-c", code], start_new_session=True).returncode
        worker = multiprocessing.get_context("fork").Process(target=compute, args=(LONGER_S,))
        worker.start()
        worker.join()
        return worker.exitcode

    assert labkit.launch(strategy, world_size=2, timeout=TIMEOUT_S, live=False).results == (0, 0)


def test_a_slow_loader_worker_is_no_hang():
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, at):
            compute(LONGER_S)
            return at

    def strategy(rank):
        return [batch.item() for batch in torch.utils.data.DataLoader(Slow(), num_workers=1)]

    assert labkit.launch(strategy, world_size=1, timeout=TIMEOUT_S, live=False).results == ([0],)


def test_prints_and_records_are_progress():
    def strategy(rank):
        for at in rank.steps(4):
            time.sleep(0.5)
            print(at) if rank.rank == 0 else rank.log(at=at)

    run = labkit.launch(strategy, world_size=2, timeout=TIMEOUT_S, live=False)
    assert run.log.count("rank 0: ") == 4 and len(run.records) == 4


def test_data_that_still_arrive_from_a_rank_that_has_returned_are_no_hang():
    def strategy(rank):
        numbers = torch.ones(60_000_000)
        if rank.rank == 0:
            return dist.isend(numbers, dst=1) is not None
        dist.recv(numbers, src=0)
        return numbers.sum().item() > 0

    assert labkit.launch(strategy, world_size=2, live=False).results == (True, True)
