"""What one rank does in one training step, as data: tracing makes it, the replay on a machine model reads it."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Kernel:
    """Work of one device: `count` equal kernels in a row, each with these FLOPs and bytes (read and written).

    `shape` is (batch, m, n, k) of a matrix product, (batch, heads, queries, keys, head width) of attention, () of anything
    else; `dtype` is the one it is computed in; `phase` is forward, backward or optimizer. The FLOPs of `causal` attention are
    those of the whole square of queries and keys; the device does half of them.
    """

    name: str
    flops: int = 0
    moved_bytes: int = 0
    dtype: str = "float32"
    shape: tuple = ()
    phase: str = "forward"
    count: int = 1
    causal: bool = False


@dataclass(frozen=True, slots=True)
class Collective:
    """A call that all ranks of `group` make; the calls with the same `key` on its ranks belong together.

    An asynchronous one runs beside the kernels after it, until a `Wait` names its `id`. It begins when the device has done
    what stands before it in the code; with `after` (ids) when these are done, whatever the device does: a stream of its own.
    """

    operation: str
    group: tuple
    payload_bytes: int
    key: tuple
    id: int
    asynchronous: bool = False
    after: tuple | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A send to, or recv from, `peer`; pairs are matched in order among equal (sender, receiver, tag)."""

    operation: str
    peer: int
    payload_bytes: int
    id: int
    tag: int = 0
    asynchronous: bool = False
    after: tuple | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between device and host memory, `direction` "to_host" or "to_device"."""

    direction: str
    payload_bytes: int
    id: int
    asynchronous: bool = False
    after: tuple | None = None


@dataclass(frozen=True, slots=True)
class HostWork:
    """Work of the host's processors that moves these bytes of host memory, such as an optimizer that was offloaded."""

    name: str
    moved_bytes: int
    id: int
    asynchronous: bool = False
    after: tuple | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """The device goes on only when all of these are done."""

    ids: tuple


@dataclass(frozen=True, slots=True)
class Mark:
    """The begin or the end of a span of the learner's own, as `rank.span` makes it."""

    kind: str
    name: str
    begins: bool
    labels: dict = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Trace:
    """One rank's step: its entries in the order of its code, and what its memory held at the fullest moment.

    peak_bytes  {kind: bytes} at that moment: weights, gradients, optimizer state, activations, other
    """

    rank: int
    world_size: int
    entries: tuple
    peak_bytes: dict = field(default_factory=dict, hash=False)

    def only(self, kind):
        """Returns the entries of one type, such as Kernel."""
        return tuple(entry for entry in self.entries if isinstance(entry, kind))

    @property
    def flops(self):
        return sum(kernel.flops * kernel.count for kernel in self.only(Kernel))
