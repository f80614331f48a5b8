"""How long transfers take alone, and which links they keep busy: α-β with the steps of each algorithm.

A resource is a part that transfers share: ("out", rank) and ("in", rank) are the two directions of a card's own link,
("host", server) the host's memory traffic, ("network out", server) and ("network in", server) the network port.
A transfer's `uses` say for how many seconds it would keep each of them busy if it had them alone.
Sources: bus-bandwidth factors of nccl-tests, doc/PERFORMANCE.md; hops and steps of NCCL's tuner.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

# {operation: (rounds round the ring, share of the payload that crosses each link, given n ranks)}
COLLECTIVES = {
    "all_reduce": (2, lambda n: 2 * (n - 1) / n),
    "reduce_scatter": (1, lambda n: (n - 1) / n),
    "all_gather": (1, lambda n: (n - 1) / n),
    "all_to_all": (1, lambda n: (n - 1) / n),
    "broadcast": (1, lambda n: 1.0),
    "reduce": (1, lambda n: 1.0),
    "gather": (1, lambda n: (n - 1) / n),
    "scatter": (1, lambda n: (n - 1) / n),
    "barrier": (2, lambda n: 0.0),
}


@dataclass(frozen=True)
class Transfer:
    """A transfer begins with `latency_s`, in which it disturbs nobody; then it uses its resources at once."""

    latency_s: float
    uses: dict = field(hash=False)

    @property
    def busy_s(self):
        """Seconds of the second part if nothing else uses the resources."""
        return max(self.uses.values(), default=0.0)

    @property
    def alone_s(self):
        """Seconds from begin to end if nothing else uses the resources."""
        return self.latency_s + self.busy_s


def collective(machine, operation, group, payload_bytes):
    """The Transfer of one collective; `payload_bytes` is the whole tensor, also of all_gather and reduce_scatter.

    A group on several servers goes the hierarchical way: rings within each server, and among the servers a ring for
    each card's share, which the server's port carries; the parts overlap, as NCCL pipelines them in chunks.
    """
    if operation not in COLLECTIVES:
        raise ValueError(f"collective {operation!r} is unknown; known are {', '.join(COLLECTIVES)}")
    if len(group) == 1:
        return Transfer(0.0, {})
    rounds, share = COLLECTIVES[operation]
    link_bytes = payload_bytes * share(len(group))
    cards = Counter(machine.server_of(rank) for rank in group)
    most, crossing = max(cards.values()), len(cards) > 1
    uses = {}
    rate = machine.slower_collectives.get(operation, machine.link_bytes_per_s)
    for rank in group:
        uses["out", rank] = uses["in", rank] = link_bytes / rate
    for server, count in cards.items():
        away = payload_bytes * _network_share(operation, share, len(group), len(cards), count) if crossing else 0.0
        if machine.staged:  # what leaves or enters the server is written and read once more
            uses["host", server] = 2 * (link_bytes * count + away) / machine.host_bytes_per_s
        if crossing:
            uses["network out", server] = uses["network in", server] = away / machine.network.bytes_per_s
    latency_s = machine.base_s + rounds * (most - 1) * machine.hop_s
    return Transfer(latency_s + (rounds * (len(cards) - 1) * machine.network.hop_s if crossing else 0.0), _real(uses))


def _network_share(operation, share, ranks, servers, cards):
    if operation == "all_to_all":
        return cards * (ranks - cards) / ranks
    return share(servers)


def message(machine, sender, receiver, payload_bytes):
    """The Transfer of a send and its recv."""
    here, there = machine.server_of(sender), machine.server_of(receiver)
    seconds = payload_bytes / machine.link_bytes_per_s
    uses, latency_s = {("out", sender): seconds, ("in", receiver): seconds}, machine.base_s + machine.hop_s
    if machine.staged:
        uses["host", here] = uses["host", there] = 2 * payload_bytes / machine.host_bytes_per_s
    if here != there:
        uses["network out", here] = uses["network in", there] = payload_bytes / machine.network.bytes_per_s
        latency_s += machine.network.hop_s
    return Transfer(latency_s, _real(uses))


def copy(machine, rank, direction, payload_bytes):
    """The Transfer of a copy between a card and its host's memory; a single copy engine serves both directions."""
    sides = {"to_host": "out", "to_device": "in"}
    if direction not in sides:
        raise ValueError(f"direction {direction!r} is unknown; a copy goes to_host or to_device")
    engine = (sides[direction] if machine.card.copy_engines == 2 else "out", rank)
    host = "host", machine.server_of(rank)
    uses = {engine: payload_bytes / machine.copy_bytes_per_s, host: payload_bytes / machine.host_bytes_per_s}
    return Transfer(machine.copy_s, _real(uses))


def host_work(machine, rank, moved_bytes):
    """The Transfer of work that moves bytes of host memory, by the processors that one rank has."""
    host = "host", machine.server_of(rank)
    uses = {("processors", rank): moved_bytes / machine.processor_bytes_per_s, host: moved_bytes / machine.host_bytes_per_s}
    return Transfer(0.0, _real(uses))


def _real(uses):
    for resource, seconds in uses.items():
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"a transfer would keep {resource} busy for {seconds} s; check its bytes and the machine's rates")
    return {resource: seconds for resource, seconds in uses.items() if seconds}
