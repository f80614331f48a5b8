"""scaling: strategies against one device and against the machine's own limit, alternating in one run."""

import statistics
import time
from collections.abc import Iterable

import torch

from labkit import jobs
from labkit.devices import default_world_size, machine, place
from labkit.launcher import run_ranks
from labkit.race_view import STOP, RaceView
from labkit.results import BASELINE, LIMIT, Scaling
from labkit.training import build, one_device, refuse_wrong_request, strategy_name


def scaling(
    strategies, *, world_sizes=None, repeats=15, seconds=None, batch="global", job=None, device=None, live=True, guess=None
):
    """Races strategies against one device over numbers of ranks; returns a Scaling.

    strategies   one strategy, a list, or {name: strategy}
    world_sizes  numbers of ranks; None: the powers of two up to all devices, and all devices (at most
                 one per sequence of the batch)
    repeats      timed rounds per number of ranks; in each, one device, the limit and every strategy take one step in turn
    seconds      a cap on the whole race; at least 3 rounds are run
    batch        "global": the job's batch is shared out (strong scaling); "per_rank": each rank adds a batch (weak scaling)
    guess        the learner's prediction, drawn into the picture: a Guess or a number for the most ranks, or {ranks: Guess}

    A speed-up is the median of paired ratios: the baseline's step over the strategy's in the same round, each as long
    as its slowest rank takes. Raises ValueError for a request that cannot be met, RankError as `launch`.
    """
    named = _named(strategies, job)
    sizes = _world_sizes(world_sizes, device, (job or jobs.job(device=device)).batch_size)
    if batch not in ("global", "per_rank"):
        raise ValueError(f'batch={batch!r}: use "global" (strong scaling) or "per_rank" (weak scaling)')
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
        raise ValueError(f"repeats={repeats!r} must be a whole number of at least 1")
    if seconds is not None and not (isinstance(seconds, (int, float)) and seconds > 0):
        raise ValueError(f"seconds={seconds!r} must be above 0, or None for no cap")
    placement = place(max(sizes), device)
    job = job or jobs.job(device=placement.device_type)
    about = {"job": job, "badge": placement.badge, "batch": batch, "guess": guess, "strategies": named}
    result = Scaling(names=tuple(named), world_sizes=sizes, **about)
    if device is None and placement.device_type == "cpu" and len(machine().gpus) == 1:
        result.one_gpu_tokens_per_s = _on_the_gpu(repeats)
    ends_at = None if seconds is None else time.monotonic() + seconds
    view = RaceView(result, live=live)
    for position, world_size in enumerate(sizes):
        left = None if ends_at is None else (ends_at - time.monotonic()) / (len(sizes) - position)
        view.start(world_size, repeats, left)
        _race(named, job, world_size, batch, placement.device_type, max(sizes), view)
    view.finish()
    return result


def _named(strategies, job):
    if callable(strategies) or not isinstance(strategies, Iterable):
        strategies = [strategies]
    if not isinstance(strategies, dict):
        names = [strategy_name(strategy) for strategy in strategies]
        if len(set(names)) < len(names):
            raise ValueError(f"two strategies are called {statistics.mode(names)}; give them names: {{'name': strategy, …}}")
        strategies = dict(zip(names, strategies, strict=True))
    if not strategies:
        raise ValueError("scaling needs at least one strategy")
    for name, strategy in strategies.items():
        refuse_wrong_request(strategy, job)
        if not isinstance(name, str):
            raise ValueError(f"the name {name!r} of a strategy must be text")
    if reserved := {BASELINE, LIMIT} & set(strategies):
        raise ValueError(f"{reserved.pop()!r} is a line of its own in every race; give the strategy another name")
    return dict(strategies)


def _world_sizes(world_sizes, device, batch_size):
    if world_sizes is None:
        most = max(2, min(default_world_size(device), batch_size))
        world_sizes = sorted({2**k for k in range(1, most.bit_length()) if 2**k <= most} | {most})
    sizes = tuple(world_sizes) if isinstance(world_sizes, Iterable) else (world_sizes,)
    if not sizes or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in sizes):
        raise ValueError(f"world_sizes={world_sizes!r}: give numbers of ranks of at least 1, such as (2, 4)")
    return tuple(sorted(set(sizes)))


def _race(named, job, world_size, batch, device, largest, view):
    return run_ranks(race_rank, (named, job, batch), {}, world_size=world_size, device=device, largest=largest, view=view)


def _on_the_gpu(repeats):
    """Returns one GPU's tokens/s with its own job, as a Ratio: the one-rank step of a learner who has one card."""
    job = jobs.job(device="cuda")
    result = Scaling(job=job, badge="", batch="global", names=(), world_sizes=(1,))
    view = RaceView(result, live=False)
    view.start(1, repeats, None)
    _race({}, job, 1, "global", "cuda", 1, view)
    return result.tokens_per_s(BASELINE, 1)


def race_rank(rank, named, job, batch):
    """What each rank of a race does: builds every contender, warms it up, and times rounds of them in turn."""
    per_rank = batch == "per_rank"
    wide = job.replace(batch_size=job.batch_size * rank.world_size) if per_rank else job
    contenders = {BASELINE: (one_device, job, slice(None)), LIMIT: (one_device, wide, _own_rows(rank, wide))}
    contenders |= {name: (strategy, wide, slice(None)) for name, strategy in named.items()}
    steps = {}
    for name, (strategy, its_job, rows) in contenders.items():
        alone = name == BASELINE
        step = _prepared(rank, strategy, its_job, rows, optional=alone, takes_part=not alone or rank.rank == 0)
        if step is not None:
            steps[name] = step
    rounds = 0
    while rank._status.gate < STOP:
        times = {}
        for name, step in steps.items():
            rank.barrier()
            if name != BASELINE or rank.rank == 0:
                times[name] = step()
        rank._send("records", [{"rank": rank.rank, "step": rounds, "time_s": 0.0, "times": times}])
        rounds += 1
        while rank._status.gate < rounds:
            time.sleep(0.002)


def _own_rows(rank, job):
    """Returns this rank's share of the batch's rows, uneven where it does not divide."""
    bounds = [job.batch_size * r // rank.world_size for r in range(rank.world_size + 1)]
    return slice(bounds[rank.rank], bounds[rank.rank + 1])


def _prepared(rank, strategy, job, rows, *, optional, takes_part):
    """Returns a function that does one step on the next batch and returns its seconds; None if it does not fit.

    It has been run once, to warm up. An `optional` contender that runs out of memory on any rank is left out on all.
    """
    data = [(tokens[rows].to(rank.device), targets[rows].to(rank.device)) for tokens, targets in job.batches(2)]
    fits, step = True, None
    try:
        if takes_part:
            step = build(strategy, rank, job)
            step(*data[0])
    except torch.OutOfMemoryError:
        if not optional:
            raise
        fits = False
    if rank.mean(fits) < 1:
        return None
    count = iter(range(10**12))

    def timed():
        batch = data[next(count) % 2]
        start = time.perf_counter()
        step(*batch)
        if rank.device.type == "cuda":
            torch.cuda.synchronize(rank.device)
        return time.perf_counter() - start

    return timed
