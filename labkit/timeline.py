"""What every rank did when: spans, and the timeline that they form.

All times are seconds on one clock that the ranks of a timeline share; its zero is arbitrary. A measured timeline and
a predicted one are the same type. The spans of one stream may nest: the innermost one says what the stream does.
"""

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from labkit.intervals import inside, length, merge, subtract

COMPUTE_KINDS = ("forward", "backward", "backward_input", "backward_weight")
KINDS = (*COMPUTE_KINDS, "communicate", "wait", "optimizer")
STREAMS = ("compute", "communicate")


@dataclass(frozen=True)
class Span:
    """What one stream of one rank did from `start_s` to `end_s`; labels such as step, micro_batch, stage, chunk.

    `stream` is one of STREAMS and `kind` one of KINDS; anything else, or an end before the start, is a ValueError.
    """

    rank: int
    stream: str
    kind: str
    name: str
    start_s: float
    end_s: float
    labels: dict = field(default_factory=dict, hash=False)

    def __post_init__(self):
        if self.rank < 0:
            raise ValueError(f"rank {self.rank} is negative; ranks count from 0")
        if self.stream not in STREAMS:
            raise ValueError(f"stream {self.stream!r} is unknown; use one of {', '.join(STREAMS)}")
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is unknown; use one of {', '.join(KINDS)}")
        if not (math.isfinite(self.start_s) and math.isfinite(self.end_s)):
            raise ValueError(f"span {self.name!r} runs from {self.start_s} to {self.end_s}; both must be finite")
        if self.end_s < self.start_s:
            raise ValueError(f"span {self.name!r} ends at {self.end_s} s, before its start at {self.start_s} s")
        object.__setattr__(self, "labels", dict(self.labels))

    @property
    def duration_s(self):
        return self.end_s - self.start_s


@dataclass(frozen=True, repr=False)
class Timeline:
    """The spans of all ranks, sorted by start time (an outer span before the ones inside it)."""

    spans: tuple

    def __post_init__(self):
        ordered = sorted(self.spans, key=lambda span: (span.start_s, -span.end_s, span.rank, span.stream))
        object.__setattr__(self, "spans", tuple(ordered))

    def __repr__(self):
        return f"Timeline({len(self.spans)} spans, {len(self.ranks)} ranks)"

    @property
    def ranks(self):
        """The ranks that have spans, ascending."""
        return tuple(sorted({span.rank for span in self.spans}))

    @property
    def total_s(self):
        """Seconds from the first start to the last end over all ranks and kinds; 0 when there are no spans."""
        if not self.spans:
            return 0.0
        return max(span.end_s for span in self.spans) - self.spans[0].start_s

    @property
    def bubble(self):
        """Idle ÷ total, between 0 and 1; nan when nothing is computed.

        Total is ranks × window. A step's window opens with the first start of computing on *any* rank, so start skew
        lies outside, and closes with the last end of computing or communicating; the filling and draining of a
        pipeline and exposed communication lie inside. Moments at which ranks run the optimizer and none computes are
        cut out. Spans with different `step` labels have windows of their own: the gap between steps is left out.
        Busy is the union of a rank's forward and backward spans, less waits nested in them on the compute stream;
        all else in the window is idle, be it communication that no compute covers, a wait, or an early optimizer.
        """
        total_s = len(self.ranks) * length(self._windows)
        idle_s = sum(length(self.idle(rank)) for rank in self.ranks)
        return idle_s / total_s if total_s else math.nan

    def idle(self, rank):
        """The (start_s, end_s) intervals, ascending, in which `rank` does not compute though the window is open."""
        return subtract(self._windows, self._busy(rank))

    def live_micro_batches(self, stage):
        """Peak number of micro-batches whose forward has begun and whose backward has not ended on `stage`.

        Their activations are alive. A span's stage is its label `stage`, else its rank; where several ranks hold the
        stage, the fullest counts. With chunks, or a backward in two parts, a micro-batch lives from its first forward
        to the end of its last backward.
        """
        ranks = {}
        for span in self.spans:
            if span.labels.get("stage", span.rank) == stage and "micro_batch" in span.labels:
                ranks.setdefault(span.rank, []).append(span)
        return max((_peak_live(spans) for spans in ranks.values()), default=0)

    def overlap_s(self, rank):
        """Seconds during which `rank` communicates and computes at once."""
        communicating = merge(_times(s) for s in self.spans if s.rank == rank and s.kind == "communicate")
        return length(communicating) - length(subtract(communicating, self._busy(rank)))

    def overlapped(self, rank):
        """(count, total): how many of `rank`'s communicate spans begin before the last backward of their step ends."""
        mine = [span for span in self.spans if span.rank == rank]
        last_s = {}
        for span in mine:
            if span.kind.startswith("backward"):
                step = span.labels.get("step")
                last_s[step] = max(span.end_s, last_s.get(step, -math.inf))
        starts = [(span.start_s, span.labels.get("step")) for span in mine if span.kind == "communicate"]
        return sum(start_s < last_s.get(step, -math.inf) for start_s, step in starts), len(starts)

    def only(self, **labels):
        """The spans that carry all these labels (`only(step=3)`); rank, stream, kind and name may be asked for too."""

        def fits(span):
            known = {**span.labels, "rank": span.rank, "stream": span.stream, "kind": span.kind, "name": span.name}
            return all(known.get(key) == value for key, value in labels.items())

        return Timeline(tuple(span for span in self.spans if fits(span)))

    def draw(self, *, above=None, title="", badge="", unit="ms", normalised=False):
        """A figure with a lane per rank; `measured.draw(above=ideal)` stands two on one axis; needs matplotlib.

        `above` is a timeline or a list of them, and `title` then a list. Times in another `unit` than ms count as one
        second each; `normalised` divides each timeline by its length: for unlike units.
        """
        from labkit.draw_timeline import draw_timeline

        beneath = [above] if isinstance(above, Timeline) else above or []
        timelines = [self, *beneath]
        titles = [title] if isinstance(title, str) else list(title)
        return draw_timeline(timelines, titles[: len(timelines)], badge=badge, unit=unit, normalised=normalised)

    def save(self, path):
        """Write a Chrome trace (JSON, times in µs from the first start), which Perfetto opens; returns the path."""
        from labkit.chrome_trace import trace_events

        trace = {"traceEvents": trace_events(self), "displayTimeUnit": "ms"}
        path = Path(path)
        path.write_text(json.dumps(trace, default=str), encoding="utf-8")
        return path

    @cached_property
    def _windows(self):
        steps = {}
        for span in self.spans:
            if span.kind in (*COMPUTE_KINDS, "communicate"):
                steps.setdefault(span.labels.get("step"), []).append(span)
        computing = merge(_times(span) for span in self.spans if span.kind in COMPUTE_KINDS)
        updating = merge(_times(span) for span in self.spans if span.kind == "optimizer")
        return subtract(merge(filter(None, map(_window, steps.values()))), subtract(updating, computing))

    def _busy(self, rank):
        stream = [span for span in self.spans if span.rank == rank and span.stream == "compute"]
        computing = merge(_times(span) for span in stream if span.kind in COMPUTE_KINDS)
        pauses = (span for span in stream if span.kind not in COMPUTE_KINDS and inside(span.start_s, computing))
        return subtract(computing, merge(_times(span) for span in pauses))


def _window(spans):
    starts = [span.start_s for span in spans if span.kind in COMPUTE_KINDS]
    return (starts[0], max(span.end_s for span in spans)) if starts else None


def _times(span):
    return span.start_s, span.end_s


def _peak_live(spans):
    begins, ends = {}, {}
    for span in spans:
        key = span.labels.get("step"), span.labels["micro_batch"]
        if span.kind == "forward":
            begins.setdefault(key, span.start_s)
        elif span.kind in COMPUTE_KINDS:
            ends[key] = max(span.end_s, ends.get(key, -math.inf))
    events = [(start_s, +1) for start_s in begins.values()]
    events += [(ends[key], -1) for key in begins if key in ends]
    live = peak = 0
    for _, change in sorted(events):  # at equal times an end comes before a begin
        live += change
        peak = max(peak, live)
    return peak
