"""Traces and machines for tests, so plain that every time can be worked out by hand."""

from labkit.hardware import Card, Cluster, Network, Server
from labkit.operations import Forward
from labkit.trace_records import Collective, Kernel, Message, Trace, Wait


def plain_card(**changes):
    """1 FLOP/s and 1 byte/s at full efficiency, nothing else costs time."""
    constants = {
        "peak_flops_per_s": {"float32": 1.0},
        "memory_bytes": 1e12,
        "usable_bytes": 1e12,
        "bytes_per_s": 1.0,
        "memory_efficiency": 1.0,
        "matmul_efficiency": 1.0,
    }
    return Card(name="plain card", **constants | changes)


def plain_server(cards=8, *, card=None, **changes):
    """Direct links of 1 byte/s, no latency, no limit of the host."""
    rates = dict.fromkeys(("staged_bytes_per_s", "peer_bytes_per_s", "copy_bytes_per_s", "processor_bytes_per_s"), 1.0)
    constants = {"peer_to_peer": True, **rates} | changes
    return Server(name="plain server", card=card or plain_card(), cards=cards, **constants)


def plain_cluster(servers, cards, *, network_bytes_per_s=1.0, network_hop_s=0.0, **changes):
    network = Network(name="plain network", bytes_per_s=network_bytes_per_s, hop_s=network_hop_s)
    return Cluster(name="plain cluster", server=plain_server(cards, **changes), servers=servers, network=network)


def work(seconds, phase="forward", *, count=1):
    """A kernel that takes this long on a plain card."""
    return Kernel("work", flops=seconds, phase=phase, count=count)


def all_reduce(payload_bytes, world_size, id=0, *, asynchronous=False, key=None, operation="all_reduce"):
    return Collective(operation, tuple(range(world_size)), payload_bytes, key or (id,), id, asynchronous)


def traces(*entries_of_ranks):
    """One Trace per rank."""
    return tuple(Trace(rank, len(entries_of_ranks), tuple(entries)) for rank, entries in enumerate(entries_of_ranks))


def equal_traces(world_size, entries):
    """The same entries on every rank."""
    return tuple(Trace(rank, world_size, entries) for rank in range(world_size))


def scheduled_traces(schedule, forward_s=1.0, backward_s=2.0, payload_bytes=0):
    """What each stage of a schedule does: receive, compute, send on without waiting."""
    return traces(*(_stage_entries(schedule, stage, forward_s, backward_s, payload_bytes) for stage in range(schedule.stages)))


def _stage_entries(schedule, stage, forward_s, backward_s, payload_bytes):
    entries, sends = [], []
    for number, operation in enumerate(schedule[stage]):
        here = stage, operation.chunk
        source, target = schedule.source(stage, operation), schedule.target(stage, operation)
        if source and source[0] != stage:
            tag = _tag(operation, source, here)
            entries.append(Message("recv", source[0], payload_bytes, ("recv", number), tag))
        whole_s = forward_s if isinstance(operation, Forward) else backward_s
        halves = 2 if operation.kind in ("backward_input", "backward_weight") else 1
        entries.append(work(whole_s / schedule.chunks / halves, operation.kind))
        if target and target[0] != stage:
            sends.append(("send", number))
            tag = _tag(operation, here, target)
            entries.append(Message("send", target[0], payload_bytes, sends[-1], tag, asynchronous=True))
    return [*entries, Wait(tuple(sends))]


def _tag(operation, source, target):
    return operation.makes, operation.micro_batch, source[1], target[1]
