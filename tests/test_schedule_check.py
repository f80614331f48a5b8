"""What `check` accepts: against brute force, against real ranks, and every offence by its name."""

import random
from itertools import permutations, product

import pytest
import torch
import torch.distributed as dist
from pipelines import accepted, every_schedule, executable, shuffled

import labkit
from labkit.schedule import Backward, BackwardInput, BackwardWeight, Forward, Schedule

F, B = Forward, Backward
OFFENCES = [
    ([[]], "no stage has an operation"),
    ([[F(0), B(0)], [F(0)]], r"stage 1 lacks Backward\(0\)"),
    ([[F(1), B(1)]], r"stage 0 lacks Forward\(0\); the schedule has micro-batches 0 to 1"),
    ([[F(0), F(0, 1), B(0, 1)]], r"stage 0 lacks Backward\(0\).* chunks 0 to 1"),
    ([[F(0), BackwardInput(0)]], r"stage 0 lacks BackwardWeight\(0\)"),
    ([[F(0), BackwardWeight(0)]], r"stage 0 lacks BackwardInput\(0\)"),
    ([[F(0), B(0), F(0)]], r"stage 0 does Forward\(0\) twice, as its operations 0 and 2"),
    ([[F(0), B(0), BackwardInput(0)]], r"stage 0 does both Backward\(0\) and BackwardInput\(0\)"),
    ([[F(0), B(0), BackwardWeight(0)]], r"stage 0 does both Backward\(0\) and BackwardWeight\(0\)"),
    ([[F(0), B(0)], [B(0), F(0)]], r"stage 1 does Backward\(0\) too early, .* of Forward\(0\), operation 1"),
    ([[F(0), BackwardWeight(0), BackwardInput(0)]], r"BackwardWeight\(0\) too early.* gradient of BackwardInput\(0\)"),
    ([[F(0, 1), F(0), B(0, 1), B(0)]], r"Forward\(0, chunk=1\) too early"),
    (
        [[F(0), B(0), F(1), B(1)], [F(0), F(1), B(0), B(1)]],
        r"deadlock: stage 0 waits .* Backward\(0\).* and stage 1 waits .* Forward\(1\)",
    ),
]


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 2), (3, 4), (3, 2)])
def test_every_schedule_passes_the_brute_force(stages, micro_batches):
    assert all(executable(schedule) for schedule in every_schedule(stages, micro_batches))


def test_shuffled_schedules_are_accepted_exactly_when_brute_force_can_execute_them():
    draw = random.Random(4)
    verdicts = []
    for _ in range(300):
        schedule = draw.choice(list(every_schedule(draw.randint(1, 3), draw.randint(1, 3))))
        mixed = shuffled(draw, schedule, draw.choice([1, 1, 2, 4]))
        verdicts.append(accepted(mixed))
        assert verdicts[-1] == executable(mixed), str(mixed)
    assert 50 < sum(verdicts) < 250


def test_all_orders_of_two_micro_batches_on_two_stages():
    operations = [F(0), F(1), B(0), B(1)]
    schedules = [Schedule(pair) for pair in product(permutations(operations), repeat=2)]
    legal = [schedule for schedule in schedules if accepted(schedule)]
    assert legal == [schedule for schedule in schedules if executable(schedule)]

    def keeps_order(schedule):
        forwards, backwards = ([[o for o in order if isinstance(o, kind)] for order in schedule] for kind in (F, B))
        return forwards[0] == forwards[1] and backwards[0] == backwards[1]

    in_order = [schedule for schedule in legal if accepted(schedule, in_order=True)]
    assert in_order == [schedule for schedule in legal if keeps_order(schedule)]
    assert 0 < len(in_order) < len(legal) < len(schedules)


def test_a_missing_a_doubled_and_a_foreign_operation_are_refused():
    draw = random.Random(5)
    for _ in range(200):
        schedule = draw.choice(list(every_schedule(draw.randint(1, 4), draw.randint(2, 4))))
        orders = [list(order) for order in schedule]
        stage = draw.randrange(len(orders))
        at = draw.randrange(len(orders[stage]))
        operation = orders[stage][at]
        change = draw.choice(["missing", "doubled", "foreign"])
        if change == "missing":
            del orders[stage][at]
        elif change == "doubled":
            orders[stage].insert(draw.randint(at, len(orders[stage])), operation)
        else:
            orders[stage][at] = type(operation)(operation.micro_batch + 9, operation.chunk)
        if any(orders):
            with pytest.raises(ValueError, match="lacks|twice|no stage"):
                Schedule(orders).check()


@pytest.mark.parametrize(("orders", "sentence"), OFFENCES)
def test_offences_by_name(orders, sentence):
    schedule = Schedule(orders)
    assert str(schedule).startswith("stage 0")
    for refused in (schedule.check, schedule.simulate):
        with pytest.raises(ValueError, match=sentence):
            refused()


def test_overtaking_is_refused_only_in_order():
    schedule = Schedule([[F(0), F(1), B(0), B(1)], [F(1), F(0), B(0), B(1)]])
    schedule.check()
    with pytest.raises(ValueError, match="stage 0 sends stage 1 the activation of micro-batch 0 first"):
        schedule.check(in_order=True)


def hand_on(rank, schedules):
    """Executes schedules with numbers that say where they have been; sends wait for nothing but the end."""
    for schedule in schedules:
        sends, values = [], {}
        for operation in schedule[rank.rank]:
            source, target = (find(rank.rank, operation) for find in (schedule.source, schedule.target))
            key = operation.makes, operation.micro_batch, operation.chunk
            taken = torch.tensor([0.0 if operation.makes == "activation" else 1000.0, operation.micro_batch])
            if source and source[0] != rank.rank:
                dist.irecv(taken, source[0], tag=operation.micro_batch).wait()
            elif source:
                taken = values[operation.makes, operation.micro_batch, source[1]]
            assert taken[1] == operation.micro_batch
            values[key] = made = taken + torch.tensor([1.0, 0.0])
            if target and target[0] != rank.rank:
                sends.append(dist.isend(made, target[0], tag=operation.micro_batch))
        for send in sends:
            send.wait()
        for (makes, _, chunk), value in values.items():
            part = chunk * schedule.stages + rank.rank
            count = schedule.stages * schedule.chunks
            assert value[0] == {"activation": part + 1, "gradient": 1000 + count - part}.get(makes, 1001)
        rank.barrier()
    return len(schedules)


def test_real_ranks_get_through_whatever_check_accepts():
    draw = random.Random(6)
    mixed = [shuffled(draw, draw.choice(list(every_schedule(3, 4))), draw.choice([1, 2, 3])) for _ in range(150)]
    legal = [schedule for schedule in mixed if accepted(schedule)]
    overtaking = [schedule for schedule in legal if not accepted(schedule, in_order=True)]
    assert len(overtaking) >= 6
    schedules = overtaking[:6] + legal[:6] + list(every_schedule(3, 4))[1:]
    assert labkit.launch(hand_on, schedules, world_size=3, device="cpu", live=False).results == (len(schedules),) * 3
