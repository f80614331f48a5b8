"""Layer-level traces of one training step from a configuration: kernels, collectives, messages, copies, host work.

Equal cards are folded: one trace per pipeline stage stands for all data- and tensor-parallel cards of that stage. The
operation "all_gather over dp" is the collective of such a group; `folding.Folded` knows who belongs to it.
"""

from functools import lru_cache

from labkit.runs import kernels
from labkit.runs.configuration import Configuration
from labkit.runs.stage import Stage
from labkit.schedule import interleaved
from labkit.trace_records import Kernel, Trace


def traces(run: Configuration, micro_batches: int | None = None) -> tuple[Trace, ...]:
    """Returns one Trace per pipeline stage of a step of so many micro-batches, the run's own number by default."""
    count = micro_batches or run.micro_batches
    orders = interleaved(run.pp, count, run.chunks).orders
    named = {name: _whole(name, inside) for name, inside in parts(run).items()}
    return tuple(Stage(run, stage, named, count).trace(orders[stage]) for stage in range(run.pp))


@lru_cache(maxsize=1024)
def parts(run: Configuration) -> dict:
    """Returns {name: kernels} of what a trace names as one Kernel: a block's forward and backward, the head, the update."""
    return {
        "embedding": (kernels.embedding(run),),
        "block forward": tuple(kernels.forward(run)),
        "block backward": tuple(kernels.again(run) + kernels.backward(run)),
        "head": tuple(kernels.head(run)),
    }


def _whole(name, kernels_in_it):
    """One Kernel that stands for several."""
    flops = sum(one.flops * one.count for one in kernels_in_it)
    moved = sum(one.moved_bytes * one.count for one in kernels_in_it)
    return Kernel(name, flops, moved, kernels_in_it[0].dtype, (), kernels_in_it[0].phase)
