"""Machines as data, to predict what code does on them: cards, servers, networks, and this very machine.

`print(hardware.sources(hardware.RTX4090_SERVER))` says of every constant whether it was read, derived, estimated, fitted
or measured, and where. `RTX4090_SERVER.with_(host_bytes_per_s=2e11)` is the same machine with another constant.
"""

from labkit.card import Card
from labkit.card_table import A100_80GB, CARDS, H100, L40S, RTX3090, RTX4090, RTX5090
from labkit.constants import Constants, Source, sources
from labkit.machine_model import Cluster, Machine, Network, Server
from labkit.operations import whole
from labkit.server_table import (
    A100_80GB_SERVER,
    H100_SERVER,
    L40S_SERVER,
    NETWORKS,
    RTX3090_SERVER,
    RTX4090_BAD_HOST,
    RTX4090_GOOD_HOST,
    RTX4090_PATCHED_P2P,
    RTX4090_SERVER,
    RTX5090_SERVER,
)

__all__ = [
    "A100_80GB",
    "A100_80GB_SERVER",
    "CARDS",
    "Card",
    "Cluster",
    "Constants",
    "H100",
    "H100_SERVER",
    "L40S",
    "L40S_SERVER",
    "Machine",
    "NETWORKS",
    "Network",
    "RTX3090",
    "RTX3090_SERVER",
    "RTX4090",
    "RTX4090_BAD_HOST",
    "RTX4090_GOOD_HOST",
    "RTX4090_PATCHED_P2P",
    "RTX4090_SERVER",
    "RTX5090",
    "RTX5090_SERVER",
    "Server",
    "Source",
    "card",
    "cluster",
    "network",
    "sources",
    "this_machine",
]


def card(name):
    """The Card of that name, such as "RTX 4090"; a ValueError that names the known ones."""
    return _known("card", name, CARDS)


def network(name):
    """The Network of that name, such as "100G InfiniBand"; a ValueError that names the known ones."""
    return _known("network", name, NETWORKS)


def cluster(servers=8, network="100G InfiniBand", *, server=RTX4090_SERVER):
    """Equal servers on a network, which is a name or a Network; a ValueError that names the known ones."""
    servers = whole("servers", servers, 1)
    if not isinstance(server, Server):
        raise ValueError(f"server is {server!r}; pass a Server, such as hardware.RTX4090_SERVER")
    if not isinstance(network, Network):
        network = _known("network", network, NETWORKS)
    return Cluster(name=f"{servers} × ({server.name}), {network.name}", server=server, servers=servers, network=network)


def this_machine():
    """This machine as a Server, its constants measured in under 6 s, once per kernel."""
    from labkit import calibration  # imports torch, and runs ranks

    return calibration.this_machine()


def _known(what, name, table):
    if name not in table:
        raise ValueError(f"{what} {name!r} is unknown; known are {', '.join(table)}")
    return table[name]
