"""The least time that a layout can take, without a replay: a search need not replay what cannot win."""

from collections import Counter
from dataclasses import dataclass, field

from labkit.runs.constants import Constants
from labkit.runs.fitted import FITTED
from labkit.runs.folding import Folded
from labkit.runs.traces import traces
from labkit.trace_records import Collective, Kernel, Message


@dataclass
class Load:
    """Seconds of one stage: kernels of its passes and what they stand still for, its update, and each link's work."""

    passes_s: float = 0.0
    update_s: float = 0.0
    links_s: Counter = field(default_factory=Counter)

    @property
    def least_s(self):
        return max(self.passes_s + self.update_s, max(self.links_s.values(), default=0.0))


def least_step_s(run, constants: Constants = FITTED) -> float:
    """Returns seconds below which no replay of the run can come.

    A stage cannot be faster than its kernels, nor than its busiest link; and all stages before it must have passed the
    first micro-batch on before it begins, and take their gradients after it ends.
    """
    machine, count = Folded(run, constants), run.micro_batches
    first = [_load(machine, trace) for trace in traces(run, 1)]
    loads = first
    if count > 1:
        second = [_load(machine, trace) for trace in traces(run, 2)]
        loads = [_repeated(one, two, count) for one, two in zip(first, second)]
    least = before = 0.0
    for one, load in zip(first, loads):
        least = max(least, load.least_s, before + load.passes_s)
        before += one.passes_s
    return constants.whole_step_s(least)


def _repeated(one, two, count):
    """The Load of so many micro-batches: each further one adds what the second one added."""
    links = Counter({at: one.links_s[at] + (count - 1) * (two.links_s[at] - one.links_s[at]) for at in two.links_s})
    return Load(one.passes_s + (count - 1) * (two.passes_s - one.passes_s), one.update_s, links)


def _load(machine, trace):
    load, known = Load(), {}
    for entry in trace.entries:
        if isinstance(entry, Kernel):
            if entry not in known:
                known[entry] = machine.kernel_s(entry)
            if entry.phase == "optimizer":
                load.update_s += known[entry]
            else:
                load.passes_s += known[entry]
        elif isinstance(entry, (Collective, Message)):
            transfer = _transfer(machine, trace.rank, entry, known)
            load.links_s.update(transfer.uses)
            if isinstance(entry, Collective) and not entry.asynchronous:
                load.passes_s += transfer.alone_s
    return load


def _transfer(machine, rank, entry, known):
    key = type(entry), entry.operation, getattr(entry, "peer", 0), entry.payload_bytes
    if key not in known:
        if isinstance(entry, Collective):
            known[key] = machine.collective(entry.operation, entry.group, entry.payload_bytes)
        else:
            ends = (rank, entry.peer) if entry.operation == "send" else (entry.peer, rank)
            known[key] = machine.message(*ends, entry.payload_bytes)
    return known[key]
