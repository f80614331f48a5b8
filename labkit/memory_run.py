"""The account of a strategy's memory, taken in a run of its own: watching every operation would spoil times."""

import torch

from labkit import jobs
from labkit.launcher import run_ranks
from labkit.memory import Memory, RankMemory, peak_bytes
from labkit.memory_account import MemoryAccount
from labkit.training import build, refuse_wrong_request, strategy_name


def account(strategy, *, world_size=2, job=None, device="cpu", steps=2):
    """Trains for a few steps under account and returns the Memory of all ranks; its peak is that of the steps.

    From the second step on the optimizer has its state. The default job is `small_job()`. Errors: as `launch`.
    """
    refuse_wrong_request(strategy, job)
    job = job or jobs.small_job()
    run = run_ranks(account_rank, (strategy, job, steps), {}, world_size=world_size, device=device, live=False, warn=False)
    return Memory.of(run.results, name=strategy_name(strategy), badge=run.placement.badge)


def account_rank(rank, strategy, job, steps):
    """What each rank does: `steps` steps under account; returns its RankMemory."""
    account = rank._account = MemoryAccount(rank.device.type)
    on_cuda = rank.device.type == "cuda"
    with account:
        step = build(strategy, rank, account.observe(job))
        if on_cuda:
            torch.cuda.reset_peak_memory_stats(rank.device)
        for number, batch in zip(rank.steps(steps), job.batches(steps), strict=True):
            account.begin_step(number)
            step(*(tensor.to(rank.device) for tensor in batch))
            account.end_step()
    return RankMemory(
        rank=rank.rank,
        process_peak_bytes=peak_bytes(rank.device),
        peak_bytes=account.peak_bytes,
        by_kind=account.peak,
        when=account.when,
        before_update=account.before_update,
        after_step=account.after_step,
        on_cuda=on_cuda,
    )
