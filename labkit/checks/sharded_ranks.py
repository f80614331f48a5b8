"""Answers that call collectives of shards, on real ranks: not waited for long, and gloo's complaints put in words."""

import re

from labkit.errors import RankError
from labkit.launcher import run_ranks

PATIENCE_S = 10  # for ranks that wait for each other; a rank that computes is not waiting
UNEQUAL = re.compile(r"outputShape\[0\] \* worldSize == inputShape\[0\] \((\d+) vs\. (\d+)\)")  # gloo, of a reduce_scatter
UNFILLED = re.compile(r"allgather: invalid tensor size")


def on_ranks(function, answer, *, world_size):
    """What `function(rank, answer)` returned on each rank, on CPU cores: an answer fails the same way everywhere."""
    options = {"device": "cpu", "timeout": PATIENCE_S, "live": False, "warn": False}
    try:
        return run_ranks(function, (answer,), {}, world_size=world_size, **options).results
    except RankError as error:
        if cause := sizes_cause(str(error), world_size):
            raise RankError(cause, rank=error.rank, kind=error.kind, traceback=error.traceback) from None
        raise


def sizes_cause(text, world_size):
    """What gloo's complaint about the sizes of a collective's tensors means; None for any other text."""
    if sizes := UNEQUAL.search(text):
        shard, size = int(sizes[1]) // world_size, int(sizes[2])
        uneven = f"cuts its input into {world_size} equal shards, but {size} is not {world_size} × {shard}"
        return f"`reduce_scatter_single` {uneven}: is it flat, and padded?"
    if UNFILLED.search(text):
        return f"`all_gather_single` puts {world_size} equal shards together: its output must have room for them, padding too"
    return None
