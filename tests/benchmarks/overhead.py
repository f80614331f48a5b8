"""Step time with steps, log, span and the live figure against a bare loop, inside a real notebook kernel."""

import functools
import statistics

from kernel import run_in_kernel
from report import paired, report

import labkit
from labkit.training import one_device

ROUNDS, STEPS = 7, 8


def bare(rank, job, shards):
    """A loop that nobody watches: the same arithmetic without labkit in it."""
    import time

    model = job.model()
    optimizer = job.optimizer(model.parameters())
    rows = job.batch_size // shards
    times = []
    for tokens, targets in job.batches(STEPS + 1):
        start = time.perf_counter()
        job.loss(model(tokens[:rows]), targets[:rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    return times[1:]


def watched(rank, job, shards):
    """The same through a strategy: one device's step on a share of the rows."""
    step = one_device(rank, job)
    rows = job.batch_size // shards
    return lambda tokens, targets: step(tokens[:rows], targets[:rows])


def measure(ranks):
    """Returns (bare, watched) median step seconds of each round; run inside a kernel, so that figures are drawn."""
    job = labkit.job(device="cpu")
    strategy = functools.partial(watched, shards=ranks)
    pairs = []
    for _ in range(ROUNDS):
        alone = labkit.launch(bare, job, ranks, world_size=ranks, live=False)
        run = labkit.train(strategy, world_size=ranks, steps=STEPS + 1, job=job)
        pairs.append((statistics.median(sum(alone.results, [])), statistics.median(_steps(run))))
    return pairs


def _steps(run):
    times = []
    for rank in range(run.world_size):
        ends = [record["time_s"] for record in run.records if record["rank"] == rank]
        times += [later - earlier for earlier, later in zip(ends, ends[1:])]
    return times


def main():
    import os

    cores = len(labkit.machine().cores)
    for ranks, name, goal in ((1, "with a spare core", "≤ 1.02"), (cores, "without a spare core", "≤ 1.05")):
        folder = os.path.dirname(__file__)
        pairs = run_in_kernel(f"import sys; sys.path.insert(0, {folder!r}); import overhead; overhead.measure({ranks})")
        unwatched, seen = zip(*pairs)
        report(f"watched step ÷ bare step, {ranks} rank(s), {name}", paired(seen, unwatched), goal, " x")
