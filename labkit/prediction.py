"""predict: what the very code of a strategy would do on devices that are not there."""

import math
from dataclasses import dataclass, field
from functools import cached_property

from labkit import hardware, jobs
from labkit.hardware import RTX4090_SERVER
from labkit.machine_model import Machine
from labkit.operations import whole
from labkit.replay import Replay, replay
from labkit.trace_records import Collective, Kernel, Message
from labkit.traced import traced
from labkit.traffic import Counter, TrafficTable
from labkit.training import one_device, refuse_wrong_request, strategy_name

UNVALIDATED = "unvalidated: no public measurement of tensor, context or expert parallelism on this card"
OTHER_CARD = "unvalidated: the published runs that judge predictions are all of RTX 4090s"
LEAST_ACTIVATION_BYTES = 4096  # a collective of fewer bytes adds up losses or norms


@dataclass(frozen=True, repr=False)
class Prediction:
    """What one step of a strategy would take on `machine`; printed and drawn with its badge.

    .timeline       labkit.Timeline of all ranks
    .step_s .tokens_per_s .mfu
    .speedup        one device's step ÷ this one; ValueError where the job does not fit one device
    .traffic        per rank {operation: Traffic}, as Run.traffic
    .peak_bytes     per rank {kind: bytes} at the fullest moment; .fits: whether that fits every card
    .peak_name      the peak that mfu is a share of; .note: the error on published runs, or why there is none to tell
    """

    name: str
    world_size: int
    machine: Machine
    job: jobs.Job
    traces: tuple = field(hash=False)
    replay: Replay = field(hash=False)

    def __repr__(self):
        lines = [f"{self.name} on {self.world_size} rank{'s' * (self.world_size > 1)}, {self.badge}: {self.job}"]
        held = [sum(kinds.values()) for kinds in self.peak_bytes]
        room = "fits" if self.fits else "does NOT fit"
        lines.append(
            f"step {1e3 * self.step_s:,.1f} ms, {self.tokens_per_s:,.0f} tokens/s, MFU {self.mfu:.1%} of {self.peak_name}; "
            f"up to {max(held) / 2**30:.1f} GiB a card, which {room}"
        )
        return "\n".join([*lines, self.note])

    @property
    def badge(self):
        return f"predicted for {self.world_size} {self.machine.card.name}"

    @property
    def timeline(self):
        return self.replay.timeline

    @property
    def step_s(self):
        return self.replay.step_s

    @property
    def tokens_per_s(self):
        return self.job.tokens_per_step / self.step_s

    @property
    def speedup(self):
        alone = predict(one_device, world_size=1, on=self.machine, job=self.job)
        if not alone.fits:
            held = sum(alone.peak_bytes[0].values())
            raise ValueError(
                f"this job takes {held / 2**30:.1f} GiB on one device, and a {self.machine.card.name} has "
                f"{self.machine.card.usable_bytes / 2**30:.1f} GiB to use, so there is no speed-up; read tokens_per_s instead"
            )
        return alone.step_s / self.step_s

    @property
    def mfu(self):
        flops = self.job.flops_per_token * self.job.tokens_per_step
        return flops / (self.step_s * self.world_size * self.machine.card.peak(self._dtype))

    @property
    def peak_name(self):
        peak = self.machine.card.peak(self._dtype)
        return f"{self.machine.card.name}, {self._dtype}: {peak / 1e12:.1f} TFLOP/s"

    @cached_property
    def traffic(self):
        return TrafficTable(map(traffic_of, self.traces))

    @property
    def peak_bytes(self):
        return tuple(trace.peak_bytes for trace in self.traces)

    @property
    def fits(self):
        return all(sum(kinds.values()) <= self.machine.card.usable_bytes for kinds in self.peak_bytes)

    @property
    def note(self):
        if any(splits_activations(trace, self.job) for trace in self.traces):
            return UNVALIDATED
        if self.machine.card.name != RTX4090_SERVER.card.name:
            return OTHER_CARD
        from labkit.runs.judgement import error_on_published_runs

        return error_on_published_runs()

    @property
    def figure(self):
        return self.draw()

    def draw(self):
        """The timeline of all ranks, and below it what every card holds against the memory that it has."""
        from labkit.draw_prediction import draw_prediction

        return draw_prediction(self)

    @property
    def _dtype(self):
        return str(self.job.dtype).removeprefix("torch.")


def predict(strategy, *, world_size=8, on=RTX4090_SERVER, job=None):
    """Predicts one step of a strategy on cards that are not there; returns a Prediction.

    on   a Server or Cluster of `labkit.hardware`, or the name of a card: 8 of them in one server
    job  None: the preset of an RTX 4090, 124 M parameters

    The strategy runs without devices (`labkit.trace`), and what it does is replayed on a model of the machine. Raises
    NotTraceable where it reads values, Deadlock where ranks would wait for each other, the strategy's own ValueError
    for what does not divide, and ValueError for an unknown card and for more ranks than cards.
    """
    refuse_wrong_request(strategy, job)
    machine = _machine(on)
    world_size = whole("world_size", world_size, 1)
    if world_size > machine.world_size:
        more = math.ceil(world_size / machine.cards)
        raise ValueError(
            f"{machine.name} has {machine.world_size} cards, and {world_size} ranks need one each; "
            f"use hardware.cluster(servers={more}) or fewer ranks"
        )
    job = job or jobs.job(device="cuda")
    traces = traced(strategy, world_size=world_size, job=job)
    return Prediction(strategy_name(strategy), world_size, machine, job, traces, replay(traces, machine))


def splits_activations(trace, job):
    """Whether ranks share out heads, tokens or experts: tensor, context or expert parallelism.

    Told by attention over fewer heads or tokens than the job's, by an all_to_all, and by large sums within forward.
    """
    is_forward = True
    for entry in trace.entries:
        if isinstance(entry, Kernel):
            is_forward = is_forward and entry.phase != "backward"
            if entry.name == "attention" and (entry.shape[1] < job.heads or entry.shape[2] < job.seq_len):
                return True
        elif isinstance(entry, Collective) and entry.payload_bytes > LEAST_ACTIVATION_BYTES:
            is_sum = entry.operation in ("all_reduce", "reduce_scatter")
            if entry.operation == "all_to_all" or (is_forward and is_sum):
                return True
    return False


def traffic_of(trace):
    """{operation: Traffic} of one rank's step, as a real run counts it."""
    counter = Counter()
    for entry in trace.entries:
        if isinstance(entry, Collective):
            counter.count(entry.operation, entry.payload_bytes, len(entry.group))
        elif isinstance(entry, Message):
            counter.count(entry.operation, entry.payload_bytes, 2)
    return counter.totals()


def _machine(on):
    if isinstance(on, Machine):
        return on
    card = hardware.card(on) if isinstance(on, str) else on
    for server in vars(hardware).values():
        if isinstance(server, hardware.Server) and server.card == card:
            return server
    raise ValueError(f"on={on!r} is no machine; pass labkit.RTX4090_SERVER, hardware.cluster(…) or the name of a card")
