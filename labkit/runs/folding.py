"""A machine on which one rank per pipeline stage stands for all equal cards of that stage."""

import re
from collections import Counter
from functools import cached_property

from labkit.links import Transfer
from labkit.machine_model import Machine
from labkit.runs.configuration import Configuration
from labkit.runs.constants import Constants
from labkit.runs.pricing import kernel_s
from labkit.runs.traces import parts


class Quiet(Transfer):
    """A transfer by the copy engines: it takes nothing from the kernels beside it."""

    @property
    def busy_s(self):
        return 0.0


class Folded(Machine):
    """What the replay asks of a machine, for folded traces: resources are those of one card, shared ones fully loaded.

    Ranks are placed as Megatron-LM places them: tensor parallelism innermost, then data parallelism, stages outermost.
    """

    def __init__(self, run: Configuration, constants: Constants):
        self.run, self.constants = run, constants
        self.real = constants.machine(run)
        self.card, self.world_size, self.name = self.real.card, run.pp, self.real.name
        self._pace, self._parts = constants.pace(run), parts(run)

    def kernel_s(self, kernel):
        """Seconds of a Kernel that stands for the kernels of a part, or of a single one."""
        return self.part_s(kernel.name) if kernel.name in self._parts else self._sum_s((kernel,))

    def part_s(self, name):
        """Seconds of one of a block's passes, of the head, or of the embedding."""
        return self._sum_s(self._parts[name])

    def _sum_s(self, inside):
        return self._pace * sum(one.count * kernel_s(self.constants, self.card, one) for one in inside)

    def ranks(self, stage, axis=None):
        """The ranks of a stage; with an axis, those of its first group along it."""
        run, first = self.run, stage * self.run.dp * self.run.tp
        if axis == "tp":
            return tuple(range(first, first + run.tp))
        return tuple(range(first, first + run.dp * run.tp, run.tp if axis == "dp" else 1))

    def collective(self, operation, group, payload_bytes):
        name, axis = re.fullmatch(r"(\w+) over (\w+)", operation).groups()
        stage = group[0]
        members = self.ranks(stage, axis)
        transfer = self.real.collective(name, members, payload_bytes)
        folded = self._folded(transfer, {members[0]: stage}, self._crowd(stage) / self._crowd(stage, axis))
        cost = self.constants.staging_on(self.real)
        uses = {at: seconds * (cost if at[0] == "host" else 1) for at, seconds in folded.uses.items()}
        by_engine = self.run.copy_engine_collectives == "all" or (self.run.copy_engine_collectives and name == "all_gather")
        return (Quiet if by_engine else Transfer)(folded.latency_s, uses)

    def message(self, sender, receiver, payload_bytes):
        ends = {self.ranks(stage)[0]: stage for stage in (sender, receiver)}
        first, second = ends
        return self._folded(self.real.message(first, second, payload_bytes), ends, self._crowd(sender))

    def copy(self, rank, direction, payload_bytes):
        first = self.ranks(rank)[0]
        moved = self._folded(self.real.copy(first, direction, payload_bytes), {first: rank}, self._crowd(rank))
        return Quiet(moved.latency_s, moved.uses)

    def host_work(self, rank, moved_bytes):
        first = self.ranks(rank)[0]
        return self._folded(self.real.host_work(first, moved_bytes), {first: rank}, self._crowd(rank))

    def _crowd(self, stage, axis=None):
        """How many cards of the stage, or of its first group, share the first one's server."""
        return self._crowds[stage, axis]

    @cached_property
    def _crowds(self):
        crowds = {}
        for stage in range(self.run.pp):
            for axis in (None, "dp", "tp"):
                ranks = self.ranks(stage, axis)
                crowds[stage, axis] = Counter(map(self.real.server_of, ranks))[self.real.server_of(ranks[0])]
        return crowds

    def _folded(self, transfer, stages, crowd):
        """Own links by stage; what cards of a server share carries `crowd` equal transfers."""
        servers = {self.real.server_of(rank) for rank in stages}
        uses = {}
        for (kind, where), seconds in transfer.uses.items():
            if kind in ("host", "network out", "network in"):
                if where in servers:
                    uses[kind, where] = seconds * crowd
            elif where in stages:
                uses[kind, stages[where]] = seconds
        return Transfer(transfer.latency_s, uses)
