"""A pipeline schedule as a value: per stage the operations in their order; checked, drawn, simulated, and executed."""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from labkit import operations as parts
from labkit import schedule_check
from labkit.execution import execute
from labkit.operations import BackwardInput, BackwardWeight, Forward
from labkit.timeline import Span, Timeline


@dataclass(frozen=True, repr=False)
class Schedule:
    """What each stage does, in order: `Schedule([[Forward(0), Backward(0)], [Forward(0), Backward(0)]])` has 2 stages.

    `schedule[stage]` is a stage's order; `len(schedule)` counts stages. Anything that is not a list of operations per
    stage is a ValueError at once; whether the orders make sense is what `check` says. `print` shows it as a grid.
    """

    orders: tuple

    def __post_init__(self):
        try:
            orders = tuple(tuple(order) for order in self.orders)
        except TypeError:
            raise ValueError("a schedule needs one list per stage, such as [[Forward(0), Backward(0)]] for one stage") from None
        if not orders:
            raise ValueError("a schedule without stages; pass a list with one list of operations per stage")
        for stage, order in enumerate(orders):
            for at, operation in enumerate(order):
                if type(operation) not in parts.OPERATIONS:
                    names = ", ".join(one.__name__ for one in parts.OPERATIONS)
                    raise ValueError(f"stage {stage}, operation {at} (counted from 0) is {operation!r}; use {names}")
        object.__setattr__(self, "orders", orders)

    def __getitem__(self, stage):
        return self.orders[stage]

    def __len__(self):
        return len(self.orders)

    def __repr__(self):
        chunks = f", chunks={self.chunks}" if self.chunks > 1 else ""
        return f"Schedule(stages={self.stages}, micro_batches={self.micro_batches}{chunks})"

    def __str__(self):
        from labkit.schedule_grid import grid

        return grid(self)

    @property
    def stages(self):
        """How many stages there are."""
        return len(self.orders)

    @cached_property
    def micro_batches(self):
        """How many micro-batches there are: the highest number that any stage names, plus one."""
        return max((one.micro_batch + 1 for order in self.orders for one in order), default=0)

    @cached_property
    def chunks(self):
        """How many parts of the model each stage holds."""
        return max((one.chunk + 1 for order in self.orders for one in order), default=1)

    def check(self, *, in_order=False):
        """None if the schedule can be executed, else a ValueError that names the first offence.

        Complete: every stage does the forward and the backward (whole, or in both its halves) of every micro-batch and
        chunk once. Happens-before and deadlock, for stages that each keep their order: a receive waits until its send
        was issued; a send never waits (isend, the tensor kept until the end); tags tell messages apart, as on gloo.
        `in_order` demands that no message overtakes another on its link, for NCCL, which ignores tags. Blocking sends
        on both sides are not covered: with them even 1F1B deadlocks.
        """
        offence = schedule_check.find_gap(self.orders, self.micro_batches, self.chunks)
        offence = offence or schedule_check.find_wait(self.orders, self.chunks)
        if in_order:
            offence = offence or schedule_check.find_overtaking(self.orders, self.chunks)
        if offence:
            raise ValueError(offence)

    def simulate(self, forward_s=1, backward_s=2, link_s=0):
        """The Timeline of stages that work as early as they can; a ValueError where `check` finds an offence.

        Times are for a whole stage and one micro-batch; a list of them is one per stage. A chunk takes its share, an
        input or weight backward half of `backward_s`. `link_s` delays what goes to another stage and disturbs nobody.
        """
        self.check()
        forward_s, backward_s = self._per_stage("forward_s", forward_s), self._per_stage("backward_s", backward_s)
        (link_s,) = _times("link_s", [link_s])

        def duration_s(stage, operation):
            whole_s = forward_s[stage] if isinstance(operation, Forward) else backward_s[stage]
            halved = isinstance(operation, BackwardInput | BackwardWeight)
            return whole_s / self.chunks / (2 if halved else 1)

        done, _ = execute(self.orders, self.chunks, duration_s, link_s)
        return Timeline(tuple(span for one in done for span in self._spans(one, link_s)))

    def draw(self, *, title="", badge=""):
        """The simulated timeline as a picture, a backward as long as two forwards; needs matplotlib."""
        chunks = f", chunks: {self.chunks}" if self.chunks > 1 else ""
        title = title or f"stages: {self.stages}, micro-batches: {self.micro_batches}{chunks}"
        return self.simulate().draw(title=title, badge=badge, unit="forward times")

    def live_micro_batches(self, stage):
        """Peak number of micro-batches whose activations `stage` holds, whole or in part; as Timeline counts them."""
        return _peak(self.orders[stage], lambda operation: operation.micro_batch)

    def live_activations(self, stage):
        """The activations that `stage` holds at the peak, in units of a whole stage's for one micro-batch."""
        return _peak(self.orders[stage], lambda operation: (operation.micro_batch, operation.chunk)) / self.chunks

    def source(self, stage, operation):
        """The (stage, chunk) that `operation` receives from; None where it gets nothing from another part of the model.

        A Forward receives an activation, a Backward or BackwardInput a gradient. The part may lie on the same stage.
        """
        return parts.source(operation, stage, self.stages, self.chunks)

    def target(self, stage, operation):
        """The (stage, chunk) that `operation` sends its activation or gradient to; None where nobody takes it."""
        return parts.target(operation, stage, self.stages, self.chunks)

    def _per_stage(self, name, value):
        values = list(value) if hasattr(value, "__len__") else [value] * self.stages
        if len(values) != self.stages:
            raise ValueError(f"{name} has {len(values)} times for {self.stages} stages; pass one, or one per stage")
        return _times(name, values)

    def _spans(self, done, link_s):
        stage, operation, start_s, end_s = done
        labels = {"micro_batch": operation.micro_batch, "chunk": operation.chunk, "stage": stage}
        yield Span(stage, "compute", operation.kind, f"{operation.kind} {operation.micro_batch}", start_s, end_s, labels)
        part = self.target(stage, operation)
        if link_s and part and part[0] != stage:
            name = f"{operation.makes} {operation.micro_batch} to stage {part[0]}"
            yield Span(stage, "communicate", "communicate", name, end_s, end_s + link_s, labels)


def _times(name, values):
    for value in values:
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value}; times are finite and not negative")
    return values


def _peak(order, key):
    left = Counter(key(operation) for operation in order if not isinstance(operation, Forward))
    live, peak = set(), 0
    for operation in order:
        one = key(operation)
        if isinstance(operation, Forward):
            live.add(one)
            peak = max(peak, len(live))
        else:
            left[one] -= 1
            if not left[one]:
                live.discard(one)
    return peak
