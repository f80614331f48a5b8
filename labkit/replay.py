"""Replay: what all ranks' traces would take on a machine that is not there.

The replay is deterministic. Each card has a stream for its kernels, one for the collectives of each group, and one for
copies each way; the host issues the work ahead of the card, where cards are asynchronous. Transfers share links.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

from labkit.deadlock import Deadlock
from labkit.intervals import length, merge, subtract
from labkit.machine_model import Machine
from labkit.replay_engine import Engine
from labkit.replay_spans import rank_spans
from labkit.timeline import Timeline
from labkit.trace_records import HostWork, Trace

__all__ = ["Deadlock", "Replay", "replay"]


@dataclass(frozen=True, repr=False)
class Replay:
    """What the ranks would do.

    .step_s         seconds from the first kernel's launch to the end of all work on all ranks
    .timeline       Timeline: kernels of one phase as one span, the learner's own spans by their names and labels
    """

    step_s: float
    world_size: int
    _actors: dict = field(hash=False)
    _recorded: bool = True

    def __repr__(self):
        return f"Replay of {self.world_size} rank{'s' * (self.world_size > 1)}, {self.step_s:.4g} s"

    def busy_s(self, rank):
        """Seconds in which `rank`'s card runs kernels."""
        return self._actors[rank].busy_s

    def communicate_s(self, rank):
        """Seconds in which something of `rank` is on the way: collectives, messages, copies; not the wait for others."""
        return length(self._moving(rank))

    def exposed_s(self, rank):
        """Seconds of `communicate_s` in which the card runs no kernel."""
        return length(subtract(self._moving(rank), self._computing(rank)))

    @property
    def overlap(self):
        """The share of all ranks' communication that kernels cover, 0 to 1; nan where nothing is sent."""
        moving_s = sum(map(self.communicate_s, self._actors))
        return 1 - sum(map(self.exposed_s, self._actors)) / moving_s if moving_s else math.nan

    @cached_property
    def timeline(self):
        return Timeline(tuple(span for rank in self._actors for span in rank_spans(self._recorded_actor(rank))))

    def _recorded_actor(self, rank):
        if not self._recorded:
            raise ValueError("this replay kept only step_s and busy_s; replay with record=True for the rest")
        return self._actors[rank]

    def _moving(self, rank):
        transfers = self._recorded_actor(rank).transfers
        return merge((start_s, end_s) for entry, start_s, end_s, _ in transfers if not isinstance(entry, HostWork))

    def _computing(self, rank):
        rows = self._recorded_actor(rank).rows
        return merge((start_s, end_s) for kind, _, start_s, end_s, labels in rows if kind != "wait" and "mark" not in labels)


def replay(traces, machine, *, record=True):
    """Replays one Trace per rank, 0 to world_size − 1, on a Server or Cluster; returns a Replay.

    record  False keeps only step_s and busy_s, for many evaluations in a row

    Raises Deadlock (a ValueError) that names the ranks and operations which wait for each other or do not agree, and
    ValueError for traces that are not complete and for more ranks than the machine has cards.
    """
    traces = sorted(_checked(traces), key=lambda trace: trace.rank)
    if not isinstance(machine, Machine):
        raise ValueError(f"machine is {machine!r}; pass a Server or Cluster, such as labkit.RTX4090_SERVER")
    machine.check_ranks(len(traces))
    engine = Engine(traces, machine, record=record)
    engine.run()
    return Replay(engine.end_s, len(traces), engine.actors, record)


def _checked(traces):
    traces = tuple(traces)
    wrong = next((one for one in traces if not isinstance(one, Trace)), None)
    if wrong is not None or not traces:
        raise ValueError(f"traces hold {wrong!r}; pass one Trace per rank")
    ranks = sorted(trace.rank for trace in traces)
    if ranks != list(range(len(traces))):
        raise ValueError(f"traces of ranks {ranks}; pass one Trace for each rank from 0 to {len(traces) - 1}")
    return traces
