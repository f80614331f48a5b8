"""One rank's step under the tracer: the strategy is built, runs one step to warm up, and the next one is its Trace."""

import contextlib
import math

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from labkit.memory_account import MemoryAccount
from labkit.timeline import KINDS
from labkit.trace_calls import Calls, Steps
from labkit.trace_fsdp import streams
from labkit.trace_mode import CPU, Tracer
from labkit.trace_records import Mark, Trace
from labkit.trace_torch import patched, pretended_group
from labkit.training import build

WARM_UP_TRIES = 3  # DDP's buckets may need one more


class TracedRank:
    """What a strategy is given instead of a Rank: the same names, without a clock and without other ranks."""

    def __init__(self, rank, world_size, phases, account):
        self.rank, self.world_size, self.device = rank, world_size, CPU
        self._phases, self._account = phases, account

    def __repr__(self):
        return f"Rank({self.rank} of {self.world_size}, traced)"

    def steps(self, n):
        """Yields 0 … n − 1."""
        yield from range(n)

    def log(self, **numbers):
        """Keeps nothing: what is logged has no value here."""

    @contextlib.contextmanager
    def span(self, kind, name="", **labels):
        """Marks a part of the step; kinds and labels as Rank.span."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not a kind of span; use one of {', '.join(KINDS)}")
        with self._phases.span(kind, name or kind, labels), self._account.span(kind):
            yield

    def memory(self, kind, name=""):
        """Counts what is made within under `kind`, as Rank.memory."""
        return self._account.memory(kind, name)

    def barrier(self):
        """Does nothing: a barrier is no part of a step's time."""

    def mean(self, value, weight=None):
        """Returns nan: what is reported has no value here."""
        return math.nan


class Phases:
    """Which part of the step the rank is in: forward, backward or optimizer."""

    def __init__(self, steps):
        self._steps, self._spans, self._updates = steps, [], 0

    def __call__(self):
        if self._updates:
            return "optimizer"
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        return self._spans[-1] if self._spans else "forward"

    @contextlib.contextmanager
    def span(self, kind, name, labels):
        """A span of the strategy's own."""
        phase = kind.partition("_")[0]
        self._spans.append(phase if phase in ("forward", "backward", "optimizer") else self())
        self._steps.add(Mark(kind, name, True, labels))
        try:
            yield
        finally:
            self._steps.add(Mark(kind, name, False, labels))
            self._spans.pop()

    @contextlib.contextmanager
    def updates(self):
        """Every optimizer's step is a phase of its own."""
        hooks = (
            register_optimizer_step_pre_hook(lambda *_: self._count(1)),
            register_optimizer_step_post_hook(lambda *_: self._count(-1)),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _count(self, change):
        self._updates += change


def trace_rank(strategy, job, rank, world_size, *, known, orders, with_memory=True):
    """Returns the Trace of one rank, traced in this very process.

    known        what Tracers found out earlier
    orders       GradientOrders
    with_memory  whether what is held is counted too

    The first step is for warming up, so that the optimizer's state is there; the second one is traced.
    """
    for _ in range(WARM_UP_TRIES):
        steps = Steps()
        calls, phases = Calls(steps), Phases(steps)
        tracer = Tracer(on_kernel=steps.add, phase=phases, functional=calls.functional, known=known)
        account = MemoryAccount("cpu") if with_memory else NoAccount()
        with contextlib.ExitStack() as open_ones:
            group = pretended_group(rank, world_size, calls)
            for one in (group, patched(tracer, orders), streams(calls), tracer, phases.updates(), account):
                open_ones.enter_context(one)
            step = build(strategy, TracedRank(rank, world_size, phases, account), account.observe(job))
            _take_step(step, job, account, 0)
            if not orders.were_right():
                continue
            steps.begin()
            tracer.is_recording = True
            _take_step(step, job, account, 1)
            return Trace(rank, world_size, tuple(steps.entries), dict(account.peak))
    raise RuntimeError("the order in which gradients arrive changes from step to step")


def _take_step(step, job, account, number):
    shape = job.batch_size, job.seq_len
    batch = torch.empty(shape, dtype=torch.int64), torch.empty(shape, dtype=torch.int64)
    account.begin_step(number)
    step(*batch)
    account.end_step()


class NoAccount(contextlib.nullcontext):
    """Counts no memory."""

    peak = {}

    def observe(self, job):
        return job

    def memory(self, kind, name=""):
        return contextlib.nullcontext()

    def span(self, kind):
        return contextlib.nullcontext()

    def begin_step(self, step):
        pass

    def end_step(self):
        pass
