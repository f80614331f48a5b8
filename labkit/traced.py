"""What was traced in this kernel, kept: the same code with the same options on the same job is traced once."""

import hashlib
from collections import OrderedDict

from labkit.payload import pack_function
from labkit.trace import trace_several

MOST = 64
_kept = OrderedDict()


def traced(strategy, *, world_size, job):
    """Returns what `trace` returns, memory and all, or raises what it raises."""
    (found,) = traced_several([(strategy, world_size, job)], with_memory=True)
    if isinstance(found, Exception):
        raise found
    return found


def traced_several(requests, *, with_memory=False, **options):
    """Returns what `trace_several` returns, tracing only what is not kept."""
    keys = [(_digest(strategy), world_size, job) for strategy, world_size, job in requests]
    found = {key: _recall(key, with_memory) for key in keys}
    left = {key: request for key, request in zip(keys, requests, strict=True) if found[key] is None}
    results = trace_several(list(left.values()), with_memory=with_memory, **options)
    for key, traces in zip(left, results, strict=True):
        found[key] = traces
        if not isinstance(traces, Exception):
            _kept[*key, with_memory] = traces
    while len(_kept) > MOST:
        _kept.popitem(last=False)
    return [found[key] for key in keys]


def _recall(key, with_memory):
    for whole in (*key, True), (*key, with_memory):
        if whole in _kept:
            _kept.move_to_end(whole)
            return _kept[whole]
    return None


def _digest(strategy):
    """A name for a function's code with all that it captures, the same when its cell is run again."""
    return hashlib.sha256(pack_function(strategy, (), {})).digest()
