"""The machine of a row: card, servers and network out of the cells gpu and interconnect."""

import re
from math import ceil

from labkit.card_table import CARDS
from labkit.constants import ESTIMATED, Source
from labkit.machine_model import Cluster, Network
from labkit.server_table import (
    A100_80GB_SERVER,
    H100_SERVER,
    L40S_SERVER,
    RTX3090_SERVER,
    RTX4090_SERVER,
    RTX5090_SERVER,
    STEP,
)

GIB = 2**30
_SERVERS = (
    (r"4090", RTX4090_SERVER), (r"3090", RTX3090_SERVER), (r"5090", RTX5090_SERVER), (r"a100|a800", A100_80GB_SERVER),
    (r"h100|h800", H100_SERVER), (r"l40s", L40S_SERVER),
)  # fmt: skip
VARIANT = Source(ESTIMATED, "the row's own words")
RTX4090D_SHARE = 148.5 / 165.7  # measured bf16 products of the two, community table


class UnknownCard(ValueError):
    """The row's card is not in the table of cards."""


def of(row, nodes: int | None, cards: int):
    """Returns the Server or Cluster of a row that uses so many cards; an UnknownCard where its gpu is not in the table."""
    text = row.text("interconnect")
    server = _memory(row.text("gpu"), _card(row))
    found = re.search(r"(\d+)\s*(?:x\s*)?(?:nodes?|servers?|machines?|hosts?)\b", text, re.IGNORECASE)
    servers = nodes or (int(found.group(1)) if found else 0)
    if not servers:
        servers = ceil(cards / 8)
        if cards > 8:
            row.assume(f"{servers} servers of 8 cards")
    servers = max(1, min(servers, cards))
    server = _wired(text, server).with_(name=f"{ceil(cards / servers)} {server.card.name}", cards=ceil(cards / servers))
    if servers == 1:
        return server
    network = _network(row, text)
    return Cluster(name=f"{servers} x {server.name}, {network.name}", server=server, servers=servers, network=network)


def _card(row):
    gpu = row.text("gpu").lower()
    if not gpu:
        row.assume("gpu RTX 4090")
        return RTX4090_SERVER
    for pattern, server in _SERVERS:
        if re.search(pattern, gpu):
            if re.search(r"4090\s*d\b", gpu):
                peaks = {dtype: rate * RTX4090D_SHARE for dtype, rate in server.card.peak_flops_per_s.items()}
                return server.with_(source=VARIANT, peak_flops_per_s=peaks, sms=114)
            return server
    raise UnknownCard(f"gpu {row.text('gpu')!r} is not in the table of cards, which has {', '.join(CARDS)}")


def _memory(gpu, server):
    """The stated memory, where it is another than the table's, as of modified cards."""
    found = re.search(r"(\d+)\s*G(?:i?B)?\b", gpu, re.IGNORECASE)
    card, size = server.card, int(found.group(1)[:6]) * GIB if found else 0
    if not 4 * GIB <= size <= 1000 * GIB or abs(size - card.memory_bytes) < 0.06 * card.memory_bytes:
        return server
    return server.with_(source=VARIANT, memory_bytes=size, usable_bytes=size - (card.memory_bytes - card.usable_bytes))


def _wired(text, server):
    """What the row says of PCIe and peer-to-peer."""
    changes, lanes = {}, re.search(r"\bx\s?(4|8)\b", text)
    share = (int(lanes.group(1)) / 16 if lanes else 1) * (0.5 if re.search(r"(pcie|gen)\s*3", text, re.IGNORECASE) else 1)
    if share < 1:
        changes = {name: getattr(server, name) * share for name in ("copy_bytes_per_s", "staged_bytes_per_s", "peer_bytes_per_s")}
    if re.search(r"patched|p2p (on|enabled|driver)|with p2p", text, re.IGNORECASE):
        changes["peer_to_peer"] = True
    return server.with_(source=VARIANT, **changes) if changes else server


def _network(row, text):
    ports = re.search(r"(\d)\s*x\s*\d+\s*g", text, re.IGNORECASE)
    rate = re.search(r"(\d+)\s*g(?:b|bit|be|bps)?(?:/s|\b|e\b)", re.sub(r"\d+\s*x\s*", "", text), re.IGNORECASE)
    kind = next((one for one in ("InfiniBand", "RoCE") if one.lower() in text.lower()), "Ethernet")
    if rate is None:
        row.assume("network 100G InfiniBand")
        kind = "InfiniBand"
    gigabits = min(10_000, max(1, int(rate.group(1)))) if rate else 100
    count = max(1, int(ports.group(1))) if ports else 1
    name = f"{count}x {gigabits}G {kind}" if count > 1 else f"{gigabits}G {kind}"
    return Network(name=name, bytes_per_s=0.92 * count * gigabits / 8 * 1e9, hop_s=STEP[kind])
