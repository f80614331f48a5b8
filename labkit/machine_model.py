"""A server and a cluster as constants: which links cards have, what the host carries, and what the network adds."""

from dataclasses import dataclass, field
from math import inf

from labkit import links
from labkit.card import Card
from labkit.constants import Constants


class Machine:
    """What a Server and a Cluster have in common, and what the replay asks of them."""

    def kernel_s(self, kernel):
        """Seconds that one of a Kernel's equal kernels occupies a card, its launch left out."""
        return self.card.kernel_s(kernel)

    def collective(self, operation, group, payload_bytes):
        """The links.Transfer of one collective of these ranks."""
        return links.collective(self, operation, group, payload_bytes)

    def message(self, sender, receiver, payload_bytes):
        """The links.Transfer of a send and its recv."""
        return links.message(self, sender, receiver, payload_bytes)

    def copy(self, rank, direction, payload_bytes):
        """The links.Transfer of a copy "to_host" or "to_device"."""
        return links.copy(self, rank, direction, payload_bytes)

    def host_work(self, rank, moved_bytes):
        """The links.Transfer of work of the host's processors."""
        return links.host_work(self, rank, moved_bytes)

    def server_of(self, rank):
        """The server on which `rank` runs: ranks fill one server after the other."""
        return rank // self.cards

    def check_ranks(self, world_size):
        """A ValueError where there are fewer cards than ranks."""
        if world_size > self.world_size:
            raise ValueError(f"{world_size} ranks on {self.name}, which has {self.world_size} cards; use fewer, or more servers")


@dataclass(frozen=True, kw_only=True)
class Server(Constants, Machine):
    """Cards in one host; rates are bytes per second, and of links one way.

    peer_to_peer           whether cards reach each other directly; else every byte goes through the host's memory
    staged_bytes_per_s     what a card sends to another one through the host
    peer_bytes_per_s       what a card sends to another one directly
    copy_bytes_per_s       a copy between a card and pinned host memory
    host_bytes_per_s       the host's memory traffic, all cards together: a staged byte counts twice (written, read), a
                           copied byte once
    processor_bytes_per_s  host memory that the processors of one rank move
    slower_collectives     {operation: bytes per second} of collectives known to be slower than the links
    base_s, hop_s          time of any collective or message, and of each of its steps
    copy_s                 time of any copy
    """

    card: Card
    cards: int
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    peer_to_peer: bool = False
    staged_bytes_per_s: float
    peer_bytes_per_s: float
    copy_bytes_per_s: float
    host_bytes_per_s: float = inf
    processor_bytes_per_s: float = 20e9
    slower_collectives: dict = field(default_factory=dict, hash=False)
    base_s: float = 0.0
    hop_s: float = 0.0
    copy_s: float = 0.0

    network = None
    servers = 1

    def __post_init__(self):
        if self.cards < 1:
            raise ValueError(f"{self.name}: cards is {self.cards}; a server has at least 1")
        for name in ("staged", "peer", "copy", "host", "processor"):
            value = getattr(self, f"{name}_bytes_per_s")
            if not value > 0:
                raise ValueError(f"{self.name}: {name}_bytes_per_s is {value}; it must be above 0")
        if min(self.base_s, self.hop_s, self.copy_s) < 0:
            raise ValueError(f"{self.name}: base_s, hop_s and copy_s must be at least 0")

    @property
    def world_size(self):
        return self.cards

    @property
    def staged(self):
        return not self.peer_to_peer

    @property
    def link_bytes_per_s(self):
        """What a card sends to another one, by the way that this server has."""
        return self.peer_bytes_per_s if self.peer_to_peer else self.staged_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Network(Constants):
    """What connects servers: the rate that a server's port reaches each way, and the time of a step through it."""

    bytes_per_s: float
    hop_s: float = 0.0

    def __post_init__(self):
        if not self.bytes_per_s > 0 or not self.hop_s >= 0:
            raise ValueError(f"{self.name}: bytes_per_s is {self.bytes_per_s} and hop_s {self.hop_s}; use a rate above 0")


@dataclass(frozen=True, kw_only=True)
class Cluster(Constants, Machine):
    """Equal servers on a network. Whatever a server has (`card`, `cards`, `hop_s`, …) the cluster has as well."""

    server: Server
    servers: int
    network: Network

    def __post_init__(self):
        if self.servers < 1:
            raise ValueError(f"{self.name}: servers is {self.servers}; a cluster has at least 1")

    def __getattr__(self, name):
        if name.startswith("_") or name == "server":
            raise AttributeError(name)
        return getattr(self.server, name)

    @property
    def world_size(self):
        return self.servers * self.server.cards
