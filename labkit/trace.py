"""trace: what every rank of a strategy would do in one training step, found out without devices and without arithmetic.

The strategy itself runs, once per distinct rank, on tensors that have shapes but no memory, in processes of its own: any
number of ranks, and models of billions of parameters, on any machine. `labkit.replay` says how long it takes somewhere.
"""

import dataclasses
import re
import time
import types

from labkit.devices import machine
from labkit.errors import RankError
from labkit.failures import failure
from labkit.jobs import job as preset
from labkit.launcher import run_ranks
from labkit.notebook import place
from labkit.operations import whole
from labkit.stacks import learners_frames
from labkit.trace_records import Collective, Message, Trace
from labkit.training import refuse_wrong_request, strategy_name
from labkit.verdict import reported

__all__ = ["NotTraceable", "Trace", "trace", "trace_several"]
_READS = "reads the value of a tensor (.item(), .tolist(), float(…), `if tensor:`), and traced tensors have none"
_SHAPES = "the shape of a result depends on values (a boolean mask, nonzero, routing by data), and traced tensors have none"
_PIPELINING = "torch's pipelining reads values in its first step to learn shapes; a pipeline by hand can be traced"
_REASONS = (  # type of the exception, text of its message, why the strategy cannot be traced
    ("DataDependentOutputException", "", _READS),
    ("DynamicOutputShapeException", "", _SHAPES),
    ("UnsupportedOperatorException", "", "uses an operation that torch cannot run without values"),
    ("GuardOnDataDependentSymNode", "", _READS),
    ("RuntimeError", r"numpy\(\) is not supported|data is not allocated|data pointer of|FakeTensor", _READS),
    ("ValueError", "cannot be traced", ""),
)


class NotTraceable(ValueError):
    """A strategy does what needs real values. .reason says what, .line where: the learner's own line."""

    def __init__(self, name, reason, line):
        super().__init__(f"{name} is not traceable: {reason}" + (f" ({line})" if line else ""))
        self.reason, self.line = reason, line


def trace(strategy, *, world_size, job=None, ranks=None, with_memory=True):
    """Traces one step of a strategy on `world_size` ranks; returns one Trace per rank, or of the `ranks` asked for.

    job          None: the preset of an RTX 4090
    with_memory  count what is held at the fullest moment too, which takes twice as long

    The second step is traced, when the optimizer's state is there. Where the first and the last rank do the same and all
    collectives are of all ranks, so do those between, and are not traced one by one.

    Raises NotTraceable, the strategy's own ValueError for what does not divide, RankError for what else it raises.
    """
    refuse_wrong_request(strategy, job)
    world_size = whole("world_size", world_size, 1)
    job = job or preset(device="cuda")
    if ranks is None:
        (found,) = trace_several([(strategy, world_size, job)], with_memory=with_memory)
        if isinstance(found, Exception):
            raise found
        return found
    ranks = [whole("rank", rank, 0) for rank in ranks]
    if outside := [rank for rank in ranks if rank >= world_size]:
        raise ValueError(f"there is no rank {outside[0]} among {world_size} ranks; they count from 0 to {world_size - 1}")
    found = _traced([(strategy, world_size, job)], [(0, rank) for rank in ranks], with_memory)
    _raise_first(strategy, found)
    return tuple(found[0, rank] for rank in ranks)


def trace_several(requests, *, with_memory=True, seconds=None, symmetric=False):
    """Traces several strategies at once, from (strategy, world_size, job); returns for each its traces, or the exception.

    symmetric  all ranks are known to do the same, so that one of them is enough
    seconds  of processor time in each process, after which no more is begun; what is missing then is a TimeoutError
    """
    ends = [(at, rank) for at, (_, size, _) in enumerate(requests) for rank in sorted({0, 0 if symmetric else size - 1})]
    found = _traced(requests, ends, with_memory, seconds)
    between = []
    for at, (_, size, _) in enumerate(requests):
        first, last = found[at, 0], found.get((at, size - 1))
        if isinstance(first, Trace) and isinstance(last, Trace):
            if are_alike(first, last):
                found[at, size - 1] = dataclasses.replace(first, rank=size - 1)  # one copy of the entries serves all
            else:
                between += [(at, rank) for rank in range(1, size - 1)]
    found |= _traced(requests, between, with_memory, seconds)
    return [_whole(at, *request[:2], found) for at, request in enumerate(requests)]


def _whole(at, strategy, world_size, found):
    """All ranks' traces of a request, or its exception."""
    mine = {rank: result for (request, rank), result in found.items() if request == at}
    try:
        _raise_first(strategy, mine)
    except (ValueError, RankError, TimeoutError) as error:
        return error
    return tuple(mine.get(rank) or dataclasses.replace(mine[0], rank=rank) for rank in range(world_size))


def are_alike(one, other):
    """Whether two ranks do the same, and nothing that depends on who they are: collectives of all ranks, no messages."""
    everyone = tuple(range(one.world_size))
    alone = any(group.group != everyone for group in one.only(Collective)) or one.only(Message)
    return not alone and one.entries == other.entries and one.peak_bytes == other.peak_bytes


def _traced(requests, tasks, with_memory, seconds=None):
    """{task: Trace, failure or None} of these (request, rank), traced by as many processes as there are cores."""
    if not tasks:
        return {}
    processes = min(len(machine().cores), len(tasks))
    arguments = requests, tasks, with_memory, seconds
    run = run_ranks(_trace_share, arguments, {}, world_size=processes, device="cpu", live=False, warn=False)
    found = dict(pair for result in run.results for pair in result)
    return {task: found[task] for task in tasks}


def _trace_share(process, requests, tasks, with_memory, seconds):
    """What each process does: every n-th of the tasks, one after the other."""
    from labkit.trace_rank import trace_rank
    from labkit.trace_torch import GradientOrders

    known, orders, found = {}, GradientOrders(), []
    ends_at = None if seconds is None else time.process_time() + seconds
    for at, rank in tasks[process.rank :: process.world_size]:
        strategy, world_size, job = requests[at]
        late = ends_at is not None and time.process_time() >= ends_at
        options = {"known": known, "orders": orders, "with_memory": with_memory}
        try:
            result = None if late else trace_rank(strategy, job, rank, world_size, **options)
        except Exception as error:
            result = failure(error)
        found.append(((at, rank), result))
    return found


def _raise_first(strategy, found):
    """Raises what the lowest rank that failed has raised."""
    for key in sorted(found):
        if found[key] is None:
            raise TimeoutError(f"there was no time to trace {strategy_name(strategy)}")
        if isinstance(found[key], dict):
            raise _error(found[key], key[-1] if isinstance(key, tuple) else key, strategy)


def _error(failed, rank, strategy):
    """The exception that the kernel raises for what a strategy raised while it was traced."""
    raised = failed["chain"][0]
    frames = learners_frames(raised["frames"])
    line = place(*frames[-1][:2]) if frames else ""
    inside = any("distributed/pipelining" in frame[0] for frame in raised["frames"])
    for kind, text, reason in _REASONS:
        if any(error["type"] == kind and re.search(text, error["message"]) for error in failed["chain"]):
            reason = _PIPELINING if inside else reason or raised["message"]
            return NotTraceable(strategy_name(strategy), reason, line)
    if raised["type"] == "ValueError":
        return ValueError(raised["message"])
    message, fields = reported(types.SimpleNamespace(rank=rank, failure=failed))
    return RankError(message, **fields)
