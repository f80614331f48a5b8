"""What the ranks sent: calls and bytes per operation, counted; bytes on the wire, computed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """One rank's use of one operation.

    calls          how often it was called (counted)
    payload_bytes  bytes of the tensor argument, the whole one for all_gather and reduce_scatter (counted)
    wire_bytes     bytes that this rank sends under the ring convention (computed, see `wire_bytes`)
    """

    calls: int = 0
    payload_bytes: int = 0
    wire_bytes: float = 0.0

    def __add__(self, other):
        return Traffic(
            self.calls + other.calls,
            self.payload_bytes + other.payload_bytes,
            self.wire_bytes + other.wire_bytes,
        )


def wire_bytes(operation, payload_bytes, world_size):
    """Returns the bytes that one rank sends for one call, by the ring convention.

    all_reduce 2(N−1)/N of the payload, the other collectives (N−1)/N, send the payload, recv and barrier nothing.
    Source: the bus-bandwidth factors of nccl-tests, doc/PERFORMANCE.md.
    """
    if operation == "send":
        return float(payload_bytes)
    if operation in ("recv", "barrier", "wait"):
        return 0.0
    share = (world_size - 1) / world_size
    return payload_bytes * share * (2 if operation == "all_reduce" else 1)


class Counter:
    """Adds up one rank's traffic while it runs."""

    def __init__(self):
        self._sums = {}

    def count(self, operation, payload_bytes, world_size):
        calls, payload, wire = self._sums.get(operation, (0, 0, 0.0))
        wire += wire_bytes(operation, payload_bytes, world_size)
        self._sums[operation] = (calls + 1, payload + payload_bytes, wire)

    def clear(self):
        self._sums.clear()

    def totals(self):
        """Returns {operation: Traffic}."""
        return {operation: Traffic(*sums) for operation, sums in self._sums.items()}


class TrafficTable(tuple):
    """One {operation: Traffic} per rank, in rank order; prints as a table."""

    def __str__(self):
        lines = [f"{'rank':>4}  {'operation':<14} {'calls':>7} {'payload':>14} {'wire (computed)':>16}"]
        for rank, operations in enumerate(self):
            for name, use in sorted(operations.items()):
                lines.append(
                    f"{rank:>4}  {name:<14} {use.calls:>7,} {use.payload_bytes:>12,} B {use.wire_bytes:>14,.0f} B"
                )
        return "\n".join(lines if len(lines) > 1 else ["nothing was sent"])

    __repr__ = __str__
