"""Replay against hand arithmetic: rings, pipelines, overlap, shared links, hosts, launches, copies, and what never ends."""

import math
import pickle
import random

import pytest
from pipelines import every_schedule
from traces import (
    all_reduce,
    equal_traces,
    plain_card,
    plain_cluster,
    plain_server,
    scheduled_traces,
    traces,
    work,
)

from labkit import hardware
from labkit.fluid import Fluid
from labkit.replay import Deadlock, replay
from labkit.schedule import one_f_one_b
from labkit.trace_records import Collective, Copy, HostWork, Kernel, Mark, Message, Trace, Wait


def step_s(machine, *entries_of_ranks):
    return replay(traces(*entries_of_ranks), machine).step_s


def send(peer, payload_bytes, id="send", **options):
    return Message("send", peer, payload_bytes, id, **options)


def recv(peer, payload_bytes, id="recv", **options):
    return Message("recv", peer, payload_bytes, id, **options)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_a_ring_all_reduce_takes_its_steps_and_its_share_of_the_bytes(ranks):
    machine = plain_server(peer_bytes_per_s=10.0, hop_s=0.5, base_s=3.0)
    expected_s = 2 * (ranks - 1) * 0.5 + 2 * (ranks - 1) / ranks * 800 / 10 + 3 if ranks > 1 else 0
    assert step_s(machine, *[[all_reduce(800, ranks)]] * ranks) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("operation", "expected_s"),
    [
        ("reduce_scatter", 3 * 0.5 + 3 / 4 * 800),
        ("all_gather", 3 * 0.5 + 3 / 4 * 800),
        ("all_to_all", 3 * 0.5 + 3 / 4 * 800),
        ("broadcast", 3 * 0.5 + 800),
        ("barrier", 6 * 0.5),
    ],
)
def test_other_collectives_take_theirs(operation, expected_s):
    entries = [all_reduce(800, 4, operation=operation)]
    assert step_s(plain_server(hop_s=0.5), *[entries] * 4) == pytest.approx(expected_s)


def test_a_message_moves_when_both_sides_are_there():
    machine = plain_server(hop_s=0.5)
    run = replay(traces([work(1), send(1, 4)], [work(3), recv(0, 4), work(1)]), machine)
    assert run.step_s == pytest.approx(3 + 0.5 + 4 + 1)
    assert run.timeline.only(rank=0, kind="wait").spans[0].duration_s == pytest.approx(6.5)
    assert (run.communicate_s(0), run.busy_s(0), run.busy_s(1)) == pytest.approx((4.5, 1, 4))


def test_schedules_take_what_their_simulation_says():
    machine = plain_server()
    for stages, micro_batches in ((4, 8), (3, 5), (2, 1)):
        for schedule in every_schedule(stages, micro_batches):
            run, simulated = replay(scheduled_traces(schedule), machine), schedule.simulate()
            assert run.step_s == pytest.approx(simulated.total_s)
            assert run.timeline.bubble == pytest.approx(simulated.bubble)
    assert replay(scheduled_traces(one_f_one_b(4, 8)), machine).timeline.bubble == pytest.approx(3 / 11)


@pytest.mark.parametrize(("computed_s", "expected_s", "exposed_s"), [(9, 12, 2), (20, 21, 0), (3, 12, 8)])
def test_communication_hides_behind_as_much_compute_as_there_is(computed_s, expected_s, exposed_s):
    entries = [work(1), all_reduce(10, 2, asynchronous=True), work(computed_s), Wait((0,)), work(1, "optimizer")]
    run = replay(traces(entries, entries), plain_server())
    expected_s += {9: 0, 20: 1, 3: 0}[computed_s]
    assert run.step_s == pytest.approx(expected_s)
    assert run.communicate_s(0) == pytest.approx(10)
    assert run.exposed_s(0) == pytest.approx(max(0, 10 - computed_s))
    assert run.overlap == pytest.approx(min(1, computed_s / 10))


def test_without_asynchrony_nothing_overlaps():
    entries = [work(1), all_reduce(10, 2), work(9)]
    run = replay(traces(entries, entries), plain_server())
    assert (run.step_s, run.exposed_s(0), run.overlap) == pytest.approx((20, 10, 0))


def test_kernels_beside_a_transfer_are_slower():
    machine = plain_server(card=plain_card(overlap_cost=0.1))
    entries = [all_reduce(10, 2, asynchronous=True), work(20), work(5), Wait((0,))]
    assert step_s(machine, entries, entries) == pytest.approx(25 + 0.1 * 10)
    entries = [all_reduce(100, 2, asynchronous=True), work(20), Wait((0,)), work(5)]
    run = replay(traces(entries, entries), machine)
    assert (run.step_s, run.busy_s(0)) == pytest.approx((105, 27))


def test_two_transfers_share_a_link():
    def one_sends_two(first_bytes, second_bytes):
        sender = [send(1, first_bytes, 1, asynchronous=True), send(2, second_bytes, 2, asynchronous=True), Wait((1, 2))]
        return replay(traces(sender, [recv(0, first_bytes)], [recv(0, second_bytes)]), plain_server())

    assert one_sends_two(10, 10).step_s == pytest.approx(20)
    run = one_sends_two(10, 30)  # 20 s with half the link each, then the rest of the longer one alone
    assert (run.step_s, run.communicate_s(1), run.communicate_s(2)) == pytest.approx((40, 20, 40))


def test_both_directions_of_a_link_are_its_own():
    both = [[send(1 - rank, 10, 1, asynchronous=True), recv(1 - rank, 10, 2), Wait((1,))] for rank in (0, 1)]
    assert step_s(plain_server(), *both) == pytest.approx(10)


def test_the_host_carries_what_is_staged_twice():
    machine = plain_server(peer_to_peer=False, host_bytes_per_s=4.0)
    pairs = [[send(rank + 1, 10)] if rank % 2 == 0 else [recv(rank - 1, 10)] for rank in range(8)]
    assert step_s(machine, *pairs[:4]) == pytest.approx(10)  # 2 pairs at 1 byte/s: 4 bytes/s through memory
    assert step_s(machine, *pairs) == pytest.approx(20)
    assert step_s(machine.with_(peer_to_peer=True), *pairs) == pytest.approx(10)
    ring_s = 2 * 8 * (7 / 4 * 10) / 4
    assert step_s(machine, *[[all_reduce(10, 8)]] * 8) == pytest.approx(ring_s)


def test_a_group_on_two_servers_is_as_fast_as_the_network():
    machine = plain_cluster(2, 4, network_bytes_per_s=0.25, hop_s=1.0, network_hop_s=10.0)
    expected_s = 2 * 3 * 1 + 2 * 1 * 10 + 2 * 1 / 2 * 8 / 0.25
    assert step_s(machine, *[[all_reduce(8, 8)]] * 8) == pytest.approx(expected_s)
    fast = machine.with_(network=hardware.Network(name="fast", bytes_per_s=1e9))
    assert step_s(fast, *[[all_reduce(8, 8)]] * 8) == pytest.approx(6 + 7 / 4 * 8)


def test_a_launch_bound_step_takes_the_host_s_time():
    machine = plain_server(1, card=plain_card(launch_s=1.0))
    assert step_s(machine, [work(0.25)] * 10) == pytest.approx(10.25)
    assert step_s(machine, [work(0.25, count=10)]) == pytest.approx(10.25)
    assert step_s(machine, [work(4)] * 10) == pytest.approx(41)
    assert step_s(machine, [work(6), *[work(0.25)] * 8]) == pytest.approx(9.25)  # 7, launches until 9, a last kernel
    assert step_s(machine.with_(asynchronous=False), [work(0.25)] * 10) == pytest.approx(12.5)


def test_runs_of_kernels_are_worth_their_kernels_one_by_one():
    draw = random.Random(1)
    machine = plain_server(1, card=plain_card(launch_s=1.0))
    for _ in range(50):
        seconds = [draw.choice([0.1, 0.5, 1.0, 1.5, 4.0]) for _ in range(12)]
        host_s = device_s = 0.0
        for one in seconds:
            host_s += 1.0
            device_s = max(device_s, host_s) + one
        phases = [draw.choice(["forward", "backward"]) for _ in seconds]
        kernels = [work(one, phase) for one, phase in zip(seconds, phases)]
        assert step_s(machine, kernels) == pytest.approx(device_s)


def test_copies_have_two_engines_and_stop_the_host_unless_asynchronous():
    def both(**options):
        return [Copy("to_host", 10, 1, **options), Copy("to_device", 10, 2, **options), Wait((1, 2)), work(1)]

    machine = plain_server(1)
    assert step_s(machine, both(asynchronous=True)) == pytest.approx(11)
    assert step_s(machine.with_(copy_engines=1), both(asynchronous=True)) == pytest.approx(21)
    assert step_s(machine, both()) == pytest.approx(21)
    launching = plain_server(1, card=plain_card(launch_s=1.0))
    assert step_s(launching, [Copy("to_host", 10, 1), work(1)]) == pytest.approx(1 + 10 + 1 + 1)


def test_an_offloaded_optimizer_is_a_chain_beside_the_device():
    chain = [
        work(2),
        Copy("to_host", 10, "down", asynchronous=True),
        HostWork("adam", 5, "adam", asynchronous=True, after=("down",)),
        Copy("to_device", 10, "up", asynchronous=True, after=("adam",)),
    ]
    run = replay(traces([*chain, work(40), Wait(("up",)), work(1)]), plain_server(1))
    assert run.step_s == pytest.approx(43)
    assert [span.end_s for span in run.timeline.spans if span.stream == "communicate"] == pytest.approx([12, 17, 27])
    assert step_s(plain_server(1), [*chain, work(10), Wait(("up",)), work(1)]) == pytest.approx(28)


def test_a_stream_of_its_own_does_not_wait_for_the_device():
    fetch = Copy("to_device", 10, "fetch", asynchronous=True)
    own = Copy("to_device", 10, "fetch", asynchronous=True, after=())
    assert step_s(plain_server(1), [work(10), fetch, Wait(("fetch",))]) == pytest.approx(20)
    assert step_s(plain_server(1), [work(10), own, Wait(("fetch",))]) == pytest.approx(10)


def test_spans_are_those_of_the_learner_and_kernels_in_a_row():
    labels = {"micro_batch": 3}
    entries = [work(1), work(1), Mark("backward", "mine", True, labels), work(1), all_reduce(4, 2, 0), work(1)]
    entries += [Mark("backward", "mine", False, labels), work(1, "optimizer"), work(1, "optimizer")]
    timeline = replay(traces(entries, entries), plain_server()).timeline
    found = [(one.kind, one.name, one.start_s, one.end_s, one.labels.get("micro_batch")) for one in timeline.only(rank=1).spans]
    assert found == [
        ("forward", "forward", 0, 2, None),
        ("backward", "mine", 2, 8, 3),
        ("communicate", "all_reduce", 3, 7, 3),
        ("wait", "wait for all_reduce", 3, 7, 3),
        ("optimizer", "optimizer", 8, 10, None),
    ]


def test_blocking_sends_on_both_sides_are_a_deadlock():
    with pytest.raises(Deadlock) as caught:
        step_s(plain_server(), [work(1), send(1, 8), recv(1, 8)], [send(0, 8), recv(0, 8)])
    told = "deadlock: rank 0 waits in send to rank 1 (8 bytes) for rank 1; rank 1 waits in send to rank 0 (8 bytes) for rank 0"
    assert str(caught.value) == told
    assert [(rank, ranks) for rank, _, ranks in caught.value.waits] == [(0, (1,)), (1, (0,))]
    assert pickle.loads(pickle.dumps(caught.value)).waits == caught.value.waits


def test_a_rank_that_leaves_others_in_a_collective_is_named():
    entries = [all_reduce(8, 3)]
    with pytest.raises(Deadlock, match=r"rank 0 waits in all_reduce \(8 bytes on ranks 0, 1, 2\) for rank 2, which has ended"):
        step_s(plain_server(), entries, entries, [work(1)])


def test_a_message_with_another_tag_is_named():
    told = r"rank 1 waits in recv .* with tag 2 for rank 0, which has ended; rank 0's send .* with tag 1 is never met"
    with pytest.raises(Deadlock, match=told):
        step_s(plain_server(), [send(1, 8, tag=1, asynchronous=True)], [recv(0, 8, tag=("group", 2))])


def test_groups_in_crossed_order_are_a_deadlock():
    one, other = Collective("all_reduce", (0, 1), 4, "one", 1), Collective("all_reduce", (0, 1, 2), 4, "other", 2)
    with pytest.raises(Deadlock, match=r"rank 0 waits in .*0, 1\) for rank 1; rank 1 waits in .*0, 1, 2\) for rank 0"):
        step_s(plain_server(), [one, other], [other, one], [other])


def test_an_asynchronous_call_that_nobody_meets_is_named():
    with pytest.raises(Deadlock, match=r"rank 0's send to rank 1 \(8 bytes\) is never met by rank 1, which has ended"):
        step_s(plain_server(), [send(1, 8, asynchronous=True)], [work(1)])


@pytest.mark.parametrize(
    "other",
    [all_reduce(9, 2), all_reduce(8, 2, operation="all_gather")],
)
def test_calls_that_do_not_agree_are_named(other):
    with pytest.raises(Deadlock, match=r"rank 0 calls all_reduce \(8 bytes on ranks 0, 1\) where rank 1 calls"):
        step_s(plain_server(), [all_reduce(8, 2)], [other])
    with pytest.raises(Deadlock, match=r"rank 0 calls send to rank 1 \(8 bytes\) where rank 1 calls recv from rank 0"):
        step_s(plain_server(), [send(1, 8)], [recv(0, 4)])


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([Wait((7,))], "waits for id 7"),
        ([all_reduce(8, 2, 1), all_reduce(8, 2, 1)], "uses id 1 twice"),
        ([Collective("all_reduce", (1,), 8, "k", 1)], "does not belong"),
        ([Collective("all_together", (0, 1), 8, "k", 1)], "all_together"),
        ([send(0, 8)], "another rank"),
        ([Kernel("x", phase="thinking")], "thinking"),
        ([Kernel("x", flops=8, dtype="int3", shape=(1, 2, 2, 2))], "int3"),
        ([Copy("sideways", 8, 1)], "sideways"),
        ([Mark("forward", "x", False)], "not begun"),
        ([Mark("forward", "x", True)], "never ends its span 'x'"),
        ([Mark("forward", "x", True), Mark("backward", "y", True), Mark("forward", "x", False)], "inside which 'y' is open"),
        ([Mark("thought", "x", True)], "has kind 'thought'"),
        (["x"], "labkit.trace_records"),
    ],
)
def test_traces_without_sense_are_refused(entries, message):
    with pytest.raises(ValueError, match=message):
        step_s(plain_server(), entries, [entry for entry in entries if isinstance(entry, Collective)])


def test_missing_ranks_and_machines_are_refused():
    one = Trace(1, 2, ())
    for wrong, message in (((), "one Trace per rank"), ((one,), "from 0 to 0"), ((one, one), "from 0 to 1")):
        with pytest.raises(ValueError, match=message):
            replay(wrong, plain_server())
    with pytest.raises(ValueError, match="9 ranks on plain server, which has 8 cards"):
        replay(equal_traces(9, ()), plain_server())
    with pytest.raises(ValueError, match="RTX4090_SERVER"):
        replay(equal_traces(1, ()), "RTX 4090")
    empty = replay(equal_traces(2, ()), plain_server())
    assert empty.step_s == 0 and math.isnan(empty.overlap) and empty.timeline.spans == ()


def random_traces(draw, ranks=4, calls=12):
    """Ranks that compute unevenly, reduce in the whole and in halves, and pass messages round a ring."""
    entries = [[] for _ in range(ranks)]
    for call in range(calls):
        kind, asynchronous = draw.choice(["all", "half", "ring"]), draw.random() < 0.5
        nbytes = draw.randrange(1, 50)
        for rank, mine in enumerate(entries):
            mine.append(work(draw.randrange(1, 20), draw.choice(["forward", "backward"])))
            if kind == "ring":
                mine.append(send((rank + 1) % ranks, nbytes, ("send", call), asynchronous=True))
                mine.append(recv((rank - 1) % ranks, nbytes, call, asynchronous=asynchronous))
                mine.append(Wait((("send", call),)))
            else:
                group = tuple(range(ranks)) if kind == "all" else tuple(range(rank // 2 * 2, rank // 2 * 2 + 2))
                mine.append(Collective("all_reduce", group, nbytes, call, call, asynchronous))
    return traces(*([*mine, Wait(tuple(range(calls)))] for mine in entries))


def test_the_same_traces_give_the_same_replay_and_recording_changes_nothing():
    given = random_traces(random.Random(2))
    machine = plain_server(peer_to_peer=False, host_bytes_per_s=3.0, hop_s=0.1)
    one, other, bare = replay(given, machine), replay(given, machine), replay(given, machine, record=False)
    assert one.timeline == other.timeline and one.step_s == other.step_s == bare.step_s
    assert [one.busy_s(rank) for rank in range(4)] == [bare.busy_s(rank) for rank in range(4)]
    with pytest.raises(ValueError, match="record=True"):
        bare.communicate_s(0)


@pytest.mark.parametrize("constant", ["peer_bytes_per_s", "staged_bytes_per_s", "host_bytes_per_s", "bytes_per_s"])
def test_a_faster_part_never_makes_these_steps_slower(constant):
    for seed in range(5):
        given = random_traces(random.Random(seed))
        limits = {"host_bytes_per_s": 3.0} if constant == "host_bytes_per_s" else {}
        machine = plain_server(peer_to_peer=constant == "peer_bytes_per_s", hop_s=0.1, **limits)
        times = [replay(given, machine.with_(**{constant: rate}), record=False).step_s for rate in (0.5, 1.0, 2.0, 8.0)]
        assert times == sorted(times, reverse=True)


def test_speeds_are_fair_and_no_resource_is_asked_for_too_much():
    draw = random.Random(3)
    for _ in range(50):
        fluid, flows = Fluid(), {}
        for number in range(8):
            uses = {resource: draw.uniform(0.1, 2) for resource in draw.sample(range(5), draw.randrange(1, 4))}
            for flow in fluid.start(number, uses, 0.0):
                flows[flow.item] = flow
        for resource in range(5):
            assert sum(flow.speed * flow.load.get(resource, 0) for flow in flows.values()) <= 1 + 1e-9
        for flow in flows.values():  # slowed down only where a resource is full and no other flow on it is slower without need
            full = [
                resource
                for resource in flow.load
                if sum(one.speed * one.load.get(resource, 0) for one in flows.values()) >= 1 - 1e-9
                and all(one.speed <= flow.speed + 1e-9 for one in flows.values() if resource in one.load)
            ]
            assert flow.speed == pytest.approx(1) or full
