"""Rank: what a function that runs on every rank is given."""

import contextlib
import time

import numpy
import torch
import torch.distributed as dist

from labkit.recorder import family
from labkit.storages import refuse_unknown_kind
from labkit.timeline import KINDS

RECORD_FIELDS = ("rank", "step", "time_s")


class Rank:
    """One of `world_size` processes that run the same function.

    .rank        0 … world_size − 1
    .world_size  how many there are
    .device      torch.device of this rank, already the current one
    `torch.distributed` is initialised: its plain calls reach the other ranks.
    """

    def __init__(self, rank, world_size, device, *, recorder, status, send, make_control_group):
        self.rank, self.world_size, self.device = rank, world_size, device
        self._recorder, self._status, self._send = recorder, status, send
        self._make_control_group, self._control = make_control_group, None
        self._record, self._pending = {}, []
        self._sent_at = self._first_step_at = None
        self._untimed_s, self._steps_done = 0.0, 0
        self._account = None

    def __repr__(self):
        return f"Rank({self.rank} of {self.world_size} on {self.device})"

    def steps(self, n):
        """Yields 0 … n − 1; what is logged within one turn becomes that step's record.

        A record's `time_s` counts from the begin of the first step to the end of its own, without the time spent in
        `mean` and `barrier`.
        """
        if self._first_step_at is None:
            self._first_step_at = time.perf_counter()
        first = self._steps_done
        for step in range(first, first + n):
            self._recorder.step = step
            yield step - first
            if self._recorder.on_cuda:
                torch.cuda.synchronize(self.device)
            self._steps_done = step + 1
            self._finish_record(step)
        self._recorder.step = None

    def log(self, **numbers):
        """Adds numbers (Python's, NumPy's or tensors of one element) to the record of the current step.

        Outside of `steps` each call is a record of its own. ValueError: a name that every record has, or no number.
        """
        if taken := [name for name in RECORD_FIELDS if name in numbers]:
            raise ValueError(f"log({taken[0]}=…): every record has a {taken[0]} of its own; use another name")
        self._record.update(numbers)
        if self._recorder.step is None:
            if self._first_step_at is None:
                self._first_step_at = time.perf_counter()
            self._steps_done += 1
            self._finish_record(self._steps_done - 1)

    @contextlib.contextmanager
    def span(self, kind, name="", **labels):
        """Times a part of the step; `kind` is one of forward, backward, backward_input, backward_weight, communicate,
        wait, optimizer. Labels, such as micro_batch=3, are kept for the timeline."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not a kind of span; use one of {', '.join(KINDS)}")
        stream = "communicate" if kind == "communicate" else "compute"
        self._recorder.own.add(family(kind))
        start = self._recorder.stamp()
        try:
            with self._account.span(kind) if self._account else contextlib.nullcontext():
                yield
        finally:
            self._recorder.add(stream, kind, name or kind, start, self._recorder.stamp(), labels)

    def memory(self, kind, name=""):
        """Says what is made by hand in the context that it returns: weights, gradients, optimizer state, activations, other.

        It counts where `Run.memory` and `holdings` are asked for, and costs nothing elsewhere; `name`, such as "blocks.0", is
        the row of `holdings` that it belongs to. ValueError: an unknown kind.
        """
        refuse_unknown_kind(kind)
        return self._account.memory(kind, name) if self._account else contextlib.nullcontext()

    def barrier(self):
        """Blocks until every rank is here. Not counted as traffic and not part of a step's time."""
        self._exchange(0.0, 0.0)

    def mean(self, value, weight=None):
        """Returns the mean over ranks of `value`, weighted with `weight` (1 if None), as a float on every rank.

        For reporting: not counted as traffic, not part of a step's time. Blocks; every rank must call it.
        """
        weight = 1.0 if weight is None else float(weight)
        total, weights = self._exchange(float(value) * weight, weight)
        if weights == 0:
            raise ValueError("the weights of all ranks are 0; give at least one rank a positive weight")
        return total / weights

    def _exchange(self, value, weight):
        started = time.perf_counter()
        if self._recorder.on_cuda:
            torch.cuda.synchronize(self.device)
        if self._control is None:
            self._control = self._make_control_group()
        pair = torch.tensor([value, weight], dtype=torch.float64)
        self._control(pair)
        self._untimed_s += time.perf_counter() - started
        return pair.tolist()

    def _finish_record(self, step):
        now = time.perf_counter()
        if self._record:
            time_s = now - self._first_step_at - self._untimed_s
            numbers = {name: _number(name, value) for name, value in self._record.items()}
            self._pending.append({"rank": self.rank, "step": step, "time_s": time_s, **numbers})
            self._record = {}
        if self._pending and (self._sent_at is None or now - self._sent_at > 0.1):
            self.flush(now)

    def flush(self, now=None):
        """Sends what was logged to the kernel; labkit calls it at the end."""
        if self._record:
            self._finish_record(self._steps_done)
        if self._pending:
            self._send("records", self._pending)
            self._pending, self._sent_at = [], now

    def give_up(self):
        """Sends the records of the steps that were finished before an error."""
        self._record = {}
        self.flush()


def _number(name, value):
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ValueError(f"log({name}=…) takes one number, not a tensor of shape {list(value.shape)}")
        value = value.item()
    if isinstance(value, numpy.number):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"log({name}=…) takes a number, not {type(value).__name__}")
    return value


def control_group(store, rank, world_size, watch, timeout):
    """Returns a function that sums a small CPU tensor over all ranks, outside of torch's default group.

    Connects at once and blocks until every rank has called it. The sums are seen on the shared page as a barrier, and
    are not counted.
    """
    if world_size == 1:
        return lambda pair: None
    with watch.waiting("barrier"):
        group = dist.ProcessGroupGloo(dist.PrefixStore("labkit/", store), rank, world_size, timeout)

    def add_up(pair):
        with watch.waiting("barrier"):
            group.allreduce([pair]).wait()

    return add_up
