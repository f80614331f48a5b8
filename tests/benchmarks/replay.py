"""How long the replay of a large step takes: a 7 B model under fully sharded data parallelism, every rank's trace its own."""

import time

from report import report

from labkit import hardware
from labkit.replay import replay
from labkit.trace_records import Collective, Kernel, Mark, Trace, Wait

LAYERS, KERNELS = 32, 150  # per layer and direction; backward has twice as many
LAYER_BYTES = 404_750_336  # 202,375,168 parameters in bfloat16
GOALS = {8: 10, 64: 60}


def sharded_trace(rank, world_size):
    """One rank's step: weights are gathered layer by layer, there and back, gradients scattered on the way back."""
    entries, ids = [], iter(range(10**6))
    for layer in range(2 * LAYERS):
        entries += _layer(layer, tuple(range(world_size)), ids)
    entries.append(Wait(tuple(range(next(ids)))))
    entries += [Kernel("_foreach_lerp_", 0, 10**7 + at, phase="optimizer") for at in range(1_000)]
    return Trace(rank, world_size, tuple(entries))


def _layer(layer, group, ids):
    phase = "forward" if layer < LAYERS else "backward"
    gather = next(ids)
    yield Collective("all_gather", group, LAYER_BYTES, (gather,), gather, asynchronous=True)
    yield Wait((gather,))
    yield Mark(phase, "", True, {"layer": layer})
    for at in range(KERNELS if phase == "forward" else 2 * KERNELS):
        m, n, k = 4096, 4096, 64 + at
        yield Kernel("matmul", 2 * m * n * k, 2 * (m * k + k * n + m * n), "bfloat16", (1, m, n, k), phase)
    yield Mark(phase, "", False)
    if phase == "backward":
        scatter = next(ids)
        yield Collective("reduce_scatter", group, LAYER_BYTES, (scatter,), scatter, asynchronous=True)


def main():
    for world_size, goal_s in GOALS.items():
        traces = tuple(sharded_trace(rank, world_size) for rank in range(world_size))
        machine = hardware.RTX4090_SERVER if world_size <= 8 else hardware.cluster(world_size // 8)
        start = time.perf_counter()
        spans = len(replay(traces, machine).timeline.spans)
        what = f"{world_size} ranks of {len(traces[0].entries):,} entries, {spans:,} spans"
        report(what, [time.perf_counter() - start], f"< {goal_s} s", " s")
