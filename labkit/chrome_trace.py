"""A timeline as a Chrome trace: the JSON that Perfetto (ui.perfetto.dev) opens.

Format: "Trace Event Format", Google: complete events (ph X) and metadata events (ph M); one process per rank, one
thread per stream.
"""

from labkit.timeline import STREAMS


def lanes(spans):
    """The lane of each span, so that the spans of a lane follow or nest; `spans` as a Timeline sorts them.

    Asynchronous collectives overlap without nesting, which neither a picture nor a trace can show in one lane.
    """
    open_ends, numbers = [], []  # per lane: the ends of the spans that are open, outer first
    for span in spans:
        lane = next((n for n, ends in enumerate(open_ends) if _fits(span, ends)), len(open_ends))
        if lane == len(open_ends):
            open_ends.append([])
        open_ends[lane].append(span.end_s)
        numbers.append(lane)
    return numbers


def trace_events(timeline):
    """The events of a Timeline, times in µs from its first start: names of ranks and streams, then the spans."""
    origin_s = timeline.spans[0].start_s if timeline.spans else 0.0
    events = []
    for rank in timeline.ranks:
        events.append(_metadata("process_name", rank, 0, name=f"rank {rank}"))
        events.append(_metadata("process_sort_index", rank, 0, sort_index=rank))
        first = 0
        for stream in STREAMS:
            spans = [span for span in timeline.spans if span.rank == rank and span.stream == stream]
            numbers = lanes(spans)
            for lane in sorted(set(numbers)):
                name = f"{stream} {lane + 1}" if lane else stream
                events.append(_metadata("thread_name", rank, first + lane, name=name))
                events.append(_metadata("thread_sort_index", rank, first + lane, sort_index=first + lane))
            events += [_complete(span, first + lane, origin_s) for span, lane in zip(spans, numbers)]
            first += max(numbers, default=0) + 1
    return events


def _fits(span, ends):
    while ends and ends[-1] <= span.start_s:
        ends.pop()
    return not ends or span.end_s <= ends[-1]


def _metadata(event, rank, thread, **args):
    return {"ph": "M", "name": event, "pid": rank, "tid": thread, "args": args}


def _complete(span, thread, origin_s):
    times = {"ts": (span.start_s - origin_s) * 1e6, "dur": span.duration_s * 1e6}
    where = {"pid": span.rank, "tid": thread}
    return {"ph": "X", "name": span.name, "cat": span.kind, "args": span.labels, **where, **times}
