"""Machines as data: numbers against the data sheets, kernels and links by hand, sources, changed constants, and this machine."""

import copy
import dataclasses
import math
import pickle

import pytest
from traces import equal_traces, plain_card, plain_cluster, plain_server

import labkit
from labkit import calibration, hardware
from labkit.constants import ORIGINS
from labkit.replay import replay
from labkit.trace_records import Collective, Kernel

SERVERS = [value for value in vars(hardware).values() if isinstance(value, hardware.Server)]


def matmul(m, n, k, dtype="bfloat16", batch=1):
    return Kernel("matmul", 2 * batch * m * n * k, 0, dtype, (batch, m, n, k))


def test_the_facts_about_the_rtx_4090():
    card = labkit.RTX4090_SERVER.card
    assert card is hardware.RTX4090 and labkit.RTX4090_SERVER.cards == 8
    assert card.peak("bfloat16") == 165.2e12 and card.peak("float16_accumulate") == 330.3e12
    assert card.bytes_per_s == pytest.approx(10_501e6 * 2 * 384 / 8, rel=1e-3)
    assert 23 * 2**30 < card.memory_bytes < 24 * 2**30
    assert card.usable_bytes == pytest.approx(card.memory_bytes - 0.9 * 2**30)
    assert labkit.RTX4090_SERVER.staged and not hardware.RTX4090_PATCHED_P2P.staged


@pytest.mark.parametrize("card", hardware.CARDS.values(), ids=hardware.CARDS)
def test_large_products_reach_what_was_measured_and_no_more(card):
    measured = card.peak("bfloat16") * card.matmul_efficiency
    large = matmul(16384, 16384, 16384)
    assert 0.95 * measured < large.flops / card.kernel_s(large) <= measured
    assert card.kernel_s(matmul(16, 16, 16)) == card.floor_s
    assert card.kernel_s(Kernel("add", 0, 10**9)) == pytest.approx(10**9 / card.bytes_per_s / card.memory_efficiency)
    assert card.kernel_s(Kernel("add", 0, 8)) == card.floor_s


def test_bus_bandwidth_of_the_presets_lies_where_it_was_seen():
    def bus_bytes_per_s(machine, cards=8):
        seconds = machine.collective("all_reduce", tuple(range(cards)), 2**30).alone_s
        return 2 * (cards - 1) / cards * 2**30 / seconds

    assert 10e9 < bus_bytes_per_s(hardware.RTX4090_GOOD_HOST) < 13e9
    assert 5e9 < bus_bytes_per_s(hardware.RTX4090_SERVER) < 10e9
    assert 1e9 < bus_bytes_per_s(hardware.RTX4090_BAD_HOST) < 4e9
    assert 20e9 < bus_bytes_per_s(hardware.RTX4090_PATCHED_P2P) < 24.5e9
    assert bus_bytes_per_s(hardware.RTX5090_SERVER) == pytest.approx(28e9, rel=0.01)
    assert bus_bytes_per_s(hardware.RTX5090_SERVER, 4) == pytest.approx(35e9, rel=0.01)
    small_s = hardware.RTX4090_SERVER.collective("all_reduce", tuple(range(4)), 2**15).alone_s
    assert small_s == pytest.approx(18.8e-6, rel=0.3)
    assert bus_bytes_per_s(hardware.cluster(2, "25G Ethernet"), 16) < 3.1e9 * 15 / 8


def test_tiles_and_waves():
    card = plain_card(sms=4)
    full = card.matmul_share(1, 512, 256, 64)
    assert full == pytest.approx(1)  # 4 tiles of 256 x 128
    assert card.matmul_share(1, 512, 258, 64) < 0.8  # a second wave
    assert card.matmul_share(4, 512, 256, 64) == card.matmul_share(1, 2048, 256, 64) == full
    assert card.matmul_share(1, 1, 256, 64) < 0.05
    small, split = card.matmul_share(1, 256, 128, 255), card.matmul_share(1, 256, 128, 1024)
    assert small < split < 1  # smaller tiles, or four parts of the inner dimension, fill the card
    assert plain_card(inner_half=64.0).matmul_share(1, 8, 8, 64) == pytest.approx(0.5)


def test_attention_operations_and_measured_curves():
    card = plain_card(attention_efficiency=0.5, attention_backward_efficiency=0.25, slower_operations={"gelu": 0.5})
    attention = Kernel("attention", 100, 0, "float32", (1, 2, 3, 4, 5))
    assert card.kernel_s(attention) == pytest.approx(200)
    assert card.kernel_s(dataclasses.replace(attention, causal=True)) == pytest.approx(100)
    assert card.kernel_s(dataclasses.replace(attention, phase="backward")) == pytest.approx(400)
    assert card.kernel_s(Kernel("gelu", 0, 10)) == pytest.approx(20)
    assert card.kernel_s(Kernel("add", 0, 10)) == pytest.approx(10)
    curve = plain_card(matmul_curve=((16, 0.25), (256, 0.5)))
    assert [curve.matmul_share(1, 1, 1, k) for k in (1, 8, 32, 128, 9999)] == pytest.approx([0.25, 0.25, 0.375, 0.5, 0.5])


def test_every_constant_says_where_it_comes_from():
    shown = 0
    for machine in (*SERVERS, hardware.cluster()):
        text = hardware.sources(machine)
        assert machine.name in text and machine.card.name in text
        for part in (machine, *machine.parts().values()):
            for name in part.known():
                source = part.origins.get(name)
                shown += source is not None
                assert source is None or source.origin in ORIGINS
    assert shown > 100
    text = hardware.sources(hardware.RTX4090)
    assert "peak_flops_per_s bfloat16" in text and "deviceQuery" in text
    with pytest.raises(ValueError, match="guessed"):
        hardware.Source("guessed", "")


def test_constants_are_changed_by_their_names():
    machine = hardware.cluster(2).with_(launch_s=1e-6, hop_s=1e-5, bytes_per_s=3e9, servers=3)
    assert (machine.card.launch_s, machine.hop_s, machine.servers, machine.world_size) == (1e-6, 1e-5, 3, 24)
    assert machine.server.card.origins["launch_s"].origin == "given"
    assert hardware.RTX4090.launch_s != 1e-6, "the preset itself must not change"
    assert dataclasses.replace(hardware.RTX4090_SERVER, cards=4).world_size == 4
    with pytest.raises(ValueError, match="has no constant 'lunch_s'; it has .*launch_s"):
        hardware.RTX4090_SERVER.with_(lunch_s=1)
    for one in (machine, hardware.RTX4090_SERVER):
        assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hardware.card("RTX 4080"), "RTX 4080.*RTX 4090, RTX 3090"),
        (lambda: hardware.network("token ring"), "token ring.*100G InfiniBand"),
        (lambda: hardware.cluster(2, "1G string"), "1G string.*100G InfiniBand"),
        (lambda: hardware.cluster(0), "servers is 0"),
        (lambda: hardware.cluster(2, server=hardware.RTX4090), "pass a Server"),
        (lambda: hardware.RTX4090.peak("int3"), "RTX 4090 has no rate for int3; it has float32"),
        (lambda: plain_card(bytes_per_s=0), "bytes_per_s is 0"),
        (lambda: plain_card(launch_s=-1), "launch_s is -1"),
        (lambda: plain_card(copy_engines=3), "copy_engines is 3"),
        (lambda: plain_server(0), "cards is 0"),
        (lambda: plain_server(host_bytes_per_s=-1), "host_bytes_per_s is -1"),
        (lambda: plain_server(hop_s=-1), "hop_s"),
        (lambda: plain_cluster(0, 1), "servers is 0"),
        (lambda: plain_cluster(1, 1, network_bytes_per_s=0), "bytes_per_s is 0"),
        (lambda: plain_server().collective("all_reduce", (0, 1), float("nan")), "nan s"),
        (lambda: plain_server().collective("all_reduce", (0, 1), -8), "-"),
    ],
)
def test_what_is_no_machine_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_messages_and_groups_across_servers_use_the_network():
    machine = plain_cluster(2, 2, network_bytes_per_s=0.5, network_hop_s=3.0, hop_s=1.0)
    assert machine.message(0, 1, 10).alone_s == pytest.approx(11)
    across = machine.message(1, 2, 10)
    assert across.alone_s == pytest.approx(4 + 20)
    assert across.uses == {("out", 1): 10, ("in", 2): 10, ("network out", 0): 20, ("network in", 1): 20}
    everyone = machine.collective("all_to_all", (0, 1, 2, 3), 8)
    assert everyone.uses["network out", 0] == pytest.approx(2 * 4 / 0.5)  # two cards, half of each payload
    assert machine.collective("all_reduce", (2, 3), 8) == dataclasses.replace(
        plain_server(2, hop_s=1.0).collective("all_reduce", (0, 1), 8),
        uses={("out", 2): 8, ("in", 2): 8, ("out", 3): 8, ("in", 3): 8},
    )


def test_this_machine_is_a_machine_like_others():
    here = hardware.this_machine()
    assert here is hardware.this_machine(), "measured once"
    assert here.world_size == len(labkit.machine().gpus) or here.world_size == len(labkit.machine().cores)
    product = matmul(256, 256, 1024, "float32")
    assert 1e8 < product.flops / here.kernel_s(product) < 1e15
    assert here.card.origins["launch_s"].origin == "measured" and "measured" in hardware.sources(here)
    assert all(share <= 1 for _, share in here.card.matmul_curve)
    entries = (product, Collective("all_reduce", (0, 1), 4 * 2**20, "one", 1), product)
    step_s = replay(equal_traces(2, entries), here.with_(cards=2)).step_s
    assert 2 * here.kernel_s(product) < step_s < math.inf


def test_a_measured_gpu_becomes_a_card():
    pairs = [(2 * side**3, 1e12) for side in (16, 512)]
    found = {"peak": {"float32": 5e13, "float64": 1e12, "bfloat16": 1.5e14}, "curve": pairs, "memory": 9e11, "operations": {}}
    found |= {"attention": (9e13, 6e13), "launch": 6e-6, "floor": 2e-6, "copy": 2.5e10, "sms": 128}

    class Here:
        gpus = (type("Gpu", (), {"name": "RTX 4090", "memory_bytes": 24 * 2**30}),)

        def describe(self, count, device):
            return f"{count} RTX 4090"

    here = calibration._server(found, Here(), "cuda", 1)
    assert (here.card.asynchronous, here.card.sms, here.copy_bytes_per_s) == (True, 128, 2.5e10)
    assert here.card.attention_efficiency == 0.6 and here.card.peak("bfloat16") == 1.5e14
    assert here.origins["copy_bytes_per_s"].origin == "measured" and "hop_s" not in here.origins


def test_measured_links_become_constants_of_hops_and_rates():
    sizes = (2**10, 2**20, 2**22)
    found = {"messages": {size: 3e-4 + size / 1e9 for size in sizes}}
    found["collectives"] = {name: {size: 4e-4 + size / 5e8 for size in sizes} for name in ("all_reduce", "all_gather")}
    links = calibration._links(found)
    assert (links["base_s"], links["hop_s"], links["peer_bytes_per_s"]) == pytest.approx((2e-4, 1e-4, 1e9))
    here = plain_server(2, **links)
    for size in sizes:
        assert here.message(0, 1, size).alone_s == pytest.approx(3e-4 + size / 1e9)
        assert here.collective("all_reduce", (0, 1), size).alone_s == pytest.approx(4e-4 + size / 5e8)
        assert here.collective("all_gather", (0, 1), size).alone_s == pytest.approx(3e-4 + size / 5e8)
    noisy = calibration._links({"messages": {1024: 3e-3, 4096: 1e-4}, "collectives": {"all_reduce": {1024: 3e-3, 4096: 1e-4}}})
    assert all(rate > 0 for rate in (noisy["peer_bytes_per_s"], noisy["slower_collectives"]["all_reduce"]))
