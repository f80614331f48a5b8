"""Schedules: known totals and memory, simulated times against brute force, and what counts as a schedule."""

import pickle

import pytest
from pipelines import WITHOUT_CHUNKS, end_times, every_schedule

import labkit
from labkit.schedule import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Schedule,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    zero_bubble,
)

F, B = Forward, Backward
SIZES = [(p, m) for p in (1, 2, 3, 4, 6) for m in (1, 2, 3, 4, 5, 7, 8, 13)]


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
def test_known_total_and_bubble(make):
    timeline = make(4, 8).simulate(forward_s=1, backward_s=2)
    assert isinstance(timeline, labkit.Timeline)
    assert timeline.total_s == 33
    assert timeline.bubble == pytest.approx(3 / 11)


def test_known_live_micro_batches():
    for make, expected in ((gpipe, [8, 8, 8, 8]), (one_f_one_b, [4, 3, 2, 1]), (naive, [1] * 4), (zero_bubble, [4] * 4)):
        assert [make(4, 8).simulate().live_micro_batches(stage) for stage in range(4)] == expected
        assert [make(4, 8).live_micro_batches(stage) for stage in range(4)] == expected
        assert [make(4, 8).live_activations(stage) for stage in range(4)] == expected
    assert [interleaved(4, 8, 2).live_activations(stage) for stage in range(4)] == [5.5, 4.5, 3.5, 2.5]


def test_27_is_the_smallest_m_with_a_tenth_of_bubble_at_4_stages():
    for make in (gpipe, one_f_one_b):
        assert next(m for m in range(1, 40) if make(4, m).simulate().bubble <= 0.1) == 27


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_totals_follow_the_formulas(stages, micro_batches):
    p, m = stages, micro_batches
    total_s = {make: make(p, m).simulate().total_s for make in WITHOUT_CHUNKS}
    assert total_s[naive] == 3 * p * m
    assert 1 - naive(p, m).simulate().bubble == pytest.approx(1 / p)
    assert total_s[gpipe] == total_s[one_f_one_b] == 3 * (m + p - 1)
    assert total_s[zero_bubble] == (3 * m + p - 1 if m >= p else 2 * (m + p) - 1)
    assert total_s[zero_bubble] < total_s[one_f_one_b] or p == 1
    for v in (2, 3, 4):
        of_chunks_s = interleaved(p, m, v).simulate().total_s
        assert of_chunks_s == pytest.approx(3 * (max(m, p) + (min(m, p) - 1) / v))
        assert of_chunks_s < total_s[one_f_one_b] - 0.1 or 1 in (p, m)


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_every_schedule_can_be_executed_and_is_no_fuller_than_said(stages, micro_batches):
    for schedule in every_schedule(stages, micro_batches):
        assert (schedule.stages, schedule.micro_batches) == (len(schedule), schedule.micro_batches) == (stages, micro_batches)
        schedule.check()
        schedule.check(in_order=True)
        timeline = schedule.simulate()
        live = [schedule.live_micro_batches(stage) for stage in range(stages)]
        assert live == [timeline.live_micro_batches(stage) for stage in range(stages)]
    live = [one_f_one_b(stages, micro_batches).live_micro_batches(stage) for stage in range(stages)]
    assert live == [min(micro_batches, stages - stage) for stage in range(stages)]
    assert zero_bubble(stages, micro_batches).live_micro_batches(0) == min(micro_batches, stages)


def test_every_span_ends_as_early_as_it_can():
    kinds = {kind.kind: kind for kind in (Forward, Backward, BackwardInput, BackwardWeight)}
    for schedule in every_schedule(3, 5):
        times = [1.0, 0.5, 2.0], [2.0, 3.0, 1.0], 0.25
        timeline, ends = schedule.simulate(*times), end_times(schedule, *times)
        computed = timeline.only(stream="compute").spans
        assert len(computed) == len(ends) == sum(map(len, schedule))
        for span in computed:
            operation = kinds[span.kind](span.labels["micro_batch"], span.labels["chunk"])
            assert span.rank == span.labels["stage"]
            assert span.end_s == pytest.approx(ends[span.rank, operation])
        sent = timeline.only(kind="communicate").spans
        assert len(sent) == 2 * 5 * (3 * schedule.chunks - 1)
        assert all(span.duration_s == pytest.approx(0.25) for span in sent)


@pytest.mark.parametrize("orders", [[], None, 3, [F(0), B(0)], [[F(0), ...]], ["FB"], [["forward 0"]], [[F]]])
def test_what_is_no_schedule_is_refused_at_once(orders):
    with pytest.raises(ValueError):
        Schedule(orders)


@pytest.mark.parametrize("counts", [(0, 4), (4, 0), (-1, 4), (2.0, 4), ("4", 8), (None, 1), (True, 4), (4, True)])
def test_impossible_counts_are_refused(counts):
    for make in (*WITHOUT_CHUNKS, lambda p, m: interleaved(p, m, 2)):
        with pytest.raises(ValueError, match="stages|micro_batches"):
            make(*counts)
    with pytest.raises(ValueError, match="chunks is 0"):
        interleaved(4, 8, 0)
    with pytest.raises(ValueError, match="micro_batch is -1"):
        Forward(-1)


@pytest.mark.parametrize("times", [{"forward_s": -1}, {"backward_s": float("nan")}, {"link_s": -0.5}, {"forward_s": [1, 2, 3]}])
def test_impossible_times_are_refused(times):
    with pytest.raises(ValueError, match=next(iter(times))):
        gpipe(4, 8).simulate(**times)


def test_a_schedule_is_a_value():
    schedule = one_f_one_b(2, 3)
    assert schedule == Schedule([list(order) for order in schedule]) == pickle.loads(pickle.dumps(schedule))
    assert schedule != gpipe(2, 3)
    assert Forward(0) != Backward(0) and Forward(1) == Forward(1, 0) and repr(Forward(1, chunk=2)) == "Forward(1, chunk=2)"
    assert schedule[1] == (F(0), B(0), F(1), B(1), F(2), B(2))


def test_text_form():
    assert str(one_f_one_b(2, 3)) == "stage 0  F0 F1 .  B0 F2 B1 .  B2\nstage 1  .  F0 B0 F1 B1 F2 B2 ."
    assert str(zero_bubble(2, 1)) == "stage 0  F0 .  .  I0 W0\nstage 1  .  F0 I0 W0 ."
    assert str(interleaved(1, 1, 2)) == "stage 0  F0.0 F0.1 B0.1 B0.0"
    wide = str(naive(4, 16)).splitlines()
    assert max(map(len, wide)) <= 100 and " ".join(wide).count("B15") == 4


def test_picture():
    pytest.importorskip("matplotlib")
    (axes,) = interleaved(4, 16, 2).draw().axes
    assert axes.get_title("left") == "stages: 4, micro-batches: 16, chunks: 2"
    assert axes.get_title("right") == "52.5 forward times  ·  bubble 8.6 %"
