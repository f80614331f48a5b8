"""The servers and networks by name, each constant with its source."""

from labkit.card_table import A100_80GB, H100, L40S, RTX3090, RTX4090, RTX5090
from labkit.constants import DERIVED, ESTIMATED, READ, Source
from labkit.machine_model import Network, Server

GB = 1e9
P2P = Source(READ, "6 RTX 4090 with patched driver, one way 24.4 GB/s; all_reduce bus 24.5 GB/s (tinygrad README)")

RTX4090_SERVER = Server(
    name="8 RTX 4090, ordinary host",
    card=RTX4090,
    cards=8,
    pcie_generation=4,
    pcie_lanes=16,
    peer_to_peer=False,
    staged_bytes_per_s=12 * GB,
    peer_bytes_per_s=24.4 * GB,
    copy_bytes_per_s=26.2 * GB,
    host_bytes_per_s=2 * 8 * 7 * GB,
    processor_bytes_per_s=20 * GB,
    base_s=3.6e-6,
    hop_s=2.5e-6,
    copy_s=1e-5,
    origins={
        "cards": Source(READ, "servers of MEPipe, RoundPipe and arXiv 2311.03687"),
        "pcie_generation": Source(READ, "data sheet of the card"),
        "pcie_lanes": Source(ESTIMATED, "all lanes wired, as in servers for 8 cards"),
        "peer_to_peer": Source(READ, "off in the stock driver (tinygrad README)"),
        "staged_bytes_per_s": Source(READ, "2 RTX 4090, P2P off, one way: 11.97 to 12.02 GB/s (nccl-tests issue 117)"),
        "peer_bytes_per_s": P2P,
        "copy_bytes_per_s": Source(READ, "pinned host to device 26.2 to 26.3 GB/s, 4 RTX 4090 (kentino case study)"),
        "host_bytes_per_s": Source(ESTIMATED, "two sockets: all_reduce bus of 5 to 10, so 7 GB/s x 8 cards, written and read"),
        "processor_bytes_per_s": Source(ESTIMATED, "an eighth of two sockets' memory channels"),
        "base_s": Source(READ, "NCCL's tuner: 3.6 us, ring with its low-latency protocol"),
        "hop_s": Source(DERIVED, "4 ranks, all_reduce of 32 KB in 18.8 us (tinygrad PR 22), less base_s, over 6 steps"),
        "copy_s": Source(ESTIMATED, "start of a DMA copy"),
    },
)
RTX4090_GOOD_HOST = RTX4090_SERVER.with_(
    name="8 RTX 4090, good host",
    host_bytes_per_s=2 * 8 * 11.5 * GB,
    source=Source(ESTIMATED, "one socket, PCIe 4.0 x16: all_reduce bus of 10 to 13 GB/s a card, written and read"),
)
RTX4090_BAD_HOST = RTX4090_SERVER.with_(
    name="8 RTX 4090, bad host",
    pcie_lanes=4,
    staged_bytes_per_s=4 * GB,
    copy_bytes_per_s=6.3 * GB,
    host_bytes_per_s=2 * 8 * 2.5 * GB,
    source=Source(ESTIMATED, "rented, narrow slots: 1 to 4 GB/s a card (cortwave blog), 6.3 to the host (tinygrad issue 44)"),
)
RTX4090_PATCHED_P2P = RTX4090_SERVER.with_(name="8 RTX 4090, patched driver (P2P)", peer_to_peer=True, source=P2P)

RTX3090_SERVER = RTX4090_SERVER.with_(
    name="8 RTX 3090, ordinary host",
    card=RTX3090,
    hop_s=2.5e-6,
    source=Source(ESTIMATED, "as for the RTX 4090: the same PCIe generation, and P2P off in the driver"),
)
RTX5090_SERVER = RTX4090_SERVER.with_(
    name="8 RTX 5090, good host",
    card=RTX5090,
    pcie_generation=5,
    staged_bytes_per_s=35 * GB,
    copy_bytes_per_s=52 * GB,
    host_bytes_per_s=2 * 8 * 28 * GB,
    source=Source(DERIVED, "all_reduce bus of 35 GB/s at 4 cards, 28 at 8, two Xeon 8480+ (nccl 1639); copies: 2 x PCIe 4.0"),
)
A100_80GB_SERVER = RTX4090_SERVER.with_(
    name="8 A100 80GB, NVLink",
    card=A100_80GB,
    peer_to_peer=True,
    peer_bytes_per_s=0.8 * 600 / 2 * GB,
    hop_s=1e-6,
    source=Source(ESTIMATED, "NVLink of 600 GB/s both ways (data sheet), 80 % reached"),
)
H100_SERVER = RTX4090_SERVER.with_(
    name="8 H100, NVLink",
    card=H100,
    peer_to_peer=True,
    peer_bytes_per_s=0.8 * 900 / 2 * GB,
    copy_bytes_per_s=52 * GB,
    pcie_generation=5,
    hop_s=1e-6,
    source=Source(ESTIMATED, "NVLink of 900 GB/s both ways (data sheet), 80 % reached; copies twice PCIe 4.0's"),
)
L40S_SERVER = RTX4090_SERVER.with_(
    name="8 L40S, P2P over PCIe",
    card=L40S,
    peer_to_peer=True,
    source=Source(ESTIMATED, "P2P over PCIe 4.0 x16, taken from the RTX 4090 with patched driver"),
)

REACHED = Source(DERIVED, "92 % of the line rate: NCCL 23.0 of 25 GB/s (puretensor.ai), iperf 9.37 of 10 Gbit/s (DeepSpeed 5766)")
STEP = {"InfiniBand": 6e-6, "RoCE": 8e-6, "Ethernet": 25e-6}
STEPS = {
    "InfiniBand": Source(ESTIMATED, "NCCL's tuner: 2.7 us (low latency) to 9.6 us (Simple) per network step"),
    "RoCE": Source(ESTIMATED, "a little more than InfiniBand"),
    "Ethernet": Source(ESTIMATED, "TCP through the kernel of the operating system, 20 to 30 us"),
}


def _network(gigabits, kind, ports=1):
    several = f"{ports}x " if ports > 1 else ""
    return Network(
        name=f"{several}{gigabits}G {kind}",
        bytes_per_s=0.92 * ports * gigabits / 8 * GB,
        hop_s=STEP[kind],
        origins={"bytes_per_s": REACHED, "hop_s": STEPS[kind]},
    )


NETWORKS = {
    network.name: network
    for network in (
        _network(10, "Ethernet"),
        _network(25, "Ethernet"),
        _network(25, "Ethernet", ports=2),
        _network(100, "Ethernet"),
        _network(100, "RoCE"),
        _network(200, "RoCE"),
        _network(100, "InfiniBand"),
        _network(200, "InfiniBand"),
        _network(400, "InfiniBand"),
        _network(400, "InfiniBand", ports=8),
    )
}
