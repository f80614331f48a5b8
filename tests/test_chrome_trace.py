"""The trace file of a timeline, and the intervals and lanes that it and the pictures need."""

import json

from labkit.chrome_trace import lanes
from labkit.intervals import merge, subtract
from labkit.timeline import KINDS, Span, Timeline


def span(rank, kind, start_s, end_s, **labels):
    stream = "communicate" if kind == "communicate" else "compute"
    return Span(rank, stream, kind, kind, start_s, end_s, labels)


def test_the_trace_names_ranks_and_streams_and_keeps_times(tmp_path):
    spans = [span(rank, kind, 5 + rank, 7 + rank, step=2) for rank in (0, 1) for kind in KINDS]
    path = Timeline(spans).save(tmp_path / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"} == {0: "rank 0", 1: "rank 1"}
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == len(spans)
    assert {e["ts"] for e in complete if e["pid"] == 1} == {1e6}
    assert {e["dur"] for e in complete} == {2e6}
    assert all(e["args"] == {"step": 2} for e in complete)
    assert {names[e["pid"], e["tid"]] for e in complete if e["cat"] == "communicate"} == {"communicate"}


def test_lanes_hold_nested_spans_and_part_overlapping_ones():
    times = [(0, 10), (1, 3), (2, 5), (3, 4), (10, 12)]
    spans = Timeline([span(0, "communicate", *pair) for pair in times]).spans
    assert lanes(spans) == [0, 0, 1, 0, 0]


def test_intervals():
    assert merge([(3, 4), (0, 1), (1, 2), (0.5, 1.5), (5, 5)]) == [(0, 2), (3, 4)]
    assert subtract([(0, 10), (12, 14)], [(-1, 1), (2, 3), (9, 13)]) == [(1, 2), (3, 9), (13, 14)]
    assert subtract([(0, 4)], []) == [(0, 4)]
