"""Timelines against hand-counted schedules: totals, bubbles, live micro-batches, and overlap."""

import math
import pickle
import subprocess
import sys

import pytest

from labkit.timeline import Span, Timeline


def span(rank, kind, start_s, end_s, **labels):
    stream = "communicate" if kind == "communicate" else "compute"
    return Span(rank, stream, kind, kind, start_s, end_s, labels)


def run_schedule(orders, forward_s=1.0, backward_s=2.0):
    """Execute per-stage lists of ("forward" | "backward", micro_batch) as early as the dependencies allow."""
    done, free, spans, position = {}, [0.0] * len(orders), [], [0] * len(orders)
    while any(at < len(order) for at, order in zip(position, orders, strict=True)):
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                kind, micro_batch = order[position[stage]]
                needs = [(kind, micro_batch, stage + (1 if kind == "backward" else -1))]
                if kind == "backward":
                    needs.append(("forward", micro_batch, stage))
                needs = [need for need in needs if 0 <= need[2] < len(orders)]
                if any(need not in done for need in needs):
                    break
                start_s = max([free[stage], *(done[need] for need in needs)])
                free[stage] = done[kind, micro_batch, stage] = start_s + (forward_s if kind == "forward" else backward_s)
                spans.append(span(stage, kind, start_s, free[stage], micro_batch=micro_batch, stage=stage))
                position[stage] += 1
    return Timeline(spans)


def gpipe(stages, micro_batches):
    order = [("forward", m) for m in range(micro_batches)] + [("backward", m) for m in range(micro_batches)]
    return run_schedule([order] * stages)


def one_f_one_b(stages, micro_batches):
    orders = []
    for stage in range(stages):
        warm_up = min(stages - stage, micro_batches)
        order = [("forward", m) for m in range(warm_up)]
        for m in range(micro_batches):
            order.append(("backward", m))
            if warm_up + m < micro_batches:
                order.append(("forward", warm_up + m))
        orders.append(order)
    return run_schedule(orders)


@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
def test_known_total_and_bubble(schedule):
    timeline = schedule(4, 8)
    assert timeline.total_s == 33
    assert timeline.bubble == pytest.approx(3 / 11)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (1, 5), (2, 1), (3, 7), (8, 8), (4, 27)])
def test_bubble_formula(stages, micro_batches):
    assert gpipe(stages, micro_batches).bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def test_live_micro_batches():
    assert [gpipe(4, 8).live_micro_batches(stage) for stage in range(4)] == [8, 8, 8, 8]
    assert [one_f_one_b(4, 8).live_micro_batches(stage) for stage in range(4)] == [4, 3, 2, 1]
    assert gpipe(4, 8).live_micro_batches(4) == 0


def test_a_split_backward_keeps_its_micro_batch_until_the_weight_part():
    spans = [span(0, "forward", 0, 1, micro_batch=0), span(0, "backward_input", 1, 2, micro_batch=0)]
    spans += [span(0, "forward", 2, 3, micro_batch=1), span(0, "backward_weight", 3, 4, micro_batch=0)]
    assert Timeline(spans).live_micro_batches(0) == 2
    assert Timeline(spans[:2] + spans[2:3]).live_micro_batches(0) == 1


def test_live_micro_batches_of_several_steps_are_not_mixed_up():
    spans = []
    for step in range(3):
        spans.append(span(0, "forward", 10 * step, 10 * step + 1, micro_batch=0, step=step))
        spans.append(span(0, "backward", 10 * step + 1, 10 * step + 3, micro_batch=0, step=step))
    assert Timeline(spans).live_micro_batches(0) == 1


def test_bubble_leaves_out_start_skew_optimizer_and_gaps_between_steps():
    bare = gpipe(4, 8)
    dressed = []
    for step in (0, 1):
        shift_s = 100 * step
        dressed.append(span(3, "wait", shift_s - 5, shift_s + 3, step=step))
        for s in bare.spans:
            dressed.append(span(s.rank, s.kind, s.start_s + shift_s, s.end_s + shift_s, step=step, **s.labels))
        dressed += [span(rank, "optimizer", shift_s + 33, shift_s + 40, step=step) for rank in range(4)]
        dressed.append(span(3, "optimizer", shift_s + 27, shift_s + 34, step=step))
        dressed.append(span(0, "wait", shift_s + 40, shift_s + 41, step=step))
    timeline = Timeline(dressed)
    assert timeline.bubble == pytest.approx(3 / 11)
    assert timeline.only(step=1).bubble == pytest.approx(3 / 11)
    assert timeline.total_s == 146
    assert timeline.only(step=1).total_s == 46


def test_an_early_optimizer_is_idle_and_communication_under_compute_is_busy():
    spans = [span(0, "forward", 0, 4), span(0, "communicate", 1, 3), span(1, "forward", 0, 1)]
    spans += [span(1, "optimizer", 1, 2), span(1, "communicate", 2, 3), span(1, "wait", 3, 4)]
    timeline = Timeline(spans)
    assert timeline.idle(0) == []
    assert timeline.idle(1) == [(1, 4)]
    assert timeline.bubble == pytest.approx(3 / 8)


def test_exposed_communication_is_idle_and_the_optimizer_in_between_is_cut_out():
    spans = []
    for rank in (0, 1):
        spans += [span(rank, "forward", 0, 2), span(rank, "backward", 2, 6), span(rank, "communicate", 6, 8)]
        spans += [span(rank, "optimizer", 8, 11), span(rank, "communicate", 11, 12), span(rank, "wait", 12, 20)]
    timeline = Timeline(spans)
    assert timeline.idle(0) == [(6, 8), (11, 12)]
    assert timeline.bubble == pytest.approx(3 / 9)


def test_communication_of_a_step_without_compute_opens_no_window():
    spans = [span(0, "communicate", 0, 50), span(0, "forward", 60, 61, step=0)]
    assert Timeline(spans).bubble == 0


def test_a_wait_nested_in_compute_is_idle():
    timeline = Timeline([span(0, "forward", 0, 10), span(0, "wait", 2, 5), span(0, "wait", 4, 6)])
    assert timeline.idle(0) == [(2, 6)]
    assert timeline.bubble == pytest.approx(0.4)


def test_overlap_is_measured_and_counted():
    spans = [span(0, "forward", 0, 2), span(0, "backward", 2, 6)]
    spans += [span(0, "communicate", 3, 5), span(0, "communicate", 4, 5.5), span(0, "communicate", 5.5, 8)]
    spans += [span(0, "communicate", 6, 9), span(1, "communicate", 0, 9)]
    timeline = Timeline(spans)
    assert timeline.overlapped(0) == (3, 4)
    assert timeline.overlap_s(0) == pytest.approx(3)
    assert timeline.overlapped(1) == (0, 1)
    assert timeline.overlap_s(1) == 0


def test_overlap_is_counted_within_each_step():
    spans = [span(0, "backward", 0, 1, step=0), span(0, "communicate", 1, 2, step=0)]
    spans += [span(0, "backward", 3, 5, step=1), span(0, "communicate", 4, 6, step=1)]
    assert Timeline(spans).overlapped(0) == (1, 2)


def test_only_selects_by_labels_and_fields():
    timeline = gpipe(2, 3)
    assert len(timeline.only(micro_batch=1).spans) == 4
    assert len(timeline.only(micro_batch=1, rank=0, kind="forward").spans) == 1
    assert timeline.only(step=3).spans == ()


def test_spans_are_sorted_and_outer_spans_come_first():
    inner, outer, late = span(0, "wait", 0, 1), span(0, "forward", 0, 2), span(0, "forward", 3, 4)
    assert Timeline([late, inner, outer]).spans == (outer, inner, late)


def test_empty_timeline():
    timeline = Timeline([])
    assert (timeline.ranks, timeline.total_s, timeline.live_micro_batches(0)) == ((), 0, 0)
    assert math.isnan(timeline.bubble)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "forwards"}, "backward_weight"),
        ({"stream": "gpu"}, "compute, communicate"),
        ({"rank": -1}, "-1"),
        ({"end_s": 0.5}, "before its start"),
        ({"start_s": math.nan}, "finite"),
    ],
)
def test_wrong_spans_are_refused(change, says):
    right = {"rank": 0, "stream": "compute", "kind": "forward", "name": "f", "start_s": 1.0, "end_s": 2.0}
    Span(**right)
    with pytest.raises(ValueError, match=says):
        Span(**{**right, **change})


def test_a_span_copies_its_labels_and_travels():
    labels = {"step": 1}
    one = Span(0, "compute", "forward", "f", 0, 1, labels)
    labels["step"] = 2
    assert one.labels == {"step": 1}
    assert pickle.loads(pickle.dumps(Timeline([one]))) == Timeline([one])


def test_a_timeline_needs_no_matplotlib():
    code = "import sys; sys.modules['matplotlib'] = None; from labkit.timeline import Timeline; print(Timeline([]).total_s)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "0.0\n"
