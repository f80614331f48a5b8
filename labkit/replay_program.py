"""A trace made ready for one machine: runs of kernels become one step each, and transfers are known by what they join.

Host and device form a max-plus system: a run of kernels that starts with the host at h and the device at d ends with the
host at h + host_s and the device at max(d + device_s, h + lag_s), however many kernels there are.
"""

from dataclasses import dataclass

from labkit.timeline import KINDS
from labkit.trace_records import Collective, Copy, HostWork, Kernel, Mark, Message, Wait

TRANSFERS = (Collective, Message, Copy, HostWork)


@dataclass(frozen=True, slots=True)
class Run:
    """Kernels of one phase in a row; times in seconds, `first_s` from its begin to the first kernel's launch."""

    phase: str
    first_s: float
    host_s: float
    device_s: float
    lag_s: float


@dataclass(frozen=True, slots=True)
class Issue:
    """A transfer handed to its stream; the device waits for it if `blocks_device`, the host too if `blocks_host`."""

    entry: object
    host_s: float
    blocks_device: bool
    blocks_host: bool


@dataclass(frozen=True, slots=True)
class Program:
    """`steps` in the device's order: Run, Issue, Wait, Mark.

    `own[n]` holds the transfers with a stream of their own that the host issues after its n-th stop (the 0th is the
    start), as (seconds after it, entry); only where the host runs ahead.
    """

    steps: tuple
    own: tuple


class Compiler:
    """Makes Programs for one machine; equal kernels, and traces that share their entries, are looked at once."""

    def __init__(self, machine):
        self._kernel_s, self._seconds, self._programs = machine.kernel_s, {}, {}
        self._ahead, self._launch_s = machine.card.asynchronous, machine.card.launch_s

    def program(self, trace):
        """The Program of a Trace; a ValueError that names an entry which makes no sense."""
        known = self._programs.get(id(trace.entries))
        if known is None:
            known = self._programs[id(trace.entries)] = self._compile(trace)
        return known

    def _compile(self, trace):
        reading = _Reading(trace.rank, self._run)
        for entry in trace.entries:
            kind = type(entry)
            if kind is Kernel:
                reading.kernel(entry)
            elif kind in TRANSFERS:
                reading.transfer(entry, self._launch_s if self._ahead else 0.0, self._ahead)
            elif kind is Wait or kind is Mark:
                reading.other(entry)
            else:
                raise ValueError(f"rank {trace.rank}'s trace holds {entry!r}; entries are records of labkit.trace_records")
        return reading.program()

    def _run(self, kernels):
        phase, launch_s = kernels[0].phase, self._launch_s
        if phase not in KINDS:
            raise ValueError(f"kernel {kernels[0].name!r} has phase {phase!r}; use one of {', '.join(KINDS)}")
        host_s = device_s = lag_s = 0.0
        for kernel in kernels:
            seconds, count = self._seconds.get(kernel), kernel.count
            if seconds is None:
                seconds = self._seconds[kernel] = self._kernel_s(kernel)
            lag_s = max(lag_s + count * seconds, host_s + max(launch_s + count * seconds, count * launch_s + seconds))
            device_s += count * seconds
            host_s += count * launch_s
        if self._ahead:
            return Run(phase, launch_s, host_s, device_s, lag_s)
        return Run(phase, 0.0, 0.0, device_s + host_s, 0.0)  # host and device are one


class _Reading:
    """What has been read of one trace: steps, kernels of the run that is open, ids and spans so far."""

    def __init__(self, rank, run):
        self._rank, self._run = rank, run
        self._steps, self._own, self._kernels, self._host_s = [], [[]], [], 0.0
        self._issued, self._marks = set(), []

    def kernel(self, kernel):
        if self._kernels and self._kernels[-1].phase != kernel.phase:
            self._end_run()
        self._kernels.append(kernel)

    def transfer(self, entry, host_s, ahead):
        self._end_run()
        _check_issue(entry, self._issued, self._rank)
        self._host_s += host_s
        waits = not entry.asynchronous
        if ahead and entry.after is not None and not waits:
            self._own[-1].append((self._host_s, entry))
            self._steps.append(Run("forward", 0.0, host_s, 0.0, 0.0))
            return
        stops_host = waits and isinstance(entry, Copy | HostWork)
        if stops_host:
            self._own.append([])
            self._host_s = 0.0
        self._steps.append(Issue(entry, host_s, waits, stops_host))

    def other(self, entry):
        self._end_run()
        if type(entry) is Wait:
            _check_ids(entry.ids, self._issued, self._rank)
        else:
            _check_mark(entry, self._marks, self._rank)
        self._steps.append(entry)

    def program(self):
        self._end_run()
        if self._marks:
            raise ValueError(f"rank {self._rank} never ends its span {self._marks[-1].name or self._marks[-1].kind!r}")
        return Program(tuple(self._steps), tuple(map(tuple, self._own)))

    def _end_run(self):
        if self._kernels:
            self._steps.append(self._run(self._kernels))
            self._host_s += self._steps[-1].host_s
            self._kernels = []


def _check_issue(entry, issued, rank):
    if isinstance(entry, Collective) and rank not in entry.group:
        raise ValueError(f"rank {rank} calls {entry.operation} of ranks {entry.group}, to which it does not belong")
    if isinstance(entry, Message) and (entry.operation not in ("send", "recv") or entry.peer == rank):
        raise ValueError(f"rank {rank} has a message {entry.operation!r} with rank {entry.peer}; send or recv go to another rank")
    if entry.id in issued:
        raise ValueError(f"rank {rank} uses id {entry.id!r} twice; give each transfer its own")
    _check_ids(entry.after or (), issued, rank)
    issued.add(entry.id)


def _check_mark(mark, open_marks, rank):
    """Spans of the learner's own nest: each ends before the one around it."""
    if mark.kind not in KINDS:
        raise ValueError(f"rank {rank}'s span {mark.name!r} has kind {mark.kind!r}; use one of {', '.join(KINDS)}")
    if mark.begins:
        open_marks.append(mark)
    elif open_marks and (open_marks[-1].kind, open_marks[-1].name) == (mark.kind, mark.name):
        open_marks.pop()
    else:
        inner = f"inside which {open_marks[-1].name or open_marks[-1].kind!r} is open" if open_marks else "which has not begun"
        raise ValueError(f"rank {rank} ends the span {mark.name or mark.kind!r}, {inner}")


def _check_ids(ids, issued, rank):
    unknown = [one for one in ids if one not in issued]
    if unknown:
        raise ValueError(f"rank {rank} waits for id {unknown[0]!r}, which nothing before has; give the id of a transfer")
